"""Decima in plain PyTorch, over ragged batches of decisions: what the kernels must equal."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from parcae.decima.graph.family import GraphDecisions
from parcae.decima.graph.layout import (
    EMBEDDING,
    NO_SLOT_NAME,
    SLOPE,
    DecimaSettings,
    Limits,
    Transform,
    shapes,
)
from parcae.policies.networks.layout import Weights
from parcae.policies.networks.training import (
    Judged,
    TableNetwork,
    entropy_terms,
    ragged_log_softmax,
)


@dataclass(frozen=True)
class Graphs:
    """A batch of B decisions over J jobs and S unfinished stages, one after another."""

    x: Tensor  # float32[S, num_features]
    job: Tensor  # int64[S], each stage's job
    owner: Tensor  # int64[J], each job's decision
    #: For every height from 1 on, (parents, children), int64 rows of stages. When a height is
    #: processed, the embeddings of all lower heights are complete.
    edges: list[tuple[Tensor, Tensor]]
    option: Tensor  # int64[O], stages that may be chosen
    option_owner: Tensor  # int64[O], each option's decision
    option_x: Tensor  # float32[O, num_direct]
    chosen: Tensor  # int64[B], the chosen option
    # Of each head, int64[B], bool[B, options], float32[B, options, features of an option]; without
    # a head there are no options.
    level: Tensor
    can_limit: Tensor
    limit_x: Tensor
    class_choice: Tensor
    can_class: Tensor
    class_x: Tensor
    idle_choice: Tensor
    can_idle: Tensor

    def __len__(self) -> int:
        return len(self.chosen)

    def double(self) -> Graphs:
        """The same decisions with numbers of double precision."""
        names = ("x", "option_x", "limit_x", "class_x")
        return replace(self, **{name: getattr(self, name).double() for name in names})

    def to(self, device: torch.device) -> Graphs:
        """The same decisions on a device."""
        edges = [(parents.to(device), children.to(device)) for parents, children in self.edges]
        tensors = {name: value.to(device) for name, value in vars(self).items() if name != "edges"}
        return Graphs(edges=edges, **tensors)


class PlainDecima(TableNetwork):
    """Decima's network with these weights, settings, and limits to choose from."""

    def __init__(self, weights: Weights, settings: DecimaSettings, levels: np.ndarray) -> None:
        super().__init__(weights, shapes(settings, len(levels)))
        self.settings = settings
        self.levels: Tensor
        self.register_buffer("levels", torch.from_numpy((levels / levels[-1]).astype(np.float32)))
        self.critic = nn.Sequential(nn.Linear(EMBEDDING, 32), nn.LeakyReLU(SLOPE), nn.Linear(32, 1))

    def _score(self, transform: Transform, x: Tensor) -> Tensor:
        """A transform with a linear last layer."""
        for layer in (1, 2):
            x = self.linear(f"{transform.name.lower()}.{layer}", x)
            x = nn.functional.leaky_relu(x, SLOPE)
        return self.linear(f"{transform.name.lower()}.3", x)

    def _transform(self, transform: Transform, x: Tensor) -> Tensor:
        return nn.functional.leaky_relu(self._score(transform, x), SLOPE)

    def _score_each(self, transform: Transform, shared: Tensor, separate: Tensor) -> Tensor:
        """The scores of n options [B, n], from what they share [B, ...] and their own [B, n, k]."""
        count = separate.shape[1]
        separate = separate.expand(len(shared), -1, -1)
        joined = torch.cat([shared.unsqueeze(1).expand(-1, count, -1), separate], 2)
        return self._score(transform, joined.flatten(0, 1)).view(len(shared), count)

    def _sum(self, x: Tensor, owner: Tensor, count: int, g: Transform) -> Tensor:
        """g of the sums of rows by owner, or the sums alone."""
        total = x.new_zeros(count, EMBEDDING).index_add(0, owner, x)
        return self._transform(g, total) if self.settings.has_two_transforms else total

    def _embed(self, batch: Graphs) -> tuple[Tensor, Tensor, Tensor]:
        """The embeddings of stages [S, d], jobs [J, d] and decisions [B, d] by Eq. 1."""
        e = prepared = self.linear("prep.1", batch.x)
        jobs = len(batch.owner)
        if not self.settings.has_graph:
            return e, e.new_zeros(jobs, EMBEDDING), e.new_zeros(len(batch), EMBEDDING)
        for parents, children in batch.edges:
            rows, position = torch.unique(parents, return_inverse=True)
            messages = self._transform(Transform.F_STAGE, e.index_select(0, children))
            total = self._sum(messages, position, len(rows), Transform.G_STAGE)
            e = e.index_copy(0, rows, prepared.index_select(0, rows) + total)
        f2 = self._transform(Transform.F_JOB, torch.cat([batch.x, e], 1))
        y = self._sum(f2, batch.job, jobs, Transform.G_JOB)
        f3 = self._transform(Transform.F_GLOBAL, y)
        return e, y, self._sum(f3, batch.owner, len(batch), Transform.G_GLOBAL)

    def _limit_logits(self, batch: Graphs, e: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """The logits of every level for the chosen stages, [B, num_levels]."""
        settings = self.settings
        if settings.has_job_features:
            shared = torch.cat([y, z, batch.option_x[batch.chosen]], 1)
            return self._score_each(Transform.W, shared, batch.limit_x)
        if settings.limits is Limits.NONE:
            return z.new_zeros(len(z), len(self.levels))
        parts = [y if settings.has_graph else e, z]
        if settings.limits is Limits.OUTPUTS:
            return self._score(Transform.W, torch.cat(parts, 1))
        if settings.limits is Limits.STAGE:
            parts.append(e)
        return self._score_each(Transform.W, torch.cat(parts, 1), self.levels.view(1, -1, 1))

    def forward(self, batch: Graphs) -> Judged:
        """Evaluate recorded decisions: log probability of each choice, entropy, and state value."""
        settings = self.settings
        e, y, z = self._embed(batch)
        job = batch.job
        option = batch.option
        owner = batch.option_owner
        inputs = [e[option], y[job[option]], z[owner], batch.option_x]
        logits = self._score(Transform.Q, torch.cat(inputs, 1)).squeeze(1)
        log_stages = ragged_log_softmax(logits, owner, len(batch))
        chosen = option[batch.chosen]
        e, y = e.index_select(0, chosen), y.index_select(0, job[chosen])
        heads = [(self._limit_logits(batch, e, y, z), batch.can_limit, batch.level)]
        shared = torch.cat([e, y, z], 1)
        if settings.executor_classes:
            logits = self._score_each(Transform.CLASS, shared, batch.class_x)
            heads.append((logits, batch.can_class, batch.class_choice))
        if lengths := settings.idle_lengths:
            shares = torch.linspace(0.0, 1.0, lengths + 1).to(shared).view(1, -1, 1)
            none = nn.functional.pad(self.array(NO_SLOT_NAME), (0, lengths))
            logits = self._score_each(Transform.IDLE, shared, shares) + none
            heads.append((logits, batch.can_idle, batch.idle_choice))
        log_prob = log_stages.index_select(0, batch.chosen)
        entropy = z.new_zeros(len(batch)).index_add(0, owner, entropy_terms(log_stages))
        for logits, can, choice in heads:
            logs = torch.log_softmax(logits.masked_fill(~can, -torch.inf), 1)
            log_prob = log_prob + logs.gather(1, choice.unsqueeze(1)).squeeze(1)
            entropy = entropy + entropy_terms(logs).sum(1)
        # The gradient stops at z, so that the critic does not change the embeddings.
        return Judged(log_prob, entropy, self.critic(z.detach()).squeeze(1))

    def by_name(self) -> dict[str, Tensor]:
        """Return the parameters of the network and the critic by name."""
        critic = {f"critic.{name}": p for name, p in self.critic.named_parameters()}
        return super().by_name() | critic


def graphs_of(data: GraphDecisions, index: np.ndarray, levels: np.ndarray, is_all: bool) -> Graphs:
    """The decisions with these indices as tensors; with `is_all` only the last limit is possible,
    because the network chooses none.
    """
    table = data.table
    num_jobs = table.num_jobs[index]
    jobs = _ranges(table.first_job[index], num_jobs)
    sizes = table.num_listed[jobs]
    rows = table.listed[_ranges(table.first_listed[jobs], sizes)]
    job = np.repeat(np.arange(len(jobs)), sizes)
    last = np.repeat(levels[None, :] == levels[-1], len(index), 0)
    num_options = table.num_options[index]
    options = _ranges(table.first_option[index], num_options)
    option_owner = np.repeat(np.arange(len(index)), num_options)
    # Each option's job, and the first stage of every job, among the rows of this batch.
    option_job = (np.cumsum(num_jobs) - num_jobs)[option_owner] + table.option_job[options]
    first_stage = np.cumsum(sizes) - sizes
    arrays = {
        "x": table.x[rows],
        "job": job,
        "owner": np.repeat(np.arange(len(index)), num_jobs),
        "option": first_stage[option_job] + table.option_stage[options],
        "option_owner": option_owner,
        "option_x": table.option_x[options],
        "chosen": np.cumsum(num_options) - num_options + table.choice[index],
        "can_limit": last if is_all else table.can_limit[index],
    }
    for name in ("level", "limit_x", "class_choice", "can_class", "class_x", "idle_choice"):
        arrays[name] = getattr(table, name)[index]
    arrays["can_idle"] = table.can_idle[index]
    edges = _edges(data, jobs, job, table.stage_index[rows])
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return Graphs(edges=edges, **tensors)


def _ranges(first: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The concatenated ranges first[k] .. first[k] + size[k] - 1 of all k."""
    ends = np.cumsum(size)
    return np.repeat(first - (ends - size), size) + np.arange(ends[-1])


def _edges(
    data: GraphDecisions, jobs: np.ndarray, job: np.ndarray, stage_index: np.ndarray
) -> list[tuple[Tensor, Tensor]]:
    """The edges (parent rows, child rows) among unfinished stages, grouped by parents' height."""
    by_height: dict[int, list[tuple[int, int]]] = {}
    row_of = {
        (int(j), int(s)): row for row, (j, s) in enumerate(zip(job, stage_index, strict=True))
    }
    for at, profile in enumerate(data.table.structure[jobs]):
        own = slice(data.edges.first[profile], data.edges.first[profile + 1])
        pairs = list(zip(data.edges.parent[own], data.edges.child[own], strict=True))
        height: dict[int, int] = {}
        # The edges of a job are in the order of their parents' heights.
        for parent, child in pairs:
            height[parent] = max(height.get(parent, 0), height.get(child, 0) + 1)
        for parent, child in pairs:
            if (at, parent) in row_of and (at, child) in row_of:
                pair = (row_of[at, parent], row_of[at, child])
                by_height.setdefault(height[parent], []).append(pair)
    tables = [torch.tensor(by_height[h]).T for h in sorted(by_height)]
    return [(table[0], table[1]) for table in tables]
