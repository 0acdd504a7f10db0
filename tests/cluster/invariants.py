"""Invariants of the cluster's state between transitions; tests check them after every transition.

The state keeps many counts that could be derived from other tables. The checks derive them again
and compare.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parcae.base.errors import InvariantError
from parcae.cluster.state import NO_JOB, NO_RECORD, NO_STAGE, NOT_YET, ClusterState, World
from parcae.cluster.trace import Trace
from parcae.workloads.workload import JobSequence


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
    """Derive all counts of the state from its tables and compare them with the stored ones."""
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
    schedulable = int(sum(state.jobs.num_schedulable[j] for j in active_jobs))
    _expect(state, NO_JOB, "schedulable stages", int(now.num_schedulable), schedulable)
    _check_classes(state, active_jobs)
    _check_holds(state)
    if now.world == World.CORES:
        check_cores(state, active_jobs)


def _check_classes(state: ClusterState, active_jobs: list[int]) -> None:
    """Check the numbers of schedulable stages by class (kept only with several classes)."""
    if len(state.classes) == 1:
        return
    stages = state.stages
    rows = [row for job in active_jobs for row in _stage_rows(state, job)]
    schedulable = [
        row
        for row in rows
        if stages.is_saturated[row] == 0 and stages.num_parents_unsaturated[row] == 0
    ]
    for number, known in enumerate(state.classes.num_schedulable.tolist()):
        fitting = sum((int(stages.fits[row]) >> number) & 1 for row in schedulable)
        _expect(state, NO_JOB, f"schedulable stages of class {number}", int(known), fitting)


def _stage_rows(state: ClusterState, job: int) -> range:
    """Return the rows of a job's stages."""
    first = int(state.jobs.stage_start[job])
    return range(first, first + int(state.jobs.num_stages[job]))


def _check_holds(state: ClusterState) -> None:
    """Check that every running idle slot is in the list once and agrees with its stage."""
    holds = state.holds[: int(state.now.num_holds[0])]
    _expect(state, NO_JOB, "stages with an idle slot", len(set(holds.stage.tolist())), len(holds))
    for hold in holds:
        known = int(state.stages.hold_until_ms[hold.stage])
        _expect(state, NO_JOB, f"end of stage {hold.stage}'s slot", known, int(hold.end_ms))
        is_over = bool(hold.end_ms < state.now.clock_ms[0])
        _expect(state, NO_JOB, "idle slots that should have ended", is_over, False)


def _check_executors(state: ClusterState) -> None:
    """Check that every executor is idle in one pool, works or moves."""
    executors = state.executors
    num_classes = len(state.classes)
    num_pools = (int(state.now.num_jobs[0]) + 1) * num_classes
    idle = [executor for row in range(num_pools) for executor in _pool(state, row)]
    _expect(state, NO_JOB, "executors idle in one pool only", len(idle), len(set(idle)))
    working = int((executors.stage != NO_STAGE).sum())
    # Rows beyond the number of cores run a task or are in no pool.
    if state.now.world[0] == World.CORES:
        free = max(0, int(state.now.num_executors[0]) - working)
        _expect(state, NO_JOB, "cores that run nothing", len(idle), free)
        return
    moving = int((executors.destination != NO_STAGE).sum())
    known = len(idle) + working + moving + _is_unattached(state)
    _expect(state, NO_JOB, "executors idle + working + moving", known, len(executors))


def _is_unattached(state: ClusterState) -> bool:
    """Return whether an executor is offered whose job has just completed: it is in no pool."""
    acting = int(state.now.acting_executor[0])
    is_offered = state.now.num_source[0] > 0 and acting >= 0
    return bool(is_offered and state.executors.stage[acting] == NO_STAGE)


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
    rows = _stage_rows(state, job)
    attached = int((state.executors.job == job).sum())
    _expect(state, job, "executors attached", int(jobs.num_attached[job]), attached)
    unsaturated = 0
    schedulable = 0
    for stage in rows:
        is_unsaturated = _demand(state, stage) > 0
        _check_stage(state, job, stage, is_unsaturated)
        unsaturated += is_unsaturated
        schedulable += is_unsaturated and stages.num_parents_unsaturated[stage] == 0
    _expect(state, job, "unsaturated stages", int(jobs.num_unsaturated[job]), int(unsaturated))
    _expect(state, job, "schedulable stages", int(jobs.num_schedulable[job]), int(schedulable))
    committed = int(stages.num_committed[rows.start : rows.stop].sum())
    _expect(state, job, "executors committed", int(jobs.num_commitments[job]), committed)
    _check_progress(state, job)
    if state.now.world[0] != World.CORES:
        supplied = attached + int(stages.num_moving[rows.start : rows.stop].sum())
        supplied += _committed_from_outside(state, job)
        _expect(state, job, "executors supplied", int(jobs.num_supplied[job]), supplied)
    remaining_ms = _remaining_ms(state, rows)
    if abs(remaining_ms - jobs.remaining_ms[job]) > 1e-6 * max(1.0, jobs.work_ms[job]):
        _expect(state, job, "remaining work", float(jobs.remaining_ms[job]), remaining_ms)


