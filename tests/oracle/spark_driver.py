"""The plain-Python world of cores with driver time and recorded cores; uses nothing of `parcae`.

Rules beyond those of `spark_world`:

1. A stage is submitted `gap` ms after the ends of its parents (the arrival, if it has none), may
   start tasks `lag` ms later, and a job ends `tail` ms after its last stage was done.
2. A Spark job and all of its stages have their numbers when its first stage is submitted.
3. The number of cores changes at given times. Cores that leave do so as soon as they are idle, the
   offer round comes after that. While there is no core, a stage is submitted at the next change.
4. Of the events of one time, arrivals come first, then changes of the cores, then what the driver
   does, then all others.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.spark_world import ORDERS, Job, Key, Pool, Stage, World

_FIRST = {"arrive": -3, "cores": -2, "submit": -1, "launch": -1, "result": -1}
_MANY = 1 << 40


@dataclass
class Driver:
    """The driver's time for one job, and the Spark job of each of its stages."""

    gap_ms: list[int]
    lag_ms: list[int]
    tail_ms: int
    spark_job: list[int]


@dataclass
class DrivenWorld(World):
    """A `World` whose driver takes time, and whose cores change as recorded."""

    drivers: list[Driver] = field(default_factory=list)
    changes: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.task_sets = itertools.count()
        self.up = self.target = self.cores
        for time_ms, change in self.changes:
            self.push(time_ms, "cores", change)

    def push(self, time: int, kind: str, what: Any) -> None:
        number = what if kind == "arrive" else next(self.numbers)
        number += _FIRST.get(kind, 0) * _MANY
        heapq.heappush(self.events, (time, number, kind, what))

    def fire(self, now: int, kind: str, what: Any) -> None:
        if kind == "reveal":
            self.parents_ended(now, what)
        elif kind == "done":
            self.stage_done(now, what)
        elif kind == "submit":
            self.submit(now, what)
        elif kind == "launch":
            self.runnable.append(what)
        elif kind == "result":
            self.completion_ms[what] = now
            self.go_on(now, what)
        elif kind == "cores":
            self.target += what
            self.free += max(0, self.target - self.up)
            self.up = max(self.up, self.target)
        else:
            super().fire(now, kind, what)
            if kind == "end" and self.drivers[what.job].tail_ms:
                self.completion_ms[what.job] = None
        leaving = min(self.up - self.target, self.free)
        self.up -= leaving
        self.free -= leaving

    def stage_done(self, now: int, stage: Stage) -> None:
        siblings = self.stages[stage.job]
        for index in sorted(stage.children):
            child = siblings[index]
            child.parents = child.parents - {stage.index}
            if not child.parents:
                self.parents_ended(now, child)
        tail_ms = self.drivers[stage.job].tail_ms
        stage.is_done = True
        if all(other.is_done for other in siblings):
            if tail_ms:
                self.push(now + tail_ms, "result", stage.job)
            else:
                self.go_on(now, stage.job)

    def parents_ended(self, now: int, stage: Stage) -> None:
        gap_ms = self.drivers[stage.job].gap_ms[stage.index]
        if gap_ms:
            self.push(now + gap_ms, "submit", stage)
        else:
            self.submit(now, stage)

    def submit(self, now: int, stage: Stage) -> None:
        later = [time for time, _, kind, _ in self.events if kind == "cores" and time > now]
        if self.up == 0 and later:
            self.push(min(later), "submit", stage)
            return
        driver = self.drivers[stage.job]
        if stage.spark_job < 0:
            number = next(self.spark_jobs)
            for other in self.stages[stage.job]:
                if driver.spark_job[other.index] == driver.spark_job[stage.index]:
                    other.spark_job, other.id = number, next(self.task_sets)
        lag_ms = driver.lag_ms[stage.index]
        if lag_ms:
            self.push(now + lag_ms, "launch", stage)
        else:
            self.runnable.append(stage)


def fifo_spark_jobs(world: World, stage: Stage) -> tuple[Any, ...]:
    return (stage.spark_job, stage.index)


def simulate_driven(
    cores: int,
    jobs: list[Job],
    order: str,
    drivers: list[Driver],
    changes: list[tuple[int, int]],
    pools: dict[str, Pool],
) -> World:
    """The world after all jobs have ended."""
    key: Key = fifo_spark_jobs if order == "fifo-spark-jobs" else ORDERS[order]
    world = DrivenWorld(cores, jobs, key, pools, False, drivers=drivers, changes=changes)
    world.run()
    return world


def random_drivers(rng: random.Random, jobs: list[Job]) -> list[Driver]:
    """Driver times of which many are 0 or tie."""
    times = [0, 0, 1, 5, 40]
    drivers = []
    for job in jobs:
        count = len(job.task_ms)
        drivers.append(
            Driver(
                rng.choices(times, k=count),
                rng.choices(times, k=count),
                rng.choice(times),
                rng.choices(range(max(1, count // 2)), k=count),
            )
        )
    return drivers


def random_changes(rng: random.Random, cores: int) -> list[tuple[int, int]]:
    """Cores that come and go, ascending in time; in the end all are back."""
    changes, time_ms, up = [], 0, cores
    for _ in range(rng.choice([0, 0, 4, 12])):
        time_ms += rng.choice([1, 7, 30, 100])
        change = rng.randint(0, cores) - up
        if change:
            changes.append((time_ms, change))
            up += change
    return [*changes, (time_ms + 50, cores - up)] if up < cores else changes
