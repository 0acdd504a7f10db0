"""Reads Spark event logs (Spark 1.3 to 4.x) into a workload of recurring jobs with measured
tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson

from parcae.base.errors import FormatError, WorkloadError
from parcae.base.urls import Copies, shown
from parcae.workloads.describe import MEASURED_ALONE
from parcae.workloads.import_report import BadRows, ImportReport, counted
from parcae.workloads.job import JobSpec, LoggedFaults, combined
from parcae.workloads.readers import saying_what_reads
from parcae.workloads.recorded_run import workload_of_jobs, workload_of_runs
from parcae.workloads.spark_log.activity import LoggedActivity
from parcae.workloads.spark_log.application import UNKNOWN_SLOTS, ApplicationLog
from parcae.workloads.spark_log.dag import JobRun, are_one_at_a_time, job_runs
from parcae.workloads.spark_log.events import ExecutorRemoved, Outcome, parse_event
from parcae.workloads.spark_log.files import LogPart, find_logs, read_lines
from parcae.workloads.spark_log.naming import lost_starts, queries_without_plan
from parcae.workloads.spark_log.sessions import number_sessions, sessions_at_once
from parcae.workloads.workload import CORES_PER_TASK, SESSIONS, Workload

#: Called with (bytes read, bytes in total).
Progress = Callable[[int, int], None]


class LogReading:
    """Event logs that are read one application at a time, and counts over all of them.

    `key` is what names the jobs. `left_out` has the number of jobs that are left out, by reason;
    whoever makes jobs of the applications fills it.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        key: str | None = None,
        max_bad_share: float = 0.01,
        progress: Progress | None = None,
    ) -> None:
        # Copies of logs at addresses are removed with this object.
        self._copies = Copies()
        try:
            self.logs = find_logs(self._copies.local(paths))
        except FormatError as error:
            raise FormatError(shown(error)) from error
        self.key = key
        self.bad = BadRows(max_bad_share)
        self.num_rows = 0
        self.left_out = Counter[str]()
        self._missing = Counter[str]()
        self._progress = progress
        self._total = sum(part.size for source in self.logs.sources for part in source.parts)
        self._done = 0

    def applications(self) -> Iterator[ApplicationLog]:
        """Read the logs; in the end, too many bad lines are refused."""
        for source in self.logs.sources:
            log = ApplicationLog(source.name)
            *earlier, last = source.parts
            for part in earlier:
                if not self._read_part(part, log):
                    raise FormatError(
                        f"{part.label} is cut off, and parts follow it; copy it again"
                    )
            # The application was killed, or is still running: this is no bad line.
            if self._read_part(last, log) is False:
                self._missing["lines"] += 1
            lost = lost_starts(log)
            self._missing["jobs"] += lost.num_jobs
            self._missing["tasks"] += lost.num_tasks
            self._missing["plans"] += queries_without_plan(log, self.key)
            yield log
        self.bad.finish(self.num_rows)

    def _read_part(self, part: LogPart, log: ApplicationLog) -> bool | None:
        """Add the events of one file to the log.

        Returns whether its last line is complete; None if it has no line.
        """
        is_complete = None
        for number, (line, is_whole) in enumerate(read_lines(part, self._advance), start=1):
            if not line or line.isspace():
                continue
            self.num_rows += 1
            # Lines of events that are not needed are not parsed, so a cut one needs a check.
            is_complete = is_whole or _is_json(line)
            if not is_complete:
                continue
            try:
                event = parse_event(line)
            except FormatError as error:
                self.bad.add(part.label, number, str(error))
                continue
            if event is not None:
                log.add(event)
        return is_complete

    def _advance(self, num_bytes: int) -> None:
        self._done = min(self._total, self._done + num_bytes)
        if self._progress is not None:
            self._progress(self._done, self._total)

    def no_jobs(self, what: str = "") -> FormatError:
        """The error for logs without a completed job; `what` says which others there are."""
        names = [source.name for source in self.logs.sources]
        reasons = [f"{counted(count, 'job')} {why}" for why, count in self.left_out.items()]
        found = "; ".join(filter(None, [what, *reasons])) or "the log contains no job at all"
        return FormatError(
            f"no completed job in {', '.join(names[:3])}{', ...' if len(names) > 3 else ''} "
            f"({found}); import logs of batch jobs or queries that finished "
            "(and check the property given as the key)"
        )

    def notes_of_jobs(self) -> list[str]:
        """Sentences for the user on jobs that are left out."""
        left_out = sorted(self.left_out.items())
        return [f"Left out {counted(count, 'job')} that {why}." for why, count in left_out]

    def notes_of_lines(self) -> list[str]:
        """Sentences for the user on what is missing in the logs."""
        missing = self._missing
        plans = missing["plans"]
        has, keeps = ("query has", "it keeps its name") if plans == 1 else _QUERIES
        sentences = {
            "lines": f"{counted(missing['lines'], 'truncated last line')} ignored; complete lines "
            "were kept.",
            "jobs": f"Left out {counted(missing['jobs'], 'Spark job')} whose start is missing in "
            "the log.",
            "tasks": f"Left out {counted(missing['tasks'], 'task end')} whose stage belongs to no "
            "Spark job in the log.",
            "plans": f"{plans:,} SQL {has} no plan in the log; {keeps}.",
        }
        return [sentence for what, sentence in sentences.items() if missing[what]]


