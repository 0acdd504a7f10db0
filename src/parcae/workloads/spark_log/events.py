"""Parses lines of a Spark event log into small typed records.

Lines of events that are not needed are skipped without parsing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import orjson

from parcae.base.errors import FormatError
from parcae.workloads.spark_log.plan import PlanNames, SqlPlan, plan_names, read_plan

#: Larger times and counts are treated as damage (as a time it is the year 146 million).
MAX_INTEGER = 1 << 62


class Outcome(IntEnum):
    """How an attempt of a task ended."""

    SUCCESS = 0
    FAILED = 1
    KILLED = 2
    LOST = 3  # its executor was lost while it ran
    OUTPUT_LOST = 4  # it had succeeded, and its output was lost with its executor
    INPUT_LOST = 5  # it could not fetch the output of a stage before it, which was lost


class LogStart(NamedTuple):
    """The version of Spark."""

    version: str


class ApplicationStart(NamedTuple):
    """The application's name, its id, its attempt's id ("" where there are no attempts), its start
    time in ms, and the account that submitted it.
    """

    name: str
    app_id: str
    attempt_id: str
    time_ms: int
    user: str


class ApplicationEnd(NamedTuple):
    """The end time of the application in ms."""

    time_ms: int


class Environment(NamedTuple):
    """Spark's settings."""

    settings: Mapping[str, str]


class ResourceProfile(NamedTuple):
    """Number of cores that a task of a resource profile takes (since Spark 3.1).

    It is 0 where the profile does not say it: then the application's setting holds.
    """

    profile_id: int
    task_cpus: float


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


class JobEnd(NamedTuple):
    """The result of a Spark job, and its end time in ms (-1 where the log does not contain it)."""

    job_id: int
    is_success: bool
    time_ms: int


class StageCompleted(NamedTuple):
    """One attempt of a stage; `accumulators` are the ids of SQL metrics that its tasks updated."""

    info: StageInfo
    submission_ms: int
    completion_ms: int
    is_success: bool
    accumulators: frozenset[int]


class TaskEnd(NamedTuple):
    """One attempt of a task, or the loss of its output; times in ms.

    `task_index` is the task's partition. Logs of Spark before 3.3 lack it (`has_partition` is
    False) and have only the index within the attempt of the stage, which counts anew if some tasks
    are repeated; see `ApplicationLog.tasks`. `busy_ms` is how long its core worked for it:
    deserializing and running. The finish time is set by the driver, which processes it later; it is
    used where the log has no task metrics (lost executors, Spark 1.0). `input_bytes` are the bytes
    read from files, caches and shuffles, 0 where the log does not contain them.
    """

    stage_id: int
    stage_attempt: int
    task_index: int
    has_partition: bool
    launch_ms: int
    finish_ms: int
    executor: str
    outcome: Outcome
    is_speculative: bool
    busy_ms: int
    input_bytes: int


class SqlStart(NamedTuple):
    """A SQL execution; `root_id` is the execution that it belongs to (usually itself).

    `plan_names` is None where the log does not contain a description of the physical plan.
    """

    execution_id: int
    root_id: int
    description: str
    time_ms: int
    plan: SqlPlan
    plan_names: PlanNames | None


class SqlPlanUpdate(NamedTuple):
    """The plan of a SQL execution after a change by adaptive execution."""

    execution_id: int
    plan: SqlPlan


class DriverUpdates(NamedTuple):
    """Values of accumulators that the driver set for a SQL execution, by accumulator."""

    execution_id: int
    values: Mapping[int, int]


class SqlEnd(NamedTuple):
    """The end of a SQL execution in ms (-1 where the log does not contain it).

    `is_success` is None where the log does not contain the result (before Spark 3.4).
    """

    execution_id: int
    is_success: bool | None
    time_ms: int


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


Event = (
    LogStart
    | ApplicationStart
    | ApplicationEnd
    | Environment
    | ResourceProfile
    | ExecutorAdded
    | ExecutorRemoved
    | JobStart
    | JobEnd
    | StageCompleted
    | TaskEnd
    | SqlStart
    | SqlPlanUpdate
    | DriverUpdates
    | SqlEnd
    | Statement
    | BlockBegin
)

