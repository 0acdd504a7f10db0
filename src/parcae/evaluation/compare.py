"""Compare policies on clusters of executors or cores.

`compare` runs every policy on every seed and computes means, ratios to the first policy and their
confidence intervals, paired by seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parcae.base.errors import ConfigError
from parcae.base.texts import __version__, s_from_ms, seconds_text
from parcae.evaluation.deadlines import DeadlineResult, deadline_result, fewest_missed
from parcae.evaluation.doubts import promise_warnings, run_warnings, setting_warnings
from parcae.evaluation.kept_runs import KeptRuns, SeedRuns, files_in_names
from parcae.evaluation.paired import compare_in
from parcae.evaluation.policies import ResolvedPolicies, resolve_policies
from parcae.evaluation.statistics import (
    DEFAULT_METHOD,
    METHODS,
    RESAMPLE_SEED,
    Estimate,
    Method,
    mean_estimate,
    mean_of_ratios,
    ratio_estimate,
)
from parcae.evaluation.tuning import check_seeds
from parcae.evaluation.who_pays import PairedRuns, RecurringJob, WhoPays, paired_runs, who_pays
from parcae.evaluation.world import PairedComparison, Progress, Say
from parcae.policies.own import AnyPolicy
from parcae.simulation.config import SimulationConfig
from parcae.simulation.faults import resolve_faults
from parcae.simulation.metrics import RunSummary, deadlines_ms, ideal_ms, summarize
from parcae.simulation.simulator import simulate
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.describe import fingerprint
from parcae.workloads.job import Workload
from parcae.workloads.tables import seconds_by_name

if TYPE_CHECKING:
    import polars as pl

_WHOLE_MS = "durations are whole milliseconds; import them in the right unit"


@dataclass(frozen=True)
class PolicyResult:
    """The results of one policy over all seeds.

    Args:
        name: the policy's name as the caller gave it.
        summaries: one summary per seed.
        average_jct_s: mean over seeds of the average JCT, in seconds.
        ratio_to_first: mean average JCT / that of the first policy, paired by seed.
        mean_of_ratios: mean over seeds of the ratio, every seed with the same weight.
        who_pays: how many jobs end later than under the first policy, and by how much.
        deadlines: how many deadlines are missed, and by how much; None without deadlines.
    """

    name: str
    summaries: tuple[RunSummary, ...]
    average_jct_s: Estimate
    ratio_to_first: Estimate
    mean_of_ratios: Estimate
    who_pays: WhoPays
    deadlines: DeadlineResult | None = None

    def means(self) -> dict[str, float]:
        """Mean over seeds of every number of the summaries; times in seconds."""
        means = {
            key: float(np.mean([getattr(s, key) for s in self.summaries]))
            for key in self.summaries[0].to_json()
        }
        return {
            _in_seconds(key): s_from_ms(value) if key.endswith("_ms") else value
            for key, value in means.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Means over seeds; confidence intervals for the average JCT, ratios and later jobs."""
        return {
            **self.means(),
            "average_jct_s": self.average_jct_s.to_json(),
            "ratio_to_first": self.ratio_to_first.to_json(),
            "mean_of_ratios_to_first": self.mean_of_ratios.to_json(),
            **self.who_pays.to_json(),
            **({} if self.deadlines is None else {"deadlines": self.deadlines.to_json()}),
            "average_jct_s_by_seed": [s_from_ms(s.average_jct_ms) for s in self.summaries],
        }


def _in_seconds(key: str) -> str:
    return key.removesuffix("_ms") + "_s" if key.endswith("_ms") else key


