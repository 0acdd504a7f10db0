"""DeepRM's compiled kernels: decisions, whole runs and recorded runs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel, row_of, unit
from parcae.base.compiled.products import add_product
from parcae.cluster.kernels.policies import decide
from parcae.rigid.deeprm.layout import HIDDEN, NUM_PAUSES, DeepRMNetwork, Work
from parcae.rigid.kernels.transitions import begin, cluster_of, take
from parcae.rigid.kernels.views import show
from parcae.rigid.layout import VOID

# Values of `DeepRMNetwork.allowed`; 0 stands for all actions.
_FILLED = 1
_STARTABLE = 2


@inlined
def _collect_rows(view, net, work):  # type: ignore[no-untyped-def]
    """Collect the rows of `net.sums` whose total is the image's product with W1.

    Rows of zeros are left out.
    """
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
            rows = view.jobs.slot[job] * (horizon + 1) + view.jobs.estimate[job]
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
def _compute_hidden(net, work):  # type: ignore[no-untyped-def]
    """hidden = relu(b1 + the sum of the collected rows)."""
    hidden = work.hidden
    sums = net.sums
    rows = work.rows
    for o in range(HIDDEN):
        hidden[o] = net.bias[o]
    # Four rows at a time, so that the hidden units are read and written a quarter as often.
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
def _is_allowed(view, net, slot):  # type: ignore[no-untyped-def]
    """Return whether an action may have a probability above 0."""
    if net.allowed[0] == 0 or slot == net.actions_bias.shape[0] - 1:
        return True
    for job in range(view.head.num_jobs[0]):
        if view.jobs.slot[job] == slot:
            return net.allowed[0] == _FILLED or view.jobs.can_start[job] == 1
    return False


@inlined
def _normalize(view, net, work):  # type: ignore[no-untyped-def]
    """Turn logits into probabilities, in place (softmax over the allowed actions)."""
    probabilities = work.probabilities
    top = np.float32(-math.inf)
    for action in range(probabilities.shape[0]):
        if not _is_allowed(view, net, action):
            probabilities[action] = -math.inf
        top = max(top, probabilities[action])
    total = np.float32(0.0)
    for action in range(probabilities.shape[0]):
        probabilities[action] = math.exp(probabilities[action] - top)
        total += probabilities[action]
    for action in range(probabilities.shape[0]):
        probabilities[action] /= total


@inlined
def score_actions(view, net, work):  # type: ignore[no-untyped-def]
    """Write the probabilities of all actions to `work.probabilities`."""
    _collect_rows(view, net, work)
    _compute_hidden(net, work)
    for action in range(work.probabilities.shape[0]):
        work.probabilities[action] = net.actions_bias[action]
    add_product(
        work.hidden, HIDDEN, net.actions, 0, work.probabilities.shape[0], work.probabilities
    )
    _normalize(view, net, work)


@inlined
def _draw(probabilities, uniform_draw):  # type: ignore[no-untyped-def]
    """Draw an action from the probabilities; `uniform_draw` is a random number in [0, 1)."""
    last = 0
    for action in range(probabilities.shape[0]):
        if probabilities[action] > 0.0:
            last = action
            uniform_draw -= probabilities[action]
            if uniform_draw < 0.0:
                return action
    return last


@inlined
def _most_probable(view, probabilities):  # type: ignore[no-untyped-def]
    """Return the most probable action.

    In an empty cluster, if any job can start, only such jobs count, because the policy could hold
    them for ever.
    """
    best = VOID
    for job in range(view.head.num_jobs[0]):
        slot = view.jobs.slot[job]
        if view.jobs.can_start[job] == 1 and (
            best == VOID or probabilities[slot] > probabilities[best]
        ):
            best = slot
    if best != VOID and view.head.num_running[0] == 0:
        return best
    best = 0
    for action in range(1, probabilities.shape[0]):
        if probabilities[action] > probabilities[best]:
            best = action
    return best


@inlined
def _choose_action(view, net, work, is_greedy):  # type: ignore[no-untyped-def]
    """Choose an action: the most probable one if `is_greedy`, else a drawn one."""
    score_actions(view, net, work)
    return (
        _most_probable(view, work.probabilities)
        if is_greedy
        else _draw(work.probabilities, unit(view.head.random_bits[0]))
    )


@inlined
def _slot(action, num_actions):  # type: ignore[no-untyped-def]
    """Return the slot that an action stands for; the last action is VOID."""
    return VOID if action == num_actions - 1 else action


class DeepRM(NamedTuple):
    """The network as a policy."""

    net: DeepRMNetwork
    work: Work
    is_greedy: Any


@decide.of(DeepRM)
@kernel
def decide_by_network(view, policy):  # type: ignore[no-untyped-def]
    """Return the slot whose job to place, or VOID."""
    net, work, is_greedy = policy
    return _slot(_choose_action(view, net, work, is_greedy), work.probabilities.shape[0])


@kernel
def explore_many(clusters, views, net, record, cost, first, last):  # type: ignore[no-untyped-def]
    """Run clusters first..last-1 with drawn actions, and record every decision.

    The cluster `first` is run 0 of the record. When the record is full, the current run ends.
    """
    count = 0
    for row in range(first, last):
        state, sequence = cluster_of(clusters, row)
        view = row_of(views, row)
        begin(state, sequence)
        while state.clock.is_over[0] == 0 and count < record.action.shape[0]:
            show(state, sequence, view)
            work = row_of(record.work, count)
            record.clock[count] = state.clock.now[0]
            record.cost[count] = state.costs[cost]
            action = _choose_action(view, net, work, False)
            record.action[count] = action
            count += 1
            take(state, sequence, _slot(action, net.actions_bias.shape[0]))
        record.ends[row - first] = count
        record.end_cost[row - first] = state.costs[cost]
