"""The DeepRM paper's figures 4 to 7.

Source: Mao et al., "Resource management with deep reinforcement learning" (HotNets'16), section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import Estimate, mean_estimate, ratio_estimate
from parcae.learning.packing.deeprm import RECIPES
from parcae.learning.packing.loop import PackingIteration
from parcae.packing.layout import Cost, select
from parcae.packing.world import Outcome
from parcae.policies.deeprm.policy import DeepRMPolicy
from parcae.policies.packing.policy import PackingPolicy
from parcae.studies.reproduce.contest import with_half_width, with_interval
from parcae.studies.reproduce.packing import (
    LearnedPacking,
    Played,
    Stage,
    heuristics,
    label_of,
    learned_deeprm,
    load_at,
    setting_notes,
    stage_of,
    train_deeprm,
    tuned_tetris,
)
from parcae.studies.reproduce.pictures import bar_panel, cdf_panel, line_panel, save, tidy
from parcae.studies.reproduce.study import PackingRequest, StudyResult

FloatArray = npt.NDArray[np.float64]
RATES = tuple(round(0.1 * k, 1) for k in range(1, 11))
#: Rates of the paper's loads of 70%, 110% and 130%.
_RATE_70 = 0.4
_RATE_110 = 0.6
_RATE_130 = 0.7
#: Durations of the small and the large jobs.
_SMALL = 3
_LARGE = 10


def fig4(request: PackingRequest) -> StudyResult:
    """Average job slowdown at ten loads.

    Source: DeepRM, Figure 4.
    """
    found: dict[float, dict[str, Played]] = {}
    learned: dict[float, LearnedPacking] = {}
    knobs: dict[float, str] = {}
    for rate in RATES:
        learned[rate] = learned_deeprm(request, rate, Cost.SLOWDOWN, request.budget_s / len(RATES))
        stage = stage_of(request, rate)
        rules = heuristics(stage_of(request, rate).source, num_threads=request.processes)
        knobs[rate] = rules["tetris*"].name
        policies: dict[str, PackingPolicy] = {
            "deeprm": learned[rate].policy,
            "deeprm, greedy": learned[rate].greedy,
            **rules,
        }
        request.say(f"playing at a load of {label_of(rate)}")
        found[rate] = {label: stage.play(policy) for label, policy in policies.items()}
    means = {
        rate: {label: played.estimate(Cost.SLOWDOWN) for label, played in own.items()}
        for rate, own in found.items()
    }
    ratios = {
        rate: own["deeprm"].ratio(own["tetris*"], Cost.SLOWDOWN) for rate, own in found.items()
    }
    labels = list(found[RATES[0]])
    return StudyResult(
        "average job slowdown by load",
        "SJF is better than Packer, Tetris* better than both, and DeepRM comparable to and often better than all, above all at "
        "high loads (Figure 4, section 4.2)",
        ("load", "rate", *labels, "deeprm / tetris*"),
        [
            [
                label_of(rate),
                f"{rate:g}",
                *(with_half_width(means[rate][label], 2) for label in labels),
                with_interval(ratios[rate]),
            ]
            for rate in RATES
        ],
        {
            label_of(rate): {
                "rate": rate,
                "load": load_at(rate),
                "tetris": knobs[rate],
                "slowdown": {label: estimate.to_json() for label, estimate in means[rate].items()},
                "deeprm_to_tetris": ratios[rate].to_json(),
                "unfinished_jobs": {
                    label: played.num_unfinished for label, played in found[rate].items()
                },
                "deeprm": dict(learned[rate].card),
            }
            for rate in RATES
        },
        [
            *setting_notes(stage_of(request, RATES[0]), RATES),
            f"Tetris*'s knobs: {', '.join(f'{label_of(rate)} {knobs[rate]}' for rate in RATES)}",
            _unfinished(
                {
                    f"{label_of(rate)} {name}": p
                    for rate, own in found.items()
                    for name, p in own.items()
                }
            ),
            *(policy.words for policy in learned.values()),
        ],
        partial(save, partial(_draw_loads, means), (8.0, 4.4)),
    )


def _draw_loads(means: Mapping[float, Mapping[str, Estimate]], figure: Any) -> None:
    labels = next(iter(means.values()))
    loads = [float(label_of(rate)[:-1]) for rate in means]
    lines = {label: (loads, [own[label].mean for own in means.values()]) for label in labels}
    line_panel(figure.subplots(), lines, ("load (%, the paper's labels)", "average job slowdown"))


def _unfinished(played: Mapping[str, Played]) -> str:
    """The jobs that count for nothing after they were lost, or when a run was ended, in words."""
    found = {label: own.num_unfinished for label, own in played.items()}
    lost = ", ".join(f"{label} {count}" for label, count in found.items() if count)
    return (
        f"jobs never started or lost: {lost}"
        if lost
        else "every job was started and finished, under every policy"
    )


def fig5(request: PackingRequest) -> StudyResult:
    """Two objectives at a load of 130%: a DeepRM for each.

    Source: DeepRM, Figure 5.
    """
    stage = stage_of(request, _RATE_130)
    costs = (Cost.SLOWDOWN, Cost.COMPLETION)
    learned = {
        cost: learned_deeprm(request, _RATE_130, cost, request.budget_s / 2) for cost in costs
    }
    rules: dict[str, Any] = heuristics(stage.source, num_threads=request.processes)
    rules["tetris* for completion"] = tuned_tetris(stage.source, Cost.COMPLETION, request.processes)
    names = {Cost.SLOWDOWN: "deeprm for slowdown", Cost.COMPLETION: "deeprm for completion"}
    policies = {names[cost]: own.policy for cost, own in learned.items()}
    policies |= {f"{names[cost]}, greedy": own.greedy for cost, own in learned.items()}
    played = {label: stage.play(policy) for label, policy in {**policies, **rules}.items()}
    estimates = {
        cost: {label: own.estimate(cost) for label, own in played.items()} for cost in costs
    }
    baseline = {Cost.SLOWDOWN: played["tetris*"], Cost.COMPLETION: played["tetris* for completion"]}
    ratios = {
        cost: {label: own.ratio(baseline[cost], cost) for label, own in played.items()}
        for cost in costs
    }
    return StudyResult(
        "two objectives at a load of 130%",
        "DeepRM is the best on each objective when it is trained for that objective (Figure 5, section 4.2)",
        (
            "policy",
            "slowdown",
            "to tetris*",
            "completion time (steps)",
            "to tetris* for completion",
        ),
        [
            [
                label,
                *(
                    cell
                    for cost in costs
                    for cell in (
                        with_half_width(estimates[cost][label], 2),
                        with_interval(ratios[cost][label]),
                    )
                ),
            ]
            for label in played
        ],
        {
            label: {
                **{cost.name.lower(): estimates[cost][label].to_json() for cost in costs},
                **{
                    f"{cost.name.lower()}_to_tetris": ratios[cost][label].to_json()
                    for cost in costs
                },
            }
            for label in played
        },
        [
            *setting_notes(stage, (_RATE_130,)),
            f"knobs: {rules['tetris*'].name} for slowdown, {rules['tetris* for completion'].name} for completion",
            _unfinished(played),
            *(own.words for own in learned.values()),
        ],
        partial(save, partial(_draw_objectives, estimates), (11.0, 4.4)),
    )


def _draw_objectives(estimates: Mapping[Cost, Mapping[str, Estimate]], figure: Any) -> None:
    labels = ("average job slowdown", "average job completion time (steps)")
    for axis, label, own in zip(figure.subplots(1, 2), labels, estimates.values(), strict=True):
        bar_panel(axis, own, label)


@dataclass
class Curve:
    """A training, measured on sequences that it does not learn from."""

    stage: Stage
    iterations: list[int] = field(default_factory=list)
    slowdown: list[float] = field(default_factory=list)
    mean_reward: list[float] = field(default_factory=list)
    best_reward: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, done: PackingIteration, policy: Callable[[], DeepRMPolicy]) -> None:
        """An iteration; the slowdown is measured where the training measures its own."""
        self.mean_reward.append(done.numbers["reward/mean"])
        self.best_reward.append(done.numbers["reward/best"])
        self.seconds = done.seconds
        if not np.isnan(done.selected) or done.iteration == 1:
            self.iterations.append(done.iteration)
            self.slowdown.append(float(self.stage.play(policy()).per_job(Cost.SLOWDOWN).mean()))

    def crossing(self, line: float) -> int | None:
        """First measured iteration from which on three in a row are below a line."""
        below = [slowdown < line for slowdown in self.slowdown]
        return next(
            (i for row, i in enumerate(self.iterations) if below[row : row + 3] == [True] * 3), None
        )

    def to_json(self) -> dict[str, Any]:
        """The curve."""
        keys = ("iterations", "slowdown", "mean_reward", "best_reward", "seconds")
        return {key: getattr(self, key) for key in keys}


def fig6(request: PackingRequest) -> StudyResult:
    """Learning curves at a load of 70%: slowdown, and mean and best reward.

    Source: DeepRM, Figure 6.
    """
    stage = stage_of(request, _RATE_70)
    curves = {recipe: Curve(stage) for recipe in RECIPES}
    learned = {
        recipe: train_deeprm(
            request,
            _RATE_70,
            Cost.SLOWDOWN,
            request.budget_s / len(curves),
            recipe=recipe,
            progress=curve.add,
        )
        for recipe, curve in curves.items()
    }
    rules = heuristics(stage.source, num_threads=request.processes)
    played = {label: stage.play(policy) for label, policy in rules.items()}
    played |= {f"deeprm, {recipe}": stage.play(own.policy) for recipe, own in learned.items()}
    played |= {
        f"deeprm, {recipe}, greedy": stage.play(own.greedy) for recipe, own in learned.items()
    }
    lines = {label: own.estimate(Cost.SLOWDOWN) for label, own in played.items()}
    passed = {
        recipe: {label: curve.crossing(lines[label].mean) for label in rules}
        for recipe, curve in curves.items()
    }
    rows = []
    for label, estimate in lines.items():
        recipe = label.split(", ")[1] if label.startswith("deeprm") else ""
        by = [str(passed[own].get(label) or "") for own in curves]
        took = f"{curves[recipe].seconds:.0f}" if recipe else ""
        rows.append(
            [
                label,
                with_half_width(estimate, 2),
                with_interval(played[label].ratio(played["tetris*"], Cost.SLOWDOWN)),
                took,
                *by,
            ]
        )
    return StudyResult(
        "learning curves at a load of 70%",
        "the first policy is no better than random; after 200 iterations DeepRM is better than Tetris*; the gap between the best "
        "and the mean reward narrows towards iteration 1,000; an iteration took 80 s on 24 cores (Figure 6, section 4.3)",
        (
            "policy",
            "slowdown",
            "to tetris*",
            "seconds of training",
            *(f"passed in iteration ({recipe})" for recipe in curves),
        ),
        rows,
        {
            "slowdown": {label: estimate.to_json() for label, estimate in lines.items()},
            "passed": passed,
            "curves": {recipe: curve.to_json() for recipe, curve in curves.items()},
        },
        [
            "recipe paper: the same 100 sequences in all iterations; fresh: 100 new ones in each; fast: as fresh, with Adam, and "
            "the only actions are to start a job now and to let time pass; 20 runs of each sequence",
            "a curve passes a policy in the first measured iteration (every tenth is) from which on three in a row are below "
            "it; the table has the checkpoints that were best on the training's own selection runs",
            "reward: mean of all runs of an iteration, and mean over its sequences of the best of 20 runs",
            *setting_notes(stage, (_RATE_70,)),
            *(own.words for own in learned.values()),
        ],
        partial(
            save,
            partial(_draw_curves, curves, {label: lines[label].mean for label in rules}),
            (11.0, 4.4),
        ),
    )


def _draw_curves(curves: Mapping[str, Curve], lines: Mapping[str, float], figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    for row, (recipe, curve) in enumerate(curves.items()):
        color = policy_color(row)
        left.plot(
            curve.iterations, curve.slowdown, color=color, label=f"deeprm, {recipe}", linewidth=1.5
        )
        steps = np.arange(1, len(curve.mean_reward) + 1)
        right.plot(
            steps,
            curve.best_reward,
            color=color,
            linestyle="--",
            label=f"{recipe}: best",
            linewidth=1,
        )
        right.plot(steps, curve.mean_reward, color=color, label=f"{recipe}: mean", linewidth=1.5)
    for row, (label, line) in enumerate(lines.items(), len(curves)):
        left.axhline(line, color=policy_color(row), label=label, linestyle=":", linewidth=1.2)
    left.set_ylim(bottom=0)
    tidy(left, ("iteration", "average job slowdown"))
    tidy(right, ("iteration", "reward of a run"))


@dataclass(frozen=True, eq=False)
class Withholding:
    """When a policy let time pass although a job in its slots could have started.

    Args:
        num_steps, num_waiting, num_withheld: time steps; those with a job in the slots when time passed; those with one that
            could have started.
        durations: of the jobs that could have started, once for each step.
    """

    num_steps: int
    num_waiting: int
    num_withheld: int
    durations: npt.NDArray[np.int64]


def withholding_of(stage: Stage, policy: DeepRMPolicy) -> tuple[Withholding, Played]:
    """Step every sequence to its end, and look at what is left each time that time passes."""
    batch = stage.batch(policy.wants_profile)
    batch.begin()
    steps = waiting = withheld = 0
    durations: list[npt.NDArray[np.int64]] = []
    while not batch.is_over.all():
        views = batch.show()
        open_rows = np.flatnonzero(~batch.is_over).tolist()
        slots = np.full(len(batch), -1)
        for row in open_rows:
            slots[row] = policy.decide(select(views, row))
        is_placed = batch.step(slots)
        for row in (row for row in open_rows if not is_placed[row]):
            jobs = views.jobs[row, : views.head["num_jobs"][row, 0]]
            held = jobs["told"][jobs["can_start"] == 1]
            steps = steps + 1
            waiting = waiting + (len(jobs) > 0)
            withheld = withheld + (len(held) > 0)
            durations.append(np.array(held))
    return Withholding(steps, waiting, withheld, np.concatenate(durations)), Played(batch)


def slowdowns_by_size(outcomes: Sequence[Outcome]) -> tuple[FloatArray, FloatArray]:
    """Mean slowdown of each sequence's small and of its large jobs, float64[num_sequences]; NaN where there are none."""

    def mean(outcome: Outcome, is_chosen: npt.NDArray[np.bool_]) -> float:
        chosen = is_chosen & (outcome.start >= 0)
        taken = (outcome.finish - outcome.jobs.arrival) / outcome.jobs.duration
        return float(taken[chosen].mean()) if chosen.any() else np.nan

    small = [mean(outcome, outcome.jobs.duration <= _SMALL) for outcome in outcomes]
    return np.array(small), np.array(
        [mean(outcome, outcome.jobs.duration >= _LARGE) for outcome in outcomes]
    )


