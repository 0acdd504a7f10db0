"""The training passes of Decima's network: judged decisions, and the gradient of their loss."""

from __future__ import annotations

import math

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel
from parcae.base.compiled.products import (
    add_outer,
    add_rows,
    copy_numbers,
    multiply,
    multiply_gated,
    multiply_rectified,
)
from parcae.decima.graph.kernels.features import add_row, copy_row, gate_row
from parcae.decima.graph.kernels.training_data import (
    DECISIONS,
    DIFFERENTIATE,
    EMBED,
    HEIGHTS,
    JOBS,
    ROWS,
    load,
)
from parcae.decima.graph.layout import EMBEDDING, LIMIT_OUTPUTS, SLOPE

#: Log probabilities below this count as those of impossible choices, as in `networks.training`.
_LEAST = -50.0
_D = EMBEDDING


@inlined
def _rows_of(head, at):  # type: ignore[no-untyped-def]
    """Return the rows of a decision's options."""
    return range(head.first[at], head.first[at + 1])


@inlined
def _judge_choices(work, head, log_prob, entropy):  # type: ignore[no-untyped-def]
    """Turn the logits of a head into log probabilities, and add what was chosen, and entropies."""
    logs = head.logs
    shares = head.shares
    for at in range(work.size[DECISIONS]):
        top = -math.inf
        for row in _rows_of(head, at):
            top = max(top, logs[row])
        total = 0.0
        for row in _rows_of(head, at):
            shares[row] = math.exp(logs[row] - top)
            total += shares[row]
        log_total = top + math.log(total)
        uncertainty = 0.0
        for row in _rows_of(head, at):
            logs[row] -= log_total
            shares[row] /= total
            if logs[row] > _LEAST:
                uncertainty -= shares[row] * logs[row]
        entropy[at] += uncertainty
        log_prob[at] += logs[head.chosen[at]]


@inlined
def _choices_back(work, head, d_log_prob, d_entropy):  # type: ignore[no-untyped-def]
    """Replace the log probabilities of a head by the gradient of its logits."""
    logs = head.logs
    shares = head.shares
    for at in range(work.size[DECISIONS]):
        total = np.float64(d_log_prob[at])
        for row in _rows_of(head, at):
            if logs[row] > _LEAST:
                total -= d_entropy[at] * shares[row] * (logs[row] + 1.0)
        for row in _rows_of(head, at):
            slope = -shares[row] * total
            if logs[row] > _LEAST:
                slope -= d_entropy[at] * shares[row] * (logs[row] + 1.0)
            logs[row] = slope
        logs[head.chosen[at]] += d_log_prob[at]


@inlined
def _apply(part, inputs, first, last):  # type: ignore[no-untyped-def]
    """Compute the hidden layers of a transform for the rows first .. last - 1."""
    h1 = part.h1[first:last]
    multiply_rectified(inputs[first:last], part.w1, part.b1, h1, SLOPE)
    multiply_rectified(h1, part.w2, part.b2, part.h2[first:last], SLOPE)


@inlined
def _transform(part, inputs, first, last):  # type: ignore[no-untyped-def]
    """Compute a transform with a rectified last layer for the rows first .. last - 1."""
    _apply(part, inputs, first, last)
    multiply_rectified(part.h2[first:last], part.w3, part.b3, part.out[first:last], SLOPE)


@inlined
def _score(part, inputs, count):  # type: ignore[no-untyped-def]
    """Compute a transform with a linear last layer for the first rows."""
    _apply(part, inputs, 0, count)
    multiply(part.h2[:count], part.w3, part.b3, part.out[:count])


@inlined
def _go_back(part, work, d_inputs, first, last):  # type: ignore[no-untyped-def]
    """Add to d_inputs the gradient of a transform's embedded inputs, from `d_out`."""
    d1 = part.d1[first:last]
    d2 = part.d2[first:last]
    d_out = part.d_out[first:last]
    multiply_gated(d_out, part.t3, work.zeros, d2, part.h2[first:last], SLOPE)
    multiply_gated(d2, part.t2, work.zeros, d1, part.h1[first:last], SLOPE)
    multiply(d1, part.t1, d_inputs[first:last], d_inputs[first:last])


