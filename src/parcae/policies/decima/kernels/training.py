"""Compiled training of Decima's network: recorded decisions judged again, and the gradient.

Some decisions at a time form a group, whose numbers stay in the processor's caches. Between
successive decisions of a run most jobs do not change, and of a job that does few stages, so every
state of a job and every distinct stage is embedded once for the whole group. The stages are ordered
by height above the leaves, so that every transform is a product of matrices. The pass back computes
the group's forward pass again instead of storing it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from parcae.kernels import inlined, kernel
from parcae.policies.decima.layout import EMBEDDING, SLOPE
from parcae.products import multiply, multiply_gated, multiply_rectified

_D = EMBEDDING
#: Log probabilities below this count as those of impossible choices, as in `networks.ragged`.
_LEAST = -50.0
# Values of `Parts.limits`; see `layout.Limits`.
_LIMIT_OUTPUTS = 1
_LIMIT_STAGE = 2
_LIMIT_NONE = 3


class Decisions(NamedTuple):
    """Recorded decisions, flat: each has job rows and options, each job row lists rows of stages.

    See `recording.Record` for the columns; here, N decisions of several runs are joined.
    """

    first_job: Any  # int64[N]
    num_jobs: Any  # int64[N]
    first_option: Any  # int64[N]
    num_options: Any  # int64[N]
    choice: Any  # int64[N]
    level: Any  # int64[N]
    held: Any  # int64[N]
    last_level: Any  # int64[N]
    limit_x: Any  # float32[N, num_levels, num_limit_features]
    structure: Any  # int64[number of job rows]
    state: Any  # int64[number of job rows]; equal numbers have equal stages
    first_listed: Any  # int64[number of job rows]
    num_listed: Any  # int64[number of job rows]
    listed: Any  # int64[number of listed stages], their rows
    x: Any  # float32[number of stage rows, num_features]; equal rows have equal embeddings
    stage_index: Any  # int64[number of stage rows]
    option_job: Any  # int64[number of options]
    option_stage: Any  # int64[number of options]
    option_x: Any  # float32[number of options, num_direct]
    class_choice: Any  # int64[N]
    can_class: Any  # bool[N, number of classes]
    class_x: Any  # float32[N, number of classes, number of ClassFeature]
    idle_choice: Any  # int64[N]
    can_idle: Any  # bool[N, G + 1]


class Edges(NamedTuple):
    """The DAGs of a workload: job j has the edges first[j] .. first[j + 1] - 1.

    The edges of a job are in the order of their parents' heights.
    """

    first: Any  # int64[num_jobs + 1]
    parent: Any  # int64[num_edges], index of the stage within the job
    child: Any  # int64[num_edges]


class Layers(NamedTuple):
    """The three layers of a transform (with a leading 1: of one of `Parts`), or their gradient."""

    w1: Any  # float32[inputs, HIDDEN_1]
    b1: Any  # float32[HIDDEN_1]
    w2: Any  # float32[HIDDEN_1, HIDDEN_2]
    b2: Any  # float32[HIDDEN_2]
    w3: Any  # float32[HIDDEN_2, outputs]
    b3: Any  # float32[outputs]
    # Transposed matrices for the pass back; of the first only the rows of embeddings.
    t1: Any  # float32[HIDDEN_1, embedded inputs]
    t2: Any  # float32[HIDDEN_2, HIDDEN_1]
    t3: Any  # float32[outputs, HIDDEN_2]


class Parts(NamedTuple):
    """The transforms of the network, or their gradient; absent transforms have no inputs."""

    prep_weight: Any  # float32[num_features, EMBEDDING]
    prep_bias: Any  # float32[EMBEDDING]
    f_stage: Any  # Layers
    g_stage: Any
    f_job: Any
    g_job: Any
    f_global: Any
    g_global: Any
    q: Any
    w: Any
    executor_class: Any
    idle: Any
    no_slot: Any  # float32[1]
    levels: Any  # int64[num_levels]
    has_graph: Any  # bool
    has_two_transforms: Any  # bool
    limits: Any  # int64, as in `tables.Network`


class Loss(NamedTuple):
    """The loss of B decisions as a function of their log probabilities and entropies.

    See `networks.ragged.Surrogate`.
    """

    weight: Any  # float32[B]
    old_log_prob: Any  # float32[B]
    clip: Any  # float32
    least: Any  # float32
    entropy: Any  # float32
    has_ratio: Any  # bool
    is_given: Any  # bool, whether the slopes are given


class Results(NamedTuple):
    """What the network returned for B decisions, and the slopes of the loss."""

    log_prob: Any  # float32[B], log probability of the recorded choice
    entropy: Any  # float32[B], entropy of the distributions it was drawn from, in nats
    z: Any  # float32[B, EMBEDDING], summary of the cluster
    d_log_prob: Any  # float32[B], gradient of the loss
    d_entropy: Any  # float32[B]


class Activations(NamedTuple):
    """What the layers of a transform returned for many rows, and the gradients of these numbers."""

    h1: Any  # float32[rows, HIDDEN_1]
    h2: Any  # float32[rows, HIDDEN_2]
    out: Any  # float32[rows, outputs]
    d1: Any
    d2: Any
    d_out: Any


class Head(NamedTuple):
    """The options of one choice of each decision; those of a decision lie together."""

    inputs: Any  # float32[options, inputs]
    d_inputs: Any  # float32[options, embedded inputs]
    layers: Any  # Activations
    logs: Any  # float64[options], logits and then log probabilities
    shares: Any  # float64[options], probabilities
    option: Any  # int64[options], which option a row is
    first: Any  # int64[decisions + 1], first row of each decision
    chosen: Any  # int64[decisions], row of the chosen option


class Passes(NamedTuple):
    """Buffers for a group of decisions. Stages are ordered by height above the leaves.

    "Jobs" are distinct states of jobs, rows are distinct stages; a member is a job of a decision.
    """

    inputs: Any  # float32[rows, num_features + EMBEDDING]; the two next are views of its columns
    x: Any  # float32[rows, num_features]
    e: Any  # float32[rows, EMBEDDING]
    d_e: Any  # float32[rows, EMBEDDING]
    total: Any  # float32[rows, EMBEDDING], sums over children
    d_total: Any
    y: Any  # float32[jobs, EMBEDDING]
    d_y: Any
    job_total: Any  # float32[jobs, EMBEDDING], sums over stages
    d_job_total: Any
    z: Any  # float32[decisions, EMBEDDING]
    d_z: Any
    global_total: Any  # float32[decisions, EMBEDDING], sums over jobs
    d_global_total: Any
    f_stage: Any  # Activations
    g_stage: Any
    f_job: Any
    g_job: Any
    f_global: Any
    g_global: Any
    q: Any  # Head
    w: Any
    executor_class: Any
    idle: Any
    shared: Any  # float32[decisions, 3 * EMBEDDING], inputs that all options have in common
    d_shared: Any
    zeros: Any  # float32[largest width]
    ones: Any  # float32[1, rows]
    listed: Any  # int64[listed stages], row of each stage of each job
    first_of: Any  # int64[jobs + 1], first listed stage of each job
    member_job: Any  # int64[members]
    member_decision: Any  # int64[members]
    first_member: Any  # int64[decisions + 1], first member of each decision
    # int64[states, 2]: the last turn in which the state was found, and its job in the group
    found: Any
    found_row: Any  # int64[recorded stages, 2], the same for stages, and its found row
    stage: Any  # int64[decisions], row of the chosen stage
    stage_job: Any  # int64[decisions], its job
    option_job: Any  # int64[options], job of each stage that may be chosen
    # The stages of a group are found one after another, and then ordered.
    recorded: Any  # int64[rows], where a found row is recorded
    place: Any  # int64[rows], where a found row is
    key: Any  # int64[rows], twice the height of a found row, plus 1 if it waits for no stage
    row_of: Any  # int64[most stages of a job], found row of each stage, or -1
    bound: Any  # int64[2 * most stages + 3], first row of each key
    parent: Any  # int64[edges], found rows
    child: Any  # int64[edges]
    first_edge: Any  # int64[rows], first edge of a row, or -1
    next_edge: Any  # int64[edges], next edge of the same parent, or -1
    size: Any  # int64[6]; see the constants below


# Entries of `Passes.size`.
_ROWS = 0
_JOBS = 1
_HEIGHTS = 2
_EDGES = 3
_DECISIONS = 4
_TURN = 5


@inlined
def _find_edges(data, edges, work, job, first_new):  # type: ignore[no-untyped-def]
    """Note the edges that begin at a job's new stages, and the heights of these stages."""
    profile = data.structure[job]
    count = work.size[_EDGES]
    for edge in range(edges.first[profile], edges.first[profile + 1]):
        parent = work.row_of[edges.parent[edge]]
        child = work.row_of[edges.child[edge]]
        if parent >= first_new and child >= 0:
            work.parent[count] = parent
            work.child[count] = child
            count += 1
            above = work.key[child] // 2 + 1
            work.key[parent] = max(work.key[parent], 2 * above + 1)
    for edge in range(work.size[_EDGES], count):
        work.key[work.child[edge]] = work.key[work.child[edge]] // 2 * 2
    work.size[_EDGES] = count


