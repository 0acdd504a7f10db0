"""The heads for executor classes and idle slots, and their inputs.

Source: Decima, section 7.3, for classes; Duan & Wu, sections III and IV-B, for idle slots.

# Deviation: Decima does not say what its class head takes besides the embeddings. Here it takes
the properties of the class relative to the cluster (see `ClassFeature`). The idle head has one more
weight than the paper's, for choosing no idle slot, so that an untrained network seldom idles.
"""

from __future__ import annotations

import math

import numpy as np

from parcae.base.compiled.kernels import INTEGER, deferred, inlined, kernel
from parcae.base.compiled.products import add_product, apply_layer
from parcae.base.compiled.vectors import copy_numbers, rectify
from parcae.cluster.kernels.tables import demand, relative, slot_ms
from parcae.cluster.state import ANY_CLASS
from parcae.decima.graph.kernels.features import largest_memory
from parcae.decima.graph.layout import (
    EMBEDDING,
    HIDDEN_1,
    HIDDEN_2,
    OFFERED_UNIT,
    SLOPE,
    ClassFeature,
    Fit,
    Transform,
)
from parcae.decima.kernels.classes import best_fitting, own_class
from parcae.policies.networks.kernels import dot

_D = EMBEDDING
_H1 = HIDDEN_1
_H2 = HIDDEN_2
_SLOPE = np.float32(SLOPE)
_IMPOSSIBLE = np.float32(-np.inf)
_NUM_CLASS_FEATURES = len(ClassFeature)
(
    _CPU,
    _MEMORY,
    _CLASS_SPARE,
    _IS_BEST,
    _CLASS_OFFERED,
    _COVERS,
    _FREE,
    _CLASS_SHARE,
    _CLASS_WAITING,
) = map(int, ClassFeature)


@kernel
def score(weights, layer_1, layer_2, at):  # type: ignore[no-untyped-def]
    """Compute the single linear output of a transform from the inputs of its first rectifier."""
    rectify(layer_1, _H1, _SLOPE)
    copy_numbers(weights, at + _H1 * _H2, _H2, layer_2)
    add_product(layer_1, _H1, weights, at, _H2, layer_2)
    rectify(layer_2, _H2, _SLOPE)
    at += (_H1 + 1) * _H2
    return dot(layer_2, _H2, weights, at) + weights[at + _H2]


@kernel
def score_rows(weights, layers_1, layers_2, at, logits):  # type: ignore[no-untyped-def]
    """Compute the single linear output of a transform for many rows."""
    for row in range(layers_1.shape[0]):
        rectify(layers_1[row], _H1, _SLOPE)
    apply_layer(layers_1, weights, at, layers_2, _SLOPE)
    at += (_H1 + 1) * _H2
    for row in range(layers_1.shape[0]):
        logits[row] = dot(layers_2[row], _H2, weights, at) + weights[at + _H2]


@kernel
def _embed_into_first_layer(  # type: ignore[no-untyped-def]
    view, net, work, which, num_extra, stage
):
    """Write the part of a head's first layer that comes from e_v, y_i and z to `work.job_layer`.

    Returns where the weights of the head's `num_extra` further inputs start.
    """
    at = net.starts[which]
    e = work.e[work.now[0] + stage]
    y = work.y[work.now[1] + view.stages.job[stage]]
    copy_numbers(net.weights, at + (3 * _D + num_extra) * _H1, _H1, work.job_layer)
    add_product(e, _D, net.weights, at, _H1, work.job_layer)
    add_product(y, _D, net.weights, at + _D * _H1, _H1, work.job_layer)
    add_product(work.z, _D, net.weights, at + 2 * _D * _H1, _H1, work.job_layer)
    return at + 3 * _D * _H1


