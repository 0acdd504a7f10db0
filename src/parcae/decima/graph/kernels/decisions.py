"""Compiled scores of stages, single decisions, and whole runs."""

from __future__ import annotations

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel
from parcae.base.compiled.products import add_product
from parcae.base.compiled.vectors import copy_numbers
from parcae.cluster.kernels.policies import begin_run, decide
from parcae.cluster.kernels.tables import is_schedulable, stages_of
from parcae.cluster.state import ANY_CLASS, NO_STAGE
from parcae.decima.graph.kernels.embeddings import embed
from parcae.decima.graph.kernels.features import (
    below_ms,
    critical_ms,
    held_executors,
    write_cluster,
    write_job,
    write_stage,
)
from parcae.decima.graph.kernels.heads import (
    count_waiting,
    hold_ms,
    score_classes,
    score_lengths,
    score_limits,
    score_rows,
    write_fit,
)
from parcae.decima.graph.kernels.tables import Decima, GraphNetwork
from parcae.decima.graph.layout import (
    EMBEDDING,
    FIRST_OF_JOB,
    FIRST_OF_STAGE,
    HIDDEN_1,
    Transform,
)
from parcae.decima.kernels.recording import draw_decision
from parcae.policies.networks.kernels import pick

_D = EMBEDDING
_H1 = HIDDEN_1
#: Added to the seed for the heads for classes and idle slots. With a separate seed for these heads,
#: the other heads draw the same numbers whether or not the network has them.
_OTHER_HEADS = np.uint64(2)


@kernel
def score_stages(view, net, work):  # type: ignore[no-untyped-def]
    """Write the logits of the stages that may be chosen to `work.logits`. Returns how many stages
    may be chosen.

    Their rows are written to `work.stage`.

    The cluster's part of the first layer is computed once, and each job's part once for all its
    stages.
    """
    count = 0
    work.now[3] = 0
    if view.now.num_schedulable[0] == 0:
        return 0
    if net.has_classes:
        count_waiting(view, work)
    weights = net.weights
    at = net.starts[Transform.Q]
    further = at + 3 * _D * _H1
    second = further + (net.num_direct + 1) * _H1
    copy_numbers(weights, second - _H1, _H1, work.cluster_layer)
    add_product(work.z, _D, weights, at + 2 * _D * _H1, _H1, work.cluster_layer)
    if net.has_job_features:
        write_cluster(view, net, work, work.row)
        add_product(work.row, FIRST_OF_JOB, weights, further, _H1, work.cluster_layer)
    for position in range(view.now.num_active[0]):
        job = view.active[position]
        if view.jobs.num_schedulable[job] == 0:
            continue
        copy_numbers(work.cluster_layer, 0, _H1, work.job_layer)
        add_product(work.y[work.now[1] + job], _D, weights, at + _D * _H1, _H1, work.job_layer)
        paths = (0.0, 0.0)
        if net.has_job_features:
            paths = _add_job(view, net, work, position, further)
        for stage in stages_of(view, job):
            held = held_executors(view, net, stage)
            if not is_schedulable(view, stage) or held >= net.levels[-1]:
                continue
            layer = work.layers_1[count]
            copy_numbers(work.job_layer, 0, _H1, layer)
            add_product(work.e[work.now[0] + stage], _D, weights, at, _H1, layer)
            if net.has_classes:
                write_fit(view, work, stage, work.direct[count])
                add_product(work.direct[count], net.num_direct, weights, further, _H1, layer)
            elif net.has_job_features:
                write_stage(view, net, stage, paths, work.row)
                copy_numbers(work.row, 0, net.num_direct, work.direct[count])
                _add_part(net, work, further, FIRST_OF_STAGE, net.num_direct, layer)
            work.stage[count] = stage
            work.place[count] = position
            count += 1
    work.now[3] = count
    logits = work.logits[:count]
    score_rows(weights, work.layers_1[:count], work.layers_2[:count], second, logits)
    return count


@inlined
def _add_part(net, work, at, first, last, layer):  # type: ignore[no-untyped-def]
    """Add what the features first .. last - 1 in `work.row` contribute to a first layer."""
    add_product(work.row[first:], last - first, net.weights, at + first * _H1, _H1, layer)


@inlined
def _add_job(view, net, work, position, further):  # type: ignore[no-untyped-def]
    """Add what the features of a job contribute to its stages' first layer.

    Returns the job's critical path, and the longest that begins with a schedulable stage, in ms.
    """
    job = view.active[position]
    held = held_executors(view, net, view.jobs.stage_start[job])
    write_job(view, net, work, position, held, work.row)
    _add_part(net, work, further, FIRST_OF_JOB, FIRST_OF_STAGE, work.job_layer)
    longest_ms = 0.0
    for stage in stages_of(view, job):
        if is_schedulable(view, stage):
            longest_ms = max(longest_ms, below_ms(view, stage))
    return critical_ms(view, job), longest_ms


@inlined
def _choose(view, net, work, is_drawn, seed):  # type: ignore[no-untyped-def]
    """Choose by the network: draw, or take what is most probable. The choice is noted in
    `work.chosen`. Returns what `draw_decision` does.
    """
    embed(view, net, work)
    count = score_stages(view, net, work)
    offered = view.now.num_source[0]
    if count == 0:
        return NO_STAGE, offered, ANY_CLASS, 0, 0.0, False
    turn = 2 * view.now.num_decisions[0]
    position, log_prob = pick(work.logits, count, is_drawn, seed, turn)
    stage = work.stage[position]
    num_limits = score_limits(view, net, work, stage)
    num_levels = net.levels.shape[0]
    column, more = pick(work.limit_logits, num_levels, is_drawn, seed, turn + 1)
    log_prob += more
    limit = min(net.levels[column] - held_executors(view, net, stage), offered)
    work.chosen[0] = position
    work.chosen[1] = column
    is_choice = count > 1 or num_limits > 1
    executor_class = ANY_CLASS
    idle_ms = 0
    others = seed + _OTHER_HEADS
    if net.has_classes:
        is_choice |= score_classes(view, net, work, stage, limit) > 1
        num_classes = view.classes.shape[0]
        executor_class, more = pick(work.class_logits, num_classes, is_drawn, others, turn)
        log_prob += more
        work.chosen[2] = executor_class
    if net.idle_lengths > 0:
        is_choice |= score_lengths(view, net, work, stage, limit) > 1
        num_lengths = net.idle_lengths + 1
        length, more = pick(work.idle_logits, num_lengths, is_drawn, others, turn + 1)
        log_prob += more
        work.chosen[3] = length
        idle_ms = hold_ms(view, net, stage, limit, length)
    return stage, limit, executor_class, idle_ms, log_prob, is_choice


@decide.of(Decima)
@kernel
def decide_by_network(view, decima):  # type: ignore[no-untyped-def]
    """Return the most probable decision."""
    return _choose(view, decima.net, decima.work, False, np.uint64(0))[:4]


@draw_decision.of(GraphNetwork)
@kernel
def draw_by_network(view, work, draw_seed, net):  # type: ignore[no-untyped-def]
    """Draw a decision, and note it in `work.chosen`."""
    return _choose(view, net, work, True, draw_seed)


@kernel
def clear_cache(work):  # type: ignore[no-untyped-def]
    """Drop the cached embeddings; needed before the first decision of another run."""
    work.cached_job[:] = 0.0


@begin_run.of(Decima)
@kernel
def _begin(state, decima):  # type: ignore[no-untyped-def]
    clear_cache(decima.work)
