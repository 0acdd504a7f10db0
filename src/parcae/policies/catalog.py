"""The policies of the world of cores by name, and the kinds of checkpoints that plan orders.

Other policies only make decisions (`parcae.decima.catalog`); an adapter calls them repeatedly until
all cores are assigned (`Simulator.step`), which gives a plan.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from parcae.base.arrays import Float64Array
from parcae.base.errors import PolicyError
from parcae.policies.additions import TenantPolicy, user_pools
from parcae.policies.checkpoint import SUFFIX, Checkpoint
from parcae.policies.formula.kernels import Feature
from parcae.policies.formula.language import parse_formula
from parcae.policies.formula.policy import FormulaPolicy
from parcae.policies.learned import (
    ORDER_RULE,
    ORDER_RULE_VERSION,
    order_parameters,
    shipped_policy,
    variant_name,
)
from parcae.policies.names import OLD_JOBS_POOLS, PolicyName
from parcae.policies.network.kernels import FEATURE_VERSION, KIND
from parcae.policies.network.policy import OrderNetworkPolicy, bind_network
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables, pools_policy, read_pools
from parcae.policies.registry import (
    CheckpointKind,
    PolicyEntry,
    PolicySetting,
    note_once,
    refuse_argument,
    refused,
)
from parcae.policies.rule.policy import OrderRulePolicy
from parcae.workloads.pools import Mode
from parcae.workloads.tables import listed
from parcae.workloads.workload import Workload


def _formula(kind: OrderKind) -> Callable[[PolicyName, PolicySetting], OrderPolicy]:
    """A maker of policies without argument."""

    def make(name: PolicyName, setting: PolicySetting) -> OrderPolicy:
        refuse_argument(name)
        return OrderPolicy(name.name, kind, plan_tables())

    return make


def _fifo(name: PolicyName, setting: PolicySetting) -> OrderPolicy:
    if name.argument not in ("", "spark-jobs"):
        raise PolicyError(f"policy {name.name!r}: the argument is 'spark-jobs' or nothing")
    # Where the log says which Spark job a stage belongs to, Spark's order is known exactly.
    by_spark_jobs = name.argument or setting.workload.knows_spark_jobs
    kind = OrderKind.FIFO_SPARK_JOBS if by_spark_jobs else OrderKind.FIFO
    return OrderPolicy(name.name, kind, plan_tables())


def _fair(name: PolicyName, setting: PolicySetting) -> OrderPolicy:
    if name.own_pools:
        return pools_policy(name.name, name.pools_file, setting.workload)
    if name.argument:
        raise PolicyError(
            f"policy {name.name!r}: in the world of cores the argument is an allocation file "
            "(*.xml, *.json), 'pools' (those that jobs name) or nothing"
        )
    return OrderPolicy(name.name, OrderKind.FAIR, plan_tables())


def _user_fair(name: PolicyName, setting: PolicySetting) -> TenantPolicy:
    kind, mode = _USER_FAIR[name.word]
    pools = user_pools(setting.workload, name.argument, mode)
    return TenantPolicy(name.name, OrderPolicy(name.name, kind, plan_tables()), pools)


def _gittins(name: PolicyName, setting: PolicySetting) -> OrderPolicy:
    # SciPy is slow to import, and no other formula needs it.
    from parcae.policies.orders.policy import gittins_tables

    refuse_argument(name)
    tables = plan_tables(**gittins_tables(setting.workload, setting.config))
    return OrderPolicy(name.name, OrderKind.GITTINS, tables)


def _by_formula(name: PolicyName, setting: PolicySetting) -> FormulaPolicy:
    policy = FormulaPolicy(name.name, parse_formula(name.argument))
    for doubt in policy.expression.doubts:
        note_once("%r: %s", name.name, doubt)
    if policy.expression.uses(Feature.SLACK):
        policy.deadline_ms = _deadlines_of(name.name, setting.workload)
    return policy


def _edf(name: PolicyName, setting: PolicySetting) -> OrderPolicy:
    if name.argument not in ("", "late-last"):
        raise PolicyError(f"policy {name.name!r}: the argument is 'late-last' or nothing")
    kind = OrderKind.EDF_LATE_LAST if name.argument else OrderKind.EDF
    return OrderPolicy(
        name.name, kind, plan_tables(deadline_ms=_deadlines_of(name.name, setting.workload))
    )


def _deadlines_of(text: str, workload: Workload) -> Float64Array:
    """The table `deadline_ms` for `plan_tables`."""
    if not workload.has_deadlines:
        raise PolicyError(
            f"policy {text!r} orders jobs by their deadlines, but no job of workload "
            f"{workload.name!r} has one: give --deadlines FILE to `parcae simulate`, `compare` or "
            "`size`; in Python, also for `parcae.serve`, a workload `with_deadlines`"
        )
    known = [np.inf if job.deadline_ms is None else job.deadline_ms for job in workload.jobs]
    return np.array([*known, np.inf], np.float64)


#: The order inside the pools of users: of task sets that share, or of jobs.
_USER_FAIR: dict[str, tuple[OrderKind, Mode]] = {
    "user-fair": (OrderKind.FIFO, "FAIR"),
    "user-fair+srpt": (OrderKind.SRPT, "FIFO"),
}
#: What tables of results call the orders of stock Spark, and those with a variant.
_TITLES = {
    "fifo": "Spark's FIFO: job id, stage id",
    "fifo:spark-jobs": "Spark's FIFO under adaptive execution: every stage a Spark job",
    "fair": "Spark's FAIR, a pool a job",
    "edf": "earliest deadline first",
    "edf:late-last": "earliest deadline first; jobs that cannot meet theirs last",
}


def _title(name: PolicyName, setting: PolicySetting) -> str:
    if name.own_pools:
        _, _, made = read_pools(name.pools_file, setting.workload)
        is_old = name.argument == OLD_JOBS_POOLS
        defined = f"of {name.pools_file}" if name.pools_file and not is_old else ""
        named = f"{listed(made)} as jobs name them" if made else ""
        pools = " and ".join(filter(None, (defined, named))) or "of no job"
        return f"Spark's FAIR{' before 3.4' * is_old}, pools {pools}"
    has_pools = name.name == "fair" and any(job.pool for job in setting.workload.jobs)
    return _TITLES[name.name] + " (with the pools that jobs name: fair:pools)" * has_pools


_SPARK = "Spark's TaskSchedulerImpl and Pool"

POLICIES = (
    PolicyEntry("fifo", "first job first, then by stage: what Spark does by default", _SPARK,
                _fifo, in_words=_title),
    PolicyEntry("fifo:spark-jobs", "every stage is a separate Spark job, numbered when it becomes "
                "runnable, so that late stages of an old query queue behind younger queries",
                "Spark's AdaptiveSparkPlanExec", _fifo,
                in_words=_title),
    PolicyEntry("fair", "equal shares over jobs: Spark's fair scheduler with one pool per job",
                _SPARK, _fair, in_words=_title),
    PolicyEntry("fair:POOLS.xml|json", "Spark's fair scheduler with the pools of an allocation "
                "file: weights, minimum shares, FIFO or FAIR inside; and those that jobs name "
                "beside them", _SPARK, _fair),
    PolicyEntry("fair:pools", "Spark's fair scheduler without a file: the pools that jobs name, of "
                "equal weight; between task sets of no pool fair, as in Spark 3.4 or newer",
                _SPARK, _fair),
    PolicyEntry("fair:pools-3.3", "the same before Spark 3.4: FIFO between task sets of no pool",
                _SPARK, _fair),
    PolicyEntry("user-fair[:WEIGHTS.csv]", "Spark's fair scheduler with a pool a user (where "
                "nobody is known, a recurring name), fair inside", _SPARK, _user_fair,
                in_words="Spark's FAIR, a pool a user"),
    PolicyEntry("user-fair+srpt[:WEIGHTS.csv]", "strictly equal (or weighted) shares between "
                "users, least remaining work first inside", "Parcae", _user_fair,
                in_words="a pool a user, least remaining work first inside"),
    PolicyEntry("sjf", "least total work first", "control", _formula(OrderKind.SJF),
                in_words="least total work first"),
    PolicyEntry("srpt", "least remaining work first", "Schrage 1968", _formula(OrderKind.SRPT),
                in_words="least remaining work first"),
    PolicyEntry("fsp", "in the order in which jobs would complete under fair sharing",
                "Friedman & Henderson 2003", _formula(OrderKind.FSP),
                in_words="order of virtual completion under fair sharing"),
    PolicyEntry("psbs", "as fsp, but jobs that take longer than estimated share the cores",
                "Dell'Amico, Carra & Michiardi 2016", _formula(OrderKind.PSBS),
                in_words="order of virtual completion; late jobs share"),
    PolicyEntry("las", "least attained service first; does not use sizes",
                "Rai, Urvoy-Keller & Biersack 2003", _formula(OrderKind.LAS),
                in_words="least attained service first"),
    PolicyEntry("gittins", "largest Gittins index first, by the spread of a recurring job's size",
                "Gittins 1979; Scully 2018", _gittins, in_words="largest Gittins index first"),
    PolicyEntry("edf", "earliest deadline first (--deadlines); jobs without a deadline come last, "
                "in the order of srpt", "Liu & Layland 1973", _edf,
                in_words=_title),
    PolicyEntry("edf:late-last", "as edf, but a job that would miss its deadline even with all "
                "cores counts as a job without one", "Parcae", _edf,
                in_words=_title),
    PolicyEntry("formula:EXPRESSION", "least value of an expression first, e.g. "
                "formula: max(rem + 2 * overdraft, rem / 10)", "docs/orders.md", _by_formula),
    PolicyEntry("tuned[:VARIANT]", "least remaining work first, with terms tuned by CMA-ES; "
                "in the world of executors, every job capped where another executor no "
                "longer pays off", "Parcae", shipped_policy, ("cores", "executors"),
                in_words=variant_name),
    PolicyEntry("parcae[:VARIANT]", "a network over jobs that corrects the orders of the tuned "
                "rule", "Parcae", shipped_policy, in_words=variant_name),
    PolicyEntry("FILE.safetensors", "a checkpoint of `parcae tune`, `train` or `learn`",
                "Parcae", shipped_policy, ("cores", "executors"), suffix=SUFFIX),
    PolicyEntry("MODULE:ATTRIBUTE", "a policy of your own: a function, an object or a class in a "
                "module that is installed or in the current folder", "docs/extending.md",
                refused("is written as the name of a module and of what is in it"),
                ("cores", "executors")),
)  # fmt: skip


def _bind_rule(checkpoint: Checkpoint, name: str, setting: PolicySetting) -> OrderRulePolicy:
    return OrderRulePolicy(name, order_parameters(checkpoint, name), setting.workload.mean_work_ms)


def _bind_network(checkpoint: Checkpoint, name: str, setting: PolicySetting) -> OrderNetworkPolicy:
    return bind_network(checkpoint, name, setting.workload)


KINDS = (
    CheckpointKind(ORDER_RULE, ORDER_RULE_VERSION, _bind_rule, rule=order_parameters),
    CheckpointKind(KIND, FEATURE_VERSION, _bind_network, rule=order_parameters),
)
