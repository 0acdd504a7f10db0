"""The networks' first layers by table lookup, without PyTorch (see `kernels.lookup`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.rigid.a2c.kernels import (
    CELLS_PER_WORD,
    FULL,
    encode_many,
    renumber,
    sum_many,
)
from parcae.rigid.a2c.layout import A2cSettings, Architecture, Index, Layer
from parcae.rigid.kernels.views import draw_images
from parcae.rigid.layout import Clusters

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
#: Initial number of pairs (place, pattern) that an index holds; it doubles when the index is full.
_CAPACITY = 1 << 14


class EncodedImages(NamedTuple):
    """The windows of many images as numbers.

    Those of image k are numbers[starts[k]:starts[k + 1]].
    """

    numbers: npt.NDArray[np.int32]
    starts: IntArray  # [num_images + 1]

    @staticmethod
    def joined(parts: list[EncodedImages]) -> EncodedImages:
        """Return the images of all parts, one after another."""
        sizes = np.concatenate([np.diff(part.starts) for part in parts])
        return EncodedImages(
            np.concatenate([part.numbers for part in parts]), np.append(0, np.cumsum(sizes))
        )

    def only(self, is_kept: npt.NDArray[np.bool_]) -> EncodedImages:
        """Return the images that are kept; `is_kept` is bool[num_images]."""
        sizes = np.diff(self.starts)
        return EncodedImages(
            self.numbers[np.repeat(is_kept, sizes)], np.append(0, np.cumsum(sizes[is_kept]))
        )


class PatternEncoder:
    """Encodes images of one shape; layers that share an encoder share its numbering of patterns."""

    def __init__(self, settings: A2cSettings) -> None:
        self.settings = settings
        self.grid = settings.grid
        self.index = _index(_CAPACITY)
        # Padded with zeros to whole words.
        padded = -(-settings.width // CELLS_PER_WORD) * CELLS_PER_WORD
        self._cells = np.zeros((0, settings.horizon, padded), np.uint8)
        self._codes = np.zeros(CELLS_PER_WORD + self.grid.window - 1, np.int64)
        self._numbers = np.zeros(0, np.int32)

    def encode(self, clusters: Clusters, is_over: npt.NDArray[np.bool_]) -> EncodedImages:
        """Return the encoded images of clusters; those with `is_over`, bool[count], are empty."""
        count = len(clusters.sequence_rows)
        self._make_room(count)
        draw_images(clusters, self._cells, False, False, 0, count)
        return self._encoded(is_over.astype(np.int64))

    def encode_images(self, images: FloatArray, is_over: IntArray) -> EncodedImages:
        """Return the encoded form of images of zeros and ones, float32[count, horizon, width].

        `is_over` is int64[count]; images with 1 are encoded as empty.
        """
        self._make_room(len(images))
        self._cells[: len(images), :, : self.settings.width] = images != 0
        return self._encoded(is_over)

    def _make_room(self, count: int) -> None:
        """Have room for `count` images and the numbers of their windows."""
        if len(self._cells) < count:
            self._cells = np.zeros((count, *self._cells.shape[1:]), np.uint8)
            self._numbers = np.zeros(count * self.grid.rows * self.grid.columns, np.int32)

    def _encoded(self, is_over: IntArray) -> EncodedImages:
        """Encode the first images of the buffer, as many as `is_over` has entries."""
        starts = np.zeros(len(is_over) + 1, np.int64)
        words = self._cells.view(np.uint64)
        while (
            encode_many(
                self._cells, words, is_over, self.grid, self.index, self._codes, self._numbers,
                starts,
            ) == FULL
        ):  # fmt: skip
            self.index = _grown(self.index)
        # A copy, because the next call overwrites the buffer.
        return EncodedImages(self._numbers[: starts[-1]].copy(), starts)


def _index(capacity: int) -> Index:
    """Return an empty index with room for `capacity` pairs, a power of 2."""
    return Index(
        np.full(2 * capacity, -1, np.int64),
        np.zeros(2 * capacity, np.int64),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int64),
        np.zeros(1, np.int64),
    )


def _grown(index: Index) -> Index:
    """Return the same index with twice the room."""
    grown = _index(2 * len(index.place))
    renumber(index, grown)
    return grown


class FirstLayer:
    """The convolution and dense layer of one network.

    The weights may be changed in place; `refresh` must be called afterwards.
    """

    def __init__(self, weights: Mapping[str, npt.NDArray[Any]], encoder: PatternEncoder) -> None:
        self.weights = weights
        self.encoder = encoder
        is_plain = encoder.settings.architecture is Architecture.FC
        self._conv = np.zeros((1, 3, 3), np.float32) if is_plain else weights["conv.weight"]
        self._bias = np.zeros(1, np.float32) if is_plain else weights["conv.bias"]
        num_patterns = 1 << self.encoder.grid.window**2
        units = weights["dense.weight"].shape[2]
        self._features = np.zeros((num_patterns, len(self._bias)), np.float32)
        self._features_now = np.zeros(num_patterns, np.int64)
        self._table = np.zeros((0, units), np.float32)
        self._table_now = np.zeros(0, np.int64)
        self._now = np.zeros(1, np.int64)
        self.refresh()

    def refresh(self) -> None:
        """Drop the computed tables, because the weights have changed."""
        self._now += 1
        blank: FloatArray = np.maximum(self._bias, 0.0)
        self.blank: FloatArray = (
            blank @ self.weights["dense.weight"].sum(axis=0) + self.weights["dense.bias"]
        )

    def _layer(self) -> Layer:
        """Return the layer in the form that the kernels take, with tables as large as the index."""
        capacity = len(self.encoder.index.place)
        if len(self._table) < capacity:
            self._table = np.zeros((capacity, self._table.shape[1]), np.float32)
            self._table_now = np.zeros(capacity, np.int64)
        dense = self.weights["dense.weight"]
        return Layer(
            self._conv, self._bias, dense, self._features, self._features_now, self._table,
            self._table_now, self._now
        )  # fmt: skip

    def sums(self, encoded: EncodedImages) -> FloatArray:
        """Return the dense layer's outputs beyond `blank`, float32[num_images, num_units].

        `blank` are the outputs for an image of zeros.
        """
        sums = np.zeros((len(encoded.starts) - 1, len(self.blank)), np.float32)
        sum_many(
            encoded.numbers,
            encoded.starts,
            self.encoder.grid,
            self.encoder.index,
            self._layer(),
            sums,
        )
        return sums


def outputs(
    sums: FloatArray, blank: FloatArray, weights: Mapping[str, npt.NDArray[Any]]
) -> FloatArray:
    """Return a network's outputs, float32[num_images, num_outputs]."""
    total = sums + blank
    if "out.weight" in weights:
        total = np.maximum(total, 0.0) @ weights["out.weight"] + weights["out.bias"]
    return np.asarray(total, np.float32)