@inlined
def _find_rows(data, edges, work, job, entry):  # type: ignore[no-untyped-def]
    """List a job's stages from `entry` on, and note those that are new. Returns the next entry."""
    first_new = work.size[_ROWS]
    row = first_new
    work.row_of[:] = -1
    first = data.first_listed[job]
    for recorded in data.listed[first : first + data.num_listed[job]]:
        found = work.found_row[recorded]
        if found[0] != work.size[_TURN]:
            found[0] = work.size[_TURN]
            found[1] = row
            work.recorded[row] = recorded
            work.key[row] = 1
            row += 1
        work.row_of[data.stage_index[recorded]] = found[1]
        work.listed[entry] = found[1]
        entry += 1
    work.size[_ROWS] = row
    if row > first_new:
        _find_edges(data, edges, work, job, first_new)
    return entry


@inlined
def _has_room(data, work, decision, used):  # type: ignore[no-untyped-def]
    """Return whether a decision fits into the buffers beside what is used.

    `used` is (jobs, listed stages, members, options).
    """
    jobs, entries, members, options = used
    first_job = data.first_job[decision]
    new = 0
    for job in range(first_job, first_job + data.num_jobs[decision]):
        if work.found[data.state[job], 0] != work.size[_TURN]:
            jobs += 1
            new += data.num_listed[job]
    return (
        jobs < work.first_of.shape[0]
        and entries + new <= work.listed.shape[0]
        and work.size[_ROWS] + new <= work.recorded.shape[0]
        and members + data.num_jobs[decision] <= work.member_job.shape[0]
        and options + data.num_options[decision] <= work.option_job.shape[0]
    )


