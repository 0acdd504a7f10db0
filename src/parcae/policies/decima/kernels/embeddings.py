"""Compiled features and message passing: the embeddings of stages, jobs and the cluster.

Embeddings are cached. The embeddings of a job stay valid as long as the job's own features do.
The number of offered executors is a feature of every stage, so the workspace keeps a few versions
of all embeddings, one for each of the latest numbers. Untouched jobs of one profile have equal
embeddings, which are computed once and copied.

A network that chooses executor classes gets the number of offered executors as an input of the
stage scores instead, so that a single version is enough: on clusters of thousands of executors
the same number rarely comes twice.
"""

from __future__ import annotations

import math

import numpy as np

from parcae.cluster.kernels.tables import relative
from parcae.cluster.state import NO_JOB, NO_PROFILE
from parcae.kernels import inlined, kernel
from parcae.policies.decima.layout import (
    EMBEDDING,
    HIDDEN_1,
    HIDDEN_2,
    LOCAL,
    MOST_WORK,
    NUM_RELATIVE,
    SLOPE,
    Transform,
    Unit,
)
from parcae.policies.networks.kernels import (
    copy_bias,
    rectify,
)
from parcae.products import add_product, apply_layer

_D = EMBEDDING
_H1 = HIDDEN_1
_H2 = HIDDEN_2
_SLOPE = np.float32(SLOPE)
#: Column of the number of offered executors in each feature set; see `layout.FeatureSet`.
_OFFERED_IN_PAPER = 3
_OFFERED_IN_CODE = 2


@inlined
def hidden(weights, at, layer_1, layer_2, x, num_in):  # type: ignore[no-untyped-def]
    """Compute the two hidden layers of a transform.

    Args:
        weights: float32 array, the network's weights.
        at: where the transform's weights start.
        layer_1: float32[HIDDEN_1], written.
        layer_2: float32[HIDDEN_2], written.
        x: float32[at least num_in], the inputs.
        num_in: number of inputs.

    Returns:
        Where the weights of the transform's last layer start.
    """
    copy_bias(weights, at + num_in * _H1, _H1, layer_1)
    add_product(x, num_in, weights, at, _H1, layer_1)
    rectify(layer_1, _H1, _SLOPE)
    at += (num_in + 1) * _H1
    copy_bias(weights, at + _H1 * _H2, _H2, layer_2)
    add_product(layer_1, _H1, weights, at, _H2, layer_2)
    rectify(layer_2, _H2, _SLOPE)
    return at + (_H1 + 1) * _H2


@inlined
def _transform(net, work, which, x, y):  # type: ignore[no-untyped-def]
    """Write transform(x), EMBEDDING numbers a row, to y; the last layer is rectified too.

    Args:
        net: the Network.
        work: the Workspace; `layers_1` and `layers_2` are written.
        which: the Transform.
        x: float32[m, inputs], at most as many rows as a job has stages.
        y: float32[m, EMBEDDING], written.
    """
    _run_layers(net.weights, net.starts[which], work.layers_1, work.layers_2, x, y)


@kernel
def _run_layers(weights, at, layers_1, layers_2, x, y):  # type: ignore[no-untyped-def]
    """See `_transform`. The arguments are few, because a call copies every array's description."""
    rows, num_in = x.shape
    layer_1 = layers_1[:rows]
    layer_2 = layers_2[:rows]
    apply_layer(x, weights, at, layer_1, _SLOPE)
    at += (num_in + 1) * _H1
    apply_layer(layer_1, weights, at, layer_2, _SLOPE)
    apply_layer(layer_2, weights, at + (_H1 + 1) * _H2, y, _SLOPE)


@inlined
def _offered(net):  # type: ignore[no-untyped-def]
    """Return the column of the number of offered executors.

    A network that chooses executor classes has the stage's memory in this column.
    """
    return _OFFERED_IN_CODE if net.has_code_features else _OFFERED_IN_PAPER


@inlined
def is_unfinished(view, stage):  # type: ignore[no-untyped-def]
    """Return whether the stage is not complete, so that it is part of the graph."""
    return view.stages.num_finished[stage] < view.stages.num_tasks[stage]


@inlined
def largest_memory(view):  # type: ignore[no-untyped-def]
    """Memory of the largest class."""
    top = 0.0
    for executor_class in range(view.classes.shape[0]):
        top = max(top, view.classes.memory[executor_class])
    return top


