"""Scores of stages and limits, a decision, whole runs."""

from __future__ import annotations

import numpy as np

from parcae.cluster.kernels.tables import is_schedulable
from parcae.cluster.state import ANY_CLASS, NO_STAGE
from parcae.kernels import inlined, kernel
from parcae.policies.decima.kernels.embeddings import embed, hidden
from parcae.policies.decima.kernels.heads import (
    count_waiting,
    hold_ms,
    score,
    score_classes,
    score_lengths,
    write_fit,
)
from parcae.policies.decima.layout import EMBEDDING, HIDDEN_1, HIDDEN_2, Fit, Transform
from parcae.policies.networks.kernels import (
    add_product,
    copy_bias,
    draw,
    largest,
    log_sum_exp,
    uniform,
)
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import start, step

_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_D = EMBEDDING
_H1 = HIDDEN_1
_H2 = HIDDEN_2
_IMPOSSIBLE = np.float32(-np.inf)
_Q = int(Transform.Q)
_W = int(Transform.W)
_NUM_FITS = len(Fit)
#: The heads for classes and idle slots draw from luck of their own, so that others draw the same with or without them.
_OTHER_HEADS = np.uint64(2)
_LIMIT_INPUT = 0
_LIMIT_OUTPUTS = 1
_LIMIT_STAGE = 2
_LIMIT_NONE = 3


@inlined
def held_executors(seen, net, stage):  # type: ignore[no-untyped-def]
    """Executors that limits are counted from: of the job (or, for limits of stages, of the stage), those asked about left out."""
    job = seen.stages.job[stage]
    stages = seen.stages
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
    count = 0
    top = net.levels[net.levels.shape[0] - 1]
    if seen.now.num_schedulable[0] == 0:
        return 0
    if net.has_classes:
        count_waiting(seen, work)
    weights = net.weights
    at = net.starts[_Q]
    num_fits = _NUM_FITS if net.has_classes else 0
    second = at + (3 * _D + num_fits + 1) * _H1
    copy_bias(weights, second - _H1, _H1, work.of_cluster)
    add_product(work.z, _D, weights, at + 2 * _D * _H1, _H1, work.of_cluster)
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if seen.jobs.num_schedulable[job] == 0:
            continue
        copy_bias(work.of_cluster, 0, _H1, work.of_job)
        add_product(work.y[work.now[1] + job], _D, weights, at + _D * _H1, _H1, work.of_job)
        for stage in range(
            seen.jobs.stage_start[job], seen.jobs.stage_start[job] + seen.jobs.num_stages[job]
        ):
            if not is_schedulable(seen, stage) or held_executors(seen, net, stage) >= top:
                continue
            copy_bias(work.of_job, 0, _H1, work.layer_1)
            add_product(work.e[work.now[0] + stage], _D, weights, at, _H1, work.layer_1)
            if net.has_classes:
                write_fit(seen, work, stage, work.row, 0)
                add_product(work.row, num_fits, weights, at + 3 * _D * _H1, _H1, work.layer_1)
            work.logits[count] = score(net, work, second)
            work.stage[count] = stage
            count += 1
    return count


@kernel
def _score_limits(seen, net, work, stage):  # type: ignore[no-untyped-def]
    """Logits of the limits above what is held. Returns how many there are."""
    job = seen.stages.job[stage]
    held = held_executors(seen, net, stage)
    num_levels = net.levels.shape[0]
    count = 0
    e = work.e[work.now[0] + stage]
    y = work.y[work.now[1] + job]
    for o in range(_D):
        work.row[o] = y[o] if net.has_graph else e[o]
        work.row[_D + o] = work.z[o]
        work.row[2 * _D + o] = e[o]
    num_in = 3 * _D if net.limits == _LIMIT_STAGE else 2 * _D
    weights = net.weights
    first = net.starts[_W]
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
            work.limit_logits[column] = score(net, work, first + (num_in + 2) * _H1)
    return count


