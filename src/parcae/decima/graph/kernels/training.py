"""The layers of a transform for many rows, and their gradients."""

from __future__ import annotations

import math

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel
from parcae.base.compiled.products import (
    add_outer,
    add_rows,
    multiply,
    multiply_gated,
    multiply_rectified,
)
from parcae.decima.graph.kernels.training_data import DECISIONS, HEIGHTS, JOBS, ROWS, load
from parcae.decima.graph.kernels.transforms import add_row, clear_rows, copy_row, gate_row
from parcae.decima.graph.layout import EMBEDDING, LIMIT_NONE, LIMIT_OUTPUTS, SLOPE

#: Log probabilities below this count as those of impossible choices, as in `networks.ragged`.
_LEAST = -50.0


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
def judge_choices(work, head, log_prob, entropy):  # type: ignore[no-untyped-def]
    """Turn the logits of a head into log probabilities, and add what was chosen."""
    for at in range(work.size[DECISIONS]):
        entropy[at] += _judge_choice(head.logs, head.shares, head.first[at], head.first[at + 1])
        log_prob[at] += head.logs[head.chosen[at]]


@inlined
def _choice_back(head, at, d_log_prob, d_entropy):  # type: ignore[no-untyped-def]
    """Replace log probabilities by the gradient of their logits."""
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
def choices_back(work, head, d_log_prob, d_entropy):  # type: ignore[no-untyped-def]
    """Replace the log probabilities of a head by the gradient of its logits."""
    for at in range(work.size[DECISIONS]):
        _choice_back(head, at, d_log_prob[at], d_entropy[at])


@inlined
def _apply(layers, inputs, out, first, last):  # type: ignore[no-untyped-def]
    """Compute the hidden layers of a transform for the rows first .. last - 1."""
    h1 = out.h1[first:last]
    multiply_rectified(inputs[first:last], layers.w1, layers.b1, h1, SLOPE)
    multiply_rectified(h1, layers.w2, layers.b2, out.h2[first:last], SLOPE)


@inlined
def transform(layers, inputs, out, first, last):  # type: ignore[no-untyped-def]
    """Compute a transform with a rectified last layer for the rows first .. last - 1."""
    _apply(layers, inputs, out, first, last)
    h2 = out.h2[first:last]
    multiply_rectified(h2, layers.w3, layers.b3, out.out[first:last], SLOPE)


@inlined
def score(layers, inputs, out, count):  # type: ignore[no-untyped-def]
    """Compute a transform with a linear last layer for the first rows."""
    _apply(layers, inputs, out, 0, count)
    multiply(out.h2[:count], layers.w3, layers.b3, out.out[:count])


@inlined
def go_back(layers, work, out, d_inputs, first, last):  # type: ignore[no-untyped-def]
    """Add to d_inputs the gradient of a transform's embedded inputs, from `out.d_out`."""
    d1 = out.d1[first:last]
    d2 = out.d2[first:last]
    d_out = out.d_out[first:last]
    multiply_gated(d_out, layers.t3, work.zeros, d2, out.h2[first:last], SLOPE)
    multiply_gated(d2, layers.t2, work.zeros, d1, out.h1[first:last], SLOPE)
    multiply(d1, layers.t1, d_inputs[first:last], d_inputs[first:last])


@inlined
def transform_back(layers, work, out, d_inputs, first, last):  # type: ignore[no-untyped-def]
    """Like `go_back`, for a transform whose last layer is rectified."""
    for row in range(first, last):
        gate_row(out.out, out.d_out, row, SLOPE)
    go_back(layers, work, out, d_inputs, first, last)


@inlined
def add_gradient(gradient, inputs, out, first, last):  # type: ignore[no-untyped-def]
    """Add to the gradient of a transform what the rows first .. last - 1 contribute."""
    d1 = out.d1[first:last]
    d2 = out.d2[first:last]
    d_out = out.d_out[first:last]
    add_outer(inputs[first:last], d1, gradient.w1)
    add_rows(d1, gradient.b1)
    add_outer(out.h1[first:last], d2, gradient.w2)
    add_rows(d2, gradient.b2)
    add_outer(out.h2[first:last], d_out, gradient.w3)
    add_rows(d_out, gradient.b3)


