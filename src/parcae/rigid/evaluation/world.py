"""The world of rigid jobs: its runs, its results and its comparisons.

A run is a sequence of jobs: one that was drawn, a piece of a log, or a whole log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError
from parcae.base.texts import __version__
from parcae.evaluation.doubts import learned_warnings, packing_warnings
from parcae.evaluation.statistics import Estimate, Method
from parcae.evaluation.world import PairedComparison, Say
from parcae.rigid.config import PackingConfig, TimeMode
from parcae.rigid.evaluation.policies import ResolvedPacking, Tuning, resolve_packing
from parcae.rigid.evaluation.samples import Samples, num_blocks, samples_of
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.metrics import (
    LEAST,
    MEASURES,
    PackingSummary,
    SizeGroups,
    makespan,
    mean_of_started,
    plain,
    size_groups,
    summarize_packing,
)
from parcae.rigid.policies.catalog import PackingSetting
from parcae.rigid.policies.policy import PackingPolicy
from parcae.rigid.world import Outcome, PackingBatch

FloatArray = npt.NDArray[np.float64]
#: Measures whose ratio to the first policy is reported. Waiting is not among them: it can be 0.
_RATIOS = ("slowdown", "bounded_slowdown", "completion")
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


@dataclass(frozen=True)
class PackingResult:
    """The results of one policy over all runs."""

    name: str
    runs: tuple[PackingSummary, ...]
    estimates: Mapping[str, Estimate]
    ratios: Mapping[str, Estimate]
    values: FloatArray
    groups: npt.NDArray[np.int64]
    correlation: float = math.nan
    makespan_ratio: float = 1.0

    @property
    def busy_runs(self) -> tuple[PackingSummary, ...]:
        """The runs that have jobs. A run without jobs has no makespan, and nothing to decide."""
        return tuple(run for run in self.runs if run.jobs > 0)

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
        """Mean over runs with jobs of the field `key` of their summaries."""
        return mean_of_started(np.array([getattr(run, key) for run in self.busy_runs], np.float64))

    def utilization(self) -> dict[str, float]:
        """Utilization of each resource, as a mean over runs with jobs."""
        return {
            name: float(np.mean([run.utilization[name] for run in self.busy_runs]))
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
        """Estimates with intervals, and means over runs with jobs."""
        estimates = {name: estimate.to_json() for name, estimate in self.estimates.items()}
        ratios = {f"{name}_ratio_to_first": one.to_json() for name, one in self.ratios.items()}
        card: dict[str, Any] = {
            **estimates,
            **ratios,
            "ratio_to_first": self.ratios[measure].to_json(),
            "jobs": self.num_jobs,
            "unallocated": self.unallocated,
            "dropped": self.dropped,
            "quantiles": self.quantiles(),
            f"{measure}_by_size": self.by_size(sizes.names),
            "makespan": self.mean("makespan"),
            "makespan_ratio_to_first": self.makespan_ratio,
            "utilization": self.utilization(),
            "withheld_share": self.mean("withheld_share"),
            "decisions": self.mean("decisions"),
            "block_correlation": self.correlation,
            f"{measure}_by_run": [getattr(run, f"mean_{measure}") for run in self.runs],
        }
        json: dict[str, Any] = plain({key: _plain_list(value) for key, value in card.items()})
        return json


def _plain_list(value: Any) -> Any:
    return [plain(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class PackingComparison(PairedComparison[PackingResult]):
    """The result of comparing packing policies."""

    measure_key: str
    sizes: SizeGroups
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    curves: Mapping[str, list[list[float]]] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    users: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    subject = "rigid jobs"

    @property
    def measure(self) -> str:
        """The main measure in words."""
        return f"mean {self.measure_words}"

    @property
    def measure_words(self) -> str:
        """The main measure of one job in words."""
        return self.measure_key.replace("_", " ")

    @property
    def is_log(self) -> bool:
        """Whether the jobs come from a log."""
        return self.measure_key == "bounded_slowdown"

    @property
    def unit(self) -> str:
        """The unit of times: "steps" or "s"."""
        return "s" if self.is_log else "steps"

    @property
    def sampled(self) -> str:
        """What intervals sample: "seeds", "pieces" of a log, or "jobs" of one run, in blocks."""
        if len(self.policies[0].runs) == 1:
            return "jobs"
        return "pieces" if self.is_log else "seeds"

    def main(self, result: PackingResult) -> Estimate:
        """A policy's mean of the main measure."""
        return result.estimates[self.measure_key]

    def ratio(self, result: PackingResult) -> Estimate:
        """A policy's mean of the main measure / that of the first policy."""
        return result.ratios[self.measure_key]

    def value_text(self, value: float) -> str:
        """A slowdown, such as "3.142"."""
        from parcae.rigid.evaluation.view import number

        return number(value)

    def ranked(self) -> list[PackingResult]:
        """The policies under which every job started."""
        return [p for p in self.policies if p.is_complete]

    def remark(self, best: PackingResult | None) -> str:
        """Which policies are not ranked, and why."""
        if best is None:
            return (
                "Under every policy some jobs never started, so no policy is called the best: "
                "the means cover only the jobs that started."
            )
        names = ", ".join(p.name for p in self.policies if not p.is_complete)
        return f"Not ranked, because some of their jobs never started: {names}." if names else ""

    def warnings(self) -> list[str]:
        """What makes conclusions from this comparison wrong, in sentences."""
        return list(self.doubts)

    @property
    def view(self) -> Any:
        """The module that shows these comparisons."""
        from parcae.rigid.evaluation import view

        return view

    def to_json(self) -> dict[str, Any]:
        """{"policies": {name: {...}}, "measure": ..., "settings": {...}, "warnings": [...]}"""
        from parcae.rigid.evaluation.users import by_user

        key = self.measure_key
        users = [user.to_json() for user in by_user(self)]
        return {
            "policies": {p.name: p.to_json(self.sizes, key) for p in self.policies},
            "measure": key,
            "settings": self.settings,
            "warnings": self.warnings(),
            **({"users": users} if users else {}),
        }


