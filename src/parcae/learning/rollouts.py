"""Rollouts: groups of simulators that start from one state, with one luck, and differ only in what is drawn for decisions."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.state import allocate, select
from parcae.errors import PolicyError
from parcae.learning.family import Family, Rollout
from parcae.learning.scenario import Scenario
from parcae.metrics.objectives import DEADLINE_SLOWDOWN, Objective
from parcae.policies.rule.kernels import Rule
from parcae.simulation.future import NEVER_MS, Future, Status, allocate_future
from parcae.simulation.kernels.costs import Costing, CostKind
from parcae.simulation.simulator import check_fits, check_status, prepare, prepare_state
from parcae.simulation.tables import workload_tables
from parcae.workloads.random_streams import TRAINING_SEED_START

_KINDS = {
    Objective.AVERAGE_JCT: CostKind.JOB_TIME,
    Objective.MAKESPAN: CostKind.CLOCK,
    Objective.P95_JCT: CostKind.TAIL,
    Objective.MEAN_SLOWDOWN: CostKind.SLOWDOWN,
    Objective.MISSED_DEADLINES: CostKind.MISSED,
}


def costing_for(scenario: Scenario, tail_ms: float) -> Costing:
    """The scenario's objective as a cost that accrues; `tail_ms` is where the tail of the p95 objective begins."""
    executors = scenario.config.total_executors
    ideal = np.array(
        [max(job.critical_path_ms, job.work_ms / executors) for job in scenario.workload.jobs]
    )
    threshold = tail_ms if scenario.objective is Objective.P95_JCT else DEADLINE_SLOWDOWN
    return Costing(np.array([_KINDS[scenario.objective]], np.int64), np.array([threshold]), ideal)


