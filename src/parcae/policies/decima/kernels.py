"""Decima, compiled: features, message passing, a decision, whole runs.

Everything is written into a Workspace. Embeddings are kept: those of a job stay as long as its own features do. That executors
are asked about is a feature of every stage, so there are a few versions of all embeddings, for the numbers last asked about;
and jobs of one profile that nobody has touched yet share theirs.
Equal to `network.DecimaNetwork` to 1e-5.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from parcae.cluster.kernels.tables import is_schedulable, select_cluster
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_PROFILE, NO_STAGE
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
from parcae.policies.networks.kernels import add_product, copy_bias, dot, draw, largest, log_sum_exp, rectify, uniform
from parcae.policies.rule.kernels import decide as decide_by_rule
from parcae.simulation.future import Status
from parcae.simulation.kernels.costs import cost_so_far
from parcae.simulation.kernels.event_loop import resume, select_future, start, step

_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_D, _H1, _H2 = EMBEDDING, HIDDEN_1, HIDDEN_2
_SLOPE, _IMPOSSIBLE = np.float32(SLOPE), np.float32(-np.inf)
_PREP, _F, _G = int(Transform.PREP), int(Transform.F_STAGE), int(Transform.G_STAGE)
_F2, _G2, _F3, _G3 = map(int, (Transform.F_JOB, Transform.G_JOB, Transform.F_GLOBAL, Transform.G_GLOBAL))
_Q, _W = int(Transform.Q), int(Transform.W)
#: Which feature is the number of executors asked about; see layout.FeatureSet.
_OFFERED_IN_PAPER, _OFFERED_IN_CODE = 3, 2
_LIMIT_INPUT, _LIMIT_OUTPUTS, _LIMIT_STAGE, _LIMIT_NONE = 0, 1, 2, 3


class Network(NamedTuple):
    """Decima's weights and switches."""

    weights: Any  # float32[number of weights], in the order of layout.shapes
    starts: Any  # int64[number of transforms]
    levels: Any  # int64[num_levels], the limits to choose from
    has_code_features: Any  # bool
    knows_gap: Any
    has_graph: Any
    has_two_transforms: Any
    limits: Any  # int64: 0 input, 1 outputs, 2 stage, 3 none


class Workspace(NamedTuple):
    """Room for decisions of one simulator (or of many). Rows of stages and jobs are those of the state."""

    x: Any  # float32[num_stages, num_features]
    e: Any  # float32[VERSIONS * num_stages, EMBEDDING]
    f: Any  # float32[VERSIONS * num_stages, EMBEDDING], f(e) of stages that others wait for
    y: Any  # float32[VERSIONS * num_jobs, EMBEDDING]
    embedded: Any  # int64[VERSIONS * num_jobs], the stamp of the features that these are of
    version: Any  # int64[VERSIONS, 2], executors asked about, turn of the last use
    now: Any  # int64[3], where the version in use starts among the stages, among the jobs; turn
    stamp: Any  # int64[num_jobs], counts the changes of a job's features
    twin: Any  # int64[num_jobs, 2], by profile: turn, an untouched job that is embedded
    done: Any  # int64[num_stages], whether the embedding was computed
    known: Any  # int64[num_jobs, 4], what tells one job from another: arrival, profile, stages, unfinished stages; -1: nothing
    known_work_ms: Any  # float64[num_jobs]
    z: Any  # float32[EMBEDDING]
    logits: Any  # float32[num_stages], by position among the stages that may be chosen
    stage: Any  # int64[num_stages], their rows
    limit_logits: Any  # float32[num_levels]
    of_cluster: Any  # float32[HIDDEN_1], the cluster's part of a first layer
    of_job: Any  # float32[HIDDEN_1], the same and the job's
    layer_1: Any  # float32[HIDDEN_1]
    layer_2: Any  # float32[HIDDEN_2]
    row: Any  # float32[64], inputs
    out: Any  # float32[EMBEDDING]
    total: Any  # float32[EMBEDDING]
    answer: Any  # int64[4]: number of choices, chosen position, chosen level, executors that do not count as held


