"""What schedulers are told wrong, and how runs differ from their profiles: the draws behind `--estimate-error`."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from parcae.errors import ConfigError
from parcae.workloads.arrivals import JobSequence

Float64Array = npt.NDArray[np.float64]
#: A sigma of the error on what is told, or "log": runs differ from their profiles as they did in the log.
EstimateError = float | Literal["log"]


def parse_estimate_error(text: str) -> EstimateError:
    """Read an estimate error: "log" (the workload's own spread), or the sigma of a log-normal factor.

    Raises:
        ConfigError: neither "log" nor a number >= 0.

    Example: `parse_estimate_error("0.5")` is 0.5.
    """
    if text.strip() == "log":
        return "log"
    try:
        sigma = float(text)
    except ValueError:
        sigma = math.nan
    if not math.isfinite(sigma) or sigma < 0:
        raise ConfigError(
            f"estimate error {text!r}: write log (the spread of the workload's own runs) or a sigma >= 0, e.g. 0.5"
        )
    return sigma


def draw_knowledge(
    sequence: JobSequence,
    estimate_error: EstimateError,
    unknown_share: float,
    rng: np.random.Generator,
) -> Float64Array:
    """How long the scheduler is told that each job's tasks take, in units of what its profile says.

    Args:
        sequence: the jobs of the run.
        estimate_error: sigma of the told factor; with "log" the profile itself is told (the runs differ from it).
        unknown_share: share of the jobs, 0..1, of which nothing is told (Decima, Appendix J).
        rng: drawn from as often as is needed: nothing where all is known exactly.

    Returns:
        float64[num_jobs]: 1 is known exactly, 0 is unknown.
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
    """How long the tasks of every stage of every run really take, in units of what the job's profile says.

    With "log" a run's factor is lognormal(0, work_sigma) and a stage's lognormal(0, duration_sigma) times that, around the
    profile's median. The mean factor is above 1, by exp(sigma ** 2 / 2): the load is as much higher.

    Args:
        sequence: the jobs of the run.
        estimate_error: with a sigma runs are like their profiles; only what is told of them is wrong.
        rng: never drawn from: a generator is spawned from it, so that no other draw is shifted.

    Returns:
        float64[num_stages of all arrivals]: arrival by arrival, stages in the order of the job.

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
    (own,) = rng.spawn(1)
    job_log = work_sigma * own.standard_normal(len(jobs))
    stage_log = duration_sigma * own.standard_normal(len(duration_sigma))
    return np.exp(np.repeat(job_log, num_stages) + stage_log)
