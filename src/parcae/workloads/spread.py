"""How runs of recurring jobs deviate from their profiles, and which run a simulated job repeats.

Of a job with `ENOUGH_RUNS` recorded runs or more, every simulated run is one of them. With n runs
that are fewer, it is one of them with probability n / (n + `PRIOR_RUNS`); otherwise its work has
the spread that is usual in the workload, around the median. So the variance of log work is shrunk
towards the usual one.

Source: Ferguson, A Bayesian analysis of some nonparametric problems (1973): prediction under a
Dirichlet process; Smyth, Linear models and empirical Bayes methods (2004): the moderated variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from parcae.base.arrays import Float64Array, Int64Array
from parcae.workloads.durations import LARGEST_WORK_MS
from parcae.workloads.job import JobSpec

#: With so many recorded runs, simulated runs are recorded ones.
ENOUGH_RUNS = 10
#: The usual spread is worth so many runs, as the estimate of a running job is worth three tasks.
PRIOR_RUNS = 3
#: No simulated run has more than this many times the work of the largest recorded run of its job,
#: nor less than the smallest by it.
MOST_EXCESS = 2.0
#: Largest factor on durations, which are below 2^31 ms: their product in ms is a 64-bit integer.
_LARGEST_LOG = math.log(2.0**31)
#: Quantiles that stand for the usual spread, in sigmas.
_QUANTILES = ndtri((np.arange(20) + 0.5) / 20)
_SEED = 0x70617263


class _Job(NamedTuple):
    """The recorded runs of one job.

    A job of an older file, or with a spread that was given by hand, has sigmas instead.
    """

    factors: Float64Array  # [num_runs, num_stages], recorded duration / profiled one
    work: Float64Array  # [num_runs], the same of a run's work
    sigma: float
    stage_sigma: Float64Array
    most_log: float  # largest deviation of the logarithm


def _job(job: JobSpec) -> _Job:
    stage_ms = np.array([stage.work_ms for stage in job.stages])
    if len(job.run_factors):
        work = job.run_factors @ stage_ms / job.work_ms if job.work_ms > 0 else 1.0
        no_sigma = np.zeros(len(stage_ms))
        return _Job(job.run_factors, work * np.ones(job.num_runs), 0.0, no_sigma, _LARGEST_LOG)
    stage_sigma = np.array([stage.duration_sigma for stage in job.stages])
    # The squares of n deviations sum up to (n - 1) sigma^2, so none is larger than that.
    most_log = _LARGEST_LOG
    if job.num_runs > 1:
        sigma = math.hypot(job.work_sigma, stage_sigma.max())
        most_log = math.log(MOST_EXCESS) + math.sqrt(job.num_runs - 1) * sigma
    ones = np.ones((1, len(stage_ms)))
    return _Job(ones, ones[:, 0], job.work_sigma, stage_sigma, min(most_log, _LARGEST_LOG))


def _squared_log(work: Float64Array) -> Float64Array:
    """The square of the logarithm; 0 for no work, which has none."""
    return np.asarray(np.log(work, out=np.zeros_like(work), where=work > 0) ** 2)


def usual_sigma(jobs: Sequence[JobSpec]) -> float:
    """The spread of log work that is usual among jobs whose runs are kept; 0 if there are none.

    It is the median over the jobs, so that one odd job does not count. The sigma of a sample is
    divided by its own median for a spread of 1 (Wilson and Hilferty, 1931): that of two runs is
    0.69, as two values are rarely far apart.
    """
    sigmas = [
        job.work_sigma / (1 - 2 / (9 * (job.num_runs - 1))) ** 1.5
        for job in jobs
        if len(job.run_factors)
    ]
    return float(np.median(sigmas)) if sigmas else 0.0


class RunTable:
    """The recorded runs of all jobs of a workload."""

    def __init__(self, jobs: Sequence[JobSpec]) -> None:
        self.work_ms = np.array([job.work_ms for job in jobs])
        self._stage_ms = np.array([stage.work_ms for job in jobs for stage in job.stages])
        rows = [_job(job) for job in jobs]
        self._num_stages = np.array([len(job.stages) for job in jobs])
        self._first_stage = np.cumsum(self._num_stages) - self._num_stages
        self.num_runs = np.array([len(row.work) for row in rows])
        self._first_run = np.cumsum(self.num_runs) - self.num_runs
        sizes = self.num_runs * self._num_stages
        self._first_factor = np.cumsum(sizes) - sizes
        self._factors = np.concatenate([row.factors.ravel() for row in rows])
        self._work = np.concatenate([row.work for row in rows])
        self._sigma = np.array([row.sigma for row in rows])
        self._stage_sigma = np.concatenate([row.stage_sigma for row in rows])
        self._most_log = np.array([row.most_log for row in rows])
        # What was recorded once or hardly ever has the usual spread, where there is one.
        usual = usual_sigma(jobs)
        is_few = (self.num_runs < ENOUGH_RUNS) & (usual > 0)
        is_few &= np.array([len(job.run_factors) > 0 or not job.has_spread for job in jobs])
        self._prior_share = np.where(is_few, PRIOR_RUNS / (self.num_runs + PRIOR_RUNS), 0.0)
        ends = np.array([(row.work.min(), row.work.max()) for row in rows])
        least, most = (ends * (1 / MOST_EXCESS, MOST_EXCESS)).T[:, :, None]
        self._usual_work = np.clip(np.exp(usual * _QUANTILES), least, most)

    @cached_property
    def mean_work_ms(self) -> Float64Array:
        """Mean work of the runs of every job, in ms of one executor."""
        own = np.add.reduceat(self._work, self._first_run) / self.num_runs
        share = self._prior_share
        mean = share * self._usual_work.mean(axis=1) + (1 - share) * own
        # The mean of a log-normal factor; that it is cut off far out is left aside.
        variances = np.repeat(self._sigma, self._num_stages) ** 2 + self._stage_sigma**2
        stage_ms = self._stage_ms * np.exp(np.minimum(variances / 2, _LARGEST_LOG))
        return np.asarray(
            np.minimum(mean * np.add.reduceat(stage_ms, self._first_stage), LARGEST_WORK_MS)
        )

    @cached_property
    def sigma(self) -> Float64Array:
        """The spread of log work around the profile with which the runs of every job are drawn."""
        own = np.add.reduceat(_squared_log(self._work), self._first_run) / self.num_runs
        usual = _squared_log(self._usual_work).mean(axis=1)
        share = self._prior_share
        return np.asarray(np.sqrt(share * usual + (1 - share) * (own + self._sigma**2)))

    def draw(self, job_index: Int64Array, run: Int64Array, seed: int) -> Float64Array:
        """Draw how the durations of a sequence's jobs deviate from their profiles, where each job
        repeats this one of its `num_runs`.

        Returns float64[number of stages of all jobs], real task durations / profiled ones, as a
        function of the run, the seed and the job's place in the sequence.
        """
        rng = np.random.default_rng(np.random.SeedSequence([_SEED, seed, 1]))
        point = rng.random(len(job_index))
        counts = self._num_stages[job_index]
        place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        first = self._first_factor[job_index] + run * counts
        factors: Float64Array = self._factors[np.repeat(first, counts) + place]
        # Below the share of the usual spread, the point says which of its quantiles is drawn.
        share = self._prior_share[job_index]
        work = self._work[self._first_run[job_index] + run]
        (usual,) = np.nonzero((point < share) & (work > 0))
        quantile = (point[usual] / share[usual] * _QUANTILES.size).astype(np.int64)
        ratio = np.ones(len(job_index))
        ratio[usual] = self._usual_work[job_index[usual], quantile] / work[usual]
        factors *= np.repeat(ratio, counts)
        if self._sigma.any() or self._stage_sigma.any():
            factors *= self._lognormal(job_index, counts, place, seed)
        return np.asarray(np.minimum(factors, math.exp(_LARGEST_LOG)))

    def _lognormal(
        self, job_index: Int64Array, counts: Int64Array, place: Int64Array, seed: int
    ) -> Float64Array:
        """Factors of jobs whose spread is known without their runs."""
        (child,) = np.random.SeedSequence([_SEED, seed]).spawn(1)
        rng = np.random.default_rng(child)
        job_log = self._sigma[job_index] * rng.standard_normal(len(job_index))
        stages = np.repeat(self._first_stage[job_index], counts) + place
        stage_log = self._stage_sigma[stages] * rng.standard_normal(len(stages))
        most = np.repeat(self._most_log[job_index], counts)
        return np.asarray(np.exp(np.clip(np.repeat(job_log, counts) + stage_log, -most, most)))
