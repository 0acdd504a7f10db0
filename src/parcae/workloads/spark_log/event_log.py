"""Reads Spark event logs (Spark 1.3 to 4.x) into a workload of recurring jobs with measured
tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from parcae.base.errors import FormatError, WorkloadError
from parcae.workloads.describe import MEASURED_ALONE
from parcae.workloads.formats import saying_what_reads
from parcae.workloads.import_report import BadRows, ImportReport, counted
from parcae.workloads.job import JobSpec, LoggedFaults, combined
from parcae.workloads.recorded_run import workload_of_jobs, workload_of_runs
from parcae.workloads.spark_log.application import UNKNOWN_SLOTS, ApplicationLog
from parcae.workloads.spark_log.dag import JobRun, are_one_at_a_time, job_runs
from parcae.workloads.spark_log.events import ExecutorRemoved, Outcome
from parcae.workloads.spark_log.files import FoundLogs, LogSource, find_logs
from parcae.workloads.spark_log.reading import LineTally, Progress, read_applications
from parcae.workloads.workload import Workload

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
    slots = Counter(log.slots_of(name) for name in log.executors)
    del slots[UNKNOWN_SLOTS]
    return LoggedFaults(
        num_attempts=outcomes[Outcome.SUCCESS] + outcomes[Outcome.FAILED],
        num_failed=outcomes[Outcome.FAILED],
        num_speculative=int(tasks.is_speculative.sum()),
        num_lost_executors=len(losses),
        executor_ms=float(sum(_spans_ms(log, end_ms))),
        executor_cores=slots.most_common(1)[0][0] if slots else 0,
        num_restarts=len(restarts),
        restarts_ms=float(sum(restarts)),
    )


def _is_loss(removed: ExecutorRemoved, end_ms: int) -> bool:
    """Whether an executor was lost: nobody asked for its removal, and the application went on."""
    reason = removed.reason.lower()
    is_on_purpose = any(words in reason for words in _ON_PURPOSE)
    return bool(reason) and not is_on_purpose and removed.time_ms < end_ms - _SHUTDOWN_MS


def _spans_ms(log: ApplicationLog, end_ms: int) -> list[int]:
    """How long every executor whose start is known was up."""
    spans = []
    for name, added in log.executors.items():
        removed = log.removed.get(name)
        until_ms = end_ms if removed is None else removed.time_ms
        if added.time_ms >= 0:
            spans.append(max(0, until_ms - added.time_ms))
    return spans


def _restarts_ms(losses_ms: list[int], log: ApplicationLog) -> list[int]:
    """Times from losses to the next new executors; each executor replaces one that was lost."""
    added_ms = sorted(added.time_ms for added in log.executors.values())
    waits = []
    at = 0
    for loss_ms in losses_ms:
        while at < len(added_ms) and added_ms[at] < loss_ms:
            at += 1
        if at == len(added_ms):
            break
        waits.append(added_ms[at] - loss_ms)
        at += 1
    return waits


SOURCE = "Spark event logs"


@dataclass(eq=False)
class _Tally:
    """Counts over all logs, for the report."""

    lines: LineTally
    num_unknown_slots: int = 0
    versions: set[str] = field(default_factory=set)
    attempts: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    faults: list[LoggedFaults] = field(default_factory=list)


@saying_what_reads("spark-events")
def read_spark_event_logs(
    paths: Sequence[Path],
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
        paths: event logs: files (plain, zstd, lz4 or gzip; complete, or truncated `.inprogress`),
            rolling `eventlog_v2_` directories, zip downloads of the history server, or folders that
            contain any of them.
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
        FormatError: no event log; a damaged, compacted or incomplete log; too many unreadable
            lines; or no completed job in any of the logs.

    Example: `workload, report = read_spark_event_logs([Path("/tmp/spark-events")])`.
    """
    logged = read_runs(paths, key=key, max_bad_share=max_bad_share, progress=progress)
    return logged.workload(name, recorded=recorded, keep_first_runs=keep_first_runs)


