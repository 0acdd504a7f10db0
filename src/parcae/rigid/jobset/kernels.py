"""The set network's compiled kernels: features, logits, and decisions, which may be recorded."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.base.arrays import Float32Array
from parcae.base.compiled.kernels import inlined, kernel, unit
from parcae.base.compiled.tables import doubles, floats, integers
from parcae.cluster.kernels.policies import decide
from parcae.policies.networks.kernels import (
    IMPOSSIBLE,
    draw,
    has_room_for,
    largest,
    record_jobs,
    score_choices,
)
from parcae.policies.networks.layout import (
    Weights,
    critic_shapes,
    deep_set,
    deep_set_shapes,
    flat,
    glorot,
)
from parcae.rigid.layout import VOID, largest_share
from parcae.rigid.policies import explore
from parcae.rigid.policies.scores import (
    LONGEST_PAUSE,
    WithholdParameter,
    alignment,
    free_after_start,
    log_num_waiting,
    must_start,
    preference,
    reserve,
)

#: Raised whenever a feature changes its meaning: older checkpoints are then refused.
FEATURE_VERSION = 1
#: Waiting jobs whose features the network sees, at most.
MAX_ROWS = 32


class RigidJobFeature(IntEnum):
    """Columns of a waiting job's features; shares are relative to the cluster's resources.

    Sets of columns from *_NOW to *_LAST hold one value for each time of LOOKAHEAD.
    """

    ESTIMATE = 0  # log of the estimated duration, in steps
    ESTIMATE_VS_ARRIVED = 1  # ESTIMATE - its mean over all jobs that have arrived
    ESTIMATE_VS_WAITING = 2  # ESTIMATE - its mean over the waiting jobs
    AGE = 3  # log1p(age / estimated duration)
    LEAST_SHARE = 4  # least demand, over resources
    MEAN_SHARE = 5
    LARGEST_SHARE = 6
    LEFT = 7  # least share that stays free if the job starts
    ALIGNMENT = 8  # dot product of free resources and demand
    CAN_START = 9
    FREE_AT_END = 10  # least share that is free after the job's end, if it starts now
    IS_RULE = 11  # whether the rule starts this job
    SCORE = 12  # the rule's score - the best score, at least -5
    RESERVE = 13  # LEFT - the share that the rule wants to keep free
    # Free share - demand of the dominant resource, which is the one with the largest demand.
    DOMINANT_NOW = 14
    DOMINANT_LAST = 19
    OTHER_NOW = 20  # the same of the other resources, the least of them
    OTHER_LAST = 25


class RigidSharedFeature(IntEnum):
    """Columns of the features that all jobs share."""

    WAITING = 0  # log1p of the number of visible waiting jobs
    BACKLOG = 1  # log1p of the number of jobs in the backlog
    RUNNING = 2  # log1p of the number of placed jobs
    FREE_NOW = 3  # least free share of a resource, at each time of LOOKAHEAD
    FREE_LAST = 8
    FREE_MEAN = 9  # mean free share now
    LOAD = 10  # log1p of the arrived work per step so far
    CLOCK = 11  # log1p(time since the start / typical duration)
    PAUSE = 12  # log1p(time since the last arrival / typical duration)
    STARTABLE = 13  # share of the waiting jobs that can start
    TYPICAL = 14  # mean log estimate of all jobs that have arrived
    WAITING_ESTIMATE = 15  # mean log estimate of the waiting jobs - TYPICAL
    WAITING_SHARE = 16  # mean largest demand of the waiting jobs
    RULE_HOLDS = 17  # whether the rule lets time pass
    CAN_HOLD = 18  # whether the network may let time pass


#: Times from now at which the network sees the free resources, in typical durations: exp(TYPICAL).
LOOKAHEAD = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
NUM_JOB_FEATURES = RigidJobFeature.OTHER_LAST + 1
NUM_SHARED_FEATURES = RigidSharedFeature.CAN_HOLD + 1
HIDDEN = 24
#: Initial logits of the rule's choice of a job and of its choice to hold.
PRIOR = (2.0, 2.0)
#: Parameters of an untuned rule: shortest first, and long jobs leave about a third of the cluster
#: free.
START_RULE = (0.0, 0.05, 0.5, 3.0, 2.0, 0.2, 0.1, 3.0)

#: Weights by name; matrices are [in, out]. The kernels read them from a flat array in this order.
SHAPES: dict[str, tuple[int, ...]] = {
    **deep_set_shapes(NUM_JOB_FEATURES, NUM_SHARED_FEATURES, HIDDEN),
    "prior": (2,),
}
#: The critic is used in training only.
CRITIC_SHAPES = critic_shapes(HIDDEN)
_ZERO_AT_START = ("choice2.weight", "hold.weight", "value2.weight")


def initial_weights(rng: np.random.Generator, prior: tuple[float, float] = PRIOR) -> Weights:
    """Draw initial weights: Glorot-uniform matrices, zero biases, and last layers of zeros."""
    weights = glorot(rng, {**SHAPES, **CRITIC_SHAPES}, _ZERO_AT_START)
    weights["prior"] = np.array(prior, np.float32)
    return weights


def flatten(weights: Weights, path: str = "weights") -> Float32Array:
    """Return the weights as one float32 array, in the order of SHAPES."""
    return flat(weights, SHAPES, path)


NET = deep_set(
    SHAPES,
    RigidJobFeature.IS_RULE,
    RigidSharedFeature.RULE_HOLDS,
    RigidSharedFeature.CAN_HOLD,
)
_NUM_LOOKS = len(LOOKAHEAD)
#: Lower bound of the feature SCORE.
_LOWEST = -5.0


class JobSetTables(NamedTuple):
    """The network's weights and the rule that it corrects, read by the kernels."""

    weights: Any  # float32, in the order of the layout's SHAPES
    rule: Any  # float64[len(WithholdParameter)]


