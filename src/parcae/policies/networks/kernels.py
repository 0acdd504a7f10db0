"""Layers and draws of the compiled networks: float32, weights in one flat array, matrices [in, out]."""

from __future__ import annotations

import math

import numpy as np

from parcae.kernels import inlined, kernel, mix

_HALF = np.uint64(11)


@inlined
def add_product(x, num_in, weights, at, num_out, y):  # type: ignore[no-untyped-def]
    """y += x W, the matrix at weights[at:].

    Eight outputs at a time, in registers: three times as fast as a plain loop, whose y might overlap the weights for all that
    the compiler knows.
    """
    o = 0
    while o + 8 <= num_out:
        y0 = y[o]
        y1 = y[o + 1]
        y2 = y[o + 2]
        y3 = y[o + 3]
        y4 = y[o + 4]
        y5 = y[o + 5]
        y6 = y[o + 6]
        y7 = y[o + 7]
        row = at + o
        for i in range(num_in):
            value = x[i]
            y0 += value * weights[row]
            y1 += value * weights[row + 1]
            y2 += value * weights[row + 2]
            y3 += value * weights[row + 3]
            y4 += value * weights[row + 4]
            y5 += value * weights[row + 5]
            y6 += value * weights[row + 6]
            y7 += value * weights[row + 7]
            row += num_out
        y[o] = y0
        y[o + 1] = y1
        y[o + 2] = y2
        y[o + 3] = y3
        y[o + 4] = y4
        y[o + 5] = y5
        y[o + 6] = y6
        y[o + 7] = y7
        o += 8
    while o < num_out:
        total = y[o]
        for i in range(num_in):
            total += x[i] * weights[at + i * num_out + o]
        y[o] = total
        o += 1


@inlined
def copy_bias(weights, at, num_out, y):  # type: ignore[no-untyped-def]
    """y = b, the bias at weights[at:]."""
    for o in range(num_out):
        y[o] = weights[at + o]


@inlined
def rectify(y, size, slope):  # type: ignore[no-untyped-def]
    """The leaky rectifier, in place."""
    for o in range(size):
        y[o] = max(y[o], slope * y[o])


@inlined
def dot(x, size, weights, at):  # type: ignore[no-untyped-def]
    """x . w, the vector at weights[at:]."""
    total = np.float32(0.0)
    for i in range(size):
        total += x[i] * weights[at + i]
    return total


@inlined
def uniform(seed, counter):  # type: ignore[no-untyped-def]
    """A number in (0, 1) that depends on the seed and the counter alone."""
    bits = mix(mix(seed) + np.uint64(counter)) >> _HALF
    return (np.float64(bits) + 0.5) / 9007199254740992.0


@kernel
def log_sum_exp(logits, size):  # type: ignore[no-untyped-def]
    """log of the sum of exp over the first `size`; -inf logits count nothing."""
    largest = -math.inf
    for i in range(size):
        largest = max(largest, logits[i])
    total = 0.0
    for i in range(size):
        total += math.exp(logits[i] - largest)
    return largest + math.log(total)


@kernel
def largest(logits, size):  # type: ignore[no-untyped-def]
    """Index of the largest; the first of equals."""
    best = 0
    for i in range(1, size):
        if logits[i] > logits[best]:
            best = i
    return best


@kernel
def draw(logits, size, luck):  # type: ignore[no-untyped-def]
    """An index with probability softmax(logits); `luck` is uniform in (0, 1)."""
    total = log_sum_exp(logits, size)
    last = 0
    for i in range(size):
        chance = math.exp(logits[i] - total)
        if chance > 0.0:
            last = i
            luck -= chance
            if luck < 0.0:
                return i
    return last
