"""Collects rollouts in groups of simulators.

The simulators of a group start from one state and share the random bits of task durations. They
differ only in the draws of their decisions.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.state import allocate, select
from parcae.errors import ConfigError, PolicyError
from parcae.learning.config import TrainConfig
from parcae.learning.family import Family, Rollout
from parcae.learning.scenario import Scenario
from parcae.metrics.objectives import DEADLINE_SLOWDOWN, Objective
from parcae.policies.networks.kernels import Recordings, Teacher
from parcae.simulation.elastic import with_elastic
from parcae.simulation.future import NEVER_MS, Future, Status, allocate_future
from parcae.simulation.kernels.costs import Costing, CostKind
from parcae.simulation.kernels.simulations import Simulations
from parcae.simulation.simulator import check_fits, check_status, prepare, prepare_state
from parcae.simulation.tables import workload_tables
from parcae.workloads.random_streams import TRAINING_SEED_START


def costing_for(scenario: Scenario, tail_ms: float) -> Costing:
    """The scenario's objective as a cost that accrues over time.

    `tail_ms` is the completion time from which the objective p95-jct counts a job.

    Raises:
        ConfigError: an objective that does not accrue over time, such as a function.
    """
    if not isinstance(scenario.objective, Objective):
        raise ConfigError(
            f"objective {scenario.objective_name} is a function, whose cost is known at the end of "
            "a run only. Training by policy gradients needs a cost that accrues: choose one of "
            f"{', '.join(Objective)}, or tune a rule or train in the cores world"
        )
    executors = scenario.config.total_executors
    # A lower bound on the time that a job alone needs on the whole cluster.
    ideal = np.array(
        [max(job.critical_path_ms, job.work_ms / executors) for job in scenario.workload.jobs]
    )
    threshold = tail_ms if scenario.objective is Objective.P95_JCT else DEADLINE_SLOWDOWN
    kind = CostKind[scenario.objective.entry.cost]
    return Costing(np.array([kind], np.int64), np.array([threshold]), ideal)


class RolloutWorker:
    """Collects rollouts of a scenario: groups of simulators that share their random bits.

    Args:
        scenario: what to simulate.
        family: the kind of network.
        config: number and size of the groups, length of a window and capacity of a record. After a
            window, each group continues from the state of one of its rollouts, drawn at random, so
            that long streams are simulated window by window.
        seed: seed of the job sequences and of all draws.
        tail_ms: see `costing_for`.
        num_threads: threads that simulate; None for one for each CPU.
    """

    def __init__(
        self,
        scenario: Scenario,
        family: Family,
        config: TrainConfig,
        *,
        seed: int,
        tail_ms: float = 0.0,
        num_threads: int | None = None,
    ) -> None:
        self.scenario = scenario
        self.family = family
        self.num_groups = config.num_groups
        self.group_size = config.group_size
        self.window_ms = None if config.window_s is None else round(config.window_s * 1000)
        self.num_threads = num_threads or os.cpu_count() or 1
        self.costing = costing_for(scenario, tail_ms)
        self._rng = np.random.default_rng(np.random.SeedSequence([0x726F6C6C, seed]))
        # Every training has 2^28 seeds for its sequences.
        self._next_seed = TRAINING_SEED_START + ((seed & 0xFFF) << 28)
        cluster = scenario.config
        self._tables = workload_tables(
            scenario.workload, cluster.durations, cluster.interpolation, cluster.world.world
        )
        self._is_new = np.ones(config.num_groups, np.bool_)
        self._allocate(config.capacity)

    def _allocate(self, capacity: int) -> None:
        # Tables have room for any sequence, even if it consists of the largest job only.
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
        most_tasks = max(job.num_tasks for job in scenario.workload.jobs)
        fault_tasks = num_jobs * most_tasks if scenario.config.faults is not None else 0
        futures = allocate_future(count, executors, num_jobs, num_stages, 0, 0, world, fault_tasks)
        self.futures = with_elastic(futures, scenario.config.elastic, executors)
        self._works, self._records = self.family.allocate(count, capacity)
        self._status = np.zeros(count, np.int64)

    def restart(self) -> None:
        """Let every group begin a new sequence in the next collection."""
        self._is_new[:] = True
        self.futures.events.end_ms[:] = NEVER_MS

    def rng_state(self) -> dict[str, object]:
        """State of the random number generators, for `restore_rng`."""
        return {"next_seed": self._next_seed, "rng": self._rng.bit_generator.state}

    def restore_rng(self, state: dict[str, object]) -> None:
        """Continue from a state that `rng_state` returned; all groups begin new sequences."""
        self._next_seed = int(state["next_seed"])  # type: ignore[call-overload]
        self._rng.bit_generator.state = state["rng"]  # type: ignore[assignment]
        self.restart()

    def _group(self, group: int) -> range:
        return range(group * self.group_size, (group + 1) * self.group_size)

    def _prepare(self, group: int, gap: float) -> None:
        """Give a group a new sequence if it needs one, and set the end of its window.

        The gaps between arrivals of a new sequence are stretched by the factor `gap`.
        """
        rows = self._group(group)
        if self._is_new[group]:
            sequence = self.scenario.sequence(self._next_seed)
            check_fits(sequence, self.scenario.config)
            # All simulators of the group get the same sequence and the same seed of durations.
            for row in rows:
                future = Future(*(table[row] for table in self.futures))
                future.job_profile[:] = sequence.job_index
                # Longer gaps mean a lower load.
                future.arrival_ms[:] = np.rint(sequence.arrival_ms * gap)
                prepare(future, sequence, self.scenario.config, self._next_seed)
            self._next_seed += 1
        if self.window_ms is not None:
            now_ms = 0 if self._is_new[group] else int(self.states.now.clock_ms[rows.start, 0])
            # The first window of a sequence has a random length, so that groups are not in step.
            length = (
                self.window_ms
                if not self._is_new[group]
                else int(self._rng.integers(1, self.window_ms + 1))
            )
            # A run stops at this time, as if it ended there.
            self.futures.events.end_ms[rows.start : rows.stop] = now_ms + length

    def collect(
        self,
        network: Any,
        episode_s: float | None = None,
        teacher: Teacher | None = None,
        gap: float = 1.0,
    ) -> list[list[Rollout]]:
        """Simulate one window (or whole runs) of all groups.

        Args:
            network: the network as the family's kernels take it.
            episode_s: end every run after this many simulated seconds, whatever the window.
            teacher: a rule whose choices are recorded instead of the network's, and the share of
                decisions that the rule takes.
            gap: factor by which the gaps between arrivals of new sequences are stretched.

        Returns:
            A list of groups, each a list of its rollouts. They are views, valid until the next
            collection.
        """
        for group in range(self.num_groups):
            self._prepare(group, gap)
        # Episodes end at a drawn time, which overrides the end of the window.
        if episode_s is not None:
            self.futures.events.end_ms[:] = max(1, round(episode_s * 1000))
        draw_seeds = self._rng.integers(0, 1 << 63, len(self._status), dtype=np.uint64)
        self._run(network, draw_seeds, teacher)
        groups = []
        for group in range(self.num_groups):
            rollouts = []
            for row in self._group(group):
                status = Status(int(self._status[row]))
                # Raises for wrong decisions, and where a run ended with unfinished jobs (stalled).
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
        self, network: Any, draw_seeds: npt.NDArray[np.uint64], teacher: Teacher | None
    ) -> None:
        """Simulate all spans (see `_spans`), each in one compiled call, on several threads."""
        with ThreadPoolExecutor(self.num_threads) as pool:
            calls = [
                pool.submit(self._explore, network, draw_seeds, span, teacher)
                for span in self._spans()
            ]
            for call in calls:
                call.result()

    def _spans(self) -> Iterator[tuple[int, int, bool]]:
        """Two halves of each group: (first, end, whether the group begins a new sequence)."""
        for group in range(self.num_groups):
            rows = self._group(group)
            middle = (rows.start + rows.stop + 1) // 2
            for a, b in itertools.pairwise(sorted({rows.start, middle, rows.stop})):
                yield a, b, bool(self._is_new[group])

    def _explore(
        self,
        network: Any,
        draw_seeds: npt.NDArray[np.uint64],
        span: tuple[int, int, bool],
        teacher: Teacher | None,
    ) -> None:
        first, last, is_new = span
        simulations = Simulations(self.states, self.futures, self._tables, self._status)
        recordings = Recordings(self._works, self._records, self.costing, draw_seeds)
        if teacher is None:
            self.family.explore_many(simulations, network, recordings, is_new, first, last)
        else:
            self.family.demonstrate_many(
                simulations, network, recordings, teacher, is_new, first, last
            )

    def _continue(self, group: int, rollouts: list[Rollout]) -> None:
        """Choose how the group continues: from an unfinished rollout, or with a new sequence."""
        rows = self._group(group)
        unfinished = [
            row for row, rollout in zip(rows, rollouts, strict=True) if not rollout.is_complete
        ]
        self._is_new[group] = self.window_ms is None or not unfinished
        if self._is_new[group]:
            self.futures.events.end_ms[rows.start : rows.stop] = NEVER_MS
            return
        chosen = unfinished[int(self._rng.integers(len(unfinished)))]
        # Copy the chosen simulator's state to all simulators of the group.
        for tables in (self.states, self.futures):
            for table in tables:
                table[rows.start : rows.stop] = table[chosen]


def require_decisions(groups: list[list[Rollout]]) -> int:
    """The number of recorded decisions of all groups.

    Raises:
        PolicyError: there were no decisions.
    """
    total = sum(rollout.count for group in groups for rollout in group)
    if total == 0:
        raise PolicyError(
            "the runs contain no decision to learn from: use more executors, or arrivals at which "
            "jobs compete"
        )
    return total
