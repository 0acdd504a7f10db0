"""Invariants of the cluster's state between transitions; tests check them after every transition.

The state keeps many counts that could be derived from other tables. The checks derive them again
and compare.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parcae.cluster.state import NO_JOB, NO_STAGE, NOT_YET, ClusterState, World
from parcae.errors import InvariantError


class _Columns:
    """A table with its columns as attributes.

    The checks read columns very often, and a record array looks them up slowly.
    """

    def __init__(self, table: Any) -> None:
        self._table = table
        for name in table.dtype.names:
            setattr(self, name, table[name])

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, row: Any) -> Any:
        return self._table[row]


def check_invariants(state: ClusterState) -> None:
    """Derive all counts of the state from its tables and compare them with the stored ones.

    Raises:
        InvariantError: a count is wrong; the message shows the job and its stages.
    """
    state = ClusterState(*(_Columns(table) if table.dtype.names else table for table in state))
    now = state.now[0]
    num_jobs = int(state.now.num_jobs[0])
    active = state.active[: now.num_active].tolist()
    active_jobs = [job for job in range(num_jobs) if state.jobs.completion_ms[job] == NOT_YET]
    _expect(state, NO_JOB, "jobs in the system", active, active_jobs)
    _check_executors(state)
    for job in active_jobs:
        _check_job(state, job)
    open_jobs = sum(state.jobs.num_unsaturated[job] > 0 for job in active_jobs)
    _expect(state, NO_JOB, "jobs with an unsaturated stage", int(now.num_open), int(open_jobs))
    _expect(
        state,
        NO_JOB,
        "schedulable stages",
        int(now.num_schedulable),
        int(sum(state.jobs.num_schedulable[j] for j in active_jobs)),
    )
    _check_classes(state, active_jobs)
    _check_holds(state)
    if now.world == World.CORES:
        check_cores(state, active_jobs)


def _check_classes(state: ClusterState, active_jobs: list[int]) -> None:
    """Check the numbers of schedulable stages by class (kept only with several classes)."""
    stages = state.stages
    num_classes = len(state.classes)
    rows = [
        r
        for j in active_jobs
        for r in range(
            int(state.jobs.stage_start[j]),
            int(state.jobs.stage_start[j] + state.jobs.num_stages[j]),
        )
    ]
    schedulable = [
        r for r in rows if stages.is_saturated[r] == 0 and stages.num_parents_unsaturated[r] == 0
    ]
    for row in range(num_classes if num_classes > 1 else 0):
        fitting = sum((int(stages.fits[r]) >> row) & 1 for r in schedulable)
        _expect(
            state,
            NO_JOB,
            f"schedulable stages of class {row}",
            int(state.classes.num_schedulable[row]),
            fitting,
        )


def _check_holds(state: ClusterState) -> None:
    """Check that every running idle slot is in the list once and agrees with its stage."""
    holds = state.holds[: int(state.now.num_holds[0])]
    _expect(state, NO_JOB, "stages with an idle slot", len(set(holds.stage.tolist())), len(holds))
    for hold in holds:
        _expect(
            state,
            NO_JOB,
            f"end of stage {hold.stage}'s idle slot",
            int(state.stages.hold_until_ms[hold.stage]),
            int(hold.end_ms),
        )
        _expect(
            state,
            NO_JOB,
            "idle slots that should have ended",
            int(hold.end_ms < state.now.clock_ms[0]),
            0,
        )


def _check_executors(state: ClusterState) -> None:
    """Check that every executor is idle in one pool, works or moves."""
    executors = state.executors
    num_classes = len(state.classes)
    num_pools = (int(state.now.num_jobs[0]) + 1) * num_classes
    idle = [executor for row in range(num_pools) for executor in _pool(state, row)]
    _expect(state, NO_JOB, "executors idle in one pool only", len(idle), len(set(idle)))
    working = int((executors.stage != NO_STAGE).sum())
    moving = int((executors.destination != NO_STAGE).sum())
    unattached = 0
    acting = int(state.now.acting_executor[0])
    if state.now.num_source[0] > 0 and acting >= 0 and executors.stage[acting] == NO_STAGE:
        unattached = 1  # the offered executor's job has just completed
    # Rows beyond the number of cores run a task or are in no pool.
    if state.now.world[0] == World.CORES:
        _expect(
            state,
            NO_JOB,
            "cores that run nothing",
            len(idle),
            max(0, int(state.now.num_executors[0]) - working),
        )
        return
    _expect(
        state,
        NO_JOB,
        "executors idle + working + moving",
        len(idle) + working + moving + unattached,
        len(executors),
    )


def _pool(state: ClusterState, row: int) -> list[int]:
    """Return the executors in the pool at a source row."""
    members = []
    executor = int(state.sources.idle_head[row])
    for _ in range(int(state.sources.num_idle[row])):
        members.append(executor)
        executor = int(state.executors.next_idle[executor])
    return members


def _check_job(state: ClusterState, job: int) -> None:
    """Check the counts of one job in the system and of its stages."""
    jobs = state.jobs
    stages = state.stages
    executors = state.executors
    rows = range(int(jobs.stage_start[job]), int(jobs.stage_start[job] + jobs.num_stages[job]))
    _expect(
        state,
        job,
        "executors attached",
        int(jobs.num_attached[job]),
        int((executors.job == job).sum()),
    )
    unsaturated = schedulable = 0
    for stage in rows:
        demand = (
            stages.num_tasks[stage]
            - stages.num_started[stage]
            - stages.num_committed[stage]
            - stages.num_moving[stage]
        )
        if (
            state.now.world[0] == World.CORES
            and stages.num_tasks[stage] > stages.num_started[stage]
        ):
            demand += stages.num_bound[stage]  # a plan covers the cores that run its tasks, too
        if stages.fits[stage] == 0:
            demand = 0  # a hidden stage: no executor may work for it
        _expect(
            state,
            job,
            f"saturation of stage {stage - rows.start}",
            int(stages.is_saturated[stage]),
            int(demand <= 0),
        )
        _expect(
            state,
            job,
            "executors bound",
            int(stages.num_bound[stage]),
            int((executors.stage == stage).sum()),
        )
        _expect(
            state,
            job,
            "executors moving",
            int(stages.num_moving[stage]),
            int((executors.destination == stage).sum()),
        )
        unsaturated += demand > 0
        schedulable += demand > 0 and stages.num_parents_unsaturated[stage] == 0
    _expect(state, job, "unsaturated stages", int(jobs.num_unsaturated[job]), int(unsaturated))
    _expect(state, job, "schedulable stages", int(jobs.num_schedulable[job]), int(schedulable))
    committed = int(stages.num_committed[rows.start : rows.stop].sum())
    _expect(state, job, "executors committed", int(jobs.num_commitments[job]), committed)
    remaining = float(
        np.sum(
            (stages.num_tasks - stages.num_started)[rows.start : rows.stop]
            * stages.task_ms[rows.start : rows.stop]
        )
    )
    if abs(remaining - jobs.remaining_ms[job]) > 1e-6 * max(1.0, jobs.work_ms[job]):
        _expect(state, job, "remaining work", float(jobs.remaining_ms[job]), remaining)


def _expect(state: ClusterState, job: int, what: str, stored: Any, derived: Any) -> None:
    """Raise an InvariantError if a stored value differs from the derived one."""
    if stored == derived:
        return
    details = ""
    if job != NO_JOB:
        rows = slice(
            int(state.jobs.stage_start[job]),
            int(state.jobs.stage_start[job] + state.jobs.num_stages[job]),
        )
        details = f"\njob {job}: {state.jobs[job]}\nstages:\n" + "\n".join(
            str(row) for row in state.stages[rows]
        )
    raise InvariantError(
        f"at {state.now.clock_ms[0]} ms: {what}: the state says {stored}, "
        f"the tables imply {derived}{details}"
    )


def check_cores(state: ClusterState, active_jobs: list[int]) -> None:
    """Check the invariants of the world of cores: tasks, idle cores, pools and the dispatcher.

    Args:
        active_jobs: rows of the jobs in the system.

    Raises:
        InvariantError: a stored value is wrong.
    """
    now = state.now[0]
    executors = state.executors
    idle = _pool(state, 0)
    _expect(state, NO_JOB, "idle cores", int(now.num_idle), len(idle))
    _expect(
        state,
        NO_JOB,
        "idle cores that run nothing",
        set(executors.stage[idle].tolist()) <= {NO_STAGE},
        True,
    )
    _expect(
        state,
        NO_JOB,
        "idle cores that belong to no job",
        set(executors.job[idle].tolist()) <= {NO_JOB},
        True,
    )
    for job in active_jobs:
        _check_stages_of(state, job)
    if now.num_pools > 1 or state.pools.is_fair[0]:
        for pool in range(int(now.num_pools)):
            running = sum(
                int(state.jobs.num_attached[j])
                for j in active_jobs
                if state.job_orders.pool[j] == pool
            )
            _expect(
                state,
                NO_JOB,
                f"running tasks of pool {pool}",
                int(state.pools.num_running[pool]),
                running,
            )
    if now.num_source > 0 and now.num_planned > 0:
        return  # decisions are writing the next order: the dispatcher's tables are not valid
    for job in range(int(now.num_jobs)):
        _check_contender(state, job, job in active_jobs)
    _check_contest(state)


def _check_stages_of(state: ClusterState, job: int) -> None:
    """Check the tasks of the job's stages, and which stages are runnable."""
    stages = state.stages
    first = int(state.jobs.stage_start[job])
    unstarted = 0
    for stage in range(first, first + int(state.jobs.num_stages[job])):
        num_tasks = int(stages.num_tasks[stage])
        started = int(stages.num_started[stage])
        finished = int(stages.num_finished[stage])
        _expect(
            state,
            job,
            f"running tasks of stage {stage - first}",
            int(stages.num_bound[stage]),
            started - finished,
        )
        _expect(state, job, "cores that move", int(stages.num_moving[stage]), 0)
        unstarted += started < num_tasks
        is_runnable = bool(stages.frontier_rank[stage] >= 0)
        if is_runnable or started > 0:
            # The count may be negative: a live cluster may run a stage before its parents ended.
            _expect(
                state,
                job,
                "parents to wait for",
                max(0, int(stages.num_parents_unfinished[stage])),
                0,
            )
            _expect(
                state,
                job,
                f"runnability of stage {stage - first}",
                is_runnable,
                started < num_tasks,
            )
        _expect(
            state,
            job,
            "stages that may be chosen",
            bool(stages.num_parents_unsaturated[stage] == 0),
            is_runnable or started > 0,
        )
    _expect(state, job, "stages with tasks to start", int(state.jobs.num_unstarted[job]), unstarted)


