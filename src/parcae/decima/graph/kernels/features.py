"""Compiled features of a stage, as Decima's network reads them."""

from __future__ import annotations

import math

from parcae.base.compiled.kernels import inlined, kernel
from parcae.cluster.kernels.tables import demand, is_runnable, relative, stages_of
from parcae.cluster.state import NO_JOB
from parcae.decima.graph.layout import (
    LIMIT_NONE,
    LIMIT_STAGE,
    LOCAL,
    MOST_WORK,
    Direct,
    LimitFeature,
    Unit,
)
from parcae.decima.kernels.queries import is_unfinished, num_left, num_on_stage
from parcae.decima.rule.kernels import curve_row
from parcae.policies.networks.kernels import find_ahead

#: Column of the number of offered executors in each feature set; see `layout.FeatureSet`.
_OFFERED_IN_PAPER = 3
_OFFERED_IN_CODE = 2


@inlined
def offered_column(net):  # type: ignore[no-untyped-def]
    """Return the column of the number of offered executors.

    A network that chooses executor classes has the stage's memory in this column.
    """
    return _OFFERED_IN_CODE if net.has_code_features else _OFFERED_IN_PAPER


@inlined
def largest_memory(view):  # type: ignore[no-untyped-def]
    """Memory of the largest class."""
    top = 0.0
    for executor_class in range(view.classes.shape[0]):
        top = max(top, view.classes.memory[executor_class])
    return top


@inlined
def below_ms(view, stage):  # type: ignore[no-untyped-def]
    """Return the work on the heaviest path from a stage on, without its tasks that have started."""
    stages = view.stages
    return stages.downstream_ms[stage] - stages.num_started[stage] * stages.task_ms[stage]


@inlined
def critical_ms(view, job):  # type: ignore[no-untyped-def]
    """Return the work on the heaviest path through the unstarted part of a job, on one executor.

    No descendant of an unfinished stage has started, so only the stage's own share of its path has
    become smaller since the job arrived.
    """
    longest = 0.0
    for stage in stages_of(view, job):
        if is_unfinished(view, stage):
            longest = max(longest, below_ms(view, stage))
    return longest


@inlined
def path_and_width(view, net, job):  # type: ignore[no-untyped-def]
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
def write_stage_features(view, net, stage, job, x, common):  # type: ignore[no-untyped-def]
    """Write the features of a stage to x.

    `common` is (mean gap between arrivals, memory of the largest class, critical path, average
    width).
    """
    units = net.units
    task_ms = view.stages.task_ms[stage]
    left = num_left(view, stage)
    work = left * task_ms / units[Unit.WORK_MS]
    offered = view.now.num_source[0] / units[Unit.EXECUTORS]
    local = LOCAL if job == view.now.source_job[0] else -LOCAL
    column = 5
    if net.has_code_features:
        x[0] = view.jobs.num_supplied[job] / units[Unit.EXECUTORS]
        x[1] = local
        x[2] = offered
        x[3] = work
        x[4] = left / units[Unit.TASKS]
    else:
        x[0] = left / units[Unit.TASKS]
        x[1] = task_ms / units[Unit.TASK_MS]
        x[2] = num_on_stage(view, stage) / units[Unit.EXECUTORS]
        x[3] = offered
        x[4] = local
    if net.has_job_features:
        x[0] = math.log1p(left / units[Unit.TASKS])
        x[1] = math.log1p(task_ms / units[Unit.TASK_MS])
        column = 3
    elif net.has_relative_features:
        # In float32, as trained networks know it.
        x[0] = math.log1p(x[0])
        x[1] = math.log1p(x[1])
    if net.has_job_features or net.has_relative_features:
        x[column] = min(MOST_WORK, work)
        x[column + 1] = units[Unit.DELAY]
        x[column + 2] = units[Unit.WIDTH]
        column += 3
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
        x[offered_column(net)] = relative(view.stages.memory[stage], common[1])


@inlined
def mean_gap(view, net):  # type: ignore[no-untyped-def]
    """Return the mean time between the arrivals so far, scaled; 0 with fewer than two jobs."""
    last = view.now.num_jobs[0] - 1
    if last < 1:
        return 0.0
    return (view.jobs.arrival_ms[last] - view.jobs.arrival_ms[0]) / last / net.units[Unit.GAP_MS]


#: Keeps logarithms of shares of the mean work finite.
_LEAST_WORK = 1e-3
_NUM_PRICES = Direct.IS_RUNNABLE - Direct.LEVEL_CHEAP
#: Unit of the logarithm of a limit.
_LOG_LEVELS = 4.0


