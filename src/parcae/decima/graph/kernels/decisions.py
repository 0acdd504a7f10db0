"""Compiled scores of stages and limits, single decisions, and whole runs."""

from __future__ import annotations

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel
from parcae.base.compiled.products import add_product
from parcae.base.compiled.vectors import copy_numbers
from parcae.cluster.kernels.policies import begin_run, decide
from parcae.cluster.kernels.tables import is_schedulable
from parcae.cluster.state import ANY_CLASS, NO_STAGE
from parcae.decima.graph.kernels.embeddings import embed
from parcae.decima.graph.kernels.features import (
    below_ms,
    critical_ms,
    is_distinct,
    num_on_stage,
    write_cluster,
    write_job,
    write_limit,
    write_stage,
)
from parcae.decima.graph.kernels.heads import (
    count_waiting,
    hold_ms,
    score_classes,
    score_lengths,
    score_rows,
    write_fit,
)
from parcae.decima.graph.kernels.tables import Decima, GraphNetwork
from parcae.decima.graph.kernels.transforms import hidden
from parcae.decima.graph.layout import (
    EMBEDDING,
    FIRST_OF_JOB,
    FIRST_OF_STAGE,
    HIDDEN_1,
    HIDDEN_2,
    LIMIT_INPUT,
    LIMIT_NONE,
    LIMIT_OUTPUTS,
    LIMIT_STAGE,
    Direct,
    Fit,
    LimitFeature,
    Transform,
)
from parcae.decima.kernels.recording import draw_decision
from parcae.policies.networks.kernels import draw, largest, uniform

_D = EMBEDDING
_H1 = HIDDEN_1
_H2 = HIDDEN_2
_IMPOSSIBLE = np.float32(-np.inf)
_NUM_FITS = len(Fit)
_NUM_DIRECT = len(Direct)
_NUM_LIMIT_FEATURES = len(LimitFeature)
#: Added to the seed for the heads for classes and idle slots. With a separate seed for these heads,
#: the other heads draw the same numbers whether or not the network has them.
_OTHER_HEADS = np.uint64(2)


@inlined
def held_executors(view, net, stage):  # type: ignore[no-untyped-def]
    """Return the number of executors that limits are counted from.

    These are the job's executors, or the stage's if limits are per stage. The offered executors do
    not count.
    """
    job = view.stages.job[stage]
    if net.limits == LIMIT_STAGE:
        return num_on_stage(view, stage)
    held = view.jobs.num_supplied[job]
    if job == view.now.source_job[0]:
        held -= view.now.num_source[0]
    return max(0, held)


@kernel
def score_stages(view, net, work):  # type: ignore[no-untyped-def]
    """Write the logits of the stages that may be chosen to `work.logits`. Returns how many stages
    may be chosen.

    Their rows are written to `work.stage`.

    The cluster's part of the first layer is computed once, and each job's part once for all its
    stages.
    """
    count = 0
    top = net.levels[net.levels.shape[0] - 1]
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
        for stage in range(
            view.jobs.stage_start[job], view.jobs.stage_start[job] + view.jobs.num_stages[job]
        ):
            if not is_schedulable(view, stage) or held_executors(view, net, stage) >= top:
                continue
            layer = work.layers_1[count]
            copy_numbers(work.job_layer, 0, _H1, layer)
            add_product(work.e[work.now[0] + stage], _D, weights, at, _H1, layer)
            if net.has_classes:
                write_fit(view, work, stage, work.direct[count], 0)
                add_product(work.direct[count], _NUM_FITS, weights, further, _H1, layer)
            elif net.has_job_features:
                _add_stage(view, net, work, (stage, count), paths, further)
            work.stage[count] = stage
            work.place[count] = position
            count += 1
    work.now[3] = count
    logits = work.logits[:count]
    score_rows(weights, work.layers_1[:count], work.layers_2[:count], second, logits)
    return count


@inlined
def _add_job(view, net, work, position, further):  # type: ignore[no-untyped-def]
    """Add what the features of a job contribute to its stages' first layer.

    Returns the job's critical path, and the longest that begins with a schedulable stage, in ms.
    """
    job = view.active[position]
    held = held_executors(view, net, view.jobs.stage_start[job])
    write_job(view, net, work, position, held, work.row)
    add_product(
        work.row[FIRST_OF_JOB:],
        FIRST_OF_STAGE - FIRST_OF_JOB,
        net.weights,
        further + FIRST_OF_JOB * _H1,
        _H1,
        work.job_layer,
    )
    longest_ms = 0.0
    first = view.jobs.stage_start[job]
    for stage in range(first, first + view.jobs.num_stages[job]):
        if is_schedulable(view, stage):
            longest_ms = max(longest_ms, below_ms(view, stage))
    return critical_ms(view, job), longest_ms


