"""Converts one application's log into runs of jobs, each with the DAG of its stages."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from parcae.base.arrays import Int64Array
from parcae.workloads.spark_log.application import (
    POOL_PROPERTY,
    ApplicationLog,
    SqlRecord,
    StageInfo,
    StageRecord,
)
from parcae.workloads.spark_log.durations import (
    FreeTime,
    PlacedTasks,
    StageSamples,
    first_successes,
    own_finish_ms,
    place_tasks,
    replayed_ms,
    slot_changes,
    stage_samples,
)
from parcae.workloads.spark_log.losses import OF_OTHERS, UNLISTED, CheckedLog, LeftOut
from parcae.workloads.spark_log.naming import (
    Choice,
    JobGroup,
    LostStarts,
    callers_of,
    completion_ms,
    dbt_node,
    first_listing_job,
    job_groups,
    job_name,
    lost_starts,
    own_stages,
    shared_descriptions,
    stage_kind,
    stage_name,
    submission_ms,
    user_of,
)
from parcae.workloads.spark_log.plan import NAME_PROPERTY

#: Stages submitted within this time of each other are assumed to wait for the same event.
TOGETHER_MS = 50
#: What a query writes costs as much as reading it twice more: the rows are encoded and compressed.
WRITTEN = 3.0
#: A job of more stages is no query; what follows takes time with the square of their number.
MOST_STAGES = 10_000
#: Runs that overlap for at most this share of the time count as runs one at a time.
_TOLERATED_OVERLAP = 0.01


@dataclass(eq=False)
class StageRun:
    """One run of one stage.

    `name` is for display; `kind` is the same in every run. Parents are indices within the job's
    run; `control_parents` are inferred from timing. `spark_job` numbers the Spark jobs of the run
    from 0. `replayed_ms` are durations in order of launch, see `durations.replayed_ms`. For
    `waited_ms` a slot was free between its first and its last launch (locality, new executors). A
    stage that `is_startup` is the first of its application: its lag is not that of a warm driver.
    One that `is_filled` has the durations of another run, see `profile.filled`.
    """

    name: str
    kind: str
    num_tasks: int
    parents: frozenset[int]
    control_parents: frozenset[int]
    samples: StageSamples
    gap_ms: int = 0
    lag_ms: int = 0
    spark_job: int = -1
    waited_ms: int = 0
    is_startup: bool = False
    replayed_ms: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    is_filled: bool = False

    @property
    def is_lost(self) -> bool:
        """Whether the log has the end of none of its tasks."""
        return not any(one.size for one in self.samples.by_wave)


@dataclass(eq=False)
class JobRun:
    """One run of a recurring job, its stages in order of submission.

    `submission_ms` and `end_ms` are wall-clock times; an unknown end is -1. `waits_with` are what
    the runs of one caller have in common (see `number_sessions`, which sets `session` and
    `pause_ms`): the server's session, the job group. `application`
    identifies the application (each application starts cold). `pool` is Spark's scheduler pool, and
    `user` the person, "" if none was set. `slots` are the changes of the application's task slots,
    see `durations.slot_changes`. `task_ms` is the log's time of its successful tasks.
    """

    name: str
    submission_ms: int
    stages: list[StageRun]
    application: str = ""
    pool: str = ""
    end_ms: int = -1
    user: str = ""
    tail_ms: int = 0
    slots: Sequence[tuple[int, int]] = ()
    waits_with: tuple[tuple[str, ...], str] = ((), "")
    session: int = -1
    pause_ms: int = -1
    task_ms: int = 0
    scan_bytes: float = 0.0
    #: The account that submitted the application, and YARN's queue.
    owner: str = ""
    queue: str = ""
    #: Under which Spark's plugin knows it: what a user calls it, and its plans; outside SQL `name`.
    names: tuple[str, ...] = ()


def are_one_at_a_time(runs: Sequence[JobRun]) -> bool:
    """Whether there are several runs with known ends, and hardly ever two at the same time.

    Runs of all applications count. Overlaps of 1% of the time are tolerated.
    """
    if len(runs) < 2 or any(run.end_ms < run.submission_ms for run in runs):
        return False
    in_order = sorted(runs, key=lambda run: run.submission_ms)
    busy_until_ms = in_order[0].submission_ms
    busy_ms = 0
    shared_ms = 0
    for run in in_order:
        shared_ms += max(0, min(busy_until_ms, run.end_ms) - run.submission_ms)
        busy_ms += max(0, run.end_ms - max(busy_until_ms, run.submission_ms))
        busy_until_ms = max(busy_until_ms, run.end_ms)
    return shared_ms <= _TOLERATED_OVERLAP * busy_ms


def job_runs(
    checked: CheckedLog, key: str | None, left_out: LeftOut, choice: Choice
) -> tuple[list[JobRun], list[tuple[int, int]]]:
    """Every completed run of a job in the log, in order of submission; and how its slots changed,
    see `durations.slot_changes`.
    """
    log = checked.log
    shared = shared_descriptions(log)
    named = [(group, job_name(group, log.settings, key, shared)) for group in job_groups(log)]
    unnamed = [job for group, name in named if name is None for job in group.jobs]
    ignored_stages = {info.stage_id for job in unnamed for info in job.stages}
    placed = place_tasks(checked.tasks, log.slots_of_executor(), ignored_stages)
    # For every stage the rows of its task attempts, in order.
    by_stage = np.argsort(placed.tasks.stage_id, kind="stable")
    ids, starts = np.unique(placed.tasks.stage_id[by_stage], return_index=True)
    rows = dict(zip(ids.tolist(), np.split(by_stage, starts)[1:], strict=True))
    slots = slot_changes(log, placed)
    left_ms = own_finish_ms(placed)
    free = FreeTime(slots, placed.tasks._replace(finish_ms=left_ms))
    owner = first_listing_job(log)
    application = _Application(
        log, checked, placed, rows, owner, lost_starts(log), slots, free, left_ms
    )
    left_out.task_ms[UNLISTED] += checked.unlisted_ms
    runs = []
    for group, name in named:
        own = own_stages(group, owner)
        task_ms = checked.task_ms(own)
        is_wanted = choice.has(group, log)
        if name is None or not is_wanted:
            why = f"did not carry the property {key!r}" if is_wanted else OF_OTHERS
            left_out.add(why, task_ms, is_unwanted=True)
            checked.add_other(own)
        elif wrong := checked.what_is_wrong(group, own):
            left_out.add(wrong[0], task_ms, f"{name} ({wrong[1]})")
        elif isinstance(run := _job_run(name, group, own, application), str):
            attempt = f" (attempt {log.attempt_id} of {log.app_id})" if log.attempt_id else ""
            left_out.add(run, task_ms, f"{name}{attempt}")
            checked.add_other(own)
        else:
            run.task_ms = task_ms
            runs.append(run)
    return sorted(runs, key=lambda run: run.submission_ms), slots


@dataclass(frozen=True, eq=False)
class _Application:
    """A log with its task attempts, their rows by stage, the job that each stage belongs to, what
    belongs to jobs whose start is missing, when slots were free, and when every attempt left its
    slot.
    """

    log: ApplicationLog
    checked: CheckedLog
    placed: PlacedTasks
    rows: dict[int, Int64Array]
    owner: dict[int, int]
    lost: LostStarts
    slots: Sequence[tuple[int, int]]
    free: FreeTime
    left_ms: Int64Array

    @cached_property
    def _row_bytes(self) -> dict[str, int]:
        return self.log.row_bytes()

    def scan_bytes(self, executions: Sequence[SqlRecord]) -> float:
        """See `JobSpec.scan_bytes`."""
        return sum(
            num_bytes
            * (WRITTEN if execution.plan.is_write else 1.0)
            * (scan.row_bytes / self._row_bytes[scan.table])
            for execution in executions
            for scan, num_bytes in execution.scanned.items()
        )

    @cached_property
    def startup_stage(self) -> int:
        """The stage that was submitted first."""
        return min(self.rows, key=lambda stage_id: int(self.rows[stage_id][0]))

    def samples(self, stage_ids: list[int]) -> dict[int, StageSamples]:
        """The samples of every stage of a job; none where no end of a task is in the log."""
        rows = {stage_id: self._rows(stage_id) for stage_id in stage_ids}
        return {stage_id: stage_samples(self.placed, rows, stage_id) for stage_id in stage_ids}

    def _rows(self, stage_id: int) -> Int64Array:
        return self.rows.get(stage_id, np.zeros(0, np.int64))

    def _succeeded(self, stage_id: int) -> Int64Array:
        return first_successes(self.placed.tasks, self._rows(stage_id))

    def end_of(self, stage_id: int, record: StageRecord) -> int:
        """When the last task of a stage ended; with missing task ends, when the stage did."""
        succeeded = self._succeeded(stage_id)
        last_ms = int(self.left_ms[succeeded].max(initial=-1))
        return max(last_ms, record.completion_ms) if is_torn(record, succeeded) else last_ms

    def lag_ms(self, stage_id: int, record: StageRecord) -> int:
        """The lag of a stage; 0 where task ends are missing."""
        succeeded = self._succeeded(stage_id)
        if record.submission_ms < 0 or is_torn(record, succeeded):
            return 0
        launched_ms = int(self.placed.tasks.launch_ms[succeeded].min())
        return self.free.between(record.submission_ms, launched_ms)

    def waited_ms(self, stage_id: int) -> int:
        """For how long a slot was free while tasks of a stage had to wait for another one."""
        launch_ms = self.placed.tasks.launch_ms[self._succeeded(stage_id)]
        if launch_ms.size == 0:
            return 0
        return self.free.between(int(launch_ms.min()), int(launch_ms.max()))

    def replayed_ms(self, stage_id: int) -> Int64Array:
        """The durations of a stage's tasks, for a replay."""
        succeeded = self._succeeded(stage_id)
        return replayed_ms(self.placed.tasks, self.left_ms, self._rows(stage_id), succeeded)

    @cached_property
    def _num_slots(self) -> int:
        return max(itertools.accumulate(change for _, change in self.slots), default=1)

    def num_tasks(self, record: StageRecord, samples: StageSamples) -> int:
        """The tasks of a stage; without those that lack an end and had no time on its slots."""
        num_tasks = record.info.num_tasks
        measured_ms = np.concatenate(samples.by_wave)
        if record.info.stage_id not in self.checked.lost_ends or measured_ms.size == 0:
            return num_tasks
        took_ms = max(0, record.completion_ms - max(0, record.submission_ms))
        fitting = math.ceil(took_ms * self._num_slots / max(1.0, float(measured_ms.mean())))
        return min(num_tasks, max(measured_ms.size, fitting))


