"""A slow reference simulator in plain Python, against which tests check the compiled kernels.

It is written from the semantics alone. Jobs, stages and executors are objects, and every count is
computed anew when it is needed, so that it does not share the kernels' mistakes. With the same
random bits it gives the same completion times, decisions, events and tasks.

Source: Decima, section 6.2; the released simulator's executor commitments, pools, moving and
warm-up delays.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from parcae.simulation.tables import DurationMode, Interpolation
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import JobSequence

_MASK = (1 << 64) - 1
_LOW_BITS = (1 << 32) - 1

#: Rows of a job, of a stage within the job and of a task within the stage.
TaskKey = tuple[int, int, int]

#: random_bits(job, stage, task) -> 64 bits
RandomBits = Callable[[int, int, int], int]


def _mix(z: int) -> int:
    """Hash 64 bits; the same function as `parcae.base.compiled.kernels.mix`."""
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & _MASK
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def task_bits(seed: int, job: int, stage: int, task: int) -> int:
    """The 64 random bits of one task, the same as in the kernels."""
    start = _mix((_mix((seed ^ 0x9E3779B97F4A7C15) & _MASK) + job * 0xD1342543DE82EF95 + 1) & _MASK)
    return _mix((start + (stage << 32) + task) & _MASK)


class Draws(Protocol):
    """The random choices when a task starts: the level of parallelism, then the sample."""

    def takes_upper(self, task: TaskKey, n: int, low: int, high: int) -> bool:
        """Choose between two measured levels of parallelism.

        Args:
            task: the task that starts.
            n: executors of its job; low < n < high.
            low: the next smaller measured level.
            high: the next larger measured level.

        Returns:
            whether level `high` is used.
        """

    def sample(self, task: TaskKey, samples: list[int]) -> int:
        """Choose the duration in ms from a list that is not empty."""


@dataclass(frozen=True)
class RandomBitDraws:
    """Draws by a task's random bits: the upper 32 choose the level, the lower 32 the sample.

    Example: `RandomBitDraws(lambda job, stage, task: 0)` always takes the first sample, and the
    upper level if its probability is not 0.
    """

    random_bits: RandomBits
    durations: DurationMode = DurationMode.SAMPLED
    interpolation: Interpolation = Interpolation.LINEAR

    def takes_upper(self, task: TaskKey, n: int, low: int, high: int) -> bool:
        """See `Draws.takes_upper`."""
        weight = {
            Interpolation.LINEAR: n - low,
            Interpolation.INVERTED: high - n,
            Interpolation.LOWER: 0,
        }[self.interpolation]
        return ((self.random_bits(*task) >> 32) * (high - low)) >> 32 < weight

    def sample(self, task: TaskKey, samples: list[int]) -> int:
        """See `Draws.sample`."""
        if self.durations is DurationMode.FIRST:
            return samples[0]
        if self.durations is DurationMode.LISTED:
            return samples[task[2] % len(samples)]
        if self.durations is DurationMode.MEAN:
            return int(sum(samples) / len(samples) + 0.5)
        return samples[((self.random_bits(*task) & _LOW_BITS) * len(samples)) >> 32]


#: decide(oracle) -> (stage or None, limit)
OraclePolicy = Callable[["Oracle"], "tuple[OracleStage | None, int]"]


@dataclass(eq=False)
class OracleStage:
    """A stage of a job that has arrived."""

    job: OracleJob
    index: int
    spec: StageSpec
    parents: list[OracleStage] = field(default_factory=list)
    children: list[OracleStage] = field(default_factory=list)
    started: int = 0
    finished: int = 0

    @property
    def has_unstarted(self) -> bool:
        """Whether some of its tasks have not started."""
        return self.started < self.spec.num_tasks

    @property
    def is_done(self) -> bool:
        """Whether all of its tasks have finished."""
        return self.finished == self.spec.num_tasks


@dataclass(eq=False)
class OracleJob:
    """A job that has arrived; `frontier` are its runnable stages with tasks to start."""

    row: int
    spec: JobSpec
    arrival_ms: int
    stages: list[OracleStage] = field(default_factory=list)
    frontier: list[OracleStage] = field(default_factory=list)
    executors: list[OracleExecutor] = field(default_factory=list)
    completion_ms: int = -1  # -1: it has not completed
    granted: int = 0  # executors that decisions moved here from elsewhere, in total


@dataclass(eq=False)
class OracleExecutor:
    """An executor; `stage` is the stage of its present or last task, None while idle or moving."""

    row: int
    job: OracleJob | None = None
    stage: OracleStage | None = None


#: Where free executors come from: a stage whose tasks ended, the pool of a job, or the common pool.
Source = OracleStage | OracleJob | None


class Oracle:
    """One simulated run; `run` plays it.

    Args:
        sequence: the jobs and their arrival times in ms.
        num_executors: executors of the cluster.
        seed: seed of the tasks' random bits.
        moving_delay_ms: time of a move between jobs, in ms.
        warmup_delay_ms: added to a cold start without fresh samples, in ms.
        durations, interpolation: as in `SimulationConfig`.
        draws: replaces `seed`, `durations` and `interpolation`.
    """

    def __init__(
        self,
        sequence: JobSequence,
        num_executors: int,
        *,
        seed: int = 0,
        moving_delay_ms: int = 2_000,
        warmup_delay_ms: int = 1_000,
        durations: DurationMode = DurationMode.SAMPLED,
        interpolation: Interpolation = Interpolation.LINEAR,
        draws: Draws | None = None,
    ) -> None:
        self.sequence = sequence
        self.draws = draws or RandomBitDraws(partial(task_bits, seed), durations, interpolation)
        self.moving_delay_ms = moving_delay_ms
        self.warmup_delay_ms = warmup_delay_ms
        self.executors = [OracleExecutor(row) for row in range(num_executors)]
        self.jobs: list[OracleJob] = []
        self.active: list[OracleJob] = []
        self.pools: dict[OracleJob | None, list[OracleExecutor]] = {None: list(self.executors)}
        self.moving: dict[OracleExecutor, OracleStage] = {}
        self.commitments: dict[Source, dict[OracleStage | None, int]] = {}
        self.selected: set[OracleStage] = set()
        self.to_schedule: list[OracleExecutor] = list(self.executors)
        self.source_job: OracleJob | None = None
        self.num_source = num_executors
        self.clock_ms = self.num_events = self.num_tasks = self.work_ms = 0
        self.heap: list[tuple[int, int, object]] = []
        self.stalled_at = -1
        self.stalled_pools = 0
        self.decisions: list[list[float]] = []
        self.tasks: list[tuple[int, int, int, int, int, int]] = []

    # What policies read

    def num_supplied(self, job: OracleJob) -> int:
        """Executors attached to the job, moving to it, or committed to it from outside."""
        moving = sum(stage.job is job for stage in self.moving.values())
        outside = 0
        for source, destinations in self.commitments.items():
            source_job = source.job if isinstance(source, OracleStage) else source
            if source_job is not job:
                outside += sum(
                    n for stage, n in destinations.items() if stage is not None and stage.job is job
                )
        return len(job.executors) + moving + outside

    def demand(self, stage: OracleStage) -> int:
        """Tasks not started - executors committed to the stage - executors moving to it."""
        committed = sum(destinations.get(stage, 0) for destinations in self.commitments.values())
        moving = sum(destination is stage for destination in self.moving.values())
        return stage.spec.num_tasks - stage.started - committed - moving

    def is_schedulable(self, stage: OracleStage) -> bool:
        """Whether it has demand, was not chosen in this round, and no parent has demand."""
        return (
            stage not in self.selected
            and self.demand(stage) > 0
            and all(self.demand(parent) <= 0 for parent in stage.parents)
        )

    def schedulable(self) -> list[OracleStage]:
        """The schedulable stages, in order of the jobs' arrival, then by stage index."""
        return [stage for job in self.active for stage in job.stages if self.is_schedulable(stage)]

    # The run

    def run(self, policy: OraclePolicy) -> None:
        """Run to the last event under a policy."""
        pending = list(zip(self.sequence.jobs, self.sequence.arrival_ms.tolist(), strict=True))
        for spec, arrival_ms in pending:
            if arrival_ms == 0:
                self._arrive(spec, 0)
            else:
                self._push(arrival_ms, (spec, arrival_ms))
        while self.num_source > 0 or self._open_stalled() or self.heap:
            if self.num_source > 0:
                self._decide(policy)
            else:
                self.clock_ms, _, event = heapq.heappop(self.heap)
                self._fire(event)

    def _open_stalled(self) -> bool:
        """In a stalled run, offer the next pool of idle executors; each pool once for each stall.

        A run is stalled if no task runs and no executor moves although stages are schedulable.
        """
        if (
            any(isinstance(event, OracleExecutor) for _, _, event in self.heap)
            or not self.schedulable()
        ):
            return False
        if self.stalled_at != self.num_events:
            self.stalled_at = self.num_events
            self.stalled_pools = 0
        while self.stalled_pools <= len(self.active):
            job = self.active[self.stalled_pools] if self.stalled_pools < len(self.active) else None
            self.stalled_pools += 1
            if self.pools[job]:
                self._open(job, list(self.pools[job]), len(self.pools[job]))
                return True
        return False

    def _push(self, time_ms: int, event: object) -> None:
        heapq.heappush(self.heap, (time_ms, self.num_events, event))
        self.num_events += 1

    def _source(self) -> Source:
        first = self.to_schedule[0]
        return first.stage if first.stage is not None else first.job

    def _decide(self, policy: OraclePolicy) -> None:
        row = -1 if self.source_job is None else self.source_job.row
        record = [float(self.clock_ms), row, self.num_source, len(self.schedulable())]
        stage, limit = policy(self)
        count = (
            self.num_source if stage is None else min(self.demand(stage), limit, self.num_source)
        )
        self.decisions.append(
            [
                *record,
                -1 if stage is None else stage.job.row,
                -1 if stage is None else stage.index,
                count,
            ]
        )
        if stage is not None:
            self.selected.add(stage)
            if stage.job is not self.source_job:
                stage.job.granted += count
        destinations = self.commitments.setdefault(self._source(), {})
        destinations[stage] = destinations.get(stage, 0) + count
        self.num_source -= count
        if self.num_source == 0:
            self.selected.clear()
            self._fulfil(self.to_schedule)

    def _fulfil(self, executors: list[OracleExecutor]) -> None:
        self.to_schedule = list(executors)
        source = self._source()
        destinations = self.commitments.get(source, {})
        while destinations and self.to_schedule:
            stage = next(iter(destinations))
            destinations[stage] -= 1
            if destinations[stage] == 0:
                del destinations[stage]
            self._send(self.to_schedule.pop(0), stage)

    def _send(self, executor: OracleExecutor, stage: OracleStage | None) -> None:
        for pool in self.pools.values():
            if executor in pool:
                pool.remove(executor)
        job = executor.job
        if stage is None:
            keeps = job is not None and any(s.has_unstarted for s in job.stages)
            self._park(executor, job if keeps else None)
        elif not stage.has_unstarted:
            self._backup(executor)
        elif job is not stage.job:
            self._move(executor, stage)
        elif stage in stage.job.frontier:
            self._start(executor, stage)
        else:
            self._park(executor, job)

    def _backup(self, executor: OracleExecutor) -> None:
        if executor.job is not None:
            for stage in executor.job.frontier:
                if self.demand(stage) > 0:
                    self._start(executor, stage)
                    return
        schedulable = self.schedulable()
        if schedulable:
            self._move(executor, schedulable[0])
        else:
            self._park(executor, executor.job)

    def _park(self, executor: OracleExecutor, job: OracleJob | None) -> None:
        executor.stage = None
        if job is None:
            self._detach(executor)
        self.pools[job].append(executor)

    def _detach(self, executor: OracleExecutor) -> None:
        if executor.job is not None:
            executor.job.executors.remove(executor)
        executor.job = executor.stage = None

    def _move(self, executor: OracleExecutor, stage: OracleStage) -> None:
        self._detach(executor)
        self.moving[executor] = stage
        self._push(self.clock_ms + self.moving_delay_ms, executor)

    def _start(self, executor: OracleExecutor, stage: OracleStage) -> None:
        task = stage.started
        duration_ms = self._duration_ms(executor, stage, task)
        stage.started += 1
        if not stage.has_unstarted:
            stage.job.frontier.remove(stage)
        executor.stage = stage
        self.num_tasks += 1
        self.work_ms += duration_ms
        record = (
            stage.job.row,
            stage.index,
            task,
            executor.row,
            self.clock_ms,
            self.clock_ms + duration_ms,
        )
        self.tasks.append(record)
        self._push(self.clock_ms + duration_ms, executor)

    # Events

    def _fire(self, event: object) -> None:
        if isinstance(event, tuple):
            spec, arrival_ms = event
            self._arrive(spec, arrival_ms)
            self._open(None, list(self.pools[None]), len(self.pools[None]))
        elif isinstance(event, OracleExecutor):
            if event in self.moving:
                self._arrived(event, self.moving.pop(event))
            else:
                self._task_finished(event)

    def _arrive(self, spec: JobSpec, arrival_ms: int) -> None:
        job = OracleJob(len(self.jobs), spec, arrival_ms)
        job.stages = [OracleStage(job, index, stage) for index, stage in enumerate(spec.stages)]
        for stage in job.stages:
            stage.parents = [job.stages[parent] for parent in stage.spec.parents]
            for parent in stage.parents:
                parent.children.append(stage)
        job.frontier = [stage for stage in job.stages if not stage.parents]
        self.jobs.append(job)
        self.active.append(job)
        self.pools[job] = []

    def _open(self, job: OracleJob | None, executors: list[OracleExecutor], count: int) -> None:
        self.source_job = job
        self.to_schedule = executors
        self.num_source = count

    def _arrived(self, executor: OracleExecutor, stage: OracleStage) -> None:
        if stage.job.completion_ms >= 0:
            self._backup(executor)
            return
        executor.job = stage.job
        stage.job.executors.append(executor)
        if not stage.has_unstarted:
            self._backup(executor)
        elif stage in stage.job.frontier:
            self._start(executor, stage)
        else:
            self._park(executor, stage.job)

    def _task_finished(self, executor: OracleExecutor) -> None:
        stage = executor.stage
        assert stage is not None
        job = stage.job
        stage.finished += 1
        changed = False
        if stage.is_done:
            for child in stage.children:
                if all(parent.is_done for parent in child.parents) and child.has_unstarted:
                    job.frontier.append(child)
                    changed = True
        if stage.has_unstarted:
            self._start(executor, stage)
            return
        self._reassign(executor, stage, changed)
        if all(s.is_done for s in job.stages):
            self._complete(job, executor)

    def _reassign(self, executor: OracleExecutor, stage: OracleStage, changed: bool) -> None:
        job = stage.job
        if self.commitments.get(stage):
            self._fulfil([executor])
        elif changed:
            self._park(executor, job)
        else:
            bound = sum(other.stage is stage for other in self.executors)
            self._open(job, [executor], bound)
            return
        if changed:
            self._open(job, list(self.pools[job]), len(self.pools[job]))

    def _complete(self, job: OracleJob, executor: OracleExecutor) -> None:
        job.completion_ms = self.clock_ms
        self.active.remove(job)
        for destinations in self.commitments.values():
            for stage in [s for s in destinations if s is not None and s.job is job]:
                del destinations[stage]
        for idle in self.pools.pop(job):
            self._detach(idle)
            self.pools[None].append(idle)
        if executor.job is job:
            self._detach(executor)

    # Durations

    def _duration_ms(self, executor: OracleExecutor, stage: OracleStage, task: int) -> int:
        durations = stage.spec.durations
        key = (stage.job.row, stage.index, task)
        level = self._level(key, durations.levels, len(stage.job.executors))
        fresh, first, rest = (
            lists[level] for lists in (durations.fresh, durations.first, durations.rest)
        )
        if executor.stage is None:
            if len(fresh):
                return self.draws.sample(key, fresh.tolist())
            return self.draws.sample(key, first.tolist()) + self.warmup_delay_ms
        if executor.stage is stage and len(rest):
            return self.draws.sample(key, rest.tolist())
        return self.draws.sample(key, (first if len(first) else fresh).tolist())

    def _level(self, task: TaskKey, levels: tuple[int, ...], n: int) -> int:
        if n <= levels[0]:
            return 0
        if n >= levels[-1]:
            return len(levels) - 1
        upper = next(i for i, level in enumerate(levels) if level >= n)
        if levels[upper] == n or self.draws.takes_upper(task, n, levels[upper - 1], levels[upper]):
            return upper
        return upper - 1
