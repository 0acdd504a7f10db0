"""A virtual run of fair sharing beside the real one: when every job would have ended under Spark's FAIR, a pool a job.

The virtual run is fluid: jobs share the cores equally as far as their stages have tasks for them, and stages progress at the
rates of their shares between one end of a stage and the next. It knows what a scheduler may know: the estimates, corrected by
what finished tasks took, and the exact work of what is complete. It is carried on when the policy plans.

Source: Friedman and Henderson, "Fairness and efficiency in web server protocols" (SIGMETRICS 2003), for the idea of serving by
a virtual fair run.
"""

from __future__ import annotations

import math

from parcae.cluster.kernels.estimates import correction
from parcae.cluster.state import NOT_YET, VirtualRun
from parcae.kernels import inlined, kernel, sort_rows

_EPSILON_MS = 1e-6


@inlined
def virtual_of(state):  # type: ignore[no-untyped-def]
    """The virtual run in a cluster's state."""
    return VirtualRun(state.virtual_now, state.virtual_jobs, state.virtual_stages)


@inlined
def _tail(num_tasks):  # type: ignore[no-untyped-def]
    """By how many tasks' time the slowest task of a stage outlasts the others: half a task of many."""
    return 0.5 - 0.5 / num_tasks


@kernel
def _join(seen, virtual, job):  # type: ignore[no-untyped-def]
    """A job arrives in the virtual run."""
    now = virtual.now
    jobs = virtual.jobs
    stages = virtual.stages
    first = seen.jobs.stage_start[job]
    num_stages = seen.jobs.num_stages[job]
    for stage in range(first, first + num_stages):
        stages.attained_ms[stage] = 0.0
        stages.rate[stage] = 0.0
        stages.num_waiting[stage] = 0
        stages.is_ended[stage] = 0
    for stage in range(first, first + num_stages):
        start = seen.stages.child_start[stage]
        for edge in range(start, start + seen.stages.num_children[stage]):
            stages.num_waiting[seen.children[edge]] += 1
    jobs.member[now.num_members[0]] = job
    now.num_members[0] += 1
    jobs.num_left[job] = num_stages
    jobs.is_exact[job] = 0
    jobs.has_ended[job] = 0
    find_paths(seen, virtual, job)
    _learn_needs(seen, virtual, job)


@kernel
def find_paths(seen, virtual, job):  # type: ignore[no-untyped-def]
    """The critical path from every stage of the job on; stages may be numbered in any order, so until nothing changes."""
    first = seen.jobs.stage_start[job]
    stages = virtual.stages
    has_changed = True
    for stage in range(first, first + seen.jobs.num_stages[job]):
        stages.path_ms[stage] = 0.0
    while has_changed:
        has_changed = False
        for stage in range(first + seen.jobs.num_stages[job] - 1, first - 1, -1):
            longest_ms = 0.0
            start = seen.stages.child_start[stage]
            for edge in range(start, start + seen.stages.num_children[stage]):
                longest_ms = max(longest_ms, stages.path_ms[seen.children[edge]])
            path_ms = (
                longest_ms
                + (1.0 + _tail(seen.stages.num_tasks[stage])) * seen.stages.task_ms[stage]
            )
            if path_ms != stages.path_ms[stage]:
                stages.path_ms[stage] = path_ms
                has_changed = True


@kernel
def _learn_needs(seen, virtual, job):  # type: ignore[no-untyped-def]
    """What the job's stages need, by what is known now."""
    first = seen.jobs.stage_start[job]
    factor = correction(seen, job)
    stages = seen.stages
    total_ms = 0.0
    for stage in range(first, first + seen.jobs.num_stages[job]):
        left = stages.num_tasks[stage] - stages.num_finished[stage]
        work_ms = max(1.0, stages.executed_ms[stage] + left * seen.stages.task_ms[stage] * factor)
        virtual.stages.need_ms[stage] = work_ms * (
            1.0 + _tail(stages.num_tasks[stage]) / stages.num_tasks[stage]
        )
        total_ms += virtual.stages.need_ms[stage]
    virtual.jobs.total_ms[job] = total_ms
    virtual.jobs.is_exact[job] = 1 if seen.jobs.completion_ms[job] != NOT_YET else 0


@inlined
def _end_stage(seen, virtual, job, stage):  # type: ignore[no-untyped-def]
    virtual.stages.is_ended[stage] = 1
    virtual.jobs.num_left[job] -= 1
    start = seen.stages.child_start[stage]
    for edge in range(start, start + seen.stages.num_children[stage]):
        virtual.stages.num_waiting[seen.children[edge]] -= 1