#: At the end of an operator's name: the number of generated code, or the time of a DStream's batch.
_RUN_OF_OPERATOR = re.compile(r" \(\d+\)$|\s@ [0-9:.]+$")
_EVENT_PREFIX = b'{"Event":"'
_ACCUMULABLES = b'"Accumulables":['
#: Ends that Spark does not count as failures of the task, by the reason that it gives (source:
#: Spark's TaskEndReason and TaskSetManager). The slower of two attempts is denied the commit.
_NO_FAILURES = {
    "ExecutorLostFailure": Outcome.LOST,
    "FetchFailed": Outcome.INPUT_LOST,
    "Resubmitted": Outcome.OUTPUT_LOST,
    "TaskCommitDenied": Outcome.KILLED,
    "TaskKilled": Outcome.KILLED,
}
_IGNORED_METRICS = "internal.metrics."
_METRICS = b'"Task Metrics":'
#: The two metrics whose sum is the time in which a core works for a task.
_BUSY_NAMES = (b"Executor Deserialize Time", b"Executor Run Time")
#: Both metrics at the start of the metrics, in the order in which Spark writes them (the fast
#: path).
_BUSY = re.compile(
    rb'"Executor Deserialize Time":(\d{1,18}),(?:"Executor Deserialize CPU Time":\d+,)?'
    rb'"Executor Run Time":(\d{1,18})[,}]'
)
#: "Input Metrics" contain the first, "Shuffle Read Metrics" the others.
_READ_NAMES = (b"Bytes Read", b"Remote Bytes Read", b"Local Bytes Read")
_READ_METRICS = tuple(re.compile(rb'"%s":\s*(\d{1,17})[,}]' % name) for name in _READ_NAMES)
_BUSY_METRICS = tuple(re.compile(rb'"%s":\s*(\d{1,18})[,}]' % name) for name in _BUSY_NAMES)


def _integer(value: Any) -> int:
    number = int(value)
    if not -1 <= number < MAX_INTEGER:
        raise ValueError(f"the number {number} is out of range")
    return number


def _stage_info(data: Any) -> StageInfo:
    rdds = sorted(data.get("RDD Info") or (), key=lambda rdd: _integer(rdd["RDD ID"]))
    parents = data.get("Parent IDs")
    return StageInfo(
        stage_id=_integer(data["Stage ID"]),
        attempt=_integer(data.get("Stage Attempt ID", 0)),
        name=str(data.get("Stage Name", "")),
        num_tasks=_integer(data["Number of Tasks"]),
        parents=None if parents is None else tuple(_integer(parent) for parent in parents),
        top_rdd=_integer(rdds[-1]["RDD ID"]) if rdds else -1,
        scopes=tuple(dict.fromkeys(name for rdd in rdds if (name := _scope_name(rdd)))),
    )


def _scope_name(rdd: Any) -> str:
    """The operator that created an RDD, without what differs between runs."""
    scope = rdd.get("Scope")
    return _RUN_OF_OPERATOR.sub("", str(orjson.loads(scope)["name"]).strip()) if scope else ""


def _busy_ms(line: bytes, took_ms: int) -> int:
    """How long a core worked for the task of the line.

    It is at most `took_ms`, the time from launch to finish, and `took_ms` where the metrics are
    missing or 0: metrics of 0 belong to a task that ended before it could report any.
    """
    at = line.find(_METRICS)
    if at < 0:
        return took_ms
    if match := _BUSY.match(line, at + len(_METRICS) + 1):
        reported_ms = int(match[1]) + int(match[2])
    else:
        reported_ms = sum(
            int(hit[1]) for pattern in _BUSY_METRICS if (hit := pattern.search(line, at))
        )
    return min(reported_ms, took_ms) if reported_ms > 0 else took_ms


def _input_bytes(line: bytes) -> int:
    """Bytes that the task of the line read: its input, and local and remote shuffle data."""
    at = line.find(_METRICS)
    if at < 0:
        return 0
    return sum(int(hit[1]) for pattern in _READ_METRICS if (hit := pattern.search(line, at)))


def _outcome(info: Mapping[str, Any], reason: str) -> Outcome:
    """How a task ended, by its information and the reason of its end."""
    if reason == "Success" and not info.get("Failed", False):
        return Outcome.SUCCESS
    if reason in _NO_FAILURES:
        return _NO_FAILURES[reason]
    return Outcome.KILLED if info.get("Killed", False) else Outcome.FAILED


