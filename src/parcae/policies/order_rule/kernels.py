"""The rule of the world of cores, compiled: a job's tier is a sum of features times parameters."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from parcae.cluster.kernels.estimates import correction
from parcae.cluster.kernels.tables import select_cluster
from parcae.cluster.kernels.virtual import carry_on, foretell_ends
from parcae.cluster.orders import Orders
from parcae.cluster.state import NOT_YET, UNLIMITED, VirtualRun
from parcae.kernels import inlined, kernel
from parcae.policies.order_rule.layout import OrderParameter, OrderRule
from parcae.simulation.future import Status
from parcae.simulation.kernels.cores_loop import follow_orders, start_cores
from parcae.simulation.kernels.firing import select_future

_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_P = {parameter.name: int(parameter) for parameter in OrderParameter}
_NARROW = _P["NARROW"]
_TOTAL = _P["TOTAL"]
_CORRECTION = _P["CORRECTION"]
_SURPRISE = _P["SURPRISE"]
_STARTED = _P["STARTED"]
_AGE = _P["AGE"]
_STAGES = _P["STAGES"]
_WIDTH = _P["WIDTH"]
_UNTRIED = _P["UNTRIED"]
_FEW = _P["FEW"]
_RUNNING = _P["RUNNING"]
_VIRTUAL = _P["VIRTUAL"]
_CROWDED = _P["CROWDED"]
_STAGE_PATH = _P["STAGE_PATH"]
_STAGE_TASK = _P["STAGE_TASK"]
_STAGE_TASKS = _P["STAGE_TASKS"]
_STAGE_WORK = _P["STAGE_WORK"]
_PRIOR_ERROR = _P["PRIOR_ERROR"]
_PROBE = _P["PROBE"]
_PROBE_ERRING = _P["PROBE_ERRING"]
_PROBE_SHARE = _P["PROBE_SHARE"]
#: Tier of jobs that are tried: before all others but those that the guard puts first.
PROBE_TIER = -1e6
#: How far estimates err is learned from so many of the latest jobs, with a prior worth two of them that err little.
_LATEST = 64
_PRIOR_JOBS = 2.0
_PRIOR_VARIANCE = 0.02


class JobFacts(NamedTuple):
    """What is known of one job."""

    left_ms: Any  # estimated work of tasks that have not started, and half of the running ones
    total_ms: Any  # estimated work of all tasks
    path_ms: Any  # estimated critical path that is left
    factor: Any  # correction of its estimate
    surprise: Any  # log(took / foretold) of its finished tasks
    num_finished: Any
    num_started: Any
    num_tasks: Any
    num_pending: Any  # tasks that could start now
    stages_left: Any


@kernel
def job_facts(seen, rule, job):  # type: ignore[no-untyped-def]
    """The job's facts, in one pass over its stages."""
    stages = seen.stages
    first = seen.jobs.stage_start[job]
    factor = correction(seen, job)
    left_ms = 0.0
    total_ms = 0.0
    path_ms = 0.0
    took_ms = 0.0
    expected_ms = 0.0
    num_finished = 0
    num_started = 0
    num_tasks = 0
    num_pending = 0
    stages_left = 0
    for stage in range(first, first + seen.jobs.num_stages[job]):
        task_ms = stages.task_ms[stage]
        tasks = stages.num_tasks[stage]
        started = stages.num_started[stage]
        finished = stages.num_finished[stage]
        num_tasks += tasks
        num_started += started
        num_finished += finished
        total_ms += tasks * task_ms
        left_ms += (tasks - started + 0.5 * (started - finished)) * task_ms
        took_ms += stages.executed_ms[stage]
        expected_ms += finished * task_ms
        if finished < tasks:
            stages_left += 1
            path_ms = max(path_ms, rule.virtual_stages.path_ms[stage])
        if stages.frontier_rank[stage] >= 0:
            num_pending += tasks - started
    surprise = math.log(max(took_ms, 1.0) / max(expected_ms, 1.0)) if num_finished > 0 else 0.0
    left_ms = max(left_ms * factor, seen.now.least_share[0] * took_ms)
    return JobFacts(
        left_ms, total_ms * factor, path_ms * factor, factor, surprise,
        num_finished, num_started, num_tasks, num_pending, stages_left,
    )  # fmt: skip


