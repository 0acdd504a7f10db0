"""Decima for the trainer: joins recorded decisions into a data set of minibatches of graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parcae.errors import ConfigError
from parcae.learning.family import Rollout
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Weights
from parcae.policies.decima.kernels.recording import Record, demonstrate_many, explore_many
from parcae.policies.decima.kernels.training import Decisions, Edges
from parcae.policies.decima.layout import (
    FEATURE_VERSION,
    DecimaSettings,
    Limits,
    decima_levels,
    initial_weights,
)
from parcae.policies.decima.network import DecimaNetwork
from parcae.policies.decima.passes import Batch, Room
from parcae.policies.decima.policy import (
    DecimaPolicy,
    allocate_record,
    allocate_workspace,
    magnitudes_of,
)
from parcae.workloads.job import JobSpec, Workload

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
    """N recorded decisions.

    Args:
        table: the decisions.
        edges: the DAGs of the workload.
        room: what the kernels' buffers must have room for.
        log_prob: float32[N], see `DataSet`.
    """

    table: Decisions
    edges: Edges
    room: Room
    log_prob: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.log_prob)

    def decisions(self, index: Int64Array, device: torch.device) -> Batch:
        """The decisions with these indices; the kernels take them wherever the network is."""
        del device
        return Batch(self.table, self.edges, index, self.room)


def _room(table: Decisions, edges: Edges, num_stages: int) -> Room:
    """What the buffers must have room for; `num_stages` is the most stages of a job."""
    jobs = int(table.num_jobs.max(initial=0))
    ends = table.first_job + table.num_jobs
    first_row = np.append(table.first_row, len(table.x))
    rows = first_row[ends] - first_row[table.first_job]
    options = max(1, table.can_class.shape[1], table.can_idle.shape[1])
    most_edges = int(np.diff(edges.first).max())
    return Room(int(rows.max(initial=0)), jobs, jobs * most_edges, num_stages, options)


def _gather(rollouts: list[Rollout], ends: bool) -> tuple[Decisions, npt.NDArray[np.float32]]:
    """The rollouts' decisions (with `ends` their final states), and their log probabilities."""
    # Row `count` of a record is the state in which the rollout ended.
    spans = [(r.count, r.count + 1) if ends else (0, r.count) for r in rollouts]
    pieces = [(r.record, a, b) for r, (a, b) in zip(rollouts, spans, strict=True)]
    jobs = [(int(r.first_job[a]), int(r.first_job[b])) for r, a, b in pieces]
    rows = [
        (int(r.first_row[a]), int(r.first_row[b]))
        for (r, _, _), (a, b) in zip(pieces, jobs, strict=True)
    ]
    # Indices into job and stage rows move as the rollouts' rows are joined.
    job_shift = np.cumsum([0, *(b - a for a, b in jobs)])[:-1]
    row_shift = np.cumsum([0, *(b - a for a, b in rows)])[:-1]
    records = [r for r, _, _ in pieces]

    def decisions(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(r, name)[a:b] for r, a, b in pieces])

    def of_stages(name: str) -> npt.NDArray[Any]:
        return np.concatenate(
            [getattr(r, name)[a:b] for r, (a, b) in zip(records, rows, strict=True)]
        )

    table = Decisions(
        first_job=np.concatenate(
            [
                r.first_job[a:b] - j[0] + s
                for (r, a, b), j, s in zip(pieces, jobs, job_shift, strict=True)
            ]
        ),
        num_jobs=np.concatenate([np.diff(r.first_job[a : b + 1]) for r, a, b in pieces]),
        choice=decisions("choice"),
        level=decisions("level"),
        held=decisions("held"),
        structure=np.concatenate(
            [r.structure[a:b] for r, (a, b) in zip(records, jobs, strict=True)]
        ),
        first_row=np.concatenate(
            [
                r.first_row[a:b] - w[0] + s
                for r, (a, b), w, s in zip(records, jobs, rows, row_shift, strict=True)
            ]
        ),
        num_rows=np.concatenate(
            [np.diff(r.first_row[a : b + 1]) for r, (a, b) in zip(records, jobs, strict=True)]
        ),
        x=of_stages("x"),
        stage_index=of_stages("index"),
        can_choose=of_stages("can_choose").astype(np.bool_),
        class_choice=decisions("class_choice"),
        can_class=decisions("can_class").astype(np.bool_),
        class_x=decisions("class_x"),
        idle_choice=decisions("idle_choice"),
        can_idle=decisions("can_idle").astype(np.bool_),
    )
    return table, decisions("log_prob")