def _task_end(data: Any, line: bytes) -> TaskEnd:
    info = data["Task Info"]
    launch_ms = _integer(info["Launch Time"])
    finish_ms = _integer(info["Finish Time"])
    # Such times would give negative durations.
    if launch_ms > finish_ms or launch_ms < 0:
        raise ValueError(f"a task is launched at {launch_ms} and finished at {finish_ms} ms")
    partition = _integer(info.get("Partition ID", -1))
    return TaskEnd(
        stage_id=_integer(data["Stage ID"]),
        stage_attempt=_integer(data.get("Stage Attempt ID", 0)),
        task_index=_integer(info["Index"] if partition < 0 else partition),
        has_partition=partition >= 0,
        launch_ms=launch_ms,
        finish_ms=finish_ms,
        executor=str(info["Executor ID"]),
        outcome=_outcome(info, data["Task End Reason"]["Reason"]),
        is_speculative=bool(info.get("Speculative", False)),
        busy_ms=_busy_ms(line, finish_ms - launch_ms),
        input_bytes=_input_bytes(line),
    )


def _task_end_from_line(line: bytes) -> TaskEnd:
    """Parse a task end, but only the head of the line as JSON.

    Accumulables and metrics are nine tenths of the line; five numbers are searched in them.
    """
    # Spark writes the accumulables at the end of the task info: the line up to them is valid JSON
    # once both open objects are closed.
    cut = line.find(_ACCUMULABLES)
    if cut > 0 and line.endswith(b"}"):
        try:
            return _task_end(orjson.loads(line[:cut] + b'"Accumulables":[]}}'), line)
        except (ValueError, KeyError):
            pass  # The fields have an unusual order: parse the whole line.
    return _task_end(orjson.loads(line), line)


def _job_start(data: Any) -> JobStart:
    infos = data.get("Stage Infos")
    if infos is None:
        # Spark 1.x lists stage ids only.
        infos = [{"Stage ID": stage, "Number of Tasks": -1} for stage in data["Stage IDs"]]
    return JobStart(
        job_id=_integer(data["Job ID"]),
        submission_ms=_integer(data.get("Submission Time", -1)),
        properties={str(key): str(value) for key, value in (data.get("Properties") or {}).items()},
        stages=tuple(_stage_info(info) for info in infos),
    )


def _job_end(data: Any) -> JobEnd:
    return JobEnd(
        _integer(data["Job ID"]),
        data["Job Result"]["Result"] == "JobSucceeded",
        _integer(data.get("Completion Time", -1)),
    )


def _stage_completed(data: Any) -> StageCompleted:
    info = data["Stage Info"]
    accumulables = info.get("Accumulables") or ()
    ids = (
        _integer(a["ID"])
        for a in accumulables
        # Internal metrics are updated by every task and connect no operators.
        if not str(a.get("Name", "")).startswith(_IGNORED_METRICS)
    )
    completion_ms = _integer(info.get("Completion Time", -1))
    return StageCompleted(
        info=_stage_info(info),
        submission_ms=_integer(info.get("Submission Time", -1)),
        completion_ms=completion_ms,
        is_success=not info.get("Failure Reason"),
        accumulators=frozenset(ids),
    )


def _executor_added(data: Any) -> ExecutorAdded:
    info = data["Executor Info"]
    return ExecutorAdded(
        executor=str(data["Executor ID"]),
        cores=_integer(info["Total Cores"]),
        profile_id=_integer(info.get("Resource Profile Id", 0)),
        time_ms=_integer(data.get("Timestamp", -1)),
    )


def _executor_removed(data: Any) -> ExecutorRemoved:
    return ExecutorRemoved(
        str(data["Executor ID"]),
        _integer(data["Timestamp"]),
        str(data.get("Removed Reason", "")),
    )


def _resource_profile(data: Any) -> ResourceProfile:
    cpus = (data.get("Task Resource Requests") or {}).get("cpus", {}).get("Amount", 0.0)
    return ResourceProfile(_integer(data["Resource Profile Id"]), float(cpus))


def _application_start(data: Any) -> ApplicationStart:
    return ApplicationStart(
        str(data.get("App Name", "")),
        str(data.get("App ID", "")),
        str(data.get("App Attempt ID", "")),
        _integer(data.get("Timestamp", -1)),
        str(data.get("User", "")),
    )


