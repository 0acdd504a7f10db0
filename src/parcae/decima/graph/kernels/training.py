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
from parcae.decima.graph.kernels.training_data import DECISIONS, HEIGHTS, JOBS, ROWS, load
from parcae.decima.graph.layout import EMBEDDING, SLOPE

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
def _choices_back(work, head, d_entropy):  # type: ignore[no-untyped-def]
    """Replace the log probabilities of a head by the gradient of its logits."""
    logs = head.logs
    shares = head.shares
    for at in range(work.size[DECISIONS]):
        slope_of_chosen = np.float64(work.d_log_prob[at])
        total = slope_of_chosen
        for row in _rows_of(head, at):
            if logs[row] > _LEAST:
                total -= d_entropy * shares[row] * (logs[row] + 1.0)
        for row in _rows_of(head, at):
            slope = -shares[row] * total
            if logs[row] > _LEAST:
                slope -= d_entropy * shares[row] * (logs[row] + 1.0)
            logs[row] = slope
        logs[head.chosen[at]] += slope_of_chosen


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
def _list_stages(data, work, group):  # type: ignore[no-untyped-def]
    """List the stages that may be chosen, and remember the chosen ones."""
    head = work.q
    count = 0
    for at in range(group.shape[0]):
        decision = group[at]
        head.first[at] = count
        first = data.first_option[decision]
        head.chosen[at] = count + data.choice[decision]
        for option in range(first, first + data.num_options[decision]):
            job = work.member_job[work.first_member[at] + data.option_job[option]]
            head.owner[count] = at
            head.job[count] = job
            head.stage[count] = work.listed[work.first_of[job] + data.option_stage[option]]
            head.direct[count] = option
            count += 1
    head.first[group.shape[0]] = count


@inlined
def _list_options(work, head, group, can, choice):  # type: ignore[no-untyped-def]
    """List the possible options of a head for the chosen stages, and remember the chosen ones."""
    count = 0
    for at in range(group.shape[0]):
        head.first[at] = count
        stage = work.q.chosen[at]
        for option in range(can.shape[1]):
            if can[group[at], option]:
                if option == choice[group[at]]:
                    head.chosen[at] = count
                head.owner[count] = at
                head.job[count] = work.q.job[stage]
                head.stage[count] = work.q.stage[stage]
                head.direct[count] = work.q.direct[stage]
                head.option[count] = option
                count += 1
    head.first[group.shape[0]] = count


@inlined
def _is_wide(head):  # type: ignore[no-untyped-def]
    """Whether options have one output each, so that a decision has a single row of inputs."""
    return head.part.out.shape[1] > 1


@inlined
def _num_inputs(work, head):  # type: ignore[no-untyped-def]
    """Return the number of rows of inputs."""
    decisions = work.size[DECISIONS]
    return decisions if _is_wide(head) else head.first[decisions]


@inlined
def _option_of(head, row):  # type: ignore[no-untyped-def]
    """Return an option that a row of inputs stands for."""
    return head.first[row] if _is_wide(head) else row


@inlined
def _write_inputs(data, work, head, num_own):  # type: ignore[no-untyped-def]
    """Write embeddings and features of stages to the inputs, whose last `num_own` are left out.

    Of the stages' features a head takes as many as it has inputs for.
    """
    column = head.d_inputs.shape[1]
    last = head.inputs.shape[1] - num_own
    for row in range(_num_inputs(work, head)):
        option = _option_of(head, row)
        for place in range(head.places.shape[0]):
            inputs = head.inputs[:, place * _D :]
            if head.places[place] == 0:
                copy_row(work.e, head.stage[option], inputs, row)
            elif head.places[place] == _D:
                copy_row(work.y, head.job[option], inputs, row)
            else:
                copy_row(work.z, head.owner[option], inputs, row)
        x = data.option_x[head.direct[option]]
        copy_numbers(x, 0, last - column, head.inputs[row, column:last])


@inlined
def _score(work, head):  # type: ignore[no-untyped-def]
    """Write the logits of the options, from the inputs."""
    part = head.part
    rows = _num_inputs(work, head)
    _apply(part, head.inputs, 0, rows)
    multiply(part.h2[:rows], part.w3, part.b3, part.out[:rows])
    for option in range(head.first[work.size[DECISIONS]]):
        if _is_wide(head):
            head.logs[option] = part.out[head.owner[option], head.option[option]]
        else:
            head.logs[option] = part.out[option, 0]


