"""`Simulator`: one simulated cluster that the caller steps, by decisions or by plans."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from parcae.base.arrays import Float64Array
from parcae.base.errors import ConfigError, PolicyError, WorkloadError
from parcae.cluster.observation import Decision, Observation, Policy, objection, observe
from parcae.cluster.orders import Orders, Planner, Remembers, objection_to_orders, put
from parcae.cluster.state import NO_JOB, ClusterState, ExecutorClass, World, allocate, select
from parcae.cluster.trace import NOT_COMPLETED, Trace
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.elastic import held_core_ms, with_elastic
from parcae.simulation.faults import (
    check_elastic,
    check_losses,
    put_faults,
    read_counts,
    resolve_faults,
)
from parcae.simulation.future import NEVER_MS, Future, Status, allocate_future
from parcae.simulation.kernels.cores_loop import follow_orders
from parcae.simulation.kernels.event_loop import start, step
from parcae.simulation.kernels.events import choose_runs
from parcae.simulation.kernels.playing import Simulation, Simulations
from parcae.simulation.tables import WorkloadTables, draw_knowledge, workload_tables
from parcae.workloads.guess import mean_log_task_ms
from parcae.workloads.workload import JobSequence, Workload

#: Error message for a policy that plans orders in the executors world.
NO_ORDERS = (
    "the policy plans orders, which only the world of cores supports: choose --world cores, or a "
    "policy that decides"
)
#: Rows for recorded decisions, per stage and per task: a generous bound on how often a run needs a
#: decision. At the end of a wide stage, every executor that becomes free may need one of its own.
_DECISIONS_PER_STAGE = 64
_DECISIONS_PER_TASK = 2
#: Rows for recorded tasks where attempts may fail: so many per task, and so many more.
_ATTEMPTS_PER_TASK = 8
_MORE_ATTEMPTS = 10_000


class Simulator:
    """A cluster that runs one sequence of jobs.

    Args:
        sequence: the jobs and their arrival times.
        config: the cluster settings.
        seed: seed of the tasks' random bits, of the drawn end of the episode and of the errors of
            the durations that the scheduler sees.
        record: keep every task and decision for the trace.

    Raises:
        WorkloadError: a stage fits no executor class.

    Example:
        simulator = Simulator(sequence, SimulationConfig(num_executors=50), seed=1)
        simulator.start()
        while simulator.status is Status.NEEDS_DECISION:
            simulator.step(policy.decide(simulator.observe()))
    """

    def __init__(
        self, sequence: JobSequence, config: SimulationConfig, seed: int, *, record: bool = False
    ) -> None:
        check_fits(sequence, config)
        rows = SimulatorRows(
            1, sequence.workload, config, **_room_of([sequence], config), record=record
        )
        rows.put(0, sequence, seed)
        self.sequence = sequence
        self.config = rows.config
        self.tables: WorkloadTables = rows.tables
        self.state: ClusterState = rows.state(0)
        self.future: Future = rows.future(0)
        self.status = Status.COMPLETE

    @property
    def simulation(self) -> Simulation:
        """The simulator's tables, as kernels that play whole runs take them."""
        return Simulation(self.state, self.future, self.tables)

    def start(self) -> Status:
        """Run until the first decision or plan is due."""
        self.status = self._checked(start(self.state, self.future, self.tables))
        return self.status

    def observe(self) -> Observation:
        """The present observation: all that the policy sees."""
        return observe(self.state)

    def step(self, decision: Decision) -> Status:
        """Apply a decision and run until the next one is due."""
        why = objection(self.observe(), decision)
        if why is not None:
            raise PolicyError(why)
        self.status = self._checked(step(self.state, self.future, self.tables, *decision))
        return self.status

    def follow(self, orders: Orders) -> Status:
        """Put orders into force and run until the next plan is due (world of cores)."""
        if self.config.world.world is not World.CORES:
            raise PolicyError(NO_ORDERS)
        put(orders, self.state)
        self.status = self._checked(follow_orders(self.state, self.future, self.tables))
        return self.status

    def _checked(self, status: int) -> Status:
        return check_status(status, self.state, self.sequence)

    def trace(self, policy: str) -> Trace:
        """The trace of the run so far."""
        return build_trace(self.state, self.future, self.sequence, policy)


