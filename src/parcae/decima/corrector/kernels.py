"""The compiled network of the policy `parcae`: features, forward pass, decisions, records.

All intermediate results are written into a Workspace, so that nothing is allocated. The results are
equal to those of `network.CorrectorModule` to 1e-5.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.base.compiled.kernels import inlined, kernel
from parcae.base.compiled.products import add_product
from parcae.base.compiled.vectors import copy_numbers, rectify
from parcae.cluster.kernels.policies import decide
from parcae.cluster.kernels.tables import demand, is_runnable, may_idle, num_held, pool_row
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_STAGE
from parcae.decima.kernels.recording import (
    clear,
    draw_decision,
    has_room,
    write_decision,
    write_state,
)
from parcae.decima.rule.kernels import (
    best_level,
    best_stage,
    cap_level,
    command_class,
    curve_row,
    decide_by_rule,
    score,
    system_facts,
)
from parcae.policies.networks.kernels import (
    dot,
    draw,
    embed_jobs,
    find_ahead,
    hold_logit,
    job_logit,
    largest,
    uniform,
)
from parcae.policies.networks.layout import (
    Weights,
    critic_shapes,
    deep_set,
    deep_set_shapes,
    flat,
    glorot,
    offsets_of,
)

#: Increased whenever a feature changes its meaning; checkpoints of other versions are rejected.
FEATURE_VERSION = 1


class CorrectorJobFeature(IntEnum):
    """Columns of a job's features.

    The unit of work is the mean work of the workload's jobs. Numbers of executors are shares of the
    cluster.
    """

    REMAINING = 0  # log of the work of tasks that have not started
    WORK = 1  # log of total work
    STARTED = 2  # share of its work that has started
    SHARE = 3  # its share of the remaining work of all jobs
    RANK = 4  # share of the jobs that have less remaining work
    AHEAD = 5  # log1p of the remaining work of those jobs
    HELD = 6  # executors that work for it or move to it
    HELD_OF_CAP = 7  # the same / the rule's cap, at most 3
    CAP = 8  # the rule's cap
    IS_SOURCE = 9  # its executors are offered
    IDLE = 10  # executors idle in its pool
    STAGES = 11  # share of its stages that still have tasks to start
    SOLO = 12  # log of its solo duration at the cap
    LEVEL_CHEAP = 13  # the rule's cap at the lowest of four fixed prices (LEVEL_PRICES)
    LEVEL_LOW = 14  # at the second price
    LEVEL_HIGH = 15  # at the third price
    LEVEL_DEAR = 16  # at the highest price
    AGE = 17  # log1p of its time in the system, in units of (mean work / cluster)
    IS_RULE = 18  # the rule chooses it
    SCORE = 19  # the rule's score minus the smallest score, at most 5
    IS_RUNNABLE = 20  # its best stage is runnable
    PATH = 21  # share of its work on the heaviest path from its best stage to a leaf
    DEMAND = 22  # executors that its best stage can take
    WORTH = 23  # log of (remaining work / (executors that it holds + 1))


class CorrectorSharedFeature(IntEnum):
    """Columns of the features that all jobs share."""

    JOBS = 0  # log of jobs in the system
    OPEN = 1  # log of jobs that have an unsaturated stage
    TOTAL = 2  # log of the remaining work of all jobs
    SOURCE = 3  # offered executors, share of the cluster
    IS_GLOBAL = 4  # the offered executors belong to no job
    IDLE = 5  # executors in pools, share of the cluster
    CLUSTER = 6  # log of the cluster's size
    RULE_HOLDS = 7  # the rule lets the offered executors idle
    CAN_HOLD = 8  # a decision may let all offered executors idle


class CorrectorLimitFeature(IntEnum):
    """Columns of the features of one level as the chosen job's limit."""

    LEVEL = 0  # the level as share of the cluster
    LOG_LEVEL = 1  # log of the level
    ADDED = 2  # executors that the job would get, share of the cluster
    OF_SOURCE = 3  # executors that the job would get, share of the offered ones
    STRETCH = 4  # log of (solo duration at this level / shortest solo duration)
    INFLATION = 5  # log of (level x solo duration at this level / solo duration on one executor)
    OF_CAP = 6  # log of (level / the rule's cap)
    IS_RULE = 7  # the level is the rule's limit


