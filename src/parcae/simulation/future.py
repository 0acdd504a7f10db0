"""The part of a simulation that no scheduler may see: pending events, durations and arrivals."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.cluster.state import World
from parcae.cluster.trace import DECISION_RECORD, TASK_RECORD

#: A time that never comes.
NEVER_MS = np.iinfo(np.int64).max
#: Bits of the relative time in an event key: 24.8 days in ms. Keys are rebased before overflow.
TIME_BITS = 31


class Followup(IntEnum):
    """World of cores: kinds of events that an event causes at the same simulated time."""

    REVEAL_STAGE = 0  # a stage without parents of a new job becomes runnable
    COMPLETE_STAGE = 1  # the scheduler learns that the last task of a stage has ended
    END_TASK = 2  # a task with a duration of 0 ms ends


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
        # The earliest of: next arrival, end of an idle slot or wake-up, change of an elastic
        # cluster, end of the episode.
        ("next_other_ms", "i8"),
        ("next_arrival", "i8"),  # index of the next job in the sequence
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
    ],
    align=True,
)


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
    ],
    align=True,
)
#: An executor of an elastic cluster.
ELASTIC_EXECUTOR = np.dtype(
    [
        ("is_up", "i8"),
        ("ready_ms", "i8"),  # when it will be up; NOT_YET unless it is starting
    ],
    align=True,
)


class Future(NamedTuple):
    """Pending events and future draws of one simulator (with a leading axis: of many)."""

    events: Any  # EVENTS[1]
    # int64[2 * num_leaves], a winner tree: keys[1] is the key of the next event,
    # keys[num_leaves + executor] is the key of that executor's pending event.
    keys: Any
    job_profile: Any  # int64[num_jobs], index in the workload of the job that arrives
    arrival_ms: Any  # int64[num_jobs]
    # float64[num_jobs], duration that the scheduler sees / profiled duration; 0: it sees none.
    knowledge: Any
    stage_profile: Any  # int64[num_stages], row in the workload's tables
    stage_bits: Any  # uint64[num_stages], hash input for the random bits of a stage's tasks
    tasks: Any  # TASK_RECORD[num_tasks], or empty if tasks are not recorded
    decisions: Any  # DECISION_RECORD[capacity], or empty if decisions are not recorded
    # float64[num_stages], real duration / profiled duration; stages in order of arrival.
    run_factor: Any
    followups: Any  # int64[capacity], a ring of Followup + 3 * row; empty in the world of executors
    # Elastic clusters only; otherwise these tables are empty.
    elastic: Any  # ELASTIC[1]
    elastic_executors: Any  # ELASTIC_EXECUTOR[num_executors]
    core_idle_ms: Any  # int64[num_cores], when the core last became idle


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
    """
    leaves = num_leaves(num_executors)
    # At one time, every stage can be revealed or complete and every core can end a task of 0 ms.
    num_followups = num_stages + num_executors + 1 if world is World.CORES else 0
    future = Future(
        np.zeros((num_simulators, 1), EVENTS).view(np.recarray),
        np.zeros((num_simulators, 2 * leaves), np.int64),
        np.zeros((num_simulators, num_jobs), np.int64),
        np.zeros((num_simulators, num_jobs), np.int64),
        np.ones((num_simulators, num_jobs), np.float64),
        np.zeros((num_simulators, num_stages), np.int64),
        np.zeros((num_simulators, num_stages), np.uint64),
        np.zeros((num_simulators, num_recorded_tasks), TASK_RECORD).view(np.recarray),
        np.zeros((num_simulators, num_recorded_decisions), DECISION_RECORD).view(np.recarray),
        np.ones((num_simulators, num_stages), np.float64),
        np.zeros((num_simulators, num_followups), np.int64),
        np.zeros((num_simulators, 0), ELASTIC).view(np.recarray),
        np.zeros((num_simulators, 0), ELASTIC_EXECUTOR).view(np.recarray),
        np.zeros((num_simulators, 0), np.int64),
    )
    future.events.num_leaves[:] = leaves
    future.events.slot_bits[:] = leaves.bit_length() - 1
    future.events.end_ms[:] = NEVER_MS
    return future
