"""Compiled transforms: the small networks of three layers that make up Decima's network."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

from parcae.base.compiled.kernels import INLINED, inlined, kernel
from parcae.base.compiled.products import add_product, apply_layer
from parcae.base.compiled.vectors import (
    FLOAT,
    WORD,
    copy_numbers,
    gated,
    load,
    rectify,
    require_room,
    shape_of,
    store,
    word,
)
from parcae.decima.graph.layout import EMBEDDING, HIDDEN_1, HIDDEN_2, SLOPE

_VECTOR = ir.VectorType(FLOAT, EMBEDDING)
_BYTES = ir.IntType(8).as_pointer()


def _start(context: Any, builder: Any, kind: Any, array: Any, row: Any) -> Any:
    """Where a row of an array begins."""
    parts = context.make_array(kind)(context, builder, array)
    stride = cgutils.unpack_tuple(builder, parts.strides, kind.ndim)[0]
    return builder.gep(builder.bitcast(parts.data, _BYTES), [builder.mul(row, stride)])


def _pointer(context: Any, builder: Any, kind: Any, array: Any, row: Any) -> Any:
    """Where an embedding is; the row must exist."""
    num_rows, num_columns = shape_of(context, builder, kind, array)
    require_room(context, builder, builder.neg(row), word(0))
    require_room(context, builder, builder.add(row, word(1)), num_rows)
    require_room(context, builder, word(EMBEDDING), num_columns)
    return _start(context, builder, kind, array, row)


def _check(*arrays: Any) -> None:
    """Refuse to compile code for other arrays than float32 matrices."""
    for array in arrays:
        if (array.dtype, array.ndim) != (types.float32, 2):
            raise TypeError(f"{array}: a matrix of float32 is meant")


def _copying(is_sum: bool) -> Any:
    """The code of `copy_row`, or of `add_row`."""

    @intrinsic
    def combine(_, source, row, target, at):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            kinds = signature.args
            origin = _pointer(context, builder, kinds[0], arguments[0], arguments[1])
            goal = _pointer(context, builder, kinds[2], arguments[2], arguments[3])
            value = load(builder, origin, _VECTOR)
            if is_sum:
                value = builder.fadd(load(builder, goal, _VECTOR), value)
            store(builder, value, goal)
            return context.get_dummy_value()

        return types.void(source, types.int64, target, types.int64), generate

    return combine


_copy: Any = _copying(False)
_add: Any = _copying(True)


def _clear_code(_, target, first, last):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array, first, last = arguments
        kind = signature.args[0]
        require_room(context, builder, builder.neg(first), word(0))
        require_room(context, builder, last, shape_of(context, builder, kind, array)[0])
        start = _start(context, builder, kind, array, first)
        end = _start(context, builder, kind, array, last)
        size = builder.sub(builder.ptrtoint(end, WORD), builder.ptrtoint(start, WORD))
        cgutils.memset(builder, start, size, 0)
        return context.get_dummy_value()

    return types.void(target, types.int64, types.int64), generate


_clear: Any = intrinsic(_clear_code)


def _gate_code(_, gate, target, at, slope):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        kinds = signature.args
        goal = _pointer(context, builder, kinds[1], arguments[1], arguments[2])
        place = _pointer(context, builder, kinds[0], arguments[0], arguments[2])
        opened = load(builder, place, _VECTOR)
        value = load(builder, goal, _VECTOR)
        store(builder, gated(builder, value, opened, arguments[3]), goal)
        return context.get_dummy_value()

    return types.void(gate, target, types.int64, types.float32), generate


_gate: Any = intrinsic(_gate_code)


def copy_row(source: Any, row: int, target: Any, at: int) -> None:
    """Copy an embedding."""
    target[at, :EMBEDDING] = source[row, :EMBEDDING]


def add_row(source: Any, row: int, target: Any, at: int) -> None:
    """Add an embedding to another; see `copy_row`."""
    target[at, :EMBEDDING] += source[row, :EMBEDDING]


def clear_rows(target: Any, first: int, last: int) -> None:
    """Set the rows first .. last - 1 to zero; `target` is float32[m, any number], without gaps."""
    target[first:last] = 0.0


def gate_row(gate: Any, target: Any, at: int, slope: Any) -> None:
    """Multiply a row by the derivative of a leaky rectifier."""
    target[at, :EMBEDDING] *= (gate[at, :EMBEDDING] > 0) * (1 - slope) + slope


@overload(copy_row, jit_options=INLINED)
def _compiled_copy_row(source, row, target, at):  # type: ignore[no-untyped-def]
    _check(source, target)
    return lambda source, row, target, at: _copy(source, row, target, at)


@overload(add_row, jit_options=INLINED)
def _compiled_add_row(source, row, target, at):  # type: ignore[no-untyped-def]
    _check(source, target)
    return lambda source, row, target, at: _add(source, row, target, at)


@overload(clear_rows, jit_options=INLINED)
def _compiled_clear_rows(target, first, last):  # type: ignore[no-untyped-def]
    _check(target)
    if target.layout != "C":
        raise TypeError(f"{target}: an array without gaps is meant")
    return lambda target, first, last: _clear(target, first, last)


@overload(gate_row, jit_options=INLINED)
def _compiled_gate_row(gate, target, at, slope):  # type: ignore[no-untyped-def]
    _check(gate, target)
    return lambda gate, target, at, slope: _gate(gate, target, at, slope)


_H1 = HIDDEN_1
_H2 = HIDDEN_2
_SLOPE = np.float32(SLOPE)


@inlined
def hidden(weights, at, layer_1, layer_2, x, num_in):  # type: ignore[no-untyped-def]
    """Compute the two hidden layers of a transform. Returns where the weights of the transform's
    last layer start.
    """
    copy_numbers(weights, at + num_in * _H1, _H1, layer_1)
    add_product(x, num_in, weights, at, _H1, layer_1)
    rectify(layer_1, _H1, _SLOPE)
    at += (num_in + 1) * _H1
    copy_numbers(weights, at + _H1 * _H2, _H2, layer_2)
    add_product(layer_1, _H1, weights, at, _H2, layer_2)
    rectify(layer_2, _H2, _SLOPE)
    return at + (_H1 + 1) * _H2


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
