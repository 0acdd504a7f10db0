"""Matrix products of compiled networks, written as vector instructions.

LLVM turns a plain loop over the outputs of a layer into one multiplication at a time, because it
must assume that outputs and weights overlap. Here the sums of a tile of the result stay in vector
registers, which is ten times as fast. LLVM translates the vectors for any processor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

from parcae.base.compiled.kernels import INLINED, kernel

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


#: Rows of a tile, from high to low.
_TILE_ROWS = (8, 4, 2, 1)
#: Sums that run side by side.
_NUM_SUMS = 8
#: Lanes and number of the vectors of a tile, by its width, from wide to narrow.
_TILES = {32: (16, 2), 16: (16, 1), 8: (8, 1), 1: (1, 1)}


class Matrix(NamedTuple):
    """A matrix in memory, as LLVM values: entry [i, k] is at start + i * row + k * column."""

    start: Any
    row: Any
    column: Any


class _Product(NamedTuple):
    """The operands of out = base + left right; `gate` has the layout of `out`."""

    left: Matrix
    right: Matrix
    base: Matrix
    out: Matrix
    gate: Any
    depth: Any
    is_fused: bool
    finish: str
    slope: Any


def _address(builder: Any, matrix: Matrix, row: Any, column: Any) -> Any:
    offset = builder.add(builder.mul(row, matrix.row), builder.mul(column, matrix.column))
    return builder.gep(matrix.start, [offset])


def _accumulate(builder: Any, total: Any, factor: Any, other: Any, is_fused: bool) -> Any:
    """total + factor x other; fused where the processor can and exact equality is not needed."""
    if not is_fused:
        return builder.fadd(total, builder.fmul(factor, other))
    vector = total.type
    signature = ir.FunctionType(vector, [vector] * 3)
    name = f"llvm.fmuladd.v{vector.count}f32"
    fused = cgutils.get_or_insert_function(builder.module, signature, name)
    return builder.call(fused, [factor, other, total])


def _finished(builder: Any, product: _Product, total: Any, pointer_to_gate: Any) -> Any:
    """The sum, rectified, or multiplied by the slope of the rectifier where the gate was open."""
    if product.finish == "plain":
        return total
    gate = total if product.finish == "rectify" else load(builder, pointer_to_gate, total.type)
    return gated(builder, total, gate, product.slope)


def _emit_tile(builder: Any, product: _Product, at: tuple[Any, Any], size: tuple[int, ...]) -> None:
    """Write code for one tile of the result."""
    num_rows, lanes, num_vectors = size
    vector = ir.VectorType(FLOAT, lanes)
    rows = [builder.add(at[0], word(row)) for row in range(num_rows)]
    columns = [builder.add(at[1], word(lanes * index)) for index in range(num_vectors)]
    cells = [(row, column) for row in rows for column in columns]
    totals = [cgutils.alloca_once(builder, vector) for _ in cells]
    for total, cell in zip(totals, cells, strict=True):
        builder.store(load(builder, _address(builder, product.base, *cell), vector), total)
    with cgutils.for_range(builder, product.depth) as loop:
        others = [
            load(builder, _address(builder, product.right, loop.index, column), vector)
            for column in columns
        ]
        factors = [
            spread(builder, builder.load(_address(builder, product.left, row, loop.index)), vector)
            for row in rows
        ]
        pairs = [(factor, other) for factor in factors for other in others]
        for total, (factor, other) in zip(totals, pairs, strict=True):
            added = _accumulate(builder, builder.load(total), factor, other, product.is_fused)
            builder.store(added, total)
    for total, cell in zip(totals, cells, strict=True):
        gate = _address(builder, product.out._replace(start=product.gate), *cell)
        value = _finished(builder, product, builder.load(total), gate)
        target = _address(builder, product.out, *cell)
        store(builder, value, target)


def _emit(builder: Any, product: _Product, height: Any, width: Any) -> None:
    """Write code for all tiles of a result."""
    heights = [(word(0), 1)] if height is None else spans(builder, height, _TILE_ROWS)
    for row, num_rows in heights:
        for column, step in spans(builder, width, tuple(_TILES)):
            _emit_tile(builder, product, (row, column), (num_rows, *_TILES[step]))


def _row_code(_, x, num_in, weights, at, num_out, y):  # type: ignore[no-untyped-def]
    """The code of `add_product`."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        starts = [
            context.make_array(kind)(context, builder, argument).data
            for kind, argument in zip(signature.args, arguments, strict=True)
            if isinstance(kind, types.Array)
        ]
        first = builder.gep(starts[1], [arguments[3]])
        one = word(1)
        needed = {
            0: arguments[1],
            2: builder.add(arguments[3], builder.mul(arguments[1], arguments[4])),
            5: arguments[4],
        }
        for place, count in needed.items():
            (room,) = shape_of(context, builder, signature.args[place], arguments[place])
            require_room(context, builder, count, room)
        left = Matrix(starts[0], word(0), one)
        right = Matrix(first, arguments[4], one)
        out = Matrix(starts[2], word(0), one)
        # Products are not fused with sums, so that results are the same on every processor.
        product = _Product(left, right, out, out, out.start, arguments[1], False, "plain", None)
        _emit(builder, product, None, arguments[4])
        return context.get_dummy_value()

    number = types.int64
    return types.void(x, number, weights, number, number, y), generate


