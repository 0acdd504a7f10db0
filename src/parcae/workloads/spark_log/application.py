"""Collects the content of one application's event log.

These are its Spark jobs, stages, tasks, executors and SQL executions.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from parcae.base.arrays import Int64Array
from parcae.base.errors import FormatError
from parcae.workloads.spark_log.plan import PlanNames, Scan, SqlPlan

#: The property that names a job's pool in Spark's FAIR scheduler (set with `sc.setLocalProperty`).
POOL_PROPERTY = "spark.scheduler.pool"
#: Number of slots of an executor whose number of cores is not in the log.
UNKNOWN_SLOTS = 0


class Outcome(IntEnum):
    """How an attempt of a task ended."""

    SUCCESS = 0
    FAILED = 1
    KILLED = 2
    LOST = 3  # its executor was lost while it ran
    OUTPUT_LOST = 4  # it had succeeded, and its output was lost with its executor
    INPUT_LOST = 5  # it could not fetch the output of a stage before it, which was lost


class ApplicationStart(NamedTuple):
    """The application's name, its id, its attempt's id ("" where there are no attempts), its start
    time in ms, and the account that submitted it.
    """

    name: str
    app_id: str
    attempt_id: str
    time_ms: int
    user: str


class ExecutorAdded(NamedTuple):
    """A new executor, its cores, and its start time in ms (-1 where the log does not contain
    it).
    """

    executor: str
    cores: int
    profile_id: int
    time_ms: int


class ExecutorRemoved(NamedTuple):
    """A removed executor, the time of its removal in ms, and the reason (in words, or "")."""

    executor: str
    time_ms: int
    reason: str


class StageInfo(NamedTuple):
    """A stage as listed by a job start; `parents` is None if they are not logged (Spark 1.x)."""

    stage_id: int
    attempt: int
    name: str
    num_tasks: int
    parents: tuple[int, ...] | None
    top_rdd: int
    scopes: tuple[str, ...]


class JobStart(NamedTuple):
    """A Spark job; `submission_ms` is -1 where the log does not contain it (Spark 1.x)."""

    job_id: int
    submission_ms: int
    properties: Mapping[str, str]
    stages: tuple[StageInfo, ...]


class Statement(NamedTuple):
    """A statement of the Thrift server: the job group of its Spark jobs, its session and user."""

    group: str
    session: str
    user: str


class BlockBegin(NamedTuple):
    """From this time on an arm of the plugin's experiment applied: "policy", "stock" or "none".

    The block is counted from 1970 in `block_ms`.
    """

    time_ms: int
    block: int
    arm: str
    block_ms: int
    washout_ms: int
    seed: int


class TaskColumns(NamedTuple):
    """Every attempt of every task as columns, int64[num_attempts] each.

    `task_index` is the task's partition. `executor` is a number in order of appearance. A core
    worked for the task (deserializing and running) for `busy_ms` from its launch on; `finish_ms` is
    when the driver recorded the end. `input_bytes` are those read from files, caches and shuffles,
    0 where the log does not contain them.
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
    """A stage that ran, with all its attempts combined; `info` is that of the first attempt.

    `accumulators` are the ids of SQL metrics that its tasks updated.
    """

    info: StageInfo
    last_attempt: int
    submission_ms: int
    completion_ms: int
    is_success: bool
    accumulators: frozenset[int]

    def merge(self, other: StageRecord) -> None:
        """Add another attempt of the stage.

        The last attempt decides the result; the times span all attempts whose times are known.
        """
        if other.info.attempt < self.info.attempt:
            self.info = other.info
        if other.last_attempt >= self.last_attempt:
            self.last_attempt = other.last_attempt
            self.is_success = other.is_success
        known_ms = [ms for ms in (self.submission_ms, other.submission_ms) if ms >= 0]
        self.submission_ms = min(known_ms, default=-1)
        self.completion_ms = max(self.completion_ms, other.completion_ms)
        self.accumulators |= other.accumulators