def _environment(data: Any) -> Environment:
    return Environment(
        {str(key): str(value) for key, value in dict(data.get("Spark Properties") or {}).items()}
    )


def _sql_start(data: Any) -> SqlStart:
    execution_id = _integer(data["executionId"])
    root_id = data.get("rootExecutionId")
    described = data.get("physicalPlanDescription")
    return SqlStart(
        execution_id=execution_id,
        root_id=execution_id if root_id is None else _integer(root_id),
        description=str(data.get("description", "")),
        time_ms=_integer(data.get("time", -1)),
        plan=read_plan(data.get("sparkPlanInfo")),
        plan_names=plan_names(str(described)) if described else None,
    )


def _sql_plan_update(data: Any) -> SqlPlanUpdate:
    return SqlPlanUpdate(_integer(data["executionId"]), read_plan(data.get("sparkPlanInfo")))


def _driver_updates(data: Any) -> DriverUpdates:
    values = {_integer(row[0]): int(row[1]) for row in data["accumUpdates"]}
    return DriverUpdates(_integer(data["executionId"]), values)


def _sql_end(data: Any) -> SqlEnd:
    message = data.get("errorMessage")
    return SqlEnd(
        _integer(data["executionId"]),
        None if message is None else message == "",
        _integer(data.get("time", -1)),
    )


def _statement(data: Any) -> Statement:
    return Statement(*(str(data.get(key) or "") for key in ("groupId", "sessionId", "userName")))


def _block_begin(data: Any) -> BlockBegin:
    begin = BlockBegin(
        time_ms=_integer(data["time"]),
        block=_integer(data["block"]),
        arm=str(data["arm"]),
        block_ms=_integer(data["blockMs"]),
        washout_ms=_integer(data["washoutMs"]),
        seed=int(data["seed"]),
    )
    if begin.block_ms < 1 or begin.washout_ms < 0:
        raise ValueError(f"a block of {begin.block_ms} ms with {begin.washout_ms} ms of washout")
    return begin


_SQL = b"org.apache.spark.sql.execution.ui."
_THRIFT = b"org.apache.spark.sql.hive.thriftserver.ui."
_PARSERS: dict[bytes, Callable[[Any], Event]] = {
    b"DBCEventLoggingListenerMetadata": lambda data: LogStart(str(data.get("Spark Version", ""))),
    b"SparkListenerLogStart": lambda data: LogStart(str(data.get("Spark Version", ""))),
    b"SparkListenerApplicationStart": _application_start,
    b"SparkListenerApplicationEnd": lambda data: ApplicationEnd(_integer(data["Timestamp"])),
    b"SparkListenerEnvironmentUpdate": _environment,
    b"SparkListenerResourceProfileAdded": _resource_profile,
    b"SparkListenerExecutorAdded": _executor_added,
    b"SparkListenerExecutorRemoved": _executor_removed,
    b"SparkListenerJobStart": _job_start,
    b"SparkListenerJobEnd": _job_end,
    b"SparkListenerStageCompleted": _stage_completed,
    _SQL + b"SparkListenerSQLExecutionStart": _sql_start,
    _SQL + b"SparkListenerSQLAdaptiveExecutionUpdate": _sql_plan_update,
    _SQL + b"SparkListenerDriverAccumUpdates": _driver_updates,
    _SQL + b"SparkListenerSQLExecutionEnd": _sql_end,
    _THRIFT + b"SparkListenerThriftServerOperationStart": _statement,
    b"parcae.spark.ExperimentEvent": _block_begin,
}


def _event_name(line: bytes) -> bytes:
    """The value of "Event", which Spark writes first; other programs may write it elsewhere."""
    if line.startswith(_EVENT_PREFIX):
        return line[len(_EVENT_PREFIX) : line.find(b'"', len(_EVENT_PREFIX))]
    data = orjson.loads(line)
    return str(data["Event"]).encode()


def parse_event(line: bytes) -> Event | None:
    """The record of one line, or None for an event that is not needed."""
    try:
        name = _event_name(line)
        if name == b"SparkListenerTaskEnd":
            return _task_end_from_line(line)
        parser = _PARSERS.get(name)
        return parser(orjson.loads(line)) if parser else None
    except KeyError as error:
        raise FormatError(f"the field {error} is missing") from error
    except (
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        raise FormatError(f"not a Spark event ({str(error)[:120]})") from error
