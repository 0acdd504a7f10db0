"""Every hand-made policy's decision, and whole runs under one.

`decide` answers one scheduling event with (stage, limit, executor class, hold); `play` runs a whole simulation in one call. The
same functions decide live.
"""

from __future__ import annotations

import numpy as np

from parcae.cluster.kernels.tables import demand, is_schedulable, may_idle, num_held, select_cluster
from parcae.cluster.state import NO_JOB, NO_STAGE
from parcae.kernels import kernel, mix
from parcae.policies.heuristics.kernels.graphene import graphene
from parcae.policies.heuristics.kernels.shares import weighted_fair
from parcae.policies.heuristics.kernels.stages import (
    all_to,
    local_stage,
    stage_by_critical_path,
    stage_in_order,
    up_to,
    when_all_are_capped,
)
from parcae.policies.heuristics.kernels.tetris import tetris
from parcae.policies.heuristics.layout import HeuristicKind
from parcae.policies.idle.kernels import slot_ms
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import select_future, start, step

_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_STATIC = int(HeuristicKind.STATIC)
_GRANTED = int(HeuristicKind.GRANTED)
_FAIR = int(HeuristicKind.FAIR)
_WEIGHTED_FAIR = int(HeuristicKind.WEIGHTED_FAIR)
_SJF_CP = int(HeuristicKind.SJF_CP)
_SRPT_CAP = int(HeuristicKind.SRPT_CAP)
_ORDER = int(HeuristicKind.ORDER)
_TETRIS = int(HeuristicKind.TETRIS)
_GRAPHENE = int(HeuristicKind.GRAPHENE)
_IDLE_THEORY = int(HeuristicKind.IDLE_THEORY)


@kernel
def _first_below_cap(seen, cap, by_granted):  # type: ignore[no-untyped-def]
    """Local stages first; then the first job (in order of arrival) below a cap that is the same for all."""
    stage = local_stage(seen)
    if stage != NO_STAGE:
        return all_to(seen, stage)
    if seen.now.num_schedulable[0] == 0:
        return all_to(seen, NO_STAGE)
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        held = seen.jobs.num_granted[job] if by_granted else seen.jobs.num_supplied[job]
        if held < cap and seen.jobs.num_schedulable[job] > 0:
            stage = stage_in_order(seen, job)
            if stage != NO_STAGE:
                return up_to(stage, min(demand(seen, stage), cap - held, seen.now.num_source[0]))
    return when_all_are_capped(seen)


@kernel
def _fair(seen, counts_all):  # type: ignore[no-untyped-def]
    """An equal share for every job.

    Source: Decima, section 7.1, baseline 3; the released code divides by the jobs with an unsaturated stage.
    """
    num_jobs = max(1, seen.now.num_active[0] if counts_all else seen.now.num_open[0])
    cap = (seen.now.num_executors[0] + num_jobs - 1) // num_jobs
    return _first_below_cap(seen, cap, False)


@kernel
def _sjf_cp(seen):  # type: ignore[no-untyped-def]
    """All executors to the job of the least total work, its stages by critical path (Decima, section 7.1, baseline 2)."""
    best = NO_STAGE
    best_work = 0.0
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if seen.jobs.num_schedulable[job] > 0 and (
            best == NO_STAGE or seen.jobs.work_ms[job] < best_work
        ):
            stage = stage_by_critical_path(seen, job)
            if stage != NO_STAGE:
                best = stage
                best_work = seen.jobs.work_ms[job]
    return all_to(seen, best)


@kernel
def _random(seen, seed):  # type: ignore[no-untyped-def]
    """A schedulable stage and a limit, both uniform; the draw is a hash of the seed and the number of decisions so far."""
    count = 0
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        for stage in range(
            seen.jobs.stage_start[job], seen.jobs.stage_start[job] + seen.jobs.num_stages[job]
        ):
            count += is_schedulable(seen, stage)
    if count == 0:
        return all_to(seen, NO_STAGE)
    luck = mix(mix(np.uint64(seed)) + np.uint64(seen.now.num_decisions[0]))
    chosen = np.int64((luck >> np.uint64(33)) % np.uint64(count))
    limit = 1 + np.int64((luck & np.uint64(0xFFFFFFFF)) % np.uint64(seen.now.num_source[0]))
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        for stage in range(
            seen.jobs.stage_start[job], seen.jobs.stage_start[job] + seen.jobs.num_stages[job]
        ):
            if is_schedulable(seen, stage):
                if chosen == 0:
                    return up_to(stage, limit)
                chosen -= 1
    return all_to(seen, NO_STAGE)


