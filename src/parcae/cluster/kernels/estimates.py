"""Estimates of a job's work: one estimator for all policies, simulated and live.

Durations are estimates (`stages.task_ms`): the profile's, or a guess for jobs without a profile.
While a job runs, its estimates are multiplied by a correction: the durations of its finished tasks
relative to their estimates, with a prior that counts as three tasks.
"""

from __future__ import annotations

from parcae.base.compiled.kernels import kernel
from parcae.cluster.kernels.tables import stages_of

#: Value of `now.least_share` on a real cluster, where a job can be longer than its profile: its
#: remaining work is estimated as at least this share of the work done. In simulations with known
#: tasks `now.least_share` is 0.
LEAST_SHARE = 0.05
#: The prior counts as this many finished tasks whose durations equalled their estimates.
PRIOR_TASKS = 3.0


@kernel
def correction(state, job):  # type: ignore[no-untyped-def]
    """Return the factor on the job's estimated durations, from its finished tasks; 1 before any."""
    if not state.now.is_corrected[0]:
        return 1.0
    num_finished, executed_ms, expected_ms = finished_tasks(state, job)
    if num_finished == 0 or expected_ms <= 0.0:
        return 1.0
    return (num_finished * executed_ms / expected_ms + PRIOR_TASKS) / (num_finished + PRIOR_TASKS)


@kernel
def finished_tasks(state, job):  # type: ignore[no-untyped-def]
    """The job's finished tasks: their number, how long they took, and how long by the estimates.
    Returns an int64, and two float64 in ms.
    """
    stages = state.stages
    num_finished = 0
    executed_ms = 0.0
    expected_ms = 0.0
    for stage in stages_of(state, job):
        finished = stages.num_finished[stage]
        if finished > 0:
            num_finished += finished
            executed_ms += stages.executed_ms[stage]
            expected_ms += finished * stages.task_ms[stage]
    return num_finished, executed_ms, expected_ms


@kernel
def unstarted_ms(state, job):  # type: ignore[no-untyped-def]
    """Return the estimated work of the job's tasks that have not started, without correction."""
    stages = state.stages
    work_ms = 0.0
    for stage in stages_of(state, job):
        work_ms += (stages.num_tasks[stage] - stages.num_started[stage]) * stages.task_ms[stage]
    return work_ms


@kernel
def remaining_ms(state, job):  # type: ignore[no-untyped-def]
    """Return the estimated work of the job's tasks that have not started, corrected.

    It is at least `now.least_share` of the work that the job has done.
    """
    stages = state.stages
    executed_ms = 0.0
    for stage in stages_of(state, job):
        executed_ms += stages.executed_ms[stage]
    left_ms = unstarted_ms(state, job) * correction(state, job)
    return max(left_ms, state.now.least_share[0] * executed_ms)


@kernel
def total_ms(state, job):  # type: ignore[no-untyped-def]
    """Return the estimated work of all of the job's tasks, without correction."""
    stages = state.stages
    work_ms = 0.0
    for stage in stages_of(state, job):
        work_ms += stages.num_tasks[stage] * stages.task_ms[stage]
    return work_ms
