"""What a scheduler may not know: pending events, durations not yet drawn, arrivals to come."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.cluster.state import World
from parcae.cluster.trace import DECISION_RECORD, TASK_RECORD

#: A time that never comes.
NEVER_MS = np.iinfo(np.int64).max
#: Relative times in an event key have this many bits (24.8 days of ms); the keys are rebased before they run out.
TIME_BITS = 31


class Followup(IntEnum):
    """World of cores: what follows from an event at the same time, as an event of its own."""

    REVEAL_STAGE = 0  # a parentless stage of a job that arrived becomes runnable
    COMPLETE_STAGE = 1  # the scheduler hears that a stage's last task ended
    END_TASK = 2  # a task of no duration ends


class Status(IntEnum):
    """Why the event loop returned."""

    NEEDS_DECISION = 0  # executors wait for the policy
    COMPLETE = 1  # no events are left
    ENDED = 2  # the episode's end time came first
    BAD_DECISION = 3  # the policy gave a decision that cannot be carried out
    TIME_OVERFLOW = 4  # two pending events lie more than 24 days apart
    BAD_ORDERS = 5  # the policy gave orders that make no sense


EVENTS = np.dtype(
    [
        ("base_ms", "i8"),  # keys count time from here
        (
            "next_push",
            "i8",
        ),  # push counter: ties at one time are fired in the order of their pushes
        ("slot_bits", "i8"),
        ("num_leaves", "i8"),
        (
            "next_other_ms",
            "i8",
        ),  # the earliest of next arrival, end of an idle slot, end of the episode
        ("next_arrival", "i8"),
        ("num_fired_arrivals", "i8"),  # arrivals after the start, which are events
        ("num_moves", "i8"),
        ("num_tasks", "i8"),
        ("stall_count", "i8"),  # tasks and moves when everything last stood still
        (
            "stall_position",
            "i8",
        ),  # whose pool was asked about then: a position among the jobs in the system, then all others
        ("end_ms", "i8"),
        ("moving_delay_ms", "i8"),
        ("warmup_delay_ms", "i8"),
        ("seed", "u8"),
        ("first_followup", "i8"),  # world of cores: place of the oldest follow-up in its ring
        ("num_followups", "i8"),
    ],
    align=True,
)


class Future(NamedTuple):
    """What one simulator (or, with one more leading axis, many) has yet to fire."""

    events: Any  # EVENTS[1]
    keys: Any  # int64[2 * num_leaves], a winner tree: keys[1] is the next event, keys[num_leaves + executor] an executor's
    job_profile: Any  # int64[num_jobs], which job of the workload arrives
    arrival_ms: Any  # int64[num_jobs]
    knowledge: Any  # float64[num_jobs], told duration / profiled duration: 1 is known, 0 is unknown
    stage_profile: Any  # int64[num_stages], row in the workload's tables
    stage_luck: Any  # uint64[num_stages], where the luck of a stage's tasks starts
    tasks: Any  # TASK_RECORD[num_tasks], or empty where nothing is recorded
    decisions: Any  # DECISION_RECORD[capacity], or empty
    run_factor: (
        Any  # float64[num_stages], this run's durations / the profile's; stages in order of arrival
    )
    followups: Any  # int64[capacity], a ring of Followup + 3 * row; empty in the world of executors


def num_leaves(num_executors: int) -> int:
    """Leaves of the winner tree: the power of two that holds all executors (at least 2).

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
    """Tables of the future for `num_simulators` simulators (the leading axis)."""
    leaves = num_leaves(num_executors)
    # At one time every stage can be revealed or complete, and every core can end a task of no duration.
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
    )
    future.events.num_leaves[:] = leaves
    future.events.slot_bits[:] = leaves.bit_length() - 1
    future.events.end_ms[:] = NEVER_MS
    return future
