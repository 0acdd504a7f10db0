"""Scores of stages and limits, a decision, whole runs."""

from __future__ import annotations

import numpy as np

from parcae.cluster.kernels.tables import is_schedulable
from parcae.cluster.state import ANY_CLASS, NO_STAGE
from parcae.kernels import inlined, kernel
from parcae.policies.decima.kernels.embeddings import embed, hidden
from parcae.policies.decima.layout import EMBEDDING, HIDDEN_1, HIDDEN_2, SLOPE, Transform
from parcae.policies.networks.kernels import add_product, copy_bias, dot, draw, largest, log_sum_exp, rectify, uniform
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import start, step

_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_D, _H1, _H2 = EMBEDDING, HIDDEN_1, HIDDEN_2
_SLOPE, _IMPOSSIBLE = np.float32(SLOPE), np.float32(-np.inf)
_Q, _W = int(Transform.Q), int(Transform.W)
_LIMIT_INPUT, _LIMIT_OUTPUTS, _LIMIT_STAGE, _LIMIT_NONE = 0, 1, 2, 3


@kernel
def _score(net, work, at):  # type: ignore[no-untyped-def]
    """The one linear output of a transform whose second layer starts at weights[at:], from work.layer_1 before its rectifier."""
    weights = net.weights
    rectify(work.layer_1, _H1, _SLOPE)
    copy_bias(weights, at + _H1 * _H2, _H2, work.layer_2)
    add_product(work.layer_1, _H1, weights, at, _H2, work.layer_2)
    rectify(work.layer_2, _H2, _SLOPE)
    at += (_H1 + 1) * _H2
    return dot(work.layer_2, _H2, weights, at) + weights[at + _H2]


@inlined
def held_executors(seen, net, stage):  # type: ignore[no-untyped-def]
    """Executors that limits are counted from: of the job (or, for limits of stages, of the stage), those asked about left out."""
    job, stages = seen.stages.job[stage], seen.stages
    if net.limits == _LIMIT_STAGE:
        held = stages.num_bound[stage] + stages.num_moving[stage] + stages.num_committed[stage]
        return held
    held = seen.jobs.num_supplied[job]
    if job == seen.now.source_job[0]:
        held -= seen.now.num_source[0]
    return max(0, held)


@kernel
def score_stages(seen, net, work):  # type: ignore[no-untyped-def]
    """Logits of the schedulable stages. Returns how many there are.

    What the first layer makes of the cluster is worked out once, of a job once for all of its stages.
    """
    count, top = 0, net.levels[net.levels.shape[0] - 1]
    if seen.now.num_schedulable[0] == 0:
        return 0
    weights, at = net.weights, net.starts[_Q]
    second = at + (3 * _D + 1) * _H1
    copy_bias(weights, at + 3 * _D * _H1, _H1, work.of_cluster)
    add_product(work.z, _D, weights, at + 2 * _D * _H1, _H1, work.of_cluster)
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if seen.jobs.num_schedulable[job] == 0:
            continue
        copy_bias(work.of_cluster, 0, _H1, work.of_job)
        add_product(work.y[work.now[1] + job], _D, weights, at + _D * _H1, _H1, work.of_job)
        for stage in range(seen.jobs.stage_start[job], seen.jobs.stage_start[job] + seen.jobs.num_stages[job]):
            if not is_schedulable(seen, stage) or held_executors(seen, net, stage) >= top:
                continue
            copy_bias(work.of_job, 0, _H1, work.layer_1)
            add_product(work.e[work.now[0] + stage], _D, weights, at, _H1, work.layer_1)
            work.logits[count], work.stage[count] = _score(net, work, second), stage
            count += 1
    return count


