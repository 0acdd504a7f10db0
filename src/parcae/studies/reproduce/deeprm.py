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

from parcae.evaluation.pictures import tidy
from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import Estimate, mean_estimate, ratio_estimate
from parcae.learning.loop import Iteration
from parcae.learning.packing.deeprm import RECIPES
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
from parcae.studies.reproduce.pictures import bar_panel, cdf_panel, line_panel, save
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
    played_by_rate: dict[float, dict[str, Played]] = {}
    learned: dict[float, LearnedPacking] = {}
    knobs: dict[float, str] = {}
    for rate in RATES:
        # Every rate has its own policy and an equal share of the training budget.
        learned[rate] = learned_deeprm(request, rate, Cost.SLOWDOWN, request.budget_s / len(RATES))
        stage = stage_of(request, rate)
        # Tetris* is tuned again at every rate.
        rules = heuristics(stage_of(request, rate).source, num_threads=request.processes)
        knobs[rate] = rules["tetris*"].name
        policies: dict[str, PackingPolicy] = {
            "deeprm": learned[rate].policy,
            "deeprm, greedy": learned[rate].greedy,
            **rules,
        }
        request.say(f"playing at a load of {label_of(rate)}")
        played_by_rate[rate] = {label: stage.play(policy) for label, policy in policies.items()}
    means = {
        rate: {label: played.estimate(Cost.SLOWDOWN) for label, played in by_policy.items()}
        for rate, by_policy in played_by_rate.items()
    }
    ratios = {
        rate: by_policy["deeprm"].ratio(by_policy["tetris*"], Cost.SLOWDOWN)
        for rate, by_policy in played_by_rate.items()
    }
    # All rates have the same policies.
    labels = list(played_by_rate[RATES[0]])
    return StudyResult(
        "average job slowdown by load",
        "SJF is better than Packer and Tetris* is better than both. DeepRM is comparable to and "
        "often better than all of them, especially at high loads (Figure 4, section 4.2)",
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
                    label: played.num_unfinished for label, played in played_by_rate[rate].items()
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
                    for rate, by_policy in played_by_rate.items()
                    for name, p in by_policy.items()
                }
            ),
            *(policy.words for policy in learned.values()),
        ],
        partial(save, partial(_draw_loads, means), (8.0, 4.4)),
    )


def _draw_loads(means: Mapping[float, Mapping[str, Estimate]], figure: Any) -> None:
    labels = next(iter(means.values()))
    loads = [float(label_of(rate)[:-1]) for rate in means]
    lines = {label: (loads, [entry[label].mean for entry in means.values()]) for label in labels}
    line_panel(figure.subplots(), lines, ("load (%, the paper's labels)", "average job slowdown"))


def _unfinished(played: Mapping[str, Played]) -> str:
    """A note on jobs that do not count because they were lost or had not started at the end."""
    counts = {label: entry.num_unfinished for label, entry in played.items()}
    lost = ", ".join(f"{label} {count}" for label, count in counts.items() if count)
    return (
        f"jobs never started or lost: {lost}"
        if lost
        else "every job was started and finished, under every policy"
    )


