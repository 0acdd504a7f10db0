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
from numba.core import cgutils, config, types
from numba.extending import intrinsic

from parcae.base.compiled.kernels import kernel

WORD = ir.IntType(64)
FLOAT = ir.FloatType()
_INDEX = ir.IntType(32)


def _emitted(plain: Any) -> Any:
    """Decorate code for kernels to call; where Python runs the kernels, `plain` is in its place."""
    return lambda code: plain if config.DISABLE_JIT else intrinsic(code)


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


def _require_vectors(*arrays: Any) -> None:
    """Refuse to compile code for other arrays than vectors of float32 without gaps."""
    for array in arrays:
        if (array.dtype, array.ndim, array.layout) != (types.float32, 1, "C"):
            raise TypeError(f"{array}: float32 numbers without gaps are meant")


@_emitted(lambda source, at, count, target: np.copyto(target[:count], source[at : at + count]))
def copy_numbers(_, source, at, count, target):  # type: ignore[no-untyped-def]
    """Copy source[at : at + count] to the beginning of target, another float32 array."""
    _require_vectors(source, target)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        given, at, count, written = arguments
        _require_size(context, builder, (source, given), builder.add(at, count))
        _require_size(context, builder, (target, written), count)
        data = context.make_array(source)(context, builder, given).data
        goal = context.make_array(target)(context, builder, written).data
        cgutils.raw_memcpy(builder, goal, builder.gep(data, [at]), count, 4, 4)
        return context.get_dummy_value()

    return types.void(source, types.int64, types.int64, target), generate


@_emitted(lambda y, size, slope: np.maximum(y[:size], slope * y[:size], out=y[:size]))
def rectify(_, y, size, slope):  # type: ignore[no-untyped-def]
    """Apply the leaky rectifier to the first `size` numbers of y, in place."""
    _require_vectors(y)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        numbers, size, slope = arguments
        _require_size(context, builder, (y, numbers), size)
        data = context.make_array(y)(context, builder, numbers).data
        for place, lanes in spans(builder, size, (16, 8, 1)):
            pointer = builder.gep(data, [place])
            value = load(builder, pointer, ir.VectorType(FLOAT, lanes))
            store(builder, gated(builder, value, value, slope), pointer)
        return context.get_dummy_value()

    return types.void(y, types.int64, types.float32), generate


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


def _matrix(context: Any, builder: Any, kind: Any, argument: Any) -> Matrix:
    """A float32 array; one of one dimension is a row that stands for all rows."""
    array = context.make_array(kind)(context, builder, argument)
    row = word(0)
    if kind.ndim == 2:
        row = builder.sdiv(cgutils.unpack_tuple(builder, array.strides, 2)[0], word(4))
    return Matrix(array.data, row, word(1))


def _require_size(context: Any, builder: Any, operand: tuple[Any, Any], *sizes: Any) -> None:
    """Check that an operand has so many rows and columns; see `require_room`.

    The operand is its type and its value. One of one dimension stands for all rows.
    """
    shape = shape_of(context, builder, *operand)
    for needed, length in zip(reversed(sizes), reversed(shape), strict=False):
        require_room(context, builder, needed, length)


def _add_plainly(x, num_in, weights, at, num_out, y):  # type: ignore[no-untyped-def]
    for i in range(num_in):
        y[:num_out] += x[i] * weights[at + i * num_out : at + (i + 1) * num_out]


@_emitted(_add_plainly)
def add_product(_, x, num_in, weights, at, num_out, y):  # type: ignore[no-untyped-def]
    """Add the product x W to y, where W starts at weights[at].

    Args:
        x: float32[at least num_in], the inputs.
        num_in: rows of W.
        weights: float32 array, the network's weights.
        at: where W starts.
        num_out: columns of W.
        y: float32[at least num_out]; the product is added.
    """
    _require_vectors(x, weights, y)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        inputs, depth, flat, first, width, sums = arguments
        end = builder.add(first, builder.mul(depth, width))
        for operand, needed in (((x, inputs), depth), ((weights, flat), end), ((y, sums), width)):
            _require_size(context, builder, operand, needed)
        left, whole, out = (
            _matrix(context, builder, *operand)
            for operand in ((x, inputs), (weights, flat), (y, sums))
        )
        right = Matrix(builder.gep(whole.start, [first]), width, word(1))
        # Products are not fused with sums, so that results are the same on every processor.
        product = _Product(left, right, out, out, out.start, depth, False, "plain", None)
        _emit(builder, product, None, width)
        return context.get_dummy_value()

    number = types.int64
    return types.void(x, number, weights, number, number, y), generate


def _apply_plainly(x, weights, at, y, slope):  # type: ignore[no-untyped-def]
    num_in, num_out = x.shape[1], y.shape[1]
    end = at + num_in * num_out
    for row in range(len(x)):
        y[row] = weights[end : end + num_out]
        add_product(x[row], num_in, weights, at, num_out, y[row])
        rectify(y[row], num_out, slope)