def prepare(future: Future, sequence: JobSequence, config: SimulationConfig, seed: int) -> None:
    """Set the parameters and draws of one simulator that follow from its config and seed.

    They are the delays, the seed, the end of the episode, the scheduler's knowledge of durations
    and the factors of the real durations.
    """
    events = future.events
    events.moving_delay_ms[0] = config.moving_delay_ms
    events.warmup_delay_ms[0] = config.warmup_delay_ms
    # NumPy's integers do not reach 64 bits without a sign.
    seed = int(seed) & 0xFFFFFFFFFFFFFFFF
    events.seed[0] = seed
    if config.end_ms is not None:
        events.end_ms[0] = config.end_ms
    is_random = config.estimate_error or config.unknown_share or config.mean_episode_ms is not None
    if is_random:
        _draw(future, sequence, config, seed)
    else:
        future.knowledge[:] = 1.0
        future.run_factor[:] = 1.0
    faults = resolve_faults(config.faults, sequence.workload)
    if faults is not None:
        if config.elastic is not None:
            check_elastic(faults)
        check_losses(faults, sequence.jobs, future.run_factor)
        put_faults(faults, future)
    if sequence.has_sessions or len(future.sessions):
        _put_sessions(future, sequence)


def _put_sessions(future: Future, sequence: JobSequence) -> None:
    """Set which jobs follow which, from the tables that are in the order of the sequence."""
    sessions = future.sessions
    if len(sessions) == 0:
        raise ConfigError(
            f"arrivals {sequence.arrivals or 'sessions'}: jobs that arrive after others have ended "
            "are not supported here; draw arrivals, as in poisson:25s or load:0.85"
        )
    sessions.begin_ms[:] = sequence.arrival_ms
    sessions.successor[:] = NO_JOB
    if sequence.has_sessions:
        followers = np.flatnonzero(sequence.follows != NO_JOB)
        sessions.begin_ms[followers] = NEVER_MS
        sessions.successor[sequence.follows[followers]] = followers
        sessions.pause_ms[:] = sequence.pause_ms
    sessions.profile[:] = future.job_profile
    sessions.knowledge[:] = future.knowledge
    num_stages = [len(job.stages) for job in sequence.jobs]
    sessions.first_factor[:] = np.cumsum([0, *num_stages[:-1]])
    future.session_factors[:] = future.run_factor


def _draw(future: Future, sequence: JobSequence, config: SimulationConfig, seed: int) -> None:
    """Draw the end of the episode, the scheduler's knowledge and the factors of real durations."""
    # The order of the draws below is fixed: another order would change the results of every seed.
    rng = np.random.default_rng(np.random.SeedSequence([0x70617263, seed]))
    if config.mean_episode_ms is not None:
        future.events.end_ms[0] = max(1, int(rng.exponential(config.mean_episode_ms)))
    future.knowledge[:] = draw_knowledge(sequence, config.estimate_error, config.unknown_share, rng)
    future.run_factor[:] = 1.0
    if config.runs_vary:
        factors = draw_run_factors(sequence, seed)
        future.run_factor[: len(factors)] = factors


def draw_run_factors(sequence: JobSequence, seed: int) -> Float64Array:
    """Draw real task durations / profiled ones of every stage of every job of a sequence, of the
    recorded runs that also give the jobs their driver time.
    """
    table = sequence.workload.runs
    run = table.num_runs[sequence.job_index]
    choose_runs(np.uint64(seed), run)
    return table.draw(sequence.job_index, run, seed)


