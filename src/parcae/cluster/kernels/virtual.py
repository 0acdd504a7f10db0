"""The virtual run: when every job would have ended under Spark's FAIR with one pool per job.

The virtual run is simulated beside the real one. It is fluid: jobs share the cores equally as far
as their stages have tasks for them, and between two ends of stages every stage progresses at the
rate of its share. It uses only what a scheduler may know: estimates, corrected by the durations of
finished tasks, and the exact work of complete jobs. It is advanced whenever the policy plans.

In all kernels `state` is the cluster's state (read only) and `virtual` the `VirtualRun` that is
written.

Source: Friedman and Henderson, "Fairness and efficiency in web server protocols" (SIGMETRICS 2003),
for the idea of serving by a virtual fair run.
"""

from __future__ import annotations

import math

from parcae.base.compiled.kernels import inlined, kernel, sort_rows, written_out
from parcae.cluster.kernels.tables import active_jobs, core_time_ms, correction, edges_of, stages_of
from parcae.cluster.state import NOT_YET

#: Work and times below this count as zero: rates are floating-point numbers.
_EPSILON_MS = 1e-6
#: The same as a share of a stage's work: sums of large numbers are rounded more coarsely.
_EPSILON_SHARE = 1e-12


@inlined
def empty_virtual_run(virtual):  # type: ignore[no-untyped-def]
    """Forget all jobs, before another run is simulated."""
    virtual.now.num_jobs[0] = 0
    virtual.now.num_members[0] = 0
    virtual.now.clock_ms[0] = 0.0


@written_out
def _members(virtual):  # type: ignore[no-untyped-def]
    """Return the rows of the jobs in the virtual run's system."""
    return virtual.jobs.member[: virtual.now.num_members[0]]


@inlined
def _tail(num_tasks):  # type: ignore[no-untyped-def]
    """Return how much longer a stage's slowest task runs than the others, in mean task durations.

    This is 0 for one task. For many it tends to half a task: the last ones begin at different
    times.
    """
    return 0.5 * (1.0 - 1.0 / num_tasks)


@inlined
def _rounding_ms(need_ms):  # type: ignore[no-untyped-def]
    """Return which rest of a stage that needs so much work counts as none."""
    return _EPSILON_MS + _EPSILON_SHARE * need_ms


@kernel
def _join(state, virtual, job):  # type: ignore[no-untyped-def]
    """Add an arriving job to the virtual run."""
    now = virtual.now
    jobs = virtual.jobs
    stages = virtual.stages
    for stage in stages_of(state, job):
        stages.attained_ms[stage] = 0.0
        stages.rate[stage] = 0.0
        stages.num_waiting[stage] = 0
        stages.is_ended[stage] = 0
    for stage in stages_of(state, job):
        for edge in edges_of(state, stage):
            stages.num_waiting[state.children[edge]] += 1
    jobs.member[now.num_members[0]] = job
    now.num_members[0] += 1
    jobs.num_left[job] = state.jobs.num_stages[job]
    jobs.is_exact[job] = 0
    jobs.has_ended[job] = 0
    find_critical_paths(state, virtual, job)
    _estimate_needs(state, virtual, job)


@kernel
def find_critical_paths(state, virtual, job):  # type: ignore[no-untyped-def]
    """Compute the critical path from every stage of the job to a leaf
    (`virtual.stages.path_ms`).
    """
    first = state.jobs.stage_start[job]
    stages = virtual.stages
    has_changed = True
    for stage in stages_of(state, job):
        stages.path_ms[stage] = 0.0
    # Stages may be numbered in any order, so repeat until nothing changes.
    while has_changed:
        has_changed = False
        for stage in range(first + state.jobs.num_stages[job] - 1, first - 1, -1):
            longest_ms = 0.0
            for edge in edges_of(state, stage):
                longest_ms = max(longest_ms, stages.path_ms[state.children[edge]])
            tail = _tail(state.stages.num_tasks[stage])
            path_ms = longest_ms + (1.0 + tail) * state.stages.task_ms[stage]
            if path_ms != stages.path_ms[stage]:
                stages.path_ms[stage] = path_ms
                has_changed = True