def fig7(request: PackingRequest) -> StudyResult:
    """Where the gains are from, at a load of 110%: which jobs are withheld, and what it does to small and large ones.

    Source: DeepRM, Figure 7 and section 4.3.
    """
    stage = stage_of(request, _RATE_110)
    learned = learned_deeprm(request, _RATE_110, Cost.SLOWDOWN, request.budget_s)
    tetris = tuned_tetris(stage.source, Cost.SLOWDOWN, request.processes)
    base = slowdowns_by_size(stage.play(tetris).batch.outcomes())
    rows = []
    numbers = dict[str, Any]()
    withheld = dict[str, Withholding]()
    sizes = {"tetris*": base}
    for label, policy in (("deeprm", learned.policy), ("deeprm, greedy", learned.greedy)):
        request.say(f"looking at what {label} withholds")
        withheld[label], played = withholding_of(stage, policy)
        sizes[label] = slowdowns_by_size(played.batch.outcomes())
    for label, own in sizes.items():
        cells = []
        found = dict[str, Any]()
        for size, values, of_base in zip(("small", "large"), own, base, strict=True):
            known = np.isfinite(values) & np.isfinite(of_base)
            estimate = mean_estimate(values[known])
            ratio = ratio_estimate(values[known], of_base[known])
            cells += [with_half_width(estimate, 2), with_interval(ratio)]
            found |= {f"{size}_slowdown": estimate.to_json(), f"{size}_to_tetris": ratio.to_json()}
        if label in withheld:
            found |= _withheld_json(withheld[label])
        shares = [
            f"{found[key]:.1%}" if key in found else "0.0%"
            for key in ("withheld_share", "withheld_share_of_waiting")
        ]
        large = (
            f"{found['large_share_of_withheld']:.1%}" if "large_share_of_withheld" in found else ""
        )
        rows.append([label, *shares, large, *cells])
        numbers[label] = found
    return StudyResult(
        "what is withheld at a load of 110%, and for whom",
        "DeepRM was not work-conserving in 23.4% of the time steps; it withholds almost only large jobs; small jobs are slowed "
        "down much less than with Tetris*, large ones more (Figure 7, section 4.3)",
        (
            "policy",
            "steps with a job withheld",
            "of steps with jobs waiting",
            "large among the withheld",
            "slowdown of small jobs",
            "to tetris*",
            "slowdown of large jobs",
            "to tetris*",
        ),
        rows,
        numbers,
        [
            "withheld: time passed although a job in the slots could have started then; a job counts once for each step that it "
            "is withheld; jobs booked ahead have left the slots",
            f"small jobs take up to {_SMALL} steps, large ones {_LARGE} or more",
            f"Tetris* is {tetris.name}; it never withholds",
            *setting_notes(stage, (_RATE_110,)),
            learned.words,
        ],
        partial(save, partial(_draw_withheld, withheld["deeprm"], sizes), (11.0, 4.2)),
    )


def _withheld_json(own: Withholding) -> dict[str, Any]:
    lengths, counts = np.unique(own.durations, return_counts=True)
    return {
        "steps": own.num_steps,
        "withheld_share": own.num_withheld / max(1, own.num_steps),
        "withheld_share_of_waiting": own.num_withheld / max(1, own.num_waiting),
        "large_share_of_withheld": float((own.durations >= _LARGE).mean())
        if len(own.durations)
        else 0.0,
        "withheld_by_duration": {
            str(length): int(count) for length, count in zip(lengths, counts, strict=True)
        },
    }


def _draw_withheld(
    own: Withholding, sizes: Mapping[str, tuple[FloatArray, FloatArray]], figure: Any
) -> None:
    left, right = figure.subplots(1, 2)
    left.bar(*np.unique(own.durations, return_counts=True), color=policy_color(0), width=0.8)
    tidy(left, ("duration (steps)", "times withheld"), has_legend=False)
    samples = dict[str, FloatArray]()
    for label, (small, large) in sizes.items():
        samples |= {
            f"{label}: small": small[np.isfinite(small)],
            f"{label}: large": large[np.isfinite(large)],
        }
    cdf_panel(right, samples, ("mean slowdown of a sequence's jobs", "share of sequences"))
