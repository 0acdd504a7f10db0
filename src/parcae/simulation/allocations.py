"""Who has how many executors of a cluster: static splits, YARN's queues, and a split that lends.

`Lending` is the rule of `parcae serve --scope cluster`, too, which calls the same function.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from parcae.base.errors import ConfigError, suggestion
from parcae.simulation.applications import Allocator, Application, Seen, split_by_weight
from parcae.simulation.elastic import Elastic
from parcae.simulation.future import Manager

#: YARN's ResourceManager and its nodes exchange heartbeats so often.
_HEARTBEAT_MS = 1_000
#: The FairScheduler's preemption: a queue below its share waits so long, then executors have so
#: long until they are killed (`fairSharePreemptionTimeout`, `waitTimeBeforeKill`, set to be fast).
_STARVED_MS = 2_000
_WAIT_TO_KILL_MS = 2_000


@dataclass(eq=False)
class Static:
    """Each application keeps its share of the executors, by weight."""

    manager: ClassVar = Manager.TELLS

    def begin(self, num_executors: int, applications: Sequence[Application]) -> list[int]:
        """Begin with the split."""
        split = split_by_weight(num_executors, [one.weight for one in applications])
        if 0 in split:
            raise ConfigError(
                f"static: {num_executors} executors cannot be split among {len(applications)} "
                "applications: give more --cores, or --allocation dynamic:fair"
            )
        return split

    def act(self, clock_ms: int, applications: Sequence[Application]) -> None:
        """Nothing moves."""


@dataclass(eq=False)
class Queues:
    """Spark's dynamic allocation in every application, under YARN's scheduler.

    `kind` is "fifo" (one queue), "fair" (a queue for each application, under the FairScheduler, or
    under the CapacityScheduler without preemption), or "preempt" (with fast preemption).

    Source: YARN's FairScheduler and Spark's YarnAllocator; heartbeats are simulated, containers'
    places are not.
    """

    kind: str
    min_executors: int = 0
    idle_ms: int = 60_000
    manager: ClassVar = Manager.ASKED

    def begin(self, num_executors: int, applications: Sequence[Application]) -> list[int]:
        """Begin with the fewest executors that applications keep."""
        self._size = num_executors
        self._next_ms = 0
        self._starved_ms: dict[str, int] = {}
        #: By application, when its executors that are marked are killed.
        self._marked: dict[str, list[int]] = {one.name: [] for one in applications}
        each = min(self.min_executors, num_executors // max(1, len(applications)))
        return [each] * len(applications)

    def act(self, clock_ms: int, applications: Sequence[Application]) -> None:
        """Grant what was asked for at heartbeats; preempt."""
        for one in applications:
            while one.is_over and one.seen.up > self.min_executors:
                if not one.release_idle(self.idle_ms):
                    break
        if clock_ms >= self._next_ms:
            self._next_ms = clock_ms + _HEARTBEAT_MS
            self._grant(applications)
        if self.kind == "preempt":
            self._preempt(clock_ms, applications)

    def _grant(self, applications: Sequence[Application]) -> None:
        seen = {one.name: one.seen for one in applications}
        held = {name: row.held for name, row in seen.items()}
        asked = {name: row.asked for name, row in seen.items()}
        free = self._size - sum(held.values())
        while free > 0:
            waiting = [one for one in applications if asked[one.name] > 0]
            if not waiting:
                return
            one = waiting[0]
            if self.kind != "fifo":
                one = min(waiting, key=lambda one: held[one.name] / one.weight)
            one.grant()
            held[one.name] += 1
            asked[one.name] -= 1
            free -= 1

    def _preempt(self, clock_ms: int, applications: Sequence[Application]) -> None:
        for one in applications:
            marks = self._marked[one.name]
            while marks and marks[0] <= clock_ms:
                marks.pop(0)
                one.kill()
        seen = {one.name: one.seen for one in applications}
        active = [one for one in applications if seen[one.name].held + seen[one.name].asked > 0]
        weight = sum(one.weight for one in active)
        share = {one.name: self._size * one.weight / weight for one in active}
        for one in active:
            row = seen[one.name]
            short = min(row.held + row.asked, int(share[one.name])) - row.held
            if short <= 0:
                self._starved_ms.pop(one.name, None)
                continue
            since_ms = self._starved_ms.setdefault(one.name, clock_ms)
            if clock_ms - since_ms < _STARVED_MS:
                continue
            self._starved_ms[one.name] = clock_ms + _WAIT_TO_KILL_MS
            for _ in range(short - sum(map(len, self._marked.values()))):
                over = {
                    other.name: seen[other.name].held - len(self._marked[other.name])
                    for other in active
                }
                most = max(over, key=lambda name: over[name] - share[name])
                if over[most] <= share[most]:
                    break
                self._marked[most].append(clock_ms + _WAIT_TO_KILL_MS)


#: How long the estimate of what lending saves looks back. If it knows half of that, and lending
#: loses more than this share of the applications' time, lending stops for as long.
MEMORY_MS = 600_000.0
_LOSES = 0.02
#: So many of an application's last pauses are remembered; with so few, nothing is concluded.
_PAUSES = 30
_ENOUGH = 4


class Demand(NamedTuple):
    """What the lending rule knows of an application."""

    #: Executors that take room in the cluster: up (also those that are to go), or starting.
    held: int
    #: Executors that the tasks which run or could start can use.
    needed: int
    #: Estimated work of its open jobs, in ms of one executor.
    work_ms: float
    #: How long an executor of it takes to start.
    start_ms: float
    weight: float = 1.0
    #: Of those that are held: how many cannot run tasks yet.
    starting: int = 0
    #: An executor takes its room for so long after its driver has let it go.
    gone_ms: float = 1_000.0

    @property
    def move_ms(self) -> float:
        """How long it takes to move one to the application, beyond the end of its task."""
        return self.gone_ms + self.start_ms


@dataclass
class Gain:
    """What lending has saved of the applications' time, by its own estimate.

    An application with tasks for n executors is taken to be as fast as its executors up to n. What
    is long ago counts less: a share of 1/e after `MEMORY_MS`.
    """

    busy_ms: float = 0.0
    saved_ms: float = 0.0
    #: For how long it has been estimated.
    known_ms: float = 0.0
    #: The most executors that an application had: under the split they would have to start, too.
    most: dict[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The share of the time under the static split that was saved; negative: lost."""
        return self.saved_ms / self.busy_ms if self.busy_ms > 0 else 0.0

    def add(
        self, since_ms: float, demands: Mapping[str, Demand], entitled: Mapping[str, int]
    ) -> None:
        """Count the time since the last call, in which the demands held."""
        kept = math.exp(-since_ms / MEMORY_MS)
        self.busy_ms *= kept
        self.saved_ms *= kept
        self.known_ms += since_ms
        for name, one in demands.items():
            up = one.held - one.starting
            self.most[name] = max(up, self.most.get(name, 0))
            own = min(entitled[name], one.needed, self.most[name])
            if own > 0:
                speed = min(up, one.needed) / own
                # Work that takes this time takes so many times as long under the split.
                self.busy_ms += speed * since_ms
                self.saved_ms += (speed - 1.0) * since_ms


