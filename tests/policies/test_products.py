"""Products, sums and copies that are written as vector instructions, against plain NumPy."""

import numba
import numpy as np
import pytest

from parcae.base.compiled import products
from parcae.base.compiled.kernels import kernel
from parcae.decima.graph.kernels import features as rows
from parcae.decima.graph.layout import EMBEDDING

SLOPE = np.float32(0.2)
#: Rows, inputs and outputs: tiles of every height and width, and what is left of them.
SIZES = [(1, 1, 1), (3, 5, 8), (15, 8, 16), (8, 16, 8), (21, 13, 16), (9, 24, 40), (40, 2, 7)]


@kernel
def _apply_layer(x, weights, at, y, slope):
    products.apply_layer(x, weights, at, y, slope)


@kernel
def _copy_numbers(source, at, count, target):
    products.copy_numbers(source, at, count, target)


@kernel
def _rectify(y, size, slope):
    products.rectify(y, size, slope)


@kernel
def _copy_row(source, row, target, at):
    rows.copy_row(source, row, target, at)


@kernel
def _add_row(source, row, target, at):
    rows.add_row(source, row, target, at)


@kernel
def _gate_row(source, row, target, at):
    rows.gate_row(source, row, target, at)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def agrees(compiled, plain, *arguments) -> bool:
    """Whether compiled code changes the same arrays as plain NumPy, by the same numbers."""
    expected = [np.copy(a) if isinstance(a, np.ndarray) else a for a in arguments]
    plain(*expected)
    compiled(*arguments)
    pairs = zip(arguments, expected, strict=True)
    return all(np.allclose(found, wanted, rtol=1e-5, atol=1e-5) for found, wanted in pairs)


def gated(total, gate, slope):
    return np.where(gate > 0, total, slope * total)


def multiply(left, right, base, out):
    out[:] = base + left @ right


def multiply_rectified(left, right, base, out, slope):
    total = base + left @ right
    out[:] = gated(total, total, slope)


def multiply_gated(left, right, base, out, gate, slope):
    out[:] = gated(base + left @ right, gate, slope)


def add_outer(left, right, out):
    out += left.T @ right


def add_rows(rows, out):
    out += rows.sum(axis=0)


def apply_layer(x, weights, at, y, slope):
    num_in, num_out = x.shape[1], y.shape[1]
    matrix, bias = np.split(weights[at : at + (num_in + 1) * num_out], [num_in * num_out])
    multiply_rectified(x, matrix.reshape(num_in, num_out), bias, y, slope)


def copy_numbers(source, at, count, target):
    target[:count] = source[at : at + count]


def rectify(y, size, slope):
    y[:size] = gated(y[:size], y[:size], slope)


@pytest.mark.parametrize(("height", "depth", "width"), SIZES)
def test_products_of_matrices(height, depth, width):
    left = random(height, depth)
    right = random(depth, width)
    base = random(width)
    out = random(height, width) + 1
    assert agrees(products.multiply, multiply, left, right, base, out.copy())
    assert agrees(products.multiply, multiply, left, right, random(height, width), out.copy())
    assert agrees(
        products.multiply_rectified, multiply_rectified, left, right, base, out.copy(), SLOPE
    )
    assert agrees(
        products.multiply_gated,
        multiply_gated,
        left,
        right,
        base,
        out.copy(),
        random(height, width),
        SLOPE,
    )
    assert agrees(products.add_outer, add_outer, random(depth, height), right, out.copy())
    assert agrees(products.add_rows, add_rows, left, random(depth))


@pytest.mark.parametrize(("height", "depth", "width"), SIZES)
def test_operands_may_be_columns_of_wider_arrays(height, depth, width):
    left = random(height, depth + 5)[:, 3 : 3 + depth]
    right = random(depth, width)
    wide = random(height, width + 2)
    untouched = wide[:, width:].copy()
    assert agrees(products.multiply, multiply, left, right, random(width), wide[:, :width])
    np.testing.assert_array_equal(wide[:, width:], untouched)
    assert agrees(
        products.add_outer,
        add_outer,
        random(height, depth + 5)[:, 2 : 2 + depth],
        wide[:, :width],
        right,
    )
    assert agrees(products.add_rows, add_rows, left, random(depth))


@pytest.mark.parametrize(("height", "depth", "width"), SIZES)
def test_a_layer_of_flat_weights(height, depth, width):
    weights = random(4 + (depth + 1) * width + 3)
    assert agrees(
        _apply_layer, apply_layer, random(height, depth), weights, 4, random(height, width), SLOPE
    )


@pytest.mark.parametrize("size", [0, 1, 7, 8, 16, 31, 50])
def test_vectors(size):
    assert agrees(_copy_numbers, copy_numbers, random(60), 5, size, random(size + 2))
    assert agrees(_rectify, rectify, random(size + 3), size, SLOPE)


def test_rows_of_embeddings():
    source = random(6, EMBEDDING)
    wide = random(5, EMBEDDING + 4)
    assert agrees(_copy_row, rows.copy_row, source, 4, wide[:, 3:], 2)
    assert agrees(_add_row, rows.add_row, wide[:, 4:], 1, source, 3)
    assert agrees(_gate_row, rows.gate_row, random(7, EMBEDDING), 3, random(7, EMBEDDING), 6)


@pytest.mark.skipif(not numba.config.BOUNDSCHECK, reason="needs NUMBA_BOUNDSCHECK=1")
def test_bounds_are_checked():
    few = random(3, EMBEDDING)
    outside = [
        lambda: _add_row(few, 3, few, 0),
        lambda: _copy_row(few, 0, few, -1),
        lambda: _add_row(few[:, 1:], 0, few, 0),
        lambda: _gate_row(few, 3, random(4, EMBEDDING), 3),
        lambda: _rectify(random(5), 6, SLOPE),
        lambda: _copy_numbers(random(5), 3, 3, random(5)),
        lambda: _copy_numbers(random(9), 3, 3, random(2)),
        lambda: products.multiply(few, few, random(EMBEDDING), few),
        lambda: products.multiply(few, random(EMBEDDING, 2), random(2), random(2, 2)),
        lambda: products.add_outer(few, random(2, 4), random(EMBEDDING, 4)),
        lambda: products.add_rows(few, random(EMBEDDING - 1)),
        lambda: _apply_layer(few, random(8 + 9 * 4), 9, random(3, 4), SLOPE),
    ]
    for wrong in outside:
        with pytest.raises(IndexError, match="out of bounds"):
            wrong()


def test_code_is_refused_for_other_arrays():
    doubles = np.zeros((3, EMBEDDING))
    with pytest.raises(Exception, match="a matrix of float32 is meant"):
        _copy_row(doubles, 0, doubles, 1)
    with pytest.raises(Exception, match="float32 numbers without gaps are meant"):
        _rectify(random(8)[::2], 2, SLOPE)
