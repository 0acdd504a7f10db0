"""The layers of a transform for many rows, and their gradients."""

from __future__ import annotations

from parcae.kernels import inlined
from parcae.policies.decima.kernels.rows import clear_rows, copy_row, gate_row
from parcae.policies.decima.layout import SLOPE
from parcae.products import add_outer, add_rows, multiply, multiply_gated, multiply_rectified


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
        gate_row(out.out, out.d_out, row, SLOPE)
    go_back(layers, work, out, d_inputs, first, last)


@inlined
def add_gradient(gradient, inputs, out, first, last):  # type: ignore[no-untyped-def]
    """Add to the gradient of a transform what the rows first .. last - 1 contribute."""
    d1 = out.d1[first:last]
    d2 = out.d2[first:last]
    d_out = out.d_out[first:last]
    add_outer(inputs[first:last], d1, gradient.w1)
    add_rows(d1, gradient.b1)
    add_outer(out.h1[first:last], d2, gradient.w2)
    add_rows(d2, gradient.b2)
    add_outer(out.h2[first:last], d_out, gradient.w3)
    add_rows(d_out, gradient.b3)


@inlined
def copy(source, target, first, last):  # type: ignore[no-untyped-def]
    """Copy rows of embeddings."""
    for row in range(first, last):
        copy_row(source, row, target, row)


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
        clear_rows(d_inputs, first, last)
        transform_back(layers, work, out, d_inputs, first, last)
    else:
        copy(d_y, d_inputs, first, last)
