"""The hand-made policies, compiled: each is a pure function of the observation.

`decide` answers one scheduling event with (stage, limit); `play` runs a whole simulation in one call. The same functions
decide live.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np

from parcae.cluster.kernels.tables import (
    demand,
    first_runnable,
    first_schedulable,
    is_runnable,
    is_schedulable,
    may_idle,
    num_held,
    select_cluster,
)
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_STAGE
from parcae.kernels import inlined, kernel, mix
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import select_future, start, step

_NEEDS_DECISION = int(Status.NEEDS_DECISION)


class HeuristicKind(IntEnum):
    """Which rule decides; the meaning of `params` stands beside each."""

    STATIC = 0  # [cap]: first job in order of arrival that holds fewer than cap
    GRANTED = 1  # [cap]: first job that was ever granted fewer than cap (the released "spark_fifo")
    FAIR = 2  # [divides by: 0 jobs with an unsaturated stage, 1 all jobs in the system]
    WEIGHTED_FAIR = 3  # [alpha], then room for every job's weight (0 until it is known)
    SJF_CP = 4  # []
    RANDOM = 5  # [seed]
    SRPT_CAP = 6  # [cap]
    ORDER = 7  # rank of every job row, smallest first


_STATIC, _GRANTED, _FAIR = int(HeuristicKind.STATIC), int(HeuristicKind.GRANTED), int(HeuristicKind.FAIR)
_WEIGHTED_FAIR, _SJF_CP = int(HeuristicKind.WEIGHTED_FAIR), int(HeuristicKind.SJF_CP)
_RANDOM, _SRPT_CAP, _ORDER = int(HeuristicKind.RANDOM), int(HeuristicKind.SRPT_CAP), int(HeuristicKind.ORDER)


@kernel
def _stage_in_order(seen, job):  # type: ignore[no-untyped-def]
    """The job's schedulable stage that became runnable first, else the schedulable one of the smallest index."""
    if seen.jobs.num_schedulable[job] == 0:
        return NO_STAGE
    stage = first_runnable(seen, job)
    return stage if stage != NO_STAGE else first_schedulable(seen, job)


@kernel
def _stage_by_critical_path(seen, job):  # type: ignore[no-untyped-def]
    """The job's schedulable stage: runnable ones first, then by the heaviest path to a leaf, then by index."""
    best, best_runnable, best_path = NO_STAGE, False, 0.0
    if seen.jobs.num_schedulable[job] == 0:
        return best
    first = seen.jobs.stage_start[job]
    for stage in range(first, first + seen.jobs.num_stages[job]):
        if not is_schedulable(seen, stage):
            continue
        runnable, path = is_runnable(seen, stage), seen.stages.downstream_ms[stage]
        if best == NO_STAGE or (runnable and not best_runnable) or (runnable == best_runnable and path > best_path):
            best, best_runnable, best_path = stage, runnable, path
    return best


@inlined
def _local_stage(seen):  # type: ignore[no-untyped-def]
    """The next stage of the job whose executors are asked about, or NO_STAGE."""
    job = seen.now.source_job[0]
    if job == NO_JOB:
        return NO_STAGE
    return _stage_in_order(seen, job)


@kernel
def _when_all_are_capped(seen):  # type: ignore[no-untyped-def]
    """Let executors idle; but of several classes, those that jobs hold may not fit: if nobody works, caps do not bind."""
    if seen.classes.shape[0] > 1 and not may_idle(seen):
        for position in range(seen.now.num_active[0]):
            stage = _stage_in_order(seen, seen.active[position])
            if stage != NO_STAGE:
                return stage, seen.now.num_source[0]
    return NO_STAGE, seen.now.num_source[0]