@kernel
def write_cluster(view, net, work, x):  # type: ignore[no-untyped-def]
    """Write the features that all stages have in common to x, and the jobs' ranks."""
    now = view.now
    find_ahead(view, work)
    total_ms = 0.0
    for position in range(now.num_active[0]):
        total_ms += work.remaining_ms[position]
    x[Direct.OFFERED] = math.log1p(8.0 * now.num_source[0] / now.num_executors[0])
    x[Direct.IS_GLOBAL] = 1.0 if now.source_job[0] == NO_JOB else 0.0
    num_jobs = max(1, now.num_active[0])
    seen = min(num_jobs, net.most_jobs)
    x[Direct.JOBS] = math.log(seen)
    x[Direct.OPEN] = math.log(max(1, min(seen, now.num_open[0])))
    work_ms = total_ms * (seen / num_jobs)
    x[Direct.TOTAL] = math.log(work_ms / net.units[Unit.WORK_MS] + _LEAST_WORK)


@kernel
def write_job(view, net, work, position, held, x):  # type: ignore[no-untyped-def]
    """Write the features of a job to x."""
    job = view.active[position]
    mean_ms = net.units[Unit.WORK_MS]
    remaining_ms = view.jobs.remaining_ms[job]
    x[Direct.IS_LOCAL] = 1.0 if job == view.now.source_job[0] else 0.0
    x[Direct.REMAINING] = math.log(remaining_ms / mean_ms + _LEAST_WORK)
    x[Direct.RANK] = work.ahead[position, 0] / view.now.num_active[0]
    x[Direct.STARTED] = 1.0 - remaining_ms / max(1.0, view.jobs.work_ms[job])
    x[Direct.HELD] = held / view.now.num_executors[0]
    x[Direct.WORTH] = math.log(remaining_ms / (1 + held) / mean_ms + _LEAST_WORK)
    row = curve_row(net, view, job)
    for price in range(_NUM_PRICES):
        x[Direct.LEVEL_CHEAP + price] = net.suited[row, price]


@inlined
def _waves(view, stage, added):  # type: ignore[no-untyped-def]
    """Return the waves in which a stage's tasks would start on its executors and so many more."""
    return num_left(view, stage) / max(1, num_on_stage(view, stage) + added)


@inlined
def write_stage(view, net, stage, paths, x):  # type: ignore[no-untyped-def]
    """Write the features of a stage to x."""
    task_ms = view.stages.task_ms[stage]
    offered = view.now.num_source[0]
    wanted = demand(view, stage)
    path_ms = below_ms(view, stage)
    waves = _waves(view, stage, min(offered, wanted))
    left_ms = num_left(view, stage) * task_ms
    x[Direct.IS_RUNNABLE] = 1.0 if is_runnable(view, stage) else 0.0
    x[Direct.PATH] = path_ms / max(1.0, paths[0])
    x[Direct.DEMAND] = min(1.0, wanted / offered)
    x[Direct.WAVES] = math.log1p(waves)
    x[Direct.ROUNDING] = math.ceil(waves) - waves
    x[Direct.TASK] = math.log1p(task_ms / net.units[Unit.TASK_MS])
    x[Direct.OF_SIBLINGS] = path_ms / max(1.0, paths[1])
    x[Direct.OF_JOB] = left_ms / max(1.0, view.jobs.remaining_ms[view.stages.job[stage]])


@inlined
def held_executors(view, net, stage):  # type: ignore[no-untyped-def]
    """Return the number of executors that limits are counted from.

    These are the job's executors, or the stage's if limits are per stage. The offered executors do
    not count.
    """
    job = view.stages.job[stage]
    if net.limits == LIMIT_STAGE:
        return num_on_stage(view, stage)
    held = view.jobs.num_supplied[job]
    if job == view.now.source_job[0]:
        held -= view.now.num_source[0]
    return max(0, held)


@inlined
def is_possible(view, net, held, column):  # type: ignore[no-untyped-def]
    """Whether a limit may be chosen: it is above what is held.

    With features of jobs it must also give away other executors than every smaller limit, and a
    network without limits has the largest only.
    """
    levels = net.levels
    if net.limits == LIMIT_NONE:
        return column == levels.shape[0] - 1
    is_other = column == 0 or levels[column - 1] - held < view.now.num_source[0]
    return levels[column] > held and (is_other or not net.has_job_features)


@kernel
def write_limit(view, net, stage, held, column, x):  # type: ignore[no-untyped-def]
    """Write the features of a limit to x."""
    level = net.levels[column]
    top = net.levels[-1]
    x[LimitFeature.LEVEL] = level / top
    if not net.has_job_features:
        return
    offered = view.now.num_source[0]
    added = min(level - held, offered)
    row = curve_row(net, view, view.stages.job[stage])
    x[LimitFeature.LOG_LEVEL] = math.log(level) / _LOG_LEVELS
    x[LimitFeature.ADDED] = added / top
    x[LimitFeature.OF_SOURCE] = added / offered
    x[LimitFeature.STRETCH] = net.stretch[row, column]
    x[LimitFeature.INFLATION] = net.inflation[row, column]
    wanted = demand(view, stage)
    taken = min(added, wanted)
    waves = _waves(view, stage, taken)
    x[LimitFeature.OF_DEMAND] = taken / max(1, wanted)
    x[LimitFeature.WAVES] = math.log1p(waves)
    x[LimitFeature.ROUNDING] = math.ceil(waves) - waves
