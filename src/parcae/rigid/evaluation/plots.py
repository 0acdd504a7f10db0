"""The charts of runs of rigid jobs, and of reports that compare policies on them.

In a Gantt chart there is a panel for each resource, with its units against time. A job is a box
that spans the units and the time that it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from parcae.base.arrays import Float64Array
from parcae.evaluation.comparison import Comparison
from parcae.evaluation.gantt import Bars, Chart, Panel
from parcae.evaluation.plots import (
    NUM_SPANS,
    curve_chart,
    interval_dots,
    share_axis,
)
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.metrics import has_started, jobs_waiting, mean_of_started, slowdown, usage
from parcae.rigid.world import RigidOutcome
from parcae.simulation.metrics import mean_over_spans
from parcae.workloads.import_report import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: A chart with more jobs, or a resource with more units, would not be readable.
MAX_JOBS = 400
MAX_UNITS = 400


#: Largest number of points of a distribution.
_NUM_RANKS = 500
#: If the largest mean is more than this many times the smallest, the axis is logarithmic.
_WIDE = 30.0


def slowdown_bars(comparison: Comparison) -> Figure:
    """Every policy's mean (bounded) slowdown with its interval, the first on top."""
    words = comparison.world.measure_words
    estimates = [comparison.main(p) for p in comparison.policies]
    names = [p.name for p in comparison.policies]
    figure = interval_dots(f"Mean {words}, with 95% intervals", f"mean {words}", names, estimates)
    if _is_wide([e.mean for e in estimates]):
        figure.axes[0].set_xscale("log")
        figure.axes[0].autoscale(axis="x")
    return figure


def _is_wide(values: list[float]) -> bool:
    known = [v for v in values if v > 0]
    return bool(known) and max(known) > _WIDE * min(known)


def slowdown_cdf(comparison: Comparison) -> Figure:
    """Share of jobs with at most a given (bounded) slowdown.

    Jobs that never started count in the total, so the curve of such a policy ends below 1.
    """
    curves = {}
    for column, result in enumerate(comparison.policies):
        values = comparison.jobs.filter(pl.col("column") == column)[comparison.world.main]
        known = values.drop_nulls().sort().to_numpy()
        # At most _NUM_RANKS of the sorted values are drawn, to keep the page small.
        ranks = np.unique(np.linspace(0, len(known) - 1, min(_NUM_RANKS, len(known))).round())
        rows = ranks.astype(np.int64)
        curves[result.name] = (known[rows], (rows + 1) / max(1, len(values)))
    words = comparison.world.measure_words
    title = f"Share of jobs with at most a {words}"
    axes = (words, "share of jobs")
    return share_axis(curve_chart(title, axes, curves, "steps", xscale="log"))


def slowdown_by_size(comparison: Comparison) -> Figure:
    """Mean (bounded) slowdown by size group of the jobs."""
    world = comparison.world
    words = world.measure_words
    means = {p.name: p.numbers[f"{world.main}_by_size"] for p in comparison.policies}
    # A size of which no job started has no mean.
    rows = {name: np.array(list(one.values()), np.float64) for name, one in means.items()}
    curves = {name: (np.arange(len(row)), row) for name, row in rows.items()}
    axes = (world.sizes.what, f"mean {words}")
    figure = curve_chart(f"Mean {words} by size of the job", axes, curves, "dots")
    sizes = list(next(iter(means.values())))
    figure.axes[0].set_xticks(range(len(sizes)), sizes)
    if _is_wide(np.concatenate([*rows.values()]).tolist()):
        figure.axes[0].set_yscale("log")
    return figure


def learning_curves(comparison: Comparison) -> Figure:
    """The cost of learned policies on the selection runs, against the seconds of training."""
    learned = comparison.resolved.learned("curve")
    curves = {}
    for result in comparison.policies:
        points = np.array(learned.get(result.name, []), np.float64)
        curves[result.name] = (points[:, 1], points[:, 2]) if len(points) else None
    axes = ("seconds of training", "cost on the runs that chose the checkpoint")
    return curve_chart("How the learned policies learned", axes, curves, ylim=(0, None))