class DecimaFamily:
    """The family (see `parcae.learning.family.Family`) of Decima's networks for a scenario."""

    name = "decima"
    feature_version = FEATURE_VERSION

    def __init__(self, scenario: Scenario, settings: DecimaSettings) -> None:
        self.scenario = scenario
        self.decima = settings
        self.levels = decima_levels(scenario.config.total_executors)
        self.edges = edges_of(scenario.workload)
        self._magnitudes = magnitudes_of(scenario.workload, scenario.config)

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
        """Let a network judge decisions of this scenario.

        Raises:
            ConfigError: the network has one output for each limit of another cluster.
        """
        if self.decima.limits is Limits.OUTPUTS and len(network.limits) != len(self.levels):
            raise ConfigError(
                "limits=outputs has one output for each limit, so all settings need clusters of "
                "one size; use limits=input"
            )
        network.limits = self.levels

    def policy(self, weights: Weights) -> DecimaPolicy:
        """The policy with these weights."""
        executors = self.scenario.config.total_executors
        return DecimaPolicy("decima", weights, self.decima, executors, self._magnitudes)

    def allocate(self, num_simulators: int, capacity: int) -> tuple[Any, Any]:
        """Workspaces and records for this many simulators."""
        num_jobs = self.scenario.num_jobs
        stages = [len(job.stages) for job in self.scenario.workload.jobs]
        # Stage rows are estimated from the mean number of stages of a job.
        jobs = capacity * min(num_jobs, _JOBS_PER_DECISION) + 2 * num_jobs
        rows = round(jobs * sum(stages) / len(stages)) + 2 * max(stages) * num_jobs
        classes = len(self.scenario.config.classes)
        settings = self.decima
        works = allocate_workspace(
            num_simulators, num_jobs, num_jobs * max(stages), classes, len(self.levels), settings
        )
        return works, allocate_record(num_simulators, capacity, jobs, rows, classes, settings)

    def explore_many(self, *args: Any) -> None:
        """See `decima.kernels.explore_many`.

        A method and not an attribute, so that a pickled family contains no compiled code.
        """
        explore_many(*args)

    def demonstrate_many(self, *args: Any) -> None:
        """See `decima.kernels.demonstrate_many`."""
        demonstrate_many(*args)

    def gather(self, rollouts: list[Rollout], ends: bool = False) -> GraphDecisions:
        """The rollouts' decisions, concatenated; with `ends` the states in which they ended."""
        table, log_prob = _gather(rollouts, ends)
        most = max(len(job.stages) for job in self.scenario.workload.jobs)
        return GraphDecisions(table, self.edges, _room(table, self.edges, most), log_prob)

    def num_jobs(self, rollout: Rollout) -> int:
        """The number of jobs in the system, summed over the decisions."""
        return int(rollout.record.first_job[rollout.count])

    def trimmed(self, rollout: Rollout) -> Record:
        """A copy of the rollout's record without its unused rows."""
        r = rollout.record
        n = rollout.count
        sizes = {"structure": int(r.num_jobs[0]), "first_row": int(r.num_jobs[0]) + 1}
        sizes |= dict.fromkeys(("x", "index", "can_choose"), int(r.num_rows[0]))
        # These arrays have no row per decision.
        whole = {"count", "num_jobs", "num_rows", "end_ms", "end_cost"}
        cut = {
            name: getattr(r, name)[: sizes.get(name, n + 2)]
            for name in Record._fields
            if name not in whole
        }
        return Record(**{name: np.array(array) for name, array in {**r._asdict(), **cut}.items()})