@kernel
def decide(seen, net, work):  # type: ignore[no-untyped-def]
    """The most probable decision: (stage, limit, executor_class, hold_ms)."""
    embed(seen, net, work)
    count = score_stages(seen, net, work)
    if count == 0:
        return NO_STAGE, seen.now.num_source[0], ANY_CLASS, 0
    stage = work.stage[largest(work.logits, count)]
    _score_limits(seen, net, work, stage)
    level = net.levels[largest(work.limit_logits, net.levels.shape[0])]
    limit = min(level - held_executors(seen, net, stage), seen.now.num_source[0])
    executor_class = ANY_CLASS
    idle_ms = 0
    if net.has_classes:
        score_classes(seen, net, work, stage, limit)
        executor_class = largest(work.class_logits, seen.classes.shape[0])
    if net.idle_lengths > 0:
        score_lengths(seen, net, work, stage, limit)
        idle_ms = hold_ms(seen, net, stage, limit, largest(work.idle_logits, net.idle_lengths + 1))
    return stage, limit, executor_class, idle_ms


@kernel
def _draw_class(seen, net, work, stage, limit, luck):  # type: ignore[no-untyped-def]
    """Returns (class, log probability, whether there was a choice); notes the class."""
    if not net.has_classes:
        return ANY_CLASS, 0.0, False
    count = score_classes(seen, net, work, stage, limit)
    num_classes = seen.classes.shape[0]
    drawn = draw(work.class_logits, num_classes, luck)
    work.answer[3] = drawn
    return drawn, work.class_logits[drawn] - log_sum_exp(work.class_logits, num_classes), count > 1


@kernel
def _draw_length(seen, net, work, stage, limit, luck):  # type: ignore[no-untyped-def]
    """Returns (hold_ms, log probability, whether there was a choice); notes the length."""
    if net.idle_lengths == 0:
        return 0, 0.0, False
    count = score_lengths(seen, net, work, stage, limit)
    num_lengths = net.idle_lengths + 1
    drawn = draw(work.idle_logits, num_lengths, luck)
    work.answer[4] = drawn
    log_prob = work.idle_logits[drawn] - log_sum_exp(work.idle_logits, num_lengths)
    return hold_ms(seen, net, stage, limit, drawn), log_prob, count > 1


@kernel
def draw_decision(seen, net, work, luck_seed):  # type: ignore[no-untyped-def]
    """Draw a decision. Returns (stage, limit, executor_class, hold_ms, log probability, whether there was a choice)."""
    embed(seen, net, work)
    count = score_stages(seen, net, work)
    turn = seen.now.num_decisions[0]
    if count == 0:
        return NO_STAGE, seen.now.num_source[0], ANY_CLASS, 0, 0.0, False
    position = draw(work.logits, count, uniform(luck_seed, 2 * turn))
    log_prob = work.logits[position] - log_sum_exp(work.logits, count)
    stage = work.stage[position]
    num_limits = _score_limits(seen, net, work, stage)
    num_levels = net.levels.shape[0]
    column = draw(work.limit_logits, num_levels, uniform(luck_seed, 2 * turn + 1))
    log_prob += work.limit_logits[column] - log_sum_exp(work.limit_logits, num_levels)
    work.answer[0] = position
    work.answer[1] = column
    work.answer[2] = held_executors(seen, net, stage)
    limit = min(net.levels[column] - work.answer[2], seen.now.num_source[0])
    others = luck_seed + _OTHER_HEADS
    executor_class, class_log, can_class = _draw_class(
        seen, net, work, stage, limit, uniform(others, 2 * turn)
    )
    idle_ms, idle_log, can_idle = _draw_length(
        seen, net, work, stage, limit, uniform(others, 2 * turn + 1)
    )
    is_choice = count > 1 or num_limits > 1 or can_class or can_idle
    return stage, limit, executor_class, idle_ms, log_prob + class_log + idle_log, is_choice


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
        stage, limit, executor_class, idle_ms = decide(state, net, work)
        status = step(state, future, tables, stage, limit, executor_class, idle_ms)
    return status


@kernel
def play_drawn(state, future, tables, net, work, luck_seed):  # type: ignore[no-untyped-def]
    """Run a whole simulation with drawn decisions, as the released code does in tests. Returns a Status."""
    forget(work)
    status = start(state, future, tables)
    while status == _NEEDS_DECISION:
        stage, limit, executor_class, idle_ms, _, _ = draw_decision(state, net, work, luck_seed)
        status = step(state, future, tables, stage, limit, executor_class, idle_ms)
    return status