def over_time(outcomes: Mapping[str, RigidOutcome]) -> tuple[Figure, list[Figure]]:
    """The number of waiting jobs over time, and the share of every resource that is in use.

    They are means over 240 intervals; a run of fewer than 240 steps has one a step.
    """
    end = last_finish(outcomes)
    edges = np.linspace(0, end, min(NUM_SPANS, end) + 1)
    jobs = next(iter(outcomes.values())).jobs
    axis = "time (s)" if jobs.step == "s" else "time (steps)"

    def chart(title: str, what: str, level: Callable[[RigidOutcome], Float64Array]) -> Figure:
        curves = {name: (edges[:-1], level(outcome)) for name, outcome in outcomes.items()}
        return curve_chart(title, (axis, what), curves, ylim=(0, None))

    waiting = chart(
        "Jobs waiting", "jobs waiting", lambda run: mean_over_spans(*jobs_waiting(run), edges)
    )
    busy = []
    for row, units in enumerate(jobs.capacity.tolist()):
        label = jobs.resources[row]
        used = partial(_share_used, resource=row, units=units, edges=edges)
        busy.append(share_axis(chart(f"In use: {label}", f"share of {label}", used)))
    return waiting, busy


def _share_used(
    outcome: RigidOutcome, resource: int, units: int, edges: Float64Array
) -> Float64Array:
    return mean_over_spans(*usage(outcome, resource), edges) / float(units)


def boxes(outcome: RigidOutcome, resource: int) -> Bars:
    """The boxes of all jobs that started. Each job holds the lowest units free at its start.

    A job whose units are not neighbours has several boxes. The model of rigid jobs defines how many
    units a job holds, not which; this choice is for drawing only.

    Example: jobs of 2 and 3 units that start together hold units 0-1 and 2-4.
    """
    jobs = outcome.jobs
    # The time from which each unit is free.
    free_from = np.zeros(int(jobs.capacity[resource]), np.int64)
    rows: list[tuple[int, int, int, int, int]] = []
    order = np.flatnonzero(has_started(outcome))
    for job in order[np.argsort(outcome.start[order], kind="stable")].tolist():
        start = int(outcome.start[job])
        finish = int(outcome.finish[job])
        units = np.flatnonzero(free_from <= start)[: jobs.demand[job, resource]]
        free_from[units] = finish
        neighbours = np.split(units, np.flatnonzero(np.diff(units) > 1) + 1)
        rows += [(int(some[0]), start, finish, job, len(some)) for some in neighbours if len(some)]
    return Bars(*np.array(rows, np.int64).reshape(-1, 5).T)


def can_be_drawn(jobs: RigidJobs) -> bool:
    """Whether a chart of a run of these jobs would be readable."""
    return len(jobs) <= MAX_JOBS and int(jobs.capacity.max()) <= MAX_UNITS


def packing_chart(name: str, outcome: RigidOutcome) -> Chart:
    """The chart of one run under the policy of this name."""
    lost = int((~has_started(outcome)).sum())
    never = f", {counted(lost, 'job')} never started" if lost else ""
    title = f"{name}: mean slowdown {mean_of_started(slowdown(outcome)):,.2f}{never}"
    jobs = outcome.jobs
    panels = [
        Panel(
            label,
            int(jobs.capacity[resource]),
            boxes(outcome, resource),
            _names(outcome, resource),
            low=0.0,
        )
        for resource, label in enumerate(jobs.resources)
    ]
    unit = "s" if jobs.step == "s" else "steps"
    end = last_finish({name: outcome})
    return Chart(title, panels, end, f"time ({unit})")


def _names(outcome: RigidOutcome, resource: int) -> list[str]:
    """By job: its id, its units of a resource, and its times."""
    jobs = outcome.jobs
    columns = (jobs.ids, jobs.demand[:, resource], outcome.start, outcome.finish, jobs.arrival)
    return [
        f"job {job}: {units} units from {start} to {finish}, waited {start - arrival}"
        for job, units, start, finish, arrival in zip(*columns, strict=True)
    ]


def last_finish(outcomes: Mapping[str, RigidOutcome]) -> int:
    """The time at which the last job of any run finishes, at least 1."""
    return max(1, *(int(outcome.finish.max(initial=0)) for outcome in outcomes.values()))
