"""What the scores know directly in the feature set `jobs`: see `layout.Direct`, `LimitFeature`."""

from __future__ import annotations

import math

from parcae.cluster.kernels.tables import demand, is_runnable
from parcae.cluster.state import NO_JOB
from parcae.kernels import inlined, kernel
from parcae.policies.decima.kernels.features import num_left, num_on_stage
from parcae.policies.decima.layout import Direct, LimitFeature, Unit
from parcae.policies.networks.kernels import find_ahead
from parcae.policies.rule.kernels.scores import curve_row

#: Keeps logarithms of shares of the mean work finite.
_LEAST_WORK = 1e-3
_NUM_PRICES = Direct.IS_RUNNABLE - Direct.LEVEL_CHEAP
#: Unit of the logarithm of a limit.
_LOG_LEVELS = 4.0


@kernel
def write_cluster(view, net, work, x):  # type: ignore[no-untyped-def]
    """Write the features that all stages have in common to x, and the jobs' ranks.

    Args:
        view: the observation or state.
        net: the Network.
        work: the Workspace; `rank` and the tables behind it are written.
        x: float32[number of Direct], written.
    """
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
    """Write the features of a job to x.

    Args:
        view: the observation or state.
        net: the Network.
        work: the Workspace; `ahead` must be up to date (see `write_cluster`).
        position: the job's position among the active ones.
        held: executors that the job holds, without the offered ones.
        x: float32[number of Direct], written.
    """
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
def below_ms(view, stage):  # type: ignore[no-untyped-def]
    """Return the work on the heaviest path from a stage on, without its tasks that have started."""
    stages = view.stages
    return stages.downstream_ms[stage] - stages.num_started[stage] * stages.task_ms[stage]


@inlined
def _waves(view, stage, added):  # type: ignore[no-untyped-def]
    """Return the waves in which a stage's tasks would start on its executors and so many more."""
    return num_left(view, stage) / max(1, num_on_stage(view, stage) + added)


@inlined
def write_stage(view, net, stage, paths, x):  # type: ignore[no-untyped-def]
    """Write the features of a stage to x.

    Args:
        view: the observation or state.
        net: the Network.
        stage: row of the stage.
        paths: the critical path of the stage's job (see `critical_ms`), and the longest of those
            that begin with stages to choose from.
        x: float32[number of Direct], written.
    """
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
def is_distinct(view, net, held, column):  # type: ignore[no-untyped-def]
    """Return whether a limit gives away other executors than every smaller one.

    Args:
        view: the observation or state.
        net: the Network.
        held: executors that limits are counted from.
        column: column of the limit.
    """
    offered = view.now.num_source[0]
    is_enough = column > 0 and net.levels[column - 1] - held >= offered
    return net.levels[column] > held and not is_enough


@kernel
def write_limit(view, net, stage, held, column, x):  # type: ignore[no-untyped-def]
    """Write the features of a limit to x.

    Args:
        view: the observation or state.
        net: the Network.
        stage: row of the chosen stage.
        held: executors that the job holds, without the offered ones.
        column: column of the limit.
        x: float32[number of LimitFeature], written.
    """
    level = net.levels[column]
    top = net.levels[net.levels.shape[0] - 1]
    offered = view.now.num_source[0]
    added = min(level - held, offered)
    row = curve_row(net, view, view.stages.job[stage])
    x[LimitFeature.LEVEL] = level / top
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
