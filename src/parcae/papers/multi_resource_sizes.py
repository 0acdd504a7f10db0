"""Figures 12 and 21: completion times and executors of each class, by the size of the jobs.

Source: Decima, section 7.3 and Appendix G.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.state import ExecutorClass
from parcae.evaluation.pictures import tidy
from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import Estimate, ratio_estimate
from parcae.papers.learners import budget_notes
from parcae.papers.multi_resource import (
    GRAPHENE,
    Lineup,
    StudyWorld,
    gather,
    missing_notes,
    recorded_runs,
    worlds,
)
from parcae.papers.pictures import save
from parcae.papers.study import StudyRequest, StudyResult
from parcae.simulation.metrics import executors_used, jct_ms
from parcae.workloads.job import Workload

FloatArray = npt.NDArray[np.float64]
#: Jobs are compared in fifths by work; the first fifth are the paper's small jobs.
BINS = ("smallest 20%", "20-40%", "40-60%", "60-80%", "largest 20%")
_NO_DATA = "-"
_ALL = "all"


@dataclass(frozen=True)
class ClassProfile:
    """Means by size of the jobs, for every run of one policy."""

    jct_ms: FloatArray
    executors: FloatArray


def bin_edges_ms(workload: Workload) -> FloatArray:
    """The work that separates the fifths of the workload's weighted jobs: float64[num_bins - 1]."""
    work = np.array([job.work_ms for job in workload.jobs])
    weights = np.ones(len(work)) if workload.weights is None else np.asarray(workload.weights)
    order = np.argsort(work)
    share = np.cumsum(weights[order]) / weights.sum()
    # The small constant keeps rounding errors from moving a job to the next fifth.
    rows = np.searchsorted(share, np.arange(1, len(BINS)) / len(BINS) - 1e-9)
    return np.asarray(work[order][rows], np.float64)


def mean_by_bin(values: npt.ArrayLike, bins: npt.NDArray[np.int64]) -> FloatArray:
    """Means of the rows of each bin: float64[num_bins, ...]; NaN for empty bins."""
    rows = np.asarray(values, np.float64)
    # The mean of a bin without jobs.
    empty = np.full(rows.shape[1:], np.nan)
    return np.array(
        [
            rows[bins == result].mean(axis=0) if (bins == result).any() else empty
            for result in range(len(BINS))
        ]
    )


def profiles(
    request: StudyRequest, world: StudyWorld, lineup: Lineup, num_runs: int
) -> dict[str, ClassProfile]:
    """Run all policies and compute the profile of each."""
    edges_ms = bin_edges_ms(world.test.workload)
    jct: dict[str, list[FloatArray]] = {}
    used: dict[str, list[FloatArray]] = {}
    for sequence, traces in recorded_runs(request, world, lineup.contenders, num_runs):
        bins = np.searchsorted(edges_ms, [job.work_ms for job in sequence.jobs])
        for label, trace in traces.items():
            executors = executors_used(trace)
            # The last column counts the executors of all classes.
            both = np.concatenate([executors, executors.sum(axis=1, keepdims=True)], axis=1)
            jct.setdefault(label, []).append(mean_by_bin(jct_ms(trace), bins))
            used.setdefault(label, []).append(mean_by_bin(both, bins))
    return {label: ClassProfile(np.array(jct[label]), np.array(used[label])) for label in jct}


def ratio_to(values: FloatArray, baseline: FloatArray) -> Estimate | None:
    """The ratio of two policies' means over the runs in which both are known.

    Both are float64[num_runs]. None if there is no such run with a baseline above 0.
    """
    known = np.isfinite(values) & np.isfinite(baseline) & (baseline > 0)
    return ratio_estimate(values[known], baseline[known]) if known.any() else None


def _cell(estimate: Estimate | None) -> str:
    if estimate is None:
        return _NO_DATA
    interval = "" if estimate.is_unknown else f" [{estimate.low:.2f}, {estimate.high:.2f}]"
    return f"{estimate.mean:.2f}{interval}"


