"""Compiled message passing: the embeddings of stages, jobs and the cluster.

Embeddings are cached. That of a stage stays valid as long as the features of the stage and of those
that wait for it do; what changes from one decision to the next are mostly stages for which no stage
waits any more, so that few embeddings follow. The number of offered executors is a feature of every
stage, so the workspace keeps a few versions of all embeddings, one for each of the latest numbers.
Jobs of one profile with equal stages have equal embeddings, which are computed once and copied.

Networks whose stage scores have further inputs (`layout.Fit`, `layout.Direct`) get the number of
offered executors there, so that a single version is enough: on clusters of thousands of executors
the same number rarely comes twice.
"""

from __future__ import annotations

from parcae.base.compiled.kernels import inlined, kernel
from parcae.base.compiled.products import apply_layer, copy_numbers
from parcae.cluster.kernels.tables import edges_of, stages_of
from parcae.cluster.state import NO_PROFILE
from parcae.decima.graph.kernels.features import (
    add_row,
    apply_outer_transform,
    copy_row,
    largest_memory,
    mean_gap,
    offered_column,
    path_and_width,
    transform,
    write_stage_features,
)
from parcae.decima.graph.layout import EMBEDDING, Transform
from parcae.decima.queries import is_unfinished, num_left, num_on_stage


@inlined
def _keeps(row, column, value):  # type: ignore[no-untyped-def]
    """Remember a value, and return whether it is as it was."""
    is_equal = row[column] == value
    row[column] = value
    return is_equal


@inlined
def _is_same_job(view, work, job, num_unfinished):  # type: ignore[no-untyped-def]
    """Remember this job and the number of its unfinished stages.

    Returns whether the row held the same job already and no stage of it is new or has come back,
    and whether the number is as before.
    """
    key = work.cached_job[job]
    jobs = view.jobs
    is_same = key[0] >= num_unfinished and jobs.profile[job] != NO_PROFILE
    has_same_number = _keeps(key, 0, num_unfinished)
    is_same &= _keeps(key, 1, jobs.arrival_ms[job])
    is_same &= _keeps(key, 2, jobs.profile[job])
    is_same &= _keeps(key, 3, jobs.stage_start[job])
    is_same &= _keeps(key, 4, jobs.num_stages[job])
    is_same &= _keeps(key, 5, jobs.work_ms[job])
    return is_same, has_same_number


@inlined
def _is_as_before(view, work, stage):  # type: ignore[no-untyped-def]
    """Remember what a stage's features follow from, and return whether it is as it was before."""
    before = work.before[stage]
    is_equal = _keeps(before, 0, num_left(view, stage))
    is_equal &= _keeps(before, 1, num_on_stage(view, stage))
    return _keeps(before, 2, view.stages.task_ms[stage]) and is_equal


@inlined
def _has_other_children(view, work, stage):  # type: ignore[no-untyped-def]
    """Remember how many unfinished stages wait for a stage, and return whether it has changed."""
    count = 0
    for edge in edges_of(view, stage):
        child = view.children[edge]
        count += is_unfinished(view, child)
    has_changed = work.num_waiting[stage] != count
    work.num_waiting[stage] = count
    return has_changed


@inlined
def _find_heights(view, work, job):  # type: ignore[no-untyped-def]
    """Write the height of the job's unfinished stages above the leaves."""
    for stage in stages_of(view, job):
        work.height[stage] = 0
    last = view.jobs.stage_start[job] + view.jobs.num_stages[job] - 1
    has_changed = True
    while has_changed:
        has_changed = False
        for back in range(view.jobs.num_stages[job]):
            stage = last - back
            for edge in edges_of(view, stage):
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
    num_unfinished = 0
    for stage in stages_of(view, job):
        num_unfinished += is_unfinished(view, stage)
    is_same, has_same_number = _is_same_job(view, work, job, num_unfinished)
    has_changed = not (is_same and has_same_number)
    if has_changed:
        _find_heights(view, work, job)
    offered = -1 if net.num_direct > 0 else offered_column(net)
    path, width = path_and_width(view, net, job)
    # With these features only, a stage's features follow from the stage alone.
    has_plain = net.has_job_features and not (
        net.knows_gap or net.has_critical_path or net.has_average_width
    )
    is_waiting = False
    for stage in stages_of(view, job):
        if not is_unfinished(view, stage):
            continue
        is_other = not is_same
        if has_changed and _has_other_children(view, work, stage):
            is_other = True
        if has_plain and _is_as_before(view, work, stage) and not is_other:
            continue
        write_stage_features(view, net, stage, job, work.row, (gap, memory, path, width))
        for feature in range(work.x.shape[1]):
            if not _keeps(work.x[stage], feature, work.row[feature]):
                is_other |= feature != offered
        if is_other:
            has_changed = True
            work.stage_stamp[stage] += 1
            is_waiting |= view.stages.num_parents_unfinished[stage] > 0
    if is_waiting:
        # Embeddings contain those of the stages that wait.
        for stage in stages_of(view, job):
            work.stage_stamp[stage] += 1
    if has_changed:
        work.stamp[job] += 1


