"""The rule's decision: the job to serve next, its stage, and the number of executors."""

from __future__ import annotations

import math

from parcae.cluster.kernels.tables import may_idle, num_held
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_STAGE
from parcae.kernels import inlined, kernel
from parcae.policies.classes.kernels import oversize
from parcae.policies.rule.kernels.scores import cap_level, score, system_facts
from parcae.policies.rule.kernels.stages import (
    best_stage,
    class_for,
    command_class,
    wants_offered,
)
from parcae.policies.rule.layout import RuleParameter

#: Largest share of the executors that may be kept in reserve.
_LARGEST_RESERVE = 0.9


@inlined
def _scaled_cap(cap, log_factor):  # type: ignore[no-untyped-def]
    """The cap times a factor, rounded, at least 1."""
    return max(1, math.floor(cap * math.exp(log_factor) + 0.5))


@inlined
def _is_worth_moving(view, rule, stage):  # type: ignore[no-untyped-def]
    """Whether the stage's job has enough work left for an executor to move to it."""
    theta = rule.theta
    job = view.stages.job[stage]
    work_ms = view.jobs.remaining_ms[job] / (1 + num_held(view, job))
    return work_ms >= rule.mean_work_ms[0] * 1e-3 * math.exp(theta[RuleParameter.WORTH])


@inlined
def _num_spare(view, rule, stage):  # type: ignore[no-untyped-def]
    """How many offered executors the stage may take, so that its reserve stays idle.

    The reserve applies to the global pool only. Executors that idle in a job's pool stay there, and
    no other job could use them.
    """
    theta = rule.theta
    job = view.stages.job[stage]
    tenths = theta[RuleParameter.RESERVE]
    if theta[RuleParameter.RESERVE_REMAINING] != 0.0:
        tenths += theta[RuleParameter.RESERVE_REMAINING] * math.log(
            max(1.0, view.jobs.remaining_ms[job]) / rule.mean_work_ms[0]
        )
    if tenths <= 0.0 or view.now.source_job[0] != NO_JOB:
        return view.now.num_executors[0]
    num_fitting = 0
    num_free = 0
    for c in range(view.classes.shape[0]):
        if (view.stages.fits[stage] >> c) & 1:
            num_fitting += view.classes.num_executors[c]
            num_free += view.source_count[c]
    return num_free - math.ceil(num_fitting * min(_LARGEST_RESERVE, 0.1 * tenths))


@kernel
def _first_below(view, rule, facts, log_factor):  # type: ignore[no-untyped-def]
    """Find the job with the best score among those below their caps, scaled by exp(log_factor).

    Returns (its stage or NO_STAGE, number of executors that it may take, score).
    """
    best = NO_STAGE
    best_room = 0
    best_score = math.inf
    can_gain = rule.theta[RuleParameter.SCORE_OVERSIZE] < 0.0
    for position in range(view.now.num_active[0]):
        job = view.active[position]
        if view.jobs.num_schedulable[job] == 0 or not wants_offered(view, job):
            continue
        held = num_held(view, job)
        column = cap_level(view, rule, facts, job)
        room = _scaled_cap(rule.levels[column], log_factor) - held
        if room <= 0:
            continue
        value = score(view, rule, job, column, held)
        # The class can improve the score only if its parameter is negative; otherwise a job with a
        # worse score needs no further computation.
        if value >= best_score and not can_gain:
            continue
        stage = best_stage(view, rule, facts, job, True)
        if stage != NO_STAGE and (
            job == view.now.source_job[0] or _is_worth_moving(view, rule, stage)
        ):
            room = min(room, _num_spare(view, rule, stage))
            if room <= 0:
                continue
            value += _score_of_class(view, rule, facts, stage)
            if value < best_score:
                best = stage
                best_room = room
                best_score = value
    return best, best_room, best_score


@inlined
def _score_of_class(view, rule, facts, stage):  # type: ignore[no-untyped-def]
    """The term of the job's score that depends on the executor class of its stage."""
    if view.classes.shape[0] == 1 or rule.theta[RuleParameter.SCORE_OVERSIZE] == 0.0:
        return 0.0
    return rule.theta[RuleParameter.SCORE_OVERSIZE] * oversize(
        view, stage, class_for(view, rule, facts, stage)
    )


@inlined
def _decision_for(view, rule, facts, stage, room):  # type: ignore[no-untyped-def]
    """The decision that gives the stage up to `room` executors of the class the rule chooses."""
    executor_class = command_class(view, rule, facts, stage)
    num_offered = view.now.num_source[0]
    if executor_class != ANY_CLASS:
        num_offered = view.source_count[executor_class]
    return stage, min(room, num_offered), executor_class, 0


@kernel
def decide(view, rule):  # type: ignore[no-untyped-def]
    """Return the rule's decision for one scheduling event, as (stage, limit, executor class, hold).

    NO_STAGE lets all offered executors idle. Arguments: the observation, and the Rule.
    """
    now = view.now
    theta = rule.theta
    source = view.now.source_job[0]
    if now.num_schedulable[0] == 0:
        return NO_STAGE, now.num_source[0], ANY_CLASS, 0
    facts = system_facts(view, rule)
    stage, room, best = _first_below(view, rule, facts, theta[RuleParameter.JOIN_CAP])
    # Executors of a job stay with it unless another job's score is smaller by LOCAL_SCORE.
    if source != NO_JOB and view.jobs.num_schedulable[source] > 0:
        column = cap_level(view, rule, facts, source)
        held = num_held(view, source)
        local_room = _scaled_cap(rule.levels[column], theta[RuleParameter.LOCAL_CAP]) - held
        local = best_stage(view, rule, facts, source, True) if local_room > 0 else NO_STAGE
        if local != NO_STAGE:
            value = score(view, rule, source, column, held) + _score_of_class(
                view, rule, facts, local
            )
            if stage == NO_STAGE or value - theta[RuleParameter.LOCAL_SCORE] <= best:
                return _decision_for(view, rule, facts, local, local_room)
    if stage == NO_STAGE:
        stage, room, best = _first_below(
            view,
            rule,
            facts,
            theta[RuleParameter.SPILL] + theta[RuleParameter.SPILL_JOBS] * facts.log_jobs,
        )
    if stage != NO_STAGE:
        return _decision_for(view, rule, facts, stage, room)
    if may_idle(view):
        return NO_STAGE, now.num_source[0], ANY_CLASS, 0
    return _ignoring_caps(view, rule, facts), now.num_source[0], ANY_CLASS, 0


@kernel
def _ignoring_caps(view, rule, facts):  # type: ignore[no-untyped-def]
    """A stage of the job with the least remaining work, ignoring caps and restrictions on classes.

    This keeps the cluster from stalling when no executor would work otherwise.
    """
    best = NO_STAGE
    best_ms = math.inf
    for position in range(view.now.num_active[0]):
        job = view.active[position]
        if view.jobs.remaining_ms[job] < best_ms:
            stage = best_stage(view, rule, facts, job, False)
            if stage != NO_STAGE:
                best = stage
                best_ms = view.jobs.remaining_ms[job]
    return best
