"""An independent, slow, plain-Python simulator of one Spark application's cores.

Written from the `rules` of ../shared/data/conformance/spark-world.json and from
../shared/design/spark-world.md, section 1, and from nothing of `parcae`: kernels are held to it.

The event rules that reproduce all 72 runs of that file (found by running, see below for what
else would have done):

1. The clock is whole milliseconds. Events lie in one heap by (time, number of creation).
2. At the start one `arrive` event a job is made, in the order of the jobs' positions. So an arrival
   fires before every other event of its time that was made later, which is all of them.
3. `arrive` makes one `reveal` event for each parentless stage, at the same time, depth first from
   the job's stages without children (ascending), each stage once, parents by ascending index.
   The reveals are made when the arrival *fires*: ends of tasks at that very millisecond that were
   started before go first, and so do the arrivals of other jobs at that time.
4. `reveal` makes its one stage runnable.
5. `end` of a task gives its core back. Each task has an event of its own, made when it starts, in
   the order of starts (a stage's tasks in their order in the list), also for 0 ms: such an end
   fires at the same time, after all that was made before. The end of a stage's last task makes
   a `done` event at the same time; the end of a job's last task is the job's completion.
6. `done` makes all children runnable at once whose last missing parent this was.
7. After every single event, if a core is free: one offer round. The runnable stages with pending
   tasks are sorted once by the order's key, with the numbers of running tasks and of work left as
   they are at the start of the round; down that list each starts as many pending tasks as cores are
   free and as its limits allow. A stage at its limit is passed over.
   (The rounds after `arrive` and after a `done` that frees no child can start nothing: the round
   before has left either no free core or no task that may start.)
8. The job's and the stage's numbers are positions in the file. The order `fair` compares the names
   "job-%03d" as text. Limits bind under `orders` only; pools count under `fair-pools` only.
   The work of a task is its stage's plain mean; a task that runs counts as started.

Readings that do not reproduce the file (runs that differ, of 72): reveals made at the start with
the arrivals: 3; all parentless stages in one event: 28; the first of them within the arrival
itself: 16; each reveal making the next: 13; parentless stages by index: 26; children runnable
within the end of the last task: 71; limits under all orders: 60. Readings that the file cannot
tell apart: one `done` event or one event a child (the rules' text has one); means as floats or as
exact fractions; jobs that are not sorted by arrival and edges from a higher to a lower stage
number (it has neither).

Sessions: a job that follows another arrives `pause_ms` after it, counted from the event `done` of
that job's last stage, before all other events of its time; jobs that arrive together do so by
position. A job's number, which orders compare, is that of its arrival, and so are its stages'.

Beyond the file: sessions, stage tiers, job limits, weights, deadlines, stages that are Spark jobs
of their own, FAIR inside a pool, and any order inside pools and priorities (see `Job`, `Pool`,
`ORDERS`, `among_tenants`).
"""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

Key = Callable[["World", "Stage"], Any]


@dataclass
class Pool:
    """A pool of Spark's fair scheduler; `mode` "FIFO" or "FAIR" orders the task sets inside."""

    weight: float = 1
    min_share: int = 0
    mode: str = "FIFO"


@dataclass
class Job:
    """One job: `task_ms` lists every stage's task durations, `edges` are (parent, child) stages.

    The other fields are its order. `limit` bounds the running tasks of the job, `limits` those of
    each stage (None: no bound). `stage_tiers`, if given, replace the job's `tier`. Jobs of one tier
    share by running tasks / weight; a job without a weight comes before those with one, first come.
    `deadline_ms` counts from the arrival (None: no deadline).
    """

    arrival_ms: int
    edges: list[tuple[int, int]]
    task_ms: list[list[int]]
    pool: str = "default"
    tier: float = 0.0
    weight: float | None = None
    limit: int | None = None
    limits: list[int | None] | None = None
    stage_tiers: list[float] | None = None
    priority: int = 0  # counts under `among_tenants` only
    deadline_ms: int | None = None
    follows: int | None = None  # the position of the job after whose end it arrives
    pause_ms: int = 0


