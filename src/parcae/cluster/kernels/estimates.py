"""What is left of a job, as far as a scheduler can know: one estimator for all policies, simulated and live.

Durations are estimates (`stages.task_ms`): the profile's, or a guess where the profile does not know the job. While a job
runs, its estimate is scaled by what its finished tasks took against what was foretold, with a prior worth three tasks.
"""

from __future__ import annotations

from parcae.kernels import kernel

#: At least this share of what a job has done is thought to be left where a job can outlive its
#: profile, as on a real cluster: `now.least_share`, which is 0 where all of a job's tasks are known.
LEAST_SHARE = 0.05
#: The prior belief in the told durations counts as so many finished tasks that took what was foretold.
PRIOR_TASKS = 3.0


@kernel
def correction(seen, job):  # type: ignore[no-untyped-def]
    """Factor on the job's foretold durations that its finished tasks suggest: 1 before any has finished."""
    if not seen.now.is_corrected[0]:
        return 1.0
    stages = seen.stages
    first = seen.jobs.stage_start[job]
    num_finished = 0
    executed_ms = 0.0
    expected_ms = 0.0
    for stage in range(first, first + seen.jobs.num_stages[job]):
        finished = stages.num_finished[stage]
        if finished > 0:
            num_finished += finished
            executed_ms += stages.executed_ms[stage]
            expected_ms += finished * stages.task_ms[stage]
    if num_finished == 0 or expected_ms <= 0.0:
        return 1.0
    return (num_finished * executed_ms / expected_ms + PRIOR_TASKS) / (num_finished + PRIOR_TASKS)


@kernel
def unstarted_ms(seen, job):  # type: ignore[no-untyped-def]
    """Foretold work of the job's tasks that have not started."""
    stages = seen.stages
    first = seen.jobs.stage_start[job]
    work_ms = 0.0
    for stage in range(first, first + seen.jobs.num_stages[job]):
        work_ms += (stages.num_tasks[stage] - stages.num_started[stage]) * stages.task_ms[stage]
    return work_ms


@kernel
def remaining_ms(seen, job):  # type: ignore[no-untyped-def]
    """Work of the job's tasks that have not started, as it is thought of now."""
    stages = seen.stages
    first = seen.jobs.stage_start[job]
    executed_ms = 0.0
    for stage in range(first, first + seen.jobs.num_stages[job]):
        executed_ms += stages.executed_ms[stage]
    left_ms = unstarted_ms(seen, job) * correction(seen, job)
    return max(left_ms, seen.now.least_share[0] * executed_ms)


@kernel
def total_ms(seen, job):  # type: ignore[no-untyped-def]
    """Foretold work of all of the job's tasks."""
    stages = seen.stages
    first = seen.jobs.stage_start[job]
    work_ms = 0.0
    for stage in range(first, first + seen.jobs.num_stages[job]):
        work_ms += stages.num_tasks[stage] * stages.task_ms[stage]
    return work_ms
