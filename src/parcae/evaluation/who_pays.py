"""Which jobs pay for a policy's better average.

`who_pays` counts the jobs that end later than under the first policy, over all seeds.
`recurring_jobs` lists which recurring jobs gain and which lose.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError
from parcae.base.texts import MS_PER_S
from parcae.cluster.trace import NOT_COMPLETED, Trace
from parcae.evaluation.statistics import (
    DEFAULT_METHOD,
    RESAMPLE_SEED,
    UNKNOWN,
    Estimate,
    Method,
    ratio_estimate,
    share_estimate,
)
from parcae.simulation.objectives import FinishedJobs, finished_jobs

Int64Array = npt.NDArray[np.int64]

#: A job counts as later if it takes more than this many times as long as under the first policy.
LATER = 1.05
#: The promise of a policy with a guard: no job takes more than this many times as long as under the
#: first policy.
PROMISE = 1.10


@dataclass(frozen=True, eq=False)
class PairedRuns:
    """The jobs of one sequence under several policies with the same random draws; simulated ms."""

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


FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WhoPays:
    """How many jobs end later than under the first policy on the same seed, over all seeds.

    Jobs that were cut off under the first policy do not count. A job that was cut off only under
    this policy counts with the time up to the end of the run, which is a lower bound.

    Args:
        later_share: share of the jobs whose completion time is more than LATER times that under the
            first policy.
        later_than_promise_share: the same for PROMISE, the bound that a guard promises.
        worst_later: the largest ratio of a job's completion time to that under the first policy;
            NaN if no job counts.
    """

    later_share: Estimate
    later_than_promise_share: Estimate
    worst_later: float

    def to_json(self) -> dict[str, Any]:
        """Shares with their intervals, and the worst ratio; null where unknown."""
        return {
            "later_than_first_share": self.later_share.to_json(),
            "later_than_first_by_10_percent_share": self.later_than_promise_share.to_json(),
            "worst_ratio_to_first": None if math.isnan(self.worst_later) else self.worst_later,
        }

    def describe(self, first: str) -> str:
        """One sentence about the later jobs; `first` is the name of the first policy.

        Example: "3.1% of the jobs end more than 5% later than under fair, the worst 1.20 times as
        late."
        """
        share = self.later_share.mean
        if math.isnan(share):
            return f"No job completed under {first}, so it is unknown which jobs end later."
        if share == 0:
            return f"No job ends more than {LATER - 1:.0%} later than under {first}."
        shown = f"{share:.1%}" if share >= 0.0005 else "Less than 0.1%"
        return (
            f"{shown} of the jobs end more than {LATER - 1:.0%} later than under {first}, "
            f"the worst {self.worst_later:,.2f} times as late."
        )


def who_pays(
    ratio_by_seed: Sequence[FloatArray],
    method: Method = DEFAULT_METHOD,
    rng: np.random.Generator | None = None,
) -> WhoPays:
    """Estimate how many jobs end later under one policy than under the first.

    Example: two seeds with the ratios (1.0, 1.2) and (0.5, 1.07): half of the jobs are later, a
    quarter later than promised, the worst 1.2 times.
    """
    return WhoPays(
        _share_above(ratio_by_seed, LATER, method, rng),
        _share_above(ratio_by_seed, PROMISE, method, rng),
        worst_ratio(np.concatenate(ratio_by_seed)),
    )


def _share_above(
    ratio_by_seed: Sequence[FloatArray],
    threshold: float,
    method: Method,
    rng: np.random.Generator | None,
) -> Estimate:
    counts = [count_later(ratio, threshold) for ratio in ratio_by_seed]
    known = [(later, of) for later, of in counts if of]
    if not known:
        return UNKNOWN
    return share_estimate([later for later, _ in known], [of for _, of in known], method, rng)


@dataclass(frozen=True, eq=False)
class RecurringJob:
    """The completion times of one recurring job under every policy."""

    name: str
    jct_ms: IntArray
    seeds: IntArray
    deadline_s: float | None = None
    method: Method = DEFAULT_METHOD

    @property
    def num_runs(self) -> int:
        """Number of its occurrences over all seeds that completed under every policy."""
        return len(self.seeds)

    @cached_property
    def jct_s(self) -> FloatArray:
        """The JCTs in seconds, float64[num_policies, num_runs]."""
        return self.jct_ms / MS_PER_S

    @cached_property
    def mean_jct_s(self) -> tuple[float, ...]:
        """Mean JCT in seconds under each policy."""
        return tuple(self.jct_s.mean(axis=1).tolist())

    def ratio_to_first(self, policy: int) -> float:
        """Mean JCT under a policy (its position in the comparison) / that under the first."""
        return self.mean_jct_s[policy] / self.mean_jct_s[0]

    def percentile_s(self, policy: int, percent: float) -> float:
        """A percentile of the JCTs under a policy, in seconds."""
        return float(np.percentile(self.jct_s[policy], percent))

    def worst_s(self, policy: int) -> float:
        """The longest JCT under a policy, in seconds."""
        return float(self.jct_s[policy].max())

    def missed_share(self, policy: int) -> float:
        """Share of its occurrences that miss the deadline under a policy; 0 without a deadline."""
        return float((self.jct_s[policy] > self._due_s).mean())

    def tardiness_s(self, policy: int) -> float:
        """Mean time beyond the deadline under a policy, in seconds; 0 without a deadline."""
        return float(np.maximum(0.0, self.jct_s[policy] - self._due_s).mean())

    @property
    def _due_s(self) -> float:
        return math.inf if self.deadline_s is None else self.deadline_s

    def spread_s(self, policy: int) -> float:
        """Standard deviation over seeds of the mean JCT of a seed, in seconds; NaN for one seed."""
        sums, counts = self._by_seed(policy)
        return float((sums / counts).std(ddof=1)) if len(sums) > 1 else math.nan

    def ratio(self, policy: int) -> Estimate:
        """The ratio with its interval, paired by seed."""
        above, below = (self._by_seed(row)[0] for row in (policy, 0))
        rng = np.random.default_rng(RESAMPLE_SEED)
        return ratio_estimate(above, below, self.method, rng)

    def _by_seed(self, policy: int) -> tuple[FloatArray, FloatArray]:
        """Of every seed with an occurrence: the sum of its JCTs in seconds, and their number."""
        _, seed = np.unique(self.seeds, return_inverse=True)
        # Whole ms have the same sum in any order: else rounding would decide who gains where a
        # policy only changes the order of equal jobs.
        sums: FloatArray = np.bincount(seed, self.jct_ms[policy]) / MS_PER_S
        return sums, np.bincount(seed).astype(np.float64)


def recurring_jobs(
    runs: Sequence[PairedRuns], policy: int, method: Method = DEFAULT_METHOD
) -> list[RecurringJob]:
    """Every recurring job that completed under all policies, sorted by loss, largest first.

    Example: a job of 4 and 6 s under the first policy and of 2 and 4 s under the second gains: its
    ratio is 0.6.
    """
    times_by_name: defaultdict[str, list[IntArray]] = defaultdict(list)
    seeds_by_name: defaultdict[str, list[int]] = defaultdict(list)
    deadline_by_name: dict[str, float] = {}
    for seed, run in enumerate(runs):
        jct_ms = np.maximum(1, run.jct_ms)
        for row in np.flatnonzero(run.is_complete.all(axis=0)):
            times_by_name[run.names[row]].append(jct_ms[:, row])
            seeds_by_name[run.names[row]].append(seed)
            if run.deadline_ms is not None and np.isfinite(run.deadline_ms[row]):
                deadline_by_name[run.names[row]] = float(run.deadline_ms[row]) / MS_PER_S
    jobs = [
        RecurringJob(
            name,
            np.array(times).T,
            np.array(seeds_by_name[name]),
            deadline_by_name.get(name),
            method,
        )
        for name, times in times_by_name.items()
    ]
    return sorted(jobs, key=lambda job: (-job.ratio_to_first(policy), job.name))


def verdict(ratio: Estimate) -> str:
    """Whether a job "gains" or "loses", or "unclear" where the interval contains 1 or is unknown.

    Example: the interval [0.8, 0.9] of the ratio to the first policy means that the job gains.
    """
    if ratio.high < 1:
        return "gains"
    return "loses" if ratio.low > 1 else "unclear"