#: Log of the four prices of the features LEVEL_CHEAP to LEVEL_DEAR.
LEVEL_PRICES = (-1.0, 0.5, 2.0, 3.5)
NUM_JOB_FEATURES = len(CorrectorJobFeature)
NUM_SHARED_FEATURES = len(CorrectorSharedFeature)
NUM_LIMIT_FEATURES = len(CorrectorLimitFeature)
HIDDEN = 32
#: Slope of the leaky ReLU below zero.
SLOPE = 0.1
#: Initial weights of the rule's choice of a job, its choice to hold, and its limit.
PRIOR = (5.5, 5.5, 4.0)

#: Shapes of the weights by name; matrices are [in, out]. The compiled pass reads the weights from
#: one flat array in this order.
SHAPES: dict[str, tuple[int, ...]] = {
    **deep_set_shapes(NUM_JOB_FEATURES, NUM_SHARED_FEATURES, HIDDEN),
    "limit1.weight": (2 * HIDDEN + NUM_LIMIT_FEATURES, HIDDEN),
    "limit1.bias": (HIDDEN,),
    "limit2.weight": (HIDDEN, 1),
    "prior": (3,),
}
#: Shapes of the critic's weights. The critic is used in training only.
CRITIC_SHAPES = critic_shapes(HIDDEN)
_STARTS_AT_ZERO = ("choice2.weight", "hold.weight", "limit2.weight", "value2.weight")


NUM_WEIGHTS = sum(int(np.prod(shape)) for shape in SHAPES.values())


def initial_weights(rng: np.random.Generator, prior: tuple[float, float, float] = PRIOR) -> Weights:
    """Return initial weights: Glorot-uniform matrices, and zero for biases and last layers."""
    weights = glorot(rng, {**SHAPES, **CRITIC_SHAPES}, _STARTS_AT_ZERO)
    weights["prior"] = np.array(prior, np.float32)
    return weights


def flatten(weights: Weights, path: str = "weights") -> npt.NDArray[np.float32]:
    """Return the weights as one float32 array, in the order of SHAPES.

    `path` names the weights' file in error messages.
    """
    return flat(weights, SHAPES, path)


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


class CorrectorNetwork(NamedTuple):
    """The weights in the order of `layout.SHAPES`, and the rule that the network corrects."""

    weights: Any  # float32[NUM_WEIGHTS]
    rule: Any  # Rule


class CorrectorWorkspace(NamedTuple):
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


class Corrector(NamedTuple):
    """The network as a policy."""

    net: CorrectorNetwork
    work: CorrectorWorkspace


class CorrectorRecord(NamedTuple):
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
        work.features[position, CorrectorJobFeature.RANK] = before / num_jobs
        work.features[position, CorrectorJobFeature.AHEAD] = math.log1p(
            before_ms / net.rule.mean_work_ms[0]
        )


@inlined
def _stage_features(view, x, stage, work_ms):  # type: ignore[no-untyped-def]
    """Write the features of the job's best stage; 0 if there is none."""
    x[CorrectorJobFeature.IS_RUNNABLE] = 0.0
    x[CorrectorJobFeature.PATH] = 0.0
    x[CorrectorJobFeature.DEMAND] = 0.0
    if stage != NO_STAGE:
        num_executors = view.now.num_executors[0]
        x[CorrectorJobFeature.IS_RUNNABLE] = 1.0 if is_runnable(view, stage) else 0.0
        x[CorrectorJobFeature.PATH] = view.stages.downstream_ms[stage] / work_ms
        x[CorrectorJobFeature.DEMAND] = min(1.0, demand(view, stage) / num_executors)


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
    x[CorrectorJobFeature.REMAINING] = math.log(remaining_ms / mean_ms + 1e-3)
    x[CorrectorJobFeature.WORK] = math.log(work_ms / mean_ms + 1e-3)
    x[CorrectorJobFeature.STARTED] = 1.0 - remaining_ms / work_ms
    x[CorrectorJobFeature.SHARE] = remaining_ms / (mean_ms * math.exp(facts.log_total))
    x[CorrectorJobFeature.HELD] = held / num_executors
    x[CorrectorJobFeature.HELD_OF_CAP] = min(3.0, held / cap)
    x[CorrectorJobFeature.CAP] = cap / num_executors
    x[CorrectorJobFeature.IS_SOURCE] = 1.0 if job == view.now.source_job[0] else 0.0
    x[CorrectorJobFeature.IDLE] = 0.0
    for executor_class in range(view.classes.shape[0]):
        x[CorrectorJobFeature.IDLE] += (
            view.sources.num_idle[pool_row(view, job) + executor_class] / num_executors
        )
    x[CorrectorJobFeature.STAGES] = view.jobs.num_unstarted[job] / view.jobs.num_stages[job]
    x[CorrectorJobFeature.SOLO] = math.log(work_ms * rule.stretch[row, column] / mean_ms + 1e-3)
    for price in range(4):
        x[CorrectorJobFeature.LEVEL_CHEAP + price] = (
            rule.levels[best_level(rule, row, _PRICES[price])] / num_executors
        )
    x[CorrectorJobFeature.AGE] = math.log1p(
        (view.now.clock_ms[0] - view.jobs.arrival_ms[job]) * num_executors / mean_ms
    )
    x[CorrectorJobFeature.SCORE] = score(view, rule, job, column, held)
    x[CorrectorJobFeature.WORTH] = math.log(remaining_ms / (1 + max(0, held)) / mean_ms + 1e-3)
    x[CorrectorJobFeature.IS_RULE] = 0.0
    _stage_features(view, x, stage, work_ms)