@dataclass(eq=False)
class Lending:
    """A split of the executors that lends what an application does not need.

    An application is entitled to its split. An executor is lent to one whose work would take its
    own executors more than `worth` moves (`Demand.move_ms`), as soon as its owner is expected to go
    on without it for `pause` more moves, by the owner's own pauses. Before these are known, it is
    lent after it has been spare for `patience` moves, about what its loss would cost (the ski-
    rental rule). The owner calls it back as soon as its tasks can use it. Executors go at the ends
    of their tasks, and nobody is told to have more while the cluster is full. Nothing is lent for a
    while after the applications were slower, by `Gain`, than under the split.

    Args:
        num_executors: executors that fit into the cluster.
        patience: chosen, as the next two, by `benchmarks.applications` on seeds from 101 on.
        worth: see above.
        pause: see above.
        last: for an owner's last executor, `patience` and `pause` are so many times as long.
    """

    num_executors: int
    patience: float = 3.0
    worth: float = 2.0
    pause: float = 2.0
    last: float = 3.0

    def __post_init__(self) -> None:
        #: By application, the executors that it should have, and those that it is told to have.
        self.goal: dict[str, int] = {}
        self.told: dict[str, int] = {}
        self._spare: dict[str, deque[tuple[float, int]]] = {}
        self._received_ms: dict[str, float] = {}
        #: By application, how long its last pauses were, and since when it has one.
        self._pauses_ms: dict[str, deque[float]] = {}
        self._since_ms: dict[str, float] = {}
        #: Of the last call; a live clock does not begin at 0.
        self._clock_ms = math.inf
        #: By application, its executors; and until when those take room that are gone.
        self._up: dict[str, tuple[int, float]] = {}
        self._going: list[float] = []
        self.gain = Gain()
        #: Until when nothing is lent.
        self.stopped_ms = -math.inf

    def share(self, clock_ms: float, demands: Mapping[str, Demand]) -> dict[str, int]:
        """How many executors each application is told to have from now on."""
        going = self._to_go(clock_ms, demands)
        own = (self.goal, self.told, self._spare, self._received_ms, self.gain.most)
        for kept in (*own, self._pauses_ms, self._since_ms):
            for name in kept.keys() - demands.keys():
                del kept[name]
        since_ms = max(0.0, clock_ms - self._clock_ms)
        self._clock_ms = clock_ms
        for name, demand in demands.items():
            self.goal.setdefault(name, min(demand.held, self.num_executors))
            received_ms = self._received_ms.get(name, 0.0) + since_ms * demand.held
            self._received_ms[name] = received_ms
        entitled = self._entitled(demands)
        self.gain.add(since_ms, demands, entitled)
        if self.gain.known_ms > MEMORY_MS / 2 and self.gain.share < -_LOSES:
            self.stopped_ms = clock_ms + MEMORY_MS
        if clock_ms < self.stopped_ms:
            self.gain = Gain(most=self.gain.most)
        while self._free() < 0:  # who is new brings executors with it
            most = max(self.goal, key=lambda name: self.goal[name] - entitled[name])
            self.goal[most] -= 1
        spare = {name: self._to_spare(name, one, entitled) for name, one in demands.items()}
        by_drain = sorted(demands, key=lambda name: -self._drain_ms(name, demands[name]))
        for name in by_drain:
            while self.goal[name] < min(entitled[name], demands[name].needed):
                if not self._call_back(entitled):
                    break
                self.goal[name] += 1
        for name, one in demands.items():  # some were called back
            spare[name] = min(spare[name], max(0, self.goal[name] - one.needed))
        self._lend_spare(demands, spare, by_drain)
        return self._tell(demands, going)

    def _lend_spare(
        self, demands: Mapping[str, Demand], spare: dict[str, int], by_drain: Sequence[str]
    ) -> None:
        """Lend what is free or spare to those that gain, the longest work first."""
        for name in by_drain:
            while self._gains(name, demands[name]):
                if not self._lend(name, spare):
                    break
                self.goal[name] += 1

    def _to_go(self, clock_ms: float, demands: Mapping[str, Demand]) -> int:
        """How many executors take room that are no application's any more."""
        before = self._up
        self._up = {name: (one.held - one.starting, one.gone_ms) for name, one in demands.items()}
        for name, (count, gone_ms) in before.items():
            left = count - self._up.get(name, (0, 0.0))[0]
            self._going += [clock_ms + gone_ms] * left
        self._going = [until_ms for until_ms in self._going if until_ms > clock_ms]
        return len(self._going)

    def _free(self) -> int:
        return self.num_executors - sum(self.goal.values())

    def _entitled(self, demands: Mapping[str, Demand]) -> dict[str, int]:
        """The split. If there are more applications than executors, those that have received least
        are entitled to one each, and change places every four moves.
        """
        names = list(demands)
        if len(names) <= self.num_executors:
            split = split_by_weight(self.num_executors, [one.weight for one in demands.values()])
            return dict(zip(names, split, strict=True))
        turn_ms = 4 * max(one.move_ms for one in demands.values())
        busy = [name for name in names if demands[name].needed > 0]
        first = sorted(busy, key=lambda name: self._received_ms[name] // turn_ms)
        return {name: int(name in first[: self.num_executors]) for name in names}

    def _drain_ms(self, name: str, demand: Demand) -> float:
        """How long the application's executors would take for its work."""
        return demand.work_ms / max(1, self.goal[name])

    def _gains(self, name: str, demand: Demand) -> bool:
        """Whether one more executor is worth its start."""
        has_use = self.goal[name] < demand.needed and self._clock_ms >= self.stopped_ms
        return has_use and self._drain_ms(name, demand) > self.worth * demand.move_ms

    def _to_spare(self, name: str, demand: Demand, entitled: Mapping[str, int]) -> int:
        """Executors that were spare at all times for so long that they may be lent."""
        if demand.needed < entitled[name]:
            self._since_ms.setdefault(name, self._clock_ms)
        elif name in self._since_ms:
            pauses_ms = self._pauses_ms.setdefault(name, deque(maxlen=_PAUSES))
            pauses_ms.append(self._clock_ms - self._since_ms.pop(name))
        spare = max(0, self.goal[name] - demand.needed)
        past = self._spare.setdefault(name, deque())
        # Ascending: of what came before a smaller number, only the time counts.
        since_ms = self._clock_ms
        while past and past[-1][1] >= spare:
            since_ms = past.pop()[0]
        past.append((since_ms, spare))
        all_of_them = self._spare_for(name, demand.move_ms, self.last)
        return max(all_of_them, min(self._spare_for(name, demand.move_ms), self.goal[name] - 1))

    def _spare_for(self, name: str, move_ms: float, times: float = 1.0) -> int:
        """The fewest executors that were spare at any time of the patience, so many times."""
        long_ago_ms = self._clock_ms - self._patience_ms(name, move_ms, times)
        past = self._spare[name]
        before = [spare for since_ms, spare in past if since_ms <= long_ago_ms]
        return before[-1] if before else 0

    def _patience_ms(self, name: str, move_ms: float, times: float) -> float:
        """After how much of a pause the rest of it is expected to be long."""
        known_ms = sorted(self._pauses_ms.get(name, ()))
        patience_ms = self.patience * times * move_ms
        if len(known_ms) < _ENOUGH:
            return patience_ms
        for after_ms in (0.0, *known_ms):
            rest_ms = [one_ms - after_ms for one_ms in known_ms if one_ms > after_ms]
            if len(rest_ms) < _ENOUGH:
                break
            if sum(rest_ms) > self.pause * times * move_ms * len(rest_ms):
                return after_ms
        # No pause was as long before.
        return max(patience_ms, known_ms[-1])

    def _call_back(self, entitled: Mapping[str, int]) -> bool:
        """Take an executor that is free, or from whoever has most beyond its split."""
        if self._free() > 0:
            return True
        most = max(self.goal, key=lambda name: self.goal[name] - entitled[name])
        if self.goal[most] <= entitled[most]:
            return False
        self.goal[most] -= 1
        return True

    def _lend(self, to: str, spare: dict[str, int]) -> bool:
        """Take an executor that is free, or from whoever has had most to spare."""
        if self._free() > 0:
            return True
        most = max(spare, key=lambda name: spare[name] if name != to else -1)
        if most == to or spare[most] <= 0:
            return False
        spare[most] -= 1
        self.goal[most] -= 1
        return True

    def _tell(self, demands: Mapping[str, Demand], going: int) -> dict[str, int]:
        """Lower what is too much at once; raise what the room in the cluster allows."""
        told = {}
        room = self.num_executors - going
        for name, demand in demands.items():
            told[name] = min(self.goal[name], max(self.told.get(name, 0), demand.held))
            room -= max(told[name], demand.held)
        for name in demands:
            # Those that are to go take their room until they have gone.
            more = max(0, min(self.goal[name] - told[name], room))
            told[name] += more
            room -= more
        self.told = told
        return told


@dataclass(eq=False)
class Served:
    """The lending rule of the service, under YARN: what it tells becomes requests."""

    start_ms: float = 3_000.0
    #: Other numbers of the rule, by its fields.
    numbers: Mapping[str, float] = field(default_factory=dict)
    manager: ClassVar = Manager.TELLS

    def begin(self, num_executors: int, applications: Sequence[Application]) -> list[int]:
        """Begin with the split."""
        self._rule = Lending(num_executors, **self.numbers)
        self._next_ms = 0
        return split_by_weight(num_executors, [one.weight for one in applications])

    def act(self, clock_ms: int, applications: Sequence[Application]) -> None:
        """Let executors go at once, and start others at YARN's heartbeats."""
        seen = {one.name: one.seen for one in applications}
        told = self._rule.share(
            clock_ms, {one.name: self._demand(one, seen[one.name]) for one in applications}
        )
        is_heartbeat = clock_ms >= self._next_ms
        self._next_ms += _HEARTBEAT_MS * is_heartbeat
        for one in applications:
            row = seen[one.name]
            more = told[one.name] - (row.held - row.leaving)
            while more > 0 and one.keep():
                more -= 1
            while more < 0 and one.drain():
                more += 1
            while more > 0 and is_heartbeat and one.grant():
                more -= 1

    def _demand(self, one: Application, row: Seen) -> Demand:
        # Before an executor has started, the service knows nothing of its time, either.
        return Demand(row.held, row.needed, row.work_ms, self.start_ms, one.weight, row.starting)


#: By word of `--allocation`: what it means.
WORDS = {
    "shared": "one application with all jobs and all cores",
    "static": "a fixed split of the executors",
    "dynamic:fifo": "Spark's dynamic allocation, one YARN queue",
    "dynamic:fair": "Spark's dynamic allocation, a YARN queue for each application",
    "dynamic:preempt": "the same, with the FairScheduler's fast preemption",
    "serve": "a split that lends, as `parcae serve --scope cluster`",
}
SHARED = "shared"


def parse_allocations(text: str) -> tuple[str, ...]:
    """The words of a list such as "dynamic:fair,static,shared"."""
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word not in WORDS:
            raise ConfigError(f"--allocation {word}: {suggestion(word, WORDS)}")
    return words


def allocation_named(word: str, elastic: Elastic) -> Allocator:
    """The allocation that a word other than "shared" stands for."""
    kind, _, queues = word.partition(":")
    if kind == "dynamic":
        least = elastic.min_cores // elastic.cores_per_executor
        return Queues(queues, least, elastic.idle_ms)
    return Static() if kind == "static" else Served(start_ms=elastic.start_ms)
