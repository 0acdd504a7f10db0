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
    """A batch of B decisions over J jobs and S unfinished stages, one after another.

    Args:
        x: float32[S, num_features], features of the stages.
        job: int64[S], each stage's job.
        owner: int64[J], each job's decision.
        edges: for every height from 1 on, (parents, children), int64 rows of stages. When a height
            is processed, the embeddings of all lower heights are complete.
        option: int64[O], stages that may be chosen.
        option_owner: int64[O], each option's decision.
        option_x: float32[O, num_direct], what the scores know of it beside embeddings.
        chosen: int64[B], the chosen option.
        level: int64[B], column of the chosen limit.
        can_limit: bool[B, num_levels].
        limit_x: float32[B, num_levels, num_limit_features].
        class_choice: int64[B].
        can_class: bool[B, C]; C is 0 without a class head.
        class_x: float32[B, C, number of ClassFeature].
        idle_choice: int64[B].
        can_idle: bool[B, G + 1]; no columns without an idle head.
    """

    x: Tensor
    job: Tensor
    owner: Tensor
    edges: list[tuple[Tensor, Tensor]]
    option: Tensor
    option_owner: Tensor
    option_x: Tensor
    chosen: Tensor
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
        tensors = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return Graphs(edges=edges, **tensors)


class PlainDecima(TableNetwork):
    """Decima's network; `layout` describes the architecture.

    Args:
        weights: initial values by name.
        settings: which parts the network has.
        levels: int64[num_levels], the limits to choose from.
    """

    def __init__(self, weights: Weights, settings: DecimaSettings, levels: np.ndarray) -> None:
        super().__init__(weights, shapes(settings, len(levels)))
        self.settings = settings
        self.levels: Tensor
        self.register_buffer("levels", torch.from_numpy((levels / levels[-1]).astype(np.float32)))
        self.critic = nn.Sequential(nn.Linear(EMBEDDING, 32), nn.LeakyReLU(SLOPE), nn.Linear(32, 1))

    def _linear(self, transform: Transform, layer: int, x: Tensor) -> Tensor:
        name = transform.name.lower()
        return self.linear(f"{name}.{layer}", x)

    def _hidden(self, transform: Transform, x: Tensor) -> Tensor:
        x = nn.functional.leaky_relu(self._linear(transform, 1, x), SLOPE)
        return nn.functional.leaky_relu(self._linear(transform, 2, x), SLOPE)

    def _transform(self, transform: Transform, x: Tensor) -> Tensor:
        return nn.functional.leaky_relu(
            self._linear(transform, 3, self._hidden(transform, x)), SLOPE
        )

    def _score(self, transform: Transform, x: Tensor) -> Tensor:
        return self._linear(transform, 3, self._hidden(transform, x))

    def embed_stages(self, x: Tensor, edges: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return e_v of every stage by Eq. 1, from leaves to roots, float32[S, EMBEDDING]."""
        prepared = self._linear(Transform.PREP, 1, x)
        if not self.settings.has_graph:
            return prepared
        e = prepared
        for parents, children in edges:
            rows, position = torch.unique(parents, return_inverse=True)
            messages = self._transform(Transform.F_STAGE, e.index_select(0, children))
            total = messages.new_zeros(len(rows), EMBEDDING).index_add(0, position, messages)
            if self.settings.has_two_transforms:
                total = self._transform(Transform.G_STAGE, total)
            e = e.index_copy(0, rows, prepared.index_select(0, rows) + total)
        return e

    def _summarize(
        self, x: Tensor, owner: Tensor, count: int, f: Transform, g: Transform
    ) -> Tensor:
        messages = self._transform(f, x)
        total = messages.new_zeros(count, EMBEDDING).index_add(0, owner, messages)
        return self._transform(g, total) if self.settings.has_two_transforms else total

    def embed(self, batch: Graphs) -> tuple[Tensor, Tensor, Tensor]:
        """Return the embeddings of stages [S, d], jobs [J, d] and decisions [B, d]."""
        x = batch.x
        e = self.embed_stages(x, batch.edges)
        num_jobs = len(batch.owner)
        size = len(batch)
        if not self.settings.has_graph:
            return e, e.new_zeros(num_jobs, EMBEDDING), e.new_zeros(size, EMBEDDING)
        y = self._summarize(
            torch.cat([x, e], 1), batch.job, num_jobs, Transform.F_JOB, Transform.G_JOB
        )
        return e, y, self._summarize(y, batch.owner, size, Transform.F_GLOBAL, Transform.G_GLOBAL)

    def _limit_logits(self, batch: Graphs, e: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """Return the logits of every level for the chosen stages, [B, num_levels]."""
        settings = self.settings
        if settings.has_job_features:
            shared = torch.cat([y, z, batch.option_x[batch.chosen]], 1)
            return self._score_each(Transform.W, shared, batch.limit_x)
        num_levels = len(self.levels)
        if settings.limits is Limits.NONE:
            return z.new_zeros(len(z), num_levels)
        parts = [y if settings.has_graph else e, z]
        if settings.limits is Limits.OUTPUTS:
            return self._score(Transform.W, torch.cat(parts, 1))
        if settings.limits is Limits.STAGE:
            parts.append(e)
        return self._score_each(Transform.W, torch.cat(parts, 1), self.levels.view(1, -1, 1))

    def _score_each(self, transform: Transform, shared: Tensor, separate: Tensor) -> Tensor:
        """Return the scores of n options, float32[B, n].

        `shared` [B, ...] are the inputs that all options of a decision have in common, `separate`
        [B or 1, n, k] those of each option. The first layer is linear, so its part for the shared
        inputs is computed once.
        """
        name = f"{transform.name.lower()}_1"
        num_separate = separate.shape[2]
        weight = self.table[f"{name}_weight"]
        base = torch.addmm(self.table[f"{name}_bias"], shared, weight[:-num_separate])
        x = nn.functional.leaky_relu(base.unsqueeze(1) + separate @ weight[-num_separate:], SLOPE)
        x = nn.functional.leaky_relu(self._linear(transform, 2, x.flatten(0, 1)), SLOPE)
        return self._linear(transform, 3, x).view(len(shared), separate.shape[1])

    def _heads(self, batch: Graphs, embedded: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return (log probabilities, choices) of each optional head that the network has."""
        heads = []
        lengths = self.settings.idle_lengths
        if self.settings.executor_classes:
            logits = self._score_each(Transform.CLASS, embedded, batch.class_x)
            heads.append((_log_shares(logits, batch.can_class), batch.class_choice))
        if lengths:
            shares = torch.linspace(0.0, 1.0, lengths + 1).to(embedded).view(1, -1, 1)
            logits = self._score_each(Transform.IDLE, embedded, shares)
            none = nn.functional.pad(self.table[NO_SLOT_NAME.replace(".", "_")], (0, lengths))
            heads.append((_log_shares(logits + none, batch.can_idle), batch.idle_choice))
        return heads

    def forward(self, batch: Graphs) -> Judged:
        """Evaluate recorded decisions: log probability of each choice, entropy, and state value."""
        e, y, z = self.embed(batch)
        job = batch.job
        option = batch.option
        owner = batch.option_owner
        inputs = [e[option], y[job[option]], z[owner], batch.option_x]
        logits = self._score(Transform.Q, torch.cat(inputs, 1)).squeeze(1)
        log_stages = ragged_log_softmax(logits, owner, len(batch))
        chosen = option[batch.chosen]
        chosen_e = e.index_select(0, chosen)
        chosen_y = y.index_select(0, job[chosen])
        limits = self._limit_logits(batch, chosen_e, chosen_y, z)
        heads = [
            (_log_shares(limits, batch.can_limit), batch.level),
            *self._heads(batch, torch.cat([chosen_e, chosen_y, z], 1)),
        ]
        log_prob = log_stages.index_select(0, batch.chosen)
        entropy = z.new_zeros(len(batch)).index_add(0, owner, entropy_terms(log_stages))
        for logs, choice in heads:
            log_prob = log_prob + logs.gather(1, choice.unsqueeze(1)).squeeze(1)
            entropy = entropy + entropy_terms(logs).sum(1)
        return Judged(log_prob, entropy, self.value_of(z))

    def value_of(self, z: Tensor) -> Tensor:
        """Return the critic's value of cluster summaries z, float32[B].

        The gradient stops at z, so that the critic does not change the embeddings.
        """
        value: Tensor = self.critic(z.detach()).squeeze(1)
        return value

    def by_name(self) -> dict[str, Tensor]:
        """Return the parameters of the network and the critic by name."""
        critic = {f"critic.{name}": p for name, p in self.critic.named_parameters()}
        return super().by_name() | critic


def _log_shares(logits: Tensor, is_allowed: Tensor) -> Tensor:
    """Return the log probabilities of the allowed choices, -inf for the others."""
    return torch.log_softmax(logits.masked_fill(~is_allowed, -torch.inf), 1)


def graphs_of(data: GraphDecisions, index: np.ndarray, levels: np.ndarray, is_all: bool) -> Graphs:
    """The decisions with these indices as tensors.

    Args:
        data: recorded decisions.
        index: int64[B].
        levels: int64[num_levels], the limits to choose from.
        is_all: whether only the last limit is possible, because the network chooses none.
    """
    table = data.table
    num_jobs = table.num_jobs[index]
    jobs = _ranges(table.first_job[index], num_jobs)
    owner = np.repeat(np.arange(len(index)), num_jobs)
    sizes = table.num_listed[jobs]
    rows = table.listed[_ranges(table.first_listed[jobs], sizes)]
    job = np.repeat(np.arange(len(jobs)), sizes)
    # A limit must exceed what the job holds already. Without limits, only the last counts.
    columns = np.arange(len(levels))
    possible = (levels > table.held[index][:, None]) & (columns <= table.last_level[index][:, None])
    if is_all:
        possible = np.repeat(levels[None, :] == levels[-1], len(index), 0)
    edges = _edges(data, jobs, job, table.stage_index[rows])
    num_options = table.num_options[index]
    options = _ranges(table.first_option[index], num_options)
    option_owner = np.repeat(np.arange(len(index)), num_options)
    # Each option's job, and the first stage of every job, among the rows of this batch.
    option_job = (np.cumsum(num_jobs) - num_jobs)[option_owner] + table.option_job[options]
    first_stage = np.cumsum(sizes) - sizes
    tensor = torch.from_numpy
    return Graphs(
        x=tensor(table.x[rows]),
        job=tensor(job),
        owner=tensor(owner),
        edges=[(tensor(p), tensor(c)) for p, c in edges],
        option=tensor(first_stage[option_job] + table.option_stage[options]),
        option_owner=tensor(option_owner),
        option_x=tensor(table.option_x[options]),
        chosen=tensor(np.cumsum(num_options) - num_options + table.choice[index]),
        level=tensor(table.level[index]),
        can_limit=tensor(possible),
        limit_x=tensor(table.limit_x[index]),
        class_choice=tensor(table.class_choice[index]),
        can_class=tensor(table.can_class[index]),
        class_x=tensor(table.class_x[index]),
        idle_choice=tensor(table.idle_choice[index]),
        can_idle=tensor(table.can_idle[index]),
    )


def _ranges(first: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The concatenated ranges first[k] .. first[k] + size[k] - 1 of all k."""
    ends = np.cumsum(size)
    return np.repeat(first - (ends - size), size) + np.arange(ends[-1])


def _edges(
    data: GraphDecisions, jobs: np.ndarray, job: np.ndarray, stage_index: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The edges (parent rows, child rows) among unfinished stages, grouped by parents' height."""
    by_height: dict[int, list[tuple[int, int]]] = {}
    row_of = {
        (int(j), int(s)): row for row, (j, s) in enumerate(zip(job, stage_index, strict=True))
    }
    for at, profile in enumerate(data.table.structure[jobs]):
        height: dict[int, int] = {}
        for edge in range(data.edges.first[profile], data.edges.first[profile + 1]):
            parent = int(data.edges.parent[edge])
            child = int(data.edges.child[edge])
            # The edges of a job are in the order of their parents' heights.
            height[parent] = max(height.get(parent, 0), height.get(child, 0) + 1)
        for edge in range(data.edges.first[profile], data.edges.first[profile + 1]):
            parent = int(data.edges.parent[edge])
            child = int(data.edges.child[edge])
            if (at, parent) in row_of and (at, child) in row_of:
                pair = (row_of[at, parent], row_of[at, child])
                by_height.setdefault(height[parent], []).append(pair)
    tables = [np.array(by_height[h], np.int64).T.copy() for h in sorted(by_height)]
    return [(table[0], table[1]) for table in tables]