def fig5(request: PackingRequest) -> StudyResult:
    """Two objectives at a load of 130%, with a DeepRM policy trained for each.

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
    policies = {names[cost]: entry.policy for cost, entry in learned.items()}
    policies |= {f"{names[cost]}, greedy": entry.greedy for cost, entry in learned.items()}
    played = {label: stage.play(policy) for label, policy in {**policies, **rules}.items()}
    estimates = {
        cost: {label: entry.estimate(cost) for label, entry in played.items()} for cost in costs
    }
    # Each objective is compared with the Tetris* that was tuned for it.
    baseline = {Cost.SLOWDOWN: played["tetris*"], Cost.COMPLETION: played["tetris* for completion"]}
    ratios = {
        cost: {label: entry.ratio(baseline[cost], cost) for label, entry in played.items()}
        for cost in costs
    }
    return StudyResult(
        "two objectives at a load of 130%",
        "DeepRM is the best on each objective when it is trained for that objective "
        "(Figure 5, section 4.2)",
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
            f"knobs: {rules['tetris*'].name} for slowdown, "
            f"{rules['tetris* for completion'].name} for completion",
            _unfinished(played),
            *(entry.words for entry in learned.values()),
        ],
        partial(save, partial(_draw_objectives, estimates), (11.0, 4.4)),
    )


def _draw_objectives(estimates: Mapping[Cost, Mapping[str, Estimate]], figure: Any) -> None:
    labels = ("average job slowdown", "average job completion time (steps)")
    for axis, label, entry in zip(figure.subplots(1, 2), labels, estimates.values(), strict=True):
        bar_panel(axis, entry, label)


@dataclass
class Curve:
    """The progress of a training, measured on job sequences that it does not learn from."""

    stage: Stage
    iterations: list[int] = field(default_factory=list)
    slowdown: list[float] = field(default_factory=list)
    mean_reward: list[float] = field(default_factory=list)
    best_reward: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, done: Iteration, policy: Callable[[], DeepRMPolicy]) -> None:
        """Add an iteration. The slowdown is measured whenever the training runs its selection."""
        self.mean_reward.append(done.numbers["reward/mean"])
        self.best_reward.append(done.numbers["reward/best"])
        self.seconds = done.seconds
        # `selected` is NaN in iterations without a selection; the first iteration always counts.
        if not np.isnan(done.selected) or done.iteration == 1:
            self.iterations.append(done.iteration)
            self.slowdown.append(float(self.stage.play(policy()).per_job(Cost.SLOWDOWN).mean()))

    def crossing(self, line: float) -> int | None:
        """The first of three measured iterations in a row whose slowdown is below a line."""
        # Three in a row, because single measurements are noisy.
        below = [slowdown < line for slowdown in self.slowdown]
        return next(
            (i for row, i in enumerate(self.iterations) if below[row : row + 3] == [True] * 3), None
        )

    def to_json(self) -> dict[str, Any]:
        """The curve as plain numbers."""
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
    played |= {f"deeprm, {recipe}": stage.play(entry.policy) for recipe, entry in learned.items()}
    played |= {
        f"deeprm, {recipe}, greedy": stage.play(entry.greedy) for recipe, entry in learned.items()
    }
    lines = {label: entry.estimate(Cost.SLOWDOWN) for label, entry in played.items()}
    passed = {
        recipe: {label: curve.crossing(lines[label].mean) for label in rules}
        for recipe, curve in curves.items()
    }
    rows = []
    for label, estimate in lines.items():
        recipe = label.split(", ")[1] if label.startswith("deeprm") else ""
        by = [str(passed[entry].get(label) or "") for entry in curves]
        # Heuristics have no training time.
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
        "the first policy is no better than random; after 200 iterations DeepRM is better than "
        "Tetris*; the gap between the best and the mean reward narrows towards iteration 1,000; "
        "an iteration took 80 s on 24 cores (Figure 6, section 4.3)",
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
            "recipe paper: the same 100 sequences in all iterations; fresh: 100 new sequences in "
            "each iteration; fast: as fresh, with Adam, and the only actions are to start a job "
            "now or to let time pass; every sequence is run 20 times",
            "a curve passes a policy at the first of three measured iterations in a row that are "
            "below it (every tenth iteration is measured); the table shows the checkpoints that "
            "were best on the selection runs of their training",
            "reward: mean over all runs of an iteration, and mean over its sequences of the best "
            "of 20 runs",
            *setting_notes(stage, (_RATE_70,)),
            *(entry.words for entry in learned.values()),
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
    # The heuristics are horizontal lines; their colours follow those of the curves.
    for row, (label, line) in enumerate(lines.items(), len(curves)):
        left.axhline(line, color=policy_color(row), label=label, linestyle=":", linewidth=1.2)
    left.set_ylim(bottom=0)
    tidy(left, ("iteration", "average job slowdown"))
    tidy(right, ("iteration", "reward of a run"))


@dataclass(frozen=True, eq=False)
class Withholding:
    """How often a policy let time pass although a job in its job slots could have started.

    Args:
        num_steps: number of time steps.
        num_waiting: steps with a job in the job slots when time passed.
        num_withheld: steps with a job that could have started when time passed.
        durations: durations of the jobs that could have started, once for each step.
    """

    num_steps: int
    num_waiting: int
    num_withheld: int
    durations: npt.NDArray[np.int64]


def withholding_of(stage: Stage, policy: DeepRMPolicy) -> tuple[Withholding, Played]:
    """Step every sequence to its end, and record the waiting jobs whenever time passes."""
    batch = stage.batch(policy.wants_profile)
    batch.begin()
    # Counters over all sequences.
    steps = waiting = withheld = 0
    durations: list[npt.NDArray[np.int64]] = []
    while not batch.is_over.all():
        views = batch.show()
        # Decide only for the sequences that have not ended; -1 stands for no decision.
        open_rows = np.flatnonzero(~batch.is_over).tolist()
        slots = np.full(len(batch), -1)
        for row in open_rows:
            slots[row] = policy.decide(select(views, row))
        is_placed = batch.step(slots)
        # A step that placed no job let time pass.
        for row in (row for row in open_rows if not is_placed[row]):
            # Rows beyond `num_jobs` are unused.
            jobs = views.jobs[row, : views.head["num_jobs"][row, 0]]
            held = jobs["estimate"][jobs["can_start"] == 1]
            steps = steps + 1
            waiting = waiting + (len(jobs) > 0)
            withheld = withheld + (len(held) > 0)
            durations.append(np.array(held))
    return Withholding(steps, waiting, withheld, np.concatenate(durations)), Played(batch)


def slowdowns_by_size(outcomes: Sequence[Outcome]) -> tuple[FloatArray, FloatArray]:
    """Mean slowdown of the small and of the large jobs of every sequence.

    Returns:
        Two arrays float64[num_sequences]; NaN if a sequence has no such job.
    """

    def mean(outcome: Outcome, is_chosen: npt.NDArray[np.bool_]) -> float:
        chosen = is_chosen & (outcome.start >= 0)
        # The slowdown of each job; jobs that never started (start -1) do not count.
        taken = (outcome.finish - outcome.jobs.arrival) / outcome.jobs.duration
        return float(taken[chosen].mean()) if chosen.any() else np.nan

    small = [mean(outcome, outcome.jobs.duration <= _SMALL) for outcome in outcomes]
    return np.array(small), np.array(
        [mean(outcome, outcome.jobs.duration >= _LARGE) for outcome in outcomes]
    )


def fig7(request: PackingRequest) -> StudyResult:
    """Which jobs DeepRM withholds at a load of 110%, and the effect on small and large jobs.

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
        request.say(f"measuring which jobs {label} withholds")
        withheld[label], played = withholding_of(stage, policy)
        sizes[label] = slowdowns_by_size(played.batch.outcomes())
    for label, entry in sizes.items():
        cells = []
        card = dict[str, Any]()
        for size, values, of_base in zip(("small", "large"), entry, base, strict=True):
            # Compare only sequences that have jobs of this size under both policies.
            known = np.isfinite(values) & np.isfinite(of_base)
            estimate = mean_estimate(values[known])
            ratio = ratio_estimate(values[known], of_base[known])
            cells += [with_half_width(estimate, 2), with_interval(ratio)]
            card |= {f"{size}_slowdown": estimate.to_json(), f"{size}_to_tetris": ratio.to_json()}
        if label in withheld:
            card |= _withheld_json(withheld[label])
        shares = [
            f"{card[key]:.1%}" if key in card else "0.0%"
            for key in ("withheld_share", "withheld_share_of_waiting")
        ]
        large = (
            f"{card['large_share_of_withheld']:.1%}" if "large_share_of_withheld" in card else ""
        )
        rows.append([label, *shares, large, *cells])
        numbers[label] = card
    return StudyResult(
        "which jobs are withheld at a load of 110%, and which jobs gain",
        "DeepRM was not work-conserving in 23.4% of the time steps; it withholds almost only large "
        "jobs; small jobs are slowed down much less than with Tetris*, large ones more "
        "(Figure 7, section 4.3)",
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
            "withheld: time passed although a job in the job slots could have started; a job "
            "counts once for each step in which it is withheld; jobs with a reserved later start "
            "are no longer in the job slots",
            f"small jobs take up to {_SMALL} steps, large ones {_LARGE} or more",
            f"Tetris* is {tetris.name}; it never withholds",
            *setting_notes(stage, (_RATE_110,)),
            learned.words,
        ],
        partial(save, partial(_draw_withheld, withheld["deeprm"], sizes), (11.0, 4.2)),
    )


