"""Reads Spark event logs as a recorded run: arrivals and completions of jobs, and work of cores."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

import numpy as np

from parcae.base.arrays import Int64Array, RecordArray, level
from parcae.workloads.import_report import Progress, counted
from parcae.workloads.readers import saying_what_reads
from parcae.workloads.recorded_run import (
    CORE_TASK,
    NO_JOB,
    NOT_COMPLETED,
    Arm,
    JobOutcome,
    RecordedJob,
    RecordedRun,
)
from parcae.workloads.spark_log.application import (
    UNKNOWN_SLOTS,
    ApplicationLog,
    BlockBegin,
    TaskColumns,
)
from parcae.workloads.spark_log.durations import place_tasks
from parcae.workloads.spark_log.event_log import LogReading
from parcae.workloads.spark_log.losses import CLOCK, OF_OTHERS, CheckedLog
from parcae.workloads.spark_log.naming import (
    Choice,
    JobGroup,
    completion_ms,
    first_listing_job,
    job_groups,
    job_name,
    own_stages,
    shared_descriptions,
    submission_ms,
    user_of,
)

#: The arms of a randomised experiment in the plugin's events: the policy's order and Spark's own.
_ARMS = ("policy", "stock")


@dataclass(eq=False)
class _Collected:
    """Jobs, tasks and executors of the applications read so far; times are wall-clock ms."""

    jobs: list[RecordedJob] = field(default_factory=list)
    tasks: list[RecordArray] = field(default_factory=list)
    applications: list[str] = field(default_factory=list)
    #: Begin, end, task slots and cores of every executor.
    presence: list[tuple[int, int, int, int]] = field(default_factory=list)
    num_cores: int = 0
    is_cores_known: bool = True
    num_lost_ends: int = 0


@saying_what_reads("spark-events")
def read_spark_run(
    paths: Sequence[str | Path],
    *,
    key: str | None = None,
    user: str | None = None,
    queue: str | None = None,
    max_bad_share: float = 0.01,
    progress: Progress | None = None,
) -> RecordedRun:
    """Read event logs as one run.

    Jobs are those of `read_spark_event_logs`: a SQL query with all the Spark jobs that it starts is
    one job, named by `key`, job group, description or call site; outside SQL every Spark job is one
    job. A job completes when its SQL execution and the last of its Spark jobs have ended. Jobs that
    ran no stage, because everything was cached, are included.

    Example: a log of one job from 1,000 to 3,500 ms gives one job with `jct_ms` 2500 and a makespan
    of 2500.
    """
    reading = LogReading(paths, key, max_bad_share, progress, Choice(user, queue))
    collected = _Collected()
    for checked in reading.applications():
        _collect(checked, reading, collected)
    outcomes = Counter(job.outcome for job in collected.jobs)
    if not outcomes[JobOutcome.COMPLETED]:
        raise reading.no_jobs(", ".join(f"{n} {outcome}" for outcome, n in outcomes.items()))
    notes = [*reading.logs.notes, *reading.notes_of_jobs(), *reading.notes_of_lines()]
    if reading.bad.count:
        lines = counted(reading.bad.count, "unreadable line")
        notes.append(f"Left out {lines}, such as {reading.bad.samples[0]}.")
    return _run(", ".join(str(path) for path in paths), collected, tuple(notes))


def _collect(checked: CheckedLog, reading: LogReading, into: _Collected) -> None:
    """Add one application to what was collected."""
    log = checked.log
    # A stage that several Spark jobs list belongs to the first one; the others skip it.
    owner = first_listing_job(log)
    job_of_stage = dict[int, int]()
    out_of_time = set[int]()
    into.applications.append(log.label)
    shared = shared_descriptions(log)
    schedule = _Schedule(log.blocks, _last_ms(log, checked.tasks.finish_ms))
    for group in job_groups(log):
        name = job_name(group, log.settings, reading.key, shared)
        stages = own_stages(group, owner)
        wrong = checked.what_is_wrong(group, stages)
        job = None if name is None else _job(name, group, log, stages, schedule)
        if not reading.choice.has(group, log):
            reading.left_out.add(OF_OTHERS)
        elif name is None:
            reading.left_out.add(f"did not carry the property {reading.key!r}")
        elif wrong is not None:
            reading.left_out.add(wrong[0], example=f"{name} ({wrong[1]})")
        elif job is None:
            reading.left_out.add("began at a time that the log does not contain", example=name)
        else:
            job_of_stage.update(dict.fromkeys(stages, len(into.jobs)))
            into.jobs.append(job)
        if wrong is not None and wrong[0] == CLOCK:
            out_of_time.update(stages)
    _collect_tasks(checked, job_of_stage, out_of_time, into)
    _collect_executors(log, into)


class _Schedule:
    """When which block of a randomised experiment began; without events, none ever did."""

    def __init__(self, events: Sequence[BlockBegin], end_ms: int) -> None:
        self._events = sorted(events, key=attrgetter("time_ms"))
        self._starts = [event.time_ms for event in self._events]
        self._end_ms = end_ms

    def arm_at(self, time_ms: int) -> Arm | None:
        """The arm of a job that arrives at this time."""
        row = bisect_right(self._starts, time_ms) - 1
        if row < 0 or self._events[row].arm not in _ARMS:
            return None
        event = self._events[row]
        next_ms = self._starts[row + 1] if row + 1 < len(self._starts) else self._end_ms
        # The event of the next block may be late by some ms, or lost.
        until_ms = min(next_ms, (event.block + 1) * event.block_ms)
        if time_ms >= until_ms:
            return None
        is_policy = event.arm == _ARMS[0]
        since_ms, left_ms = time_ms - event.time_ms, until_ms - time_ms
        return Arm(event.block, is_policy, since_ms, left_ms, *event[3:])


def _job(
    name: str, group: JobGroup, log: ApplicationLog, stages: Sequence[int], schedule: _Schedule
) -> RecordedJob | None:
    """The job of a group, by the wall clock; None if the log lacks its submission time."""
    records = [log.stages[stage_id] for stage_id in stages if stage_id in log.stages]
    start_ms = submission_ms(group, records)
    end_ms = completion_ms(group, log, records)
    if start_ms is None:
        return None
    if end_ms is None or not group.is_ended(log):
        end_ms, outcome = NOT_COMPLETED, JobOutcome.UNFINISHED
    else:
        end_ms = max(start_ms, end_ms)
        outcome = JobOutcome.COMPLETED if group.is_successful(log) else JobOutcome.FAILED
    user, arm = user_of(group, log, name) or log.owner, schedule.arm_at(start_ms)
    return RecordedJob(name, 0, start_ms, end_ms, outcome, user, arm, log.queue)


def _collect_tasks(
    checked: CheckedLog, job_of_stage: dict[int, int], out_of_time: set[int], into: _Collected
) -> None:
    """Place every attempt on a core, but those of stages whose times are wrong.

    The core is busy from the launch on while it deserializes and runs the attempt. The log's finish
    time is not used: it is when the driver processed the end of the task, often after the core's
    next task was launched.
    """
    log, tasks = checked.log, checked.tasks
    if out_of_time:
        is_kept = ~np.isin(tasks.stage_id, list(out_of_time))
        tasks = TaskColumns(*(column[is_kept] for column in tasks))
    into.num_lost_ends += len(checked.tasks.stage_id) - len(tasks.stage_id)
    into.num_lost_ends += sum(checked.lost_ends.values())
    # Slots are assigned by the time in which a core works, not by the driver's finish time.
    tasks = tasks._replace(finish_ms=tasks.launch_ms + tasks.busy_ms)
    core, num_cores = _core_rows(
        log, place_tasks(tasks, log.slots_of_executor()).slot, tasks.executor
    )
    rows = np.zeros(len(core), CORE_TASK)
    rows["job"] = [job_of_stage.get(stage_id, NO_JOB) for stage_id in tasks.stage_id.tolist()]
    rows["core"] = into.num_cores + core
    rows["start_ms"] = tasks.launch_ms
    rows["finish_ms"] = tasks.finish_ms
    into.tasks.append(rows)
    into.num_cores += num_cores


def _core_rows(
    log: ApplicationLog, slot: Int64Array, executor: Int64Array
) -> tuple[Int64Array, int]:
    """The row of the core of every attempt, and the number of rows.

    Rows are sorted by executor number.
    """
    used = {name: np.unique(slot[executor == code]) for name, code in log.executor_codes.items()}
    row_of_slot = np.zeros(int(slot.max(initial=-1)) + 1, np.int64)
    next_row = 0
    # Executor names are usually numbers as text: sorting by length first gives numeric order.
    for name in sorted({*log.executors, *used}, key=lambda name: (len(name), name)):
        slots = used.get(name, np.zeros(0, np.int64))
        row_of_slot[slots] = next_row + np.arange(len(slots))
        next_row += max(len(slots), log.slots_of(name))
    return row_of_slot[slot], next_row


def _collect_executors(log: ApplicationLog, into: _Collected) -> None:
    """Record when the executors existed: until their removal, or until the application's end."""
    last_ms = _last_ms(log, into.tasks[-1]["finish_ms"])
    # Without every executor's cores and start the available core time is unknown for the whole run.
    into.is_cores_known &= UNKNOWN_SLOTS not in log.slots_of_executor()
    for name, (start_ms, until_ms) in log.presence(last_ms).items():
        into.is_cores_known &= start_ms >= 0 and log.executors[name].cores > 0
        cores = log.executors[name].cores
        into.presence.append((start_ms, until_ms, log.slots_of(name), cores))