@inlined
def _add_stage(view, net, work, option, paths, further):  # type: ignore[no-untyped-def]
    """Add what the features of a stage contribute to its first layer.

    `option` is (row of the stage, its position among the stages that may be chosen).
    """
    stage, count = option
    write_stage(view, net, stage, paths, work.row)
    for feature in range(_NUM_DIRECT):
        work.direct[count, feature] = work.row[feature]
    add_product(
        work.row[FIRST_OF_STAGE:],
        _NUM_DIRECT - FIRST_OF_STAGE,
        net.weights,
        further + FIRST_OF_STAGE * _H1,
        _H1,
        work.layers_1[count],
    )


@kernel
def _score_known_limits(view, net, work, stage):  # type: ignore[no-untyped-def]
    """Write the logits and features of the limits in the feature set `jobs`. Returns how many
    limits are possible.

    Limits that give away the same executors as a smaller one get -inf.
    """
    option = 0
    while work.stage[option] != stage:
        option += 1
    held = held_executors(view, net, stage)
    weights = net.weights
    at = net.starts[Transform.W]
    of_limits = at + (2 * _D + _NUM_DIRECT) * _H1
    second = of_limits + (_NUM_LIMIT_FEATURES + 1) * _H1
    copy_numbers(weights, second - _H1, _H1, work.job_layer)
    y = work.y[work.now[1] + view.stages.job[stage]]
    add_product(y, _D, weights, at, _H1, work.job_layer)
    add_product(work.z, _D, weights, at + _D * _H1, _H1, work.job_layer)
    add_product(work.direct[option], _NUM_DIRECT, weights, at + 2 * _D * _H1, _H1, work.job_layer)
    count = 0
    first = 0
    for column in range(net.levels.shape[0]):
        work.limit_logits[column] = _IMPOSSIBLE
        if not is_distinct(view, net, held, column):
            continue
        if count == 0:
            first = column
        write_limit(view, net, stage, held, column, work.limit_x[column])
        layer = work.layers_1[count]
        copy_numbers(work.job_layer, 0, _H1, layer)
        add_product(work.limit_x[column], _NUM_LIMIT_FEATURES, weights, of_limits, _H1, layer)
        count += 1
    logits = work.limit_logits[first : first + count]
    score_rows(weights, work.layers_1[:count], work.layers_2[:count], second, logits)
    return count


@kernel
def score_limits(view, net, work, stage):  # type: ignore[no-untyped-def]
    """Write the logits of the limits to `work.limit_logits`; limits up to what is held get -inf.
    Returns how many limits are possible.
    """
    if net.has_job_features:
        return _score_known_limits(view, net, work, stage)
    job = view.stages.job[stage]
    held = held_executors(view, net, stage)
    num_levels = net.levels.shape[0]
    e = work.e[work.now[0] + stage]
    y = work.y[work.now[1] + job]
    for o in range(_D):
        work.row[o] = y[o] if net.has_graph else e[o]
        work.row[_D + o] = work.z[o]
        work.row[2 * _D + o] = e[o]
    num_in = 3 * _D if net.limits == LIMIT_STAGE else 2 * _D
    weights = net.weights
    first = net.starts[Transform.W]
    if net.limits == LIMIT_INPUT or net.limits == LIMIT_STAGE:
        copy_numbers(weights, first + (num_in + 1) * _H1, _H1, work.job_layer)
        add_product(work.row, num_in, weights, first, _H1, work.job_layer)
    if net.limits == LIMIT_OUTPUTS:
        at = hidden(weights, first, work.layer_1, work.layer_2, work.row, num_in)
        copy_numbers(net.weights, at + _H2 * num_levels, num_levels, work.limit_logits)
        add_product(work.layer_2, _H2, net.weights, at, num_levels, work.limit_logits)
    count = 0
    for column in range(num_levels):
        level = net.levels[column]
        if level <= held or (net.limits == LIMIT_NONE and column < num_levels - 1):
            work.limit_logits[column] = _IMPOSSIBLE
            continue
        if net.limits == LIMIT_NONE:
            work.limit_logits[column] = 0.0
        elif net.limits != LIMIT_OUTPUTS:
            share = np.float32(level / net.levels[num_levels - 1])
            for o in range(_H1):
                work.layers_1[count, o] = (
                    work.job_layer[o] + share * weights[first + num_in * _H1 + o]
                )
        count += 1
    if net.limits == LIMIT_INPUT or net.limits == LIMIT_STAGE:
        # Limits rise, so that the possible ones are the last.
        logits = work.limit_logits[num_levels - count :]
        at = first + (num_in + 2) * _H1
        score_rows(weights, work.layers_1[:count], work.layers_2[:count], at, logits)
    return count


