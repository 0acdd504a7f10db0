"""Compiled steps of many episodes of the cluster: one action in each per call.

In all kernels `episodes` is an `EpisodeTables`.
"""

from __future__ import annotations

import math

from parcae.base.compiled.kernels import inlined, kernel, row_of
from parcae.base.texts import MS_PER_S
from parcae.cluster.kernels.tables import (
    edges_of,
    first_schedulable,
    is_runnable,
    is_schedulable,
    may_idle,
    pool_row,
    relative,
    slot_ms,
    stages_of,
)
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_STAGE, NOT_YET
from parcae.environments.layout import (
    BOUND,
    NO_ROW,
    ClusterFeature,
    FitFeature,
    ObservedClassFeature,
    ObservedJobFeature,
    SlotFeature,
    StageFeature,
)
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import start, step
from parcae.simulation.kernels.playing import simulation_of

_E_CPU, _E_MEMORY, _E_EXECUTORS, _E_IDLE, _E_OFFERED = map(int, ObservedClassFeature)
_F_CPU, _F_MEMORY = map(int, FitFeature)
_NUM_FITS = len(FitFeature)
_H_HAD, _H_RUNS, _H_LEFT = map(int, SlotFeature)


@inlined
def _log_scaled(value, scale):  # type: ignore[no-untyped-def]
    return min(math.log1p(max(0.0, value) / scale), BOUND)


@inlined
def _share(count, state):  # type: ignore[no-untyped-def]
    """Return the count as a share of the cluster's executors; there may be no executor."""
    return min(count / max(1, state.now.num_executors[0]), BOUND)


@inlined
def _may_choose(state, stage):  # type: ignore[no-untyped-def]
    return state.now.num_source[0] > 0 and is_schedulable(state, stage)


@inlined
def _is_unfinished(state, stage):  # type: ignore[no-untyped-def]
    """Whether the stage has tasks that have not finished."""
    return state.stages.num_finished[stage] < state.stages.num_tasks[stage]


@kernel
def has_choice(state):  # type: ignore[no-untyped-def]
    """Whether a decision may choose some stage; if not, all offered executors must idle."""
    for position in range(state.now.num_active[0]):
        if _job_has_choice(state, state.active[position]):
            return True
    return False


@inlined
def _job_has_choice(state, job):  # type: ignore[no-untyped-def]
    """Whether a decision may choose some stage of the job."""
    if state.now.num_source[0] == 0 or state.jobs.num_schedulable[job] == 0:
        return False
    return first_schedulable(state, job) != NO_STAGE


@kernel
def _spare_job_rows(state, room):  # type: ignore[no-untyped-def]
    """Return how many of `room` rows are left for jobs without a stage to choose."""
    num_active = state.now.num_active[0]
    if num_active <= room:
        return room
    num_chosen = 0
    for position in range(num_active):
        num_chosen += 1 if _job_has_choice(state, state.active[position]) else 0
    return max(0, room - num_chosen)


@kernel
def _choose_jobs(state, shown):  # type: ignore[no-untyped-def]
    """Assign rows to jobs, in order of arrival. Returns the number of used rows."""
    room = shown.jobs.shape[0]
    shows_all = state.now.num_active[0] <= room
    spare = _spare_job_rows(state, room)
    row = 0
    for position in range(state.now.num_active[0]):
        job = state.active[position]
        shown.row_of_job[job] = NO_ROW
        takes_spare = not shows_all and not _job_has_choice(state, job)
        if row < room and (spare > 0 or not takes_spare):
            spare -= 1 if takes_spare else 0
            shown.jobs[row] = job
            shown.row_of_job[job] = row
            row += 1
    return row


@kernel
def _show_all_stages(state, shown, num_jobs):  # type: ignore[no-untyped-def]
    """Assign rows to all unfinished stages of the shown jobs. Returns the number of used rows.

    There is a row for every stage, finished or not. The loop has no branch, because which stages
    are finished cannot be predicted.
    """
    row = 0
    for job_row in range(num_jobs):
        for stage in stages_of(state, shown.jobs[job_row]):
            is_shown = int(_is_unfinished(state, stage))
            shown.stages[row] = stage
            shown.row_of_stage[stage] = is_shown * row + (1 - is_shown) * NO_ROW
            row += is_shown
    return row


