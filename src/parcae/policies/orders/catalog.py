"""The catalogue of the world of cores: every policy by name.

Some policies plan by a formula. Others only make decisions (`parcae.policies.catalog`); an adapter
calls them repeatedly until all cores are assigned (`Simulator.step`), which gives a plan. Policies
that depend on executor classes, idle slots or moves exist in the world of executors only.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from parcae.cluster.state import MAX_POOLS, POOL
from parcae.errors import ConfigError, PolicyError
from parcae.policies.catalog import CATALOG, make_policy
from parcae.policies.heuristics.policy import HeuristicPolicy
from parcae.policies.orders.layout import OrderKind, PlanTables
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.simulation.config import SimulationConfig
from parcae.workloads.allocation import DEFAULT_POOL, PoolSpec, read_allocation
from parcae.workloads.job import Workload

#: Separates a policy's name from the guard's factor.
_GUARD = "+guard"
_GUARD_HELP = "write a factor above 1 after the guard, e.g. srpt+guard:1.1"
#: Suffixes of allocation files.
_POOL_FILES = (".json", ".xml")
#: Policies that exist in the world of executors only, and why.
_EXECUTORS_ONLY: Mapping[str, str] = MappingProxyType(
    {
        "tetris": "decides about executor classes",
        "graphene": "decides about executor classes",
        "idle-theory": "decides about idle slots",
        "order": "gives all executors to one job, as in Decima's Appendix H",
        "spark_fifo": "counts executors ever granted, but every plan grants all cores again",
        "spark_static_N": "counts executors ever granted, but every plan grants all cores again",
    }
)


@dataclass(frozen=True)
class OrderEntry:
    """One line of the catalogue of the world of cores.

    Args:
        usage: how to write the policy, e.g. "fifo".
        summary: what the policy does.
        source: where the policy comes from.
        title: name of the policy in tables of results.
        kind: which formula it plans by.
    """

    usage: str
    summary: str
    source: str
    title: str
    kind: OrderKind

    @property
    def name(self) -> str:
        """The name without its argument."""
        return self.usage.partition("[")[0].partition(":")[0]


_SPARK = "Spark's TaskSchedulerImpl and Pool"

ORDER_CATALOG: tuple[OrderEntry, ...] = (
    OrderEntry("fifo", "first job first, then by stage: what Spark does by default", _SPARK,
               "Spark's FIFO: job id, stage id", OrderKind.FIFO),
    OrderEntry("fifo:spark-jobs", "every stage is a separate Spark job, numbered when it becomes "
               "runnable, so that late stages of an old query queue behind younger queries",
               "Spark's AdaptiveSparkPlanExec",
               "Spark's FIFO under adaptive execution: every stage a Spark job",
               OrderKind.FIFO_SPARK_JOBS),
    OrderEntry("fair", "equal shares over jobs: Spark's fair scheduler with one pool per job",
               _SPARK, "Spark's FAIR, a pool a job", OrderKind.FAIR),
    OrderEntry("fair:POOLS.xml|json", "Spark's fair scheduler with the pools of an allocation "
               "file: weights, minimum shares, FIFO or FAIR inside", _SPARK,
               "Spark's FAIR, pools of", OrderKind.POOLS),
    OrderEntry("sjf", "least total work first", "control", "least total work first", OrderKind.SJF),
    OrderEntry("srpt", "least remaining work first", "Schrage 1968", "least remaining work first",
               OrderKind.SRPT),
    OrderEntry("fsp", "in the order in which jobs would complete under fair sharing",
               "Friedman & Henderson 2003", "order of virtual completion under fair sharing",
               OrderKind.FSP),
    OrderEntry("psbs", "as fsp, but jobs that take longer than estimated share the cores",
               "Dell'Amico, Carra & Michiardi 2016", "order of virtual completion; late jobs share",
               OrderKind.PSBS),
    OrderEntry("las", "least attained service first; does not use sizes",
               "Rai, Urvoy-Keller & Biersack 2003", "least attained service first", OrderKind.LAS),
    OrderEntry("gittins", "largest Gittins index first, by the spread of a recurring job's size",
               "Gittins 1979; Scully 2018", "largest Gittins index first", OrderKind.GITTINS),
)  # fmt: skip

GUARD_USAGE = "POLICY+guard:FACTOR"
GUARD_SUMMARY = (
    "the policy, but a job goes first if its time in the system would otherwise exceed FACTOR "
    "times its time under virtual fair sharing"
)

_BY_USAGE = {entry.usage: entry for entry in ORDER_CATALOG}
_POOLS = next(entry for entry in ORDER_CATALOG if entry.kind is OrderKind.POOLS)
_DECISION_POLICIES = tuple(entry.name for entry in CATALOG if entry.name not in _EXECUTORS_ONLY)


def all_policies() -> Iterator[tuple[str, str, str, str]]:
    """Yield (usage, summary, source, world) of every policy of both worlds.

    `world` is "cores", "executors" or "both".
    """
    for entry in ORDER_CATALOG:
        yield entry.usage, entry.summary, entry.source, "cores"
    yield GUARD_USAGE, GUARD_SUMMARY, "Parcae", "cores"
    for other in CATALOG:
        is_executors_only = other.name in _EXECUTORS_ONLY or other.name in _BY_USAGE
        yield other.usage, other.summary, other.source, "executors" if is_executors_only else "both"


def split_guard(text: str) -> tuple[str, float | None]:
    """Split a text into the policy and the factor of its guard (None without a guard).

    Raises:
        PolicyError: the guard has no finite factor above 1, or there are several guards.

    Example: `split_guard("srpt+guard:1.1")` is ("srpt", 1.1).
    """
    name, mark, rest = text.partition(_GUARD)
    if not mark:
        return text, None
    if _GUARD in rest:
        raise PolicyError(f"policy {text!r} has more than one guard; write only one")
    try:
        factor = float(rest.removeprefix(":")) if rest.startswith(":") else math.nan
    except ValueError:
        factor = math.nan
    if not math.isfinite(factor) or factor <= 1.0 or not name:
        raise PolicyError(f"policy {text!r}: {_GUARD_HELP}")
    return name, factor


def refuse_planners(text: str) -> None:
    """Reject policies that exist in the world of cores only; for use in the world of executors.

    Raises:
        PolicyError: `text` names such a policy, or has a guard.
    """
    is_guarded = _GUARD in text
    name, _, argument = text.partition(":")
    plans = text in _BY_USAGE and text not in ("fifo", "fair")
    is_file = name == "fair" and argument.endswith(_POOL_FILES)
    if plans or is_file or is_guarded:
        what = "the guard" if is_guarded else "it plans standing orders and"
        raise PolicyError(
            f"policy {text!r}: {what} exists in the world of cores only; choose --world cores"
        )


def make_cores_policy(
    text: str, workload: Workload, config: SimulationConfig
) -> OrderPolicy | HeuristicPolicy:
    """Return the policy that `text` names in the world of cores.

    Policies with learned parameters or a guard are not made here.

    Args:
        text: NAME or NAME:ARGUMENT.
        workload: the workload that the policy schedules.
        config: the cluster.

    Raises:
        PolicyError: there is no such policy (the message suggests one), the argument is wrong, or
            the policy exists in the world of executors only.
        ConfigError, FormatError, OSError: see `make_order_policy`.
    """
    name = "spark_static_N" if text.startswith("spark_static_") else text.partition(":")[0]
    if name in _EXECUTORS_ONLY:
        raise PolicyError(f"policy {text!r} {_EXECUTORS_ONLY[name]}: choose --world executors")
    if name in {entry.name for entry in ORDER_CATALOG}:
        return make_order_policy(text, workload, config)
    known = [*dict.fromkeys([*(entry.name for entry in ORDER_CATALOG), *_DECISION_POLICIES])]
    if not any(name == candidate or text.startswith("wfair_") for candidate in known):
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
        raise PolicyError(f"unknown policy {text!r}; {hint} (`parcae policies` lists all)")
    return make_policy(text, config.total_executors)


def make_order_policy(text: str, workload: Workload, config: SimulationConfig) -> OrderPolicy:
    """Return the policy that plans by the formula `text`.

    Args:
        text: NAME, fifo:spark-jobs or fair:FILE.
        workload: the workload; its jobs go to the pools of an allocation file, and their spread of
            sizes determines the Gittins index.
        config: the cluster and its estimate errors.

    Raises:
        PolicyError: there is no such policy (the message suggests one), or the argument is wrong.
        ConfigError: the allocation file has a pool to which no job goes, or too many pools.
        FormatError, OSError: the allocation file cannot be read.

    Example: `make_order_policy("fair:pools.xml", workload, SimulationConfig(world="cores"))`.
    """
    name, _, argument = text.partition(":")
    if name == "fair" and argument.endswith(_POOL_FILES):
        return OrderPolicy(text, OrderKind.POOLS, _read_pool_tables(argument, workload))
    if text == _POOLS.usage or text not in _BY_USAGE:
        raise _argument_error(text, name)
    kind = _BY_USAGE[text].kind
    if kind is OrderKind.GITTINS:
        # SciPy is slow to import, and no other formula needs it.
        from parcae.policies.orders.gittins import gittins_tables

        return OrderPolicy(text, kind, plan_tables(**gittins_tables(workload, config)))
    return OrderPolicy(text, kind, plan_tables())


def _argument_error(text: str, name: str) -> PolicyError:
    """The error for a text that names no policy by formula: wrong argument or unknown name."""
    if name == "fifo":
        return PolicyError(f"policy {text!r}: the argument is 'spark-jobs' or nothing")
    if name == "fair":
        return PolicyError(
            f"policy {text!r}: in the world of cores the argument is an allocation file "
            "(*.xml, *.json) or nothing"
        )
    if name in _BY_USAGE:
        return PolicyError(f"policy {text!r} takes no argument; write {name!r}")
    close = difflib.get_close_matches(name, _BY_USAGE, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(_BY_USAGE)}"
    return PolicyError(f"unknown policy {text!r}; {hint} (`parcae policies` lists all)")


def title_of(text: str) -> str:
    """Return the title of a policy by formula, for tables of results.

    Example: `title_of("fair")` is "Spark's FAIR, a pool a job".
    """
    if text in _BY_USAGE:
        return _BY_USAGE[text].title
    return f"{_POOLS.title} {text.partition(':')[2]}"


def _read_pool_tables(path: str, workload: Workload) -> PlanTables:
    """The tables of the pools in an allocation file."""
    allocation = read_allocation(path)
    names = [job.name for job in workload.jobs]
    recorded = [job.pool or None for job in workload.jobs]
    allocation.check_used(names, recorded)
    return pool_tables(allocation.all_pools, allocation.pools_of(names, recorded), path)


def pool_tables(pools: tuple[PoolSpec, ...], job_pools: tuple[str, ...], source: str) -> PlanTables:
    """Return the tables of Spark's fair scheduler with pools.

    Args:
        pools: the pools. Of pools with equal need, Spark serves the first by name.
        job_pools: the pool of every job of the workload. Other jobs go to the pool `default`, or to
            the first pool if there is no such pool.
        source: name of the allocation file, for error messages.

    Raises:
        ConfigError: there are more pools than can be simulated.
    """
    if len(pools) > MAX_POOLS:
        raise ConfigError(f"{source}: {len(pools)} pools; at most {MAX_POOLS} can be simulated")
    if len(pools) == 1:
        # The dispatcher uses pools only if there are several. With an empty second pool, a single
        # pool can have the mode FAIR as well.
        pools = (*pools, PoolSpec(f"not {pools[0].name}"))
    row_of = {pool.name: row for row, pool in enumerate(pools)}
    table = np.zeros(len(pools), POOL)
    table["weight"] = [pool.weight for pool in pools]
    table["min_share"] = [pool.min_share for pool in pools]
    table["is_fair"] = [pool.mode == "FAIR" for pool in pools]
    for rank, name in enumerate(sorted(row_of)):
        table["name_rank"][row_of[name]] = rank
    pool_of = np.array(
        [*(row_of[name] for name in job_pools), row_of.get(DEFAULT_POOL, 0)], np.int64
    )
    return plan_tables(pool_of=pool_of, pools=table)


def given_tables(tiers: list[float], limits: list[int]) -> PlanTables:
    """Return the tables of fixed orders: tiers of jobs, limits of stages, in order of arrival."""
    return plan_tables(tiers=np.array(tiers, np.float64), limits=np.array(limits, np.int64))
