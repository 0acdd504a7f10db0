"""DeepRM's network: its image, its weights, and a faster form of the same first layer.

    P(action | image) = softmax(relu(image W1 + b1) W2 + b2)

There is one action for each job slot, and one that lets time pass.

The cells of the image are 0 or 1. In each part of the image, the cells that are 1 form a block at
the top left: the units in use of a row, a slot's job (its duration x its demand), the backlog. So
image W1 is the total of a few precomputed sums of W1's rows: one for each row and resource of the
cluster, one for each resource of each slot, and one for the backlog. These are about 61 vectors
instead of 4,460; the result is equal except for rounding.

Source: DeepRM, sections 3.2, 3.3 and 4.1; summed-area tables (Crow 1984).
"""

# Deviation: DeepRM 3.2 shows jobs in service in different colours. Here a unit in use is 1,
# whatever job has it, because without colours the units in use of a row form a block, and the first
# layer is a total of few sums. Which job has a unit matters to no action.

from __future__ import annotations

import importlib
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from parcae.base.errors import ConfigError
from parcae.policies.networks.layout import Weights, require_shapes
from parcae.rigid.config import PackingConfig
from parcae.rigid.world import ImageSettings

KIND = "deeprm"
#: Increased whenever the image changes its meaning: older checkpoints are then refused.
FEATURE_VERSION = 1
HIDDEN = 20
#: Standard deviation of the initial weights, as in the released code.
SPREAD = 0.01
#: Number of values, 0 to 1 by 0.1, of the released code's column of the time since the last
#: arrival.
NUM_PAUSES = 11

FloatArray = npt.NDArray[np.float32]


class Actions(StrEnum):
    """Which actions may have a probability above 0."""

    # As in the paper: the action of an empty slot lets time pass, and jobs can be booked ahead.
    ALL = "all"
    FILLED = "filled"  # slots with a job, and letting time pass
    STARTABLE = "startable"  # slots whose job can start now, and letting time pass


