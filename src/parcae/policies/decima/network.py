"""Decima for training in PyTorch: judged decisions whose gradient compiled kernels compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from parcae.policies.decima.kernels.training import Parts, Passes, differentiate, judge, summarize
from parcae.policies.decima.layout import EMBEDDING, SLOPE, DecimaSettings, shapes
from parcae.policies.decima.passes import Batch, Room, allocate_passes, parts_of
from parcae.policies.networks.layout import Weights
from parcae.policies.networks.ragged import Judged
from parcae.policies.networks.table import TableNetwork


class _Judge(torch.autograd.Function):
    """Log probabilities, entropies and summaries of decisions, by kernels.

    The gradient does not flow through the summaries.
    """

    @staticmethod
    def forward(ctx: Any, network: DecimaNetwork, batch: Batch, *weights: Tensor) -> Any:
        """Judge the decisions of a batch; see `kernels.training.judge`."""
        ctx.network = network
        ctx.batch = batch
        ctx.shapes = [weight.shape for weight in weights]
        ctx.parts = network.parts()
        size = len(batch)
        results = (
            np.zeros(size, np.float32),
            np.zeros(size, np.float32),
            np.zeros((size, EMBEDDING), np.float32),
        )
        work = network.passes(batch.room)
        judge(batch.decisions, batch.edges, ctx.parts, work, batch.index, *results)
        log_prob, entropy, z = (torch.from_numpy(a).to(weights[0].device) for a in results)
        ctx.mark_non_differentiable(z)
        return log_prob, entropy, z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradient of the weights."""
        network = ctx.network
        batch = ctx.batch
        slopes = [np.ascontiguousarray(gradient.cpu().numpy()) for gradient in gradients[:2]]
        flat = np.zeros(sum(shape.numel() for shape in ctx.shapes), np.float32)
        parts = parts_of(flat, network.settings, network.limits)
        work = network.passes(batch.room)
        differentiate(batch.decisions, batch.edges, ctx.parts, parts, work, batch.index, *slopes)
        pieces = (
            torch.from_numpy(flat)
            .to(gradients[0].device)
            .split_with_sizes([shape.numel() for shape in ctx.shapes])
        )
        pairs = zip(pieces, ctx.shapes, strict=True)
        return None, None, *(piece.view(shape) for piece, shape in pairs)


class DecimaNetwork(TableNetwork):
    """Decima's network; `layout` describes the architecture.

    Its kernels run on the processor, wherever the weights are.

    Args:
        weights: initial values by name.
        settings: which parts the network has.
        levels: int64[num_levels], the limits to choose from.
    """

    def __init__(
        self, weights: Weights, settings: DecimaSettings, levels: npt.NDArray[np.int64]
    ) -> None:
        super().__init__(weights, shapes(settings, len(levels)))
        self.settings = settings
        self.limits = levels
        self.critic = nn.Sequential(nn.Linear(EMBEDDING, 32), nn.LeakyReLU(SLOPE), nn.Linear(32, 1))
        self._room = Room(0, 0, 0, 0, 0)
        self._num_levels = 0
        self._passes: Passes | None = None

    def parts(self) -> Parts:
        """The present weights in the form that the kernels take."""
        weights = [weight.detach().cpu().numpy().ravel() for weight in super().by_name().values()]
        return parts_of(np.concatenate(weights), self.settings, self.limits)

    def passes(self, room: Room) -> Passes:
        """Buffers that are large enough."""
        levels = len(self.limits)
        if self._passes is None or not room <= self._room or levels != self._num_levels:
            self._passes = allocate_passes(room, self.settings, levels)
            self._room = room
            self._num_levels = levels
        return self._passes

    def forward(self, batch: Batch) -> Judged:
        """Evaluate recorded decisions: log probability of each choice, entropy, and state value."""
        weights = super().by_name().values()
        judged: Any = _Judge.apply(self, batch, *weights)  # type: ignore[no-untyped-call]
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
        z = np.zeros((len(batch), EMBEDDING), np.float32)
        work = self.passes(batch.room)
        summarize(batch.decisions, batch.edges, self.parts(), work, batch.index, z)
        return self.value_of(torch.from_numpy(z).to(next(self.parameters()).device))

    def by_name(self) -> dict[str, Tensor]:
        """Return the parameters of the network and the critic by name."""
        critic = {f"critic.{name}": p for name, p in self.critic.named_parameters()}
        return super().by_name() | critic

    def load_arrays(self, weights: Weights) -> None:
        """Set the weights that `weights` names; the others stay as they are."""
        super().load_arrays(self.export() | weights)