class Record(NamedTuple):
    """Decisions as training data: every decision lists its jobs, every job its unfinished stages."""

    count: Any  # int64[1]
    num_jobs: Any  # int64[1], rows of jobs so far
    num_rows: Any  # int64[1], rows of stages so far
    end_ms: Any  # int64[1]
    end_cost: Any  # float64[1]
    clock_ms: Any  # int64[capacity]
    cost: Any  # float64[capacity]
    first_job: Any  # int64[capacity + 1]
    choice: Any  # int64[capacity], row of the chosen stage, counted from the decision's first
    level: Any  # int64[capacity]
    held: Any  # int64[capacity], limits must be above this
    log_prob: Any  # float32[capacity]
    structure: Any  # int64[job_capacity], row of the job in the workload
    first_row: Any  # int64[job_capacity + 1]
    x: Any  # float32[row_capacity, num_features]
    index: Any  # int64[row_capacity], stage index within the job
    can_choose: Any  # uint8[row_capacity]


@inlined
def select_workspace(many, row):  # type: ignore[no-untyped-def]
    """The workspace of one simulator out of many."""
    return Workspace(
        many.x[row], many.e[row], many.f[row], many.y[row], many.embedded[row], many.version[row], many.now[row],
        many.stamp[row], many.twin[row], many.done[row], many.known[row], many.known_work_ms[row], many.z[row],
        many.logits[row], many.stage[row], many.limit_logits[row], many.of_cluster[row],
        many.of_job[row], many.layer_1[row], many.layer_2[row], many.row[row],
        many.out[row], many.total[row], many.answer[row],
    )  # fmt: skip


@inlined
def select_record(many, row):  # type: ignore[no-untyped-def]
    """The record of one simulator out of many."""
    return Record(
        many.count[row], many.num_jobs[row], many.num_rows[row], many.end_ms[row], many.end_cost[row], many.clock_ms[row],
        many.cost[row], many.first_job[row], many.choice[row], many.level[row], many.held[row], many.log_prob[row],
        many.structure[row], many.first_row[row], many.x[row], many.index[row], many.can_choose[row],
    )  # fmt: skip


@inlined
def _hidden(net, work, at, x, num_in):  # type: ignore[no-untyped-def]
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
    at = _hidden(net, work, net.starts[which], x, num_in)
    copy_bias(net.weights, at + _H2 * _D, _D, y)
    add_product(work.layer_2, _H2, net.weights, at, _D, y)
    rectify(y, _D, _SLOPE)


@kernel
def _score(net, work, at):  # type: ignore[no-untyped-def]
    """The one linear output of a transform whose second layer starts at weights[at:], from work.layer_1 before its rectifier."""
    weights = net.weights
    rectify(work.layer_1, _H1, _SLOPE)
    copy_bias(weights, at + _H1 * _H2, _H2, work.layer_2)
    add_product(work.layer_1, _H1, weights, at, _H2, work.layer_2)
    rectify(work.layer_2, _H2, _SLOPE)
    at += (_H1 + 1) * _H2
    return dot(work.layer_2, _H2, weights, at) + weights[at + _H2]


@inlined
def _is_unfinished(seen, stage):  # type: ignore[no-untyped-def]
    return seen.stages.num_finished[stage] < seen.stages.num_tasks[stage]


@kernel
def _stage_features(seen, net, stage, job, x, gap):  # type: ignore[no-untyped-def]
    stages, now = seen.stages, seen.now
    left = stages.num_tasks[stage] - stages.num_started[stage]
    local = LOCAL if job == now.source_job[0] else -LOCAL
    offered = now.num_source[0] / EXECUTOR_SCALE
    if net.has_code_features:
        x[0], x[1], x[2] = seen.jobs.num_supplied[job] / EXECUTOR_SCALE, local, offered
        x[3], x[4] = left * stages.task_ms[stage] / WORK_SCALE_MS, left / TASK_SCALE
    else:
        on_stage = stages.num_bound[stage] + stages.num_moving[stage] + stages.num_committed[stage]
        x[0], x[1], x[2] = left / TASK_SCALE, stages.task_ms[stage] / TASK_SCALE_MS, on_stage / EXECUTOR_SCALE
        x[3], x[4] = offered, local
    if net.knows_gap:
        x[5] = gap


