"""The heads for executor classes and idle slots, and what they know.

Source: Decima, section 7.3, for classes; Duan & Wu, sections III and IV-B, for idle slots.

# Deviation: Decima does not say what its class head takes beside the embeddings; here it is what is known of the class, relative
to the cluster. The idle head has one more weight than the paper's, for no idle slot, so that a fresh network seldom idles.
"""

from __future__ import annotations

import math

import numpy as np

from parcae.cluster.kernels.tables import demand, relative, slot_ms
from parcae.cluster.state import ANY_CLASS
from parcae.kernels import inlined, kernel
from parcae.policies.classes.kernels import best_fitting, own_class
from parcae.policies.decima.kernels.embeddings import largest_memory
from parcae.policies.decima.layout import (
    EMBEDDING,
    EXECUTOR_SCALE,
    HIDDEN_1,
    HIDDEN_2,
    SLOPE,
    ClassFeature,
    Fit,
    Transform,
)
from parcae.policies.networks.kernels import add_product, copy_bias, dot, rectify

_D = EMBEDDING
_H1 = HIDDEN_1
_H2 = HIDDEN_2
_SLOPE = np.float32(SLOPE)
_IMPOSSIBLE = np.float32(-np.inf)
_CLASS = int(Transform.CLASS)
_IDLE = int(Transform.IDLE)
_OFFERED, _SHARE, _SPARE, _WAITING = map(int, (Fit.OFFERED, Fit.SHARE, Fit.SPARE, Fit.WAITING))
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
def score(net, work, at):  # type: ignore[no-untyped-def]
    """The one linear output of a transform whose second layer starts at weights[at:], from work.layer_1 before its rectifier."""
    weights = net.weights
    rectify(work.layer_1, _H1, _SLOPE)
    copy_bias(weights, at + _H1 * _H2, _H2, work.layer_2)
    add_product(work.layer_1, _H1, weights, at, _H2, work.layer_2)
    rectify(work.layer_2, _H2, _SLOPE)
    at += (_H1 + 1) * _H2
    return dot(work.layer_2, _H2, weights, at) + weights[at + _H2]


@kernel
def _share_first_layer(seen, net, work, which, num_own, stage):  # type: ignore[no-untyped-def]
    """What a head's first layer makes of e_v, y_i and z, into work.of_job. Returns where the weights of its own inputs start."""
    at = net.starts[which]
    e = work.e[work.now[0] + stage]
    y = work.y[work.now[1] + seen.stages.job[stage]]
    copy_bias(net.weights, at + (3 * _D + num_own) * _H1, _H1, work.of_job)
    add_product(e, _D, net.weights, at, _H1, work.of_job)
    add_product(y, _D, net.weights, at + _D * _H1, _H1, work.of_job)
    add_product(work.z, _D, net.weights, at + 2 * _D * _H1, _H1, work.of_job)
    return at + 3 * _D * _H1


@kernel
def count_waiting(seen, work):  # type: ignore[no-untyped-def]
    """What stages could take of each class that fit no smaller one, for each of its executors, into work.waiting."""
    work.waiting[:] = 0.0
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if seen.jobs.num_schedulable[job] == 0:
            continue
        for stage in range(
            seen.jobs.stage_start[job], seen.jobs.stage_start[job] + seen.jobs.num_stages[job]
        ):
            if (
                seen.stages.is_saturated[stage] == 0
                and seen.stages.num_parents_unsaturated[stage] == 0
            ):
                executor_class = own_class(seen, stage)
                if executor_class != ANY_CLASS:
                    work.waiting[executor_class] += demand(seen, stage)
    for executor_class in range(seen.classes.shape[0]):
        work.waiting[executor_class] = math.log1p(
            work.waiting[executor_class] / seen.classes.num_executors[executor_class]
        )


