"""Compiled message passing: the embeddings of stages, jobs and the cluster.

Embeddings are cached. That of a stage stays valid as long as the features of the stage and of those
that wait for it do; what changes from one decision to the next are mostly stages for which no stage
waits any more, so that few embeddings follow. The number of offered executors is a feature of every
stage, so the workspace keeps a few versions of all embeddings, one for each of the latest numbers.
Untouched jobs of one profile with equal stages have equal embeddings, which are computed once and
copied.

Networks whose stage scores have further inputs (`layout.Fit`, `layout.Direct`) get the number of
offered executors there, so that a single version is enough: on clusters of thousands of executors
the same number rarely comes twice.
"""

from __future__ import annotations

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel
from parcae.base.compiled.products import apply_layer
from parcae.cluster.state import NO_JOB, NO_PROFILE
from parcae.decima.graph.kernels.features import (
    is_unfinished,
    largest_memory,
    mean_gap,
    num_left,
    num_on_stage,
    offered_column,
    path_and_width,
    write_stage_features,
)
from parcae.decima.graph.kernels.transforms import (
    add_row,
    apply_outer_transform,
    clear_rows,
    copy_row,
    transform,
)
from parcae.decima.graph.layout import EMBEDDING, NUM_PLAIN, Transform

_D = EMBEDDING


@inlined
def _update_cache_key(view, work, job, num_unfinished):  # type: ignore[no-untyped-def]
    """Remember this job and the number of its unfinished stages.

    Returns whether the row held the same job already and no stage of it is new or has come back,
    and whether the number is as before.
    """
    cached_job = work.cached_job[job]
    jobs = view.jobs
    profile = view.jobs.profile[job]
    is_same = (
        profile != NO_PROFILE
        and cached_job[0] == jobs.arrival_ms[job]
        and cached_job[1] == profile
        and cached_job[2] == jobs.stage_start[job]
        and cached_job[3] >= num_unfinished
        and cached_job[4] == jobs.num_stages[job]
        and work.cached_work_ms[job] == jobs.work_ms[job]
    )
    has_same_number = cached_job[3] == num_unfinished
    cached_job[0] = jobs.arrival_ms[job]
    cached_job[1] = profile
    cached_job[2] = jobs.stage_start[job]
    cached_job[3] = num_unfinished
    cached_job[4] = jobs.num_stages[job]
    work.cached_work_ms[job] = jobs.work_ms[job]
    return is_same, has_same_number


@inlined
def _count_unfinished(view, job):  # type: ignore[no-untyped-def]
    """Return the number of the job's unfinished stages."""
    first = view.jobs.stage_start[job]
    count = 0
    for stage in range(first, first + view.jobs.num_stages[job]):
        count += 1 if is_unfinished(view, stage) else 0
    return count


@inlined
def _is_as_before(view, work, stage):  # type: ignore[no-untyped-def]
    """Remember what a stage's features follow from, and return whether it is as it was before."""
    stages = view.stages
    on_stage = num_on_stage(view, stage)
    left = num_left(view, stage)
    before = work.before[stage]
    is_equal = before[0] == left and before[1] == on_stage and before[2] == stages.task_ms[stage]
    before[0] = left
    before[1] = on_stage
    before[2] = stages.task_ms[stage]
    return is_equal


@inlined
def _has_other_children(view, work, stage):  # type: ignore[no-untyped-def]
    """Remember how many unfinished stages wait for a stage, and return whether it has changed."""
    count = 0
    start = view.stages.child_start[stage]
    for edge in range(start, start + view.stages.num_children[stage]):
        count += 1 if is_unfinished(view, view.children[edge]) else 0
    has_changed = work.num_waiting[stage] != count
    work.num_waiting[stage] = count
    return has_changed