@dataclass(frozen=True)
class Comparison(PairedComparison[PolicyResult]):
    """The result of comparing policies on a cluster of executors or cores.

    Args:
        policies: results per policy, in the order in which the caller named them.
        settings: everything that is needed to repeat the comparison.
        resolved: the policy objects.
        runs: per seed, the times of every job under every policy.
        world: the cluster, its workload and its arrivals.
        pools: per seed, the pool of every job; empty if no policy has pools.
        method: the method of all intervals.
    """

    resolved: ResolvedPolicies
    runs: tuple[PairedRuns, ...]
    world: ClusterWorld
    pools: tuple[tuple[str, ...], ...] = ()
    method: Method = DEFAULT_METHOD

    measure = "average job completion time"
    sampled = "seeds"

    @property
    def subject(self) -> str:
        """The workload."""
        return str(self.settings["workload"])

    def main(self, result: PolicyResult) -> Estimate:
        """A policy's average JCT, in seconds."""
        return result.average_jct_s

    def ratio(self, result: PolicyResult) -> Estimate:
        """A policy's average JCT / that of the first policy."""
        return result.ratio_to_first

    def value_text(self, value: float) -> str:
        """A time in seconds, such as "12.3 s"."""
        return f"{seconds_text(value)} s"

    def ranked(self) -> list[PolicyResult]:
        """All policies but oracles, which cannot be deployed; or all, if all are oracles."""
        deployable = [p for p in self.policies if p.name not in self.resolved.oracles]
        return deployable or list(self.policies)

    @cached_property
    def by_pool(self) -> list[RecurringJob]:
        """The times of every pool's jobs, by name; empty if no policy has pools."""
        from parcae.evaluation.tenants import by_pool

        return by_pool(self.runs, self.pools, self.method) if self.pools else []

    def tables(self) -> list[Any]:
        """The table of policies and, if a policy has pools, that of pools; for the terminal."""
        from parcae.evaluation.tenants import pools_table

        return [*super().tables(), *([pools_table(self)] if self.by_pool else [])]

    def winners(self) -> str:
        """How many recurring jobs gain and lose under the best policy, in a sentence."""
        from parcae.evaluation.recurring_view import gains_and_losses

        return gains_and_losses(self)

    def remark(self, best: PolicyResult | None) -> str:
        """Who ends later under the best policy, if that is not the first; who misses deadlines."""
        first = self.policies[0]
        later = "" if best is None or best is first else best.who_pays.describe(first.name)
        missed = fewest_missed({one.name: one.deadlines for one in self.ranked()}, first.name)
        return " ".join(text for text in (later, missed) if text)

    def warnings(self) -> list[str]:
        """What makes conclusions from this comparison wrong, in sentences."""
        world = self.world
        tuned = [f"{name}: {text}" for name, text in self.resolved.edges.items()]
        setting = setting_warnings(world.workload, world.config, world.arrivals)
        promises = promise_warnings(self.resolved.texts)
        return [*setting, *run_warnings(self.runs), *tuned, *promises]

    @property
    def view(self) -> Any:
        """The module that shows these comparisons."""
        # Imported here: a comparison without a report needs no plotting library.
        from parcae.evaluation import cluster_view

        return cluster_view

    def to_json(self) -> dict[str, Any]:
        """{"policies": {name: {...}}, "settings": {...}, "warnings": [...]}"""
        variants = self.resolved.variants
        policies = {
            p.name: {"variant": variants.get(p.name, p.name), **p.to_json()} for p in self.policies
        }
        if self.by_pool:
            from parcae.evaluation.tenants import pools_json

            for column, p in enumerate(self.policies):
                policies[p.name]["pools"] = pools_json(self.by_pool, column)
        return {"policies": policies, "settings": self.settings, "warnings": self.warnings()}

    def to_frame(self) -> pl.DataFrame:
        """One row a policy; see `parcae.evaluation.per_job.comparison_frame`."""
        from parcae.evaluation.per_job import comparison_frame

        return comparison_frame(self)

    def jobs_frame(self) -> pl.DataFrame:
        """One row a seed, job and policy; see `parcae.evaluation.per_job.per_job_table`."""
        from parcae.evaluation.per_job import per_job_table

        return per_job_table(self)

    def recurring_frame(self) -> pl.DataFrame:
        """One row a recurring job and policy; see `parcae.evaluation.per_job.recurring_table`."""
        from parcae.evaluation.per_job import recurring_table

        return recurring_table(self)


