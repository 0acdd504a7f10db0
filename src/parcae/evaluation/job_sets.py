"""Run the job sets of the conformance file in the cores world.

Nothing is random in these runs: the file lists every arrival and every task duration, and policies
know the durations from the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders, Planner, first_come
from parcae.cluster.state import UNLIMITED
from parcae.evaluation.policies import Resolved, ResolvedPolicies, resolve_policies
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, pool_tables
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.tables import DurationMode
from parcae.workloads.job_sets import SparkWorldSet

#: The policies of the conformance file.
CONFORMANCE_ORDERS = ("fifo", "fair", "fair-pools", "sjf", "srpt", "orders")


def set_config(
    job_set: SparkWorldSet, config: SimulationConfig, cores: int | None = None
) -> SimulationConfig:
    """The simulation settings of a job set.

    Every task has the duration that the set lists, and estimates are not corrected.
    """
    return config.model_copy(
        update={
            "world": WorldName.CORES,
            "num_executors": cores or job_set.cores,
            "durations": DurationMode.LISTED,
            "corrects_estimates": False,
        }
    )


def resolve_set(
    names: Sequence[str], job_set: SparkWorldSet, config: SimulationConfig
) -> ResolvedPolicies:
    """The policies of a set, with its settings (`set_config`): those of the catalogue, and
    `fair-pools` and `orders`.
    """
    others = [name for name in names if name not in _OF_THE_SET]
    sequence = job_set.sequence
    resolved = resolve_policies(
        job_set.workload, others, config, sequence.nearest_process, sequence.num_jobs
    )
    rows = dict(resolved.rows)
    for name in set(names) & _OF_THE_SET.keys():
        make, words = _OF_THE_SET[name]
        rows[name] = Resolved(make(job_set), words)
    return replace(resolved, rows={name: rows[name] for name in names})


def _fair_pools(job_set: SparkWorldSet) -> OrderPolicy:
    tables = pool_tables(job_set.pools, job_set.job_pools, f"set {job_set.name!r}")
    return OrderPolicy("fair-pools", OrderKind.POOLS, tables)


@dataclass
class GivenOrders:
    """Standing orders: tiers of jobs and limits of stages, in order of arrival."""

    name: str
    tiers: Sequence[float]
    limits: Sequence[int]

    def plan(self, observation: Observation) -> Orders:
        """The same orders, for those that have arrived."""
        orders = first_come(observation)
        num_jobs, num_stages = observation.now.num_jobs[0], observation.now.num_stages[0]
        orders.jobs.tier[:num_jobs] = self.tiers[:num_jobs]
        orders.stages.limit[:num_stages] = self.limits[:num_stages]
        return orders


def _orders(job_set: SparkWorldSet) -> GivenOrders:
    arriving = [int(position) for position in job_set.sequence.job_index]
    tiers = [job_set.tiers[position] for position in arriving]
    limits = [limit for position in arriving for limit in _limits(job_set, position)]
    return GivenOrders("orders", tiers, limits)


def _limits(job_set: SparkWorldSet, position: int) -> Sequence[int]:
    given = job_set.limits[position]
    return [UNLIMITED] * len(job_set.workload.jobs[position].stages) if given is None else given


#: Policies that need data from a job set, and what they are called.
_OF_THE_SET: Mapping[str, tuple[Callable[[SparkWorldSet], Planner], str]] = {
    "fair-pools": (_fair_pools, "Spark's FAIR, the pools of the set"),
    "orders": (_orders, "standing orders: the tiers and limits of the set"),
}
