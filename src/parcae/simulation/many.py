"""Many simulators side by side, each run from start to end in compiled code on several threads."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from parcae.base.errors import ConfigError
from parcae.cluster.state import ClusterState, allocate, select
from parcae.cluster.trace import Trace
from parcae.simulation.config import SimulationConfig
from parcae.simulation.elastic import with_elastic
from parcae.simulation.future import Future, Status, allocate_future
from parcae.simulation.kernels.playing import Simulations
from parcae.simulation.simulator import (
    build_trace,
    check_fits,
    check_status,
    prepare,
    prepare_state,
)
from parcae.simulation.tables import WorkloadTables, workload_tables
from parcae.workloads.workload import JobSequence, Workload

#: play_many(simulations, first, last): runs simulators first..last-1.
PlayMany = Callable[[Simulations, int, int], None]


def room_for(workload: Workload, num_jobs: int) -> dict[str, int]:
    """The sizes of tables in which any sequence of so many jobs fits, for `SimulatorRows`."""
    jobs = workload.jobs
    return {
        "num_jobs": num_jobs,
        "num_stages": num_jobs * max(len(job.stages) for job in jobs),
        "num_edges": num_jobs * max(sum(len(s.parents) for s in job.stages) for job in jobs),
        "num_tasks": num_jobs * max(job.num_tasks for job in jobs),
    }


class SimulatorRows:
    """Simulators of one workload and cluster in the rows of shared tables.

    A row runs one job sequence after another: `put` prepares the next one.

    Args:
        count: number of simulators, the leading axis of all tables.
        workload: the jobs of all sequences.
        config: the cluster settings.
        num_jobs: jobs of each sequence.
        num_stages: most stages of a sequence.
        num_edges: most edges of a sequence.
        num_tasks: most tasks of a sequence.
    """

    def __init__(
        self,
        count: int,
        workload: Workload,
        config: SimulationConfig,
        *,
        num_jobs: int,
        num_stages: int,
        num_edges: int,
        num_tasks: int,
    ) -> None:
        self.config = config
        world = config.world.world
        self.tables = workload_tables(workload, config.durations, config.interpolation, world)
        self.states = allocate(
            count, config.classes, num_jobs, num_stages, max(1, num_edges), world
        )
        prepare_state(self.states, config, workload)
        futures = allocate_future(
            count,
            config.total_executors,
            num_jobs,
            num_stages,
            0,
            0,
            world,
            num_tasks if config.faults is not None else 0,
        )
        self.futures = with_elastic(futures, config.elastic, config.total_executors)
        self.status = np.zeros(count, np.int64)
        self._sequences: list[JobSequence | None] = [None] * count
        # Views of one simulator's tables, made when they are first asked for.
        self._states: dict[int, ClusterState] = {}
        self._futures: dict[int, Future] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle has: not the views, which would not be of its own tables."""
        return {**self.__dict__, "_states": {}, "_futures": {}}

    @property
    def simulations(self) -> Simulations:
        """The simulators' tables, as kernels take them."""
        return Simulations(self.states, self.futures, self.tables, self.status)

    def put(self, row: int, sequence: JobSequence, seed: int) -> None:
        """Let a row's next run be that of a sequence and a seed."""
        future = self.future(row)
        future.job_profile[:] = sequence.job_index
        future.arrival_ms[:] = sequence.arrival_ms
        prepare(future, sequence, self.config, seed)
        self._sequences[row] = sequence

    def sequence(self, row: int) -> JobSequence:
        """The sequence that was put into a row."""
        sequence = self._sequences[row]
        assert sequence is not None, f"row {row} has no sequence"
        return sequence

    def state(self, row: int) -> ClusterState:
        """The state of one simulator, as views."""
        if row not in self._states:
            self._states[row] = select(self.states, row)
        return self._states[row]

    def future(self, row: int) -> Future:
        """The `Future` tables of one simulator, as views."""
        if row not in self._futures:
            self._futures[row] = Future(*(table[row] for table in self.futures))
        return self._futures[row]

    def check(self, row: int) -> Status:
        """Return the status of one simulator, and raise the error that it stands for."""
        return check_status(int(self.status[row]), self.state(row), self.sequence(row))

    def trace(self, row: int, policy: str) -> Trace:
        """The trace of one simulator."""
        return build_trace(self.state(row), self.future(row), self.sequence(row), policy)


class SimulatorBatch(SimulatorRows):
    """One simulator for each job sequence, all with the same workload and cluster settings.

    Args:
        sequences: the job sequence of each simulator; all have the same workload and length.
        config: the cluster settings.
        seeds: the seed of each simulator's random bits.

    Raises:
        ConfigError: sequences of different workloads or lengths, or not one seed for each.
    """

    def __init__(
        self, sequences: Sequence[JobSequence], config: SimulationConfig, seeds: Sequence[int]
    ) -> None:
        workload = sequences[0].workload
        num_jobs = len(sequences[0].job_index)
        if any(
            s.workload is not workload or len(s.job_index) != num_jobs for s in sequences
        ) or len(seeds) != len(sequences):
            raise ConfigError(
                "all sequences of a batch need the same workload and number of jobs, and one seed "
                "each"
            )
        tables = workload_tables(
            workload, config.durations, config.interpolation, config.world.world
        )
        sizes = [_sizes(tables, sequence) for sequence in sequences]
        super().__init__(
            len(sequences),
            workload,
            config,
            num_jobs=num_jobs,
            num_stages=max(stages for stages, _, _ in sizes),
            num_edges=max(edges for _, edges, _ in sizes),
            num_tasks=max(tasks for _, _, tasks in sizes),
        )
        for row, (sequence, seed) in enumerate(zip(sequences, seeds, strict=True)):
            check_fits(sequence, config)
            self.put(row, sequence, seed)

    def run(self, play_many: PlayMany, num_threads: int | None = None) -> None:
        """Run every simulator from start to end by a compiled function that runs a range of them.

        By default there is a thread for each CPU: the kernels release the interpreter's lock.
        """
        simulations = self.simulations
        threads = max(1, min(num_threads or os.cpu_count() or 1, len(self)))
        bounds = np.linspace(0, len(self), threads + 1).astype(int)
        with ThreadPoolExecutor(threads) as pool:
            jobs = [
                pool.submit(play_many, simulations, int(a), int(b))
                for a, b in itertools.pairwise(bounds)
            ]
            for job in jobs:
                job.result()
        for row in range(len(self)):
            self.check(row)


def _sizes(tables: WorkloadTables, sequence: JobSequence) -> tuple[int, int, int]:
    """(stages, edges, tasks) of all jobs of a sequence."""
    first = tables.job_first_stage
    rows = np.concatenate([np.arange(first[p], first[p + 1]) for p in sequence.job_index])
    specs = tables.specs
    return len(rows), int(specs.num_children[rows].sum()), int(specs.num_tasks[rows].sum())
