"""Workloads and policies by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from parcae.workloads.archive import load_workload
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.workload import Workload


def workload(source: str | Path) -> Workload:
    """A workload: the jobs that runs are drawn from.

    Args:
        source: a built-in name ("tpch", "synthetic", "one-stage", "toy"), "mixed:ALPHA:WORKLOAD",
            or the path of a workload file.

    Raises:
        ConfigError: no such workload; the message suggests a name.
        FormatError: a file that is damaged or of another kind.
    """
    return load_workload(str(source))


def list_policies() -> pl.DataFrame:
    """All policies: how each is written, what it does, its source, and in which world it runs."""
    # Imported here: a workload needs none of the policies, which take a second to import.
    from parcae.policies.registry import all_policies

    return pl.DataFrame(
        list(all_policies()), ["policy", "summary", "source", "world"], orient="row"
    )


def read_event_logs(
    logs: str | Path | Sequence[str | Path], *, key: str | None = None, recorded: bool = False
) -> Workload:
    """A workload made of Spark event logs.

    Args:
        logs: a log, a rolling log's folder, a zip of the history server, or a folder of these; or
            several of them.
        key: what names a recurring job: a Spark property, "plan" or "shape"; unless given, the job
            group, the SQL description or the call site.
        recorded: keep every run as a job of its own with its arrival time.

    Raises:
        FormatError: no event log, or one that cannot be read.
    """
    paths = [logs] if isinstance(logs, str | Path) else logs
    return read_spark_event_logs(paths, key=key, recorded=recorded)[0]
