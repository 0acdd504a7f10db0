"""Runs of the job sets of Spark's own world: nothing is drawn, and what the file says of durations is what policies know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from parcae.cluster.state import UNLIMITED
from parcae.cluster.trace import Trace
from parcae.errors import PolicyError
from parcae.evaluation.tuning import AnyPolicy, resolve_policies
from parcae.policies.orders.catalog import given_tables, pool_tables
from parcae.policies.orders.layout import OrderKind
from parcae.policies.orders.policy import OrderPolicy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.run import simulate
from parcae.simulation.tables import DurationMode
from parcae.workloads.spark_world_set import SparkWorldSet

#: The policies of the conformance file; those that only a set can define, and what they are.
CONFORMANCE_ORDERS = ("fifo", "fair", "fair-pools", "sjf", "srpt", "orders")
_OF_THE_SET: Mapping[str, str] = {
    "fair-pools": "Spark's FAIR, the pools of the set",
    "orders": "standing orders: the tiers and limits of the set",
}


@dataclass(frozen=True)
class SetRun:
    """One set under one policy; `variant` says what the policy's name became."""

    job_set: SparkWorldSet
    policy: str
    variant: str
    trace: Trace


def set_config(
    job_set: SparkWorldSet, config: SimulationConfig, cores: int | None = None
) -> SimulationConfig:
    """The set's own cores unless others are given, every task with its own duration, estimates taken as they are."""
    return config.model_copy(
        update={
            "world": WorldName.CORES,
            "num_executors": cores or job_set.cores,
            "durations": DurationMode.LISTED,
            "corrects_estimates": False,
        }
    )


def set_policy(name: str, job_set: SparkWorldSet) -> OrderPolicy:
    """`fair-pools` (the set's pools) or `orders` (its tiers and limits).

    Raises:
        PolicyError: another name.
        ConfigError: more pools than can be simulated.
    """
    if name == "fair-pools":
        tables = pool_tables(job_set.pools, job_set.job_pools, f"set {job_set.name!r}")
        return OrderPolicy(name, OrderKind.POOLS, tables)
    if name == "orders":
        arriving = [int(position) for position in job_set.sequence.job_index]
        tiers = [job_set.tiers[position] for position in arriving]
        limits = [limit for position in arriving for limit in _limits(job_set, position)]
        return OrderPolicy(name, OrderKind.GIVEN, given_tables(tiers, limits))
    raise PolicyError(
        f"policy {name!r} is not one that a set defines; these are {', '.join(_OF_THE_SET)}"
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
        names: as in the catalogue, and `fair-pools` and `orders`.
        config: what the sets are silent about; see `set_config`.
        cores: run on so many instead of the sets' own.
        record: keep every task in the traces.

    Raises:
        PolicyError, ConfigError: a policy that is unknown or cannot be carried out.

    Example: `next(run_sets(list(sets.values()), ["srpt"], SimulationConfig())).trace.completion_ms`.
    """
    for job_set in sets:
        own = set_config(job_set, config, cores)
        others = [name for name in names if name not in _OF_THE_SET]
        resolved = resolve_policies(
            job_set.workload, others, own, "batch", job_set.sequence.num_jobs
        )
        found = resolved.for_sequence(job_set.sequence, seed)
        for name in dict.fromkeys(names):
            policy: AnyPolicy = set_policy(name, job_set) if name in _OF_THE_SET else found[name]
            variant = _OF_THE_SET.get(name) or resolved.variants[name]
            yield SetRun(
                job_set, name, variant, simulate(job_set.sequence, policy, own, seed, record=record)
            )