@kernel
def write_fit(seen, work, stage, row, at):  # type: ignore[no-untyped-def]
    """How a stage that may be chosen fits the executors asked about (see Fit), into row[at:]."""
    best = best_fitting(seen, stage)
    count = 0
    top = largest_memory(seen)
    for executor_class in range(seen.classes.shape[0]):
        if (seen.stages.fits[stage] >> executor_class) & 1:
            count += seen.source_count[executor_class]
    row[at + _OFFERED] = math.log1p(seen.now.num_source[0] / EXECUTOR_SCALE)
    row[at + _SHARE] = count / seen.now.num_source[0]
    row[at + _SPARE] = relative(seen.classes.memory[best], top) - relative(
        seen.stages.memory[stage], top
    )
    row[at + _WAITING] = work.waiting[best]


@kernel
def _write_class(seen, work, stage, limit, executor_class, x):  # type: ignore[no-untyped-def]
    classes = seen.classes
    offered = seen.source_count[executor_class]
    top = largest_memory(seen)
    top_cpu = 0.0
    for other in range(classes.shape[0]):
        top_cpu = max(top_cpu, classes.cpu[other])
    free = seen.sources.num_idle[executor_class] - seen.sources.num_committed[executor_class]
    memory = relative(classes.memory[executor_class], top)
    x[_CPU] = relative(classes.cpu[executor_class], top_cpu)
    x[_MEMORY] = memory
    x[_CLASS_SPARE] = memory - relative(seen.stages.memory[stage], top)
    x[_IS_BEST] = 1.0 if executor_class == best_fitting(seen, stage) else 0.0
    x[_CLASS_OFFERED] = offered / seen.now.num_source[0]
    x[_COVERS] = min(limit, offered) / max(1, limit)
    x[_FREE] = free / classes.num_executors[executor_class]
    x[_CLASS_SHARE] = classes.num_executors[executor_class] / seen.now.num_executors[0]
    x[_CLASS_WAITING] = work.waiting[executor_class]


@kernel
def score_classes(seen, net, work, stage, limit):  # type: ignore[no-untyped-def]
    """Logits of the classes asked about that are large enough. Returns how many there are."""
    at = _share_first_layer(seen, net, work, _CLASS, _NUM_CLASS_FEATURES, stage)
    count = 0
    for executor_class in range(seen.classes.shape[0]):
        _write_class(seen, work, stage, limit, executor_class, work.class_x[executor_class])
        if (
            seen.source_count[executor_class] == 0
            or not (seen.stages.fits[stage] >> executor_class) & 1
        ):
            work.class_logits[executor_class] = _IMPOSSIBLE
            continue
        copy_bias(work.of_job, 0, _H1, work.layer_1)
        add_product(
            work.class_x[executor_class], _NUM_CLASS_FEATURES, net.weights, at, _H1, work.layer_1
        )
        work.class_logits[executor_class] = score(net, work, at + (_NUM_CLASS_FEATURES + 1) * _H1)
        count += 1
    return count


@inlined
def hold_ms(seen, net, stage, limit, length):  # type: ignore[no-untyped-def]
    """From now to the end of an idle slot of one of the network's lengths; 0 where there can be none."""
    return slot_ms(seen, stage, limit, length, net.idle_lengths)


@kernel
def score_lengths(seen, net, work, stage, limit):  # type: ignore[no-untyped-def]
    """Logits of the idle slots' lengths, 0 the first. Returns how many there are."""
    at = _share_first_layer(seen, net, work, _IDLE, 1, stage)
    count = 0
    weights = net.weights
    for length in range(net.idle_lengths + 1):
        if length > 0 and hold_ms(seen, net, stage, limit, length) == 0:
            work.idle_logits[length] = _IMPOSSIBLE
            continue
        share = np.float32(length / net.idle_lengths)
        for o in range(_H1):
            work.layer_1[o] = work.of_job[o] + share * weights[at + o]
        work.idle_logits[length] = score(net, work, at + 2 * _H1)
        count += 1
    work.idle_logits[0] += weights[at + 2 * _H1 + (_H1 + 1) * _H2 + _H2 + 1]
    return count
