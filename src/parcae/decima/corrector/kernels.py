"""The compiled network of the policy `parcae`: features, forward pass, decisions, records.

All intermediate results are written into a Workspace, so that nothing is allocated. The results are
equal to those of `network.CorrectorModule` to 1e-5.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel
from parcae.base.compiled.products import add_product, copy_numbers, rectify
from parcae.base.compiled.tables import doubles, flags, floats, integers
from parcae.cluster.kernels.policies import decide
from parcae.cluster.kernels.tables import demand, is_runnable, may_idle, num_held, pool_row
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_STAGE
from parcae.decima.queries import clear, draw_decision, has_room, write_decision, write_state
from parcae.decima.rule import (
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
    IMPOSSIBLE,
    dot,
    find_ahead,
    has_room_for,
    pick,
    record_jobs,
    score_choices,
)
from parcae.policies.networks.layout import (
    SLOPE,
    Weights,
    critic_shapes,
    deep_set,
    deep_set_shapes,
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


NET = deep_set(
    SHAPES,
    CorrectorJobFeature.IS_RULE,
    CorrectorSharedFeature.RULE_HOLDS,
    CorrectorSharedFeature.CAN_HOLD,
)
_LIMIT1 = offsets_of(SHAPES)["limit1.weight"]
_LIMIT1_BIAS = offsets_of(SHAPES)["limit1.bias"]
_LIMIT2 = offsets_of(SHAPES)["limit2.weight"]
_SLOPE = np.float32(SLOPE)
_PRICES = tuple(math.exp(price) for price in LEVEL_PRICES)
#: Upper bound of the feature SCORE.
_LARGEST_SCORE = 5.0
#: Keeps logarithms of shares of the mean work finite.
_LEAST_WORK = 1e-3


class CorrectorNetwork(NamedTuple):
    """The weights in the order of SHAPES, and the rule that the network corrects."""

    weights: Any  # float32[NUM_WEIGHTS]
    rule: Any  # Rule


class CorrectorWorkspace(NamedTuple):
    """Intermediate results of one decision.

    Rows of jobs are positions in the list of jobs in the system. Columns of levels are columns of
    the solo curves. A level whose logit in `limit_logits` is -inf cannot be chosen.
    """

    features: Any = floats("jobs", NUM_JOB_FEATURES)
    hidden: Any = floats("jobs", HIDDEN)  # h_j of the architecture
    logits: Any = floats("choices")  # one more than jobs: the last is to hold
    order: Any = integers("jobs")  # positions sorted by remaining work
    remaining_ms: Any = doubles("jobs")  # the jobs' remaining work
    ahead: Any = doubles("jobs", 2)  # see `find_ahead`
    stage: Any = integers("jobs")  # the best stage; NO_STAGE if the job cannot be chosen
    held: Any = integers("jobs")  # executors that the job holds
    column: Any = integers("jobs")  # column of the rule's cap
    shared: Any = floats(NUM_SHARED_FEATURES)
    context: Any = floats(HIDDEN)  # g of the architecture
    base: Any = floats(HIDDEN)  # the part of a layer that all jobs (or levels) share
    layer: Any = floats(HIDDEN)  # the layer that is being computed
    limits: Any = floats("levels", NUM_LIMIT_FEATURES)  # for the chosen job
    limit_logits: Any = floats("levels")  # for the chosen job
    # The rule's position (-1: hold), the rule's limit, and the chosen position and column of the
    # level (-1: none).
    choices: Any = integers(4)


class Corrector(NamedTuple):
    """The network as a policy."""

    net: CorrectorNetwork
    work: CorrectorWorkspace


class CorrectorRecord(NamedTuple):
    """The decisions of one simulator as training data.

    `rows` has the jobs of all decisions, grouped by decision. Row `count` of the tables of
    decisions is the state in which the recording ended; training needs it for the value of that
    state.
    """

    count: Any = integers(1)  # decisions
    all_rows: Any = integers(1)  # rows of jobs in use
    end_ms: Any = integers(1)  # when the recording ended
    end_cost: Any = doubles(1)  # cost up to the end
    clock_ms: Any = integers("decisions")
    cost: Any = doubles("decisions")  # cost up to the decision
    first_row: Any = integers("decisions", into="rows")
    num_jobs: Any = integers("decisions")
    choice: Any = integers("decisions")  # position of the job, or the number of jobs for hold
    level: Any = integers("decisions")  # column of the level; -1 for hold
    log_prob: Any = floats("decisions")  # of the decision when it was drawn
    shared: Any = floats("decisions", NUM_SHARED_FEATURES)
    rows: Any = floats("rows", NUM_JOB_FEATURES)
    can_choose: Any = flags("rows")
    limits: Any = floats("decisions", "levels", NUM_LIMIT_FEATURES)
    can_limit: Any = flags("decisions", "levels")


@kernel
def _write_job(view, net, work, facts, position, can_hold):  # type: ignore[no-untyped-def]
    """Write the features of one job, and its rows of `held`, `column`, `stage` and `logits`.

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
    before, before_ms = work.ahead[position]
    idle = pool_row(view, job)
    work.held[position] = held
    work.column[position] = column
    work.stage[position] = stage if held < num_executors else NO_STAGE
    work.logits[position] = IMPOSSIBLE if work.stage[position] == NO_STAGE else np.float32(0.0)
    x[:] = 0.0
    x[CorrectorJobFeature.REMAINING] = math.log(remaining_ms / mean_ms + _LEAST_WORK)
    x[CorrectorJobFeature.WORK] = math.log(work_ms / mean_ms + _LEAST_WORK)
    x[CorrectorJobFeature.STARTED] = 1.0 - remaining_ms / work_ms
    x[CorrectorJobFeature.SHARE] = remaining_ms / (mean_ms * math.exp(facts.log_total))
    x[CorrectorJobFeature.RANK] = before / view.now.num_active[0]
    x[CorrectorJobFeature.AHEAD] = math.log1p(before_ms / mean_ms)
    x[CorrectorJobFeature.HELD] = held / num_executors
    x[CorrectorJobFeature.HELD_OF_CAP] = min(3.0, held / cap)
    x[CorrectorJobFeature.CAP] = cap / num_executors
    x[CorrectorJobFeature.IS_SOURCE] = job == view.now.source_job[0]
    for executor_class in range(view.classes.shape[0]):
        x[CorrectorJobFeature.IDLE] += view.sources.num_idle[idle + executor_class] / num_executors
    x[CorrectorJobFeature.STAGES] = view.jobs.num_unstarted[job] / view.jobs.num_stages[job]
    x[CorrectorJobFeature.SOLO] = math.log(
        work_ms * rule.stretch[row, column] / mean_ms + _LEAST_WORK
    )
    for price in range(4):
        level = rule.levels[best_level(rule, row, _PRICES[price])]
        x[CorrectorJobFeature.LEVEL_CHEAP + price] = level / num_executors
    age_ms = view.now.clock_ms[0] - view.jobs.arrival_ms[job]
    x[CorrectorJobFeature.AGE] = math.log1p(age_ms * num_executors / mean_ms)
    x[CorrectorJobFeature.SCORE] = score(view, rule, job, column, held)
    x[CorrectorJobFeature.WORTH] = math.log(
        remaining_ms / (1 + max(0, held)) / mean_ms + _LEAST_WORK
    )
    if stage != NO_STAGE:
        x[CorrectorJobFeature.IS_RUNNABLE] = is_runnable(view, stage)
        x[CorrectorJobFeature.PATH] = view.stages.downstream_ms[stage] / work_ms
        x[CorrectorJobFeature.DEMAND] = min(1.0, demand(view, stage) / num_executors)


