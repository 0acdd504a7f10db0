"""Writes what a cluster's environment shows, compiled.

Where there are more jobs or stages than rows, those that a decision may choose come before the others, and within each of
the two those that arrived first. What is shown stands in order of arrival, then by stage index.
"""

from __future__ import annotations

import math

from parcae.cluster.kernels.tables import (
    first_schedulable,
    is_runnable,
    is_schedulable,
    may_idle,
    pool_row,
    relative,
    slot_ms,
)
from parcae.cluster.state import NO_JOB, NO_STAGE, NOT_YET
from parcae.environment.layout import (
    BOUND,
    NO_ROW,
    ClassFeature,
    ClusterFeature,
    FitFeature,
    JobFeature,
    SlotFeature,
    StageFeature,
)
from parcae.kernels import inlined, kernel

_S_SHOWN = int(StageFeature.IS_SHOWN)
_S_SCHEDULABLE = int(StageFeature.IS_SCHEDULABLE)
_S_RUNNABLE = int(StageFeature.IS_RUNNABLE)
_S_LOCAL = int(StageFeature.IS_LOCAL)
_S_RUNNING = int(StageFeature.RUNNING)
_S_COMING = int(StageFeature.COMING)
_S_WAITING = int(StageFeature.WAITING)
_S_TASK = int(StageFeature.TASK_TIME)
_S_WORK = int(StageFeature.WORK_LEFT)
_S_PATH = int(StageFeature.CRITICAL_PATH)
_J_SHOWN = int(JobFeature.IS_SHOWN)
_J_LOCAL = int(JobFeature.IS_LOCAL)
_J_EXECUTORS = int(JobFeature.EXECUTORS)
_J_STAGES = int(JobFeature.STAGES_LEFT)
_J_WORK = int(JobFeature.WORK_LEFT)
_J_TIME = int(JobFeature.TIME_IN_SYSTEM)
_C_ASKED = int(ClusterFeature.ASKED)
_C_IDLE = int(ClusterFeature.IDLE)
_C_JOBS = int(ClusterFeature.JOBS)
_C_HIDDEN = int(ClusterFeature.HIDDEN_JOBS)
_E_CPU, _E_MEMORY, _E_EXECUTORS, _E_IDLE, _E_ASKED = map(int, ClassFeature)
_F_CPU, _F_MEMORY = map(int, FitFeature)
_NUM_FITS = len(FitFeature)
_H_HAD, _H_RUNS, _H_LEFT = map(int, SlotFeature)


@inlined
def _measured(value, scale):  # type: ignore[no-untyped-def]
    return min(math.log1p(max(0.0, value) / scale), BOUND)


@inlined
def _share(count, seen):  # type: ignore[no-untyped-def]
    return min(count / seen.now.num_executors[0], BOUND)


@inlined
def _may_choose(seen, stage):  # type: ignore[no-untyped-def]
    return seen.now.num_source[0] > 0 and is_schedulable(seen, stage)


@inlined
def _is_unfinished(seen, stage):  # type: ignore[no-untyped-def]
    return seen.stages.num_finished[stage] < seen.stages.num_tasks[stage]


@kernel
def has_choice(seen):  # type: ignore[no-untyped-def]
    """Whether there is a stage that a decision may choose; where there is none, all that are asked about must idle."""
    for position in range(seen.now.num_active[0]):
        if _job_has_choice(seen, seen.active[position]):
            return True
    return False


@inlined
def _job_has_choice(seen, job):  # type: ignore[no-untyped-def]
    if seen.now.num_source[0] == 0 or seen.jobs.num_schedulable[job] == 0:
        return False
    return first_schedulable(seen, job) != NO_STAGE


@kernel
def _choose_jobs(seen, shown):  # type: ignore[no-untyped-def]
    """Give rows to jobs."""
    room = shown.jobs.shape[0]
    num_chosen = 0
    row = 0
    for position in range(seen.now.num_active[0]):
        num_chosen += 1 if _job_has_choice(seen, seen.active[position]) else 0
    spare = max(0, room - num_chosen)
    shown.jobs[:] = NO_JOB
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        shown.row_of_job[job] = NO_ROW
        takes_spare = not _job_has_choice(seen, job)
        if row < room and (spare > 0 or not takes_spare):
            spare -= 1 if takes_spare else 0
            shown.jobs[row] = job
            shown.row_of_job[job] = row
            row += 1
    return row


