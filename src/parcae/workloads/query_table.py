"""Reads tables of queries, a row each: when it came, whose it was, how long and how wide it ran.

Sources of the recognised names: Redset (van Renen et al., VLDB 2024; amazon-science/redset),
Snowset (Vuppalapati et al., NSDI 2020; resource-disaggregation/snowset), databendlabs/bendset.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parcae.base.errors import ConfigError, FormatError, suggestion
from parcae.base.loader import open_file
from parcae.base.texts import MS_PER_S
from parcae.workloads.import_report import BadRows, ImportReport, Progress, counted
from parcae.workloads.readers import first_bytes
from parcae.workloads.recorded_run import workload_of_jobs, workload_of_runs
from parcae.workloads.spark_log.dag import JobRun, StageRun
from parcae.workloads.spark_log.durations import StageSamples
from parcae.workloads.spark_log.sessions import find_sessions
from parcae.workloads.stage_table import (
    Meanings,
    StageColumn,
    StageTable,
    as_count,
    as_name,
    as_number,
    as_time,
    check_columns,
    find_columns,
    in_ms,
    open_csv,
    open_json,
    open_parquet,
)
from parcae.workloads.workload import Workload

_SOURCE = "table of queries"
#: More cores than this at once (mean over a query) are a mistake in a unit.
_MOST_CORES = 100_000
_NO_WIDTH = (
    "neither CPU time nor tasks: say by --width how many cores such a query keeps busy, e.g. 8"
)


def _flag(cell: Any, _: StageColumn) -> bool:
    """Whether something happened: a truth value, or how a query ended."""
    word = str(cell).strip().lower()
    if word in ("false", "f", "no", "0", "0.0", "finish"):
        return False
    if word in ("true", "t", "yes", "1", "1.0", "exception", "aborted"):
        return True
    raise ValueError(f"{word[:40]!r} is neither true nor false")


_MEANINGS: Meanings = {
    "arrival": ("when the query arrived", lambda cell, of: as_time(cell, of.unit_ms)),
    "duration": ("for how long it ran", in_ms),
    "elapsed": ("time from its arrival to its end", in_ms),
    "queued": ("for how long it waited", in_ms),
    "planning": ("for how long it was compiled", in_ms),
    "cpu": ("CPU time of all cores", in_ms),
    "system_cpu": ("further CPU time", in_ms),
    "tasks": ("number of tasks", lambda cell, _: as_count(cell)),
    "bytes": ("bytes that it read", lambda cell, _: as_number(cell)),
    "mbytes": ("megabytes that it read", lambda cell, _: 1e6 * as_number(cell)),
    "fingerprint": ("what recurring queries have in common", lambda cell, _: as_name(cell)),
    "id": ("the query", lambda cell, _: as_name(cell)),
    "user": ("the person who ran it", lambda cell, _: as_name(cell)),
    "session": ("the session that it belongs to", lambda cell, _: as_name(cell)),
    "cluster": ("where it ran", lambda cell, _: as_name(cell)),
    "aborted": ("whether it failed", _flag),
    "cached": ("whether an earlier result answered it", _flag),
}
_TIMES = ("arrival", "duration", "elapsed", "queued", "planning", "cpu", "system_cpu")
#: Columns of public traces, in lower case, as columns of this table. Databend counts waiting as
#: part of a query's duration (its rows: event_time - query_start_time).
_RECOGNISED = {
    "instance_id": "cluster",
    "user_id": "user",
    "query_id": "id",
    "arrival_timestamp": "arrival",
    "compile_duration_ms": "planning_ms",
    "queue_duration_ms": "queued_ms",
    "execution_duration_ms": "duration_ms",
    "feature_fingerprint": "fingerprint",
    "was_aborted": "aborted",
    "was_cached": "cached",
    "mbytes_scanned": "mbytes",
    "warehouseid": "cluster",
    "queryid": "id",
    "createdtime": "arrival",
    "durationtotal": "elapsed_ms",
    "durationexec": "duration_ms",
    "durationcompiling": "planning_ms",
    "usercputime": "cpu_us",
    "systemcputime": "system_cpu_us",
    "scanbytes": "bytes",
    "query_start_time": "arrival",
    "query_duration_ms": "elapsed_ms",
    "query_queued_duration_ms": "queued_ms",
    "query_parameterized_hash": "fingerprint",
    "sql_user": "user",
    "cpu_time_sum": "cpu_ns",
    "scan_bytes": "bytes",
    "log_type_name": "aborted",
}


def read_queries(
    paths: Sequence[Path],
    *,
    name: str = "queries",
    progress: Progress | None = None,
    unit: str | None = None,
    columns: str | None = None,
    cluster: str | None = None,
    width: int | None = None,
    recorded: bool = False,
    max_bad_share: float = 0.01,
) -> tuple[Workload, ImportReport]:
    """Make a workload of tables of queries (CSV, Parquet or JSON).

    The model of a query: one stage of n tasks of equal duration, n = CPU time / duration rounded
    up, after a time in which no core works. So it does the work of the trace, and alone on n cores
    takes as long as there. Without CPU time, `width` tasks take the whole duration each.

    Returns the workload and the import report.

    Raises:
        FormatError: no such table, too many bad rows, or no query in it.
        ConfigError: an option without effect, or a cluster that is in none of the tables.
    """
    bad = BadRows(max_bad_share)
    runs: list[JobRun] = []
    left_out: Counter[str] = Counter()
    clusters: Counter[str] = Counter()
    notes: list[str] = []
    num_rows = num_nameless = num_guessed = 0
    for path in paths:
        table = _open(path)
        found, ignored = find_columns(table, columns, unit, _MEANINGS, _TIMES, _RECOGNISED)
        missing = [] if "arrival" in found else ["arrival"]
        missing += [] if {"duration", "elapsed"} & found.keys() else ["duration (or elapsed)"]
        check_columns(table, missing)
        if cluster is not None and "cluster" not in found:
            raise ConfigError(f"--cluster {cluster}: {path} has no column cluster; leave it out")
        if ignored:
            notes.append(f"Ignored the columns {', '.join(ignored)}.")
        for index, number in enumerate(table.numbers):
            if progress is not None and index % 10_000 == 0:
                progress(index, len(table.numbers))
            num_rows += 1
            try:
                values = {meaning: column.value(index) for meaning, column in found.items()}
                clusters[values.get("cluster") or ""] += 1
                if cluster not in (None, values.get("cluster")):
                    continue
                if why := [word for word in ("aborted", "cached") if values.get(word)]:
                    left_out[why[0]] += 1
                    continue
                runs.append(_run(values, width, f"query {num_rows}"))
            except ValueError as error:
                bad.add(path, number, str(error))
                continue
            num_nameless += values.get("fingerprint") is None
            num_guessed += values.get("cpu") is None and values.get("tasks") is None
    files = ", ".join(path.name for path in paths[:20])
    bad.finish(num_rows)
    if cluster is not None and cluster not in clusters:
        hint = suggestion(cluster, clusters, "the tables have")
        raise ConfigError(f"no query ran on cluster {cluster!r}; {hint}")
    if not runs:
        raise FormatError(f"{files}: no query that ran to its end in {counted(num_rows, 'row')}")
    if width is not None and not num_guessed:
        raise ConfigError("--width has no effect: every query has CPU time or tasks; leave it out")
    notes = [*dict.fromkeys(notes), _model(width if num_guessed else None)]
    if num_nameless:
        notes.append(f"{counted(num_nameless, 'row')} without a fingerprint: a query comes once.")
    notes += [f"Left out as {why}: {count:,}." for why, count in left_out.items()]
    if cluster is None and len(clusters) > 1:
        notes.append(f"Queries of {len(clusters):,} clusters are here on one; see --cluster.")
    of_sessions, of_pauses = find_sessions(runs)
    provenance = {"source": _SOURCE, "file": files, **of_sessions}
    if recorded:
        workload, more = workload_of_runs(name, runs, provenance)
    else:
        workload, more = workload_of_jobs(name, runs, provenance, keep_first_runs=True)
    notes += [*more, *of_pauses]
    counts = (len(paths), num_rows, bad.count, bad.samples)
    return workload, ImportReport(_SOURCE, *counts, tuple(notes), len(workload.jobs))


def _open(path: Path) -> StageTable:
    # A pipe would be waited for.
    if path.exists() and not path.is_file():
        raise FormatError(f"{path}: expected a file with a {_SOURCE}")
    with open_file(path) as stream:
        is_parquet = stream.read(4) == b"PAR1"
    if is_parquet:
        return open_parquet(path)
    is_json = first_bytes(path).lstrip()[:1] in (b"{", b"[")
    return open_json(path) if is_json else open_csv(path)


def _model(width: int | None) -> str:
    words = "A query is one stage of (CPU time / duration) tasks, rounded up, all equally long"
    return words + (f"; without CPU time, of {width} as long as it ran." if width else ".")


def _run(values: Mapping[str, Any], width: int | None, nameless: str) -> JobRun:
    """A query with its stage, from the cells of its row."""
    arrival_ms, elapsed_ms = values.get("arrival"), values.get("elapsed")
    if arrival_ms is None:
        raise ValueError("the cell of arrival is empty")
    planning_ms = values.get("planning") or 0.0
    queued_ms = values.get("queued") or 0.0
    duration_ms = values.get("duration")
    if duration_ms is None:
        if elapsed_ms is None:
            raise ValueError("the cells of duration and elapsed are empty")
        duration_ms = elapsed_ms - queued_ms - planning_ms
        if duration_ms < 0:
            raise ValueError(f"it waited and was compiled for longer than {elapsed_ms:g} ms in all")
    if elapsed_ms is None:
        elapsed_ms = queued_ms + planning_ms + duration_ms
    num_tasks = values.get("tasks")
    cpu_ms = values.get("cpu")
    if cpu_ms is None:
        num_tasks = num_tasks or width
        if num_tasks is None:
            raise ValueError(_NO_WIDTH)
        cpu_ms = num_tasks * duration_ms
    cpu_ms += values.get("system_cpu") or 0.0
    # Clocks of whole ms show less than 1 as 0.
    cores = cpu_ms / max(duration_ms, 1.0)
    if cores > _MOST_CORES:
        raise ValueError(
            f"{cpu_ms / MS_PER_S:g} s of CPU time in {duration_ms / MS_PER_S:g} s kept "
            f"{cores:,.0f} cores busy: is the unit right?"
        )
    num_tasks = num_tasks or max(1, math.ceil(cores))
    task_ms = cpu_ms / num_tasks
    none = np.zeros(0, np.int64)
    samples = StageSamples(1, (none, np.array([round(task_ms)]), none))
    gap_ms = round(planning_ms + max(0.0, duration_ms - task_ms))
    stage = StageRun("query", "query", num_tasks, frozenset(), frozenset(), samples, gap_ms)
    user = values.get("user") or ""
    caller = values.get("session") or user
    return JobRun(
        values.get("fingerprint") or values.get("id") or nameless,
        arrival_ms,
        [stage],
        values.get("cluster") or "",
        end_ms=round(arrival_ms + elapsed_ms),
        user=user,
        waits_with=((caller,) if caller else (), ""),
        task_ms=round(cpu_ms),
        scan_bytes=values.get("bytes") or values.get("mbytes") or 0.0,
    )
