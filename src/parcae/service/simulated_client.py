"""A client without a cluster: it obeys commands in simulated time, with the task durations of a recorded run.

It stands for Spark in the parity test, in `parcae bench service` and in demonstrations. It knows nothing of the service's
state: jobs, tokens and slots are kept as a client keeps them.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from typing import Literal

from parcae.cluster.state import ExecutorClass
from parcae.cluster.trace import Trace
from parcae.errors import ConfigError, ProtocolError
from parcae.service.protocol import (
    Code,
    Commands,
    Event,
    Events,
    Hello,
    JobArrived,
    JobEnded,
    JobMessage,
    SlotArrived,
    SlotMessage,
    StageMessage,
    StagesAdded,
    Sync,
    TaskFinished,
    new_nonce,
)
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.job import JobSpec

_TaskTimes = dict[tuple[int, int, int], int]


@dataclass
class _Slot:
    """What a slot does now; a busy slot has an entry in the heap."""

    job: int | None = None
    stage: int | None = None
    size: ExecutorClass | None = None
    is_moving: bool = False
    task: int = 0
    started_ms: int = 0


def task_times(trace: Trace) -> _TaskTimes:
    """Duration in ms of every (job, stage index, task) of a recorded run.

    Raises:
        ConfigError: the run was not recorded.
    """
    if trace.tasks is None:
        raise ConfigError("the run was not recorded: simulate it with record=True")
    return {(int(t["job"]), int(t["stage"]), int(t["task"])): int(t["finish_ms"] - t["start_ms"]) for t in trace.tasks}


def job_message(spec: JobSpec, job_id: int, arrival_ms: int, *, tells_durations: bool = False) -> JobMessage:
    """A job as a client submits it; stage ids are stage indices."""
    stages = tuple(
        StageMessage(
            stage_id=index,
            tasks=stage.num_tasks,
            parents=stage.parents,
            cpu=stage.cpu,
            memory=stage.memory,
            task_ms=stage.mean_task_ms if tells_durations else None,
        )
        for index, stage in enumerate(spec.stages)
    )
    return JobMessage(job_id=job_id, name=spec.name, arrival_ms=arrival_ms, stages=stages)


@dataclass
class SimulatedClient:
    """A cluster of `num_slots` slots that a service schedules.

    Args:
        sequence: the jobs and when they arrive; job ids are positions.
        times: duration of every task; see `task_times`.
        moving_delay_ms: from the command to move to the arrival.
        first_slot: number of the first slot.
        tells_durations: send the jobs' mean durations.
        is_adaptive: jobs are open, and a stage is revealed when its parents are done.
        executor_classes: sizes of the slots, in the order of their numbers; none are told without.

    Raises:
        ConfigError: classes of another number of slots.

    Example:
        client.obey(ask(client.sync()))
        while (message := client.next_message()) is not None:
            client.obey(ask(message))
    """

    sequence: JobSequence
    times: _TaskTimes
    num_slots: int
    moving_delay_ms: int
    application_id: str = "simulated"
    first_slot: int = 0
    tells_durations: bool = False
    is_adaptive: bool = False
    executor_classes: tuple[ExecutorClass, ...] = ()
    clock_ms: int = 0
    tasks: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)  # TASK_RECORD, in order of start
    num_moves: int = 0
    num_releases: int = 0
    _seq: int = 0
    _next_job: int = 0
    _wake_ms: int | None = None

    def __post_init__(self) -> None:
        sizes: list[ExecutorClass | None] = [own for own in self.executor_classes for _ in range(own.num_executors)]
        sizes = sizes or [None] * self.num_slots
        if len(sizes) != self.num_slots:
            raise ConfigError(f"executor classes of {len(sizes)} slots for a client of {self.num_slots}; make the two agree")
        self._slots = {self.first_slot + number: _Slot(size=size) for number, size in enumerate(sizes)}
        self._heap: list[tuple[int, int, int]] = []
        self._pushes = itertools.count()
        self._started: dict[tuple[int, int], int] = {}
        self._finished: dict[tuple[int, int], int] = {}
        self._revealed: dict[int, list[int]] = {}  # stages of every adaptive job, in the order of their revealing
        self._later: list[Event] = []  # what is said next, at the same time

    def hello(self) -> Hello:
        """Who it is."""
        return Hello(protocol=1, application_id=self.application_id, client="parcae simulated client", nonce=new_nonce())

    def sync(self) -> Sync:
        """Everything it knows; jobs that arrive by now have arrived."""
        while self._next_job < self.sequence.num_jobs and self.sequence.arrival_ms[self._next_job] <= self.clock_ms:
            self._next_job += 1
        self._later.clear()
        jobs = tuple(self._job_now(job) for job in range(self._next_job) if not self._is_done(job))
        slots = tuple(self._slot_now(number, slot) for number, slot in self._slots.items())
        self._seq += 1
        return Sync(seq=self._seq, clock_ms=self.clock_ms, slots=slots, jobs=jobs)

    def _job(self, job: int) -> JobMessage:
        arrival_ms = int(self.sequence.arrival_ms[job])
        message = job_message(self.sequence.jobs[job], job, arrival_ms, tells_durations=self.tells_durations)
        if not self.is_adaptive:
            return message
        self._reveal(job)
        stages = tuple(message.stages[stage] for stage in self._revealed[job])
        return message.model_copy(update={"stages": stages, "is_open": True})

    def _is_finished(self, job: int, stage: int) -> bool:
        return self._finished.get((job, stage), 0) == self.sequence.jobs[job].stages[stage].num_tasks

    def _is_done(self, job: int) -> bool:
        return all(self._is_finished(job, stage) for stage in range(len(self.sequence.jobs[job].stages)))

    def _reveal(self, job: int) -> list[int]:
        """Stages that are seen for the first time: their parents are done."""
        known = self._revealed.setdefault(job, [])
        stages = enumerate(self.sequence.jobs[job].stages)
        new = [n for n, own in stages if n not in known and all(self._is_finished(job, parent) for parent in own.parents)]
        known.extend(new)
        return new

    def _adapt(self, job: int) -> None:
        """A task of the job finished: say later what that reveals, or that the job is over."""
        new = self._reveal(job)
        if new:
            stages = {stage.stage_id: stage for stage in self._job(job).stages}
            self._later.append(StagesAdded(job_id=job, stages=tuple(stages[stage] for stage in new)))
        elif self._is_done(job):
            self._later.append(JobEnded(job_id=job))

    def _job_now(self, job: int) -> JobMessage:
        message = self._job(job)
        stages = tuple(s.model_copy(update={"finished": self._finished.get((job, s.stage_id), 0)}) for s in message.stages)
        return message.model_copy(update={"stages": stages})

    def _slot_now(self, number: int, slot: _Slot) -> SlotMessage:
        state: Literal["idle", "moving", "running"] = "idle"
        if slot.stage is not None:
            state = "moving" if slot.is_moving else "running"
        cpu, memory = (slot.size.cpu, slot.size.memory) if slot.size is not None else (None, None)
        return SlotMessage(slot=number, state=state, job_id=slot.job, stage_id=slot.stage, cpu=cpu, memory=memory)

    @property
    def next_ms(self) -> int | None:
        """When something happens next, by its clock; None at the end."""
        times = [self.clock_ms] if self._later else []
        times += [self._heap[0][0]] if self._heap else []
        times += [self._wake_ms] if self._wake_ms is not None else []
        if self._next_job < self.sequence.num_jobs:
            times.append(int(self.sequence.arrival_ms[self._next_job]))
        return max(self.clock_ms, min(times)) if times else None

    def next_message(self) -> Events | None:
        """The next thing that happens, or None at the end; call `obey` with the reply before the next."""
        if self._later:
            events, self._later = self._later, []
            return self._say(*events)
        executor_ms = self._heap[0][0] if self._heap else None
        others = [self._wake_ms] if self._wake_ms is not None else []
        if self._next_job < self.sequence.num_jobs:
            others.append(int(self.sequence.arrival_ms[self._next_job]))
        if executor_ms is not None and all(executor_ms < other for other in others):
            return self._fire_slot()
        if not others:
            return None
        self.clock_ms = max(self.clock_ms, min(others))
        return self._say(*self._arrivals())

    def _say(self, *events: Event) -> Events:
        self._seq += 1
        return Events(seq=self._seq, clock_ms=self.clock_ms, events=events)

    def _arrivals(self) -> list[JobArrived]:
        first, arrival_ms = self._next_job, self.sequence.arrival_ms
        while self._next_job < self.sequence.num_jobs and arrival_ms[self._next_job] <= self.clock_ms:
            self._next_job += 1
        return [JobArrived(job=self._job(job)) for job in range(first, self._next_job)]

    def _fire_slot(self) -> Events:
        at_ms, _, number = heapq.heappop(self._heap)
        self.clock_ms = max(self.clock_ms, at_ms)
        slot = self._slots[number]
        job, stage = slot.job, slot.stage
        assert job is not None
        assert stage is not None
        if slot.is_moving:
            slot.is_moving, slot.stage = False, None
            return self._say(SlotArrived(slot=number))
        self._finished[job, stage] = self._finished.get((job, stage), 0) + 1
        duration_ms = self.clock_ms - slot.started_ms
        if self.is_adaptive:
            self._adapt(job)
        if self._started[job, stage] < self.sequence.jobs[job].stages[stage].num_tasks:
            self._begin(number, job, stage)
        else:
            slot.stage = None
        return self._say(TaskFinished(slot=number, job_id=job, stage_id=stage, duration_ms=duration_ms))

    def _begin(self, number: int, job: int, stage: int) -> None:
        task = self._started.get((job, stage), 0)
        if task >= self.sequence.jobs[job].stages[stage].num_tasks:
            raise ProtocolError(
                Code.UNEXPECTED, f"slot {number} was told to start stage {stage} of job {job}, which has no task left"
            )
        self._started[job, stage] = task + 1
        slot, finish_ms = self._slots[number], self.clock_ms + self.times[job, stage, task]
        slot.job, slot.stage, slot.task, slot.started_ms, slot.is_moving = job, stage, task, self.clock_ms, False
        heapq.heappush(self._heap, (finish_ms, next(self._pushes), number))
        self.tasks.append((job, stage, task, number - self.first_slot, self.clock_ms, finish_ms))

    def obey(self, reply: Commands) -> None:
        """Carry out what the service says.

        Raises:
            ProtocolError: a command for a slot that is busy.
        """
        self._wake_ms = reply.wake_ms
        for command in reply.commands:
            slot = self._slots[command.slot]
            if slot.stage is not None and command.kind != "idle":
                raise ProtocolError(Code.UNEXPECTED, f"slot {command.slot} is busy, and was told to {command.kind}")
            if command.kind == "start":
                assert command.job_id is not None
                assert command.stage_id is not None
                self._begin(command.slot, command.job_id, command.stage_id)
            elif command.kind == "move":
                slot.job, slot.stage, slot.is_moving = command.job_id, command.stage_id, True
                self.num_moves += 1
                heapq.heappush(self._heap, (self.clock_ms + self.moving_delay_ms, next(self._pushes), command.slot))
            else:
                slot.job = command.job_id
                self.num_releases += command.kind == "release"