@kernel
def _score_limits(seen, net, work, stage):  # type: ignore[no-untyped-def]
    """Logits of the limits above what is held. Returns how many there are."""
    job, held, num_levels, count = seen.stages.job[stage], held_executors(seen, net, stage), net.levels.shape[0], 0
    e, y = work.e[work.now[0] + stage], work.y[work.now[1] + job]
    for o in range(_D):
        work.row[o] = y[o] if net.has_graph else e[o]
        work.row[_D + o] = work.z[o]
        work.row[2 * _D + o] = e[o]
    num_in = 3 * _D if net.limits == _LIMIT_STAGE else 2 * _D
    weights, first = net.weights, net.starts[_W]
    if net.limits == _LIMIT_INPUT or net.limits == _LIMIT_STAGE:
        copy_bias(weights, first + (num_in + 1) * _H1, _H1, work.of_job)
        add_product(work.row, num_in, weights, first, _H1, work.of_job)
    if net.limits == _LIMIT_OUTPUTS:
        at = hidden(net, work, net.starts[_W], work.row, num_in)
        copy_bias(net.weights, at + _H2 * num_levels, num_levels, work.limit_logits)
        add_product(work.layer_2, _H2, net.weights, at, num_levels, work.limit_logits)
    for column in range(num_levels):
        level = net.levels[column]
        if level <= held or (net.limits == _LIMIT_NONE and column < num_levels - 1):
            work.limit_logits[column] = _IMPOSSIBLE
            continue
        count += 1
        if net.limits == _LIMIT_NONE:
            work.limit_logits[column] = 0.0
        elif net.limits != _LIMIT_OUTPUTS:
            share = np.float32(level / net.levels[num_levels - 1])
            for o in range(_H1):
                work.layer_1[o] = work.of_job[o] + share * weights[first + num_in * _H1 + o]
            work.limit_logits[column] = _score(net, work, first + (num_in + 2) * _H1)
    return count


@kernel
def decide(seen, net, work):  # type: ignore[no-untyped-def]
    """The most probable decision: (stage, limit)."""
    embed(seen, net, work)
    count = score_stages(seen, net, work)
    if count == 0:
        return NO_STAGE, seen.now.num_source[0]
    stage = work.stage[largest(work.logits, count)]
    _score_limits(seen, net, work, stage)
    level = net.levels[largest(work.limit_logits, net.levels.shape[0])]
    return stage, min(level - held_executors(seen, net, stage), seen.now.num_source[0])


@kernel
def draw_decision(seen, net, work, luck_seed):  # type: ignore[no-untyped-def]
    """Draw a decision. Returns (stage, limit, log probability, whether there was a choice)."""
    embed(seen, net, work)
    count, turn = score_stages(seen, net, work), seen.now.num_decisions[0]
    if count == 0:
        return NO_STAGE, seen.now.num_source[0], 0.0, False
    position = draw(work.logits, count, uniform(luck_seed, 2 * turn))
    log_prob, stage = work.logits[position] - log_sum_exp(work.logits, count), work.stage[position]
    num_limits, num_levels = _score_limits(seen, net, work, stage), net.levels.shape[0]
    column = draw(work.limit_logits, num_levels, uniform(luck_seed, 2 * turn + 1))
    log_prob += work.limit_logits[column] - log_sum_exp(work.limit_logits, num_levels)
    work.answer[1], work.answer[2], work.answer[3] = position, column, held_executors(seen, net, stage)
    limit = min(net.levels[column] - work.answer[3], seen.now.num_source[0])
    return stage, limit, log_prob, count > 1 or num_limits > 1


@kernel
def forget(work):  # type: ignore[no-untyped-def]
    """The next decision is about another run."""
    for job in range(work.known.shape[0]):
        work.known[job, 0] = -1


@kernel
def play(state, future, tables, net, work):  # type: ignore[no-untyped-def]
    """Run a whole simulation, most probable decisions only. Returns a Status."""
    forget(work)
    status = start(state, future, tables)
    while status == _NEEDS_DECISION:
        stage, limit = decide(state, net, work)
        status = step(state, future, tables, stage, limit, ANY_CLASS, 0)
    return status


@kernel
def play_drawn(state, future, tables, net, work, luck_seed):  # type: ignore[no-untyped-def]
    """Run a whole simulation with drawn decisions, as the released code does in tests. Returns a Status."""
    forget(work)
    status = start(state, future, tables)
    while status == _NEEDS_DECISION:
        stage, limit, _, _ = draw_decision(state, net, work, luck_seed)
        status = step(state, future, tables, stage, limit, ANY_CLASS, 0)
    return status
