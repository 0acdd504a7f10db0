"""Reads Spark event logs (Spark 1.3 to 4.x) into a workload of recurring jobs with measured task durations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parcae.errors import FormatError, WorkloadError
from parcae.workloads.describe import FIRST_RUNS_LEFT_OUT, spread_of_recurring_jobs
from parcae.workloads.import_report import BadRows, ImportReport
from parcae.workloads.job import JobSpec, Workload
from parcae.workloads.spark.application import UNKNOWN_SLOTS
from parcae.workloads.spark.dag import JobRun, job_runs
from parcae.workloads.spark.files import LogSource, find_logs
from parcae.workloads.spark.profile import Profile, job_of_run, merge_runs
from parcae.workloads.spark.reading import LineTally, Progress, read_applications

SOURCE = "Spark event logs"


@dataclass(eq=False)
class _Tally:
    """What is counted over all logs, for the report."""

    lines: LineTally
    num_unknown_slots: int = 0
    versions: set[str] = field(default_factory=set)
    attempts: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


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
    """Read event logs into a workload: one job for each recurring job, weighted by how often it ran.

    A SQL query with all the Spark jobs that it starts is one job; outside SQL every Spark job is one. Runs of one name
    with the same DAG and alike task counts are merged, their task durations pooled by wave and by parallelism (slots
    that the job held while the stage ran) and scaled to those of the median run; how much runs differ is kept as
    `work_sigma` and `duration_sigma`. Logs are streamed; memory grows with the number of tasks (about 70 bytes each,
    for one application at a time), not with the size of the log.

    Args:
        paths: event logs: files (plain, zstd, lz4 or gzip; finished or torn `.inprogress`), rolling `eventlog_v2_`
            directories, zip downloads of the history server, or folders that hold any of them.
        name: what the workload is called.
        key: the Spark property that names recurring jobs (set with `sc.setLocalProperty`); jobs without it are left
            out, and do not count as having warmed an executor up (most read schemas). By default the job group names
            them, else the description, else the call site. "plan" and "shape" name SQL queries by their physical plan
            (`parcae.workloads.spark.fingerprint`).
        recorded: keep every run as a job of its own with its arrival (ms after the first submission) instead.
        keep_first_runs: profile a job's first run in an application like any other. By default it is left out where the
            job ran again there (code that is not compiled yet, cold caches: up to ten times slower); it still counts
            for the weights.
        max_bad_share: largest share of unreadable lines that is tolerated.
        progress: called with (bytes read, bytes in all).

    Raises:
        FormatError: no event log, a damaged one, a compacted or incomplete rolling one, too many unreadable lines, or
            no completed job in any of them.

    Example: `workload, report = read_spark_event_logs([Path("/tmp/spark-events")])`.
    """
    found = find_logs([Path(path) for path in paths])
    tally = _Tally(LineTally(BadRows(max_bad_share)))
    runs: list[JobRun] = []
    for log in read_applications(found.sources, tally.lines, progress):
        runs += job_runs(log, key, tally.dropped)
        tally.num_unknown_slots += UNKNOWN_SLOTS in log.slots_of_executor()
        tally.versions.add(log.version or "unknown")
        tally.attempts.update(log.count_attempts())
    lines = tally.lines
    lines.bad.finish(lines.num_rows)
    if not runs:
        raise FormatError(_no_jobs_message(found.sources, tally))
    provenance = _provenance(found.sources, tally, key)
    if recorded:
        workload, notes = _recorded(name, runs, provenance)
    else:
        workload, notes = _recurring(name, runs, provenance, keep_first_runs)
    notes = [*found.notes, *_notes(tally, workload.jobs), *notes]
    num_files = sum(len(source.parts) for source in found.sources)
    report = ImportReport(
        SOURCE,
        num_files,
        lines.num_rows,
        lines.bad.count,
        lines.bad.samples,
        tuple(notes),
        len(workload.jobs),
    )
    return workload, report


def _recorded(
    name: str, runs: Sequence[JobRun], provenance: dict[str, str]
) -> tuple[Workload, list[str]]:
    """Every run as a job of its own in order of arrival, and a note."""
    in_order = sorted(runs, key=lambda run: run.submission_ms)
    start_ms = in_order[0].submission_ms
    try:
        jobs = tuple(job_of_run(run, run.submission_ms - start_ms) for run in in_order)
    except WorkloadError as error:
        raise _contradiction(error) from error
    span_ms = in_order[-1].submission_ms - start_ms
    note = f"Kept {_counted(len(runs), 'run')} with their arrivals over {span_ms} ms."
    return Workload(name, jobs, provenance=provenance), [note]


def _recurring(
    name: str, runs: Sequence[JobRun], provenance: dict[str, str], keep_first_runs: bool
) -> tuple[Workload, list[str]]:
    """The recurring jobs, weighted by how often they ran, and notes on how they came about."""
    try:
        profiles = merge_runs(runs, keep_first_runs=keep_first_runs)
    except WorkloadError as error:
        raise _contradiction(error) from error
    num_left_out = str(sum(profile.num_left_out for profile in profiles))
    weights = tuple(float(profile.num_runs) for profile in profiles)
    jobs = tuple(profile.job for profile in profiles)
    workload = Workload(name, jobs, weights, {**provenance, FIRST_RUNS_LEFT_OUT: num_left_out})
    return workload, _profile_notes(profiles, len(runs), workload)


def _contradiction(error: WorkloadError) -> FormatError:
    return FormatError(f"the log contradicts itself: {error}; fetch it again")


def _profile_notes(profiles: Sequence[Profile], num_runs: int, workload: Workload) -> list[str]:
    """How the recurring jobs came about, a sentence each."""
    merged = f"Merged {_counted(num_runs, 'run')} into {_counted(len(profiles), 'job')}"
    notes = [f"{merged}, matched by name, operators and DAG."]
    if any(profile.variant > 1 for profile in profiles):
        notes.append(
            "A job called 'name (2)' has the name of another, but another DAG or other task counts."
        )
    if num_left_out := sum(profile.num_left_out for profile in profiles):
        notes.append(
            f"Left out {_counted(num_left_out, 'first run')} of jobs that ran again in the same application: code that"
            " is not compiled yet and cold caches make them slow; --keep-first-runs keeps them."
        )
    if spread := spread_of_recurring_jobs(workload.jobs):
        notes.append(f"Profiles are those of median runs; spread kept: {spread}.")
    return notes


def _counted(count: int, noun: str) -> str:
    """The count with its noun: "1 job", "2 jobs"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _no_jobs_message(sources: Sequence[LogSource], tally: _Tally) -> str:
    names = ", ".join(source.name for source in sources[:3]) + (", ..." if len(sources) > 3 else "")
    reasons = (
        "; ".join(f"{_counted(count, 'job')} {reason}" for reason, count in tally.dropped.items())
        or "the log holds no job at all"
    )
    return (
        f"no completed job in {names} ({reasons}); import logs of batch jobs or queries that finished"
        " (and check the property given as the key)"
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
    """What the user should know, a sentence each."""
    dropped = sorted(tally.dropped.items())
    notes = [f"Left out {_counted(count, 'job')} that {reason}." for reason, count in dropped]
    lost = [f"{count:,} {what}" for what, count in tally.attempts.items() if count]
    if lost:
        notes.append(
            f"Durations are of successful task attempts; among the attempts were: {', '.join(lost)}."
        )
    if tally.lines.num_torn:
        notes.append(
            f"{_counted(tally.lines.num_torn, 'torn last line')} ignored; complete lines were kept."
        )
    if tally.num_unknown_slots:
        notes.append(
            f"Executors' cores are not told in {_counted(tally.num_unknown_slots, 'log')}; inferred from overlaps."
        )
    levels = sorted(
        {level for job in jobs for stage in job.stages for level in stage.durations.levels}
    )
    notes.append(
        f"Task durations were measured at parallelism {', '.join(map(str, levels))}; elsewhere they are modelled."
    )
    return notes