@inlined
def _transform_back(part, work, d_inputs, first, last):  # type: ignore[no-untyped-def]
    """Like `_go_back`, for a transform whose last layer is rectified."""
    for row in range(first, last):
        gate_row(part.out, row, part.d_out, row)
    _go_back(part, work, d_inputs, first, last)


@inlined
def _add_gradient(part, inputs, first, last):  # type: ignore[no-untyped-def]
    """Add to the gradient of a transform what the rows first .. last - 1 contribute."""
    d1 = part.d1[first:last]
    d2 = part.d2[first:last]
    d_out = part.d_out[first:last]
    add_outer(inputs[first:last], d1, part.d_w1)
    add_rows(d1, part.d_b1)
    add_outer(part.h1[first:last], d2, part.d_w2)
    add_rows(d2, part.d_b2)
    add_outer(part.h2[first:last], d_out, part.d_w3)
    add_rows(d_out, part.d_b3)


@inlined
def _copy(source, target, first, last):  # type: ignore[no-untyped-def]
    """Copy rows of embeddings."""
    for row in range(first, last):
        copy_row(source, row, target, row)


@inlined
def _outer(work, part, inputs, y, first, last):  # type: ignore[no-untyped-def]
    """Write g(inputs) to y, or the inputs if the network has one transform for each level."""
    if work.has_two_transforms:
        _transform(part, inputs, first, last)
        _copy(part.out, y, first, last)
    else:
        _copy(inputs, y, first, last)


@inlined
def _outer_back(work, part, d_y, d_inputs, first, last):  # type: ignore[no-untyped-def]
    """Write the gradient of the inputs of `_outer` to d_inputs."""
    if work.has_two_transforms:
        _copy(d_y, part.d_out, first, last)
        d_inputs[first:last] = 0.0
        _transform_back(part, work, d_inputs, first, last)
    else:
        _copy(d_y, d_inputs, first, last)


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
def _list_stages(data, work, group):  # type: ignore[no-untyped-def]
    """Write the inputs of the stages that may be chosen, and remember the chosen ones."""
    head = work.q
    inputs = head.inputs
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
            copy_row(work.e, stage, inputs, count)
            copy_row(work.y, job, inputs[:, _D:], count)
            copy_row(work.z, at, inputs[:, 2 * _D :], count)
            x = inputs[count, 3 * _D :]
            copy_numbers(data.option_x[option], 0, x.shape[0], x)
            count += 1
    head.first[group.shape[0]] = count


@inlined
def _list_options(head, group, can, choice):  # type: ignore[no-untyped-def]
    """List the possible options of a head, and remember the chosen ones."""
    count = 0
    for at in range(group.shape[0]):
        head.first[at] = count
        for option in range(can.shape[1]):
            if can[group[at], option]:
                if option == choice[group[at]]:
                    head.chosen[at] = count
                head.option[count] = option
                count += 1
    head.first[group.shape[0]] = count


@inlined
def _write_shared(work, head, at, row):  # type: ignore[no-untyped-def]
    """Write the embeddings that a decision's options have in common to a row of inputs."""
    for place in range(head.places.shape[0]):
        shared = work.shared[:, head.places[place] :]
        copy_row(shared, at, head.inputs[:, place * _D :], row)


@inlined
def _write_options(data, work, head, group, x):  # type: ignore[no-untyped-def]
    """Write the inputs of listed options: embeddings, features of the chosen stage, and their own.

    Of the stage's features a head takes as many as it has inputs for.
    """
    column = head.d_inputs.shape[1]
    last = head.inputs.shape[1] - x.shape[2]
    for at in range(group.shape[0]):
        stage = data.first_option[group[at]] + data.choice[group[at]]
        for row in _rows_of(head, at):
            _write_shared(work, head, at, row)
            copy_numbers(data.option_x[stage], 0, last - column, head.inputs[row, column:last])
            own = x[group[at], head.option[row]]
            copy_numbers(own, 0, x.shape[2], head.inputs[row, last:])


