"""The arrays that Decima's training kernels take: views of flat weights, and buffers."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from parcae.decima.graph.kernels.training_data import (
    Activations,
    Edges,
    Head,
    Layers,
    Parts,
    Passes,
    TrainingDecisions,
)
from parcae.decima.graph.layout import (
    EMBEDDING,
    HIDDEN_1,
    HIDDEN_2,
    LIMIT_KINDS,
    NO_SLOT_NAME,
    DecimaSettings,
    Limits,
    Transform,
    shapes,
    sizes,
)
from parcae.policies.networks.layout import places

FloatArray = npt.NDArray[np.float32]


#: Most decisions of a group, the stages after which a group has enough, and those that all its jobs
#: list. A group's numbers should fit into the second cache of a processor.
GROUP = 32
_GROUP_ROWS = 1024
_GROUP_LISTED = 4 * _GROUP_ROWS
_NO_VECTOR = np.zeros(0, np.float32)
_NO_MATRIX = np.zeros((0, 0), np.float32)
#: The layers of a transform that the network lacks.
_NO_LAYERS = Layers(*[_NO_MATRIX, _NO_VECTOR] * 3, *[_NO_MATRIX] * 3)


@dataclass(frozen=True)
class BufferRoom:
    """What the buffers must have room for."""

    rows: int
    jobs: int
    edges: int
    stages: int
    options: int
    states: int
    recorded: int

    def __le__(self, other: BufferRoom) -> bool:
        return all(a <= b for a, b in zip(astuple(self), astuple(other), strict=True))


@dataclass(frozen=True)
class Batch:
    """B recorded decisions."""

    decisions: TrainingDecisions
    edges: Edges
    index: npt.NDArray[np.int64]
    room: BufferRoom

    def __len__(self) -> int:
        return len(self.index)


def _embedded(transform: Transform, settings: DecimaSettings) -> slice:
    """Which inputs of a transform are embeddings; the others are features."""
    if transform is Transform.F_JOB:
        return slice(settings.num_features, None)
    if transform is Transform.W:
        return slice(0, _limit_width(settings))
    if transform in (Transform.Q, Transform.CLASS, Transform.IDLE):
        return slice(0, 3 * EMBEDDING)
    return slice(None)


def _limit_width(settings: DecimaSettings) -> int:
    """Number of embedded inputs of the limits."""
    widths = {Limits.STAGE: 3 * EMBEDDING, Limits.NONE: 0}
    return widths.get(settings.limits, 2 * EMBEDDING)


class FlatParts:
    """The network or its gradient in the form that the kernels take."""

    def __init__(self, size: int, settings: DecimaSettings) -> None:
        #: float32[size], in the order of `layout.shapes`; the parts are views of it, except for the
        #: transposed matrices.
        self.flat = np.zeros(size, np.float32)
        self._settings = settings
        self._transposed = list[tuple[FloatArray, FloatArray]]()
        self._parts: Parts | None = None

    def parts(
        self, levels: npt.NDArray[np.int64], weights: npt.NDArray[np.float32] | None = None
    ) -> Parts:
        """Set all numbers, and return the parts; what was returned before changes too."""
        if self._parts is None or self._parts.levels is not levels:
            self._transposed.clear()
            self._parts = self._make(levels)
        if weights is None:
            self.flat[:] = 0.0
            return self._parts
        np.copyto(self.flat, weights)
        for target, source in self._transposed:
            np.copyto(target, source.T)
        return self._parts

    def _make(self, levels: npt.NDArray[np.int64]) -> Parts:
        settings = self._settings
        arrays = {
            name: self.flat[place].reshape(shape)
            for name, (place, shape) in places(shapes(settings, len(levels))).items()
        }

        def layers(transform: Transform) -> Layers:
            name = transform.name.lower()
            if f"{name}.1.weight" not in arrays:
                return _NO_LAYERS
            weights = [arrays[f"{name}.{layer}.weight"] for layer in (1, 2, 3)]
            biases = [arrays[f"{name}.{layer}.bias"] for layer in (1, 2, 3)]
            pairs = [array for pair in zip(weights, biases, strict=True) for array in pair]
            weights[0] = weights[0][_embedded(transform, settings)]
            transposed = [np.zeros(weight.shape[::-1], np.float32) for weight in weights]
            self._transposed += zip(transposed, weights, strict=True)
            return Layers(*pairs, *transposed)

        return Parts(
            prep_weight=arrays["prep.1.weight"],
            prep_bias=arrays["prep.1.bias"],
            f_stage=layers(Transform.F_STAGE),
            g_stage=layers(Transform.G_STAGE),
            f_job=layers(Transform.F_JOB),
            g_job=layers(Transform.G_JOB),
            f_global=layers(Transform.F_GLOBAL),
            g_global=layers(Transform.G_GLOBAL),
            q=layers(Transform.Q),
            w=layers(Transform.W),
            executor_class=layers(Transform.CLASS),
            idle=layers(Transform.IDLE),
            no_slot=arrays.get(NO_SLOT_NAME, np.zeros(1, np.float32)),
            levels=levels,
            has_graph=settings.has_graph,
            has_two_transforms=settings.has_two_transforms,
            limits=LIMIT_KINDS[settings.limits],
        )


def _zeros(*shape: int) -> FloatArray:
    return np.zeros(shape, np.float32)


def _integers(size: int) -> npt.NDArray[np.int64]:
    return np.zeros(size, np.int64)


def _activations(rows: int, num_out: int) -> Activations:
    widths = (HIDDEN_1, HIDDEN_2, num_out)
    return Activations(*(_zeros(rows, width) for width in (*widths, *widths)))


def _head(options: int, num_in: int, num_embedded: int, num_out: int) -> Head:
    """The buffers of a head, for this many options of all decisions of a group."""
    return Head(
        inputs=_zeros(options, num_in),
        d_inputs=_zeros(options, num_embedded),
        layers=_activations(options, num_out),
        logs=np.zeros(options),
        shares=np.zeros(options),
        option=_integers(options),
        first=_integers(GROUP + 1),
        chosen=_integers(GROUP),
    )


def _lists(room: BufferRoom, rows: int, jobs: int) -> dict[str, npt.NDArray[np.int64]]:
    """Which jobs, stages and edges a group has, for this many distinct stages and jobs."""
    return {
        "listed": _integers(max(room.rows, _GROUP_LISTED)),
        "first_of": _integers(jobs + 1),
        "member_job": _integers(jobs),
        "member_decision": _integers(jobs),
        "first_member": _integers(GROUP + 1),
        "found": np.zeros((room.states, 2), np.int64),
        "found_row": np.zeros((room.recorded, 2), np.int64),
        "stage": _integers(GROUP),
        "stage_job": _integers(GROUP),
        "option_job": _integers(rows),
        "recorded": _integers(rows),
        "place": _integers(rows),
        "key": _integers(rows),
        "row_of": _integers(room.stages),
        "bound": _integers(2 * room.stages + 3),
        "parent": _integers(room.edges * GROUP),
        "child": _integers(room.edges * GROUP),
        "first_edge": _integers(rows),
        "next_edge": _integers(room.edges * GROUP),
        "size": _integers(6),
    }


def allocate_passes(room: BufferRoom, settings: DecimaSettings, num_levels: int) -> Passes:
    """Allocate the buffers of the training kernels."""
    d = EMBEDDING
    rows = max(room.rows, _GROUP_ROWS)
    jobs = max(room.jobs, _GROUP_ROWS)
    by_transform = sizes(settings, num_levels)
    inputs = _zeros(rows, settings.num_features + d)

    def head(transform: Transform, options: int) -> Head:
        num_in, num_out = by_transform.get(transform, (0, 0))
        embedded = len(range(*_embedded(transform, settings).indices(num_in)))
        return _head(options, num_in, embedded, num_out)

    return Passes(
        inputs=inputs,
        x=inputs[:, : settings.num_features],
        e=inputs[:, settings.num_features :],
        d_e=_zeros(rows, d),
        total=_zeros(rows, d),
        d_total=_zeros(rows, d),
        y=_zeros(jobs, d),
        d_y=_zeros(jobs, d),
        job_total=_zeros(jobs, d),
        d_job_total=_zeros(jobs, d),
        z=_zeros(GROUP, d),
        d_z=_zeros(GROUP, d),
        global_total=_zeros(GROUP, d),
        d_global_total=_zeros(GROUP, d),
        f_stage=_activations(rows, d),
        g_stage=_activations(rows, d),
        f_job=_activations(rows, d),
        g_job=_activations(jobs, d),
        f_global=_activations(jobs, d),
        g_global=_activations(GROUP, d),
        q=head(Transform.Q, rows),
        w=head(Transform.W, GROUP * num_levels),
        executor_class=head(Transform.CLASS, GROUP * room.options),
        idle=head(Transform.IDLE, GROUP * room.options),
        shared=_zeros(GROUP, 3 * d),
        d_shared=_zeros(GROUP, 3 * d),
        zeros=_zeros(HIDDEN_1),
        **_lists(room, rows, jobs),
    )
