"""Convolution and dense layer by looking up: a window of zeros and ones can show few things, and at one place even fewer.

What a place's window adds to the dense layer's sums depends on the pattern that it shows alone; it is computed once for each
pair of place and pattern that is met, and then added. That is exact, and many times as fast as convolving each image.
"""

from __future__ import annotations

import numpy as np

from parcae.kernels import inlined, kernel, mix

_PATTERNS = 65536
FULL = 1
DONE = 0


@inlined
def _find(index, place, pattern):  # type: ignore[no-untyped-def]
    """Number of the pair, a fresh one if it is new; -1 if there is no room."""
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
    """Copy an index into one with more room: the same numbers."""
    for number in range(index.count[0]):
        _find(grown, index.place[number], index.pattern[number])


@inlined
def _look(image, grid, index, codes, numbers, at):  # type: ignore[no-untyped-def]
    """Write the numbers of the image's windows to numbers[at:]. Returns their end, or -1 if the index is full."""
    for row in range(grid.rows):
        for column in range(image.shape[1]):
            code = np.int64(0)
            for i in range(grid.window):
                code |= np.int64(image[row * grid.stride + i, column] != 0.0) << i
            codes[column] = code
        for column in range(grid.columns):
            pattern = np.int64(0)
            left = column * grid.stride
            for j in range(grid.window):
                pattern |= codes[left + j] << (grid.window * j)
            if pattern != 0:
                number = _find(index, row * grid.columns + column, pattern)
                if number < 0:
                    return np.int64(-1)
                numbers[at] = number
                at += 1
    return np.int64(at)


@kernel
def look_many(images, is_over, grid, index, codes, numbers, starts):  # type: ignore[no-untyped-def]
    """Numbers of what the windows of images float32[count, horizon, width] show.

    Those of image k are numbers[starts[k]:starts[k + 1]]; images of clusters that are over (is_over int64[count]) have none.
    codes: int64[width], room. Returns FULL if the index is full, in which case it is called again with more room.
    """
    starts[0] = 0
    for row in range(images.shape[0]):
        end = starts[row]
        if is_over[row] == 0:
            end = _look(images[row], grid, index, codes, numbers, starts[row])
        if end < 0:
            return FULL
        starts[row + 1] = end
    return DONE


@inlined
def _convolved(layer, grid, pattern, top, left, f):  # type: ignore[no-untyped-def]
    """The convolution at (top, left) of the window, before the rectifier."""
    total = layer.bias[f]
    for j in range(3):
        for i in range(3):
            if (pattern >> (top + i + grid.window * (left + j))) & 1:
                total += layer.conv[f, i, j]
    return total


@inlined
def _featured(layer, grid, pattern):  # type: ignore[no-untyped-def]
    """Fill the pattern's features: the rectified convolution, its largest where there is pooling, the cell without either."""
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
    """Fill the pair's row: features of the pattern x dense layer at the place."""
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
    """sums float32[count, num_units]: what the windows of each image add, beyond those of an image of zeros."""
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


@kernel
def gather_gradient(numbers, starts, grid, index, layer, sums, gradient):  # type: ignore[no-untyped-def]
    """Add the gradient of the layer's weights, given that of its sums float32[count, num_units]."""
    count = 0
    for row in range(sums.shape[0]):
        for at in range(starts[row], starts[row + 1]):
            number = numbers[at]
            if gradient.is_touched[number] == 0:
                gradient.is_touched[number] = 1
                gradient.touched[count] = number
                count += 1
            for unit in range(sums.shape[1]):
                gradient.table[number, unit] += sums[row, unit]
    num_patterns = 0
    for at in range(count):
        num_patterns = _to_dense(index, layer, gradient, gradient.touched[at], num_patterns)
    for at in range(num_patterns):
        _to_filters(layer, grid, gradient, gradient.patterns[at])


@inlined
def _to_dense(index, layer, gradient, number, num_patterns):  # type: ignore[no-untyped-def]
    """From a row of the table to the dense layer and the pattern's features."""
    pattern = index.pattern[number]
    place = index.place[number]
    row = gradient.table[number]
    if gradient.is_pattern_touched[pattern] == 0:
        gradient.is_pattern_touched[pattern] = 1
        gradient.patterns[num_patterns] = pattern
        num_patterns += 1
    for f in range(layer.features.shape[1]):
        feature = layer.features[pattern, f]
        total = np.float32(0.0)
        for unit in range(row.shape[0]):
            gradient.dense[place, f, unit] += feature * row[unit]
            total += layer.dense[place, f, unit] * row[unit]
        gradient.features[pattern, f] += total
    for unit in range(row.shape[0]):
        row[unit] = 0.0
    gradient.is_touched[number] = 0
    return num_patterns


@inlined
def _to_filters(layer, grid, gradient, pattern):  # type: ignore[no-untyped-def]
    """From a pattern's features to the convolution; through pooling, to where the largest is."""
    gradient.is_pattern_touched[pattern] = 0
    for f in range(layer.features.shape[1]):
        slope = gradient.features[pattern, f]
        gradient.features[pattern, f] = 0.0
        if grid.window > 1:
            best = np.float32(0.0)
            best_top = -1
            best_left = -1
            for left in range(grid.window - 2):
                for top in range(grid.window - 2):
                    value = _convolved(layer, grid, pattern, top, left, f)
                    if value > best:
                        best = value
                        best_top = top
                        best_left = left
            if best_top >= 0:
                gradient.bias[f] += slope
                for j in range(3):
                    for i in range(3):
                        if (pattern >> (best_top + i + grid.window * (best_left + j))) & 1:
                            gradient.conv[f, i, j] += slope
            if layer.bias[f] > 0.0:
                gradient.bias[f] -= slope