def _check_progress(state: ClusterState, job: int) -> None:
    """Check the counts of stages that have tasks to start, are done, or wait for parents."""
    stages = state.stages
    rows = _stage_rows(state, job)
    unstarted = [row for row in rows if stages.num_started[row] < stages.num_tasks[row]]
    name = "stages with tasks to start"
    _expect(state, job, name, int(state.jobs.num_unstarted[job]), len(unstarted))
    unfinished = [row for row in rows if stages.num_finished[row] < stages.num_tasks[row]]
    known = int(state.jobs.num_done[job])
    if state.now.world[0] == World.CORES:
        # A stage ends some time after its last task, and a live one may start before its parents.
        known = max(known, len(rows) - len(unfinished))
    _expect(state, job, "stages that are done", known, len(rows) - len(unfinished))
    if state.now.world[0] == World.CORES:
        return
    num_parents = dict.fromkeys(rows, 0)
    for parent in unfinished:
        first = int(stages.child_start[parent])
        for child in state.children[first : first + int(stages.num_children[parent])].tolist():
            num_parents[child] += 1
    for stage, waits_for in num_parents.items():
        name = f"unfinished parents of stage {stage - rows.start}"
        _expect(state, job, name, int(stages.num_parents_unfinished[stage]), waits_for)


def _committed_from_outside(state: ClusterState, job: int) -> int:
    """Return the number of executors that sources outside the job have committed to it."""
    count = 0
    for source in np.flatnonzero(state.sources.num_committed > 0):
        row = int(state.sources.commitment_head[source])
        while row != NO_RECORD:
            commitment = state.commitments[row]
            stage = int(commitment.stage)
            if stage != NO_STAGE and state.stages.job[stage] == job != commitment.source_job:
                count += int(commitment["count"])
            row = int(commitment.next)
    return count


def _demand(state: ClusterState, stage: int) -> int:
    """Return how many more executors the stage could use."""
    stages = state.stages
    if stages.fits[stage] == 0:
        return 0  # a hidden stage: no executor may work for it
    unstarted = int(stages.num_tasks[stage] - stages.num_started[stage])
    demand = unstarted - int(stages.num_committed[stage] + stages.num_moving[stage])
    if state.now.world[0] == World.CORES and unstarted > 0:
        demand += int(stages.num_bound[stage])  # a plan covers the cores that run its tasks, too
    return demand


def _check_stage(state: ClusterState, job: int, stage: int, is_unsaturated: bool) -> None:
    """Check the saturation and the executors of one stage."""
    stages = state.stages
    executors = state.executors
    name = f"saturation of stage {stage - int(state.jobs.stage_start[job])}"
    _expect(state, job, name, int(stages.is_saturated[stage]), int(not is_unsaturated))
    bound = int((executors.stage == stage).sum())
    _expect(state, job, "executors bound", int(stages.num_bound[stage]), bound)
    moving = int((executors.destination == stage).sum())
    _expect(state, job, "executors moving", int(stages.num_moving[stage]), moving)


def _remaining_ms(state: ClusterState, rows: range) -> float:
    """Return the work of the tasks in these stages that have not started, in ms."""
    stages = state.stages[rows.start : rows.stop]
    return float(np.sum((stages.num_tasks - stages.num_started) * stages.task_ms))


def _expect(state: ClusterState, job: int, what: str, stored: Any, derived: Any) -> None:
    """Raise an InvariantError if a stored value differs from the derived one."""
    if stored == derived:
        return
    details = ""
    if job != NO_JOB:
        rows = [str(state.stages[row]) for row in _stage_rows(state, job)]
        details = f"\njob {job}: {state.jobs[job]}\nstages:\n" + "\n".join(rows)
    raise InvariantError(
        f"at {state.now.clock_ms[0]} ms: {what}: the state says {stored}, "
        f"the tables imply {derived}{details}"
    )


