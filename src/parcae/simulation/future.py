"""The part of a simulation that no scheduler may see: pending events, durations and arrivals."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.tables import FieldSpec, allocate_tables, doubles, integers, records
from parcae.cluster.state import World
from parcae.cluster.trace import DECISION_RECORD, TASK_RECORD

#: A time that never comes.
NEVER_MS = np.int64(np.iinfo(np.int64).max)
#: Bits of the relative time in an event key: 24.8 days in ms. Keys are rebased before overflow.
TIME_BITS = 31


class Followup(IntEnum):
    """World of cores: kinds of events that an event causes at the same simulated time."""

    REVEAL_STAGE = 0  # a stage without parents of a new job becomes runnable
    COMPLETE_STAGE = 1  # the scheduler learns that the last task of a stage has ended
    END_TASK = 2  # a task with a duration of 0 ms ends
    RETRY_TASK = 3  # the scheduler learns that an attempt of a task has failed


class Status(IntEnum):
    """Why the event loop returned."""

    NEEDS_DECISION = 0  # the policy must decide or plan
    COMPLETE = 1  # no events are left
    ENDED = 2  # the end time of the episode was reached
    BAD_DECISION = 3  # the decision of the policy cannot be carried out
    TIME_OVERFLOW = 4  # two pending events are more than 24 days apart
    BAD_ORDERS = 5  # the orders of the policy are invalid


EVENTS = np.dtype(
    [
        ("base_ms", "i8"),  # times in the keys are relative to this time
        ("next_push", "i8"),  # push counter: events at the same time fire in push order
        ("slot_bits", "i8"),  # low bits of a key that hold the executor
        ("num_leaves", "i8"),  # leaves of the winner tree
        # The earliest of: next arrival, end of an idle slot or wake-up, fault, change of an elastic
        # cluster, end of the episode.
        ("next_other_ms", "i8"),
        ("next_arrival", "i8"),  # row of the next job
        ("num_expected", "i8"),  # with sessions: jobs that arrived, or whose arrival is known
        ("num_fired_arrivals", "i8"),  # arrivals after time 0; only those count as events
        ("num_moves", "i8"),  # executor moves so far
        ("num_tasks", "i8"),  # tasks started so far
        ("stall_count", "i8"),  # tasks + moves at the last stall; -1: there was none
        # Next pool to offer in this stall: position of its job in `active`, then the common pool.
        ("stall_position", "i8"),
        ("end_ms", "i8"),  # end of the episode, or NEVER_MS
        ("moving_delay_ms", "i8"),
        ("warmup_delay_ms", "i8"),
        ("seed", "u8"),
        ("first_followup", "i8"),  # world of cores: index of the oldest follow-up in its ring
        ("num_followups", "i8"),  # world of cores: follow-ups that wait
        # World of cores: loss or return of an executor, or check for tasks that run long.
        ("next_fault_ms", "i8"),
        ("num_timers", "i8"),  # rows of `timers` in use
        ("num_numbered", "i8"),  # stages whose Spark job was submitted so far
        ("num_timers_set", "i8"),  # timers of one time fire in the order in which they were set
    ],
    align=True,
)


class Timer(IntEnum):
    """World of cores: what the driver has done when a timer fires."""

    SUBMIT = 0  # it submits a stage, whose Spark job then has its number
    LAUNCH = 1  # it may launch the stage's tasks
    RESULT = 2  # it has the result of a job whose stages are complete


#: A heap of timers, the next one first. `what` is a stage or a job x len(Timer) + Timer.
TIMER = np.dtype([("time_ms", "i8"), ("number", "i8"), ("what", "i8")], align=True)


#: A job of a sequence with sessions (closed loops), by its place in the sequence.
SESSION_JOB = np.dtype(
    [
        ("successor", "i8"),  # the job that follows a pause after its end; NO_JOB if none does
        ("pause_ms", "i8"),  # the pause before the job
        ("begin_ms", "i8"),  # its arrival; NEVER_MS if it follows another job
        ("profile", "i8"),  # as `job_profile`
        ("knowledge", "f8"),
        ("first_factor", "i8"),  # the row of its first stage in `session_factors`
    ],
    align=True,
)
#: What goes wrong in the world of cores: parameters (called as in `Faults`), times of the next
#: events, and counts.
FAULTS = np.dtype(
    [
        ("failure_rate", "f8"),  # probability that an attempt of a task fails
        # A task that failed this often, less one, fails no more; an attempt that will fail counts.
        ("max_failures", "i8"),
        ("lost_per_hour", "f8"),  # losses of one executor per hour that it is up
        ("executor_cores", "i8"),  # executor e has the cores from e * executor_cores on
        ("restart_ms", "i8"),  # time from a loss until the executor's cores are back
        ("redraws", "i8"),  # every attempt of a task samples its duration anew
        ("straggler_share", "f8"),  # probability that an attempt is a straggler
        ("straggler_factor", "f8"),  # factor on the duration of a straggler
        ("speculation", "i8"),  # tasks that run long get a copy, by the next four rules
        (
            "speculation_multiplier",
            "f8",
        ),  # a task runs long if it takes this many medians of its stage
        ("speculation_quantile", "f8"),  # share of a stage's tasks that have to finish first
        ("speculation_interval_ms", "i8"),  # every so often tasks are checked
        ("speculation_least_ms", "i8"),  # no task that runs for a shorter time runs long
        ("next_change_ms", "i8"),  # next loss or return of an executor
        ("next_check_ms", "i8"),  # next check that may find a task that runs long
        ("num_task_rows", "i8"),  # rows of `fault_tasks` in use
        ("num_marks", "i8"),  # tasks that were ever found to run long
        ("num_failed", "i8"),  # attempts that failed
        ("num_interrupted", "i8"),  # attempts that ended with the loss of their executor
        ("num_copies", "i8"),  # attempts that were copies of running tasks
        ("num_copies_won", "i8"),  # copies that finished before the first attempt
        ("num_losses", "i8"),  # executors lost
        ("wasted_ms", "i8"),  # core time of the attempts without a result
        ("down_ms", "i8"),  # core time that the cluster lacked because of losses
    ],
    align=True,
)
#: The attempt on a core. The last three fields of row e belong to executor e.
CORE_FAULTS = np.dtype(
    [
        ("task", "i8"),  # index of the task within its stage
        ("is_failing", "i8"),  # the attempt will fail when its event fires
        ("is_copy", "i8"),  # the attempt began while another one of its task ran
        ("twin", "i8"),  # the core that runs another attempt of the task; NO_EXECUTOR if none
        ("mark", "i8"),  # > 0: the task runs long and waits for a copy; later marks are larger
        ("num_stale", "i8"),  # END_TASK follow-ups of stopped attempts that are still in the ring
        ("record", "i8"),  # its row in `tasks`
        ("change_ms", "i8"),  # next loss or return of the executor
        ("is_down", "i8"),  # the executor is lost and not back yet
        ("num_losses", "i8"),  # losses of the executor so far
    ],
    align=True,
)
STAGE_FAULTS = np.dtype(
    [
        ("first_row", "i8"),  # row in `fault_tasks` of its first task
        ("num_fresh", "i8"),  # its tasks that have had an attempt
        ("retry", "i8"),  # the task that is started again first; NO_TASK if none
    ],
    align=True,
)
TASK_FAULTS = np.dtype(
    [
        ("stage", "i8"),
        ("num_attempts", "i8"),
        ("num_failures", "i8"),
        ("next_retry", "i8"),  # the task of its stage that is started again after it, or NO_TASK
        # Row i of a stage holds the i-th smallest duration of its finished tasks.
        ("duration_ms", "i8"),
    ],
    align=True,
)
NO_TASK = -1


class Manager(IntEnum):
    """Who grants the executors of an elastic cluster."""

    NONE = 0  # nobody: what Spark's dynamic allocation requests comes
    ASKED = 1  # a cluster's manager, which Spark's dynamic allocation asks
    TELLS = 2  # a service, which also says how many there are to be


#: The resource manager of an elastic cluster: its settings, and what it knows. Times in ms.
ELASTIC = np.dtype(
    [
        ("executor_cores", "i8"),  # executor e has the cores from e * executor_cores on
        ("min_executors", "i8"),
        ("max_executors", "i8"),
        ("initial_executors", "i8"),
        ("backlog_ms", "i8"),  # tasks wait so long before the first executor is requested
        ("sustained_ms", "i8"),  # and so long before each further request
        ("idle_ms", "i8"),  # an executor that is idle for so long may be removed
        ("start_ms", "i8"),  # from the request of an executor until it can run tasks
        ("target", "i8"),  # executors that should be up or starting
        ("num_to_add", "i8"),  # executors that the next request adds: 1, 2, 4, ...
        ("add_ms", "i8"),  # time of the next request; NOT_YET while no task waits
        ("is_initializing", "i8"),  # no stage was runnable and no executor idle for long so far
        ("num_up", "i8"),  # executors that can run tasks
        ("num_starting", "i8"),  # executors that are requested and not up yet
        ("next_check_ms", "i8"),  # next check of target and idle executors that changes something
        ("next_ms", "i8"),  # the earlier of that and the next start of an executor
        ("held_ms", "i8"),  # integral over time of the cores up or starting, up to `held_until_ms`
        ("held_until_ms", "i8"),
        ("next_change", "i8"),  # recorded cores: the next row of `slots`
        ("manager", "i8"),  # Manager: who grants executors
        ("num_leaving", "i8"),  # executors that go at the ends of their tasks
    ],
    align=True,
)
#: At a time, so many cores join, or (negative) leave as soon as they are idle.
SLOT_CHANGE = np.dtype([("time_ms", "i8"), ("change", "i8")], align=True)
#: An executor of an elastic cluster.
ELASTIC_EXECUTOR = np.dtype(
    [
        ("is_up", "i8"),
        # When it will be up; NOT_YET unless it is starting; NEVER_MS until a manager grants it.
        ("ready_ms", "i8"),
        ("up_ms", "i8"),  # when it came up
        ("is_leaving", "i8"),  # it takes no more tasks
        ("num_left", "i8"),  # its cores that have left
    ],
    align=True,
)


class Future(NamedTuple):
    """Pending events and future draws of one simulator (with a leading axis: of many)."""

    events: Any = records(EVENTS, 1)
    # A winner tree: keys[1] is the key of the next event,
    # keys[num_leaves + executor] is the key of that executor's pending event.
    keys: Any = integers("keys")
    job_profile: Any = integers("jobs")  # index in the workload of the job that arrives
    arrival_ms: Any = integers("jobs")
    # Duration that the scheduler sees / profiled duration; 0: it sees none.
    knowledge: Any = doubles("jobs", fill=1)
    stage_profile: Any = integers("stages")  # row in the workload's tables
    # Hash input for the random bits of a stage's tasks.
    stage_bits: Any = FieldSpec("u8", ("stages",))
    tasks: Any = records(TASK_RECORD, "recorded_tasks")  # empty if tasks are not recorded
    # Empty if decisions are not recorded.
    decisions: Any = records(DECISION_RECORD, "recorded_decisions")
    # Real duration / profiled duration; stages in order of arrival.
    run_factor: Any = doubles("stages", fill=1)
    # A ring of Followup + 4 * row; empty in the world of executors.
    followups: Any = integers("followups")
    # What goes wrong (world of cores); all four are empty if nothing does.
    faults: Any = records(FAULTS, "faults")
    fault_cores: Any = records(CORE_FAULTS, "fault_cores")
    fault_stages: Any = records(STAGE_FAULTS, "fault_stages")
    fault_tasks: Any = records(TASK_FAULTS, "fault_tasks")  # every stage's tasks one after another
    # Elastic clusters only; otherwise these tables are empty.
    elastic: Any = records(ELASTIC, 0)
    elastic_executors: Any = records(ELASTIC_EXECUTOR, 0)
    core_idle_ms: Any = integers(0)  # when the core last became idle
    slots: Any = records(SLOT_CHANGE, 0)  # of recorded cores; empty where the manager decides
    # Workloads with driver time in the world of cores; otherwise both are empty.
    timers: Any = records(TIMER, "timers")
    # First row of the job's run in the workload's `driver`.
    driver_row: Any = integers("driver_rows")
    # With sessions, jobs get their rows as they arrive: `job_profile`, `arrival_ms` and `knowledge`
    # have the jobs that arrived, then those that are expected, by time; the rest is NEVER_MS.
    # Without sessions these three tables are empty.
    sessions: Any = records(SESSION_JOB, "sessions")  # jobs by their place in the sequence
    # `run_factor` in the order of the sequence.
    session_factors: Any = doubles("session_stages", fill=1)
    sequence_row: Any = integers("sessions")  # place in the sequence of the job in each row


def num_leaves(num_executors: int) -> int:
    """Leaves of the winner tree: the smallest power of two >= `num_executors`, at least 2.

    Example: `num_leaves(50)` is 64.
    """
    return max(2, 1 << (num_executors - 1).bit_length())


def allocate_future(
    num_simulators: int,
    num_executors: int,
    num_jobs: int,
    num_stages: int,
    num_recorded_tasks: int,
    num_recorded_decisions: int,
    world: World = World.EXECUTORS,
    num_fault_tasks: int = 0,
    has_driver: bool = False,
    has_sessions: int = False,
) -> Future:
    """Allocate the `Future` tables of several simulators.

    Args:
        num_simulators: length of the leading axis.
        num_executors: executors (or cores) of each cluster.
        num_jobs: jobs of each sequence.
        num_stages: stages of all jobs of a sequence, at most.
        num_recorded_tasks: rows for recorded tasks; 0 to record none.
        num_recorded_decisions: rows for recorded decisions; 0 to record none.
        world: only the world of cores needs the ring of follow-ups.
        num_fault_tasks: tasks of all jobs of a sequence, at most; 0 if nothing goes wrong.
        has_driver: the workload has driver time, which the world of cores plays.
        has_sessions: whether sequences may have sessions.
    """
    leaves = num_leaves(num_executors)
    # At one time, every stage can be revealed or complete, and every core can end a task of 0 ms,
    # after a stopped attempt and one that failed on the same core.
    num_followups = num_stages + 3 * num_executors + 1 if world is World.CORES else 0
    has_faults = int(num_fault_tasks > 0)
    future = allocate_tables(
        Future,
        num_simulators,
        keys=2 * leaves,
        jobs=num_jobs,
        stages=num_stages,
        recorded_tasks=num_recorded_tasks,
        recorded_decisions=num_recorded_decisions,
        followups=num_followups,
        faults=has_faults,
        fault_cores=has_faults * num_executors,
        fault_stages=has_faults * num_stages,
        fault_tasks=num_fault_tasks,
        timers=has_driver * (num_stages + num_jobs),
        driver_rows=has_driver * num_jobs,
        sessions=has_sessions * num_jobs,
        session_stages=has_sessions * num_stages,
    )
    future.events.num_leaves[:] = leaves
    future.events.slot_bits[:] = leaves.bit_length() - 1
    future.events.end_ms[:] = NEVER_MS
    return future
