"""Reads Spark event logs (Spark 1.3 to 4.x) into a workload of recurring jobs with measured
tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson

from parcae.base.errors import FormatError, WorkloadError
from parcae.base.urls import Copies, shown
from parcae.workloads.describe import LOST_ENDS, MEASURED_ALONE, TASK_TIME, TASK_TIME_LEFT_OUT
from parcae.workloads.import_report import BadRows, ImportReport, Progress, counted
from parcae.workloads.job import JobSpec, LoggedFaults, combined
from parcae.workloads.readers import saying_what_reads
from parcae.workloads.recorded_run import workload_of_jobs, workload_of_runs
from parcae.workloads.spark_log.activity import LoggedActivity
from parcae.workloads.spark_log.application import (
    UNKNOWN_SLOTS,
    ApplicationLog,
    ExecutorRemoved,
    Outcome,
    TaskColumns,
)
from parcae.workloads.spark_log.dag import JobRun, are_one_at_a_time, job_runs
from parcae.workloads.spark_log.events import BadLine, add_event
from parcae.workloads.spark_log.files import LogPart, LogSource, find_logs, read_lines
from parcae.workloads.spark_log.logged_order import (
    LOGGED_ORDER,
    LOGGED_POLICY,
    LoggedOrder,
    logged_order,
    provenance_of,
)
from parcae.workloads.spark_log.losses import MUCH_LOST, CheckedLog, LeftOut, LostEnds
from parcae.workloads.spark_log.naming import Choice, job_groups, lost_starts, queries_without_plan
from parcae.workloads.spark_log.profile import filled
from parcae.workloads.spark_log.sessions import find_sessions
from parcae.workloads.workload import CORES_PER_TASK, WORK_FACTOR, Workload

#: Called with the log of an application, and how its task slots changed.
Seen = Callable[[CheckedLog, Sequence[tuple[int, int]]], None]
_ALL = Choice()


class LogReading:
    """Event logs that are read one application at a time, and counts over all of them.

    `key` is what names the jobs. Whoever makes jobs of the applications fills `left_out`.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        key: str | None = None,
        max_bad_share: float = 0.01,
        progress: Progress | None = None,
        choice: Choice = _ALL,
    ) -> None:
        # Copies of logs at addresses are removed with this object.
        self._copies = Copies()
        try:
            self.logs = find_logs(self._copies.local(paths))
        except FormatError as error:
            raise FormatError(shown(error)) from error
        self.key = key
        self.choice = choice
        #: Users and queues of the applications that are left out.
        self._others: tuple[dict[str, None], dict[str, None]] = ({}, {})
        self._num_others = 0
        self.bad = BadRows(max_bad_share)
        self.num_rows = 0
        self.left_out = LeftOut()
        self.lost_ends = LostEnds()
        self._refused: list[str] = []
        self._missing = Counter[str]()
        self._progress = progress
        self._total = sum(part.size for source in self.logs.sources for part in source.parts)
        self._done = 0

    def applications(self) -> Iterator[CheckedLog]:
        """Read the logs. One of several that cannot be read is left out."""
        for source in self.logs.sources:
            before = self.num_rows
            try:
                checked = self._read(source)
            except FormatError as error:
                if len(self.logs.sources) == 1:
                    raise
                self.num_rows = before
                self._refused.append(shown(f"Left out {source.label}: {error}."))
            else:
                if self._is_wanted(checked.log):
                    yield checked

    def _is_wanted(self, log: ApplicationLog) -> bool:
        """Whether any job of an application is wanted."""
        if self.choice == _ALL or any(self.choice.has(group, log) for group in job_groups(log)):
            return True
        self._num_others += 1
        for names, name in zip(self._others, (log.owner, log.queue), strict=True):
            names[name or "none"] = None
        return False

    def _read(self, source: LogSource) -> CheckedLog:
        """Read one log; too many bad lines are refused."""
        log = ApplicationLog(source.name)
        bad = BadRows(self.bad.max_share)
        before = self.num_rows
        *earlier, last = source.parts
        for part in earlier:
            if not self._read_part(part, log, bad):
                raise FormatError(f"{part.label} is cut off, and parts follow it; copy it again")
        # The application was killed, or is still running: this is no bad line.
        is_cut = self._read_part(last, log, bad) is False
        bad.finish(self.num_rows - before)
        self.bad.include(bad)
        checked = CheckedLog(log)
        self._missing["lines"] += is_cut
        lost = lost_starts(log)
        self._missing["jobs"] += lost.num_jobs
        self._missing["tasks"] += lost.num_tasks
        self._missing["plans"] += queries_without_plan(log, self.key)
        self._missing["repeated"] += log.num_repeated
        self.lost_ends.add(checked, f" of {source.name}" if len(self.logs.sources) > 1 else "")
        return checked

    def _read_part(self, part: LogPart, log: ApplicationLog, bad: BadRows) -> bool | None:
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
                add_event(log, line)
            except BadLine as error:
                bad.add(part.label, number, str(error))
                # This is no log: its end need not be waited for.
                if bad.count > max(_MANY_BAD, self.num_rows // 2):
                    bad.finish(self.num_rows)
        return is_complete

    def _advance(self, num_bytes: int) -> None:
        self._done = min(self._total, self._done + num_bytes)
        if self._progress is not None:
            self._progress(self._done, self._total)

    @property
    def labels(self) -> str:
        """The logs in messages: the first of them."""
        names = [source.label for source in self.logs.sources]
        return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")

    def no_jobs(self, what: str = "") -> FormatError:
        """The error for logs without a completed job; `what` says which others there are."""
        reasons = [*self.left_out.in_short(), *self._refused]
        reasons += (note.removesuffix(".") for note in self._notes_of_others())
        found = "; ".join(filter(None, [what, *reasons])) or "the log contains no job at all"
        return FormatError(
            f"no completed job in {self.labels} "
            f"({found}); import logs of batch jobs or queries that finished "
            "(and check the property given as --key)"
        )

    def provenance(self) -> dict[str, str]:
        """How much of the logs' task time is in the jobs that were kept, and what is not."""
        left_out, ends = self.left_out, self.lost_ends
        lost_ms = left_out.lost_ms
        is_much = lost_ms > MUCH_LOST * (left_out.kept_ms + lost_ms)
        return {
            TASK_TIME: left_out.share,
            **({TASK_TIME_LEFT_OUT: left_out.reasons} if is_much else {}),
            **({LOST_ENDS: str(ends)} if ends.num_lost else {}),
            **({WORK_FACTOR: f"{left_out.factor:.9g}"} if left_out.factor > 1 else {}),
        }

    def notes_of_jobs(self) -> list[str]:
        """Sentences for the user on jobs that are left out."""
        return [*self._refused, *self._notes_of_others(), *self.left_out.sentences()]

    def _notes_of_others(self) -> list[str]:
        if not self._num_others:
            return []
        users, queues = (", ".join(names) for names in self._others)
        return [
            f"Left out {counted(self._num_others, 'application')} without a job of that user and "
            f"queue (submitted by: {users}; queues: {queues})."
        ]

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
            "repeated": f"Left out {counted(missing['repeated'], 'repeated task end')}.",
            "plans": f"{plans:,} SQL {has} no plan in the log; {keeps}.",
        }
        lost = [self.lost_ends.sentence] if self.lost_ends.num_lost else []
        return [*lost, *(sentence for what, sentence in sentences.items() if missing[what])]


