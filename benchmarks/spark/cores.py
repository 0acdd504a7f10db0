"""Reads the event logs of TPC-H runs: how busy the cores were, and a profile of the queries."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from benchmarks.spark.queries import QUERY_PROPERTY

from parcae.base.errors import FormatError
from parcae.base.texts import MS_PER_S
from parcae.workloads.job import bare_name
from parcae.workloads.spark_log.application import ApplicationLog
from parcae.workloads.spark_log.event_log import LogReading, read_spark_event_logs
from parcae.workloads.spark_log.files import find_logs, read_lines
from parcae.workloads.spark_log.naming import job_groups, job_name
from parcae.workloads.spark_log.plan import PLAN_KEY
from parcae.workloads.workload import Workload

FloatArray = npt.NDArray[np.float64]
#: Fields of task ends. Lines are searched without parsing them as JSON, which takes far longer.
_CPU = re.compile(rb'"Executor (?:Deserialize )?CPU Time":(\d+)')
_LAUNCH = re.compile(rb'"Launch Time":(\d+)')
_TASK_END = b'"SparkListenerTaskEnd"'
_NS_PER_S = 1e9


class Spans(NamedTuple):
    """When tasks ran or waited; float64[num_spans] each, ms of one clock."""

    start: FloatArray
    finish: FloatArray


def task_times(log: ApplicationLog) -> Spans:
    """All attempts of an application, each for the time that a core worked for it.

    That is from the launch of the task for as long as the core deserialized and ran it.
    """
    tasks = log.tasks()
    start = tasks.launch_ms.astype(np.float64)
    return Spans(start, start + tasks.busy_ms)


def driver_times(log: ApplicationLog) -> Spans:
    """All attempts of an application, each for the time that it ran by the driver's clock.

    The driver notes the end of a task some ms after the core has finished it.
    """
    tasks = log.tasks()
    return Spans(tasks.launch_ms.astype(np.float64), tasks.finish_ms.astype(np.float64))


def waits(log: ApplicationLog) -> Spans:
    """When every task of an application waited, from the submission of its stage; no retries."""
    tasks = log.tasks()
    # Only the first launch of a task counts.
    launched: dict[tuple[int, int], int] = {}
    columns = (tasks.stage_id, tasks.task_index, tasks.launch_ms)
    for stage, index, launch in np.stack(columns, axis=1).tolist():
        launched.setdefault((stage, index), launch)
    rows = [
        (log.stages[stage].submission_ms, launch)
        for (stage, _), launch in launched.items()
        if stage in log.stages and 0 <= log.stages[stage].submission_ms <= launch
    ]
    table = np.array(rows, np.float64).reshape(-1, 2)
    return Spans(table[:, 0], table[:, 1])


def busy_ms(tasks: Spans, begin_ms: float, end_ms: float) -> float:
    """Core time that tasks used between two times, in ms.

    Example: a task from 0 to 10 ms and one from 5 to 20 ms took 6 + 3 ms between 2 and 8 ms.
    """
    start = np.clip(tasks.start, begin_ms, end_ms)
    finish = np.clip(tasks.finish, begin_ms, end_ms)
    return float((finish - start).sum())


def busy_share(tasks: Spans, cores: int, begin_ms: float, end_ms: float) -> float:
    """Share of the time of all cores between two times that tasks used. Returns a share, 0..1; 0 if
    no time lies between the two.
    """
    time_ms = cores * (end_ms - begin_ms)
    return busy_ms(tasks, begin_ms, end_ms) / time_ms if time_ms > 0 else 0.0


def idle_while_waiting_share(
    tasks: Spans, waiting: Spans, cores: int, begin_ms: float, end_ms: float
) -> float:
    """Share of the cores' time, between two times, in which a core was idle while a task waited.

    At any moment, the smaller of the number of idle cores and the number of waiting tasks counts.

    Example: two cores, one busy from 0 to 10 ms; a task waits from 4 to 6 ms: 2 of 20 ms.
    """
    if end_ms <= begin_ms:
        return 0.0
    changes = (
        (np.array([begin_ms, end_ms]), 0, 0),
        (tasks.start, 1, 0),
        (tasks.finish, -1, 0),
        (waiting.start, 0, 1),
        (waiting.finish, 0, -1),
    )
    at = np.concatenate([np.clip(times, begin_ms, end_ms) for times, _, _ in changes])
    order = np.argsort(at, kind="stable")
    lengths = [len(times) for times, _, _ in changes]
    # The running sums of the changes in order of time are the numbers from each time to the next.
    running_steps = np.repeat([step for _, step, _ in changes], lengths)[order]
    waiting_steps = np.repeat([step for _, _, step in changes], lengths)[order]
    num_idle = np.maximum(cores - np.cumsum(running_steps)[:-1], 0)
    num_used = np.minimum(num_idle, np.cumsum(waiting_steps)[:-1])
    return float((num_used * np.diff(at[order])).sum() / (cores * (end_ms - begin_ms)))


def core_use(
    folder: Path, cores: int, first_ms: float, arrivals_s: float, makespan_s: float
) -> dict[str, float]:
    """Measure how the cores were used, from the event log of one run."""
    log = read_log(folder)
    tasks = task_times(log)
    last_ms = first_ms + arrivals_s * MS_PER_S
    end_ms = first_ms + makespan_s * MS_PER_S
    waiting = waits(log)
    idle = idle_while_waiting_share(driver_times(log), waiting, cores, first_ms, end_ms)
    unused = idle_while_waiting_share(tasks, waiting, cores, first_ms, end_ms)
    return {
        "busy_share": busy_share(tasks, cores, first_ms, last_ms),
        "makespan_busy_share": busy_share(tasks, cores, first_ms, end_ms),
        "idle_while_waiting_share": idle,
        "unused_while_waiting_share": unused,
        "task_s": busy_ms(tasks, first_ms, end_ms) / MS_PER_S,
        "task_cpu_s": _task_cpu_s(folder, first_ms),
        "num_tasks": int((tasks.start >= first_ms).sum()),
    }


def read_log(folder: Path) -> ApplicationLog:
    """Read the event log of the only application of a folder."""
    logs = list(_applications([folder]))
    if len(logs) != 1:
        problem = f"{folder} holds {len(logs)} event logs, not one"
        raise FormatError(f"{problem}; remove the folder to run it again")
    return logs[0]


def _applications(folders: Iterable[Path]) -> Iterable[ApplicationLog]:
    return (checked.log for checked in LogReading(list(folders)).applications())


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
            query = job_name(group, log.settings, QUERY_PROPERTY)
            name = job_name(group, log.settings, PLAN_KEY)
            if query and name:
                counts[int(query.removeprefix("q"))][name] += 1
    return dict(counts)


@dataclass(frozen=True)
class QueryProfile:
    """The profile of the queries, and the job of each query in it."""

    workload: Workload
    job_of_query: Mapping[int, int]

    def knows(self, log: ApplicationLog) -> float:
        """The share of the TPC-H queries of a log whose plan is in the profile, 0..1."""
        names = {job.name for job in self.workload.jobs}
        runs = sum(plans_of_queries([log]).values(), Counter[str]())
        known = sum(count for name, count in runs.items() if name in names)
        return known / max(1, runs.total())


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