_add_row: Any = intrinsic(_row_code)


def add_product(x: Any, num_in: int, weights: Any, at: int, num_out: int, y: Any) -> None:
    """Add the product x W to y, where W starts at weights[at].

    Args:
        x: float32[at least num_in], the inputs.
        num_in: rows of W.
        weights: float32 array, the network's weights.
        at: where W starts.
        num_out: columns of W.
        y: float32[at least num_out]; the product is added.
    """
    for i in range(num_in):
        for o in range(num_out):
            y[o] += x[i] * weights[at + i * num_out + o]


@overload(add_product, jit_options=INLINED)
def _compiled_add_product(x, num_in, weights, at, num_out, y):  # type: ignore[no-untyped-def]
    check_vectors(x, weights, y)

    def add(x, num_in, weights, at, num_out, y):  # type: ignore[no-untyped-def]
        _add_row(x, num_in, weights, at, num_out, y)

    return add


def _matrix(context: Any, builder: Any, kind: Any, argument: Any) -> Matrix:
    """A float32 array; one of one dimension is a row that stands for all rows."""
    array = context.make_array(kind)(context, builder, argument)
    row = word(0)
    if kind.ndim == 2:
        row = builder.sdiv(cgutils.unpack_tuple(builder, array.strides, 2)[0], word(4))
    return Matrix(array.data, row, word(1))


def _require_matrix(
    context: Any, builder: Any, operand: tuple[Any, Any], rows: Any, columns: Any
) -> None:
    """Check that an operand has so many rows and columns; see `require_room`.

    The operand is its type and its value. One of one dimension stands for all rows.
    """
    *height, width = shape_of(context, builder, *operand)
    require_room(context, builder, columns, width)
    for count in height:
        require_room(context, builder, rows, count)


def _layer_code(_, x, weights, at, y, slope):  # type: ignore[no-untyped-def]

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        left = _matrix(context, builder, x, arguments[0])
        flat = _matrix(context, builder, weights, arguments[1]).start
        out = _matrix(context, builder, y, arguments[3])
        height, depth = shape_of(context, builder, x, arguments[0])
        width = shape_of(context, builder, y, arguments[3])[1]
        one = word(1)
        end = builder.add(arguments[2], builder.mul(builder.add(depth, one), width))
        require_room(context, builder, end, shape_of(context, builder, weights, arguments[1])[0])
        _require_matrix(context, builder, (y, arguments[3]), height, width)
        matrix = builder.gep(flat, [arguments[2]])
        bias = builder.gep(matrix, [builder.mul(depth, width)])
        product = _Product(
            left=left,
            right=Matrix(matrix, width, one),
            base=Matrix(bias, word(0), one),
            out=out,
            gate=out.start,
            depth=depth,
            is_fused=False,
            finish="rectify",
            slope=arguments[4],
        )
        _emit(builder, product, height, width)
        return context.get_dummy_value()

    return types.void(x, weights, types.int64, y, types.float32), generate


_layer: Any = intrinsic(_layer_code)


def apply_layer(x: Any, weights: Any, at: int, y: Any, slope: Any) -> None:
    """Set y to the leaky rectifier of x W + b; every row is as `add_product` has it.

    Args:
        x: float32[m, inputs].
        weights: float32 array, the network's weights.
        at: where W starts in them; b follows.
        y: float32[m, outputs], written.
        slope: factor for numbers below zero.
    """
    num_out = y.shape[1]
    end = at + x.shape[1] * num_out
    for row in range(x.shape[0]):
        y[row] = weights[end : end + num_out]
        add_product(x[row], x.shape[1], weights, at, num_out, y[row])
        y[row] = np.maximum(y[row], slope * y[row])


@overload(apply_layer, jit_options=INLINED)
def _compiled_apply_layer(x, weights, at, y, slope):  # type: ignore[no-untyped-def]
    return lambda x, weights, at, y, slope: _layer(x, weights, at, y, slope)


def _product_of(finish: str, is_transposed: bool = False) -> Any:
    """The code of a product of matrices."""

    @intrinsic
    def multiply(_, left, right, base, out, gate, slope):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            pairs = zip(signature.args[:5], arguments[:5], strict=True)
            matrices = [_matrix(context, builder, *pair) for pair in pairs]
            height, depth = shape_of(context, builder, left, arguments[0])
            first = matrices[0]
            if is_transposed:
                height, depth = depth, height
                first = Matrix(first.start, first.column, first.row)
            width = shape_of(context, builder, right, arguments[1])[1]
            operands = list(zip(signature.args, arguments, strict=True))
            _require_matrix(context, builder, operands[1], depth, width)
            for operand in operands[2:5]:
                _require_matrix(context, builder, operand, height, width)
            product = _Product(
                left=first,
                right=matrices[1],
                base=matrices[2],
                out=matrices[3],
                gate=matrices[4].start,
                depth=depth,
                is_fused=True,
                finish=finish,
                slope=arguments[5],
            )
            _emit(builder, product, height, width)
            return context.get_dummy_value()

        return types.void(left, right, base, out, gate, types.float32), generate

    return multiply


