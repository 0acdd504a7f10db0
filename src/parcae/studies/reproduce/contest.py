"""Policies side by side on evaluation seeds, under the names that a study gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parcae.cluster.trace import Trace
from parcae.evaluation.compare import Comparison, PolicyResult, compare
from parcae.evaluation.statistics import Estimate
from parcae.learning.scenario import Scenario
from parcae.simulation.config import SimulationConfig
from parcae.simulation.run import simulate
from parcae.studies.reproduce.study import StudyRequest
from parcae.workloads.arrivals import JobSequence, draw_sequence
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import RandomStreams


@dataclass(frozen=True)
class Contender:
    """A policy and what a study calls it.

    Args:
        label: in tables and pictures. name: in the catalogue, or the path of a checkpoint.
    """

    label: str
    name: str


def named(*names: str) -> list[Contender]:
    """Policies of the catalogue under their own names."""
    return [Contender(name, name) for name in names]


@dataclass(frozen=True)
class Arena:
    """Where contenders meet: runs of `num_jobs` jobs."""

    workload: Workload
    config: SimulationConfig
    arrivals: str
    num_jobs: int

    @property
    def scenario(self) -> Scenario:
        """The same, to learn in."""
        return Scenario(self.workload, self.config, self.arrivals, self.num_jobs)

    def sequence(self, seed: int) -> JobSequence:
        """The jobs of one evaluation run."""
        return draw_sequence(
            self.workload,
            self.arrivals,
            self.num_jobs,
            self.config.total_executors,
            RandomStreams(seed),
        )


@dataclass(frozen=True)
class Contest:
    """The outcome, by label."""

    arena: Arena
    labels: Mapping[str, str]
    comparison: Comparison

    @property
    def results(self) -> dict[str, PolicyResult]:
        """Every policy's runs, by label."""
        return {self.labels[result.name]: result for result in self.comparison.policies}

    def traces(self, seed: int, *, record: bool = True) -> dict[str, Trace]:
        """One run of every policy, by label."""
        sequence = self.arena.sequence(seed)
        policies = self.comparison.resolved.for_sequence(sequence, seed)
        cluster = self.arena.config
        found = {
            self.labels[name]: simulate(sequence, p, cluster, seed, record=record)
            for name, p in policies.items()
        }
        return {label: replace(trace, policy=label) for label, trace in found.items()}

    @property
    def columns(self) -> tuple[str, ...]:
        """Headings of `rows`."""
        unused = ("memory unused",) if self.arena.config.executor_classes else ()
        ratio = f"ratio to {next(iter(self.results))}"
        return ("policy", "average JCT (s)", ratio, "p95 JCT (s)", "makespan (s)", "busy", *unused)

    def rows(self) -> list[list[str]]:
        """The table: means over seeds with 95% intervals."""
        return [
            [
                label,
                with_half_width(result.average_jct_s),
                with_interval(result.ratio_to_first),
                f"{result.means()['p95_jct_s']:,.1f}",
                f"{result.means()['makespan_s']:,.1f}",
                f"{result.means()['utilization']:.0%}",
                *(
                    [f"{result.means()['fragmentation']:.1%}"]
                    if self.arena.config.executor_classes
                    else []
                ),
            ]
            for label, result in self.results.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """Means and intervals by label, and the seeds."""
        settings = self.comparison.settings
        kept = ("arrivals", "jobs", "seeds", "tuned", "intervals", "config")
        found = {label: result.to_json() for label, result in self.results.items()}
        return {"policies": found, **{key: settings[key] for key in kept}}

    def notes(self) -> list[str]:
        """What was run, and what tuning found."""
        s = self.comparison.settings
        first, last = s["seeds"]
        runs = f"{last - first + 1} runs of {s['jobs']} jobs, arrivals {s['arrivals']}, seeds {first} to {last}, paired"
        unfinished = sum(
            run.unfinished for result in self.comparison.policies for run in result.summaries
        )
        cut = (
            [f"{unfinished} jobs were cut off by the runs' end: their times are lower bounds"]
            if unfinished
            else []
        )
        return [
            f"{runs}; {s['intervals']}",
            *(f"{self.labels[k]}: {v}" for k, v in s["tuned"].items()),
            *cut,
        ]


def contest(
    request: StudyRequest, arena: Arena, contenders: Sequence[Contender], num_runs: int
) -> Contest:
    """Run all contenders on the same evaluation seeds; ratios are to the first."""
    request.say(f"comparing {', '.join(c.label for c in contenders)} on {num_runs} runs")
    comparison = compare(
        arena.workload,
        [contender.name for contender in contenders],
        config=arena.config,
        num_jobs=arena.num_jobs,
        arrivals=arena.arrivals,
        num_seeds=num_runs,
        seed_start=request.first_seed,
        processes=request.processes,
    )
    return Contest(arena, {contender.name: contender.label for contender in contenders}, comparison)


def with_half_width(estimate: Estimate, digits: int = 1) -> str:
    """The mean and half its interval.

    Example: of 2 within [1, 3] it is "2.0 ± 1.0".
    """
    half = "" if estimate.is_unknown else f" ± {estimate.high - estimate.mean:,.{digits}f}"
    return f"{estimate.mean:,.{digits}f}{half}"


def with_interval(estimate: Estimate) -> str:
    """The mean and its interval.

    Example: of 0.9 within [0.8, 1] it is "0.900 [0.800, 1.000]".
    """
    return f"{estimate.mean:.3f}" + (
        "" if estimate.is_unknown else f" [{estimate.low:.3f}, {estimate.high:.3f}]"
    )


def averages_s(result: PolicyResult) -> list[float]:
    """The average JCT of every run, in s."""
    return [float(v) for v in np.array([run.average_jct_ms for run in result.summaries]) / 1e3]