@kernel
def erring(seen, rule):  # type: ignore[no-untyped-def]
    """How far estimates have erred of late: the root of the mean square of log(took / foretold) over the latest jobs."""
    stages = seen.stages
    jobs = seen.jobs
    weight = _PRIOR_JOBS
    squares = _PRIOR_JOBS * _PRIOR_VARIANCE * math.exp(min(10.0, rule.theta[_PRIOR_ERROR]))
    for job in range(max(0, seen.now.num_jobs[0] - _LATEST), seen.now.num_jobs[0]):
        first = jobs.stage_start[job]
        finished = 0
        took_ms = 0.0
        expected_ms = 0.0
        for stage in range(first, first + jobs.num_stages[job]):
            finished += stages.num_finished[stage]
            took_ms += stages.executed_ms[stage]
            expected_ms += stages.num_finished[stage] * stages.task_ms[stage]
        if finished > 0:
            trust = finished / (finished + 10.0)
            surprise = math.log(max(took_ms, 1.0) / max(expected_ms, 1.0))
            squares += trust * surprise * surprise
            weight += trust
    return math.sqrt(squares / weight)


@inlined
def _virtual_of(rule):  # type: ignore[no-untyped-def]
    return VirtualRun(rule.virtual_now, rule.virtual_jobs, rule.virtual_stages)


@inlined
def log_amount(amount, scale):  # type: ignore[no-untyped-def]
    """The log of an amount of work over a scale."""
    return math.log(max(amount, 1.0) / scale + 1e-4)


@kernel
def tier_of(seen, rule, facts, job, errs, log_jobs):  # type: ignore[no-untyped-def]
    """The job's tier: smallest first."""
    theta = rule.theta
    mean_ms = rule.mean_work_ms[0]
    cores = seen.now.num_executors[0]
    log_total = log_amount(facts.total_ms, mean_ms)
    age = math.log1p((seen.now.clock_ms[0] - seen.jobs.arrival_ms[job]) * cores / mean_ms)
    virtual_left_ms = max(0.0, rule.virtual_jobs.end_ms[job] - seen.now.clock_ms[0])
    value = theta[_NARROW] * math.log1p(facts.path_ms * cores / max(facts.left_ms, 1.0))
    value += (theta[_TOTAL] + theta[_CROWDED] * log_jobs) * log_total
    value += theta[_CORRECTION] * math.log(facts.factor)
    value += theta[_SURPRISE] * facts.surprise * facts.num_finished / (facts.num_finished + 10.0)
    value += theta[_STARTED] * facts.num_started / facts.num_tasks
    value += theta[_AGE] * age
    value += theta[_STAGES] * facts.stages_left / seen.jobs.num_stages[job]
    value += theta[_WIDTH] * math.log1p(facts.num_pending / cores)
    value += theta[_UNTRIED] * (1.0 if facts.num_finished == 0 else 0.0)
    value += theta[_FEW] / (1.0 + facts.num_finished)
    value += theta[_RUNNING] * seen.jobs.num_attached[job] / cores
    value += theta[_VIRTUAL] * math.log1p(virtual_left_ms * cores / mean_ms)
    return log_amount(facts.left_ms, mean_ms) + errs * value


@inlined
def _order_stages(seen, orders, rule, job):  # type: ignore[no-untyped-def]
    """Within a job, stages go by these features, then by index."""
    theta = rule.theta
    stages = seen.stages
    first = seen.jobs.stage_start[job]
    for stage in range(first, first + seen.jobs.num_stages[job]):
        if stages.frontier_rank[stage] < 0:
            continue
        value = theta[_STAGE_PATH] * math.log(1.0 + rule.virtual_stages.path_ms[stage])
        value += theta[_STAGE_TASK] * math.log(1.0 + stages.task_ms[stage])
        value += theta[_STAGE_TASKS] * math.log(
            1.0 + stages.num_tasks[stage] - stages.num_started[stage]
        )
        value += theta[_STAGE_WORK] * math.log(1.0 + stages.downstream_ms[stage])
        orders.stages.rank[stage] = -value


