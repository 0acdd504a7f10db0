"""What a network's first layers make of clusters, without PyTorch and without convolving (see `kernels.lookup`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.packing.kernels.images import draw_images
from parcae.packing.layout import Asked, Packing
from parcae.policies.a2c.kernels.lookup import FULL, gather_gradient, look_many, renumber, sum_many
from parcae.policies.a2c.layout import A2cSettings, Architecture, Gradient, Index, Layer

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
#: Pairs of place and pattern that there is room for at first; the room doubles when it is used up.
_CAPACITY = 1 << 14


class Seen(NamedTuple):
    """What the windows of many images show: those of image k are numbers[starts[k]:starts[k + 1]]."""

    numbers: npt.NDArray[np.int32]
    starts: IntArray  # [num_images + 1]

    @staticmethod
    def joined(parts: list[Seen]) -> Seen:
        """All images of all parts, one after another."""
        sizes = np.concatenate([np.diff(part.starts) for part in parts])
        return Seen(
            np.concatenate([part.numbers for part in parts]), np.append(0, np.cumsum(sizes))
        )

    def only(self, is_kept: npt.NDArray[np.bool_]) -> Seen:
        """Without some images that show nothing, those of clusters that are over."""
        return Seen(self.numbers, np.append(self.starts[:-1][is_kept], self.starts[-1]))


class Eye:
    """Looks at clusters of one shape; layers that share an eye share its numbering."""

    def __init__(self, settings: A2cSettings) -> None:
        self.settings = settings
        self.grid = settings.grid
        self.index = _index(_CAPACITY)
        self._images = np.zeros((0, settings.horizon, settings.width), np.float32)
        self._codes = np.zeros(settings.width, np.int64)
        self._numbers = np.zeros(0, np.int32)

    def look(self, states: Packing, asked: Asked, sequence: IntArray) -> Seen:
        """What the clusters' images show; nothing of those that are over."""
        count = len(sequence)
        if len(self._images) < count:
            self._images = np.zeros((count, self.settings.horizon, self.settings.width), np.float32)
        draw_images(states, asked, sequence, self._images, False, False, 0, count)
        return self.look_at(
            self._images[:count], np.ascontiguousarray(states.clock["is_over"][:, 0])
        )

    def look_at(self, images: FloatArray, is_over: IntArray) -> Seen:
        """What images of zeros and ones, float32[count, horizon, width], show."""
        starts = np.zeros(len(images) + 1, np.int64)
        if len(self._numbers) < len(images) * self.grid.rows * self.grid.columns:
            self._numbers = np.zeros(len(images) * self.grid.rows * self.grid.columns, np.int32)
        while (
            look_many(images, is_over, self.grid, self.index, self._codes, self._numbers, starts)
            == FULL
        ):
            self.index = _grown(self.index)
        return Seen(self._numbers[: starts[-1]].copy(), starts)


def _index(capacity: int) -> Index:
    return Index(
        np.full(2 * capacity, -1, np.int64),
        np.zeros(2 * capacity, np.int64),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int64),
        np.zeros(1, np.int64),
    )


def _grown(index: Index) -> Index:
    """Twice the room, the same numbers."""
    grown = _index(2 * len(index.place))
    renumber(index, grown)
    return grown


class FirstLayer:
    """Convolution and dense layer of one network; a change of its weights in place is told by `renew`.

    Args:
        weights: as `A2cSettings.shapes` names them. eye: what looks.
    """

    def __init__(self, weights: Mapping[str, npt.NDArray[Any]], eye: Eye) -> None:
        self.weights = weights
        self.eye = eye
        is_plain = eye.settings.architecture is Architecture.FC
        self._conv = np.zeros((1, 3, 3), np.float32) if is_plain else weights["conv.weight"]
        self._bias = np.zeros(1, np.float32) if is_plain else weights["conv.bias"]
        num_patterns = 1 << self.eye.grid.window**2
        units = weights["dense.weight"].shape[2]
        self._features = np.zeros((num_patterns, len(self._bias)), np.float32)
        self._features_now = np.zeros(num_patterns, np.int64)
        self._table = np.zeros((0, units), np.float32)
        self._table_now = np.zeros(0, np.int64)
        self._now = np.zeros(1, np.int64)
        self.renew()

    def renew(self) -> None:
        """The weights have changed."""
        self._now += 1
        blank: FloatArray = np.maximum(self._bias, 0.0)
        self.blank: FloatArray = (
            blank @ self.weights["dense.weight"].sum(axis=0) + self.weights["dense.bias"]
        )

    def _layer(self) -> Layer:
        capacity = len(self.eye.index.place)
        if len(self._table) < capacity:
            self._table = np.zeros((capacity, self._table.shape[1]), np.float32)
            self._table_now = np.zeros(capacity, np.int64)
        dense = self.weights["dense.weight"]
        return Layer(
            self._conv, self._bias, dense, self._features, self._features_now, self._table, self._table_now, self._now
        )  # fmt: skip

    def sums(self, seen: Seen) -> FloatArray:
        """float32[num_images, num_units]: the dense layer's outputs beyond `blank`, those of an image of zeros."""
        sums = np.zeros((len(seen.starts) - 1, len(self.blank)), np.float32)
        sum_many(seen.numbers, seen.starts, self.eye.grid, self.eye.index, self._layer(), sums)
        return sums

    def gradient(self, seen: Seen, of_sums: FloatArray, room: GradientRoom) -> None:
        """Add the gradient of the weights, given that of what `sums` gave for `seen`."""
        gather_gradient(
            seen.numbers,
            seen.starts,
            self.eye.grid,
            self.eye.index,
            self._layer(),
            of_sums,
            room.fitting(self._table, self._features),
        )


class GradientRoom:
    """Where a first layer's gradient is gathered: into `conv`, `bias` and `dense`."""

    def __init__(self, conv: FloatArray | None, bias: FloatArray | None, dense: FloatArray) -> None:
        self._conv = np.zeros((1, 3, 3), np.float32) if conv is None else conv
        self._bias = np.zeros(1, np.float32) if bias is None else bias
        self._dense = dense
        self._gradient: Gradient | None = None

    def fitting(self, table: FloatArray, features: FloatArray) -> Gradient:
        """What the kernels take, with room for as many pairs as the table has."""
        if self._gradient is None or len(self._gradient.table) < len(table):
            marks = np.zeros(len(features), np.int64)
            self._gradient = Gradient(
                self._conv, self._bias, self._dense, np.zeros_like(table), np.zeros(len(table), np.int64),
                np.zeros(len(table), np.int8), np.zeros_like(features), marks, np.zeros(len(features), np.int8),
            )  # fmt: skip
        return self._gradient


def outputs(
    sums: FloatArray, blank: FloatArray, weights: Mapping[str, npt.NDArray[Any]]
) -> FloatArray:
    """float32[num_images, num_outputs] of a network, given its first layer's sums."""
    total = sums + blank
    if "out.weight" in weights:
        total = np.maximum(total, 0.0) @ weights["out.weight"] + weights["out.bias"]
    return np.asarray(total, np.float32)
