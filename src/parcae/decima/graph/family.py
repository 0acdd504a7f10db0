"""Decima for the trainer: joins recorded decisions into a data set of minibatches of graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parcae.base.errors import ConfigError
from parcae.decima.graph.kernels.recording import GraphRecord
from parcae.decima.graph.kernels.training_data import Edges, TrainingDecisions
from parcae.decima.graph.layout import (
    FEATURE_VERSION,
    DecimaSettings,
    Limits,
    decima_levels,
    initial_weights,
)
from parcae.decima.graph.network import DecimaNetwork
from parcae.decima.graph.passes import GROUP, Batch, BufferRoom
from parcae.decima.graph.policy import (
    DecimaPolicy,
    allocate_record,
    allocate_workspace,
    check_world,
    curves_for,
    magnitudes_of,
)
from parcae.decima.learning.family import Rollout, without_unused_rows
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Weights
from parcae.workloads.job import JobSpec
from parcae.workloads.workload import Workload

Int64Array = npt.NDArray[np.int64]
#: Job rows that a record has room for, per decision. Where a scenario has fewer jobs, all fit.
_JOBS_PER_DECISION = 24


def stage_heights(job: JobSpec) -> list[int]:
    """The number of edges on the longest path from each stage to a leaf."""
    # A path of n stages has n - 1 edges.
    return [int(count) - 1 for count in job.downstream_ms([1.0] * len(job.stages))]


def edges_of(workload: Workload) -> Edges:
    """The DAGs of a workload's jobs."""
    first = [0]
    edges = list[tuple[int, int, int]]()
    for job in workload.jobs:
        heights = stage_heights(job)
        pairs = [(heights[p], p, c) for p, children in enumerate(job.children) for c in children]
        edges += sorted(pairs)
        first.append(len(edges))
    table = np.array(edges, np.int64).reshape(-1, 3).T
    return Edges(np.array(first), table[1].copy(), table[2].copy())


