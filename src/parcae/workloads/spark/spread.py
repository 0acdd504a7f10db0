"""Measures how much the runs of one recurring job differ.

The result are factors of runs and stages around the medians.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RunSpread:
    """The spread of the runs of one recurring job.

    Args:
        work_sigma: standard deviation of log(total work of a run) around the median.
        duration_sigma: float64[num_stages], the same for each stage's mean task duration after
            division by the run's factor (its total work / the median of all runs).
        scale: float64[num_runs, num_stages], factors for a run's task durations. After scaling,
            their mean is the median over the runs of the same parallelism, each relative to its
            run's factor.
    """

    work_sigma: float
    duration_sigma: Float64Array
    scale: Float64Array


def log_sigma(values: Float64Array) -> float:
    """Standard deviation of the logarithms around their median.

    Values of 0 are ignored; fewer than two values above 0 give 0. The sum of squares is divided by
    the number of values minus one, as for a sample.

    Example: `log_sigma(np.array([1.0, 2.0, 4.0]))` is log 2 = 0.693: the squares of two deviations
    of log 2, divided by 2.
    """
    logs = np.log(values[values > 0])
    if logs.size < 2:
        return 0.0
    return float(np.sqrt(np.square(logs - np.median(logs)).sum() / (logs.size - 1)))


def _log_median(values: Float64Array) -> float:
    """The median of the logarithms, as a value; 0 if no value is above 0.

    Values of 0 are ignored. Between two values it is their geometric mean.
    """
    positive = values[values > 0]
    return float(np.exp(np.median(np.log(positive)))) if positive.size else 0.0


def spread_of_runs(
    mean_ms: Float64Array, num_tasks: npt.NDArray[np.int64], level: npt.NDArray[np.int64]
) -> RunSpread:
    """The spread of the runs of one recurring job.

    Args:
        mean_ms: float64[num_runs, num_stages], mean task durations in ms.
        num_tasks: int64[num_runs, num_stages].
        level: int64[num_runs, num_stages], the parallelism at which the stage ran.

    Example: three runs of 100, 110 and 130 ms per task, with one stage and equal task counts.
    `work_sigma` is the spread of the three numbers, `duration_sigma` is [0] (the runs' factors
    explain all), and `scale` is [[1.1], [1], [0.846]].
    """
    work_ms = (mean_ms * num_tasks).sum(axis=1)
    median_ms = _log_median(work_ms)
    factor = (
        np.where(work_ms > 0, work_ms / median_ms, 1.0) if median_ms > 0 else np.ones(len(work_ms))
    )
    relative_ms = mean_ms / factor[:, None]
    scale = np.ones_like(mean_ms)
    for stage in range(mean_ms.shape[1]):
        # Durations are only comparable at the same parallelism.
        for stage_level in np.unique(level[:, stage]):
            rows = np.flatnonzero((level[:, stage] == stage_level) & (mean_ms[:, stage] > 0))
            scale[rows, stage] = _log_median(relative_ms[rows, stage]) / mean_ms[rows, stage]
    duration_sigma = np.array([log_sigma(column) for column in relative_ms.T])
    return RunSpread(log_sigma(work_ms), duration_sigma, scale)


def scaled(samples: npt.NDArray[np.int64], scale: float) -> npt.NDArray[np.int64]:
    """Durations times `scale` in whole ms (int64).

    They are rounded so that their sum is correct to half a ms. Rounding each value separately would
    change the mean of short tasks: 1 ms times 1.4 would stay 1 ms.

    Example: `scaled(np.array([1, 1, 1, 1, 1]), 1.4)` is [1, 2, 1, 2, 1].
    """
    ends = np.rint(np.cumsum(samples * scale)).astype(np.int64)
    return np.asarray(np.diff(ends, prepend=0), np.int64)
