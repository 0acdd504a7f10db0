"""Graphene*: weighted fair shares and best-fit packing; troublesome stages of a job run together.

A stage is troublesome if its tasks are long compared with the longest tasks of the DAG (LongScore),
if it is hard to pack (FragScore), or if it lies on a path between two troublesome stages. These
stages form the job's group. The group is suppressed (it waits) until no stage of the group depends
on an unfinished stage outside the group. After that its stages come first.

Kernels read the observation `view` and keep the groups in `memo` (`HeuristicMemo`). `params` is
float64[4]: alpha, smallest LongScore and largest FragScore of a troublesome stage, and the longest
time in s that executors may wait for a stage's parents.

Source: Grandl et al., Graphene (OSDI 2016), section 4.1; Decima, Appendix F.
"""

from __future__ import annotations

import math

import numpy as np

from parcae.base.compiled.kernels import DECISION, deferred, inlined, kernel, mix
from parcae.base.texts import MS_PER_S
from parcae.cluster.kernels.tables import edges_of, is_schedulable, stages_of, wait_ms
from parcae.cluster.state import NO_JOB, NO_STAGE
from parcae.decima.heuristics.shares import (
    all_to,
    count_resources,
    is_full,
    share_of,
    total_weight,
    when_all_are_capped,
    within_share,
)
from parcae.decima.queries import is_unfinished, num_fitting, totals

#: Fingerprints round durations and resource amounts down to multiples of 1 / this.
_STEPS_PER_UNIT = 1_048_576.0
#: Larger amounts (an unlimited resource) count as this in fingerprints, to avoid overflow.
_LARGEST_AMOUNT = 1e6
# Odd constants that spread the bits of hashed values.
_FIRST_PRIME = np.uint64(0x9E3779B97F4A7C15)
_SECOND_PRIME = np.uint64(0xD6E8FEB86659FD93)


@inlined
def _hash_resources(cpu, memory):  # type: ignore[no-untyped-def]
    """Hash cores and memory to 64 bits."""
    cores = np.int64(min(cpu, _LARGEST_AMOUNT) * _STEPS_PER_UNIT)
    units = np.int64(min(memory, _LARGEST_AMOUNT) * _STEPS_PER_UNIT)
    return np.uint64(cores) * _FIRST_PRIME ^ np.uint64(units)


@kernel
def _fingerprint(view, job):  # type: ignore[no-untyped-def]
    """Hash everything that the marks of the job's group depend on to 64 bits.

    These are the executor classes, the job's stages with their requests, durations and edges, and
    the rows in which the marks stand.
    """
    stages = view.stages
    classes = view.classes
    start = view.jobs.stage_start[job]
    digest = mix(np.uint64(start))
    for c in range(classes.shape[0]):
        digest = mix(
            digest
            ^ _hash_resources(classes.cpu[c], classes.memory[c])
            + np.uint64(classes.num_executors[c]) * _SECOND_PRIME
        )
    for stage in stages_of(view, job):
        digest ^= (
            _hash_resources(stages.cpu[stage], stages.memory[stage])
            + np.uint64(stages.fits[stage]) * _SECOND_PRIME
        )
        for edge in edges_of(view, stage):
            digest = digest * _FIRST_PRIME + np.uint64(view.children[edge] - start)
        digest = mix(digest + np.uint64(np.int64(stages.task_ms[stage] * _STEPS_PER_UNIT)))
    return digest


@kernel
def frag_score(view, stage):  # type: ignore[no-untyped-def]
    """Return the FragScore: duration if perfectly packed / if packed with one task per executor.

    Both durations assume that the stage has the whole cluster. Perfectly packed, n tasks of d ms
    take n d max_r(request_r / the cluster's total of r), with r over cores and memory. Packed one
    task per executor, they take n d / (number of executors that fit). Both formulas hold in the
    limit of many tasks, so that a stage is not hard to pack merely because it has few tasks.

    A stage that fills the cluster scores 1. A stage that needs a large class can use few executors
    and leaves part of their memory unused, so that it scores little.

    # Deviation: Graphene packs several tasks into a machine; here every task has its own executor.
    """
    cpu, memory = totals(view)
    request = 0.0
    if cpu > 0.0:
        request = max(request, view.stages.cpu[stage] / cpu)
    if memory > 0.0:
        request = max(request, view.stages.memory[stage] / memory)
    if math.isinf(cpu) and math.isinf(memory):
        return 1.0
    return min(1.0, request * num_fitting(view, stage, view.classes.num_executors))


@kernel
def _spread_marks(view, memo, job):  # type: ignore[no-untyped-def]
    """Mark stages above and below troublesome ones, in one pass. Returns whether a mark changed."""
    marks = memo.stages
    has_changed = False
    for stage in stages_of(view, job):
        for edge in edges_of(view, stage):
            child = view.children[edge]
            if marks.is_below[child] == 0 and (
                marks.is_troublesome[stage] or marks.is_below[stage]
            ):
                marks.is_below[child] = 1
                has_changed = True
            if marks.is_above[stage] == 0 and (
                marks.is_troublesome[child] or marks.is_above[child]
            ):
                marks.is_above[stage] = 1
                has_changed = True
    return has_changed