class RolloutWorker:
    """Collects rollouts of a scenario: `num_groups` groups of `group_size` simulators each.

    Args:
        window_s: simulated seconds of one collection; None for whole runs. After a window every group goes on from the state
            of one of its rollouts, drawn at random, so that long streams are walked through window by window.
        capacity: decisions that one rollout can record.
    """

    def __init__(
        self,
        scenario: Scenario,
        family: Family,
        *,
        num_groups: int,
        group_size: int,
        seed: int,
        window_s: float | None = None,
        capacity: int = 1024,
        tail_ms: float = 0.0,
        num_threads: int | None = None,
    ) -> None:
        self.scenario = scenario
        self.family = family
        self.num_groups = num_groups
        self.group_size = group_size
        self.window_ms = None if window_s is None else round(window_s * 1000)
        self.num_threads = num_threads or os.cpu_count() or 1
        self.costing = costing_for(scenario, tail_ms)
        self._rng = np.random.default_rng(np.random.SeedSequence([0x726F6C6C, seed]))
        self._next_seed = TRAINING_SEED_START + ((seed & 0xFFF) << 28)
        config = scenario.config
        self._tables = workload_tables(
            scenario.workload, config.durations, config.interpolation, config.world.world
        )
        self._is_new = np.ones(num_groups, np.bool_)
        self._allocate(capacity)

    def _allocate(self, capacity: int) -> None:
        scenario = self.scenario
        count = self.num_groups * self.group_size
        stages = sorted(len(job.stages) for job in scenario.workload.jobs)
        edges = sorted(sum(len(s.parents) for s in job.stages) for job in scenario.workload.jobs)
        num_jobs = scenario.num_jobs
        executors = scenario.config.total_executors
        num_stages = num_jobs * stages[-1]
        num_edges = max(1, num_jobs * edges[-1])
        world = scenario.config.world.world
        self.states = allocate(
            count, scenario.config.classes, num_jobs, num_stages, num_edges, world
        )
        prepare_state(self.states, scenario.config, scenario.workload)
        self.futures = allocate_future(count, executors, num_jobs, num_stages, 0, 0, world)
        self._works, self._records = self.family.allocate(count, capacity)
        self._status = np.zeros(count, np.int64)

    def restart(self) -> None:
        """Begin every group with a new sequence."""
        self._is_new[:] = True
        self.futures.events.end_ms[:] = NEVER_MS

    def rng_state(self) -> dict[str, object]:
        """What is needed to go on drawing as if nothing had happened."""
        return {"next_seed": self._next_seed, "rng": self._rng.bit_generator.state}

    def restore_rng(self, state: dict[str, object]) -> None:
        """Go on from a state that `rng_state` gave; streams start afresh."""
        self._next_seed = int(state["next_seed"])  # type: ignore[call-overload]
        self._rng.bit_generator.state = state["rng"]  # type: ignore[assignment]
        self.restart()

    def _group(self, group: int) -> range:
        return range(group * self.group_size, (group + 1) * self.group_size)

    def _prepare(self, group: int, gap: float) -> None:
        """Give a group its next sequence (gaps between arrivals stretched by `gap`), or move the end of its window."""
        rows = self._group(group)
        if self._is_new[group]:
            sequence = self.scenario.sequence(self._next_seed)
            check_fits(sequence, self.scenario.config)
            for row in rows:
                future = Future(*(table[row] for table in self.futures))
                future.job_profile[:] = sequence.job_index
                future.arrival_ms[:] = np.rint(sequence.arrival_ms * gap)
                prepare(future, sequence, self.scenario.config, self._next_seed)
            self._next_seed += 1
        if self.window_ms is not None:
            now_ms = 0 if self._is_new[group] else int(self.states.now.clock_ms[rows.start, 0])
            # Windows of a new sequence are of any length up to the full one, so that groups do not march in step.
            length = (
                self.window_ms
                if not self._is_new[group]
                else int(self._rng.integers(1, self.window_ms + 1))
            )
            self.futures.events.end_ms[rows.start : rows.stop] = now_ms + length

    def collect(
        self,
        network: Any,
        episode_s: float | None = None,
        teacher: tuple[Rule, float] | None = None,
        gap: float = 1.0,
    ) -> list[list[Rollout]]:
        """One collection: a list of groups, each a list of its rollouts.

        Args:
            network: what the family's kernels take.
            episode_s: end every run after so many simulated seconds, whatever the window.
            teacher: a rule whose choices are recorded instead of the network's, and the share of decisions that it takes.
            gap: jobs of sequences that begin now arrive so many times further apart.
        """
        for group in range(self.num_groups):
            self._prepare(group, gap)
        if episode_s is not None:
            self.futures.events.end_ms[:] = max(1, round(episode_s * 1000))
        luck = self._rng.integers(0, 1 << 63, len(self._status), dtype=np.uint64)
        self._run(network, luck, teacher)
        groups = []
        for group in range(self.num_groups):
            rollouts = []
            for row in self._group(group):
                status = Status(int(self._status[row]))
                if status in (Status.BAD_DECISION, Status.TIME_OVERFLOW) or (
                    status is Status.COMPLETE and self.states.now.num_active[row, 0] > 0
                ):
                    check_status(int(status), select(self.states, row), self.scenario.sequence(0))
                record = type(self._records)(*(table[row] for table in self._records))
                rollouts.append(Rollout(record, status is Status.COMPLETE))
            groups.append(rollouts)
            self._continue(group, rollouts)
        return groups

    def _run(
        self, network: Any, luck: npt.NDArray[np.uint64], teacher: tuple[Rule, float] | None
    ) -> None:
        """Runs of consecutive groups that start alike (new or not) share a compiled call; calls spread over threads."""
        with ThreadPoolExecutor(self.num_threads) as pool:
            jobs = [
                pool.submit(self._explore, network, luck, span, teacher) for span in self._spans()
            ]
            for job in jobs:
                job.result()

    def _spans(self) -> Iterator[tuple[int, int, bool]]:
        for group in range(self.num_groups):
            rows = self._group(group)
            middle = (rows.start + rows.stop + 1) // 2
            for a, b in itertools.pairwise(sorted({rows.start, middle, rows.stop})):
                yield a, b, bool(self._is_new[group])

    def _explore(
        self,
        network: Any,
        luck: npt.NDArray[np.uint64],
        span: tuple[int, int, bool],
        teacher: tuple[Rule, float] | None,
    ) -> None:
        first, last, is_new = span
        kernel = self.family.explore_many if teacher is None else self.family.demonstrate_many
        kernel(
            self.states, self.futures, self._tables, network, self._works, self._records, self.costing, luck, is_new,
            first, last, self._status, *(teacher or ()),
        )  # fmt: skip

    def _continue(self, group: int, rollouts: list[Rollout]) -> None:
        """Choose the state that the group goes on from: of a rollout that is not over, or a new sequence."""
        rows = self._group(group)
        going = [
            row for row, rollout in zip(rows, rollouts, strict=True) if not rollout.is_complete
        ]
        self._is_new[group] = self.window_ms is None or not going
        if self._is_new[group]:
            self.futures.events.end_ms[rows.start : rows.stop] = NEVER_MS
            return
        chosen = going[int(self._rng.integers(len(going)))]
        for tables in (self.states, self.futures):
            for table in tables:
                table[rows.start : rows.stop] = table[chosen]


def require_decisions(groups: list[list[Rollout]]) -> int:
    """How many decisions were recorded.

    Raises:
        PolicyError: none: there was never a choice.
    """
    total = sum(rollout.count for group in groups for rollout in group)
    if total == 0:
        raise PolicyError(
            "there was no choice to learn from: one job at a time and one executor leave nothing to decide"
        )
    return total
