"""Decima for the trainer: joins recorded decisions into a data set of minibatches of graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parcae.base.compiled.tables import allocate_tables
from parcae.decima.graph.kernels.recording import GraphRecord
from parcae.decima.graph.kernels.training_data import Edges
from parcae.decima.graph.layout import (
    FEATURE_VERSION,
    DecimaSettings,
    Limits,
    decima_levels,
    initial_weights,
)
from parcae.decima.graph.network import GROUP, Batch, DecimaNetwork, TrainingTables
from parcae.decima.graph.policy import (
    DecimaPolicy,
    allocate_workspace,
    check_world,
    curves_for,
    magnitudes_of,
)
from parcae.decima.learning.updates import Rollout
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Weights
from parcae.policies.networks.layout import joined
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


class GraphDecisions:
    """N recorded decisions as a data set.

    Args:
        table: the decisions of several runs, joined.
        edges: the DAGs of the workload's jobs.
        num_stages: the most stages of a job.
        network: the settings of the network, and the number of limits.
    """

    def __init__(
        self, table: GraphRecord, edges: Edges, num_stages: int, network: tuple[DecimaSettings, int]
    ) -> None:
        self.table = table
        self.log_prob: npt.NDArray[np.float32] = table.log_prob
        self.edges = edges
        before = np.concatenate([[0], np.cumsum(table.num_listed)])
        rows = before[table.first_job + table.num_jobs] - before[table.first_job]
        jobs = int(table.num_jobs.max(initial=0))
        self._tables = TrainingTables(
            *network,
            rows=int(rows.max(initial=0)),
            jobs=jobs,
            edges=jobs * int(np.diff(edges.first).max()),
            stages=num_stages,
            options=max(1, table.can_class.shape[1], table.can_idle.shape[1]),
            states=1 + int(table.state.max(initial=0)),
            recorded=max(1, len(table.x)),
        )

    def __len__(self) -> int:
        return len(self.log_prob)

    def decisions(self, index: Int64Array, device: torch.device) -> Batch:
        """The decisions with these indices; the kernels take them wherever the network is."""
        del device
        return Batch(self.table, self.edges, index, self._tables)

    def shuffled(self, rng: np.random.Generator) -> Int64Array:
        """All indices: groups of successive decisions in random order.

        Successive decisions of a run have most states of jobs in common (see `network`).
        """
        num_groups = -(-len(self) // GROUP)
        index = rng.permutation(num_groups)[:, None] * GROUP + np.arange(GROUP)
        flat: Int64Array = index[index < len(self)]
        return flat


class DecimaFamily:
    """Decima's networks for a scenario: all that a training needs to know about them.

    Raises:
        ConfigError: the networks choose idle slots, which the world of cores does not have.
    """

    name = "decima"
    feature_version = FEATURE_VERSION

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
        return DecimaNetwork(weights, self.decima, len(self.levels))

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
        levels = len(self.levels)
        works = allocate_workspace(
            num_simulators, num_jobs, num_jobs * max(stages), classes, levels, settings
        )
        records = allocate_tables(
            GraphRecord,
            num_simulators,
            decisions=capacity + 1,
            jobs=jobs,
            listed=rows,
            rows=rows,
            options=rows,
            features=settings.num_features,
            direct=settings.num_direct,
            limits=0 if settings.limits is Limits.NONE else levels,
            limit_features=settings.num_limit_features,
            classes=classes if settings.executor_classes else 0,
            lengths=settings.idle_lengths + 1 if settings.idle_lengths else 0,
        )
        return works, records

    def gather(self, rollouts: list[Rollout], ends: bool = False) -> GraphDecisions:
        """The rollouts' decisions, concatenated; with `ends` the states in which they ended."""
        table = joined([one.record for one in rollouts], [one.span(ends) for one in rollouts])
        most = max(len(job.stages) for job in self.scenario.workload.jobs)
        return GraphDecisions(table, self.edges, most, (self.decima, len(self.levels)))
