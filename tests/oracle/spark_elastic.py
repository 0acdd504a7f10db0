"""The plain-Python world of cores with Spark's dynamic allocation; uses nothing of `parcae`.

Rules beyond those of `spark_world`:

1. Executor e has the cores from e * `executor_cores` on. The initial executors are up at time 0.
2. A task takes the core that has been idle longest; cores of an executor that comes up follow the
   other idle cores, in ascending order.
3. At 0, 100, 200, ... ms there is a check. Of the events of one time, arrivals come first, then
   executors that come up (one event each, by number), then the check, then all others.
4. Pending are the tasks of runnable stages that have not started. After every event and its offer
   round: if nothing is pending, the next request is off and its step is 1; otherwise, if it is off,
   it is set to the present + `backlog_ms`.
5. The manager is initializing until a stage was runnable or an executor was idle for `idle_ms`.
6. A check, unless initializing: needed = ceil((running + pending) / executor_cores). If that is
   below the target, the target becomes max(needed, least), the step 1, and requests that have not
   come up are cancelled, the latest first (of one time: that of the largest number), until up +
   starting is at most the target. Otherwise, if the next request is due: target = min(max(target,
   up) + step, needed, most), but not less than before. If it rose by the step, the step doubles,
   else it becomes 1. If it rose, the next request is due after `sustained_ms`, and the executors
   with the smallest free numbers are requested until up + starting is the target. A request comes
   up after `start_ms`.
7. Then, by number: an executor that is up, whose cores are all idle, and that has been idle or up
   for `idle_ms`, is removed if more executors than the target are up.
8. The run ends when all jobs have ended. Held are the cores that are up or starting.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.spark_world import ORDERS, Job, Key, Pool, RandomSet, World

#: Classes of events of one time.
_ARRIVE, _UP, _CHECK, _OTHER = range(4)


@dataclass
class Allocation:
    """The settings of dynamic allocation, in executors and ms."""

    executor_cores: int
    least: int
    most: int
    first: int
    backlog_ms: int = 1_000
    sustained_ms: int = 1_000
    idle_ms: int = 60_000
    start_ms: int = 5_000


@dataclass
class ElasticWorld(World):
    """A `World` whose executors come and go."""

    allocation: Allocation = field(default_factory=lambda: Allocation(1, 0, 1, 0))
    sizes: list[tuple[int, int, int]] = field(default_factory=list)  # changes: (ms, up, starting)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.up = dict.fromkeys(range(self.allocation.first), 0)  # when it last was busy
        self.starting: dict[int, int] = {}  # executor -> when it comes up
        self.busy: dict[int, int] = {}  # executor -> its busy cores
        self.idle_cores: list[int] = []
        for number in self.up:
            self.idle_cores.extend(self.cores_of(number))
        self.target = self.allocation.first
        self.step = 1
        self.add_ms: int | None = None
        self.initializing = True
        self.held_ms = 0
        self.held_until = 0
        self.sizes.append((0, len(self.up), 0))

    def cores_of(self, number: int) -> range:
        cores = self.allocation.executor_cores
        return range(number * cores, (number + 1) * cores)

    def push(self, time: int, kind: str, what: Any) -> None:
        rank = {"arrive": _ARRIVE, "up": _UP, "check": _CHECK}.get(kind, _OTHER)
        number = what if kind in ("arrive", "up") else next(self.numbers)
        heapq.heappush(self.events, (time, (rank, number), kind, what))  # type: ignore[misc]

    def run(self) -> list[int]:
        self.begin()
        self.push(0, "check", None)
        while any(completion is None for completion in self.completion_ms):
            now, _, kind, what = heapq.heappop(self.events)
            self.fire(now, kind, what)
            self.offer(now)
            self.note_backlog(now)
        end = max(time for time in self.completion_ms if time is not None)
        self.account(end)
        return [completion for completion in self.completion_ms if completion is not None]

    def fire(self, now: int, kind: str, what: Any) -> None:
        if kind == "arrive":
            self.arrive(now, what)
        elif kind == "reveal":
            self.reveal(what)
            self.initializing = False
        elif kind == "end":
            stage, core = what
            self.free_core(now, core)
            self.end_task(now, stage)
        elif kind == "up":
            if self.starting.get(what) == now:
                self.come_up(now, what)
        elif kind == "check":
            self.check(now)
            self.push(now + 100, "check", None)
        else:
            self.finish_stage(now, what)

    def offer(self, now: int) -> None:
        self.runnable = [stage for stage in self.runnable if stage.pending]
        if not self.idle_cores:
            return
        for stage in sorted(self.runnable, key=lambda stage: self.key(self, stage)):
            for _ in range(min(len(self.idle_cores), self.may_start(stage))):
                core = self.idle_cores.pop(0)
                number = core // self.allocation.executor_cores
                self.busy[number] = self.busy.get(number, 0) + 1
                self.push(now + stage.task_ms[stage.started], "end", (stage, core))
                self.trace.append((now, stage.job, stage.index))
                stage.started += 1
                stage.running += 1

    def free_core(self, now: int, core: int) -> None:
        number = core // self.allocation.executor_cores
        self.busy[number] -= 1
        self.up[number] = now
        self.idle_cores.append(core)

    @property
    def pending(self) -> int:
        return sum(stage.pending for stage in self.runnable)

    def note_backlog(self, now: int) -> None:
        if self.pending == 0:
            self.add_ms = None
            self.step = 1
        elif self.add_ms is None:
            self.add_ms = now + self.allocation.backlog_ms

    def account(self, now: int) -> None:
        held = (len(self.up) + len(self.starting)) * self.allocation.executor_cores
        self.held_ms += held * (now - self.held_until)
        self.held_until = now

    def is_timed_out(self, now: int, number: int) -> bool:
        return not self.busy.get(number) and now >= self.up[number] + self.allocation.idle_ms

    def check(self, now: int) -> None:
        self.account(now)
        if any(self.is_timed_out(now, number) for number in self.up):
            self.initializing = False
        if not self.initializing:
            running = sum(self.busy.values())
            needed = -(-(running + self.pending) // self.allocation.executor_cores)
            if needed < self.target:
                self.target = max(needed, self.allocation.least)
                self.step = 1
                self.cancel()
            elif self.add_ms is not None and now >= self.add_ms:
                self.grow(now, needed)
        for number in sorted(self.up):
            if self.is_timed_out(now, number) and len(self.up) > self.target:
                del self.up[number]
                for core in self.cores_of(number):
                    self.idle_cores.remove(core)
        if self.sizes[-1][1:] != (len(self.up), len(self.starting)):
            self.sizes.append((now, len(self.up), len(self.starting)))

    def cancel(self) -> None:
        while self.starting and len(self.up) + len(self.starting) > self.target:
            latest = max(self.starting, key=lambda number: (self.starting[number], number))
            del self.starting[latest]

    def grow(self, now: int, needed: int) -> None:
        before = self.target
        wanted = max(before, len(self.up)) + self.step
        self.target = max(before, min(wanted, needed, self.allocation.most))
        rise = self.target - before
        self.step = 2 * self.step if rise == self.step else 1
        if rise:
            self.add_ms = now + self.allocation.sustained_ms
        number = 0
        while len(self.up) + len(self.starting) < self.target:
            if number not in self.up and number not in self.starting:
                self.starting[number] = now + self.allocation.start_ms
                self.push(self.starting[number], "up", number)
            number += 1

    def come_up(self, now: int, number: int) -> None:
        self.account(now)
        del self.starting[number]
        self.up[number] = now
        self.busy[number] = 0
        self.idle_cores.extend(self.cores_of(number))
        self.sizes.append((now, len(self.up), len(self.starting)))


def simulate(
    allocation: Allocation, jobs: list[Job], order: str | Key, pools: dict[str, Pool] | None = None
) -> ElasticWorld:
    """The world after all jobs have ended."""
    key = ORDERS[order] if isinstance(order, str) else order
    limited = order == "orders" or not isinstance(order, str)
    cores = allocation.most * allocation.executor_cores
    world = ElasticWorld(cores, jobs, key, pools or {}, limited, allocation=allocation)
    world.run()
    return world


def random_allocation(rng: random.Random, drawn: RandomSet) -> tuple[Allocation, RandomSet]:
    """Settings that matter for the set, and the set with times to which they matter.

    Durations and gaps are stretched, so that time-outs end within jobs, and stages have more tasks,
    so that requests double and some are cancelled.
    """
    most = rng.choice([1, 2, 6, 15, 40])
    least = rng.choice([0, 0, 1, most // 2])
    stretch = rng.choice([1, 7, 60, 200])
    copies = rng.choice([1, 1, 4])
    for job in drawn.jobs:
        job.arrival_ms *= stretch * rng.choice([1, 1, 1, 20])
        job.task_ms = [[task * stretch for task in tasks] * copies for tasks in job.task_ms]
    arrivals = sorted(job.arrival_ms for job in drawn.jobs)
    for job, arrival in zip(drawn.jobs, arrivals, strict=True):
        job.arrival_ms = arrival
    backlog_ms = rng.choice([1, 100, 100, 150, 1_000])
    allocation = Allocation(
        rng.choice([1, 1, 2, 3]),
        least,
        most,
        rng.choice([least, most]),
        backlog_ms,
        rng.choice([backlog_ms, 1, 250]),
        rng.choice([1, 99, 300, 1_000, 60_000]),
        rng.choice([0, 1, 30, 200, 730, 1_500]),
    )
    return allocation, drawn