@kernel
def find_new_paths(state, virtual):  # type: ignore[no-untyped-def]
    """Compute the critical paths of the jobs that arrived since the last call, in place of
    advancing the virtual run.
    """
    while virtual.now.num_jobs[0] < state.now.num_jobs[0]:
        find_critical_paths(state, virtual, virtual.now.num_jobs[0])
        virtual.now.num_jobs[0] += 1


@inlined
def estimate_need(state, stage, factor):  # type: ignore[no-untyped-def]
    """Estimate the work of a stage in the virtual run, in ms, from what is known now."""
    stages = state.stages
    left = stages.num_tasks[stage] - stages.num_finished[stage]
    work_ms = max(1.0, stages.executed_ms[stage] + left * stages.task_ms[stage] * factor)
    return work_ms * (1.0 + _tail(stages.num_tasks[stage]) / stages.num_tasks[stage])


@kernel
def _estimate_needs(state, virtual, job):  # type: ignore[no-untyped-def]
    """Estimate the work of the job's stages from what is known now."""
    factor = correction(state, job)
    total_ms = 0.0
    for stage in stages_of(state, job):
        virtual.stages.need_ms[stage] = estimate_need(state, stage, factor)
        total_ms += virtual.stages.need_ms[stage]
    virtual.jobs.total_ms[job] = total_ms
    virtual.jobs.is_exact[job] = 1 if state.jobs.completion_ms[job] != NOT_YET else 0


@inlined
def _end_stage(state, virtual, job, stage):  # type: ignore[no-untyped-def]
    virtual.stages.is_ended[stage] = 1
    virtual.jobs.num_left[job] -= 1
    for edge in edges_of(state, stage):
        virtual.stages.num_waiting[state.children[edge]] -= 1


@inlined
def _width(state, virtual, stage):  # type: ignore[no-untyped-def]
    """Return (cores that the stage can use, work until that number changes).

    The stage uses one core per task that is left, and keeps the cores that it has until its tasks
    end. Then its slowest task runs on alone.
    """
    stages = virtual.stages
    num_tasks = state.stages.num_tasks[stage]
    left_ms = stages.need_ms[stage] - stages.attained_ms[stage]
    tail = _tail(num_tasks)
    task_ms = stages.need_ms[stage] / (num_tasks + tail)
    slowest_ms = tail * task_ms
    if left_ms <= slowest_ms + _rounding_ms(stages.need_ms[stage]):
        return 1.0, left_ms
    body_ms = left_ms - slowest_ms
    return min(num_tasks, max(stages.rate[stage], math.ceil(body_ms / task_ms - 1e-9))), body_ms


@kernel
def _count_wanted(state, virtual, job):  # type: ignore[no-untyped-def]
    """End the job's stages whose work is done. Returns how many cores the other stages can use."""
    stages = virtual.stages
    wanted = 0.0
    for stage in stages_of(state, job):
        if stages.is_ended[stage] or stages.num_waiting[stage] > 0:
            continue
        left_ms = stages.need_ms[stage] - stages.attained_ms[stage]
        if left_ms <= _rounding_ms(stages.need_ms[stage]):
            _end_stage(state, virtual, job, stage)
        else:
            wanted += _width(state, virtual, stage)[0]
    return wanted