@inlined
def critical_ms(view, job):  # type: ignore[no-untyped-def]
    """Return the work on the heaviest path through the unstarted part of a job, on one executor.

    No descendant of an unfinished stage has started, so only the stage's own share of its path has
    become smaller since the job arrived.
    """
    longest = 0.0
    stages = view.stages
    first = view.jobs.stage_start[job]
    for stage in range(first, first + view.jobs.num_stages[job]):
        if is_unfinished(view, stage):
            longest = max(
                longest,
                stages.downstream_ms[stage] - stages.num_started[stage] * stages.task_ms[stage],
            )
    return longest


@inlined
def _path_and_width(view, net, job):  # type: ignore[no-untyped-def]
    """Return the critical path and the average width of the job's unfinished part, as logarithms.

    Source: Duan & Wu, section IV-B: width is work / critical path, both on one executor.
    """
    if not (net.has_critical_path or net.has_average_width):
        return 0.0, 0.0
    path_ms = critical_ms(view, job)
    return math.log1p(path_ms / net.units[Unit.TASK_MS]), math.log(
        max(1.0, view.jobs.remaining_ms[job] / max(1.0, path_ms))
    )


@inlined
def _stage_features(view, net, stage, job, x, common):  # type: ignore[no-untyped-def]
    """Write the features of a stage to x.

    `common` is (mean gap between arrivals, memory of the largest class, critical path, average
    width).
    """
    stages = view.stages
    now = view.now
    left = stages.num_tasks[stage] - stages.num_started[stage]
    local = LOCAL if job == now.source_job[0] else -LOCAL
    offered = now.num_source[0] / net.units[Unit.EXECUTORS]
    if net.has_code_features:
        x[0] = view.jobs.num_supplied[job] / net.units[Unit.EXECUTORS]
        x[1] = local
        x[2] = offered
        x[3] = left * stages.task_ms[stage] / net.units[Unit.WORK_MS]
        x[4] = left / net.units[Unit.TASKS]
    else:
        on_stage = stages.num_bound[stage] + stages.num_moving[stage] + stages.num_committed[stage]
        x[0] = left / net.units[Unit.TASKS]
        x[1] = stages.task_ms[stage] / net.units[Unit.TASK_MS]
        x[2] = on_stage / net.units[Unit.EXECUTORS]
        x[3] = offered
        x[4] = local
    column = 5
    if net.has_relative_features:
        x[0] = math.log1p(x[0])
        x[1] = math.log1p(x[1])
        x[5] = min(MOST_WORK, left * stages.task_ms[stage] / net.units[Unit.WORK_MS])
        x[6] = net.units[Unit.DELAY]
        x[7] = net.units[Unit.WIDTH]
        column += NUM_RELATIVE
    if net.knows_gap:
        x[column] = common[0]
        column += 1
    if net.has_critical_path:
        x[column] = common[2]
        column += 1
    if net.has_average_width:
        x[column] = common[3]
    if net.has_classes:
        for feature in range(5):
            x[feature] = math.copysign(math.log1p(abs(x[feature])), x[feature])
        x[_offered(net)] = relative(stages.memory[stage], common[1])


@inlined
def _mean_gap(view, net):  # type: ignore[no-untyped-def]
    """Return the mean time between the arrivals so far, scaled; 0 with fewer than two jobs."""
    last = view.now.num_jobs[0] - 1
    if last < 1:
        return 0.0
    return (view.jobs.arrival_ms[last] - view.jobs.arrival_ms[0]) / last / net.units[Unit.GAP_MS]


@inlined
def _update_cache_key(view, work, job, num_unfinished):  # type: ignore[no-untyped-def]
    """Remember this job, and return whether the row held the same job already.

    The job is the same if it also has as many unfinished stages as before.
    """
    cached_job = work.cached_job[job]
    jobs = view.jobs
    profile = view.jobs.profile[job]
    is_same = (
        profile != NO_PROFILE
        and cached_job[0] == jobs.arrival_ms[job]
        and cached_job[1] == profile
        and cached_job[2] == jobs.stage_start[job]
        and cached_job[3] == num_unfinished
        and work.cached_work_ms[job] == jobs.work_ms[job]
    )
    cached_job[0] = jobs.arrival_ms[job]
    cached_job[1] = profile
    cached_job[2] = jobs.stage_start[job]
    cached_job[3] = num_unfinished
    work.cached_work_ms[job] = jobs.work_ms[job]
    return is_same


