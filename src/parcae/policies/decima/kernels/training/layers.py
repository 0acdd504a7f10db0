"""The layers of a transform for many rows, and their gradients."""

from __future__ import annotations

from parcae.kernels import inlined
from parcae.policies.decima.layout import EMBEDDING, SLOPE
from parcae.products import multiply, multiply_gated, multiply_rectified

_D = EMBEDDING


@inlined
def _apply(layers, inputs, out, first, last):  # type: ignore[no-untyped-def]
    """Compute the hidden layers of a transform for the rows first .. last - 1."""
    h1 = out.h1[first:last]
    multiply_rectified(inputs[first:last], layers.w1, layers.b1, h1, SLOPE)
    multiply_rectified(h1, layers.w2, layers.b2, out.h2[first:last], SLOPE)


@inlined
def transform(layers, inputs, out, first, last):  # type: ignore[no-untyped-def]
    """Compute a transform with a rectified last layer for the rows first .. last - 1."""
    _apply(layers, inputs, out, first, last)
    h2 = out.h2[first:last]
    multiply_rectified(h2, layers.w3, layers.b3, out.out[first:last], SLOPE)


@inlined
def score(layers, inputs, out, count):  # type: ignore[no-untyped-def]
    """Compute a transform with a linear last layer for the first rows."""
    _apply(layers, inputs, out, 0, count)
    multiply(out.h2[:count], layers.w3, layers.b3, out.out[:count])


@inlined
def go_back(layers, work, out, d_inputs, first, last):  # type: ignore[no-untyped-def]
    """Add to d_inputs the gradient of a transform's embedded inputs, from `out.d_out`."""
    d1 = out.d1[first:last]
    d2 = out.d2[first:last]
    d_out = out.d_out[first:last]
    multiply_gated(d_out, layers.t3, work.zeros, d2, out.h2[first:last], SLOPE)
    multiply_gated(d2, layers.t2, work.zeros, d1, out.h1[first:last], SLOPE)
    multiply(d1, layers.t1, d_inputs[first:last], d_inputs[first:last])


@inlined
def transform_back(layers, work, out, d_inputs, first, last):  # type: ignore[no-untyped-def]
    """Like `go_back`, for a transform whose last layer is rectified."""
    for row in range(first, last):
        for o in range(_D):
            if out.out[row, o] <= 0.0:
                out.d_out[row, o] *= SLOPE
    go_back(layers, work, out, d_inputs, first, last)


@inlined
def add_gradient(gradient, work, inputs, out, first, last):  # type: ignore[no-untyped-def]
    """Add to the gradient of a transform what the rows first .. last - 1 contribute."""
    d1 = out.d1[first:last]
    d2 = out.d2[first:last]
    d_out = out.d_out[first:last]
    ones = work.ones[:, first:last]
    multiply(inputs[first:last].T, d1, gradient.w1, gradient.w1)
    multiply(ones, d1, gradient.b1, gradient.b1)
    multiply(out.h1[first:last].T, d2, gradient.w2, gradient.w2)
    multiply(ones, d2, gradient.b2, gradient.b2)
    multiply(out.h2[first:last].T, d_out, gradient.w3, gradient.w3)
    multiply(ones, d_out, gradient.b3, gradient.b3)


@inlined
def copy(source, target, first, last):  # type: ignore[no-untyped-def]
    """Copy rows of embeddings."""
    for row in range(first, last):
        for o in range(_D):
            target[row, o] = source[row, o]


@inlined
def clear(target, first, last):  # type: ignore[no-untyped-def]
    """Set rows to zero."""
    for row in range(first, last):
        for o in range(target.shape[1]):
            target[row, o] = 0.0


@inlined
def add_row(source, row, target, at):  # type: ignore[no-untyped-def]
    """Add a row of embeddings to another."""
    for o in range(_D):
        target[at, o] += source[row, o]


@inlined
def outer(parts, layers, inputs, out, y, first, last):  # type: ignore[no-untyped-def]
    """Write g(inputs) to y, or the inputs if the network has one transform for each level."""
    if parts.has_two_transforms:
        transform(layers, inputs, out, first, last)
        copy(out.out, y, first, last)
    else:
        copy(inputs, y, first, last)


@inlined
def outer_back(  # type: ignore[no-untyped-def]
    parts, layers, work, out, d_y, d_inputs, first, last
):
    """Write the gradient of the inputs of `outer` to d_inputs."""
    if parts.has_two_transforms:
        copy(d_y, out.d_out, first, last)
        clear(d_inputs, first, last)
        transform_back(layers, work, out, d_inputs, first, last)
    else:
        copy(d_y, d_inputs, first, last)
