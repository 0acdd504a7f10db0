"""The rule, compiled: a pure function of the observation, its parameters and the solo curves of the workload.

Every job has a price of executors; its cap is the number of executors p that minimises T(p) (1 + price p), T being its solo
duration. Jobs are served by score, smallest first, up to their caps; what is left over spills over them. On executors of several
classes a stage takes the smallest that it may; whether it may borrow one larger than it needs depends on its job, on the crowd
and on who waits for such executors. Executors can be kept idle for jobs to come, and from stages whose parents still run: there
they would wait, and work for nobody else.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from parcae.cluster.kernels.tables import (
    demand,
    first_schedulable,
    is_runnable,
    is_schedulable,
    may_idle,
    num_held,
    select_cluster,
    wait_ms,
)
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_PROFILE, NO_STAGE
from parcae.kernels import inlined, kernel
from parcae.policies.classes.kernels import class_size, oversize, own_class, quarter_of
from parcae.policies.rule.layout import RuleParameter
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import select_future, start, step
from parcae.units import MS_PER_S

_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_PRICE = int(RuleParameter.PRICE)
_PRICE_JOBS = int(RuleParameter.PRICE_JOBS)
_PRICE_OPEN = int(RuleParameter.PRICE_OPEN)
_PRICE_REMAINING = int(RuleParameter.PRICE_REMAINING)
_PRICE_WORK = int(RuleParameter.PRICE_WORK)
_PRICE_TOTAL = int(RuleParameter.PRICE_TOTAL)
_PRICE_STARTED = int(RuleParameter.PRICE_STARTED)
_SCORE_WORK = int(RuleParameter.SCORE_WORK)
_SCORE_STRETCH = int(RuleParameter.SCORE_STRETCH)
_SCORE_CAP = int(RuleParameter.SCORE_CAP)
_SCORE_HELD = int(RuleParameter.SCORE_HELD)
_LOCAL_CAP = int(RuleParameter.LOCAL_CAP)
_JOIN_CAP = int(RuleParameter.JOIN_CAP)
_SPILL = int(RuleParameter.SPILL)
_SPILL_JOBS = int(RuleParameter.SPILL_JOBS)
_LOCAL_SCORE = int(RuleParameter.LOCAL_SCORE)
_WORTH = int(RuleParameter.WORTH)
_STAGE_RUNNABLE = int(RuleParameter.STAGE_RUNNABLE)
_STAGE_TASK = int(RuleParameter.STAGE_TASK)
_STAGE_DEMAND = int(RuleParameter.STAGE_DEMAND)
_PRICE_CLUSTER = int(RuleParameter.PRICE_CLUSTER)
_BORROW = int(RuleParameter.BORROW)
_BORROW_REMAINING = int(RuleParameter.BORROW_REMAINING)
_BORROW_JOBS = int(RuleParameter.BORROW_JOBS)
_BORROW_WAITING = int(RuleParameter.BORROW_WAITING)
_BORROW_SIZE = int(RuleParameter.BORROW_SIZE)
_CLASS_OFFERED = int(RuleParameter.CLASS_OFFERED)
_SCORE_OVERSIZE = int(RuleParameter.SCORE_OVERSIZE)
_STAGE_OVERSIZE = int(RuleParameter.STAGE_OVERSIZE)
_RESERVE = int(RuleParameter.RESERVE)
_RESERVE_REMAINING = int(RuleParameter.RESERVE_REMAINING)
_AHEAD = int(RuleParameter.AHEAD)
_AHEAD_WAIT = int(RuleParameter.AHEAD_WAIT)
_LARGEST_RESERVE = 0.9
_USUAL_CLUSTER = 50.0


class Rule(NamedTuple):
    """What the rule knows: its parameters, and the solo curves of the workload (see SoloCurves)."""

    theta: Any  # float64[NUM_PARAMETERS]
    levels: Any  # int64[num_levels]
    stretch: Any  # float64[num_profiles + 1, num_levels]
    mean_work_ms: Any  # float64[1]


class Waiting(NamedTuple):
    """Executors that schedulable stages can take, by the smallest class that fits: quarters of the classes by size."""

    small: Any
    medium: Any
    large: Any
    largest: Any


class Crowd(NamedTuple):
    """What the jobs in the system have in common at one decision."""

    log_jobs: Any
    log_open: Any
    log_total: Any  # log of the remaining work of all jobs / mean work
    log_cluster: Any  # log of the cluster's size / 50
    waiting: Any  # Waiting; zeros where nothing depends on it


@inlined
def crowd(seen, rule):  # type: ignore[no-untyped-def]
    """The facts that all jobs share."""
    total_ms = 0.0
    for position in range(seen.now.num_active[0]):
        total_ms += seen.jobs.remaining_ms[seen.active[position]]
    return Crowd(
        math.log(max(1, seen.now.num_active[0])),
        math.log(max(1, seen.now.num_open[0])),
        math.log(max(1.0, total_ms) / rule.mean_work_ms[0]),
        math.log(seen.now.num_executors[0] / _USUAL_CLUSTER),
        waiting(seen, rule),
    )


@inlined
def curve_row(rule, seen, job):  # type: ignore[no-untyped-def]
    """The job's row of the solo curves; the last one where the profile does not know the job."""
    profile = seen.jobs.profile[job]
    if profile == NO_PROFILE or profile >= rule.stretch.shape[0] - 1:
        return rule.stretch.shape[0] - 1
    return profile