@inlined
def _score_options(work, head):  # type: ignore[no-untyped-def]
    count = head.first[work.size[DECISIONS]]
    _score(head.part, head.inputs, count)
    for row in range(count):
        head.logs[row] = head.part.out[row, 0]


@inlined
def _score_outputs(work, head):  # type: ignore[no-untyped-def]
    """Like `_score_options`, for options with one output each: a decision has one row of inputs."""
    for at in range(work.size[DECISIONS]):
        _write_shared(work, head, at, at)
    _score(head.part, head.inputs, work.size[DECISIONS])
    for at in range(work.size[DECISIONS]):
        for row in _rows_of(head, at):
            head.logs[row] = head.part.out[at, head.option[row]]


@inlined
def _head_back(work, head, count):  # type: ignore[no-untyped-def]
    """Write the gradient of the first rows of inputs of a head, and add that of its layers."""
    head.d_inputs[:count] = 0.0
    _go_back(head.part, work, head.d_inputs, 0, count)
    _add_gradient(head.part, head.inputs, 0, count)


@inlined
def _options_back(work, head):  # type: ignore[no-untyped-def]
    """Write the gradient of the options' inputs, and add that of the layers."""
    count = head.first[work.size[DECISIONS]]
    for row in range(count):
        head.part.d_out[row, 0] = head.logs[row]
    _head_back(work, head, count)


@inlined
def _outputs_back(work, head):  # type: ignore[no-untyped-def]
    """Like `_options_back`, for options with one output each."""
    count = work.size[DECISIONS]
    head.part.d_out[:count] = 0.0
    for at in range(count):
        for row in _rows_of(head, at):
            head.part.d_out[at, head.option[row]] = head.logs[row]
    _head_back(work, head, count)


@inlined
def _stages_scored_back(work):  # type: ignore[no-untyped-def]
    """Add the gradient of the layers that score stages, and of their inputs."""
    head = work.q
    _options_back(work, head)
    for at in range(work.size[DECISIONS]):
        for row in _rows_of(head, at):
            add_row(head.d_inputs, row, work.d_e, head.option[row])
            add_row(head.d_inputs[:, _D:], row, work.d_y, work.option_job[row])
            add_row(head.d_inputs[:, 2 * _D :], row, work.d_z, at)


@inlined
def _add_shared(work, head, at, row):  # type: ignore[no-untyped-def]
    """Add the gradient of a row of inputs to those of the shared embeddings."""
    for place in range(head.places.shape[0]):
        shared = work.d_shared[:, head.places[place] :]
        add_row(head.d_inputs[:, place * _D :], row, shared, at)


@inlined
def _options_scored_back(work, head):  # type: ignore[no-untyped-def]
    """Add the gradient of the layers that score a head's options, and of their inputs."""
    _options_back(work, head)
    for at in range(work.size[DECISIONS]):
        for row in _rows_of(head, at):
            _add_shared(work, head, at, row)


@inlined
def _judge_heads(data, work, group, log_prob, entropy):  # type: ignore[no-untyped-def]
    """Judge an embedded group of decisions: write its log probabilities and entropies."""
    log_prob[:] = 0.0
    entropy[:] = 0.0
    _list_stages(data, work, group)
    _score_options(work, work.q)
    _judge_choices(work, work.q, log_prob, entropy)
    _share(work)
    if data.can_limit.shape[1] > 0:
        _list_options(work.w, group, data.can_limit, data.level)
        if work.limits == LIMIT_OUTPUTS:
            _score_outputs(work, work.w)
        else:
            _write_options(data, work, work.w, group, data.limit_x)
            _score_options(work, work.w)
        _judge_choices(work, work.w, log_prob, entropy)
    if data.can_class.shape[1] > 0:
        head = work.executor_class
        _list_options(head, group, data.can_class, data.class_choice)
        _write_options(data, work, head, group, data.class_x)
        _score_options(work, head)
        _judge_choices(work, head, log_prob, entropy)
    if data.can_idle.shape[1] > 0:
        _list_options(work.idle, group, data.can_idle, data.idle_choice)
        _write_options(data, work, work.idle, group, data.idle_x)
        _score_options(work, work.idle)
        for row in range(work.idle.first[group.shape[0]]):
            if work.idle.option[row] == 0:
                work.idle.logs[row] += work.no_slot[0]
        _judge_choices(work, work.idle, log_prob, entropy)