@inlined
def _mean_gap(seen):  # type: ignore[no-untyped-def]
    last = seen.now.num_jobs[0] - 1
    if last < 1:
        return 0.0
    return (seen.jobs.arrival_ms[last] - seen.jobs.arrival_ms[0]) / last / GAP_SCALE_MS


@kernel
def _is_known(seen, work, job, num_unfinished):  # type: ignore[no-untyped-def]
    """Whether the workspace holds this very job with as many unfinished stages; remembers it in any case."""
    known, jobs, profile = work.known[job], seen.jobs, seen.jobs.profile[job]
    is_same = (
        profile != NO_PROFILE
        and known[0] == jobs.arrival_ms[job]
        and known[1] == profile
        and known[2] == jobs.stage_start[job]
        and known[3] == num_unfinished
        and work.known_work_ms[job] == jobs.work_ms[job]
    )
    known[0], known[1], known[2], known[3] = jobs.arrival_ms[job], profile, jobs.stage_start[job], num_unfinished
    work.known_work_ms[job] = jobs.work_ms[job]
    return is_same


@kernel
def _refresh_features(seen, net, work, job, gap):  # type: ignore[no-untyped-def]
    """Features of the job's unfinished stages; a new stamp where any but the number asked about changed."""
    first, has_changed, num_unfinished = seen.jobs.stage_start[job], False, 0
    num_features, offered = work.x.shape[1], _OFFERED_IN_CODE if net.has_code_features else _OFFERED_IN_PAPER
    for stage in range(first, first + seen.jobs.num_stages[job]):
        if not _is_unfinished(seen, stage):
            continue
        num_unfinished += 1
        _stage_features(seen, net, stage, job, work.row, gap)
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
    row, at, num_features = work.now[0] + stage, net.starts[_PREP], work.x.shape[1]
    e = work.e[row]
    copy_bias(net.weights, at + num_features * _D, _D, e)
    add_product(work.x[stage], num_features, net.weights, at, _D, e)
    if not net.has_graph:
        return
    if seen.stages.num_children[stage] > 0:
        work.total[:] = 0.0
        for edge in range(seen.stages.child_start[stage], seen.stages.child_start[stage] + seen.stages.num_children[stage]):
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
    for edge in range(seen.stages.child_start[stage], seen.stages.child_start[stage] + seen.stages.num_children[stage]):
        if work.done[seen.children[edge]] == 0:
            return False
    return True


@kernel
def _embed_job(seen, net, work, job):  # type: ignore[no-untyped-def]
    """Embeddings of the job's unfinished stages, from leaves to roots, and its summary."""
    first, num_stages, num_features = seen.jobs.stage_start[job], seen.jobs.num_stages[job], work.x.shape[1]
    left = 0
    for stage in range(first, first + num_stages):
        work.done[stage] = 0
        left += 1 if _is_unfinished(seen, stage) else 0
    while left > 0:
        for stage in range(first + num_stages - 1, first - 1, -1):
            if work.done[stage] == 0 and _is_unfinished(seen, stage) and _children_done(seen, work, stage):
                _embed_stage(seen, net, work, stage)
                work.done[stage] = 1
                left -= 1
    y, total = work.y[work.now[1] + job], work.total
    y[:] = 0.0
    if not net.has_graph:
        return
    total[:] = 0.0
    for stage in range(first, first + num_stages):
        if _is_unfinished(seen, stage):
            for feature in range(num_features):
                work.row[feature] = work.x[stage, feature]
            for o in range(_D):
                work.row[num_features + o] = work.e[work.now[0] + stage, o]
            _transform(net, work, _F2, work.row, num_features + _D, work.out)
            for o in range(_D):
                total[o] += work.out[o]
    _finish(net, work, _G2, y)


