"""Draw the ratios to a baseline and the completion times of policies run on the same seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.evaluation.pictures import as_label, in_legend, new_picture, tidy, write_picture
from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import Estimate

FloatArray = npt.NDArray[np.float64]
#: Marker and bars of an estimate.
_ESTIMATE_STYLE = {"fmt": "D", "color": "#1d232a", "markersize": 5, "capsize": 3, "linewidth": 1.2}


def ratios_and_times(
    ratios: Mapping[str, tuple[FloatArray, Estimate]],
    seconds: Mapping[str, FloatArray],
    baseline: str,
    path: Path,
    title: str = "",
) -> None:
    """Write a picture (PNG): the ratios of every seed, and the distributions of completion times.

    Args:
        ratios: by policy, average completion time / the baseline's: float64[seeds], and the
            estimate over seeds.
        seconds: by policy, completion times in seconds.
        baseline: name of the baseline policy.
        path: the picture file.
        title: title of the picture.
    """
    figure = new_picture(10, 3.8)
    left, right = figure.subplots(1, 2)
    names = dict.fromkeys([*seconds, *ratios])
    colors = {name: policy_color(row) for row, name in enumerate(names)}
    _draw_ratios(left, ratios, colors)
    _draw_distributions(right, seconds, colors)
    tidy(left, (f"average completion time / {baseline}'s, by seed; mean and 95% interval", ""))
    tidy(right, ("completion time (s)", "share of queries"))
    write_picture(figure, path, title)


def _draw_ratios(
    axis: Any, ratios: Mapping[str, tuple[FloatArray, Estimate]], colors: Mapping[str, str]
) -> None:
    """Draw a dot per seed and the estimate of each policy, one policy per row."""
    for row, (name, (by_seed, estimate)) in enumerate(ratios.items()):
        # Spread the seeds' dots vertically, so that they do not cover each other.
        width = 0.22 if len(by_seed) > 1 else 0.0
        spread = row + width * np.linspace(-1, 1, len(by_seed))
        axis.scatter(by_seed, spread, s=14, color=colors[name], alpha=0.5, linewidths=0)
        ends = np.nan_to_num([[estimate.mean - estimate.low], [estimate.high - estimate.mean]])
        # Of equal ratios, rounding can leave the mean outside its interval by 1e-16.
        ends = np.maximum(0.0, ends)
        axis.errorbar(estimate.mean, row, xerr=ends, **_ESTIMATE_STYLE)
    # The interval of two seeds can be a thousand times wider than their distance: cut it off.
    largest = max([1.0, *(float(by_seed.max()) for by_seed, _ in ratios.values())])
    axis.set_xlim(0.0, 1.2 * largest)
    axis.axvline(1.0, color="#999999", linewidth=1, zorder=0)
    axis.set_yticks(range(len(ratios)), [as_label(name) for name in ratios])
    axis.invert_yaxis()


def _draw_distributions(
    axis: Any, seconds: Mapping[str, FloatArray], colors: Mapping[str, str]
) -> None:
    """Draw the share of queries that took at most a time, one line per policy."""
    for name, values in seconds.items():
        times = np.concatenate([[0.0], np.sort(values)])
        share = np.arange(len(times)) / len(values)
        axis.step(times, share, where="post", color=colors[name], label=in_legend(name))
    axis.set(xlim=(0, None), ylim=(0, 1.02))
