"""The decisions of all hand-made policies."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.kernels import DECISION, deferred, kernel, mix
from parcae.cluster.kernels.policies import decide
from parcae.cluster.kernels.tables import demand, is_schedulable, may_idle, num_held, stages_of
from parcae.cluster.state import NO_JOB, NO_STAGE
from parcae.decima.heuristics.graphene import graphene
from parcae.decima.heuristics.shares import (
    all_to,
    local_stage,
    stage_by_critical_path,
    stage_in_order,
    up_to,
    weighted_fair,
    when_all_are_capped,
)
from parcae.decima.heuristics.tetris import tetris
from parcae.decima.idle import slot_ms

JOB_MEMO = np.dtype(
    [
        ("work_ms", "f8"),  # the work that `weight` was computed from
        ("weight", "f8"),  # 0 until it is computed
        ("fingerprint", "u8"),  # hash of the job's stages that its group was computed from
        ("num_troublesome", "i8"),  # stages in its troublesome group
        ("is_suppressed", "i8"),  # its group had to wait when the job was last examined
        ("cpu", "f8"),  # share of the cluster's cores that its executors have
        ("memory", "f8"),  # share of the cluster's memory that its executors have
        ("num_counted", "i8"),  # executors that work for it or move to it
    ],
    align=True,
)
STAGE_MEMO = np.dtype(
    [
        ("is_troublesome", "i8"),
        ("is_above", "i8"),  # a troublesome stage depends on it
        ("is_below", "i8"),  # it depends on a troublesome stage
        ("fingerprint", "u8"),  # that of the job that the marks were computed for
    ],
    align=True,
)


class HeuristicMemo(NamedTuple):
    """Intermediate results that a policy reuses between decisions; rows as in the cluster's tables.

    A memo never changes a decision. Every row stores the input that it was computed from
    (`work_ms`, `fingerprint`), and is computed again when that input differs.
    """

    jobs: Any  # JOB_MEMO[num_jobs]
    stages: Any  # STAGE_MEMO[num_stages]


def allocate_memo(num_jobs: int, num_stages: int) -> HeuristicMemo:
    """Return an empty memo with rows for `num_jobs` jobs and `num_stages` stages."""
    return HeuristicMemo(
        np.zeros(num_jobs, JOB_MEMO).view(np.recarray),
        np.zeros(num_stages, STAGE_MEMO).view(np.recarray),
    )


class HeuristicKind(IntEnum):
    """Which hand-made policy decides. The comments list the parameters of each kind."""

    STATIC = 0  # [cap]: first job in order of arrival that has fewer than cap executors
    # [cap]: as STATIC, but counts all executors ever granted to a job (the released "spark_fifo")
    GRANTED = 1
    FAIR = 2  # [number of shares: 0 = jobs with an unsaturated stage, 1 = all jobs in the system]
    WEIGHTED_FAIR = 3  # [alpha]: a job's weight is its total work ^ alpha
    SJF_CP = 4  # []
    RANDOM = 5  # [seed]
    SRPT_CAP = 6  # [cap]
    ORDER = 7  # [rank of job row 0, rank of job row 1, ...], smallest first
    TETRIS = 8  # [knob]: weight of the job's remaining work relative to the alignment
    # [alpha, smallest LongScore and largest FragScore of a troublesome stage, longest wait for
    # parents in s]
    GRAPHENE = 9
    # [cap, alone]: as SRPT_CAP, with idle slots; alone = 1 assumes that no other executor
    # ever becomes free
    IDLE_THEORY = 10


class Heuristic(NamedTuple):
    """A hand-made policy."""

    kind: Any  # int64, HeuristicKind
    params: Any  # float64[...], see HeuristicKind
    memo: HeuristicMemo


@kernel
def _first_below_cap(view, cap, by_granted):  # type: ignore[no-untyped-def]
    """Give executors to the first job (in order of arrival) below a cap that all jobs share.

    Executors of a job stay with it as long as it has a stage for them, whatever the cap.
    `by_granted` compares the cap with all executors ever granted to the job.
    """
    stage = local_stage(view)
    if stage != NO_STAGE:
        return all_to(view, stage)
    if view.now.num_schedulable[0] == 0:
        return all_to(view, NO_STAGE)
    for job in view.active[: view.now.num_active[0]]:
        held = view.jobs.num_granted[job] if by_granted else view.jobs.num_supplied[job]
        if held < cap and view.jobs.num_schedulable[job] > 0:
            stage = stage_in_order(view, job)
            if stage != NO_STAGE:
                return up_to(stage, min(demand(view, stage), cap - held, view.now.num_source[0]))
    return when_all_are_capped(view)


@kernel
def _fair(view, counts_all):  # type: ignore[no-untyped-def]
    """Give every job an equal share of the executors, rounded up.

    Source: Decima, section 7.1, baseline 3. The released code divides by the number of jobs with an
    unsaturated stage; `counts_all` divides by the number of all jobs in the system.
    """
    num_jobs = max(1, view.now.num_active[0] if counts_all else view.now.num_open[0])
    cap = (view.now.num_executors[0] + num_jobs - 1) // num_jobs
    return _first_below_cap(view, cap, False)


@kernel
def _random(view, seed):  # type: ignore[no-untyped-def]
    """Choose a schedulable stage and a limit, both uniformly at random.

    The random bits are a hash of the seed and the number of decisions so far, so that a run can be
    repeated exactly.
    """
    count = 0
    for job in view.active[: view.now.num_active[0]]:
        for stage in stages_of(view, job):
            count += is_schedulable(view, stage)
    if count == 0:
        return all_to(view, NO_STAGE)
    # The upper bits choose the stage, the lower 32 bits the limit.
    random_bits = mix(mix(np.uint64(seed)) + np.uint64(view.now.num_decisions[0]))
    chosen = np.int64((random_bits >> np.uint64(33)) % np.uint64(count))
    limit = 1 + np.int64((random_bits & np.uint64(0xFFFFFFFF)) % np.uint64(view.now.num_source[0]))
    for job in view.active[: view.now.num_active[0]]:
        for stage in stages_of(view, job):
            if is_schedulable(view, stage):
                if chosen == 0:
                    return up_to(stage, limit)
                chosen -= 1
    return all_to(view, NO_STAGE)


@kernel
def _shortest_below(view, cap):  # type: ignore[no-untyped-def]
    """Find the job with the least remaining work among those that hold fewer than `cap` executors.

    Returns (its best schedulable stage or NO_STAGE, number of executors that it holds).
    """
    best = NO_STAGE
    best_work = 0.0
    best_held = 0
    for job in view.active[: view.now.num_active[0]]:
        work = view.jobs.remaining_ms[job]
        if view.jobs.num_schedulable[job] == 0 or (best != NO_STAGE and work >= best_work):
            continue
        if num_held(view, job) < cap:
            stage = stage_by_critical_path(view, job)
            if stage != NO_STAGE:
                best = stage
                best_work = work
                best_held = num_held(view, job)
    return best, best_held


@kernel
def srpt_cap(view, cap):  # type: ignore[no-untyped-def]
    """Decide by shortest remaining work first, with at most `cap` executors per job. Returns
    (stage, limit, executor class, hold).

    Executors of a job stay with it up to the cap. Executors that no job below its cap can use go to
    jobs below twice the cap. If no executor would work at all, the caps are ignored.
    """
    now = view.now
    source = view.now.source_job[0]
    if now.num_schedulable[0] == 0:
        return all_to(view, NO_STAGE)
    if source != NO_JOB and view.jobs.num_schedulable[source] > 0:
        room = cap - num_held(view, source)
        stage = stage_by_critical_path(view, source) if room > 0 else NO_STAGE
        if stage != NO_STAGE:
            return up_to(stage, min(room, now.num_source[0]))
    for widened in (cap, 2 * cap):
        stage, held = _shortest_below(view, widened)
        if stage != NO_STAGE:
            return up_to(stage, min(widened - held, now.num_source[0]))
    if may_idle(view):
        return all_to(view, NO_STAGE)
    stage, held = _shortest_below(view, now.num_executors[0] + 1)
    return all_to(view, stage)


@deferred(DECISION)
def _idle_theory(view, cap, is_alone):  # type: ignore[no-untyped-def]
    """As `srpt_cap`, with an idle slot by Theorem 2 before the stage that it chooses.

    Source: Duan & Wu, section IV-A.
    """
    stage, limit, executor_class, hold_ms = srpt_cap(view, cap)
    if stage != NO_STAGE:
        hold_ms = slot_ms(view, stage, is_alone)
    return stage, limit, executor_class, hold_ms


@kernel
def in_order(view, rank):  # type: ignore[no-untyped-def]
    """Give all executors to the first job of an order, its stages by critical path.

    `rank` (float64[num_jobs]) has the rank of every job row; the smallest is served first.

    Source: Decima, Appendix H (a given order); section 7.1, baseline 2 (by total work).
    """
    best = NO_STAGE
    best_rank = 0.0
    for job in view.active[: view.now.num_active[0]]:
        if view.jobs.num_schedulable[job] > 0 and (best == NO_STAGE or rank[job] < best_rank):
            stage = stage_by_critical_path(view, job)
            if stage != NO_STAGE:
                best = stage
                best_rank = rank[job]
    return all_to(view, best)


@decide.of(Heuristic)
@kernel
def decide_by_heuristic(view, heuristic):  # type: ignore[no-untyped-def]
    """Return the policy's decision for one scheduling event."""
    kind, params, memo = heuristic
    if kind == HeuristicKind.FAIR:
        return _fair(view, params[0] != 0.0)
    if kind == HeuristicKind.STATIC:
        return _first_below_cap(view, np.int64(params[0]), False)
    if kind == HeuristicKind.GRANTED:
        return _first_below_cap(view, np.int64(params[0]), True)
    if kind == HeuristicKind.WEIGHTED_FAIR:
        return weighted_fair(view, params, memo)
    if kind == HeuristicKind.TETRIS:
        return tetris(view, params)
    if kind == HeuristicKind.GRAPHENE:
        return graphene(view, params, memo)
    if kind == HeuristicKind.SJF_CP:
        return in_order(view, view.jobs.work_ms)
    if kind == HeuristicKind.SRPT_CAP:
        return srpt_cap(view, np.int64(params[0]))
    if kind == HeuristicKind.ORDER:
        return in_order(view, params)
    if kind == HeuristicKind.IDLE_THEORY:
        return _idle_theory(view, np.int64(params[0]), params[1] != 0.0)
    return _random(view, np.int64(params[0]))
