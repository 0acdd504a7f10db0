"""The compiled network of the world of cores: plans as the rule does, then corrects the tiers."""

from __future__ import annotations

import math

from parcae.kernels import inlined, kernel, sort_rows
from parcae.policies.order_network.layout import (
    FULL_ERROR,
    HIDDEN,
    MOST_ABOVE,
    NUM_ORDER_FEATURES,
    OFFSETS,
    SCALE,
    OrderFeature,
)
from parcae.policies.order_rule.kernels import (
    PROBE_TIER,
    begin_plan,
    job_facts,
    log_amount,
    order_job,
    tier_of,
)

_JOB_WEIGHT = OFFSETS["job.weight"]
_JOB_BIAS = OFFSETS["job.bias"]
_OWN = OFFSETS["mixed.own"]
_CONTEXT = OFFSETS["mixed.context"]
_BIAS = OFFSETS["mixed.bias"]
_OUTPUT = OFFSETS["output.weight"]


@kernel
def _describe(view, rule, facts, job, row):  # type: ignore[no-untyped-def]
    """Write the features that depend on the job alone into its row."""
    mean_ms = rule.mean_work_ms[0]
    cores = view.now.num_executors[0]
    clock_ms = view.now.clock_ms[0]
    age_ms = clock_ms - view.jobs.arrival_ms[job]
    virtual_left_ms = max(0.0, rule.virtual_jobs.end_ms[job] - clock_ms)
    row[OrderFeature.LEFT] = log_amount(facts.left_ms, mean_ms)
    row[OrderFeature.TOTAL] = log_amount(facts.total_ms, mean_ms)
    row[OrderFeature.NARROW] = math.log1p(facts.path_ms * cores / max(facts.left_ms, 1.0))
    row[OrderFeature.CORRECTION] = math.log(facts.factor)
    row[OrderFeature.SURPRISE] = facts.surprise * facts.num_finished / (facts.num_finished + 10.0)
    row[OrderFeature.STARTED] = facts.num_started / facts.num_tasks
    row[OrderFeature.STAGES] = facts.stages_left / view.jobs.num_stages[job]
    row[OrderFeature.AGE] = math.log1p(age_ms * cores / mean_ms)
    row[OrderFeature.WIDTH] = math.log1p(facts.num_pending / cores)
    row[OrderFeature.UNTRIED] = 1.0 if facts.num_finished == 0 else 0.0
    row[OrderFeature.FEW] = 1.0 / (1.0 + facts.num_finished)
    row[OrderFeature.RUNNING] = view.jobs.num_attached[job] / cores
    row[OrderFeature.VIRTUAL] = math.log1p(virtual_left_ms * cores / mean_ms)


@kernel
def _describe_ranks(work, count, mean_ms, error, log_jobs, demand):  # type: ignore[no-untyped-def]
    """Write the features that compare a job with the others, and those that all jobs share."""
    for position in range(count):
        work.by_tier[position] = position
    sort_rows(work.by_tier, work.tier, count)
    least = work.tier[work.by_tier[0]]
    ahead_ms = 0.0
    for place in range(count):
        position = work.by_tier[place]
        row = work.features[position]
        row[OrderFeature.RANK] = place / count
        row[OrderFeature.AHEAD] = math.log1p(ahead_ms / mean_ms)
        row[OrderFeature.ABOVE] = min(MOST_ABOVE, work.tier[position] - least)
        row[OrderFeature.ERRING] = error
        row[OrderFeature.JOBS] = log_jobs
        row[OrderFeature.DEMAND] = math.log1p(demand)
        ahead_ms += work.left_ms[position]


@kernel
def _embed(weights, work, count):  # type: ignore[no-untyped-def]
    """Compute the first layer of every job, and the part of the second layer that jobs share."""
    for unit in range(HIDDEN):
        work.context[unit] = 0.0
    for position in range(count):
        row = work.features[position]
        hidden = work.hidden[position]
        for unit in range(HIDDEN):
            hidden[unit] = weights[_JOB_BIAS + unit]
        for feature in range(NUM_ORDER_FEATURES):
            first = _JOB_WEIGHT + feature * HIDDEN
            for unit in range(HIDDEN):
                hidden[unit] += row[feature] * weights[first + unit]
        for unit in range(HIDDEN):
            hidden[unit] = math.tanh(hidden[unit])
            work.context[unit] += hidden[unit] / count
    for unit in range(HIDDEN):
        work.base[unit] = weights[_BIAS + unit]
        for other in range(HIDDEN):
            work.base[unit] += work.context[other] * weights[_CONTEXT + other * HIDDEN + unit]


@inlined
def _shift(weights, work, position):  # type: ignore[no-untyped-def]
    """The network's correction of the job's tier, before it is scaled by the estimate error."""
    hidden = work.hidden[position]
    total = 0.0
    for unit in range(HIDDEN):
        value = work.base[unit]
        for other in range(HIDDEN):
            value += hidden[other] * weights[_OWN + other * HIDDEN + unit]
        total += math.tanh(value) * weights[_OUTPUT + unit]
    return SCALE * math.tanh(total)


@kernel
def plan(view, orders, network):  # type: ignore[no-untyped-def]
    """Write the rule's orders with corrected tiers. Jobs that are probed keep their tier.

    Takes O(jobs log jobs) time and allocates nothing.

    Args:
        view: the observation; read only.
        orders: Orders; written for all jobs in the system.
        network: OrderNetwork; its workspace and the rule's virtual run are written.
    """
    rule = network.rule
    work = network.work
    count = view.now.num_active[0]
    error, log_jobs = begin_plan(view, orders, rule)
    cores = view.now.num_executors[0]
    demand = 0.0
    for position in range(count):
        job = view.active[position]
        facts = job_facts(view, rule, job)
        tier = tier_of(view, rule, facts, job, error, log_jobs)
        order_job(view, orders, rule, facts, job, error, tier)
        row = work.features[position]
        _describe(view, rule, facts, job, row)
        row[OrderFeature.IS_TRIED] = 1.0 if orders.jobs.tier[job] == PROBE_TIER else 0.0
        work.tier[position] = tier
        work.left_ms[position] = facts.left_ms
        demand += facts.num_pending / cores
    if count == 0:
        return
    _describe_ranks(work, count, rule.mean_work_ms[0], error, log_jobs, demand)
    _embed(network.weights, work, count)
    trust = min(1.0, error / FULL_ERROR)
    for position in range(count):
        job = view.active[position]
        if orders.jobs.tier[job] != PROBE_TIER:
            orders.jobs.tier[job] = work.tier[position] + trust * _shift(
                network.weights, work, position
            )
