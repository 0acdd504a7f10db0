"""Figures 14 and 15a: the contribution of each part of Decima, and encodings of parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from parcae.decima.graph.layout import DecimaSettings, Limits
from parcae.decima.learning.recipes import Recipe
from parcae.evaluation.pictures import tidy
from parcae.evaluation.plots import policy_color
from parcae.learning.scenario import Scenario
from parcae.papers.contest import Contest, contest, less, named
from parcae.papers.curves import ClusterCurve
from parcae.papers.findings import Finding
from parcae.papers.learners import DecimaVariant, StudiedPolicy, budget_notes, train_decima
from parcae.papers.pictures import line_panel, save
from parcae.papers.study import StudyRequest, StudyResult

#: Largest number of jobs in a batch for the variant "trained on batches".
_BATCH_JOBS = 20


@dataclass(frozen=True)
class Ablation:
    """Decima without one of its parts."""

    label: str
    variant: DecimaVariant = field(default_factory=DecimaVariant)
    is_on_batches: bool = False


ABLATIONS = (
    Ablation("decima"),
    Ablation("without parallelism control", DecimaVariant(DecimaSettings(limits=Limits.NONE))),
    Ablation("without graph embedding", DecimaVariant(DecimaSettings(has_graph=False))),
    Ablation("trained on batches", is_on_batches=True),
    Ablation("decima, Algorithm 1", DecimaVariant(recipe=Recipe.DECIMA_2019)),
    # Deviation: the paper's variant gives every rollout another job sequence (section 7.4). Here
    # those of a group still share theirs, and only their baseline does not look at the time.
    Ablation(
        "Algorithm 1 without aligned baseline",
        DecimaVariant(recipe=Recipe.DECIMA_2019, changes={"is_aligned": False}),
    ),
)
#: The ablations that leave nothing out.
_COMPLETE = ("decima", "decima, Algorithm 1")
_BASELINE = "weighted-fair:tuned"


def _train(
    request: StudyRequest, ablation: Ablation, scenario: Scenario, share_s: float
) -> StudiedPolicy:
    trained = scenario
    if ablation.is_on_batches:
        # Only the training changes; this variant is tested on the same stream as the others.
        trained = replace(scenario, arrivals="batch", num_jobs=min(_BATCH_JOBS, scenario.num_jobs))
    label = f"{ablation.label} ({scenario.arrivals})"
    return train_decima(request, trained, label, share_s, ablation.variant)


def fig14(request: StudyRequest) -> StudyResult:
    """Decima without one part at a time, at several loads, compared with tuned weighted fair.

    Source: Decima, Figure 14 and section 7.4.
    """
    loads = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8) if request.is_full else (0.4, 0.7)
    share_s = request.budget_s / (len(loads) * len(ABLATIONS))
    contests = dict[float, Contest]()
    learned = list[StudiedPolicy]()
    rows = list[list[str]]()
    for load in loads:
        scenario = Scenario(
            request.workload, request.config, f"load:{load:g}", request.jobs(60, 1_000)
        )
        trained = [_train(request, ablation, scenario, share_s) for ablation in ABLATIONS]
        contests[load] = contest(
            request,
            scenario,
            [*named(_BASELINE), *(policy.contender for policy in trained)],
            request.runs(4, 10),
        )
        learned += trained
        # Results keep the order of the contenders, so they can be labelled by position.
        labels = [_BASELINE, *(variant.label for variant in ABLATIONS)]
        for label, (_, *cells) in zip(labels, contests[load].average_rows(), strict=True):
            rows.append([f"{load:g}", label, *cells])
    lines = _lines(contests)
    return StudyResult(
        "the contribution of each of Decima's parts",
        "without any one of its parts, Decima's average JCT is above that of optimally weighted "
        "fair at high loads; without parallelism control, or without the graph embedding, it "
        "cannot keep up (Figure 14, section 7.4)",
        ("load", "policy", "average JCT (s)", f"ratio to {_BASELINE}"),
        rows,
        {
            "loads": {f"{load:g}": outcome.to_json() for load, outcome in contests.items()},
            "learned": [policy.to_json() for policy in learned],
        },
        [
            "load: mean work that arrives / the executors' capacity with mean durations; executors "
            "are busier than that, because of delays and work inflation",
            "the variant without aligned baseline uses one baseline for all decisions of a group "
            "of runs instead of one for each point in time; it is trained by Algorithm 1, as is a "
            "complete Decima for comparison. The paper's variant is another one: there the runs "
            "of a group have different job sequences",
            *contests[loads[-1]].notes(),
            *(policy.words for policy in learned),
            *budget_notes(request),
        ],
        partial(save, lambda figure: _load_panel(figure.subplots(), lines), (8.0, 4.4)),
        [
            *(_decima_wins(load, outcome) for load, outcome in contests.items()),
            *_parts_count(loads[-1], contests[loads[-1]]),
        ],
    )


def _decima_wins(load: float, outcome: Contest) -> Finding:
    """The complete Decima is better than tuned weighted fair."""
    baseline, decima, *_ = outcome.results.values()
    return less(f"load {load:g}: Decima below {_BASELINE}", decima, baseline)


def _parts_count(load: float, outcome: Contest) -> list[Finding]:
    """At the highest load, tuned weighted fair is better than Decima without one of its parts."""
    baseline, *trained = outcome.results.values()
    return [
        less(f"load {load:g}: {_BASELINE} below Decima, {ablation.label}", baseline, result)
        for ablation, result in zip(ABLATIONS, trained, strict=True)
        if ablation.label not in _COMPLETE
    ]


def _lines(contests: Mapping[float, Contest]) -> dict[str, list[tuple[float, float]]]:
    """By variant, (load, ratio to the baseline) for every load."""
    lines: dict[str, list[tuple[float, float]]] = {variant.label: [] for variant in ABLATIONS}
    for load, outcome in contests.items():
        for variant, result in zip(ABLATIONS, list(outcome.results.values())[1:], strict=True):
            lines[variant.label].append((load, result.ratio_to_first.mean))
    return lines


def _load_panel(axis: Any, lines: Mapping[str, list[tuple[float, float]]]) -> None:
    for row, (label, points) in enumerate(lines.items()):
        x, y = zip(*points, strict=True)
        axis.plot(x, y, color=policy_color(row), marker="o", markersize=4, label=label)
    axis.axhline(1.0, color="#1d232a", linewidth=1, linestyle="--", label=_BASELINE)
    axis.set_yscale("log")
    tidy(axis, ("load", f"average JCT / {_BASELINE}'s"))


_ENCODINGS = {
    "limit as an input (Decima)": Limits.INPUT,
    "one output for each limit": Limits.OUTPUTS,
    "limits of stages": Limits.STAGE,
}


def num_parameters(learned: StudiedPolicy) -> int:
    """Number of a policy's weights, without those of the critic, which only training needs."""
    return sum(
        int(np.size(array))
        for name, array in learned.weights.items()
        if not name.startswith("critic.")
    )


