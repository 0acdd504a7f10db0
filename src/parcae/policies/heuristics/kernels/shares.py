"""Shares in proportion to a power of the work, on executors that are alike or of several classes.

On several classes a job's allocation is its dominant share of the cluster's cores and memory, over all classes together.

Source: Decima, section 7.1, baselines 4 and 5; Appendix F.
"""

from __future__ import annotations

import math

from parcae.cluster.kernels.tables import demand
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_STAGE
from parcae.kernels import inlined, kernel
from parcae.policies.classes.kernels import best_fitting, of_total, totals
from parcae.policies.heuristics.kernels.stages import (
    all_to,
    local_stage,
    stage_in_order,
    when_all_are_capped,
)

_ROUNDING = 1e-9


@inlined
def _weight(seen, known, job, alpha):  # type: ignore[no-untyped-def]
    """T^alpha, remembered for the work T that it was found for."""
    work_ms = seen.jobs.work_ms[job]
    own = known.jobs
    if own.weight[job] == 0.0 or own.work_ms[job] != work_ms:
        own.work_ms[job] = work_ms
        own.weight[job] = max(1.0, work_ms) ** alpha
    return own.weight[job]


@kernel
def total_weight(seen, known, alpha):  # type: ignore[no-untyped-def]
    """Sum of the weights over the jobs with an unsaturated stage."""
    total = 0.0
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if seen.jobs.num_unsaturated[job] > 0:
            total += _weight(seen, known, job, alpha)
    return total


@inlined
def _add(seen, known, job, executor_class, cpu, memory):  # type: ignore[no-untyped-def]
    known.jobs.cpu[job] += of_total(seen, seen.classes.cpu[executor_class], cpu)
    known.jobs.memory[job] += of_total(seen, seen.classes.memory[executor_class], memory)
    known.jobs.num_seen[job] += 1


@kernel
def count_resources(seen, known):  # type: ignore[no-untyped-def]
    """Fill what share of the cluster's cores and memory every job in the system holds.

    Executors that were committed in this very round count with the mean size of all that were: tables do not say whose is which.
    """
    cpu, memory = totals(seen)
    own = known.jobs
    executors = seen.executors
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        own.cpu[job] = 0.0
        own.memory[job] = 0.0
        own.num_seen[job] = 0
    for executor in range(executors.shape[0]):
        job = executors.job[executor]
        if executors.destination[executor] != NO_STAGE:
            job = seen.stages.job[executors.destination[executor]]
        if job != NO_JOB:
            _add(seen, known, job, executors.executor_class[executor], cpu, memory)
    mean_cpu, mean_memory = _mean_of_committed(seen, cpu, memory)
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        count = seen.jobs.num_supplied[job] - own.num_seen[job]
        own.cpu[job] += count * mean_cpu
        own.memory[job] += count * mean_memory


@kernel
def _mean_of_committed(seen, cpu, memory):  # type: ignore[no-untyped-def]
    """Mean shares of the cores and of the memory over the executors that were committed in this round."""
    count = 0
    sum_cpu = 0.0
    sum_memory = 0.0
    first = seen.now.source[0]
    for c in range(seen.classes.shape[0]):
        committed = seen.sources.num_committed[first + c]
        count += committed
        sum_cpu += committed * of_total(seen, seen.classes.cpu[c], cpu)
        sum_memory += committed * of_total(seen, seen.classes.memory[c], memory)
    return sum_cpu / max(1, count), sum_memory / max(1, count)


@kernel
def room(seen, known, job, share, executor_class):  # type: ignore[no-untyped-def]
    """Executors of a class that the job may have until its allocation reaches its share; 0 where it has.

    The last one may exceed the share, as on alike executors, whose numbers are rounded up.
    """
    if seen.classes.shape[0] == 1:
        cap = max(1, math.ceil(seen.now.num_executors[0] * share - _ROUNDING))
        return cap - seen.jobs.num_supplied[job]
    cpu, memory = totals(seen)
    of_cpu = of_total(seen, seen.classes.cpu[executor_class], cpu)
    of_memory = of_total(seen, seen.classes.memory[executor_class], memory)
    left = float(seen.now.num_executors[0])
    if of_cpu > 0.0:
        left = min(left, math.ceil((share - known.jobs.cpu[job]) / of_cpu - _ROUNDING))
    if of_memory > 0.0:
        left = min(left, math.ceil((share - known.jobs.memory[job]) / of_memory - _ROUNDING))
    return int(left)


@inlined
def share_of(seen, known, job, alpha, total):  # type: ignore[no-untyped-def]
    """The share of the cluster that is the job's due."""
    return _weight(seen, known, job, alpha) / total


@inlined
def is_full(seen, known, job, share):  # type: ignore[no-untyped-def]
    """Whether the job has all that is its due, whatever the class."""
    if seen.classes.shape[0] == 1:
        return room(seen, known, job, share, 0) <= 0
    return max(known.jobs.cpu[job], known.jobs.memory[job]) >= share - _ROUNDING


@inlined
def within_share(seen, known, job, share, stage):  # type: ignore[no-untyped-def]
    """The decision that gives the job's stage executors of the best-fitting class, up to the job's share.

    Of several classes, larger ones follow: the stage can be chosen again.
    """
    executor_class = best_fitting(seen, stage)
    limit = min(
        demand(seen, stage),
        room(seen, known, job, share, executor_class),
        seen.source_count[executor_class],
    )
    return stage, limit, ANY_CLASS if seen.classes.shape[0] == 1 else executor_class, 0


@kernel
def weighted_fair(seen, params, known):  # type: ignore[no-untyped-def]
    """Shares in proportion to T^alpha, T the job's total work, over the jobs with an unsaturated stage.

    Source: Decima, section 7.1, baselines 4 and 5; Appendix F for several classes.
    """
    stage = local_stage(seen)
    if stage != NO_STAGE or seen.now.num_schedulable[0] == 0:
        return all_to(seen, stage)
    total = total_weight(seen, known, params[0])
    if seen.classes.shape[0] > 1:
        count_resources(seen, known)
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if seen.jobs.num_schedulable[job] == 0:
            continue
        share = share_of(seen, known, job, params[0], total)
        if not is_full(seen, known, job, share):
            stage = stage_in_order(seen, job)
            if stage != NO_STAGE:
                return within_share(seen, known, job, share, stage)
    return when_all_are_capped(seen)
