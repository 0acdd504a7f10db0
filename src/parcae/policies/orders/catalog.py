"""Policies of the world of cores by name: those that plan by a formula, and those that decide and plan through the adapter.

What only decides (`parcae.policies.catalog`) plans here by being asked until all cores are given away
(`Simulator.step`); what reasons about executor classes, idle slots or moves stays in the world of executors.
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

#: Stands between a policy's name and the guard's factor.
_GUARD = "+guard"
_GUARD_HELP = "write a factor above 1 behind it, e.g. srpt+guard:1.1"
#: Endings of the names of allocation files.
_POOL_FILES = (".json", ".xml")
#: What stays in the world of executors, and why.
_EXECUTORS_ONLY: Mapping[str, str] = MappingProxyType(
    {
        "tetris": "decides about executor classes",
        "graphene": "decides about executor classes",
        "idle-theory": "decides about idle slots",
        "order": "gives all executors to one job, as in Decima's Appendix H",
        "spark_fifo": "counts executors ever granted, which every plan grants anew",
        "spark_static_N": "counts executors ever granted, which every plan grants anew",
    }
)


@dataclass(frozen=True)
class OrderEntry:
    """One line of the catalogue of the world of cores: how the policy is written, what it does, where it comes from.

    Args:
        title: what the policy is, in the words of tables.
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
    OrderEntry("fifo", "first job first, then by stage: what Spark does by default", _SPARK, "Spark's FIFO: job id, stage id",
               OrderKind.FIFO),
    OrderEntry("fifo:spark-jobs", "every stage is a Spark job of its own, numbered when it becomes runnable, so that an old "
               "query's late stages queue behind younger queries", "Spark's AdaptiveSparkPlanExec",
               "Spark's FIFO under adaptive execution: every stage a Spark job", OrderKind.FIFO_SPARK_JOBS),
    OrderEntry("fair", "equal shares over jobs: Spark's fair scheduler where every job has a pool of its own", _SPARK,
               "Spark's FAIR, a pool a job", OrderKind.FAIR),
    OrderEntry("fair:POOLS.xml|json", "Spark's fair scheduler with the pools of an allocation file: weights, minimum shares, "
               "FIFO or FAIR inside", _SPARK, "Spark's FAIR, pools of", OrderKind.POOLS),
    OrderEntry("sjf", "least total work first", "control", "least total work first", OrderKind.SJF),
    OrderEntry("srpt", "least remaining work first", "Schrage 1968", "least remaining work first", OrderKind.SRPT),
    OrderEntry("fsp", "by the order in which jobs would end under fair sharing", "Friedman & Henderson 2003",
               "order of virtual completion under fair sharing", OrderKind.FSP),
    OrderEntry("psbs", "as fsp, but jobs that outlived their estimate share", "Dell'Amico, Carra & Michiardi 2016",
               "order of virtual completion; late jobs share", OrderKind.PSBS),
    OrderEntry("las", "least attained service first: knows no sizes", "Rai, Urvoy-Keller & Biersack 2003",
               "least attained service first", OrderKind.LAS),
    OrderEntry("gittins", "largest Gittins index first, over a recurring job's own spread", "Gittins 1979; Scully 2018",
               "largest Gittins index first", OrderKind.GITTINS),
)  # fmt: skip

GUARD_USAGE = "POLICY+guard:FACTOR"
GUARD_SUMMARY = "the policy, but a job that is about to end later than FACTOR times its end under virtual fair sharing goes first"

_BY_USAGE = {entry.usage: entry for entry in ORDER_CATALOG}
_POOLS = next(entry for entry in ORDER_CATALOG if entry.kind is OrderKind.POOLS)
_DECIDING = tuple(entry.name for entry in CATALOG if entry.name not in _EXECUTORS_ONLY)


def all_policies() -> Iterator[tuple[str, str, str, str]]:
    """(usage, summary, source, world) of every policy of both worlds; world is "cores", "executors" or "both"."""
    for entry in ORDER_CATALOG:
        yield entry.usage, entry.summary, entry.source, "cores"
    yield GUARD_USAGE, GUARD_SUMMARY, "Parcae", "cores"
    for other in CATALOG:
        is_own = other.name in _EXECUTORS_ONLY or other.name in _BY_USAGE
        yield other.usage, other.summary, other.source, "executors" if is_own else "both"


def split_guard(text: str) -> tuple[str, float | None]:
    """The policy and the factor of its guard, if it has one.

    Raises:
        PolicyError: a guard without a finite factor above 1, or several guards.

    Example: `split_guard("srpt+guard:1.1")` is ("srpt", 1.1).
    """
    name, mark, rest = text.partition(_GUARD)
    if not mark:
        return text, None
    if _GUARD in rest:
        raise PolicyError(f"policy {text!r} has two guards; one is enough")
    try:
        factor = float(rest.removeprefix(":")) if rest.startswith(":") else math.nan
    except ValueError:
        factor = math.nan
    if not math.isfinite(factor) or factor <= 1.0 or not name:
        raise PolicyError(f"policy {text!r}: {_GUARD_HELP}")
    return name, factor


