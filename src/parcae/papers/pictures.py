"""Drawing functions for the studies' pictures, so that all of them have the same style."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.evaluation.pictures import as_label, in_legend, new_picture, tidy, write_picture
from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import Estimate

#: A function that draws into a matplotlib figure.
Draw = Callable[[Any], None]


def save(draw: Draw, size: tuple[float, float], path: Path) -> None:
    """Write a picture as PNG. The file appears only when it is complete."""
    picture = new_picture(*size)
    draw(picture)
    write_picture(picture, path)


def marker_of(x: Sequence[float]) -> str | None:
    """The marker of a line's points; a line of many points has none, and one point is no line."""
    return "." if len(x) < 40 else None


def line_panel(
    axis: Any,
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    labels: tuple[str, str],
    title: str = "",
) -> None:
    """Draw lines; the y axis starts at 0."""
    for row, (name, (x, y)) in enumerate(lines.items()):
        axis.plot(
            x,
            y,
            color=policy_color(row),
            label=in_legend(name),
            marker=marker_of(x),
            linewidth=1.5,
        )
    axis.set_ylim(bottom=0)
    tidy(axis, labels, title)


def cdf_panel(
    axis: Any, samples: Mapping[str, npt.ArrayLike], labels: tuple[str, str], title: str = ""
) -> None:
    """Draw cumulative distributions."""
    for row, (name, values) in enumerate(samples.items()):
        ordered = np.sort(np.asarray(values, np.float64))
        # The curve starts at a share of 0 at the smallest value.
        x = np.concatenate([ordered[:1], ordered])
        share = np.arange(len(ordered) + 1) / max(1, len(ordered))
        axis.step(
            x,
            share[: len(x)],
            where="post",
            color=policy_color(row),
            label=in_legend(name),
            linewidth=1.5,
        )
    axis.set_ylim(0, 1.02)
    tidy(axis, labels, title)


def save_bars(estimates: Mapping[str, Estimate], label: str, path: Path) -> None:
    """Write a PNG with one horizontal bar per estimate, the first on top."""
    save(
        lambda figure: bar_panel(figure.subplots(), estimates, label),
        (8.0, 0.9 + 0.5 * len(estimates)),
        path,
    )


def bar_panels(figure: Any, panels: Mapping[str, Mapping[str, Estimate]], label: str) -> None:
    """Draw bar panels side by side."""
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, estimates) in zip(axes, panels.items(), strict=True):
        bar_panel(axis, estimates, label)
        axis.set_title(as_label(title), fontsize=9, loc="left")


def interval_lines(axis: Any, x: Sequence[float], lines: Mapping[str, Sequence[Estimate]]) -> None:
    """Draw lines through estimates, with their intervals where known."""
    for row, (name, estimates) in enumerate(lines.items()):
        errors = [[e.mean - e.low for e in estimates], [e.high - e.mean for e in estimates]]
        axis.errorbar(
            x,
            [e.mean for e in estimates],
            np.nan_to_num(errors),
            color=policy_color(row),
            marker="o",
            markersize=4,
            label=in_legend(name),
            capsize=2,
        )


def bar_panel(axis: Any, estimates: Mapping[str, Estimate], label: str) -> None:
    """Draw one horizontal bar per estimate, the first on top."""
    rows = np.arange(len(estimates))
    mean = np.array([e.mean for e in estimates.values()])
    ends = np.array([[e.low for e in estimates.values()], [e.high for e in estimates.values()]])
    colors = [policy_color(row) for row in range(len(estimates))]
    axis.barh(
        rows,
        mean,
        xerr=np.nan_to_num(np.abs(ends - mean)),
        color=colors,
        height=0.6,
        error_kw={"elinewidth": 1},
    )
    axis.set_yticks(rows, [as_label(name) for name in estimates], fontsize=8)
    # The first bar is on top.
    axis.invert_yaxis()
    tidy(axis, (label, ""), has_legend=False)