@kernel
def _choose_version(seen, work):  # type: ignore[no-untyped-def]
    """Work on the embeddings for the number of executors that are asked about; the version used longest ago makes room."""
    offered, num_versions, chosen = seen.now.num_source[0], work.version.shape[0], 0
    work.now[2] += 1
    for version in range(num_versions):
        if work.version[version, 0] == offered:
            chosen = version
            break
        if work.version[version, 1] < work.version[chosen, 1]:
            chosen = version
    num_jobs = work.stamp.shape[0]
    work.now[0], work.now[1] = chosen * work.done.shape[0], chosen * num_jobs
    if work.version[chosen, 0] != offered:
        for job in range(num_jobs):
            work.embedded[work.now[1] + job] = -1
    work.version[chosen, 0], work.version[chosen, 1] = offered, work.now[2]


@inlined
def _is_untouched(seen, job):  # type: ignore[no-untyped-def]
    jobs = seen.jobs
    is_whole = jobs.num_unstarted[job] == jobs.num_stages[job] and jobs.num_done[job] == 0
    return is_whole and jobs.num_supplied[job] == 0 and jobs.profile[job] != NO_PROFILE and job != seen.now.source_job[0]


@kernel
def _twin(seen, work, job):  # type: ignore[no-untyped-def]
    """An untouched job of the same profile whose embeddings of this turn are these, or NO_JOB."""
    jobs = seen.jobs
    if not _is_untouched(seen, job):
        return NO_JOB
    slot = jobs.profile[job] % work.twin.shape[0]
    twin = work.twin[slot, 1]
    if work.twin[slot, 0] != work.now[2] or jobs.profile[twin] != jobs.profile[job] or jobs.work_ms[twin] != jobs.work_ms[job]:
        return NO_JOB
    return twin


@kernel
def _offer_as_twin(seen, work, job):  # type: ignore[no-untyped-def]
    if _is_untouched(seen, job):
        slot = seen.jobs.profile[job] % work.twin.shape[0]
        work.twin[slot, 0], work.twin[slot, 1] = work.now[2], job


@kernel
def _copy_embeddings(seen, work, source, target):  # type: ignore[no-untyped-def]
    first_source, first = work.now[0] + seen.jobs.stage_start[source], work.now[0] + seen.jobs.stage_start[target]
    for stage in range(seen.jobs.num_stages[target]):
        for o in range(_D):
            work.e[first + stage, o] = work.e[first_source + stage, o]
            work.f[first + stage, o] = work.f[first_source + stage, o]
    for o in range(_D):
        work.y[work.now[1] + target, o] = work.y[work.now[1] + source, o]


@kernel
def _embed(seen, net, work):  # type: ignore[no-untyped-def]
    """All embeddings of the present state."""
    gap = _mean_gap(seen)
    _choose_version(seen, work)
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        _refresh_features(seen, net, work, job, gap)
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
        _transform(net, work, _F3, work.y[work.now[1] + seen.active[position]], _D, work.out)
        for o in range(_D):
            work.total[o] += work.out[o]
    _finish(net, work, _G3, work.z)


@inlined
def _held(seen, net, stage):  # type: ignore[no-untyped-def]
    """Executors that limits are counted from: of the job (or, for limits of stages, of the stage), those asked about left out."""
    job, stages = seen.stages.job[stage], seen.stages
    if net.limits == _LIMIT_STAGE:
        held = stages.num_bound[stage] + stages.num_moving[stage] + stages.num_committed[stage]
        return held
    held = seen.jobs.num_supplied[job]
    if job == seen.now.source_job[0]:
        held -= seen.now.num_source[0]
    return max(0, held)


