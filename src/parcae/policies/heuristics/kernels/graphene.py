"""Graphene*: weighted fair shares and best-fit packing, with every job's troublesome stages held together.

Troublesome are the stages whose tasks are long beside the DAG's longest (LongScore) or hard to pack (FragScore), and all that lie
on a path between two of them. They wait until no stage of theirs waits for a parent outside the group; then they come first.

Source: Grandl et al., Graphene (OSDI 2016), section 4.1; Decima, Appendix F.
"""

from __future__ import annotations

import math

import numpy as np

from parcae.cluster.kernels.tables import is_schedulable, wait_ms
from parcae.cluster.state import NO_JOB, NO_STAGE
from parcae.kernels import inlined, kernel, mix
from parcae.policies.classes.kernels import totals
from parcae.policies.heuristics.kernels.shares import (
    count_resources,
    is_full,
    share_of,
    total_weight,
    within_share,
)
from parcae.policies.heuristics.kernels.stages import all_to, when_all_are_capped
from parcae.units import MS_PER_S

_BITS = 1_048_576.0  # durations and demands enter fingerprints in steps of 1 / this
_LARGEST = 1e6
_FIRST_PRIME = np.uint64(0x9E3779B97F4A7C15)
_SECOND_PRIME = np.uint64(0xD6E8FEB86659FD93)


@inlined
def _stages_of(seen, job):  # type: ignore[no-untyped-def]
    return range(seen.jobs.stage_start[job], seen.jobs.stage_start[job] + seen.jobs.num_stages[job])


@inlined
def _children_of(seen, stage):  # type: ignore[no-untyped-def]
    return range(
        seen.stages.child_start[stage],
        seen.stages.child_start[stage] + seen.stages.num_children[stage],
    )


@inlined
def _sized(cpu, memory):  # type: ignore[no-untyped-def]
    """64 bits of cores and memory."""
    cores = np.int64(min(cpu, _LARGEST) * _BITS)
    units = np.int64(min(memory, _LARGEST) * _BITS)
    return np.uint64(cores) * _FIRST_PRIME ^ np.uint64(units)


@kernel
def _fingerprint(seen, job):  # type: ignore[no-untyped-def]
    """64 bits of all that the job's group depends on."""
    stages = seen.stages
    classes = seen.classes
    start = seen.jobs.stage_start[job]
    digest = np.uint64(0)
    for c in range(classes.shape[0]):
        digest = mix(
            digest
            ^ _sized(classes.cpu[c], classes.memory[c])
            + np.uint64(classes.num_executors[c]) * _SECOND_PRIME
        )
    for stage in _stages_of(seen, job):
        digest ^= (
            _sized(stages.cpu[stage], stages.memory[stage])
            + np.uint64(stages.fits[stage]) * _SECOND_PRIME
        )
        for edge in _children_of(seen, stage):
            digest = digest * _FIRST_PRIME + np.uint64(seen.children[edge] - start)
        digest = mix(digest + np.uint64(np.int64(stages.task_ms[stage] * _BITS)))
    return digest


@inlined
def _longest_ms(seen, job):  # type: ignore[no-untyped-def]
    longest_ms = 0.0
    for stage in _stages_of(seen, job):
        longest_ms = max(longest_ms, seen.stages.task_ms[stage])
    return longest_ms


@kernel
def frag_score(seen, stage):  # type: ignore[no-untyped-def]
    """Time in which the stage would run on the whole cluster if perfectly packed / as packed greedily, one task an executor.

    Perfectly packed, n tasks of d ms take n d max_r(demand_r / the cluster's r), r over cores and memory; packed greedily onto
    executors of discrete classes, n d / (number of executors that fit). Both are taken in the limit of many tasks, so that a
    stage does not count as hard to pack for being short. 1 is a stage that fills the cluster; one that needs a large class can
    use few executors and leaves part of their memory, and scores little.

    # Deviation: Graphene packs tasks into machines of divisible resources; here a task has an executor to itself.
    """
    cpu, memory = totals(seen)
    request = 0.0
    num_fitting = 0
    if cpu > 0.0:
        request = max(request, seen.stages.cpu[stage] / cpu)
    if memory > 0.0:
        request = max(request, seen.stages.memory[stage] / memory)
    for c in range(seen.classes.shape[0]):
        if (seen.stages.fits[stage] >> c) & 1:
            num_fitting += seen.classes.num_executors[c]
    if math.isinf(cpu) and math.isinf(memory):
        return 1.0
    return min(1.0, request * num_fitting)


@kernel
def _spread(seen, known, job):  # type: ignore[no-untyped-def]
    """One pass of marking what lies above and below troublesome stages. Returns whether anything changed."""
    own = known.stages
    has_changed = False
    for stage in _stages_of(seen, job):
        for edge in _children_of(seen, stage):
            child = seen.children[edge]
            if own.is_below[child] == 0 and (own.is_troublesome[stage] or own.is_below[stage]):
                own.is_below[child] = 1
                has_changed = True
            if own.is_above[stage] == 0 and (own.is_troublesome[child] or own.is_above[child]):
                own.is_above[stage] = 1
                has_changed = True
    return has_changed


