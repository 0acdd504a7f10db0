"""Features and message passing.

Embeddings are kept: those of a job stay as long as its own features do. How many executors are asked about is a feature of every
stage, so there are a few versions of all embeddings, for the numbers last asked about; and jobs of one profile that nobody has
touched yet share theirs. A network that chooses executor classes is told that number where stages are scored instead, so that one
version does: on clusters of thousands it is never the same twice.
"""

from __future__ import annotations

import math

import numpy as np

from parcae.cluster.kernels.tables import relative
from parcae.cluster.state import NO_JOB, NO_PROFILE
from parcae.kernels import inlined, kernel
from parcae.policies.decima.layout import (
    EMBEDDING,
    EXECUTOR_SCALE,
    GAP_SCALE_MS,
    HIDDEN_1,
    HIDDEN_2,
    LOCAL,
    SLOPE,
    TASK_SCALE,
    TASK_SCALE_MS,
    WORK_SCALE_MS,
    Transform,
)
from parcae.policies.networks.kernels import add_product, copy_bias, rectify

_D = EMBEDDING
_H1 = HIDDEN_1
_H2 = HIDDEN_2
_SLOPE = np.float32(SLOPE)
_PREP = int(Transform.PREP)
_F = int(Transform.F_STAGE)
_G = int(Transform.G_STAGE)
_F2, _G2, _F3, _G3 = map(
    int, (Transform.F_JOB, Transform.G_JOB, Transform.F_GLOBAL, Transform.G_GLOBAL)
)
#: Which feature is the number of executors asked about; see layout.FeatureSet.
_OFFERED_IN_PAPER = 3
_OFFERED_IN_CODE = 2


@inlined
def hidden(net, work, at, x, num_in):  # type: ignore[no-untyped-def]
    """The two hidden layers of the transform at weights[at:], into work.layer_2. Returns where its last layer starts."""
    weights = net.weights
    copy_bias(weights, at + num_in * _H1, _H1, work.layer_1)
    add_product(x, num_in, weights, at, _H1, work.layer_1)
    rectify(work.layer_1, _H1, _SLOPE)
    at += (num_in + 1) * _H1
    copy_bias(weights, at + _H1 * _H2, _H2, work.layer_2)
    add_product(work.layer_1, _H1, weights, at, _H2, work.layer_2)
    rectify(work.layer_2, _H2, _SLOPE)
    return at + (_H1 + 1) * _H2


@kernel
def _transform(net, work, which, x, num_in, y):  # type: ignore[no-untyped-def]
    """y = transform(x), rectified at the end too, EMBEDDING numbers."""
    at = hidden(net, work, net.starts[which], x, num_in)
    copy_bias(net.weights, at + _H2 * _D, _D, y)
    add_product(work.layer_2, _H2, net.weights, at, _D, y)
    rectify(y, _D, _SLOPE)


@inlined
def _offered(net):  # type: ignore[no-untyped-def]
    """Column of the number of executors asked about; where classes are chosen, stages show their memory there."""
    return _OFFERED_IN_CODE if net.has_code_features else _OFFERED_IN_PAPER


@inlined
def is_unfinished(seen, stage):  # type: ignore[no-untyped-def]
    return seen.stages.num_finished[stage] < seen.stages.num_tasks[stage]


@inlined
def largest_memory(seen):  # type: ignore[no-untyped-def]
    """Memory of the largest class."""
    top = 0.0
    for executor_class in range(seen.classes.shape[0]):
        top = max(top, seen.classes.memory[executor_class])
    return top


@kernel
def critical_ms(seen, job):  # type: ignore[no-untyped-def]
    """Work on the heaviest path through what the job has not started yet, on one executor.

    Whatever is below an unfinished stage has not started, so that only its own part of its path has become less.
    """
    longest = 0.0
    stages = seen.stages
    first = seen.jobs.stage_start[job]
    for stage in range(first, first + seen.jobs.num_stages[job]):
        if is_unfinished(seen, stage):
            longest = max(
                longest,
                stages.downstream_ms[stage] - stages.num_started[stage] * stages.task_ms[stage],
            )
    return longest


@inlined
def _shape_of(seen, net, job):  # type: ignore[no-untyped-def]
    """Critical path and average width of the job's unfinished part, both logarithmic.

    Source: Duan & Wu, section IV-B: width is work / critical path, both on one executor.
    """
    if not (net.has_critical_path or net.has_average_width):
        return 0.0, 0.0
    path_ms = critical_ms(seen, job)
    return math.log1p(path_ms / TASK_SCALE_MS), math.log(
        max(1.0, seen.jobs.remaining_ms[job] / max(1.0, path_ms))
    )