@inlined
def _heads_back(data, work, d_log_prob, d_entropy):  # type: ignore[no-untyped-def]
    """Add the gradients of the heads, and write those of all embeddings."""
    work.d_e[: work.size[ROWS]] = 0.0
    work.d_y[: work.size[JOBS]] = 0.0
    work.d_z[: work.size[DECISIONS]] = 0.0
    work.d_shared[: work.size[DECISIONS]] = 0.0
    _choices_back(work, work.q, d_log_prob, d_entropy)
    _stages_scored_back(work)
    if data.can_limit.shape[1] > 0:
        _choices_back(work, work.w, d_log_prob, d_entropy)
        if work.limits == LIMIT_OUTPUTS:
            _outputs_back(work, work.w)
            for at in range(work.size[DECISIONS]):
                _add_shared(work, work.w, at, at)
        else:
            _options_scored_back(work, work.w)
    if data.can_class.shape[1] > 0:
        _choices_back(work, work.executor_class, d_log_prob, d_entropy)
        _options_scored_back(work, work.executor_class)
    if data.can_idle.shape[1] > 0:
        _choices_back(work, work.idle, d_log_prob, d_entropy)
        for row in range(work.idle.first[work.size[DECISIONS]]):
            if work.idle.option[row] == 0:
                work.d_no_slot[0] += work.idle.logs[row]
        _options_scored_back(work, work.idle)
    _share_back(work)


@inlined
def _embed_stages(work):  # type: ignore[no-untyped-def]
    """Compute e_v of all stages (Decima, Eq. 1), from leaves to roots."""
    rows = work.size[ROWS]
    multiply(work.x[:rows], work.prep_weight, work.prep_bias, work.e[:rows])
    if not work.has_graph:
        return
    for height in range(work.size[HEIGHTS]):
        first = work.bound[2 * height]
        last = work.bound[2 * height + 2]
        if height > 0:
            work.total[first:last] = 0.0
            for row in range(first, last):
                edge = work.first_edge[row]
                while edge >= 0:
                    add_row(work.f_stage.out, work.child[edge], work.total, row)
                    edge = work.next_edge[edge]
            # d_total is free in this pass, and takes what is added to e.
            _outer(work, work.g_stage, work.total, work.d_total, first, last)
            for row in range(first, last):
                add_row(work.d_total, row, work.e, row)
        _transform(work.f_stage, work.e, first, work.bound[2 * height + 1])


@inlined
def _embed(work):  # type: ignore[no-untyped-def]
    """Compute the embeddings of stages, jobs and clusters."""
    _embed_stages(work)
    if not work.has_graph:
        return
    jobs = work.size[JOBS]
    _transform(work.f_job, work.inputs, 0, work.size[ROWS])
    work.job_total[:jobs] = 0.0
    for job in range(jobs):
        for entry in range(work.first_of[job], work.first_of[job + 1]):
            add_row(work.f_job.out, work.listed[entry], work.job_total, job)
    _outer(work, work.g_job, work.job_total, work.y, 0, jobs)
    _transform(work.f_global, work.y, 0, jobs)
    decisions = work.size[DECISIONS]
    work.global_total[:decisions] = 0.0
    for member in range(work.first_member[decisions]):
        decision = work.member_decision[member]
        add_row(work.f_global.out, work.member_job[member], work.global_total, decision)
    _outer(work, work.g_global, work.global_total, work.z, 0, decisions)