@dataclass(frozen=True)
class GraphDecisions:
    """N recorded decisions."""

    table: TrainingDecisions
    edges: Edges
    room: BufferRoom
    log_prob: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.log_prob)

    def decisions(self, index: Int64Array, device: torch.device) -> Batch:
        """The decisions with these indices; the kernels take them wherever the network is."""
        del device
        return Batch(self.table, self.edges, index, self.room)

    def shuffled(self, rng: np.random.Generator) -> Int64Array:
        """All indices: groups of successive decisions in random order.

        Successive decisions of a run have most states of jobs in common (see `training.passes`).
        """
        num_groups = -(-len(self) // GROUP)
        index = rng.permutation(num_groups)[:, None] * GROUP + np.arange(GROUP)
        flat: Int64Array = index[index < len(self)]
        return flat


def _room(table: TrainingDecisions, edges: Edges, num_stages: int) -> BufferRoom:
    """What the buffers must have room for; `num_stages` is the most stages of a job."""
    jobs = int(table.num_jobs.max(initial=0))
    before = np.concatenate([[0], np.cumsum(table.num_listed)])
    rows = before[table.first_job + table.num_jobs] - before[table.first_job]
    options = max(1, table.can_class.shape[1], table.can_idle.shape[1])
    most_edges = int(np.diff(edges.first).max())
    # Rounded up, so that buffers seldom grow.
    states = 1 << int(table.state.max(initial=0)).bit_length()
    recorded = 1 << len(table.x).bit_length()
    most_rows = int(rows.max(initial=0))
    return BufferRoom(most_rows, jobs, jobs * most_edges, num_stages, options, states, recorded)


#: The tables of a record whose number of rows is a field of the record.
_ROWS = {
    "num_jobs": ("structure", "state", "first_listed", "num_listed_of"),
    "num_rows": ("x", "index"),
    "num_listed": ("listed",),
    "all_options": ("option_job", "option_stage", "option_x"),
}
#: Columns of decisions that are joined as they are.
_OF_DECISIONS = (
    "num_options",
    "choice",
    "level",
    "held",
    "last_level",
    "limit_x",
    "class_choice",
    "class_x",
    "idle_choice",
)


class _Pieces:
    """Rows of several records, which are joined."""

    def __init__(self, rollouts: list[Rollout], ends: bool) -> None:
        # Row `count` of a record is the state in which the rollout ended.
        self._records = [rollout.record for rollout in rollouts]
        self._spans = [(r.count, r.count + 1) if ends else (0, r.count) for r in rollouts]
        pairs = list(zip(self._records, self._spans, strict=True))
        self._jobs = [(int(r.first_job[a]), int(r.first_job[b])) for r, (a, b) in pairs]

    def of_decisions(self, name: str) -> npt.NDArray[Any]:
        """A column of decisions."""
        pairs = zip(self._records, self._spans, strict=True)
        return np.concatenate([getattr(r, name)[a:b] for r, (a, b) in pairs])

    def of_jobs(self, name: str) -> npt.NDArray[Any]:
        """A column of jobs."""
        pairs = zip(self._records, self._jobs, strict=True)
        return np.concatenate([getattr(r, name)[a:b] for r, (a, b) in pairs])

    def all(self, name: str, count: str) -> npt.NDArray[Any]:
        """A whole column, whose length in a record is the field `count`."""
        return np.concatenate(
            [getattr(r, name)[: int(getattr(r, count)[0])] for r in self._records]
        )

    def sizes(self, count: str) -> list[int]:
        """The field `count` of the records."""
        return [int(getattr(record, count)[0]) for record in self._records]

    def first_jobs(self) -> npt.NDArray[Any]:
        """The first row of a job of each decision, among the joined rows."""
        shifts = np.cumsum([0, *(b - a for a, b in self._jobs)])[:-1]
        triples = zip(self._records, self._spans, self._jobs, shifts, strict=True)
        return np.concatenate([r.first_job[a:b] - j[0] + s for r, (a, b), j, s in triples])

    def num_jobs(self) -> npt.NDArray[Any]:
        """The number of jobs of each decision."""
        pairs = zip(self._records, self._spans, strict=True)
        return np.concatenate([np.diff(r.first_job[a : b + 1]) for r, (a, b) in pairs])

    def moved(self, name: str, count: str, spans: str = "jobs") -> npt.NDArray[Any]:
        """A column of rows of a table whose length is `count`, among that table's joined rows.

        `spans` says what the column is of: "jobs", "decisions" or "listed" stages.
        """
        shifts = np.cumsum([0, *self.sizes(count)])[:-1]
        ranges = {
            "jobs": self._jobs,
            "decisions": self._spans,
            "listed": [(0, count) for count in self.sizes("num_listed")],
        }[spans]
        triples = zip(self._records, ranges, shifts, strict=True)
        return np.concatenate([getattr(r, name)[a:b] + s for r, (a, b), s in triples])


def _gather(
    rollouts: list[Rollout], ends: bool
) -> tuple[TrainingDecisions, npt.NDArray[np.float32]]:
    """The rollouts' decisions (with `ends` their final states), and their log probabilities."""
    pieces = _Pieces(rollouts, ends)
    table = TrainingDecisions(
        first_job=pieces.first_jobs(),
        num_jobs=pieces.num_jobs(),
        first_option=pieces.moved("first_option", "all_options", "decisions"),
        structure=pieces.of_jobs("structure"),
        state=pieces.moved("state", "num_states"),
        first_listed=pieces.moved("first_listed", "num_listed"),
        num_listed=pieces.of_jobs("num_listed_of"),
        listed=pieces.moved("listed", "num_rows", "listed"),
        x=pieces.all("x", "num_rows"),
        stage_index=pieces.all("index", "num_rows"),
        **{name: pieces.all(name, "all_options") for name in _ROWS["all_options"]},
        **{name: pieces.of_decisions(name) for name in _OF_DECISIONS},
        **{name: pieces.of_decisions(name).astype(np.bool_) for name in ("can_class", "can_idle")},
    )
    return table, pieces.of_decisions("log_prob")


class DecimaFamily:
    """The family (see `parcae.decima.learning.family.Family`) of Decima's networks for a scenario.

    Raises:
        ConfigError: the networks choose idle slots, which the world of cores does not have.
    """

    name = "decima"
    feature_version = FEATURE_VERSION
    imitates = True

    def __init__(self, scenario: Scenario, settings: DecimaSettings) -> None:
        check_world(settings, scenario.config, self.name)
        self.scenario = scenario
        self.decima = settings
        self.levels = decima_levels(scenario.config.total_executors, settings)
        self.edges = edges_of(scenario.workload)
        self._magnitudes = magnitudes_of(scenario.workload, scenario.config)
        self._curves = curves_for(settings, scenario.workload, scenario.config)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of Decima's network, and the number of limits."""
        return {**self.decima.model_dump(mode="json"), "num_levels": len(self.levels)}

    @property
    def fixed_weights(self) -> Weights:
        """None: all weights are trained."""
        return {}

    def initial_weights(self, rng: np.random.Generator) -> Weights:
        """Random initial weights."""
        return dict(initial_weights(rng, self.decima, len(self.levels)))

    def network(self, weights: Weights) -> DecimaNetwork:
        """The batched network with these weights."""
        return DecimaNetwork(weights, self.decima, self.levels)

    def fit(self, network: DecimaNetwork) -> None:
        """Let a network judge decisions of this scenario."""
        if self.decima.limits is Limits.OUTPUTS and len(network.limits) != len(self.levels):
            raise ConfigError(
                "limits=outputs has one output for each limit, so all settings need clusters of "
                "one size; use limits=input"
            )
        network.limits = self.levels

    def policy(self, weights: Weights) -> DecimaPolicy:
        """The policy with these weights."""
        executors = self.scenario.config.total_executors
        return DecimaPolicy(
            "decima", weights, self.decima, executors, self._magnitudes, self._curves
        )

    def allocate(self, num_simulators: int, capacity: int) -> tuple[Any, Any]:
        """Workspaces and records for this many simulators."""
        num_jobs = self.scenario.num_jobs
        workload = self.scenario.workload
        stages = [len(job.stages) for job in workload.jobs]
        # Stage rows are estimated from the mean number of stages of a job that is drawn.
        mean_stages = float(np.average(stages, weights=workload.weights))
        jobs = capacity * min(num_jobs, _JOBS_PER_DECISION) + 2 * num_jobs
        rows = round(jobs * mean_stages) + 2 * max(stages) * num_jobs
        classes = len(self.scenario.config.classes)
        settings = self.decima
        works = allocate_workspace(
            num_simulators, num_jobs, num_jobs * max(stages), classes, len(self.levels), settings
        )
        levels = len(self.levels)
        return works, allocate_record(
            num_simulators, capacity, jobs, rows, classes, levels, settings
        )

    def gather(self, rollouts: list[Rollout], ends: bool = False) -> GraphDecisions:
        """The rollouts' decisions, concatenated; with `ends` the states in which they ended."""
        table, log_prob = _gather(rollouts, ends)
        most = max(len(job.stages) for job in self.scenario.workload.jobs)
        return GraphDecisions(table, self.edges, _room(table, self.edges, most), log_prob)

    def num_jobs(self, rollout: Rollout) -> int:
        """The number of jobs in the system, summed over the decisions."""
        return int(rollout.record.first_job[rollout.count])

    def trimmed(self, rollout: Rollout) -> GraphRecord:
        """A copy of the rollout's record without its unused rows."""
        record: GraphRecord = without_unused_rows(
            rollout,
            {
                name: int(getattr(rollout.record, size)[0])
                for size, names in _ROWS.items()
                for name in names
            },
        )
        return record