@dataclass
class Stage:
    """A stage while the world runs."""

    job: int
    index: int
    task_ms: list[int]
    parents: set[int]
    children: set[int]
    started: int = 0
    running: int = 0
    ended: int = 0
    is_done: bool = False
    id: int = -1  # counted over all jobs as they arrive, as Spark does
    spark_job: int = -1  # under adaptive execution: in order of becoming runnable first

    @functools.cached_property
    def mean_ms(self) -> float:
        return sum(self.task_ms) / len(self.task_ms)

    @property
    def pending(self) -> int:
        return len(self.task_ms) - self.started


@dataclass
class World:
    """The cores of one application and the jobs on them."""

    cores: int
    jobs: list[Job]
    key: Key
    pools: dict[str, Pool]
    limited: bool
    stages: list[list[Stage]] = field(default_factory=list)
    runnable: list[Stage] = field(default_factory=list)
    completion_ms: list[int | None] = field(default_factory=list)
    events: list[tuple[int, Any, str, Any]] = field(default_factory=list)
    number: dict[int, int] = field(default_factory=dict)  # of the jobs that arrived, by position
    arrived_ms: dict[int, int] = field(default_factory=dict)
    trace: list[tuple[int, int, int]] = field(default_factory=list)  # every start: (ms, job, stage)

    def __post_init__(self) -> None:
        self.free = self.cores
        self.numbers = itertools.count()
        self.spark_jobs = itertools.count()
        self.ids = itertools.count()
        for number, job in enumerate(self.jobs):
            parents: list[set[int]] = [set() for _ in job.task_ms]
            children: list[set[int]] = [set() for _ in job.task_ms]
            for parent, child in job.edges:
                parents[child].add(parent)
                children[parent].add(child)
            self.stages.append(
                [
                    self.make_stage(number, index, tasks, parents[index], children[index])
                    for index, tasks in enumerate(job.task_ms)
                ]
            )
            self.completion_ms.append(None)

    make_stage: ClassVar[type[Stage]] = Stage

    def running_of_job(self, job: int) -> int:
        return sum(stage.running for stage in self.stages[job])

    def running_of_pool(self, pool: str) -> int:
        return sum(self.running_of_job(j) for j, job in enumerate(self.jobs) if job.pool == pool)

    def work_of_job(self, job: int) -> float:
        return sum(stage.mean_ms * len(stage.task_ms) for stage in self.stages[job])

    def unstarted_work_of_job(self, job: int) -> float:
        return sum(stage.mean_ms * stage.pending for stage in self.stages[job])

    def may_start(self, stage: Stage) -> int:
        """Pending tasks of the stage that its own and its job's limit let start now."""
        count = stage.pending
        if not self.limited:
            return count
        job = self.jobs[stage.job]
        if job.limits is not None and (limit := job.limits[stage.index]) is not None:
            count = min(count, limit - stage.running)
        if job.limit is not None:
            count = min(count, job.limit - self.running_of_job(stage.job))
        return max(count, 0)

    def push(self, time: int, kind: str, what: Any) -> None:
        # An arrival goes before all else of its time, in the order of positions.
        order = (0, what) if kind == "arrive" else (1, next(self.numbers))
        heapq.heappush(self.events, (time, order, kind, what))

    def parentless_depth_first(self, job: int) -> list[Stage]:
        stages = self.stages[job]
        seen: set[int] = set()
        found: list[Stage] = []

        def visit(index: int) -> None:
            if index in seen:
                return
            seen.add(index)
            if not stages[index].parents:
                found.append(stages[index])
            for parent in sorted(stages[index].parents):
                visit(parent)

        for stage in stages:
            if not stage.children:
                visit(stage.index)
        return found

    def run(self) -> list[int]:
        self.begin()
        while self.events and not self.is_over():
            now, _, kind, what = heapq.heappop(self.events)
            self.fire(now, kind, what)
            self.offer(now)
        if any(completion is None for completion in self.completion_ms):
            raise ValueError("the order stalls the cluster: some job can never end")
        return [completion for completion in self.completion_ms if completion is not None]

    def begin(self) -> None:
        for number, job in enumerate(self.jobs):
            if job.follows is None:
                self.push(job.arrival_ms, "arrive", number)

    def is_over(self) -> bool:
        """Whether the run ends although events are left."""
        return False

    def fire(self, now: int, kind: str, what: Any) -> None:
        if kind == "arrive":
            self.arrive(now, what)
        elif kind == "reveal":
            self.reveal(what)
        elif kind == "end":
            self.end_task(now, what)
        else:
            self.finish_stage(now, what)

    def arrive(self, now: int, job: int) -> None:
        self.number[job] = len(self.number)
        self.arrived_ms[job] = now
        for stage in self.stages[job]:
            stage.id = next(self.ids)
        for stage in self.parentless_depth_first(job):
            self.push(now, "reveal", stage)

    def finish_stage(self, now: int, ended: Stage) -> None:
        self.reveal_children(ended)
        ended.is_done = True
        if all(stage.is_done for stage in self.stages[ended.job]):
            self.go_on(now, ended.job)

    def go_on(self, now: int, ended: int) -> None:
        for number, job in enumerate(self.jobs):
            if job.follows == ended:
                self.push(now + job.pause_ms, "arrive", number)

    def end_task(self, now: int, stage: Stage) -> None:
        self.free += 1
        stage.running -= 1
        stage.ended += 1
        if stage.ended == len(stage.task_ms):
            self.push(now, "done", stage)
            if all(other.ended == len(other.task_ms) for other in self.stages[stage.job]):
                self.completion_ms[stage.job] = now

    def reveal_children(self, stage: Stage) -> None:
        for index in sorted(stage.children):
            child = self.stages[stage.job][index]
            child.parents = child.parents - {stage.index}
            if not child.parents:
                self.reveal(child)

    def reveal(self, stage: Stage) -> None:
        stage.spark_job = next(self.spark_jobs)
        self.runnable.append(stage)

    def offer(self, now: int) -> None:
        if not self.free:
            return
        self.runnable = [stage for stage in self.runnable if stage.pending]
        for stage in sorted(self.runnable, key=lambda stage: self.key(self, stage)):
            for _ in range(min(self.free, self.may_start(stage))):
                self.start_task(now, stage)
                self.trace.append((now, stage.job, stage.index))

    def start_task(self, now: int, stage: Stage) -> None:
        self.push(now + stage.task_ms[stage.started], "end", stage)
        stage.started += 1
        stage.running += 1
        self.free -= 1