@inlined
def _find_jobs(data, edges, work, index, begin):  # type: ignore[no-untyped-def]
    """Find the distinct jobs and stages of a group, and the edges between the stages.

    The group begins with decision index[begin], and ends where its buffers are full. Returns where
    it ends.
    """
    entry = 0
    jobs = 0
    members = 0
    options = 0
    work.size[_ROWS] = work.size[_EDGES] = 0
    work.size[_TURN] += 1
    end = min(index.shape[0], begin + work.stage.shape[0])
    for at in range(begin, end):
        decision = index[at]
        if at > begin and not _has_room(data, work, decision, (jobs, entry, members, options)):
            end = at
            break
        first_job = data.first_job[decision]
        work.first_member[at - begin] = members
        for job in range(first_job, first_job + data.num_jobs[decision]):
            found = work.found[data.state[job]]
            if found[0] != work.size[_TURN]:
                found[0] = work.size[_TURN]
                found[1] = jobs
                work.first_of[jobs] = entry
                jobs += 1
                entry = _find_rows(data, edges, work, job, entry)
            work.member_job[members] = found[1]
            work.member_decision[members] = at - begin
            members += 1
        options += data.num_options[decision]
    work.first_member[end - begin] = members
    work.first_of[jobs] = entry
    work.size[_JOBS] = jobs
    work.size[_DECISIONS] = end - begin
    return end


@inlined
def _order_rows(work):  # type: ignore[no-untyped-def]
    """Order the rows by their keys."""
    bound = work.bound
    bound[:] = 0
    highest = 0
    for row in range(work.size[_ROWS]):
        highest = max(highest, work.key[row])
        bound[work.key[row] + 1] += 1
    work.size[_HEIGHTS] = highest // 2 + 1
    for key in range(highest + 2):
        bound[key + 1] += bound[key]
    for row in range(work.size[_ROWS]):
        work.place[row] = bound[work.key[row]]
        bound[work.key[row]] += 1
    # Each bound has moved to the next one.
    for key in range(highest + 2, 0, -1):
        bound[key] = bound[key - 1]
    bound[0] = 0


@inlined
def _load(data, edges, work, index, begin):  # type: ignore[no-untyped-def]
    """Bring the rows, features and edges of a group of decisions into order.

    The group begins with decision index[begin]. Returns where it ends.
    """
    end = _find_jobs(data, edges, work, index, begin)
    _order_rows(work)
    for row in range(work.size[_ROWS]):
        at = work.place[row]
        work.first_edge[at] = -1
        for feature in range(work.x.shape[1]):
            work.x[at, feature] = data.x[work.recorded[row], feature]
    for entry in range(work.first_of[work.size[_JOBS]]):
        work.listed[entry] = work.place[work.listed[entry]]
    for edge in range(work.size[_EDGES]):
        parent = work.place[work.parent[edge]]
        work.child[edge] = work.place[work.child[edge]]
        work.next_edge[edge] = work.first_edge[parent]
        work.first_edge[parent] = edge
    return end


@inlined
def _apply(layers, inputs, out, first, last):  # type: ignore[no-untyped-def]
    """Compute the hidden layers of a transform for the rows first .. last - 1."""
    h1 = out.h1[first:last]
    multiply_rectified(inputs[first:last], layers.w1, layers.b1, h1, SLOPE)
    multiply_rectified(h1, layers.w2, layers.b2, out.h2[first:last], SLOPE)


@inlined
def _transform(layers, inputs, out, first, last):  # type: ignore[no-untyped-def]
    """Compute a transform with a rectified last layer for the rows first .. last - 1."""
    _apply(layers, inputs, out, first, last)
    h2 = out.h2[first:last]
    multiply_rectified(h2, layers.w3, layers.b3, out.out[first:last], SLOPE)


@inlined
def _score(layers, inputs, out, count):  # type: ignore[no-untyped-def]
    """Compute a transform with a linear last layer for the first rows."""
    _apply(layers, inputs, out, 0, count)
    multiply(out.h2[:count], layers.w3, layers.b3, out.out[:count])


@inlined
def _go_back(layers, work, out, d_inputs, first, last):  # type: ignore[no-untyped-def]
    """Add to d_inputs the gradient of a transform's embedded inputs, from `out.d_out`."""
    d1 = out.d1[first:last]
    d2 = out.d2[first:last]
    d_out = out.d_out[first:last]
    multiply_gated(d_out, layers.t3, work.zeros, d2, out.h2[first:last], SLOPE)
    multiply_gated(d2, layers.t2, work.zeros, d1, out.h1[first:last], SLOPE)
    multiply(d1, layers.t1, d_inputs[first:last], d_inputs[first:last])


@inlined
def _transform_back(layers, work, out, d_inputs, first, last):  # type: ignore[no-untyped-def]
    """Like `_go_back`, for a transform whose last layer is rectified."""
    for row in range(first, last):
        for o in range(_D):
            if out.out[row, o] <= 0.0:
                out.d_out[row, o] *= SLOPE
    _go_back(layers, work, out, d_inputs, first, last)