def check_fits(sequence: JobSequence, config: SimulationConfig) -> None:
    """Check that every stage fits at least one executor class."""
    if not config.executor_classes:
        return
    for index in np.unique(sequence.job_index):
        job = sequence.workload.jobs[index]
        for row, stage in enumerate(job.stages):
            if not any(c.cpu >= stage.cpu and c.memory >= stage.memory for c in config.classes):
                raise WorkloadError(
                    f"job {job.name!r}, stage {row} needs {stage.cpu} cpu and {stage.memory} "
                    f"memory; no executor class is as large: add one, or leave the job out"
                )


def check_status(status: int, state: ClusterState, sequence: JobSequence) -> Status:
    """Convert the status of a kernel, and raise the error that it stands for."""
    clock_ms = state.now.clock_ms[0]
    if status == Status.BAD_DECISION:
        why = " (the world of cores has no idle slots)" if state.now.world[0] == World.CORES else ""
        raise PolicyError(f"the policy's decision at {clock_ms} ms cannot be carried out{why}")
    if status == Status.BAD_ORDERS:
        raise PolicyError(
            f"the policy's orders at {clock_ms} ms are invalid: {objection_to_orders(state)}"
        )
    if status == Status.TIME_OVERFLOW:
        raise WorkloadError(
            f"{sequence.workload.name!r}: two pending events are more than 24 days apart; use a "
            "workload with shorter tasks, or shorter delays"
        )
    if status == Status.COMPLETE and state.now.num_active[0] > 0:
        raise _stalled(state)
    return Status(status)


def _stalled(state: ClusterState) -> PolicyError:
    """The error for a run in which jobs wait and no event is pending."""
    clock_ms = state.now.clock_ms[0]
    num_active = state.now.num_active[0]
    if state.now.world[0] == World.CORES:
        return PolicyError(
            f"the policy's orders hold every core back forever while {num_active} "
            f"jobs wait (at {clock_ms} ms): with a limit of 0, a policy must ask for "
            "a wake-up or let another job run tasks"
        )
    return PolicyError(
        f"the policy leaves every executor idle forever while {num_active} jobs "
        f"wait (at {clock_ms} ms); it must schedule a stage if no event is pending"
    )


def build_trace(state: ClusterState, future: Future, sequence: JobSequence, policy: str) -> Trace:
    """Build the trace of one simulator."""
    jobs = state.jobs
    stages = state.stages
    now = _first_row(state.now)
    events = _first_row(future.events)
    num_jobs = now["num_jobs"]
    num_stages = now["num_stages"]
    arrival_ms = np.array(sequence.arrival_ms, np.int64)
    places = np.arange(num_jobs)

    def by_place(values: Any, missing: int | np.int64) -> Any:
        column = np.full(len(jobs), missing)
        column[places] = values[:num_jobs]
        return column

    if sequence.has_sessions:
        # The trace has jobs in the order of the sequence, the state in that of their arrivals.
        places = future.sequence_row[:num_jobs]
        arrival_ms = by_place(jobs.arrival_ms, NEVER_MS)
    executed = np.zeros(len(jobs), np.int64)
    np.add.at(executed, places[stages.job[:num_stages]], stages.executed_ms[:num_stages])
    num_tasks = events["num_tasks"]
    num_decisions = now["num_decisions"]
    if 0 < len(future.decisions) < num_decisions:
        raise PolicyError(
            f"the policy made {num_decisions} decisions, but only {len(future.decisions)} can be "
            "recorded: run it without recording"
        )
    if 0 < len(future.tasks) < num_tasks:
        raise PolicyError(
            f"{num_tasks} attempts of tasks ran, but only {len(future.tasks)} can be recorded: "
            "run it without recording, or with fewer faults"
        )
    return Trace(
        policy=policy,
        num_executors=len(state.executors),
        job_names=tuple(sequence.workload.jobs[i].name for i in sequence.job_index),
        arrival_ms=arrival_ms,
        completion_ms=by_place(jobs.completion_ms, NOT_COMPLETED),
        executed_ms=executed,
        num_moves=by_place(jobs.num_moves, 0),
        clock_ms=now["clock_ms"],
        num_arrived=num_jobs,
        num_decisions=num_decisions,
        num_events=num_tasks + events["num_moves"] + events["num_fired_arrivals"],
        num_tasks=num_tasks,
        tasks=_recorded(future.tasks, num_tasks, ("job",), places, now["clock_ms"]),
        decisions=_recorded(future.decisions, num_decisions, ("job", "source_job"), places),
        classes=tuple(
            ExecutorClass(count, cpu, memory) for cpu, memory, count, _ in state.classes.tolist()
        ),
        faults=read_counts(future, now["clock_ms"]),
        held_ms=held_core_ms(future, now["clock_ms"]),
        world=World(now["world"]),
        has_sessions=sequence.has_sessions,
        has_driver=len(future.timers) > 0,
    )