@inlined
def best_level(rule, row, price):  # type: ignore[no-untyped-def]
    """Column of the level p that minimises T(p) (1 + price p / cluster)."""
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
def log_price(seen, rule, facts, job):  # type: ignore[no-untyped-def]
    """Log of the price of the whole cluster to a job."""
    theta = rule.theta
    mean_ms = rule.mean_work_ms[0]
    work_ms = max(1.0, seen.jobs.work_ms[job])
    remaining_ms = max(1.0, seen.jobs.remaining_ms[job])
    return (
        theta[_PRICE]
        + theta[_PRICE_JOBS] * facts.log_jobs
        + theta[_PRICE_OPEN] * facts.log_open
        + theta[_PRICE_REMAINING] * math.log(remaining_ms / mean_ms)
        + theta[_PRICE_WORK] * math.log(work_ms / mean_ms)
        + theta[_PRICE_TOTAL] * facts.log_total
        + theta[_PRICE_STARTED] * (1.0 - remaining_ms / work_ms)
        + theta[_PRICE_CLUSTER] * facts.log_cluster
    )


@inlined
def cap_level(seen, rule, facts, job):  # type: ignore[no-untyped-def]
    """Column of the level that caps the job."""
    price = math.exp(min(30.0, max(-30.0, log_price(seen, rule, facts, job))))
    return best_level(rule, curve_row(rule, seen, job), price)


@inlined
def score(seen, rule, job, column, held):  # type: ignore[no-untyped-def]
    """Jobs are served by this, smallest first."""
    theta = rule.theta
    mean_ms = rule.mean_work_ms[0]
    cap = rule.levels[column]
    work_ms = max(1.0, seen.jobs.work_ms[job])
    solo_ms = work_ms * rule.stretch[curve_row(rule, seen, job), column]
    return (
        math.log(max(1.0, seen.jobs.remaining_ms[job]) / mean_ms)
        + theta[_SCORE_WORK] * math.log(work_ms / mean_ms)
        + theta[_SCORE_STRETCH] * math.log(solo_ms / mean_ms)
        + theta[_SCORE_CAP] * math.log(cap)
        + theta[_SCORE_HELD] * held / cap
    )


