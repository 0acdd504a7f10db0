"""Draw Gantt charts of rigid jobs.

There is one chart per resource. It shows the resource's units against time; a job is a box that
spans the units and the time that it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.evaluation.gantt import chart_layout, job_color
from parcae.evaluation.pictures import new_picture, write_picture
from parcae.metrics.packing import has_started, mean_of_started, slowdown
from parcae.packing.world import Outcome

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

#: A chart with more jobs, or a resource with more units, would not be readable.
MAX_JOBS = 400
MAX_UNITS = 400
_HEIGHT = 150


class Box(NamedTuple):
    """Neighbouring units that a job holds: num_units from first_unit on, from start to finish."""

    job: int
    first_unit: int
    num_units: int
    start: int
    finish: int


def boxes(outcome: Outcome, resource: int) -> list[Box]:
    """The boxes of all jobs that started. Each job holds the lowest units free at its start.

    A job whose units are not neighbours has several boxes. The model of rigid jobs defines how many
    units a job holds, not which; this choice is for drawing only.

    Example: jobs of 2 and 3 units that start together hold units 0-1 and 2-4.
    """
    jobs = outcome.jobs
    # The time from which each unit is free.
    free_from = np.zeros(int(jobs.capacity[resource]), np.int64)
    drawn: list[Box] = []
    order = np.flatnonzero(has_started(outcome))
    for job in order[np.argsort(outcome.start[order], kind="stable")].tolist():
        start = int(outcome.start[job])
        finish = int(outcome.finish[job])
        units = np.flatnonzero(free_from <= start)[: jobs.demand[job, resource]]
        free_from[units] = finish
        drawn += [Box(job, first, count, start, finish) for first, count in _runs(units)]
    return drawn


def _runs(units: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """(first, number) of every group of neighbouring units."""
    if not len(units):
        return []
    edges = [0, *(np.flatnonzero(np.diff(units) > 1) + 1).tolist(), len(units)]
    return [(int(units[a]), b - a) for a, b in pairwise(edges)]


def can_be_drawn(outcome: Outcome) -> bool:
    """Whether a chart of the run would be readable."""
    return len(outcome.jobs) <= MAX_JOBS and int(outcome.jobs.capacity.max()) <= MAX_UNITS


def chart_title(name: str, outcome: Outcome) -> str:
    """The title of a chart: the policy and its mean slowdown."""
    lost = int((~has_started(outcome)).sum())
    never = f", {lost} jobs never started" if lost else ""
    return f"{name}: mean slowdown {mean_of_started(slowdown(outcome)):,.2f}{never}"


def packing_gantt(name: str, outcome: Outcome, end: int) -> Figure:
    """The charts of one run, one resource below the other.

    Args:
        name: the policy's name.
        outcome: the run.
        end: end of the time axis.
    """
    from plotly.subplots import make_subplots

    jobs = outcome.jobs
    count = len(jobs.capacity)
    figure = make_subplots(rows=count, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    for resource in range(count):
        _add_boxes(figure, outcome, resource)
        figure.update_yaxes(
            title=jobs.resources[resource],
            range=[0, int(jobs.capacity[resource])],
            row=resource + 1,
            col=1,
        )
    figure.update_xaxes(range=[0, end])
    figure.update_xaxes(title=f"time ({_unit(outcome)})", row=count, col=1)
    chart_layout(figure, chart_title(name, outcome), 80 + _HEIGHT * count)
    return figure


def _unit(outcome: Outcome) -> str:
    return "s" if outcome.jobs.step == "s" else "steps"


def _add_boxes(figure: Any, outcome: Outcome, resource: int) -> None:
    drawn = boxes(outcome, resource)
    ids = outcome.jobs.ids
    figure.add_bar(
        orientation="h",
        y=[box.first_unit + box.num_units / 2 for box in drawn],
        base=[box.start for box in drawn],
        x=[box.finish - box.start for box in drawn],
        width=[box.num_units for box in drawn],
        marker={
            "color": [job_color(box.job) for box in drawn],
            "line": {"width": 0.5, "color": "white"},
        },
        customdata=[_label(outcome, box, resource, int(ids[box.job])) for box in drawn],
        hovertemplate="%{customdata}<extra></extra>",
        row=resource + 1,
        col=1,
    )


def _label(outcome: Outcome, box: Box, resource: int, job_id: int) -> str:
    jobs = outcome.jobs
    job = box.job
    waited = box.start - int(jobs.arrival[job])
    return (
        f"job {job_id}: {jobs.demand[job, resource]} units "
        f"from {box.start} to {box.finish}, waited {waited}"
    )


def packing_gantt_png(outcomes: Mapping[str, Outcome], path: Path, title: str = "") -> None:
    """Write the charts of several runs as a PNG: one row per policy, one column per resource.

    Args:
        outcomes: the runs by policy name.
        path: the picture file.
        title: title of the picture.
    """
    runs = list(outcomes.items())
    count = len(runs[0][1].jobs.capacity)
    end = last_finish(outcomes)
    figure = new_picture(5.2 * count, 1.7 * len(runs) + 0.5)
    axes = figure.subplots(len(runs), count, sharex=True, squeeze=False)
    for row, (name, outcome) in enumerate(runs):
        for resource in range(count):
            _draw(axes[row, resource], outcome, resource, end)
        axes[row, 0].set_title(chart_title(name, outcome), fontsize=9, loc="left")
    for axis in axes[-1]:
        axis.set_xlabel(f"time ({_unit(runs[0][1])})")
    write_picture(figure, path, title)


def _draw(axis: Any, outcome: Outcome, resource: int, end: int) -> None:
    from matplotlib.patches import Rectangle

    for box in boxes(outcome, resource):
        place = (box.start, box.first_unit)
        size = (box.finish - box.start, box.num_units)
        axis.add_patch(
            Rectangle(place, *size, facecolor=job_color(box.job), edgecolor="white", linewidth=0.5)
        )
    axis.set(
        xlim=(0, end),
        ylim=(0, int(outcome.jobs.capacity[resource])),
        ylabel=outcome.jobs.resources[resource],
    )
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.spines[["top", "right"]].set_visible(False)


def last_finish(outcomes: Mapping[str, Outcome]) -> int:
    """The time at which the last job of any run finishes, at least 1."""
    return max(1, *(int(outcome.finish.max(initial=0)) for outcome in outcomes.values()))