@inlined
def _refresh_features(view, net, work, job, gap, memory):  # type: ignore[no-untyped-def]
    """Update the features of the job's unfinished stages.

    The job gets a new stamp if any feature but the number of offered executors has changed, because
    there is one version of the embeddings for each of these numbers.
    """
    first = view.jobs.stage_start[job]
    has_changed = False
    num_unfinished = 0
    num_features = work.x.shape[1]
    offered = -1 if net.has_classes else _offered(net)
    path, width = _path_and_width(view, net, job)
    for stage in range(first, first + view.jobs.num_stages[job]):
        if not is_unfinished(view, stage):
            continue
        num_unfinished += 1
        _stage_features(view, net, stage, job, work.row, (gap, memory, path, width))
        for feature in range(num_features):
            if work.x[stage, feature] != work.row[feature]:
                work.x[stage, feature] = work.row[feature]
                has_changed |= feature != offered
    if not _update_cache_key(view, work, job, num_unfinished) or has_changed:
        work.stamp[job] += 1


@inlined
def _apply_outer_transform(net, work, which, y):  # type: ignore[no-untyped-def]
    """y = g(total), or total if the network has only one transform per level; y has one row."""
    if net.has_two_transforms:
        _transform(net, work, which, work.total, y)
    else:
        for o in range(_D):
            y[0, o] = work.total[0, o]


@inlined
def _embed_stage(view, net, work, stage):  # type: ignore[no-untyped-def]
    """Write e_v of one stage by Eq. 1: e_v = g(sum f(e_u)) + prep(x_v).

    Also writes f(e_v) if another stage waits for this one.
    """
    row = work.now[0] + stage
    at = net.starts[Transform.PREP]
    num_features = work.x.shape[1]
    e = work.e[row]
    copy_bias(net.weights, at + num_features * _D, _D, e)
    add_product(work.x[stage], num_features, net.weights, at, _D, e)
    if not net.has_graph:
        return
    if view.stages.num_children[stage] > 0:
        work.total[0] = 0.0
        for edge in range(
            view.stages.child_start[stage],
            view.stages.child_start[stage] + view.stages.num_children[stage],
        ):
            child = work.now[0] + view.children[edge]
            for o in range(_D):
                work.total[0, o] += work.f[child, o]
        _apply_outer_transform(net, work, Transform.G_STAGE, work.out[:1])
        for o in range(_D):
            e[o] += work.out[0, o]
    if view.stages.num_parents_unfinished[stage] > 0:
        _transform(net, work, Transform.F_STAGE, work.e[row : row + 1], work.f[row : row + 1])


@inlined
def _are_children_embedded(view, work, stage):  # type: ignore[no-untyped-def]
    """Return whether the embeddings of all children of a stage have been computed."""
    for edge in range(
        view.stages.child_start[stage],
        view.stages.child_start[stage] + view.stages.num_children[stage],
    ):
        if work.done[view.children[edge]] == 0:
            return False
    return True


@inlined
def _embed_job(view, net, work, job):  # type: ignore[no-untyped-def]
    """Write the embeddings of the job's unfinished stages, from leaves to roots, and its summary.

    Also writes f3(y_i), which is what the job adds to the summary of the cluster.
    """
    first = view.jobs.stage_start[job]
    num_stages = view.jobs.num_stages[job]
    left = 0
    for stage in range(first, first + num_stages):
        work.done[stage] = 0
        left += 1 if is_unfinished(view, stage) else 0
    while left > 0:
        for stage in range(first + num_stages - 1, first - 1, -1):
            if (
                work.done[stage] == 0
                and is_unfinished(view, stage)
                and _are_children_embedded(view, work, stage)
            ):
                _embed_stage(view, net, work, stage)
                work.done[stage] = 1
                left -= 1
    _embed_whole_job(view, net, work, job)


@inlined
def _embed_whole_job(view, net, work, job):  # type: ignore[no-untyped-def]
    """Write the job's summary y_i and f3(y_i), after the embeddings of its stages."""
    row = work.now[1] + job
    y = work.y[row : row + 1]
    y[0] = 0.0
    if not net.has_graph:
        return
    num_features = work.x.shape[1]
    first = view.jobs.stage_start[job]
    count = 0
    for stage in range(first, first + view.jobs.num_stages[job]):
        if is_unfinished(view, stage):
            for feature in range(num_features):
                work.rows[count, feature] = work.x[stage, feature]
            for o in range(_D):
                work.rows[count, num_features + o] = work.e[work.now[0] + stage, o]
            count += 1
    _transform(net, work, Transform.F_JOB, work.rows[:count], work.out[:count])
    work.total[0] = 0.0
    for position in range(count):
        for o in range(_D):
            work.total[0, o] += work.out[position, o]
    _apply_outer_transform(net, work, Transform.G_JOB, y)
    _transform(net, work, Transform.F_GLOBAL, y, work.f3[row : row + 1])