def is_torn(record: StageRecord, succeeded: Int64Array) -> bool:
    """Whether ends of the stage's tasks are missing in the log."""
    return succeeded.size < record.info.num_tasks


def _job_run(
    name: str, group: JobGroup, own: Sequence[int], application: _Application
) -> JobRun | str:
    """The run of one group, or the reason why it is left out."""
    log = application.log
    if not group.is_ended(log):
        return "had not ended when the log did"
    if not group.is_successful(log):
        return "failed"
    if application.lost.touch(group):
        return "had a Spark job whose start is missing in the log"
    if any(map(log.lacks_end_of, own)):
        return "had a stage whose end is missing in the log"
    # Stages that were skipped have neither tasks nor a completion event.
    kept = {
        stage_id: record
        for stage_id in own
        if (record := log.stages.get(stage_id)) and record.is_success and record.info.num_tasks > 0
    }
    infos = {info.stage_id: info for job in group.jobs for info in job.stages}
    infos |= {stage_id: record.info for stage_id, record in kept.items()}
    if len(kept) > MOST_STAGES:
        return f"had more than {MOST_STAGES:,} stages"
    order = _in_order_of_submission(kept, infos)
    if not order:
        return "ran no stage (everything was skipped or empty)"
    samples = application.samples(order)
    position = {stage_id: index for index, stage_id in enumerate(order)}
    parents = _data_parents(group, kept, infos, position)
    control = _control_parents(group, kept, position, parents)
    records = [kept[stage_id] for stage_id in order]
    arrival_ms = submission_ms(group, records) or 0
    end_ms = completion_ms(group, log, records) or -1
    ended_ms = {stage_id: application.end_of(stage_id, kept[stage_id]) for stage_id in order}
    spark_jobs = sorted({application.owner[stage_id] for stage_id in order})
    stages = [
        StageRun(
            name=stage_name(kept[stage_id], group.executions),
            kind=stage_kind(kept[stage_id].info),
            num_tasks=application.num_tasks(kept[stage_id], samples[stage_id]),
            parents=frozenset(position[p] for p in parents[stage_id]),
            control_parents=frozenset(position[p] for p in control[stage_id]),
            samples=samples[stage_id],
            gap_ms=_gap_ms(
                kept[stage_id].submission_ms,
                arrival_ms,
                [ended_ms[parent] for parent in parents[stage_id] | control[stage_id]],
            ),
            lag_ms=application.lag_ms(stage_id, kept[stage_id]),
            waited_ms=application.waited_ms(stage_id),
            spark_job=spark_jobs.index(application.owner[stage_id]),
            is_startup=stage_id == application.startup_stage,
            replayed_ms=application.replayed_ms(stage_id),
        )
        for stage_id in order
    ]
    return JobRun(
        name,
        arrival_ms,
        stages,
        f"{log.label} {log.app_id}",
        # That of the first Spark job with a pool.
        next(filter(None, (job.properties.get(POOL_PROPERTY) for job in group.jobs)), ""),
        end_ms,
        user_of(group, log, name),
        max(0, end_ms - max(ended_ms.values())),
        application.slots,
        waits_with=callers_of(group, log),
        scan_bytes=application.scan_bytes(group.executions),
        owner=log.owner,
        queue=log.queue,
        names=_plugin_names(name, group),
    )