def check_cores(state: ClusterState, active_jobs: list[int]) -> None:
    """Check the invariants of the world of cores: tasks, idle cores, pools and the dispatcher."""
    now = state.now[0]
    executors = state.executors
    idle = _pool(state, 0)
    _expect(state, NO_JOB, "idle cores", int(now.num_idle), len(idle))
    runs_nothing = set(executors.stage[idle].tolist()) <= {NO_STAGE}
    _expect(state, NO_JOB, "idle cores that run nothing", runs_nothing, True)
    belongs_to_none = set(executors.job[idle].tolist()) <= {NO_JOB}
    _expect(state, NO_JOB, "idle cores that belong to no job", belongs_to_none, True)
    for job in active_jobs:
        _check_stages_of(state, job)
    if now.num_pools > 1 or state.pools.is_fair[0]:
        _check_pools(state, active_jobs)
    if now.num_source > 0 and now.num_planned > 0:
        return  # decisions are writing the next order: the dispatcher's tables are not valid
    for job in range(int(now.num_jobs)):
        _check_contender(state, job, job in active_jobs)
    _check_contest(state)


def _check_pools(state: ClusterState, active_jobs: list[int]) -> None:
    """Check the numbers of running tasks of the pools."""
    for pool in range(int(state.now.num_pools[0])):
        members = [job for job in active_jobs if state.job_orders.pool[job] == pool]
        running = sum(int(state.jobs.num_attached[job]) for job in members)
        known = int(state.pools.num_running[pool])
        _expect(state, NO_JOB, f"running tasks of pool {pool}", known, running)


def _check_stages_of(state: ClusterState, job: int) -> None:
    """Check the tasks of the job's stages, and which stages are runnable."""
    for stage in _stage_rows(state, job):
        _check_tasks(state, job, stage)


def _check_tasks(state: ClusterState, job: int, stage: int) -> None:
    """Check the tasks of one stage, and whether it is runnable."""
    stages = state.stages
    number = stage - int(state.jobs.stage_start[job])
    started = int(stages.num_started[stage])
    running = started - int(stages.num_finished[stage])
    name = f"running tasks of stage {number}"
    _expect(state, job, name, int(stages.num_bound[stage]), running)
    _expect(state, job, "cores that move", int(stages.num_moving[stage]), 0)
    is_runnable = bool(stages.frontier_rank[stage] >= 0)
    may_be_chosen = is_runnable or started > 0
    if may_be_chosen:
        # The count may be negative: a live cluster may run a stage before its parents ended.
        parents = max(0, int(stages.num_parents_unfinished[stage]))
        _expect(state, job, "parents to wait for", parents, 0)
        has_unstarted = started < int(stages.num_tasks[stage])
        _expect(state, job, f"runnability of stage {number}", is_runnable, has_unstarted)
    is_open = bool(stages.num_parents_unsaturated[stage] == 0)
    _expect(state, job, "stages that may be chosen", is_open, may_be_chosen)


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
        known = int(contest[num_leaves + leaf])
        _expect(state, NO_JOB, f"leaf {leaf} of the winner tree", known, leaf if enters else NO_JOB)
    for node in range(num_leaves - 1, 0, -1):
        pair = [int(contest[2 * node]), int(contest[2 * node + 1])]
        best = min((job for job in pair if job != NO_JOB), key=key, default=NO_JOB)
        _expect(state, NO_JOB, f"node {node} of the winner tree", int(contest[node]), best)


def check_every_task_ran_once(trace: Trace, sequence: JobSequence, num_executors: int) -> None:
    """Every task runs once, an executor runs one at a time, children run after their parents."""
    tasks = trace.tasks
    assert trace.is_complete
    assert tasks is not None
    ran = sorted(
        zip(tasks["job"].tolist(), tasks["stage"].tolist(), tasks["task"].tolist(), strict=True)
    )
    assert ran == [
        (j, s, t)
        for j, job in enumerate(sequence.jobs)
        for s, stage in enumerate(job.stages)
        for t in range(stage.num_tasks)
    ]
    assert set(tasks["executor"].tolist()) <= set(range(num_executors))
    for executor in range(num_executors):
        own = tasks[tasks["executor"] == executor]
        assert (own["start_ms"][1:] >= own["finish_ms"][:-1]).all()
    for j, job in enumerate(sequence.jobs):
        own = tasks[tasks["job"] == j]
        assert own["start_ms"].min() >= trace.arrival_ms[j]
        assert trace.completion_ms[j] == own["finish_ms"].max()
        for s, stage in enumerate(job.stages):
            for parent in stage.parents:
                assert (
                    own["start_ms"][own["stage"] == s].min()
                    >= own["finish_ms"][own["stage"] == parent].max()
                )
