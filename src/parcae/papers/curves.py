"""Learning curves of the rule, the network corrector and Decima's network, by training time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from parcae.decima.learning.recipes import Recipe
from parcae.evaluation.pictures import tidy
from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import with_half_width, with_interval
from parcae.learning.scenario import Scenario
from parcae.papers.contest import Contest, contest, named
from parcae.papers.learners import (
    DecimaVariant,
    StudiedPolicy,
    budget_notes,
    train_decima,
    train_parcae,
    tune,
)
from parcae.papers.pictures import marker_of, save
from parcae.papers.study import StudyRequest, StudyResult

if TYPE_CHECKING:
    from parcae.learning.loop import Iteration
    from parcae.learning.tune import Tuning

_FIRST = "weighted-fair:tuned"
#: Shares of the budget. The rule and the network that corrects it need minutes, Decima hours.
_SHARES = {"rule": 0.08, "corrector": 0.17, "imitation": 0.2, "alone": 0.2, "2019": 0.35}


@dataclass
class ClusterCurve:
    """The progress of a training, by checkpoint."""

    iterations: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    ratio: list[float] = field(default_factory=list)
    offset_s: float = 0.0

    def add(self, i: Iteration) -> None:
        """Add an iteration of a network's training, if it was measured."""
        if not math.isnan(i.selected):
            self._append(i.iteration, i.seconds, i.selected)

    def add_tuning(self, tuning: Tuning) -> None:
        """Add a generation of a rule's tuning."""
        self._append(tuning.generations, tuning.seconds, tuning.ratio_to_fair)

    def _append(self, iteration: int, seconds: float, ratio: float) -> None:
        self.iterations.append(iteration)
        self.seconds.append(self.offset_s + seconds)
        self.ratio.append(ratio)


#: The trainings of Decima's network: label, share of the budget, and how it is trained.
_DECIMA_WAYS = (
    ("decima, imitation first", "imitation", DecimaVariant(recipe=Recipe.IMITATION)),
    ("decima, fast, alone", "alone", DecimaVariant(recipe=Recipe.FAST)),
    ("decima, decima-2019", "2019", DecimaVariant(recipe=Recipe.DECIMA_2019)),
)


def learning_curves(request: StudyRequest) -> StudyResult:
    """Learning curves of all training methods from scratch on batches, and held-out results.

    Source: Decima, section 5.3 (Algorithm 1) and Figure 15a; the other methods are Parcae's.
    """
    scenario = Scenario(request.workload, request.config, "batch", request.jobs(20, 20))
    learned, curves = _train_all(request, scenario)
    outcome = contest(
        request,
        scenario,
        [*named(_FIRST, "fair"), *(p.contender for p in learned)],
        request.runs(20, 200),
    )
    # Tuned weighted fair / fair, as a horizontal line in the picture.
    line = (
        outcome.results[_FIRST].means()["average_jct_s"]
        / outcome.results["fair"].means()["average_jct_s"]
    )
    return StudyResult(
        "learning curves of all training methods, on batches",
        "Decima trains for at least 50,000 iterations (Appendix C) of 1.5 s (Appendix C) to 5 s "
        "(section 7.4), which takes 21 hours to 3 days",
        ("policy", "seconds of training", "average JCT (s)", f"ratio to {_FIRST}"),
        _rows(outcome, learned),
        {
            "curves": {label: vars(entry) for label, entry in curves.items()},
            "contest": outcome.to_json(),
            "learned": [policy.to_json() for policy in learned],
        },
        [
            "curves: average JCT / that of fair sharing on the selection runs, which no training "
            "uses; the time of the network corrector includes that of the rule it corrects; one "
            "training each",
            *outcome.notes(),
            *(policy.words for policy in learned),
            *budget_notes(request),
        ],
        partial(save, lambda figure: draw_curves(figure.subplots(), curves, line), (8.0, 4.6)),
    )


def _train_all(
    request: StudyRequest, scenario: Scenario
) -> tuple[list[StudiedPolicy], dict[str, ClusterCurve]]:
    """Train by every method. Returns the policies, and the curves by label."""

    def seconds(share: str) -> float:
        return request.budget_s * _SHARES[share]

    tuned = ClusterCurve()
    rule = tune(request, scenario, "rule", seconds("rule"), tuned.add_tuning)
    # The network builds on the rule, so its curve starts where the rule's tuning ended.
    corrected = ClusterCurve(offset_s=rule.seconds)
    label = "rule, then parcae"
    network = train_parcae(
        request, scenario, label, seconds("corrector"), rule, progress=corrected.add
    )
    learned = [rule, network]
    curves = {"rule": tuned, label: corrected}
    for label, share, variant in _DECIMA_WAYS:
        curves[label] = ClusterCurve()
        learned.append(
            train_decima(
                request,
                scenario,
                label,
                seconds(share),
                variant,
                progress=curves[label].add,
            )
        )
    return learned, curves


def _rows(outcome: Contest, learned: list[StudiedPolicy]) -> list[list[str]]:
    seconds = {policy.label: f"{policy.seconds:.0f}" for policy in learned}
    return [
        [
            label,
            seconds.get(label, ""),
            with_half_width(result.average_jct_s),
            with_interval(result.ratio_to_first),
        ]
        for label, result in outcome.results.items()
    ]


def draw_curves(axis: Any, curves: dict[str, ClusterCurve], line: float) -> None:
    """Draw the curves by label, and a line at the ratio of tuned weighted fair."""
    for row, (label, curve) in enumerate(curves.items()):
        axis.plot(
            # The time axis is logarithmic and starts at 1 s.
            [max(1.0, s) for s in curve.seconds],
            curve.ratio,
            color=policy_color(row),
            label=label,
            marker=marker_of(curve.seconds),
            linewidth=1.5,
        )
    axis.axhline(line, color="#1d232a", linewidth=1, linestyle="--", label=_FIRST)
    axis.set_xscale("log")
    # What is far above fair sharing at first is cut off; where each training ends is always shown.
    # A training that diverged before its first measurement has no points.
    ends = [curve.ratio[-1] for curve in curves.values() if curve.ratio]
    lowest = min([0.7, *(0.95 * end for end in ends)])
    highest = max([2.0, *(1.05 * end for end in ends)])
    axis.set_ylim(lowest, highest)
    tidy(axis, ("seconds of training", "average JCT / fair sharing's"))