def fair_key(running: int, min_share: int, weight: float, name: str) -> tuple[Any, ...]:
    """Spark's FairSchedulingAlgorithm as a sort key: the needy first, then ratios, then names."""
    if running < min_share:
        return (0, running / max(min_share, 1), name)
    return (1, running / weight, name)


def fifo(world: World, stage: Stage) -> tuple[Any, ...]:
    return (world.number[stage.job], stage.index)


def fifo_spark_jobs(world: World, stage: Stage) -> tuple[Any, ...]:
    return (stage.spark_job,)


def fair(world: World, stage: Stage) -> tuple[Any, ...]:
    return (world.running_of_job(stage.job), f"job-{world.number[stage.job]:03d}", stage.index)


def fair_pools(world: World, stage: Stage) -> tuple[Any, ...]:
    name = world.jobs[stage.job].pool
    pool = world.pools.get(name, Pool())  # Spark makes pools that no file names: 1, 0, FIFO
    outside = fair_key(world.running_of_pool(name), pool.min_share, pool.weight, name)
    if pool.mode == "FAIR":
        return (outside, fair_key(stage.running, 0, 1, f"TaskSet_{stage.id}.0"))
    return (outside, (world.number[stage.job], stage.index))


def sjf(world: World, stage: Stage) -> tuple[Any, ...]:
    return (world.work_of_job(stage.job), world.number[stage.job], stage.index)


