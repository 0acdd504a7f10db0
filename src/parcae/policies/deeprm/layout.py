"""DeepRM's network: what it sees, where its weights lie, and the same weights summed up.

    P(action | image) = softmax(relu(image W1 + b1) W2 + b2), one action a job slot, and one that lets time pass.

Cells of the image are 0 or 1, and those that are 1 fill what they can from the top left: the units in use of a row, a slot's
job (its duration x its demand), the backlog. So image W1 is a sum of a few sums of W1's rows, one for each row and resource of
the cluster, each resource of each slot and the backlog: some 61 vectors instead of 4,460, the same to rounding.

Source: DeepRM, sections 3.2, 3.3 and 4.1; summed-area tables (Crow 1984).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from parcae.errors import ConfigError
from parcae.packing.config import PackingConfig
from parcae.packing.images import ImageSettings
from parcae.policies.networks.layout import Weights, require_shapes

KIND = "deeprm"
#: Raised whenever the image changes its meaning: older checkpoints are then refused.
FEATURE_VERSION = 1
HIDDEN = 20
#: Spread of the first weights, as in the released code.
SPREAD = 0.01
#: The released code's column of time since the last arrival counts in steps of 0.1 up to 1.
NUM_PAUSES = 11

FloatArray = npt.NDArray[np.float32]


class Actions(StrEnum):
    """Which actions have a chance."""

    ALL = "all"  # the paper: an empty slot's action lets time pass, and jobs can be booked ahead
    FILLED = "filled"  # those of empty slots have none
    STARTABLE = "startable"  # only jobs that can start now, and letting time pass


class DeepRMSettings(BaseModel):
    """The image that a network is for; the default is the paper's, with 89,451 parameters.

    Args:
        capacity: units of each resource. num_slots, backlog_size, horizon: as in `PackingConfig`.
        has_pause: the released code's last column, the time since the last arrival.
        actions: which actions have a chance.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    capacity: tuple[int, ...] = (10, 10)
    num_slots: int = 10
    backlog_size: int = 60
    horizon: int = 20
    has_pause: bool = False
    actions: Actions = Actions.ALL

    @classmethod
    def of(
        cls,
        config: PackingConfig,
        capacity: npt.ArrayLike,
        image: ImageSettings | None = None,
        actions: Actions = Actions.ALL,
    ) -> DeepRMSettings:
        """Those of a cluster.

        Raises:
            ConfigError: exact times, which have no image, or an image in colours.
        """
        image = image or ImageSettings()
        if image.is_colored:
            raise ConfigError(
                "DeepRM's compiled network needs cells of 0 and 1: draw images without colours (is_colored)"
            )
        image.shape(config, capacity)
        return cls(
            capacity=tuple(int(units) for units in np.asarray(capacity)),
            num_slots=config.num_slots,
            backlog_size=config.backlog_size,
            horizon=config.horizon,
            has_pause=image.has_pause,
            actions=actions,
        )

    @property
    def image(self) -> ImageSettings:
        """How its images are drawn."""
        return ImageSettings(has_pause=self.has_pause)

    @property
    def width(self) -> int:
        """Columns of the image."""
        return sum(self.capacity) * (1 + self.num_slots) + self.backlog_columns + self.has_pause

    @property
    def backlog_columns(self) -> int:
        """Columns of the image that count the backlog."""
        return -(-self.backlog_size // self.horizon)

    @property
    def num_actions(self) -> int:
        """A slot each, and letting time pass."""
        return self.num_slots + 1

    @property
    def num_sums(self) -> int:
        """Summed rows that make up an image at most."""
        return len(self.capacity) * (self.horizon + self.num_slots) + 1 + self.has_pause


def shapes(settings: DeepRMSettings) -> dict[str, tuple[int, ...]]:
    """Weights by name; matrices are [in, out], the image's cells row by row."""
    return {
        "hidden.weight": (settings.horizon * settings.width, HIDDEN),
        "hidden.bias": (HIDDEN,),
        "actions.weight": (HIDDEN, settings.num_actions),
        "actions.bias": (settings.num_actions,),
    }


def initial_weights(rng: np.random.Generator, settings: DeepRMSettings) -> Weights:
    """Normal matrices with a deviation of 0.01, and zero biases, as in the released code."""
    return {
        name: (rng.normal(0.0, SPREAD, shape) if len(shape) == 2 else np.zeros(shape)).astype(
            np.float32
        )
        for name, shape in shapes(settings).items()
    }


def checked(weights: Weights, settings: DeepRMSettings, path: str = "weights") -> Weights:
    """The network's own among the weights, as float32 copies.

    Raises:
        FormatError: one is missing or has another shape.
    """
    require_shapes(weights, shapes(settings), path)
    return {name: np.array(weights[name], np.float32, order="C") for name in shapes(settings)}


class Network(NamedTuple):
    """What the kernels take. `sums` holds one summed row of W1 after another: see `starts_of`."""

    sums: Any  # float32[num_rows, HIDDEN]
    bias: Any  # float32[HIDDEN]
    actions: Any  # float32[HIDDEN * num_actions]
    actions_bias: Any  # float32[num_actions]
    starts: Any  # int64[2 * num_resources + 2], see `starts_of`
    limits: Any  # int64[3]: horizon, cells of the backlog, whether there is a pause
    allowed: Any  # int64[1]: 0 all actions, 1 of filled slots, 2 of jobs that can start now


class Work(NamedTuple):
    """Room for one decision (with a leading axis: a record of many)."""

    rows: Any  # int32[num_sums], the rows of `sums` that make up the image
    count: Any  # int64[1], how many
    hidden: Any  # float32[HIDDEN], after the rectifier
    chances: Any  # float32[num_actions]


class Record(NamedTuple):
    """Decisions of several runs, one after another."""

    work: Any  # Work, with a leading axis [capacity]
    action: Any  # int64[capacity]
    clock: Any  # int64[capacity]
    cost: Any  # float64[capacity], accrued before the decision
    ends: Any  # int64[num_runs], one beyond each run's last decision
    end_cost: Any  # float64[num_runs]


def allocate_work(settings: DeepRMSettings, *count: int) -> Work:
    """Room for a decision, or for so many; memory is taken as it is used."""
    return Work(
        np.empty((*count, settings.num_sums), np.int32),
        np.empty((*count, 1), np.int64),
        np.empty((*count, HIDDEN), np.float32),
        np.empty((*count, settings.num_actions), np.float32),
    )


def allocate_record(settings: DeepRMSettings, num_runs: int, capacity: int) -> Record:
    """Room for `capacity` decisions of `num_runs` runs."""
    return Record(
        allocate_work(settings, capacity),
        np.empty(capacity, np.int64),
        np.empty(capacity, np.int64),
        np.empty(capacity, np.float64),
        np.zeros(num_runs, np.int64),
        np.zeros(num_runs, np.float64),
    )


class Block(NamedTuple):
    """A part of the image that fills from its top left: columns first..last-1, as an array of `shape` + (HIDDEN,)."""

    first: int
    last: int
    shape: tuple[int, ...]
    axes: tuple[int, ...]  # of `shape`, along which cells fill up
    order: tuple[int, ...]  # of the axes [horizon, num_slots, columns] that `shape` has


def _blocks(settings: DeepRMSettings) -> Iterator[Block]:
    """For each resource the cluster and the slots; then the backlog."""
    left = 0
    h = settings.horizon
    m = settings.num_slots
    for units in settings.capacity:
        yield Block(left, left + units, (h, units), (1,), (0, 1))
        yield Block(left + units, left + units * (1 + m), (h, m, units), (1, 2), (1, 0, 2))
        left += units * (1 + m)
    yield Block(left, left + settings.backlog_columns, (h * settings.backlog_columns,), (0,), (0,))


def starts_of(settings: DeepRMSettings) -> npt.NDArray[np.int64]:
    """First row of each block of sums, int64[2 * num_resources + 2]; the last is the pause's.

    The rows of a cluster block are [horizon, units in use], of a slot block [slot, duration, demand], of the backlog [jobs].
    """
    sizes = [0]
    for block in _blocks(settings):
        shape = [block.shape[axis] for axis in block.order]
        sizes.append(int(np.prod([n + (axis in block.axes) for axis, n in enumerate(shape)])))
    return np.cumsum(np.array(sizes, np.int64))


def sums_of(weight: npt.NDArray[Any], settings: DeepRMSettings) -> FloatArray:
    """The sums of the first layer's rows that images are made of, float32[num_rows, HIDDEN]; added up in float64."""
    cells = np.asarray(weight, np.float64).reshape(settings.horizon, settings.width, HIDDEN)
    parts = []
    for block in _blocks(settings):
        part = (
            cells[:, block.first : block.last]
            .reshape(*block.shape, HIDDEN)
            .transpose(*block.order, len(block.order))
        )
        for axis in block.axes:
            pad = [(1, 0) if a == axis else (0, 0) for a in range(part.ndim)]
            part = np.pad(np.cumsum(part, axis), pad)
        parts.append(part.reshape(-1, HIDDEN))
    if settings.has_pause:
        parts.append(np.linspace(0, 1, NUM_PAUSES)[:, None] * cells[:, -1].sum(axis=0))
    return np.concatenate(parts).astype(np.float32)


def weight_gradient(of_sums: npt.NDArray[Any], settings: DeepRMSettings) -> npt.NDArray[np.float64]:
    """The gradient of the first layer's matrix, given that of its sums: the transpose of `sums_of`."""
    cells = np.zeros((settings.horizon, settings.width, HIDDEN))
    starts = starts_of(settings)
    for block, first, last in zip(_blocks(settings), starts[:-1], starts[1:], strict=True):
        shape = [block.shape[axis] for axis in block.order]
        padded = [n + (axis in block.axes) for axis, n in enumerate(shape)]
        part = np.asarray(of_sums[first:last], np.float64).reshape(*padded, HIDDEN)
        for axis in block.axes:
            part = np.flip(np.cumsum(np.flip(part, axis), axis), axis)
            part = np.delete(part, 0, axis)
        back = part.transpose(*np.argsort(block.order), len(block.order))
        cells[:, block.first : block.last] = back.reshape(
            settings.horizon, block.last - block.first, HIDDEN
        )
    if settings.has_pause:
        cells[:, -1] = (np.linspace(0, 1, NUM_PAUSES)[:, None] * of_sums[starts[-1] :]).sum(axis=0)
    return cells.reshape(-1, HIDDEN)