@inlined
def _add_gradient(gradient, work, inputs, out, first, last):  # type: ignore[no-untyped-def]
    """Add to the gradient of a transform what the rows first .. last - 1 contribute."""
    d1 = out.d1[first:last]
    d2 = out.d2[first:last]
    d_out = out.d_out[first:last]
    ones = work.ones[:, first:last]
    multiply(inputs[first:last].T, d1, gradient.w1, gradient.w1)
    multiply(ones, d1, gradient.b1, gradient.b1)
    multiply(out.h1[first:last].T, d2, gradient.w2, gradient.w2)
    multiply(ones, d2, gradient.b2, gradient.b2)
    multiply(out.h2[first:last].T, d_out, gradient.w3, gradient.w3)
    multiply(ones, d_out, gradient.b3, gradient.b3)


@inlined
def _copy(source, target, first, last):  # type: ignore[no-untyped-def]
    """Copy rows of embeddings."""
    for row in range(first, last):
        for o in range(_D):
            target[row, o] = source[row, o]


@inlined
def _clear(target, first, last):  # type: ignore[no-untyped-def]
    """Set rows to zero."""
    for row in range(first, last):
        for o in range(target.shape[1]):
            target[row, o] = 0.0


@inlined
def _add_row(source, row, target, at):  # type: ignore[no-untyped-def]
    """Add a row of embeddings to another."""
    for o in range(_D):
        target[at, o] += source[row, o]


@inlined
def _outer(parts, layers, inputs, out, y, first, last):  # type: ignore[no-untyped-def]
    """Write g(inputs) to y, or the inputs if the network has one transform for each level."""
    if parts.has_two_transforms:
        _transform(layers, inputs, out, first, last)
        _copy(out.out, y, first, last)
    else:
        _copy(inputs, y, first, last)


@inlined
def _outer_back(  # type: ignore[no-untyped-def]
    parts, layers, work, out, d_y, d_inputs, first, last
):
    """Write the gradient of the inputs of `_outer` to d_inputs."""
    if parts.has_two_transforms:
        _copy(d_y, out.d_out, first, last)
        _clear(d_inputs, first, last)
        _transform_back(layers, work, out, d_inputs, first, last)
    else:
        _copy(d_y, d_inputs, first, last)


@inlined
def _embed_stages(parts, work):  # type: ignore[no-untyped-def]
    """Compute e_v of all stages (Decima, Eq. 1), from leaves to roots."""
    rows = work.size[_ROWS]
    multiply(work.x[:rows], parts.prep_weight, parts.prep_bias, work.e[:rows])
    if not parts.has_graph:
        return
    for height in range(work.size[_HEIGHTS]):
        first = work.bound[2 * height]
        last = work.bound[2 * height + 2]
        if height > 0:
            _clear(work.total, first, last)
            for row in range(first, last):
                edge = work.first_edge[row]
                while edge >= 0:
                    _add_row(work.f_stage.out, work.child[edge], work.total, row)
                    edge = work.next_edge[edge]
            # d_total is free in this pass, and takes what is added to e.
            _outer(parts, parts.g_stage, work.total, work.g_stage, work.d_total, first, last)
            for row in range(first, last):
                _add_row(work.d_total, row, work.e, row)
        _transform(parts.f_stage, work.e, work.f_stage, first, work.bound[2 * height + 1])


@inlined
def _embed(parts, work):  # type: ignore[no-untyped-def]
    """Compute the embeddings of stages, jobs and clusters."""
    _embed_stages(parts, work)
    jobs = work.size[_JOBS]
    rows = work.size[_ROWS]
    if not parts.has_graph:
        return
    _transform(parts.f_job, work.inputs, work.f_job, 0, rows)
    _clear(work.job_total, 0, jobs)
    for job in range(jobs):
        for entry in range(work.first_of[job], work.first_of[job + 1]):
            _add_row(work.f_job.out, work.listed[entry], work.job_total, job)
    _outer(parts, parts.g_job, work.job_total, work.g_job, work.y, 0, jobs)
    _transform(parts.f_global, work.y, work.f_global, 0, jobs)
    decisions = work.size[_DECISIONS]
    _clear(work.global_total, 0, decisions)
    for member in range(work.first_member[decisions]):
        job = work.member_job[member]
        _add_row(work.f_global.out, job, work.global_total, work.member_decision[member])
    _outer(parts, parts.g_global, work.global_total, work.g_global, work.z, 0, decisions)


@inlined
def _summaries_back(parts, work):  # type: ignore[no-untyped-def]
    """Complete the gradients of y_i, and add to those of e_v."""
    jobs = work.size[_JOBS]
    rows = work.size[_ROWS]
    decisions = work.size[_DECISIONS]
    g_global = work.g_global
    d_total = work.d_global_total
    _outer_back(parts, parts.g_global, work, g_global, work.d_z, d_total, 0, decisions)
    _clear(work.f_global.d_out, 0, jobs)
    for member in range(work.first_member[decisions]):
        decision = work.member_decision[member]
        _add_row(d_total, decision, work.f_global.d_out, work.member_job[member])
    _transform_back(parts.f_global, work, work.f_global, work.d_y, 0, jobs)
    _outer_back(parts, parts.g_job, work, work.g_job, work.d_y, work.d_job_total, 0, jobs)
    _clear(work.f_job.d_out, 0, rows)
    for job in range(jobs):
        for entry in range(work.first_of[job], work.first_of[job + 1]):
            _add_row(work.d_job_total, job, work.f_job.d_out, work.listed[entry])
    _transform_back(parts.f_job, work, work.f_job, work.d_e, 0, rows)