def _front_of(state: ClusterState, job: int) -> int:
    """Return the stage of the job that the order in force serves next, or NO_STAGE."""
    stages = state.stages
    orders = state.stage_orders
    if state.jobs.num_attached[job] >= state.job_orders.limit[job]:
        return NO_STAGE
    first = int(state.jobs.stage_start[job])
    ready = [
        (float(orders.tier[stage]), float(orders.rank[stage]), stage)
        for stage in range(first, first + int(state.jobs.num_stages[job]))
        if stages.frontier_rank[stage] >= 0 and stages.num_bound[stage] < orders.limit[stage]
    ]
    return min(ready)[2] if ready else NO_STAGE


def _check_contender(state: ClusterState, job: int, is_alive: bool) -> None:
    """Check the job's row of `contenders`: its next stage, tier and share."""
    contenders = state.contenders
    front = _front_of(state, job) if is_alive else NO_STAGE
    _expect(state, job, "stage to be served next", int(contenders.front[job]), front)
    if front == NO_STAGE:
        return
    tier = float(state.job_orders.tier[job] + state.stage_orders.tier[front])
    weight = float(state.job_orders.weight[job])
    share = float(state.jobs.num_attached[job]) / weight if weight > 0 else 0.0
    _expect(state, job, "tier", float(contenders.tier[job]), tier)
    _expect(state, job, "running tasks / weight", float(contenders.share[job]), share)


def _check_contest(state: ClusterState) -> None:
    """Check that every node of the winner tree holds the first job of its subtree."""
    contest = state.contest
    contenders = state.contenders
    num_leaves = len(contest) // 2

    def key(job: int) -> tuple[float, float, int]:
        return (float(contenders.tier[job]), float(contenders.share[job]), job)

    for leaf in range(num_leaves):
        enters = leaf < int(state.now.num_jobs[0]) and contenders.front[leaf] != NO_STAGE
        _expect(
            state,
            NO_JOB,
            f"leaf {leaf} of the winner tree",
            int(contest[num_leaves + leaf]),
            leaf if enters else NO_JOB,
        )
    for node in range(num_leaves - 1, 0, -1):
        pair = [int(contest[2 * node]), int(contest[2 * node + 1])]
        best = min((job for job in pair if job != NO_JOB), key=key, default=NO_JOB)
        _expect(state, NO_JOB, f"node {node} of the winner tree", int(contest[node]), best)
