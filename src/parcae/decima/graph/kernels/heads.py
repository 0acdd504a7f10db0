"""The heads for limits, executor classes and idle slots: a head scores options by their features.

A head's first layer begins with a sum that all options have in common, `work.job_layer`.

Source: Decima, sections 5.2 and 7.3; Duan & Wu, sections III and IV-B, for idle slots.

# Deviation: Decima does not say what its class head takes besides the embeddings. Here it takes
the properties of the class relative to the cluster (see `ClassFeature`). The idle head has one more
weight than the paper's, for choosing no idle slot, so that an untrained network seldom idles.
"""

from __future__ import annotations

import math

import numpy as np

from parcae.base.compiled.kernels import INTEGER, deferred, inlined, kernel
from parcae.base.compiled.products import add_product, apply_layer, copy_numbers, rectify
from parcae.cluster.kernels.policies import begin_run, decide
from parcae.cluster.kernels.tables import demand, is_schedulable, relative, slot_ms, stages_of
from parcae.cluster.state import ANY_CLASS, NO_STAGE
from parcae.decima.graph.kernels.embeddings import embed
from parcae.decima.graph.kernels.features import (
    Decima,
    GraphNetwork,
    below_ms,
    critical_ms,
    held_executors,
    is_possible,
    largest_memory,
    write_cluster,
    write_job,
    write_limit,
    write_stage,
)
from parcae.decima.graph.layout import (
    EMBEDDING,
    FIRST_OF_JOB,
    FIRST_OF_STAGE,
    HIDDEN_1,
    HIDDEN_2,
    LIMIT_NONE,
    LIMIT_OUTPUTS,
    OFFERED_UNIT,
    SLOPE,
    ClassFeature,
    Fit,
    Transform,
)
from parcae.decima.queries import (
    best_fitting,
    draw_decision,
    fits,
    is_waiting,
    num_fitting,
    own_class,
)
from parcae.policies.networks.kernels import dot, pick

_D = EMBEDDING
_H1 = HIDDEN_1
_H2 = HIDDEN_2
_SLOPE = np.float32(SLOPE)
_IMPOSSIBLE = np.float32(-np.inf)
#: Where e_v, y_i and z begin.
_ALL = (0, EMBEDDING, 2 * EMBEDDING)


@kernel
def score_rows(weights, layers_1, layers_2, at, logits):  # type: ignore[no-untyped-def]
    """Compute the single linear output of a transform for many rows, from the inputs of its first
    rectifier.
    """
    for row in range(layers_1.shape[0]):
        rectify(layers_1[row], _H1, _SLOPE)
    apply_layer(layers_1, weights, at, layers_2, _SLOPE)
    at += (_H1 + 1) * _H2
    for row in range(layers_1.shape[0]):
        logits[row] = dot(layers_2[row], _H2, weights, at) + weights[at + _H2]


@inlined
def _score_options(net, work, at, x, first, last, logits):  # type: ignore[no-untyped-def]
    """Write the logits of the options first .. last - 1, whose features are rows of x.

    The features' weights begin at `at`; the bias of the first layer and the other layers follow.
    """
    num_features = x.shape[1]
    layers_1 = work.layers_1[: last - first]
    layers_2 = work.layers_2[: last - first]
    for row in range(first, last):
        layer = layers_1[row - first]
        copy_numbers(work.job_layer, 0, _H1, layer)
        add_product(x[row], num_features, net.weights, at, _H1, layer)
    second = at + (num_features + 1) * _H1
    score_rows(net.weights, layers_1, layers_2, second, logits[first:last])


@inlined
def _begin_layer(  # type: ignore[no-untyped-def]
    view, net, work, which, places, num_direct, num_features, stage
):
    """Write what all options of a head have in common to `work.job_layer`.

    The inputs are the embeddings at `places` among e_v, y_i and z, and the first `num_direct`
    features of the stage. Returns where the weights of the options' features begin.
    """
    shared = work.row
    copy_numbers(work.e[work.now[0] + stage], 0, _D, shared)
    copy_numbers(work.y[work.now[1] + view.stages.job[stage]], 0, _D, shared[_D:])
    copy_numbers(work.z, 0, _D, shared[2 * _D :])
    at = net.starts[which]
    features = at + (len(places) * _D + num_direct) * _H1
    copy_numbers(net.weights, features + num_features * _H1, _H1, work.job_layer)
    for place in places:
        add_product(shared[place:], _D, net.weights, at, _H1, work.job_layer)
        at += _D * _H1
    if num_direct > 0:
        option = 0
        while work.stage[option] != stage:
            option += 1
        add_product(work.direct[option], num_direct, net.weights, at, _H1, work.job_layer)
    return features


@inlined
def _score_outputs(net, work, at):  # type: ignore[no-untyped-def]
    """Write the logits of limits that have one output each; `at` is where the first bias is."""
    num_levels = net.levels.shape[0]
    layer = work.layers_1[:1]
    copy_numbers(work.job_layer, 0, _H1, layer[0])
    rectify(layer[0], _H1, _SLOPE)
    apply_layer(layer, net.weights, at + _H1, work.layers_2[:1], _SLOPE)
    at += _H1 + (_H1 + 1) * _H2
    copy_numbers(net.weights, at + _H2 * num_levels, num_levels, work.limit_logits)
    add_product(work.layers_2[0], _H2, net.weights, at, num_levels, work.limit_logits)


