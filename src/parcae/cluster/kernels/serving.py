"""Transitions that only a live cluster of the world of cores knows.

The cluster starts tasks by itself and tells of them; stages appear, change and run again; jobs end
before all of their tasks are done. What the simulator knows as well is in `cores` and `dispatch`.

An executor row stands for a core. While more tasks run than the cluster is said to have cores, rows
are taken that stand for no core: they run a task, or are in no pool.
"""

from __future__ import annotations

from parcae.cluster.kernels.dispatch import begin_task, count_running, refresh_contender
from parcae.cluster.kernels.tables import (
    account_time,
    count_schedulable_stage,
    pop_idle,
    push_idle,
    refresh_saturation,
    remove_active,
)
from parcae.cluster.kernels.virtual import carry_on, find_paths, foretell_ends
from parcae.cluster.state import NO_EXECUTOR, NO_JOB, NO_STAGE, NOT_YET, UNLIMITED
from parcae.kernels import inlined, kernel


@inlined
def _num_running(state):  # type: ignore[no-untyped-def]
    count = 0
    for executor in range(state.executors.shape[0]):
        count += state.executors.stage[executor] != NO_STAGE
    return count


@inlined
def _free_row(state):  # type: ignore[no-untyped-def]
    """A row for a task that began: the core that is idle for longest, else one that stands for none."""
    if state.now.num_idle[0] > 0:
        return pop_idle(state, 0)
    for executor in range(state.executors.shape[0]):
        if state.executors.stage[executor] == NO_STAGE:
            return executor
    return NO_EXECUTOR


@inlined
def _give_back(state, executor, num_running):  # type: ignore[no-untyped-def]
    """The row runs nothing any more; so many others do. It becomes idle where it stands for a core."""
    state.executors.job[executor] = NO_JOB
    state.executors.stage[executor] = NO_STAGE
    if num_running + state.now.num_idle[0] < state.now.num_executors[0]:
        push_idle(state, 0, executor)


@kernel
def resize(state, num_cores):  # type: ignore[no-untyped-def]
    """The cluster has so many cores now; the table must have as many rows."""
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
def tasks_began(state, stage, count):  # type: ignore[no-untyped-def]
    """So many tasks of the stage began. Returns for how many there were rows; the table must grow for the others."""
    begun = 0
    while begun < count:
        executor = _free_row(state)
        if executor == NO_EXECUTOR:
            break
        begin_task(state, executor, stage)
        begun += 1
    refresh_contender(state, state.stages.job[stage])
    return begun


@kernel
def tasks_left(state, stage, num_finished, num_failed, executed_ms):  # type: ignore[no-untyped-def]
    """Tasks of the stage ended well, and took `executed_ms` together; or they are to be tried again."""
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
def set_counts(state, stage, num_tasks, num_started, num_finished):  # type: ignore[no-untyped-def]
    """The stage's tasks are other than was thought; those that run must be the same."""
    stages = state.stages
    now = state.now
    job = state.stages.job[stage]
    had_more = stages.num_started[stage] < stages.num_tasks[stage]
    has_more = num_started < num_tasks
    stages.num_tasks[stage] = num_tasks
    stages.num_started[stage] = num_started
    stages.num_finished[stage] = num_finished
    state.jobs.num_unstarted[job] += (1 if has_more else 0) - (1 if had_more else 0)
    if not has_more:
        stages.frontier_rank[stage] = -1
    elif stages.num_parents_unsaturated[stage] == 0 and stages.frontier_rank[stage] < 0:
        stages.frontier_rank[stage] = now.num_revealed[0]
        now.num_revealed[0] += 1
    refresh_saturation(state, stage)
    now.is_plan_due[0] = 1
    refresh_contender(state, job)


@kernel
def hide(state, stage):  # type: ignore[no-untyped-def]
    """Nobody can run the stage: it stands for work that is yet to come."""
    job = state.stages.job[stage]
    state.stages.is_saturated[stage] = 1
    state.stages.fits[stage] = 0
    state.jobs.num_unsaturated[job] -= 1
    if state.jobs.num_unsaturated[job] == 0:
        state.now.num_open[0] -= 1