@dataclass(eq=False)
class SqlRecord:
    """A SQL execution; times in ms, -1 where the log does not contain them.

    `root_id` is the execution that it belongs to (usually itself); `plan_names` is None where the
    log does not describe the physical plan. `is_ended` is True once its end was read; `is_success`
    is None where the log does not contain the result (before Spark 3.4).
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
    #: The cores that a task of a resource profile takes; 0 where the application's setting holds.
    task_cpus: dict[int, float] = field(default_factory=dict)
    executor_codes: dict[str, int] = field(default_factory=dict)
    #: Number of tasks that had succeeded when their output was lost with its executor.
    num_outputs_lost: int = 0
    #: Number of events that the log has twice.
    num_repeated: int = 0
    #: Whether there is an end of a SQL execution whose start is missing.
    has_unknown_sql: bool = False
    start: ApplicationStart | None = None
    _columns: tuple[array[int], ...] = field(default_factory=_int64_columns)
    #: By stage and attempt, the rows of repeated tasks whose partition is not in the log.
    _unplaced: dict[int, dict[int, list[int]]] = field(default_factory=dict)

    def begin(self, start: ApplicationStart) -> None:
        """Take the application's start: numbers of jobs and stages are unique only in one."""
        if self.start not in (None, start):
            raise FormatError(
                f"{self.label}: the events of several applications in one log "
                f"({self.app_id or self.name}, {start.app_id or start.name}); split it at "
                "the events SparkListenerLogStart into one file each"
            )
        self.start = start
        self.name = start.name
        self.app_id = start.app_id
        self.attempt_id = start.attempt_id
        self.owner = start.user

    def add_job(self, job: JobStart) -> None:
        """Add a Spark job.

        Jobs of SQL repeat the application's settings; they are dropped to save memory. As a
        setting, a pool is that of these jobs only.
        """
        own = {
            name: value
            for name, value in job.properties.items()
            if name == POOL_PROPERTY or self.settings.get(name) != value
        }
        job = job._replace(properties=own)
        if self.jobs.setdefault(job.job_id, job) != job:
            raise FormatError(
                f"{self.label}: two Spark jobs have the number {job.job_id}; these are "
                "the events of several applications: split them into one file each"
            )

    def add_stage(self, attempt: StageRecord) -> None:
        """Add an attempt of a stage."""
        record = self.stages.setdefault(attempt.info.stage_id, attempt)
        if record is not attempt:
            record.merge(attempt)

    def known_sql(self, execution_id: int) -> SqlRecord | None:
        """A SQL execution that goes on or ends, if the log has its start."""
        record = self.sql.get(execution_id)
        self.has_unknown_sql |= record is None
        return record

    def add_task(
        self,
        row: tuple[int, int, int, int, int, int, int, int],
        executor: str,
        stage_attempt: int,
        *,
        has_partition: bool,
    ) -> None:
        """Add an attempt of a task, or the loss of its output.

        `row` is that of `TaskColumns` without the executor. Logs of Spark before 3.3 have no
        partition, only the index within the attempt of the stage, which counts anew if some tasks
        are repeated; see `tasks`.
        """
        stage_id, task_index, launch_ms, finish_ms, outcome, *details = row
        if outcome == Outcome.OUTPUT_LOST:
            # The event repeats an attempt that has ended before.
            self.num_outputs_lost += 1
            return
        code = self.executor_codes.setdefault(executor, len(self.executor_codes))
        if outcome == Outcome.SUCCESS:
            last = self.successful_attempt.get(stage_id, -1)
            self.successful_attempt[stage_id] = max(last, stage_attempt)
        if stage_attempt > 0 and not has_partition:
            attempts = self._unplaced.setdefault(stage_id, {})
            attempts.setdefault(stage_attempt, []).append(len(self._columns[0]))
        values = (stage_id, task_index, launch_ms, finish_ms, code, outcome, *details)
        for column, value in zip(self._columns, values, strict=True):
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
        return self.start is not None or bool(self.version)

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