def srpt(world: World, stage: Stage) -> tuple[Any, ...]:
    return (world.unstarted_work_of_job(stage.job), world.number[stage.job], stage.index)


def edf(world: World, stage: Stage) -> tuple[Any, ...]:
    job = world.jobs[stage.job]
    if job.deadline_ms is None:  # after all that have one, least remaining work first
        return (1, *srpt(world, stage))
    due_ms = world.arrived_ms[stage.job] + job.deadline_ms
    return (0, due_ms, world.number[stage.job], stage.index)


def orders(world: World, stage: Stage) -> tuple[Any, ...]:
    job = world.jobs[stage.job]
    tier = job.tier if job.stage_tiers is None else job.stage_tiers[stage.index]
    share = 0.0 if job.weight is None else world.running_of_job(stage.job) / job.weight
    return (tier, job.weight is not None, share, stage.job, stage.index)


def among_tenants(inside: Key) -> Key:
    """Pools as Spark's FAIR shares between them; inside a pool by priority, then by `inside`.

    The pools' own modes do not count.
    """

    def key(world: World, stage: Stage) -> tuple[Any, ...]:
        job = world.jobs[stage.job]
        pool = world.pools.get(job.pool, Pool())
        running = world.running_of_pool(job.pool)
        outside = fair_key(running, pool.min_share, pool.weight, job.pool)
        return (outside, -job.priority, *inside(world, stage))

    return key


ORDERS: dict[str, Key] = {
    "fifo": fifo,
    "fifo-spark-jobs": fifo_spark_jobs,
    "fair": fair,
    "fair-pools": fair_pools,
    "sjf": sjf,
    "srpt": srpt,
    "edf": edf,
    "orders": orders,
}


def simulate(
    cores: int,
    jobs: list[Job],
    order: str | Key,
    pools: dict[str, Pool] | None = None,
) -> World:
    """The world after all jobs have ended (its `trace` has every start).

    Limits bind under the order "orders" and under an order that is given as a callable.
    """
    key = ORDERS[order] if isinstance(order, str) else order
    limited = order == "orders" or not isinstance(order, str)
    world = World(cores, jobs, key, pools or {}, limited)
    world.run()
    return world


def run(
    cores: int,
    jobs: list[Job],
    order: str | Key,
    pools: dict[str, Pool] | None = None,
) -> list[int]:
    """The time at which every job ends, in ms, by position.

    Raises:
        ValueError: the order lets some job never end (a limit of 0).
    """
    world = simulate(cores, jobs, order, pools)
    return [completion for completion in world.completion_ms if completion is not None]


@dataclass
class RandomSet:
    """What `random_set` draws."""

    cores: int
    jobs: list[Job]
    pools: dict[str, Pool]

    def as_entry(self, name: str) -> dict[str, Any]:
        """The set as an entry of `sets` in the conformance file's format (no limit: 1000)."""
        jobs = [
            {
                "arrival_ms": job.arrival_ms,
                "edges": [list(edge) for edge in job.edges],
                "task_ms": job.task_ms,
                "pool": job.pool,
                "tier": job.tier,
                "limits": [1000 if limit is None else limit for limit in job.limits or []],
            }
            for job in self.jobs
        ]
        pools = {
            pool: {
                "weight": spec.weight,
                "min_share": spec.min_share,
                "mode": spec.mode,
            }
            for pool, spec in self.pools.items()
        }
        return {"name": name, "cores": self.cores, "pools": pools, "jobs": jobs}