def _encoding_row(label: str, policy: StudiedPolicy, curve: ClusterCurve) -> list[str]:
    # The last ratio shows whether the training still improved after its best checkpoint. A training
    # that diverged before its first measurement has none.
    last = f"{curve.ratio[-1]:.3f}" if curve.ratio else "-"
    each_s = policy.seconds / max(1, policy.iterations)
    numbers = (f"{policy.ratio_to_fair:.3f}", last, f"{num_parameters(policy):,}")
    return [label, *numbers, str(policy.iterations), f"{each_s:.2f}"]


def fig15a(request: StudyRequest) -> StudyResult:
    """Learning curves of three encodings of parallelism limits.

    Source: Decima, Figure 15a and section 5.2.
    """
    scenario = Scenario(request.workload, request.config, request.stream, request.jobs(100, 200))
    curves = dict[str, ClusterCurve]()
    learned = list[StudiedPolicy]()
    rows = list[list[str]]()
    for label, limits in _ENCODINGS.items():
        curve = ClusterCurve()
        decima = DecimaSettings(limits=limits)
        share_s = request.budget_s / len(_ENCODINGS)
        policy = train_decima(
            request, scenario, label, share_s, DecimaVariant(decima), progress=curve.add
        )
        curves[label] = curve
        learned.append(policy)
        rows.append(_encoding_row(label, policy, curve))
    lines = {label: (curve.seconds, curve.ratio) for label, curve in curves.items()}
    contenders = [policy.contender for policy in learned]
    outcome = contest(request, scenario, contenders, request.runs(4, 10))
    return StudyResult(
        "learning curves of three encodings of parallelism",
        "limits as an input learn fastest; separate outputs for every limit, and limits of stages, "
        "take longer (Figure 15a, section 7.4); an iteration takes 5 s",
        (
            "encoding",
            "best ratio to fair",
            "last ratio to fair",
            "parameters",
            "iterations",
            "s an iteration",
        ),
        rows,
        {
            "curves": {label: vars(curve) for label, curve in curves.items()},
            "learned": [policy.to_json() for policy in learned],
            "held out": outcome.to_json(),
        },
        [
            "average JCT / that of fair sharing on selection runs that no training uses, arrivals "
            f"{scenario.arrivals}, {scenario.num_jobs} jobs; one training each, so no intervals",
            "the findings compare the best policies of equally long trainings on other runs: "
            + "; ".join(outcome.notes()),
            *(policy.words for policy in learned),
            *budget_notes(request),
        ],
        partial(
            save,
            lambda figure: line_panel(
                figure.subplots(), lines, ("seconds of training", "average JCT / fair sharing's")
            ),
            (7.0, 4.0),
        ),
        _input_wins(outcome),
    )


def _input_wins(outcome: Contest) -> list[Finding]:
    """After the same time, limits as an input are better than the other encodings."""
    (own, decima), *others = zip(_ENCODINGS, outcome.results.values(), strict=True)
    return [
        less(f"after the same time of training: {own} below {label}", decima, other)
        for label, other in others
    ]