#: As many bad lines at least are read before a file is given up, most of whose lines are bad.
_MANY_BAD = 100_000
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


def logged_faults(log: ApplicationLog, tasks: TaskColumns) -> LoggedFaults:
    """Count failed attempts, speculative copies, lost executors and the time of executors."""
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
#: Users and queues that a note names.
_SHOWN = 10


@saying_what_reads("spark-events")
def read_spark_event_logs(
    paths: Sequence[str | Path],
    *,
    name: str = "spark",
    key: str | None = None,
    user: str | None = None,
    queue: str | None = None,
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
        user: keep only jobs of people whose names fit this pattern, such as "etl-*".
        queue: keep only applications in YARN's queues whose names fit this pattern.
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
    logged = read_runs(
        paths, key=key, user=user, queue=queue, max_bad_share=max_bad_share, progress=progress
    )
    return logged.workload(name, recorded=recorded, keep_first_runs=keep_first_runs)


@saying_what_reads("spark-events")
def read_runs(
    paths: Sequence[str | Path],
    *,
    key: str | None = None,
    user: str | None = None,
    queue: str | None = None,
    max_bad_share: float = 0.01,
    progress: Progress | None = None,
    seen: Seen | None = None,
) -> LoggedRuns:
    """Read the runs of jobs in event logs once, for several workloads; `seen` gets each log."""
    reading = LogReading(paths, key, max_bad_share, progress, Choice(user, queue))
    logged = LoggedRuns(reading)
    # One application at a time: only the runs of its jobs, with their durations, stay in memory.
    for checked in reading.applications():
        slots = logged.add(checked)
        if seen is not None:
            seen(checked, slots)
    logged.runs = filled(logged.runs, reading.left_out)
    reading.left_out.kept_ms = sum(run.task_ms for run in logged.runs)
    if not logged.runs:
        raise reading.no_jobs()
    # The account that submitted everything tells nobody apart.
    if len({run.owner for run in logged.runs}) > 1:
        for run in logged.runs:
            run.user = run.user or run.owner
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
    #: By application, the order that its scheduler had.
    orders: dict[str, LoggedOrder] = field(default_factory=dict)

    def add(self, checked: CheckedLog) -> list[tuple[int, int]]:
        """Add the runs of an application; how its slots changed, see `durations.slot_changes`."""
        log = checked.log
        reading = self.reading
        runs, slots = job_runs(checked, reading.key, reading.left_out, reading.choice)
        self.runs += runs
        self.activity.add(checked, runs, slots)
        self.num_unknown_slots += UNKNOWN_SLOTS in log.slots_of_executor()
        self.versions.add(log.version or "unknown")
        self.attempts.update(log.count_attempts(checked.tasks))
        self.faults.append(logged_faults(log, checked.tasks))
        self.task_cores.update(log.cores_per_task())
        if runs:
            pools = [run.pool for run in runs]
            order = logged_order(log.settings, log.version, pools)
            self.orders[runs[0].application] = order
        return slots

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
            **self.activity.provenance(self.cores_per_task, self.reading.left_out.factor),
            **self.reading.provenance(),
            **provenance_of(self.orders.values()),
        }
        of_sessions, alone = find_sessions(self.runs)
        provenance |= of_sessions
        if self.cores_per_task > 1:
            provenance[CORES_PER_TASK] = str(self.cores_per_task)
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
            label = self.reading.labels
            raise FormatError(f"{label}: inconsistent: {error}; download it again") from error
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
                _order_note(provenance),
                *self.activity.notes(self.cores_per_task),
            ),
            len(workload.jobs),
            self,
        )
        return replace(workload, faults=combined(self.faults)), report

    def _notes(self, jobs: Sequence[JobSpec]) -> list[str]:
        """Sentences for the user about the import."""
        notes = self.reading.notes_of_jobs()
        left_out = self.reading.left_out
        for what, names in (
            ("user", [run.user or run.owner for run in self.runs]),
            ("queue", [run.queue for run in self.runs]),
        ):
            notes += _by(what, names, [run.task_ms for run in self.runs])
        rest = f"; the rest: {left_out.reasons}" if left_out.reasons else ""
        ends = self.reading.lost_ends
        known = ", as far as task ends are there" if ends.num_lost else ""
        notes.append(f"The jobs have {left_out.share} of the task time in the log{known}{rest}.")
        lost = [f"{count:,} {what}" for what, count in self.attempts.items() if count]
        if lost:
            notes.append(
                "Durations are of successful task attempts; "
                f"among the attempts were: {', '.join(lost)}."
            )
        faults = combined(self.faults)
        notes.append(f"Faults in the logs (--faults log simulates them): {faults}.")
        notes += self.reading.notes_of_lines()
        if ends.num_lost:
            num_filled = sum(stage.is_filled for run in self.runs for stage in run.stages)
            as_in = f"; {counted(num_filled, 'stage')} without any as in the job's nearest run"
            notes.append(
                "Tasks without an end take as long as the others of their stage, as far as its "
                f"cores had the time for them{as_in if num_filled else ''}."
            )
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


def _by(what: str, names: Sequence[str], task_ms: Sequence[int]) -> list[str]:
    """A sentence on the task time of users or queues, if there are several."""
    sums = Counter[str]()
    for name, ms in zip(names, task_ms, strict=True):
        sums[name or "none"] += ms
    total_ms = max(1, sums.total())
    shares = [f"{name} {ms / total_ms:.0%}" for name, ms in sums.most_common(_SHOWN)]
    more = [f"{len(sums) - _SHOWN:,} more"] if len(sums) > _SHOWN else []
    return [f"Task time by {what}: {', '.join([*shares, *more])}."] if len(sums) > 1 else []


def _order_note(provenance: Mapping[str, str]) -> str:
    """A sentence on the order that the logged cluster had."""
    policy = provenance.get(LOGGED_POLICY, "")
    named = f" (policy {policy})" if policy else ""
    return f"Order of the logged cluster: {provenance[LOGGED_ORDER]}{named}."
