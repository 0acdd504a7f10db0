"""Compiled layers, random draws and common features of the networks.

All numbers are float32. The weights of a network lie in one flat array; matrices are [in, out].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from parcae.base.arrays import AnyArray
from parcae.base.compiled.kernels import inlined, kernel, mix, sort_rows
from parcae.base.compiled.products import add_product, copy_numbers, rectify
from parcae.policies.networks.layout import SLOPE


def ranked_choices(stages: Sequence[int], logits: AnyArray) -> list[tuple[int, float]]:
    """Return (stage row, probability) of the possible choices, the most probable first.

    The probabilities are a softmax over the finite logits; a logit of -inf marks an impossible
    choice.

    Example: `ranked_choices([4, 7], np.array([0.0, 0.0]))` is `[(4, 0.5), (7, 0.5)]`.
    """
    can = np.flatnonzero(np.isfinite(logits))
    if can.size == 0:
        return []
    probabilities = np.exp(np.asarray(logits, np.float64)[can] - float(np.max(logits[can])))
    probabilities /= probabilities.sum()
    order = np.argsort(-probabilities, kind="stable")
    return [(int(stages[can[row]]), float(probabilities[row])) for row in order]


#: The logit of a choice that is not possible.
IMPOSSIBLE = np.float32(-np.inf)
_SLOPE = np.float32(SLOPE)
#: A hash has 64 bits, a float64 holds 53 of them exactly.
_UNUSED_BITS = np.uint64(11)


@inlined
def dot(x, size, weights, at):  # type: ignore[no-untyped-def]
    """Return the dot product of x and the vector at weights[at]."""
    total = np.float32(0.0)
    for i in range(size):
        total += x[i] * weights[at + i]
    return total


@inlined
def _embed_jobs(weights, net, work, count):  # type: ignore[no-untyped-def]
    """Compute the layers of a deep set that do not depend on the chosen job."""
    size = net.hidden
    base = work.base
    layer = work.layer
    context = work.context
    for o in range(size):
        base[o] = 0.0
    for position in range(count):
        hidden = work.hidden[position]
        copy_numbers(weights, net.job1_bias, size, layer)
        add_product(work.features[position], net.num_features, weights, net.job1, size, layer)
        rectify(layer, size, _SLOPE)
        copy_numbers(weights, net.job2_bias, size, hidden)
        add_product(layer, size, weights, net.job2, size, hidden)
        rectify(hidden, size, _SLOPE)
        for o in range(size):
            base[o] += hidden[o] / count
    copy_numbers(weights, net.context_bias, size, context)
    add_product(base, size, weights, net.context, size, context)
    add_product(work.shared, net.num_shared, weights, net.context + size * size, size, context)
    rectify(context, size, _SLOPE)
    copy_numbers(weights, net.choice1_bias, size, base)
    add_product(context, size, weights, net.choice1 + size * size, size, base)


@inlined
def score_choices(weights, net, work, count):  # type: ignore[no-untyped-def]
    """Write the logits of a deep set's jobs, and of holding behind them. Returns how many choices
    are possible.

    In `work.logits` the jobs that cannot be chosen are marked as IMPOSSIBLE.
    """
    _embed_jobs(weights, net, work, count)
    size = net.hidden
    layer = work.layer
    choices = 0
    for position in range(count):
        if work.logits[position] != IMPOSSIBLE:
            for o in range(size):
                layer[o] = work.base[o]
            add_product(work.hidden[position], size, weights, net.choice1, size, layer)
            rectify(layer, size, _SLOPE)
            prior = weights[net.prior] * work.features[position, net.is_rule]
            work.logits[position] = dot(layer, size, weights, net.choice2) + prior
            choices += 1
    work.logits[count] = IMPOSSIBLE
    if work.shared[net.can_hold] > 0.0:
        hold = dot(work.context, size, weights, net.hold) + weights[net.hold_bias]
        work.logits[count] = hold + weights[net.prior + 1] * work.shared[net.rule_holds]
        choices += 1
    return choices


@inlined
def record_jobs(net, work, record, count):  # type: ignore[no-untyped-def]
    """Copy what a deep set saw to the record's next decision. Returns its first row of jobs."""
    at = record.count[0]
    first = record.all_rows[0]
    record.first_row[at] = first
    record.num_jobs[at] = count
    copy_numbers(work.shared, 0, net.num_shared, record.shared[at])
    for position in range(count):
        copy_numbers(work.features[position], 0, net.num_features, record.rows[first + position])
    record.all_rows[0] = first + count
    return first


@inlined
def has_room_for(record, num_jobs):  # type: ignore[no-untyped-def]
    """Return whether a record has room for a decision over so many jobs, and one more."""
    return (
        record.count[0] + 1 < record.first_row.shape[0]
        and record.all_rows[0] + num_jobs <= record.rows.shape[0]
    )


@kernel
def find_ahead(view, work):  # type: ignore[no-untyped-def]
    """Find for every job in the system the jobs with less remaining work."""
    num_jobs = view.now.num_active[0]
    order = work.order
    for position in range(num_jobs):
        order[position] = position
        work.remaining_ms[position] = view.jobs.remaining_ms[view.active[position]]
    sort_rows(order, work.remaining_ms, num_jobs)
    before = 0
    before_ms = 0.0
    passed_ms = 0.0
    for rank in range(num_jobs):
        position = order[rank]
        job_ms = work.remaining_ms[position]
        # Jobs with equal remaining work get the same numbers, whatever their order.
        if rank > 0 and job_ms > work.remaining_ms[order[rank - 1]]:
            before = rank
            before_ms = passed_ms
        passed_ms += job_ms
        work.ahead[position, 0] = before
        work.ahead[position, 1] = before_ms


@inlined
def uniform(seed, counter):  # type: ignore[no-untyped-def]
    """Return a number in (0, 1) that depends on the seed and the counter only."""
    bits = mix(mix(seed) + np.uint64(counter)) >> _UNUSED_BITS
    return (np.float64(bits) + 0.5) / 9007199254740992.0


@kernel
def largest(logits, size):  # type: ignore[no-untyped-def]
    """Return the index of the largest of the first `size` logits; of equals, the first."""
    best = 0
    for i in range(1, size):
        if logits[i] > logits[best]:
            best = i
    return best


@kernel
def draw(logits, size, uniform_draw):  # type: ignore[no-untyped-def]
    """Draw an index with probability softmax(logits). Returns the index, and the logarithm of its
    probability.
    """
    top = -math.inf
    for i in range(size):
        top = max(top, logits[i])
    total = 0.0
    for i in range(size):
        total += math.exp(logits[i] - top)
    log_total = top + math.log(total)
    left = uniform_draw * total
    # Rounding may leave a remainder after the loop; then the last possible index is taken.
    last = 0
    for i in range(size):
        chance = math.exp(logits[i] - top)
        if chance > 0.0:
            last = i
            left -= chance
            if left < 0.0:
                break
    return last, logits[last] - log_total


@inlined
def pick(logits, size, is_drawn, seed, counter):  # type: ignore[no-untyped-def]
    """Draw an index, or take the most probable one. Returns it, and the logarithm of its
    probability if it is drawn.
    """
    if is_drawn:
        return draw(logits, size, uniform(seed, counter))
    return largest(logits, size), 0.0
