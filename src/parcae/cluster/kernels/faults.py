"""Transitions of the world of cores when something goes wrong: tasks without a result.

`state` is a `ClusterState`; stages and executors (cores) are given as row numbers.
"""

from __future__ import annotations

from parcae.cluster.kernels.cores import set_counts
from parcae.cluster.kernels.dispatch import count_running, refresh_contender
from parcae.cluster.state import NO_JOB, NO_STAGE
from parcae.kernels import kernel


@kernel
def drop_task(state, executor):  # type: ignore[no-untyped-def]
    """End the core's task without a result. The core is in no pool then."""
    stage = state.executors.stage[executor]
    job = state.stages.job[stage]
    state.stages.num_bound[stage] -= 1
    count_running(state, job, -1)
    state.executors.job[executor] = NO_JOB
    state.executors.stage[executor] = NO_STAGE
    refresh_contender(state, job)


@kernel
def change_pending(state, stage, step):  # type: ignore[no-untyped-def]
    """Change the number of the stage's tasks that are to start. A plan is due.

    Args:
        state: the cluster's tables; `stages`, `jobs` and `now` are written.
        stage: row of the stage.
        step: how many of its started tasks have to start once more, -1 if that is no longer so of
            one.
    """
    stages = state.stages
    state.jobs.remaining_ms[stages.job[stage]] += step * stages.task_ms[stage]
    set_counts(
        state,
        stage,
        stages.num_tasks[stage],
        stages.num_started[stage] - step,
        stages.num_finished[stage],
    )