@inlined
def copy(source, target, first, last):  # type: ignore[no-untyped-def]
    """Copy rows of embeddings."""
    for row in range(first, last):
        copy_row(source, row, target, row)


@inlined
def outer(parts, layers, inputs, out, y, first, last):  # type: ignore[no-untyped-def]
    """Write g(inputs) to y, or the inputs if the network has one transform for each level."""
    if parts.has_two_transforms:
        transform(layers, inputs, out, first, last)
        copy(out.out, y, first, last)
    else:
        copy(inputs, y, first, last)


@inlined
def outer_back(  # type: ignore[no-untyped-def]
    parts, layers, work, out, d_y, d_inputs, first, last
):
    """Write the gradient of the inputs of `outer` to d_inputs."""
    if parts.has_two_transforms:
        copy(d_y, out.d_out, first, last)
        clear_rows(d_inputs, first, last)
        transform_back(layers, work, out, d_inputs, first, last)
    else:
        copy(d_y, d_inputs, first, last)


_D = EMBEDDING


@inlined
def _share(work):  # type: ignore[no-untyped-def]
    """Write the embeddings that all options of a chosen stage have in common: e, y, z."""
    for at in range(work.size[DECISIONS]):
        copy_row(work.e, work.stage[at], work.shared, at)
        copy_row(work.y, work.stage_job[at], work.shared[:, _D:], at)
        copy_row(work.z, at, work.shared[:, 2 * _D :], at)


