"""Weighted fair shares: each job's share of the cluster is proportional to a power of its work.

With several executor classes, a job's allocation is its dominant share: the larger of its shares of
the cluster's cores and memory, over all classes together.

Kernels read the observation `view` and keep weights and allocations in `memo` (`HeuristicMemo`).

Source: Decima, section 7.1, baselines 4 and 5; Appendix F.
"""

from __future__ import annotations

import math

from parcae.base.compiled.kernels import DECISION, deferred, inlined, kernel
from parcae.cluster.kernels.tables import (
    demand,
    first_runnable,
    first_schedulable,
    is_runnable,
    is_schedulable,
    may_idle,
    stages_of,
)
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_STAGE
from parcae.decima.queries import best_fitting, of_total, totals


@inlined
def up_to(stage, limit):  # type: ignore[no-untyped-def]
    """Return the decision that gives the stage up to `limit` of the best-fitting executors."""
    return stage, limit, ANY_CLASS, 0


@inlined
def all_to(view, stage):  # type: ignore[no-untyped-def]
    """Return the decision that gives the stage all offered executors; NO_STAGE lets them idle."""
    return stage, view.now.num_source[0], ANY_CLASS, 0


@kernel
def stage_in_order(view, job):  # type: ignore[no-untyped-def]
    """Return the job's next stage in order of becoming runnable, or NO_STAGE.

    If no stage is runnable, this is the schedulable stage with the smallest index.

    # Deviation: Decima, section 7.1, baseline 3 round-robins over a job's runnable stages; here, as
    in the released code, the stage that became runnable first gets all executors that it can use.
    """
    if view.jobs.num_schedulable[job] == 0:
        return NO_STAGE
    stage = first_runnable(view, job)
    return stage if stage != NO_STAGE else first_schedulable(view, job)


@kernel
def stage_by_critical_path(view, job):  # type: ignore[no-untyped-def]
    """Return the job's schedulable stage with the heaviest path to a leaf, or NO_STAGE.

    Runnable stages come before others; of equal paths the smallest index wins.
    """
    best = NO_STAGE
    best_runnable = False
    best_path = 0.0
    if view.jobs.num_schedulable[job] == 0:
        return best
    for stage in stages_of(view, job):
        if not is_schedulable(view, stage):
            continue
        runnable = is_runnable(view, stage)
        path = view.stages.downstream_ms[stage]
        if (
            best == NO_STAGE
            or (runnable and not best_runnable)
            or (runnable == best_runnable and path > best_path)
        ):
            best = stage
            best_runnable = runnable
            best_path = path
    return best


@inlined
def local_stage(view):  # type: ignore[no-untyped-def]
    """Return the next stage of the job whose executors are offered, or NO_STAGE."""
    job = view.now.source_job[0]
    if job == NO_JOB:
        return NO_STAGE
    return stage_in_order(view, job)


@kernel
def when_all_are_capped(view):  # type: ignore[no-untyped-def]
    """Return the decision when every job has reached its cap: let the offered executors idle.

    With several executor classes, the executors that jobs hold may be too small for their stages.
    If no executor would work at all, the first job that can use the offered executors gets them.
    """
    if view.classes.shape[0] > 1 and not may_idle(view):
        for position in range(view.now.num_active[0]):
            stage = stage_in_order(view, view.active[position])
            if stage != NO_STAGE:
                return all_to(view, stage)
    return all_to(view, NO_STAGE)


#: Tolerance for rounding errors in sums of shares.
_ROUNDING = 1e-9


@inlined
def _weight(view, memo, job, alpha):  # type: ignore[no-untyped-def]
    """Return T^alpha for the job's total work T; the memo avoids computing the power again."""
    work_ms = view.jobs.work_ms[job]
    jobs = memo.jobs
    if jobs.weight[job] == 0.0 or jobs.work_ms[job] != work_ms:
        jobs.work_ms[job] = work_ms
        jobs.weight[job] = max(1.0, work_ms) ** alpha
    return jobs.weight[job]


@kernel
def total_weight(view, memo, alpha):  # type: ignore[no-untyped-def]
    """Return the sum of the weights over the jobs with an unsaturated stage."""
    total = 0.0
    for job in view.active[: view.now.num_active[0]]:
        if view.jobs.num_unsaturated[job] > 0:
            total += _weight(view, memo, job, alpha)
    return total


@inlined
def _add(view, memo, job, executor_class, cpu, memory):  # type: ignore[no-untyped-def]
    memo.jobs.cpu[job] += of_total(view, view.classes.cpu[executor_class], cpu)
    memo.jobs.memory[job] += of_total(view, view.classes.memory[executor_class], memory)
    memo.jobs.num_counted[job] += 1


