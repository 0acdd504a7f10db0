"""Transitions of the world of cores that only a live cluster needs.

A live cluster starts tasks by itself and reports them. Stages appear, change and run again, and
jobs end before all of their tasks are done. Transitions that the simulator needs as well are in
`cores` and `dispatch`.

A row of the executor table stands for a core. If more tasks run than the cluster has cores, extra
rows are used that stand for no core: such a row runs a task or is in no pool.
"""

from __future__ import annotations

from parcae.base.compiled.kernels import inlined, kernel
from parcae.cluster.kernels.cores import set_counts
from parcae.cluster.kernels.dispatch import begin_task, count_running, refresh_contender
from parcae.cluster.kernels.tables import (
    account_time,
    active_jobs,
    correction,
    count_schedulable_stage,
    edges_of,
    init_stage,
    pop_idle,
    push_idle,
    remaining_ms,
    remove_active,
    reset_orders,
    reset_stage_order,
    stages_of,
    waiting_tasks,
)
from parcae.cluster.kernels.virtual import estimate_need, find_critical_paths
from parcae.cluster.state import NO_JOB, NO_STAGE


@inlined
def _num_running(state):  # type: ignore[no-untyped-def]
    """Return the number of executor rows that run a task."""
    count = 0
    for executor in range(state.executors.shape[0]):
        count += state.executors.stage[executor] != NO_STAGE
    return count


@inlined
def _give_back(state, executor, num_running):  # type: ignore[no-untyped-def]
    """Release the row of an ended task; it becomes idle if it stands for a core.

    `num_running` is the number of tasks that still run in other rows.
    """
    state.executors.job[executor] = NO_JOB
    state.executors.stage[executor] = NO_STAGE
    if num_running + state.now.num_idle[0] < state.now.num_executors[0]:
        push_idle(state, 0, executor)


@kernel
def resize(state, num_cores):  # type: ignore[no-untyped-def]
    """Change the number of cores; the executor table must have at least as many rows."""
    now = state.now
    while now.num_idle[0] > 0:
        pop_idle(state, 0)
    now.num_executors[0] = num_cores
    state.classes.num_executors[0] = num_cores
    running = _num_running(state)
    for executor in range(state.executors.shape[0]):
        if running + now.num_idle[0] < num_cores and state.executors.stage[executor] == NO_STAGE:
            state.executors.job[executor] = NO_JOB
            push_idle(state, 0, executor)
    now.is_plan_due[0] = 1


@kernel
def tasks_started(state, stage, count):  # type: ignore[no-untyped-def]
    """Record that tasks of the stage started on the cluster. Returns the number of recorded tasks.
    If it is less than `count`, the executor table has no free row left and has to grow.
    """
    executors = state.executors
    num_recorded = 0
    row = 0  # all rows before it run a task
    while num_recorded < count:
        # The core that has been idle longest is preferred to a row that stands for no core.
        if state.now.num_idle[0] > 0:
            executor = pop_idle(state, 0)
        else:
            while row < executors.shape[0] and executors.stage[row] != NO_STAGE:
                row += 1
            if row == executors.shape[0]:
                break
            executor = row
        begin_task(state, executor, stage)
        num_recorded += 1
    refresh_contender(state, state.stages.job[stage])
    return num_recorded


@kernel
def tasks_ended(  # type: ignore[no-untyped-def]
    state, stage, num_finished, num_failed, executed_ms
):
    """Record that tasks of the stage ended, successfully or not. Failed tasks will run again."""
    stages = state.stages
    executors = state.executors
    job = state.stages.job[stage]
    running = _num_running(state)
    left = num_finished + num_failed
    for executor in range(executors.shape[0]):
        if left == 0:
            break
        if executors.stage[executor] == stage:
            running -= 1
            left -= 1
            _give_back(state, executor, running)
            stages.num_bound[stage] -= 1
            count_running(state, job, -1)
    stages.num_finished[stage] += num_finished
    stages.executed_ms[stage] += executed_ms
    if num_failed > 0:
        set_counts(
            state,
            stage,
            stages.num_tasks[stage],
            stages.num_started[stage] - num_failed,
            stages.num_finished[stage],
        )
        durations_changed(state, job)
    refresh_contender(state, job)


