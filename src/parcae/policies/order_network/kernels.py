"""The network of the world of cores, compiled: plans as the rule does, then corrects the tiers."""

from __future__ import annotations

import math

from parcae.cluster.kernels.tables import select_cluster
from parcae.cluster.orders import Orders
from parcae.kernels import inlined, kernel, sort_rows
from parcae.policies.order_network.layout import (
    FULL_ERROR,
    HIDDEN,
    MOST_ABOVE,
    NUM_ORDER_FEATURES,
    OFFSETS,
    SCALE,
    OrderFeature,
    OrderNetwork,
)
from parcae.policies.order_rule.kernels import (
    PROBE_TIER,
    begin_plan,
    forget,
    job_facts,
    log_amount,
    order_job,
    tier_of,
)
from parcae.simulation.future import Status
from parcae.simulation.kernels.cores_loop import follow_orders, start_cores
from parcae.simulation.kernels.firing import select_future

_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_F = {feature.name: int(feature) for feature in OrderFeature}
_LEFT = _F["LEFT"]
_TOTAL = _F["TOTAL"]
_NARROW = _F["NARROW"]
_CORRECTION = _F["CORRECTION"]
_SURPRISE = _F["SURPRISE"]
_STARTED = _F["STARTED"]
_STAGES = _F["STAGES"]
_AGE = _F["AGE"]
_WIDTH = _F["WIDTH"]
_UNTRIED = _F["UNTRIED"]
_FEW = _F["FEW"]
_RUNNING = _F["RUNNING"]
_VIRTUAL = _F["VIRTUAL"]
_RANK = _F["RANK"]
_AHEAD = _F["AHEAD"]
_ABOVE = _F["ABOVE"]
_IS_TRIED = _F["IS_TRIED"]
_ERRING = _F["ERRING"]
_JOBS = _F["JOBS"]
_DEMAND = _F["DEMAND"]
_JOB_WEIGHT = OFFSETS["job.weight"]
_JOB_BIAS = OFFSETS["job.bias"]
_OWN = OFFSETS["mixed.own"]
_CONTEXT = OFFSETS["mixed.context"]
_BIAS = OFFSETS["mixed.bias"]
_OUTPUT = OFFSETS["output.weight"]


@kernel
def _describe(seen, rule, facts, job, row):  # type: ignore[no-untyped-def]
    """Write what is known of the job alone into its row of features."""
    mean_ms = rule.mean_work_ms[0]
    cores = seen.now.num_executors[0]
    clock_ms = seen.now.clock_ms[0]
    age_ms = clock_ms - seen.jobs.arrival_ms[job]
    virtual_left_ms = max(0.0, rule.virtual_jobs.end_ms[job] - clock_ms)
    row[_LEFT] = log_amount(facts.left_ms, mean_ms)
    row[_TOTAL] = log_amount(facts.total_ms, mean_ms)
    row[_NARROW] = math.log1p(facts.path_ms * cores / max(facts.left_ms, 1.0))
    row[_CORRECTION] = math.log(facts.factor)
    row[_SURPRISE] = facts.surprise * facts.num_finished / (facts.num_finished + 10.0)
    row[_STARTED] = facts.num_started / facts.num_tasks
    row[_STAGES] = facts.stages_left / seen.jobs.num_stages[job]
    row[_AGE] = math.log1p(age_ms * cores / mean_ms)
    row[_WIDTH] = math.log1p(facts.num_pending / cores)
    row[_UNTRIED] = 1.0 if facts.num_finished == 0 else 0.0
    row[_FEW] = 1.0 / (1.0 + facts.num_finished)
    row[_RUNNING] = seen.jobs.num_attached[job] / cores
    row[_VIRTUAL] = math.log1p(virtual_left_ms * cores / mean_ms)


@kernel
def _compare(work, count, mean_ms, errs, log_jobs, demand):  # type: ignore[no-untyped-def]
    """Write what a job is among the others into the rows of features."""
    for position in range(count):
        work.by_tier[position] = position
    sort_rows(work.by_tier, work.tier, count)
    least = work.tier[work.by_tier[0]]
    ahead_ms = 0.0
    for place in range(count):
        position = work.by_tier[place]
        row = work.features[position]
        row[_RANK] = place / count
        row[_AHEAD] = math.log1p(ahead_ms / mean_ms)
        row[_ABOVE] = min(MOST_ABOVE, work.tier[position] - least)
        row[_ERRING] = errs
        row[_JOBS] = log_jobs
        row[_DEMAND] = math.log1p(demand)
        ahead_ms += work.left_ms[position]


@kernel
def _embed(weights, work, count):  # type: ignore[no-untyped-def]
    """The first layer of every job, and what their mean adds to the second."""
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
    """By how much the network moves the job's tier."""
    hidden = work.hidden[position]
    total = 0.0
    for unit in range(HIDDEN):
        value = work.base[unit]
        for other in range(HIDDEN):
            value += hidden[other] * weights[_OWN + other * HIDDEN + unit]
        total += math.tanh(value) * weights[_OUTPUT + unit]
    return SCALE * math.tanh(total)


@kernel
def plan(seen, orders, network):  # type: ignore[no-untyped-def]
    """Write the order into `orders`: the rule's, with corrected tiers. Jobs that are tried first stay first.

    Takes O(jobs log jobs) and allocates nothing.
    """
    rule = network.rule
    work = network.work
    count = seen.now.num_active[0]
    errs, log_jobs = begin_plan(seen, orders, rule)
    cores = seen.now.num_executors[0]
    demand = 0.0
    for position in range(count):
        job = seen.active[position]
        facts = job_facts(seen, rule, job)
        tier = tier_of(seen, rule, facts, job, errs, log_jobs)
        order_job(seen, orders, rule, facts, job, errs, tier)
        row = work.features[position]
        _describe(seen, rule, facts, job, row)
        row[_IS_TRIED] = 1.0 if orders.jobs.tier[job] == PROBE_TIER else 0.0
        work.tier[position] = tier
        work.left_ms[position] = facts.left_ms
        demand += facts.num_pending / cores
    if count == 0:
        return
    _compare(work, count, rule.mean_work_ms[0], errs, log_jobs, demand)
    _embed(network.weights, work, count)
    trust = min(1.0, errs / FULL_ERROR)
    for position in range(count):
        job = seen.active[position]
        if orders.jobs.tier[job] != PROBE_TIER:
            orders.jobs.tier[job] = work.tier[position] + trust * _shift(
                network.weights, work, position
            )


@kernel
def play(state, future, tables, network):  # type: ignore[no-untyped-def]
    """Run a whole simulation under the network. Returns a Status."""
    forget(network.rule)
    status = start_cores(state, future, tables)
    while status == _NEEDS_DECISION:
        orders = Orders(state.job_orders, state.stage_orders, state.pools, state.now.wake_ms)
        plan(state, orders, network)
        status = follow_orders(state, future, tables)
    return status


@kernel
def play_many(states, futures, tables, weights, network, first, last, status):  # type: ignore[no-untyped-def]
    """Run simulators first..last-1 of many, each with its own row of `weights`; fills `status`."""
    for row in range(first, last):
        own = OrderNetwork(weights[row], network.rule, network.work)
        status[row] = play(select_cluster(states, row), select_future(futures, row), tables, own)
