"""Random errors of the scheduler's estimates, and of runs against their profiles.

These are the draws behind the option `--estimate-error`.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from parcae.errors import ConfigError
from parcae.workloads.arrivals import JobSequence

Float64Array = npt.NDArray[np.float64]
#: Sigma of the error of the durations that the scheduler sees; or "log": the scheduler sees the
#: profile, and runs deviate from it as they did in the log.
EstimateError = float | Literal["log"]
#: A factor of e^10 at one sigma: with larger ones, durations would exceed the range of numbers.
LARGEST_SIGMA = 10.0
#: Largest factor on durations, which are below 2^31 ms: their product in ms is a 64-bit integer.
_LARGEST_FACTOR = 2.0**31


def parse_estimate_error(text: str) -> EstimateError:
    """Parse an estimate error: "log" (the workload's spread) or the sigma of a log-normal factor.

    Raises:
        ConfigError: the text is neither "log" nor a number from 0 to LARGEST_SIGMA.

    Example: `parse_estimate_error("0.5")` is 0.5.
    """
    if text.strip() == "log":
        return "log"
    try:
        sigma = float(text)
    except ValueError:
        sigma = math.nan
    if not 0 <= sigma <= LARGEST_SIGMA:
        raise ConfigError(
            f"estimate error {text!r}: write log (the spread of the workload's own runs) or a "
            f"sigma from 0 to {LARGEST_SIGMA:g}, e.g. 0.5"
        )
    return sigma


def draw_knowledge(
    sequence: JobSequence,
    estimate_error: EstimateError,
    unknown_share: float,
    rng: np.random.Generator,
) -> Float64Array:
    """Draw, for each job, the task duration that the scheduler sees / the profiled task duration.

    Args:
        sequence: the jobs of the run.
        estimate_error: sigma of that factor; with "log" the scheduler sees the profile itself.
        unknown_share: share of the jobs, 0..1, that the scheduler knows nothing of (Decima,
            Appendix J).
        rng: used only if something is uncertain.

    Returns:
        float64[num_jobs]: 1 means known exactly, 0 means unknown.
    """
    knowledge = np.ones(sequence.num_jobs, np.float64)
    if estimate_error != "log" and estimate_error > 0:
        knowledge[:] = rng.lognormal(0.0, estimate_error, sequence.num_jobs)
    if unknown_share > 0:
        knowledge[rng.random(sequence.num_jobs) < unknown_share] = 0.0
    return knowledge


def draw_run_factors(
    sequence: JobSequence, estimate_error: EstimateError, rng: np.random.Generator
) -> Float64Array:
    """Draw, for each stage of each job in the sequence, the real task duration / the profiled one.

    With "log", a run's factor is lognormal(0, work_sigma), and each of its stages has that factor
    times lognormal(0, duration_sigma). The median is the profile. The mean factor is
    exp(sigma ** 2 / 2) > 1, so the load is higher by that factor.

    Args:
        sequence: the jobs of the run.
        estimate_error: with a sigma all factors are 1: only the scheduler's estimates are wrong.
        rng: a generator is spawned from it, so that its other draws stay the same.

    Returns:
        float64[number of stages of all jobs]: in order of arrival, stages in the order of the job.

    Example: a workload without any spread has factors of 1, whatever the error.
    """
    jobs = sequence.jobs
    num_stages = np.array([len(job.stages) for job in jobs], np.int64)
    work_sigma = np.array([job.work_sigma for job in jobs], np.float64)
    duration_sigma = np.array(
        [stage.duration_sigma for job in jobs for stage in job.stages], np.float64
    )
    if estimate_error != "log" or not (work_sigma.any() or duration_sigma.any()):
        return np.ones(len(duration_sigma), np.float64)
    (run_rng,) = rng.spawn(1)
    job_log = work_sigma * run_rng.standard_normal(len(jobs))
    stage_log = duration_sigma * run_rng.standard_normal(len(duration_sigma))
    factor_log = np.repeat(job_log, num_stages) + stage_log
    return np.exp(np.minimum(factor_log, math.log(_LARGEST_FACTOR)))
