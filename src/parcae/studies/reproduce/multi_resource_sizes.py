"""Figures 12 and 21: who gains by the size of the jobs, and who gets executors of which class.

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
from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import Estimate, ratio_estimate
from parcae.metrics.classes import executors_used
from parcae.metrics.jobs import jct_ms
from parcae.studies.reproduce.learners import budget_notes
from parcae.studies.reproduce.multi_resource import (
    GRAPHENE,
    Lineup,
    World,
    gather,
    missing_notes,
    recorded_runs,
    worlds,
)
from parcae.studies.reproduce.pictures import save, tidy
from parcae.studies.reproduce.study import StudyRequest, StudyResult
from parcae.workloads.job import Workload

FloatArray = npt.NDArray[np.float64]
#: Jobs are compared in fifths by work; the first are the paper's small jobs.
BINS = ("smallest 20%", "20-40%", "40-60%", "60-80%", "largest 20%")
_NO_DATA = "-"
_ALL = "all"


@dataclass(frozen=True)
class Profile:
    """Means by size of the jobs, of every run of one policy.

    Args:
        jct_ms: float64[num_runs, num_bins]; NaN where a run had no job of that size.
        executors: float64[num_runs, num_bins, num_classes + 1], different executors of each class, and of all, that worked
            for a job.
    """

    jct_ms: FloatArray
    executors: FloatArray


def bin_edges_ms(workload: Workload) -> FloatArray:
    """Work that separates the fifths of the workload's jobs, by their weights, float64[num_bins - 1]."""
    work = np.array([job.work_ms for job in workload.jobs])
    weights = np.ones(len(work)) if workload.weights is None else np.asarray(workload.weights)
    order = np.argsort(work)
    share = np.cumsum(weights[order]) / weights.sum()
    rows = np.searchsorted(share, np.arange(1, len(BINS)) / len(BINS) - 1e-9)
    return np.asarray(work[order][rows], np.float64)


def mean_by_bin(values: npt.ArrayLike, bins: npt.NDArray[np.int64]) -> FloatArray:
    """Means of the rows of each bin, float64[num_bins, ...]; NaN where there is none."""
    rows = np.asarray(values, np.float64)
    empty = np.full(rows.shape[1:], np.nan)
    return np.array(
        [
            rows[bins == own].mean(axis=0) if (bins == own).any() else empty
            for own in range(len(BINS))
        ]
    )


def profiles(
    request: StudyRequest, world: World, lineup: Lineup, num_runs: int
) -> dict[str, Profile]:
    """The profile of every policy, by label."""
    edges_ms = bin_edges_ms(world.test.workload)
    jct: dict[str, list[FloatArray]] = {}
    used: dict[str, list[FloatArray]] = {}
    for sequence, traces in recorded_runs(request, world, lineup.contenders, num_runs):
        bins = np.searchsorted(edges_ms, [job.work_ms for job in sequence.jobs])
        for label, trace in traces.items():
            executors = executors_used(trace)
            both = np.concatenate([executors, executors.sum(axis=1, keepdims=True)], axis=1)
            jct.setdefault(label, []).append(mean_by_bin(jct_ms(trace), bins))
            used.setdefault(label, []).append(mean_by_bin(both, bins))
    return {label: Profile(np.array(jct[label]), np.array(used[label])) for label in jct}


def ratio_to(own: FloatArray, baseline: FloatArray) -> Estimate | None:
    """The ratio of two policies' means over the runs in which both are known; None where the baseline has nothing.

    Args:
        own, baseline: float64[num_runs], the same runs.
    """
    known = np.isfinite(own) & np.isfinite(baseline) & (baseline > 0)
    return ratio_estimate(own[known], baseline[known]) if known.any() else None


def _cell(estimate: Estimate | None) -> str:
    if estimate is None:
        return _NO_DATA
    interval = "" if estimate.is_unknown else f" [{estimate.low:.2f}, {estimate.high:.2f}]"
    return f"{estimate.mean:.2f}{interval}"


