"""PyTorch networks whose weights have names, as in their layouts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from parcae.base.arrays import Float32Array, Int64Array
from parcae.base.errors import saved_by_older_version
from parcae.policies.networks.layout import (
    SLOPE,
    DeepSet,
    Shapes,
    Weights,
    joined,
    require_shapes,
)

#: Choices with log probabilities below this count as impossible.
_LEAST = -50.0


@dataclass(frozen=True)
class Judged:
    """What a network returns for a batch of B recorded decisions.

    Args:
        log_prob: float32[B], log probability of each recorded choice.
        entropy: float32[B], entropy of the distributions that the choice was drawn from.
        value: float32[B], the critic's value of the state.
    """

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


@dataclass(frozen=True)
class Surrogate:
    """The loss of B decisions: -sum_k weight_k g(log_prob_k) - entropy x sum_k entropy_k.

    With old log probabilities, g is PPO's clipped probability ratio; else it is the log
    probability, or `least` if that is higher.

    Example: a choice whose probability doubled, with weight 1 and clip 0.2, counts -1.2.

    Args:
        weight: float32[B].
        old_log_prob: float32[B], log probabilities under the policy that drew the decisions.
        clip: clipping range of the ratio.
        least: smallest log probability that differs from smaller ones.
        entropy: weight of the entropies.
    """

    weight: Float32Array
    old_log_prob: Float32Array | None = None
    clip: float = 0.0
    least: float = -np.inf
    entropy: float = 0.0

    def loss(self, judged: Judged) -> Tensor:
        """The loss of decisions that a network has judged."""
        log_prob = judged.log_prob
        weight = torch.from_numpy(self.weight).to(log_prob.device)
        if self.old_log_prob is None:
            gained = weight * log_prob.clamp(min=self.least)
        else:
            old = torch.from_numpy(self.old_log_prob).to(log_prob.device)
            ratio = torch.exp(log_prob - old)
            clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
            gained = torch.minimum(ratio * weight, clipped * weight)
        return -gained.sum() - self.entropy * judged.entropy.sum()


def ragged_log_softmax(
    logits: Tensor, owner: Tensor, size: int, extra: Tensor | None = None
) -> Tensor:
    """Return the log probabilities within each of `size` sets, float32[R]."""
    top = logits.new_full((size,), -1e30) if extra is None else extra.detach().clamp(min=-1e30)
    top = top.scatter_reduce(0, owner, logits.detach(), "amax").clamp(min=-1e30)
    total = logits.new_zeros(size).index_add(0, owner, torch.exp(logits - top[owner]))
    if extra is not None:
        total = total + torch.exp(extra - top)
    log_total = top + torch.log(total.clamp(min=1e-30))
    log_prob = logits - log_total.index_select(0, owner)
    return log_prob if extra is None else torch.cat([log_prob, extra - log_total])


def entropy_terms(log_prob: Tensor) -> Tensor:
    """Return -p log p for each log probability, 0 for impossible choices."""
    finite = log_prob.clamp(min=_LEAST)
    return -torch.exp(finite) * finite * (log_prob > _LEAST)


def set_rate(
    optimizer: torch.optim.Optimizer, rate: float, final_share: float, left: float
) -> float:
    """Set a learning rate that falls linearly to a share of `rate`, where `left` is the share of
    the training that is left. Returns the present share of `rate`.
    """
    fade = final_share + (1.0 - final_share) * left
    for group in optimizer.param_groups:
        group["lr"] = rate * fade
    return fade


def optimizer_state(
    named: Iterable[tuple[str, Tensor]], optimizer: torch.optim.Optimizer
) -> Weights:
    """Copies of an optimizer's moments and numbers of steps, by key and the parameter's name."""
    return {
        f"{key}.{name}": np.atleast_1d(value.detach().cpu().numpy()).copy()
        for name, parameter in named
        for key, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def restore_optimizer(
    named: Iterable[tuple[str, Tensor]], optimizer: torch.optim.Optimizer, state: Weights
) -> None:
    """Restore what `optimizer_state` returned."""
    moments: dict[str, dict[str, Any]] = {}
    for place, array in state.items():
        key, name = place.split(".", 1)
        moments.setdefault(name, {})[key] = array
    for name, parameter in named:
        optimizer.state.pop(parameter, None)
        if saved := moments.pop(name, None):
            optimizer.state[parameter] = {
                key: torch.tensor(float(array[0]))
                if key == "step"
                else torch.from_numpy(array.copy()).reshape(parameter.shape).to(parameter.device)
                for key, array in saved.items()
            }
    if moments:
        raise saved_by_older_version()


class NamedNetwork(nn.Module, ABC):
    """A network whose weights have names; matrices are [in, out].

    Args:
        names: the names in the layout.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = tuple(names)

    @abstractmethod
    def array(self, name: str) -> Tensor:
        """Return the weights with this name; they share memory with the network."""

    def by_name(self) -> dict[str, Tensor]:
        """Return all weights by their names in the layout; they share memory with the network."""
        return {name: self.array(name) for name in self.names}

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Return x times the matrix NAME.weight, plus NAME.bias."""
        return torch.addmm(self.array(f"{name}.bias"), x, self.array(f"{name}.weight"))

    def judge(self, batch: Any, surrogate: Surrogate) -> tuple[Tensor, Judged]:
        """The loss of decisions, and what the network says of them."""
        judged: Judged = self(batch)
        return surrogate.loss(judged), judged

    def load_arrays(self, weights: Weights) -> None:
        """Set all weights."""
        with torch.no_grad():
            for name, parameter in self.by_name().items():
                array = torch.from_numpy(np.array(weights[name], np.float32))
                parameter.copy_(array.to(parameter.device))

    def export(self) -> Weights:
        """Return the weights as arrays, by the names of the layout."""
        return {
            name: parameter.detach().cpu().numpy().astype(np.float32)
            for name, parameter in self.by_name().items()
        }


class TableNetwork(NamedNetwork):
    """A network with a table of parameters.

    Parameters are named as in the layout, with _ for the dot.

    Raises:
        FormatError: a weight is missing or has another shape.
    """

    def __init__(self, weights: Weights, shapes: Shapes) -> None:
        super().__init__(shapes)
        require_shapes(weights, shapes, "the weights to start from")
        self.table = nn.ParameterDict(
            {
                name.replace(".", "_"): nn.Parameter(
                    torch.from_numpy(np.array(weights[name], np.float32))
                )
                for name in self.names
            }
        )

    def array(self, name: str) -> Tensor:
        """Return the parameter with this name."""
        parameter: Tensor = self.table[name.replace(".", "_")]
        return parameter


@dataclass(frozen=True)
class JobChoices:
    """A batch of B recorded choices of a job or hold, over R jobs.

    Args:
        rows: float32[R, job features]; the jobs of all decisions lie one after another.
        owner: int64[R], the decision that a job belongs to.
        first_row: int64[B], the decision's first job.
        num_jobs: int64[B].
        shared: float32[B, shared features].
        choice: int64[B], position of the chosen job, or the number of jobs for hold.
    """

    rows: Tensor
    owner: Tensor
    first_row: Tensor
    num_jobs: Tensor
    shared: Tensor
    choice: Tensor

    def __len__(self) -> int:
        return len(self.choice)


class JobData:
    """Recorded choices of a job, joined, as a data set (`parcae.decima.learning.updates.DataSet`).

    Args:
        records: records with the columns of `kind`; the jobs of a decision lie in "rows".
        spans: first and last + 1 decision that is taken of each record.
        kind: what the network takes.
    """

    def __init__(
        self, records: Sequence[Any], spans: Sequence[tuple[int, int]], kind: type[JobChoices]
    ) -> None:
        self.table = joined(records, spans)
        self.log_prob: Float32Array = self.table.log_prob
        self._kind = kind

    def __len__(self) -> int:
        return len(self.log_prob)

    def shuffled(self, rng: np.random.Generator) -> Int64Array:
        """All indices, in random order."""
        return rng.permutation(len(self))

    def decisions(self, index: Int64Array, device: torch.device) -> Any:
        """The decisions with these indices as tensors."""
        # `row` are the indices of the chosen decisions' job rows, one decision after another.
        counts = self.table.num_jobs[index]
        starts = np.cumsum(counts) - counts
        row = np.repeat(self.table.first_row[index] - starts, counts) + np.arange(counts.sum())
        owner = np.repeat(np.arange(len(index)), counts)
        columns = {"owner": owner, "first_row": starts, "num_jobs": counts}
        for field in fields(self._kind):
            if field.name not in columns:
                is_of_jobs = self.table._field_defaults[field.name].axes[0] == "rows"
                columns[field.name] = getattr(self.table, field.name)[row if is_of_jobs else index]
        return self._kind(**{n: torch.from_numpy(a).to(device) for n, a in columns.items()})


class DeepSetNetwork(TableNetwork):
    """A network that chooses a job or holds, with a critic."""

    #: The sizes and columns.
    NET: ClassVar[DeepSet]

    def _layer(self, name: str, x: Tensor) -> Tensor:
        """A linear layer with leaky rectifier."""
        return nn.functional.leaky_relu(self.linear(name, x), SLOPE)

    def _contexts(self, batch: JobChoices) -> tuple[Tensor, Tensor]:
        """h_j of every job [R, H], and g of every decision [B, H]."""
        hidden = self._layer("job2", self._layer("job1", batch.rows))
        pooled = hidden.new_zeros(len(batch), self.NET.hidden)
        pooled = pooled.index_add(0, batch.owner, hidden)
        pooled = pooled / batch.num_jobs.clamp(min=1).unsqueeze(1)
        return hidden, self._layer("context", torch.cat([pooled, batch.shared], 1))

    def _value(self, context: Tensor) -> Tensor:
        # The critic's loss must not change the layers that it shares with the actor, hence detach.
        layer = self._layer("value1", context.detach())
        out = layer @ self.table["value2_weight"] + self.table["value2_bias"]
        value: Tensor = out.squeeze(1)
        return value

    def _choices(
        self, batch: JobChoices, hidden: Tensor, context: Tensor, can_choose: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(logits of jobs [R], logits of hold [B]); those of impossible choices are -inf."""
        net = self.NET
        weight = self.table["choice1_weight"]
        # The product with [h_j, g] is split into its two parts, since all jobs of a decision share
        # the part of g.
        base = torch.addmm(self.table["choice1_bias"], context, weight[net.hidden :])
        layer = nn.functional.leaky_relu(
            hidden @ weight[: net.hidden] + base.index_select(0, batch.owner), SLOPE
        )
        prior = self.table["prior"]
        jobs = (layer @ self.table["choice2_weight"]).squeeze(1)
        jobs = jobs + prior[0] * batch.rows[:, net.is_rule]
        hold = (context @ self.table["hold_weight"]).squeeze(1) + self.table["hold_bias"]
        hold = hold + prior[1] * batch.shared[:, net.rule_holds]
        hold = hold.masked_fill(batch.shared[:, net.can_hold] == 0, -torch.inf)
        return jobs.masked_fill(~can_choose, -torch.inf), hold

    @staticmethod
    def _judged(batch: JobChoices, jobs: Tensor, hold: Tensor) -> tuple[Tensor, Tensor]:
        """Log probability of every recorded choice of a job or hold, and entropy, [B] each."""
        log_probs = ragged_log_softmax(jobs, batch.owner, len(batch), hold)
        log_jobs = log_probs[: len(jobs)]
        log_hold = log_probs[len(jobs) :]
        # A choice to hold is one past the decision's jobs; the clamp keeps its row in bounds.
        row = (batch.first_row + batch.choice).clamp(max=len(jobs) - 1)
        is_job = batch.choice < batch.num_jobs
        log_prob = torch.where(is_job, log_jobs.index_select(0, row), log_hold)
        entropy = entropy_terms(log_hold).index_add(0, batch.owner, entropy_terms(log_jobs))
        return log_prob, entropy