@kernel
def _share_out(state, virtual):  # type: ignore[no-untyped-def]
    """Share the cores equally among the jobs; cores that a job cannot use go to the others."""
    jobs = virtual.jobs
    cores_left = virtual.now.num_cores[0]
    num_left = 0
    for job in _members(virtual):
        jobs.rate[job] = -1.0  # not settled yet
        num_left += 1
    is_settled = False
    while not is_settled and num_left > 0:
        is_settled = True
        # Settle the jobs that want at most an equal share, which raises the share of the others.
        level = cores_left / num_left
        for job in _members(virtual):
            if jobs.rate[job] < 0.0 and jobs.wanted[job] <= level:
                jobs.rate[job] = jobs.wanted[job]
                cores_left -= jobs.wanted[job]
                num_left -= 1
                is_settled = False
    for job in _members(virtual):
        if jobs.rate[job] < 0.0:
            # If there are fewer cores than jobs, older jobs get them: Spark breaks ties by name.
            jobs.rate[job] = min(max(1.0, cores_left / num_left), cores_left)
            cores_left -= jobs.rate[job]
            num_left -= 1


@kernel
def _spread(state, virtual, job):  # type: ignore[no-untyped-def]
    """Distribute the job's cores over its stages, by index. Returns the time to the next change."""
    stages = virtual.stages
    rate = virtual.jobs.rate[job]
    soonest_ms = math.inf
    for stage in stages_of(state, job):
        if stages.is_ended[stage] or stages.num_waiting[stage] > 0 or rate <= 0.0:
            stages.rate[stage] = 0.0
            continue
        width, left_ms = _width(state, virtual, stage)
        stages.rate[stage] = min(rate, width)
        rate -= stages.rate[stage]
        soonest_ms = min(soonest_ms, left_ms / stages.rate[stage])
    return soonest_ms


@kernel
def _settle_members(state, virtual):  # type: ignore[no-untyped-def]
    """End stages and jobs whose work is done, and count the cores that the others can use."""
    now = virtual.now
    jobs = virtual.jobs
    kept = 0
    for job in _members(virtual):
        jobs.wanted[job] = _count_wanted(state, virtual, job)
        # A stage that ended may have made others runnable.
        while jobs.wanted[job] == 0.0 and jobs.num_left[job] > 0:
            jobs.wanted[job] = _count_wanted(state, virtual, job)
        if jobs.num_left[job] == 0:
            jobs.has_ended[job] = 1
            jobs.end_ms[job] = now.clock_ms[0]
        else:
            jobs.member[kept] = job
            kept += 1
    now.num_members[0] = kept


@kernel
def _advance_until(state, virtual, until_ms):  # type: ignore[no-untyped-def]
    """Advance the virtual run to `until_ms`; no job arrives before that."""
    now = virtual.now
    stages = virtual.stages
    while now.clock_ms[0] < until_ms and now.num_members[0] > 0:
        _settle_members(state, virtual)
        _share_out(state, virtual)
        step_ms = until_ms - now.clock_ms[0]
        for job in _members(virtual):
            step_ms = min(step_ms, _spread(state, virtual, job))
        for job in _members(virtual):
            for stage in stages_of(state, job):
                stages.attained_ms[stage] += stages.rate[stage] * step_ms
        # Stages make progress in every step, but a short one may not move a clock of 50 years.
        now.clock_ms[0] += max(step_ms, _EPSILON_MS)
    now.clock_ms[0] = max(now.clock_ms[0], until_ms)


@kernel
def _update_estimates(state, virtual):  # type: ignore[no-untyped-def]
    """Update the estimates with what has become known since the last plan.

    If a job has ended in the virtual run and now turns out to need more or less work than estimated
    then, its time there is stretched in proportion.
    """
    now = virtual.now
    jobs = virtual.jobs
    for job in active_jobs(state):
        if job >= now.num_jobs[0]:
            continue
        previous_ms = jobs.total_ms[job]
        _estimate_needs(state, virtual, job)
        if jobs.has_ended[job]:
            arrival_ms = float(state.jobs.arrival_ms[job])
            stretch = jobs.total_ms[job] / previous_ms
            jobs.end_ms[job] = arrival_ms + (jobs.end_ms[job] - arrival_ms) * stretch
    for job in _members(virtual):
        if state.jobs.completion_ms[job] != NOT_YET and not jobs.is_exact[job]:
            _estimate_needs(state, virtual, job)