@inlined
def _find_stale(view, work, num_jobs):  # type: ignore[no-untyped-def]
    """List the stages of the first changed jobs whose embeddings are out of date.

    Their rows are written to `work.stale`. Returns how many there are.
    """
    count = 0
    for job in work.changed[:num_jobs]:
        for stage in stages_of(view, job):
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
    for stage in work.stale[:num_stale]:
        is_waiting = view.stages.num_parents_unfinished[stage] > 0
        if work.height[stage] == height and is_waiting == has_parents:
            work.listed[count] = stage
            count += 1
    return count


@inlined
def _add_messages(view, net, work, first, last):  # type: ignore[no-untyped-def]
    """Add g(sum of f(e_u) over the children u) to the embeddings of listed stages."""
    work.total[: last - first] = 0.0
    for row in range(first, last):
        for edge in edges_of(view, work.listed[row]):
            child = view.children[edge]
            if is_unfinished(view, child):
                add_row(work.f, work.now[0] + child, work.total, row - first)
    apply_outer_transform(net, work, Transform.G_STAGE, work.out[: last - first])
    for row in range(first, last):
        add_row(work.out, row - first, work.rows[:, work.x.shape[1] :], row)


@inlined
def _embed_stages(view, net, work, num_jobs):  # type: ignore[no-untyped-def]
    """Write e_v = g(sum f(e_u)) + prep(x_v) (Eq. 1) of the changed jobs' stale stages, by height.

    Also writes f(e_v) of stages that wait for others. `work.rows` has x_v and e_v of all. Returns
    the number of stages.
    """
    num_features = work.x.shape[1]
    e = work.rows[:, num_features:]
    num_stale = _find_stale(view, work, num_jobs)
    height = 0
    first = 0
    while first < num_stale:
        middle = _list_stages(view, work, num_stale, height, True, first)
        last = _list_stages(view, work, num_stale, height, False, middle)
        for row in range(first, last):
            copy_numbers(work.x[work.listed[row]], 0, num_features, work.rows[row])
        x = work.rows[first:last, :num_features]
        # A rectifier of slope 1 changes nothing.
        apply_layer(x, net.weights, net.starts[Transform.PREP], e[first:last], 1.0)
        if net.has_graph and height > 0:
            _add_messages(view, net, work, first, last)
        for row in range(first, last):
            copy_row(e, row, work.e, work.now[0] + work.listed[row])
        if net.has_graph:
            transform(net, work, Transform.F_STAGE, e[first:middle], work.out[: middle - first])
            for row in range(first, middle):
                copy_row(work.out, row - first, work.f, work.now[0] + work.listed[row])
        first = last
        height += 1
    return num_stale


@inlined
def _embed_jobs(view, net, work, num_jobs):  # type: ignore[no-untyped-def]
    """Write the embeddings of the changed jobs: of their stages, their summaries y_i, and f3(y_i).

    f3(y_i) is what a job adds to the summary of the cluster.
    """
    count = _embed_stages(view, net, work, num_jobs)
    if not net.has_graph:
        for job in work.changed[:num_jobs]:
            work.y[work.now[1] + job] = 0.0
        return
    transform(net, work, Transform.F_JOB, work.rows[:count], work.out[:count])
    for row in range(count):
        copy_row(work.out, row, work.f2, work.now[0] + work.listed[row])
    work.total[:num_jobs] = 0.0
    for position in range(num_jobs):
        for stage in stages_of(view, work.changed[position]):
            if is_unfinished(view, stage):
                add_row(work.f2, work.now[0] + stage, work.total, position)
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
    chosen = 0
    for version in range(work.version.shape[0]):
        if work.version[version, 0] == offered:
            chosen = version
            break
        if work.version[version, 1] < work.version[chosen, 1]:
            chosen = version
    num_stages = work.height.shape[0]
    num_jobs = work.stamp.shape[0]
    work.now[0] = chosen * num_stages
    work.now[1] = chosen * num_jobs
    work.now[2] += 1
    if not _keeps(work.version[chosen], 0, offered):
        work.embedded_stage[work.now[0] : work.now[0] + num_stages] = -1
        work.embedded[work.now[1] : work.now[1] + num_jobs] = -1
    work.version[chosen, 1] = work.now[2]


