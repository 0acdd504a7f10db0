"""Compiled branch-and-bound search for the best order of a batch's jobs.

A simulator runs while the jobs ordered so far can use all executors. When they cannot, the search
branches: for every job that may come next it copies the simulator's tables and continues from the
copy. Orders with a common prefix therefore share the simulation of that prefix.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from parcae.base.compiled.kernels import inlined, kernel, row_of
from parcae.cluster.kernels.tables import stages_of
from parcae.cluster.state import NO_STAGE, NOT_YET
from parcae.decima.heuristics.kernels.decisions import in_order
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import start, step

_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_COMPLETE = int(Status.COMPLETE)
_BAD = int(Status.BAD_DECISION)
#: The rank of a job that is not ordered yet.
UNORDERED = 1e9


class OrderSearch(NamedTuple):
    """The state of the search. Row d of a table belongs to the simulator with d ordered jobs."""

    rank: Any  # float64[num_jobs + 1, num_jobs], smallest first; UNORDERED = no place yet
    jobs: Any  # int64[num_jobs + 1, num_jobs], the next jobs to try, the most promising first
    num_jobs: Any  # int64[num_jobs + 1], number of jobs to try
    next_job: Any  # int64[num_jobs + 1], number of jobs already tried
    depth: Any  # int64[1], number of ordered jobs; -1 = search complete, -2 = not begun
    best_ms: Any  # float64[1], sum of JCTs of the best order
    best_rank: Any  # float64[num_jobs], the best order
    num_orders: Any  # int64[1], number of complete orders that were simulated
    num_beginnings: Any  # int64[1], number of prefixes that were simulated
    task_ms: Any  # float64[num_stages], least duration of a stage's task
    path_ms: Any  # float64[num_stages], least time from a stage's start to its job's end
    left_ms: Any  # float64[num_jobs], workspace of the bound: remaining work by job
    finish_ms: Any  # float64[num_jobs], workspace of the bound: remaining critical path by job


@kernel
def _copy(blocks, source, target):  # type: ignore[no-untyped-def]
    """Copy a simulator from row `source` to row `target`.

    `blocks` are the tables of all simulators, each viewed as int64[num_simulators, size].
    """
    for block in blocks:
        for column in range(block.shape[1]):
            block[target, column] = block[source, column]


@kernel
def _sort(values, count):  # type: ignore[no-untyped-def]
    """Sort the first `count` values in place. Kernels allocate nothing, so no library sort."""
    for row in range(1, count):
        value = values[row]
        place = row
        while place > 0 and values[place - 1] > value:
            values[place] = values[place - 1]
            place -= 1
        values[place] = value


@kernel
def _least_sum_ms(seen, search):  # type: ignore[no-untyped-def]
    """A lower bound on the sum of JCTs of every continuation, under any policy.

    The i-th completion is not earlier than in a schedule that treats all unstarted work as
    divisible and serves the shortest remaining job first. It is also not earlier than the i-th
    smallest critical path of the jobs. Reads the cluster state; writes the search's workspace.
    """
    now = seen.now
    stages = seen.stages
    count = now.num_active[0]
    for position in range(count):
        work_ms = 0.0
        longest_ms = 0.0
        for stage in stages_of(seen, seen.active[position]):
            work_ms += (stages.num_tasks[stage] - stages.num_started[stage]) * search.task_ms[stage]
            if stages.num_started[stage] == 0:
                longest_ms = max(longest_ms, search.path_ms[stage])
        search.left_ms[position] = work_ms
        search.finish_ms[position] = longest_ms
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
    """Run until the order needs its next job (NEEDS_DECISION), or to the end. Return the Status.

    Changes the cluster state and the future; reads the duration tables and the ranks.
    """
    while True:
        stage, limit, executor_class, hold_ms = in_order(state, rank)
        if stage != NO_STAGE and rank[state.stages.job[stage]] == UNORDERED:
            return _NEEDS_DECISION
        status = step(state, future, tables, stage, limit, executor_class, hold_ms)
        if status != _NEEDS_DECISION:
            return status


@inlined
def _eagerness(state, job):  # type: ignore[no-untyped-def]
    """Sort key of the jobs to try: remaining work, infinite for jobs that have not arrived."""
    return state.jobs.remaining_ms[job] if job < state.now.num_jobs[0] else math.inf


@kernel
def _branch(state, search, depth):  # type: ignore[no-untyped-def]
    """List the jobs that may come next, by remaining work. Writes row `depth` of the search."""
    count = 0
    for job in range(search.best_rank.shape[0]):
        is_over = job < state.now.num_jobs[0] and state.jobs.completion_ms[job] != NOT_YET
        if is_over or search.rank[depth, job] != UNORDERED:
            continue
        place = count
        while place > 0 and _eagerness(state, search.jobs[depth, place - 1]) > _eagerness(
            state, job
        ):
            search.jobs[depth, place] = search.jobs[depth, place - 1]
            place -= 1
        search.jobs[depth, place] = job
        count += 1
    search.num_jobs[depth] = count
    search.next_job[depth] = 0


@kernel
def search_orders(  # type: ignore[no-untyped-def]
    states, futures, blocks, tables, search, max_beginnings
):
    """Continue the search for at most `max_beginnings` further prefixes. Returns a Status:
    COMPLETE, NEEDS_DECISION (the search is not complete) or an error.

    Reads and changes the simulators (row d: d ordered jobs) and the search's tables.
    """
    if search.depth[0] == -2:
        state = row_of(states, 0)
        future = row_of(futures, 0)
        status = start(state, future, tables)
        if status != _NEEDS_DECISION:
            return status
        search.depth[0] = 0
        _branch(state, search, 0)
    until = search.num_beginnings[0] + max_beginnings
    while search.depth[0] >= 0 and search.num_beginnings[0] < until:
        depth = search.depth[0]
        # All branches of this depth are done: go back to the one above.
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
        state = row_of(states, depth + 1)
        future = row_of(futures, depth + 1)
        status = _run(state, future, tables, search.rank[depth + 1])
        # A run that is complete while jobs are active has stalled: the policy must not do that.
        if status == _COMPLETE and state.now.num_active[0] > 0:
            return _BAD
        if status == _COMPLETE:
            search.num_orders[0] += 1
            if state.now.job_ms[0] < search.best_ms[0]:
                search.best_ms[0] = state.now.job_ms[0]
                for other in range(search.best_rank.shape[0]):
                    search.best_rank[other] = search.rank[depth + 1, other]
        elif status != _NEEDS_DECISION:
            return status
        # Go deeper only if some continuation could beat the best order.
        elif _least_sum_ms(state, search) < search.best_ms[0]:
            _branch(state, search, depth + 1)
            search.depth[0] = depth + 1
    return _COMPLETE if search.depth[0] < 0 else _NEEDS_DECISION
