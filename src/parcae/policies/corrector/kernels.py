"""The compiled network of the policy `parcae`: features, forward pass, decisions, whole runs.

All intermediate results are written into a Workspace, so that nothing is allocated. The results are
equal to those of `network.ParcaeNetwork` to 1e-5.
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
)
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_STAGE
from parcae.kernels import inlined, kernel
from parcae.policies.corrector.layout import (
    HIDDEN,
    LEVEL_PRICES,
    NUM_JOB_FEATURES,
    NUM_LIMIT_FEATURES,
    NUM_SHARED_FEATURES,
    SHAPES,
    SLOPE,
    JobFeature,
    LimitFeature,
    SharedFeature,
)
from parcae.policies.networks.kernels import (
    dot,
    embed_jobs,
    find_ahead,
    hold_logit,
    job_logit,
    largest,
)
from parcae.policies.networks.layout import deep_set, offsets_of
from parcae.policies.rule.kernels.decisions import decide as decide_by_rule
from parcae.policies.rule.kernels.scores import (
    best_level,
    cap_level,
    curve_row,
    score,
    system_facts,
)
from parcae.policies.rule.kernels.stages import best_stage, command_class
from parcae.products import add_product
from parcae.vectors import copy_numbers, rectify

_NET = deep_set(SHAPES)
_OFFSETS = offsets_of(SHAPES)
_LIMIT1 = _OFFSETS["limit1.weight"]
_LIMIT1_BIAS = _OFFSETS["limit1.bias"]
_LIMIT2 = _OFFSETS["limit2.weight"]
# Short names for sizes: hidden units, and features of a job, of all jobs together, of a limit.
_H = HIDDEN
_F = NUM_JOB_FEATURES
_C = NUM_SHARED_FEATURES
_L = NUM_LIMIT_FEATURES
_SLOPE = np.float32(SLOPE)
_IMPOSSIBLE = np.float32(-np.inf)
_PRICES = tuple(math.exp(price) for price in LEVEL_PRICES)
#: Upper bound of the feature SCORE.
_LARGEST_SCORE = 5.0


class Network(NamedTuple):
    """The weights in the order of `layout.SHAPES`, and the rule that the network corrects."""

    weights: Any  # float32[NUM_WEIGHTS]
    rule: Any  # Rule


class Workspace(NamedTuple):
    """Intermediate results of one decision (with one more leading axis: of many simulators).

    Rows of jobs are positions in the list of jobs in the system. Columns of levels are columns of
    the solo curves. A level whose logit in `limit_logits` is -inf cannot be chosen.
    """

    features: Any  # float32[num_jobs, NUM_JOB_FEATURES]
    hidden: Any  # float32[num_jobs, HIDDEN], h_j of the architecture
    logits: Any  # float32[num_jobs + 1], the last: hold
    order: Any  # int64[num_jobs], positions sorted by remaining work
    remaining_ms: Any  # float64[num_jobs], the jobs' remaining work
    ahead: Any  # float64[num_jobs, 2], see `find_ahead`
    stage: Any  # int64[num_jobs], the job's best stage; NO_STAGE if the job cannot be chosen
    held: Any  # int64[num_jobs], executors that the job holds
    column: Any  # int64[num_jobs], column of the rule's cap
    shared: Any  # float32[NUM_SHARED_FEATURES]
    context: Any  # float32[HIDDEN], g of the architecture
    base: Any  # float32[HIDDEN], the part of a layer that all jobs (or levels) share
    layer: Any  # float32[HIDDEN], the layer that is being computed
    limits: Any  # float32[num_levels, NUM_LIMIT_FEATURES], for the chosen job
    limit_logits: Any  # float32[num_levels], for the chosen job
    # int64[4]: the rule's position (-1: hold), the rule's limit, and the drawn position and column
    # of the level (-1: none)
    choices: Any


class Record(NamedTuple):
    """The decisions of one simulator as training data (with one more leading axis: of many).

    `rows` has the jobs of all decisions, grouped by decision. Row `count` of the tables of
    decisions is the state in which the recording ended; training needs it for the value of that
    state.
    """

    count: Any  # int64[1], number of decisions
    num_rows: Any  # int64[1], number of rows of jobs in use
    end_ms: Any  # int64[1], when the recording ended
    end_cost: Any  # float64[1], cost up to the end
    clock_ms: Any  # int64[capacity + 1], time of the decision
    cost: Any  # float64[capacity + 1], cost up to the decision
    first_row: Any  # int64[capacity + 2], the decision's first row in `rows`
    choice: Any  # int64[capacity + 1], position of the job, or the number of jobs for hold
    level: Any  # int64[capacity + 1], column of the level; -1 for hold
    log_prob: Any  # float32[capacity + 1], log probability of the decision when it was drawn
    shared: Any  # float32[capacity + 1, NUM_SHARED_FEATURES]
    rows: Any  # float32[row_capacity, NUM_JOB_FEATURES]
    can_choose: Any  # uint8[row_capacity]
    limits: Any  # float32[capacity + 1, num_levels, NUM_LIMIT_FEATURES]
    can_limit: Any  # uint8[capacity + 1, num_levels]


@kernel
def _order_features(view, net, work):  # type: ignore[no-untyped-def]
    """Write the features RANK and AHEAD: the jobs with less remaining work, and their work."""
    find_ahead(view, work)
    num_jobs = view.now.num_active[0]
    for position in range(num_jobs):
        before, before_ms = work.ahead[position]
        work.features[position, JobFeature.RANK] = before / num_jobs
        work.features[position, JobFeature.AHEAD] = math.log1p(before_ms / net.rule.mean_work_ms[0])


@inlined
def _stage_features(view, x, stage, work_ms):  # type: ignore[no-untyped-def]
    """Write the features of the job's best stage; 0 if there is none."""
    x[JobFeature.IS_RUNNABLE] = 0.0
    x[JobFeature.PATH] = 0.0
    x[JobFeature.DEMAND] = 0.0
    if stage != NO_STAGE:
        num_executors = view.now.num_executors[0]
        x[JobFeature.IS_RUNNABLE] = 1.0 if is_runnable(view, stage) else 0.0
        x[JobFeature.PATH] = view.stages.downstream_ms[stage] / work_ms
        x[JobFeature.DEMAND] = min(1.0, demand(view, stage) / num_executors)


