"""The charts of the report on packing policies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from parcae.evaluation.comparison import Comparison
from parcae.evaluation.plots import (
    NUM_SPANS,
    chart_text,
    interval_bars,
    line_chart,
    new_figure,
    policy_color,
    share_axis,
)
from parcae.rigid.evaluation.gantt import last_finish
from parcae.rigid.metrics import jobs_waiting, utilization_over_time
from parcae.rigid.world import RigidOutcome
from parcae.simulation.metrics import mean_over_spans

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

#: Largest number of points of a distribution.
_NUM_RANKS = 500
#: If the largest mean is more than this many times the smallest, the axis is logarithmic.
_WIDE = 30.0


def slowdown_bars(comparison: Comparison) -> Figure:
    """A bar chart of every policy's mean (bounded) slowdown with its interval, the first on top."""
    words = comparison.world.measure_words
    estimates = [comparison.main(p) for p in comparison.policies]
    names = [p.name for p in comparison.policies]
    figure = interval_bars(f"Mean {words}, with 95% intervals", f"mean {words}", names, estimates)
    if _is_wide([e.mean for e in estimates]):
        figure.update_xaxes(type="log", dtick=1, rangemode=None)
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
        ranks = _drawn_ranks(len(known))
        share = (ranks + 1) / max(1, len(values))
        curves[result.name] = (known[ranks] if len(known) else known, share)
    words = comparison.world.measure_words
    title = f"Share of jobs with at most a {words}"
    figure = share_axis(line_chart(title, (words, "share of jobs"), curves, is_stepped=True))
    return figure.update_xaxes(type="log")


def _drawn_ranks(count: int) -> npt.NDArray[np.int64]:
    """Which of `count` sorted values are drawn: at most _NUM_RANKS, to keep the page small."""
    ranks = np.linspace(0, max(0, count - 1), min(_NUM_RANKS, max(1, count)))
    return np.unique(ranks.round().astype(np.int64))


def slowdown_by_size(comparison: Comparison) -> Figure:
    """Mean (bounded) slowdown by size group of the jobs."""
    world = comparison.world
    words = world.measure_words
    figure = new_figure(f"Mean {words} by size of the job", world.sizes.what, f"mean {words}")
    every: list[float] = []
    for row, result in enumerate(comparison.policies):
        means = {
            size: math.nan if mean is None else mean
            for size, mean in result.numbers[f"{world.main}_by_size"].items()
        }
        every += means.values()
        figure.add_bar(
            x=list(means),
            y=list(means.values()),
            name=chart_text(result.name),
            marker_color=policy_color(row),
        )
    if _is_wide(every):
        figure.update_yaxes(type="log", dtick=1)
    return figure


def learning_curves(comparison: Comparison) -> Figure:
    """The cost of learned policies on the selection runs, against the seconds of training."""
    curves = {}
    for result in comparison.policies:
        points = np.array(comparison.resolved.curves.get(result.name, []), np.float64)
        curves[result.name] = (points[:, 1], points[:, 2]) if len(points) else None
    axes = ("seconds of training", "cost on the runs that chose the checkpoint")
    figure = line_chart("How the learned policies learned", axes, curves)
    return figure.update_yaxes(rangemode="tozero")


def waiting_over_time(outcomes: Mapping[str, RigidOutcome]) -> Figure:
    """Number of waiting jobs over time, as means over 240 intervals."""
    edges = _edges(outcomes)
    curves = {
        name: (edges[:-1], mean_over_spans(*jobs_waiting(outcome), edges))
        for name, outcome in outcomes.items()
    }
    figure = line_chart("Jobs waiting", (_time_axis(outcomes), "jobs waiting"), curves)
    return figure.update_yaxes(rangemode="tozero")


def busy_over_time(outcomes: Mapping[str, RigidOutcome], resource: int) -> Figure:
    """Share of a resource in use over time, as means over 240 intervals."""
    edges = _edges(outcomes)
    curves = {
        name: (edges[:-1], utilization_over_time(outcome, resource, edges))
        for name, outcome in outcomes.items()
    }
    label = next(iter(outcomes.values())).jobs.resources[resource]
    axes = (_time_axis(outcomes), f"share of {chart_text(label)}")
    return share_axis(line_chart(f"In use: {chart_text(label)}", axes, curves))


def _time_axis(outcomes: Mapping[str, RigidOutcome]) -> str:
    return "time (s)" if next(iter(outcomes.values())).jobs.step == "s" else "time (steps)"


def _edges(outcomes: Mapping[str, RigidOutcome]) -> npt.NDArray[np.float64]:
    """Edges of the intervals of the time axis; a run of fewer than 240 steps has one per step."""
    # A run in steps has whole steps: never more intervals than steps.
    end = last_finish(outcomes)
    return np.linspace(0, end, min(NUM_SPANS, end) + 1)