def _plugin_names(name: str, group: JobGroup) -> tuple[str, ...]:
    given = (job.properties.get(NAME_PROPERTY) for job in group.jobs[:1])
    node = dbt_node(JobGroup(group.jobs[:1], group.executions))
    plans = (one.plan_names for one in group.executions if one.plan_names)
    of_plans = [label for one in plans for label in (one.plan, one.shape)]
    return tuple(filter(None, dict.fromkeys([*given, node, *(of_plans or [name])])))


def _gap_ms(submitted_ms: int, arrival_ms: int, parents_ended_ms: list[int]) -> int:
    """The gap of a stage; 0 where the log lacks its submission."""
    return max(0, submitted_ms - max([arrival_ms, *parents_ended_ms])) if submitted_ms >= 0 else 0


def _in_order_of_submission(kept: dict[int, StageRecord], infos: dict[int, StageInfo]) -> list[int]:
    """The stages that ran, in order of submission.

    Where the clock stepped back, a stage was submitted when the last of its parents was. `infos`
    contain skipped stages, too: they were submitted when the stage of the same RDD was.
    """
    submitted_ms: dict[int, int] = {}
    of_rdd_ms: dict[int, int] = {}
    # Spark numbers a stage after its parents.
    for stage_id, info in sorted(infos.items()):
        ran = kept.get(stage_id)
        own_ms = of_rdd_ms.get(info.top_rdd, -1) if ran is None else ran.submission_ms
        of_parents_ms = [submitted_ms[p] for p in info.parents or () if p in submitted_ms]
        submitted_ms[stage_id] = max([own_ms, *of_parents_ms])
        if ran is not None and info.top_rdd >= 0:
            of_rdd_ms[info.top_rdd] = submitted_ms[stage_id]
    return sorted(kept, key=lambda stage_id: (submitted_ms[stage_id], stage_id))


