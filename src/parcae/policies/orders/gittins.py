"""The Gittins index of log-normal job sizes, tabulated by spread and age."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from parcae.policies.orders.layout import GITTINS_AGES_PER_UNIT, GITTINS_SIGMAS_PER_UNIT
from parcae.simulation.config import SimulationConfig
from parcae.workloads.job import Workload

#: The table ends at this spread and this age (in median sizes).
_LARGEST_SIGMA = 3.0
_LARGEST_AGE = 10.0
#: Quanta of service over which the index is maximised, in units of the median size.
_QUANTA = np.geomspace(0.01, 50.0, 120)


@lru_cache(maxsize=1)
def gittins_index() -> npt.NDArray[np.float64]:
    """Return the table of the Gittins index of a log-normal size with median 1.

    The result is float64[num_sigmas, num_ages], by spread (sigma) and age a (service so far):

    index(a) = max over quanta d of P(S - a <= d | S > a) / E[min(S - a, d) | S > a].

    Source: Gittins, Glazebrook and Weber, "Multi-armed bandit allocation indices" (2011),
    chapter 3.

    Example: a size that is known exactly (spread 0) has index 1 / (1 - age).
    """
    sigmas = (
        np.arange(round(_LARGEST_SIGMA * GITTINS_SIGMAS_PER_UNIT) + 1) / GITTINS_SIGMAS_PER_UNIT
    )
    ages = (np.arange(round(_LARGEST_AGE * GITTINS_AGES_PER_UNIT)) + 0.5) / GITTINS_AGES_PER_UNIT
    table = np.empty((len(sigmas), len(ages)))
    for row, sigma in enumerate(sigmas):
        table[row] = [_index(max(sigma, 0.02), age) for age in ages]
    return table


def _index(sigma: float, age: float) -> float:
    """The index of one spread and age, for a size with median 1."""
    grid = np.concatenate([[0.0], _QUANTA])
    # Survival functions, since differences of probabilities near 1 would be lost to rounding.
    survival = norm.sf(np.log(age + grid) / sigma)
    # The lower bounds here and below avoid divisions by 0 at ages that are hardly ever reached.
    alive = max(survival[0], 1e-300)
    ends = survival[0] - survival[1:]
    # E[min(S - a, d); S > a] = integral of P(S > a + t) over t in 0..d.
    served = np.cumsum(0.5 * (survival[1:] + survival[:-1]) * np.diff(grid))
    return float(np.max((ends / alive) / np.maximum(served / alive, 1e-12)))


def gittins_tables(workload: Workload, config: SimulationConfig) -> dict[str, npt.NDArray[Any]]:
    """Return the tables `sigma` and `index` for `plan_tables`.

    The spread of a recurring job's size is the one that the workload records if the config's
    estimate error is "log"; otherwise it is the config's estimate error. The last row is for jobs
    that the profile does not know: the spread of sizes over all jobs of the workload.
    """
    sizes = np.log([max(1.0, job.work_ms) for job in workload.jobs])
    unknown = float(sizes.std()) if len(sizes) > 1 else 1.0
    if config.estimate_error == "log":
        known = [job.work_sigma for job in workload.jobs]
    else:
        known = [float(config.estimate_error)] * len(workload.jobs)
    return {"sigma": np.array([*known, unknown]), "index": gittins_index()}