@kernel
def encode(view, net, work):  # type: ignore[no-untyped-def]
    """Write the features of all jobs and the shared features to the workspace. Returns the number
    of jobs in the system.
    """
    now = view.now
    facts = system_facts(view, net.rule)
    num_jobs = now.num_active[0]
    num_executors = now.num_executors[0]
    work.choices[0] = -1
    work.choices[1] = 0
    rule_job = NO_JOB
    can_hold = may_idle(view)
    if now.num_source[0] > 0:
        stage, limit, _, _ = decide_by_rule(view, net.rule)
        if stage != NO_STAGE:
            rule_job = view.stages.job[stage]
            work.choices[1] = limit
    find_ahead(view, work)
    smallest = math.inf
    for position in range(num_jobs):
        _write_job(view, net, work, facts, position, can_hold)
        smallest = min(smallest, work.features[position, CorrectorJobFeature.SCORE])
    for position in range(num_jobs):
        x = work.features[position]
        x[CorrectorJobFeature.SCORE] = min(_LARGEST_SCORE, x[CorrectorJobFeature.SCORE] - smallest)
        if view.active[position] == rule_job and work.stage[position] != NO_STAGE:
            x[CorrectorJobFeature.IS_RULE] = 1.0
            work.choices[0] = position
    x = work.shared
    x[CorrectorSharedFeature.JOBS] = facts.log_jobs
    x[CorrectorSharedFeature.OPEN] = facts.log_open
    x[CorrectorSharedFeature.TOTAL] = facts.log_total
    x[CorrectorSharedFeature.SOURCE] = now.num_source[0] / num_executors
    x[CorrectorSharedFeature.IS_GLOBAL] = now.source_job[0] == NO_JOB
    x[CorrectorSharedFeature.IDLE] = now.num_idle[0] / num_executors
    x[CorrectorSharedFeature.CLUSTER] = math.log(num_executors)
    x[CorrectorSharedFeature.RULE_HOLDS] = work.choices[0] == -1
    x[CorrectorSharedFeature.CAN_HOLD] = can_hold
    return num_jobs