@inlined
def _share_back(work):  # type: ignore[no-untyped-def]
    """Add the gradients of the shared embeddings to those of stages, jobs and clusters."""
    for at in range(work.size[DECISIONS]):
        add_row(work.d_shared, at, work.d_e, work.stage[at])
        add_row(work.d_shared[:, _D:], at, work.d_y, work.stage_job[at])
        add_row(work.d_shared[:, 2 * _D :], at, work.d_z, at)


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
    copy_row(work.e, stage, inputs, count)
    copy_row(work.y, job, inputs[:, _D:], count)
    copy_row(work.z, decision, inputs[:, 2 * _D :], count)
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
    for part in range(head.d_inputs.shape[1] // _D):
        shared = work.shared[:, _place_of(parts, part) :]
        copy_row(shared, at, head.inputs[:, part * _D :], row)


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
    if parts.limits == LIMIT_OUTPUTS:
        for at in range(decisions):
            _write_limit(work, parts, at, at)
        score(parts.w, head.inputs, head.layers, decisions)
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
            for part in range(3):
                copy_row(work.shared[:, part * _D :], at, head.inputs[:, part * _D :], count)
            count += 1
    head.first[group.shape[0]] = count


@inlined
def _score_options(layers, work, head):  # type: ignore[no-untyped-def]
    count = head.first[work.size[DECISIONS]]
    score(layers, head.inputs, head.layers, count)
    for row in range(count):
        head.logs[row] = head.layers.out[row, 0]


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
def _options_back(layers, gradient, work, head):  # type: ignore[no-untyped-def]
    """Write the gradient of the options' inputs, and add that of the layers."""
    count = head.first[work.size[DECISIONS]]
    clear_rows(head.d_inputs, 0, count)
    for row in range(count):
        head.layers.d_out[row, 0] = head.logs[row]
    go_back(layers, work, head.layers, head.d_inputs, 0, count)
    add_gradient(gradient, head.inputs, head.layers, 0, count)


@inlined
def _outputs_back(parts, gradient, work):  # type: ignore[no-untyped-def]
    """Like `_options_back`, for limits with one output each."""
    head = work.w
    count = work.size[DECISIONS]
    clear_rows(head.layers.d_out, 0, count)
    clear_rows(head.d_inputs, 0, count)
    for at in range(count):
        for row in range(head.first[at], head.first[at + 1]):
            head.layers.d_out[at, head.option[row]] = head.logs[row]
    go_back(parts.w, work, head.layers, head.d_inputs, 0, count)
    add_gradient(gradient.w, head.inputs, head.layers, 0, count)


@inlined
def _limits_back(parts, gradient, work):  # type: ignore[no-untyped-def]
    """Add the gradient of the layers that score limits, and of their inputs."""
    head = work.w
    is_single = parts.limits == LIMIT_OUTPUTS
    if is_single:
        _outputs_back(parts, gradient, work)
    else:
        _options_back(parts.w, gradient.w, work, head)
    for at in range(work.size[DECISIONS]):
        first = at if is_single else head.first[at]
        last = at + 1 if is_single else head.first[at + 1]
        for row in range(first, last):
            for part in range(head.d_inputs.shape[1] // _D):
                shared = work.d_shared[:, _place_of(parts, part) :]
                add_row(head.d_inputs[:, part * _D :], row, shared, at)


@inlined
def _sum_shared(work, head):  # type: ignore[no-untyped-def]
    """Add the gradients of the options' inputs to those of the shared embeddings."""
    for at in range(work.size[DECISIONS]):
        for row in range(head.first[at], head.first[at + 1]):
            for part in range(3):
                add_row(head.d_inputs[:, part * _D :], row, work.d_shared[:, part * _D :], at)


@inlined
def _stages_scored_back(parts, gradient, work):  # type: ignore[no-untyped-def]
    """Add the gradient of the layers that score stages, and of their inputs."""
    head = work.q
    _options_back(parts.q, gradient.q, work, head)
    for decision in range(work.size[DECISIONS]):
        for row in range(head.first[decision], head.first[decision + 1]):
            at = head.option[row]
            job = work.option_job[row]
            add_row(head.d_inputs, row, work.d_e, at)
            add_row(head.d_inputs[:, _D:], row, work.d_y, job)
            add_row(head.d_inputs[:, 2 * _D :], row, work.d_z, decision)


@inlined
def _lengths_back(parts, gradient, work):  # type: ignore[no-untyped-def]
    """Add the gradient of the layers that score lengths of idle slots, and of their inputs."""
    head = work.idle
    for row in range(head.first[work.size[DECISIONS]]):
        if head.option[row] == 0:
            gradient.no_slot[0] += head.logs[row]
    _options_back(parts.idle, gradient.idle, work, head)
    _sum_shared(work, head)


@inlined
def _clear_gradients(work):  # type: ignore[no-untyped-def]
    """Set the gradients of all embeddings to zero."""
    clear_rows(work.d_e, 0, work.size[ROWS])
    clear_rows(work.d_y, 0, work.size[JOBS])
    clear_rows(work.d_z, 0, work.size[DECISIONS])
    clear_rows(work.d_shared, 0, work.size[DECISIONS])


@inlined
def judge_heads(data, parts, work, group, log_prob, entropy):  # type: ignore[no-untyped-def]
    """Judge an embedded group of decisions: write its log probabilities and entropies."""
    log_prob[:] = 0.0
    entropy[:] = 0.0
    _list_stages(data, work, group)
    _score_options(parts.q, work, work.q)
    judge_choices(work, work.q, log_prob, entropy)
    _share(work)
    if parts.limits != LIMIT_NONE:
        _score_limits(data, work, parts, group)
        judge_choices(work, work.w, log_prob, entropy)
    if data.can_class.shape[1] > 0:
        _score_classes(data, work, parts, group)
        judge_choices(work, work.executor_class, log_prob, entropy)
    if data.can_idle.shape[1] > 0:
        _score_lengths(data, work, parts, group)
        judge_choices(work, work.idle, log_prob, entropy)


@inlined
def heads_back(  # type: ignore[no-untyped-def]
    data, parts, gradient, work, d_log_prob, d_entropy
):
    """Add the gradients of the heads, and write those of all embeddings."""
    _clear_gradients(work)
    choices_back(work, work.q, d_log_prob, d_entropy)
    _stages_scored_back(parts, gradient, work)
    if parts.limits != LIMIT_NONE:
        choices_back(work, work.w, d_log_prob, d_entropy)
        _limits_back(parts, gradient, work)
    if data.can_class.shape[1] > 0:
        head = work.executor_class
        choices_back(work, head, d_log_prob, d_entropy)
        _options_back(parts.executor_class, gradient.executor_class, work, head)
        _sum_shared(work, head)
    if data.can_idle.shape[1] > 0:
        choices_back(work, work.idle, d_log_prob, d_entropy)
        _lengths_back(parts, gradient, work)
    _share_back(work)


@inlined
def _embed_stages(parts, work):  # type: ignore[no-untyped-def]
    """Compute e_v of all stages (Decima, Eq. 1), from leaves to roots."""
    rows = work.size[ROWS]
    multiply(work.x[:rows], parts.prep_weight, parts.prep_bias, work.e[:rows])
    if not parts.has_graph:
        return
    for height in range(work.size[HEIGHTS]):
        first = work.bound[2 * height]
        last = work.bound[2 * height + 2]
        if height > 0:
            clear_rows(work.total, first, last)
            for row in range(first, last):
                edge = work.first_edge[row]
                while edge >= 0:
                    add_row(work.f_stage.out, work.child[edge], work.total, row)
                    edge = work.next_edge[edge]
            # d_total is free in this pass, and takes what is added to e.
            outer(parts, parts.g_stage, work.total, work.g_stage, work.d_total, first, last)
            for row in range(first, last):
                add_row(work.d_total, row, work.e, row)
        transform(parts.f_stage, work.e, work.f_stage, first, work.bound[2 * height + 1])


@inlined
def embed(parts, work):  # type: ignore[no-untyped-def]
    """Compute the embeddings of stages, jobs and clusters."""
    _embed_stages(parts, work)
    jobs = work.size[JOBS]
    rows = work.size[ROWS]
    if not parts.has_graph:
        return
    transform(parts.f_job, work.inputs, work.f_job, 0, rows)
    clear_rows(work.job_total, 0, jobs)
    for job in range(jobs):
        for entry in range(work.first_of[job], work.first_of[job + 1]):
            add_row(work.f_job.out, work.listed[entry], work.job_total, job)
    outer(parts, parts.g_job, work.job_total, work.g_job, work.y, 0, jobs)
    transform(parts.f_global, work.y, work.f_global, 0, jobs)
    decisions = work.size[DECISIONS]
    clear_rows(work.global_total, 0, decisions)
    for member in range(work.first_member[decisions]):
        job = work.member_job[member]
        add_row(work.f_global.out, job, work.global_total, work.member_decision[member])
    outer(parts, parts.g_global, work.global_total, work.g_global, work.z, 0, decisions)


@inlined
def _summaries_back(parts, work):  # type: ignore[no-untyped-def]
    """Complete the gradients of y_i, and add to those of e_v."""
    jobs = work.size[JOBS]
    rows = work.size[ROWS]
    decisions = work.size[DECISIONS]
    g_global = work.g_global
    d_total = work.d_global_total
    outer_back(parts, parts.g_global, work, g_global, work.d_z, d_total, 0, decisions)
    clear_rows(work.f_global.d_out, 0, jobs)
    for member in range(work.first_member[decisions]):
        decision = work.member_decision[member]
        add_row(d_total, decision, work.f_global.d_out, work.member_job[member])
    transform_back(parts.f_global, work, work.f_global, work.d_y, 0, jobs)
    outer_back(parts, parts.g_job, work, work.g_job, work.d_y, work.d_job_total, 0, jobs)
    clear_rows(work.f_job.d_out, 0, rows)
    for job in range(jobs):
        for entry in range(work.first_of[job], work.first_of[job + 1]):
            add_row(work.d_job_total, job, work.f_job.d_out, work.listed[entry])
    transform_back(parts.f_job, work, work.f_job, work.d_e, 0, rows)


@inlined
def embed_back(parts, gradient, work):  # type: ignore[no-untyped-def]
    """Add the gradient of the transforms below the heads, from d_e, d_y and d_z."""
    if parts.has_graph:
        _summaries_back(parts, work)
        _stages_back(parts, work)
        _add_gradients(parts, gradient, work)
    rows = work.size[ROWS]
    d_e = work.d_e[:rows]
    add_outer(work.x[:rows], d_e, gradient.prep_weight)
    add_rows(d_e, gradient.prep_bias)


@inlined
def _stages_back(parts, work):  # type: ignore[no-untyped-def]
    """Complete the gradient of e_v of all stages, from roots to leaves."""
    f_stage = work.f_stage
    clear_rows(f_stage.d_out, 0, work.size[ROWS])
    for height in range(work.size[HEIGHTS] - 1, -1, -1):
        first = work.bound[2 * height]
        middle = work.bound[2 * height + 1]
        last = work.bound[2 * height + 2]
        # The rows from `middle` on wait for no stage: no other embedding contains theirs.
        clear_rows(f_stage.d1, middle, last)
        clear_rows(f_stage.d2, middle, last)
        transform_back(parts.f_stage, work, f_stage, work.d_e, first, middle)
        if height == 0:
            continue
        outer_back(parts, parts.g_stage, work, work.g_stage, work.d_e, work.d_total, first, last)
        for row in range(first, last):
            edge = work.first_edge[row]
            while edge >= 0:
                add_row(work.d_total, row, f_stage.d_out, work.child[edge])
                edge = work.next_edge[edge]


@inlined
def _add_gradients(parts, gradient, work):  # type: ignore[no-untyped-def]
    """Add the gradients of the transforms that embed."""
    jobs = work.size[JOBS]
    rows = work.size[ROWS]
    decisions = work.size[DECISIONS]
    above = work.bound[2]
    add_gradient(gradient.f_stage, work.e, work.f_stage, 0, rows)
    add_gradient(gradient.f_job, work.inputs, work.f_job, 0, rows)
    add_gradient(gradient.f_global, work.y, work.f_global, 0, jobs)
    if parts.has_two_transforms:
        add_gradient(gradient.g_stage, work.total, work.g_stage, above, rows)
        add_gradient(gradient.g_job, work.job_total, work.g_job, 0, jobs)
        add_gradient(gradient.g_global, work.global_total, work.g_global, 0, decisions)


@inlined
def _judge_group(data, edges, parts, work, index, results, first):  # type: ignore[no-untyped-def]
    """Judge the decisions of a group, which begins with index[first]. Returns where it ends."""
    last = load(data, edges, work, index, first)
    group = index[first:last]
    log_prob = results.log_prob[first:last]
    embed(parts, work)
    judge_heads(data, parts, work, group, log_prob, results.entropy[first:last])
    copy(work.z, results.z[first:last], 0, last - first)
    return last


@inlined
def _write_slopes(loss, results, first, last):  # type: ignore[no-untyped-def]
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
    """Evaluate recorded decisions."""
    first = 0
    while first < index.shape[0]:
        first = _judge_group(data, edges, parts, work, index, results, first)


@kernel
def summarize(data, edges, parts, work, index, z):  # type: ignore[no-untyped-def]
    """Write the summaries of the cluster in recorded states to z; see `judge`."""
    first = 0
    while first < index.shape[0]:
        last = load(data, edges, work, index, first)
        embed(parts, work)
        copy(work.z, z[first:last], 0, last - first)
        first = last


@kernel
def differentiate(  # type: ignore[no-untyped-def]
    data, edges, parts, gradient, work, index, loss, results
):
    """Evaluate recorded decisions, and add the gradient of their loss to `gradient`."""
    first = 0
    while first < index.shape[0]:
        last = _judge_group(data, edges, parts, work, index, results, first)
        if not loss.is_given:
            _write_slopes(loss, results, first, last)
        d_log_prob = results.d_log_prob[first:last]
        heads_back(data, parts, gradient, work, d_log_prob, results.d_entropy[first:last])
        embed_back(parts, gradient, work)
        first = last