@kernel
def _job_features(view, net, work, facts, position, can_hold):  # type: ignore[no-untyped-def]
    """Write the other features of one job, and its rows of `held`, `column` and `stage`.

    SCORE is written as it is; `encode` subtracts the smallest score afterwards.
    """
    job = view.active[position]
    x = work.features[position]
    rule = net.rule
    mean_ms = rule.mean_work_ms[0]
    num_executors = view.now.num_executors[0]
    held = num_held(view, job)
    column = cap_level(view, rule, facts, job)
    row = curve_row(rule, view, job)
    stage = best_stage(view, rule, facts, job, can_hold)
    work_ms = max(1.0, view.jobs.work_ms[job])
    remaining_ms = max(1.0, view.jobs.remaining_ms[job])
    cap = rule.levels[column]
    work.held[position] = held
    work.column[position] = column
    work.stage[position] = stage if held < num_executors else NO_STAGE
    x[JobFeature.REMAINING] = math.log(remaining_ms / mean_ms + 1e-3)
    x[JobFeature.WORK] = math.log(work_ms / mean_ms + 1e-3)
    x[JobFeature.STARTED] = 1.0 - remaining_ms / work_ms
    x[JobFeature.SHARE] = remaining_ms / (mean_ms * math.exp(facts.log_total))
    x[JobFeature.HELD] = held / num_executors
    x[JobFeature.HELD_OF_CAP] = min(3.0, held / cap)
    x[JobFeature.CAP] = cap / num_executors
    x[JobFeature.IS_SOURCE] = 1.0 if job == view.now.source_job[0] else 0.0
    x[JobFeature.IDLE] = 0.0
    for executor_class in range(view.classes.shape[0]):
        x[JobFeature.IDLE] += (
            view.sources.num_idle[pool_row(view, job) + executor_class] / num_executors
        )
    x[JobFeature.STAGES] = view.jobs.num_unstarted[job] / view.jobs.num_stages[job]
    x[JobFeature.SOLO] = math.log(work_ms * rule.stretch[row, column] / mean_ms + 1e-3)
    for price in range(4):
        x[JobFeature.LEVEL_CHEAP + price] = (
            rule.levels[best_level(rule, row, _PRICES[price])] / num_executors
        )
    x[JobFeature.AGE] = math.log1p(
        (view.now.clock_ms[0] - view.jobs.arrival_ms[job]) * num_executors / mean_ms
    )
    x[JobFeature.SCORE] = score(view, rule, job, column, held)
    x[JobFeature.WORTH] = math.log(remaining_ms / (1 + max(0, held)) / mean_ms + 1e-3)
    x[JobFeature.IS_RULE] = 0.0
    _stage_features(view, x, stage, work_ms)