@dataclass(frozen=True)
class ClusterWorld:
    """A cluster of executors or cores, and the jobs that are drawn for it.

    Args:
        workload: the jobs to draw from.
        config: the cluster.
        arrivals: when jobs arrive ("batch", "poisson:25s", ...).
        num_jobs: number of jobs in each run.
    """

    workload: Workload
    config: SimulationConfig
    arrivals: str
    num_jobs: int

    plays_in_threads = False

    def resolve(
        self, policies: Sequence[str | AnyPolicy], say: Say | None = None
    ) -> ResolvedPolicies:
        """Make the policies with the given names; those with `:tuned` are tuned here."""
        if self.workload.mean_work_ms == 0:
            raise ConfigError(
                f"all task durations of workload {self.workload.name!r} are 0 ms, so there is "
                f"nothing to compare: {_WHOLE_MS}"
            )
        return resolve_policies(self.workload, policies, self.config, self.arrivals, self.num_jobs)

    def draw(self, seed: int) -> JobSequence:
        """The jobs of the run of a seed."""
        return self.workload.draw(self.num_jobs, self.arrivals, self.config, seed=seed)

    def play(self, resolved: ResolvedPolicies, runs: Sequence[int]) -> list[SeedRuns]:
        """Simulate the runs of the seeds under every policy."""
        return [self._play_seed(resolved, seed) for seed in runs]

    def _play_seed(self, resolved: ResolvedPolicies, seed: int) -> SeedRuns:
        sequence = self.draw(seed)
        # The executor of a task matters only if executor classes differ. Recording all tasks takes
        # memory, so record them in that case alone.
        record = bool(self.config.executor_classes)
        summaries = []
        traces = []
        for policy in resolved.for_sequence(sequence, seed).values():
            trace = simulate(sequence, policy, self.config, seed, record=record)
            summaries.append(summarize(trace, sequence))
            traces.append(replace(trace, tasks=None, decisions=None))
        ideal = ideal_ms(sequence, self.config.total_executors)
        pools = resolved.tenant_pools
        of_jobs = tuple(pools[job] for job in sequence.job_index) if pools else ()
        return SeedRuns(
            tuple(summaries), paired_runs(traces, ideal, deadlines_ms(sequence)), of_jobs
        )

    def settings(self, resolved: ResolvedPolicies) -> dict[str, Any]:
        """All that a run depends on but its seed and what is in files; plain JSON."""
        settings = {
            "workload": self.workload.name,
            "fingerprint": fingerprint(self.workload),
            "arrivals": self.arrivals,
            "jobs": self.num_jobs,
            "config": self.config.model_dump(mode="json"),
            "tuned": dict(resolved.tuned),
            "variants": dict(resolved.variants),
            "version": __version__,
        }
        deadlines_s = seconds_by_name(self.workload.jobs)
        if deadlines_s:
            settings["deadlines_s"] = deadlines_s
        if self.config.faults is not None:
            settings["faults"] = str(resolve_faults(self.config.faults, self.workload))
        return settings

    def kept_runs(self, resolved: ResolvedPolicies, path: Path) -> KeptRuns:
        """The file with the runs of a comparison that is to go on; see `KeptRuns`."""
        unnamed = set(resolved.names) - set(resolved.texts)
        if unnamed:
            raise ConfigError(
                f"runs of a policy that is an object cannot be kept ({', '.join(sorted(unnamed))}):"
                " give names of policies"
            )
        settings = {
            **self.settings(resolved),
            "policies": resolved.names,
            "files": files_in_names(resolved.names),
        }
        return KeptRuns(path, settings, len(resolved.names))

    def compared(
        self,
        resolved: ResolvedPolicies,
        runs: range,
        rows: Sequence[SeedRuns],
        method: Method = DEFAULT_METHOD,
    ) -> Comparison:
        """The comparison of the policies on these seeds."""
        for seed, row in zip(runs, rows, strict=True):
            if row.summaries[0].average_jct_ms == 0:
                raise ConfigError(
                    f"all jobs of seed {seed} take 0 ms under {resolved.names[0]}, so nothing can "
                    f"be relative to it: {_WHOLE_MS}, or simulate more jobs in a run"
                )
        settings = {
            **self.settings(resolved),
            "seeds": [runs.start, runs.stop - 1],
            "intervals": METHODS[method],
        }
        results = tuple(_results(resolved.names, rows, method))
        jobs = tuple(row.jobs for row in rows)
        pools = tuple(row.pools for row in rows) if resolved.tenant_pools else ()
        return Comparison(results, settings, resolved, jobs, self, pools, method)


