"""An application of the world of cores in simulated time, as a client of the service: for tests, benchmarks and for show.

It starts tasks by the standing order that it was told, as the plugin does, and fires events in the
order in which the simulator does.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from parcae.cluster.trace import Trace
from parcae.errors import ConfigError
from parcae.service.jobs import spark_roots
from parcae.service.protocol import (
    PROTOCOL_VERSION,
    Event,
    Events,
    Hello,
    JobArrived,
    JobEnded,
    JobMessage,
    Orders,
    StageEnded,
    StageMessage,
    StagesAdded,
    State,
    TasksTold,
    new_nonce,
)
from parcae.workloads.arrivals import JobSequence

#: Duration of every task: (job, stage, task) by row, index and number, in ms.
TaskTimes = Mapping[tuple[int, int, int], int]


def task_times(trace: Trace) -> dict[tuple[int, int, int], int]:
    """How long every task of a recorded run took.

    Raises:
        ConfigError: a trace without tasks.
    """
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
    row: int
    job_id: str
    num_running: int = 0
    num_complete: int = 0


@dataclass
class _TaskSet:
    """A stage of a job that arrived."""

    job: _Job
    index: int
    num_tasks: int
    parents_left: int
    children: list[int]
    started: int = 0
    finished: int = 0
    is_revealed: bool = False


@dataclass
class SimulatedClient:
    """An application of so many cores, and what the service must be told of it.

    Args:
        sequence: its jobs.
        times: duration of every task.
        num_cores: tasks that it runs at once.
        application_id: who it says it is.
        is_open: say of every job that more stages may come, and reveal stages only as they become runnable.
        follows_simulator: tell that a stage ended, and reveal stages, as the simulator does (`Mirror`).
        names: of every job of the sequence; the workload's names if None.
        first_ms: its clock when the sequence begins.

    Example:
        client.obey(ask(client.state()))
        while (message := client.next_message()) is not None:
            client.obey(ask(message))
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
        self._running: list[tuple[int, int, _TaskSet, int]] = []  # end, push, task set, start
        self._sets: dict[tuple[int, int], _TaskSet] = {}
        self._jobs: dict[int, _Job] = {}
        self._next_arrival = 0
        self._followups: deque[tuple[str, _TaskSet, int]] = deque()
        self._tiers: dict[str, tuple[float, float, int | None]] = {}
        self._stage_tiers: dict[tuple[str, int], tuple[float, float, int | None]] = {}
        self._other_tier = 0.0
        self._wake_ms: int | None = None
        self._told: deque[Events] = deque()
        self._started: dict[tuple[int, int], int] = {}

    # -- messages ----------------------------------------------------------------------------------

    def hello(self) -> Hello:
        """Who it is."""
        return Hello(
            protocol=PROTOCOL_VERSION, application_id=self.application_id, nonce=new_nonce()
        )

    def state(self) -> State:
        """What it would tell a service that knows nothing."""
        jobs = tuple(self._job_message(row, self._known_stages(row)) for row in self._jobs)
        self._started.clear()
        return State(seq=next(self._seq), clock_ms=self._now, cores=self.num_cores, jobs=jobs)

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
            names=(self._name(row),),
            arrival_ms=self.first_ms + int(self.sequence.arrival_ms[row]),
            is_open=self.is_open,
            stages=tuple(self._stage_message(row, index, stages) for index in stages),
        )

    def _stage_message(self, row: int, index: int, known: Sequence[int]) -> StageMessage:
        spec = self.sequence.jobs[row].stages[index]
        own = self._sets[row, index]
        executed_ms = sum(
            end_ms - start_ms
            for job, stage, _, start_ms, end_ms in (self.tasks if own.finished else ())
            if (job, stage) == (row, index) and end_ms <= self.clock_ms
        )
        return StageMessage(
            stage_id=index,
            tasks=spec.num_tasks,
            parents=tuple(parent for parent in spec.parents if parent in known),
            input_bytes=int(spec.input_bytes) or None,
            started=own.started,
            finished=own.finished,
            executed_ms=executed_ms,
            is_ended=own.finished == own.num_tasks,
        )

    def _say(self, *events: Event) -> Events:
        return Events(seq=next(self._seq), clock_ms=self._now, events=events)

    # -- what happens ------------------------------------------------------------------------------

    def next_message(self) -> Events | None:
        """The next thing to tell; None when all is over."""
        if self._started:
            return self._say(*self._starts())
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
            yield TasksTold(job_id=str(row), stage_id=index, started=count)
        self._started.clear()

    def _next_other_ms(self) -> int | None:
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
        row = self._next_arrival
        if row < self.sequence.num_jobs and int(self.sequence.arrival_ms[row]) == self.clock_ms:
            self._next_arrival += 1
            return self._say(self._arrive(row))
        self._wake_ms = None
        return self._say()

    def _arrive(self, row: int) -> JobArrived:
        spec = self.sequence.jobs[row]
        job = self._jobs[row] = _Job(row, str(row))
        for index, stage in enumerate(spec.stages):
            children = list(spec.children[index])
            self._sets[row, index] = _TaskSet(
                job, index, stage.num_tasks, len(stage.parents), children
            )
        parents = [stage.parents for stage in spec.stages]
        roots = spark_roots(parents)
        if self.follows_simulator:
            self._followups.extend(("reveal", self._sets[row, root], row) for root in roots)
        else:
            for root in roots:
                self._sets[row, root].is_revealed = True
        known = list(roots) if self.is_open else list(range(len(spec.stages)))
        return JobArrived(job=self._job_message(row, sorted(known)))

    def _end_task(self) -> Events:
        end_ms, _, own, start_ms = heapq.heappop(self._running)
        own.finished += 1
        own.job.num_running -= 1
        event = TasksTold(
            job_id=own.job.job_id, stage_id=own.index, finished=1, executed_ms=end_ms - start_ms
        )
        if own.finished == own.num_tasks:
            self._followups.append(("complete", own, own.job.row))
            if not self.follows_simulator:
                more = self._complete()
                return self._say(event, *more)
        return self._say(event)

    def _follow_up(self) -> Events | None:
        kind, own, _ = self._followups[0]
        if kind == "reveal":
            self._followups.popleft()
            own.is_revealed = True
            return self._say()
        return self._say(*self._complete())

    def _complete(self) -> list[Event]:
        """The oldest stage that has no task left ends."""
        _, own, row = self._followups.popleft()
        events: list[Event] = [StageEnded(job_id=own.job.job_id, stage_id=own.index)]
        own.job.num_complete += 1
        revealed = []
        for child in own.children:
            task_set = self._sets[row, child]
            task_set.parents_left -= 1
            if task_set.parents_left == 0:
                task_set.is_revealed = True
                revealed.append(child)
        if self.is_open and revealed:
            known = self._known_stages(row)
            stages = tuple(self._stage_message(row, index, known) for index in sorted(revealed))
            events.append(StagesAdded(job_id=own.job.job_id, stages=stages))
        if own.job.num_complete == self._num_stages(row):
            events.append(JobEnded(job_id=own.job.job_id))
            del self._jobs[row]
            for index in range(self._num_stages(row)):
                del self._sets[row, index]
        return events

    # -- orders ------------------------------------------------------------------------------------

    def obey(self, orders: Orders) -> None:
        """Take the order, and start tasks by it on the cores that are free."""
        self._wake_ms = None if orders.wake_ms is None else orders.wake_ms - self.first_ms
        self._other_tier = orders.other_tier
        self._tiers = {job.job_id: (job.tier, job.weight, job.limit) for job in orders.jobs}
        self._stage_tiers = {
            (s.job_id, s.stage_id): (s.tier, s.rank, s.limit) for s in orders.stages
        }
        self._dispatch()

    def _dispatch(self) -> None:
        """An offer round: task sets are sorted once, and each starts what it may."""
        free = self.num_cores - len(self._running)
        if free == 0:
            return
        ready = [
            own for own in self._sets.values() if own.is_revealed and own.started < own.num_tasks
        ]
        for own in sorted(ready, key=self._key):
            job_limit = self._tiers.get(own.job.job_id, (0.0, 0.0, None))[2]
            stage_limit = self._stage_tiers.get((own.job.job_id, own.index), (0.0, 0.0, None))[2]
            count = min(free, own.num_tasks - own.started)
            if job_limit is not None:
                count = min(count, job_limit - own.job.num_running)
            if stage_limit is not None:
                count = min(count, stage_limit - (own.started - own.finished))
            for _ in range(count):
                self._start(own)
            free -= max(0, count)
            if free == 0:
                break

    def _key(self, own: _TaskSet) -> tuple[float, float, int, float, int]:
        tier, weight, _ = self._tiers.get(own.job.job_id, (self._other_tier, 0.0, None))
        stage_tier, rank, _ = self._stage_tiers.get((own.job.job_id, own.index), (0.0, 0.0, None))
        share = own.job.num_running / weight if weight > 0 else 0.0
        return tier + stage_tier, share, own.job.row, rank, own.index

    def _start(self, own: _TaskSet) -> None:
        task = own.started
        own.started += 1
        own.job.num_running += 1
        key = (own.job.row, own.index)
        self._started[key] = self._started.get(key, 0) + 1
        end_ms = self.clock_ms + self.times[own.job.row, own.index, task]
        heapq.heappush(self._running, (end_ms, next(self._pushes), own, self.clock_ms))
        self.tasks.append((own.job.row, own.index, task, self.clock_ms, end_ms))
