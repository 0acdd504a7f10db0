"""Compiled convolution and dense layer by table lookup.

In images whose cells are 0 or 1, a window can show few different patterns, and at one place of the
image even fewer. What a window adds to the dense layer's sums depends only on its pattern and its
place. It is computed once for each pair of place and pattern that occurs, and then looked up. The
result is exact, and many times as fast as convolving each image.
"""

from __future__ import annotations

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel, mix

#: Number of patterns of the largest window, which has 4x4 cells.
_PATTERNS = 65536
#: Cells of an image that are tested for zeros at once, a multiple of every stride.
CELLS_PER_WORD = 8
FULL = 1
DONE = 0


@inlined
def _find(index, place, pattern):  # type: ignore[no-untyped-def]
    """Return the number of a pair in the index, or -1 if the pair is new and the index is full.

    A new pair gets the next number.
    """
    # A hash table with linear probing; its size is a power of 2, so `last` is a bit mask.
    last = index.keys.shape[0] - 1
    key = np.int64(place * _PATTERNS + pattern)
    at = np.int64(mix(np.uint64(key))) & last
    while index.keys[at] != key:
        if index.keys[at] == -1:
            number = index.count[0]
            if number == index.place.shape[0]:
                return np.int64(-1)
            index.keys[at] = key
            index.numbers[at] = number
            index.place[number] = place
            index.pattern[number] = pattern
            index.count[0] += 1
            return number
        at = (at + 1) & last
    return index.numbers[at]


@kernel
def renumber(index, grown):  # type: ignore[no-untyped-def]
    """Copy an index into a larger one; all pairs keep their numbers."""
    for number in range(index.count[0]):
        _find(grown, index.place[number], index.pattern[number])


@inlined
def _encode(cells, words, grid, index, codes, numbers, at):  # type: ignore[no-untyped-def]
    """Write the numbers of the image's windows to numbers[at:]; windows of zeros are left out.

    Returns the end of what was written, or -1 if the index is full.
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
                    number = _find(index, row * grid.columns + left // grid.stride, pattern)
                    if number < 0:
                        return np.int64(-1)
                    numbers[at] = number
                    at += 1
    return np.int64(at)


@inlined
def _occupied(words, top, num_rows, word):  # type: ignore[no-untyped-def]
    occupied = np.uint64(0)
    for row in range(top, top + num_rows):
        occupied |= words[row, word]
    return occupied


@kernel
def encode_many(  # type: ignore[no-untyped-def]
    cells, words, is_over, grid, index, codes, numbers, starts
):
    """Write the numbers of the windows of many images. Returns DONE, or FULL if the index is full;
    then the call must be repeated with a larger index.

    The numbers of image k are numbers[starts[k]:starts[k + 1]]; images of clusters that are over
    have none.
    """
    starts[0] = 0
    for row in range(is_over.shape[0]):
        end = starts[row]
        if is_over[row] == 0:
            end = _encode(cells[row], words[row], grid, index, codes, numbers, starts[row])
        if end < 0:
            return FULL
        starts[row + 1] = end
    return DONE


@inlined
def _convolved(layer, grid, pattern, top, left, f):  # type: ignore[no-untyped-def]
    """Return the convolution at (top, left) of the window with filter f, before the rectifier."""
    total = layer.bias[f]
    for j in range(3):
        for i in range(3):
            if (pattern >> (top + i + grid.window * (left + j))) & 1:
                total += layer.conv[f, i, j]
    return total


@inlined
def _featured(layer, grid, pattern):  # type: ignore[no-untyped-def]
    """Fill the pattern's features, which are counted beyond those of a window of zeros.

    A feature is the rectified convolution or, with pooling, the largest of the window; without a
    convolution it is the cell itself.
    """
    for f in range(layer.features.shape[1]):
        if grid.window == 1:
            layer.features[pattern, f] = 1.0
        else:
            best = np.float32(0.0)
            for left in range(grid.window - 2):
                for top in range(grid.window - 2):
                    best = max(best, _convolved(layer, grid, pattern, top, left, f))
            layer.features[pattern, f] = best - max(np.float32(0.0), layer.bias[f])
    layer.features_now[pattern] = layer.now[0]


@inlined
def _tabulated(layer, grid, index, number):  # type: ignore[no-untyped-def]
    """Fill the pair's row of the table: features of the pattern x dense layer at the place."""
    pattern = index.pattern[number]
    place = index.place[number]
    if layer.features_now[pattern] != layer.now[0]:
        _featured(layer, grid, pattern)
    row = layer.table[number]
    for unit in range(row.shape[0]):
        row[unit] = 0.0
    for f in range(layer.features.shape[1]):
        feature = layer.features[pattern, f]
        dense = layer.dense[place, f]
        if feature != 0.0:
            for unit in range(row.shape[0]):
                row[unit] += feature * dense[unit]
    layer.table_now[number] = layer.now[0]


@kernel
def sum_many(numbers, starts, grid, index, layer, sums):  # type: ignore[no-untyped-def]
    """Write the dense layer's sums of many images, beyond those of an image of zeros."""
    for row in range(sums.shape[0]):
        total = sums[row]
        for unit in range(total.shape[0]):
            total[unit] = 0.0
        for at in range(starts[row], starts[row + 1]):
            number = numbers[at]
            if layer.table_now[number] != layer.now[0]:
                _tabulated(layer, grid, index, number)
            for unit in range(total.shape[0]):
                total[unit] += layer.table[number, unit]