@inlined
def _encode_shared(view, work, facts, can_hold):  # type: ignore[no-untyped-def]
    """Write the features that all jobs share, after the rule's decision."""
    now = view.now
    shared = work.shared
    num_executors = now.num_executors[0]
    shared[SharedFeature.JOBS] = facts.log_jobs
    shared[SharedFeature.OPEN] = facts.log_open
    shared[SharedFeature.TOTAL] = facts.log_total
    shared[SharedFeature.SOURCE] = now.num_source[0] / num_executors
    shared[SharedFeature.IS_GLOBAL] = 1.0 if now.source_job[0] == NO_JOB else 0.0
    shared[SharedFeature.IDLE] = now.num_idle[0] / num_executors
    shared[SharedFeature.CLUSTER] = math.log(num_executors)
    shared[SharedFeature.RULE_HOLDS] = 1.0 if work.choices[0] == -1 else 0.0
    shared[SharedFeature.CAN_HOLD] = 1.0 if can_hold else 0.0


@kernel
def encode(view, net, work):  # type: ignore[no-untyped-def]
    """Write the features of all jobs and the shared features to the workspace.

    Args:
        view: the observation.
        net: Network.
        work: Workspace; `choices[0]` and `choices[1]` receive the rule's decision.

    Returns:
        The number of jobs in the system.
    """
    now = view.now
    facts = system_facts(view, net.rule)
    num_jobs = view.now.num_active[0]
    work.choices[0] = -1
    work.choices[1] = 0
    rule_job = NO_JOB
    can_hold = may_idle(view)
    if now.num_source[0] > 0:
        stage, limit, _, _ = decide_by_rule(view, net.rule)
        if stage != NO_STAGE:
            rule_job = view.stages.job[stage]
            work.choices[1] = limit
    _order_features(view, net, work)
    smallest = math.inf
    for position in range(num_jobs):
        _job_features(view, net, work, facts, position, can_hold)
        smallest = min(smallest, work.features[position, JobFeature.SCORE])
    for position in range(num_jobs):
        x = work.features[position]
        x[JobFeature.SCORE] = min(_LARGEST_SCORE, x[JobFeature.SCORE] - smallest)
        if view.active[position] == rule_job and work.stage[position] != NO_STAGE:
            x[JobFeature.IS_RULE] = 1.0
            work.choices[0] = position
    _encode_shared(view, work, facts, can_hold)
    return num_jobs


@kernel
def _score_jobs(net, work, num_jobs):  # type: ignore[no-untyped-def]
    """Write the logits of the jobs and of hold."""
    embed_jobs(net.weights, _NET, _SLOPE, work, num_jobs)
    for position in range(num_jobs):
        work.logits[position] = _IMPOSSIBLE
        if work.stage[position] != NO_STAGE:
            is_rule = work.features[position, JobFeature.IS_RULE]
            logit = job_logit(net.weights, _NET, _SLOPE, work, position, is_rule)
            work.logits[position] = logit
    work.logits[num_jobs] = _IMPOSSIBLE
    if work.shared[SharedFeature.CAN_HOLD] > 0.0:
        rule_holds = work.shared[SharedFeature.RULE_HOLDS]
        work.logits[num_jobs] = hold_logit(net.weights, _NET, work, rule_holds)