def _data_parents(
    group: JobGroup,
    kept: dict[int, StageRecord],
    infos: dict[int, StageInfo],
    position: dict[int, int],
) -> dict[int, set[int]]:
    """Parents of every stage, without those inferred from timing.

    They follow from Parent IDs (skipped stages are resolved), broadcasts and subqueries.
    """
    by_rdd: dict[int, list[int]] = defaultdict(list)
    # `position` is in order of submission, so the stages of one RDD are in that order, too.
    for stage_id in position:
        by_rdd[kept[stage_id].info.top_rdd].append(stage_id)
    parents = {
        stage_id: _executed_parents(stage_id, infos, by_rdd, position) for stage_id in position
    }
    # An edge must go forward in time, so that the graph stays acyclic.
    for producer, consumer in _linked_stages(group.executions, kept):
        if position[producer] < position[consumer]:
            parents[consumer].add(producer)
    return parents


def _executed_parents(
    stage_id: int,
    infos: dict[int, StageInfo],
    by_rdd: dict[int, list[int]],
    position: dict[int, int],
) -> set[int]:
    """The stages that ran and whose output this stage reads.

    A skipped parent is replaced by the stage with the same highest RDD id that ran before. A parent
    that never ran in this job (its output existed from an earlier job, or it had no tasks) is
    replaced by its parents.
    """
    executed: set[int] = set()
    seen: set[int] = set()
    pending = list(infos[stage_id].parents or ())
    while pending:
        parent = pending.pop()
        if parent in seen:
            continue
        seen.add(parent)
        info = infos.get(parent)
        same_rdd = by_rdd.get(info.top_rdd, []) if info and info.top_rdd >= 0 else []
        ran = [parent] if parent in position else same_rdd
        before = [candidate for candidate in ran if position[candidate] < position[stage_id]]
        if before:
            executed.add(before[-1])
        elif info:
            pending += info.parents or ()
    return executed