@inlined
def _embed_back(parts, gradient, work):  # type: ignore[no-untyped-def]
    """Add the gradient of the transforms below the heads, from d_e, d_y and d_z."""
    if parts.has_graph:
        _summaries_back(parts, work)
        _stages_back(parts, work)
        _add_gradients(parts, gradient, work)
    rows = work.size[_ROWS]
    d_e = work.d_e[:rows]
    multiply(work.x[:rows].T, d_e, gradient.prep_weight, gradient.prep_weight)
    multiply(work.ones[:, :rows], d_e, gradient.prep_bias, gradient.prep_bias)


@inlined
def _stages_back(parts, work):  # type: ignore[no-untyped-def]
    """Complete the gradient of e_v of all stages, from roots to leaves."""
    f_stage = work.f_stage
    _clear(f_stage.d_out, 0, work.size[_ROWS])
    for height in range(work.size[_HEIGHTS] - 1, -1, -1):
        first = work.bound[2 * height]
        middle = work.bound[2 * height + 1]
        last = work.bound[2 * height + 2]
        # The rows from `middle` on wait for no stage: no other embedding contains theirs.
        _clear(f_stage.d1, middle, last)
        _clear(f_stage.d2, middle, last)
        _transform_back(parts.f_stage, work, f_stage, work.d_e, first, middle)
        if height == 0:
            continue
        _outer_back(parts, parts.g_stage, work, work.g_stage, work.d_e, work.d_total, first, last)
        for row in range(first, last):
            edge = work.first_edge[row]
            while edge >= 0:
                _add_row(work.d_total, row, f_stage.d_out, work.child[edge])
                edge = work.next_edge[edge]


@inlined
def _add_gradients(parts, gradient, work):  # type: ignore[no-untyped-def]
    """Add the gradients of the transforms that embed."""
    jobs = work.size[_JOBS]
    rows = work.size[_ROWS]
    decisions = work.size[_DECISIONS]
    above = work.bound[2]
    _add_gradient(gradient.f_stage, work, work.e, work.f_stage, 0, rows)
    _add_gradient(gradient.f_job, work, work.inputs, work.f_job, 0, rows)
    _add_gradient(gradient.f_global, work, work.y, work.f_global, 0, jobs)
    if parts.has_two_transforms:
        _add_gradient(gradient.g_stage, work, work.total, work.g_stage, above, rows)
        _add_gradient(gradient.g_job, work, work.job_total, work.g_job, 0, jobs)
        _add_gradient(gradient.g_global, work, work.global_total, work.g_global, 0, decisions)


@inlined
def _share(work):  # type: ignore[no-untyped-def]
    """Write the embeddings that all options of a chosen stage have in common: e, y, z."""
    for at in range(work.size[_DECISIONS]):
        stage = work.stage[at]
        for o in range(_D):
            work.shared[at, o] = work.e[stage, o]
            work.shared[at, _D + o] = work.y[work.stage_job[at], o]
            work.shared[at, 2 * _D + o] = work.z[at, o]


@inlined
def _share_back(work):  # type: ignore[no-untyped-def]
    """Add the gradients of the shared embeddings to those of stages, jobs and clusters."""
    for at in range(work.size[_DECISIONS]):
        stage = work.stage[at]
        for o in range(_D):
            work.d_e[stage, o] += work.d_shared[at, o]
            work.d_y[work.stage_job[at], o] += work.d_shared[at, _D + o]
            work.d_z[at, o] += work.d_shared[at, 2 * _D + o]


@inlined
def _place_of(parts, part):  # type: ignore[no-untyped-def]
    """Return where the part of the limits' inputs begins among the shared embeddings.

    The inputs are (y, z), (y, z, e) for limits of stages, and without a graph e for y.
    """
    if part == 0:
        return _D if parts.has_graph else 0
    return 2 * _D if part == 1 else 0


@inlined
def _write_stage(data, work, count, option, decision):  # type: ignore[no-untyped-def]
    """Write the inputs of a stage for its score; `option` is where it is recorded."""
    inputs = work.q.inputs
    job = work.option_job[count]
    stage = work.q.option[count]
    for o in range(_D):
        inputs[count, o] = work.e[stage, o]
        inputs[count, _D + o] = work.y[job, o]
        inputs[count, 2 * _D + o] = work.z[decision, o]
    for feature in range(data.option_x.shape[1]):
        inputs[count, 3 * _D + feature] = data.option_x[option, feature]


