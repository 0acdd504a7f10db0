"""The accounts of users in plain Python, from their definition, and a world that orders by them.

A user's account has S (what the user's tasks received) and A (what a split of the cores by weight
gives), both in ms of one core; the order is by max(rem + 1.5 (S - A), rem / 10).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.spark_world import Job, Stage, World

_SETTLED = 0.001
_AGAIN_MS = 200


@dataclass
class Use:
    """What a user does at a moment: jobs in the system, running tasks, and tasks to start."""

    jobs: int = 0
    running: int = 0
    waiting: int = 0


@dataclass
class Account:
    """S and A."""

    received: float = 0.0
    split: float = 0.0

    @property
    def is_behind(self) -> bool:
        return self.split < self.received - _SETTLED


@dataclass
class Ledger:
    """All open accounts."""

    weights: Mapping[str, float] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)

    def move(self, time: float, cores: int, uses: Mapping[str, Use]) -> None:
        """Let so much time pass in which the users do this."""
        for user in [*self.accounts]:
            if uses.get(user, Use()).jobs == 0 and not self.accounts[user].is_behind:
                del self.accounts[user]
        for user, use in uses.items():
            if use.jobs > 0:
                self.accounts.setdefault(user, Account())
        running = sum(use.running for use in uses.values())
        waits = any(use.waiting for use in uses.values())
        cores = running if waits else max(cores, running)
        left = float(time)
        while left > 0 and self.accounts:
            rates = self.split(cores, uses)
            until = dict[str, float]()
            for user, account in self.accounts.items():
                gains = rates[user] - uses.get(user, Use()).running
                if account.is_behind and gains > 0:
                    until[user] = (account.received - account.split) / gains
            step = min([left, *until.values()])
            for user, account in self.accounts.items():
                account.received += uses.get(user, Use()).running * step
                account.split += rates[user] * step
                if until.get(user, math.inf) <= step:
                    account.split = account.received
            left -= step

    def split(self, cores: int, uses: Mapping[str, Use]) -> dict[str, float]:
        """Shares by weight, but nobody gets more than is asked for: the others get the rest."""
        asked = dict[str, float]()
        for user, account in self.accounts.items():
            use = uses.get(user, Use())
            asked[user] = math.inf if account.is_behind else use.running + use.waiting
        rates = dict[str, float]()
        while True:
            others = [user for user in self.accounts if user not in rates]
            rest = float(cores) - sum(rates.values())
            weights = sum(self.weights.get(user, 1.0) for user in others)
            if not others:
                return rates
            share = rest / weights
            content = [u for u in others if asked[u] <= share * self.weights.get(u, 1.0)]
            if not content:
                rates |= {user: share * self.weights.get(user, 1.0) for user in others}
                return rates
            rates |= {user: asked[user] for user in content}

    def overdraft(self, user: str) -> float:
        account = self.accounts.get(user, Account())
        return account.received - account.split


Work = Callable[[World, int], float]


def least_work(world: World, job: int) -> float:
    return world.unstarted_work_of_job(job)


def all_work(world: World, job: int) -> float:
    return world.work_of_job(job)


@dataclass
class AccountWorld(World):
    """A world under `srpt+account` (or another statement of work), which is planned.

    A plan is due at an arrival or end of a job, when a stage becomes runnable, has no task left to
    start or is done, and 200 ms after the last plan while two users are in the system. It is made
    as soon as a core is free and a task could start; until the next one its order stays.
    """

    users: list[str] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    work: Work = least_work

    def __post_init__(self) -> None:
        super().__post_init__()
        self.now = 0
        self.is_due = False
        self.wake: int | None = None
        self.ended = set[int]()
        self.scores = dict[int, float]()

    @property
    def open_jobs(self) -> list[int]:
        """The jobs in the system."""
        return [job for job in self.number if job not in self.ended]

    def uses(self) -> dict[str, Use]:
        found = dict[str, Use]()
        for job in self.open_jobs:
            use = found.setdefault(self.users[job], Use())
            use.jobs += 1
            use.running += self.running_of_job(job)
            use.waiting += sum(one.pending for one in self.runnable if one.job == job)
        return found

    def run(self) -> list[int]:
        self.begin()
        while self.events:
            now, _, kind, what = heapq.heappop(self.events)
            if kind == "wake" and self.wake != now:
                continue  # a later plan has asked for another time
            if now > self.now:
                self.ledger.move(now - self.now, self.cores, self.uses())
                self.now = now
            if kind == "wake":
                self.wake = None
                self.is_due = True
            else:
                self.fire(now, kind, what)
            self.offer(now)
        return [completion for completion in self.completion_ms if completion is not None]

    def arrive(self, now: int, job: int) -> None:
        super().arrive(now, job)
        self.is_due = True

    def reveal(self, stage: Stage) -> None:
        super().reveal(stage)
        self.is_due = True

    def finish_stage(self, now: int, ended: Stage) -> None:
        self.is_due = True
        super().finish_stage(now, ended)
        if all(stage.is_done for stage in self.stages[ended.job]):
            self.ended.add(ended.job)

    def start_task(self, now: int, stage: Stage) -> None:
        super().start_task(now, stage)
        self.is_due |= not stage.pending

    def offer(self, now: int) -> None:
        while self.free and any(stage.pending for stage in self.runnable):
            if self.is_due:
                self.plan()
            super().offer(now)
            if not self.is_due:
                return

    def plan(self) -> None:
        self.is_due = False
        self.wake = None
        users = {self.users[job] for job in self.open_jobs}
        for job in self.open_jobs:
            rem = self.work(self, job)
            owed = 1.5 * self.ledger.overdraft(self.users[job])
            self.scores[job] = max(rem + owed, 0.1 * rem) if len(users) > 1 else rem
        if len(users) > 1:
            self.wake = self.now + _AGAIN_MS
            heapq.heappush(self.events, (self.wake, (0, len(self.jobs)), "wake", None))


def by_score(world: World, stage: Stage) -> tuple[Any, ...]:
    """The key of the last plan."""
    assert isinstance(world, AccountWorld)
    return (world.scores[stage.job], world.number[stage.job], stage.index)


def play(
    cores: int, jobs: Iterable[Job], users: list[str], weights: Mapping[str, float], work: Work
) -> AccountWorld:
    """Run the jobs of these users."""
    jobs = list(jobs)
    world = AccountWorld(
        cores, jobs, by_score, {}, False, users=users, ledger=Ledger(weights), work=work
    )
    world.run()
    return world