@kernel
def add_stage(state, job, num_tasks, task_ms, num_unfinished):  # type: ignore[no-untyped-def]
    """A job in the system gets one more stage, in the row behind its others, with so many parents to wait for.

    Its row must be free. The caller links it to its parents, derives durations afresh and reveals
    it where it waits for nothing. Returns its row.
    """
    stages = state.stages
    jobs = state.jobs
    now = state.now
    stage = jobs.stage_start[job] + jobs.num_stages[job]
    stages.num_tasks[stage] = num_tasks
    stages.task_ms[stage] = task_ms
    stages.downstream_ms[stage] = 0.0
    stages.cpu[stage] = 0.0
    stages.memory[stage] = 0.0
    stages.job[stage] = job
    stages.num_started[stage] = 0
    stages.num_finished[stage] = 0
    stages.num_committed[stage] = 0
    stages.num_moving[stage] = 0
    stages.num_bound[stage] = 0
    stages.is_saturated[stage] = 0
    stages.executed_ms[stage] = 0
    stages.selected_round[stage] = 0
    stages.hold_from_ms[stage] = NOT_YET
    stages.hold_until_ms[stage] = NOT_YET
    stages.fits[stage] = 1
    stages.num_parents_unsaturated[stage] = max(1, num_unfinished)
    stages.num_parents_unfinished[stage] = num_unfinished
    stages.child_start[stage] = now.num_edges[0]
    stages.num_children[stage] = 0
    stages.frontier_rank[stage] = -1
    state.stage_orders.tier[stage] = 0.0
    state.stage_orders.rank[stage] = 0.0
    state.stage_orders.limit[stage] = UNLIMITED
    jobs.num_stages[job] += 1
    jobs.num_unstarted[job] += 1
    jobs.num_unsaturated[job] += 1
    if jobs.num_unsaturated[job] == 1:
        now.num_open[0] += 1
    now.num_stages[0] = max(now.num_stages[0], stage + 1)
    now.is_plan_due[0] = 1
    return stage


@kernel
def stages_joined(seen, virtual, job, first_new):  # type: ignore[no-untyped-def]
    """In a virtual run: the job got stages, from the row `first_new` on, whose edges are in the tables."""
    if job >= virtual.now.num_jobs[0]:
        return
    stages = virtual.stages
    has_ended = virtual.jobs.has_ended[job]
    first = seen.jobs.stage_start[job]
    last = first + seen.jobs.num_stages[job]
    for stage in range(first_new, last):
        stages.need_ms[stage] = 1.0
        stages.attained_ms[stage] = 0.0
        stages.rate[stage] = 0.0
        stages.num_waiting[stage] = 0
        stages.is_ended[stage] = has_ended
    for stage in range(first, last):
        start = seen.stages.child_start[stage]
        for edge in range(start, start + seen.stages.num_children[stage]):
            child = seen.children[edge]
            if child >= first_new and not stages.is_ended[stage]:
                stages.num_waiting[child] += 1
    if not has_ended:
        virtual.jobs.num_left[job] += last - first_new
    find_paths(seen, virtual, job)


@kernel
def begin_again(state, stage, num_tasks):  # type: ignore[no-untyped-def]
    """So many finished tasks of the stage are to run once more: what they made was lost.

    Children that have not begun wait for it again.
    """
    stages = state.stages
    job = state.stages.job[stage]
    if stages.num_finished[stage] == stages.num_tasks[stage]:
        state.jobs.num_done[job] -= 1
        start = stages.child_start[stage]
        for edge in range(start, start + stages.num_children[stage]):
            child = state.children[edge]
            if stages.num_parents_unfinished[child] > 0:
                stages.num_parents_unfinished[child] += 1
            elif stages.num_started[child] == 0:
                stages.num_parents_unfinished[child] = 1
                if stages.num_parents_unsaturated[child] == 0:
                    count_schedulable_stage(state, child, -1)
                stages.num_parents_unsaturated[child] = 1
                stages.frontier_rank[child] = -1
    set_counts(
        state,
        stage,
        stages.num_tasks[stage],
        stages.num_started[stage] - num_tasks,
        stages.num_finished[stage] - num_tasks,
    )
    durations_changed(state, job)
    refresh_contender(state, job)