def _json(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate.to_json()


def class_names(classes: Sequence[ExecutorClass]) -> list[str]:
    """How tables call the classes: by their memory, and all of them together."""
    return [*(f"{c.memory:g}" for c in classes), _ALL]


@dataclass(frozen=True)
class _Found:
    """A world, who met there, and what came of it."""

    world: World
    lineup: Lineup
    profiles: Mapping[str, Profile]

    @property
    def classes(self) -> list[str]:
        return class_names(self.world.test.config.classes)

    @property
    def rivals(self) -> list[str]:
        """Labels of all policies but Graphene*."""
        return [label for label in self.profiles if label != GRAPHENE]

    def jct(self, label: str) -> list[Estimate | None]:
        """Completion times by size, over Graphene*'s."""
        own = self.profiles[label].jct_ms
        baseline = self.profiles[GRAPHENE].jct_ms
        return [ratio_to(own[:, row], baseline[:, row]) for row in range(len(BINS))]

    def executors(self, label: str, size: int) -> list[Estimate | None]:
        """Executors by class (and all) on the jobs of a size, over Graphene*'s."""
        own = self.profiles[label].executors[:, size]
        baseline = self.profiles[GRAPHENE].executors[:, size]
        return [ratio_to(own[:, column], baseline[:, column]) for column in range(own.shape[1])]

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


def _find(request: StudyRequest) -> dict[str, _Found]:
    all_worlds = worlds(request)
    found = dict[str, _Found]()
    for world in all_worlds:
        lineup = gather(request, world, all_worlds)
        found[world.name] = _Found(
            world, lineup, profiles(request, world, lineup, request.runs(6, 20))
        )
    return found


def _notes(request: StudyRequest, found: Mapping[str, _Found]) -> list[str]:
    num_runs = request.runs(6, 20)
    first = request.first_seed
    notes = [note for own in found.values() for note in (*own.world.notes, *own.lineup.notes)]
    return [
        *missing_notes(request),
        f"{num_runs} runs of {next(iter(found.values())).world.test.num_jobs} jobs, seeds {first} to {first + num_runs - 1}, "
        f"paired; 95% confidence intervals of the ratio over the runs; sizes are fifths of the workload's jobs by work",
        "executors: different executors that ran tasks of a job, on average over the jobs of a size",
        *notes,
        *budget_notes(request, trained=not request.policies),
    ]


def fig12(request: StudyRequest) -> StudyResult:
    """Completion times by the size of the jobs, and executors of each class on the smallest, over Graphene*'s.

    Source: Decima, Figure 12 and section 7.3.
    """
    found = _find(request)
    headings = max((own.classes for own in found.values()), key=len)
    rows = [
        [
            name,
            label,
            *map(_cell, own.jct(label)),
            *_padded(map(_cell, own.executors(label, 0)), headings),
        ]
        for name, own in found.items()
        for label in own.rivals
    ]
    return StudyResult(
        f"completion times by the size of the jobs and executors on the smallest, over {GRAPHENE}'s",
        "Decima completes jobs of all sizes faster than Graphene*, small ones most (12a), and uses 39% more executors of the "
        "largest class on the smallest 20% of the jobs (12b; section 7.3)",
        (
            "workload",
            "policy",
            *(f"JCT: {size}" for size in BINS),
            *(f"executors on the smallest: {c}" for c in _memory(headings)),
        ),
        rows,
        {name: own.to_json() for name, own in found.items()},
        _notes(request, found),
        partial(save, partial(_draw_fig12, found), (11.0, 3.6 * len(found))),
    )


def _padded(cells: Iterable[str], headings: Sequence[str]) -> list[str]:
    """The cells of a world, with empty ones where another world has more classes."""
    own = list(cells)
    return own + [""] * (len(headings) - len(own))


def _memory(classes: Sequence[str]) -> list[str]:
    return [name if name == _ALL else f"memory {name}" for name in classes]


def _bars(
    axis: Any,
    groups: Sequence[str],
    series: Mapping[str, Sequence[Estimate | None]],
    title: str,
    x: str,
) -> None:
    """Bars side by side: groups along the axis, one colour a series; no bar where nothing is known."""
    width = 0.8 / max(1, len(series))
    for row, (label, estimates) in enumerate(series.items()):
        known = [(at, e) for at, e in enumerate(estimates) if e is not None]
        at = np.array([at for at, _ in known])
        mean = np.array([e.mean for _, e in known])
        ends = np.array([[e.low for _, e in known], [e.high for _, e in known]]).reshape(2, -1)
        error = np.nan_to_num(np.abs(ends - mean))
        axis.bar(
            at + row * width,
            mean,
            width,
            yerr=error,
            color=policy_color(row),
            label=label,
            error_kw={"elinewidth": 0.8},
        )
    axis.axhline(1.0, color="#7f7f7f", linewidth=0.8)
    axis.set_xticks(np.arange(len(groups)) + 0.4 - width / 2, groups, fontsize=8)
    tidy(axis, (x, f"ratio to {GRAPHENE}"), title)


def _draw_fig12(found: Mapping[str, _Found], figure: Any) -> None:
    axes = figure.subplots(len(found), 2, squeeze=False)
    for (left, right), (name, own) in zip(axes, found.items(), strict=True):
        _bars(
            left,
            BINS,
            {label: own.jct(label) for label in own.rivals},
            f"{name}: JCT",
            "jobs by work",
        )
        smallest = {label: own.executors(label, 0) for label in own.rivals}
        _bars(
            right,
            own.classes,
            smallest,
            f"{name}: executors on the smallest 20%",
            "memory of the class",
        )


def fig21(request: StudyRequest) -> StudyResult:
    """Executors of each class by the size of the jobs, over Graphene*'s.

    Source: Decima, Figure 21 and Appendix G.
    """
    found = _find(request)
    headings = max((own.classes for own in found.values()), key=len)
    rows = [
        [name, label, size, *_padded(map(_cell, own.executors(label, row)), headings)]
        for name, own in found.items()
        for label in own.rivals
        for row, size in enumerate(BINS)
    ]
    return StudyResult(
        f"executors of each class by the size of the jobs, over {GRAPHENE}'s",
        "Decima tends to assign more executors to a job than Graphene*, and more large ones to small jobs (Figure 21, "
        "Appendix G)",
        ("workload", "policy", "jobs by work", *_memory(headings)),
        rows,
        {name: own.to_json() for name, own in found.items()},
        _notes(request, found),
        partial(
            save,
            partial(_draw_fig21, found),
            (10.0, 3.2 * sum(len(own.rivals) for own in found.values())),
        ),
    )


def _draw_fig21(found: Mapping[str, _Found], figure: Any) -> None:
    panels: list[Callable[[Any], None]] = [
        partial(_size_panel, own=own, title=f"{name}: {label}", label=label)
        for name, own in found.items()
        for label in own.rivals
    ]
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, panel in zip(axes, panels, strict=True):
        panel(axis)


def _size_panel(axis: Any, own: _Found, title: str, label: str) -> None:
    by_size = [own.executors(label, row) for row in range(len(BINS))]
    series = {
        heading: [v[column] for v in by_size] for column, heading in enumerate(_memory(own.classes))
    }
    _bars(axis, BINS, series, title, "jobs by work")