@inlined
def _num_probes(rule, facts, errs):  # type: ignore[no-untyped-def]
    """Tasks that the job starts before others, so that its size is known."""
    theta = rule.theta
    wanted = math.floor(2.0 ** (theta[_PROBE] + theta[_PROBE_ERRING] * errs - 1.0))
    return min(wanted, math.floor(facts.num_tasks * math.exp(theta[_PROBE_SHARE] - 3.0)))


@kernel
def begin_plan(seen, orders, rule):  # type: ignore[no-untyped-def]
    """Carry the virtual run on to the present. Returns how far estimates err, and the log of the number of jobs."""
    orders.wake_ms[0] = NOT_YET
    virtual = _virtual_of(rule)
    carry_on(seen, virtual)
    foretell_ends(seen, virtual)
    return erring(seen, rule), math.log(max(1, seen.now.num_active[0]))


@kernel
def order_job(seen, orders, rule, facts, job, errs, tier):  # type: ignore[no-untyped-def]
    """Write the job's order: this tier, unless its first tasks are tried before all others; and the order of its stages."""
    probes = _num_probes(rule, facts, errs)
    orders.jobs.limit[job] = UNLIMITED
    orders.jobs.tier[job] = tier
    if facts.num_started < probes:
        orders.jobs.tier[job] = PROBE_TIER
        orders.jobs.limit[job] = probes
        _wake_after_a_task(seen, orders, job)
    elif facts.num_finished < probes and facts.num_finished == 0:
        _wake_after_a_task(seen, orders, job)
    _order_stages(seen, orders, rule, job)


@kernel
def plan(seen, orders, rule):  # type: ignore[no-untyped-def]
    """Write the rule's order into `orders`; keeps the virtual run in `rule`."""
    errs, log_jobs = begin_plan(seen, orders, rule)
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        facts = job_facts(seen, rule, job)
        tier = tier_of(seen, rule, facts, job, errs, log_jobs)
        order_job(seen, orders, rule, facts, job, errs, tier)


@inlined
def _wake_after_a_task(seen, orders, job):  # type: ignore[no-untyped-def]
    """Plan again when the job's first tasks should have ended."""
    first = seen.jobs.stage_start[job]
    task_ms = 0.0
    for stage in range(first, first + seen.jobs.num_stages[job]):
        if seen.stages.num_bound[stage] > 0 or seen.stages.frontier_rank[stage] >= 0:
            task_ms = max(task_ms, seen.stages.task_ms[stage])
    wake_ms = seen.now.clock_ms[0] + np.int64(task_ms) + 1
    if orders.wake_ms[0] == NOT_YET or wake_ms < orders.wake_ms[0]:
        orders.wake_ms[0] = wake_ms


@inlined
def forget(rule):  # type: ignore[no-untyped-def]
    """Empty the memory before another run."""
    rule.virtual_now.num_jobs[0] = 0
    rule.virtual_now.num_members[0] = 0
    rule.virtual_now.clock_ms[0] = 0.0


@kernel
def play(state, future, tables, rule):  # type: ignore[no-untyped-def]
    """Run a whole simulation under the rule. Returns a Status."""
    forget(rule)
    status = start_cores(state, future, tables)
    while status == _NEEDS_DECISION:
        plan(
            state,
            Orders(state.job_orders, state.stage_orders, state.pools, state.now.wake_ms),
            rule,
        )
        status = follow_orders(state, future, tables)
    return status


@kernel
def play_many(states, futures, tables, thetas, rule, first, last, status):  # type: ignore[no-untyped-def]
    """Run simulators first..last-1 of many, each with its own row of `thetas`; fills `status`."""
    for row in range(first, last):
        own = OrderRule(
            thetas[row], rule.mean_work_ms, rule.virtual_now, rule.virtual_jobs, rule.virtual_stages
        )
        status[row] = play(select_cluster(states, row), select_future(futures, row), tables, own)
