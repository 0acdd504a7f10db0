"""Learning curves: the rule, the network parcae and Decima's, by recipe, against the time that they took."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from parcae.evaluation.plots import policy_color
from parcae.learning.recipes import Recipe
from parcae.learning.scenario import Scenario
from parcae.studies.reproduce.contest import Arena, contest, named, with_half_width, with_interval
from parcae.studies.reproduce.learners import (
    Learned,
    budget_notes,
    train_decima,
    train_parcae,
    tune,
)
from parcae.studies.reproduce.pictures import save, tidy
from parcae.studies.reproduce.study import StudyRequest, StudyResult

if TYPE_CHECKING:
    from parcae.learning.train import Iteration
    from parcae.learning.tune import Tuning

_FIRST = "weighted-fair:tuned"
#: Shares of the budget: the rule and the network that corrects it need minutes, Decima by itself hours.
_SHARES = {"rule": 0.08, "parcae": 0.17, "imitation": 0.2, "alone": 0.2, "2019": 0.35}


@dataclass
class Curve:
    """What a training was like, checkpoint by checkpoint; `offset_s` is what came before it."""

    iterations: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    ratio: list[float] = field(default_factory=list)
    offset_s: float = 0.0

    def add(self, i: Iteration) -> None:
        """A checkpoint of a network, where the iteration was one."""
        if not math.isnan(i.selected):
            self._append(i.iteration, i.seconds, i.selected)

    def add_tuning(self, tuning: Tuning) -> None:
        """A checkpoint of a rule."""
        self._append(tuning.generations, tuning.seconds, tuning.ratio_to_fair)

    def _append(self, iteration: int, seconds: float, ratio: float) -> None:
        self.iterations.append(iteration)
        self.seconds.append(self.offset_s + seconds)
        self.ratio.append(ratio)


def learning_curves(request: StudyRequest) -> StudyResult:
    """Every way of learning from nothing on batches, its curve, and what became of it on held-out runs.

    Source: Decima, section 5.3 (Algorithm 1) and Figure 15a; the other ways are Parcae's.
    """
    scenario = Scenario(request.workload, request.config, "batch", request.jobs(20, 20))
    curves = dict[str, Curve]()

    def curve(label: str, offset_s: float = 0.0) -> Curve:
        curves[label] = Curve(offset_s=offset_s)
        return curves[label]

    def seconds(share: str) -> float:
        return request.budget_s * _SHARES[share]

    rule = tune(request, scenario, "rule", seconds("rule"), curve("rule").add_tuning)
    learned = [rule]
    after = curve("rule, then parcae", rule.seconds)
    learned.append(
        train_parcae(
            request, scenario, "rule, then parcae", seconds("parcae"), rule, progress=after.add
        )
    )
    ways: tuple[tuple[str, str, Recipe, dict[str, Any]], ...] = (
        ("decima, imitation first", "imitation", Recipe.FAST, {}),
        ("decima, fast, alone", "alone", Recipe.FAST, {"imitation": 0.0}),
        ("decima, decima-2019", "2019", Recipe.DECIMA_2019, {}),
    )
    for label, share, recipe, changes in ways:
        add = curve(label).add
        learned.append(
            train_decima(
                request,
                scenario,
                label,
                seconds(share),
                recipe=recipe,
                changes=changes,
                progress=add,
            )
        )
    arena = Arena(request.workload, request.config, "batch", scenario.num_jobs)
    found = contest(
        request,
        arena,
        [*named(_FIRST, "fair"), *(p.contender for p in learned)],
        request.runs(20, 200),
    )
    made: dict[str, Learned] = {policy.label: policy for policy in learned}
    rows = [
        [
            label,
            f"{made[label].seconds:.0f}" if label in made else "",
            with_half_width(r.average_jct_s),
            with_interval(r.ratio_to_first),
        ]
        for label, r in found.results.items()
    ]
    line = (
        found.results[_FIRST].means()["average_jct_s"]
        / found.results["fair"].means()["average_jct_s"]
    )
    return StudyResult(
        "learning curves of every way of learning, on batches",
        "Decima trains for 50,000 iterations, some hours (section 5.3 and Figure 15a)",
        ("policy", "seconds of training", "average JCT (s)", f"ratio to {_FIRST}"),
        rows,
        {
            "curves": {label: vars(own) for label, own in curves.items()},
            "contest": found.to_json(),
            "learned": [policy.to_json() for policy in learned],
        },
        [
            "curves: average JCT / fair sharing's on the selection runs of every training, which none of them trains on; the "
            "rule's time counts for the network that corrects it; one training each",
            *found.notes(),
            *(policy.words for policy in learned),
            *budget_notes(request),
        ],
        partial(save, lambda figure: _draw(figure.subplots(), curves, line), (8.0, 4.6)),
    )


def _draw(axis: Any, curves: dict[str, Curve], line: float) -> None:
    for row, (label, curve) in enumerate(curves.items()):
        axis.plot(
            [max(1.0, s) for s in curve.seconds],
            curve.ratio,
            color=policy_color(row),
            label=label,
            linewidth=1.5,
        )
    axis.axhline(line, color="#1d232a", linewidth=1, linestyle="--", label=_FIRST)
    axis.set_xscale("log")
    axis.set_ylim(0.7, 2.0)
    tidy(axis, ("seconds of training", "average JCT / fair sharing's"))