@inlined
def _list_stages(data, work, group):  # type: ignore[no-untyped-def]
    """Write the inputs of the stages that may be chosen, and remember the chosen ones."""
    head = work.q
    count = 0
    for at in range(group.shape[0]):
        decision = group[at]
        head.first[at] = count
        first = data.first_option[decision]
        for option in range(first, first + data.num_options[decision]):
            job = work.member_job[work.first_member[at] + data.option_job[option]]
            stage = work.listed[work.first_of[job] + data.option_stage[option]]
            if option - first == data.choice[decision]:
                head.chosen[at] = count
                work.stage[at] = stage
                work.stage_job[at] = job
            head.option[count] = stage
            work.option_job[count] = job
            _write_stage(data, work, count, option, at)
            count += 1
    head.first[group.shape[0]] = count


@inlined
def _list_limits(data, work, parts, group):  # type: ignore[no-untyped-def]
    """List the limits above what is held."""
    head = work.w
    count = 0
    for at in range(group.shape[0]):
        head.first[at] = count
        for level in range(data.last_level[group[at]] + 1):
            if parts.levels[level] > data.held[group[at]]:
                if level == data.level[group[at]]:
                    head.chosen[at] = count
                head.option[count] = level
                count += 1
    head.first[group.shape[0]] = count


