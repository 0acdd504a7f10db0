"""DeepRM's compiled kernels: decisions, and decisions that are drawn and recorded."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from parcae.base.arrays import Int64Array
from parcae.base.compiled.kernels import inlined, kernel, unit
from parcae.base.compiled.products import add_product
from parcae.base.compiled.tables import FieldSpec, doubles, floats, integers
from parcae.cluster.kernels.policies import decide
from parcae.policies.networks.kernels import largest
from parcae.policies.networks.layout import Weights, require_shapes
from parcae.rigid.config import PackingConfig
from parcae.rigid.layout import VOID
from parcae.rigid.policies import explore
from parcae.rigid.world import image_columns, image_shape

# Deviation: DeepRM 3.2 shows jobs in service in different colours. Here a unit in use is 1,
# whatever job has it, because without colours the units in use of a row form a block, and the first
# layer is a total of few sums. Which job has a unit matters to no action.


KIND = "deeprm"
#: Increased whenever the image changes its meaning: older checkpoints are then refused.
FEATURE_VERSION = 1
HIDDEN = 20
#: Standard deviation of the initial weights, as in the released code.
SPREAD = 0.01
#: Number of values, 0 to 1 by 0.1, of the released code's column of the time since the last
#: arrival.
NUM_PAUSES = 11


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
        *,
        has_pause: bool = False,
        actions: Actions = Actions.ALL,
    ) -> DeepRMSettings:
        """Return the settings for a cluster."""
        image_shape(config, capacity)  # which refuses exact times
        return cls(
            capacity=tuple(int(units) for units in np.asarray(capacity)),
            num_slots=config.num_slots,
            backlog_size=config.backlog_size,
            horizon=config.horizon,
            has_pause=has_pause,
            actions=actions,
        )

    @property
    def width(self) -> int:
        """Columns of the image."""
        sizes = (self.capacity, self.horizon, self.num_slots, self.backlog_size)
        return image_columns(*sizes) + self.has_pause

    @property
    def backlog_columns(self) -> int:
        """Columns of the image that show the length of the backlog."""
        return -(-self.backlog_size // self.horizon)

    @property
    def num_actions(self) -> int:
        """Number of actions: one for each slot, and letting time pass."""
        return self.num_slots + 1

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of tables: the most precomputed sums that make up an image, and actions."""
        sums = len(self.capacity) * (self.horizon + self.num_slots) + 1 + self.has_pause
        return {"sums": sums, "actions": self.num_actions}


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

    rows: Any = FieldSpec("i4", ("sums",))  # the rows of `sums` that make up the image
    count: Any = integers(1)  # how many
    hidden: Any = floats(HIDDEN)  # after the rectifier
    probabilities: Any = floats("actions")


class DeepRMRecord(NamedTuple):
    """The decisions of one run (with a leading axis: of many runs)."""

    count: Any = integers(1)
    clock: Any = integers("decisions")
    cost: Any = doubles("decisions")  # accrued before the decision
    action: Any = integers("decisions")
    num_rows: Any = integers("decisions")  # how many `rows` there are
    rows: Any = FieldSpec("i4", ("decisions", "sums"))  # see `Work`
    probabilities: Any = floats("decisions", "actions")


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


def starts_of(settings: DeepRMSettings) -> Int64Array:
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


# Values of `DeepRMNetwork.allowed`; 0 stands for all actions.
_FILLED = 1
_STARTABLE = 2


@inlined
def _collect_rows(view, net, work):  # type: ignore[no-untyped-def]
    """Collect the rows of `net.sums` whose total is the image's product with W1.

    Rows of zeros are left out.
    """
    head = view.head[0]
    count = 0
    resources = view.free.shape[0]
    horizon = net.limits[0]
    for resource in range(resources):
        units = view.capacity[resource] + 1
        start = net.starts[2 * resource]
        for row in range(horizon):
            used = view.capacity[resource] - view.free_from[row, resource]
            if used > 0:
                work.rows[count] = start + row * units + used
                count += 1
        start = net.starts[2 * resource + 1]
        for job in range(head.num_jobs):
            rows = view.jobs.slot[job] * (horizon + 1) + view.jobs.estimate[job]
            work.rows[count] = start + rows * units + view.demand[job, resource]
            count += 1
    if head.num_backlog > 0:
        work.rows[count] = net.starts[2 * resources] + min(head.num_backlog, net.limits[1])
        count += 1
    if net.limits[2] == 1:
        work.rows[count] = net.starts[2 * resources + 1] + min(head.since_arrival, NUM_PAUSES - 1)
        count += 1
    work.count[0] = count