@kernel
def count_waiting(view, work):  # type: ignore[no-untyped-def]
    """Write to `work.waiting` how much demand waits for each class.

    Each stage counts for the smallest class that fits it. The demand is divided by the class's
    number of executors.
    """
    work.waiting[:] = 0.0
    for position in range(view.now.num_active[0]):
        job = view.active[position]
        if view.jobs.num_schedulable[job] == 0:
            continue
        for stage in range(
            view.jobs.stage_start[job], view.jobs.stage_start[job] + view.jobs.num_stages[job]
        ):
            if (
                view.stages.is_saturated[stage] == 0
                and view.stages.num_parents_unsaturated[stage] == 0
            ):
                executor_class = own_class(view, stage)
                if executor_class != ANY_CLASS:
                    work.waiting[executor_class] += demand(view, stage)
    for executor_class in range(view.classes.shape[0]):
        work.waiting[executor_class] = math.log1p(
            work.waiting[executor_class] / view.classes.num_executors[executor_class]
        )


@kernel
def write_fit(view, work, stage, row, at):  # type: ignore[no-untyped-def]
    """Write how a stage fits the offered executors (see `Fit`) to row[at:]."""
    best = best_fitting(view, stage)
    count = 0
    top = largest_memory(view)
    for executor_class in range(view.classes.shape[0]):
        if (view.stages.fits[stage] >> executor_class) & 1:
            count += view.source_count[executor_class]
    row[at + Fit.OFFERED] = math.log1p(view.now.num_source[0] / OFFERED_UNIT)
    row[at + Fit.SHARE] = count / view.now.num_source[0]
    row[at + Fit.SPARE] = relative(view.classes.memory[best], top) - relative(
        view.stages.memory[stage], top
    )
    row[at + Fit.WAITING] = work.waiting[best]


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
    x[_CPU] = relative(classes.cpu[executor_class], top_cpu)
    x[_MEMORY] = memory
    x[_CLASS_SPARE] = memory - relative(view.stages.memory[stage], top)
    x[_IS_BEST] = 1.0 if executor_class == best_fitting(view, stage) else 0.0
    x[_CLASS_OFFERED] = offered / view.now.num_source[0]
    x[_COVERS] = min(limit, offered) / max(1, limit)
    x[_FREE] = free / classes.num_executors[executor_class]
    x[_CLASS_SHARE] = classes.num_executors[executor_class] / view.now.num_executors[0]
    x[_CLASS_WAITING] = work.waiting[executor_class]


@deferred(INTEGER)
def score_classes(view, net, work, stage, limit):  # type: ignore[no-untyped-def]
    """Write the logits of the executor classes to `work.class_logits`. Returns how many classes are
    possible.

    A class that is not offered or is too small for the stage gets -inf.
    """
    at = _embed_into_first_layer(view, net, work, Transform.CLASS, _NUM_CLASS_FEATURES, stage)
    count = 0
    for executor_class in range(view.classes.shape[0]):
        _write_class(view, work, stage, limit, executor_class, work.class_x[executor_class])
        if (
            view.source_count[executor_class] == 0
            or not (view.stages.fits[stage] >> executor_class) & 1
        ):
            work.class_logits[executor_class] = _IMPOSSIBLE
            continue
        copy_numbers(work.job_layer, 0, _H1, work.layer_1)
        add_product(
            work.class_x[executor_class], _NUM_CLASS_FEATURES, net.weights, at, _H1, work.layer_1
        )
        work.class_logits[executor_class] = score(
            net.weights, work.layer_1, work.layer_2, at + (_NUM_CLASS_FEATURES + 1) * _H1
        )
        count += 1
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
    at = _embed_into_first_layer(view, net, work, Transform.IDLE, 1, stage)
    count = 0
    weights = net.weights
    for length in range(net.idle_lengths + 1):
        if length > 0 and hold_ms(view, net, stage, limit, length) == 0:
            work.idle_logits[length] = _IMPOSSIBLE
            continue
        share = np.float32(length / net.idle_lengths)
        for o in range(_H1):
            work.layer_1[o] = work.job_layer[o] + share * weights[at + o]
        work.idle_logits[length] = score(net.weights, work.layer_1, work.layer_2, at + 2 * _H1)
        count += 1
    work.idle_logits[0] += weights[at + 2 * _H1 + (_H1 + 1) * _H2 + _H2 + 1]
    return count