@inlined
def _has_equal_stages(view, work, job, other):  # type: ignore[no-untyped-def]
    """Whether two jobs have the same edges and the same features of their stages.

    On a live cluster, jobs of one profile may have begun with different stages.
    """
    stages = view.stages
    if view.jobs.num_stages[job] != view.jobs.num_stages[other]:
        return False
    apart = view.jobs.stage_start[other] - view.jobs.stage_start[job]
    for stage in stages_of(view, job):
        same = stage + apart
        if (
            stages.num_children[stage] != stages.num_children[same]
            or stages.num_parents_unfinished[stage] != stages.num_parents_unfinished[same]
            or is_unfinished(view, stage) != is_unfinished(view, same)
        ):
            return False
        start = stages.child_start[stage]
        for edge in range(stages.num_children[stage]):
            child = view.children[start + edge]
            if view.children[stages.child_start[same] + edge] != child + apart:
                return False
        for feature in range(work.x.shape[1]):
            if is_unfinished(view, stage) and work.x[stage, feature] != work.x[same, feature]:
                return False
    return True


@inlined
def _copy_embeddings(view, work, source, target):  # type: ignore[no-untyped-def]
    """Copy the embeddings in the current version from one job to another with equal stages."""
    apart = view.jobs.stage_start[source] - view.jobs.stage_start[target]
    for stage in stages_of(view, target):
        row = work.now[0] + stage
        work.embedded_stage[row] = work.stage_stamp[stage]
        copy_row(work.e, row + apart, work.e, row)
        copy_row(work.f, row + apart, work.f, row)
        copy_row(work.f2, row + apart, work.f2, row)
    copy_row(work.y, work.now[1] + source, work.y, work.now[1] + target)
    copy_row(work.f3, work.now[1] + source, work.f3, work.now[1] + target)


@inlined
def _embed_changed(view, net, work):  # type: ignore[no-untyped-def]
    """Update the features of all jobs, and the embeddings of those that have changed."""
    gap = mean_gap(view, net)
    memory = largest_memory(view)
    num_changed = 0
    num_copies = 0
    for job in view.active[: view.now.num_active[0]]:
        _refresh_features(view, net, work, job, gap, memory)
        twin = work.twin[view.jobs.profile[job] % work.twin.shape[0]]
        if not _keeps(work.embedded, work.now[1] + job, work.stamp[job]):
            if twin[0] == work.now[2] and _has_equal_stages(view, work, job, twin[1]):
                work.copies[num_copies, 0] = twin[1]
                work.copies[num_copies, 1] = job
                num_copies += 1
            else:
                work.changed[num_changed] = job
                num_changed += 1
        # Later jobs of the profile are most likely to equal one that waits for executors.
        if view.jobs.num_supplied[job] == 0:
            twin[0] = work.now[2]
            twin[1] = job
    if num_changed > 0:
        _embed_jobs(view, net, work, num_changed)
    for copy in range(num_copies):
        _copy_embeddings(view, work, work.copies[copy, 0], work.copies[copy, 1])


@kernel
def embed(view, net, work):  # type: ignore[no-untyped-def]
    """Update all embeddings for the current state."""
    _choose_version(view, net, work)
    _embed_changed(view, net, work)
    work.z[:] = 0.0
    if not net.has_graph:
        return
    work.total[:1] = 0.0
    for job in view.active[: view.now.num_active[0]]:
        add_row(work.f3, work.now[1] + job, work.total, 0)
    apply_outer_transform(net, work, Transform.G_GLOBAL, work.out[:1])
    copy_numbers(work.out[0], 0, EMBEDDING, work.z)
