"""DeepRM's compiled pass: decisions, whole runs, runs that are recorded to learn from, and the gradient's first step back."""

from __future__ import annotations

import math

import numpy as np

from parcae.kernels import inlined, kernel, unit
from parcae.packing.kernels.transitions import begin, take
from parcae.packing.kernels.views import cluster, sequence_of, show, view_of
from parcae.packing.layout import VOID
from parcae.policies.deeprm.layout import HIDDEN, NUM_PAUSES, Work
from parcae.policies.networks.kernels import add_product

_FILLED = 1
_STARTABLE = 2


@inlined
def _look(view, net, work):  # type: ignore[no-untyped-def]
    """The rows of sums that make up the image; those that are zero are left out."""
    count = 0
    resources = view.free.shape[0]
    horizon = net.limits[0]
    for resource in range(resources):
        units = view.capacity[resource] + 1
        start = net.starts[2 * resource]
        for row in range(horizon):
            used = view.capacity[resource] - view.free_from[row, resource]
            if used > 0:
                work.rows[count] = start + row * units + used
                count += 1
        start = net.starts[2 * resource + 1]
        for job in range(view.head.num_jobs[0]):
            rows = view.jobs.slot[job] * (horizon + 1) + view.jobs.told[job]
            work.rows[count] = start + rows * units + view.demand[job, resource]
            count += 1
    if view.head.num_backlog[0] > 0:
        work.rows[count] = net.starts[2 * resources] + min(view.head.num_backlog[0], net.limits[1])
        count += 1
    if net.limits[2] == 1:
        work.rows[count] = net.starts[2 * resources + 1] + min(
            view.head.since_arrival[0], NUM_PAUSES - 1
        )
        count += 1
    work.count[0] = count


@inlined
def _hide(net, work):  # type: ignore[no-untyped-def]
    """hidden = relu(b1 + the sums)."""
    hidden = work.hidden
    sums = net.sums
    rows = work.rows
    for o in range(HIDDEN):
        hidden[o] = net.bias[o]
    k = 0
    count = work.count[0]
    while k + 4 <= count:
        r0 = rows[k]
        r1 = rows[k + 1]
        r2 = rows[k + 2]
        r3 = rows[k + 3]
        for o in range(HIDDEN):
            hidden[o] += (sums[r0, o] + sums[r1, o]) + (sums[r2, o] + sums[r3, o])
        k += 4
    while k < count:
        for o in range(HIDDEN):
            hidden[o] += sums[rows[k], o]
        k += 1
    for o in range(HIDDEN):
        hidden[o] = max(hidden[o], np.float32(0.0))


@inlined
def _may(view, net, slot):  # type: ignore[no-untyped-def]
    """Whether an action has a chance."""
    if net.allowed[0] == 0 or slot == net.actions_bias.shape[0] - 1:
        return True
    for job in range(view.head.num_jobs[0]):
        if view.jobs.slot[job] == slot:
            return net.allowed[0] == _FILLED or view.jobs.can_start[job] == 1
    return False


@inlined
def _soften(view, net, work):  # type: ignore[no-untyped-def]
    """Logits to chances."""
    chances = work.chances
    top = np.float32(-math.inf)
    for action in range(chances.shape[0]):
        if not _may(view, net, action):
            chances[action] = -math.inf
        top = max(top, chances[action])
    total = np.float32(0.0)
    for action in range(chances.shape[0]):
        chances[action] = math.exp(chances[action] - top)
        total += chances[action]
    for action in range(chances.shape[0]):
        chances[action] /= total


@inlined
def weigh(view, net, work):  # type: ignore[no-untyped-def]
    """The chances of all actions."""
    _look(view, net, work)
    _hide(net, work)
    for action in range(work.chances.shape[0]):
        work.chances[action] = net.actions_bias[action]
    add_product(work.hidden, HIDDEN, net.actions, 0, work.chances.shape[0], work.chances)
    _soften(view, net, work)


@inlined
def _draw(chances, luck):  # type: ignore[no-untyped-def]
    last = 0
    for action in range(chances.shape[0]):
        if chances[action] > 0.0:
            last = action
            luck -= chances[action]
            if luck < 0.0:
                return action
    return last


@inlined
def _best(view, chances):  # type: ignore[no-untyped-def]
    """The most probable; in an empty cluster, of the jobs that can start: otherwise it could hold them for ever."""
    best = VOID
    for job in range(view.head.num_jobs[0]):
        slot = view.jobs.slot[job]
        if view.jobs.can_start[job] == 1 and (best == VOID or chances[slot] > chances[best]):
            best = slot
    if best != VOID and view.head.num_running[0] == 0:
        return best
    best = 0
    for action in range(1, chances.shape[0]):
        if chances[action] > chances[best]:
            best = action
    return best


@inlined
def _pick(view, net, work, is_greedy):  # type: ignore[no-untyped-def]
    weigh(view, net, work)
    return _best(view, work.chances) if is_greedy else _draw(work.chances, unit(view.head.luck[0]))


@inlined
def _slot(action, num_actions):  # type: ignore[no-untyped-def]
    return VOID if action == num_actions - 1 else action


@kernel
def decide(view, net, work, is_greedy):  # type: ignore[no-untyped-def]
    """The slot whose job to place, or VOID; leaves the chances of all actions in `work`."""
    return _slot(_pick(view, net, work, is_greedy), work.chances.shape[0])


@kernel
def play_many(states, asked, sequence, views, net, work, is_greedy, first, last):  # type: ignore[no-untyped-def]
    """Run clusters first..last-1 from start to end."""
    for row in range(first, last):
        state = cluster(states, row)
        own = sequence_of(asked, sequence[row])
        view = view_of(views, row)
        begin(state, own)
        while state.clock.is_over[0] == 0:
            show(state, own, view)
            take(state, own, _slot(_pick(view, net, work, is_greedy), work.chances.shape[0]))


@inlined
def _work_of(works, row):  # type: ignore[no-untyped-def]
    return Work(works.rows[row], works.count[row], works.hidden[row], works.chances[row])


@kernel
def explore_many(states, asked, sequence, views, net, record, cost, first, last):  # type: ignore[no-untyped-def]
    """Run clusters first..last-1 with drawn actions and record every decision; run `first` is the record's run 0.

    A run ends where the record is full.
    """
    count = 0
    for row in range(first, last):
        state = cluster(states, row)
        own = sequence_of(asked, sequence[row])
        view = view_of(views, row)
        begin(state, own)
        while state.clock.is_over[0] == 0 and count < record.action.shape[0]:
            show(state, own, view)
            work = _work_of(record.work, count)
            record.clock[count] = state.clock.now[0]
            record.cost[count] = state.costs[cost]
            action = _pick(view, net, work, False)
            record.action[count] = action
            count += 1
            take(state, own, _slot(action, net.actions_bias.shape[0]))
        record.ends[row - first] = count
        record.end_cost[row - first] = state.costs[cost]


@kernel
def scatter(works, of_hidden, of_sums, count):  # type: ignore[no-untyped-def]
    """Add the gradient of each of `count` decisions' hidden units, float32[count, HIDDEN], to that of the sums it was made of."""
    for row in range(count):
        for k in range(works.count[row, 0]):
            at = works.rows[row, k]
            for o in range(HIDDEN):
                of_sums[at, o] += of_hidden[row, o]