@kernel
def _choose_stages(state, shown, num_jobs):  # type: ignore[no-untyped-def]
    """Assign rows to the unfinished stages of the shown jobs. Returns the number of used rows."""
    room = shown.stages.shape[0]
    num_stages = 0
    for job_row in range(num_jobs):
        num_stages += state.jobs.num_stages[shown.jobs[job_row]]
    if num_stages <= room:
        return _show_all_stages(state, shown, num_jobs)
    num_chosen = 0
    for job_row in range(num_jobs):
        for stage in stages_of(state, shown.jobs[job_row]):
            num_chosen += 1 if _may_choose(state, stage) else 0
    # Rows that are left for stages that a decision may not choose.
    spare = max(0, room - num_chosen)
    row = 0
    for job_row in range(num_jobs):
        for stage in stages_of(state, shown.jobs[job_row]):
            shown.row_of_stage[stage] = NO_ROW
            takes_spare = not _may_choose(state, stage)
            if row < room and (spare > 0 or not takes_spare) and _is_unfinished(state, stage):
                spare -= 1 if takes_spare else 0
                shown.stages[row] = stage
                shown.row_of_stage[stage] = row
                row += 1
    return row


@inlined
def _log_stage(state, logs, scales, stage, waiting):  # type: ignore[no-untyped-def]
    """Bring the logarithms of a stage up to date."""
    task_ms = state.stages.task_ms[stage]
    path_ms = state.stages.downstream_ms[stage]
    is_same = logs.num_waiting[stage] == waiting and logs.task_ms[stage] == task_ms
    if is_same and logs.path_ms[stage] == path_ms:
        return
    logs.num_waiting[stage] = waiting
    logs.task_ms[stage] = task_ms
    logs.path_ms[stage] = path_ms
    logs.waiting[stage] = _log_scaled(waiting, scales.num_tasks)
    logs.task_time[stage] = _log_scaled(task_ms, scales.task_ms)
    logs.work_left[stage] = _log_scaled(waiting * task_ms, scales.work_ms)
    logs.critical_path[stage] = _log_scaled(path_ms, scales.work_ms)


@kernel
def _write_stages(state, shown, view, scales, num_rows):  # type: ignore[no-untyped-def]
    stages = state.stages
    logs = shown.stage_logs
    executors = max(1, state.now.num_executors[0])
    has_offer = state.now.num_source[0] > 0
    for row in range(num_rows):
        stage = shown.stages[row]
        features = view.stages[row]
        job = stages.job[stage]
        waiting = stages.num_tasks[stage] - stages.num_started[stage]
        running = stages.num_started[stage] - stages.num_finished[stage]
        coming = stages.num_committed[stage] + stages.num_moving[stage]
        view.stage_job[row] = shown.row_of_job[job]
        features[StageFeature.IS_SHOWN] = 1.0
        features[StageFeature.IS_SCHEDULABLE] = has_offer & is_schedulable(state, stage)
        features[StageFeature.IS_RUNNABLE] = is_runnable(state, stage)
        features[StageFeature.IS_LOCAL] = job == state.now.source_job[0]
        features[StageFeature.RUNNING] = min(running / executors, BOUND)
        features[StageFeature.COMING] = min(coming / executors, BOUND)
        _log_stage(state, logs, scales, stage, waiting)
        features[StageFeature.WAITING] = logs.waiting[stage]
        features[StageFeature.TASK_TIME] = logs.task_time[stage]
        features[StageFeature.WORK_LEFT] = logs.work_left[stage]
        features[StageFeature.CRITICAL_PATH] = logs.critical_path[stage]


@kernel
def _write_edges(state, shown, view, num_rows):  # type: ignore[no-untyped-def]
    """Write the edges between shown stages. Returns their number.

    Jobs of another workload may have more of them than there are rows; these are left out.
    """
    room = view.edges.shape[0]
    count = 0
    for row in range(num_rows):
        for edge in edges_of(state, shown.stages[row]):
            child_row = shown.row_of_stage[state.children[edge]]
            if child_row != NO_ROW and count < room:
                view.edges[count, 0] = row
                view.edges[count, 1] = child_row
                count += 1
    return count


@inlined
def _log_job(state, logs, scales, job):  # type: ignore[no-untyped-def]
    """Bring the logarithms of a job up to date."""
    num_left = state.jobs.num_stages[job] - state.jobs.num_done[job]
    remaining_ms = state.jobs.remaining_ms[job]
    if logs.num_left[job] == num_left and logs.remaining_ms[job] == remaining_ms:
        return
    logs.num_left[job] = num_left
    logs.remaining_ms[job] = remaining_ms
    logs.stages_left[job] = _log_scaled(num_left, scales.num_stages)
    logs.work_left[job] = _log_scaled(remaining_ms, scales.work_ms)