@inlined
def _encode_shared(view, work, facts, can_hold):  # type: ignore[no-untyped-def]
    """Write the features that all jobs share, after the rule's decision."""
    now = view.now
    shared = work.shared
    num_executors = now.num_executors[0]
    shared[CorrectorSharedFeature.JOBS] = facts.log_jobs
    shared[CorrectorSharedFeature.OPEN] = facts.log_open
    shared[CorrectorSharedFeature.TOTAL] = facts.log_total
    shared[CorrectorSharedFeature.SOURCE] = now.num_source[0] / num_executors
    shared[CorrectorSharedFeature.IS_GLOBAL] = 1.0 if now.source_job[0] == NO_JOB else 0.0
    shared[CorrectorSharedFeature.IDLE] = now.num_idle[0] / num_executors
    shared[CorrectorSharedFeature.CLUSTER] = math.log(num_executors)
    shared[CorrectorSharedFeature.RULE_HOLDS] = 1.0 if work.choices[0] == -1 else 0.0
    shared[CorrectorSharedFeature.CAN_HOLD] = 1.0 if can_hold else 0.0


@kernel
def encode(view, net, work):  # type: ignore[no-untyped-def]
    """Write the features of all jobs and the shared features to the workspace. Returns the number
    of jobs in the system.
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
        smallest = min(smallest, work.features[position, CorrectorJobFeature.SCORE])
    for position in range(num_jobs):
        x = work.features[position]
        x[CorrectorJobFeature.SCORE] = min(_LARGEST_SCORE, x[CorrectorJobFeature.SCORE] - smallest)
        if view.active[position] == rule_job and work.stage[position] != NO_STAGE:
            x[CorrectorJobFeature.IS_RULE] = 1.0
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
            is_rule = work.features[position, CorrectorJobFeature.IS_RULE]
            logit = job_logit(net.weights, _NET, _SLOPE, work, position, is_rule)
            work.logits[position] = logit
    work.logits[num_jobs] = _IMPOSSIBLE
    if work.shared[CorrectorSharedFeature.CAN_HOLD] > 0.0:
        rule_holds = work.shared[CorrectorSharedFeature.RULE_HOLDS]
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
        x[CorrectorLimitFeature.LEVEL] = level / levels[num_levels - 1]
        x[CorrectorLimitFeature.LOG_LEVEL] = math.log(level)
        x[CorrectorLimitFeature.ADDED] = min(level - held, num_source) / levels[num_levels - 1]
        x[CorrectorLimitFeature.OF_SOURCE] = min(1.0, (level - held) / num_source)
        x[CorrectorLimitFeature.STRETCH] = math.log(rule.stretch[row, column] / shortest)
        x[CorrectorLimitFeature.INFLATION] = math.log(
            rule.stretch[row, column] * level / rule.stretch[row, 0]
        )
        x[CorrectorLimitFeature.OF_CAP] = math.log(level / cap)
        # The rule's limit is the first possible level that is large enough, or else the last one.
        is_last = column == num_levels - 1 or level - held >= num_source
        if not is_marked and (level >= wanted or is_last):
            x[CorrectorLimitFeature.IS_RULE] = 1.0
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
        prior = weights[_NET.prior + 2] * work.limits[column, CorrectorLimitFeature.IS_RULE]
        work.limit_logits[column] = dot(layer, _H, weights, _LIMIT2) + prior


@inlined
def _class_of(view, net, stage):  # type: ignore[no-untyped-def]
    """The executor class for the stage: always the rule's choice."""
    if view.classes.shape[0] == 1:
        return ANY_CLASS
    return command_class(view, net.rule, system_facts(view, net.rule), stage)