@kernel
def count_resources(view, memo):  # type: ignore[no-untyped-def]
    """Write each job's share of the cluster's cores and memory to the memo.

    The tables do not say which executor was committed to which job in the current round. These
    executors therefore count with the mean size of all executors committed in this round.
    """
    cpu, memory = totals(view)
    jobs = memo.jobs
    executors = view.executors
    for job in view.active[: view.now.num_active[0]]:
        jobs.cpu[job] = 0.0
        jobs.memory[job] = 0.0
        jobs.num_counted[job] = 0
    for executor in range(executors.shape[0]):
        job = executors.job[executor]
        # An executor that moves counts for the job that it moves to.
        if executors.destination[executor] != NO_STAGE:
            job = view.stages.job[executors.destination[executor]]
        if job != NO_JOB:
            _add(view, memo, job, executors.executor_class[executor], cpu, memory)
    mean_cpu, mean_memory = _mean_of_committed(view, cpu, memory)
    for job in view.active[: view.now.num_active[0]]:
        count = view.jobs.num_supplied[job] - jobs.num_counted[job]
        jobs.cpu[job] += count * mean_cpu
        jobs.memory[job] += count * mean_memory


@kernel
def _mean_of_committed(view, cpu, memory):  # type: ignore[no-untyped-def]
    """Mean share of the cores and of the memory of the executors committed in this round."""
    count = 0
    sum_cpu = 0.0
    sum_memory = 0.0
    first = view.now.source[0]
    for c in range(view.classes.shape[0]):
        committed = view.sources.num_committed[first + c]
        count += committed
        sum_cpu += committed * of_total(view, view.classes.cpu[c], cpu)
        sum_memory += committed * of_total(view, view.classes.memory[c], memory)
    return sum_cpu / max(1, count), sum_memory / max(1, count)


@kernel
def room(view, memo, job, share, executor_class):  # type: ignore[no-untyped-def]
    """Return how many executors of a class the job may get before its allocation reaches its share.

    The number is rounded up, so that the last executor may exceed the share. The result is 0 or
    less if the job has reached its share.
    """
    if view.classes.shape[0] == 1:
        cap = max(1, math.ceil(view.now.num_executors[0] * share - _ROUNDING))
        return cap - view.jobs.num_supplied[job]
    cpu, memory = totals(view)
    of_cpu = of_total(view, view.classes.cpu[executor_class], cpu)
    of_memory = of_total(view, view.classes.memory[executor_class], memory)
    left = float(view.now.num_executors[0])
    if of_cpu > 0.0:
        left = min(left, math.ceil((share - memo.jobs.cpu[job]) / of_cpu - _ROUNDING))
    if of_memory > 0.0:
        left = min(left, math.ceil((share - memo.jobs.memory[job]) / of_memory - _ROUNDING))
    return int(left)


@inlined
def share_of(view, memo, job, alpha, total):  # type: ignore[no-untyped-def]
    """Return the share of the cluster that the job is entitled to, 0 to 1."""
    return _weight(view, memo, job, alpha) / total


@inlined
def is_full(view, memo, job, share):  # type: ignore[no-untyped-def]
    """Whether the job has reached its share of the cluster."""
    if view.classes.shape[0] == 1:
        return room(view, memo, job, share, 0) <= 0
    return max(memo.jobs.cpu[job], memo.jobs.memory[job]) >= share - _ROUNDING


@inlined
def within_share(view, memo, job, share, stage):  # type: ignore[no-untyped-def]
    """Return the decision that gives the stage executors of the best-fitting class.

    The limit keeps the job within its share. With several classes, the stage can be chosen again
    in the same round, for executors of a larger class.
    """
    executor_class = best_fitting(view, stage)
    limit = min(
        demand(view, stage),
        room(view, memo, job, share, executor_class),
        view.source_count[executor_class],
    )
    return stage, limit, ANY_CLASS if view.classes.shape[0] == 1 else executor_class, 0


@deferred(DECISION)
def weighted_fair(view, params, memo):  # type: ignore[no-untyped-def]
    """Decide by shares proportional to T^alpha, where T is the job's total work. Returns (stage,
    limit, executor class, hold).

    Only jobs with an unsaturated stage have a share.

    Source: Decima, section 7.1, baselines 4 and 5; Appendix F for several classes.
    """
    # Executors of a job stay with it as long as it has a stage for them.
    stage = local_stage(view)
    if stage != NO_STAGE or view.now.num_schedulable[0] == 0:
        return all_to(view, stage)
    total = total_weight(view, memo, params[0])
    if view.classes.shape[0] > 1:
        count_resources(view, memo)
    for job in view.active[: view.now.num_active[0]]:
        if view.jobs.num_schedulable[job] == 0:
            continue
        share = share_of(view, memo, job, params[0], total)
        if not is_full(view, memo, job, share):
            stage = stage_in_order(view, job)
            if stage != NO_STAGE:
                return within_share(view, memo, job, share, stage)
    return when_all_are_capped(view)