@kernel
def _choose_stages(seen, shown, num_jobs):  # type: ignore[no-untyped-def]
    """Give rows to the unfinished stages of the jobs that have one."""
    room = shown.stages.shape[0]
    num_chosen = 0
    row = 0
    jobs = seen.jobs
    for j in range(num_jobs):
        first = jobs.stage_start[shown.jobs[j]]
        for stage in range(first, first + jobs.num_stages[shown.jobs[j]]):
            num_chosen += 1 if _may_choose(seen, stage) else 0
    spare = max(0, room - num_chosen)
    shown.stages[:] = NO_STAGE
    for j in range(num_jobs):
        first = jobs.stage_start[shown.jobs[j]]
        for stage in range(first, first + jobs.num_stages[shown.jobs[j]]):
            shown.row_of_stage[stage] = NO_ROW
            takes_spare = not _may_choose(seen, stage)
            if row < room and (spare > 0 or not takes_spare) and _is_unfinished(seen, stage):
                spare -= 1 if takes_spare else 0
                shown.stages[row] = stage
                shown.row_of_stage[stage] = row
                row += 1
    return row


@kernel
def _write_stages(seen, shown, view, scales, num_rows):  # type: ignore[no-untyped-def]
    view.stages[:, :] = 0.0
    view.stage_job[:] = NO_ROW
    stages = seen.stages
    for row in range(num_rows):
        stage = shown.stages[row]
        to = view.stages[row]
        waiting = stages.num_tasks[stage] - stages.num_started[stage]
        view.stage_job[row] = shown.row_of_job[stages.job[stage]]
        to[_S_SHOWN] = 1.0
        to[_S_SCHEDULABLE] = 1.0 if _may_choose(seen, stage) else 0.0
        to[_S_RUNNABLE] = 1.0 if is_runnable(seen, stage) else 0.0
        to[_S_LOCAL] = 1.0 if stages.job[stage] == seen.now.source_job[0] else 0.0
        to[_S_RUNNING] = _share(stages.num_started[stage] - stages.num_finished[stage], seen)
        to[_S_COMING] = _share(stages.num_committed[stage] + stages.num_moving[stage], seen)
        to[_S_WAITING] = _measured(waiting, scales.num_tasks)
        to[_S_TASK] = _measured(stages.task_ms[stage], scales.task_ms)
        to[_S_WORK] = _measured(waiting * stages.task_ms[stage], scales.work_ms)
        to[_S_PATH] = _measured(stages.downstream_ms[stage], scales.work_ms)


@kernel
def _write_edges(seen, shown, view, num_rows):  # type: ignore[no-untyped-def]
    view.edges[:, :] = NO_ROW
    count = 0
    stages = seen.stages
    for row in range(num_rows):
        stage = shown.stages[row]
        for edge in range(
            stages.child_start[stage], stages.child_start[stage] + stages.num_children[stage]
        ):
            child_row = shown.row_of_stage[seen.children[edge]]
            if child_row != NO_ROW:
                view.edges[count, 0] = row
                view.edges[count, 1] = child_row
                count += 1


@kernel
def _write_jobs(seen, shown, view, scales, num_rows):  # type: ignore[no-untyped-def]
    view.jobs[:, :] = 0.0
    for row in range(num_rows):
        job = shown.jobs[row]
        to = view.jobs[row]
        to[_J_SHOWN] = 1.0
        to[_J_LOCAL] = 1.0 if job == seen.now.source_job[0] else 0.0
        to[_J_EXECUTORS] = _share(seen.jobs.num_supplied[job], seen)
        to[_J_STAGES] = _measured(
            seen.jobs.num_stages[job] - seen.jobs.num_done[job], scales.num_stages
        )
        to[_J_WORK] = _measured(seen.jobs.remaining_ms[job], scales.work_ms)
        to[_J_TIME] = _measured(seen.now.clock_ms[0] - seen.jobs.arrival_ms[job], scales.work_ms)


@kernel
def _num_idle(seen, executor_class):  # type: ignore[no-untyped-def]
    """Executors of a class in pools: that of nobody, and those of the jobs in the system."""
    count = seen.sources.num_idle[pool_row(seen, NO_JOB) + executor_class]
    for position in range(seen.now.num_active[0]):
        count += seen.sources.num_idle[pool_row(seen, seen.active[position]) + executor_class]
    return count


@kernel
def _write_classes(seen, view, scales):  # type: ignore[no-untyped-def]
    for executor_class in range(view.classes.shape[0]):
        to = view.classes[executor_class]
        to[_E_CPU] = relative(seen.classes.cpu[executor_class], scales.cpu)
        to[_E_MEMORY] = relative(seen.classes.memory[executor_class], scales.memory)
        to[_E_EXECUTORS] = _share(seen.classes.num_executors[executor_class], seen)
        to[_E_IDLE] = _share(_num_idle(seen, executor_class), seen)
        to[_E_ASKED] = _share(seen.source_count[executor_class], seen)