@kernel
def hide_stage(state, stage):  # type: ignore[no-untyped-def]
    """Hide the stage from the policy: it stands for expected work that cannot run yet."""
    job = state.stages.job[stage]
    state.stages.is_saturated[stage] = 1
    state.stages.fits[stage] = 0
    state.jobs.num_unsaturated[job] -= 1
    if state.jobs.num_unsaturated[job] == 0:
        state.now.num_open[0] -= 1


@kernel
def add_stage(state, job, num_tasks, task_ms, num_unfinished):  # type: ignore[no-untyped-def]
    """Add one stage to a job in the system, in the row behind its other stages. Returns the row.

    The row must be free. The caller then links the stage to its parents, calls `durations_changed`,
    and reveals the stage if it waits for no parent.
    """
    jobs = state.jobs
    now = state.now
    stage = jobs.stage_start[job] + jobs.num_stages[job]
    init_stage(state, job, stage, num_tasks, task_ms, num_unfinished)
    reset_stage_order(state, stage, 0.0)
    jobs.num_stages[job] += 1
    jobs.num_unstarted[job] += 1
    jobs.num_unsaturated[job] += 1
    if jobs.num_unsaturated[job] == 1:
        now.num_open[0] += 1
    now.num_stages[0] = max(now.num_stages[0], stage + 1)
    now.is_plan_due[0] = 1
    return stage


@kernel
def stages_added(state, virtual, job, first_new, hidden):  # type: ignore[no-untyped-def]
    """Add a job's new stages to a virtual run; their edges must be in the state's tables."""
    # The job has not arrived in the virtual run; it will join with all of its stages.
    if job >= virtual.now.num_jobs[0]:
        return
    stages = virtual.stages
    has_ended = virtual.jobs.has_ended[job]
    first = state.jobs.stage_start[job]
    last = first + state.jobs.num_stages[job]
    factor = correction(state, job)
    attained_ms = 0.0 if hidden == NO_STAGE else stages.attained_ms[hidden]
    for stage in range(first_new, last):
        stages.need_ms[stage] = estimate_need(state, stage, factor)
        stages.attained_ms[stage] = min(attained_ms, stages.need_ms[stage])
        attained_ms -= stages.attained_ms[stage]
        stages.rate[stage] = 0.0
        stages.num_waiting[stage] = 0
        stages.is_ended[stage] = has_ended
    for stage in range(first, last):
        for edge in edges_of(state, stage):
            child = state.children[edge]
            if child >= first_new and not stages.is_ended[stage]:
                stages.num_waiting[child] += 1
    if hidden != NO_STAGE:
        stages.attained_ms[hidden] = attained_ms
    if not has_ended:
        virtual.jobs.num_left[job] += last - first_new
    find_critical_paths(state, virtual, job)


@kernel
def rerun_tasks(state, stage, num_tasks):  # type: ignore[no-untyped-def]
    """Record that finished tasks of the stage have to run again because their output was lost.

    Children that have not started wait for the stage again.
    """
    stages = state.stages
    job = state.stages.job[stage]
    if stages.num_finished[stage] == stages.num_tasks[stage]:
        state.jobs.num_done[job] -= 1
        for edge in edges_of(state, stage):
            child = state.children[edge]
            if stages.num_parents_unfinished[child] > 0:
                stages.num_parents_unfinished[child] += 1
            elif stages.num_started[child] == 0:
                stages.num_parents_unfinished[child] = 1
                if stages.num_parents_unsaturated[child] == 0:
                    count_schedulable_stage(state, child, -1)
                stages.num_parents_unsaturated[child] = 1
                stages.frontier_rank[child] = -1
    left = stages.num_finished[stage] - num_tasks
    # The time of the tasks whose output is lost counts no more; they took as long as the others.
    # Whole shares first, so that no product is too large for 64 bits.
    finished = stages.num_finished[stage]
    executed_ms = stages.executed_ms[stage]
    rest_ms = executed_ms % finished
    stages.executed_ms[stage] = executed_ms // finished * left + rest_ms * left // finished
    set_counts(state, stage, stages.num_tasks[stage], stages.num_started[stage] - num_tasks, left)
    durations_changed(state, job)
    refresh_contender(state, job)


