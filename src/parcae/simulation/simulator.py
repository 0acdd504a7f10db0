"""One simulated cluster, stepped decision by decision, and many of them side by side."""

from __future__ import annotations

import numpy as np

from parcae.cluster.decision import Decision, objection
from parcae.cluster.observation import Observation, observe
from parcae.cluster.orders import Orders, objection_to_orders, put
from parcae.cluster.state import ClusterState, ExecutorClass, World, allocate, select
from parcae.cluster.trace import Trace
from parcae.errors import PolicyError, WorkloadError
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.future import Future, Status, allocate_future
from parcae.simulation.kernels.cores_loop import follow_orders
from parcae.simulation.kernels.event_loop import start, step
from parcae.simulation.tables import WorkloadTables, workload_tables
from parcae.simulation.uncertainty import draw_knowledge, draw_run_factors
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.guess import mean_log_task_ms
from parcae.workloads.job import Workload

#: What a policy is told that plans orders where there are none.
NO_ORDERS = "the policy plans orders, which only the world of cores knows: choose --world cores, or a policy that decides"
#: Room for recorded decisions, per task start and stage: a run is asked at most about this often.
_DECISIONS_PER_STAGE = 64


class Simulator:
    """A cluster that runs one sequence of jobs.

    Args:
        sequence: the jobs and when they arrive.
        config: the cluster.
        seed: seed of the tasks' luck (and of the episode's end and the told durations).
        record: keep every task and decision for the trace.

    Raises:
        WorkloadError: a stage that fits no executor class.

    Example:
        simulator = Simulator(sequence, SimulationConfig(num_executors=50), seed=1)
        simulator.start()
        while simulator.status is Status.NEEDS_DECISION:
            simulator.step(policy.decide(simulator.observe()))
    """

    def __init__(
        self, sequence: JobSequence, config: SimulationConfig, seed: int, *, record: bool = False
    ) -> None:
        self.sequence = sequence
        self.config = config
        self.seed = seed
        self.tables: WorkloadTables = workload_tables(
            sequence.workload, config.durations, config.interpolation, config.world.world
        )
        check_fits(sequence, config)
        first = self.tables.job_first_stage
        profiles = np.asarray(sequence.job_index, np.int64)
        num_stages = int((first[profiles + 1] - first[profiles]).sum())
        stage_rows = np.concatenate([np.arange(first[p], first[p + 1]) for p in profiles])
        num_edges = int(self.tables.specs.num_children[stage_rows].sum())
        num_tasks = int(self.tables.specs.num_tasks[stage_rows].sum())
        world = config.world.world
        # Orders are not decisions: in the world of cores only tasks are recorded.
        keeps_decisions = record and world is World.EXECUTORS
        recorded_decisions = (
            _DECISIONS_PER_STAGE * num_stages + 4 * config.total_executors if keeps_decisions else 0
        )
        many_states = allocate(
            1, config.classes, len(profiles), num_stages, max(1, num_edges), world
        )
        self.state: ClusterState = select(many_states, 0)
        prepare_state(self.state, config, sequence.workload)
        many = allocate_future(
            1,
            config.total_executors,
            len(profiles),
            num_stages,
            num_tasks if record else 0,
            recorded_decisions,
            world,
        )
        self.future: Future = Future(*(table[0] for table in many))
        self.future.job_profile[:] = profiles
        self.future.arrival_ms[:] = sequence.arrival_ms
        prepare(self.future, sequence, config, seed)
        self.status = Status.COMPLETE

    def start(self) -> Status:
        """Run to the first decision."""
        self.status = self._checked(start(self.state, self.future, self.tables))
        return self.status

    def observe(self) -> Observation:
        """What the policy sees now."""
        return observe(self.state)

    def step(self, decision: Decision) -> Status:
        """Apply a decision and run to the next.

        Raises:
            PolicyError: the decision cannot be carried out; the message says why.
        """
        why = objection(self.observe(), decision)
        if why is not None:
            raise PolicyError(why)
        self.status = self._checked(step(self.state, self.future, self.tables, *decision))
        return self.status

    def follow(self, orders: Orders) -> Status:
        """Put orders into force and run until the next plan is due (world of cores).

        Raises:
            PolicyError: orders that make no sense, or that hold every core back for ever.
        """
        if self.config.world.world is not World.CORES:
            raise PolicyError(NO_ORDERS)
        put(orders, self.state)
        self.status = self._checked(follow_orders(self.state, self.future, self.tables))
        return self.status

    def _checked(self, status: int) -> Status:
        return check_status(status, self.state, self.sequence)

    def trace(self, policy: str) -> Trace:
        """What happened so far."""
        return build_trace(self.state, self.future, self.sequence, policy)


def prepare_state(states: ClusterState, config: SimulationConfig, workload: Workload) -> None:
    """World of cores: set what the scheduler assumes of durations, in the state of one cluster or of many."""
    if config.world is WorldName.EXECUTORS:
        return
    states.now.is_corrected[...] = config.corrects_estimates
    states.now.guess_ms[...] = np.exp(mean_log_task_ms(workload))


