"""`SimulatedClient`: a simulated application as a client of the service.

It is used in tests, benchmarks and demonstrations. It starts tasks by the standing order that it
received, as the Spark plugin does, and its events have the same order as in the simulator.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from parcae.base.errors import ConfigError
from parcae.cluster.trace import Trace
from parcae.service.protocol import (
    LONGEST_NAME,
    PROTOCOL_VERSION,
    Event,
    Events,
    Hello,
    JobArrived,
    JobEnded,
    JobMessage,
    JobOrder,
    OrdersMessage,
    StageEnded,
    StageMessage,
    StageOrder,
    StagesAdded,
    StateMessage,
    TasksReported,
    new_nonce,
)
from parcae.workloads.guess import bytes_of
from parcae.workloads.job import StageSpec, spark_roots
from parcae.workloads.workload import JobSequence

#: Duration of every task in ms, by (row of the job, index of the stage, number of the task).
TaskTimes = Mapping[tuple[int, int, int], int]


def task_times(trace: Trace) -> dict[tuple[int, int, int], int]:
    """The duration of every task of a run that was simulated with `record=True`."""
    if trace.tasks is None:
        raise ConfigError("the run was not recorded; pass record=True to simulate")
    names = ("job", "stage", "task", "start_ms", "finish_ms")
    columns = (trace.tasks[name].tolist() for name in names)
    return {
        (job, stage, task): finish - start
        for job, stage, task, start, finish in zip(*columns, strict=True)
    }


@dataclass(eq=False)
class _Job:
    """A job that has arrived and not ended."""

    row: int
    sets: list[_TaskSet] = field(default_factory=list)
    num_running: int = 0
    num_complete: int = 0

    @property
    def job_id(self) -> str:
        """Its id in messages."""
        return str(self.row)


@dataclass(eq=False)
class _TaskSet:
    """A stage of a job that has arrived."""

    job: _Job
    index: int
    spec: StageSpec
    children: Sequence[int]
    parents_left: int  # parents that have not completed
    num_bytes: int  # that its job reads; 0 but for the first stage
    started: int = 0
    finished: int = 0
    executed_ms: int = 0
    is_revealed: bool = False


_DEFAULT = StageOrder(job_id="any", stage_id=0)


@dataclass
class SimulatedClient:
    """A simulated application and the messages that it sends.

    Example: `client.run(ask)`, where `ask` sends a message and returns the orders.
    """

    sequence: JobSequence
    times: TaskTimes
    num_cores: int
    application_id: str = "simulated"
    is_open: bool = False
    follows_simulator: bool = False
    names: Sequence[str] | None = None
    first_ms: int = 0
    clock_ms: int = field(init=False, default=0)
    tasks: list[tuple[int, int, int, int, int]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.sequence.has_sessions:
            raise ConfigError(
                "a simulated client needs arrivals that are known, not sessions: give --arrivals "
                "poisson:25s or load:0.85"
            )
        self._seq = itertools.count(1)
        self._pushes = itertools.count()
        # Heap of running tasks: (end, push counter, task set, start).
        self._running: list[tuple[int, int, _TaskSet, int]] = []
        self._jobs: dict[int, _Job] = {}
        self._next_arrival = 0
        # Stages to be revealed, or complete if they are revealed.
        self._followups: deque[_TaskSet] = deque()
        self._other = JobOrder(job_id="any", tier=0.0)
        self._job_orders: dict[str, JobOrder] = {}
        self._stage_orders: dict[tuple[str, int], StageOrder] = {}
        self._wake_ms: int | None = None
        self._started: Counter[_TaskSet] = Counter()

    # -- messages ----------------------------------------------------------------------------------

    def hello(self) -> Hello:
        """The message that introduces the application."""
        return Hello(
            protocol=PROTOCOL_VERSION, application_id=self.application_id, nonce=new_nonce()
        )

    def run(self, ask: Callable[[StateMessage | Events], OrdersMessage]) -> None:
        """Run to the end of the sequence."""
        self.apply_orders(ask(self.state()))
        while (message := self.next_message()) is not None:
            self.apply_orders(ask(message))

    def state(self) -> StateMessage:
        """The message with the whole state of the application."""
        jobs = tuple(map(self._job_message, self._jobs.values()))
        self._started.clear()
        return StateMessage(
            seq=next(self._seq), clock_ms=self._now, cores=self.num_cores, jobs=jobs
        )

    @property
    def _now(self) -> int:
        return self.first_ms + self.clock_ms

    def _job_message(self, job: _Job) -> JobMessage:
        name = self.sequence.jobs[job.row].name if self.names is None else self.names[job.row]
        known = [one for one in job.sets if one.is_revealed or not self.is_open]
        return JobMessage(
            job_id=job.job_id,
            # Tables of stages may have longer names than the protocol.
            names=(name[:LONGEST_NAME],),
            arrival_ms=self.first_ms + int(self.sequence.arrival_ms[job.row]),
            is_open=self.is_open,
            stages=tuple(map(self._stage_message, known)),
        )

    def _stage_message(self, task_set: _TaskSet) -> StageMessage:
        spec = task_set.spec
        sets = task_set.job.sets
        return StageMessage(
            stage_id=task_set.index,
            tasks=spec.num_tasks,
            parents=tuple(
                parent for parent in spec.parents if sets[parent].is_revealed or not self.is_open
            ),
            input_bytes=task_set.num_bytes or None,
            started=task_set.started,
            finished=task_set.finished,
            executed_ms=task_set.executed_ms,
            is_ended=task_set.finished == spec.num_tasks,
        )

    def _message(self, *events: Event) -> Events:
        return Events(seq=next(self._seq), clock_ms=self._now, events=events)

    # -- events ------------------------------------------------------------------------------------

    def next_message(self) -> Events | None:
        """Advance to the next event and return its message; None when all jobs have ended.

        Events at the same time come in this order: arrivals and wake-ups, ends of tasks,
        follow-ups.
        """
        if self._started:
            started = [
                TasksReported(job_id=one.job.job_id, stage_id=one.index, started=count)
                for one, count in self._started.items()
            ]
            self._started.clear()
            return self._message(*started)
        other_ms = self._next_other_ms()
        end_ms = self._running[0][0] if self._running else None
        now_ms = self.clock_ms if self._followups else None
        times = [time_ms for time_ms in (other_ms, end_ms, now_ms) if time_ms is not None]
        if not times:
            return None
        earliest = min(times)
        self.clock_ms = max(self.clock_ms, earliest)
        if other_ms == earliest:
            return self._other_event()
        if end_ms == earliest:
            return self._end_task()
        if self._followups[0].is_revealed:
            return self._message(*self._complete())
        self._followups.popleft().is_revealed = True
        return self._message()

    def _next_other_ms(self) -> int | None:
        """Time of the next arrival or wake-up, or None."""
        times = []
        if self._next_arrival < self.sequence.num_jobs:
            times.append(int(self.sequence.arrival_ms[self._next_arrival]))
        if self._wake_ms is not None and (times or self._jobs):
            times.append(max(self._wake_ms, self.clock_ms + 1))
        return min(times, default=None)

    def _other_event(self) -> Events:
        """Fire an arrival or, if none is due, the wake-up."""
        row = self._next_arrival
        if row < self.sequence.num_jobs and int(self.sequence.arrival_ms[row]) == self.clock_ms:
            self._next_arrival += 1
            return self._message(JobArrived(job=self._job_message(self._arrive(row))))
        self._wake_ms = None
        return self._message()

    def _arrive(self, row: int) -> _Job:
        spec = self.sequence.jobs[row]
        self._jobs[row] = job = _Job(row)
        roots = spark_roots([stage.parents for stage in spec.stages])
        read = {roots[0]: int(bytes_of(spec))}
        job.sets = [
            _TaskSet(job, i, stage, spec.children[i], len(stage.parents), read.get(i, 0))
            for i, stage in enumerate(spec.stages)
        ]
        for root in roots:
            if self.follows_simulator:
                self._followups.append(job.sets[root])
            else:
                job.sets[root].is_revealed = True
        return job

    def _end_task(self) -> Events:
        end_ms, _, task_set, start_ms = heapq.heappop(self._running)
        task_set.finished += 1
        task_set.executed_ms += end_ms - start_ms
        task_set.job.num_running -= 1
        events: list[Event] = [
            TasksReported(
                job_id=task_set.job.job_id,
                stage_id=task_set.index,
                finished=1,
                executed_ms=end_ms - start_ms,
            )
        ]
        if task_set.finished == task_set.spec.num_tasks:
            self._followups.append(task_set)
            if not self.follows_simulator:
                events += self._complete()
        return self._message(*events)

    def _complete(self) -> list[Event]:
        """Complete the stage of the oldest follow-up, and its job if it was the last stage."""
        task_set = self._followups.popleft()
        job = task_set.job
        events: list[Event] = [StageEnded(job_id=job.job_id, stage_id=task_set.index)]
        job.num_complete += 1
        revealed = []
        for child in sorted(task_set.children):
            child_set = job.sets[child]
            child_set.parents_left -= 1
            if child_set.parents_left == 0:
                child_set.is_revealed = True
                revealed.append(child_set)
        if self.is_open and revealed:
            stages = tuple(map(self._stage_message, revealed))
            events.append(StagesAdded(job_id=job.job_id, stages=stages))
        if job.num_complete == len(job.sets):
            events.append(JobEnded(job_id=job.job_id))
            del self._jobs[job.row]
        return events

    # -- orders ------------------------------------------------------------------------------------

    def apply_orders(self, orders: OrdersMessage) -> None:
        """Put the order into force, and start tasks by it on the free cores."""
        self._wake_ms = None if orders.wake_ms is None else orders.wake_ms - self.first_ms
        self._other = JobOrder(job_id="any", tier=orders.other_tier)
        self._job_orders = {order.job_id: order for order in orders.jobs}
        self._stage_orders = {(one.job_id, one.stage_id): one for one in orders.stages}
        self._dispatch()

    def _dispatch(self) -> None:
        """An offer round: sort the task sets once, and let each start as many tasks as allowed."""
        free = self.num_cores - len(self._running)
        ready = [
            task_set
            for job in self._jobs.values()
            for task_set in job.sets
            if free > 0 and task_set.is_revealed and task_set.started < task_set.spec.num_tasks
        ]
        for task_set in sorted(ready, key=self._key):
            count = max(0, min(free, self._num_allowed(task_set)))
            for _ in range(count):
                self._start(task_set)
            free -= count

    def _orders_of(self, task_set: _TaskSet) -> tuple[JobOrder, StageOrder]:
        job_id = task_set.job.job_id
        stage = self._stage_orders.get((job_id, task_set.index), _DEFAULT)
        return self._job_orders.get(job_id, self._other), stage

    def _num_allowed(self, task_set: _TaskSet) -> int:
        """How many tasks the set may start, by the limits of its job and its stage."""
        job, stage = self._orders_of(task_set)
        count = task_set.spec.num_tasks - task_set.started
        if job.limit is not None:
            count = min(count, job.limit - task_set.job.num_running)
        if stage.limit is not None:
            count = min(count, stage.limit - (task_set.started - task_set.finished))
        return count

    def _key(self, task_set: _TaskSet) -> tuple[float, float, int, float, int]:
        """The sorting key of a task set, as `OrdersMessage` defines it."""
        job, stage = self._orders_of(task_set)
        share = task_set.job.num_running / job.weight if job.weight > 0 else 0.0
        return job.tier + stage.tier, share, task_set.job.row, stage.rank, task_set.index

    def _start(self, task_set: _TaskSet) -> None:
        task = (task_set.job.row, task_set.index, task_set.started)
        task_set.started += 1
        task_set.job.num_running += 1
        self._started[task_set] += 1
        end_ms = self.clock_ms + self.times[task]
        heapq.heappush(self._running, (end_ms, next(self._pushes), task_set, self.clock_ms))
        self.tasks.append((*task, self.clock_ms, end_ms))
