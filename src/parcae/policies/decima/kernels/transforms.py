"""Compiled transforms: the small networks of three layers that make up Decima's network."""

from __future__ import annotations

import numpy as np

from parcae.kernels import inlined, kernel
from parcae.policies.decima.kernels.rows import copy_row
from parcae.policies.decima.layout import HIDDEN_1, HIDDEN_2, SLOPE
from parcae.products import add_product, apply_layer
from parcae.vectors import copy_numbers, rectify

_H1 = HIDDEN_1
_H2 = HIDDEN_2
_SLOPE = np.float32(SLOPE)


@inlined
def hidden(weights, at, layer_1, layer_2, x, num_in):  # type: ignore[no-untyped-def]
    """Compute the two hidden layers of a transform.

    Args:
        weights: float32 array, the network's weights.
        at: where the transform's weights start.
        layer_1: float32[HIDDEN_1], written.
        layer_2: float32[HIDDEN_2], written.
        x: float32[at least num_in], the inputs.
        num_in: number of inputs.

    Returns:
        Where the weights of the transform's last layer start.
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
    """Write transform(x), EMBEDDING numbers a row, to y; the last layer is rectified too.

    Args:
        net: the Network.
        work: the Workspace; `layers_1` and `layers_2` are written.
        which: the Transform.
        x: float32[m, inputs], at most as many rows as the workspace's layers have.
        y: float32[m, EMBEDDING], written.
    """
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