@dataclass(frozen=True)
class PackingWorld:
    """A cluster that packs rigid jobs, and the job sequences on which policies are compared."""

    sequences: Sequence[RigidJobs]
    config: PackingConfig
    setting: PackingSetting
    tuning: Tuning
    card: Mapping[str, Any]
    load: float = 0.0

    plays_in_threads = True

    def resolve(self, policies: Sequence[str], say: Say | None = None) -> ResolvedPacking:
        """Make the policies with the given names; `tetris` and `withhold` are tuned here."""
        return resolve_packing(policies, self.tuning, say, self.setting)

    def play(self, resolved: ResolvedPacking, runs: Sequence[int]) -> list[tuple[Outcome, ...]]:
        """Simulate the runs under every policy; one tuple per run, one outcome per policy."""
        sequences = [self.sequences[number] for number in runs]
        by_policy = [
            run_policy(policy, sequences, self.config) for policy in resolved.policies.values()
        ]
        return list(zip(*by_policy, strict=True))

    def compared(
        self,
        resolved: ResolvedPacking,
        runs: range,
        rows: Sequence[tuple[Outcome, ...]],
        method: Method = "t",
    ) -> PackingComparison:
        """The comparison of the policies on these runs."""
        if method != "t":
            raise ConfigError(f"packing policies are compared with intervals 't', not {method!r}")
        is_log = self.config.mode is TimeMode.EXACT
        measure = "bounded_slowdown" if is_log else "slowdown"
        # All policies are grouped by the same sizes.
        sizes = size_groups(self.sequences)
        num_visible = None if is_log else self.config.num_slots
        by_policy = list(zip(*rows, strict=True))
        first = by_policy[0]
        results = tuple(
            _result(name, outcomes, first, measure, sizes, num_visible)
            for name, outcomes in zip(resolved.names, by_policy, strict=True)
        )
        settings = self._settings(resolved, results)
        shown = dict(zip(resolved.names, rows[0], strict=True))
        edges = (f"{name}: {text}" for name, text in resolved.edges.items())
        warnings = (
            *packing_warnings(self.sequences, self.load),
            *learned_warnings(resolved.sources, self.sequences),
            *edges,
        )
        return PackingComparison(
            results,
            settings,
            measure,
            sizes,
            shown,
            resolved.curves,
            warnings,
            self._users(),
        )

    def _users(self) -> npt.NDArray[np.int64]:
        """The user of every job of all runs; empty if a run's source names none."""
        users = [jobs.users for jobs in self.sequences]
        is_known = all(
            len(one) == len(jobs) for one, jobs in zip(users, self.sequences, strict=True)
        )
        return np.concatenate(users) if is_known else np.zeros(0, np.int64)

    def _settings(
        self, resolved: ResolvedPacking, results: Sequence[PackingResult]
    ) -> dict[str, Any]:
        return {
            **self.card,
            "objective": self.tuning.cost.objective,
            "tune_budget_s": self.tuning.budget_s,
            "tuned": dict(resolved.tuned),
            "intervals": _method(results, self.sequences),
            "version": __version__,
        }


def run_policy(
    policy: PackingPolicy,
    sequences: Sequence[RigidJobs],
    config: PackingConfig,
    num_threads: int | None = None,
) -> list[Outcome]:
    """Run every sequence under a policy."""
    batch = PackingBatch(sequences, config, wants_profile=policy.wants_profile)
    batch.run(policy.play_many, num_threads)
    return batch.outcomes()


def _measured(outcomes: Sequence[Outcome]) -> dict[str, Samples]:
    """The samples of every measure under one policy."""
    return {key: samples_of([of(outcome) for outcome in outcomes]) for key, of in MEASURES.items()}


def _result(
    name: str,
    outcomes: Sequence[Outcome],
    first: Sequence[Outcome],
    measure: str,
    sizes: SizeGroups,
    num_visible: int | None,
) -> PackingResult:
    """The results of one policy."""
    samples = _measured(outcomes)
    of_first = _measured(first)
    makespans = np.array(
        [[makespan(one) for one in runs if len(one.jobs)] for runs in (outcomes, first)], float
    )
    is_one_run = len(outcomes) == 1
    return PackingResult(
        name,
        tuple(summarize_packing(outcome, sizes, num_visible) for outcome in outcomes),
        {key: one.mean().within(LEAST.get(key, 0.0)) for key, one in samples.items()},
        {key: samples[key].ratio(of_first[key]) for key in _RATIOS},
        np.concatenate([MEASURES[measure](outcome) for outcome in outcomes]),
        np.concatenate([sizes.of(outcome.jobs) for outcome in outcomes]),
        samples[measure].correlation() if is_one_run else math.nan,
        float((makespans[0] / np.maximum(1.0, makespans[1])).mean()),
    )


def _method(results: Sequence[PackingResult], sequences: Sequence[RigidJobs]) -> str:
    if len(sequences) > 1:
        kind = "pieces" if sequences[0].step == "s" else "seeds"
        return _BY_RUN.format(kind, kind[:-1], len(sequences))
    count = num_blocks(len(sequences[0]))
    known = [p.correlation for p in results if not math.isnan(p.correlation)]
    if count < 2 or not known:
        return "one run of too few jobs for confidence intervals"
    return _BY_BLOCK.format(count, min(known), max(known), 2 / math.sqrt(count))
