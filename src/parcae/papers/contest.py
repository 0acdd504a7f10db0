"""Compare policies on evaluation seeds, with the labels that a study gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parcae.cluster.trace import Trace
from parcae.evaluation.compare import ClusterWorld, compare
from parcae.evaluation.comparison import Comparison, PolicyResult
from parcae.evaluation.statistics import Estimate, ratio_estimate, with_half_width, with_interval
from parcae.learning.scenario import Scenario
from parcae.papers.findings import Finding
from parcae.papers.study import StudyRequest
from parcae.simulation.simulator import simulate
from parcae.workloads.import_report import counted


@dataclass(frozen=True)
class Contender:
    """A policy and its label in a study."""

    label: str
    name: str


def labels_of(contenders: Sequence[Contender]) -> dict[str, str]:
    """The label of every policy, by its name; all labels differ.

    A policy whose label an earlier one has is labelled with its name.

    Example: "fair" and a checkpoint "mine/fair.safetensors" with the label "fair" are labelled
    "fair" and "mine/fair.safetensors".
    """
    labels: dict[str, str] = {}
    for contender in contenders:
        is_taken = contender.label in labels.values()
        labels.setdefault(contender.name, contender.name if is_taken else contender.label)
    return labels


def named(*names: str) -> list[Contender]:
    """Policies of the catalogue, labelled with their names."""
    return [Contender(name, name) for name in names]


@dataclass(frozen=True)
class Contest:
    """The result of a comparison, by label."""

    scenario: Scenario
    labels: Mapping[str, str]
    comparison: Comparison

    @property
    def results(self) -> dict[str, PolicyResult]:
        """Every policy's results, by label."""
        return {self.labels[result.name]: result for result in self.comparison.policies}

    def traces(self, seed: int, *, record: bool = True) -> dict[str, Trace]:
        """Simulate one run under every policy; by label."""
        sequence = self.scenario.sequence(seed)
        # Oracles differ by sequence, so the policies are made for this one.
        policies = self.comparison.resolved.for_sequence(sequence, seed)
        cluster = self.scenario.config
        by_label = {
            self.labels[name]: simulate(sequence, p, cluster, seed, record=record)
            for name, p in policies.items()
        }
        return {label: replace(trace, policy=label) for label, trace in by_label.items()}

    @property
    def columns(self) -> tuple[str, ...]:
        """The column headings for `rows`."""
        # Unused memory matters only if executors have different sizes.
        unused = ("memory unused",) if self.scenario.config.executor_classes else ()
        ratio = f"ratio to {next(iter(self.results))}"
        return ("policy", "average JCT (s)", ratio, "p95 JCT (s)", "makespan (s)", "busy", *unused)

    def rows(self) -> list[list[str]]:
        """The rows of the table: means over seeds with 95% intervals."""
        rows = []
        for row, result in zip(self.average_rows(), self.results.values(), strict=True):
            means = result.means()
            row += [f"{means['p95_jct_s']:,.1f}", f"{means['makespan_s']:,.1f}"]
            row.append(f"{means['utilization']:.0%}")
            if self.scenario.config.executor_classes:
                row.append(f"{means['fragmentation']:.1%}")
            rows.append(row)
        return rows

    def average_rows(self) -> list[list[str]]:
        """Rows of policy, average JCT and ratio to the first policy, with 95% intervals."""
        return [
            [label, with_half_width(result.average_jct_s), with_interval(result.ratio_to_first)]
            for label, result in self.results.items()
        ]

    @property
    def averages(self) -> dict[str, Estimate]:
        """The average JCT in s by label."""
        return {label: result.average_jct_s for label, result in self.results.items()}

    def to_json(self) -> dict[str, Any]:
        """Means and intervals by label, and the seeds."""
        settings = self.comparison.settings
        kept = ("arrivals", "jobs", "seeds", "tuned", "intervals", "config")
        by_label = {label: result.to_json() for label, result in self.results.items()}
        return {"policies": by_label, **{key: settings[key] for key in kept}}

    def notes(self) -> list[str]:
        """Notes on the runs and on the results of tuning."""
        s = self.comparison.settings
        first, last = s["seeds"]
        runs = (
            f"{last - first + 1} runs of {s['jobs']} jobs, arrivals {s['arrivals']}, "
            f"seeds {first} to {last}, paired"
        )
        unfinished = int(self.comparison.runs["unfinished"].sum())
        cut = (
            [
                f"{counted(unfinished, 'job')} cut off at the end of a run: such times are lower "
                "bounds"
            ]
            if unfinished
            else []
        )
        return [
            f"{runs}; {s['intervals']}",
            *(f"{self.labels[k]}: {v}" for k, v in s["tuned"].items()),
            *cut,
        ]


def contest(
    request: StudyRequest, scenario: Scenario, contenders: Sequence[Contender], num_runs: int
) -> Contest:
    """Run all contenders on the same evaluation seeds."""
    labels = labels_of(contenders)
    request.say(f"comparing {', '.join(labels.values())} on {num_runs} runs")
    comparison = compare(
        ClusterWorld(scenario.workload, scenario.config, scenario.arrivals, scenario.num_jobs),
        list(labels),
        num_seeds=num_runs,
        seed_start=request.first_seed,
        processes=request.processes,
    )
    return Contest(scenario, labels, comparison)


def averages_s(result: PolicyResult) -> list[float]:
    """The average JCT of every run, in seconds."""
    return [float(v) for v in result.runs["average_jct_ms"].to_numpy() / 1e3]


def less(
    claim: str,
    first: PolicyResult,
    second: PolicyResult,
    most: float = 1.0,
    paper: float | None = None,
) -> Finding:
    """A finding about the average JCT of two policies on the same runs."""
    return Finding(claim, ratio_estimate(averages_s(first), averages_s(second)), most, paper)