@inlined
def _compute_hidden(net, work):  # type: ignore[no-untyped-def]
    """hidden = relu(b1 + the sum of the collected rows)."""
    hidden = work.hidden
    sums = net.sums
    rows = work.rows
    for o in range(HIDDEN):
        hidden[o] = net.bias[o]
    # Four rows at a time, so that the hidden units are read and written a quarter as often.
    k = 0
    count = work.count[0]
    while k + 4 <= count:
        r0 = rows[k]
        r1 = rows[k + 1]
        r2 = rows[k + 2]
        r3 = rows[k + 3]
        for o in range(HIDDEN):
            hidden[o] += (sums[r0, o] + sums[r1, o]) + (sums[r2, o] + sums[r3, o])
        k += 4
    while k < count:
        for o in range(HIDDEN):
            hidden[o] += sums[rows[k], o]
        k += 1
    for o in range(HIDDEN):
        hidden[o] = max(hidden[o], np.float32(0.0))


@inlined
def _is_allowed(view, net, slot):  # type: ignore[no-untyped-def]
    """Return whether an action may have a probability above 0."""
    if net.allowed[0] == 0 or slot == net.actions_bias.shape[0] - 1:
        return True
    for job in range(view.head[0].num_jobs):
        if view.jobs.slot[job] == slot:
            return net.allowed[0] == _FILLED or view.jobs.can_start[job] == 1
    return False


@inlined
def _normalize(view, net, work):  # type: ignore[no-untyped-def]
    """Turn logits into probabilities, in place (softmax over the allowed actions)."""
    probabilities = work.probabilities
    top = np.float32(-math.inf)
    for action in range(probabilities.shape[0]):
        if not _is_allowed(view, net, action):
            probabilities[action] = -math.inf
        top = max(top, probabilities[action])
    total = np.float32(0.0)
    for action in range(probabilities.shape[0]):
        probabilities[action] = math.exp(probabilities[action] - top)
        total += probabilities[action]
    for action in range(probabilities.shape[0]):
        probabilities[action] /= total


@inlined
def score_actions(view, net, work):  # type: ignore[no-untyped-def]
    """Write the probabilities of all actions to `work.probabilities`."""
    _collect_rows(view, net, work)
    _compute_hidden(net, work)
    for action in range(work.probabilities.shape[0]):
        work.probabilities[action] = net.actions_bias[action]
    add_product(
        work.hidden, HIDDEN, net.actions, 0, work.probabilities.shape[0], work.probabilities
    )
    _normalize(view, net, work)


@inlined
def _draw(probabilities, uniform_draw):  # type: ignore[no-untyped-def]
    """Draw an action from the probabilities; `uniform_draw` is a random number in [0, 1)."""
    last = 0
    for action in range(probabilities.shape[0]):
        if probabilities[action] > 0.0:
            last = action
            uniform_draw -= probabilities[action]
            if uniform_draw < 0.0:
                return action
    return last


@inlined
def _most_probable(view, probabilities):  # type: ignore[no-untyped-def]
    """Return the most probable action.

    In an empty cluster, if any job can start, only such jobs count, because the policy could hold
    them for ever.
    """
    head = view.head[0]
    best = VOID
    for job in range(head.num_jobs):
        slot = view.jobs.slot[job]
        if view.jobs.can_start[job] == 1 and (
            best == VOID or probabilities[slot] > probabilities[best]
        ):
            best = slot
    if best != VOID and head.num_running == 0:
        return best
    return largest(probabilities, probabilities.shape[0])


class DeepRM(NamedTuple):
    """The network as a policy."""

    net: DeepRMNetwork
    work: Work
    is_greedy: Any


@inlined
def _slot(view, action):  # type: ignore[no-untyped-def]
    """Return the slot that an action stands for; the last action is VOID."""
    return VOID if action == view.jobs.shape[0] else action


@decide.of(DeepRM)
@kernel
def decide_by_network(view, policy):  # type: ignore[no-untyped-def]
    """Return the slot whose job to place, or VOID."""
    net, work, is_greedy = policy
    score_actions(view, net, work)
    if is_greedy:
        return _slot(view, _most_probable(view, work.probabilities))
    return _slot(view, _draw(work.probabilities, unit(view.head[0].random_bits)))


@explore.of(DeepRM)
@kernel
def explore_by_network(view, cost, record, policy):  # type: ignore[no-untyped-def]
    """Draw an action and record it."""
    at = record.count[0]
    record.count[0] += 1
    # What is recorded is worked out in its place.
    work = Work(
        record.rows[at], record.num_rows[at : at + 1], policy.work.hidden, record.probabilities[at]
    )
    score_actions(view, policy.net, work)
    action = _draw(work.probabilities, unit(view.head[0].random_bits))
    record.clock[at] = view.head[0].now
    record.cost[at] = cost
    record.action[at] = action
    return _slot(view, action)
