"""Writes small Spark event logs for tests, in the layout of Spark's JsonProtocol."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import lz4.block

_LZ4_HEADER = struct.Struct("<8sBiiI")
SQL = "org.apache.spark.sql.execution.ui."


def executor(name: str = "1", cores: int = 2) -> dict[str, Any]:
    """An executor with its cores."""
    return {
        "Event": "SparkListenerExecutorAdded",
        "Timestamp": 0,
        "Executor ID": name,
        "Executor Info": {"Host": "host", "Total Cores": cores, "Resource Profile Id": 0},
    }


def removed(name: str, time: int, reason: str = "idle") -> dict[str, Any]:
    """The end of an executor."""
    return {
        "Event": "SparkListenerExecutorRemoved",
        "Timestamp": time,
        "Executor ID": name,
        "Removed Reason": reason,
    }


def settings(properties: dict[str, str]) -> dict[str, Any]:
    """The settings of an application."""
    return {"Event": "SparkListenerEnvironmentUpdate", "Spark Properties": properties}


def application_start(app_id: str, time: int = 0, attempt: str = "") -> dict[str, Any]:
    """The start of an application; attempts have ids only on YARN."""
    event = {
        "Event": "SparkListenerApplicationStart",
        "App Name": "app",
        "App ID": app_id,
        "Timestamp": time,
    }
    return {**event, "App Attempt ID": attempt} if attempt else event


def stage_info(
    stage: int, tasks: int, parents: tuple[int, ...] = (), rdd: int = -1, scope: str = "map"
) -> dict[str, Any]:
    """A stage; its highest RDD is its id unless given."""
    rdd_info = {
        "RDD ID": stage if rdd < 0 else rdd,
        "Name": "x",
        "Scope": json.dumps({"id": "0", "name": scope}),
    }
    return {
        "Stage ID": stage,
        "Stage Attempt ID": 0,
        "Stage Name": f"{scope} at App.scala:1",
        "Number of Tasks": tasks,
        "RDD Info": [rdd_info],
        "Parent IDs": list(parents),
    }


def job_start(
    job: int, time: int, stages: list[dict[str, Any]], **properties: str
) -> dict[str, Any]:
    """A Spark job; properties are given with underscores for dots."""
    named = {key.replace("_", "."): value for key, value in properties.items()}
    return {
        "Event": "SparkListenerJobStart",
        "Job ID": job,
        "Submission Time": time,
        "Stage Infos": stages,
        "Properties": named,
    }


def job_end(job: int, result: str = "JobSucceeded", end_ms: int = 0) -> dict[str, Any]:
    """The end of a Spark job."""
    return {
        "Event": "SparkListenerJobEnd",
        "Job ID": job,
        "Completion Time": end_ms,
        "Job Result": {"Result": result},
    }


def stage_completed(
    info: dict[str, Any], start: int, end: int, accumulators: tuple[int, ...] = (), **changes: Any
) -> dict[str, Any]:
    """A stage that ran from `start` to `end`."""
    accumulables = [{"ID": i, "Name": "number of output rows", "Value": "1"} for i in accumulators]
    times = {"Submission Time": start, "Completion Time": end, "Accumulables": accumulables}
    return {"Event": "SparkListenerStageCompleted", "Stage Info": {**info, **times, **changes}}


def task_end(
    stage: int, index: int, launch: int, finish: int, name: str = "1", **changes: Any
) -> dict[str, Any]:
    """An attempt of a task, successful unless `reason` says otherwise."""
    reason = changes.pop("reason", "Success")
    # Since Spark 3.3, before the accumulables.
    partition = {"Partition ID": changes.pop("partition")} if "partition" in changes else {}
    info = {
        "Task ID": 0,
        "Index": index,
        "Attempt": 0,
        **partition,
        "Launch Time": launch,
        "Executor ID": name,
        "Speculative": False,
        "Finish Time": finish,
        "Failed": reason == "ExceptionFailure",
        "Killed": reason == "TaskKilled",
        "Accumulables": [],
    }
    return {
        "Event": "SparkListenerTaskEnd",
        "Stage ID": stage,
        "Stage Attempt ID": 0,
        "Task Type": "ResultTask",
        "Task End Reason": {"Reason": reason},
        "Task Info": {**info, **changes},
        "Task Metrics": {"Executor Run Time": finish - launch},
    }


def ran(
    info: dict[str, Any], start: int, end: int, accumulators: tuple[int, ...] = ()
) -> list[dict[str, Any]]:
    """The tasks of a stage, one after the other on executor 1, and its completion."""
    tasks = info["Number of Tasks"]
    step = (end - start) // tasks
    ends = [
        task_end(info["Stage ID"], i, start + i * step, start + (i + 1) * step)
        for i in range(tasks)
    ]
    return [*ends, stage_completed(info, start, end, accumulators)]


def whole_job(
    job: int, time: int, *stages: dict[str, Any] | tuple[Any, ...], **properties: str
) -> list[dict[str, Any]]:
    """A Spark job with its stages: those that ran as the arguments of `ran`, skipped ones alone."""
    infos = [stage[0] if isinstance(stage, tuple) else stage for stage in stages]
    events = [event for stage in stages if isinstance(stage, tuple) for event in ran(*stage)]
    return [job_start(job, time, infos, **properties), *events, job_end(job)]


def sql_start(
    execution: int, time: int, plan: dict[str, Any] | None = None, text: str = "query"
) -> dict[str, Any]:
    """The start of a SQL execution."""
    return {
        "Event": SQL + "SparkListenerSQLExecutionStart",
        "executionId": execution,
        "rootExecutionId": execution,
        "description": text,
        "time": time,
        "sparkPlanInfo": plan or plan_node("Scan"),
    }


def sql_end(execution: int, error: str = "") -> dict[str, Any]:
    """The end of a SQL execution."""
    return {
        "Event": SQL + "SparkListenerSQLExecutionEnd",
        "executionId": execution,
        "time": 0,
        "errorMessage": error,
    }


def plan_node(
    name: str, *children: dict[str, Any], metric: int | None = None, text: str = ""
) -> dict[str, Any]:
    """An operator of a plan with one metric."""
    metrics = (
        [] if metric is None else [{"name": "rows", "accumulatorId": metric, "metricType": "sum"}]
    )
    return {
        "nodeName": name,
        "simpleString": text or name,
        "children": list(children),
        "metadata": {},
        "metrics": metrics,
    }


def to_bytes(events: list[dict[str, Any]]) -> bytes:
    """The log: one event a line."""
    first = {"Event": "SparkListenerLogStart", "Spark Version": "4.0.0"}
    return b"".join(
        json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in [first, *events]
    )


def log_file(path: Path, *events: dict[str, Any]) -> Path:
    """A file with the log."""
    path.write_bytes(to_bytes(list(events)))
    return path


def small_log(runs: int = 3, gap: int = 1_000, start: dict[str, Any] | None = None) -> bytes:
    """A job "report" of two stages (2 + 1 tasks of 50 ms on one core), run every `gap` ms.

    The log has an event of the application's start if one is given.
    """
    events = [executor(cores=1)] if start is None else [start, executor(cores=1)]
    for run in range(runs):
        begin = run * gap
        first = stage_info(2 * run, 2)
        last = stage_info(2 * run + 1, 1, (2 * run,), scope="reduce")
        events.append(job_start(run, begin, [first, last], spark_jobGroup_id="report"))
        events += ran(first, begin, begin + 100) + ran(last, begin + 100, begin + 150)
        events.append(job_end(run))
    return to_bytes(events)


def lz4_blocks(data: bytes, block_bytes: int = 700) -> bytes:
    """Blocks of LZ4BlockOutputStream: an incompressible one is raw, the last one is empty."""
    out = []
    for start in range(0, len(data), block_bytes):
        block = data[start : start + block_bytes]
        packed = lz4.block.compress(block, store_size=False)
        method, body = (0x20, packed) if len(packed) < len(block) else (0x10, block)
        out += [_LZ4_HEADER.pack(b"LZ4Block", method | 4, len(body), len(block), 0), body]
    return b"".join([*out, _LZ4_HEADER.pack(b"LZ4Block", 0x10 | 4, 0, 0, 0)])


def snappy_blocks(data: bytes, block_bytes: int = 700) -> bytes:
    """Blocks of SnappyOutputStream; each has its first byte, and the rest as a second literal."""
    out = [b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)]
    for start in range(0, len(data), block_bytes):
        block = data[start : start + block_bytes]
        size = bytes([len(block) & 0x7F | 0x80, len(block) >> 7])
        rest = b"\xf4" + struct.pack("<H", len(block) - 2) + block[1:] if block[1:] else b""
        packed = size + b"\x00" + block[:1] + rest
        out += [struct.pack(">I", len(packed)), packed]
    return b"".join(out)


def lzf_blocks(data: bytes, block_bytes: int = 700) -> bytes:
    """Blocks of LZFOutputStream: as they are, and as literals of 32 bytes, in turn."""
    out = []
    for number, start in enumerate(range(0, len(data), block_bytes)):
        block = data[start : start + block_bytes]
        if number % 2 == 0:
            out += [struct.pack(">2sBH", b"ZV", 0, len(block)), block]
            continue
        pieces = [block[at : at + 32] for at in range(0, len(block), 32)]
        packed = b"".join(bytes([len(piece) - 1]) + piece for piece in pieces)
        out += [struct.pack(">2sBHH", b"ZV", 1, len(packed), len(block)), packed]
    return b"".join(out)