@kernel
def find_group(seen, params, known, job):  # type: ignore[no-untyped-def]
    """Mark the job's troublesome stages, unless that was done: T = {LongScore >= l or FragScore <= f}, closed over paths.

    Source: Graphene, section 4.1 (LongScore, FragScore, Closure).
    """
    own = known.stages
    digest = _fingerprint(seen, job)
    if known.jobs.fingerprint[job] == digest:
        return
    longest_ms = max(1e-9, _longest_ms(seen, job))
    for stage in _stages_of(seen, job):
        is_long = seen.stages.task_ms[stage] / longest_ms >= params[1]
        own.is_troublesome[stage] = 1 if is_long or frag_score(seen, stage) <= params[2] else 0
        own.is_above[stage] = own.is_below[stage] = 0
    while _spread(seen, known, job):
        pass
    count = 0
    for stage in _stages_of(seen, job):
        if own.is_above[stage] and own.is_below[stage]:
            own.is_troublesome[stage] = 1
        count += own.is_troublesome[stage]
    known.jobs.fingerprint[job] = digest
    known.jobs.num_troublesome[job] = count


@kernel
def is_suppressed(seen, params, known, job):  # type: ignore[no-untyped-def]
    """Whether some stage of the job's group still waits for a parent outside of it."""
    find_group(seen, params, known, job)
    if known.jobs.num_troublesome[job] == 0:
        return False
    for stage in _stages_of(seen, job):
        is_open = seen.stages.num_finished[stage] < seen.stages.num_tasks[stage]
        if known.stages.is_troublesome[stage] or not is_open:
            continue
        for edge in _children_of(seen, stage):
            if known.stages.is_troublesome[seen.children[edge]]:
                return True
    return False


@kernel
def _first_of(seen, params, known, job, is_troublesome):  # type: ignore[no-untyped-def]
    """Of the job's schedulable stages in its group, or outside: the one that became runnable first, else by index.

    One whose parents may keep executors waiting for too long does not count.

    # Deviation: Decima, Appendix F has no such bound; infinite, there is none.
    """
    best = NO_STAGE
    best_rank = -1
    for stage in _stages_of(seen, job):
        if known.stages.is_troublesome[stage] != is_troublesome or not is_schedulable(seen, stage):
            continue
        rank = seen.stages.frontier_rank[stage]
        if rank < 0 and not math.isinf(params[3]) and wait_ms(seen, stage) > params[3] * MS_PER_S:
            continue
        if best == NO_STAGE or (rank >= 0 and (best_rank < 0 or rank < best_rank)):
            best = stage
            best_rank = rank
    return best


@kernel
def next_stage(seen, params, known, job, takes_suppressed):  # type: ignore[no-untyped-def]
    """The job's next stage: its group first once that is available; suppressed stages only if asked for; or NO_STAGE."""
    if seen.jobs.num_schedulable[job] == 0:
        known.jobs.is_suppressed[job] = 0
        return NO_STAGE
    suppressed = is_suppressed(seen, params, known, job)
    known.jobs.is_suppressed[job] = suppressed
    stage = NO_STAGE if suppressed else _first_of(seen, params, known, job, 1)
    if stage == NO_STAGE:
        stage = _first_of(seen, params, known, job, 0)
    if stage == NO_STAGE and suppressed and takes_suppressed:
        stage = _first_of(seen, params, known, job, 1)
    return stage


@kernel
def graphene(seen, params, known):  # type: ignore[no-untyped-def]
    """Weighted fair shares, best-fitting class first; suppressed stages only where no other stage of any job is to be run."""
    source = seen.now.source_job[0]
    if seen.now.num_schedulable[0] == 0:
        return all_to(seen, NO_STAGE)
    total = total_weight(seen, known, params[0])
    if seen.classes.shape[0] > 1:
        count_resources(seen, known)
    for takes_suppressed in (False, True):
        num_suppressed = 0
        stage = NO_STAGE
        if source != NO_JOB:
            stage = next_stage(seen, params, known, source, takes_suppressed)
            num_suppressed += known.jobs.is_suppressed[source]
        if stage != NO_STAGE:
            return all_to(seen, stage)
        for position in range(seen.now.num_active[0]):
            job = seen.active[position]
            if seen.jobs.num_schedulable[job] == 0:
                continue
            share = share_of(seen, known, job, params[0], total)
            if not is_full(seen, known, job, share):
                stage = next_stage(seen, params, known, job, takes_suppressed)
                num_suppressed += known.jobs.is_suppressed[job]
                if stage != NO_STAGE:
                    return within_share(seen, known, job, share, stage)
        if num_suppressed == 0:
            break
    return when_all_are_capped(seen)