@inlined
def _find_heights(view, work, job):  # type: ignore[no-untyped-def]
    """Write the height of the job's unfinished stages above the leaves."""
    first = view.jobs.stage_start[job]
    stages = view.stages
    for stage in range(first, first + view.jobs.num_stages[job]):
        work.height[stage] = 0
    has_changed = True
    while has_changed:
        has_changed = False
        for stage in range(first + view.jobs.num_stages[job] - 1, first - 1, -1):
            start = stages.child_start[stage]
            for edge in range(start, start + stages.num_children[stage]):
                child = view.children[edge]
                if is_unfinished(view, child) and work.height[stage] <= work.height[child]:
                    work.height[stage] = work.height[child] + 1
                    has_changed = True


@inlined
def _refresh_features(view, net, work, job, gap, memory):  # type: ignore[no-untyped-def]
    """Update the features of the job's unfinished stages.

    A stage gets a new stamp if its embedding is out of date, and its job does too. The number of
    offered executors does not count, because there is one version of the embeddings for each of
    these numbers.
    """
    num_features = work.x.shape[1]
    is_same, has_same_number = _update_cache_key(view, work, job, _count_unfinished(view, job))
    has_changed = not (is_same and has_same_number)
    if has_changed:
        _find_heights(view, work, job)
    offered = -1 if net.num_direct > 0 else offered_column(net)
    path, width = path_and_width(view, net, job)
    # With these features only, a stage's features follow from the stage alone.
    has_plain = net.has_job_features and num_features == NUM_PLAIN
    is_waiting = False
    first = view.jobs.stage_start[job]
    for stage in range(first, first + view.jobs.num_stages[job]):
        if not is_unfinished(view, stage):
            continue
        is_other = not is_same
        if has_changed and _has_other_children(view, work, stage):
            is_other = True
        if has_plain and _is_as_before(view, work, stage) and not is_other:
            continue
        write_stage_features(view, net, stage, job, work.row, (gap, memory, path, width))
        for feature in range(num_features):
            if work.x[stage, feature] != work.row[feature]:
                work.x[stage, feature] = work.row[feature]
                is_other |= feature != offered
        if is_other:
            has_changed = True
            work.stage_stamp[stage] += 1
            is_waiting |= view.stages.num_parents_unfinished[stage] > 0
    if is_waiting:
        _renew_all(view, work, job)
    if has_changed:
        work.stamp[job] += 1


@inlined
def _renew_all(view, work, job):  # type: ignore[no-untyped-def]
    """Give every stage of a job a new stamp: embeddings contain those of the stages that wait."""
    first = view.jobs.stage_start[job]
    for stage in range(first, first + view.jobs.num_stages[job]):
        work.stage_stamp[stage] += 1


@inlined
def _find_stale(view, work, num_jobs):  # type: ignore[no-untyped-def]
    """List the stages of the first changed jobs whose embeddings are out of date.

    Their rows are written to `work.stale`. Returns how many there are.
    """
    count = 0
    for position in range(num_jobs):
        job = work.changed[position]
        first = view.jobs.stage_start[job]
        for stage in range(first, first + view.jobs.num_stages[job]):
            row = work.now[0] + stage
            is_stale = work.embedded_stage[row] != work.stage_stamp[stage]
            if is_stale and is_unfinished(view, stage):
                work.embedded_stage[row] = work.stage_stamp[stage]
                work.stale[count] = stage
                count += 1
    return count


@inlined
def _list_stages(view, work, num_stale, height, has_parents, count):  # type: ignore[no-untyped-def]
    """List stale stages of one height that wait for other stages, or for none. Returns how many
    stages are listed.
    """
    for position in range(num_stale):
        stage = work.stale[position]
        is_waiting = view.stages.num_parents_unfinished[stage] > 0
        if work.height[stage] == height and is_waiting == has_parents:
            work.listed[count] = stage
            count += 1
    return count


@inlined
def _prepare(net, work, first, last):  # type: ignore[no-untyped-def]
    """Write x_v and prep(x_v) of the listed stages first .. last - 1 to `work.rows`."""
    num_features = work.x.shape[1]
    for row in range(first, last):
        for feature in range(num_features):
            work.rows[row, feature] = work.x[work.listed[row], feature]
    x = work.rows[first:last, :num_features]
    at = net.starts[Transform.PREP]
    # A rectifier of this slope changes nothing.
    apply_layer(x, net.weights, at, work.rows[first:last, num_features:], np.float32(1.0))


