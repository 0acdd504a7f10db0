"""Compare several packing policies on the same job sequences or on the same log.

`compare_packing` draws sequences by seed, `compare_log` runs a log. Both return a
`PackingComparison` with confidence intervals, paired by sequence or by block of jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.errors import ConfigError
from parcae.evaluation.packing.policies import ResolvedPacking, Tuning, resolve_packing
from parcae.evaluation.packing.tuning import tuning_pieces
from parcae.evaluation.statistics import Estimate, ratio_estimate
from parcae.evaluation.tuning import check_seeds
from parcae.metrics.packing import (
    MEASURES,
    PackingSummary,
    SizeGroups,
    mean_of_started,
    plain,
    size_groups,
    summarize_packing,
)
from parcae.packing.config import PackingConfig, TimeMode
from parcae.packing.layout import Cost
from parcae.packing.sources import PackingSource
from parcae.packing.world import Outcome, PackingBatch
from parcae.policies.packing.catalog import PackingSetting
from parcae.policies.packing.policy import PackingPolicy
from parcae.version import __version__
from parcae.workloads.rigid import RigidJobs

FloatArray = npt.NDArray[np.float64]
Progress = Callable[[str], None]
#: Measures whose ratio to the first policy is reported. Waiting is not among them: it can be 0.
_RATIOS = ("slowdown", "bounded_slowdown", "completion")
#: For its intervals, a single run is divided into this many consecutive blocks of jobs.
NUM_BLOCKS = 20
_BY_RUN = (
    "95% confidence intervals: a mean over all jobs is the ratio of the {0}' sums to their numbers "
    "of jobs; ratios to the first policy are paired by {1}; delta method on the logarithm, "
    "Student's t over {2} {0}"
)
_BY_BLOCK = (
    "95% confidence intervals by batch means: one run; its jobs, in order of arrival, form {0} "
    "consecutive blocks, which are treated as independent and paired; delta method on the "
    "logarithm, Student's t. Neighbouring blocks share queues: if their means are correlated "
    "(lag 1 of {1:+.2f} to {2:+.2f} here; without correlation it stays within {3:.2f}), the "
    "intervals are too narrow"
)
#: Parts of a log that can be compared.
PARTS = ("second", "first", "all")


@dataclass(frozen=True)
class PackingResult:
    """The results of one policy over all runs.

    Args:
        name: the policy's name as the caller gave it.
        runs: one summary per run.
        estimates: by measure ("slowdown", "bounded_slowdown", "completion", "waiting"), the mean
            over the jobs that started.
        ratios: by measure, the mean / that of the first policy, paired.
        values: float64[jobs of all runs], the main measure; NaN for jobs that never started.
        groups: int64[jobs of all runs], the size group of each job.
        correlation: correlation between the means of neighbouring blocks; NaN for independent runs.
    """

    name: str
    runs: tuple[PackingSummary, ...]
    estimates: Mapping[str, Estimate]
    ratios: Mapping[str, Estimate]
    values: FloatArray
    groups: npt.NDArray[np.int64]
    correlation: float = math.nan

    @property
    def num_jobs(self) -> int:
        """Number of jobs of all runs."""
        return sum(run.jobs for run in self.runs)

    @property
    def unallocated(self) -> int:
        """Number of jobs that were still waiting at the end of their run."""
        return sum(run.unallocated for run in self.runs)

    @property
    def dropped(self) -> int:
        """Number of jobs that were lost because job slots and backlog were full."""
        return sum(run.dropped for run in self.runs)

    @property
    def is_complete(self) -> bool:
        """Whether every job of every run started.

        Otherwise the means cover only the jobs that the policy chose to start.
        """
        return self.unallocated + self.dropped == 0

    def mean(self, key: str) -> float:
        """Mean over runs of the field `key` of their summaries."""
        return mean_of_started(np.array([getattr(run, key) for run in self.runs], np.float64))

    def utilization(self) -> dict[str, float]:
        """Utilization of each resource, as a mean over runs."""
        return {
            name: float(np.mean([run.utilization[name] for run in self.runs]))
            for name in self.runs[0].utilization
        }

    def by_size(self, names: Sequence[str]) -> dict[str, float]:
        """Mean of the main measure over the jobs of each size group."""
        return {
            name: mean_of_started(self.values[self.groups == row]) for row, name in enumerate(names)
        }

    def quantiles(self, shares: Sequence[float] = (50, 95, 99)) -> dict[str, float]:
        """Percentiles of the main measure over all jobs that started."""
        known = self.values[~np.isnan(self.values)]
        return {
            f"p{share:g}": float(np.percentile(known, share)) if len(known) else math.nan
            for share in shares
        }

    def to_json(self, sizes: SizeGroups, measure: str) -> dict[str, Any]:
        """Estimates with intervals, and means over runs."""
        card: dict[str, Any] = {
            name: estimate.to_json() for name, estimate in self.estimates.items()
        }
        card |= {f"{name}_ratio_to_first": ratio.to_json() for name, ratio in self.ratios.items()}
        card |= {"ratio_to_first": self.ratios[measure].to_json()}
        card |= {"jobs": self.num_jobs, "unallocated": self.unallocated, "dropped": self.dropped}
        card |= {"quantiles": self.quantiles(), f"{measure}_by_size": self.by_size(sizes.names)}
        card |= {"makespan": self.mean("makespan"), "utilization": self.utilization()}
        card |= {"withheld_share": self.mean("withheld_share"), "decisions": self.mean("decisions")}
        card |= {
            "block_correlation": self.correlation,
            f"{measure}_by_run": [getattr(r, f"mean_{measure}") for r in self.runs],
        }
        json: dict[str, Any] = plain({key: _plain_list(value) for key, value in card.items()})
        return json


def _plain_list(value: Any) -> Any:
    return [plain(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class PackingComparison:
    """The result of comparing packing policies.

    Args:
        policies: results per policy, in the order in which the caller named them.
        settings: everything that is needed to repeat the comparison.
        measure: the main measure: "slowdown", or "bounded_slowdown" for logs.
        sizes: the size groups that `PackingResult.groups` refers to.
        outcomes: the first run of every policy, for the charts.
        curves: by learned policy, [iteration, seconds, cost on the selection runs] for each
            measurement of its training.
    """

    policies: tuple[PackingResult, ...]
    settings: dict[str, Any]
    measure: str
    sizes: SizeGroups
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    curves: Mapping[str, list[list[float]]] = field(default_factory=dict)

    @property
    def is_log(self) -> bool:
        """Whether the jobs come from a log."""
        return self.measure == "bounded_slowdown"

    @property
    def unit(self) -> str:
        """The unit of times: "steps" or "s"."""
        return "s" if self.is_log else "steps"

    @property
    def sampled(self) -> str:
        """What the intervals sample: "seeds", "pieces" of a log, or "jobs" of a log, in blocks."""
        if not self.is_log:
            return "seeds"
        return "pieces" if self.settings["piece_jobs"] else "jobs"

    def best(self) -> PackingResult | None:
        """The policy with the least mean, among those under which every job started.

        None if some jobs never started under every policy.
        """
        complete = [p for p in self.policies if p.is_complete]
        return min(complete, key=lambda p: p.estimates[self.measure].mean) if complete else None

    def to_json(self) -> dict[str, Any]:
        """{"policies": {name: {...}}, "settings": {...}}"""
        policies = {p.name: p.to_json(self.sizes, self.measure) for p in self.policies}
        return {"policies": policies, "measure": self.measure, "settings": self.settings}


def compare_packing(
    source: PackingSource,
    policies: Sequence[str],
    *,
    num_seeds: int = 100,
    seed_start: int = 1_000,
    tune_budget_s: float = 120.0,
    cost: Cost = Cost.SLOWDOWN,
    label: str = "",
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> PackingComparison:
    """Run every policy on the sequences of the seeds seed_start .. seed_start + num_seeds - 1.

    Args:
        source: the source of the job sequences.
        policies: names as in `parcae packing policies`, or paths of checkpoints. Ratios are
            relative to the first. `tetris` and `withhold` are tuned first, on sequences of the same
            source with the tuning seeds.
        num_seeds: number of seeds.
        seed_start: the first seed.
        tune_budget_s: largest duration of the search for `withhold`, in seconds.
        cost: the cost that tuning minimises.
        label: name of the setting, for titles.
        num_threads: number of threads that simulate; None for the default.
        progress: called with a text about the current step.

    Returns:
        The results per policy.

    Raises:
        PolicyError: a policy is unknown.
        ConfigError: the settings are invalid, or no job arrives.
        WorkloadError: a job cannot run on the cluster.

    Example: `compare_packing(DrawnSource(rates=(0.7,)), ["sjf", "tetris"], num_seeds=20)`.
    """
    if num_seeds < 1:
        raise ConfigError("compare on at least one seed")
    check_seeds(seed_start, num_seeds)
    rates = getattr(source, "rates", ())
    setting = PackingSetting(rate=float(np.mean(rates)) if rates else None)
    resolved = resolve_packing(
        _some(policies), Tuning(source, cost, tune_budget_s), progress, setting
    )
    sequences = source.draw(range(seed_start, seed_start + num_seeds))
    if not any(len(jobs) for jobs in sequences):
        raise ConfigError(
            "no job arrives on any of these seeds: "
            "give more seeds, a higher load or a longer window"
        )
    settings = {
        "source": source.card(),
        "seeds": [seed_start, seed_start + num_seeds - 1],
        "label": label,
    }
    return _compare(resolved, sequences, source.config, settings, progress, num_threads)


def compare_log(
    log: RigidJobs,
    policies: Sequence[str],
    *,
    part: str = "second",
    piece_jobs: int | None = None,
    tune_budget_s: float = 120.0,
    cost: Cost = Cost.BOUNDED_SLOWDOWN,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> PackingComparison:
    """Run every policy on a part of a log, with exact times.

    `tetris` and `withhold` are tuned on pieces of the log's first half.

    Args:
        log: the log's jobs.
        policies: names as in `parcae packing policies`, or paths of checkpoints. Ratios are
            relative to the first.
        part: the "second" half of the log (by number of jobs), the "first" half, or "all".
        piece_jobs: run consecutive pieces with this number of jobs, each from an empty cluster.
            Remaining jobs are left out; the settings state their number. None runs the part as one.
        tune_budget_s: largest duration of the search for `withhold`, in seconds.
        cost: the cost that tuning minimises.
        num_threads: number of threads that simulate; None for the default.
        progress: called with a text about the current step.

    Returns:
        The results per policy.

    Raises:
        PolicyError: a policy is unknown.
        ConfigError: the part does not exist, or a piece has too many jobs.
        WorkloadError: a job cannot run on the cluster.
    """
    half = len(log) // 2
    jobs = part_of(log, part)
    if half < 1:
        raise ConfigError(
            f"{log.name}: the log has {len(log)} jobs; a comparison needs at least 2, "
            "because it divides the log into halves"
        )
    where = "pieces of the log's first half" + (
        "" if part == "second" else ", which is part of the comparison"
    )
    tuning = Tuning(tuning_pieces(log.piece(0, half)), cost, tune_budget_s, where)
    sequences = _pieces(jobs, piece_jobs)
    resolved = resolve_packing(
        _some(policies), tuning, progress, PackingSetting(is_exact=True, log=log.name)
    )
    config = PackingConfig.for_log(jobs)
    settings = {
        "log": log.name, "part": part, "jobs": sum(map(len, sequences)),
        "left_out": len(jobs) - sum(map(len, sequences)),
        "piece_jobs": piece_jobs, "pieces": len(sequences),
        "ids": [int(jobs.ids[0]), int(jobs.ids[-1])],
        "capacity": dict(zip(jobs.resources, jobs.capacity.tolist(), strict=True)),
        "load": _load(jobs), "config": config.model_dump(mode="json"),
        "label": f"{log.name}, {_PART_WORDS[part]}",
    }  # fmt: skip
    return _compare(resolved, sequences, config, settings, progress, num_threads)


_PART_WORDS = {"second": "second half", "first": "first half", "all": "whole"}


def _load(jobs: RigidJobs) -> dict[str, float]:
    return {
        name: round(float(load), 4) for name, load in zip(jobs.resources, jobs.load, strict=True)
    }


def part_of(log: RigidJobs, part: str) -> RigidJobs:
    """The second or the first half of a log (by number of jobs), or all of it.

    Time begins with the part's first job.

    Raises:
        ConfigError: `part` is not in PARTS.
    """
    half = len(log) // 2
    bounds = {"second": (half, len(log)), "first": (0, half), "all": (0, len(log))}
    if part not in bounds:
        raise ConfigError(f"unknown part {part!r} of a log: choose one of {', '.join(PARTS)}")
    return log.piece(*bounds[part])


def _pieces(jobs: RigidJobs, piece_jobs: int | None) -> list[RigidJobs]:
    if piece_jobs is None:
        return [jobs]
    if not 1 <= piece_jobs <= len(jobs):
        raise ConfigError(
            f"a part of {len(jobs)} jobs cannot be divided into pieces of {piece_jobs}: "
            f"give a number of jobs from 1 to {len(jobs)}"
        )
    return [
        jobs.piece(first, first + piece_jobs)
        for first in range(0, len(jobs) - piece_jobs + 1, piece_jobs)
    ]


def _some(policies: Sequence[str]) -> Sequence[str]:
    if not policies or not all(policies):
        raise ConfigError("compare at least one policy; separate names by single commas")
    return policies


def run_policy(
    policy: PackingPolicy,
    sequences: Sequence[RigidJobs],
    config: PackingConfig,
    num_threads: int | None = None,
) -> list[Outcome]:
    """Run every sequence under a policy.

    Args:
        policy: the policy.
        sequences: the job sequences.
        config: the cluster.
        num_threads: number of threads that simulate; None for the default.
    """
    batch = PackingBatch(sequences, config, wants_profile=policy.wants_profile)
    batch.run(policy.play_many, num_threads)
    return batch.outcomes()


def _compare(
    resolved: ResolvedPacking,
    sequences: Sequence[RigidJobs],
    config: PackingConfig,
    settings: dict[str, Any],
    progress: Progress | None,
    num_threads: int | None,
) -> PackingComparison:
    is_log = config.mode is TimeMode.EXACT
    measure = "bounded_slowdown" if is_log else "slowdown"
    # All policies are grouped by the same sizes.
    sizes = size_groups(sequences)
    num_visible = None if is_log else config.num_slots
    results: list[PackingResult] = []
    first: Mapping[str, _Samples] = {}
    shown: dict[str, Outcome] = {}
    for name, policy in resolved.policies.items():
        if progress is not None:
            progress(f"running {name}")
        outcomes = run_policy(policy, sequences, config, num_threads)
        samples = {
            key: _samples([of(outcome) for outcome in outcomes]) for key, of in MEASURES.items()
        }
        # The first policy is the baseline of all ratios.
        first = first or samples
        shown[name] = outcomes[0]
        results.append(
            PackingResult(
                name,
                tuple(summarize_packing(outcome, sizes, num_visible) for outcome in outcomes),
                {key: one.mean() for key, one in samples.items()},
                {key: samples[key].ratio(first[key]) for key in _RATIOS},
                np.concatenate([MEASURES[measure](outcome) for outcome in outcomes]),
                np.concatenate([sizes.of(outcome.jobs) for outcome in outcomes]),
                samples[measure].correlation() if len(sequences) == 1 else math.nan,
            )
        )
    # Record how the result was made.
    settings |= {
        "tuned": dict(resolved.tuned),
        "intervals": _method(results, sequences),
        "version": __version__,
    }
    return PackingComparison(tuple(results), settings, measure, sizes, shown, resolved.curves)


def _method(results: Sequence[PackingResult], sequences: Sequence[RigidJobs]) -> str:
    if len(sequences) > 1:
        kind = "pieces" if sequences[0].step == "s" else "seeds"
        return _BY_RUN.format(kind, kind[:-1], len(sequences))
    count = min(NUM_BLOCKS, len(sequences[0]))
    known = [p.correlation for p in results if not math.isnan(p.correlation)]
    if count < 2 or not known:
        return "one run of too few jobs for confidence intervals"
    return _BY_BLOCK.format(count, min(known), max(known), 2 / math.sqrt(count))


@dataclass(frozen=True)
class _Samples:
    """Sum of a measure over the jobs that started, and their number, per run or per block.

    Several runs give one sample each. A single run is divided into blocks of jobs.
    """

    total: FloatArray
    count: FloatArray

    def mean(self) -> Estimate:
        """Mean over all jobs."""
        is_known = self.count > 0
        return (
            ratio_estimate(self.total[is_known], self.count[is_known])
            if is_known.any()
            else _UNKNOWN
        )

    def ratio(self, first: _Samples) -> Estimate:
        """Ratio of the means over all jobs; runs in which no job started in both are left out."""
        is_known = (self.count > 0) & (first.count > 0)
        if not is_known.any():
            return _UNKNOWN
        above, below = (one.total[is_known] / one.count[is_known].mean() for one in (self, first))
        return ratio_estimate(above, below)

    def correlation(self) -> float:
        """Correlation between neighbouring means (lag 1)."""
        if len(self.total) < 3 or not (self.count > 0).all():
            return math.nan
        means = self.total / self.count
        deviation = means - means.mean()
        return (
            float((deviation[1:] * deviation[:-1]).sum() / (deviation**2).sum())
            if deviation.any()
            else 0.0
        )


_UNKNOWN = Estimate(math.nan, math.nan, math.nan)


def _samples(values: Sequence[FloatArray]) -> _Samples:
    parts = (
        values
        if len(values) > 1
        else np.array_split(values[0], max(1, min(NUM_BLOCKS, len(values[0]))))
    )
    total = np.array([np.nansum(part) for part in parts], np.float64)
    return _Samples(
        total, np.array([np.count_nonzero(~np.isnan(part)) for part in parts], np.float64)
    )
