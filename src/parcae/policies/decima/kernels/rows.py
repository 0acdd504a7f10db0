"""Copies and sums of embeddings, written as vector instructions.

An embedding is a row of a two-dimensional float32 array whose columns lie without gaps. LLVM turns
loops over its numbers into one addition at a time, because it must assume that the rows overlap.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

from parcae.kernels import INLINED
from parcae.policies.decima.layout import EMBEDDING
from parcae.vectors import FLOAT, WORD, gated, load, require_room, shape_of, store, word

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
    """Copy an embedding.

    Args:
        source: float32[m, at least EMBEDDING].
        row: its row.
        target: float32[n, at least EMBEDDING], written.
        at: the row that is written.
    """
    target[at, :EMBEDDING] = source[row, :EMBEDDING]


def add_row(source: Any, row: int, target: Any, at: int) -> None:
    """Add an embedding to another; see `copy_row`."""
    target[at, :EMBEDDING] += source[row, :EMBEDDING]


def clear_rows(target: Any, first: int, last: int) -> None:
    """Set the rows first .. last - 1 to zero; `target` is float32[m, any number], without gaps."""
    target[first:last] = 0.0


def gate_row(gate: Any, target: Any, at: int, slope: Any) -> None:
    """Multiply a row by the derivative of a leaky rectifier.

    Args:
        gate: float32[m, at least EMBEDDING], what the rectifier returned.
        target: float32[m, at least EMBEDDING], changed.
        at: the row.
        slope: the rectifier's factor for numbers below zero.
    """
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
