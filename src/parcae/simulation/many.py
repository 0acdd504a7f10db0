"""Many simulators side by side, each run from start to end in compiled code on several threads."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from parcae.cluster.state import allocate, select
from parcae.cluster.trace import Trace
from parcae.errors import ConfigError
from parcae.simulation.config import SimulationConfig
from parcae.simulation.elastic import with_elastic
from parcae.simulation.future import Future, allocate_future
from parcae.simulation.kernels.simulations import Simulations
from parcae.simulation.simulator import (
    build_trace,
    check_fits,
    check_status,
    prepare,
    prepare_state,
)
from parcae.simulation.tables import workload_tables
from parcae.workloads.arrivals import JobSequence

#: play_many(simulations, first, last): runs simulators first..last-1.
PlayMany = Callable[[Simulations, int, int], None]


class SimulatorBatch:
    """One simulator for each job sequence, all with the same workload and cluster settings.

    The simulators share tables that have the simulator as leading axis.

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
        self.sequences = tuple(sequences)
        self.config = config
        self.tables = workload_tables(
            workload, config.durations, config.interpolation, config.world.world
        )
        sizes = [self._sizes(sequence) for sequence in sequences]
        num_stages = max(s for s, _, _ in sizes)
        num_edges = max(1, max(e for _, e, _ in sizes))
        world = config.world.world
        self.states = allocate(
            len(sequences), config.classes, num_jobs, num_stages, num_edges, world
        )
        prepare_state(self.states, config, workload)
        self.futures = allocate_future(
            len(sequences),
            config.total_executors,
            num_jobs,
            num_stages,
            0,
            0,
            world,
            max(t for _, _, t in sizes) if config.faults is not None else 0,
        )
        self.futures = with_elastic(self.futures, config.elastic, config.total_executors)
        for row, (sequence, seed) in enumerate(zip(sequences, seeds, strict=True)):
            check_fits(sequence, config)
            future = self.future(row)
            future.job_profile[:] = sequence.job_index
            future.arrival_ms[:] = sequence.arrival_ms
            prepare(future, sequence, config, seed)

    def _sizes(self, sequence: JobSequence) -> tuple[int, int, int]:
        """(stages, edges, tasks) of all jobs of a sequence."""
        first = self.tables.job_first_stage
        rows = np.concatenate([np.arange(first[p], first[p + 1]) for p in sequence.job_index])
        specs = self.tables.specs
        return len(rows), int(specs.num_children[rows].sum()), int(specs.num_tasks[rows].sum())

    def __len__(self) -> int:
        return len(self.sequences)

    def future(self, row: int) -> Future:
        """The `Future` tables of one simulator, as views."""
        return Future(*(table[row] for table in self.futures))

    def run(self, play_many: PlayMany, num_threads: int | None = None) -> None:
        """Run every simulator from start to end by a compiled function that runs a range of them.

        By default there is a thread for each CPU: the kernels release the interpreter's lock.

        Raises:
            PolicyError, WorkloadError: a run failed; see `check_status`.
        """
        status = np.zeros(len(self), np.int64)
        simulations = Simulations(self.states, self.futures, self.tables, status)
        threads = max(1, min(num_threads or os.cpu_count() or 1, len(self)))
        bounds = np.linspace(0, len(self), threads + 1).astype(int)
        with ThreadPoolExecutor(threads) as pool:
            jobs = [
                pool.submit(play_many, simulations, int(a), int(b))
                for a, b in itertools.pairwise(bounds)
            ]
            for job in jobs:
                job.result()
        for row, sequence in enumerate(self.sequences):
            check_status(int(status[row]), select(self.states, row), sequence)

    def trace(self, row: int, policy: str) -> Trace:
        """The trace of one simulator."""
        return build_trace(select(self.states, row), self.future(row), self.sequences[row], policy)