@_emitted(_apply_plainly)
def apply_layer(_, x, weights, at, y, slope):  # type: ignore[no-untyped-def]
    """Set y to the leaky rectifier of x W + b; every row is as `add_product` has it.

    Args:
        x: float32[m, inputs].
        weights: float32 array, the network's weights.
        at: where W starts in them; b follows.
        y: float32[m, outputs], written.
        slope: factor for numbers below zero.
    """

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        inputs, flat, at, outputs, slope = arguments
        left = _matrix(context, builder, x, inputs)
        out = _matrix(context, builder, y, outputs)
        height, depth = shape_of(context, builder, x, inputs)
        width = shape_of(context, builder, y, outputs)[1]
        end = builder.add(at, builder.mul(builder.add(depth, word(1)), width))
        _require_size(context, builder, (weights, flat), end)
        _require_size(context, builder, (y, outputs), height, width)
        matrix = builder.gep(_matrix(context, builder, weights, flat).start, [at])
        right = Matrix(matrix, width, word(1))
        bias = Matrix(builder.gep(matrix, [builder.mul(depth, width)]), word(0), word(1))
        product = _Product(left, right, bias, out, out.start, depth, False, "rectify", slope)
        _emit(builder, product, height, width)
        return context.get_dummy_value()

    return types.void(x, weights, types.int64, y, types.float32), generate


def _product_of(finish: str, is_transposed: bool = False) -> Any:
    """The code of a product of matrices."""

    def plain(left, right, base, out, gate, slope):  # type: ignore[no-untyped-def]
        total = base + (left.T if is_transposed else left) @ right
        is_open = {"plain": True, "rectify": total > 0, "gate": gate > 0}[finish]
        out[:] = np.where(is_open, total, slope * total)

    @_emitted(plain)
    def multiply(_, left, right, base, out, gate, slope):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            operands = list(zip(signature.args, arguments, strict=True))[:5]
            matrices = [_matrix(context, builder, *operand) for operand in operands]
            height, depth = shape_of(context, builder, left, arguments[0])
            first = matrices[0]
            if is_transposed:
                height, depth = depth, height
                first = Matrix(first.start, first.column, first.row)
            width = shape_of(context, builder, right, arguments[1])[1]
            _require_size(context, builder, operands[1], depth, width)
            for operand in operands[2:]:
                _require_size(context, builder, operand, height, width)
            _, other, start, result, gates = matrices
            slope = arguments[5]
            product = _Product(first, other, start, result, gates.start, depth, True, finish, slope)
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


@_emitted(lambda rows, out: np.add(out, rows.sum(axis=0), out=out))
def _sums(_, rows, out):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        matrix = _matrix(context, builder, rows, arguments[0])
        target = _matrix(context, builder, out, arguments[1])
        height, width = shape_of(context, builder, rows, arguments[0])
        _require_size(context, builder, (out, arguments[1]), width)
        for column, lanes in spans(builder, width, (16, 8, 1)):
            _emit_sums(builder, matrix, target, height, column, lanes)
        return context.get_dummy_value()

    return types.void(rows, out), generate


_plain = _product_of("plain")
_rectified = _product_of("rectify")
_gated = _product_of("gate")
_outer = _product_of("plain", is_transposed=True)


@kernel
def multiply(left, right, base, out):  # type: ignore[no-untyped-def]
    """Set out to base + left right. The columns of all matrices lie without gaps."""
    _plain(left, right, base, out, out, 0.0)


@kernel
def add_outer(left, right, out):  # type: ignore[no-untyped-def]
    """Add the product of the transposed left matrix and the right one to out."""
    _outer(left, right, out, out, out, 0.0)


@kernel
def multiply_rectified(left, right, base, out, slope):  # type: ignore[no-untyped-def]
    """Set out to the leaky rectifier of base + left right.

    Args:
        left: float32[m, k].
        right: float32[k, n].
        base: see `multiply`.
        out: float32[m, n].
        slope: factor for numbers below zero.
    """
    _rectified(left, right, base, out, out, slope)


@kernel
def multiply_gated(left, right, base, out, gate, slope):  # type: ignore[no-untyped-def]
    """Set out to (base + left right) times the derivative of a leaky rectifier.

    Args:
        left: float32[m, k].
        right: float32[k, n].
        base: see `multiply`.
        out: float32[m, n].
        gate: float32[m, n], what the rectifier returned; it lies in memory as `out` does.
        slope: the rectifier's factor for numbers below zero.
    """
    _gated(left, right, base, out, gate, slope)


@kernel
def add_rows(rows, out):  # type: ignore[no-untyped-def]
    """Add the sum of all rows to out."""
    _sums(rows, out)