def _last_ms(log: ApplicationLog, finish_ms: Int64Array) -> int:
    """The last time in the log: of its end, the end of a job, or of a task."""
    return max([log.end_ms, *log.job_end_ms.values(), int(finish_ms.max(initial=-1))])


def _cores_at_once(presence: Sequence[tuple[int, int, int, int]], end_ms: int) -> int:
    """The most cores that were up at once; executors that go with the application count."""
    begins, ends, _, cores = np.array(presence, np.int64).reshape(-1, 4).T
    edges = np.unique(np.concatenate([begins, ends]))
    at_once = level(edges, (begins, cores), (ends, -cores))
    return int(at_once[edges <= end_ms].max(initial=0))


def _run(label: str, collected: _Collected, notes: tuple[str, ...]) -> RecordedRun:
    """Put all applications on one time axis, which begins with the first submission."""
    order = sorted(
        range(len(collected.jobs)), key=lambda row: (collected.jobs[row].submission_ms, row)
    )
    zero_ms = collected.jobs[order[0]].submission_ms
    end_ms = max(job.completion_ms for job in collected.jobs)
    # The extra last entry maps NO_JOB (-1, so the last index) to itself.
    new_row = np.full(len(order) + 1, NO_JOB)
    new_row[order] = np.arange(len(order))
    count_of_name = Counter[str]()
    jobs = []
    for job in (collected.jobs[row] for row in order):
        count_of_name[job.name] += 1
        is_ended = job.outcome is not JobOutcome.UNFINISHED
        ended = job.completion_ms - zero_ms if is_ended else NOT_COMPLETED
        submitted = job.submission_ms - zero_ms
        count = count_of_name[job.name]
        jobs.append(replace(job, order=count, submission_ms=submitted, completion_ms=ended))
    tasks = np.concatenate(collected.tasks)
    tasks["job"] = new_row[tasks["job"]]
    tasks["start_ms"] -= zero_ms
    tasks["finish_ms"] -= zero_ms
    # Sorted by core, then by start.
    tasks = tasks[np.lexsort((tasks["start_ms"], tasks["core"]))]
    available_ms = [
        (min(until_ms, end_ms) - max(start_ms, zero_ms)) * num_slots
        for start_ms, until_ms, num_slots, _ in collected.presence
    ]
    core_ms = sum(max(0, ms) for ms in available_ms) if collected.is_cores_known else None
    return RecordedRun(
        label,
        tuple(collected.applications),
        tuple(jobs),
        tasks,
        collected.num_cores,
        core_ms,
        notes,
        _cores_at_once(collected.presence, end_ms) if collected.is_cores_known else 0,
        collected.num_lost_ends,
    )