@kernel
def _score_limits(view, net, work, position):  # type: ignore[no-untyped-def]
    """Write the features and logits of the levels for the chosen job. Returns how many can be
    chosen.

    A level cannot be chosen if the job already holds that many executors, or if a smaller level
    already takes all offered executors.
    """
    rule = net.rule
    weights = net.weights
    levels = rule.levels
    held = work.held[position]
    cap = levels[work.column[position]]
    row = curve_row(rule, view, view.active[position])
    num_source = view.now.num_source[0]
    top = levels[-1]
    shortest = math.inf
    for column in range(levels.shape[0]):
        shortest = min(shortest, rule.stretch[row, column])
    wanted = held + work.choices[1] if position == work.choices[0] else cap
    copy_numbers(weights, _LIMIT1_BIAS, HIDDEN, work.base)
    add_product(work.hidden[position], HIDDEN, weights, _LIMIT1, HIDDEN, work.base)
    add_product(work.context, HIDDEN, weights, _LIMIT1 + HIDDEN * HIDDEN, HIDDEN, work.base)
    count = 0
    is_marked = False
    for column in range(levels.shape[0]):
        level = levels[column]
        added = level - held
        if added <= 0 or (column > 0 and levels[column - 1] - held >= num_source):
            continue
        count += 1
        stretch = rule.stretch[row, column]
        x = work.limits[column]
        x[CorrectorLimitFeature.LEVEL] = level / top
        x[CorrectorLimitFeature.LOG_LEVEL] = math.log(level)
        x[CorrectorLimitFeature.ADDED] = min(added, num_source) / top
        x[CorrectorLimitFeature.OF_SOURCE] = min(1.0, added / num_source)
        x[CorrectorLimitFeature.STRETCH] = math.log(stretch / shortest)
        x[CorrectorLimitFeature.INFLATION] = math.log(stretch * level / rule.stretch[row, 0])
        x[CorrectorLimitFeature.OF_CAP] = math.log(level / cap)
        # The rule's limit is the first possible level that is large enough, or else the last one.
        if not is_marked and (level >= wanted or level == top or added >= num_source):
            x[CorrectorLimitFeature.IS_RULE] = 1.0
            is_marked = True
        copy_numbers(work.base, 0, HIDDEN, work.layer)
        at = _LIMIT1 + 2 * HIDDEN * HIDDEN
        add_product(x, NUM_LIMIT_FEATURES, weights, at, HIDDEN, work.layer)
        rectify(work.layer, HIDDEN, _SLOPE)
        prior = weights[NET.prior + 2] * x[CorrectorLimitFeature.IS_RULE]
        work.limit_logits[column] = dot(work.layer, HIDDEN, weights, _LIMIT2) + prior
    return count