@inlined
def _width(seen, virtual, stage):  # type: ignore[no-untyped-def]
    """(cores that the stage can use, work until that changes).

    It has one task a core as long as there are tasks, and keeps the cores that it has until its tasks end; then its slowest
    task runs on alone.
    """
    stages = virtual.stages
    num_tasks = seen.stages.num_tasks[stage]
    left_ms = stages.need_ms[stage] - stages.attained_ms[stage]
    tail = _tail(num_tasks)
    task_ms = stages.need_ms[stage] / (num_tasks + tail)
    slowest_ms = tail * task_ms
    if left_ms <= slowest_ms + _EPSILON_MS:
        return 1.0, left_ms
    body_ms = left_ms - slowest_ms
    return min(num_tasks, max(stages.rate[stage], math.ceil(body_ms / task_ms - 1e-9))), body_ms


@kernel
def _want(seen, virtual, job):  # type: ignore[no-untyped-def]
    """End the job's stages that have all they need, and say how many cores the others could use."""
    stages = virtual.stages
    first = seen.jobs.stage_start[job]
    wanted = 0.0
    for stage in range(first, first + seen.jobs.num_stages[job]):
        if stages.is_ended[stage] or stages.num_waiting[stage] > 0:
            continue
        if stages.need_ms[stage] - stages.attained_ms[stage] <= _EPSILON_MS:
            _end_stage(seen, virtual, job, stage)
        else:
            wanted += _width(seen, virtual, stage)[0]
    return wanted


@kernel
def _share_out(seen, virtual):  # type: ignore[no-untyped-def]
    """Equal shares of the cores, as far as jobs can use them; what one cannot use is for the others."""
    now = virtual.now
    jobs = virtual.jobs
    cores_left = float(seen.now.num_executors[0])
    num_left = 0
    for position in range(now.num_members[0]):
        jobs.rate[jobs.member[position]] = -1.0
        num_left += 1
    is_settled = False
    while not is_settled and num_left > 0:
        is_settled = True
        level = cores_left / num_left
        for position in range(now.num_members[0]):
            job = jobs.member[position]
            if jobs.rate[job] < 0.0 and jobs.wanted[job] <= level:
                jobs.rate[job] = jobs.wanted[job]
                cores_left -= jobs.wanted[job]
                num_left -= 1
                is_settled = False
    for position in range(now.num_members[0]):
        job = jobs.member[position]
        if jobs.rate[job] < 0.0:
            # Where there are fewer cores than jobs, older ones have them: Spark breaks ties by name.
            jobs.rate[job] = min(max(1.0, cores_left / num_left), cores_left)
            cores_left -= jobs.rate[job]
            num_left -= 1


@kernel
def _spread(seen, virtual, job):  # type: ignore[no-untyped-def]
    """Give the job's cores to its stages, by index. Returns the time to the first end of one of them."""
    stages = virtual.stages
    first = seen.jobs.stage_start[job]
    rate = virtual.jobs.rate[job]
    soonest_ms = math.inf
    for stage in range(first, first + seen.jobs.num_stages[job]):
        if stages.is_ended[stage] or stages.num_waiting[stage] > 0 or rate <= 0.0:
            stages.rate[stage] = 0.0
            continue
        width, left_ms = _width(seen, virtual, stage)
        stages.rate[stage] = min(rate, width)
        rate -= stages.rate[stage]
        soonest_ms = min(soonest_ms, left_ms / stages.rate[stage])
    return soonest_ms


@kernel
def _settle_members(seen, virtual):  # type: ignore[no-untyped-def]
    """End stages and jobs that have all they need; members that are left say what they want."""
    now = virtual.now
    jobs = virtual.jobs
    kept = 0
    for position in range(now.num_members[0]):
        job = jobs.member[position]
        jobs.wanted[job] = _want(seen, virtual, job)
        while jobs.wanted[job] == 0.0 and jobs.num_left[job] > 0:  # what ended made others runnable
            jobs.wanted[job] = _want(seen, virtual, job)
        if jobs.num_left[job] == 0:
            jobs.has_ended[job] = 1
            jobs.end_ms[job] = now.clock_ms[0]
        else:
            jobs.member[kept] = job
            kept += 1
    now.num_members[0] = kept


