"""Compiled convolution and dense layer by table lookup.

In images whose cells are 0 or 1, a window can show few different patterns, and at one place of the
image even fewer. What a window adds to the dense layer's sums depends only on its pattern and its
place. It is computed once for each pair of place and pattern that occurs, and then looked up. The
result is exact, and many times as fast as convolving each image.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel, mix

#: Number of patterns of the largest window, which has 4x4 cells. The key of a window is its place
#: (row-major in the grid) x this number + its pattern, whose bit row + window x column is a cell.
PATTERNS = 65536
#: Cells of an image that are tested for zeros at once, a multiple of every stride.
CELLS_PER_WORD = 8


class Layer(NamedTuple):
    """The convolution and the dense layer of one network, with a table of computed rows.

    The table is a hash table with linear probing: `rows[k]` is what the window with key `keys[k]`
    adds to the sums, and `keys[k]` is -1 where there is no row.
    """

    conv: Any  # float32[num_filters, 3, 3]
    bias: Any  # float32[num_filters]
    dense: Any  # float32[num_places, num_filters, num_units]
    keys: Any  # int64[a power of 2]
    rows: Any  # float32[as many, num_units]
    count: Any  # int64[1], rows in the table


@inlined
def _find(keys, key):  # type: ignore[no-untyped-def]
    """Return where a key is in a hash table, or the empty place where it belongs."""
    # The size is a power of 2, so `last` is a bit mask.
    last = keys.shape[0] - 1
    at = np.int64(mix(np.uint64(key))) & last
    while keys[at] != key and keys[at] != -1:
        at = (at + 1) & last
    return at


@inlined
def _encode(cells, words, grid, codes, keys, at):  # type: ignore[no-untyped-def]
    """Write the keys of the image's windows to keys[at:]; windows of zeros are left out.

    Returns the end of what was written.
    """
    # The windows' left columns end before this one.
    last = (grid.columns - 1) * grid.stride + 1
    for row in range(grid.rows):
        top = row * grid.stride
        # Most of an image is blank, so eight columns at a time are tested and passed over.
        ahead = _occupied(words, top, grid.window, 0)
        for word in range(words.shape[1]):
            here = ahead
            ahead = np.uint64(0)
            if word + 1 < words.shape[1]:
                ahead = _occupied(words, top, grid.window, word + 1)
            if here == 0 and ahead == 0:
                continue
            first = word * CELLS_PER_WORD
            end = min(first + CELLS_PER_WORD, last)
            # Neighbouring windows share columns, so each column is packed into bits once.
            for column in range(first, end + grid.window - 1):
                code = np.int64(0)
                for i in range(grid.window):
                    code |= np.int64(cells[top + i, column]) << i
                codes[column - first] = code
            for left in range(first, end, grid.stride):
                pattern = np.int64(0)
                for j in range(grid.window):
                    pattern |= codes[left - first + j] << (grid.window * j)
                if pattern != 0:
                    keys[at] = (row * grid.columns + left // grid.stride) * PATTERNS + pattern
                    at += 1
    return np.int64(at)


@inlined
def _occupied(words, top, num_rows, word):  # type: ignore[no-untyped-def]
    occupied = np.uint64(0)
    for row in range(top, top + num_rows):
        occupied |= words[row, word]
    return occupied


@kernel
def encode_many(cells, words, is_over, grid, codes, keys, starts):  # type: ignore[no-untyped-def]
    """Write the keys of the windows of many images.

    Those of image k are keys[starts[k]:starts[k + 1]]; images of clusters that are over have none.
    """
    starts[0] = 0
    for row in range(is_over.shape[0]):
        starts[row + 1] = starts[row]
        if not is_over[row]:
            starts[row + 1] = _encode(cells[row], words[row], grid, codes, keys, starts[row])


@kernel
def number_many(keys, table, at):  # type: ignore[no-untyped-def]
    """Put all keys into a hash table, and write the place of each key to `at`. Returns whether the
    table has room, which is whether at most a half of it is used.
    """
    table[:] = -1
    left = table.shape[0] // 2
    for k in range(keys.shape[0]):
        place = _find(table, keys[k])
        if table[place] == -1:
            if left == 0:
                return False
            left -= 1
            table[place] = keys[k]
        at[k] = place
    return True


@inlined
def _feature(layer, window, pattern, f):  # type: ignore[no-untyped-def]
    """Return what filter f gives for a pattern, beyond what it gives for a window of zeros.

    This is the rectified convolution or, with pooling, the largest of the window; without a
    convolution it is the cell itself.
    """
    if window == 1:
        return np.float32(1.0)
    best = np.float32(0.0)
    for left in range(window - 2):
        for top in range(window - 2):
            total = layer.bias[f]
            for j in range(3):
                for i in range(3):
                    if (pattern >> (top + i + window * (left + j))) & 1:
                        total += layer.conv[f, i, j]
            best = max(best, total)
    return best - max(np.float32(0.0), layer.bias[f])


@inlined
def _looked_up(layer, window, key):  # type: ignore[no-untyped-def]
    """Return the place in the table of a key's row, which is computed if it is not there."""
    at = _find(layer.keys, key)
    if layer.keys[at] == key:
        return at
    # In a full table, the search for a row would take long: begin anew.
    if 2 * layer.count[0] >= layer.keys.shape[0]:
        layer.keys[:] = -1
        layer.count[0] = 0
        at = _find(layer.keys, key)
    layer.keys[at] = key
    layer.count[0] += 1
    row = layer.rows[at]
    row[:] = 0.0
    for f in range(layer.dense.shape[1]):
        feature = _feature(layer, window, key % PATTERNS, f)
        if feature != 0.0:
            for unit in range(row.shape[0]):
                row[unit] += feature * layer.dense[key // PATTERNS, f, unit]
    return at


@kernel
def sum_many(keys, starts, window, layer, sums):  # type: ignore[no-untyped-def]
    """Write the dense layer's sums of many images, beyond those of an image of zeros."""
    sums[:] = 0.0
    for image in range(sums.shape[0]):
        for at in range(starts[image], starts[image + 1]):
            row = layer.rows[_looked_up(layer, window, keys[at])]
            for unit in range(row.shape[0]):
                sums[image, unit] += row[unit]