@kernel
def _write_jobs(state, shown, view, scales, num_rows):  # type: ignore[no-untyped-def]
    logs = shown.job_logs
    age_ms = -1
    age = 0.0
    for row in range(num_rows):
        job = shown.jobs[row]
        # Jobs of a batch have one age.
        if state.now.clock_ms[0] - state.jobs.arrival_ms[job] != age_ms:
            age_ms = state.now.clock_ms[0] - state.jobs.arrival_ms[job]
            age = _log_scaled(age_ms, scales.work_ms)
        _log_job(state, logs, scales, job)
        features = view.jobs[row]
        features[ObservedJobFeature.IS_SHOWN] = 1.0
        features[ObservedJobFeature.IS_LOCAL] = 1.0 if job == state.now.source_job[0] else 0.0
        features[ObservedJobFeature.EXECUTORS] = _share(state.jobs.num_supplied[job], state)
        features[ObservedJobFeature.STAGES_LEFT] = logs.stages_left[job]
        features[ObservedJobFeature.WORK_LEFT] = logs.work_left[job]
        features[ObservedJobFeature.TIME_IN_SYSTEM] = age


@kernel
def _clear_rows(shown, view, num_jobs, num_stages, num_edges):  # type: ignore[no-untyped-def]
    """Clear the rows that the last observation used, which are the first ones, and this one does
    not.
    """
    row = num_jobs
    while row < shown.jobs.shape[0] and shown.jobs[row] != NO_JOB:
        shown.jobs[row] = NO_JOB
        view.jobs[row, :] = 0.0
        row += 1
    row = num_stages
    while row < shown.stages.shape[0] and shown.stages[row] != NO_STAGE:
        shown.stages[row] = NO_STAGE
        view.stage_job[row] = NO_ROW
        view.stages[row, :] = 0.0
        view.stage_fit[row, :] = 0.0
        view.stage_slot[row, :] = 0.0
        view.action_mask[row] = False
        row += 1
    row = num_edges
    while row < view.edges.shape[0] and view.edges[row, 0] != NO_ROW:
        view.edges[row, :] = NO_ROW
        row += 1


@kernel
def _num_idle(state, executor_class):  # type: ignore[no-untyped-def]
    """Return the number of idle executors of a class, over the global pool and all jobs' pools."""
    count = state.sources.num_idle[pool_row(state, NO_JOB) + executor_class]
    for position in range(state.now.num_active[0]):
        count += state.sources.num_idle[pool_row(state, state.active[position]) + executor_class]
    return count


@kernel
def _write_classes(state, view, scales):  # type: ignore[no-untyped-def]
    for executor_class in range(view.classes.shape[0]):
        features = view.classes[executor_class]
        features[_E_CPU] = relative(state.classes.cpu[executor_class], scales.cpu)
        features[_E_MEMORY] = relative(state.classes.memory[executor_class], scales.memory)
        features[_E_EXECUTORS] = _share(state.classes.num_executors[executor_class], state)
        features[_E_IDLE] = _share(_num_idle(state, executor_class), state)
        features[_E_OFFERED] = _share(state.source_count[executor_class], state)


@kernel
def _write_fits(state, shown, view, scales, num_rows):  # type: ignore[no-untyped-def]
    """Write `stage_fit` (demands, and which classes are large enough) and `class_mask`."""
    num_classes = view.classes.shape[0]
    if num_classes == 0:
        return
    view.class_mask[:, :] = False
    view.class_mask[:, num_classes] = True
    for row in range(num_rows):
        stage = shown.stages[row]
        features = view.stage_fit[row]
        features[_F_CPU] = relative(state.stages.cpu[stage], scales.cpu)
        features[_F_MEMORY] = relative(state.stages.memory[stage], scales.memory)
        may_choose = view.stages[row, StageFeature.IS_SCHEDULABLE] > 0.0
        for executor_class in range(num_classes):
            fits = (state.stages.fits[stage] >> executor_class) & 1 == 1
            features[_NUM_FITS + executor_class] = 1.0 if fits else 0.0
            view.class_mask[row, executor_class] = (
                may_choose and fits and state.source_count[executor_class] > 0
            )