@inlined
def _choose_version(view, net, work):  # type: ignore[no-untyped-def]
    """Select the version of the embeddings for the present number of offered executors.

    If there is none, the version that was used longest ago is overwritten.
    """
    offered = 0 if net.has_classes else view.now.num_source[0]
    num_versions = work.version.shape[0]
    chosen = 0
    work.now[2] += 1
    for version in range(num_versions):
        if work.version[version, 0] == offered:
            chosen = version
            break
        if work.version[version, 1] < work.version[chosen, 1]:
            chosen = version
    num_jobs = work.stamp.shape[0]
    work.now[0] = chosen * work.done.shape[0]
    work.now[1] = chosen * num_jobs
    if work.version[chosen, 0] != offered:
        for job in range(num_jobs):
            work.embedded[work.now[1] + job] = -1
    work.version[chosen, 0], work.version[chosen, 1] = offered, work.now[2]


@inlined
def _is_untouched(view, job):  # type: ignore[no-untyped-def]
    """Return whether no task of the job has started and no executor is assigned to it."""
    jobs = view.jobs
    is_whole = jobs.num_unstarted[job] == jobs.num_stages[job] and jobs.num_done[job] == 0
    return (
        is_whole
        and jobs.num_supplied[job] == 0
        and jobs.profile[job] != NO_PROFILE
        and job != view.now.source_job[0]
    )


@inlined
def _find_twin(view, work, job):  # type: ignore[no-untyped-def]
    """Return an untouched job of the same profile that was embedded in this turn, or NO_JOB."""
    jobs = view.jobs
    if not _is_untouched(view, job):
        return NO_JOB
    slot = jobs.profile[job] % work.twin.shape[0]
    twin = work.twin[slot, 1]
    if (
        work.twin[slot, 0] != work.now[2]
        or jobs.profile[twin] != jobs.profile[job]
        or jobs.work_ms[twin] != jobs.work_ms[job]
    ):
        return NO_JOB
    return twin


@inlined
def _offer_as_twin(view, work, job):  # type: ignore[no-untyped-def]
    """Register an untouched job as the twin of its profile for the rest of this turn."""
    if _is_untouched(view, job):
        slot = view.jobs.profile[job] % work.twin.shape[0]
        work.twin[slot, 0] = work.now[2]
        work.twin[slot, 1] = job


@inlined
def _copy_embeddings(view, work, source, target):  # type: ignore[no-untyped-def]
    """Copy the embeddings in the current version from one job to another of the same profile."""
    first_source = work.now[0] + view.jobs.stage_start[source]
    first = work.now[0] + view.jobs.stage_start[target]
    for stage in range(view.jobs.num_stages[target]):
        for o in range(_D):
            work.e[first + stage, o] = work.e[first_source + stage, o]
            work.f[first + stage, o] = work.f[first_source + stage, o]
    for o in range(_D):
        work.y[work.now[1] + target, o] = work.y[work.now[1] + source, o]
        work.f3[work.now[1] + target, o] = work.f3[work.now[1] + source, o]


@kernel
def embed(view, net, work):  # type: ignore[no-untyped-def]
    """Update all embeddings for the current state.

    Args:
        view: the observation, or the state of a simulated cluster.
        net: the Network.
        work: the Workspace. Written: the features `x`, the embeddings `e`, `y` and `z`, and the
            caches behind them.
    """
    gap = _mean_gap(view, net)
    memory = largest_memory(view)
    _choose_version(view, net, work)
    for position in range(view.now.num_active[0]):
        job = view.active[position]
        _refresh_features(view, net, work, job, gap, memory)
        row = work.now[1] + job
        if work.embedded[row] != work.stamp[job]:
            twin = _find_twin(view, work, job)
            if twin == NO_JOB:
                _embed_job(view, net, work, job)
            else:
                _copy_embeddings(view, work, twin, job)
            work.embedded[row] = work.stamp[job]
        _offer_as_twin(view, work, job)
    work.total[0] = 0.0
    work.z[:] = 0.0
    if not net.has_graph:
        return
    for position in range(view.now.num_active[0]):
        row = work.now[1] + view.active[position]
        for o in range(_D):
            work.total[0, o] += work.f3[row, o]
    _apply_outer_transform(net, work, Transform.G_GLOBAL, work.out[:1])
    for o in range(_D):
        work.z[o] = work.out[0, o]
