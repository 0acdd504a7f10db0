"""Reads lines of a Spark event log into the record of its application.

Lines of events that are not needed are skipped without parsing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from parcae.base.errors import FormatError
from parcae.workloads.spark_log.application import (
    ApplicationLog,
    ApplicationStart,
    BlockBegin,
    ExecutorAdded,
    ExecutorRemoved,
    JobStart,
    Outcome,
    SqlRecord,
    StageInfo,
    StageRecord,
    Statement,
)
from parcae.workloads.spark_log.plan import plan_names, read_plan

#: Larger times and counts are treated as damage (as a time it is the year 146 million).
MAX_INTEGER = 1 << 62


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


def _task_end(log: ApplicationLog, data: Any, line: bytes) -> None:
    info = data["Task Info"]
    launch_ms = _integer(info["Launch Time"])
    finish_ms = _integer(info["Finish Time"])
    # Such times would give negative durations.
    if launch_ms > finish_ms or launch_ms < 0:
        raise ValueError(f"a task is launched at {launch_ms} and finished at {finish_ms} ms")
    partition = _integer(info.get("Partition ID", -1))
    row = (
        _integer(data["Stage ID"]),
        _integer(info["Index"] if partition < 0 else partition),
        launch_ms,
        finish_ms,
        _outcome(info, data["Task End Reason"]["Reason"]),
        bool(info.get("Speculative", False)),
        _busy_ms(line, finish_ms - launch_ms),
        _input_bytes(line),
    )
    attempt = _integer(data.get("Stage Attempt ID", 0))
    log.add_task(row, str(info["Executor ID"]), attempt, has_partition=partition >= 0)


def _task_end_from_line(log: ApplicationLog, line: bytes) -> None:
    """Read a task end, but only the head of the line as JSON.

    Accumulables and metrics are nine tenths of the line; five numbers are searched in them.
    """
    # Spark writes the accumulables at the end of the task info: the line up to them is valid JSON
    # once both open objects are closed.
    cut = line.find(_ACCUMULABLES)
    if cut > 0 and line.endswith(b"}"):
        try:
            return _task_end(log, orjson.loads(line[:cut] + b'"Accumulables":[]}}'), line)
        except (ValueError, KeyError):
            pass  # The fields have an unusual order: parse the whole line.
    return _task_end(log, orjson.loads(line), line)


def _log_start(log: ApplicationLog, data: Any) -> None:
    log.version = str(data.get("Spark Version", ""))


def _application_start(log: ApplicationLog, data: Any) -> None:
    started = ApplicationStart(
        name=str(data.get("App Name", "")),
        app_id=str(data.get("App ID", "")),
        attempt_id=str(data.get("App Attempt ID", "")),
        time_ms=_integer(data.get("Timestamp", -1)),
        user=str(data.get("User", "")),
    )
    log.begin(started)


def _application_end(log: ApplicationLog, data: Any) -> None:
    log.end_ms = _integer(data["Timestamp"])


def _texts(data: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in dict(data or {}).items()}


def _environment(log: ApplicationLog, data: Any) -> None:
    log.settings = _texts(data.get("Spark Properties"))


def _resource_profile(log: ApplicationLog, data: Any) -> None:
    cpus = (data.get("Task Resource Requests") or {}).get("cpus", {}).get("Amount", 0.0)
    log.task_cpus[_integer(data["Resource Profile Id"])] = float(cpus)


def _executor_added(log: ApplicationLog, data: Any) -> None:
    info = data["Executor Info"]
    added = ExecutorAdded(
        executor=str(data["Executor ID"]),
        cores=_integer(info["Total Cores"]),
        profile_id=_integer(info.get("Resource Profile Id", 0)),
        time_ms=_integer(data.get("Timestamp", -1)),
    )
    log.executors[added.executor] = added


def _executor_removed(log: ApplicationLog, data: Any) -> None:
    executor, time_ms = str(data["Executor ID"]), _integer(data["Timestamp"])
    reason = str(data.get("Removed Reason", ""))
    log.removed[executor] = ExecutorRemoved(executor, time_ms, reason)


def _job_start(log: ApplicationLog, data: Any) -> None:
    infos = data.get("Stage Infos")
    if infos is None:
        # Spark 1.x lists stage ids only.
        infos = [{"Stage ID": stage, "Number of Tasks": -1} for stage in data["Stage IDs"]]
    started = JobStart(
        job_id=_integer(data["Job ID"]),
        submission_ms=_integer(data.get("Submission Time", -1)),
        properties=_texts(data.get("Properties")),
        stages=tuple(_stage_info(info) for info in infos),
    )
    log.add_job(started)


def _job_end(log: ApplicationLog, data: Any) -> None:
    job_id = _integer(data["Job ID"])
    is_success = data["Job Result"]["Result"] == "JobSucceeded"
    end_ms = _integer(data.get("Completion Time", -1))
    log.job_results[job_id] = is_success
    log.job_end_ms[job_id] = end_ms


def _stage_completed(log: ApplicationLog, data: Any) -> None:
    info = data["Stage Info"]
    accumulables = info.get("Accumulables") or ()
    ids = (
        _integer(a["ID"])
        for a in accumulables
        # Internal metrics are updated by every task and connect no operators.
        if not str(a.get("Name", "")).startswith(_IGNORED_METRICS)
    )
    stage = _stage_info(info)
    attempt = StageRecord(
        stage,
        last_attempt=stage.attempt,
        submission_ms=_integer(info.get("Submission Time", -1)),
        completion_ms=_integer(info.get("Completion Time", -1)),
        is_success=not info.get("Failure Reason"),
        accumulators=frozenset(ids),
    )
    log.add_stage(attempt)


def _sql_start(log: ApplicationLog, data: Any) -> None:
    execution_id = _integer(data["executionId"])
    root_id = data.get("rootExecutionId")
    described = data.get("physicalPlanDescription")
    log.sql[execution_id] = SqlRecord(
        execution_id=execution_id,
        root_id=execution_id if root_id is None else _integer(root_id),
        description=str(data.get("description", "")),
        time_ms=_integer(data.get("time", -1)),
        plan=read_plan(data.get("sparkPlanInfo")),
        plan_names=plan_names(str(described)) if described else None,
    )


def _sql_plan_update(log: ApplicationLog, data: Any) -> None:
    """The plan of a SQL execution after a change by adaptive execution."""
    execution_id, plan = _integer(data["executionId"]), read_plan(data.get("sparkPlanInfo"))
    if record := log.known_sql(execution_id):
        record.plan = plan


def _driver_updates(log: ApplicationLog, data: Any) -> None:
    """Values of accumulators that the driver set for a SQL execution."""
    values = {_integer(row[0]): int(row[1]) for row in data["accumUpdates"]}
    if record := log.sql.get(_integer(data["executionId"])):
        record.update(values)


def _sql_end(log: ApplicationLog, data: Any) -> None:
    message = data.get("errorMessage")
    execution_id, end_ms = _integer(data["executionId"]), _integer(data.get("time", -1))
    if record := log.known_sql(execution_id):
        record.is_ended = True
        record.is_success = None if message is None else message == ""
        record.end_ms = end_ms


def _statement(log: ApplicationLog, data: Any) -> None:
    texts = (str(data.get(key) or "") for key in ("groupId", "sessionId", "userName"))
    statement = Statement(*texts)
    log.statements[statement.group] = statement


def _block_begin(log: ApplicationLog, data: Any) -> None:
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
    log.blocks.append(begin)


_SQL = b"org.apache.spark.sql.execution.ui."
_THRIFT = b"org.apache.spark.sql.hive.thriftserver.ui."
_READERS: dict[bytes, Callable[[ApplicationLog, Any], None]] = {
    b"DBCEventLoggingListenerMetadata": _log_start,
    b"SparkListenerLogStart": _log_start,
    b"SparkListenerApplicationStart": _application_start,
    b"SparkListenerApplicationEnd": _application_end,
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


class BadLine(FormatError):
    """A line that is no event of Spark's; it changes nothing."""


def add_event(log: ApplicationLog, line: bytes) -> None:
    """Add the event of one line to the record; one that is not needed changes nothing.

    Raises:
        BadLine: no event, or a damaged one.
        FormatError: an event of another application.
    """
    try:
        name = _event_name(line)
        if name == b"SparkListenerTaskEnd":
            _task_end_from_line(log, line)
        elif reader := _READERS.get(name):
            reader(log, orjson.loads(line))
    except KeyError as error:
        raise BadLine(f"the field {error} is missing") from error
    except (
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        raise BadLine(f"not a Spark event ({str(error)[:120]})") from error