def _recorded(
    table: Any, count: int, of_jobs: Sequence[str], places: Any, clock_ms: int | None = None
) -> Any:
    """The rows of a record, or None without one; tasks that still run end at the clock.

    Jobs have their `places` in the sequence; NO_JOB stays what it is.
    """
    if len(table) == 0:
        return None
    rows = np.array(table[:count]).view(np.ndarray)
    for name in of_jobs:
        rows[name] = np.append(places, NO_JOB)[rows[name]]
    if clock_ms is not None:
        np.minimum(rows["finish_ms"], clock_ms, out=rows["finish_ms"])
    return rows


def _first_row(table: Any) -> dict[str, Any]:
    """Return the fields of a table with one row, much faster than field by field."""
    return dict(zip(table.dtype.names, table[0].item(), strict=True))


@runtime_checkable
class CompiledPolicy(Protocol):
    """A policy that plays a whole run in one compiled call."""

    @property
    def name(self) -> str:
        """Name of the policy in reports."""

    def play(self, simulation: Simulation) -> int:
        """Run from start to end in one compiled call, and return a `Status`."""


def simulate(
    sequence: JobSequence,
    policy: Policy | Planner | CompiledPolicy,
    config: SimulationConfig,
    seed: int,
    *,
    record: bool = False,
) -> Trace:
    """Run a sequence of jobs under a policy.

    Args:
        sequence: the jobs and their arrival times.
        policy: a policy that decides, or (world of cores only) one that plans. A compiled policy
            plays the run in one call. In the world of cores, a policy that decides is called at
            every plan until all cores are assigned.
        config: the cluster settings.
        seed: seed of the tasks' random bits. Use the same seed for policies that are compared.
        record: keep every task and decision in the trace.

    Raises:
        PolicyError: a decision or orders that cannot be carried out, a policy that leaves
            everything idle forever, or a planning policy in the executors world.
        WorkloadError: a job that this cluster cannot run.
    """
    if isinstance(policy, Planner) and config.world is not WorldName.CORES:
        raise PolicyError(f"{policy.name}: {NO_ORDERS}")
    simulator = Simulator(sequence, config, seed, record=record)
    if isinstance(policy, Remembers):
        policy.restart()
    if isinstance(policy, CompiledPolicy):
        status = policy.play(simulator.simulation)
        check_status(status, simulator.state, sequence)
    else:
        simulator.start()
        while simulator.status is Status.NEEDS_DECISION:
            _ask(policy, simulator)
    return simulator.trace(policy.name)


def _ask(policy: Policy | Planner, simulator: Simulator) -> None:
    """Let a policy decide or plan, and run until it is due again."""
    observation = simulator.observe()
    clock_ms = int(observation.now.clock_ms[0])
    proceed: Callable[[], Status]
    if isinstance(policy, Planner):
        proceed = partial(simulator.follow, policy.plan(observation))
    else:
        proceed = partial(simulator.step, policy.decide(observation))
    try:
        proceed()
    except PolicyError as error:
        raise PolicyError(f"policy {policy.name!r} at {clock_ms} ms: {error}") from error


