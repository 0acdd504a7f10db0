"""Run the job sets of the conformance file in the cores world.

Nothing is random in these runs: the file lists every arrival and every task duration, and policies
know the durations from the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from parcae.base.errors import PolicyError
from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders, Planner, first_come
from parcae.cluster.state import UNLIMITED
from parcae.cluster.trace import Trace
from parcae.evaluation.policies import resolve_policies
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, pool_tables
from parcae.policies.own import AnyPolicy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.simulation.tables import DurationMode
from parcae.workloads.job_sets import SparkWorldSet

#: The policies of the conformance file.
CONFORMANCE_ORDERS = ("fifo", "fair", "fair-pools", "sjf", "srpt", "orders")
#: Policies that need data from a job set, with a description.
_OF_THE_SET: Mapping[str, str] = {
    "fair-pools": "Spark's FAIR, the pools of the set",
    "orders": "standing orders: the tiers and limits of the set",
}


@dataclass(frozen=True)
class SetRun:
    """The run of one set under one policy; `variant` is what the policy's name was resolved to."""

    job_set: SparkWorldSet
    policy: str
    variant: str
    trace: Trace


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


def set_policy(name: str, job_set: SparkWorldSet) -> Planner:
    """The policy `fair-pools` (with the set's pools) or `orders` (with its tiers and limits)."""
    if name == "fair-pools":
        tables = pool_tables(job_set.pools, job_set.job_pools, f"set {job_set.name!r}")
        return OrderPolicy(name, OrderKind.POOLS, tables)
    if name == "orders":
        arriving = [int(position) for position in job_set.sequence.job_index]
        tiers = [job_set.tiers[position] for position in arriving]
        limits = [limit for position in arriving for limit in _limits(job_set, position)]
        return GivenOrders(name, tiers, limits)
    raise PolicyError(
        f"policy {name!r} is not defined by a job set; choose one of {', '.join(_OF_THE_SET)}"
    )


def _limits(job_set: SparkWorldSet, position: int) -> Sequence[int]:
    given = job_set.limits[position]
    return [UNLIMITED] * len(job_set.workload.jobs[position].stages) if given is None else given


def run_sets(
    sets: Sequence[SparkWorldSet],
    names: Sequence[str],
    config: SimulationConfig,
    seed: int = 0,
    *,
    cores: int | None = None,
    record: bool = False,
) -> Iterator[SetRun]:
    """Run every set under every policy.

    Args:
        sets: the job sets.
        names: policies as in the catalogue, and `fair-pools` and `orders`.
        config: the settings that the sets do not define; see `set_config`.
        seed: seed of policies that use random numbers.
        cores: number of cores; None takes each set's number.
        record: keep every task in the traces.

    Returns:
        The runs, set by set, in the order of the names.

    Raises:
        PolicyError: a policy is unknown.
        ConfigError: a policy cannot run with these settings.

    Example:
        `next(run_sets(list(sets.values()), ["srpt"], SimulationConfig())).trace.completion_ms`.
    """
    for job_set in sets:
        set_settings = set_config(job_set, config, cores)
        others = [name for name in names if name not in _OF_THE_SET]
        arrivals = job_set.sequence.nearest_process
        resolved = resolve_policies(
            job_set.workload, others, set_settings, arrivals, job_set.sequence.num_jobs
        )
        policies = resolved.for_sequence(job_set.sequence, seed)
        for name in dict.fromkeys(names):
            policy: AnyPolicy = set_policy(name, job_set) if name in _OF_THE_SET else policies[name]
            variant = _OF_THE_SET.get(name) or resolved.variants[name]
            yield SetRun(
                job_set,
                name,
                variant,
                simulate(job_set.sequence, policy, set_settings, seed, record=record),
            )