@kernel
def score_stages(seen, net, work):  # type: ignore[no-untyped-def]
    """Logits of the schedulable stages. Returns how many there are.

    What the first layer makes of the cluster is worked out once, of a job once for all of its stages.
    """
    count, top = 0, net.levels[net.levels.shape[0] - 1]
    if seen.now.num_schedulable[0] == 0:
        return 0
    weights, at = net.weights, net.starts[_Q]
    second = at + (3 * _D + 1) * _H1
    copy_bias(weights, at + 3 * _D * _H1, _H1, work.of_cluster)
    add_product(work.z, _D, weights, at + 2 * _D * _H1, _H1, work.of_cluster)
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if seen.jobs.num_schedulable[job] == 0:
            continue
        copy_bias(work.of_cluster, 0, _H1, work.of_job)
        add_product(work.y[work.now[1] + job], _D, weights, at + _D * _H1, _H1, work.of_job)
        for stage in range(seen.jobs.stage_start[job], seen.jobs.stage_start[job] + seen.jobs.num_stages[job]):
            if not is_schedulable(seen, stage) or _held(seen, net, stage) >= top:
                continue
            copy_bias(work.of_job, 0, _H1, work.layer_1)
            add_product(work.e[work.now[0] + stage], _D, weights, at, _H1, work.layer_1)
            work.logits[count], work.stage[count] = _score(net, work, second), stage
            count += 1
    return count


@kernel
def _score_limits(seen, net, work, stage):  # type: ignore[no-untyped-def]
    """Logits of the limits above what is held. Returns how many there are."""
    job, held, num_levels, count = seen.stages.job[stage], _held(seen, net, stage), net.levels.shape[0], 0
    e, y = work.e[work.now[0] + stage], work.y[work.now[1] + job]
    for o in range(_D):
        work.row[o] = y[o] if net.has_graph else e[o]
        work.row[_D + o] = work.z[o]
        work.row[2 * _D + o] = e[o]
    num_in = 3 * _D if net.limits == _LIMIT_STAGE else 2 * _D
    weights, first = net.weights, net.starts[_W]
    if net.limits == _LIMIT_INPUT or net.limits == _LIMIT_STAGE:
        copy_bias(weights, first + (num_in + 1) * _H1, _H1, work.of_job)
        add_product(work.row, num_in, weights, first, _H1, work.of_job)
    if net.limits == _LIMIT_OUTPUTS:
        at = _hidden(net, work, net.starts[_W], work.row, num_in)
        copy_bias(net.weights, at + _H2 * num_levels, num_levels, work.limit_logits)
        add_product(work.layer_2, _H2, net.weights, at, num_levels, work.limit_logits)
    for column in range(num_levels):
        level = net.levels[column]
        if level <= held or (net.limits == _LIMIT_NONE and column < num_levels - 1):
            work.limit_logits[column] = _IMPOSSIBLE
            continue
        count += 1
        if net.limits == _LIMIT_NONE:
            work.limit_logits[column] = 0.0
        elif net.limits != _LIMIT_OUTPUTS:
            share = np.float32(level / net.levels[num_levels - 1])
            for o in range(_H1):
                work.layer_1[o] = work.of_job[o] + share * weights[first + num_in * _H1 + o]
            work.limit_logits[column] = _score(net, work, first + (num_in + 2) * _H1)
    return count


@kernel
def decide(seen, net, work):  # type: ignore[no-untyped-def]
    """The most probable decision: (stage, limit)."""
    _embed(seen, net, work)
    count = score_stages(seen, net, work)
    if count == 0:
        return NO_STAGE, seen.now.num_source[0]
    stage = work.stage[largest(work.logits, count)]
    _score_limits(seen, net, work, stage)
    level = net.levels[largest(work.limit_logits, net.levels.shape[0])]
    return stage, min(level - _held(seen, net, stage), seen.now.num_source[0])


