"""What the rule computes of every job: its price of executors, its cap and its score."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from parcae.cluster.kernels.tables import demand
from parcae.cluster.state import NO_PROFILE
from parcae.kernels import inlined, kernel
from parcae.policies.classes.kernels import own_class, quarter_of
from parcae.policies.rule.layout import RuleParameter

#: Cluster size for which the term PRICE_CLUSTER is 0.
_USUAL_CLUSTER = 50.0


class Rule(NamedTuple):
    """What the rule needs besides the observation: parameters, and solo curves (`SoloCurves`)."""

    theta: Any  # float64[NUM_PARAMETERS]
    levels: Any  # int64[num_levels]
    stretch: Any  # float64[num_profiles + 1, num_levels]
    mean_work_ms: Any  # float64[1]


class WaitingDemand(NamedTuple):
    """Number of executors that schedulable stages can take, by the size that the stages need.

    Each field counts stages whose smallest fitting class is in one quarter of the classes by size.
    """

    small: Any
    medium: Any
    large: Any
    largest: Any


class SystemFacts(NamedTuple):
    """Features that all jobs share at one decision."""

    log_jobs: Any  # log of the number of jobs in the system
    log_open: Any  # log of the number of jobs that have an unsaturated stage
    log_total: Any  # log of (remaining work of all jobs / mean work)
    log_cluster: Any  # log of (number of executors / 50)
    waiting: Any  # WaitingDemand; zeros if the rule's parameters do not use it


@inlined
def system_facts(view, rule):  # type: ignore[no-untyped-def]
    """Return the features that all jobs share. Arguments: the observation, and the Rule."""
    total_ms = 0.0
    for position in range(view.now.num_active[0]):
        total_ms += view.jobs.remaining_ms[view.active[position]]
    return SystemFacts(
        math.log(max(1, view.now.num_active[0])),
        math.log(max(1, view.now.num_open[0])),
        math.log(max(1.0, total_ms) / rule.mean_work_ms[0]),
        math.log(view.now.num_executors[0] / _USUAL_CLUSTER),
        waiting_demand(view, rule),
    )


@inlined
def curve_row(rule, view, job):  # type: ignore[no-untyped-def]
    """Return the job's row of the solo curves; the last row if the profile does not know the job.

    Args:
        rule: Rule.
        view: the observation.
        job: row of the job in the cluster's tables.
    """
    profile = view.jobs.profile[job]
    if profile == NO_PROFILE or profile >= rule.stretch.shape[0] - 1:
        return rule.stretch.shape[0] - 1
    return profile


@inlined
def best_level(rule, row, price):  # type: ignore[no-untyped-def]
    """Return the column of the level p that minimises T(p) (1 + price p / cluster size).

    Args:
        rule: Rule.
        row: the job's row of the solo curves.
        price: price of the whole cluster (without unit).
    """
    best = 0
    best_cost = math.inf
    levels = rule.levels
    scale = price / levels[levels.shape[0] - 1]
    for column in range(levels.shape[0]):
        cost = rule.stretch[row, column] * (1.0 + scale * levels[column])
        if cost < best_cost:
            best = column
            best_cost = cost
    return best


@inlined
def log_price(view, rule, facts, job):  # type: ignore[no-untyped-def]
    """Return the log of the price of the whole cluster for a job.

    Args:
        view: the observation.
        rule: Rule.
        facts: SystemFacts.
        job: row of the job.
    """
    theta = rule.theta
    mean_ms = rule.mean_work_ms[0]
    work_ms = max(1.0, view.jobs.work_ms[job])
    remaining_ms = max(1.0, view.jobs.remaining_ms[job])
    return (
        theta[RuleParameter.PRICE]
        + theta[RuleParameter.PRICE_JOBS] * facts.log_jobs
        + theta[RuleParameter.PRICE_OPEN] * facts.log_open
        + theta[RuleParameter.PRICE_REMAINING] * math.log(remaining_ms / mean_ms)
        + theta[RuleParameter.PRICE_WORK] * math.log(work_ms / mean_ms)
        + theta[RuleParameter.PRICE_TOTAL] * facts.log_total
        + theta[RuleParameter.PRICE_STARTED] * (1.0 - remaining_ms / work_ms)
        + theta[RuleParameter.PRICE_CLUSTER] * facts.log_cluster
    )


@inlined
def cap_level(view, rule, facts, job):  # type: ignore[no-untyped-def]
    """Return the column of the level that is the job's cap.

    Args:
        view: the observation.
        rule: Rule.
        facts: SystemFacts.
        job: row of the job.
    """
    price = math.exp(min(30.0, max(-30.0, log_price(view, rule, facts, job))))
    return best_level(rule, curve_row(rule, view, job), price)


@inlined
def score(view, rule, job, column, held):  # type: ignore[no-untyped-def]
    """Return the job's score; the job with the smallest score is served first.

    Args:
        view: the observation.
        rule: Rule.
        job: row of the job.
        column: column of the job's cap (see `cap_level`).
        held: number of executors that the job holds.
    """
    theta = rule.theta
    mean_ms = rule.mean_work_ms[0]
    cap = rule.levels[column]
    work_ms = max(1.0, view.jobs.work_ms[job])
    solo_ms = work_ms * rule.stretch[curve_row(rule, view, job), column]
    return (
        math.log(max(1.0, view.jobs.remaining_ms[job]) / mean_ms)
        + theta[RuleParameter.SCORE_WORK] * math.log(work_ms / mean_ms)
        + theta[RuleParameter.SCORE_STRETCH] * math.log(solo_ms / mean_ms)
        + theta[RuleParameter.SCORE_CAP] * math.log(cap)
        + theta[RuleParameter.SCORE_HELD] * held / cap
    )


@kernel
def waiting_demand(view, rule):  # type: ignore[no-untyped-def]
    """Return the WaitingDemand of all jobs' schedulable stages.

    Visits all stages of all jobs, so it is computed only if the rule's parameters use it.
    """
    small = 0
    medium = 0
    large = 0
    largest = 0
    if view.classes.shape[0] == 1 or rule.theta[RuleParameter.BORROW_WAITING] == 0.0:
        return WaitingDemand(small, medium, large, largest)
    stages = view.stages
    for position in range(view.now.num_active[0]):
        job = view.active[position]
        if view.jobs.num_schedulable[job] == 0:
            continue
        for stage in range(
            view.jobs.stage_start[job], view.jobs.stage_start[job] + view.jobs.num_stages[job]
        ):
            if stages.is_saturated[stage] or stages.num_parents_unsaturated[stage] > 0:
                continue
            quarter = quarter_of(view, own_class(view, stage))
            wanted = demand(view, stage)
            small += wanted if quarter == 0 else 0
            medium += wanted if quarter == 1 else 0
            large += wanted if quarter == 2 else 0
            largest += wanted if quarter == 3 else 0
    return WaitingDemand(small, medium, large, largest)
