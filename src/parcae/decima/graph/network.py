"""Decima for training in PyTorch: judged decisions whose gradient compiled kernels compute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from parcae.base.compiled.tables import empty_tables
from parcae.decima.graph.kernels.recording import GraphRecord
from parcae.decima.graph.kernels.training import judge
from parcae.decima.graph.kernels.training_data import (
    Edges,
    Head,
    Loss,
    Passes,
    Results,
    TransformPass,
)
from parcae.decima.graph.layout import EMBEDDING, SLOPE, DecimaSettings, Transform, shapes
from parcae.policies.networks.layout import Weights, flat, places, require_shapes
from parcae.policies.networks.training import Judged, NamedNetwork, Surrogate

FloatArray = npt.NDArray[np.float32]

#: Most decisions of a group, the stages after which a group has enough, and those that all its jobs
#: list. A group's numbers should fit into the second cache of a processor.
GROUP = 32
_GROUP_ROWS = 1024
_GROUP_LISTED = 4 * _GROUP_ROWS
#: Weights and biases of the layers of a transform that the network lacks.
_NO_LAYERS = (np.zeros((0, 0), np.float32), np.zeros(0, np.float32)) * 3


@dataclass(frozen=True)
class Batch:
    """B recorded decisions, and the tables of the kernel, which have room for them."""

    decisions: GraphRecord
    edges: Edges
    index: npt.NDArray[np.int64]
    tables: TrainingTables

    def __len__(self) -> int:
        return len(self.index)


class TrainingTables:
    """The flat weights and their gradient, and the tables of the kernel, which are views of them.

    Args:
        settings: which parts the network has.
        num_levels: number of limits to choose from.
        sizes: what the buffers must have room for: rows, jobs, edges, stages, options, states,
            recorded.
    """

    def __init__(self, settings: DecimaSettings, num_levels: int, **sizes: int) -> None:
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
        self._passes = self._allocate(num_levels, **sizes)

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
        nothing = (np.zeros(1, np.float32), np.zeros(1, np.float32))
        none = self._arrays.get(f"{transform.name.lower()}.none", nothing)
        return Head(part, np.array(columns, np.int64), *none, **buffers)

    def _allocate(
        self, num_levels: int, *, rows: int, jobs: int, edges: int, options: int, **sizes: int
    ) -> Passes:
        settings = self._settings
        d = EMBEDDING
        listed = max(rows, _GROUP_LISTED)
        rows = max(rows, _GROUP_ROWS)
        jobs = max(jobs, _GROUP_ROWS)
        inputs = np.zeros((rows, settings.num_features + d), np.float32)
        options *= GROUP
        return Passes(
            f_stage=self._part(Transform.F_STAGE, rows),
            g_stage=self._part(Transform.G_STAGE, rows),
            f_job=self._part(Transform.F_JOB, rows),
            g_job=self._part(Transform.G_JOB, jobs),
            f_global=self._part(Transform.F_GLOBAL, jobs),
            g_global=self._part(Transform.G_GLOBAL, GROUP),
            q=self._head(Transform.Q, rows, 0, d, 2 * d),
            w=self._head(Transform.W, GROUP * num_levels, *settings.limit_places),
            classes=self._head(Transform.CLASS, options, 0, d, 2 * d),
            idle=self._head(Transform.IDLE, options, 0, d, 2 * d),
            prep_weight=self._arrays["prep.1.weight"][0],
            prep_bias=self._arrays["prep.1.bias"][0],
            d_prep_weight=self._arrays["prep.1.weight"][1],
            d_prep_bias=self._arrays["prep.1.bias"][1],
            has_graph=settings.has_graph,
            has_two_transforms=settings.has_two_transforms,
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
                listed=listed,
                keys=2 * sizes["stages"] + 3,
                edges=GROUP * edges,
                **sizes,
            ),
        )


_NONE = np.zeros(0, np.float32)


def _loss(surrogate: Surrogate | None) -> Loss:
    """The loss in the form that the kernel takes; None: it is not wanted."""
    given = surrogate or Surrogate(_NONE)
    old = given.old_log_prob
    return Loss(
        weight=given.weight,
        old_log_prob=_NONE if old is None else old,
        clip=np.float32(given.clip),
        least=np.float32(given.least),
        entropy=np.float32(given.entropy),
        has_ratio=old is not None,
        is_wanted=surrogate is not None,
    )


class DecimaNetwork(NamedNetwork):
    """Decima's network; `layout` describes the architecture.

    Its kernels run on the processor, wherever the weights are. All weights but the critic's are one
    parameter: a step of an optimizer takes about as long for an array of any size.

    Args:
        weights: initial values by name; weights of the critic that are missing are drawn.
        settings: which parts the network has.
        num_levels: number of limits to choose from.

    Raises:
        FormatError: a weight is missing or has another shape.
    """

    def __init__(self, weights: Weights, settings: DecimaSettings, num_levels: int) -> None:
        all_shapes = shapes(settings, num_levels)
        super().__init__(all_shapes)
        source = "the weights to start from"
        array = flat(weights, all_shapes, source)
        self.flat = nn.Parameter(torch.from_numpy(array))
        self.critic = nn.Sequential(nn.Linear(EMBEDDING, 32), nn.LeakyReLU(SLOPE), nn.Linear(32, 1))
        self._places = places(all_shapes)
        start = self.export() | weights
        named = self.by_name().items()
        require_shapes(start, {name: tuple(array.shape) for name, array in named}, source)
        self.load_arrays(start)

    def _run(self, batch: Batch, surrogate: Surrogate | None) -> tuple[list[Tensor], Tensor]:
        """Log probabilities, entropies and summaries of decisions, and the gradient of a loss."""
        work = batch.tables.with_weights(self.flat.detach().cpu().numpy())
        results = Results(**empty_tables(Results, decisions=len(batch)))
        judge(batch.decisions, batch.edges, work, batch.index, _loss(surrogate), results)
        there = self.flat.device
        gradient = torch.from_numpy(batch.tables.gradient.copy()).to(there)
        return [torch.from_numpy(array).to(there) for array in results], gradient

    def judge(self, batch: Batch, surrogate: Surrogate) -> tuple[Tensor, Judged]:
        """The loss of decisions, whose gradient the kernel computes, and what it says of them."""
        (log_prob, entropy, z), gradient = self._run(batch, surrogate)
        judged = Judged(log_prob, entropy, self.value_of(z))
        # A sum that adds nothing to the loss, and to the weights' gradient that of the kernel.
        return surrogate.loss(judged) + gradient @ (self.flat - self.flat.detach()), judged

    def value_of(self, z: Tensor) -> Tensor:
        """Return the critic's value of cluster summaries z, float32[B].

        The gradient stops at z, so that the critic does not change the embeddings.
        """
        value: Tensor = self.critic(z.detach()).squeeze(1)
        return value

    def value(self, batch: Batch) -> Tensor:
        """Return the critic's value of every state, float32[B]."""
        (*_, z), _ = self._run(batch, None)
        return self.value_of(z)

    def by_name(self) -> dict[str, Tensor]:
        """Return the weights of the network and the critic by name."""
        critic = {f"critic.{name}": p for name, p in self.critic.named_parameters()}
        return super().by_name() | critic

    def array(self, name: str) -> Tensor:
        """Return the weights with this name, as a part of the parameter `flat`."""
        place, shape = self._places[name]
        return self.flat[place].view(shape)

    def load_arrays(self, weights: Weights) -> None:
        """Set the weights that `weights` names; the others stay as they are."""
        super().load_arrays(self.export() | weights)
