"""The report's curves: JCT distribution, concurrency and JCT over time, executor shares (Decima, Figures 9a and 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parcae.cluster.trace import Trace
from parcae.metrics.cluster import concurrency, executor_share
from parcae.metrics.jobs import jct_ms
from parcae.units import MS_PER_S

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

#: One colour a policy, told apart in print and by the colour-blind (Okabe and Ito).
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31", "#7f7f7f")


def policy_color(row: int) -> str:
    """The colour of the policy at a row of the comparison."""
    return PALETTE[row % len(PALETTE)]


def _figure(title: str, x: str, y: str) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(
        title=title,
        template="plotly_white",
        height=360,
        margin={"l": 60, "r": 20, "t": 45, "b": 45},
        xaxis_title=x,
        yaxis_title=y,
        legend={"orientation": "h", "y": -0.25},
    )
    return figure


def jct_bars(names: Sequence[str], means: Sequence[float], low: Sequence[float], high: Sequence[float]) -> Figure:
    """Average JCT of every policy with its interval."""
    figure = _figure("Average job completion time over all seeds", "", "average JCT (s)")
    error = {"type": "data", "array": np.subtract(high, means), "arrayminus": np.subtract(means, low)}
    colors = [policy_color(row) for row in range(len(names))]
    figure.add_bar(x=list(names), y=list(means), error_y=error, marker_color=colors, width=0.6)
    figure.update_yaxes(rangemode="tozero")
    return figure


def jct_cdf(traces: Mapping[str, Trace]) -> Figure:
    """Share of the jobs that completed within a time."""
    figure = _figure("Job completion times: share of jobs done within", "JCT (s)", "share of jobs")
    for row, (name, trace) in enumerate(traces.items()):
        jct = np.sort(jct_ms(trace)) / MS_PER_S
        share = np.arange(1, len(jct) + 1) / len(jct)
        figure.add_scatter(x=jct, y=share, name=name, line={"color": policy_color(row), "shape": "hv"})
    return figure


def concurrency_over_time(traces: Mapping[str, Trace]) -> Figure:
    """Jobs in the system over time (Decima, Figure 10a)."""
    figure = _figure("Jobs in the system over time", "time (s)", "jobs in the system")
    for row, (name, trace) in enumerate(traces.items()):
        times, count = concurrency(trace)
        figure.add_scatter(x=times / MS_PER_S, y=count, name=name, line={"color": policy_color(row), "shape": "hv"})
    return figure


def jct_over_time(traces: Mapping[str, Trace]) -> Figure:
    """Each job's JCT at its completion (Decima, Figure 10b)."""
    figure = _figure("Completion times over time", "time of completion (s)", "JCT (s)")
    for row, (name, trace) in enumerate(traces.items()):
        order = np.argsort(trace.completion_ms)
        x, y = trace.completion_ms[order] / MS_PER_S, jct_ms(trace)[order] / MS_PER_S
        figure.add_scatter(x=x, y=y, name=name, mode="markers", marker={"color": policy_color(row), "size": 6})
    return figure


def share_by_work(traces: Mapping[str, Trace]) -> Figure:
    """Executors that each job held on average, by its size (Decima, Figure 10d)."""
    figure = _figure("Executors that a job held on average, by its work", "executor time of the job (s)", "executors held")
    for row, (name, trace) in enumerate(traces.items()):
        figure.add_scatter(
            x=trace.executed_ms / MS_PER_S,
            y=executor_share(trace),
            name=name,
            mode="markers",
            marker={"color": policy_color(row), "size": 6},
            text=list(trace.job_names),
        )
    figure.update_xaxes(type="log")
    return figure