@kernel
def _flow(seen, virtual, until_ms):  # type: ignore[no-untyped-def]
    """Carry the virtual run on to `until_ms`; no job arrives before that."""
    now = virtual.now
    jobs = virtual.jobs
    stages = virtual.stages
    while now.clock_ms[0] < until_ms and now.num_members[0] > 0:
        _settle_members(seen, virtual)
        _share_out(seen, virtual)
        step_ms = until_ms - now.clock_ms[0]
        for position in range(now.num_members[0]):
            step_ms = min(step_ms, _spread(seen, virtual, jobs.member[position]))
        for position in range(now.num_members[0]):
            job = jobs.member[position]
            first = seen.jobs.stage_start[job]
            for stage in range(first, first + seen.jobs.num_stages[job]):
                stages.attained_ms[stage] += stages.rate[stage] * step_ms
        now.clock_ms[0] += max(step_ms, _EPSILON_MS)
    now.clock_ms[0] = max(now.clock_ms[0], until_ms)


@kernel
def _learn(seen, virtual):  # type: ignore[no-untyped-def]
    """Take in what has become known since the last plan.

    A job that ended in the virtual run, and turns out to need more or less than was thought then, would have taken longer
    or shorter in proportion.
    """
    now = virtual.now
    jobs = virtual.jobs
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if job >= now.num_jobs[0]:
            continue
        thought_ms = jobs.total_ms[job]
        _learn_needs(seen, virtual, job)
        if jobs.has_ended[job]:
            arrival_ms = float(seen.jobs.arrival_ms[job])
            stretch = jobs.total_ms[job] / thought_ms
            jobs.end_ms[job] = arrival_ms + (jobs.end_ms[job] - arrival_ms) * stretch
    for position in range(now.num_members[0]):
        job = jobs.member[position]
        if seen.jobs.completion_ms[job] != NOT_YET and not jobs.is_exact[job]:
            _learn_needs(seen, virtual, job)


@kernel
def carry_on(seen, virtual):  # type: ignore[no-untyped-def]
    """Carry the virtual run on to the present, arrival by arrival."""
    now = virtual.now
    _learn(seen, virtual)
    while now.num_jobs[0] < seen.now.num_jobs[0]:
        job = now.num_jobs[0]
        _flow(seen, virtual, float(seen.jobs.arrival_ms[job]))
        _join(seen, virtual, job)
        now.num_jobs[0] = job + 1
    _flow(seen, virtual, float(seen.now.clock_ms[0]))
    _settle_members(seen, virtual)


@kernel
def _measure_left(seen, virtual, job):  # type: ignore[no-untyped-def]
    """The job's work and critical path that are left in the virtual run."""
    stages = virtual.stages
    first = seen.jobs.stage_start[job]
    num_stages = seen.jobs.num_stages[job]
    left_ms = 0.0
    path_ms = 0.0
    for stage in range(first, first + num_stages):
        if stages.is_ended[stage]:
            continue
        left_ms += max(0.0, stages.need_ms[stage] - stages.attained_ms[stage])
        task_ms = seen.stages.task_ms[stage]
        num_tasks = seen.stages.num_tasks[stage]
        done_ms = (
            stages.attained_ms[stage] / stages.need_ms[stage] * (1.0 + _tail(num_tasks)) * task_ms
        )
        ratio = stages.need_ms[stage] / max(1.0, (num_tasks + _tail(num_tasks)) * task_ms)
        path_ms = max(path_ms, (stages.path_ms[stage] - done_ms) * ratio)
    virtual.jobs.left_ms[job] = left_ms
    virtual.jobs.path_ms[job] = path_ms


@kernel
def foretell_ends(seen, virtual):  # type: ignore[no-untyped-def]
    """Write when every member would end if nobody arrived any more: by equal shares, or by its critical path."""
    now = virtual.now
    jobs = virtual.jobs
    for position in range(now.num_members[0]):
        _measure_left(seen, virtual, jobs.member[position])
    count = now.num_members[0]
    for position in range(count):
        jobs.by_left[position] = jobs.member[position]
    sort_rows(jobs.by_left, jobs.left_ms, count)
    passed_ms = 0.0
    shared_ms = 0.0
    for position in range(count):
        job = jobs.by_left[position]
        shared_ms += (
            (jobs.left_ms[job] - passed_ms) * (count - position) / seen.now.num_executors[0]
        )
        passed_ms = jobs.left_ms[job]
        jobs.end_ms[job] = now.clock_ms[0] + max(shared_ms, jobs.path_ms[job])
