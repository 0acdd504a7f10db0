"""The plain-Python oracle of one Spark application's cores, with what goes wrong there.

Written from Spark's TaskSetManager and the rules below, and from nothing of `parcae`.

1. Core c belongs to executor c // executor_cores. Free cores are a queue: a task starts on the one
   that has been free longest. At the start they lie in order.
2. A stage has a stack of tasks to start (at first the smallest index on top). A task whose attempt
   ended without a result goes on top, unless another attempt of it runs. Below that stack lies the
   stack of the running tasks that wait for a copy. Both count as pending.
3. An attempt fails with probability `failures`, at floor(share x duration), unless its task has
   failed `max_failures` - 1 times (another attempt of it that runs and will fail counts). A failed
   attempt makes its core free. That the task is to start again is an event of its own, after all
   that was made before; but if the task waits for a copy, it is on the stack at once.
4. An executor that is up is lost after 1 + floor(x) ms, x exponential with `lost_per_hour`. Its
   attempts end, its cores are gone, and come back after `restart_ms`.
5. Every `check_ms`, in order of the cores: a task with one attempt and without a place in the stack
   waits for a copy if max(1, floor(quantile x tasks)) tasks of its stage have finished, the stage
   has more than one task, and the attempt has run longer than max(least_ms, multiplier x median).
   The median of n durations is the one at n // 2 in ascending order. When a task finishes, its
   other attempt is stopped, and its core is free after that of the attempt that finished.
6. At one time: arrivals, checks, losses and returns by executor, and then all other events in the
   order in which they were made. After every event there is an offer round.
7. Draws are hashes. The first attempt of a task has the bits that it has without faults.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.oracle.spark_world import Job, Key, Pool, Stage, World

_MASK = (1 << 64) - 1
_FAILS = 0x8CB92BA72F3D8DD7
_FAILS_AT = 0xD6E8FEB86659FD93
_STRAGGLES = 0xE7037ED1A0B428DB
_LASTS = 0xC6A4A7935BD1E995
_ATTEMPT_STEP = 0xA24BAED4963EE407
_EXECUTOR_STEP = 0x9FB21C651E98DF25
_CHECK, _CHANGE, _OTHER = 1, 2, 3


def mix(bits: int) -> int:
    """The finalizer of splitmix64."""
    bits &= _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


def unit(bits: int) -> float:
    return float(bits >> 11) * 2.0**-53


def attempt_bits(seed: int, job: int, stage: int, task: int, attempt: int) -> int:
    """The random bits of an attempt; attempts of a task count from 0."""
    of_job = mix(mix(seed ^ 0x9E3779B97F4A7C15) + job * 0xD1342543DE82EF95 + 1)
    of_task = mix(of_job + (stage << 32) + task)
    return of_task if attempt == 0 else mix(of_task + attempt * _ATTEMPT_STEP)


@dataclass(frozen=True)
class Rules:
    """What goes wrong."""

    seed: int = 1
    failures: float = 0.0
    max_failures: int = 4
    lost_per_hour: float = 0.0
    executor_cores: int = 4
    restart_ms: int = 30_000
    straggler_share: float = 0.0
    straggler_factor: float = 5.0
    speculation: bool = False
    multiplier: float = 3.0
    quantile: float = 0.9
    check_ms: int = 100
    least_ms: int = 100


@dataclass(eq=False)
class Attempt:
    """An attempt that runs."""

    stage: FaultyStage
    task: int
    core: int
    started_ms: int
    fails: bool
    is_copy: bool


@dataclass
class FaultyStage(Stage):
    """A stage, and what happened to its tasks."""

    to_start: list[int] = field(default_factory=list)
    to_copy: list[int] = field(default_factory=list)
    attempts: Counter[int] = field(default_factory=Counter)
    failures: Counter[int] = field(default_factory=Counter)
    durations: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.to_start = list(reversed(range(len(self.task_ms))))

    @property
    def pending(self) -> int:
        return len(self.to_start) + len(self.to_copy)


@dataclass
class FaultyWorld(World):
    """The cores of one application on which something goes wrong."""

    rules: Rules = field(default_factory=Rules)
    counts: Counter[str] = field(default_factory=Counter)
    places: list[tuple[int, int]] = field(default_factory=list)  # every start: (task, core)

    make_stage: ClassVar[type[Stage]] = FaultyStage

    def __post_init__(self) -> None:
        super().__post_init__()
        self.idle = deque(range(self.cores))
        self.running: dict[int, Attempt] = {}
        self.losses: Counter[int] = Counter()
        self.down: set[int] = set()
        for executor in range(math.ceil(self.cores / self.rules.executor_cores)):
            self.plan_loss(0, executor)
        if self.rules.speculation:
            self.push_first(self.rules.check_ms, (_CHECK, 0), "check", None)

    def push(self, time: int, kind: str, what: Any) -> None:
        rank = (0, what) if kind == "arrive" else (_OTHER, 0)
        self.push_first(time, rank, kind, what)

    def push_first(self, time: int, rank: tuple[int, int], kind: str, what: Any) -> None:
        heapq.heappush(self.events, (time, (*rank, next(self.numbers)), kind, what))  # type: ignore[misc]

    def is_over(self) -> bool:
        return all(completion is not None for completion in self.completion_ms)

    def fire(self, now: int, kind: str, what: Any) -> None:
        if kind == "change":
            self.change(now, what)
        elif kind == "check":
            self.check(now)
            self.push_first(now + self.rules.check_ms, (_CHECK, 0), "check", None)
        elif kind == "retry":
            self.retry(*what)
        elif kind != "end":
            super().fire(now, kind, what)
        elif self.running.get(what.core) is what:
            self.end(now, what)

    def start_task(self, now: int, stage: Stage) -> None:
        assert isinstance(stage, FaultyStage)
        is_copy = not stage.to_start
        task = stage.to_copy.pop() if is_copy else stage.to_start.pop()
        core = self.idle.popleft()
        rules = self.rules
        bits = attempt_bits(rules.seed, stage.job, stage.index, task, stage.attempts[task])
        stage.attempts[task] += 1
        duration = stage.task_ms[task]
        if unit(mix(bits ^ _STRAGGLES)) < rules.straggler_share:
            duration = math.floor(duration * rules.straggler_factor + 0.5)
        fails = unit(mix(bits ^ _FAILS)) < rules.failures
        others = [one for one in self.running.values() if one.stage is stage and one.task == task]
        failures = stage.failures[task] + sum(one.fails for one in others)
        fails = fails and failures < rules.max_failures - 1
        if fails:
            duration = math.floor(unit(mix(bits ^ _FAILS_AT)) * duration)
        attempt = Attempt(stage, task, core, now, fails, is_copy)
        self.running[core] = attempt
        self.places.append((task, core))
        self.counts["copies"] += is_copy
        stage.running += 1
        self.free -= 1
        self.push(now + duration, "end", attempt)

    def stop(self, attempt: Attempt) -> None:
        """The attempt is over; its core is not free yet."""
        del self.running[attempt.core]
        attempt.stage.running -= 1

    def set_free(self, core: int) -> None:
        self.idle.append(core)
        self.free += 1

    def others(self, attempt: Attempt) -> list[Attempt]:
        return [
            other
            for other in self.running.values()
            if other is not attempt and other.stage is attempt.stage and other.task == attempt.task
        ]

    def end(self, now: int, attempt: Attempt) -> None:
        stage = attempt.stage
        if attempt.fails:
            stage.failures[attempt.task] += 1
            self.counts["failed"] += 1
            self.lose_result(now, attempt, is_known=False)
            self.set_free(attempt.core)
            return
        rivals = self.others(attempt)
        if attempt.task in stage.to_copy:
            stage.to_copy.remove(attempt.task)
        stage.durations.append(now - attempt.started_ms)
        self.stop(attempt)
        self.set_free(attempt.core)
        for rival in rivals:
            self.counts["copies_won"] += attempt.is_copy
            self.counts["wasted_ms"] += now - rival.started_ms
            self.stop(rival)
            self.set_free(rival.core)
        stage.ended += 1
        if stage.ended == len(stage.task_ms):
            self.push(now, "done", stage)
            if all(other.ended == len(other.task_ms) for other in self.stages[stage.job]):
                self.completion_ms[stage.job] = now

    def retry(self, stage: FaultyStage, task: int) -> None:
        stage.to_start.append(task)
        if stage not in self.runnable:
            self.runnable.append(stage)

    def lose_result(self, now: int, attempt: Attempt, is_known: bool) -> None:
        self.counts["wasted_ms"] += now - attempt.started_ms
        stage = attempt.stage
        has_rival = bool(self.others(attempt))
        self.stop(attempt)
        if attempt.task in stage.to_copy:
            stage.to_copy.remove(attempt.task)
            is_known = True
        if has_rival:
            return
        if is_known:
            self.retry(stage, attempt.task)
        else:
            self.push(now, "retry", (stage, attempt.task))

    def plan_loss(self, now: int, executor: int) -> None:
        if not self.rules.lost_per_hour:
            return
        bits = mix(self.rules.seed ^ _LASTS) + executor * _EXECUTOR_STEP
        share = unit(mix(bits + self.losses[executor]))
        lasts = -math.log(1.0 - share) * 3_600_000.0 / self.rules.lost_per_hour
        self.push_first(now + 1 + int(lasts), (_CHANGE, executor), "change", executor)

    def change(self, now: int, executor: int) -> None:
        size = self.rules.executor_cores
        cores = range(executor * size, min((executor + 1) * size, self.cores))
        if executor in self.down:
            self.down.remove(executor)
            for core in cores:
                self.set_free(core)
            self.plan_loss(now, executor)
            return
        for core in cores:
            if core in self.running:
                self.counts["interrupted"] += 1
                self.lose_result(now, self.running[core], is_known=True)
            else:
                self.idle.remove(core)
                self.free -= 1
        self.losses[executor] += 1
        self.counts["lost_executors"] += 1
        self.down.add(executor)
        back = now + self.rules.restart_ms
        self.push_first(back, (_CHANGE, executor), "change", executor)

    def check(self, now: int) -> None:
        rules = self.rules
        for core in sorted(self.running):
            attempt = self.running[core]
            stage = attempt.stage
            count = len(stage.task_ms)
            if count == 1 or stage.ended < max(1, math.floor(rules.quantile * count)):
                continue
            median = sorted(stage.durations)[len(stage.durations) // 2]
            longest = max(rules.multiplier * median, rules.least_ms)
            if now - attempt.started_ms <= longest or self.others(attempt):
                continue
            if attempt.task not in stage.to_copy:
                stage.to_copy.append(attempt.task)
                if stage not in self.runnable:
                    self.runnable.append(stage)


def simulate(
    cores: int,
    jobs: list[Job],
    key: Key,
    rules: Rules,
    pools: dict[str, Pool] | None = None,
    limited: bool = False,
) -> FaultyWorld:
    """The world after all jobs have ended."""
    world = FaultyWorld(cores, jobs, key, pools or {}, limited, rules=rules)
    world.run()
    return world
