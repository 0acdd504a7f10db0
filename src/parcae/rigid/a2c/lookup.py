"""The networks' first layers by table lookup, without PyTorch (see `kernels`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.policies.networks.layout import Weights
from parcae.rigid.a2c.kernels import CELLS_PER_WORD, Layer, encode_many, number_many, sum_many
from parcae.rigid.a2c.layout import A2cSettings
from parcae.rigid.kernels.views import draw_images
from parcae.rigid.layout import Clusters

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
#: Places in a layer's hash table, of which a half is used. More rows are rarely in use at a time.
_PLACES = 1 << 16


class EncodedImages(NamedTuple):
    """The windows of many images, without those of zeros.

    Those of image k are keys[starts[k]:starts[k + 1]].
    """

    keys: IntArray
    starts: IntArray  # [num_images + 1]

    @staticmethod
    def joined(parts: Sequence[EncodedImages], is_kept: npt.NDArray[np.bool_]) -> EncodedImages:
        """Return those images of all parts, one after another, that are kept."""
        sizes = np.concatenate([np.diff(part.starts) for part in parts])
        keys = np.concatenate([part.keys for part in parts])
        return EncodedImages(
            keys[np.repeat(is_kept, sizes)], np.append(0, np.cumsum(sizes[is_kept]))
        )

    def distinct(self) -> tuple[IntArray, IntArray]:
        """Return the distinct keys in ascending order, and which of them each key is.

        This is `np.unique` with the inverse, but does not sort all keys.
        """
        at = np.empty(len(self.keys), np.int64)
        table = np.empty(_PLACES, np.int64)
        while not number_many(self.keys, table, at):
            table = np.empty(2 * len(table), np.int64)
        used = np.flatnonzero(table >= 0)
        used = used[np.argsort(table[used])]
        rank = np.empty(len(table), np.int64)
        rank[used] = np.arange(len(used))
        return table[used], rank[at]


def encode_clusters(
    clusters: Clusters, is_over: npt.NDArray[np.bool_], settings: A2cSettings
) -> EncodedImages:
    """Return the encoded images of clusters; those with `is_over`, bool[count], are empty."""
    cells = blank_images(len(is_over), settings)
    draw_images(clusters, cells, False, False, 0, len(is_over))
    return encode_images(cells, is_over, settings)


def blank_images(count: int, settings: A2cSettings) -> npt.NDArray[np.uint8]:
    """Return images of zeros, whose rows are padded to whole words."""
    padded = -(-settings.width // CELLS_PER_WORD) * CELLS_PER_WORD
    return np.zeros((count, settings.horizon, padded), np.uint8)


def encode_images(
    cells: npt.NDArray[np.uint8], is_over: npt.NDArray[np.bool_], settings: A2cSettings
) -> EncodedImages:
    """Return the encoded form of images of zeros and ones; those with `is_over` are empty."""
    grid = settings.grid
    starts = np.zeros(len(cells) + 1, np.int64)
    keys = np.empty(len(cells) * grid.rows * grid.columns, np.int64)
    codes = np.zeros(CELLS_PER_WORD + grid.window - 1, np.int64)
    encode_many(cells, cells.view(np.uint64), is_over, grid, codes, keys, starts)
    # A copy is as small as the images are blank.
    return EncodedImages(keys[: starts[-1]].copy(), starts)


class LookupNetwork:
    """A network whose first layers are looked up.

    The weights may be changed in place; `refresh` must be called afterwards.
    """

    def __init__(self, weights: Weights, settings: A2cSettings) -> None:
        self.weights = weights
        self._window = settings.grid.window
        dense = weights["dense.weight"]
        self._layer = Layer(
            weights.get("conv.weight", np.zeros((1, 3, 3), np.float32)),
            weights.get("conv.bias", np.zeros(1, np.float32)),
            dense,
            np.empty(_PLACES, np.int64),
            np.empty((_PLACES, dense.shape[2]), np.float32),
            np.zeros(1, np.int64),
        )
        self.refresh()

    def refresh(self) -> None:
        """Drop the computed rows, because the weights have changed."""
        self._layer.keys[:] = -1
        self._layer.count[0] = 0
        blank: FloatArray = np.maximum(self._layer.bias, 0.0)
        # The dense layer's outputs for an image of zeros.
        self._blank = blank @ self._layer.dense.sum(axis=0) + self.weights["dense.bias"]

    def outputs(self, encoded: EncodedImages) -> FloatArray:
        """Return the network's outputs, float32[num_images, num_outputs]."""
        total = np.empty((len(encoded.starts) - 1, len(self._blank)), np.float32)
        sum_many(encoded.keys, encoded.starts, self._window, self._layer, total)
        total += self._blank
        if "out.weight" in self.weights:
            total = np.maximum(total, 0.0) @ self.weights["out.weight"] + self.weights["out.bias"]
        return total