@dataclass(frozen=True)
class LoggedRuns:
    """The runs of jobs in event logs, of which workloads are made."""

    logs: FoundLogs
    runs: list[JobRun]
    tally: _Tally
    provenance: dict[str, str]

    def workload(
        self, name: str = "spark", *, recorded: bool = False, keep_first_runs: bool = False
    ) -> tuple[Workload, ImportReport]:
        """Make a workload; see `read_spark_event_logs`."""
        try:
            workload, notes = (
                workload_of_runs(name, self.runs, self.provenance)
                if recorded
                else workload_of_jobs(
                    name, self.runs, self.provenance, keep_first_runs=keep_first_runs
                )
            )
        except WorkloadError as error:
            raise FormatError(f"the log is inconsistent: {error}; download it again") from error
        tally = self.tally
        workload = replace(workload, faults=combined(tally.faults))
        notes = [*self.logs.notes, *_notes(tally, workload.jobs), *notes]
        if MEASURED_ALONE in self.provenance:
            notes.append(
                "Jobs ran one at a time: their durations do not show how tasks slow down when jobs "
                "share a cluster."
            )
        report = ImportReport(
            SOURCE,
            sum(len(source.parts) for source in self.logs.sources),
            tally.lines.num_rows,
            tally.lines.bad.count,
            tally.lines.bad.samples,
            tuple(notes),
            len(workload.jobs),
        )
        return workload, report


@saying_what_reads("spark-events")
def read_runs(
    paths: Sequence[Path],
    *,
    key: str | None = None,
    max_bad_share: float = 0.01,
    progress: Progress | None = None,
) -> LoggedRuns:
    """Read the runs of jobs in event logs once, for several workloads."""
    logs = find_logs([Path(path) for path in paths])
    tally = _Tally(LineTally(BadRows(max_bad_share)))
    runs = _read_runs(logs.sources, key, tally, progress)
    # Refuse too many bad lines before any merging.
    tally.lines.bad.finish(tally.lines.num_rows)
    if not runs:
        raise FormatError(_no_jobs_message(logs.sources, tally))
    provenance = _provenance(logs.sources, tally, key)
    if are_one_at_a_time(runs):
        provenance[MEASURED_ALONE] = f"{counted(len(runs), 'run')}, hardly two at the same time"
    return LoggedRuns(logs, runs, tally, provenance)


def _read_runs(
    sources: Sequence[LogSource], key: str | None, tally: _Tally, progress: Progress | None
) -> list[JobRun]:
    """The runs of all logs; the tally counts what else is in them."""
    runs: list[JobRun] = []
    # One application at a time: only the runs of its jobs, with their durations, stay in memory.
    for log in read_applications(sources, tally.lines, progress):
        runs += job_runs(log, key, tally.dropped)
        tally.lines.count_missing(log, key)
        tally.num_unknown_slots += UNKNOWN_SLOTS in log.slots_of_executor()
        tally.versions.add(log.version or "unknown")
        tally.attempts.update(log.count_attempts())
        tally.faults.append(logged_faults(log))
    return runs


def _no_jobs_message(sources: Sequence[LogSource], tally: _Tally) -> str:
    names = ", ".join(source.name for source in sources[:3]) + (", ..." if len(sources) > 3 else "")
    reasons = (
        "; ".join(f"{counted(count, 'job')} {reason}" for reason, count in tally.dropped.items())
        or "the log contains no job at all"
    )
    return (
        f"no completed job in {names} ({reasons}); "
        "import logs of batch jobs or queries that finished "
        "(and check the property given as the key)"
    )


def _provenance(sources: Sequence[LogSource], tally: _Tally, key: str | None) -> dict[str, str]:
    names = [source.name for source in sources]
    return {
        "source": SOURCE,
        "logs": ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else ""),
        "spark_versions": ", ".join(sorted(tally.versions)),
        "recurring_job_key": key or "job group, description or call site",
    }


def _notes(tally: _Tally, jobs: Sequence[JobSpec]) -> list[str]:
    """Sentences for the user about the import."""
    dropped = sorted(tally.dropped.items())
    notes = [f"Left out {counted(count, 'job')} that {reason}." for reason, count in dropped]
    lost = [f"{count:,} {what}" for what, count in tally.attempts.items() if count]
    if lost:
        notes.append(
            "Durations are of successful task attempts; "
            f"among the attempts were: {', '.join(lost)}."
        )
    notes.append(f"Faults in the logs (--faults log simulates them): {combined(tally.faults)}.")
    notes += tally.lines.notes()
    if tally.num_unknown_slots:
        notes.append(
            "The number of cores of executors is missing in "
            f"{counted(tally.num_unknown_slots, 'log')}; inferred from overlapping tasks."
        )
    notes.append(
        f"Task durations were measured at parallelism {', '.join(_levels(jobs))}; "
        "elsewhere they are modelled."
    )
    return notes


def _levels(jobs: Iterable[JobSpec]) -> list[str]:
    """The levels of parallelism at which durations were measured, ascending."""
    levels = {level for job in jobs for stage in job.stages for level in stage.durations.levels}
    return [str(level) for level in sorted(levels)]