@inlined
def _write_limit(work, parts, at, row):  # type: ignore[no-untyped-def]
    """Write the embedded inputs of the limits of a decision to a row."""
    head = work.w
    for column in range(head.d_inputs.shape[1]):
        place = _place_of(parts, column // _D) + column % _D
        head.inputs[row, column] = work.shared[at, place]


@inlined
def _write_known_limit(data, work, decision, row):  # type: ignore[no-untyped-def]
    """Write the features of the chosen stage and of a limit to the limit's row."""
    head = work.w
    option = data.first_option[decision] + data.choice[decision]
    column = head.d_inputs.shape[1]
    for feature in range(data.option_x.shape[1]):
        head.inputs[row, column + feature] = data.option_x[option, feature]
    column += data.option_x.shape[1]
    for feature in range(data.limit_x.shape[2]):
        value = data.limit_x[decision, head.option[row], feature]
        head.inputs[row, column + feature] = value


@inlined
def _score_limits(data, work, parts, group):  # type: ignore[no-untyped-def]
    """Write the logits of the limits above what is held."""
    head = work.w
    _list_limits(data, work, parts, group)
    width = head.d_inputs.shape[1]
    top = parts.levels[parts.levels.shape[0] - 1]
    decisions = group.shape[0]
    if parts.limits == _LIMIT_OUTPUTS:
        for at in range(decisions):
            _write_limit(work, parts, at, at)
        _score(parts.w, head.inputs, head.layers, decisions)
        for at in range(decisions):
            for row in range(head.first[at], head.first[at + 1]):
                head.logs[row] = head.layers.out[at, head.option[row]]
        return
    for at in range(decisions):
        for row in range(head.first[at], head.first[at + 1]):
            _write_limit(work, parts, at, row)
            if data.limit_x.shape[2] > 0:
                _write_known_limit(data, work, group[at], row)
            else:
                head.inputs[row, width] = parts.levels[head.option[row]] / top
    _score_options(parts.w, work, head)


@inlined
def _list_options(work, head, allowed, choice, group):  # type: ignore[no-untyped-def]
    """Write the shared inputs of the allowed options of a head, and remember the chosen ones."""
    count = 0
    for at in range(group.shape[0]):
        head.first[at] = count
        for option in range(allowed.shape[1]):
            if not allowed[group[at], option]:
                continue
            if option == choice[group[at]]:
                head.chosen[at] = count
            head.option[count] = option
            for column in range(3 * _D):
                head.inputs[count, column] = work.shared[at, column]
            count += 1
    head.first[group.shape[0]] = count


@inlined
def _judge_choice(logs, shares, first, last):  # type: ignore[no-untyped-def]
    """Turn logits into log probabilities, write probabilities, and return their entropy."""
    top = -math.inf
    for row in range(first, last):
        top = max(top, logs[row])
    total = 0.0
    for row in range(first, last):
        shares[row] = math.exp(logs[row] - top)
        total += shares[row]
    log_total = top + math.log(total)
    entropy = 0.0
    for row in range(first, last):
        logs[row] -= log_total
        shares[row] /= total
        if logs[row] > _LEAST:
            entropy -= shares[row] * logs[row]
    return entropy


@inlined
def _judge_choices(work, head, log_prob, entropy):  # type: ignore[no-untyped-def]
    """Turn the logits of a head into log probabilities, and add what was chosen.

    Args:
        work: the Passes.
        head: the Head.
        log_prob: float32[decisions], the log probabilities of the chosen options are added.
        entropy: float32[decisions], the entropies are added.
    """
    for at in range(work.size[_DECISIONS]):
        entropy[at] += _judge_choice(head.logs, head.shares, head.first[at], head.first[at + 1])
        log_prob[at] += head.logs[head.chosen[at]]


@inlined
def _choice_back(head, at, d_log_prob, d_entropy):  # type: ignore[no-untyped-def]
    """Replace log probabilities by the gradient of their logits.

    Args:
        head: the Head; `logs` is changed.
        at: the decision.
        d_log_prob: gradient of the log probability of the chosen option.
        d_entropy: gradient of the entropy.
    """
    logs = head.logs
    shares = head.shares
    total = np.float64(d_log_prob)
    for row in range(head.first[at], head.first[at + 1]):
        if logs[row] > _LEAST:
            total -= d_entropy * shares[row] * (logs[row] + 1.0)
    for row in range(head.first[at], head.first[at + 1]):
        slope = -shares[row] * total
        if logs[row] > _LEAST:
            slope -= d_entropy * shares[row] * (logs[row] + 1.0)
        logs[row] = slope
    logs[head.chosen[at]] += d_log_prob


@inlined
def _choices_back(work, head, d_log_prob, d_entropy):  # type: ignore[no-untyped-def]
    """Replace the log probabilities of a head by the gradient of its logits."""
    for at in range(work.size[_DECISIONS]):
        _choice_back(head, at, d_log_prob[at], d_entropy[at])


@inlined
def _score_options(layers, work, head):  # type: ignore[no-untyped-def]
    """Write the logits of a head with one score for each option."""
    count = head.first[work.size[_DECISIONS]]
    _score(layers, head.inputs, head.layers, count)
    for row in range(count):
        head.logs[row] = head.layers.out[row, 0]


@inlined
def _options_back(layers, gradient, work, head):  # type: ignore[no-untyped-def]
    """Write the gradient of the options' inputs, and add that of the layers."""
    count = head.first[work.size[_DECISIONS]]
    _clear(head.d_inputs, 0, count)
    for row in range(count):
        head.layers.d_out[row, 0] = head.logs[row]
    _go_back(layers, work, head.layers, head.d_inputs, 0, count)
    _add_gradient(gradient, work, head.inputs, head.layers, 0, count)


@inlined
def _outputs_back(parts, gradient, work):  # type: ignore[no-untyped-def]
    """Like `_options_back`, for limits with one output each."""
    head = work.w
    count = work.size[_DECISIONS]
    _clear(head.layers.d_out, 0, count)
    _clear(head.d_inputs, 0, count)
    for at in range(count):
        for row in range(head.first[at], head.first[at + 1]):
            head.layers.d_out[at, head.option[row]] = head.logs[row]
    _go_back(parts.w, work, head.layers, head.d_inputs, 0, count)
    _add_gradient(gradient.w, work, head.inputs, head.layers, 0, count)


@inlined
def _limits_back(parts, gradient, work):  # type: ignore[no-untyped-def]
    """Add the gradient of the layers that score limits, and of their inputs."""
    head = work.w
    is_single = parts.limits == _LIMIT_OUTPUTS
    if is_single:
        _outputs_back(parts, gradient, work)
    else:
        _options_back(parts.w, gradient.w, work, head)
    for at in range(work.size[_DECISIONS]):
        first = at if is_single else head.first[at]
        last = at + 1 if is_single else head.first[at + 1]
        for row in range(first, last):
            for column in range(head.d_inputs.shape[1]):
                place = _place_of(parts, column // _D) + column % _D
                work.d_shared[at, place] += head.d_inputs[row, column]


@inlined
def _score_classes(data, work, parts, group):  # type: ignore[no-untyped-def]
    """Write the logits of the executor classes that are offered and fit."""
    head = work.executor_class
    _list_options(work, head, data.can_class, data.class_choice, group)
    for at in range(group.shape[0]):
        for row in range(head.first[at], head.first[at + 1]):
            for feature in range(data.class_x.shape[2]):
                value = data.class_x[group[at], head.option[row], feature]
                head.inputs[row, 3 * _D + feature] = value
    _score_options(parts.executor_class, work, head)


@inlined
def _score_lengths(data, work, parts, group):  # type: ignore[no-untyped-def]
    """Write the logits of the idle slot's possible lengths."""
    head = work.idle
    _list_options(work, head, data.can_idle, data.idle_choice, group)
    most = data.can_idle.shape[1] - 1
    count = head.first[group.shape[0]]
    for row in range(count):
        head.inputs[row, 3 * _D] = head.option[row] / most
    _score_options(parts.idle, work, head)
    for row in range(count):
        if head.option[row] == 0:
            head.logs[row] += parts.no_slot[0]


@inlined
def _sum_shared(work, head):  # type: ignore[no-untyped-def]
    """Add the gradients of the options' inputs to those of the shared embeddings."""
    for at in range(work.size[_DECISIONS]):
        for row in range(head.first[at], head.first[at + 1]):
            for column in range(3 * _D):
                work.d_shared[at, column] += head.d_inputs[row, column]


@inlined
def _forward(data, parts, work, group, log_prob, entropy):  # type: ignore[no-untyped-def]
    """Judge a loaded group of decisions; see `judge`."""
    log_prob[:] = 0.0
    entropy[:] = 0.0
    _embed(parts, work)
    _list_stages(data, work, group)
    _score_options(parts.q, work, work.q)
    _judge_choices(work, work.q, log_prob, entropy)
    _share(work)
    if parts.limits != _LIMIT_NONE:
        _score_limits(data, work, parts, group)
        _judge_choices(work, work.w, log_prob, entropy)
    if data.can_class.shape[1] > 0:
        _score_classes(data, work, parts, group)
        _judge_choices(work, work.executor_class, log_prob, entropy)
    if data.can_idle.shape[1] > 0:
        _score_lengths(data, work, parts, group)
        _judge_choices(work, work.idle, log_prob, entropy)


@inlined
def _stages_scored_back(parts, gradient, work):  # type: ignore[no-untyped-def]
    """Add the gradient of the layers that score stages, and of their inputs."""
    head = work.q
    _options_back(parts.q, gradient.q, work, head)
    for decision in range(work.size[_DECISIONS]):
        for row in range(head.first[decision], head.first[decision + 1]):
            at = head.option[row]
            job = work.option_job[row]
            for o in range(_D):
                work.d_e[at, o] += head.d_inputs[row, o]
                work.d_y[job, o] += head.d_inputs[row, _D + o]
                work.d_z[decision, o] += head.d_inputs[row, 2 * _D + o]


@inlined
def _lengths_back(parts, gradient, work):  # type: ignore[no-untyped-def]
    """Add the gradient of the layers that score lengths of idle slots, and of their inputs."""
    head = work.idle
    for row in range(head.first[work.size[_DECISIONS]]):
        if head.option[row] == 0:
            gradient.no_slot[0] += head.logs[row]
    _options_back(parts.idle, gradient.idle, work, head)
    _sum_shared(work, head)


@inlined
def _clear_gradients(work):  # type: ignore[no-untyped-def]
    """Set the gradients of all embeddings to zero."""
    _clear(work.d_e, 0, work.size[_ROWS])
    _clear(work.d_y, 0, work.size[_JOBS])
    _clear(work.d_z, 0, work.size[_DECISIONS])
    _clear(work.d_shared, 0, work.size[_DECISIONS])


@inlined
def _heads_back(  # type: ignore[no-untyped-def]
    data, parts, gradient, work, d_log_prob, d_entropy
):
    """Add the gradients of the heads, and write those of all embeddings."""
    _clear_gradients(work)
    _choices_back(work, work.q, d_log_prob, d_entropy)
    _stages_scored_back(parts, gradient, work)
    if parts.limits != _LIMIT_NONE:
        _choices_back(work, work.w, d_log_prob, d_entropy)
        _limits_back(parts, gradient, work)
    if data.can_class.shape[1] > 0:
        head = work.executor_class
        _choices_back(work, head, d_log_prob, d_entropy)
        _options_back(parts.executor_class, gradient.executor_class, work, head)
        _sum_shared(work, head)
    if data.can_idle.shape[1] > 0:
        _choices_back(work, work.idle, d_log_prob, d_entropy)
        _lengths_back(parts, gradient, work)
    _share_back(work)


@inlined
def _judge_group(data, edges, parts, work, index, results, first):  # type: ignore[no-untyped-def]
    """Judge the decisions of a group, which begins with index[first]. Returns where it ends."""
    last = _load(data, edges, work, index, first)
    group = index[first:last]
    log_prob = results.log_prob[first:last]
    _forward(data, parts, work, group, log_prob, results.entropy[first:last])
    _copy(work.z, results.z[first:last], 0, last - first)
    return last


@inlined
def _write_slopes(loss, results, first, last):  # type: ignore[no-untyped-def]
    """Write the gradient of the loss of the decisions first .. last - 1."""
    for at in range(first, last):
        slope = -loss.weight[at]
        log_prob = results.log_prob[at]
        if loss.has_ratio:
            ratio = math.exp(log_prob - loss.old_log_prob[at])
            # A decision that became more (or less) likely than the clip allows counts no more.
            is_over = ratio > 1.0 + loss.clip and slope < 0.0
            is_under = ratio < 1.0 - loss.clip and slope > 0.0
            slope = 0.0 if is_over or is_under else slope * ratio
        elif log_prob < loss.least:
            slope = 0.0
        results.d_log_prob[at] = slope
        results.d_entropy[at] = -loss.entropy


@kernel
def judge(data, edges, parts, work, index, results):  # type: ignore[no-untyped-def]
    """Evaluate recorded decisions.

    Args:
        data: the Decisions.
        edges: the Edges of the workload.
        parts: the Parts of the network.
        work: the Passes, written.
        index: int64[B], which decisions.
        results: the Results, written, except for the slopes.
    """
    first = 0
    while first < index.shape[0]:
        first = _judge_group(data, edges, parts, work, index, results, first)


@kernel
def summarize(data, edges, parts, work, index, z):  # type: ignore[no-untyped-def]
    """Write the summaries of the cluster in recorded states to z; see `judge`."""
    first = 0
    while first < index.shape[0]:
        last = _load(data, edges, work, index, first)
        _embed(parts, work)
        for at in range(last - first):
            for o in range(_D):
                z[first + at, o] = work.z[at, o]
        first = last


@kernel
def differentiate(  # type: ignore[no-untyped-def]
    data, edges, parts, gradient, work, index, loss, results
):
    """Evaluate recorded decisions, and add the gradient of their loss to `gradient`.

    Args:
        data: the Decisions.
        edges: the Edges of the workload.
        parts: the Parts of the network.
        gradient: Parts, changed.
        work: the Passes, written.
        index: int64[B], which decisions.
        loss: the Loss. If slopes are given, they are those in `results`.
        results: the Results, written.
    """
    first = 0
    while first < index.shape[0]:
        last = _judge_group(data, edges, parts, work, index, results, first)
        if not loss.is_given:
            _write_slopes(loss, results, first, last)
        d_log_prob = results.d_log_prob[first:last]
        _heads_back(data, parts, gradient, work, d_log_prob, results.d_entropy[first:last])
        _embed_back(parts, gradient, work)
        first = last
