"""The arrays that Decima's training kernel takes: views of flat weights, and buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.base.compiled.tables import empty_tables
from parcae.decima.graph.kernels.recording import GraphRecord
from parcae.decima.graph.kernels.training_data import Edges, Head, Passes, TransformPass
from parcae.decima.graph.layout import (
    EMBEDDING,
    LIMIT_KINDS,
    NO_SLOT_NAME,
    DecimaSettings,
    Transform,
    shapes,
)
from parcae.policies.networks.layout import places

FloatArray = npt.NDArray[np.float32]

#: Most decisions of a group, the stages after which a group has enough, and those that all its jobs
#: list. A group's numbers should fit into the second cache of a processor.
GROUP = 32
_GROUP_ROWS = 1024
_GROUP_LISTED = 4 * _GROUP_ROWS
#: Weights and biases of the layers of a transform that the network lacks.
_NO_LAYERS = (np.zeros((0, 0), np.float32), np.zeros(0, np.float32)) * 3


class BufferRoom(NamedTuple):
    """What the buffers must have room for."""

    rows: int = 0
    jobs: int = 0
    edges: int = 0
    stages: int = 0
    options: int = 0
    states: int = 0
    recorded: int = 0

    def is_within(self, other: BufferRoom) -> bool:
        """Whether the other room is enough."""
        return all(a <= b for a, b in zip(self, other, strict=True))


@dataclass(frozen=True)
class Batch:
    """B recorded decisions."""

    decisions: GraphRecord
    edges: Edges
    index: npt.NDArray[np.int64]
    room: BufferRoom

    def __len__(self) -> int:
        return len(self.index)


class TrainingTables:
    """The flat weights and their gradient, and the tables of the kernel, which are views of them.

    Args:
        room: what the buffers must have room for.
        settings: which parts the network has.
        num_levels: number of limits to choose from.
    """

    def __init__(self, room: BufferRoom, settings: DecimaSettings, num_levels: int) -> None:
        self.room = room
        self.num_levels = num_levels
        self._settings = settings
        by_name = places(shapes(settings, num_levels))
        size = max(place.stop for place, _ in by_name.values())
        #: float32[size], in the order of `layout.shapes`.
        self.weights = np.zeros(size, np.float32)
        self.gradient = np.zeros(size, np.float32)
        self._arrays = {
            name: (self.weights[place].reshape(shape), self.gradient[place].reshape(shape))
            for name, (place, shape) in by_name.items()
        }
        self._transposed = list[tuple[FloatArray, FloatArray]]()
        self._passes = self._allocate()

    def with_weights(self, weights: FloatArray) -> Passes:
        """Return the tables with these weights and a gradient of zero."""
        self.weights[:] = weights
        self.gradient[:] = 0.0
        for target, source in self._transposed:
            np.copyto(target, source.T)
        return self._passes

    def _part(self, transform: Transform, rows: int) -> TransformPass:
        name = transform.name.lower()
        layers = [f"{name}.{layer}.{kind}" for layer in (1, 2, 3) for kind in ("weight", "bias")]
        pairs = [
            self._arrays.get(one, (none, none))
            for one, none in zip(layers, _NO_LAYERS, strict=True)
        ]
        weights = [weight for weight, _ in pairs]
        # Of the inputs of the first layer, only embeddings have a gradient.
        first = self._settings.num_features if transform is Transform.F_JOB else 0
        embedded = 3 * EMBEDDING
        if transform is Transform.W:
            embedded = len(self._settings.limit_places) * EMBEDDING
        matrices = [weights[0][first : first + embedded], weights[2], weights[4]]
        turned = [np.zeros(matrix.shape[::-1], np.float32) for matrix in matrices]
        self._transposed += zip(turned, matrices, strict=True)
        buffers = empty_tables(TransformPass, rows=rows, outputs=weights[4].shape[1])
        return TransformPass(*weights, *(slope for _, slope in pairs), *turned, **buffers)

    def _head(self, transform: Transform, options: int, *columns: int) -> Head:
        """The buffers of a head, for this many options of all decisions of a group."""
        part = self._part(transform, options)
        buffers = empty_tables(
            Head,
            options=options,
            inputs=len(part.w1),
            embedded=part.t1.shape[1],
            bounds=GROUP + 1,
            decisions=GROUP,
        )
        return Head(part, np.array(columns, np.int64), **buffers)

    def _allocate(self) -> Passes:
        room = self.room
        settings = self._settings
        d = EMBEDDING
        rows = max(room.rows, _GROUP_ROWS)
        jobs = max(room.jobs, _GROUP_ROWS)
        inputs = np.zeros((rows, settings.num_features + d), np.float32)
        no_slot = np.zeros(1, np.float32)
        no_slots = self._arrays.get(NO_SLOT_NAME, (no_slot, no_slot))
        options = GROUP * room.options
        return Passes(
            f_stage=self._part(Transform.F_STAGE, rows),
            g_stage=self._part(Transform.G_STAGE, rows),
            f_job=self._part(Transform.F_JOB, rows),
            g_job=self._part(Transform.G_JOB, jobs),
            f_global=self._part(Transform.F_GLOBAL, jobs),
            g_global=self._part(Transform.G_GLOBAL, GROUP),
            q=self._head(Transform.Q, rows, 0, d, 2 * d),
            w=self._head(Transform.W, GROUP * self.num_levels, *settings.limit_places),
            executor_class=self._head(Transform.CLASS, options, 0, d, 2 * d),
            idle=self._head(Transform.IDLE, options, 0, d, 2 * d),
            prep_weight=self._arrays["prep.1.weight"][0],
            prep_bias=self._arrays["prep.1.bias"][0],
            d_prep_weight=self._arrays["prep.1.weight"][1],
            d_prep_bias=self._arrays["prep.1.bias"][1],
            no_slot=no_slots[0],
            d_no_slot=no_slots[1],
            has_graph=settings.has_graph,
            has_two_transforms=settings.has_two_transforms,
            limits=LIMIT_KINDS[settings.limits],
            inputs=inputs,
            x=inputs[:, : settings.num_features],
            e=inputs[:, settings.num_features :],
            **empty_tables(
                Passes,
                rows=rows,
                jobs=jobs,
                decisions=GROUP,
                bounds=GROUP + 1,
                firsts=jobs + 1,
                listed=max(room.rows, _GROUP_LISTED),
                states=room.states,
                recorded=room.recorded,
                stages=room.stages,
                keys=2 * room.stages + 3,
                edges=GROUP * room.edges,
            ),
        )