_QUERIES = ("queries have", "they keep their names")


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


#: Parts of the reasons for which Spark or its user removes an executor on purpose.
_ON_PURPOSE = ("killed by driver", "decommission", "explicit termination request", "idle")
#: Executors that go this long before the end of the application go because of it.
_SHUTDOWN_MS = 2_000


def logged_faults(log: ApplicationLog) -> LoggedFaults:
    """Count failed attempts, speculative copies, lost executors and the time of executors."""
    tasks = log.tasks()
    last_ms = int(tasks.finish_ms.max(initial=0))
    end_ms = log.end_ms if log.end_ms > 0 else last_ms
    outcomes = Counter(tasks.outcome.tolist())
    # Spark also logs the removal of executors that failed while they started, and never were up.
    removed = [one for name, one in log.removed.items() if name in log.executors]
    losses = sorted(one.time_ms for one in removed if _is_loss(one, end_ms))
    restarts = _restarts_ms(losses, log)
    # Executors whose start is known.
    up_ms = [max(0, end - start) for start, end in log.presence(end_ms).values() if start >= 0]
    slots = Counter(log.slots_of(name) for name in log.executors)
    del slots[UNKNOWN_SLOTS]
    return LoggedFaults(
        num_attempts=outcomes[Outcome.SUCCESS] + outcomes[Outcome.FAILED],
        num_failed=outcomes[Outcome.FAILED],
        num_speculative=int(tasks.is_speculative.sum()),
        num_lost_executors=len(losses),
        executor_ms=float(sum(up_ms)),
        executor_cores=slots.most_common(1)[0][0] if slots else 0,
        num_restarts=len(restarts),
        restarts_ms=float(sum(restarts)),
    )


def _is_loss(removed: ExecutorRemoved, end_ms: int) -> bool:
    """Whether an executor was lost: nobody asked for its removal, and the application went on."""
    reason = removed.reason.lower()
    is_on_purpose = any(words in reason for words in _ON_PURPOSE)
    return bool(reason) and not is_on_purpose and removed.time_ms < end_ms - _SHUTDOWN_MS


def _restarts_ms(losses_ms: list[int], log: ApplicationLog) -> list[int]:
    """Times from losses to the next new executors; each executor replaces one that was lost."""
    added_ms = iter(sorted(added.time_ms for added in log.executors.values()))
    waits = []
    for loss_ms in losses_ms:
        next_ms = next((ms for ms in added_ms if ms >= loss_ms), None)
        if next_ms is None:
            break
        waits.append(next_ms - loss_ms)
    return waits


