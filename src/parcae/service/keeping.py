"""What a sync need not forget: of jobs that were known before it, what no picture shows.

A picture says who runs what and how many tasks are done. It does not say how long tasks took, what the service knows of
durations, how many slots a job was ever granted, or which stages are waited for in an idle slot: that is carried over from the
tables before to those after.
"""

from __future__ import annotations

import numpy as np

from parcae.cluster.state import NO_PROFILE, NO_STAGE, NOT_YET
from parcae.service.jobs import DurationBook
from parcae.service.open_jobs import refresh_durations
from parcae.service.restoring import LiveJob
from parcae.service.roster import Roster, StageKey


def carry_over(before: Roster, after: Roster, book: DurationBook) -> None:
    """Carry over what is known of the jobs that are in both, with the same id, name and arrival.

    Of stages with the same id and number of tasks: the executed time and durations that the new picture says nothing of, and the
    idle slot, if they had or have one. Of jobs: the task time that was seen, the slots that were granted and came. Of slots that
    run a task of the same stage: when it began.
    """
    for job in after.jobs:
        old = before.find(job.key)
        if old is not None and (old.name, old.arrival_ms) == (job.name, job.arrival_ms):
            _carry_job(before, after, old, job, book)
    _carry_starts(before, after)


def _carry_job(before: Roster, after: Roster, old: LiveJob, job: LiveJob, book: DurationBook) -> None:
    was, now = before.state.jobs, after.state.jobs
    now.num_granted[job.row] = max(int(now.num_granted[job.row]), int(was.num_granted[old.row]))
    now.num_moves[job.row] = was.num_moves[old.row]
    has_changed, num_seen = False, 0
    for position, stage in enumerate(job.stages):
        at = old.position.get(stage.stage_id)
        if at is None or old.stages[at].tasks != stage.tasks:
            continue
        _carry_executed(before, after, before.start(old) + at, after.start(job) + position)
        _carry_idle_slot(before, after, before.start(old) + at, after.start(job) + position)
        num_seen += int(before.state.stages.num_finished[before.start(old) + at])
        has_changed |= _carry_duration(before, after, old, job, at, position)
    if has_changed:
        refresh_durations(after.state, job.row, job.name, book, is_open=job.is_open)
    start, end = after.start(job), after.start(job) + len(job.stages)
    job.worked_ms = old.worked_ms
    job.is_seen_whole = old.is_seen_whole and num_seen == int(after.state.stages.num_finished[start:end].sum())


def _carry_executed(before: Roster, after: Roster, old: int, new: int) -> None:
    """The executed time of a stage; where fewer of its tasks are done than before, its share of it."""
    was, now = before.state.stages, after.state.stages
    num_before, num_now = int(was.num_finished[old]), int(now.num_finished[new])
    executed_ms = int(was.executed_ms[old])
    now.executed_ms[new] = executed_ms if num_now >= num_before else executed_ms * num_now // num_before


def _carry_idle_slot(before: Roster, after: Roster, old: int, new: int) -> None:
    """That the stage had its idle slot; one that runs goes on to its end, unless slots began to work for the stage.

    Where the clock went back, whatever ran is over: its end was a time of another clock.
    """
    was, now, clock_ms = before.state.stages, after.state.stages, after.clock_ms
    from_ms, until_ms = int(was.hold_from_ms[old]), int(was.hold_until_ms[old])
    if from_ms == NOT_YET:
        return
    has_begun = now.num_started[new] > was.num_started[old] or now.num_moving[new] > was.num_moving[old]
    runs = before.clock_ms <= clock_ms < until_ms and not has_begun and not now.is_saturated[new]
    now.hold_from_ms[new] = min(from_ms, clock_ms)
    now.hold_until_ms[new] = until_ms if runs else min(until_ms, clock_ms)
    if runs:
        row = int(after.now["num_holds"])
        after.state.holds.stage[row], after.state.holds.end_ms[row] = new, until_ms
        after.now["num_holds"] = row + 1


def _carry_duration(before: Roster, after: Roster, old: LiveJob, job: LiveJob, at: int, position: int) -> bool:
    """Keep a duration that was known and would have to be learned now (stages were added to a job of the profile)."""
    is_known = not job.is_open and after.state.jobs.profile[job.row] != NO_PROFILE
    if is_known or old.is_learned[at] or not job.is_learned[position]:
        return False
    job.is_learned[position] = False
    after.state.stages.task_ms[after.start(job) + position] = before.state.stages.task_ms[before.start(old) + at]
    return True


def _carry_starts(before: Roster, after: Roster) -> None:
    rows = {slot: row for row, slot in enumerate(before.slots)}
    was, now = before.state.executors, after.state.executors
    for row, slot in enumerate(after.slots):
        old = rows.get(slot)
        if old is None or now.stage[row] == NO_STAGE or was.stage[old] == NO_STAGE:
            continue
        if before.stage_key(int(was.stage[old])) == after.stage_key(int(now.stage[row])):
            now.started_ms[row] = was.started_ms[old]


def waits_on(before: Roster, after: Roster) -> bool:
    """Whether all idle slots run on, and no executor idles and no stage may be chosen that did not before.

    Then those who idle were let idle by a decision, and are asked about when a slot ends; a sync alone postpones no end.
    """
    num_holds = int(after.now["num_holds"])
    return (
        num_holds > 0 and num_holds == before.now["num_holds"] and _idle(after) <= _idle(before) and _open(after) <= _open(before)
    )


def _idle(roster: Roster) -> set[tuple[int, tuple[str, int] | None]]:
    """Slots that idle, and the job at which they do."""
    executors = roster.state.executors
    rows = np.flatnonzero((executors.stage == NO_STAGE) & (executors.destination == NO_STAGE))
    at = {job.row: job.key for job in roster.jobs}
    return {(roster.slots[row], at.get(int(executors.job[row]))) for row in rows}


def _open(roster: Roster) -> set[StageKey | None]:
    """Stages that a decision may choose."""
    stages, jobs = roster.state.stages, roster.state.jobs
    first = [(int(jobs.stage_start[job.row]), int(jobs.num_stages[job.row])) for job in roster.jobs]
    rows = [row for start, count in first for row in range(start, start + count)]
    return {roster.stage_key(row) for row in rows if not stages.is_saturated[row] and not stages.num_parents_unsaturated[row]}
