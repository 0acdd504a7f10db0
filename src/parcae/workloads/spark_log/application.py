"""Collects the content of one application's event log.

These are its Spark jobs, stages, tasks, executors and SQL executions.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from parcae.base.arrays import Int64Array
from parcae.base.errors import FormatError
from parcae.workloads.spark_log.events import (
    ApplicationEnd,
    ApplicationStart,
    BlockBegin,
    DriverUpdates,
    Environment,
    Event,
    ExecutorAdded,
    ExecutorRemoved,
    JobEnd,
    JobStart,
    LogStart,
    Outcome,
    ResourceProfile,
    SqlEnd,
    SqlPlanUpdate,
    SqlStart,
    StageCompleted,
    StageInfo,
    Statement,
    TaskEnd,
)
from parcae.workloads.spark_log.plan import PlanNames, Scan, SqlPlan

#: The property that names a job's pool in Spark's FAIR scheduler (set with `sc.setLocalProperty`).
POOL_PROPERTY = "spark.scheduler.pool"
#: Number of slots of an executor whose number of cores is not in the log.
UNKNOWN_SLOTS = 0


class TaskColumns(NamedTuple):
    """Every attempt of every task as columns, int64[num_attempts] each.

    `task_index` is the task's partition. `executor` is a number in order of appearance. A core
    worked for the task for `busy_ms` from its launch on; `finish_ms` is when the driver recorded
    the end. `input_bytes` include shuffle reads.
    """

    stage_id: Int64Array
    task_index: Int64Array
    launch_ms: Int64Array
    finish_ms: Int64Array
    executor: Int64Array
    outcome: Int64Array
    is_speculative: Int64Array
    busy_ms: Int64Array
    input_bytes: Int64Array


@dataclass(eq=False)
class StageRecord:
    """A stage that ran, with all its attempts combined; `info` is that of the first attempt."""

    info: StageInfo
    last_attempt: int
    submission_ms: int
    completion_ms: int
    is_success: bool
    accumulators: frozenset[int]

    def merge(self, event: StageCompleted) -> None:
        """Add another attempt of the stage.

        The last attempt decides the result; the times span all attempts whose times are known.
        """
        if event.info.attempt < self.info.attempt:
            self.info = event.info
        if event.info.attempt >= self.last_attempt:
            self.last_attempt = event.info.attempt
            self.is_success = event.is_success
        known_ms = [ms for ms in (self.submission_ms, event.submission_ms) if ms >= 0]
        self.submission_ms = min(known_ms, default=-1)
        self.completion_ms = max(self.completion_ms, event.completion_ms)
        self.accumulators |= event.accumulators


@dataclass(eq=False)
class SqlRecord:
    """A SQL execution; times in ms.

    `is_ended` is True once its end was read. `is_success` is None where the log does not contain
    the result.
    """

    execution_id: int
    root_id: int
    description: str
    time_ms: int
    plan: SqlPlan
    plan_names: PlanNames | None
    is_ended: bool = False
    is_success: bool | None = None
    end_ms: int = -1
    #: Bytes of the files of its scans, by the scan.
    scanned: dict[Scan, int] = field(default_factory=dict)

    def update(self, values: Mapping[int, int]) -> None:
        """Take the bytes of the scans of the present plan."""
        for scan in self.plan.scans:
            if (num_bytes := values.get(scan.accumulator, -1)) >= 0:
                self.scanned[scan] = num_bytes


def _int64_columns() -> tuple[array[int], ...]:
    return tuple(array("q") for _ in TaskColumns._fields)


@dataclass(eq=False)
class ApplicationLog:
    """One application's events, reduced to what profiles need; `label` names the log in messages.

    Of a Spark job's properties those that differ from the application's settings are kept, and the
    pool.
    """

    label: str
    version: str = ""
    name: str = ""
    app_id: str = ""
    attempt_id: str = ""
    #: The account that submitted the application.
    owner: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    jobs: dict[int, JobStart] = field(default_factory=dict)
    job_results: dict[int, bool] = field(default_factory=dict)
    job_end_ms: dict[int, int] = field(default_factory=dict)
    stages: dict[int, StageRecord] = field(default_factory=dict)
    #: For every stage the last attempt with a successful task.
    successful_attempt: dict[int, int] = field(default_factory=dict)
    sql: dict[int, SqlRecord] = field(default_factory=dict)
    #: The Thrift server's statements by job group.
    statements: dict[str, Statement] = field(default_factory=dict)
    #: The plugin's randomised experiment.
    blocks: list[BlockBegin] = field(default_factory=list)
    executors: dict[str, ExecutorAdded] = field(default_factory=dict)
    removed: dict[str, ExecutorRemoved] = field(default_factory=dict)
    end_ms: int = -1
    task_cpus: dict[int, float] = field(default_factory=dict)
    executor_codes: dict[str, int] = field(default_factory=dict)
    #: Number of tasks that had succeeded when their output was lost with its executor.
    num_outputs_lost: int = 0
    #: Number of events that the log has twice.
    num_repeated: int = 0
    #: Whether there is an end of a SQL execution whose start is missing.
    has_unknown_sql: bool = False
    _start: ApplicationStart | None = None
    _columns: tuple[array[int], ...] = field(default_factory=_int64_columns)
    #: By stage and attempt, the rows of repeated tasks whose partition is not in the log.
    _unplaced: dict[int, dict[int, list[int]]] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Add one event."""
        match event:
            case TaskEnd():
                self._add_task(event)
            case StageCompleted(info=info):
                if info.stage_id in self.stages:
                    self.stages[info.stage_id].merge(event)
                else:
                    # The fields after `info` and `last_attempt` are those of the event, in order.
                    self.stages[info.stage_id] = StageRecord(info, info.attempt, *event[1:])
            case JobStart():
                # Jobs of SQL repeat the application's settings; they are dropped to save memory.
                # As a setting, a pool is that of these jobs only.
                job_properties = {
                    name: value
                    for name, value in event.properties.items()
                    if name == POOL_PROPERTY or self.settings.get(name) != value
                }
                started = event._replace(properties=job_properties)
                if self.jobs.setdefault(event.job_id, started) != started:
                    raise FormatError(
                        f"{self.label}: two Spark jobs have the number {event.job_id}; these are "
                        "the events of several applications: split them into one file each"
                    )
            case JobEnd():
                self.job_results[event.job_id] = event.is_success
                self.job_end_ms[event.job_id] = event.time_ms
            case SqlStart():
                self.sql[event.execution_id] = SqlRecord(*event)
            case SqlPlanUpdate() | DriverUpdates() | SqlEnd():
                if record := self.sql.get(event.execution_id):
                    if isinstance(event, SqlPlanUpdate):
                        record.plan = event.plan
                    elif isinstance(event, DriverUpdates):
                        record.update(event.values)
                    else:
                        record.is_ended = True
                        record.is_success = event.is_success
                        record.end_ms = event.time_ms
                elif not isinstance(event, DriverUpdates):
                    self.has_unknown_sql = True
            case Statement(group=group):
                self.statements[group] = event
            case BlockBegin():
                self.blocks.append(event)
            case ExecutorAdded():
                self.executors[event.executor] = event
            case ExecutorRemoved():
                self.removed[event.executor] = event
            case LogStart(version=version):
                self.version = version
            case ApplicationStart():
                # The numbers of jobs and stages are unique only in one application.
                if self._start not in (None, event):
                    raise FormatError(
                        f"{self.label}: the events of several applications in one log "
                        f"({self.app_id or self.name}, {event.app_id or event.name}); split it at "
                        "the events SparkListenerLogStart into one file each"
                    )
                self._start = event
                self.name = event.name
                self.app_id = event.app_id
                self.attempt_id = event.attempt_id
                self.owner = event.user
            case ApplicationEnd(time_ms=time_ms):
                self.end_ms = time_ms
            case Environment(settings=settings):
                self.settings = settings
            case ResourceProfile(profile_id=profile_id, task_cpus=task_cpus):
                self.task_cpus[profile_id] = task_cpus

    def _add_task(self, task: TaskEnd) -> None:
        if task.outcome is Outcome.OUTPUT_LOST:
            # The event repeats an attempt that has ended before.
            self.num_outputs_lost += 1
            return
        code = self.executor_codes.setdefault(task.executor, len(self.executor_codes))
        if task.outcome is Outcome.SUCCESS:
            last = self.successful_attempt.get(task.stage_id, -1)
            self.successful_attempt[task.stage_id] = max(last, task.stage_attempt)
        if task.stage_attempt > 0 and not task.has_partition:
            attempts = self._unplaced.setdefault(task.stage_id, {})
            attempts.setdefault(task.stage_attempt, []).append(len(self._columns[0]))
        details = (task.outcome, task.is_speculative, task.busy_ms, task.input_bytes)
        row = (task.stage_id, task.task_index, task.launch_ms, task.finish_ms, code, *details)
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)

    def row_bytes(self) -> dict[str, int]:
        """For every table that SQL scanned the most bytes of a row that a scan of it read."""
        most = dict[str, int]()
        for scan in (scan for record in self.sql.values() for scan in record.scanned):
            most[scan.table] = max(scan.row_bytes, most.get(scan.table, 0))
        return most

    @property
    def queue(self) -> str:
        """YARN's queue of the application, as it was asked for; "" elsewhere."""
        is_yarn = self.settings.get("spark.master", "").startswith("yarn")
        return self.settings.get("spark.yarn.queue") or ("default" if is_yarn else "")

    @property
    def has_beginning(self) -> bool:
        """Whether the log has its first events."""
        return self._start is not None or bool(self.version)

    def lacks_end_of(self, stage_id: int) -> bool:
        """Whether a stage ran without an event of its end; Spark drops events under load.

        Skipped stages have no tasks. An attempt that failed has an end, and its last tasks may end
        later.
        """
        record = self.stages.get(stage_id)
        if record is not None and record.is_success:
            return False
        ended_attempt = -1 if record is None else record.last_attempt
        return self.successful_attempt.get(stage_id, -1) > ended_attempt

    def tasks(self) -> TaskColumns:
        """All attempts of tasks, in order of launch.

        Where the log lacks the partitions of repeated tasks (Spark before 3.3), these are the ones
        that had not succeeded, in order: Spark runs them so. Tasks beyond them repeat others, whose
        output was lost.
        """
        table = TaskColumns(*(np.array(column, np.int64) for column in self._columns))
        if self._unplaced:
            table = table._replace(task_index=self._partitions(table))
        # By launch; ties by stage, then by task index.
        ends = (table.outcome, table.executor, table.finish_ms)
        order = np.lexsort((*ends, table.task_index, table.stage_id, table.launch_ms))
        table = TaskColumns(*(column[order] for column in table))
        # An executor runs a task once at a time: what is equal to the row before repeats its event.
        is_new = np.ones(order.size, bool)
        if order.size:
            is_new[1:] = np.any([np.diff(column) for column in table], axis=0)
        self.num_repeated = order.size - int(is_new.sum())
        return TaskColumns(*(column[is_new] for column in table))

    def _partitions(self, table: TaskColumns) -> Int64Array:
        """`task_index` with the partitions of repeated tasks whose partition is not in the log."""
        partitions = table.task_index.copy()
        by_stage = np.argsort(table.stage_id, kind="stable")
        stage_ids = table.stage_id[by_stage]
        for stage_id, attempts in self._unplaced.items():
            if stage_id not in self.stages:
                continue
            first, last = np.searchsorted(stage_ids, (stage_id, stage_id + 1))
            of_stage = by_stage[first:last]
            repeated = np.concatenate([np.array(rows) for rows in attempts.values()])
            once = np.setdiff1d(of_stage, repeated)
            done = np.unique(partitions[once[table.outcome[once] == Outcome.SUCCESS]])
            for _, rows in sorted(attempts.items()):
                index = table.task_index[rows]
                # The task with index i runs the i-th partition that is not in `done`.
                missing = index + np.searchsorted(done - np.arange(done.size), index, side="right")
                is_missing = missing < self.stages[stage_id].info.num_tasks
                partitions[rows] = np.where(is_missing, missing, index)
                is_done = table.outcome[rows] == Outcome.SUCCESS
                done = np.union1d(done, partitions[rows][is_done])
        return partitions

    def presence(self, until_ms: int) -> dict[str, tuple[int, int]]:
        """When every executor began (-1: not known) and ended, at the latest `until_ms`."""
        end_ms = {name: removed.time_ms for name, removed in self.removed.items()}
        return {
            name: (added.time_ms, end_ms.get(name, until_ms))
            for name, added in self.executors.items()
        }

    def slots_of_executor(self) -> list[int]:
        """How many tasks each executor can run at once (cores / `spark.task.cpus`), or
        UNKNOWN_SLOTS.
        """
        return [self.slots_of(executor) for executor in self.executor_codes]

    def slots_of(self, executor: str) -> int:
        """How many tasks one executor can run at once.

        It is UNKNOWN_SLOTS if the log does not contain the executor's cores.
        """
        added = self.executors.get(executor)
        if added is None or added.cores <= 0:
            return UNKNOWN_SLOTS
        return max(1, int(added.cores / self._task_cpus(added.profile_id)))

    def cores_per_task(self) -> Counter[int]:
        """How many task attempts took how many cores, by the profiles of their executors."""
        # Column 4 of TaskColumns is `executor`.
        num_tasks = Counter(self._columns[4])
        cores = Counter[int]()
        for name, code in self.executor_codes.items():
            added = self.executors.get(name)
            cpus = self._task_cpus(0 if added is None else added.profile_id)
            cores[max(1, math.ceil(cpus))] += num_tasks[code]
        return cores

    def _task_cpus(self, profile_id: int) -> float:
        if (cpus := self.task_cpus.get(profile_id, 0.0)) > 0:
            return cpus
        setting = self.settings.get("spark.task.cpus", "1")
        return float(setting) if setting.isdecimal() and int(setting) > 0 else 1.0

    def count_tasks(self) -> Counter[int]:
        """The number of attempts of tasks of every stage."""
        # Column 0 of TaskColumns is `stage_id`.
        return Counter(self._columns[0])

    def count_attempts(self, tasks: TaskColumns) -> dict[str, int]:
        """Numbers of attempts that failed, were killed or lost, or were speculative."""
        outcomes = Counter(tasks.outcome.tolist())
        return {
            "failed": outcomes[Outcome.FAILED],
            "killed": outcomes[Outcome.KILLED],
            "lost with their executor": outcomes[Outcome.LOST] + self.num_outputs_lost,
            "ended by lost shuffle data": outcomes[Outcome.INPUT_LOST],
            "speculative": int(tasks.is_speculative.sum()),
        }