class DeepRMSettings(BaseModel):
    """The shape of the image and the actions; the default is the paper's, with 89,451
    parameters.
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
        """Return the settings for a cluster."""
        image = image or ImageSettings()
        if image.is_colored:
            raise ConfigError(
                "DeepRM's compiled network needs images of zeros and ones: draw them without "
                "colours (is_colored = False)"
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
        """How the network's images are drawn."""
        return ImageSettings(has_pause=self.has_pause)

    @property
    def width(self) -> int:
        """Columns of the image."""
        return sum(self.capacity) * (1 + self.num_slots) + self.backlog_columns + self.has_pause

    @property
    def backlog_columns(self) -> int:
        """Columns of the image that show the length of the backlog."""
        return -(-self.backlog_size // self.horizon)

    @property
    def num_actions(self) -> int:
        """Number of actions: one for each slot, and letting time pass."""
        return self.num_slots + 1

    @property
    def num_sums(self) -> int:
        """Largest number of precomputed sums that an image consists of."""
        return len(self.capacity) * (self.horizon + self.num_slots) + 1 + self.has_pause


def shapes(settings: DeepRMSettings) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights by name.

    Matrices are [in, out], with the image's cells row by row.
    """
    return {
        "hidden.weight": (settings.horizon * settings.width, HIDDEN),
        "hidden.bias": (HIDDEN,),
        "actions.weight": (HIDDEN, settings.num_actions),
        "actions.bias": (settings.num_actions,),
    }


def initial_weights(rng: np.random.Generator, settings: DeepRMSettings) -> Weights:
    """Draw initial weights: normal matrices with a deviation of 0.01, and zero biases.

    Source: the released code.
    """
    return {
        name: (rng.normal(0.0, SPREAD, shape) if len(shape) == 2 else np.zeros(shape)).astype(
            np.float32
        )
        for name, shape in shapes(settings).items()
    }


def checked(weights: Weights, settings: DeepRMSettings, path: str = "weights") -> Weights:
    """Return float32 copies of the network's weights; other names in `weights` are ignored."""
    require_shapes(weights, shapes(settings), path)
    return {name: np.array(weights[name], np.float32, order="C") for name in shapes(settings)}


class DeepRMNetwork(NamedTuple):
    """The network in the form that the kernels read.

    The rows of `sums` replace the matrix W1; `starts_of` gives their order.
    """

    sums: Any  # float32[num_rows, HIDDEN]
    bias: Any  # float32[HIDDEN]
    actions: Any  # float32[HIDDEN * num_actions]
    actions_bias: Any  # float32[num_actions]
    starts: Any  # int64[2 * num_resources + 2], see `starts_of`
    limits: Any  # int64[3]: horizon, cells of the backlog, whether there is a pause
    allowed: Any  # int64[1]: 0 all actions, 1 of filled slots, 2 of jobs that can start now


class Work(NamedTuple):
    """Buffers for one decision."""

    rows: Any  # int32[num_sums], the rows of `sums` that make up the image
    count: Any  # int64[1], how many
    hidden: Any  # float32[HIDDEN], after the rectifier
    probabilities: Any  # float32[num_actions]


class DeepRMRecord(NamedTuple):
    """The decisions of one run (with a leading axis: of many runs)."""

    count: Any  # int64[1]
    clock: Any  # int64[capacity]
    cost: Any  # float64[capacity], accrued before the decision
    action: Any  # int64[capacity]
    num_rows: Any  # int64[capacity], how many `rows` there are
    rows: Any  # int32[capacity, num_sums], see `Work`
    probabilities: Any  # float32[capacity, num_actions]


def allocate_work(settings: DeepRMSettings) -> Work:
    """Allocate buffers for one decision."""
    return Work(
        np.empty(settings.num_sums, np.int32),
        np.empty(1, np.int64),
        np.empty(HIDDEN, np.float32),
        np.empty(settings.num_actions, np.float32),
    )


def allocate_record(settings: DeepRMSettings, num_runs: int, capacity: int) -> DeepRMRecord:
    """Allocate records of many runs. Most arrays are not initialized, so that memory is taken up
    only as it is used.
    """
    room = (num_runs, capacity)
    return DeepRMRecord(
        np.zeros((num_runs, 1), np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.float64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty((*room, settings.num_sums), np.int32),
        np.empty((*room, settings.num_actions), np.float32),
    )


class Block(NamedTuple):
    """A part of the image in which the cells that are 1 form a block at the top left.

    It covers columns first..last-1 and is treated as an array of `shape` + (HIDDEN,).
    """

    first: int
    last: int
    shape: tuple[int, ...]
    axes: tuple[int, ...]  # axes, after swapping, along which the block of ones extends
    is_swapped: bool = False  # whether the first two axes change places in the rows of sums


def _blocks(settings: DeepRMSettings) -> Iterator[Block]:
    """Yield each resource's cluster block and slots block, then the backlog's block."""
    left = 0
    h = settings.horizon
    m = settings.num_slots
    for units in settings.capacity:
        yield Block(left, left + units, (h, units), (1,))
        yield Block(left + units, left + units * (1 + m), (h, m, units), (1, 2), True)
        left += units * (1 + m)
    yield Block(left, left + settings.backlog_columns, (h * settings.backlog_columns,), (0,))


def starts_of(settings: DeepRMSettings) -> npt.NDArray[np.int64]:
    """Return the first row of each block of sums, int64[2 * num_resources + 2].

    The last entry is for the time since the last arrival. The rows of a cluster block are [horizon,
    units in use], of a slot block [slot, duration, demand], of the backlog block [jobs].
    """
    sizes = [0]
    for block in _blocks(settings):
        first, *others = block.shape
        shape = [others[0], first, *others[1:]] if block.is_swapped else block.shape
        sizes.append(int(np.prod([n + (axis in block.axes) for axis, n in enumerate(shape)])))
    return np.cumsum(np.array(sizes, np.int64))


def sums_of(weight: Any, settings: DeepRMSettings) -> Any:
    """Return the sums of the first layer's rows, float32[num_rows, HIDDEN].

    `weight` is an array of numpy, or a tensor of PyTorch through which gradients flow.
    """
    is_array = isinstance(weight, np.ndarray)
    # The few functions that both libraries spell in the same way.
    library = np if is_array else importlib.import_module("torch")
    cells = weight.reshape(settings.horizon, settings.width, HIDDEN)
    parts = []
    for block in _blocks(settings):
        part = cells[:, block.first : block.last].reshape(*block.shape, HIDDEN)
        if block.is_swapped:
            part = part.swapaxes(0, 1)
        # Cumulative sums along the axes, with a leading 0 for an empty block.
        for axis in block.axes:
            total = library.cumsum(part, axis, dtype=library.float64)
            empty = library.zeros_like(total[(slice(None),) * axis + (slice(0, 1),)])
            part = library.concatenate([empty, total], axis)
        parts.append(part.reshape(-1, HIDDEN))
    if settings.has_pause:
        pauses = library.linspace(0, 1, NUM_PAUSES, dtype=library.float64)
        parts.append(pauses[:, None] * cells[:, -1].sum(0))
    sums = library.concatenate(parts, 0)
    return sums.astype(np.float32) if is_array else sums.float()