def _linked_stages(
    executions: list[SqlRecord], kept: dict[int, StageRecord]
) -> Iterator[tuple[int, int]]:
    """Pairs (producer, consumer) of stages that a broadcast or a subquery connects.

    Stages are identified by the SQL metrics that their tasks updated.
    """
    stages_of: dict[int, set[int]] = defaultdict(set)
    for stage_id, record in kept.items():
        for accumulator in record.accumulators:
            stages_of[accumulator].add(stage_id)
    for link in (link for execution in executions for link in execution.plan.links):
        producers = {stage for a in link.producer for stage in stages_of.get(a, ())}
        for accumulators in link.consumers if producers else ():
            consumers = {stage for a in accumulators for stage in stages_of.get(a, ())} - producers
            if consumers:
                yield from itertools.product(producers, consumers)
                break  # the nearest operators above that ran as a stage are the consumers


def _control_parents(
    group: JobGroup,
    kept: dict[int, StageRecord],
    position: dict[int, int],
    parents: dict[int, set[int]],
) -> dict[int, set[int]]:
    """Edges from stages without readers to the stages submitted next, inferred from timing.

    The last stage of the job has no such edge. An example is the sampling job of an ORDER BY: its
    result, the ranges, reaches the sort through the driver.
    """
    # In order of submission.
    order = list(position)
    control: dict[int, set[int]] = {stage_id: set() for stage_id in order}
    read = set().union(*parents.values())
    job_of = {info.stage_id: job.job_id for job in group.jobs for info in job.stages}
    for index, sink in enumerate(order):
        done_ms = kept[sink].completion_ms
        later = [s for s in order[index + 1 :] if kept[s].submission_ms >= done_ms]
        if sink in read or not later:
            continue
        first = later[0]
        limit_ms = kept[first].submission_ms + TOGETHER_MS
        next_stages = {
            s for s in later if job_of[s] == job_of[first] or kept[s].submission_ms <= limit_ms
        }
        for stage_id in next_stages:
            # A stage with a parent among them waits for that parent instead.
            if not parents[stage_id] & next_stages:
                control[stage_id].add(sink)
    return control