@kernel
def _write_slots(state, shown, view, scales, num_rows):  # type: ignore[no-untyped-def]
    """Write `stage_slot` (idle slots that began) and `slot_mask` (lengths that may be chosen).

    A length may be chosen if some of the slot is left when all offered executors wait, which is
    when the stage is shortest.
    """
    num_lengths = view.slot_mask.shape[1] - 1
    num_offered = state.now.num_source[0]
    if num_lengths == 0:
        return
    view.slot_mask[:, :] = False
    view.slot_mask[:, 0] = True
    for row in range(num_rows):
        stage = shown.stages[row]
        features = view.stage_slot[row]
        features[:] = 0.0
        if state.stages.hold_from_ms[stage] != NOT_YET:
            left_ms = state.stages.hold_until_ms[stage] - state.now.clock_ms[0]
            features[_H_HAD] = 1.0
            features[_H_RUNS] = 1.0 if left_ms > 0 else 0.0
            features[_H_LEFT] = _log_scaled(left_ms, scales.task_ms)
        if view.stages[row, StageFeature.IS_SCHEDULABLE] > 0.0:
            for length in range(1, num_lengths + 1):
                view.slot_mask[row, length] = (
                    slot_ms(state, stage, num_offered, length, num_lengths) > 0
                )


@kernel
def _write_any(view, mask, start):  # type: ignore[no-untyped-def]
    """Write into the action's mask which choices are possible with at least one stage.

    The entries start at `start`; returns the position behind them. A mask with a single choice is
    not part of the action.
    """
    if mask.shape[1] == 1:
        return start
    for choice in range(mask.shape[1]):
        may_choose = False
        for row in range(mask.shape[0]):
            may_choose = may_choose or mask[row, choice]
        view.action_mask[start + choice] = may_choose
    return start + mask.shape[1]


@kernel
def _write_mask(state, shown, view, levels, num_rows):  # type: ignore[no-untyped-def]
    """Write the mask of the action.

    At the end of an episode it allows only to idle at the first limit.
    """
    max_stages = shown.stages.shape[0]
    num_source = state.now.num_source[0]
    any_stage = False
    for row in range(num_rows):
        view.action_mask[row] = view.stages[row, StageFeature.IS_SCHEDULABLE] > 0.0
        any_stage = any_stage or view.action_mask[row]
    view.action_mask[max_stages] = not any_stage or may_idle(state)
    # A limit is masked if the next smaller one already covers all offered executors.
    for level in range(levels.shape[0]):
        view.action_mask[max_stages + 1 + level] = level == 0 or levels[level - 1] < num_source
    _write_any(
        view, view.slot_mask, _write_any(view, view.class_mask, max_stages + 1 + levels.shape[0])
    )


@kernel
def write_view(state, shown, view, levels, scales):  # type: ignore[no-untyped-def]
    """Write one observation, and the stages and jobs that its rows show."""
    num_jobs = _choose_jobs(state, shown)
    num_stages = _choose_stages(state, shown, num_jobs)
    num_edges = _write_edges(state, shown, view, num_stages)
    _clear_rows(shown, view, num_jobs, num_stages, num_edges)
    _write_stages(state, shown, view, scales, num_stages)
    _write_jobs(state, shown, view, scales, num_jobs)
    view.cluster[ClusterFeature.OFFERED] = _share(state.now.num_source[0], state)
    view.cluster[ClusterFeature.IDLE] = _share(state.now.num_idle[0], state)
    view.cluster[ClusterFeature.JOBS] = _log_scaled(state.now.num_active[0], 1.0)
    view.cluster[ClusterFeature.HIDDEN_JOBS] = _log_scaled(state.now.num_active[0] - num_jobs, 1.0)
    _write_classes(state, view, scales)
    _write_fits(state, shown, view, scales, num_stages)
    _write_slots(state, shown, view, scales, num_stages)
    _write_mask(state, shown, view, levels, num_stages)


_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_COMPLETE = int(Status.COMPLETE)
_ENDED = int(Status.ENDED)


@inlined
def _first_unmasked(mask, first, count, choice):  # type: ignore[no-untyped-def]
    """Return the choice if it is unmasked, otherwise the first unmasked one, or 0 without any."""
    if mask[first + choice]:
        return choice
    for other in range(count):
        if mask[first + other]:
            return other
    return 0


