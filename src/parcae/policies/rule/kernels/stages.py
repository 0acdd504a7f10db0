"""The stage of a job that the rule serves first, and the executor class that it gives the stage."""

from __future__ import annotations

import math

from parcae.cluster.kernels.tables import (
    demand,
    first_schedulable,
    is_runnable,
    is_schedulable,
    wait_ms,
)
from parcae.cluster.state import ANY_CLASS, NO_STAGE
from parcae.kernels import inlined, kernel
from parcae.policies.classes.kernels import class_size, oversize, own_class, quarter_of
from parcae.policies.rule.layout import RuleParameter
from parcae.units import MS_PER_S


@inlined
def _num_waiting(view, facts, smallest, executor_class):  # type: ignore[no-untyped-def]
    """Demand of stages that need more than the class `smallest`, but not more than this class."""
    low = quarter_of(view, smallest)
    high = quarter_of(view, executor_class)
    queue = facts.waiting
    count = queue.medium if low < 1 <= high else 0
    count += queue.large if low < 2 <= high else 0
    return count + (queue.largest if low < 3 <= high else 0)


@inlined
def _may_borrow(view, rule, facts, job, smallest, executor_class):  # type: ignore[no-untyped-def]
    """Whether the job may take an executor of a class larger than the stage's smallest class."""
    theta = rule.theta
    offered = view.source_count[executor_class]
    remaining_ms = max(1.0, view.jobs.remaining_ms[job])
    reluctance = theta[RuleParameter.BORROW] + theta[RuleParameter.BORROW_JOBS] * facts.log_jobs
    if theta[RuleParameter.BORROW_REMAINING] != 0.0:
        reluctance += theta[RuleParameter.BORROW_REMAINING] * math.log(
            remaining_ms / rule.mean_work_ms[0]
        )
    if theta[RuleParameter.BORROW_WAITING] != 0.0:
        wanted = _num_waiting(view, facts, smallest, executor_class)
        reluctance += theta[RuleParameter.BORROW_WAITING] * math.log(
            (1.0 + wanted) / (1.0 + offered)
        )
    if theta[RuleParameter.BORROW_SIZE] != 0.0:
        reluctance += theta[RuleParameter.BORROW_SIZE] * math.log(
            class_size(view, executor_class) / class_size(view, smallest)
        )
    return reluctance <= 0.0


@kernel
def class_for(view, rule, facts, stage):  # type: ignore[no-untyped-def]
    """Return the offered class that the rule chooses for the stage; ANY_CLASS if it may take none.

    Args:
        view: the observation.
        rule: Rule.
        facts: SystemFacts.
        stage: row of the stage.
    """
    if view.classes.shape[0] == 1:
        return 0
    best = ANY_CLASS
    best_value = -math.inf
    smallest = own_class(view, stage)
    theta = rule.theta
    for c in range(view.classes.shape[0]):
        offered = view.source_count[c]
        if offered == 0 or not (view.stages.fits[stage] >> c) & 1:
            continue
        if class_size(view, c) > class_size(view, smallest) and not _may_borrow(
            view, rule, facts, view.stages.job[stage], smallest, c
        ):
            continue
        value = theta[RuleParameter.CLASS_OFFERED] * math.log(
            offered / view.classes.num_executors[c]
        ) - math.log(class_size(view, c))
        if value > best_value:
            best = c
            best_value = value
    return best


@inlined
def command_class(view, rule, facts, stage):  # type: ignore[no-untyped-def]
    """Return the class for a decision about the stage.

    This is ANY_CLASS (best-fitting executors first) if the parameters restrict no class.

    Args:
        view: the observation.
        rule: Rule.
        facts: SystemFacts.
        stage: row of the stage.
    """
    theta = rule.theta
    is_plain = view.classes.shape[0] == 1
    if not is_plain:
        is_plain = True
        for parameter in range(RuleParameter.BORROW, RuleParameter.SCORE_OVERSIZE):
            is_plain = is_plain and theta[parameter] == 0.0
    return ANY_CLASS if is_plain else class_for(view, rule, facts, stage)


@inlined
def wants_offered(view, job):  # type: ignore[no-untyped-def]
    """Whether an offered executor is large enough for a schedulable stage of the job."""
    return view.classes.shape[0] == 1 or first_schedulable(view, job) != NO_STAGE


@inlined
def _may_go_ahead(view, rule, stage):  # type: ignore[no-untyped-def]
    """Whether executors may go to the stage now: it is runnable, or the wait is short enough.

    The wait lasts until the tasks of the stage's parents finish.
    """
    theta = rule.theta
    if is_runnable(view, stage) or (
        theta[RuleParameter.AHEAD] <= 0.0 and theta[RuleParameter.AHEAD_WAIT] == 0.0
    ):
        return True
    return (
        theta[RuleParameter.AHEAD]
        + theta[RuleParameter.AHEAD_WAIT] * math.log(max(1.0, wait_ms(view, stage)) / MS_PER_S)
        <= 0.0
    )


@kernel
def best_stage(view, rule, facts, job, binds):  # type: ignore[no-untyped-def]
    """Return the job's schedulable stage with the best score, or NO_STAGE.

    Args:
        view: the observation.
        rule: Rule.
        facts: SystemFacts.
        job: row of the job.
        binds: whether to skip stages to which the rule would give no executor now.
    """
    best = NO_STAGE
    best_score = -math.inf
    theta = rule.theta
    stages = view.stages
    if view.jobs.num_schedulable[job] == 0:
        return best
    first = view.jobs.stage_start[job]
    for stage in range(first, first + view.jobs.num_stages[job]):
        if not is_schedulable(view, stage) or (binds and not _may_go_ahead(view, rule, stage)):
            continue
        executor_class = class_for(view, rule, facts, stage)
        if executor_class == ANY_CLASS and binds:
            continue
        value = theta[RuleParameter.STAGE_OVERSIZE] * oversize(view, stage, executor_class) + (
            math.log(1.0 + stages.downstream_ms[stage])
            + theta[RuleParameter.STAGE_TASK] * math.log(1.0 + stages.task_ms[stage])
            + theta[RuleParameter.STAGE_DEMAND] * math.log(max(1, demand(view, stage)))
        )
        if is_runnable(view, stage):
            value += theta[RuleParameter.STAGE_RUNNABLE]
        if value > best_score:
            best = stage
            best_score = value
    return best