@kernel
def waiting(seen, rule):  # type: ignore[no-untyped-def]
    """How many executors schedulable stages can take, by the size that they need; all jobs' stages are looked through."""
    small = 0
    medium = 0
    large = 0
    largest = 0
    if seen.classes.shape[0] == 1 or rule.theta[_BORROW_WAITING] == 0.0:
        return Waiting(small, medium, large, largest)
    stages = seen.stages
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if seen.jobs.num_schedulable[job] == 0:
            continue
        for stage in range(
            seen.jobs.stage_start[job], seen.jobs.stage_start[job] + seen.jobs.num_stages[job]
        ):
            if stages.is_saturated[stage] or stages.num_parents_unsaturated[stage] > 0:
                continue
            quarter = quarter_of(seen, own_class(seen, stage))
            wanted = demand(seen, stage)
            small += wanted if quarter == 0 else 0
            medium += wanted if quarter == 1 else 0
            large += wanted if quarter == 2 else 0
            largest += wanted if quarter == 3 else 0
    return Waiting(small, medium, large, largest)


@inlined
def _num_waiting(seen, facts, own, executor_class):  # type: ignore[no-untyped-def]
    """Executors that are waited for by stages which the stage's own class is too small for, and this one is not."""
    low = quarter_of(seen, own)
    high = quarter_of(seen, executor_class)
    queue = facts.waiting
    count = queue.medium if low < 1 <= high else 0
    count += queue.large if low < 2 <= high else 0
    return count + (queue.largest if low < 3 <= high else 0)


@inlined
def _may_borrow(seen, rule, facts, job, own, executor_class):  # type: ignore[no-untyped-def]
    """Whether the job may take an executor larger than the stage's own class."""
    theta = rule.theta
    offered = seen.source_count[executor_class]
    remaining_ms = max(1.0, seen.jobs.remaining_ms[job])
    reluctance = theta[_BORROW] + theta[_BORROW_JOBS] * facts.log_jobs
    if theta[_BORROW_REMAINING] != 0.0:
        reluctance += theta[_BORROW_REMAINING] * math.log(remaining_ms / rule.mean_work_ms[0])
    if theta[_BORROW_WAITING] != 0.0:
        wanted = _num_waiting(seen, facts, own, executor_class)
        reluctance += theta[_BORROW_WAITING] * math.log((1.0 + wanted) / (1.0 + offered))
    if theta[_BORROW_SIZE] != 0.0:
        reluctance += theta[_BORROW_SIZE] * math.log(
            class_size(seen, executor_class) / class_size(seen, own)
        )
    return reluctance <= 0.0


@kernel
def class_for(seen, rule, facts, stage):  # type: ignore[no-untyped-def]
    """The offered class that the rule gives to the stage; ANY_CLASS where it may take none."""
    if seen.classes.shape[0] == 1:
        return 0
    best = ANY_CLASS
    best_value = -math.inf
    own = own_class(seen, stage)
    theta = rule.theta
    for c in range(seen.classes.shape[0]):
        offered = seen.source_count[c]
        if offered == 0 or not (seen.stages.fits[stage] >> c) & 1:
            continue
        if class_size(seen, c) > class_size(seen, own) and not _may_borrow(
            seen, rule, facts, seen.stages.job[stage], own, c
        ):
            continue
        value = theta[_CLASS_OFFERED] * math.log(
            offered / seen.classes.num_executors[c]
        ) - math.log(class_size(seen, c))
        if value > best_value:
            best = c
            best_value = value
    return best


@inlined
def command_class(seen, rule, facts, stage):  # type: ignore[no-untyped-def]
    """The class that a decision for the stage names; ANY_CLASS, best-fitting first, where nothing forbids any."""
    theta = rule.theta
    is_plain = seen.classes.shape[0] == 1
    if not is_plain:
        is_plain = True
        for parameter in range(_BORROW, _SCORE_OVERSIZE):
            is_plain = is_plain and theta[parameter] == 0.0
    return ANY_CLASS if is_plain else class_for(seen, rule, facts, stage)


@inlined
def wants_offered(seen, job):  # type: ignore[no-untyped-def]
    """Whether some executor that is asked about is large enough for some schedulable stage of the job."""
    return seen.classes.shape[0] == 1 or first_schedulable(seen, job) != NO_STAGE