class JobSetWorkspace(NamedTuple):
    """Buffers for one decision."""

    row: Any = integers(MAX_ROWS)  # the job's row in the view
    score: Any = doubles(MAX_ROWS)  # the rule's score; 1e6 lower for jobs that cannot start
    look: Any = integers(len(LOOKAHEAD))  # the point of the profile for each time
    features: Any = floats(MAX_ROWS, NUM_JOB_FEATURES)
    hidden: Any = floats(MAX_ROWS, HIDDEN)
    shared: Any = floats(NUM_SHARED_FEATURES)
    context: Any = floats(HIDDEN)
    base: Any = floats(HIDDEN)
    layer: Any = floats(HIDDEN)
    logits: Any = floats(MAX_ROWS + 1)  # those of the jobs and, after them, of holding


class JobSetParts(NamedTuple):
    """The network as a policy."""

    net: JobSetTables
    work: JobSetWorkspace


class JobSetRecord(NamedTuple):
    """The decisions of one run in which there was a choice (with a leading axis: of many runs)."""

    count: Any = integers(1)  # recorded decisions
    all_rows: Any = integers(1)  # recorded jobs of all decisions together
    now: Any = integers("decisions")
    cost: Any = doubles("decisions")  # accrued before the decision
    first_row: Any = integers("decisions", into="rows")
    num_jobs: Any = integers("decisions")
    choice: Any = integers("decisions")  # position of the job, or the number of jobs for hold
    log_prob: Any = floats("decisions")
    shared: Any = floats("decisions", NUM_SHARED_FEATURES)
    rows: Any = floats("rows", NUM_JOB_FEATURES)


@inlined
def _select_rows(view, net, work):  # type: ignore[no-untyped-def]
    """Select the jobs that the network sees: all, or those with the best scores that can start.

    Writes their rows to `work.row`, sorted by score, and returns how many there are.
    """
    count = 0
    for row in range(view.head[0].num_jobs):
        score = preference(view, row, net.rule)
        if view.jobs.can_start[row] == 0:
            score -= 1e6
        # Insertion sort; when the list is full, the job replaces the last one if it is better.
        place = count
        if count == MAX_ROWS:
            if score <= work.score[MAX_ROWS - 1]:
                continue
            place = MAX_ROWS - 1
        while place > 0 and work.score[place - 1] < score:
            work.score[place], work.row[place] = work.score[place - 1], work.row[place - 1]
            place -= 1
        work.score[place] = score
        work.row[place] = row
        count = min(MAX_ROWS, count + 1)
    return count