@kernel
def _encode_limits(view, net, work, position):  # type: ignore[no-untyped-def]
    """Write the features of every level for the chosen job. Returns how many can be chosen.

    A level cannot be chosen if the job already holds that many executors, or if a smaller level
    already takes all offered executors. Its logit is -inf; that of other levels is set to 0.
    """
    rule = net.rule
    held = work.held[position]
    cap = net.rule.levels[work.column[position]]
    row = curve_row(rule, view, view.active[position])
    levels = rule.levels
    num_source = view.now.num_source[0]
    num_levels = levels.shape[0]
    num_possible = 0
    shortest = math.inf
    for column in range(num_levels):
        shortest = min(shortest, rule.stretch[row, column])
    wanted = held + work.choices[1] if position == work.choices[0] else cap
    is_marked = False
    for column in range(num_levels):
        level = levels[column]
        x = work.limits[column]
        work.limit_logits[column] = _IMPOSSIBLE
        x[:] = 0.0
        if level <= held or (column > 0 and levels[column - 1] - held >= num_source):
            continue
        num_possible += 1
        work.limit_logits[column] = 0.0
        x[LimitFeature.LEVEL] = level / levels[num_levels - 1]
        x[LimitFeature.LOG_LEVEL] = math.log(level)
        x[LimitFeature.ADDED] = min(level - held, num_source) / levels[num_levels - 1]
        x[LimitFeature.OF_SOURCE] = min(1.0, (level - held) / num_source)
        x[LimitFeature.STRETCH] = math.log(rule.stretch[row, column] / shortest)
        x[LimitFeature.INFLATION] = math.log(
            rule.stretch[row, column] * level / rule.stretch[row, 0]
        )
        x[LimitFeature.OF_CAP] = math.log(level / cap)
        # The rule's limit is the first possible level that is large enough, or else the last one.
        is_last = column == num_levels - 1 or level - held >= num_source
        if not is_marked and (level >= wanted or is_last):
            x[LimitFeature.IS_RULE] = 1.0
            is_marked = True
    return num_possible


@kernel
def _score_limits(net, work, position):  # type: ignore[no-untyped-def]
    """Write the logits of the levels that can be chosen."""
    weights = net.weights
    base = work.base
    layer = work.layer
    copy_numbers(weights, _LIMIT1_BIAS, _H, base)
    add_product(work.hidden[position], _H, weights, _LIMIT1, _H, base)
    add_product(work.context, _H, weights, _LIMIT1 + _H * _H, _H, base)
    for column in range(work.limits.shape[0]):
        if work.limit_logits[column] == _IMPOSSIBLE:
            continue
        for o in range(_H):
            layer[o] = base[o]
        add_product(work.limits[column], _L, weights, _LIMIT1 + 2 * _H * _H, _H, layer)
        rectify(layer, _H, _SLOPE)
        prior = weights[_NET.prior + 2] * work.limits[column, LimitFeature.IS_RULE]
        work.limit_logits[column] = dot(layer, _H, weights, _LIMIT2) + prior


@inlined
def _class_of(view, net, stage):  # type: ignore[no-untyped-def]
    """The executor class for the stage: always the rule's choice."""
    if view.classes.shape[0] == 1:
        return ANY_CLASS
    return command_class(view, net.rule, system_facts(view, net.rule), stage)


@kernel
def decide(view, net, work):  # type: ignore[no-untyped-def]
    """Return the network's most probable decision for one scheduling event.

    Args:
        view: the observation.
        net: Network.
        work: Workspace; written.

    Returns:
        (stage, limit, executor class, hold); NO_STAGE lets all offered executors idle.
    """
    num_jobs = encode(view, net, work)
    _score_jobs(net, work, num_jobs)
    position = largest(work.logits, num_jobs + 1)
    if position == num_jobs or work.logits[position] == _IMPOSSIBLE:
        return NO_STAGE, view.now.num_source[0], ANY_CLASS, 0
    _encode_limits(view, net, work, position)
    _score_limits(net, work, position)
    level = net.rule.levels[largest(work.limit_logits, work.limits.shape[0])]
    stage = work.stage[position]
    return (
        stage,
        min(level - work.held[position], view.now.num_source[0]),
        _class_of(view, net, stage),
        0,
    )