@inlined
def _has_marks(view, memo, job, digest):  # type: ignore[no-untyped-def]
    """Whether the memo's rows were written for this job, all of them.

    A memo serves several runs, and in another run a row of a stage may be that of another job.
    """
    if memo.jobs.fingerprint[job] != digest:
        return False
    for stage in stages_of(view, job):
        if memo.stages.fingerprint[stage] != digest:
            return False
    return True


@kernel
def find_group(view, params, memo, job):  # type: ignore[no-untyped-def]
    """Mark the job's troublesome stages in the memo, unless this was done for the same job before.

    The group is {stages with LongScore >= params[1] or FragScore <= params[2]}, plus all stages on
    paths between them.

    Source: Graphene, section 4.1 (LongScore, FragScore, Closure).
    """
    marks = memo.stages
    digest = _fingerprint(view, job)
    if _has_marks(view, memo, job, digest):
        return
    longest_ms = 1e-9
    for stage in stages_of(view, job):
        longest_ms = max(longest_ms, view.stages.task_ms[stage])
    for stage in stages_of(view, job):
        is_long = view.stages.task_ms[stage] / longest_ms >= params[1]
        marks.is_troublesome[stage] = 1 if is_long or frag_score(view, stage) <= params[2] else 0
        marks.is_above[stage] = marks.is_below[stage] = 0
        marks.fingerprint[stage] = digest
    # Marks move along at least one edge a pass, so this ends after at most the DAG's depth.
    while _spread_marks(view, memo, job):
        pass
    count = 0
    for stage in stages_of(view, job):
        if marks.is_above[stage] and marks.is_below[stage]:
            marks.is_troublesome[stage] = 1
        count += marks.is_troublesome[stage]
    memo.jobs.fingerprint[job] = digest
    memo.jobs.num_troublesome[job] = count


@kernel
def is_suppressed(view, params, memo, job):  # type: ignore[no-untyped-def]
    """Whether a stage of the job's group depends on an unfinished stage outside the group."""
    find_group(view, params, memo, job)
    if memo.jobs.num_troublesome[job] == 0:
        return False
    for stage in stages_of(view, job):
        if memo.stages.is_troublesome[stage] or not is_unfinished(view, stage):
            continue
        for edge in edges_of(view, stage):
            if memo.stages.is_troublesome[view.children[edge]]:
                return True
    return False


@kernel
def _first_of(view, params, memo, job, is_troublesome):  # type: ignore[no-untyped-def]
    """The job's first schedulable stage inside or outside its group, or NO_STAGE.

    Runnable stages come first, in the order in which they became runnable; then the others by
    index. A stage whose parents may keep executors waiting longer than params[3] seconds does not
    count.

    # Deviation: Decima, Appendix F has no such bound. The default is infinite, which is no bound.
    """
    best = NO_STAGE
    best_rank = -1
    for stage in stages_of(view, job):
        if memo.stages.is_troublesome[stage] != is_troublesome or not is_schedulable(view, stage):
            continue
        rank = view.stages.frontier_rank[stage]
        if rank < 0 and not math.isinf(params[3]) and wait_ms(view, stage) > params[3] * MS_PER_S:
            continue
        if best == NO_STAGE or (rank >= 0 and (best_rank < 0 or rank < best_rank)):
            best = stage
            best_rank = rank
    return best


@kernel
def next_stage(view, params, memo, job, takes_suppressed):  # type: ignore[no-untyped-def]
    """Return the job's next stage, or NO_STAGE. A group that is not suppressed comes first."""
    if view.jobs.num_schedulable[job] == 0:
        memo.jobs.is_suppressed[job] = 0
        return NO_STAGE
    suppressed = is_suppressed(view, params, memo, job)
    memo.jobs.is_suppressed[job] = suppressed
    stage = NO_STAGE if suppressed else _first_of(view, params, memo, job, 1)
    if stage == NO_STAGE:
        stage = _first_of(view, params, memo, job, 0)
    if stage == NO_STAGE and suppressed and takes_suppressed:
        stage = _first_of(view, params, memo, job, 1)
    return stage


@deferred(DECISION)
def graphene(view, params, memo):  # type: ignore[no-untyped-def]
    """Decide by weighted fair shares, with executors of the best-fitting class first. Returns
    (stage, limit, executor class, hold).

    Suppressed stages get executors only if no other stage of any job can be chosen.
    """
    source = view.now.source_job[0]
    if view.now.num_schedulable[0] == 0:
        return all_to(view, NO_STAGE)
    total = total_weight(view, memo, params[0])
    if view.classes.shape[0] > 1:
        count_resources(view, memo)
    for takes_suppressed in (False, True):
        num_suppressed = 0
        stage = NO_STAGE
        if source != NO_JOB:
            stage = next_stage(view, params, memo, source, takes_suppressed)
            num_suppressed += memo.jobs.is_suppressed[source]
        if stage != NO_STAGE:
            return all_to(view, stage)
        for job in view.active[: view.now.num_active[0]]:
            if view.jobs.num_schedulable[job] == 0:
                continue
            share = share_of(view, memo, job, params[0], total)
            if not is_full(view, memo, job, share):
                stage = next_stage(view, params, memo, job, takes_suppressed)
                num_suppressed += memo.jobs.is_suppressed[job]
                if stage != NO_STAGE:
                    return within_share(view, memo, job, share, stage)
        if num_suppressed == 0:
            break
    return when_all_are_capped(view)
