"""A world of applications: several Spark applications, each a world of cores, on one cluster.

An executor belongs to an application, takes seconds to start and runs tasks of no other. Between
moments (`tick_ms`) the applications run; at each, an `Allocator` looks at all of them, grants
executors and takes them back. So the same kernels serve a shared Spark and many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from parcae.base.arrays import Int64Array
from parcae.base.compiled.kernels import as_many
from parcae.base.errors import ConfigError
from parcae.cluster.state import World
from parcae.cluster.trace import NOT_COMPLETED, FaultCounts, Trace
from parcae.simulation.config import SimulationConfig
from parcae.simulation.elastic import Elastic
from parcae.simulation.faults import Faults
from parcae.simulation.future import Manager, Status
from parcae.simulation.kernels import applications as kernels
from parcae.simulation.kernels.playing import Simulations
from parcae.simulation.simulator import Simulator, check_status
from parcae.workloads.workload import JobSequence

#: Spark's own allocation checks as often.
TICK_MS = 100


class ExecutorCounts(NamedTuple):
    """What became of the executors of a run."""

    started: int
    #: Attempts of tasks that ended with an executor which was killed.
    interrupted: int
    #: Most executors that were up or starting at one time.
    most: int
    #: Executor time that was held, that is of executors up or starting.
    held_ms: int


class Seen(NamedTuple):
    """What a manager sees of an application."""

    #: Executors that can run tasks, those that are to go included.
    up: int
    #: Of those: that go at the ends of their tasks.
    leaving: int
    #: Granted and not up yet.
    starting: int
    #: Asked for by dynamic allocation and not granted.
    asked: int
    #: That the tasks which run or could start can use.
    needed: int
    #: Estimated work of its open jobs.
    work_ms: float
    #: When something happens there again.
    next_ms: int

    @property
    def held(self) -> int:
        """Executors that take room in the cluster."""
        return self.up + self.starting


#: A row of a table for the kernels.
VIEW = np.dtype([(name, "f8" if name == "work_ms" else "i8") for name in Seen._fields])


@dataclass(eq=False)
class Application:
    """One application of the cluster, with what a manager sees of it and may do to it.

    Args:
        name: its name.
        weight: its share of the cluster relative to others.
        simulator: its world of cores.
        policy: a compiled policy that orders its jobs.
        start_ms: draws the time that the next executor takes to start.
    """

    name: str
    weight: float
    simulator: Simulator
    policy: Any
    start_ms: Callable[[], int]
    num_started: int = 0
    is_over: bool = False
    #: What a manager sees; None after a change.
    _seen: Seen | None = None

    def __post_init__(self) -> None:
        policy, simulation = self.policy.unwrapped(self.simulator.simulation)
        state, future, tables = simulation
        self._simulations = Simulations(
            as_many(state), as_many(future), tables, np.zeros(1, np.int64)
        )
        #: Each application has tables of the policy of its own.
        self._tables = policy.tables_for(len(state.jobs), len(state.stages))
        self._view = np.zeros(1, VIEW).view(np.recarray)
        self._run = (state, future)
        self._clock_ms = 0
        self._is_new = True

    def play_until(self, end_ms: int) -> None:
        """Run until a time. Where nothing happens before it, nothing is done yet."""
        self._clock_ms = end_ms
        if self.is_over or (self._seen is not None and self._seen.next_ms > end_ms):
            return
        self._catch_up()

    def _catch_up(self) -> None:
        """Let the simulator reach the clock."""
        if self.is_over:
            # Its executors are idle, and their idle time goes on.
            self.simulator.state.now.clock_ms[0] = self._clock_ms
            return
        view = self._view
        kernels.play_until(self._simulations, self._tables, view, self._clock_ms, self._is_new)
        self._is_new = False
        self._seen = Seen(*view[0].item())
        status = int(self._simulations.status[0])
        if status != Status.ENDED:
            check_status(status, self.simulator.state, self.simulator.sequence)
        self.is_over = status == Status.COMPLETE

    @property
    def seen(self) -> Seen:
        """What a manager sees."""
        if self._seen is None:
            kernels.look(*self._run, self._view)
            self._seen = Seen(*self._view[0].item())
        return self._seen

    def grant(self) -> bool:
        """Let one more executor start. Returns whether there was room."""
        ready_ms = self._clock_ms + self.start_ms()
        is_granted = bool(kernels.grant(self.simulator.future, ready_ms))
        self.num_started += is_granted
        self._seen = None
        return is_granted

    def keep(self) -> bool:
        """Let an executor stay that was to go. Returns whether there was one."""
        self._seen = None
        return bool(kernels.withdraw(self.simulator.future))

    def release_idle(self, least_ms: int) -> bool:
        """Remove an executor that has been idle for so long. Returns whether there was one."""
        return self._changed(kernels.release, least_ms)

    def drain(self) -> bool:
        """Let one more executor go, at the end of its tasks. Returns whether there was one."""
        return self._changed(kernels.drain)

    def kill(self) -> bool:
        """Kill an executor and its tasks, which run again. Returns whether there was one."""
        return self._changed(kernels.kill)

    def _changed(self, change: Callable[..., Any], *arguments: int) -> bool:
        self._catch_up()
        self._seen = None
        return bool(change(*self._run, *arguments))


class Allocator(Protocol):
    """Who has how many executors."""

    @property
    def manager(self) -> Manager:
        """Whether applications ask for executors, or are told how many there are."""

    def begin(self, num_executors: int, applications: Sequence[Application]) -> list[int]:
        """Begin a run. Returns the executors that each application begins with."""

    def act(self, clock_ms: int, applications: Sequence[Application]) -> None:
        """Grant and take executors, after all applications have run until this time."""


@dataclass(frozen=True)
class ApplicationsCluster:
    """A cluster for several applications.

    Args:
        config: its cores, and what applies to each application; `elastic` says how executors start
            and what Spark's dynamic allocation does.
        start_sigma: sigma of the log-normal time that an executor takes to start, whose median is
            `elastic.start_ms`.
        owner: by job of the workload, its application's number.
        names: the applications' names.
        weights: their weights.
        tick_ms: how often a manager looks at the applications.
    """

    config: SimulationConfig
    owner: tuple[int, ...]
    names: tuple[str, ...]
    weights: tuple[float, ...]
    start_sigma: float = 0.0
    tick_ms: int = TICK_MS

    @property
    def elastic(self) -> Elastic:
        """How executors come and go."""
        return self.config.elastic or Elastic()

    @property
    def num_executors(self) -> int:
        """Executors that fit into the cluster."""
        return self.config.num_executors // self.elastic.cores_per_executor

    def parts(self, sequence: JobSequence) -> list[Int64Array]:
        """By application, the places of its jobs in a sequence."""
        owners = np.array(self.owner)[sequence.job_index]
        if sequence.has_sessions:
            followers = np.flatnonzero(sequence.follows >= 0)
            if (owners[followers] != owners[sequence.follows[followers]]).any():
                raise ConfigError(
                    "a session has jobs of two applications: give --arrivals recorded, or one "
                    "application for all jobs of a session"
                )
        return [np.flatnonzero(owners == number) for number in range(len(self.names))]


def split_by_weight(num_executors: int, weights: Sequence[float]) -> list[int]:
    """A split of the executors by weight; what rounding leaves goes to the largest rests."""
    total = sum(weights)
    exact = [num_executors * weight / total for weight in weights]
    split = [math.floor(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda number: split[number] - exact[number])
    for number in by_rest[: num_executors - sum(split)]:
        split[number] += 1
    return split


def part_of(sequence: JobSequence, places: Int64Array) -> JobSequence:
    """The jobs at these places of a sequence as one of its own."""
    arrival_ms = sequence.arrival_ms[places]
    if not sequence.follows.size:
        return replace(sequence, job_index=sequence.job_index[places], arrival_ms=arrival_ms)
    new = np.full(sequence.num_jobs + 1, -1)
    new[places] = np.arange(len(places))
    return replace(
        sequence,
        job_index=sequence.job_index[places],
        arrival_ms=arrival_ms,
        follows=new[sequence.follows[places]],
        pause_ms=sequence.pause_ms[places],
    )


def play_applications(
    sequence: JobSequence,
    policy: Any,
    cluster: ApplicationsCluster,
    allocation: Allocator,
    seed: int,
) -> tuple[Trace, ExecutorCounts]:
    """Run the jobs of all applications under an allocation, each application under the policy.

    Raises:
        ConfigError: the cluster has fewer cores than an executor, a session has jobs of two
            applications, or the policy has no kernel.
    """
    if cluster.num_executors < 1:
        raise ConfigError(
            f"a cluster of {cluster.config.num_executors} cores has no room for an executor of "
            f"{cluster.elastic.cores_per_executor}: give more --cores, or --cores-per-executor"
        )
    if not hasattr(policy, "unwrapped"):
        raise ConfigError(
            f"{policy.name}: applications are simulated under policies with compiled kernels only"
        )
    rng = np.random.default_rng(np.random.SeedSequence([0x61707073, seed]))
    median_ms = cluster.elastic.start_ms

    def start_ms() -> int:
        return round(median_ms * math.exp(cluster.start_sigma * rng.standard_normal()))

    parts = cluster.parts(sequence)
    config = cluster.config.model_copy(
        update={
            "faults": Faults(redraws=False),
            "elastic": cluster.elastic,
            "num_executors": cluster.num_executors * cluster.elastic.cores_per_executor,
        }
    )
    # Without a job of its own in this run, an application asks for nothing.
    present = [number for number, places in enumerate(parts) if places.size]
    applications = [
        Application(
            cluster.names[number],
            cluster.weights[number],
            Simulator(part_of(sequence, parts[number]), config, _seed_of(seed, number)),
            policy,
            start_ms,
        )
        for number in present
    ]
    counts = _play(applications, cluster, allocation)
    owned = [(parts[number], one) for number, one in zip(present, applications, strict=True)]
    return _together(sequence, policy.name, cluster, owned, counts), counts


def _seed_of(seed: int, number: int) -> int:
    """The seed of an application's durations: two applications draw different ones."""
    return (seed * 1_000_003 + number * 7_919) & 0xFFFFFFFFFFFF


