"""The compiled rule of the world of cores: a job's tier is a sum of features times parameters.

`plan` writes orders, `play` simulates a whole run under them. The network of the world of cores
(`parcae.policies.order_network`) builds on the same kernels.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel
from parcae.cluster.kernels.policies import begin_run, plan
from parcae.cluster.kernels.tables import active_jobs, correction, finished_tasks, stages_of
from parcae.cluster.kernels.virtual import advance_virtual_run, empty_virtual_run, predict_ends
from parcae.cluster.state import NOT_YET, UNLIMITED, VirtualRun


class OrderParameter(IntEnum):
    """Indices of the rule's parameters. Each comment names the feature that the parameter weighs.

    A job's tier is log(remaining work) + recent estimate error x sum of (parameter x feature).
    With all parameters 0, and PROBE far below 0, the rule is least remaining work first.
    """

    NARROW = 0  # log1p of the remaining critical path / (remaining work / cores)
    TOTAL = 1  # log of its total work
    CORRECTION = 2  # log of the correction of its estimate
    # log of (actual / estimated time of finished tasks), scaled down while few tasks have finished
    SURPRISE = 3
    STARTED = 4  # share of its tasks that have started
    AGE = 5  # log of its time in the system
    STAGES = 6  # share of its stages that are left
    WIDTH = 7  # log of the tasks that it could start now
    UNTRIED = 8  # 1 while none of its tasks has finished
    FEW = 9  # 1 / (1 + finished tasks)
    RUNNING = 10  # share of the cores that it has
    VIRTUAL = 11  # log of the time to its end in the virtual run of fair sharing
    CROWDED = 12  # log of its total work, times log of the number of jobs
    # The order of a job's stages:
    STAGE_PATH = 13  # log of the critical path from the stage to a leaf
    STAGE_TASK = 14  # log of the duration of its tasks
    STAGE_TASKS = 15  # log of the number of its tasks that have not started
    STAGE_WORK = 16  # log of the downstream work
    # Probing: a job's first tasks start before all other jobs, so that its size becomes known.
    PROBE = 17  # log2 of twice the number of probed tasks
    PROBE_ERRING = 18  # the same, times the recent estimate error
    PROBE_SHARE = 19  # log of the largest share of a job's tasks that is probed, plus 3
    # log of the factor on the squared error that is assumed before any task has finished
    PRIOR_ERROR = 20


NUM_ORDER_PARAMETERS = len(OrderParameter)


class OrderRule(NamedTuple):
    """What the rule needs besides the observation."""

    theta: Any  # float64[NUM_ORDER_PARAMETERS]
    mean_work_ms: Any  # float64[1], mean work of the workload's jobs: the unit of work
    virtual: VirtualRun  # of fair sharing, which the kernels keep between plans


#: Tier of jobs that are probed: before all others.
PROBE_TIER = -1e6
#: The recent estimate error is the mean over this many latest jobs, and a prior of a small error
#: that counts as two jobs.
_NUM_LATEST_JOBS = 64
_PRIOR_JOBS = 2.0
_PRIOR_VARIANCE = 0.02


class JobFacts(NamedTuple):
    """What the rule and the network use about one job. Counts are numbers of tasks."""

    left_ms: Any  # remaining work: tasks that have not started, and half of the running ones
    total_ms: Any  # estimated work of all tasks
    path_ms: Any  # estimated critical path that is left
    factor: Any  # correction of its estimate
    surprise: Any  # log(actual / estimated duration) of its finished tasks
    num_finished: Any
    num_started: Any
    num_tasks: Any
    num_pending: Any  # tasks that could start now
    stages_left: Any  # stages with unfinished tasks


@kernel
def job_facts(view, rule, job):  # type: ignore[no-untyped-def]
    """Return the JobFacts of a job, computed in one pass over its stages."""
    stages = view.stages
    factor = correction(view, job)
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
    for stage in stages_of(view, job):
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
            path_ms = max(path_ms, rule.virtual.stages.path_ms[stage])
        if stages.frontier_rank[stage] >= 0:
            num_pending += tasks - started
    surprise = math.log(max(took_ms, 1.0) / max(expected_ms, 1.0)) if num_finished > 0 else 0.0
    # A job that outlives its estimate keeps a part of the work done as remaining work.
    left_ms = max(left_ms * factor, view.now.least_share[0] * took_ms)
    return JobFacts(
        left_ms, total_ms * factor, path_ms * factor, factor, surprise,
        num_finished, num_started, num_tasks, num_pending, stages_left,
    )  # fmt: skip


@kernel
def recent_error(view, rule):  # type: ignore[no-untyped-def]
    """Return the recent estimate error.

    This is the root mean square of log(actual / estimated duration) over the latest jobs. A job
    with few finished tasks has a small weight.
    """
    weight = _PRIOR_JOBS
    squares = (
        _PRIOR_JOBS * _PRIOR_VARIANCE * math.exp(min(10.0, rule.theta[OrderParameter.PRIOR_ERROR]))
    )
    for job in range(max(0, view.now.num_jobs[0] - _NUM_LATEST_JOBS), view.now.num_jobs[0]):
        finished, took_ms, expected_ms = finished_tasks(view, job)
        if finished > 0:
            trust = finished / (finished + 10.0)
            surprise = math.log(max(took_ms, 1.0) / max(expected_ms, 1.0))
            squares += trust * surprise * surprise
            weight += trust
    return math.sqrt(squares / weight)


@inlined
def log_amount(amount, scale):  # type: ignore[no-untyped-def]
    """Return log(amount / scale), bounded below for small amounts."""
    return math.log(max(amount, 1.0) / scale + 1e-4)


@kernel
def tier_of(view, rule, facts, job, error, log_jobs):  # type: ignore[no-untyped-def]
    """Return the job's tier; the smallest is served first."""
    theta = rule.theta
    mean_ms = rule.mean_work_ms[0]
    cores = view.now.num_executors[0]
    log_total = log_amount(facts.total_ms, mean_ms)
    age = math.log1p((view.now.clock_ms[0] - view.jobs.arrival_ms[job]) * cores / mean_ms)
    virtual_left_ms = max(0.0, rule.virtual.jobs.end_ms[job] - view.now.clock_ms[0])
    value = theta[OrderParameter.NARROW] * math.log1p(
        facts.path_ms * cores / max(facts.left_ms, 1.0)
    )
    value += (theta[OrderParameter.TOTAL] + theta[OrderParameter.CROWDED] * log_jobs) * log_total
    value += theta[OrderParameter.CORRECTION] * math.log(facts.factor)
    value += (
        theta[OrderParameter.SURPRISE]
        * facts.surprise
        * facts.num_finished
        / (facts.num_finished + 10.0)
    )
    value += theta[OrderParameter.STARTED] * facts.num_started / facts.num_tasks
    value += theta[OrderParameter.AGE] * age
    value += theta[OrderParameter.STAGES] * facts.stages_left / view.jobs.num_stages[job]
    value += theta[OrderParameter.WIDTH] * math.log1p(facts.num_pending / cores)
    value += theta[OrderParameter.UNTRIED] * (1.0 if facts.num_finished == 0 else 0.0)
    value += theta[OrderParameter.FEW] / (1.0 + facts.num_finished)
    value += theta[OrderParameter.RUNNING] * view.jobs.num_attached[job] / cores
    value += theta[OrderParameter.VIRTUAL] * math.log1p(virtual_left_ms * cores / mean_ms)
    return log_amount(facts.left_ms, mean_ms) + error * value


