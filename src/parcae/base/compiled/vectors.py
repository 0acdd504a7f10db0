"""Vector instructions: how kernels write them, and copies and rectifiers of vectors.

LLVM turns plain loops over the numbers of two arrays into one operation at a time, because it must
assume that the arrays overlap. It translates vectors for any processor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

from parcae.base.compiled.kernels import INLINED

WORD = ir.IntType(64)
FLOAT = ir.FloatType()
_INDEX = ir.IntType(32)


def word(number: int) -> ir.Constant:
    """A number as a constant of the generated code."""
    return ir.Constant(WORD, number)


def load(builder: Any, pointer: Any, vector: Any) -> Any:
    """Load a vector of this type from a float32 array."""
    value = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    value.align = 4
    return value


def store(builder: Any, value: Any, pointer: Any) -> None:
    """Store a vector where a float32 array goes on."""
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer())).align = 4


def spread(builder: Any, number: Any, vector: Any) -> Any:
    """A vector whose lanes all hold the number."""
    nothing = ir.Constant(vector, ir.Undefined)
    single = builder.insert_element(nothing, number, ir.Constant(_INDEX, 0))
    lanes = ir.Constant(ir.VectorType(_INDEX, vector.count), [0] * vector.count)
    return builder.shuffle_vector(single, nothing, lanes)


def gated(builder: Any, value: Any, gate: Any, slope: Any) -> Any:
    """The vector where the gate is above zero; elsewhere times the slope, which is a number."""
    vector = value.type
    is_open = builder.fcmp_ordered(">", gate, ir.Constant(vector, [0.0] * vector.count))
    return builder.select(is_open, value, builder.fmul(value, spread(builder, slope, vector)))


def spans(builder: Any, length: Any, steps: tuple[int, ...]) -> Iterator[tuple[Any, int]]:
    """Write loops over 0 .. length - 1 in large steps and then smaller ones: (position, step)."""
    start = word(0)
    for step in steps:
        whole = builder.mul(builder.sdiv(builder.sub(length, start), word(step)), word(step))
        stop = builder.add(start, whole)
        with cgutils.for_range_slice(builder, start, stop, word(step), WORD) as (position, _):
            yield position, step
        start = stop


def shape_of(context: Any, builder: Any, kind: Any, array: Any) -> list[Any]:
    """The numbers of rows and columns of an array, or its length."""
    shape = context.make_array(kind)(context, builder, array).shape
    sizes: list[Any] = cgutils.unpack_tuple(builder, shape, kind.ndim)
    return sizes


def require_room(context: Any, builder: Any, needed: Any, length: Any) -> None:
    """Write code that raises an IndexError where more is needed than there is.

    Only kernels that check the bounds of arrays (NUMBA_BOUNDSCHECK) contain it.
    """
    if context.enable_boundscheck:
        with builder.if_then(builder.icmp_signed(">", needed, length), likely=False):
            message = ("index is out of bounds",)
            context.call_conv.return_user_exc(builder, IndexError, message)


def check_vectors(*arrays: Any) -> None:
    """Refuse to compile code for other arrays than vectors of float32 without gaps."""
    for array in arrays:
        if (array.dtype, array.ndim, array.layout) != (types.float32, 1, "C"):
            raise TypeError(f"{array}: float32 numbers without gaps are meant")


def _copy_code(_, source, at, count, target):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        given, at, count, written = arguments
        (room,) = shape_of(context, builder, source, given)
        require_room(context, builder, builder.add(at, count), room)
        (room,) = shape_of(context, builder, target, written)
        require_room(context, builder, count, room)
        data = context.make_array(source)(context, builder, given).data
        goal = context.make_array(target)(context, builder, written).data
        cgutils.raw_memcpy(builder, goal, builder.gep(data, [at]), count, 4, 4)
        return context.get_dummy_value()

    return types.void(source, types.int64, types.int64, target), generate


_copy: Any = intrinsic(_copy_code)


def copy_numbers(source: Any, at: int, count: int, target: Any) -> None:
    """Copy source[at : at + count] to the beginning of target, another float32 array."""
    target[:count] = source[at : at + count]


@overload(copy_numbers, jit_options=INLINED)
def _compiled_copy_numbers(source, at, count, target):  # type: ignore[no-untyped-def]
    check_vectors(source, target)
    return lambda source, at, count, target: _copy(source, at, count, target)


def _rectifier_code(_, y, size, slope):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        (room,) = shape_of(context, builder, y, arguments[0])
        require_room(context, builder, arguments[1], room)
        data = context.make_array(y)(context, builder, arguments[0]).data
        for place, lanes in spans(builder, arguments[1], (16, 8, 1)):
            pointer = builder.gep(data, [place])
            value = load(builder, pointer, ir.VectorType(FLOAT, lanes))
            store(builder, gated(builder, value, value, arguments[2]), pointer)
        return context.get_dummy_value()

    return types.void(y, types.int64, types.float32), generate


_rectifier: Any = intrinsic(_rectifier_code)


def rectify(y: Any, size: int, slope: Any) -> None:
    """Apply the leaky rectifier to the first `size` numbers of y, in place."""
    y[:size] = np.maximum(y[:size], slope * y[:size])


@overload(rectify, jit_options=INLINED)
def _compiled_rectify(y, size, slope):  # type: ignore[no-untyped-def]
    check_vectors(y)
    return lambda y, size, slope: _rectifier(y, size, slope)