@kernel
def decision_of(state, shown, view, levels, action):  # type: ignore[no-untyped-def]
    """Return the decision that an action stands for, and whether it chose something masked.

    A masked choice is replaced by the first unmasked one, given the choices before it. A masked
    limit means all offered executors. A masked idle slot is one that has ended, or would have ended
    at the chosen limit: the stage runs instead.
    """
    max_stages = shown.stages.shape[0]
    any_class = view.classes.shape[0]
    chosen = _first_unmasked(view.action_mask, 0, max_stages + 1, action[0])
    if chosen == max_stages:
        return NO_STAGE, 0, ANY_CLASS, 0, chosen != action[0]
    stage = shown.stages[chosen]
    limit = min(levels[action[1]], state.now.num_source[0])
    executor_class = _first_unmasked(view.class_mask[chosen], 0, any_class + 1, action[2])
    hold_ms = 0
    if action[3] > 0:
        hold_ms = slot_ms(state, stage, limit, action[3], view.slot_mask.shape[1] - 1)
    is_masked = chosen != action[0] or executor_class != action[2]
    is_masked = is_masked or (hold_ms > 0) != (action[3] > 0)
    if executor_class == any_class:
        executor_class = ANY_CLASS
    return stage, limit, executor_class, hold_ms, is_masked


@inlined
def _cost_s(state, status, is_makespan):  # type: ignore[no-untyped-def]
    """Return the objective so far: seconds of jobs in the system, or seconds of makespan."""
    now = state.now
    if not is_makespan:
        open_ms = now.num_active[0] * (now.clock_ms[0] - now.accounted_ms[0])
        return (now.job_ms[0] + open_ms) / MS_PER_S
    if status != _COMPLETE:
        return now.clock_ms[0] / MS_PER_S
    last_ms = 0
    for job in range(now.num_jobs[0]):
        last_ms = max(last_ms, state.jobs.completion_ms[job])
    return last_ms / MS_PER_S


@inlined
def _to_next_choice(episodes, row, status):  # type: ignore[no-untyped-def]
    """Advance to the next decision with a choice, and write the observation. Returns the new
    Status.
    """
    state, future, tables = simulation_of(episodes.simulations, row)
    while status == _NEEDS_DECISION and not has_choice(state):
        status = step(state, future, tables, NO_STAGE, 0, ANY_CLASS, 0)
    shown = row_of(episodes.shown, row)
    write_view(state, shown, row_of(episodes.views, row), episodes.levels, episodes.scales)
    episodes.simulations.status[row] = status
    return status


@inlined
def _has_failed(episodes, row):  # type: ignore[no-untyped-def]
    """Whether the run stopped with an error, or completed although jobs are in the system."""
    status = episodes.simulations.status[row]
    is_stalled = status == _COMPLETE and episodes.simulations.states.now[row].num_active[0] > 0
    return is_stalled or status > _ENDED


@kernel
def start_many(episodes, rows):  # type: ignore[no-untyped-def]
    """Start the runs in the given rows, up to the first decision with a choice. Returns the first
    of these rows whose run failed, or NO_ROW.
    """
    failed = NO_ROW
    for position in range(rows.shape[0] - 1, -1, -1):
        row = rows[position]
        state, future, tables = simulation_of(episodes.simulations, row)
        episodes.num_masked[row] = 0
        episodes.rewarded_s[row] = 0.0
        _to_next_choice(episodes, row, start(state, future, tables))
        failed = row if _has_failed(episodes, row) else failed
    return failed


@kernel
def find_outside(actions, sizes, rows):  # type: ignore[no-untyped-def]
    """Return the first of the given rows whose action is outside of the action space, or NO_ROW."""
    for position in range(rows.shape[0]):
        for choice in range(sizes.shape[0]):
            if not 0 <= actions[rows[position], choice] < sizes[choice]:
                return rows[position]
    return NO_ROW


@inlined
def _act(episodes, row, action):  # type: ignore[no-untyped-def]
    """Apply an action and advance to the next choice. Returns the increase of the objective since
    the last action in seconds.
    """
    state, future, tables = simulation_of(episodes.simulations, row)
    shown = row_of(episodes.shown, row)
    view = row_of(episodes.views, row)
    stage, limit, executor_class, hold_ms, is_masked = decision_of(
        state, shown, view, episodes.levels, action
    )
    episodes.num_masked[row] += 1 if is_masked else 0
    status = step(state, future, tables, stage, limit, executor_class, hold_ms)
    status = _to_next_choice(episodes, row, status)
    before_s = episodes.rewarded_s[row]
    episodes.rewarded_s[row] = _cost_s(state, status, episodes.is_makespan)
    return episodes.rewarded_s[row] - before_s


@kernel
def step_many(episodes, actions, rows, costs_s):  # type: ignore[no-untyped-def]
    """Apply one action in each of the given episodes and advance to the next choice. Returns the
    first of these rows whose run failed, or NO_ROW.
    """
    failed = NO_ROW
    for position in range(rows.shape[0] - 1, -1, -1):
        row = rows[position]
        costs_s[row] = _act(episodes, row, actions[row])
        failed = row if _has_failed(episodes, row) else failed
    return failed