SOURCE = "Spark event logs"


@saying_what_reads("spark-events")
def read_spark_event_logs(
    paths: Sequence[str | Path],
    *,
    name: str = "spark",
    key: str | None = None,
    recorded: bool = False,
    keep_first_runs: bool = False,
    max_bad_share: float = 0.01,
    progress: Progress | None = None,
) -> tuple[Workload, ImportReport]:
    """Read event logs into a workload: one job for each recurring job, weighted by its number of
    runs.

    A SQL query with all the Spark jobs that it starts is one job. Outside SQL every Spark job is
    one job. Runs with the same name, the same DAG and similar task counts are merged. Their task
    durations are pooled by wave and by parallelism (task slots that the job held while the stage
    ran), and scaled to those of the median run. The differences between runs are kept as
    `work_sigma` and `duration_sigma`. Logs are read as streams: memory grows with the number of
    tasks (about 70 bytes each, for one application at a time), not with the size of the log.

    Args:
        paths: event logs: files (in any codec; complete, or truncated `.inprogress`), rolling
            `eventlog_v2_` directories, folders of hourly files, zip downloads of the history
            server, tar archives, or folders that contain any of them; or addresses of these, such
            as s3://bucket/logs.
        name: name of the workload.
        key: the Spark property that names recurring jobs (set with `sc.setLocalProperty`). Jobs
            without it are left out, and do not count as warming up an executor (most of them read
            schemas). By default a job is named by its job group, else its description, else its
            call site. "plan" and "shape" name SQL queries by their physical plan
            (`parcae.workloads.spark_log.plan`).
        recorded: keep every run as a separate job with its arrival (ms after the first submission)
            instead of merging runs.
        keep_first_runs: use a job's first run in an application like any other. By default it is
            left out of the profile if the job ran again in the application, since uncompiled code
            and cold caches make it up to ten times slower; it still counts for the weights.
        max_bad_share: largest share of unreadable lines that is tolerated, 0..1.
        progress: called with (bytes read, bytes in total).

    Returns:
        The workload and the import report.

    Raises:
        FormatError: no event log; a damaged or incomplete log; too many unreadable
            lines; or no completed job in any of the logs.

    Example: `workload, report = read_spark_event_logs([Path("/tmp/spark-events")])`.
    """
    logged = read_runs(paths, key=key, max_bad_share=max_bad_share, progress=progress)
    return logged.workload(name, recorded=recorded, keep_first_runs=keep_first_runs)


@saying_what_reads("spark-events")
def read_runs(
    paths: Sequence[str | Path],
    *,
    key: str | None = None,
    max_bad_share: float = 0.01,
    progress: Progress | None = None,
) -> LoggedRuns:
    """Read the runs of jobs in event logs once, for several workloads."""
    reading = LogReading(paths, key, max_bad_share, progress)
    logged = LoggedRuns(reading)
    # One application at a time: only the runs of its jobs, with their durations, stay in memory.
    for log in reading.applications():
        logged.add(log)
    if not logged.runs:
        raise reading.no_jobs()
    return logged