@kernel
def _head_back(work, head, d_entropy):  # type: ignore[no-untyped-def]
    """Add the gradient of a head's layers, and of the embeddings that it takes."""
    part = head.part
    rows = _num_inputs(work, head)
    # The network lacks the head.
    if head.first[work.size[DECISIONS]] == 0:
        return
    _choices_back(work, head, d_entropy)
    part.d_out[:rows] = 0.0
    for option in range(head.first[work.size[DECISIONS]]):
        if _is_wide(head):
            part.d_out[head.owner[option], head.option[option]] = head.logs[option]
        else:
            part.d_out[option, 0] = head.logs[option]
        if head.option[option] == 0:
            head.d_none[0] += head.logs[option]
    head.d_inputs[:rows] = 0.0
    _go_back(part, work, head.d_inputs, 0, rows)
    _add_gradient(part, head.inputs, 0, rows)
    for row in range(rows):
        option = _option_of(head, row)
        for place in range(head.places.shape[0]):
            d_inputs = head.d_inputs[:, place * _D :]
            if head.places[place] == 0:
                add_row(d_inputs, row, work.d_e, head.stage[option])
            elif head.places[place] == _D:
                add_row(d_inputs, row, work.d_y, head.job[option])
            else:
                add_row(d_inputs, row, work.d_z, head.owner[option])


@kernel
def _judge_options(data, work, head, group, can, choice, x, judged):  # type: ignore[no-untyped-def]
    """Judge what a head chose for the chosen stages, if the network has it; see `_judge_heads`.

    Of the options, `can` says which are possible, and x has their own features.
    """
    if can.shape[1] == 0:
        return
    num_own = x.shape[2]
    _list_options(work, head, group, can, choice)
    _write_inputs(data, work, head, num_own)
    if num_own > 0:
        last = head.inputs.shape[1] - num_own
        for row in range(_num_inputs(work, head)):
            own = x[group[head.owner[row]], head.option[row]]
            copy_numbers(own, 0, num_own, head.inputs[row, last:])
    _score(work, head)
    for row in range(head.first[group.shape[0]]):
        if head.option[row] == 0:
            head.logs[row] += head.none[0]
    log_prob, entropy = judged
    _judge_choices(work, head, log_prob, entropy)


@inlined
def _judge_heads(data, work, group, judged):  # type: ignore[no-untyped-def]
    """Judge an embedded group of decisions: write its log probabilities and entropies."""
    log_prob, entropy = judged
    log_prob[:] = 0.0
    entropy[:] = 0.0
    _list_stages(data, work, group)
    _write_inputs(data, work, work.q, 0)
    _score(work, work.q)
    _judge_choices(work, work.q, log_prob, entropy)
    _judge_options(data, work, work.w, group, data.can_limit, data.level, data.limit_x, judged)
    _judge_options(
        data, work, work.classes, group, data.can_class, data.class_choice, data.class_x, judged
    )
    _judge_options(
        data, work, work.idle, group, data.can_idle, data.idle_choice, data.idle_x, judged
    )


@inlined
def _heads_back(work, d_entropy):  # type: ignore[no-untyped-def]
    """Add the gradients of the heads, and write those of all embeddings."""
    work.d_e[: work.size[ROWS]] = 0.0
    work.d_y[: work.size[JOBS]] = 0.0
    work.d_z[: work.size[DECISIONS]] = 0.0
    _head_back(work, work.q, d_entropy)
    _head_back(work, work.w, d_entropy)
    _head_back(work, work.classes, d_entropy)
    _head_back(work, work.idle, d_entropy)


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
def _write_slopes(work, loss, log_prob, first):  # type: ignore[no-untyped-def]
    """Write the slopes of the loss of a group of decisions, of which `first` is the first one."""
    for at in range(work.size[DECISIONS]):
        slope = -loss.weight[first + at]
        if loss.has_ratio:
            ratio = math.exp(log_prob[at] - loss.old_log_prob[first + at])
            # A decision that became more (or less) likely than the clip allows counts no more.
            is_over = ratio > 1.0 + loss.clip and slope < 0.0
            is_under = ratio < 1.0 - loss.clip and slope > 0.0
            slope = 0.0 if is_over or is_under else slope * ratio
        elif log_prob[at] < loss.least:
            slope = 0.0
        work.d_log_prob[at] = slope


@kernel
def judge(data, edges, work, index, loss, results):  # type: ignore[no-untyped-def]
    """Embed recorded decisions; if the loss is wanted, judge them, and add the gradient of their
    loss to that in `work`.
    """
    first = 0
    while first < index.shape[0]:
        last = load(data, edges, work, index, first)
        _embed(work)
        _copy(work.z, results.z[first:last], 0, last - first)
        if loss.is_wanted:
            log_prob = results.log_prob[first:last]
            judged = (log_prob, results.entropy[first:last])
            _judge_heads(data, work, index[first:last], judged)
            _write_slopes(work, loss, log_prob, first)
            _heads_back(work, -loss.entropy)
            _embed_back(work)
        first = last