@inlined
def _point(view, time):  # type: ignore[no-untyped-def]
    """Return the point of the profile that holds at a time (binary search)."""
    low = 0
    high = view.head[0].num_points - 1
    while low < high:
        middle = (low + high + 1) // 2
        if view.points[middle] <= time:
            low = middle
        else:
            high = middle - 1
    return low


@inlined
def _free_share(view, point):  # type: ignore[no-untyped-def]
    """Return the least share of a resource that is free from a point of the profile on."""
    share = 1.0
    for resource in range(view.free.shape[0]):
        share = min(share, view.free_from[point, resource] / view.capacity[resource])
    return share


@inlined
def _encode_shared(view, work, typical):  # type: ignore[no-untyped-def]
    """Write the shared features that do not depend on the rule.

    Returns the mean log estimate of the waiting jobs.
    """
    head = view.head[0]
    x = work.shared
    scale = math.exp(typical)
    num = head.num_jobs
    estimate = 0.0
    share = 0.0
    startable = 0
    for row in range(num):
        estimate += view.jobs.log_estimate[row]
        startable += view.jobs.can_start[row]
        share += largest_share(view.demand[row], view.capacity)
    estimate = estimate / max(1, num)
    share = share / max(1, num)
    x[RigidSharedFeature.WAITING] = math.log1p(num)
    x[RigidSharedFeature.BACKLOG] = math.log1p(head.num_backlog)
    x[RigidSharedFeature.RUNNING] = math.log1p(head.num_running)
    mean = 0.0
    for resource in range(view.free.shape[0]):
        mean += view.free[resource] / view.capacity[resource] / view.free.shape[0]
    x[RigidSharedFeature.FREE_MEAN] = mean
    for k in range(_NUM_LOOKS):
        work.look[k] = _point(view, head.now + np.int64(scale * LOOKAHEAD[k] + 0.5))
        x[RigidSharedFeature.FREE_NOW + k] = _free_share(view, work.look[k])
    x[RigidSharedFeature.LOAD] = math.log1p(head.arrived_work / (head.now + scale))
    x[RigidSharedFeature.CLOCK] = math.log1p(head.now / scale)
    x[RigidSharedFeature.PAUSE] = math.log1p(head.since_arrival / scale)
    x[RigidSharedFeature.STARTABLE] = startable / max(1, num)
    x[RigidSharedFeature.TYPICAL] = typical
    x[RigidSharedFeature.WAITING_ESTIMATE] = estimate - typical
    x[RigidSharedFeature.WAITING_SHARE] = share
    return estimate


@inlined
def _look_ahead(view, work, x, row, dominant):  # type: ignore[no-untyped-def]
    """Write the free share minus the job's demand at each time of LOOKAHEAD.

    The first columns are of the job's dominant resource, the others the least of the other
    resources.
    """
    for k in range(_NUM_LOOKS):
        other = 1.0
        for resource in range(view.free.shape[0]):
            spare = (
                view.free_from[work.look[k], resource] - view.demand[row, resource]
            ) / view.capacity[resource]
            if resource == dominant:
                x[RigidJobFeature.DOMINANT_NOW + k] = spare
            else:
                other = min(other, spare)
        x[RigidJobFeature.OTHER_NOW + k] = other


