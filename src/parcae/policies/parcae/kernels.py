"""The network, compiled: features, the forward pass, a decision, whole runs.

Everything is written into a Workspace, so that nothing is allocated. Equal to `network.ParcaeNetwork` to 1e-5.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from parcae.cluster.kernels.tables import (
    demand,
    is_runnable,
    may_idle,
    num_held,
    pool_row,
    select_cluster,
)
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_STAGE
from parcae.kernels import inlined, kernel
from parcae.policies.networks.kernels import (
    add_product,
    copy_bias,
    dot,
    draw,
    largest,
    log_sum_exp,
    rectify,
    uniform,
)
from parcae.policies.parcae.layout import (
    HIDDEN,
    LEVEL_PRICES,
    NUM_JOB_FEATURES,
    NUM_LIMIT_FEATURES,
    NUM_SHARED_FEATURES,
    SLOPE,
    JobFeature,
    LimitFeature,
    SharedFeature,
    offsets,
)
from parcae.policies.rule.kernels import (
    best_level,
    best_stage,
    cap_level,
    command_class,
    crowd,
    curve_row,
    score,
)
from parcae.policies.rule.kernels import decide as decide_by_rule
from parcae.simulation.future import Status
from parcae.simulation.kernels.costs import cost_so_far
from parcae.simulation.kernels.event_loop import resume, select_future, start, step

_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_AT = offsets()
_JOB1 = _AT["job1.weight"]
_JOB1_BIAS = _AT["job1.bias"]
_JOB2 = _AT["job2.weight"]
_JOB2_BIAS = _AT["job2.bias"]
_CONTEXT = _AT["context.weight"]
_CONTEXT_BIAS = _AT["context.bias"]
_CHOICE1 = _AT["choice1.weight"]
_CHOICE1_BIAS = _AT["choice1.bias"]
_CHOICE2 = _AT["choice2.weight"]
_HOLD = _AT["hold.weight"]
_HOLD_BIAS = _AT["hold.bias"]
_LIMIT1 = _AT["limit1.weight"]
_LIMIT1_BIAS = _AT["limit1.bias"]
_LIMIT2 = _AT["limit2.weight"]
_PRIOR = _AT["prior"]
_H = HIDDEN
_F = NUM_JOB_FEATURES
_C = NUM_SHARED_FEATURES
_L = NUM_LIMIT_FEATURES
_SLOPE = np.float32(SLOPE)
_IMPOSSIBLE = np.float32(-np.inf)
_PRICES = tuple(math.exp(price) for price in LEVEL_PRICES)
_LARGEST_SCORE = 5.0

_REMAINING, _WORK, _STARTED, _SHARE = map(
    int, (JobFeature.REMAINING, JobFeature.WORK, JobFeature.STARTED, JobFeature.SHARE)
)
_RANK, _AHEAD, _HELD, _HELD_OF_CAP = map(
    int, (JobFeature.RANK, JobFeature.AHEAD, JobFeature.HELD, JobFeature.HELD_OF_CAP)
)
_CAP, _IS_SOURCE, _IDLE, _STAGES = map(
    int, (JobFeature.CAP, JobFeature.IS_SOURCE, JobFeature.IDLE, JobFeature.STAGES)
)
_SOLO, _LEVEL, _AGE, _IS_RULE = map(
    int, (JobFeature.SOLO, JobFeature.LEVEL_CHEAP, JobFeature.AGE, JobFeature.IS_RULE)
)
_SCORE, _IS_RUNNABLE, _PATH = map(int, (JobFeature.SCORE, JobFeature.IS_RUNNABLE, JobFeature.PATH))
_DEMAND = int(JobFeature.DEMAND)
_WORTH = int(JobFeature.WORTH)
_S_JOBS, _S_OPEN, _S_TOTAL = map(int, (SharedFeature.JOBS, SharedFeature.OPEN, SharedFeature.TOTAL))
_S_SOURCE, _S_IS_GLOBAL, _S_IDLE = map(
    int, (SharedFeature.SOURCE, SharedFeature.IS_GLOBAL, SharedFeature.IDLE)
)
_S_CLUSTER, _S_RULE, _S_CAN = map(
    int, (SharedFeature.CLUSTER, SharedFeature.RULE_HOLDS, SharedFeature.CAN_HOLD)
)
_L_LEVEL, _L_LOG, _L_ADDED = map(
    int, (LimitFeature.LEVEL, LimitFeature.LOG_LEVEL, LimitFeature.ADDED)
)
_L_OF_SOURCE, _L_STRETCH, _L_INFLATION = map(
    int, (LimitFeature.OF_SOURCE, LimitFeature.STRETCH, LimitFeature.INFLATION)
)
_L_OF_CAP = int(LimitFeature.OF_CAP)
_L_IS_RULE = int(LimitFeature.IS_RULE)


class Network(NamedTuple):
    """What decides: the weights in the order of layout.SHAPES, and the rule that they correct."""

    weights: Any  # float32[NUM_WEIGHTS]
    rule: Any  # Rule


class Workspace(NamedTuple):
    """Room for one decision (or, with one more leading axis, for many simulators)."""

    features: (
        Any  # float32[num_jobs, NUM_JOB_FEATURES], by position in the list of jobs in the system
    )
    hidden: Any  # float32[num_jobs, HIDDEN]
    logits: Any  # float32[num_jobs + 1], the last: hold
    order: Any  # int64[num_jobs], positions by remaining work
    stage: Any  # int64[num_jobs], the job's best stage; NO_STAGE where the job cannot be chosen
    held: Any  # int64[num_jobs]
    column: Any  # int64[num_jobs], the rule's cap
    shared: Any  # float32[NUM_SHARED_FEATURES]
    context: Any  # float32[HIDDEN]
    base: Any  # float32[HIDDEN]
    layer: Any  # float32[HIDDEN]
    limits: Any  # float32[num_levels, NUM_LIMIT_FEATURES]
    limit_logits: Any  # float32[num_levels]
    answer: Any  # int64[4]: rule's position (-1: hold), rule's limit, position that was chosen, level that was chosen


class Record(NamedTuple):
    """The decisions of one simulator (or of many) as training data; `rows` of all decisions follow each other.

    Row `count` of the tables of decisions is the state in which the recording ended, for its value.
    """

    count: Any  # int64[1], decisions
    num_rows: Any  # int64[1]
    end_ms: Any  # int64[1], when the recording ended
    end_cost: Any  # float64[1], cost up to then
    clock_ms: Any  # int64[capacity]
    cost: Any  # float64[capacity], cost up to the decision
    first_row: Any  # int64[capacity + 1]
    choice: Any  # int64[capacity], position of the job, or the number of jobs for hold
    level: Any  # int64[capacity], -1 for hold
    log_prob: Any  # float32[capacity]
    shared: Any  # float32[capacity, NUM_SHARED_FEATURES]
    rows: Any  # float32[row_capacity, NUM_JOB_FEATURES]
    can_choose: Any  # uint8[row_capacity]
    limits: Any  # float32[capacity, num_levels, NUM_LIMIT_FEATURES]
    can_limit: Any  # uint8[capacity, num_levels]


@inlined
def select_workspace(many, row):  # type: ignore[no-untyped-def]
    """The workspace of one simulator out of many."""
    return Workspace(
        many.features[row], many.hidden[row], many.logits[row], many.order[row], many.stage[row], many.held[row],
        many.column[row],
        many.shared[row], many.context[row], many.base[row], many.layer[row], many.limits[row], many.limit_logits[row],
        many.answer[row],
    )  # fmt: skip


@inlined
def select_record(many, row):  # type: ignore[no-untyped-def]
    """The record of one simulator out of many."""
    return Record(
        many.count[row], many.num_rows[row], many.end_ms[row], many.end_cost[row], many.clock_ms[row], many.cost[row],
        many.first_row[row], many.choice[row], many.level[row], many.log_prob[row], many.shared[row], many.rows[row],
        many.can_choose[row], many.limits[row], many.can_limit[row],
    )  # fmt: skip


@kernel
def _sort_by_remaining(seen, order):  # type: ignore[no-untyped-def]
    """Positions of the jobs in the system by remaining work, ascending (Shell's sort: nothing is allocated)."""
    num_jobs = seen.now.num_active[0]
    remaining_ms = seen.jobs.remaining_ms
    active = seen.active
    for position in range(num_jobs):
        order[position] = position
    gap = 1
    while gap < num_jobs // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for row in range(gap, num_jobs):
            position = order[row]
            at = row
            own_ms = remaining_ms[active[position]]
            while at >= gap and remaining_ms[active[order[at - gap]]] > own_ms:
                order[at] = order[at - gap]
                at -= gap
            order[at] = position
        gap //= 3


@kernel
def _order_features(seen, net, work):  # type: ignore[no-untyped-def]
    """How many jobs, and how much work, come before each by remaining work."""
    num_jobs = seen.now.num_active[0]
    jobs = seen.jobs
    active = seen.active
    order = work.order
    _sort_by_remaining(seen, order)
    before = 0
    before_ms = 0.0
    passed_ms = 0.0
    for rank in range(num_jobs):
        position = order[rank]
        own_ms = jobs.remaining_ms[active[position]]
        if rank > 0 and own_ms > jobs.remaining_ms[active[order[rank - 1]]]:
            before = rank
            before_ms = passed_ms
        passed_ms += own_ms
        work.features[position, _RANK] = before / num_jobs
        work.features[position, _AHEAD] = math.log1p(before_ms / net.rule.mean_work_ms[0])


@kernel
def _job_features(seen, net, work, facts, position, can_hold):  # type: ignore[no-untyped-def]
    job = seen.active[position]
    x = work.features[position]
    rule = net.rule
    mean_ms = rule.mean_work_ms[0]
    num_executors = seen.now.num_executors[0]
    held = num_held(seen, job)
    column = cap_level(seen, rule, facts, job)
    row = curve_row(rule, seen, job)
    stage = best_stage(seen, rule, facts, job, can_hold)
    work_ms = max(1.0, seen.jobs.work_ms[job])
    remaining_ms = max(1.0, seen.jobs.remaining_ms[job])
    cap = rule.levels[column]
    work.held[position] = held
    work.column[position] = column
    work.stage[position] = stage if held < num_executors else NO_STAGE
    x[_REMAINING] = math.log(remaining_ms / mean_ms + 1e-3)
    x[_WORK] = math.log(work_ms / mean_ms + 1e-3)
    x[_STARTED] = 1.0 - remaining_ms / work_ms
    x[_SHARE] = remaining_ms / (mean_ms * math.exp(facts.log_total))
    x[_HELD] = held / num_executors
    x[_HELD_OF_CAP] = min(3.0, held / cap)
    x[_CAP] = cap / num_executors
    x[_IS_SOURCE] = 1.0 if job == seen.now.source_job[0] else 0.0
    x[_IDLE] = 0.0
    for executor_class in range(seen.classes.shape[0]):
        x[_IDLE] += seen.sources.num_idle[pool_row(seen, job) + executor_class] / num_executors
    x[_STAGES] = seen.jobs.num_unstarted[job] / seen.jobs.num_stages[job]
    x[_SOLO] = math.log(work_ms * rule.stretch[row, column] / mean_ms + 1e-3)
    for price in range(4):
        x[_LEVEL + price] = rule.levels[best_level(rule, row, _PRICES[price])] / num_executors
    x[_AGE] = math.log1p(
        (seen.now.clock_ms[0] - seen.jobs.arrival_ms[job]) * num_executors / mean_ms
    )
    x[_SCORE] = score(seen, rule, job, column, held)
    x[_WORTH] = math.log(remaining_ms / (1 + max(0, held)) / mean_ms + 1e-3)
    x[_IS_RUNNABLE] = x[_PATH] = x[_DEMAND] = x[_IS_RULE] = 0.0
    if stage != NO_STAGE:
        x[_IS_RUNNABLE] = 1.0 if is_runnable(seen, stage) else 0.0
        x[_PATH] = seen.stages.downstream_ms[stage] / work_ms
        x[_DEMAND] = min(1.0, demand(seen, stage) / num_executors)


@kernel
def encode(seen, net, work):  # type: ignore[no-untyped-def]
    """Fill the workspace with the features. Returns how many jobs are in the system."""
    now = seen.now
    facts = crowd(seen, net.rule)
    num_jobs = seen.now.num_active[0]
    work.answer[0] = -1
    work.answer[1] = 0
    rule_job = NO_JOB
    can_hold = may_idle(seen)
    if now.num_source[0] > 0:
        stage, limit, _, _ = decide_by_rule(seen, net.rule)
        if stage != NO_STAGE:
            rule_job = seen.stages.job[stage]
            work.answer[1] = limit
    _order_features(seen, net, work)
    smallest = math.inf
    for position in range(num_jobs):
        _job_features(seen, net, work, facts, position, can_hold)
        smallest = min(smallest, work.features[position, _SCORE])
    for position in range(num_jobs):
        x = work.features[position]
        x[_SCORE] = min(_LARGEST_SCORE, x[_SCORE] - smallest)
        if seen.active[position] == rule_job and work.stage[position] != NO_STAGE:
            x[_IS_RULE] = 1.0
            work.answer[0] = position
    shared = work.shared
    num_executors = now.num_executors[0]
    shared[_S_JOBS] = facts.log_jobs
    shared[_S_OPEN] = facts.log_open
    shared[_S_TOTAL] = facts.log_total
    shared[_S_SOURCE] = now.num_source[0] / num_executors
    shared[_S_IS_GLOBAL] = 1.0 if now.source_job[0] == NO_JOB else 0.0
    shared[_S_IDLE] = now.num_idle[0] / num_executors
    shared[_S_CLUSTER] = math.log(num_executors)
    shared[_S_RULE] = 1.0 if work.answer[0] == -1 else 0.0
    shared[_S_CAN] = 1.0 if can_hold else 0.0
    return num_jobs


@kernel
def _score_jobs(net, work, num_jobs):  # type: ignore[no-untyped-def]
    """Fill the logits of the jobs and of hold."""
    weights = net.weights
    context = work.context
    base = work.base
    layer = work.layer
    copy_bias(weights, _CONTEXT_BIAS, _H, context)
    for position in range(num_jobs):
        copy_bias(weights, _JOB1_BIAS, _H, layer)
        add_product(work.features[position], _F, weights, _JOB1, _H, layer)
        rectify(layer, _H, _SLOPE)
        hidden = work.hidden[position]
        copy_bias(weights, _JOB2_BIAS, _H, hidden)
        add_product(layer, _H, weights, _JOB2, _H, hidden)
        rectify(hidden, _H, _SLOPE)
    base[:] = 0.0
    for position in range(num_jobs):
        for o in range(_H):
            base[o] += work.hidden[position, o] / num_jobs
    add_product(base, _H, weights, _CONTEXT, _H, context)
    add_product(work.shared, _C, weights, _CONTEXT + _H * _H, _H, context)
    rectify(context, _H, _SLOPE)
    copy_bias(weights, _CHOICE1_BIAS, _H, base)
    add_product(context, _H, weights, _CHOICE1 + _H * _H, _H, base)
    for position in range(num_jobs):
        work.logits[position] = _IMPOSSIBLE
        if work.stage[position] != NO_STAGE:
            for o in range(_H):
                layer[o] = base[o]
            add_product(work.hidden[position], _H, weights, _CHOICE1, _H, layer)
            rectify(layer, _H, _SLOPE)
            work.logits[position] = (
                dot(layer, _H, weights, _CHOICE2)
                + weights[_PRIOR] * work.features[position, _IS_RULE]
            )
    work.logits[num_jobs] = _IMPOSSIBLE
    if work.shared[_S_CAN] > 0.0:
        hold = dot(context, _H, weights, _HOLD) + weights[_HOLD_BIAS]
        work.logits[num_jobs] = hold + weights[_PRIOR + 1] * work.shared[_S_RULE]


@kernel
def _encode_limits(seen, net, work, position):  # type: ignore[no-untyped-def]
    """Features of every level for the chosen job; a level that the job exceeds, or above one that takes all, is marked.

    Returns how many levels may be chosen.
    """
    rule = net.rule
    held = work.held[position]
    cap = net.rule.levels[work.column[position]]
    row = curve_row(rule, seen, seen.active[position])
    levels = rule.levels
    num_source = seen.now.num_source[0]
    num_levels = levels.shape[0]
    num_possible = 0
    shortest = math.inf
    for column in range(num_levels):
        shortest = min(shortest, rule.stretch[row, column])
    wanted = held + work.answer[1] if position == work.answer[0] else cap
    is_found = False
    for column in range(num_levels):
        level = levels[column]
        x = work.limits[column]
        work.limit_logits[column] = _IMPOSSIBLE
        x[:] = 0.0
        if level <= held or (column > 0 and levels[column - 1] - held >= num_source):
            continue
        num_possible += 1
        work.limit_logits[column] = 0.0
        x[_L_LEVEL] = level / levels[num_levels - 1]
        x[_L_LOG] = math.log(level)
        x[_L_ADDED] = min(level - held, num_source) / levels[num_levels - 1]
        x[_L_OF_SOURCE] = min(1.0, (level - held) / num_source)
        x[_L_STRETCH] = math.log(rule.stretch[row, column] / shortest)
        x[_L_INFLATION] = math.log(rule.stretch[row, column] * level / rule.stretch[row, 0])
        x[_L_OF_CAP] = math.log(level / cap)
        is_last = column == num_levels - 1 or level - held >= num_source
        if not is_found and (level >= wanted or is_last):
            x[_L_IS_RULE] = 1.0
            is_found = True
    return num_possible


@kernel
def _score_limits(net, work, position):  # type: ignore[no-untyped-def]
    """Fill the logits of the levels that may be chosen."""
    weights = net.weights
    base = work.base
    layer = work.layer
    copy_bias(weights, _LIMIT1_BIAS, _H, base)
    add_product(work.hidden[position], _H, weights, _LIMIT1, _H, base)
    add_product(work.context, _H, weights, _LIMIT1 + _H * _H, _H, base)
    for column in range(work.limits.shape[0]):
        if work.limit_logits[column] == _IMPOSSIBLE:
            continue
        for o in range(_H):
            layer[o] = base[o]
        add_product(work.limits[column], _L, weights, _LIMIT1 + 2 * _H * _H, _H, layer)
        rectify(layer, _H, _SLOPE)
        prior = weights[_PRIOR + 2] * work.limits[column, _L_IS_RULE]
        work.limit_logits[column] = dot(layer, _H, weights, _LIMIT2) + prior


@inlined
def _class_of(seen, net, stage):  # type: ignore[no-untyped-def]
    """The executor class is the rule's choice."""
    if seen.classes.shape[0] == 1:
        return ANY_CLASS
    return command_class(seen, net.rule, crowd(seen, net.rule), stage)


@kernel
def decide(seen, net, work):  # type: ignore[no-untyped-def]
    """The network's most probable decision: (stage, limit, executor class, hold); NO_STAGE lets all executors idle."""
    num_jobs = encode(seen, net, work)
    _score_jobs(net, work, num_jobs)
    position = largest(work.logits, num_jobs + 1)
    if position == num_jobs or work.logits[position] == _IMPOSSIBLE:
        return NO_STAGE, seen.now.num_source[0], ANY_CLASS, 0
    _encode_limits(seen, net, work, position)
    _score_limits(net, work, position)
    level = net.rule.levels[largest(work.limit_logits, work.limits.shape[0])]
    stage = work.stage[position]
    return (
        stage,
        min(level - work.held[position], seen.now.num_source[0]),
        _class_of(seen, net, stage),
        0,
    )


@kernel
def play(state, future, tables, net, work):  # type: ignore[no-untyped-def]
    """Run a whole simulation, most probable decisions only. Returns a Status."""
    status = start(state, future, tables)
    while status == _NEEDS_DECISION:
        stage, limit, executor_class, hold_ms = decide(state, net, work)
        status = step(state, future, tables, stage, limit, executor_class, hold_ms)
    return status


@kernel
def _num_choices(work, num_jobs):  # type: ignore[no-untyped-def]
    count = 0
    for position in range(num_jobs + 1):
        count += work.logits[position] != _IMPOSSIBLE
    return count


@kernel
def _explore(seen, net, work, luck_seed):  # type: ignore[no-untyped-def]
    """Draw a decision. Returns (stage, limit, log probability, whether there was a choice at all)."""
    work.answer[2] = -1
    work.answer[3] = -1
    num_jobs = encode(seen, net, work)
    count = seen.now.num_decisions[0]
    _score_jobs(net, work, num_jobs)
    num_choices = _num_choices(work, num_jobs)
    if num_choices == 0:
        return NO_STAGE, seen.now.num_source[0], 0.0, False
    position = draw(work.logits, num_jobs + 1, uniform(luck_seed, 2 * count))
    log_prob = work.logits[position] - log_sum_exp(work.logits, num_jobs + 1)
    work.answer[2] = position
    for column in range(work.limits.shape[0]):
        work.limit_logits[column] = _IMPOSSIBLE
    if position == num_jobs:
        work.limits[:] = 0.0
        return NO_STAGE, seen.now.num_source[0], log_prob, num_choices > 1
    num_levels = _encode_limits(seen, net, work, position)
    _score_limits(net, work, position)
    column = draw(work.limit_logits, work.limits.shape[0], uniform(luck_seed, 2 * count + 1))
    log_prob += work.limit_logits[column] - log_sum_exp(work.limit_logits, work.limits.shape[0])
    work.answer[3] = column
    limit = min(net.rule.levels[column] - work.held[position], seen.now.num_source[0])
    return work.stage[position], limit, log_prob, num_choices > 1 or num_levels > 1


@kernel
def _write(seen, work, record, num_jobs):  # type: ignore[no-untyped-def]
    """Copy the workspace into the record's next row."""
    row = record.count[0]
    first = record.num_rows[0]
    record.clock_ms[row] = seen.now.clock_ms[0]
    record.first_row[row] = first
    record.first_row[row + 1] = first + num_jobs
    for feature in range(_C):
        record.shared[row, feature] = work.shared[feature]
    for position in range(num_jobs):
        for feature in range(_F):
            record.rows[first + position, feature] = work.features[position, feature]
        record.can_choose[first + position] = work.stage[position] != NO_STAGE
    record.num_rows[0] = first + num_jobs


@kernel
def _write_limits(work, record):  # type: ignore[no-untyped-def]
    row = record.count[0]
    for column in range(work.limits.shape[0]):
        record.can_limit[row, column] = work.limit_logits[column] != _IMPOSSIBLE
        for feature in range(_L):
            record.limits[row, column, feature] = work.limits[column, feature]


@kernel
def explore(state, future, tables, net, work, record, costing, luck_seed, is_new):  # type: ignore[no-untyped-def]
    """Run with drawn decisions from the start, or on from where the run stopped, and record every choice.

    Ends with the run, at the episode's end time, or where the record is full. Returns a Status.
    """
    record.count[0] = record.num_rows[0] = 0
    status = start(state, future, tables) if is_new else resume(state, future, tables)
    capacity = record.clock_ms.shape[0] - 1
    rows = record.rows.shape[0]
    while status == _NEEDS_DECISION:
        if record.count[0] == capacity or record.num_rows[0] + 2 * state.now.num_active[0] > rows:
            break
        stage, limit, log_prob, is_choice = _explore(state, net, work, luck_seed)
        if is_choice:
            row = record.count[0]
            _write(state, work, record, state.now.num_active[0])
            record.cost[row] = cost_so_far(state, costing)
            record.choice[row] = work.answer[2]
            record.level[row] = work.answer[3]
            record.log_prob[row] = log_prob
            _write_limits(work, record)
            record.count[0] = row + 1
        executor_class = _class_of(state, net, stage) if stage != NO_STAGE else ANY_CLASS
        status = step(state, future, tables, stage, limit, executor_class, 0)
    record.end_ms[0] = state.now.clock_ms[0]
    record.end_cost[0] = cost_so_far(state, costing)
    _write(state, work, record, encode(state, net, work))
    return status


@kernel
def explore_many(
    states, futures, tables, net, works, records, costing, luck, is_new, first, last, status
):  # type: ignore[no-untyped-def]
    """`explore` with simulators first..last-1 of many; fills `status`."""
    for row in range(first, last):
        state = select_cluster(states, row)
        future = select_future(futures, row)
        work = select_workspace(works, row)
        record = select_record(records, row)
        status[row] = explore(state, future, tables, net, work, record, costing, luck[row], is_new)