@kernel
def _shortest_below(seen, cap):  # type: ignore[no-untyped-def]
    """The schedulable stage of the job with the least remaining work among those that hold fewer than `cap`."""
    best = NO_STAGE
    best_work = 0.0
    best_held = 0
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        work = seen.jobs.remaining_ms[job]
        if seen.jobs.num_schedulable[job] == 0 or (best != NO_STAGE and work >= best_work):
            continue
        if num_held(seen, job) < cap:
            stage = stage_by_critical_path(seen, job)
            if stage != NO_STAGE:
                best = stage
                best_work = work
                best_held = num_held(seen, job)
    return best, best_held


@kernel
def srpt_cap(seen, cap):  # type: ignore[no-untyped-def]
    """Shortest remaining work first, at most `cap` executors a job; what is left over spills up to twice the cap.

    Executors that the asked job already holds stay with it up to the cap. Where nobody would work at all, the caps do
    not bind.
    """
    now = seen.now
    source = seen.now.source_job[0]
    if now.num_schedulable[0] == 0:
        return all_to(seen, NO_STAGE)
    if source != NO_JOB and seen.jobs.num_schedulable[source] > 0:
        room = cap - num_held(seen, source)
        stage = stage_by_critical_path(seen, source) if room > 0 else NO_STAGE
        if stage != NO_STAGE:
            return up_to(stage, min(room, now.num_source[0]))
    for widened in (cap, 2 * cap):
        stage, held = _shortest_below(seen, widened)
        if stage != NO_STAGE:
            return up_to(stage, min(widened - held, now.num_source[0]))
    if may_idle(seen):
        return all_to(seen, NO_STAGE)
    stage, held = _shortest_below(seen, now.num_executors[0] + 1)
    return all_to(seen, stage)


@kernel
def _idle_theory(seen, cap, is_alone):  # type: ignore[no-untyped-def]
    """As srpt-cap, with the idle slots of Theorem 2 before the stages that it chooses (Duan & Wu, section IV-A)."""
    stage, limit, executor_class, hold_ms = srpt_cap(seen, cap)
    if stage != NO_STAGE:
        hold_ms = slot_ms(seen, stage, is_alone)
    return stage, limit, executor_class, hold_ms


@kernel
def in_order(seen, rank):  # type: ignore[no-untyped-def]
    """All executors to the first job of a given order, its stages by critical path (Decima, Appendix H)."""
    best = NO_STAGE
    best_rank = 0.0
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if seen.jobs.num_schedulable[job] > 0 and (best == NO_STAGE or rank[job] < best_rank):
            stage = stage_by_critical_path(seen, job)
            if stage != NO_STAGE:
                best = stage
                best_rank = rank[job]
    return all_to(seen, best)


@kernel
def decide(seen, kind, params, known):  # type: ignore[no-untyped-def]
    """The rule's decision: (stage, limit, executor class, hold); NO_STAGE lets all executors idle."""
    if kind == _FAIR:
        return _fair(seen, params[0] != 0.0)
    if kind == _STATIC:
        return _first_below_cap(seen, np.int64(params[0]), False)
    if kind == _GRANTED:
        return _first_below_cap(seen, np.int64(params[0]), True)
    if kind == _WEIGHTED_FAIR:
        return weighted_fair(seen, params, known)
    if kind == _TETRIS:
        return tetris(seen, params)
    if kind == _GRAPHENE:
        return graphene(seen, params, known)
    if kind == _SJF_CP:
        return _sjf_cp(seen)
    if kind == _SRPT_CAP:
        return srpt_cap(seen, np.int64(params[0]))
    if kind == _ORDER:
        return in_order(seen, params)
    if kind == _IDLE_THEORY:
        return _idle_theory(seen, np.int64(params[0]), params[1] != 0.0)
    return _random(seen, np.int64(params[0]))


@kernel
def play(state, future, tables, kind, params, known):  # type: ignore[no-untyped-def]
    """Run a whole simulation under the rule. Returns a Status."""
    status = start(state, future, tables)
    while status == _NEEDS_DECISION:
        stage, limit, executor_class, hold_ms = decide(state, kind, params, known)
        status = step(state, future, tables, stage, limit, executor_class, hold_ms)
    return status


@kernel
def play_many(states, futures, tables, kind, params, known, first, last, status):  # type: ignore[no-untyped-def]
    """Run simulators first..last-1 of many, one after another; fills `status`."""
    for row in range(first, last):
        status[row] = play(
            select_cluster(states, row), select_future(futures, row), tables, kind, params, known
        )