def _withheld_json(entry: Withholding) -> dict[str, Any]:
    # How often jobs of each duration were withheld.
    lengths, counts = np.unique(entry.durations, return_counts=True)
    return {
        "steps": entry.num_steps,
        "withheld_share": entry.num_withheld / max(1, entry.num_steps),
        "withheld_share_of_waiting": entry.num_withheld / max(1, entry.num_waiting),
        "large_share_of_withheld": float((entry.durations >= _LARGE).mean())
        if len(entry.durations)
        else 0.0,
        "withheld_by_duration": {
            str(length): int(count) for length, count in zip(lengths, counts, strict=True)
        },
    }


def _draw_withheld(
    entry: Withholding, sizes: Mapping[str, tuple[FloatArray, FloatArray]], figure: Any
) -> None:
    left, right = figure.subplots(1, 2)
    left.bar(*np.unique(entry.durations, return_counts=True), color=policy_color(0), width=0.8)
    tidy(left, ("duration (steps)", "times withheld"), has_legend=False)
    samples = dict[str, FloatArray]()
    for label, (small, large) in sizes.items():
        samples |= {
            f"{label}: small": small[np.isfinite(small)],
            f"{label}: large": large[np.isfinite(large)],
        }
    cdf_panel(right, samples, ("mean slowdown of a sequence's jobs", "share of sequences"))