def random_set(rng: random.Random, max_jobs: int = 8) -> RandomSet:
    """A small set of jobs with much that ties.

    Arrivals ascend by position (many at one time); durations are often equal or 0; jobs are single
    stages, chains, diamonds, wide or random DAGs whose stage numbers need not follow the edges;
    some pools are empty, some minimum shares are above the cores; limits are at least 1. The mean
    duration of every stage is whole, so that sums of work are exact in floating point.
    """
    cores = rng.choice([1, 2, 3, 4, 5, 8, 13])
    pools = {
        f"p{number}": Pool(
            weight=rng.choice([1, 1, 2, 3, 0.5]),
            min_share=rng.choice([0, 0, 1, 2, 5, cores + 3]),
            mode=rng.choice(["FIFO", "FIFO", "FAIR"]),
        )
        for number in range(rng.randint(1, 4))
    }
    used = rng.sample(sorted(pools), rng.randint(1, len(pools)))
    gap = rng.choice([0, 0, 3, 20, 200])
    draw = rng.choice([_equal, _small, _zeros, _ordinary])
    weighted = rng.random() < 0.5
    jobs = []
    arrival = 0
    for _ in range(rng.randint(1, max_jobs)):
        jobs.append(_random_job(rng, arrival, draw, rng.choice(used), weighted))
        if rng.random() < 0.6:
            arrival += rng.randint(0, gap)
    for job in jobs:
        job.deadline_ms = rng.choice([None, 10, 40, 40, rng.randint(1, 400)])
    return RandomSet(cores, jobs, pools)


Draw = Callable[[random.Random], int]


def _equal(rng: random.Random) -> int:
    return 10


def _small(rng: random.Random) -> int:
    return rng.randint(1, 4)


def _zeros(rng: random.Random) -> int:
    return rng.choice([0, 0, 1, 5])


def _ordinary(rng: random.Random) -> int:
    return 1 + int(rng.lognormvariate(3, 1))


def _random_job(rng: random.Random, arrival: int, draw: Draw, pool: str, weighted: bool) -> Job:
    edges, count = rng.choice([_single, _chain, _diamond, _wide, _tangle])(rng)
    names = list(range(count))
    if rng.random() < 0.5:
        rng.shuffle(names)  # numbers of stages that do not follow the edges
    most = rng.choice([1, 3, 12])
    task_ms = [[draw(rng) for _ in range(rng.randint(1, most))] for _ in range(count)]
    for tasks in task_ms:
        tasks[0] += -sum(tasks) % len(tasks)  # a whole mean
    return Job(
        arrival,
        sorted((names[parent], names[child]) for parent, child in edges),
        task_ms,
        pool=pool,
        tier=rng.choice([0, 1, 2]),
        weight=rng.choice([1, 2, 0.5]) if weighted else None,
        limit=rng.choice([None, None, 1, 2, 5]),
        limits=[rng.choice([None, None, 1, 2, 5]) for _ in range(count)],
        stage_tiers=[rng.choice([0, 1, 2]) for _ in range(count)] if rng.random() < 0.2 else None,
    )


Shape = tuple[list[tuple[int, int]], int]


def _single(rng: random.Random) -> Shape:
    return [], 1


def _chain(rng: random.Random) -> Shape:
    count = rng.randint(2, 5)
    return [(stage, stage + 1) for stage in range(count - 1)], count


def _diamond(rng: random.Random) -> Shape:
    return [(0, 1), (0, 2), (1, 3), (2, 3)], 4


def _wide(rng: random.Random) -> Shape:
    count = rng.randint(3, 9)
    return [(stage, count - 1) for stage in range(count - 1)], count


def _tangle(rng: random.Random) -> Shape:
    """Any DAG: also several final stages and stages that nothing is tied to."""
    count = rng.randint(2, 9)
    pairs = itertools.combinations(range(count), 2)
    return [pair for pair in pairs if rng.random() < 0.3], count
