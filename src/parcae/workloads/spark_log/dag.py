"""Converts one application's log into runs of jobs, each with the DAG of its stages."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parcae.workloads.spark_log.application import (
    POOL_PROPERTY,
    ApplicationLog,
    Int64Array,
    SqlRecord,
    StageRecord,
)
from parcae.workloads.spark_log.durations import (
    PlacedTasks,
    StageSamples,
    place_tasks,
    stage_samples,
)
from parcae.workloads.spark_log.events import StageInfo
from parcae.workloads.spark_log.naming import (
    JobGroup,
    LostStarts,
    completion_ms,
    first_listing_job,
    job_groups,
    job_name,
    lost_starts,
    own_stages,
    stage_kind,
    stage_name,
    submission_ms,
    user_of,
)

#: Stages submitted within this time of each other are assumed to wait for the same event.
TOGETHER_MS = 50
#: Runs that overlap for at most this share of the time count as runs one at a time.
_TOLERATED_OVERLAP = 0.01


@dataclass(eq=False)
class StageRun:
    """One run of one stage.

    `name` is for display; `kind` is the same in every run. Parents are indices within the job's
    run; `control_parents` are inferred from timing.
    """

    name: str
    kind: str
    num_tasks: int
    parents: frozenset[int]
    control_parents: frozenset[int]
    samples: StageSamples


@dataclass(eq=False)
class JobRun:
    """One run of a recurring job, its stages in order of submission.

    `submission_ms` and `end_ms` are wall-clock times; an unknown end is -1. `application`
    identifies the application (each application starts cold). `pool` is Spark's scheduler pool, and
    `user` the person, "" if none was set.
    """

    name: str
    submission_ms: int
    stages: list[StageRun]
    application: str = ""
    pool: str = ""
    end_ms: int = -1
    user: str = ""


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


def job_runs(log: ApplicationLog, key: str | None, dropped: Counter[str]) -> list[JobRun]:
    """Every completed run of a job in the log, in order of submission."""
    named = [
        (group, job_name(group.jobs, group.executions, log.settings, key))
        for group in job_groups(log)
    ]
    unnamed = [job for group, name in named if name is None for job in group.jobs]
    ignored_stages = {info.stage_id for job in unnamed for info in job.stages}
    placed = place_tasks(log.tasks(), log.slots_of_executor(), ignored_stages)
    # For every stage the rows of its task attempts, in order.
    by_stage = np.argsort(placed.tasks.stage_id, kind="stable")
    ids, starts = np.unique(placed.tasks.stage_id[by_stage], return_index=True)
    rows = dict(zip(ids.tolist(), np.split(by_stage, starts)[1:], strict=True))
    application = _Application(log, placed, rows, first_listing_job(log), lost_starts(log))
    runs = []
    for group, name in named:
        unnamed_job = f"did not carry the property {key!r}"
        run = unnamed_job if name is None else _job_run(name, group, application)
        if isinstance(run, str):
            dropped[run] += 1
        else:
            runs.append(run)
    return sorted(runs, key=lambda run: run.submission_ms)


@dataclass(frozen=True)
class _Application:
    """A log with its task attempts, their rows by stage, the job that each stage belongs to, and
    what belongs to jobs whose start is missing.
    """

    log: ApplicationLog
    placed: PlacedTasks
    rows: dict[int, Int64Array]
    owner: dict[int, int]
    lost: LostStarts

    def samples(self, stage_ids: list[int]) -> dict[int, StageSamples] | None:
        """The samples of every stage of a job; None if a stage has no successful task."""
        rows = {stage_id: self.rows.get(stage_id, np.zeros(0, np.int64)) for stage_id in stage_ids}
        samples = {}
        for stage_id in stage_ids:
            of_stage = stage_samples(self.placed, rows, stage_id)
            if of_stage is None:
                return None
            samples[stage_id] = of_stage
        return samples


def _job_run(name: str, group: JobGroup, application: _Application) -> JobRun | str:
    """The run of one group, or the reason why it is left out."""
    log = application.log
    if not group.is_ended(log):
        return "had not ended when the log did"
    if not group.is_successful(log):
        return "failed"
    if application.lost.touch(group):
        return "had a Spark job whose start is missing in the log"
    own = own_stages(group, application.owner)
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
    order = _in_order_of_submission(kept, infos)
    if not order:
        return "ran no stage (everything was skipped or empty)"
    samples = application.samples(order)
    if samples is None:
        return "had a stage without a successful task in the log"
    position = {stage_id: index for index, stage_id in enumerate(order)}
    parents = _data_parents(group, kept, infos, position)
    control = _control_parents(group, kept, position, parents)
    stages = [
        StageRun(
            name=stage_name(kept[stage_id], group.executions),
            kind=stage_kind(kept[stage_id].info),
            num_tasks=kept[stage_id].info.num_tasks,
            parents=frozenset(position[p] for p in parents[stage_id]),
            control_parents=frozenset(position[p] for p in control[stage_id]),
            samples=samples[stage_id],
        )
        for stage_id in order
    ]
    records = [kept[stage_id] for stage_id in order]
    return JobRun(
        name,
        submission_ms(group, records) or 0,
        stages,
        f"{log.label} {log.app_id}",
        # That of the first Spark job with a pool.
        next(filter(None, (job.properties.get(POOL_PROPERTY) for job in group.jobs)), ""),
        completion_ms(group, log, records) or -1,
        user_of(group, log, name),
    )


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
