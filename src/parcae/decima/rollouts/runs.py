"""The runs in which rollouts are played: their tables, threads, and the trials of one decision."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.decision import Decision
from parcae.cluster.observation import Observation
from parcae.cluster.state import allocate, select
from parcae.decima.rollouts.playing import Assumptions, Trials
from parcae.decima.rollouts.race import Clock, Costs, PlaySamples
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Future, Status, allocate_future
from parcae.simulation.kernels.playing import Simulation
from parcae.simulation.tables import workload_tables
from parcae.workloads.workload import Workload

#: Most jobs that arrive in a rollout.
_MOST_ARRIVALS = 64
#: How long a rollout with jobs to come is, relative to the mean time that a job needs on the whole
#: cluster.
_HORIZON = 6.0
#: The same without jobs to come: long enough that it usually ends with the last job.
_LONG_HORIZON = 60.0
#: Rollouts that a thread plays at once, unless the decision has a time.
_SLICE = 8
#: The cost of a rollout that did not end.
_NO_END = 1e30
_SEED = 0x726F6C6C


@dataclass(frozen=True)
class RolloutModel:
    """What rollouts know of the cluster besides its present state."""

    workload: Workload
    config: SimulationConfig
    mean_gap_ms: float = 0.0

    @property
    def alone_ms(self) -> float:
        """The mean time that a job needs on the whole cluster."""
        jobs = self.workload.jobs
        executors = self.config.total_executors
        alone_ms = [max(job.critical_path_ms, job.work_ms / executors) for job in jobs]
        return float(np.average(alone_ms, weights=self.workload.weights))

    def assumptions(self, horizon: float, mean_gap_ms: float) -> Assumptions:
        """What a kind of rollouts assumes."""
        weights = self.workload.weights
        shares = np.ones(len(self.workload.jobs)) if weights is None else np.array(weights)
        return Assumptions(
            np.array([max(1, round(horizon * self.alone_ms))]),
            np.array([mean_gap_ms]),
            np.cumsum(shares),
            self.sigma,
        )

    @property
    def sigma(self) -> npt.NDArray[np.float64]:
        """How far durations are from their estimates, see `Assumptions`."""
        error = self.config.estimate_error
        jobs = self.workload.jobs
        return np.array([job.work_sigma if error == "log" else error for job in jobs], np.float64)


#: Plays trials in a run: (run, trials, assumed, first trial, one past the last trial).
PlayTrials = Callable[[Simulation, Trials, Assumptions, int, int], None]


class RolloutRuns:
    """Runs for rollouts, one for each thread."""

    def __init__(self, model: RolloutModel, num_threads: int) -> None:
        self._model = model
        self._num_threads = num_threads
        self._room: tuple[int, ...] = ()
        self._runs: list[Simulation] = []
        #: What rollouts assume that play the jobs in the system, and no others.
        self.present = model.assumptions(_LONG_HORIZON, mean_gap_ms=0.0)
        #: What rollouts assume in which jobs arrive; None: no job will arrive.
        self.to_come: Assumptions | None = None
        if model.mean_gap_ms > 0:
            self.to_come = model.assumptions(_HORIZON, model.mean_gap_ms)

    def __getstate__(self) -> dict[str, Any]:
        """The runs without their tables, which every process makes itself."""
        return {**self.__dict__, "_runs": [], "_room": ()}

    def fit(self, observation: Observation) -> None:
        """Make room for the observed cluster, and for jobs that will arrive."""
        shape = tuple(
            len(table)
            for table in (
                observation.jobs,
                observation.stages,
                observation.children,
                observation.executors,
            )
        )
        has_room = all(a <= b for a, b in zip(shape, self._room, strict=False))
        # The number of executors must be the same: it is the size of the event queue.
        if not self._runs or not has_room or shape[3] != self._room[3]:
            self._runs = self._allocate(shape)
            self._room = shape

    def _allocate(self, shape: tuple[int, ...]) -> list[Simulation]:
        """Tables for an observed cluster of this shape."""
        workload = self._model.workload
        config = self._model.config
        world = config.world.world
        num_more = _MOST_ARRIVALS if self._model.mean_gap_ms > 0 else 0
        most_stages = max(len(job.stages) for job in workload.jobs)
        most_edges = max(sum(len(s.parents) for s in job.stages) for job in workload.jobs)
        num_jobs = shape[0] + num_more
        num_stages = shape[1] + num_more * most_stages
        num_edges = max(1, shape[2] + num_more * most_edges)
        count = self._num_threads
        states = allocate(count, config.classes, num_jobs, num_stages, num_edges, world)
        futures = allocate_future(count, shape[3], num_jobs, num_stages, 0, 0, world)
        futures.events.moving_delay_ms[:] = config.moving_delay_ms
        futures.events.warmup_delay_ms[:] = config.warmup_delay_ms
        tables = workload_tables(workload, config.durations, config.interpolation, world)
        return [
            Simulation(select(states, row), Future(*(table[row] for table in futures)), tables)
            for row in range(count)
        ]

    def play(
        self, play_trials: Callable[[Simulation, int, int], None], total: int, clock: Clock
    ) -> bool:
        """Play trials on all threads. Returns False if the deadline passed meanwhile."""

        def play_part(run: Simulation, first: int, last: int) -> bool:
            # A rollout of a cluster with many jobs can take as long as a decision may.
            count = 1 if clock.is_limited else _SLICE
            for begin in range(first, last, count):
                if clock.is_late:
                    return False
                play_trials(run, begin, min(begin + count, last))
            return True

        bounds = np.linspace(0, total, len(self._runs) + 1).astype(int).tolist()
        parts = list(itertools.pairwise(bounds))
        if len(parts) == 1:
            return play_part(self._runs[0], 0, total)
        with ThreadPoolExecutor(len(parts)) as pool:
            results = list(pool.map(play_part, self._runs, *zip(*parts, strict=True)))
        return all(results)


class Sampler:
    """Samples of the options of one decision."""

    def __init__(
        self,
        runs: RolloutRuns,
        observation: Observation,
        options: Sequence[Decision],
        play_trials: PlayTrials,
        clock: Clock,
    ) -> None:
        self._runs = runs
        self._options = options
        self._play_trials = play_trials
        self._clock = clock
        # The same observation gets the same random bits.
        number = int(observation.now.num_decisions[0])
        self._rng = np.random.default_rng([_SEED, int(observation.now.clock_ms[0]), number])

    def __call__(self, rows: list[int], count: int) -> Costs | None:
        """Play samples of options without jobs to come, see `_samples`."""
        return self._samples(rows, count, self._runs.present)

    @property
    def with_arrivals(self) -> PlaySamples | None:
        """Plays samples of options with jobs to come; None if no job will arrive."""
        assumed = self._runs.to_come
        if assumed is None:
            return None
        return partial(self._samples, assumed=assumed)

    def _samples(self, rows: list[int], count: int, assumed: Assumptions) -> Costs | None:
        """Play samples of options. Returns the time of all jobs in ms, float64[options, samples];
        None if the deadline passed meanwhile.
        """
        stage, limit, executor_class, hold_ms = np.repeat(
            np.array([self._options[row] for row in rows], np.int64).T, count, axis=1
        )
        seeds = self._rng.integers(0, 1 << 63, count).astype(np.uint64)
        total = len(rows) * count
        trials = Trials(
            stage,
            limit,
            executor_class,
            hold_ms,
            np.tile(seeds, len(rows)),
            np.zeros(total),
            np.zeros(total, np.int64),
        )

        def play(run: Simulation, first: int, last: int) -> None:
            self._play_trials(run, trials, assumed, first, last)

        if not self._runs.play(play, total, self._clock):
            return None
        has_ended = (trials.status == Status.COMPLETE) | (trials.status == Status.ENDED)
        costs = np.where(has_ended, trials.job_ms, _NO_END)
        return costs.reshape(len(rows), count)