@dataclass(eq=False)
class LoggedRuns:
    """The runs of jobs in event logs, of which workloads are made, and counts over all logs."""

    reading: LogReading
    runs: list[JobRun] = field(default_factory=list)
    num_unknown_slots: int = 0
    versions: set[str] = field(default_factory=set)
    attempts: Counter[str] = field(default_factory=Counter)
    faults: list[LoggedFaults] = field(default_factory=list)
    activity: LoggedActivity = field(default_factory=LoggedActivity)
    #: Number of task attempts by the cores that each took.
    task_cores: Counter[int] = field(default_factory=Counter)

    def add(self, log: ApplicationLog) -> None:
        """Add the runs of an application."""
        runs = job_runs(log, self.reading.key, self.reading.left_out)
        self.runs += runs
        self.activity.add(log, runs)
        self.num_unknown_slots += UNKNOWN_SLOTS in log.slots_of_executor()
        self.versions.add(log.version or "unknown")
        self.attempts.update(log.count_attempts())
        self.faults.append(logged_faults(log))
        self.task_cores.update(log.cores_per_task())

    @property
    def cores_per_task(self) -> int:
        """The cores that most tasks took."""
        return self.task_cores.most_common(1)[0][0] if self.task_cores else 1

    def workload(
        self, name: str = "spark", *, recorded: bool = False, keep_first_runs: bool = False
    ) -> tuple[Workload, ImportReport]:
        """Make a workload; see `read_spark_event_logs`."""
        sources = self.reading.logs.sources
        names = [source.name for source in sources]
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        provenance = {
            "source": SOURCE,
            "logs": ", ".join(names[:20]) + more,
            "spark_versions": ", ".join(sorted(self.versions)),
            "recurring_job_key": self.reading.key or "job group, description or call site",
            **self.activity.provenance(self.cores_per_task),
        }
        number_sessions(self.runs)
        if self.cores_per_task > 1:
            provenance[CORES_PER_TASK] = str(self.cores_per_task)
        alone = []
        if num_sessions := sessions_at_once(self.runs):
            provenance[SESSIONS] = str(num_sessions)
            alone.append(
                "Queries wait for each other (sessions at once: "
                f"{num_sessions}); --arrivals sessions keeps that."
            )
        if are_one_at_a_time(self.runs):
            count = counted(len(self.runs), "run")
            provenance[MEASURED_ALONE] = f"{count}, hardly two at the same time"
            alone.append(
                "Jobs ran one at a time: their durations do not show how tasks slow down when jobs "
                "share a cluster."
            )
        try:
            if recorded:
                workload, notes = workload_of_runs(name, self.runs, provenance)
            else:
                workload, notes = workload_of_jobs(
                    name, self.runs, provenance, keep_first_runs=keep_first_runs
                )
        except WorkloadError as error:
            raise FormatError(f"the log is inconsistent: {error}; download it again") from error
        report = ImportReport(
            SOURCE,
            sum(len(source.parts) for source in sources),
            self.reading.num_rows,
            self.reading.bad.count,
            self.reading.bad.samples,
            (
                *self.reading.logs.notes,
                *self._notes(workload.jobs),
                *notes,
                *alone,
                *self.activity.notes(),
            ),
            len(workload.jobs),
            self,
        )
        return replace(workload, faults=combined(self.faults)), report

    def _notes(self, jobs: Sequence[JobSpec]) -> list[str]:
        """Sentences for the user about the import."""
        notes = self.reading.notes_of_jobs()
        lost = [f"{count:,} {what}" for what, count in self.attempts.items() if count]
        if lost:
            notes.append(
                "Durations are of successful task attempts; "
                f"among the attempts were: {', '.join(lost)}."
            )
        faults = combined(self.faults)
        notes.append(f"Faults in the logs (--faults log simulates them): {faults}.")
        notes += self.reading.notes_of_lines()
        if self.num_unknown_slots:
            notes.append(
                "The number of cores of executors is missing in "
                f"{counted(self.num_unknown_slots, 'log')}; inferred from overlapping tasks."
            )
        if (cores := self.cores_per_task) > 1:
            others = sorted(self.task_cores.keys() - {cores})
            but = f"; those that took {', '.join(map(str, others))} count so, too" if others else ""
            notes.append(
                f"Each task takes {cores} cores (spark.task.cpus){but}: sizes are in cores, "
                "parallelism in tasks."
            )
        levels = {level for job in jobs for stage in job.stages for level in stage.durations.levels}
        notes.append(
            f"Task durations were measured at parallelism {', '.join(map(str, sorted(levels)))}; "
            "elsewhere they are modelled."
        )
        return notes