def _play(
    applications: Sequence[Application], cluster: ApplicationsCluster, allocation: Allocator
) -> ExecutorCounts:
    first = allocation.begin(cluster.num_executors, applications)
    for one, count in zip(applications, first, strict=True):
        table = one.simulator.future.elastic
        table.manager[0] = allocation.manager
        table.initial_executors[0] = count
    held = most = sum(first)
    clock_ms = held_ms = 0
    while not all(one.is_over for one in applications):
        clock_ms += cluster.tick_ms
        for one in applications:
            one.play_until(clock_ms)
        held_ms += held * cluster.tick_ms
        allocation.act(clock_ms, applications)
        held = sum(one.seen.held for one in applications)
        most = max(most, held)
    interrupted = sum(int(one.simulator.future.faults.num_interrupted[0]) for one in applications)
    return ExecutorCounts(sum(one.num_started for one in applications), interrupted, most, held_ms)


def _together(
    sequence: JobSequence,
    policy: str,
    cluster: ApplicationsCluster,
    parts: Sequence[tuple[Int64Array, Application]],
    counts: ExecutorCounts,
) -> Trace:
    """One trace of all jobs."""
    of_jobs: dict[str, Any] = {
        "arrival_ms": np.array(sequence.arrival_ms),
        "completion_ms": np.full(sequence.num_jobs, NOT_COMPLETED),
        "executed_ms": np.zeros(sequence.num_jobs, np.int64),
        "num_moves": np.zeros(sequence.num_jobs, np.int64),
    }
    sums: dict[str, Any] = dict.fromkeys(
        ("num_arrived", "num_decisions", "num_events", "num_tasks"), 0
    )
    has_driver = False
    for places, one in parts:
        trace = one.simulator.trace(policy)
        for name, column in of_jobs.items():
            column[places] = getattr(trace, name)
        for name in sums:
            sums[name] += getattr(trace, name)
        has_driver |= trace.has_driver
    return Trace(
        policy=policy,
        num_executors=cluster.config.num_executors,
        job_names=tuple(job.name for job in sequence.jobs),
        clock_ms=int(of_jobs["completion_ms"].max()),
        held_ms=counts.held_ms * cluster.elastic.cores_per_executor,
        started=counts.started,
        faults=FaultCounts(0, counts.interrupted, 0, 0, 0, 0, 0),
        world=World.CORES,
        has_sessions=sequence.has_sessions,
        has_driver=has_driver,
        **of_jobs,
        **sums,
    )
