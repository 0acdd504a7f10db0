"""Reads event logs of TPC-H runs: measures how busy cores were, and makes a profile."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from parcae.base.errors import FormatError
from parcae.base.files import write_text
from parcae.base.texts import MS_PER_S
from parcae.spark.tpch_busy import (
    busy_ms,
    busy_share,
    driver_times,
    idle_while_waiting_share,
    task_times,
    waits,
)
from parcae.spark.tpch_spark import QUERY_PROPERTY
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.import_report import BadRows
from parcae.workloads.job import Workload, bare_name
from parcae.workloads.spark_log.application import ApplicationLog
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.files import find_logs, read_lines
from parcae.workloads.spark_log.naming import job_groups, job_name
from parcae.workloads.spark_log.plan import PLAN_KEY
from parcae.workloads.spark_log.reading import LineTally, read_applications

#: Files of a work folder: the profile, and the row of every query's job in it (written last).
PROFILE = "profile.parcae"
PROFILE_ROWS = "profile.json"
#: Fields of task ends. Lines are searched without parsing them as JSON, which takes far longer.
_CPU = re.compile(rb'"Executor (?:Deserialize )?CPU Time":(\d+)')
_LAUNCH = re.compile(rb'"Launch Time":(\d+)')
_TASK_END = b'"SparkListenerTaskEnd"'
_NS_PER_S = 1e9


@dataclass(frozen=True)
class CoreUse:
    """How the cores were used during a run."""

    busy_share: float
    makespan_busy_share: float
    idle_while_waiting_share: float
    unused_while_waiting_share: float
    task_s: float
    task_cpu_s: float
    num_tasks: int


def core_use(
    folder: Path, cores: int, first_ms: float, arrivals_s: float, makespan_s: float
) -> CoreUse:
    """Measure how the cores were used, from the event log of one run."""
    log = read_log(folder)
    tasks = task_times(log)
    last_ms = first_ms + arrivals_s * MS_PER_S
    end_ms = first_ms + makespan_s * MS_PER_S
    waiting = waits(log)
    idle = idle_while_waiting_share(driver_times(log), waiting, cores, first_ms, end_ms)
    unused = idle_while_waiting_share(tasks, waiting, cores, first_ms, end_ms)
    return CoreUse(
        busy_share=busy_share(tasks, cores, first_ms, last_ms),
        makespan_busy_share=busy_share(tasks, cores, first_ms, end_ms),
        idle_while_waiting_share=idle,
        unused_while_waiting_share=unused,
        task_s=busy_ms(tasks, first_ms, end_ms) / MS_PER_S,
        task_cpu_s=_task_cpu_s(folder, first_ms),
        num_tasks=int((tasks.start >= first_ms).sum()),
    )


def read_log(folder: Path) -> ApplicationLog:
    """Read the event log of the only application of a folder."""
    logs = list(_applications([folder]))
    if len(logs) != 1:
        problem = f"{folder} holds {len(logs)} event logs, not one"
        raise FormatError(f"{problem}; remove the folder to run it again")
    return logs[0]


def _applications(folders: Iterable[Path]) -> Iterable[ApplicationLog]:
    return read_applications(find_logs(list(folders)).sources, LineTally(BadRows(0.01)))


def _task_cpu_s(folder: Path, first_ms: float) -> float:
    """Processor time of the tasks that were launched from `first_ms` on, in s."""
    parts = (part for source in find_logs([folder]).sources for part in source.parts)
    total_ns = 0
    for line in (line for part in parts for line, _ in read_lines(part)):
        launch = _LAUNCH.search(line) if _TASK_END in line[:60] else None
        if launch and int(launch[1]) >= first_ms:
            total_ns += sum(int(match[1]) for match in _CPU.finditer(line))
    return total_ns / _NS_PER_S


def plans_of_queries(logs: Iterable[ApplicationLog]) -> dict[int, Counter[str]]:
    """How often every TPC-H query ran, by query and by plan name (importer's `--key plan`)."""
    counts: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for log in logs:
        for group in job_groups(log):
            query = job_name(group.jobs, group.executions, log.settings, QUERY_PROPERTY)
            name = job_name(group.jobs, group.executions, log.settings, PLAN_KEY)
            if query and name:
                counts[int(query.removeprefix("q"))][name] += 1
    return dict(counts)


@dataclass(frozen=True)
class QueryProfile:
    """The profile of the queries, and the job of each query in it."""

    workload: Workload
    job_of_query: Mapping[int, int]

    def write(self, work: Path) -> None:
        """Write it to a work folder."""
        # The rows come last: their file shows that the profile is complete.
        write_workload(self.workload, work / PROFILE)
        write_text(work / PROFILE_ROWS, json.dumps(dict(self.job_of_query)) + "\n")

    def knows(self, log: ApplicationLog) -> float:
        """The share of the TPC-H queries of a log whose plan is in the profile, 0..1."""
        names = {job.name for job in self.workload.jobs}
        runs = sum(plans_of_queries([log]).values(), Counter[str]())
        known = sum(count for name, count in runs.items() if name in names)
        return known / max(1, runs.total())


def profile_of(work: Path) -> QueryProfile:
    """Read the profile of a work folder."""
    rows = json.loads((work / PROFILE_ROWS).read_text())
    job_of_query = {int(query): row for query, row in rows.items()}
    return QueryProfile(read_workload(work / PROFILE), job_of_query)


def _only(workload: Workload, names: set[str]) -> Workload:
    """The workload without the jobs of other names."""
    rows = [row for row, job in enumerate(workload.jobs) if bare_name(job.name) in names]
    weights = workload.weights or (1.0,) * len(workload.jobs)
    return replace(
        workload,
        jobs=tuple(workload.jobs[row] for row in rows),
        weights=tuple(weights[row] for row in rows),
    )


def query_profile(folders: Sequence[Path]) -> QueryProfile:
    """Make a profile from the event logs in some folders.

    The first runs in an application are kept, since earlier applications have warmed the JVM up.
    """
    # Jobs that are no TPC-H query, such as the warm-up, are left out below.
    called = "tpch-queries"
    workload, _ = read_spark_event_logs(folders, name=called, key=PLAN_KEY, keep_first_runs=True)
    plans = plans_of_queries(_applications(folders))
    names = {name for counts in plans.values() for name in counts}
    queries_only = _only(workload, names)
    job_of_query = {}
    for query, counts in sorted(plans.items()):
        # A query may have run with several plans; the most frequent one is its job. The import
        # leaves runs out whose events are missing, and so perhaps all runs of a plan.
        found = (_row(queries_only, name) for name, _ in counts.most_common())
        row = next((row for row in found if row is not None), None)
        if row is None:
            where = ", ".join(map(str, folders))
            raise FormatError(
                f"{where}: no run of query q{query} can be used, since events are missing or the "
                "run failed; measure the queries again with another --work"
            )
        job_of_query[query] = row
    return QueryProfile(queries_only, job_of_query)


def _row(workload: Workload, name: str) -> int | None:
    """The row of the job of that name; if it has several DAGs, of the one that ran most often."""
    rows = [row for row, job in enumerate(workload.jobs) if bare_name(job.name) == name]
    return max(rows, key=lambda row: (workload.weights or ())[row], default=None)
