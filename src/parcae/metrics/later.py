"""Paired comparison of policies, job by job: which jobs end later than under the first policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parcae.cluster.trace import NOT_COMPLETED, Trace
from parcae.errors import ConfigError
from parcae.metrics.objectives import FinishedJobs, finished_jobs

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

#: A job counts as later if it takes more than this many times as long as under the first policy.
LATER = 1.05
#: The promise of a policy with a guard: no job takes more than this many times as long as under the
#: first policy.
PROMISE = 1.10


@dataclass(frozen=True, eq=False)
class PairedRuns:
    """The jobs of one sequence under several policies with the same random draws; simulated ms.

    Args:
        names: name of every job's recurring job, in order of arrival.
        arrival_ms: int64[num_jobs].
        completion_ms: int64[num_policies, num_jobs]; NOT_COMPLETED if the run ended first.
        clock_ms: int64[num_policies], when each run ended.
        ideal_ms: float64[num_jobs], ideal durations; None if they are not needed.
        deadline_ms: float64[num_jobs], deadlines after arrival, infinite for a job without one;
            None if there are no deadlines.
    """

    names: tuple[str, ...]
    arrival_ms: Int64Array
    completion_ms: Int64Array
    clock_ms: Int64Array
    ideal_ms: FloatArray | None = None
    deadline_ms: FloatArray | None = None

    @property
    def is_complete(self) -> npt.NDArray[np.bool_]:
        """Which jobs completed, bool[num_policies, num_jobs]."""
        return np.asarray(self.completion_ms != NOT_COMPLETED, np.bool_)

    @property
    def jct_ms(self) -> Int64Array:
        """Completion - arrival, int64[num_policies, num_jobs].

        For a job that was not complete at the end of the run, the time up to the end: a lower
        bound.
        """
        end_ms = np.where(self.is_complete, self.completion_ms, self.clock_ms[:, None])
        return np.asarray(np.maximum(0, end_ms - self.arrival_ms), np.int64)

    @property
    def ratio_to_first(self) -> FloatArray:
        """Every job's JCT / its JCT under the first policy, float64[num_policies, num_jobs].

        A lower bound for a job that is not complete under a later policy. NaN for a job that is not
        complete under the first policy, whose ratio is unknown. Times below 1 ms, the resolution of
        the clock, count as 1 ms.

        Example: a job of 10 s under the first policy and 12 s under the second has ratios 1.0 and
        1.2.
        """
        jct_ms = np.maximum(1, self.jct_ms)
        return np.asarray(np.where(self.is_complete[0], jct_ms / jct_ms[0], np.nan), np.float64)

    @property
    def has_arrived(self) -> npt.NDArray[np.bool_]:
        """Which jobs arrived before the end, bool[num_policies, num_jobs]."""
        # What would happen at the very time at which a run ends does not happen any more.
        return self.is_complete | (self.arrival_ms < self.clock_ms[:, None])

    def finished_jobs(self, policy: int) -> FinishedJobs:
        """The jobs under a policy, by its position, as an objective sees them."""
        assert self.ideal_ms is not None
        return finished_jobs(
            self.arrival_ms,
            self.completion_ms[policy],
            num_arrived=int(self.has_arrived[policy].sum()),
            clock_ms=int(self.clock_ms[policy]),
            ideal_ms=self.ideal_ms,
            deadline_ms=self.deadline_ms,
        )

    @property
    def has_deadline(self) -> npt.NDArray[np.bool_]:
        """Which jobs have a deadline and arrived before the end, bool[num_policies, num_jobs]."""
        return self.has_arrived & np.isfinite(self._due_ms)

    @property
    def tardiness_ms(self) -> FloatArray:
        """Time by which jobs complete after their deadline, float64[num_policies, num_jobs].

        0 for jobs that meet it or have none. A lower bound for jobs that are not complete.
        """
        return np.maximum(0.0, self.jct_ms - self._due_ms)

    @property
    def missed(self) -> npt.NDArray[np.bool_]:
        """Which jobs miss their deadline, bool[num_policies, num_jobs]."""
        return self.tardiness_ms > 0

    @property
    def _due_ms(self) -> FloatArray:
        return np.full(len(self.names), np.inf) if self.deadline_ms is None else self.deadline_ms


def paired_runs(
    traces: Sequence[Trace],
    ideal_ms: FloatArray | None = None,
    deadline_ms: FloatArray | None = None,
) -> PairedRuns:
    """Pair the runs of one job sequence; the first trace is that of the first policy.

    Only arrays are kept, not the traces.

    Args:
        traces: one run per policy.
        ideal_ms: float64[num_jobs], ideal durations; None if they are not needed.
        deadline_ms: float64[num_jobs], deadlines after arrival (infinite: none), or None.

    Raises:
        ConfigError: no run, or runs of different jobs.
    """
    if not traces:
        raise ConfigError("paired runs need at least one run")
    first = traces[0]
    for trace in traces:
        same_times = np.array_equal(trace.arrival_ms, first.arrival_ms)
        if trace.job_names != first.job_names or not same_times:
            raise ConfigError(
                f"the runs of {first.policy} and {trace.policy} are not of the same jobs"
            )
    return PairedRuns(
        first.job_names,
        np.array(first.arrival_ms, np.int64),
        np.stack([trace.completion_ms for trace in traces]).astype(np.int64),
        np.array([trace.clock_ms for trace in traces], np.int64),
        ideal_ms,
        deadline_ms,
    )


def count_later(ratio: FloatArray, threshold: float) -> tuple[int, int]:
    """Return (number of jobs with a ratio above the threshold, number of jobs with a known ratio).

    Example: of the ratios 1.0, 1.05, 1.2 and NaN, one of three is above 1.05.
    """
    return int(np.count_nonzero(ratio > threshold)), int(np.count_nonzero(~np.isnan(ratio)))


def worst_ratio(ratio: FloatArray) -> float:
    """Return the largest known ratio, or NaN if no ratio is known."""
    known = ratio[~np.isnan(ratio)]
    return float(known.max()) if known.size else float("nan")