@inlined
def _summaries_back(work):  # type: ignore[no-untyped-def]
    """Complete the gradients of y_i, and add to those of e_v."""
    jobs = work.size[JOBS]
    rows = work.size[ROWS]
    decisions = work.size[DECISIONS]
    _outer_back(work, work.g_global, work.d_z, work.d_global_total, 0, decisions)
    work.f_global.d_out[:jobs] = 0.0
    for member in range(work.first_member[decisions]):
        decision = work.member_decision[member]
        add_row(work.d_global_total, decision, work.f_global.d_out, work.member_job[member])
    _transform_back(work.f_global, work, work.d_y, 0, jobs)
    _outer_back(work, work.g_job, work.d_y, work.d_job_total, 0, jobs)
    work.f_job.d_out[:rows] = 0.0
    for job in range(jobs):
        for entry in range(work.first_of[job], work.first_of[job + 1]):
            add_row(work.d_job_total, job, work.f_job.d_out, work.listed[entry])
    _transform_back(work.f_job, work, work.d_e, 0, rows)


@inlined
def _stages_back(work):  # type: ignore[no-untyped-def]
    """Complete the gradient of e_v of all stages, from roots to leaves."""
    f_stage = work.f_stage
    f_stage.d_out[: work.size[ROWS]] = 0.0
    for height in range(work.size[HEIGHTS] - 1, -1, -1):
        first = work.bound[2 * height]
        middle = work.bound[2 * height + 1]
        last = work.bound[2 * height + 2]
        # The rows from `middle` on wait for no stage: no other embedding contains theirs.
        f_stage.d1[middle:last] = 0.0
        f_stage.d2[middle:last] = 0.0
        _transform_back(f_stage, work, work.d_e, first, middle)
        if height == 0:
            continue
        _outer_back(work, work.g_stage, work.d_e, work.d_total, first, last)
        for row in range(first, last):
            edge = work.first_edge[row]
            while edge >= 0:
                add_row(work.d_total, row, f_stage.d_out, work.child[edge])
                edge = work.next_edge[edge]


@inlined
def _embed_back(work):  # type: ignore[no-untyped-def]
    """Add the gradient of the transforms below the heads, from d_e, d_y and d_z."""
    rows = work.size[ROWS]
    jobs = work.size[JOBS]
    if work.has_graph:
        _summaries_back(work)
        _stages_back(work)
        _add_gradient(work.f_stage, work.e, 0, rows)
        _add_gradient(work.f_job, work.inputs, 0, rows)
        _add_gradient(work.f_global, work.y, 0, jobs)
        if work.has_two_transforms:
            _add_gradient(work.g_stage, work.total, work.bound[2], rows)
            _add_gradient(work.g_job, work.job_total, 0, jobs)
            _add_gradient(work.g_global, work.global_total, 0, work.size[DECISIONS])
    d_e = work.d_e[:rows]
    add_outer(work.x[:rows], d_e, work.d_prep_weight)
    add_rows(d_e, work.d_prep_bias)


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
def judge(data, edges, work, index, loss, results):  # type: ignore[no-untyped-def]
    """Embed and judge recorded decisions, and add the gradient of their loss to that in `work`, as
    far as `loss.goal` says.
    """
    first = 0
    while first < index.shape[0]:
        last = load(data, edges, work, index, first)
        _embed(work)
        _copy(work.z, results.z[first:last], 0, last - first)
        if loss.goal != EMBED:
            log_prob = results.log_prob[first:last]
            entropy = results.entropy[first:last]
            _judge_heads(data, work, index[first:last], log_prob, entropy)
        if loss.goal == DIFFERENTIATE:
            if not loss.is_given:
                _write_slopes(loss, results, first, last)
            d_log_prob = results.d_log_prob[first:last]
            _heads_back(data, work, d_log_prob, results.d_entropy[first:last])
            _embed_back(work)
        first = last
