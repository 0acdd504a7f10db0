"""Decima for training in PyTorch: judged decisions whose gradient compiled kernels compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from parcae.base.compiled.tables import empty_tables
from parcae.decima.graph.kernels.training import judge
from parcae.decima.graph.kernels.training_data import DIFFERENTIATE, EMBED, JUDGE, Loss, Results
from parcae.decima.graph.layout import EMBEDDING, SLOPE, DecimaSettings, shapes
from parcae.decima.graph.passes import Batch, BufferRoom, TrainingTables
from parcae.policies.networks.layout import Weights, flat, places, require_shapes
from parcae.policies.networks.training import Judged, NamedNetwork, Surrogate

FloatArray = npt.NDArray[np.float32]
#: Relative difference up to which the slopes of a loss count as those that were expected.
_ROUNDING = 1e-5


class _Judge(torch.autograd.Function):
    """Log probabilities, entropies and summaries of decisions, by kernels.

    The gradient does not flow through the summaries.
    """

    @staticmethod
    def forward(
        ctx: Any,
        network: DecimaNetwork,
        batch: Batch,
        surrogate: Surrogate | None,
        weights: Tensor,
    ) -> Any:
        """Judge the decisions of a batch, and differentiate the loss if it is known."""
        ctx.network = network
        ctx.batch = batch
        ctx.results = _results(len(batch))
        loss = _JUDGE if surrogate is None else _loss(surrogate)
        ctx.gradient = network.run_kernel(batch, loss, ctx.results)
        ctx.is_known = surrogate is not None
        log_prob, entropy, z = (torch.from_numpy(a).to(weights.device) for a in ctx.results[:3])
        ctx.mark_non_differentiable(z)
        return log_prob, entropy, z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradient of the weights."""
        slopes = [np.ascontiguousarray(gradient.cpu().numpy()) for gradient in gradients[:2]]
        if not ctx.is_known or not _are_close(slopes, ctx.results[3:]):
            given = _results(len(ctx.batch))._replace(d_log_prob=slopes[0], d_entropy=slopes[1])
            ctx.gradient = ctx.network.run_kernel(ctx.batch, _GIVEN, given)
        return None, None, None, torch.from_numpy(ctx.gradient).to(gradients[0].device)


def _results(size: int) -> Results:
    """Room for the results of this many decisions."""
    return Results(**empty_tables(Results, decisions=size))


def _loss(surrogate: Surrogate) -> Loss:
    """The loss in the form that the kernel takes."""
    old = surrogate.old_log_prob
    return Loss(
        weight=surrogate.weight,
        old_log_prob=_NONE if old is None else old,
        clip=np.float32(surrogate.clip),
        least=np.float32(surrogate.least),
        entropy=np.float32(surrogate.entropy),
        has_ratio=old is not None,
        is_given=False,
        goal=DIFFERENTIATE,
    )


_NONE = np.zeros(0, np.float32)
#: Stand for a loss whose slopes are given, or that is not wanted.
_GIVEN = _loss(Surrogate(_NONE))._replace(is_given=True)
_JUDGE = _GIVEN._replace(goal=JUDGE)
_EMBED = _GIVEN._replace(goal=EMBED)


def _are_close(slopes: list[FloatArray], expected: Sequence[FloatArray]) -> bool:
    """Whether the slopes of a loss are those that were expected, but for rounding."""
    return all(
        float(np.abs(array - other).max()) <= _ROUNDING * float(np.abs(array).max())
        for array, other in zip(slopes, expected, strict=True)
    )


class DecimaNetwork(NamedNetwork):
    """Decima's network; `layout` describes the architecture.

    Its kernels run on the processor, wherever the weights are. All weights but the critic's are one
    parameter: a step of an optimizer takes about as long for an array of any size.

    Args:
        weights: initial values by name; weights of the critic that are missing are drawn.
        settings: which parts the network has.
        levels: int64[num_levels], the limits to choose from.

    Raises:
        FormatError: a weight is missing or has another shape.
    """

    def __init__(
        self, weights: Weights, settings: DecimaSettings, levels: npt.NDArray[np.int64]
    ) -> None:
        all_shapes = shapes(settings, len(levels))
        super().__init__(all_shapes)
        source = "the weights to start from"
        array = flat(weights, all_shapes, source)
        self.flat = nn.Parameter(torch.from_numpy(array))
        self.settings = settings
        self.limits = levels
        self.critic = nn.Sequential(nn.Linear(EMBEDDING, 32), nn.LeakyReLU(SLOPE), nn.Linear(32, 1))
        self._places = places(all_shapes)
        start = self.export() | weights
        named = self.by_name().items()
        require_shapes(start, {name: tuple(array.shape) for name, array in named}, source)
        self.load_arrays(start)
        self._tables = TrainingTables(BufferRoom(), settings, len(levels))

    def run_kernel(self, batch: Batch, loss: Loss, results: Results) -> FloatArray:
        """Judge decisions, and return the gradient of their loss, in the order of the weights."""
        tables = self._tables
        if not batch.room.is_within(tables.room) or len(self.limits) != tables.num_levels:
            self._tables = tables = TrainingTables(batch.room, self.settings, len(self.limits))
        work = tables.with_weights(self.flat.detach().cpu().numpy())
        judge(batch.decisions, batch.edges, work, batch.index, loss, results)
        return tables.gradient.copy()

    def forward(self, batch: Batch) -> Judged:
        """Evaluate recorded decisions: log probability of each choice, entropy, and state value."""
        return self._judged(batch, None)

    def judge(self, batch: Batch, surrogate: Surrogate) -> Judged:
        """Evaluate decisions like `forward`, in one pass with the gradient of the loss.

        With another loss than `surrogate`, the gradient is computed again.
        """
        return self._judged(batch, surrogate)

    def _judged(self, batch: Batch, surrogate: Surrogate | None) -> Judged:
        judged: Any = _Judge.apply(  # type: ignore[no-untyped-call]
            self, batch, surrogate, self.flat
        )
        log_prob, entropy, z = judged
        return Judged(log_prob, entropy, self.value_of(z))

    def value_of(self, z: Tensor) -> Tensor:
        """Return the critic's value of cluster summaries z, float32[B].

        The gradient stops at z, so that the critic does not change the embeddings.
        """
        value: Tensor = self.critic(z.detach()).squeeze(1)
        return value

    def value(self, batch: Batch) -> Tensor:
        """Return the critic's value of every state, float32[B]."""
        results = _results(len(batch))
        self.run_kernel(batch, _EMBED, results)
        return self.value_of(torch.from_numpy(results.z).to(next(self.parameters()).device))

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
