"""What Spark's plugin learns of queries, from event logs: the file of `spark.parcae.state`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parcae.base.files import write_text
from parcae.workloads.spark_log.dag import JobRun

#: Runs that are kept of a name, and stages in a file: `parcae.spark.guest.Learned` and `State`.
_MAX_RUNS = 9
_MOST_STAGES = 100_000


def write_state(runs: Sequence[JobRun], path: Path) -> int:
    """Write the newest runs of every name that the plugin gives queries; returns the number of
    names.

    A run has its end in ms, the bytes that its scans read, and its work in core-ms.
    """
    by_name = defaultdict[str, list[JobRun]](list)
    for run in sorted(runs, key=lambda run: run.end_ms):
        for name in run.names:
            by_name[name].append(run)
    queries: dict[str, Any] = {}
    num_stages = 0
    for name, of_name in sorted(by_name.items(), key=lambda one: (-one[1][-1].end_ms, one[0])):
        num_stages += len(of_name[-1].stages)
        if num_stages > _MOST_STAGES:
            break
        queries[name] = {
            "runs": [_run(run) for run in of_name[-_MAX_RUNS:]],
            "stages": _stages(of_name[-1]),
        }
    document = {"format": "parcae-state", "version": 1, "queries": dict(sorted(queries.items()))}
    write_text(path, json.dumps(document, ensure_ascii=False, separators=(",", ":")))
    return len(queries)


def _run(run: JobRun) -> tuple[int, float, float]:
    work_ms = sum(stage["tasks"] * stage["task_ms"] for stage in _stages(run))
    return max(0, run.end_ms), run.scan_bytes, work_ms


def _stages(run: JobRun) -> list[dict[str, Any]]:
    return [
        {
            "tasks": stage.num_tasks,
            "task_ms": float(np.concatenate(stage.samples.by_wave).mean()),
            "parents": sorted(stage.parents | stage.control_parents),
        }
        for stage in run.stages
    ]