@kernel
def _write_fits(seen, shown, view, scales, num_rows):  # type: ignore[no-untyped-def]
    """What stages need, the classes that are large enough, and of them those that may be chosen."""
    num_classes = view.classes.shape[0]
    view.class_mask[:, :] = False
    view.class_mask[:, num_classes] = True
    if num_classes == 0:
        return
    view.stage_fit[:, :] = 0.0
    for row in range(num_rows):
        stage = shown.stages[row]
        to = view.stage_fit[row]
        to[_F_CPU] = relative(seen.stages.cpu[stage], scales.cpu)
        to[_F_MEMORY] = relative(seen.stages.memory[stage], scales.memory)
        may_choose = view.stages[row, _S_SCHEDULABLE] > 0.0
        for executor_class in range(num_classes):
            fits = (seen.stages.fits[stage] >> executor_class) & 1 == 1
            to[_NUM_FITS + executor_class] = 1.0 if fits else 0.0
            view.class_mask[row, executor_class] = (
                may_choose and fits and seen.source_count[executor_class] > 0
            )


@kernel
def _write_slots(seen, shown, view, scales, num_rows):  # type: ignore[no-untyped-def]
    """The stages' idle slots, and the lengths that may be chosen: those left where all wait, for whom a stage is shortest."""
    num_lengths = view.slot_mask.shape[1] - 1
    most = seen.now.num_source[0]
    view.slot_mask[:, :] = False
    view.slot_mask[:, 0] = True
    if num_lengths == 0:
        return
    view.stage_slot[:, :] = 0.0
    for row in range(num_rows):
        stage = shown.stages[row]
        to = view.stage_slot[row]
        if seen.stages.hold_from_ms[stage] != NOT_YET:
            left_ms = seen.stages.hold_until_ms[stage] - seen.now.clock_ms[0]
            to[_H_HAD] = 1.0
            to[_H_RUNS] = 1.0 if left_ms > 0 else 0.0
            to[_H_LEFT] = _measured(left_ms, scales.task_ms)
        if view.stages[row, _S_SCHEDULABLE] > 0.0:
            for length in range(1, num_lengths + 1):
                view.slot_mask[row, length] = slot_ms(seen, stage, most, length, num_lengths) > 0


@kernel
def _write_any(view, mask, start):  # type: ignore[no-untyped-def]
    """What may be chosen with some stage, into the action's mask from `start` on. Returns where that goes on."""
    if mask.shape[1] == 1:
        return start
    for choice in range(mask.shape[1]):
        may_choose = False
        for row in range(mask.shape[0]):
            may_choose = may_choose or mask[row, choice]
        view.action_mask[start + choice] = may_choose
    return start + mask.shape[1]


@kernel
def _write_mask(seen, shown, view, levels):  # type: ignore[no-untyped-def]
    """What may be chosen; at an episode's end only to idle, at the first limit."""
    max_stages = shown.stages.shape[0]
    num_source = seen.now.num_source[0]
    any_stage = False
    for row in range(max_stages):
        view.action_mask[row] = view.stages[row, _S_SCHEDULABLE] > 0.0
        any_stage = any_stage or view.action_mask[row]
    view.action_mask[max_stages] = not any_stage or may_idle(seen)
    for level in range(levels.shape[0]):
        view.action_mask[max_stages + 1 + level] = level == 0 or levels[level - 1] < num_source
    _write_any(
        view, view.slot_mask, _write_any(view, view.class_mask, max_stages + 1 + levels.shape[0])
    )


@kernel
def show(seen, shown, view, levels, scales):  # type: ignore[no-untyped-def]
    """Write one observation, and which stages and jobs its rows stand for.

    Args:
        seen: the cluster's tables.
        levels: int64[num_limits], the limits to choose from, ascending; those beyond the first that is enough for all
            executors asked about are masked, since they would do the same.
        scales: what numbers are measured by.
    """
    num_jobs = _choose_jobs(seen, shown)
    num_stages = _choose_stages(seen, shown, num_jobs)
    _write_stages(seen, shown, view, scales, num_stages)
    _write_edges(seen, shown, view, num_stages)
    _write_jobs(seen, shown, view, scales, num_jobs)
    view.cluster[_C_ASKED] = _share(seen.now.num_source[0], seen)
    view.cluster[_C_IDLE] = _share(seen.now.num_idle[0], seen)
    view.cluster[_C_JOBS] = _measured(seen.now.num_active[0], 1.0)
    view.cluster[_C_HIDDEN] = _measured(seen.now.num_active[0] - num_jobs, 1.0)
    _write_classes(seen, view, scales)
    _write_fits(seen, shown, view, scales, num_stages)
    _write_slots(seen, shown, view, scales, num_stages)
    _write_mask(seen, shown, view, levels)