@kernel
def score_limits(view, net, work, stage):  # type: ignore[no-untyped-def]
    """Write the logits of the limits to `work.limit_logits`; limits up to what is held get -inf.
    Returns how many limits are possible.
    """
    held = held_executors(view, net, stage)
    logits = work.limit_logits
    logits[:] = 0.0
    count = 0
    first = 0
    # Limits rise, so that the possible ones lie together.
    for column in range(net.levels.shape[0]):
        if is_possible(view, net, held, column):
            first = column if count == 0 else first
            count += 1
            if net.limits != LIMIT_OUTPUTS:
                write_limit(view, net, stage, held, column, work.limit_x[column])
    if net.limits != LIMIT_NONE:
        num_direct = net.num_direct if net.has_job_features else 0
        places = net.limit_places
        num_features = work.limit_x.shape[1]
        at = _begin_layer(view, net, work, Transform.W, places, num_direct, num_features, stage)
        if net.limits == LIMIT_OUTPUTS:
            _score_outputs(net, work, at)
        else:
            _score_options(net, work, at, work.limit_x, first, first + count, logits)
    logits[:first] = _IMPOSSIBLE
    logits[first + count :] = _IMPOSSIBLE
    return count


@kernel
def count_waiting(view, work):  # type: ignore[no-untyped-def]
    """Write to `work.waiting` how much demand waits for each class.

    Each stage counts for the smallest class that fits it. The demand is divided by the class's
    number of executors.
    """
    work.waiting[:] = 0.0
    for job in view.active[: view.now.num_active[0]]:
        if view.jobs.num_schedulable[job] == 0:
            continue
        for stage in stages_of(view, job):
            executor_class = own_class(view, stage)
            if is_waiting(view, stage) and executor_class != ANY_CLASS:
                work.waiting[executor_class] += demand(view, stage)
    for executor_class in range(view.classes.shape[0]):
        work.waiting[executor_class] = math.log1p(
            work.waiting[executor_class] / view.classes.num_executors[executor_class]
        )


@kernel
def write_fit(view, work, stage, x):  # type: ignore[no-untyped-def]
    """Write how a stage fits the offered executors (see `Fit`) to x."""
    best = best_fitting(view, stage)
    top = largest_memory(view)
    x[Fit.OFFERED] = math.log1p(view.now.num_source[0] / OFFERED_UNIT)
    x[Fit.SHARE] = num_fitting(view, stage, view.source_count) / view.now.num_source[0]
    x[Fit.SPARE] = relative(view.classes.memory[best], top) - relative(
        view.stages.memory[stage], top
    )
    x[Fit.WAITING] = work.waiting[best]


@kernel
def _write_class(view, work, stage, limit, executor_class, x):  # type: ignore[no-untyped-def]
    """Write the inputs of the class head for one class to x (see `ClassFeature`)."""
    classes = view.classes
    offered = view.source_count[executor_class]
    top = largest_memory(view)
    top_cpu = 0.0
    for other in range(classes.shape[0]):
        top_cpu = max(top_cpu, classes.cpu[other])
    free = view.sources.num_idle[executor_class] - view.sources.num_committed[executor_class]
    memory = relative(classes.memory[executor_class], top)
    x[ClassFeature.CPU] = relative(classes.cpu[executor_class], top_cpu)
    x[ClassFeature.MEMORY] = memory
    x[ClassFeature.SPARE] = memory - relative(view.stages.memory[stage], top)
    x[ClassFeature.IS_BEST] = executor_class == best_fitting(view, stage)
    x[ClassFeature.OFFERED] = offered / view.now.num_source[0]
    x[ClassFeature.COVERS] = min(limit, offered) / max(1, limit)
    x[ClassFeature.FREE] = free / classes.num_executors[executor_class]
    x[ClassFeature.SHARE] = classes.num_executors[executor_class] / view.now.num_executors[0]
    x[ClassFeature.WAITING] = work.waiting[executor_class]


@deferred(INTEGER)
def score_classes(view, net, work, stage, limit):  # type: ignore[no-untyped-def]
    """Write the logits of the executor classes to `work.class_logits`. Returns how many classes are
    possible.

    A class that is not offered or is too small for the stage gets -inf.
    """
    x = work.class_x
    at = _begin_layer(view, net, work, Transform.CLASS, _ALL, 0, x.shape[1], stage)
    for executor_class in range(x.shape[0]):
        _write_class(view, work, stage, limit, executor_class, x[executor_class])
    _score_options(net, work, at, x, 0, x.shape[0], work.class_logits)
    count = 0
    for executor_class in range(x.shape[0]):
        if view.source_count[executor_class] > 0 and fits(view, stage, executor_class):
            count += 1
        else:
            work.class_logits[executor_class] = _IMPOSSIBLE
    return count


@inlined
def hold_ms(view, net, stage, limit, length):  # type: ignore[no-untyped-def]
    """Return the time from now to the end of an idle slot, or 0 if no slot is possible."""
    return slot_ms(view, stage, limit, length, net.idle_lengths)


@deferred(INTEGER)
def score_lengths(view, net, work, stage, limit):  # type: ignore[no-untyped-def]
    """Write the logits of the idle slot's lengths to `work.idle_logits`; index 0 means no slot.
    Returns how many lengths are possible.
    """
    x = work.idle_x
    at = _begin_layer(view, net, work, Transform.IDLE, _ALL, 0, 1, stage)
    for length in range(x.shape[0]):
        x[length, 0] = length / net.idle_lengths
    _score_options(net, work, at, x, 0, x.shape[0], work.idle_logits)
    # The weight of no slot is the last one.
    work.idle_logits[0] += net.weights[-1]
    count = 1
    for length in range(1, x.shape[0]):
        if hold_ms(view, net, stage, limit, length) == 0:
            work.idle_logits[length] = _IMPOSSIBLE
        else:
            count += 1
    return count


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
