"""The best order of a batch's jobs, by branch and bound over simulators that share their beginnings.

A simulator runs on while the jobs ordered so far can use all executors. Where they cannot, the search branches over the job
that comes next, from a copy of the simulator's tables; so orders with a common beginning share its simulation, exactly.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from parcae.cluster.kernels.tables import select_cluster
from parcae.cluster.state import NO_STAGE, NOT_YET
from parcae.kernels import inlined, kernel
from parcae.policies.heuristics.kernels.decisions import in_order
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import select_future, start, step

_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_COMPLETE = int(Status.COMPLETE)
_BAD = int(Status.BAD_DECISION)
#: The rank of a job that is not ordered yet.
UNORDERED = 1e9


class OrderSearch(NamedTuple):
    """Where the search stands. Row d of every table: the simulator after d jobs have been ordered."""

    rank: Any  # float64[num_jobs + 1, num_jobs], smallest first; UNORDERED
    jobs: Any  # int64[num_jobs + 1, num_jobs], the next jobs to try, the most promising first
    num_jobs: Any  # int64[num_jobs + 1], how many there are to try
    next_job: Any  # int64[num_jobs + 1], how many have been tried
    depth: Any  # int64[1]; -1 when the search is over, -2 before it begins
    best_ms: Any  # float64[1], sum of JCTs of the best order
    best_rank: Any  # float64[num_jobs]
    num_orders: Any  # int64[1], orders that were simulated to the end
    num_beginnings: Any  # int64[1], beginnings that were simulated
    task_ms: Any  # float64[num_stages], least duration of a stage's task
    path_ms: Any  # float64[num_stages], least time from a stage's start to its job's end
    left_ms: Any  # float64[num_jobs], room for the bound
    finish_ms: Any  # float64[num_jobs], room for the bound


@kernel
def _copy(blocks, source, target):  # type: ignore[no-untyped-def]
    """Copy a simulator; `blocks` are its tables as int64[num_simulators, size]."""
    for block in blocks:
        for column in range(block.shape[1]):
            block[target, column] = block[source, column]


@kernel
def _sort(values, count):  # type: ignore[no-untyped-def]
    for row in range(1, count):
        value = values[row]
        at = row
        while at > 0 and values[at - 1] > value:
            values[at] = values[at - 1]
            at -= 1
        values[at] = value


@kernel
def _bound_job(seen, search, position):  # type: ignore[no-untyped-def]
    """Fill the least work that is left of a job, and the least time in which it can end, by its stages' critical path."""
    job = seen.active[position]
    stages = seen.stages
    work_ms = 0.0
    longest_ms = 0.0
    first = seen.jobs.stage_start[job]
    for stage in range(first, first + seen.jobs.num_stages[job]):
        work_ms += (stages.num_tasks[stage] - stages.num_started[stage]) * search.task_ms[stage]
        if stages.num_started[stage] == 0:
            longest_ms = max(longest_ms, search.path_ms[stage])
    search.left_ms[position] = work_ms
    search.finish_ms[position] = longest_ms


@kernel
def _least_sum_ms(seen, search):  # type: ignore[no-untyped-def]
    """No way to go on has a smaller sum of JCTs, whatever the policy.

    The i-th completion is no earlier than with all work that has not started divisible and shortest remaining first, nor than
    the i-th smallest of the jobs' critical paths.
    """
    now = seen.now
    count = seen.now.num_active[0]
    for position in range(count):
        _bound_job(seen, search, position)
    _sort(search.left_ms, count)
    _sort(search.finish_ms, count)
    total = now.job_ms[0] + count * (now.clock_ms[0] - now.accounted_ms[0]) + 0.0
    shared_ms = 0.0
    for position in range(count):
        shared_ms += search.left_ms[position] / now.num_executors[0]
        total += max(shared_ms, search.finish_ms[position])
    return total


@kernel
def _run(state, future, tables, rank):  # type: ignore[no-untyped-def]
    """Run on until the next job of the order must be known (NEEDS_DECISION), or to the end. Returns a Status."""
    while True:
        stage, limit, executor_class, hold_ms = in_order(state, rank)
        if stage != NO_STAGE and rank[state.stages.job[stage]] == UNORDERED:
            return _NEEDS_DECISION
        status = step(state, future, tables, stage, limit, executor_class, hold_ms)
        if status != _NEEDS_DECISION:
            return status


@inlined
def _eagerness(state, job):  # type: ignore[no-untyped-def]
    """Jobs are tried in the order of their remaining work, those that have yet to arrive last."""
    return state.jobs.remaining_ms[job] if job < state.now.num_jobs[0] else math.inf


@kernel
def _branch(state, search, depth):  # type: ignore[no-untyped-def]
    """List the jobs that may come next."""
    count = 0
    for job in range(search.best_rank.shape[0]):
        is_over = job < state.now.num_jobs[0] and state.jobs.completion_ms[job] != NOT_YET
        if is_over or search.rank[depth, job] != UNORDERED:
            continue
        at = count
        while at > 0 and _eagerness(state, search.jobs[depth, at - 1]) > _eagerness(state, job):
            search.jobs[depth, at] = search.jobs[depth, at - 1]
            at -= 1
        search.jobs[depth, at] = job
        count += 1
    search.num_jobs[depth] = count
    search.next_job[depth] = 0


@kernel
def _finish(state, search, depth):  # type: ignore[no-untyped-def]
    search.num_orders[0] += 1
    total = state.now.job_ms[0] + 0.0
    if total < search.best_ms[0]:
        search.best_ms[0] = total
        for job in range(search.best_rank.shape[0]):
            search.best_rank[job] = search.rank[depth, job]


@kernel
def search_orders(states, futures, blocks, tables, search, max_beginnings):  # type: ignore[no-untyped-def]
    """Go on for at most so many beginnings. Returns a Status: COMPLETE, NEEDS_DECISION (not over), or an error."""
    if search.depth[0] == -2:
        state = select_cluster(states, 0)
        future = select_future(futures, 0)
        status = start(state, future, tables)
        if status != _NEEDS_DECISION:
            return status
        search.depth[0] = 0
        _branch(state, search, 0)
    until = search.num_beginnings[0] + max_beginnings
    while search.depth[0] >= 0 and search.num_beginnings[0] < until:
        depth = search.depth[0]
        if search.next_job[depth] == search.num_jobs[depth]:
            search.depth[0] = depth - 1
            continue
        job = search.jobs[depth, search.next_job[depth]]
        search.next_job[depth] += 1
        search.num_beginnings[0] += 1
        _copy(blocks, depth, depth + 1)
        for other in range(search.best_rank.shape[0]):
            search.rank[depth + 1, other] = search.rank[depth, other]
        search.rank[depth + 1, job] = depth
        state = select_cluster(states, depth + 1)
        future = select_future(futures, depth + 1)
        status = _run(state, future, tables, search.rank[depth + 1])
        if status == _COMPLETE and state.now.num_active[0] > 0:
            return _BAD
        if status == _COMPLETE:
            _finish(state, search, depth + 1)
        elif status != _NEEDS_DECISION:
            return status
        elif _least_sum_ms(state, search) < search.best_ms[0]:
            _branch(state, search, depth + 1)
            search.depth[0] = depth + 1
    return _COMPLETE if search.depth[0] < 0 else _NEEDS_DECISION
