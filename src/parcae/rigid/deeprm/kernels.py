"""DeepRM's compiled kernels: decisions, and decisions that are drawn and recorded."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel, unit
from parcae.base.compiled.products import add_product
from parcae.cluster.kernels.policies import decide
from parcae.policies.networks.kernels import largest
from parcae.rigid.deeprm.layout import HIDDEN, NUM_PAUSES, DeepRMNetwork, Work
from parcae.rigid.layout import VOID
from parcae.rigid.policies.kernels import explore

# Values of `DeepRMNetwork.allowed`; 0 stands for all actions.
_FILLED = 1
_STARTABLE = 2


@inlined
def _collect_rows(view, net, work):  # type: ignore[no-untyped-def]
    """Collect the rows of `net.sums` whose total is the image's product with W1.

    Rows of zeros are left out.
    """
    head = view.head[0]
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
        for job in range(head.num_jobs):
            rows = view.jobs.slot[job] * (horizon + 1) + view.jobs.estimate[job]
            work.rows[count] = start + rows * units + view.demand[job, resource]
            count += 1
    if head.num_backlog > 0:
        work.rows[count] = net.starts[2 * resources] + min(head.num_backlog, net.limits[1])
        count += 1
    if net.limits[2] == 1:
        work.rows[count] = net.starts[2 * resources + 1] + min(head.since_arrival, NUM_PAUSES - 1)
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
    for job in range(view.head[0].num_jobs):
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
    head = view.head[0]
    best = VOID
    for job in range(head.num_jobs):
        slot = view.jobs.slot[job]
        if view.jobs.can_start[job] == 1 and (
            best == VOID or probabilities[slot] > probabilities[best]
        ):
            best = slot
    if best != VOID and head.num_running == 0:
        return best
    return largest(probabilities, probabilities.shape[0])


class DeepRM(NamedTuple):
    """The network as a policy."""

    net: DeepRMNetwork
    work: Work
    is_greedy: Any


@inlined
def _slot(view, action):  # type: ignore[no-untyped-def]
    """Return the slot that an action stands for; the last action is VOID."""
    return VOID if action == view.jobs.shape[0] else action


@decide.of(DeepRM)
@kernel
def decide_by_network(view, policy):  # type: ignore[no-untyped-def]
    """Return the slot whose job to place, or VOID."""
    net, work, is_greedy = policy
    score_actions(view, net, work)
    if is_greedy:
        return _slot(view, _most_probable(view, work.probabilities))
    return _slot(view, _draw(work.probabilities, unit(view.head[0].random_bits)))


@explore.of(DeepRM)
@kernel
def explore_by_network(view, cost, record, policy):  # type: ignore[no-untyped-def]
    """Draw an action and record it."""
    at = record.count[0]
    record.count[0] += 1
    # What is recorded is worked out in its place.
    work = Work(
        record.rows[at], record.num_rows[at : at + 1], policy.work.hidden, record.probabilities[at]
    )
    score_actions(view, policy.net, work)
    action = _draw(work.probabilities, unit(view.head[0].random_bits))
    record.clock[at] = view.head[0].now
    record.cost[at] = cost
    record.action[at] = action
    return _slot(view, action)