@kernel
def _stage_features(seen, net, stage, job, x, common):  # type: ignore[no-untyped-def]
    """Features of a stage; `common` is (mean gap, memory of the largest class, critical path, average width)."""
    stages = seen.stages
    now = seen.now
    left = stages.num_tasks[stage] - stages.num_started[stage]
    local = LOCAL if job == now.source_job[0] else -LOCAL
    offered = now.num_source[0] / EXECUTOR_SCALE
    if net.has_code_features:
        x[0] = seen.jobs.num_supplied[job] / EXECUTOR_SCALE
        x[1] = local
        x[2] = offered
        x[3] = left * stages.task_ms[stage] / WORK_SCALE_MS
        x[4] = left / TASK_SCALE
    else:
        on_stage = stages.num_bound[stage] + stages.num_moving[stage] + stages.num_committed[stage]
        x[0] = left / TASK_SCALE
        x[1] = stages.task_ms[stage] / TASK_SCALE_MS
        x[2] = on_stage / EXECUTOR_SCALE
        x[3] = offered
        x[4] = local
    column = 5
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
def _mean_gap(seen):  # type: ignore[no-untyped-def]
    last = seen.now.num_jobs[0] - 1
    if last < 1:
        return 0.0
    return (seen.jobs.arrival_ms[last] - seen.jobs.arrival_ms[0]) / last / GAP_SCALE_MS


@kernel
def _is_known(seen, work, job, num_unfinished):  # type: ignore[no-untyped-def]
    """Whether the workspace holds this very job with as many unfinished stages; remembers it in any case."""
    known = work.known[job]
    jobs = seen.jobs
    profile = seen.jobs.profile[job]
    is_same = (
        profile != NO_PROFILE
        and known[0] == jobs.arrival_ms[job]
        and known[1] == profile
        and known[2] == jobs.stage_start[job]
        and known[3] == num_unfinished
        and work.known_work_ms[job] == jobs.work_ms[job]
    )
    known[0] = jobs.arrival_ms[job]
    known[1] = profile
    known[2] = jobs.stage_start[job]
    known[3] = num_unfinished
    work.known_work_ms[job] = jobs.work_ms[job]
    return is_same


@kernel
def _refresh_features(seen, net, work, job, gap, memory):  # type: ignore[no-untyped-def]
    """Features of the job's unfinished stages; a new stamp where any but the number asked about changed."""
    first = seen.jobs.stage_start[job]
    has_changed = False
    num_unfinished = 0
    num_features = work.x.shape[1]
    offered = -1 if net.has_classes else _offered(net)
    path, width = _shape_of(seen, net, job)
    for stage in range(first, first + seen.jobs.num_stages[job]):
        if not is_unfinished(seen, stage):
            continue
        num_unfinished += 1
        _stage_features(seen, net, stage, job, work.row, (gap, memory, path, width))
        for feature in range(num_features):
            if work.x[stage, feature] != work.row[feature]:
                work.x[stage, feature] = work.row[feature]
                has_changed |= feature != offered
    if not _is_known(seen, work, job, num_unfinished) or has_changed:
        work.stamp[job] += 1


@inlined
def _finish(net, work, which, y):  # type: ignore[no-untyped-def]
    """y = g(total), or total where there is one transform only."""
    if net.has_two_transforms:
        _transform(net, work, which, work.total, _D, y)
    else:
        for o in range(_D):
            y[o] = work.total[o]


@kernel
def _embed_stage(seen, net, work, stage):  # type: ignore[no-untyped-def]
    """Eq. 1: e_v = g(sum f(e_u)) + prep(x_v)."""
    row = work.now[0] + stage
    at = net.starts[_PREP]
    num_features = work.x.shape[1]
    e = work.e[row]
    copy_bias(net.weights, at + num_features * _D, _D, e)
    add_product(work.x[stage], num_features, net.weights, at, _D, e)
    if not net.has_graph:
        return
    if seen.stages.num_children[stage] > 0:
        work.total[:] = 0.0
        for edge in range(
            seen.stages.child_start[stage],
            seen.stages.child_start[stage] + seen.stages.num_children[stage],
        ):
            child = work.now[0] + seen.children[edge]
            for o in range(_D):
                work.total[o] += work.f[child, o]
        _finish(net, work, _G, work.out)
        for o in range(_D):
            e[o] += work.out[o]
    if seen.stages.num_parents_unfinished[stage] > 0:
        _transform(net, work, _F, e, _D, work.f[row])