def refuse_planners(text: str) -> None:
    """Refuse, in the world of executors, what exists in the world of cores only.

    Raises:
        PolicyError: such a name; the message says where it belongs.
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
    """The policy without learned parameters, and without a guard, that `text` names in the world of cores.

    Raises:
        PolicyError: no such policy (the message suggests one), a wrong argument, or one of the other world.
        ConfigError, FormatError, OSError: as `make_order_policy`.
    """
    name = "spark_static_N" if text.startswith("spark_static_") else text.partition(":")[0]
    if name in _EXECUTORS_ONLY:
        raise PolicyError(f"policy {text!r} {_EXECUTORS_ONLY[name]}: choose --world executors")
    if name in {entry.name for entry in ORDER_CATALOG}:
        return make_order_policy(text, workload, config)
    known = [*dict.fromkeys([*(entry.name for entry in ORDER_CATALOG), *_DECIDING])]
    if not any(name == own or text.startswith("wfair_") for own in known):
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
        raise PolicyError(f"unknown policy {text!r}; {hint} (`parcae policies` lists all)")
    return make_policy(text, config.total_executors)


def make_order_policy(text: str, workload: Workload, config: SimulationConfig) -> OrderPolicy:
    """The policy by formula that `text` names: NAME, fifo:spark-jobs or fair:FILE.

    Args:
        workload: whose jobs go to the pools of an allocation file, and have the spread that Gittins' index is over.

    Raises:
        PolicyError: no such policy (the message suggests one), or a wrong argument.
        ConfigError: an allocation file with a pool that no job goes to, or with too many pools.
        FormatError, OSError: an allocation file that cannot be read.

    Example: `make_order_policy("fair:pools.xml", workload, SimulationConfig(world="cores"))`.
    """
    name, _, argument = text.partition(":")
    if name == "fair" and argument.endswith(_POOL_FILES):
        return OrderPolicy(text, OrderKind.POOLS, _pools_of_file(argument, workload))
    if text == _POOLS.usage or text not in _BY_USAGE:
        raise _not_understood(text, name)
    kind = _BY_USAGE[text].kind
    if kind is OrderKind.GITTINS:
        from parcae.policies.orders.gittins import gittins_tables

        return OrderPolicy(text, kind, plan_tables(**gittins_tables(workload, config)))
    return OrderPolicy(text, kind, plan_tables())


def _not_understood(text: str, name: str) -> PolicyError:
    if name == "fifo":
        return PolicyError(f"policy {text!r}: the argument is 'spark-jobs' or nothing")
    if name == "fair":
        return PolicyError(
            f"policy {text!r}: in the world of cores the argument is an allocation file (*.xml, *.json) or nothing"
        )
    if name in _BY_USAGE:
        return PolicyError(f"policy {text!r} takes no argument; write {name!r}")
    close = difflib.get_close_matches(name, _BY_USAGE, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(_BY_USAGE)}"
    return PolicyError(f"unknown policy {text!r}; {hint} (`parcae policies` lists all)")


def title_of(text: str) -> str:
    """What a policy by formula is, in words.

    Example: `title_of("fair")` is "Spark's FAIR, a pool a job".
    """
    if text in _BY_USAGE:
        return _BY_USAGE[text].title
    return f"{_POOLS.title} {text.partition(':')[2]}"


def _pools_of_file(path: str, workload: Workload) -> PlanTables:
    allocation = read_allocation(path)
    names = [job.name for job in workload.jobs]
    recorded = [job.pool or None for job in workload.jobs]
    allocation.check_used(names, recorded)
    return pool_tables(allocation.all_pools, allocation.pools_of(names, recorded), path)


def pool_tables(pools: tuple[PoolSpec, ...], job_pools: tuple[str, ...], source: str) -> PlanTables:
    """The tables of Spark's fair scheduler with pools.

    Args:
        pools: the pools; of equal need Spark serves the first by name.
        job_pools: the pool of every job of the workload; jobs that are not in it go to `default`, or the first.
        source: for the message.

    Raises:
        ConfigError: more pools than can be simulated.
    """
    if len(pools) > MAX_POOLS:
        raise ConfigError(f"{source}: {len(pools)} pools; at most {MAX_POOLS} can be simulated")
    if len(pools) == 1:
        # The dispatcher compares pools only where there are several; beside an empty one a single one can be FAIR inside.
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
    """The tables of orders that are given: a tier for every job and a limit for every stage, in order of arrival."""
    return plan_tables(tiers=np.array(tiers, np.float64), limits=np.array(limits, np.int64))
