"""A2cScheduler's networks: the five architectures and their shapes.

An image is covered by windows. Each window gives `num_filters` numbers, and one matrix maps those
of all windows to the next layer's inputs. A window has 1x1 cells in a plain layer, 3x3 in a
convolution, and 4x4 in a convolution with 2x2 max-pooling.

Source: A2cScheduler, section 4.3 and Table 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from parcae.base.arrays import BoolArray, Float32Array, Int64Array
from parcae.policies.networks.layout import Weights
from parcae.rigid.a2c.kernels import CELLS_PER_WORD, Layer, encode_many, number_many, sum_many
from parcae.rigid.kernels.views import draw_images
from parcae.rigid.layout import Clusters

KIND = "a2c"
#: Increased whenever the image changes its meaning: older checkpoints are then refused.
FEATURE_VERSION = 1


class Architecture(StrEnum):
    """The layers between the image and the dense layer (Table 3)."""

    FC = "fc"
    CONV_16 = "conv3-16"
    CONV_32 = "conv3-32"
    CONV_16_POOL = "conv3-16-pool"
    CONV_32_POOL = "conv3-32-pool"

    @property
    def num_filters(self) -> int:
        """How many numbers each window gives."""
        return 1 if self is Architecture.FC else 32 if "32" in self.value else 16

    @property
    def window(self) -> int:
        """Rows and columns of a window."""
        return 1 if self is Architecture.FC else 4 if self.has_pool else 3

    @property
    def has_pool(self) -> bool:
        """Whether 2x2 max-pooling follows; the windows then lie two cells apart."""
        return self.value.endswith("pool")


class A2cSettings(BaseModel):
    """The shape of the networks; unknown keys are refused.

    Args:
        architecture: the layers between the image and the dense layer.
        horizon: rows of the image.
        width: columns of the image.
        num_slots: job slots that can be chosen; one more action lets time pass.
        capacity: units of each resource, which the width alone does not determine. Empty if
            unknown; then it is not checked.
        hidden: units of a layer between the flattened image and the outputs; 0 for no such layer.
        is_masked: slots whose job cannot start now have probability 0, and so has letting time pass
            in an idle cluster. Without masks, as in the paper, a job may be booked for later, and
            choosing a job that cannot be placed lets time pass.

    Example: `A2cSettings(horizon=20, width=223, num_slots=10).num_actions` is 11.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    architecture: Architecture = Architecture.CONV_16
    horizon: int = Field(ge=1)
    width: int = Field(ge=1)
    num_slots: int = Field(ge=1)
    capacity: tuple[int, ...] = ()
    hidden: int = Field(default=0, ge=0)
    is_masked: bool = False

    @model_validator(mode="after")
    def _has_room(self) -> A2cSettings:
        if min(self.horizon, self.width) < self.architecture.window:
            raise ValueError(
                f"an image of {self.horizon}x{self.width} cells is too small for "
                f"{self.architecture.value}: at least {self.architecture.window} rows and columns "
                "are needed; give a longer horizon, or use the architecture fc"
            )
        return self

    @property
    def num_actions(self) -> int:
        """Number of actions: one for each slot, and letting time pass."""
        return self.num_slots + 1

    @property
    def last_bias(self) -> str:
        """The name of the outputs' bias."""
        return "out.bias" if self.hidden else "dense.bias"

    @property
    def grid(self) -> Grid:
        """Where the windows lie."""
        size = self.architecture.window
        stride = 2 if self.architecture.has_pool else 1
        return Grid(
            size, stride, (self.horizon - size) // stride + 1, (self.width - size) // stride + 1
        )

    def shapes(self, num_outputs: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the weights by name, for a network with `num_outputs` outputs.

        Example: `conv.weight` [16, 3, 3], `conv.bias` [16], `dense.weight` [3978, 16, 11] and
        `dense.bias` [11] for 20x223 cells.
        """
        filters = self.architecture.num_filters
        first = self.hidden or num_outputs
        grid = self.grid
        named: dict[str, tuple[int, ...]] = {}
        if self.architecture is not Architecture.FC:
            named |= {"conv.weight": (filters, 3, 3), "conv.bias": (filters,)}
        named |= {
            "dense.weight": (grid.rows * grid.columns, filters, first),
            "dense.bias": (first,),
        }
        if self.hidden:
            named |= {"out.weight": (first, num_outputs), "out.bias": (num_outputs,)}
        return named


class Grid(NamedTuple):
    """The windows of an image: `rows` x `columns` of them, `stride` cells apart.

    Each window has `window` x `window` cells.
    """

    window: int
    stride: int
    rows: int
    columns: int


def draw_weights(
    settings: A2cSettings, num_outputs: int, rng: np.random.Generator, last_scale: float = 0.01
) -> Weights:
    """Draw initial weights with a variance of 2 / inputs (He et al.); biases are zero."""
    weights: Weights = {}
    shapes = settings.shapes(num_outputs)
    last = "out.weight" if settings.hidden else "dense.weight"
    for name, shape in shapes.items():
        inputs = 9 if name == "conv.weight" else int(np.prod(shape[:-1]))
        scale = np.sqrt(2.0 / inputs) * (last_scale if name == last else 1.0)
        weights[name] = (
            rng.standard_normal(shape) * (0.0 if name.endswith("bias") else scale)
        ).astype(np.float32)
    return weights


#: Places in a layer's hash table, of which a half is used. More rows are rarely in use at a time.
_PLACES = 1 << 16


class EncodedImages(NamedTuple):
    """The windows of many images, without those of zeros.

    Those of image k are keys[starts[k]:starts[k + 1]].
    """

    keys: Int64Array
    starts: Int64Array  # [num_images + 1]

    @staticmethod
    def joined(parts: Sequence[EncodedImages], is_kept: BoolArray) -> EncodedImages:
        """Return those images of all parts, one after another, that are kept."""
        sizes = np.concatenate([np.diff(part.starts) for part in parts])
        keys = np.concatenate([part.keys for part in parts])
        return EncodedImages(
            keys[np.repeat(is_kept, sizes)], np.append(0, np.cumsum(sizes[is_kept]))
        )

    def distinct(self) -> tuple[Int64Array, Int64Array]:
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


def encode_clusters(clusters: Clusters, is_over: BoolArray, settings: A2cSettings) -> EncodedImages:
    """Return the encoded images of clusters; those with `is_over`, bool[count], are empty."""
    cells = blank_images(len(is_over), settings)
    draw_images(clusters, cells, 0, len(is_over))
    return encode_images(cells, is_over, settings)


def blank_images(count: int, settings: A2cSettings) -> npt.NDArray[np.uint8]:
    """Return images of zeros, whose rows are padded to whole words."""
    padded = -(-settings.width // CELLS_PER_WORD) * CELLS_PER_WORD
    return np.zeros((count, settings.horizon, padded), np.uint8)


def encode_images(
    cells: npt.NDArray[np.uint8], is_over: BoolArray, settings: A2cSettings
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
        blank: Float32Array = np.maximum(self._layer.bias, 0.0)
        # The dense layer's outputs for an image of zeros.
        self._blank = blank @ self._layer.dense.sum(axis=0) + self.weights["dense.bias"]

    def outputs(self, encoded: EncodedImages) -> Float32Array:
        """Return the network's outputs, float32[num_images, num_outputs]."""
        total = np.empty((len(encoded.starts) - 1, len(self._blank)), np.float32)
        sum_many(encoded.keys, encoded.starts, self._window, self._layer, total)
        total += self._blank
        if "out.weight" in self.weights:
            total = np.maximum(total, 0.0) @ self.weights["out.weight"] + self.weights["out.bias"]
        return total