#: play_many(simulations, first, last): runs simulators first..last-1.
PlayMany = Callable[[Simulations, int, int], None]


def room_for(workload: Workload, num_jobs: int) -> dict[str, int]:
    """The sizes of tables in which any sequence of so many jobs fits, for `SimulatorRows`."""
    jobs = workload.jobs
    return {
        "num_jobs": num_jobs,
        "num_stages": num_jobs * max(len(job.stages) for job in jobs),
        "num_edges": num_jobs * max(sum(len(s.parents) for s in job.stages) for job in jobs),
        "num_tasks": num_jobs * max(job.num_tasks for job in jobs),
    }


class SimulatorRows:
    """Simulators of one workload and cluster in the rows of shared tables.

    A row runs one job sequence after another: `put` prepares the next one.

    Args:
        count: number of simulators, the leading axis of all tables.
        workload: the jobs of all sequences.
        config: the cluster settings.
        num_jobs: jobs of each sequence.
        num_stages: most stages of a sequence.
        num_edges: most edges of a sequence.
        num_tasks: most tasks of a sequence.
        has_sessions: whether sequences may have sessions.
        record: keep every task and decision for traces.
    """

    def __init__(
        self,
        count: int,
        workload: Workload,
        config: SimulationConfig,
        *,
        num_jobs: int,
        num_stages: int,
        num_edges: int,
        num_tasks: int,
        has_sessions: int = False,
        record: int = False,
    ) -> None:
        self.tables = _tables_of(workload, config)
        config = config.for_tasks_of(workload)
        self.config = config
        world = config.world.world
        self.states = allocate(
            count, config.classes, num_jobs, num_stages, max(1, num_edges), world
        )
        if world is World.CORES:
            self.states.now.is_corrected[...] = config.corrects_estimates
            guess_ms = np.exp(mean_log_task_ms(config.jobs_of(workload)))
            self.states.now.guess_ms[...] = guess_ms
        has_faults = config.faults is not None
        # With faults, tasks run in several attempts, and each of them is recorded.
        attempts = _ATTEMPTS_PER_TASK * num_tasks + _MORE_ATTEMPTS if has_faults else num_tasks
        decisions = (
            _DECISIONS_PER_STAGE * num_stages
            + _DECISIONS_PER_TASK * num_tasks
            + 4 * config.total_executors
        )
        futures = allocate_future(
            count,
            config.total_executors,
            num_jobs,
            num_stages,
            attempts * record,
            # In the world of cores policies give orders, not decisions: only tasks are recorded.
            decisions * (record and world is World.EXECUTORS),
            world,
            num_tasks * has_faults,
            len(self.tables.driver) > 0,
            has_sessions,
        )
        self.futures = with_elastic(futures, config.elastic, config.total_executors, config.slots)
        self.status = np.zeros(count, np.int64)
        self._sequences: list[JobSequence | None] = [None] * count
        # Views of one simulator's tables, made when they are first asked for.
        self._states: dict[int, ClusterState] = {}
        self._futures: dict[int, Future] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle has: not the views, which would not be of its own tables."""
        return {**self.__dict__, "_states": {}, "_futures": {}}

    @property
    def simulations(self) -> Simulations:
        """The simulators' tables, as kernels take them."""
        return Simulations(self.states, self.futures, self.tables, self.status)

    def put(self, row: int, sequence: JobSequence, seed: int) -> None:
        """Let a row's next run be that of a sequence and a seed."""
        future = self.future(row)
        future.job_profile[:] = sequence.job_index
        future.arrival_ms[:] = sequence.arrival_ms
        prepare(future, sequence, self.config, seed)
        self._sequences[row] = sequence

    def sequence(self, row: int) -> JobSequence:
        """The sequence that was put into a row."""
        sequence = self._sequences[row]
        assert sequence is not None, f"row {row} has no sequence"
        return sequence

    def state(self, row: int) -> ClusterState:
        """The state of one simulator, as views."""
        if row not in self._states:
            self._states[row] = select(self.states, row)
        return self._states[row]

    def future(self, row: int) -> Future:
        """The `Future` tables of one simulator, as views."""
        if row not in self._futures:
            self._futures[row] = Future(*(table[row] for table in self.futures))
        return self._futures[row]

    def check(self, row: int) -> Status:
        """Return the status of one simulator, and raise the error that it stands for."""
        return check_status(int(self.status[row]), self.state(row), self.sequence(row))

    def trace(self, row: int, policy: str) -> Trace:
        """The trace of one simulator."""
        return build_trace(self.state(row), self.future(row), self.sequence(row), policy)