@inlined
def _choose(view, net, work, is_drawn, seed):  # type: ignore[no-untyped-def]
    """Choose by the network: draw, or take what is most probable. The choice is noted in
    `work.choices`. Returns what `draw_decision` does.
    """
    num_jobs = encode(view, net, work)
    num_choices = score_choices(net.weights, NET, work, num_jobs)
    work.choices[2:] = -1
    work.limits[:] = 0.0
    work.limit_logits[:] = IMPOSSIBLE
    if num_choices == 0:
        return NO_STAGE, view.now.num_source[0], ANY_CLASS, 0, 0.0, False
    # Each decision uses two draws: an even counter for the job, an odd one for the level.
    turn = 2 * view.now.num_decisions[0]
    position, log_prob = pick(work.logits, num_jobs + 1, is_drawn, seed, turn)
    work.choices[2] = position
    if position == num_jobs:
        return NO_STAGE, view.now.num_source[0], ANY_CLASS, 0, log_prob, num_choices > 1
    num_levels = _score_limits(view, net, work, position)
    size = work.limits.shape[0]
    column, limit_log = pick(work.limit_logits, size, is_drawn, seed, turn + 1)
    work.choices[3] = column
    limit = min(net.rule.levels[column] - work.held[position], view.now.num_source[0])
    stage = work.stage[position]
    # The executor class is always the rule's choice.
    executor_class = ANY_CLASS
    if view.classes.shape[0] > 1:
        executor_class = command_class(view, net.rule, system_facts(view, net.rule), stage)
    is_choice = num_choices > 1 or num_levels > 1
    return stage, limit, executor_class, 0, log_prob + limit_log, is_choice


@decide.of(Corrector)
@kernel
def decide_by_network(view, corrector):  # type: ignore[no-untyped-def]
    """Return the network's most probable decision for one scheduling event."""
    return _choose(view, corrector.net, corrector.work, False, np.uint64(0))[:4]


@draw_decision.of(CorrectorNetwork)
@kernel
def _draw_decision(view, work, draw_seed, net):  # type: ignore[no-untyped-def]
    return _choose(view, net, work, True, draw_seed)


@kernel
def _record_state(view, work, record, num_jobs):  # type: ignore[no-untyped-def]
    """Copy time and features from the workspace to row `count` of the record."""
    record.clock_ms[record.count[0]] = view.now.clock_ms[0]
    first = record_jobs(NET, work, record, num_jobs)
    for position in range(num_jobs):
        record.can_choose[first + position] = work.stage[position] != NO_STAGE


@has_room.of(CorrectorNetwork)
@inlined
def _has_room(view, record, net):  # type: ignore[no-untyped-def]
    # Until the final state, all jobs of the run may arrive.
    return has_room_for(record, view.now.num_active[0] + view.jobs.shape[0])


@clear.of(CorrectorNetwork)
@inlined
def _clear(recording, net):  # type: ignore[no-untyped-def]
    recording.record.count[0] = recording.record.all_rows[0] = 0


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
        record.can_limit[row, column] = work.limit_logits[column] != IMPOSSIBLE
        copy_numbers(work.limits[column], 0, NUM_LIMIT_FEATURES, record.limits[row, column])


@write_state.of(CorrectorNetwork)
@kernel
def _write_state(view, future, recording, net):  # type: ignore[no-untyped-def]
    work = recording.work
    _record_state(view, work, recording.record, encode(view, net, work))