def compare(
    world: ClusterWorld,
    policies: Sequence[str | AnyPolicy],
    *,
    num_seeds: int,
    seed_start: int = 0,
    processes: int | None = None,
    progress: Progress | None = None,
    intervals: Method = DEFAULT_METHOD,
    keep: Path | None = None,
) -> Comparison:
    """Run every policy on the seeds seed_start .. seed_start + num_seeds - 1.

    On one seed all policies see the same arrivals and the same task durations. Tuned policies are
    tuned first, on seeds that no comparison uses. A script that calls this with several processes
    needs the usual `if __name__ == "__main__":`.

    Args:
        world: the cluster, its workload and its arrivals.
        policies: names as in `parcae policies`, or policy objects. Ratios are relative to the
            first.
        num_seeds: number of seeds.
        seed_start: the first seed.
        processes: number of worker processes; see `parcae.evaluation.paired.compare_in`.
        progress: called with (seeds done, all seeds) after every seed.
        intervals: method of the confidence intervals; see `parcae.evaluation.statistics.METHODS`.
        keep: a file that keeps every finished seed, and from which a comparison goes on that was
            stopped, or is to have more seeds; see `parcae.evaluation.kept_runs`.

    Returns:
        The results per policy, with the settings and the times of every job.

    Raises:
        PolicyError: a policy name is unknown or does not fit the world.
        ConfigError: the settings are invalid, the runs in `keep` have others, or a worker process
            died.
        FormatError: `keep` is damaged, or another file.
        WorkloadError: the workload cannot give these jobs.

    Example: `compare(ClusterWorld(workload, SimulationConfig(), "batch", 20), ["fair", "fifo"],
    num_seeds=20)`.
    """
    if num_seeds < 1:
        raise ConfigError("compare at least one policy on at least one seed")
    check_seeds(seed_start, num_seeds)
    return compare_in(
        world,
        policies,
        range(seed_start, seed_start + num_seeds),
        processes=processes,
        progress=progress,
        intervals=intervals,
        kept=None if keep is None else partial(world.kept_runs, path=keep),
    )


def _results(
    names: Sequence[str], rows: Sequence[SeedRuns], method: Method
) -> Iterator[PolicyResult]:
    first = [s_from_ms(row.summaries[0].average_jct_ms) for row in rows]
    ratios = [row.jobs.ratio_to_first for row in rows]
    for column, name in enumerate(names):
        summaries = tuple(row.summaries[column] for row in rows)
        jct = [s_from_ms(s.average_jct_ms) for s in summaries]
        # A generator of a fixed seed: the same comparison always has the same intervals.
        rng = np.random.default_rng(RESAMPLE_SEED)
        yield PolicyResult(
            name,
            summaries,
            average_jct_s=mean_estimate(jct, method, rng).within(0.0),
            ratio_to_first=ratio_estimate(jct, first, method, rng),
            mean_of_ratios=mean_of_ratios(jct, first, method, rng),
            who_pays=who_pays([ratio[column] for ratio in ratios], method, rng),
            deadlines=deadline_result([row.jobs for row in rows], column, method, rng),
        )