@kernel
def _first_below_cap(seen, cap, by_granted):  # type: ignore[no-untyped-def]
    """Local stages first; then the first job (in order of arrival) below a cap that is the same for all."""
    stage = _local_stage(seen)
    if stage != NO_STAGE:
        return stage, seen.now.num_source[0]
    if seen.now.num_schedulable[0] == 0:
        return NO_STAGE, seen.now.num_source[0]
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        held = seen.jobs.num_granted[job] if by_granted else seen.jobs.num_supplied[job]
        if held < cap and seen.jobs.num_schedulable[job] > 0:
            stage = _stage_in_order(seen, job)
            if stage != NO_STAGE:
                return stage, min(demand(seen, stage), cap - held, seen.now.num_source[0])
    return _when_all_are_capped(seen)


@kernel
def _fair(seen, counts_all):  # type: ignore[no-untyped-def]
    """An equal share for every job.

    Source: Decima, section 7.1, baseline 3; the released code divides by the jobs with an unsaturated stage.
    """
    num_jobs = max(1, seen.now.num_active[0] if counts_all else seen.now.num_open[0])
    cap = (seen.now.num_executors[0] + num_jobs - 1) // num_jobs
    return _first_below_cap(seen, cap, False)


@inlined
def _weight(seen, job, params):  # type: ignore[no-untyped-def]
    """T^alpha; kept in params[1 + job] where there is room for it: a job's work never changes."""
    if job + 1 >= params.shape[0]:
        return max(1.0, seen.jobs.work_ms[job]) ** params[0]
    if params[job + 1] == 0.0:
        params[job + 1] = max(1.0, seen.jobs.work_ms[job]) ** params[0]
    return params[job + 1]


@kernel
def _weighted_fair(seen, params):  # type: ignore[no-untyped-def]
    """Shares in proportion to T^alpha, T the job's total work, over the jobs with an unsaturated stage.

    Source: Decima, section 7.1, baselines 4 and 5.
    """
    stage = _local_stage(seen)
    if stage != NO_STAGE:
        return stage, seen.now.num_source[0]
    if seen.now.num_schedulable[0] == 0:
        return NO_STAGE, seen.now.num_source[0]
    total = 0.0
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if seen.jobs.num_unsaturated[job] > 0:
            total += _weight(seen, job, params)
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if seen.jobs.num_schedulable[job] == 0:
            continue
        share = seen.now.num_executors[0] * _weight(seen, job, params) / total
        cap = max(1, math.ceil(share - 1e-9))
        if seen.jobs.num_supplied[job] < cap:
            stage = _stage_in_order(seen, job)
            if stage != NO_STAGE:
                return stage, min(demand(seen, stage), cap - seen.jobs.num_supplied[job], seen.now.num_source[0])
    return _when_all_are_capped(seen)


@kernel
def _sjf_cp(seen):  # type: ignore[no-untyped-def]
    """All executors to the job of the least total work, its stages by critical path (Decima, section 7.1, baseline 2)."""
    best, best_work = NO_STAGE, 0.0
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if seen.jobs.num_schedulable[job] > 0 and (best == NO_STAGE or seen.jobs.work_ms[job] < best_work):
            stage = _stage_by_critical_path(seen, job)
            if stage != NO_STAGE:
                best, best_work = stage, seen.jobs.work_ms[job]
    return best, seen.now.num_source[0]


@kernel
def _random(seen, seed):  # type: ignore[no-untyped-def]
    """A schedulable stage and a limit, both uniform; the draw is a hash of the seed and the number of decisions so far."""
    count = 0
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        for stage in range(seen.jobs.stage_start[job], seen.jobs.stage_start[job] + seen.jobs.num_stages[job]):
            count += is_schedulable(seen, stage)
    if count == 0:
        return NO_STAGE, seen.now.num_source[0]
    luck = mix(mix(np.uint64(seed)) + np.uint64(seen.now.num_decisions[0]))
    chosen = np.int64((luck >> np.uint64(33)) % np.uint64(count))
    limit = 1 + np.int64((luck & np.uint64(0xFFFFFFFF)) % np.uint64(seen.now.num_source[0]))
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        for stage in range(seen.jobs.stage_start[job], seen.jobs.stage_start[job] + seen.jobs.num_stages[job]):
            if is_schedulable(seen, stage):
                if chosen == 0:
                    return stage, limit
                chosen -= 1
    return NO_STAGE, seen.now.num_source[0]