@inlined
def _add_messages(view, net, work, first, last):  # type: ignore[no-untyped-def]
    """Add g(sum of f(e_u) over the children u) to the embeddings of stages above the leaves."""
    num_features = work.x.shape[1]
    clear_rows(work.total, 0, last - first)
    for row in range(first, last):
        stage = work.listed[row]
        start = view.stages.child_start[stage]
        for edge in range(start, start + view.stages.num_children[stage]):
            child = view.children[edge]
            if is_unfinished(view, child):
                add_row(work.f, work.now[0] + child, work.total, row - first)
    apply_outer_transform(net, work, Transform.G_STAGE, work.out[: last - first])
    for row in range(first, last):
        add_row(work.out, row - first, work.rows[:, num_features:], row)


@inlined
def _embed_stages(view, net, work, num_jobs):  # type: ignore[no-untyped-def]
    """Write e_v = g(sum f(e_u)) + prep(x_v) (Eq. 1) of the changed jobs' stale stages, by height.

    Also writes f(e_v) of stages that wait for others. Returns the number of stages.
    """
    num_features = work.x.shape[1]
    num_stale = _find_stale(view, work, num_jobs)
    height = 0
    first = 0
    while first < num_stale:
        middle = _list_stages(view, work, num_stale, height, True, first)
        last = _list_stages(view, work, num_stale, height, False, middle)
        if last > first:
            _prepare(net, work, first, last)
            if net.has_graph and height > 0:
                _add_messages(view, net, work, first, last)
        for row in range(first, last):
            copy_row(work.rows[:, num_features:], row, work.e, work.now[0] + work.listed[row])
        if net.has_graph and middle > first:
            e = work.rows[first:middle, num_features:]
            transform(net, work, Transform.F_STAGE, e, work.out[: middle - first])
            for row in range(first, middle):
                copy_row(work.out, row - first, work.f, work.now[0] + work.listed[row])
        first = last
        height += 1
    return num_stale


@inlined
def _sum_stages(view, work, num_jobs):  # type: ignore[no-untyped-def]
    """Write the sums of f2(x_v, e_v) over the stages of the changed jobs to `work.total`."""
    clear_rows(work.total, 0, num_jobs)
    for position in range(num_jobs):
        job = work.changed[position]
        first = view.jobs.stage_start[job]
        for stage in range(first, first + view.jobs.num_stages[job]):
            if is_unfinished(view, stage):
                add_row(work.f2, work.now[0] + stage, work.total, position)


@inlined
def _embed_jobs(view, net, work, num_jobs):  # type: ignore[no-untyped-def]
    """Write the embeddings of the changed jobs: of their stages, their summaries y_i, and f3(y_i).

    f3(y_i) is what a job adds to the summary of the cluster.
    """
    count = _embed_stages(view, net, work, num_jobs)
    if not net.has_graph:
        for position in range(num_jobs):
            work.y[work.now[1] + work.changed[position]] = 0.0
        return
    if count > 0:
        transform(net, work, Transform.F_JOB, work.rows[:count], work.out[:count])
    for row in range(count):
        copy_row(work.out, row, work.f2, work.now[0] + work.listed[row])
    _sum_stages(view, work, num_jobs)
    y = work.out[:num_jobs]
    apply_outer_transform(net, work, Transform.G_JOB, y)
    f3 = work.total[:num_jobs]
    transform(net, work, Transform.F_GLOBAL, y, f3)
    for position in range(num_jobs):
        row = work.now[1] + work.changed[position]
        copy_row(y, position, work.y, row)
        copy_row(f3, position, work.f3, row)