@decide.of(Decima)
@kernel
def decide_by_network(view, decima):  # type: ignore[no-untyped-def]
    """Return the most probable decision."""
    net, work = decima
    embed(view, net, work)
    count = score_stages(view, net, work)
    if count == 0:
        return NO_STAGE, view.now.num_source[0], ANY_CLASS, 0
    stage = work.stage[largest(work.logits, count)]
    score_limits(view, net, work, stage)
    level = net.levels[largest(work.limit_logits, net.levels.shape[0])]
    limit = min(level - held_executors(view, net, stage), view.now.num_source[0])
    executor_class = ANY_CLASS
    idle_ms = 0
    if net.has_classes:
        score_classes(view, net, work, stage, limit)
        executor_class = largest(work.class_logits, view.classes.shape[0])
    if net.idle_lengths > 0:
        score_lengths(view, net, work, stage, limit)
        idle_ms = hold_ms(view, net, stage, limit, largest(work.idle_logits, net.idle_lengths + 1))
    return stage, limit, executor_class, idle_ms


@inlined
def _draw_class(view, net, work, stage, limit, uniform_draw):  # type: ignore[no-untyped-def]
    """Draw an executor class and note it in `work.chosen`.

    Returns (class, log probability, whether there was a choice).
    """
    if not net.has_classes:
        return ANY_CLASS, 0.0, False
    count = score_classes(view, net, work, stage, limit)
    num_classes = view.classes.shape[0]
    drawn, log_prob = draw(work.class_logits, num_classes, uniform_draw)
    work.chosen[3] = drawn
    return drawn, log_prob, count > 1


@inlined
def _draw_length(view, net, work, stage, limit, uniform_draw):  # type: ignore[no-untyped-def]
    """Draw the length of an idle slot and note it in `work.chosen`.

    Returns (hold_ms, log probability, whether there was a choice).
    """
    if net.idle_lengths == 0:
        return 0, 0.0, False
    count = score_lengths(view, net, work, stage, limit)
    drawn, log_prob = draw(work.idle_logits, net.idle_lengths + 1, uniform_draw)
    work.chosen[4] = drawn
    return hold_ms(view, net, stage, limit, drawn), log_prob, count > 1


@draw_decision.of(GraphNetwork)
@kernel
def draw_by_network(view, work, draw_seed, net):  # type: ignore[no-untyped-def]
    """Draw a decision, and note it in `work.chosen`."""
    embed(view, net, work)
    count = score_stages(view, net, work)
    turn = view.now.num_decisions[0]
    if count == 0:
        return NO_STAGE, view.now.num_source[0], ANY_CLASS, 0, 0.0, False
    position, log_prob = draw(work.logits, count, uniform(draw_seed, 2 * turn))
    stage = work.stage[position]
    num_limits = score_limits(view, net, work, stage)
    num_levels = net.levels.shape[0]
    column, limit_log = draw(work.limit_logits, num_levels, uniform(draw_seed, 2 * turn + 1))
    log_prob += limit_log
    work.chosen[0] = position
    work.chosen[1] = column
    work.chosen[2] = held_executors(view, net, stage)
    limit = min(net.levels[column] - work.chosen[2], view.now.num_source[0])
    others = draw_seed + _OTHER_HEADS
    executor_class, class_log, can_class = _draw_class(
        view, net, work, stage, limit, uniform(others, 2 * turn)
    )
    idle_ms, idle_log, can_idle = _draw_length(
        view, net, work, stage, limit, uniform(others, 2 * turn + 1)
    )
    is_choice = count > 1 or num_limits > 1 or can_class or can_idle
    return stage, limit, executor_class, idle_ms, log_prob + class_log + idle_log, is_choice


@kernel
def clear_cache(work):  # type: ignore[no-untyped-def]
    """Drop the cached embeddings; needed before the first decision of another run."""
    for job in range(work.cached_job.shape[0]):
        work.cached_job[job, 0] = -1


@begin_run.of(Decima)
@kernel
def _begin(state, decima):  # type: ignore[no-untyped-def]
    clear_cache(decima.work)