def _json(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate.to_json()


def class_names(classes: Sequence[ExecutorClass]) -> list[str]:
    """The names of the classes in tables: their memory, and "all" for all together."""
    return [*(f"{c.memory:g}" for c in classes), _ALL]


@dataclass(frozen=True)
class _WorldResult:
    """The results of one world."""

    world: StudyWorld
    lineup: Lineup
    profiles: Mapping[str, ClassProfile]

    @property
    def classes(self) -> list[str]:
        return class_names(self.world.test.config.classes)

    @property
    def rivals(self) -> list[str]:
        """Labels of all policies but Graphene*."""
        return [label for label in self.profiles if label != GRAPHENE]

    def jct(self, label: str) -> list[Estimate | None]:
        """By size, average JCT / that of Graphene*."""
        result = self.profiles[label].jct_ms
        baseline = self.profiles[GRAPHENE].jct_ms
        return [ratio_to(result[:, row], baseline[:, row]) for row in range(len(BINS))]

    def executors(self, label: str, size: int) -> list[Estimate | None]:
        """By class (and for all), executors of the jobs of a size / those of Graphene*."""
        result = self.profiles[label].executors[:, size]
        baseline = self.profiles[GRAPHENE].executors[:, size]
        return [
            ratio_to(result[:, column], baseline[:, column]) for column in range(result.shape[1])
        ]

    def to_json(self) -> dict[str, Any]:
        """All ratios, by policy."""
        return {
            label: {
                "jct_by_size": dict(zip(BINS, map(_json, self.jct(label)), strict=True)),
                "executors_by_size": {
                    size: dict(
                        zip(self.classes, map(_json, self.executors(label, row)), strict=True)
                    )
                    for row, size in enumerate(BINS)
                },
            }
            for label in self.rivals
        } | {"learned": [policy.to_json() for policy in self.lineup.learned]}


def _run_worlds(request: StudyRequest) -> dict[str, _WorldResult]:
    all_worlds = worlds(request)
    results = dict[str, _WorldResult]()
    for world in all_worlds:
        lineup = gather(request, world, all_worlds)
        results[world.name] = _WorldResult(
            world, lineup, profiles(request, world, lineup, request.runs(6, 20))
        )
    return results


def _notes(request: StudyRequest, results: Mapping[str, _WorldResult]) -> list[str]:
    num_runs = request.runs(6, 20)
    first = request.first_seed
    notes = [
        note for result in results.values() for note in (*result.world.notes, *result.lineup.notes)
    ]
    return [
        *missing_notes(request),
        f"{num_runs} runs of {next(iter(results.values())).world.test.num_jobs} jobs, "
        f"seeds {first} to {first + num_runs - 1}, paired; 95% confidence intervals of the ratio "
        "over the runs; sizes are fifths of the workload's jobs by work",
        "executors: number of different executors that ran tasks of a job, averaged over the jobs "
        "of a size",
        *notes,
        *budget_notes(request, trained=not request.policies),
    ]


def fig12(request: StudyRequest) -> StudyResult:
    """JCT by size of the jobs, and executors of each class on the smallest jobs, over Graphene*.

    Source: Decima, Figure 12 and section 7.3.
    """
    results = _run_worlds(request)
    headings = max((result.classes for result in results.values()), key=len)
    rows = [
        [
            name,
            label,
            *map(_cell, result.jct(label)),
            *_padded(map(_cell, result.executors(label, 0)), headings),
        ]
        for name, result in results.items()
        for label in result.rivals
    ]
    return StudyResult(
        f"completion times by job size, and executors on the smallest jobs, relative to {GRAPHENE}",
        "Decima completes jobs of all sizes faster than Graphene*, small ones most (12a), and uses "
        "39% more executors of the largest class on the smallest 20% of the jobs "
        "(12b; section 7.3)",
        (
            "workload",
            "policy",
            *(f"JCT: {size}" for size in BINS),
            *(f"executors on the smallest: {c}" for c in _memory(headings)),
        ),
        rows,
        {name: result.to_json() for name, result in results.items()},
        _notes(request, results),
        partial(save, partial(_draw_fig12, results), (11.0, 3.6 * len(results))),
    )


def _padded(cells: Iterable[str], headings: Sequence[str]) -> list[str]:
    """The cells of a world, padded with empty cells if another world has more classes."""
    result = list(cells)
    return result + [""] * (len(headings) - len(result))


def _memory(classes: Sequence[str]) -> list[str]:
    return [name if name == _ALL else f"memory {name}" for name in classes]


def _bars(
    axis: Any,
    groups: Sequence[str],
    series: Mapping[str, Sequence[Estimate | None]],
    title: str,
    x: str,
) -> None:
    """Draw grouped bars, one colour per series; unknown values have no bar."""
    # The bars of a group take 80% of its width.
    width = 0.8 / max(1, len(series))
    for row, (label, estimates) in enumerate(series.items()):
        known = [(position, e) for position, e in enumerate(estimates) if e is not None]
        positions = np.array([position for position, _ in known])
        mean = np.array([e.mean for _, e in known])
        ends = np.array([[e.low for _, e in known], [e.high for _, e in known]]).reshape(2, -1)
        error = np.nan_to_num(np.abs(ends - mean))
        axis.bar(
            positions + row * width,
            mean,
            width,
            yerr=error,
            color=policy_color(row),
            label=label,
            error_kw={"elinewidth": 0.8},
        )
    # The line marks equality with the baseline.
    axis.axhline(1.0, color="#7f7f7f", linewidth=0.8)
    axis.set_xticks(np.arange(len(groups)) + 0.4 - width / 2, groups, fontsize=8)
    tidy(axis, (x, f"ratio to {GRAPHENE}"), title)


def _draw_fig12(results: Mapping[str, _WorldResult], figure: Any) -> None:
    axes = figure.subplots(len(results), 2, squeeze=False)
    for (left, right), (name, result) in zip(axes, results.items(), strict=True):
        _bars(
            left,
            BINS,
            {label: result.jct(label) for label in result.rivals},
            f"{name}: JCT",
            "jobs by work",
        )
        smallest = {label: result.executors(label, 0) for label in result.rivals}
        _bars(
            right,
            result.classes,
            smallest,
            f"{name}: executors on the smallest 20%",
            "memory of the class",
        )


def fig21(request: StudyRequest) -> StudyResult:
    """Executors of each class by the size of the jobs, relative to Graphene*.

    Source: Decima, Figure 21 and Appendix G.
    """
    results = _run_worlds(request)
    headings = max((result.classes for result in results.values()), key=len)
    rows = [
        [name, label, size, *_padded(map(_cell, result.executors(label, row)), headings)]
        for name, result in results.items()
        for label in result.rivals
        for row, size in enumerate(BINS)
    ]
    return StudyResult(
        f"executors of each class by job size, relative to {GRAPHENE}",
        "Decima tends to assign more executors to a job than Graphene*, and more large ones to "
        "small jobs (Figure 21, Appendix G)",
        ("workload", "policy", "jobs by work", *_memory(headings)),
        rows,
        {name: result.to_json() for name, result in results.items()},
        _notes(request, results),
        partial(
            save,
            partial(_draw_fig21, results),
            (10.0, 3.2 * sum(len(result.rivals) for result in results.values())),
        ),
    )


def _draw_fig21(results: Mapping[str, _WorldResult], figure: Any) -> None:
    panels: list[Callable[[Any], None]] = [
        partial(_size_panel, result=result, title=f"{name}: {label}", label=label)
        for name, result in results.items()
        for label in result.rivals
    ]
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        panel(axis)


def _size_panel(axis: Any, result: _WorldResult, title: str, label: str) -> None:
    by_size = [result.executors(label, row) for row in range(len(BINS))]
    series = {
        heading: [v[column] for v in by_size]
        for column, heading in enumerate(_memory(result.classes))
    }
    _bars(axis, BINS, series, title, "jobs by work")