@kernel
def job_over(state, job):  # type: ignore[no-untyped-def]
    """The job ends, whatever it has left: what it needed is known now, and its cores are free."""
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
    for stage in range(jobs.stage_start[job], jobs.stage_start[job] + jobs.num_stages[job]):
        finished = stages.num_finished[stage]
        stages.num_tasks[stage] = max(1, finished)  # nobody divides by no tasks
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
    """Derive the job's work and its downstream work afresh from its stages' tasks and `task_ms`."""
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
    while has_changed:  # at most as often as the longest path has stages
        has_changed = False
        for stage in range(last - 1, first - 1, -1):
            longest = 0.0
            for edge in range(
                stages.child_start[stage], stages.child_start[stage] + stages.num_children[stage]
            ):
                longest = max(longest, stages.downstream_ms[state.children[edge]])
            down = stages.num_tasks[stage] * stages.task_ms[stage] + longest
            if down != stages.downstream_ms[stage]:
                stages.downstream_ms[stage] = down
                has_changed = True


@kernel
def forget_orders(state):  # type: ignore[no-untyped-def]
    """First come, first served, until the plan that follows says otherwise."""
    state.now.num_pools[0] = 1
    for position in range(state.now.num_active[0]):
        job = state.active[position]
        state.job_orders.tier[job] = 0.0
        state.job_orders.weight[job] = 0.0
        state.job_orders.limit[job] = UNLIMITED
        state.job_orders.pool[job] = 0
        first = state.jobs.stage_start[job]
        for stage in range(first, first + state.jobs.num_stages[job]):
            state.stage_orders.tier[stage] = 0.0
            state.stage_orders.rank[stage] = 0.0
            state.stage_orders.limit[stage] = UNLIMITED


@kernel
def foretell_fair(state, virtual):  # type: ignore[no-untyped-def]
    """Carry a virtual run of fair sharing on to the present, and foretell when its jobs will end."""
    carry_on(state, virtual)
    foretell_ends(state, virtual)


@inlined
def _goes_first(state, stage, best, cores):  # type: ignore[no-untyped-def]
    """Whether one stage is served before another, where jobs have so many cores."""
    if best == NO_STAGE:
        return True
    orders = state.job_orders
    stage_orders = state.stage_orders
    job = state.stages.job[stage]
    other = state.stages.job[best]
    tier = orders.tier[job] + stage_orders.tier[stage]
    best_tier = orders.tier[other] + stage_orders.tier[best]
    if tier != best_tier:
        return tier < best_tier
    share = cores[job] / orders.weight[job] if orders.weight[job] > 0.0 else 0.0
    best_share = cores[other] / orders.weight[other] if orders.weight[other] > 0.0 else 0.0
    if share != best_share:
        return share < best_share
    if job != other:
        return job < other
    if stage_orders.rank[stage] != stage_orders.rank[best]:
        return stage_orders.rank[stage] < stage_orders.rank[best]
    return stage < best


@kernel
def hand_out(state, num_cores, cores, taken):  # type: ignore[no-untyped-def]
    """Give so many cores away, one by one, by the order in force to all tasks that run or could start.

    Fills `cores`, int64[num_jobs], and uses `taken`, int64[num_stages]. As if no core were given away.
    """
    stages = state.stages
    for position in range(state.now.num_active[0]):
        job = state.active[position]
        cores[job] = 0
        first = state.jobs.stage_start[job]
        taken[first : first + state.jobs.num_stages[job]] = 0
    for _ in range(num_cores):
        best = NO_STAGE
        for position in range(state.now.num_active[0]):
            job = state.active[position]
            if cores[job] >= state.job_orders.limit[job]:
                continue
            first = state.jobs.stage_start[job]
            for stage in range(first, first + state.jobs.num_stages[job]):
                wanted = stages.num_bound[stage]
                if stages.frontier_rank[stage] >= 0:
                    wanted += stages.num_tasks[stage] - stages.num_started[stage]
                if taken[stage] >= min(wanted, state.stage_orders.limit[stage]):
                    continue
                if _goes_first(state, stage, best, cores):
                    best = stage
        if best == NO_STAGE:
            return
        taken[best] += 1
        cores[stages.job[best]] += 1