@kernel
def _shortest_below(seen, cap):  # type: ignore[no-untyped-def]
    """The schedulable stage of the job with the least remaining work among those that hold fewer than `cap`."""
    best, best_work, best_held = NO_STAGE, 0.0, 0
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        work = seen.jobs.remaining_ms[job]
        if seen.jobs.num_schedulable[job] == 0 or (best != NO_STAGE and work >= best_work):
            continue
        if num_held(seen, job) < cap:
            stage = _stage_by_critical_path(seen, job)
            if stage != NO_STAGE:
                best, best_work, best_held = stage, work, num_held(seen, job)
    return best, best_held


@kernel
def _srpt_cap(seen, cap):  # type: ignore[no-untyped-def]
    """Shortest remaining work first, at most `cap` executors a job; what is left over spills up to twice the cap.

    Executors that the asked job already holds stay with it up to the cap. Where nobody would work at all, the caps do
    not bind.
    """
    now, source = seen.now, seen.now.source_job[0]
    if now.num_schedulable[0] == 0:
        return NO_STAGE, now.num_source[0]
    if source != NO_JOB and seen.jobs.num_schedulable[source] > 0:
        room = cap - num_held(seen, source)
        stage = _stage_by_critical_path(seen, source) if room > 0 else NO_STAGE
        if stage != NO_STAGE:
            return stage, min(room, now.num_source[0])
    for widened in (cap, 2 * cap):
        stage, held = _shortest_below(seen, widened)
        if stage != NO_STAGE:
            return stage, min(widened - held, now.num_source[0])
    if may_idle(seen):
        return NO_STAGE, now.num_source[0]
    stage, held = _shortest_below(seen, now.num_executors[0] + 1)
    return stage, now.num_source[0]


@kernel
def _in_order(seen, rank):  # type: ignore[no-untyped-def]
    """All executors to the first job of a given order, its stages by critical path (Decima, Appendix H)."""
    best, best_rank = NO_STAGE, 0.0
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if seen.jobs.num_schedulable[job] > 0 and (best == NO_STAGE or rank[job] < best_rank):
            stage = _stage_by_critical_path(seen, job)
            if stage != NO_STAGE:
                best, best_rank = stage, rank[job]
    return best, seen.now.num_source[0]


@kernel
def decide(seen, kind, params):  # type: ignore[no-untyped-def]
    """The rule's decision: (stage, limit); NO_STAGE lets all executors idle."""
    if kind == _FAIR:
        return _fair(seen, params[0] != 0.0)
    if kind == _STATIC:
        return _first_below_cap(seen, np.int64(params[0]), False)
    if kind == _GRANTED:
        return _first_below_cap(seen, np.int64(params[0]), True)
    if kind == _WEIGHTED_FAIR:
        return _weighted_fair(seen, params)
    if kind == _SJF_CP:
        return _sjf_cp(seen)
    if kind == _SRPT_CAP:
        return _srpt_cap(seen, np.int64(params[0]))
    if kind == _ORDER:
        return _in_order(seen, params)
    return _random(seen, np.int64(params[0]))


@kernel
def play(state, future, tables, kind, params):  # type: ignore[no-untyped-def]
    """Run a whole simulation under the rule. Returns a Status."""
    status = start(state, future, tables)
    while status == _NEEDS_DECISION:
        stage, limit = decide(state, kind, params)
        status = step(state, future, tables, stage, limit, ANY_CLASS, 0)
    return status


@kernel
def play_many(states, futures, tables, kind, params, first, last, status):  # type: ignore[no-untyped-def]
    """Run simulators first..last-1 of many, each under the rule with its own row of `params`; fills `status`."""
    for row in range(first, last):
        status[row] = play(select_cluster(states, row), select_future(futures, row), tables, kind, params[row])