@inlined
def _encode_job(  # type: ignore[no-untyped-def]
    view, net, work, position, typical, waiting_estimate, log_waiting
):
    """Write the features of the job at a position, except IS_RULE."""
    row = work.row[position]
    x = work.features[position]
    estimate = view.jobs.log_estimate[row]
    x[RigidJobFeature.ESTIMATE] = estimate
    x[RigidJobFeature.ESTIMATE_VS_ARRIVED] = estimate - typical
    x[RigidJobFeature.ESTIMATE_VS_WAITING] = estimate - waiting_estimate
    x[RigidJobFeature.AGE] = math.log1p(view.jobs.age[row] / view.jobs.estimate[row])
    least = 1.0
    mean = 0.0
    most = 0.0
    dominant = 0
    for resource in range(view.free.shape[0]):
        share = view.demand[row, resource] / view.capacity[resource]
        if share > most:
            most = share
            dominant = resource
        least = min(least, share)
        mean = mean + share / view.free.shape[0]
    x[RigidJobFeature.LEAST_SHARE] = least
    x[RigidJobFeature.MEAN_SHARE] = mean
    x[RigidJobFeature.LARGEST_SHARE] = most
    _look_ahead(view, work, x, row, dominant)
    free = free_after_start(view, row)
    x[RigidJobFeature.LEFT] = free
    x[RigidJobFeature.ALIGNMENT] = alignment(view, row) * 0.01
    x[RigidJobFeature.CAN_START] = view.jobs.can_start[row]
    x[RigidJobFeature.FREE_AT_END] = _free_share(
        view, _point(view, view.head[0].now + view.jobs.estimate[row])
    )
    x[RigidJobFeature.IS_RULE] = 0.0
    x[RigidJobFeature.SCORE] = max(
        _LOWEST, preference(view, row, net.rule) - preference(view, work.row[0], net.rule)
    )
    x[RigidJobFeature.RESERVE] = free - reserve(view, row, net.rule, log_waiting)


@kernel
def encode(view, net, work):  # type: ignore[no-untyped-def]
    """Write the features of a view to the workspace, and which jobs can be chosen. Returns how many
    jobs the network sees.

    The job at position 0 has the best score of those that can start.
    """
    head = view.head[0]
    count = _select_rows(view, net, work)
    typical = head.log_estimate / max(1, head.num_arrived)
    waiting_estimate = _encode_shared(view, work, typical)
    log_waiting = log_num_waiting(view)
    can_any = False
    chosen = VOID
    is_forced = must_start(view, min(LONGEST_PAUSE, net.rule[WithholdParameter.PAUSE]))
    for position in range(count):
        _encode_job(view, net, work, position, typical, waiting_estimate, log_waiting)
        can_start = work.features[position, RigidJobFeature.CAN_START] > 0.0
        can_any = can_any or can_start
        work.logits[position] = np.float32(0.0) if can_start else IMPOSSIBLE
        if (
            chosen == VOID
            and can_start
            and (is_forced or work.features[position, RigidJobFeature.RESERVE] >= 0.0)
        ):
            chosen = position
    if chosen != VOID:
        work.features[chosen, RigidJobFeature.IS_RULE] = 1.0
    work.shared[RigidSharedFeature.RULE_HOLDS] = 1.0 if chosen == VOID else 0.0
    work.shared[RigidSharedFeature.CAN_HOLD] = (
        0.0 if can_any and must_start(view, LONGEST_PAUSE) else 1.0
    )
    return count


@inlined
def _num_startable(view):  # type: ignore[no-untyped-def]
    """Return how many visible jobs can start now."""
    count = 0
    for row in range(view.head[0].num_jobs):
        count += view.jobs.can_start[row]
    return count


@decide.of(JobSetParts)
@kernel
def decide_by_network(view, policy):  # type: ignore[no-untyped-def]
    """Return the slot of the most probable decision, or VOID."""
    net, work = policy
    if _num_startable(view) == 0:
        return VOID
    count = encode(view, net, work)
    score_choices(net.weights, NET, work, count)
    position = largest(work.logits, count + 1)
    return VOID if position == count else view.jobs.slot[work.row[position]]


@explore.of(JobSetParts)
@kernel
def explore_by_network(view, cost, record, policy):  # type: ignore[no-untyped-def]
    """Draw a decision, and record it if there was a choice and is room: decisions after a record is
    full count in the run's cost only.
    """
    net, work = policy
    if _num_startable(view) == 0:
        return VOID
    count = encode(view, net, work)
    choices = score_choices(net.weights, NET, work, count)
    position, log_prob = draw(work.logits, count + 1, unit(view.head[0].random_bits))
    # A decision over the largest view has room.
    if choices > 1 and has_room_for(record, MAX_ROWS):
        at = record.count[0]
        record.now[at] = view.head[0].now
        record.cost[at] = cost
        record.choice[at] = position
        record.log_prob[at] = log_prob
        record_jobs(NET, work, record, count)
        record.count[0] = at + 1
    return VOID if position == count else view.jobs.slot[work.row[position]]