@kernel
def _draw_decision(seen, net, work, luck_seed):  # type: ignore[no-untyped-def]
    """Draw a decision. Returns (stage, limit, log probability, whether there was a choice)."""
    _embed(seen, net, work)
    count, turn = score_stages(seen, net, work), seen.now.num_decisions[0]
    if count == 0:
        return NO_STAGE, seen.now.num_source[0], 0.0, False
    position = draw(work.logits, count, uniform(luck_seed, 2 * turn))
    log_prob, stage = work.logits[position] - log_sum_exp(work.logits, count), work.stage[position]
    num_limits, num_levels = _score_limits(seen, net, work, stage), net.levels.shape[0]
    column = draw(work.limit_logits, num_levels, uniform(luck_seed, 2 * turn + 1))
    log_prob += work.limit_logits[column] - log_sum_exp(work.limit_logits, num_levels)
    work.answer[1], work.answer[2], work.answer[3] = position, column, _held(seen, net, stage)
    limit = min(net.levels[column] - work.answer[3], seen.now.num_source[0])
    return stage, limit, log_prob, count > 1 or num_limits > 1


@kernel
def _forget(work):  # type: ignore[no-untyped-def]
    """The next decision is about another run."""
    for job in range(work.known.shape[0]):
        work.known[job, 0] = -1


@kernel
def play(state, future, tables, net, work):  # type: ignore[no-untyped-def]
    """Run a whole simulation, most probable decisions only. Returns a Status."""
    _forget(work)
    status = start(state, future, tables)
    while status == _NEEDS_DECISION:
        stage, limit = decide(state, net, work)
        status = step(state, future, tables, stage, limit, ANY_CLASS, 0)
    return status


@kernel
def play_drawn(state, future, tables, net, work, luck_seed):  # type: ignore[no-untyped-def]
    """Run a whole simulation with drawn decisions, as the released code does in tests. Returns a Status."""
    _forget(work)
    status = start(state, future, tables)
    while status == _NEEDS_DECISION:
        stage, limit, _, _ = _draw_decision(state, net, work, luck_seed)
        status = step(state, future, tables, stage, limit, ANY_CLASS, 0)
    return status


@kernel
def _write(seen, future, work, record, chosen):  # type: ignore[no-untyped-def]
    """Copy the state's jobs and unfinished stages into the record. Returns the chosen stage's row, counted from the first."""
    row, choice = record.count[0], 0
    job_row, stage_row = record.num_jobs[0], record.num_rows[0]
    first_row = stage_row
    record.clock_ms[row], record.first_job[row] = seen.now.clock_ms[0], job_row
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        first = seen.jobs.stage_start[job]
        record.structure[job_row], record.first_row[job_row] = future.job_profile[job], stage_row
        job_row += 1
        for stage in range(first, first + seen.jobs.num_stages[job]):
            if _is_unfinished(seen, stage):
                if stage == chosen:
                    choice = stage_row - first_row
                for feature in range(work.x.shape[1]):
                    record.x[stage_row, feature] = work.x[stage, feature]
                record.index[stage_row], record.can_choose[stage_row] = stage - first, 0
                stage_row += 1
        record.first_row[job_row] = stage_row
    record.first_job[row + 1] = job_row
    record.num_jobs[0], record.num_rows[0] = job_row, stage_row
    return choice


@kernel
def _mark_choices(seen, net, record, row):  # type: ignore[no-untyped-def]
    top, at = net.levels[net.levels.shape[0] - 1], record.first_row[record.first_job[row]]
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        for stage in range(seen.jobs.stage_start[job], seen.jobs.stage_start[job] + seen.jobs.num_stages[job]):
            if _is_unfinished(seen, stage):
                record.can_choose[at] = is_schedulable(seen, stage) and _held(seen, net, stage) < top
                at += 1


@inlined
def _has_room(seen, record):  # type: ignore[no-untyped-def]
    jobs, stages = seen.now.num_active[0], 0
    for position in range(jobs):
        stages += seen.jobs.num_stages[seen.active[position]]
    return (
        record.count[0] + 1 < record.clock_ms.shape[0]
        and record.num_jobs[0] + 2 * jobs < record.structure.shape[0]
        and record.num_rows[0] + 2 * stages < record.x.shape[0]
    )