@inlined
def _may_go_ahead(seen, rule, stage):  # type: ignore[no-untyped-def]
    """Whether executors may go to the stage now: it is runnable, or its parents' tasks are short enough to wait for their end."""
    theta = rule.theta
    if is_runnable(seen, stage) or (theta[_AHEAD] <= 0.0 and theta[_AHEAD_WAIT] == 0.0):
        return True
    return (
        theta[_AHEAD] + theta[_AHEAD_WAIT] * math.log(max(1.0, wait_ms(seen, stage)) / MS_PER_S)
        <= 0.0
    )


@kernel
def best_stage(seen, rule, facts, job, binds):  # type: ignore[no-untyped-def]
    """The job's schedulable stage that the rule prefers, or NO_STAGE; one that may not take executors counts unless `binds`."""
    best = NO_STAGE
    best_score = -math.inf
    theta = rule.theta
    stages = seen.stages
    if seen.jobs.num_schedulable[job] == 0:
        return best
    first = seen.jobs.stage_start[job]
    for stage in range(first, first + seen.jobs.num_stages[job]):
        if not is_schedulable(seen, stage) or (binds and not _may_go_ahead(seen, rule, stage)):
            continue
        executor_class = class_for(seen, rule, facts, stage)
        if executor_class == ANY_CLASS and binds:
            continue
        value = theta[_STAGE_OVERSIZE] * oversize(seen, stage, executor_class) + (
            math.log(1.0 + stages.downstream_ms[stage])
            + theta[_STAGE_TASK] * math.log(1.0 + stages.task_ms[stage])
            + theta[_STAGE_DEMAND] * math.log(max(1, demand(seen, stage)))
        )
        if is_runnable(seen, stage):
            value += theta[_STAGE_RUNNABLE]
        if value > best_score:
            best = stage
            best_score = value
    return best


@inlined
def _widened(cap, log_factor):  # type: ignore[no-untyped-def]
    return max(1, math.floor(cap * math.exp(log_factor) + 0.5))


@inlined
def _is_worth_moving(seen, rule, stage):  # type: ignore[no-untyped-def]
    """Whether the stage has enough work for another executor that it should come from elsewhere."""
    theta = rule.theta
    job = seen.stages.job[stage]
    work_ms = seen.jobs.remaining_ms[job] / (1 + num_held(seen, job))
    return work_ms >= rule.mean_work_ms[0] * 1e-3 * math.exp(theta[_WORTH])


@inlined
def _num_spare(seen, rule, stage):  # type: ignore[no-untyped-def]
    """Executors that the stage may take if its reserve is to stay idle, of those that fit it.

    Of executors that a job's end left to all: those that a job lets idle stay with it, so that nobody else would have them.
    """
    theta = rule.theta
    job = seen.stages.job[stage]
    tenths = theta[_RESERVE]
    if theta[_RESERVE_REMAINING] != 0.0:
        tenths += theta[_RESERVE_REMAINING] * math.log(
            max(1.0, seen.jobs.remaining_ms[job]) / rule.mean_work_ms[0]
        )
    if tenths <= 0.0 or seen.now.source_job[0] != NO_JOB:
        return seen.now.num_executors[0]
    num_fitting = 0
    num_free = 0
    for c in range(seen.classes.shape[0]):
        if (seen.stages.fits[stage] >> c) & 1:
            num_fitting += seen.classes.num_executors[c]
            num_free += seen.source_count[c]
    return num_free - math.ceil(num_fitting * min(_LARGEST_RESERVE, 0.1 * tenths))


@kernel
def _first_below(seen, rule, facts, log_factor):  # type: ignore[no-untyped-def]
    """Among jobs below their (widened) caps, the best score: stage, room and score, or NO_STAGE."""
    best = NO_STAGE
    best_room = 0
    best_score = math.inf
    can_gain = rule.theta[_SCORE_OVERSIZE] < 0.0
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if seen.jobs.num_schedulable[job] == 0 or not wants_offered(seen, job):
            continue
        held = num_held(seen, job)
        column = cap_level(seen, rule, facts, job)
        room = _widened(rule.levels[column], log_factor) - held
        if room <= 0:
            continue
        value = score(seen, rule, job, column, held)
        if value >= best_score and not can_gain:
            continue
        stage = best_stage(seen, rule, facts, job, True)
        if stage != NO_STAGE and (
            job == seen.now.source_job[0] or _is_worth_moving(seen, rule, stage)
        ):
            room = min(room, _num_spare(seen, rule, stage))
            if room <= 0:
                continue
            value += _score_of_class(seen, rule, facts, stage)
            if value < best_score:
                best = stage
                best_room = room
                best_score = value
    return best, best_room, best_score