@decide.of(Corrector)
@kernel
def decide_by_network(view, corrector):  # type: ignore[no-untyped-def]
    """Return the network's most probable decision for one scheduling event."""
    net, work = corrector
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


@kernel
def _num_choices(work, num_jobs):  # type: ignore[no-untyped-def]
    """Number of possible choices: jobs that can be chosen, and hold."""
    count = 0
    for position in range(num_jobs + 1):
        count += work.logits[position] != _IMPOSSIBLE
    return count


@draw_decision.of(CorrectorNetwork)
@kernel
def _draw_decision(view, work, draw_seed, net):  # type: ignore[no-untyped-def]
    """Draw a decision, and write the drawn position and column to `work.choices`."""
    work.choices[2] = -1
    work.choices[3] = -1
    num_jobs = encode(view, net, work)
    count = view.now.num_decisions[0]
    _score_jobs(net, work, num_jobs)
    num_choices = _num_choices(work, num_jobs)
    if num_choices == 0:
        return NO_STAGE, view.now.num_source[0], ANY_CLASS, 0, 0.0, False
    # Each decision uses two draws: an even counter for the job, an odd one for the level.
    position, log_prob = draw(work.logits, num_jobs + 1, uniform(draw_seed, 2 * count))
    work.choices[2] = position
    for column in range(work.limits.shape[0]):
        work.limit_logits[column] = _IMPOSSIBLE
    if position == num_jobs:
        work.limits[:] = 0.0
        return NO_STAGE, view.now.num_source[0], ANY_CLASS, 0, log_prob, num_choices > 1
    num_levels = _encode_limits(view, net, work, position)
    _score_limits(net, work, position)
    num_columns = work.limits.shape[0]
    column, limit_log = draw(work.limit_logits, num_columns, uniform(draw_seed, 2 * count + 1))
    log_prob += limit_log
    work.choices[3] = column
    limit = min(net.rule.levels[column] - work.held[position], view.now.num_source[0])
    stage = work.stage[position]
    is_choice = num_choices > 1 or num_levels > 1
    return stage, limit, _class_of(view, net, stage), 0, log_prob, is_choice


@kernel
def _record_state(view, work, record, num_jobs):  # type: ignore[no-untyped-def]
    """Copy time and features from the workspace to row `count` of the record."""
    row = record.count[0]
    first = record.num_rows[0]
    record.clock_ms[row] = view.now.clock_ms[0]
    record.first_row[row] = first
    record.first_row[row + 1] = first + num_jobs
    for feature in range(_C):
        record.shared[row, feature] = work.shared[feature]
    for position in range(num_jobs):
        for feature in range(_F):
            record.rows[first + position, feature] = work.features[position, feature]
        record.can_choose[first + position] = work.stage[position] != NO_STAGE
    record.num_rows[0] = first + num_jobs


@has_room.of(CorrectorNetwork)
@inlined
def _has_room(view, record, net):  # type: ignore[no-untyped-def]
    # Until the final state, all jobs of the run may arrive.
    jobs = view.now.num_active[0] + view.jobs.shape[0]
    return (
        record.count[0] + 1 < record.clock_ms.shape[0]
        and record.num_rows[0] + jobs <= record.rows.shape[0]
    )


@clear.of(CorrectorNetwork)
@inlined
def _clear(recording, net):  # type: ignore[no-untyped-def]
    recording.record.count[0] = recording.record.num_rows[0] = 0


@write_decision.of(CorrectorNetwork)
@kernel
def _write_decision(view, future, recording, net):  # type: ignore[no-untyped-def]
    work = recording.work
    record = recording.record
    row = record.count[0]
    _record_state(view, work, record, view.now.num_active[0])
    record.choice[row] = work.choices[2]
    record.level[row] = work.choices[3]
    for column in range(work.limits.shape[0]):
        record.can_limit[row, column] = work.limit_logits[column] != _IMPOSSIBLE
        for feature in range(_L):
            record.limits[row, column, feature] = work.limits[column, feature]


@write_state.of(CorrectorNetwork)
@kernel
def _write_state(view, future, recording, net):  # type: ignore[no-untyped-def]
    work = recording.work
    _record_state(view, work, recording.record, encode(view, net, work))