@kernel
def explore(state, future, tables, net, work, record, costing, luck_seed, is_new):  # type: ignore[no-untyped-def]
    """Run with drawn decisions from the start, or on from where the run stopped, and record every choice.

    Ends with the run, at the episode's end time, or where the record is full. Returns a Status.
    """
    record.count[0] = record.num_jobs[0] = record.num_rows[0] = 0
    _forget(work)
    status = start(state, future, tables) if is_new else resume(state, future, tables)
    while status == _NEEDS_DECISION:
        if not _has_room(state, record):
            break
        stage, limit, log_prob, is_choice = _draw_decision(state, net, work, luck_seed)
        if is_choice:
            row = record.count[0]
            record.choice[row] = _write(state, future, work, record, stage)
            _mark_choices(state, net, record, row)
            record.cost[row], record.log_prob[row] = cost_so_far(state, costing), log_prob
            record.level[row], record.held[row] = work.answer[2], work.answer[3]
            record.count[0] = row + 1
        status = step(state, future, tables, stage, limit, ANY_CLASS, 0)
    record.end_ms[0], record.end_cost[0] = state.now.clock_ms[0], cost_so_far(state, costing)
    _embed(state, net, work)
    _write(state, future, work, record, NO_STAGE)
    return status


@kernel
def explore_many(states, futures, tables, net, works, records, costing, luck, is_new, first, last, status):  # type: ignore[no-untyped-def]
    """`explore` with simulators first..last-1 of many; fills `status`."""
    for row in range(first, last):
        state, future, work = select_cluster(states, row), select_future(futures, row), select_workspace(works, row)
        record = select_record(records, row)
        status[row] = explore(state, future, tables, net, work, record, costing, luck[row], is_new)


@kernel
def _level_of(net, wanted):  # type: ignore[no-untyped-def]
    """Column of the smallest level that is at least `wanted`, or the last."""
    for column in range(net.levels.shape[0]):
        if net.levels[column] >= wanted:
            return column
    return net.levels.shape[0] - 1


@kernel
def demonstrate(state, future, tables, net, work, record, costing, luck_seed, is_new, rule, share):  # type: ignore[no-untyped-def]
    """As `explore`, but what is recorded is what the rule would choose; it also decides in `share` of the cases.

    Where the rule lets executors idle, nothing is recorded: Decima cannot choose that.
    """
    record.count[0] = record.num_jobs[0] = record.num_rows[0] = 0
    _forget(work)
    status = start(state, future, tables) if is_new else resume(state, future, tables)
    while status == _NEEDS_DECISION:
        if not _has_room(state, record):
            break
        own_stage, own_limit, _, is_choice = _draw_decision(state, net, work, luck_seed)
        stage, limit = decide_by_rule(state, rule)
        if is_choice and stage != NO_STAGE and _held(state, net, stage) < net.levels[net.levels.shape[0] - 1]:
            row = record.count[0]
            record.choice[row] = _write(state, future, work, record, stage)
            _mark_choices(state, net, record, row)
            record.cost[row], record.log_prob[row] = cost_so_far(state, costing), 0.0
            record.held[row] = _held(state, net, stage)
            record.level[row] = _level_of(net, record.held[row] + limit)
            record.count[0] = row + 1
        if uniform(luck_seed + np.uint64(1), state.now.num_decisions[0]) >= share:
            stage, limit = own_stage, own_limit
        status = step(state, future, tables, stage, limit, ANY_CLASS, 0)
    record.end_ms[0], record.end_cost[0] = state.now.clock_ms[0], cost_so_far(state, costing)
    _embed(state, net, work)
    _write(state, future, work, record, NO_STAGE)
    return status


@kernel
def demonstrate_many(  # type: ignore[no-untyped-def]
    states, futures, tables, net, works, records, costing, luck, is_new, first, last, status, rule, share
):
    """`demonstrate` with simulators first..last-1 of many; fills `status`."""
    for row in range(first, last):
        state, future, work = select_cluster(states, row), select_future(futures, row), select_workspace(works, row)
        record = select_record(records, row)
        status[row] = demonstrate(state, future, tables, net, work, record, costing, luck[row], is_new, rule, share)