@kernel
def _set_cores(state, virtual, until_ms, core_ms):  # type: ignore[no-untyped-def]
    """Set the number of cores that the virtual run has until `until_ms`.

    On an elastic cluster it is the mean number of cores that were up since the run's clock;
    `core_ms` is the integral of that number to `until_ms`.
    """
    cores = float(state.now.num_executors[0])
    if state.now.is_elastic[0]:
        # A run that has not advanced yet begins at time 0.
        before_ms = virtual.now.core_ms[0] if virtual.now.clock_ms[0] > 0.0 else 0
        passed_ms = until_ms - virtual.now.clock_ms[0]
        if passed_ms > 0.0:
            cores = (core_ms - before_ms) / passed_ms
        virtual.now.core_ms[0] = core_ms
    virtual.now.num_cores[0] = cores


@kernel
def advance_virtual_run(state, virtual):  # type: ignore[no-untyped-def]
    """Advance the virtual run to the present, arrival by arrival."""
    now = virtual.now
    _update_estimates(state, virtual)
    while now.num_jobs[0] < state.now.num_jobs[0]:
        job = now.num_jobs[0]
        arrival_ms = float(state.jobs.arrival_ms[job])
        _set_cores(state, virtual, arrival_ms, state.jobs.core_ms[job])
        _advance_until(state, virtual, arrival_ms)
        _join(state, virtual, job)
        now.num_jobs[0] = job + 1
    clock_ms = float(state.now.clock_ms[0])
    _set_cores(state, virtual, clock_ms, core_time_ms(state))
    _advance_until(state, virtual, clock_ms)
    _settle_members(state, virtual)


@kernel
def _measure_remaining(state, virtual, job):  # type: ignore[no-untyped-def]
    """Compute the job's remaining work and critical path in the virtual run."""
    stages = virtual.stages
    left_ms = 0.0
    path_ms = 0.0
    for stage in stages_of(state, job):
        if stages.is_ended[stage]:
            continue
        left_ms += max(0.0, stages.need_ms[stage] - stages.attained_ms[stage])
        task_ms = state.stages.task_ms[stage]
        num_tasks = state.stages.num_tasks[stage]
        tail = _tail(num_tasks)
        done_ms = stages.attained_ms[stage] / stages.need_ms[stage] * (1.0 + tail) * task_ms
        ratio = stages.need_ms[stage] / max(1.0, (num_tasks + tail) * task_ms)
        path_ms = max(path_ms, (stages.path_ms[stage] - done_ms) * ratio)
    virtual.jobs.left_ms[job] = left_ms
    virtual.jobs.path_ms[job] = path_ms


@kernel
def predict_ends(state, virtual):  # type: ignore[no-untyped-def]
    """Predict when every job of the virtual run would end if no more jobs arrived.

    The prediction is the later of the end under equal shares of the cores and the end of the job's
    critical path. Writes `jobs.end_ms`, `jobs.left_ms`, `jobs.path_ms` and `jobs.by_left`.
    """
    now = virtual.now
    jobs = virtual.jobs
    for job in _members(virtual):
        _measure_remaining(state, virtual, job)
    count = now.num_members[0]
    for position in range(count):
        jobs.by_left[position] = jobs.member[position]
    sort_rows(jobs.by_left, jobs.left_ms, count)
    # Processor sharing: until the job with the least remaining work ends, all jobs progress
    # equally; after that the others share its cores, and so on.
    passed_ms = 0.0
    shared_ms = 0.0
    for position in range(count):
        job = jobs.by_left[position]
        shared_ms += (
            (jobs.left_ms[job] - passed_ms) * (count - position) / state.now.num_executors[0]
        )
        passed_ms = jobs.left_ms[job]
        jobs.end_ms[job] = now.clock_ms[0] + max(shared_ms, jobs.path_ms[job])