@kernel
def job_ended(state, job):  # type: ignore[no-untyped-def]
    """Record the end of a job, even if tasks are left. Its cores become idle.

    The job's stages keep what they really needed, so that the virtual run knows its exact work.
    """
    now = state.now
    jobs = state.jobs
    stages = state.stages
    executors = state.executors
    account_time(state, now.clock_ms[0])
    if jobs.num_unsaturated[job] > 0:
        now.num_open[0] -= 1
    now.num_schedulable[0] -= jobs.num_schedulable[job]
    jobs.num_schedulable[job] = 0
    jobs.num_unsaturated[job] = 0
    jobs.num_unstarted[job] = 0
    jobs.remaining_ms[job] = 0.0
    jobs.completion_ms[job] = now.clock_ms[0]
    remove_active(state, job)
    running = _num_running(state)
    for executor in range(executors.shape[0]):
        if executors.job[executor] == job:
            running -= 1
            count_running(state, job, -1)
            _give_back(state, executor, running)
    for stage in stages_of(state, job):
        finished = stages.num_finished[stage]
        stages.num_tasks[stage] = max(1, finished)  # at least 1, since it is used as a divisor
        stages.num_started[stage] = finished
        stages.num_bound[stage] = 0
        stages.frontier_rank[stage] = -1
        stages.is_saturated[stage] = 1
        if finished == 0:
            stages.task_ms[stage] = 0.0
    now.is_plan_due[0] = 1
    refresh_contender(state, job)


@kernel
def durations_changed(state, job):  # type: ignore[no-untyped-def]
    """Recompute the job's work, remaining work and downstream work from its stages' `task_ms`."""
    jobs = state.jobs
    stages = state.stages
    first = jobs.stage_start[job]
    last = jobs.stage_start[job] + jobs.num_stages[job]
    jobs.work_ms[job] = jobs.remaining_ms[job] = 0.0
    for stage in range(first, last):
        jobs.work_ms[job] += stages.num_tasks[stage] * stages.task_ms[stage]
        jobs.remaining_ms[job] += (
            stages.num_tasks[stage] - stages.num_started[stage]
        ) * stages.task_ms[stage]
        stages.downstream_ms[stage] = 0.0
    has_changed = True
    # Stages may be numbered in any order, so repeat until nothing changes: at most as often as the
    # longest path has stages.
    while has_changed:
        has_changed = False
        for stage in range(last - 1, first - 1, -1):
            longest = 0.0
            for edge in edges_of(state, stage):
                longest = max(longest, stages.downstream_ms[state.children[edge]])
            down = stages.num_tasks[stage] * stages.task_ms[stage] + longest
            if down != stages.downstream_ms[stage]:
                stages.downstream_ms[stage] = down
                has_changed = True


@kernel
def forget_orders(state):  # type: ignore[no-untyped-def]
    """Reset all orders to first come, first served, until the next plan replaces them."""
    state.now.num_pools[0] = 1
    for job in active_jobs(state):
        reset_orders(state, job, 0.0)
        state.job_orders.pool[job] = 0


@kernel
def work_at_hand(state, tasks, work_ms):  # type: ignore[no-untyped-def]
    """Write, for every active job, its tasks that run or could start, and its estimated work in ms
    that is left; running tasks are half done.
    """
    stages = state.stages
    for job in active_jobs(state):
        tasks[job] = waiting_tasks(state, job)
        work_ms[job] = remaining_ms(state, job)
        for stage in stages_of(state, job):
            tasks[job] += stages.num_bound[stage]
            work_ms[job] += 0.5 * stages.num_bound[stage] * stages.task_ms[stage]
