"""Decima for the trainer: joins recorded decisions into a data set of minibatches of graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parcae.learning.family import Rollout
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Weights
from parcae.policies.decima.kernels.recording import Record, demonstrate_many, explore_many
from parcae.policies.decima.layout import (
    FEATURE_VERSION,
    DecimaSettings,
    Limits,
    decima_levels,
    initial_weights,
)
from parcae.policies.decima.network import DecimaNetwork, Graphs
from parcae.policies.decima.policy import DecimaPolicy, allocate_record, allocate_workspace
from parcae.workloads.job import JobSpec, Workload

Int64Array = npt.NDArray[np.int64]
#: Job rows that a record has room for, per decision. Where a scenario has fewer jobs, all fit.
_JOBS_PER_DECISION = 24


@dataclass(frozen=True)
class Structures:
    """The DAGs of a workload in flat arrays: job j has the edges first[j] .. first[j + 1] - 1.

    Args:
        first: int64[num_jobs + 1], index of each job's first edge.
        parent: int64[num_edges], index of the parent stage within the job.
        child: int64[num_edges], index of the child stage within the job.
        height: int64[num_edges], edges on the longest path from the parent to a leaf.
        max_stages: most stages of a job.
    """

    first: Int64Array
    parent: Int64Array
    child: Int64Array
    height: Int64Array
    max_stages: int

    @classmethod
    def of(cls, workload: Workload) -> Structures:
        """The structures of a workload's jobs."""
        first = [0]
        edges = []
        for job in workload.jobs:
            heights = stage_heights(job)
            edges += [
                (p, c, heights[p]) for p, children in enumerate(job.children) for c in children
            ]
            first.append(len(edges))
        table = np.array(edges, np.int64).reshape(-1, 3)
        most = max(len(job.stages) for job in workload.jobs)
        return cls(np.array(first, np.int64), table[:, 0], table[:, 1], table[:, 2], most)


def stage_heights(job: JobSpec) -> list[int]:
    """The number of edges on the longest path from each stage to a leaf."""
    # A path of n stages has n - 1 edges.
    return [int(count) - 1 for count in job.downstream_ms([1.0] * len(job.stages))]


def _ranges(first: Int64Array, size: Int64Array) -> Int64Array:
    """The concatenated ranges first[k] .. first[k] + size[k] - 1 of all k."""
    ends = np.cumsum(size)
    return np.asarray(
        np.repeat(first - (ends - size), size) + np.arange(int(ends[-1]) if len(ends) else 0)
    )


@dataclass(frozen=True)
class GraphDecisions:
    """N recorded decisions, flat: each has job rows, each job row has rows of unfinished stages.

    See `Record` for the columns.
    """

    structures: Structures
    levels: Int64Array
    is_all: bool
    first_job: Int64Array
    num_jobs: Int64Array
    choice: Int64Array
    level: Int64Array
    held: Int64Array
    log_prob: npt.NDArray[np.float32]
    structure: Int64Array
    first_row: Int64Array
    num_rows: Int64Array
    x: npt.NDArray[np.float32]
    stage_index: Int64Array
    can_choose: npt.NDArray[np.bool_]
    class_choice: Int64Array
    can_class: npt.NDArray[np.bool_]
    class_x: npt.NDArray[np.float32]
    idle_choice: Int64Array
    can_idle: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.choice)

    def decisions(self, index: Int64Array, device: torch.device) -> Graphs:
        """The decisions with these indices as tensors."""
        # Rows of the chosen decisions' jobs, then of these jobs' stages.
        num_jobs = self.num_jobs[index]
        jobs = _ranges(self.first_job[index], num_jobs)
        owner = np.repeat(np.arange(len(index)), num_jobs)
        sizes = self.num_rows[jobs]
        rows = _ranges(self.first_row[jobs], sizes)
        job = np.repeat(np.arange(len(jobs)), sizes)
        stages = np.zeros(len(index), np.int64)
        np.add.at(stages, owner, sizes)
        # A limit must exceed what the job holds already. Without limits, only the last counts.
        possible = self.levels[None, :] > self.held[index][:, None]
        if self.is_all:
            possible = np.arange(len(self.levels))[None, :] == np.full(
                (len(index), 1), len(self.levels) - 1
            )

        def tensor(array: npt.NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(array).to(device)

        return Graphs(
            x=tensor(self.x[rows]),
            job=tensor(job),
            owner=tensor(owner),
            edges=[
                (tensor(p), tensor(c)) for p, c in self._edges(jobs, job, self.stage_index[rows])
            ],
            can_choose=tensor(self.can_choose[rows]),
            first_row=tensor(np.cumsum(stages) - stages),
            choice=tensor(self.choice[index]),
            level=tensor(self.level[index]),
            can_limit=tensor(possible),
            class_choice=tensor(self.class_choice[index]),
            can_class=tensor(self.can_class[index]),
            class_x=tensor(self.class_x[index]),
            idle_choice=tensor(self.idle_choice[index]),
            can_idle=tensor(self.can_idle[index]),
        )

    def _edges(
        self, jobs: Int64Array, job: Int64Array, stage_index: Int64Array
    ) -> list[tuple[Int64Array, Int64Array]]:
        """The edges (parent rows, child rows) among unfinished stages, grouped by parents' height.

        The network passes messages from the leaves upwards, one height after another.
        """
        s = self.structures
        # The row of each stage, or -1 if the stage is finished.
        row_of = np.full((len(jobs), s.max_stages), -1, np.int64)
        row_of[job, stage_index] = np.arange(len(job))
        profiles = self.structure[jobs]
        counts = s.first[profiles + 1] - s.first[profiles]
        edges = _ranges(s.first[profiles], counts)
        edge_job = np.repeat(np.arange(len(jobs)), counts)
        parents = row_of[edge_job, s.parent[edges]]
        children = row_of[edge_job, s.child[edges]]
        kept = (parents >= 0) & (children >= 0)  # -1: the stage is finished
        parents = parents[kept]
        children = children[kept]
        heights = s.height[edges][kept]
        return [
            (parents[heights == h], children[heights == h])
            for h in range(1, int(heights.max(initial=0)) + 1)
        ]


def _gather(
    rollouts: list[Rollout], structures: Structures, levels: Int64Array, is_all: bool, ends: bool
) -> GraphDecisions:
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

    return GraphDecisions(
        structures=structures,
        levels=levels,
        is_all=is_all,
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
        log_prob=decisions("log_prob"),
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


class DecimaFamily:
    """The family (see `parcae.learning.family.Family`) of Decima's networks for a scenario."""

    name = "decima"
    feature_version = FEATURE_VERSION

    def __init__(self, scenario: Scenario, settings: DecimaSettings) -> None:
        self.scenario = scenario
        self.decima = settings
        self.levels = decima_levels(scenario.config.total_executors)
        self.structures = Structures.of(scenario.workload)

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

    def policy(self, weights: Weights) -> DecimaPolicy:
        """The policy with these weights."""
        return DecimaPolicy("decima", weights, self.decima, self.scenario.config.total_executors)

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
        return _gather(
            rollouts, self.structures, self.levels, self.decima.limits is Limits.NONE, ends
        )

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