def prepare(future: Future, sequence: JobSequence, config: SimulationConfig, seed: int) -> None:
    """Set one simulator's delays, luck, told durations, runs' factors and episode end from its config and seed.

    The future may have room for more stages than the sequence has.
    """
    events = future.events
    events.moving_delay_ms[0] = config.moving_delay_ms
    events.warmup_delay_ms[0] = config.warmup_delay_ms
    events.seed[0] = np.uint64(seed & 0xFFFFFFFFFFFFFFFF)
    rng = np.random.default_rng(np.random.SeedSequence([0x70617263, seed & 0xFFFFFFFFFFFFFFFF]))
    if config.end_ms is not None:
        events.end_ms[0] = config.end_ms
    elif config.mean_episode_ms is not None:
        events.end_ms[0] = max(1, int(rng.exponential(config.mean_episode_ms)))
    future.knowledge[:] = draw_knowledge(sequence, config.estimate_error, config.unknown_share, rng)
    factors = draw_run_factors(sequence, config.estimate_error, rng)
    future.run_factor[: len(factors)] = factors


def check_fits(sequence: JobSequence, config: SimulationConfig) -> None:
    """Raise WorkloadError where a stage's demand fits no executor class."""
    if not config.executor_classes:
        return
    for index in np.unique(sequence.job_index):
        job = sequence.workload.jobs[index]
        for row, stage in enumerate(job.stages):
            if not any(c.cpu >= stage.cpu and c.memory >= stage.memory for c in config.classes):
                raise WorkloadError(
                    f"job {job.name!r}, stage {row} needs {stage.cpu} cpu and {stage.memory} memory; no executor class is "
                    f"as large: add one, or leave the job out"
                )


def check_status(status: int, state: ClusterState, sequence: JobSequence) -> Status:
    """The kernel's status, or the error that it means."""
    if status == Status.BAD_DECISION:
        why = (
            " (there are no idle slots in the world of cores)"
            if state.now.world[0] == World.CORES
            else ""
        )
        raise PolicyError(
            f"the policy's decision at {state.now.clock_ms[0]} ms cannot be carried out{why}"
        )
    if status == Status.BAD_ORDERS:
        raise PolicyError(
            f"the policy's orders at {state.now.clock_ms[0]} ms make no sense: {objection_to_orders(state)}"
        )
    if status == Status.TIME_OVERFLOW:
        raise WorkloadError(
            f"{sequence.workload.name!r}: two pending events lie more than 24 days apart; shorten its tasks"
        )
    if (
        status == Status.COMPLETE
        and state.now.num_active[0] > 0
        and state.now.world[0] == World.CORES
    ):
        raise PolicyError(
            f"the policy's orders hold every core back for ever while {state.now.num_active[0]} jobs wait "
            f"(at {state.now.clock_ms[0]} ms): a limit of 0 must end at a wake-up, or with another job's tasks"
        )
    if status == Status.COMPLETE and state.now.num_active[0] > 0:
        raise PolicyError(
            f"the policy lets every executor idle for ever while {state.now.num_active[0]} jobs wait "
            f"(at {state.now.clock_ms[0]} ms); it must schedule something when nothing else is pending"
        )
    return Status(status)


def build_trace(state: ClusterState, future: Future, sequence: JobSequence, policy: str) -> Trace:
    """The trace of one simulator."""
    jobs = state.jobs
    stages = state.stages
    now = state.now
    events = future.events
    num_jobs = int(now.num_jobs[0])
    num_stages = int(now.num_stages[0])
    executed = np.zeros(len(jobs), np.int64)
    np.add.at(executed, stages.job[:num_stages], stages.executed_ms[:num_stages])
    completion = np.full(len(jobs), -1, np.int64)
    completion[:num_jobs] = jobs.completion_ms[:num_jobs]
    moves = np.zeros(len(jobs), np.int64)
    moves[:num_jobs] = jobs.num_moves[:num_jobs]
    num_tasks = int(events.num_tasks[0])
    num_decisions = int(now.num_decisions[0])
    if 0 < len(future.decisions) < num_decisions:
        raise PolicyError(
            f"{num_decisions} decisions are more than the {len(future.decisions)} that can be recorded"
        )
    return Trace(
        policy=policy,
        num_executors=len(state.executors),
        job_names=tuple(sequence.workload.jobs[i].name for i in sequence.job_index),
        arrival_ms=np.array(sequence.arrival_ms, np.int64),
        completion_ms=completion,
        executed_ms=executed,
        num_moves=moves,
        clock_ms=int(now.clock_ms[0]),
        num_decisions=num_decisions,
        num_events=num_tasks + int(events.num_moves[0]) + int(events.num_fired_arrivals[0]),
        num_tasks=num_tasks,
        tasks=np.array(future.tasks[:num_tasks]).view(np.ndarray) if len(future.tasks) else None,
        decisions=np.array(future.decisions[:num_decisions]).view(np.ndarray)
        if len(future.decisions)
        else None,
        classes=tuple(
            ExecutorClass(int(c.num_executors), float(c.cpu), float(c.memory))
            for c in state.classes
        ),
    )
