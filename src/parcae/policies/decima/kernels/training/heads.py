"""What is chosen in a decision: stages, limits, executor classes, idle slots."""

from __future__ import annotations

from parcae.kernels import inlined
from parcae.policies.decima.kernels.rows import add_row, clear_rows, copy_row
from parcae.policies.decima.kernels.training.choices import choices_back, judge_choices
from parcae.policies.decima.kernels.training.data import DECISIONS, JOBS, ROWS
from parcae.policies.decima.kernels.training.layers import add_gradient, go_back, score
from parcae.policies.decima.layout import EMBEDDING, LIMIT_NONE, LIMIT_OUTPUTS

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
    """Write the logits of a head with one score for each option."""
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