@inlined
def rank_stages(view, orders, rule, job):  # type: ignore[no-untyped-def]
    """Write the ranks of the job's runnable stages: by features, largest value first."""
    theta = rule.theta
    stages = view.stages
    for stage in stages_of(view, job):
        if stages.frontier_rank[stage] < 0:
            continue
        value = theta[OrderParameter.STAGE_PATH] * math.log(
            1.0 + rule.virtual.stages.path_ms[stage]
        )
        value += theta[OrderParameter.STAGE_TASK] * math.log(1.0 + stages.task_ms[stage])
        value += theta[OrderParameter.STAGE_TASKS] * math.log(
            1.0 + stages.num_tasks[stage] - stages.num_started[stage]
        )
        value += theta[OrderParameter.STAGE_WORK] * math.log(1.0 + stages.downstream_ms[stage])
        orders.stages.rank[stage] = -value


@inlined
def _num_probes(rule, facts, error):  # type: ignore[no-untyped-def]
    """Number of tasks of the job that start before other jobs, so that its size becomes known."""
    theta = rule.theta
    wanted = math.floor(
        2.0 ** (theta[OrderParameter.PROBE] + theta[OrderParameter.PROBE_ERRING] * error - 1.0)
    )
    return min(
        wanted, math.floor(facts.num_tasks * math.exp(theta[OrderParameter.PROBE_SHARE] - 3.0))
    )


@kernel
def begin_plan(view, orders, rule):  # type: ignore[no-untyped-def]
    """Advance the virtual run to the present, and compute what all jobs of a plan share. Returns
    (recent estimate error, log of the number of jobs in the system).
    """
    orders.wake_ms[0] = NOT_YET
    advance_virtual_run(view, rule.virtual)
    predict_ends(view, rule.virtual)
    return recent_error(view, rule), math.log(max(1, view.now.num_active[0]))


@kernel
def order_job(view, orders, rule, facts, job, error, tier):  # type: ignore[no-untyped-def]
    """Write the order of a job and its stages. A job that is probed gets PROBE_TIER and a limit."""
    probes = _num_probes(rule, facts, error)
    orders.jobs.limit[job] = UNLIMITED
    orders.jobs.tier[job] = tier
    if facts.num_started < probes:
        orders.jobs.tier[job] = PROBE_TIER
        orders.jobs.limit[job] = probes
        _wake_after_a_task(view, orders, job)
    # All probes run, but none has finished: plan again when the first should have finished.
    elif facts.num_finished < probes and facts.num_finished == 0:
        _wake_after_a_task(view, orders, job)
    rank_stages(view, orders, rule, job)


@plan.of(OrderRule)
@kernel
def plan_by_rule(view, orders, rule):  # type: ignore[no-untyped-def]
    """Write the rule's orders."""
    error, log_jobs = begin_plan(view, orders, rule)
    for job in active_jobs(view):
        facts = job_facts(view, rule, job)
        tier = tier_of(view, rule, facts, job, error, log_jobs)
        order_job(view, orders, rule, facts, job, error, tier)


@inlined
def _wake_after_a_task(view, orders, job):  # type: ignore[no-untyped-def]
    """Ask for the next plan at the time at which the job's first tasks should have finished."""
    task_ms = 0.0
    for stage in stages_of(view, job):
        if view.stages.num_bound[stage] > 0 or view.stages.frontier_rank[stage] >= 0:
            task_ms = max(task_ms, view.stages.task_ms[stage])
    wake_ms = view.now.clock_ms[0] + np.int64(task_ms) + 1
    if orders.wake_ms[0] == NOT_YET or wake_ms < orders.wake_ms[0]:
        orders.wake_ms[0] = wake_ms


@begin_run.of(OrderRule)
@kernel
def begin_rule(state, rule):  # type: ignore[no-untyped-def]
    """Empty the rule's virtual run."""
    empty_virtual_run(rule.virtual)