class SimulatorBatch(SimulatorRows):
    """One simulator for each job sequence, all with the same workload and cluster settings.

    Args:
        sequences: the job sequence of each simulator; all have the same workload and length.
        config: the cluster settings.
        seeds: the seed of each simulator's random bits.

    Raises:
        ConfigError: sequences of different workloads or lengths, or not one seed for each.
    """

    def __init__(
        self, sequences: Sequence[JobSequence], config: SimulationConfig, seeds: Sequence[int]
    ) -> None:
        workload = sequences[0].workload
        num_jobs = len(sequences[0].job_index)
        if any(
            s.workload is not workload or len(s.job_index) != num_jobs for s in sequences
        ) or len(seeds) != len(sequences):
            raise ConfigError(
                "all sequences of a batch need the same workload and number of jobs, and one seed "
                "each"
            )
        super().__init__(len(sequences), workload, config, **_room_of(sequences, config))
        for row, (sequence, seed) in enumerate(zip(sequences, seeds, strict=True)):
            check_fits(sequence, config)
            self.put(row, sequence, seed)

    def run(self, play_many: PlayMany, num_threads: int | None = None) -> None:
        """Run every simulator from start to end by a compiled function that runs a range of them.

        By default there is a thread for each CPU: the kernels release the interpreter's lock.
        """
        simulations = self.simulations
        spread(lambda a, b: play_many(simulations, a, b), len(self), num_threads)
        for row in range(len(self)):
            self.check(row)


def spread(run: Callable[[int, int], Any], count: int, num_threads: int | None = None) -> None:
    """Call run(first, last) on slices of 0..count-1 in threads, by default one a CPU."""
    threads = max(1, min(num_threads or os.cpu_count() or 1, count))
    bounds = np.linspace(0, count, threads + 1).astype(int).tolist()
    with ThreadPoolExecutor(threads) as pool:
        for job in [pool.submit(run, a, b) for a, b in itertools.pairwise(bounds)]:
            job.result()


def _tables_of(workload: Workload, config: SimulationConfig) -> WorkloadTables:
    return workload_tables(workload, config.durations, config.interpolation, config.world.world)


def _room_of(sequences: Sequence[JobSequence], config: SimulationConfig) -> dict[str, int]:
    """The sizes of tables in which each of the sequences fits, for `SimulatorRows`."""
    tables = _tables_of(sequences[0].workload, config)
    first, specs = tables.job_first_stage, tables.specs
    sizes = []
    for sequence in sequences:
        rows = np.concatenate([np.arange(first[p], first[p + 1]) for p in sequence.job_index])
        sizes.append((len(rows), specs.num_children[rows].sum(), specs.num_tasks[rows].sum()))
    num_stages, num_edges, num_tasks = np.max(sizes, axis=0).tolist()
    return {
        "num_jobs": sequences[0].num_jobs,
        "num_stages": num_stages,
        "num_edges": num_edges,
        "num_tasks": num_tasks,
        "has_sessions": any(sequence.has_sessions for sequence in sequences),
    }
