"""Compiled transforms: the small networks of three layers that make up Decima's network."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

from parcae.base.compiled.kernels import INLINED, inlined, kernel
from parcae.base.compiled.products import apply_layer
from parcae.base.compiled.vectors import (
    FLOAT,
    gated,
    load,
    require_room,
    shape_of,
    store,
    word,
)
from parcae.decima.graph.layout import EMBEDDING, HIDDEN_1, HIDDEN_2, SLOPE

_VECTOR = ir.VectorType(FLOAT, EMBEDDING)
_BYTES = ir.IntType(8).as_pointer()
_H1 = HIDDEN_1
_H2 = HIDDEN_2
_SLOPE = np.float32(SLOPE)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, row: Any) -> Any:
    """Where an embedding is; the row must exist."""
    num_rows, num_columns = shape_of(context, builder, kind, array)
    require_room(context, builder, builder.neg(row), word(0))
    require_room(context, builder, builder.add(row, word(1)), num_rows)
    require_room(context, builder, word(EMBEDDING), num_columns)
    parts = context.make_array(kind)(context, builder, array)
    stride = cgutils.unpack_tuple(builder, parts.strides, kind.ndim)[0]
    return builder.gep(builder.bitcast(parts.data, _BYTES), [builder.mul(row, stride)])


def _on_rows(combine: Any) -> Any:
    """Compile a function of (source, row, target, at) as `combine(builder, old, given)`, which
    makes the new row of the target from its old one and from that of the source.
    """

    def code(_, source, row, target, at):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            kinds = signature.args
            origin = _pointer(context, builder, kinds[0], arguments[0], arguments[1])
            goal = _pointer(context, builder, kinds[2], arguments[2], arguments[3])
            old, given = (load(builder, pointer, _VECTOR) for pointer in (goal, origin))
            store(builder, combine(builder, old, given), goal)
            return context.get_dummy_value()

        return types.void(source, types.int64, target, types.int64), generate

    change: Any = intrinsic(code)

    def compiled(source, row, target, at):  # type: ignore[no-untyped-def]
        for array in (source, target):
            if (array.dtype, array.ndim) != (types.float32, 2):
                raise TypeError(f"{array}: a matrix of float32 is meant")
        return lambda source, row, target, at: change(source, row, target, at)

    def decorate(function: Any) -> Any:
        overload(function, jit_options=INLINED)(compiled)
        return function

    return decorate


@_on_rows(lambda builder, old, given: given)
def copy_row(source: Any, row: int, target: Any, at: int) -> None:
    """Copy an embedding."""
    target[at, :EMBEDDING] = source[row, :EMBEDDING]


@_on_rows(lambda builder, old, given: builder.fadd(old, given))
def add_row(source: Any, row: int, target: Any, at: int) -> None:
    """Add an embedding to another."""
    target[at, :EMBEDDING] += source[row, :EMBEDDING]


@_on_rows(lambda builder, old, given: gated(builder, old, given, ir.Constant(FLOAT, SLOPE)))
def gate_row(source: Any, row: int, target: Any, at: int) -> None:
    """Multiply a row by the derivative of the leaky rectifier that another is the output of."""
    target[at, :EMBEDDING] *= (source[row, :EMBEDDING] > 0) * (1 - _SLOPE) + _SLOPE


@inlined
def transform(net, work, which, x, y):  # type: ignore[no-untyped-def]
    """Write transform(x), EMBEDDING numbers a row, to y; the last layer is rectified too."""
    _run_layers(net.weights, net.starts[which], work.layers_1, work.layers_2, x, y)


@kernel
def _run_layers(weights, at, layers_1, layers_2, x, y):  # type: ignore[no-untyped-def]
    """See `transform`. The arguments are few, because a call copies every array's description."""
    rows, num_in = x.shape
    layer_1 = layers_1[:rows]
    layer_2 = layers_2[:rows]
    apply_layer(x, weights, at, layer_1, _SLOPE)
    at += (num_in + 1) * _H1
    apply_layer(layer_1, weights, at, layer_2, _SLOPE)
    apply_layer(layer_2, weights, at + (_H1 + 1) * _H2, y, _SLOPE)


@inlined
def apply_outer_transform(net, work, which, y):  # type: ignore[no-untyped-def]
    """y = g(total), or total if the network has only one transform per level.

    `y` has as many rows as are taken of `work.total`.
    """
    rows = y.shape[0]
    if net.has_two_transforms:
        transform(net, work, which, work.total[:rows], y)
        return
    for row in range(rows):
        copy_row(work.total, row, y, row)