def _emit_sums(builder: Any, rows: Matrix, out: Matrix, height: Any, at: Any, lanes: int) -> None:
    """Write code that adds some columns of all rows to `out`, beginning with column `at`.

    Several sums run side by side, because each addition has to wait for the one before it.
    """
    vector = ir.VectorType(FLOAT, lanes)
    zero = ir.Constant(vector, [0.0] * lanes)
    sums = [cgutils.alloca_once(builder, vector) for _ in range(_NUM_SUMS)]
    for total in sums:
        builder.store(zero, total)
    for row, step in spans(builder, height, (_NUM_SUMS, 1)):
        for index in range(step):
            other = load(
                builder, _address(builder, rows, builder.add(row, word(index)), at), vector
            )
            builder.store(builder.fadd(builder.load(sums[index]), other), sums[index])
    place = _address(builder, out, word(0), at)
    value = load(builder, place, vector)
    for total in sums:
        value = builder.fadd(value, builder.load(total))
    store(builder, value, place)


def _sums_code(_, rows, out):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        matrix = _matrix(context, builder, rows, arguments[0])
        target = _matrix(context, builder, out, arguments[1])
        height, width = shape_of(context, builder, rows, arguments[0])
        _require_matrix(context, builder, (out, arguments[1]), word(1), width)
        for column, lanes in spans(builder, width, (16, 8, 1)):
            _emit_sums(builder, matrix, target, height, column, lanes)
        return context.get_dummy_value()

    return types.void(rows, out), generate


_sums: Any = intrinsic(_sums_code)


@kernel
def _add_rows(rows, out):  # type: ignore[no-untyped-def]
    _sums(rows, out)


_plain = _product_of("plain")
_rectified = _product_of("rectify")
_gated = _product_of("gate")
_outer = _product_of("plain", is_transposed=True)


@kernel
def _multiply(left, right, base, out):  # type: ignore[no-untyped-def]
    _plain(left, right, base, out, out, 0.0)


@kernel
def _add_outer(left, right, out):  # type: ignore[no-untyped-def]
    _outer(left, right, out, out, out, 0.0)


@kernel
def _multiply_rectified(left, right, base, out, slope):  # type: ignore[no-untyped-def]
    _rectified(left, right, base, out, out, slope)


@kernel
def _multiply_gated(left, right, base, out, gate, slope):  # type: ignore[no-untyped-def]
    _gated(left, right, base, out, gate, slope)


def multiply(left: Any, right: Any, base: Any, out: Any) -> None:
    """Set out to base + left right. The columns of all matrices lie without gaps."""
    out[:] = base + left @ right


def add_outer(left: Any, right: Any, out: Any) -> None:
    """Add the product of the transposed left matrix and the right one to out."""
    out += left.T @ right


def multiply_rectified(left: Any, right: Any, base: Any, out: Any, slope: float) -> None:
    """Set out to the leaky rectifier of base + left right.

    Args:
        left: float32[m, k].
        right: float32[k, n].
        base: see `multiply`.
        out: float32[m, n].
        slope: factor for numbers below zero.
    """
    total = base + left @ right
    out[:] = np.where(total > 0, total, slope * total)


def multiply_gated(left: Any, right: Any, base: Any, out: Any, gate: Any, slope: float) -> None:
    """Set out to (base + left right) times the derivative of a leaky rectifier.

    Args:
        left: float32[m, k].
        right: float32[k, n].
        base: see `multiply`.
        out: float32[m, n].
        gate: float32[m, n], what the rectifier returned; it lies in memory as `out` does.
        slope: the rectifier's factor for numbers below zero.
    """
    total = base + left @ right
    out[:] = np.where(gate > 0, total, slope * total)


def add_rows(rows: Any, out: Any) -> None:
    """Add the sum of all rows to out."""
    out += rows.sum(axis=0)


@overload(add_rows, jit_options=INLINED)
def _compiled_add_rows(rows, out):  # type: ignore[no-untyped-def]
    return lambda rows, out: _add_rows(rows, out)


@overload(multiply, jit_options=INLINED)
def _compiled_multiply(left, right, base, out):  # type: ignore[no-untyped-def]
    return lambda left, right, base, out: _multiply(left, right, base, out)


@overload(add_outer, jit_options=INLINED)
def _compiled_add_outer(left, right, out):  # type: ignore[no-untyped-def]
    return lambda left, right, out: _add_outer(left, right, out)


@overload(multiply_rectified, jit_options=INLINED)
def _compiled_multiply_rectified(left, right, base, out, slope):  # type: ignore[no-untyped-def]
    return lambda left, right, base, out, slope: _multiply_rectified(left, right, base, out, slope)


@overload(multiply_gated, jit_options=INLINED)
def _compiled_multiply_gated(  # type: ignore[no-untyped-def]
    left, right, base, out, gate, slope
):
    return lambda left, right, base, out, gate, slope: _multiply_gated(
        left, right, base, out, gate, slope
    )