@inlined
def _choose_version(view, net, work):  # type: ignore[no-untyped-def]
    """Select the version of the embeddings for the present number of offered executors.

    If there is none, the version that was used longest ago is overwritten.
    """
    offered = 0 if net.num_direct > 0 else view.now.num_source[0]
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
    work.now[0] = chosen * work.height.shape[0]
    work.now[1] = chosen * num_jobs
    if work.version[chosen, 0] != offered:
        for job in range(num_jobs):
            work.embedded[work.now[1] + job] = -1
        work.embedded_stage[work.now[0] : work.now[0] + work.height.shape[0]] = -1
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
def _has_equal_stages(view, work, job, other):  # type: ignore[no-untyped-def]
    """Return whether two jobs have the same edges and the same features of their stages.

    On a live cluster, jobs of one profile may have begun with different stages.
    """
    jobs = view.jobs
    stages = view.stages
    if jobs.num_stages[job] != jobs.num_stages[other]:
        return False
    first = jobs.stage_start[job]
    apart = jobs.stage_start[other] - first
    for stage in range(first, first + jobs.num_stages[job]):
        same = stage + apart
        if (
            stages.num_children[stage] != stages.num_children[same]
            or stages.num_parents_unfinished[stage] != stages.num_parents_unfinished[same]
        ):
            return False
        start = stages.child_start[stage]
        for edge in range(stages.num_children[stage]):
            child = view.children[start + edge]
            if view.children[stages.child_start[same] + edge] != child + apart:
                return False
        for feature in range(work.x.shape[1]):
            if work.x[stage, feature] != work.x[same, feature]:
                return False
    return True


@inlined
def _find_twin(view, work, job):  # type: ignore[no-untyped-def]
    """Return an untouched job of equal stages that was embedded in this turn, or NO_JOB."""
    jobs = view.jobs
    if not _is_untouched(view, job):
        return NO_JOB
    slot = jobs.profile[job] % work.twin.shape[0]
    twin = work.twin[slot, 1]
    if (
        work.twin[slot, 0] != work.now[2]
        or jobs.profile[twin] != jobs.profile[job]
        or jobs.work_ms[twin] != jobs.work_ms[job]
        or not _has_equal_stages(view, work, job, twin)
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
        stamp = work.stage_stamp[view.jobs.stage_start[target] + stage]
        work.embedded_stage[first + stage] = stamp
        copy_row(work.e, first_source + stage, work.e, first + stage)
        copy_row(work.f, first_source + stage, work.f, first + stage)
        copy_row(work.f2, first_source + stage, work.f2, first + stage)
    copy_row(work.y, work.now[1] + source, work.y, work.now[1] + target)
    copy_row(work.f3, work.now[1] + source, work.f3, work.now[1] + target)


@inlined
def _embed_changed(view, net, work):  # type: ignore[no-untyped-def]
    """Update the features of all jobs, and the embeddings of those that have changed."""
    gap = mean_gap(view, net)
    memory = largest_memory(view)
    num_changed = 0
    num_copies = 0
    for position in range(view.now.num_active[0]):
        job = view.active[position]
        _refresh_features(view, net, work, job, gap, memory)
        row = work.now[1] + job
        if work.embedded[row] != work.stamp[job]:
            work.embedded[row] = work.stamp[job]
            twin = _find_twin(view, work, job)
            if twin == NO_JOB:
                work.changed[num_changed] = job
                num_changed += 1
            else:
                work.copies[num_copies, 0] = twin
                work.copies[num_copies, 1] = job
                num_copies += 1
        _offer_as_twin(view, work, job)
    if num_changed > 0:
        _embed_jobs(view, net, work, num_changed)
    for copy in range(num_copies):
        _copy_embeddings(view, work, work.copies[copy, 0], work.copies[copy, 1])


@kernel
def embed(view, net, work):  # type: ignore[no-untyped-def]
    """Update all embeddings for the current state."""
    _choose_version(view, net, work)
    _embed_changed(view, net, work)
    clear_rows(work.total, 0, 1)
    work.z[:] = 0.0
    if not net.has_graph:
        return
    for position in range(view.now.num_active[0]):
        add_row(work.f3, work.now[1] + view.active[position], work.total, 0)
    apply_outer_transform(net, work, Transform.G_GLOBAL, work.out[:1])
    for o in range(_D):
        work.z[o] = work.out[0, o]
