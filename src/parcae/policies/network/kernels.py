"""The compiled network of the world of cores: plans as the rule does, then corrects the tiers."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.base.arrays import Float64Array
from parcae.base.compiled.kernels import inlined, kernel, sort_rows
from parcae.base.compiled.tables import doubles, integers
from parcae.cluster.kernels.policies import begin_run, plan, with_weights
from parcae.policies.networks.layout import glorot, offsets_of
from parcae.policies.rule.kernels import (
    PROBE_TIER,
    OrderRule,
    begin_plan,
    begin_rule,
    job_facts,
    log_amount,
    order_job,
    tier_of,
)

#: Kind of the network's checkpoints.
KIND = "order-network"
#: Increased whenever a feature changes its meaning; checkpoints of other versions are rejected.
FEATURE_VERSION = 1


class OrderFeature(IntEnum):
    """Columns of a job's features. The unit of work is the mean work of the workload's jobs."""

    LEFT = 0  # log of remaining work
    TOTAL = 1  # log of total work
    NARROW = 2  # log1p of the remaining critical path / (remaining work / cores)
    CORRECTION = 3  # log of the correction of its estimate
    # log of (actual / estimated time of finished tasks), scaled down while few tasks have finished
    SURPRISE = 4
    STARTED = 5  # share of its tasks that have started
    STAGES = 6  # share of its stages that are left
    AGE = 7  # log1p of its time in the system
    WIDTH = 8  # log1p of (tasks that it could start now / cores)
    UNTRIED = 9  # 1 while none of its tasks has finished
    FEW = 10  # 1 / (1 + finished tasks)
    RUNNING = 11  # share of the cores that it has
    VIRTUAL = 12  # log1p of the time to its end in the virtual run of fair sharing
    RANK = 13  # share of the jobs that the rule serves before it
    AHEAD = 14  # log1p of the remaining work of those jobs
    ABOVE = 15  # its tier by the rule minus the smallest tier, at most MOST_ABOVE
    IS_TRIED = 16  # 1 while the rule probes its first tasks
    ERRING = 17  # recent estimate error
    JOBS = 18  # log of the number of jobs in the system
    DEMAND = 19  # log1p of (tasks that all jobs could start now / cores)


NUM_ORDER_FEATURES = len(OrderFeature)
HIDDEN = 12
#: The network changes a tier by less than this, as if remaining work differed by a factor below e.
SCALE = 1.0
#: Below this estimate error (root mean square of a logarithm), the changes shrink in proportion.
FULL_ERROR = 0.4
#: Upper bound of the feature ABOVE.
MOST_ABOVE = 5.0

#: Weights by name: matrices are [in, out]. They lie in one flat array in this order.
SHAPES: dict[str, tuple[int, ...]] = {
    "job.weight": (NUM_ORDER_FEATURES, HIDDEN),
    "job.bias": (HIDDEN,),
    "mixed.own": (HIDDEN, HIDDEN),
    "mixed.context": (HIDDEN, HIDDEN),
    "mixed.bias": (HIDDEN,),
    "output.weight": (HIDDEN,),
}
OFFSETS = offsets_of(SHAPES)
NUM_ORDER_WEIGHTS = sum(int(np.prod(shape)) for shape in SHAPES.values())


class OrderWorkspace(NamedTuple):
    """Intermediate results of one plan. Row i belongs to the i-th job in the system."""

    features: Any = doubles("jobs", NUM_ORDER_FEATURES)
    hidden: Any = doubles("jobs", HIDDEN)
    tier: Any = doubles("jobs")  # the rule's
    left_ms: Any = doubles("jobs")  # remaining work
    by_tier: Any = integers("jobs")  # positions of the jobs, sorted by tier
    context: Any = doubles(HIDDEN)  # the mean of `hidden` over the jobs
    base: Any = doubles(HIDDEN)  # bias and context's part of the second layer, equal for all jobs


class OrderNetwork(NamedTuple):
    """What the network needs besides the observation: weights, rule and workspace."""

    weights: Any  # float64[NUM_ORDER_WEIGHTS]
    rule: OrderRule
    work: OrderWorkspace


def initial_weights(seed: int) -> Float64Array:
    """Return the weights that training starts from, float64[NUM_ORDER_WEIGHTS].

    Matrices are Glorot-uniform; biases and output weights are 0, so that the network is the rule.
    """
    drawn = glorot(np.random.default_rng(seed), SHAPES)
    return np.concatenate([drawn[name].ravel() for name in SHAPES]).astype(np.float64)


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
    virtual_left_ms = max(0.0, rule.virtual.jobs.end_ms[job] - clock_ms)
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


@plan.of(OrderNetwork)
@kernel
def plan_by_network(view, orders, network):  # type: ignore[no-untyped-def]
    """Write the rule's orders with corrected tiers. Jobs that are probed keep their tier.

    Takes O(jobs log jobs) time and allocates nothing.
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


@begin_run.of(OrderNetwork)
@kernel
def _begin(state, network):  # type: ignore[no-untyped-def]
    begin_rule(state, network.rule)


@with_weights.of(OrderNetwork)
@inlined
def _reweighted(weights, network):  # type: ignore[no-untyped-def]
    return OrderNetwork(weights, network.rule, network.work)
