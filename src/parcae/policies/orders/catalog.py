"""The catalogue of the world of cores: every policy by name.

Some policies plan by a formula. Others only make decisions (`parcae.decima.catalog`); an adapter
calls them repeatedly until all cores are assigned (`Simulator.step`), which gives a plan. Policies
that depend on executor classes, idle slots or moves exist in the world of executors only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parcae.base.errors import PolicyError
from parcae.decima.catalog import CATALOG, make_policy
from parcae.decima.heuristics.policy import HeuristicPolicy
from parcae.policies.additions import POOL_FILES, split_policy
from parcae.policies.orders.kernels import OrderKind, PlanTables
from parcae.policies.orders.policy import OrderPolicy, job_pools, plan_tables, pool_rows
from parcae.policies.registry import Catalogue, PolicyEntry, refuse_argument
from parcae.simulation.config import SimulationConfig
from parcae.workloads.job import Workload
from parcae.workloads.pools import DEFAULT_POOL, PoolSpec, read_allocation


@dataclass(frozen=True)
class PlanSetting:
    """What a policy of the world of cores is made for."""

    workload: Workload
    config: SimulationConfig


def _formula(kind: OrderKind) -> Callable[[str, str, PlanSetting], OrderPolicy]:
    """A maker of policies without argument."""

    def make(text: str, argument: str, setting: PlanSetting) -> OrderPolicy:
        refuse_argument(text, argument)
        return OrderPolicy(text, kind, plan_tables())

    return make


def _fifo(text: str, argument: str, setting: PlanSetting) -> OrderPolicy:
    if argument not in ("", "spark-jobs"):
        raise PolicyError(f"policy {text!r}: the argument is 'spark-jobs' or nothing")
    kind = OrderKind.FIFO_SPARK_JOBS if argument else OrderKind.FIFO
    return OrderPolicy(text, kind, plan_tables())


def _fair(text: str, argument: str, setting: PlanSetting) -> OrderPolicy:
    if argument.endswith(POOL_FILES):
        return OrderPolicy(text, OrderKind.POOLS, _read_pool_tables(argument, setting.workload))
    if argument:
        raise PolicyError(
            f"policy {text!r}: in the world of cores the argument is an allocation file "
            "(*.xml, *.json) or nothing"
        )
    return OrderPolicy(text, OrderKind.FAIR, plan_tables())


def _gittins(text: str, argument: str, setting: PlanSetting) -> OrderPolicy:
    # SciPy is slow to import, and no other formula needs it.
    from parcae.policies.orders.policy import gittins_tables

    refuse_argument(text, argument)
    tables = plan_tables(**gittins_tables(setting.workload, setting.config))
    return OrderPolicy(text, OrderKind.GITTINS, tables)


def _edf(text: str, argument: str, setting: PlanSetting) -> OrderPolicy:
    if argument not in ("", "late-last"):
        raise PolicyError(f"policy {text!r}: the argument is 'late-last' or nothing")
    kind = OrderKind.EDF_LATE_LAST if argument else OrderKind.EDF
    return OrderPolicy(text, kind, plan_tables(deadline_ms=_deadlines_of(text, setting.workload)))


def _deadlines_of(text: str, workload: Workload) -> npt.NDArray[np.float64]:
    """The table `deadline_ms` for `plan_tables`."""
    if not workload.has_deadlines:
        raise PolicyError(
            f"policy {text!r} orders jobs by their deadlines, but no job of workload "
            f"{workload.name!r} has one: give --deadlines FILE to `parcae simulate`, `compare` or "
            "`size`; in Python, also for `parcae.serve`, a workload `with_deadlines`"
        )
    known = [np.inf if job.deadline_ms is None else job.deadline_ms for job in workload.jobs]
    return np.array([*known, np.inf], np.float64)


_SPARK = "Spark's TaskSchedulerImpl and Pool"

ORDER_CATALOG: Catalogue[PlanSetting] = Catalogue("policy", "parcae policies", (
    PolicyEntry("fifo", "first job first, then by stage: what Spark does by default", _SPARK,
                _fifo, "Spark's FIFO: job id, stage id"),
    PolicyEntry("fifo:spark-jobs", "every stage is a separate Spark job, numbered when it becomes "
                "runnable, so that late stages of an old query queue behind younger queries",
                "Spark's AdaptiveSparkPlanExec", _fifo,
                "Spark's FIFO under adaptive execution: every stage a Spark job"),
    PolicyEntry("fair", "equal shares over jobs: Spark's fair scheduler with one pool per job",
                _SPARK, _fair, "Spark's FAIR, a pool a job"),
    PolicyEntry("fair:POOLS.xml|json", "Spark's fair scheduler with the pools of an allocation "
                "file: weights, minimum shares, FIFO or FAIR inside", _SPARK, _fair,
                "Spark's FAIR, pools of"),
    PolicyEntry("sjf", "least total work first", "control", _formula(OrderKind.SJF),
                "least total work first"),
    PolicyEntry("srpt", "least remaining work first", "Schrage 1968", _formula(OrderKind.SRPT),
                "least remaining work first"),
    PolicyEntry("fsp", "in the order in which jobs would complete under fair sharing",
                "Friedman & Henderson 2003", _formula(OrderKind.FSP),
                "order of virtual completion under fair sharing"),
    PolicyEntry("psbs", "as fsp, but jobs that take longer than estimated share the cores",
                "Dell'Amico, Carra & Michiardi 2016", _formula(OrderKind.PSBS),
                "order of virtual completion; late jobs share"),
    PolicyEntry("las", "least attained service first; does not use sizes",
                "Rai, Urvoy-Keller & Biersack 2003", _formula(OrderKind.LAS),
                "least attained service first"),
    PolicyEntry("gittins", "largest Gittins index first, by the spread of a recurring job's size",
                "Gittins 1979; Scully 2018", _gittins, "largest Gittins index first"),
    PolicyEntry("edf", "earliest deadline first (--deadlines); jobs without a deadline come last, "
                "in the order of srpt", "Liu & Layland 1973", _edf, "earliest deadline first"),
    PolicyEntry("edf:late-last", "as edf, but a job that would miss its deadline even with all "
                "cores counts as a job without one", "Parcae", _edf,
                "earliest deadline first; jobs that cannot meet theirs last"),
))  # fmt: skip

#: What a policy's name may be followed by: (usage, summary).
ADDITIONS = (
    (
        "POLICY+guard:FACTOR",
        "the policy, but a job goes first if its time in the system would otherwise exceed FACTOR "
        "times its time under virtual fair sharing",
    ),
    (
        "POLICY+pools:FILE.xml|json",
        "the policy inside the pools of an allocation file; between pools Spark's FAIR decides by "
        "their weights and minimum shares",
    ),
    (
        "POLICY+priorities:FILE.csv",
        "the policy among jobs of one priority; jobs of a higher priority come first",
    ),
)


def all_policies() -> Iterator[tuple[str, str, str, str]]:
    """Yield (usage, summary, source, world) of every policy of both worlds.

    `world` is "cores", "executors" or "both".
    """
    for entry in ORDER_CATALOG:
        yield entry.usage, entry.summary, entry.source, "cores"
    for usage, summary in ADDITIONS:
        yield usage, summary, "Parcae", "cores"
    for other in CATALOG:
        is_both = not other.only_executors and ORDER_CATALOG.find(other.name)[0] is None
        yield other.usage, other.summary, other.source, "both" if is_both else "executors"


def refuse_planners(text: str) -> None:
    """Reject policies that exist in the world of cores only; for use in the world of executors."""
    parts = split_policy(text)
    entry, argument = ORDER_CATALOG.find(parts.name)
    is_other = CATALOG.find(parts.name)[0] is None or argument == "spark-jobs"
    plans = entry is not None and (is_other or argument.endswith(POOL_FILES))
    what = "it plans standing orders and" if plans else ""
    if parts.has_tenants:
        what = "keeping pools or priorities"
    if parts.guard is not None:
        what = "the guard"
    if what:
        raise PolicyError(
            f"policy {text!r}: {what} exists in the world of cores only; choose --world cores"
        )


def make_cores_policy(
    text: str, workload: Workload, config: SimulationConfig
) -> OrderPolicy | HeuristicPolicy:
    """Return the policy that `text` names in the world of cores.

    Policies with learned parameters, and what a name adds to a policy, are not made here.
    """
    if ORDER_CATALOG.find(text)[0] is not None:
        return make_order_policy(text, workload, config)
    entry, _ = CATALOG.find(text)
    if entry is None:
        decide = [other.name for other in CATALOG if not other.only_executors]
        raise CATALOG.unknown(text, dict.fromkeys([*ORDER_CATALOG.names, *decide]))
    if entry.only_executors:
        raise PolicyError(f"policy {text!r} {entry.only_executors}: choose --world executors")
    return make_policy(text, config.total_executors)


def make_order_policy(text: str, workload: Workload, config: SimulationConfig) -> OrderPolicy:
    """Return the policy that plans by the formula `text`.

    Example: `make_order_policy("fair:pools.xml", workload, SimulationConfig(world="cores"))`.
    """
    policy: OrderPolicy = ORDER_CATALOG.make(text, PlanSetting(workload, config))
    return policy


def title_of(text: str) -> str:
    """Return the title of a policy by formula, for tables of results.

    Example: `title_of("fair")` is "Spark's FAIR, a pool a job".
    """
    titles = {entry.usage: entry.title or entry.name for entry in ORDER_CATALOG}
    name, _, argument = text.partition(":")
    if name == "fair" and argument:
        return f"{titles['fair:POOLS.xml|json']} {argument}"
    return titles.get(text, text)


def _read_pool_tables(path: str, workload: Workload) -> PlanTables:
    """The tables of the pools in an allocation file."""
    allocation = read_allocation(path)
    return pool_tables(allocation.all_pools, job_pools(allocation, workload), path)


def pool_tables(pools: tuple[PoolSpec, ...], job_pools: tuple[str, ...], source: str) -> PlanTables:
    """Return the tables of Spark's fair scheduler with pools."""
    table, row_of = pool_rows(pools, source)
    rows = [*(row_of[name] for name in job_pools), row_of.get(DEFAULT_POOL, 0)]
    return plan_tables(pool_of=np.array(rows, np.int64), pools=table)


def given_tables(tiers: list[float], limits: list[int]) -> PlanTables:
    """Return the tables of fixed orders: tiers of jobs, limits of stages, in order of arrival."""
    return plan_tables(tiers=np.array(tiers, np.float64), limits=np.array(limits, np.int64))