@kernel
def _children_done(seen, work, stage):  # type: ignore[no-untyped-def]
    for edge in range(
        seen.stages.child_start[stage],
        seen.stages.child_start[stage] + seen.stages.num_children[stage],
    ):
        if work.done[seen.children[edge]] == 0:
            return False
    return True


@kernel
def _embed_job(seen, net, work, job):  # type: ignore[no-untyped-def]
    """Embeddings of the job's unfinished stages, from leaves to roots, its summary, and what that adds to the global one."""
    first = seen.jobs.stage_start[job]
    num_stages = seen.jobs.num_stages[job]
    num_features = work.x.shape[1]
    left = 0
    for stage in range(first, first + num_stages):
        work.done[stage] = 0
        left += 1 if is_unfinished(seen, stage) else 0
    while left > 0:
        for stage in range(first + num_stages - 1, first - 1, -1):
            if (
                work.done[stage] == 0
                and is_unfinished(seen, stage)
                and _children_done(seen, work, stage)
            ):
                _embed_stage(seen, net, work, stage)
                work.done[stage] = 1
                left -= 1
    y = work.y[work.now[1] + job]
    total = work.total
    y[:] = 0.0
    if not net.has_graph:
        return
    total[:] = 0.0
    for stage in range(first, first + num_stages):
        if is_unfinished(seen, stage):
            for feature in range(num_features):
                work.row[feature] = work.x[stage, feature]
            for o in range(_D):
                work.row[num_features + o] = work.e[work.now[0] + stage, o]
            _transform(net, work, _F2, work.row, num_features + _D, work.out)
            for o in range(_D):
                total[o] += work.out[o]
    _finish(net, work, _G2, y)
    _transform(net, work, _F3, y, _D, work.f3[work.now[1] + job])


@kernel
def _choose_version(seen, net, work):  # type: ignore[no-untyped-def]
    """Work on the embeddings for the number of executors that are asked about; the version used longest ago makes room."""
    offered = 0 if net.has_classes else seen.now.num_source[0]
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
def _is_untouched(seen, job):  # type: ignore[no-untyped-def]
    jobs = seen.jobs
    is_whole = jobs.num_unstarted[job] == jobs.num_stages[job] and jobs.num_done[job] == 0
    return (
        is_whole
        and jobs.num_supplied[job] == 0
        and jobs.profile[job] != NO_PROFILE
        and job != seen.now.source_job[0]
    )


@kernel
def _twin(seen, work, job):  # type: ignore[no-untyped-def]
    """An untouched job of the same profile whose embeddings of this turn are these, or NO_JOB."""
    jobs = seen.jobs
    if not _is_untouched(seen, job):
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


@kernel
def _offer_as_twin(seen, work, job):  # type: ignore[no-untyped-def]
    if _is_untouched(seen, job):
        slot = seen.jobs.profile[job] % work.twin.shape[0]
        work.twin[slot, 0] = work.now[2]
        work.twin[slot, 1] = job


@kernel
def _copy_embeddings(seen, work, source, target):  # type: ignore[no-untyped-def]
    first_source = work.now[0] + seen.jobs.stage_start[source]
    first = work.now[0] + seen.jobs.stage_start[target]
    for stage in range(seen.jobs.num_stages[target]):
        for o in range(_D):
            work.e[first + stage, o] = work.e[first_source + stage, o]
            work.f[first + stage, o] = work.f[first_source + stage, o]
    for o in range(_D):
        work.y[work.now[1] + target, o] = work.y[work.now[1] + source, o]
        work.f3[work.now[1] + target, o] = work.f3[work.now[1] + source, o]


@kernel
def embed(seen, net, work):  # type: ignore[no-untyped-def]
    """All embeddings of the present state."""
    gap = _mean_gap(seen)
    memory = largest_memory(seen)
    _choose_version(seen, net, work)
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        _refresh_features(seen, net, work, job, gap, memory)
        row = work.now[1] + job
        if work.embedded[row] != work.stamp[job]:
            twin = _twin(seen, work, job)
            if twin == NO_JOB:
                _embed_job(seen, net, work, job)
            else:
                _copy_embeddings(seen, work, twin, job)
            work.embedded[row] = work.stamp[job]
        _offer_as_twin(seen, work, job)
    work.total[:] = 0.0
    work.z[:] = 0.0
    if not net.has_graph:
        return
    for position in range(seen.now.num_active[0]):
        row = work.now[1] + seen.active[position]
        for o in range(_D):
            work.total[o] += work.f3[row, o]
    _finish(net, work, _G3, work.z)
