"""`SimulatedClient`: a simulated application as a client of the service.

It is used in tests, benchmarks and demonstrations. It starts tasks by the standing order that it
received, as the Spark plugin does, and its events have the same order as in the simulator.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    OrdersMessage,
    StageEnded,
    StageMessage,
    StagesAdded,
    StateMessage,
    TasksReported,
    new_nonce,
)
from parcae.workloads.dag import spark_roots
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


@dataclass
class _Job:
    """A job that has arrived and not ended."""

    row: int
    job_id: str
    num_running: int = 0
    num_complete: int = 0


@dataclass
class _TaskSet:
    """A stage of a job that has arrived."""

    job: _Job
    index: int
    num_tasks: int
    parents_left: int  # parents that have not completed
    children: list[int]
    started: int = 0
    finished: int = 0
    is_revealed: bool = False


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
        self._seq = itertools.count(1)
        self._pushes = itertools.count()
        # Heap of running tasks: (end, push counter, task set, start).
        self._running: list[tuple[int, int, _TaskSet, int]] = []
        self._sets: dict[tuple[int, int], _TaskSet] = {}
        self._jobs: dict[int, _Job] = {}
        self._next_arrival = 0
        self._followups: deque[tuple[str, _TaskSet, int]] = deque()
        self._tiers: dict[str, tuple[float, float, int | None]] = {}
        self._stage_tiers: dict[tuple[str, int], tuple[float, float, int | None]] = {}
        self._other_tier = 0.0
        self._wake_ms: int | None = None
        self._outbox: deque[Events] = deque()
        self._started: dict[tuple[int, int], int] = {}

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
        jobs = tuple(self._job_message(row, self._known_stages(row)) for row in self._jobs)
        self._started.clear()
        return StateMessage(
            seq=next(self._seq), clock_ms=self._now, cores=self.num_cores, jobs=jobs
        )

    @property
    def _now(self) -> int:
        return self.first_ms + self.clock_ms

    def _num_stages(self, row: int) -> int:
        return len(self.sequence.jobs[row].stages)

    def _known_stages(self, row: int) -> list[int]:
        everything = range(self._num_stages(row))
        return [i for i in everything if not self.is_open or self._sets[row, i].is_revealed]

    def _name(self, row: int) -> str:
        return self.sequence.jobs[row].name if self.names is None else self.names[row]

    def _job_message(self, row: int, stages: Sequence[int]) -> JobMessage:
        return JobMessage(
            job_id=str(row),
            # Tables of stages may have longer names than the protocol.
            names=(self._name(row)[:LONGEST_NAME],),
            arrival_ms=self.first_ms + int(self.sequence.arrival_ms[row]),
            is_open=self.is_open,
            stages=tuple(self._stage_message(row, index, stages) for index in stages),
        )

    def _stage_message(self, row: int, index: int, known: Sequence[int]) -> StageMessage:
        spec = self.sequence.jobs[row].stages[index]
        task_set = self._sets[row, index]
        executed_ms = sum(
            end_ms - start_ms
            for job, stage, _, start_ms, end_ms in (self.tasks if task_set.finished else ())
            if (job, stage) == (row, index) and end_ms <= self.clock_ms
        )
        return StageMessage(
            stage_id=index,
            tasks=spec.num_tasks,
            parents=tuple(parent for parent in spec.parents if parent in known),
            input_bytes=int(spec.input_bytes) or None,
            started=task_set.started,
            finished=task_set.finished,
            executed_ms=executed_ms,
            is_ended=task_set.finished == task_set.num_tasks,
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
            return self._message(*self._starts())
        while True:
            other_ms = self._next_other_ms()
            end_ms = self._running[0][0] if self._running else None
            now_ms = self.clock_ms if self._followups else None
            times = [time_ms for time_ms in (other_ms, end_ms, now_ms) if time_ms is not None]
            if not times:
                return None
            earliest = min(times)
            self.clock_ms = max(self.clock_ms, earliest)
            if other_ms == earliest:
                return self._other()
            if end_ms == earliest:
                return self._end_task()
            message = self._follow_up()
            if message is not None:
                return message

    def _starts(self) -> Iterator[Event]:
        for (row, index), count in self._started.items():
            yield TasksReported(job_id=str(row), stage_id=index, started=count)
        self._started.clear()

    def _next_other_ms(self) -> int | None:
        """Time of the next arrival or wake-up, or None."""
        times = []
        if self._next_arrival < self.sequence.num_jobs:
            times.append(int(self.sequence.arrival_ms[self._next_arrival]))
        is_over = (
            self._next_arrival == self.sequence.num_jobs
            and not self._running
            and not self._followups
        )
        if self._wake_ms is not None and not (is_over and not self._jobs):
            times.append(max(self._wake_ms, self.clock_ms + 1))
        return min(times, default=None)

    def _other(self) -> Events:
        """Fire an arrival or, if none is due, the wake-up."""
        row = self._next_arrival
        if row < self.sequence.num_jobs and int(self.sequence.arrival_ms[row]) == self.clock_ms:
            self._next_arrival += 1
            return self._message(self._arrive(row))
        self._wake_ms = None
        return self._message()

    def _arrive(self, row: int) -> JobArrived:
        spec = self.sequence.jobs[row]
        self._jobs[row] = job = _Job(row, str(row))
        for index, stage in enumerate(spec.stages):
            self._sets[row, index] = _TaskSet(
                job, index, stage.num_tasks, len(stage.parents), list(spec.children[index])
            )
        roots = spark_roots([stage.parents for stage in spec.stages])
        for root in roots:
            self._reveal_root(self._sets[row, root])
        known = sorted(roots) if self.is_open else list(range(len(spec.stages)))
        return JobArrived(job=self._job_message(row, known))

    def _reveal_root(self, task_set: _TaskSet) -> None:
        if self.follows_simulator:
            self._followups.append(("reveal", task_set, task_set.job.row))
        else:
            task_set.is_revealed = True

    def _end_task(self) -> Events:
        end_ms, _, task_set, start_ms = heapq.heappop(self._running)
        task_set.finished += 1
        task_set.job.num_running -= 1
        event = TasksReported(
            job_id=task_set.job.job_id,
            stage_id=task_set.index,
            finished=1,
            executed_ms=end_ms - start_ms,
        )
        if task_set.finished == task_set.num_tasks:
            self._followups.append(("complete", task_set, task_set.job.row))
            if not self.follows_simulator:
                more = self._complete()
                return self._message(event, *more)
        return self._message(event)

    def _follow_up(self) -> Events | None:
        """Fire the oldest follow-up: reveal a stage or complete one."""
        kind, task_set, _ = self._followups[0]
        if kind == "reveal":
            self._followups.popleft()
            task_set.is_revealed = True
            return self._message()
        return self._message(*self._complete())

    def _complete(self) -> list[Event]:
        """Complete the stage of the oldest follow-up, and its job if it was the last stage."""
        _, task_set, row = self._followups.popleft()
        job = task_set.job
        events: list[Event] = [StageEnded(job_id=job.job_id, stage_id=task_set.index)]
        job.num_complete += 1
        revealed = self._reveal_children(task_set)
        if self.is_open and revealed:
            known = self._known_stages(row)
            stages = tuple(self._stage_message(row, index, known) for index in sorted(revealed))
            events.append(StagesAdded(job_id=job.job_id, stages=stages))
        if job.num_complete == self._num_stages(row):
            events.append(JobEnded(job_id=job.job_id))
            self._remove(row)
        return events

    def _remove(self, row: int) -> None:
        del self._jobs[row]
        for index in range(self._num_stages(row)):
            del self._sets[row, index]

    def _reveal_children(self, task_set: _TaskSet) -> list[int]:
        """Count a completed parent, and return the children that became runnable."""
        revealed = []
        for child in task_set.children:
            child_set = self._sets[task_set.job.row, child]
            child_set.parents_left -= 1
            if child_set.parents_left == 0:
                child_set.is_revealed = True
                revealed.append(child)
        return revealed

    # -- orders ------------------------------------------------------------------------------------

    def apply_orders(self, orders: OrdersMessage) -> None:
        """Put the order into force, and start tasks by it on the free cores."""
        self._wake_ms = None if orders.wake_ms is None else orders.wake_ms - self.first_ms
        self._other_tier = orders.other_tier
        self._tiers = {job.job_id: (job.tier, job.weight, job.limit) for job in orders.jobs}
        self._stage_tiers = {
            (s.job_id, s.stage_id): (s.tier, s.rank, s.limit) for s in orders.stages
        }
        self._dispatch()

    def _dispatch(self) -> None:
        """An offer round: sort the task sets once, and let each start as many tasks as allowed."""
        free = self.num_cores - len(self._running)
        if free == 0:
            return
        ready = [
            task_set
            for task_set in self._sets.values()
            if task_set.is_revealed and task_set.started < task_set.num_tasks
        ]
        for task_set in sorted(ready, key=self._key):
            count = min(free, self._num_allowed(task_set))
            for _ in range(count):
                self._start(task_set)
            free -= max(0, count)
            if free == 0:
                break

    def _num_allowed(self, task_set: _TaskSet) -> int:
        """How many tasks the set may start, by the limits of its job and its stage."""
        job = task_set.job
        job_limit = self._tiers.get(job.job_id, (0.0, 0.0, None))[2]
        stage = (job.job_id, task_set.index)
        stage_limit = self._stage_tiers.get(stage, (0.0, 0.0, None))[2]
        count = task_set.num_tasks - task_set.started
        if job_limit is not None:
            count = min(count, job_limit - job.num_running)
        if stage_limit is not None:
            count = min(count, stage_limit - (task_set.started - task_set.finished))
        return count

    def _key(self, task_set: _TaskSet) -> tuple[float, float, int, float, int]:
        """The sorting key of a task set, as `OrdersMessage` defines it."""
        tier, weight, _ = self._tiers.get(task_set.job.job_id, (self._other_tier, 0.0, None))
        stage_tier, rank, _ = self._stage_tiers.get(
            (task_set.job.job_id, task_set.index), (0.0, 0.0, None)
        )
        share = task_set.job.num_running / weight if weight > 0 else 0.0
        return tier + stage_tier, share, task_set.job.row, rank, task_set.index

    def _start(self, task_set: _TaskSet) -> None:
        task = task_set.started
        task_set.started += 1
        task_set.job.num_running += 1
        key = (task_set.job.row, task_set.index)
        self._started[key] = self._started.get(key, 0) + 1
        end_ms = self.clock_ms + self.times[task_set.job.row, task_set.index, task]
        heapq.heappush(self._running, (end_ms, next(self._pushes), task_set, self.clock_ms))
        self.tasks.append((task_set.job.row, task_set.index, task, self.clock_ms, end_ms))
