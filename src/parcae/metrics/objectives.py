"""What a policy is tuned or trained for, as one number a run: smaller is better.

Source: Decima, section 8 ("other objectives"): average JCT, makespan, tail, deadlines.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from parcae.errors import ConfigError

FloatArray = npt.NDArray[np.float64]


class Objective(StrEnum):
    """An objective by name."""

    AVERAGE_JCT = "average-jct"
    MAKESPAN = "makespan"
    P95_JCT = "p95-jct"
    MEAN_SLOWDOWN = "mean-slowdown"
    MISSED_DEADLINES = "missed-deadlines"


#: A job's deadline is its arrival + this many times its ideal duration (see `parcae.metrics.jobs.ideal_ms`).
DEADLINE_SLOWDOWN = 4.0


def parse_objective(text: str) -> Objective:
    """The objective of that name.

    Raises:
        ConfigError: there is none.
    """
    try:
        return Objective(text)
    except ValueError:
        raise ConfigError(f"objective {text!r}: write one of {', '.join(Objective)}") from None


def objective_cost(
    objective: Objective, arrival_ms: FloatArray, end_ms: FloatArray, ideal_ms: FloatArray
) -> FloatArray:
    """The objective of each of many runs, float64[num_runs]; ms, or a plain number for slowdown and deadlines.

    Args:
        arrival_ms, end_ms, ideal_ms: float64[num_runs, num_jobs]; a job that never completed ends with its run.

    Example: jobs of ideal duration 2 s that take 4 s and 10 s have mean slowdown 3.5; the second misses its deadline.
    """
    jct = np.maximum(0.0, end_ms - arrival_ms)
    if objective is Objective.AVERAGE_JCT:
        return np.asarray(jct.mean(axis=1))
    if objective is Objective.MAKESPAN:
        return np.asarray(end_ms.max(axis=1) - arrival_ms.min(axis=1))
    if objective is Objective.P95_JCT:
        return np.asarray(np.percentile(jct, 95, axis=1))
    slowdown = np.maximum(1.0, jct / np.maximum(1.0, ideal_ms))
    if objective is Objective.MEAN_SLOWDOWN:
        return np.asarray(slowdown.mean(axis=1))
    return np.asarray((slowdown > DEADLINE_SLOWDOWN).mean(axis=1))