@inlined
def _score_of_class(seen, rule, facts, stage):  # type: ignore[no-untyped-def]
    if seen.classes.shape[0] == 1 or rule.theta[_SCORE_OVERSIZE] == 0.0:
        return 0.0
    return rule.theta[_SCORE_OVERSIZE] * oversize(seen, stage, class_for(seen, rule, facts, stage))


@inlined
def _answer(seen, rule, facts, stage, room):  # type: ignore[no-untyped-def]
    """The decision that gives the stage up to `room` executors of the class that the rule has for it."""
    executor_class = command_class(seen, rule, facts, stage)
    num_offered = seen.now.num_source[0]
    if executor_class != ANY_CLASS:
        num_offered = seen.source_count[executor_class]
    return stage, min(room, num_offered), executor_class, 0


@kernel
def decide(seen, rule):  # type: ignore[no-untyped-def]
    """The rule's decision: (stage, limit, executor class, hold); NO_STAGE lets all executors idle."""
    now = seen.now
    theta = rule.theta
    source = seen.now.source_job[0]
    if now.num_schedulable[0] == 0:
        return NO_STAGE, now.num_source[0], ANY_CLASS, 0
    facts = crowd(seen, rule)
    stage, room, best = _first_below(seen, rule, facts, theta[_JOIN_CAP])
    if source != NO_JOB and seen.jobs.num_schedulable[source] > 0:
        column = cap_level(seen, rule, facts, source)
        held = num_held(seen, source)
        local_room = _widened(rule.levels[column], theta[_LOCAL_CAP]) - held
        local = best_stage(seen, rule, facts, source, True) if local_room > 0 else NO_STAGE
        if local != NO_STAGE:
            value = score(seen, rule, source, column, held) + _score_of_class(
                seen, rule, facts, local
            )
            if stage == NO_STAGE or value - theta[_LOCAL_SCORE] <= best:
                return _answer(seen, rule, facts, local, local_room)
    if stage == NO_STAGE:
        stage, room, best = _first_below(
            seen, rule, facts, theta[_SPILL] + theta[_SPILL_JOBS] * facts.log_jobs
        )
    if stage != NO_STAGE:
        return _answer(seen, rule, facts, stage, room)
    if may_idle(seen):
        return NO_STAGE, now.num_source[0], ANY_CLASS, 0
    return _anything(seen, rule, facts), now.num_source[0], ANY_CLASS, 0


@kernel
def _anything(seen, rule, facts):  # type: ignore[no-untyped-def]
    """Where nobody would work at all, caps and classes do not bind: the job with the least remaining work."""
    best = NO_STAGE
    best_ms = math.inf
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if seen.jobs.remaining_ms[job] < best_ms:
            stage = best_stage(seen, rule, facts, job, False)
            if stage != NO_STAGE:
                best = stage
                best_ms = seen.jobs.remaining_ms[job]
    return best


@kernel
def play(state, future, tables, rule):  # type: ignore[no-untyped-def]
    """Run a whole simulation under the rule. Returns a Status."""
    status = start(state, future, tables)
    while status == _NEEDS_DECISION:
        stage, limit, executor_class, hold_ms = decide(state, rule)
        status = step(state, future, tables, stage, limit, executor_class, hold_ms)
    return status


@kernel
def play_many(states, futures, tables, thetas, rule, first, last, status):  # type: ignore[no-untyped-def]
    """Run simulators first..last-1 of many, each with its own row of `thetas`; fills `status`."""
    for row in range(first, last):
        own = Rule(thetas[row], rule.levels, rule.stretch, rule.mean_work_ms)
        status[row] = play(select_cluster(states, row), select_future(futures, row), tables, own)
