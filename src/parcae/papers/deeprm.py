"""The DeepRM paper's figures 4 to 6.

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
from parcae.evaluation.statistics import (
    Estimate,
    mean_estimate,
    ratio_estimate,
    with_half_width,
    with_interval,
)
from parcae.learning.loop import Iteration
from parcae.papers.packing import (
    LearnedPacking,
    PlayedSequences,
    Stage,
    heuristics,
    label_of,
    learned_deeprm,
    load_at,
    require_fitting_deeprm,
    setting_notes,
    stage_of,
    train_deeprm,
    tuned_tetris,
    unfinished_note,
)
from parcae.papers.pictures import bar_panel, cdf_panel, line_panel, save
from parcae.papers.study import PackingRequest, StudyResult
from parcae.rigid.deeprm.learner import RECIPES
from parcae.rigid.deeprm.policy import DeepRMPolicy
from parcae.rigid.layout import Cost, View, select
from parcae.rigid.policies.policy import PackingPolicy
from parcae.rigid.world import RigidOutcome

FloatArray = npt.NDArray[np.float64]
#: Rate of the paper's load of 110%.
_RATE_110 = 0.6
#: Durations of the small and the large jobs.
_SMALL = 3
_LARGE = 10


@dataclass(frozen=True, eq=False)
class Withholding:
    """How often a policy let time pass although a job in its job slots could have started."""

    num_steps: int
    num_waiting: int
    num_withheld: int
    durations: npt.NDArray[np.int64]


def withholding_of(stage: Stage, policy: DeepRMPolicy) -> tuple[Withholding, PlayedSequences]:
    """Step every sequence to its end, and record the waiting jobs whenever time passes."""
    batch = stage.batch(policy.wants_profile)
    batch.begin()
    num_waiting = 0
    # The jobs that could have started, for every step of every sequence in which time passed.
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
            jobs = _waiting_jobs(views, row)
            num_waiting += len(jobs) > 0
            durations.append(np.array(jobs["estimate"][jobs["can_start"] == 1]))
    num_withheld = sum(len(held) > 0 for held in durations)
    withholding = Withholding(len(durations), num_waiting, num_withheld, np.concatenate(durations))
    return withholding, PlayedSequences(batch)


def _waiting_jobs(views: View, row: int) -> Any:
    """The jobs in the job slots of a sequence; rows beyond `num_jobs` are unused."""
    return views.jobs[row, : views.head["num_jobs"][row, 0]]


def slowdowns_by_size(outcomes: Sequence[RigidOutcome]) -> tuple[FloatArray, FloatArray]:
    """Mean slowdown of the small and of the large jobs of every sequence. Returns two arrays
    float64[num_sequences]; NaN if a sequence has no such job.
    """

    def mean(outcome: RigidOutcome, is_chosen: npt.NDArray[np.bool_]) -> float:
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
    require_fitting_deeprm(request, (_RATE_110,))
    stage = stage_of(request, _RATE_110)
    learned = learned_deeprm(request, _RATE_110, Cost.SLOWDOWN, request.budget_s)
    tetris = tuned_tetris(stage.source, Cost.SLOWDOWN, request.processes)
    sizes = {"tetris*": slowdowns_by_size(stage.play(tetris).batch.outcomes())}
    withheld = dict[str, Withholding]()
    for label, policy in (("deeprm", learned.policy), ("deeprm, greedy", learned.greedy)):
        request.say(f"measuring which jobs {label} withholds")
        withheld[label], played = withholding_of(stage, policy)
        sizes[label] = slowdowns_by_size(played.batch.outcomes())
    rows = []
    numbers = dict[str, Any]()
    for label, entry in sizes.items():
        cells, numbers[label] = _compared_by_size(entry, sizes["tetris*"])
        if label in withheld:
            numbers[label] |= _withheld_json(withheld[label])
        rows.append([label, *_withheld_cells(withheld.get(label)), *cells])
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


def _compared_by_size(
    entry: tuple[FloatArray, FloatArray], base: tuple[FloatArray, FloatArray]
) -> tuple[list[str], dict[str, Any]]:
    """Cells and numbers of a policy's slowdowns of small and large jobs, and their ratios."""
    cells = []
    card = dict[str, Any]()
    for size, values, of_base in zip(("small", "large"), entry, base, strict=True):
        # Compare only sequences that have jobs of this size under both policies.
        known = np.isfinite(values) & np.isfinite(of_base)
        estimate = mean_estimate(values[known])
        ratio = ratio_estimate(values[known], of_base[known])
        cells += [with_half_width(estimate, 2), with_interval(ratio)]
        card |= {f"{size}_slowdown": estimate.to_json(), f"{size}_to_tetris": ratio.to_json()}
    return cells, card


def _withheld_cells(entry: Withholding | None) -> list[str]:
    """The cells on withheld jobs; None for a policy that never withholds."""
    if entry is None:
        return ["0.0%", "0.0%", ""]
    shares = ("withheld_share", "withheld_share_of_waiting", "large_share_of_withheld")
    card = _withheld_json(entry)
    return [f"{card[share]:.1%}" for share in shares]


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


RATES = tuple(round(0.1 * k, 1) for k in range(1, 11))
#: Rates of the paper's loads of 70% and 130%.
_RATE_70 = 0.4
_RATE_130 = 0.7


@dataclass(frozen=True)
class _Load:
    """The results at one load."""

    learned: LearnedPacking
    knob: str
    played: Mapping[str, PlayedSequences]

    @property
    def means(self) -> dict[str, Estimate]:
        """Average job slowdown by policy."""
        return {label: played.estimate(Cost.SLOWDOWN) for label, played in self.played.items()}

    @property
    def to_tetris(self) -> Estimate:
        """Slowdown of DeepRM / that of Tetris*."""
        return self.played["deeprm"].ratio(self.played["tetris*"], Cost.SLOWDOWN)

    def row(self, rate: float) -> list[str]:
        """The table's row."""
        slowdowns = [with_half_width(estimate, 2) for estimate in self.means.values()]
        return [label_of(rate), f"{rate:g}", *slowdowns, with_interval(self.to_tetris)]

    def to_json(self, rate: float) -> dict[str, Any]:
        """The numbers of this load."""
        return {
            "rate": rate,
            "load": load_at(rate),
            "tetris": self.knob,
            "slowdown": {label: estimate.to_json() for label, estimate in self.means.items()},
            "deeprm_to_tetris": self.to_tetris.to_json(),
            "unfinished_jobs": {
                label: played.num_unfinished for label, played in self.played.items()
            },
            "deeprm": dict(self.learned.card),
        }


def _at_load(request: PackingRequest, rate: float) -> _Load:
    # Every rate has its own policy and an equal share of the training budget.
    learned = learned_deeprm(request, rate, Cost.SLOWDOWN, request.budget_s / len(RATES))
    stage = stage_of(request, rate)
    # Tetris* is tuned again at every rate.
    rules = heuristics(stage_of(request, rate).source, num_threads=request.processes)
    policies: dict[str, PackingPolicy] = {
        "deeprm": learned.policy,
        "deeprm, greedy": learned.greedy,
        **rules,
    }
    request.say(f"playing at a load of {label_of(rate)}")
    played = {label: stage.play(policy) for label, policy in policies.items()}
    return _Load(learned, rules["tetris*"].name, played)


def fig4(request: PackingRequest) -> StudyResult:
    """Average job slowdown at ten loads.

    Source: DeepRM, Figure 4.
    """
    require_fitting_deeprm(request, RATES)
    loads = {rate: _at_load(request, rate) for rate in RATES}
    means = {rate: load.means for rate, load in loads.items()}
    # All rates have the same policies.
    labels = list(means[RATES[0]])
    knobs = ", ".join(f"{label_of(rate)} {load.knob}" for rate, load in loads.items())
    played = {
        f"{label_of(rate)} {name}": entry
        for rate, load in loads.items()
        for name, entry in load.played.items()
    }
    return StudyResult(
        "average job slowdown by load",
        "SJF is better than Packer and Tetris* is better than both. DeepRM is comparable to and "
        "often better than all of them, especially at high loads (Figure 4, section 4.2)",
        ("load", "rate", *labels, "deeprm / tetris*"),
        [load.row(rate) for rate, load in loads.items()],
        {label_of(rate): load.to_json(rate) for rate, load in loads.items()},
        [
            *setting_notes(stage_of(request, RATES[0]), RATES),
            f"Tetris*'s knobs: {knobs}",
            _unfinished(played),
            *(load.learned.words for load in loads.values()),
        ],
        partial(save, partial(_draw_loads, means), (8.0, 4.4)),
    )


def _draw_loads(means: Mapping[float, Mapping[str, Estimate]], figure: Any) -> None:
    labels = next(iter(means.values()))
    loads = [float(label_of(rate)[:-1]) for rate in means]
    lines = {label: (loads, [entry[label].mean for entry in means.values()]) for label in labels}
    line_panel(figure.subplots(), lines, ("load (%, the paper's labels)", "average job slowdown"))


def _unfinished(played: Mapping[str, PlayedSequences]) -> str:
    return unfinished_note(
        {label: entry.num_unfinished for label, entry in played.items()},
        "every job was started and finished, under every policy",
    )


_OBJECTIVES = (Cost.SLOWDOWN, Cost.COMPLETION)
#: The Tetris* that was tuned for each objective.
_TETRIS_FOR = {Cost.SLOWDOWN: "tetris*", Cost.COMPLETION: "tetris* for completion"}


def fig5(request: PackingRequest) -> StudyResult:
    """Two objectives at a load of 130%, with a DeepRM policy trained for each.

    Source: DeepRM, Figure 5.
    """
    require_fitting_deeprm(request, (_RATE_130,), _OBJECTIVES)
    stage = stage_of(request, _RATE_130)
    learned = {
        cost: learned_deeprm(request, _RATE_130, cost, request.budget_s / 2) for cost in _OBJECTIVES
    }
    rules: dict[str, Any] = heuristics(stage.source, num_threads=request.processes)
    rules["tetris* for completion"] = tuned_tetris(stage.source, Cost.COMPLETION, request.processes)
    policies = {f"deeprm for {_goal(cost)}": entry.policy for cost, entry in learned.items()}
    policies |= {
        f"deeprm for {_goal(cost)}, greedy": entry.greedy for cost, entry in learned.items()
    }
    played = {label: stage.play(policy) for label, policy in {**policies, **rules}.items()}
    estimates = {
        cost: {label: entry.estimate(cost) for label, entry in played.items()}
        for cost in _OBJECTIVES
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
        [_objective_row(label, played) for label in played],
        {label: _objective_json(label, played) for label in played},
        [
            *setting_notes(stage, (_RATE_130,)),
            f"knobs: {rules['tetris*'].name} for slowdown, "
            f"{rules['tetris* for completion'].name} for completion",
            _unfinished(played),
            *(entry.words for entry in learned.values()),
        ],
        partial(save, partial(_draw_objectives, estimates), (11.0, 4.4)),
    )


def _goal(cost: Cost) -> str:
    return cost.name.lower()


def _to_tetris(label: str, played: Mapping[str, PlayedSequences], cost: Cost) -> Estimate:
    """A policy's cost / that of the Tetris* that was tuned for the same objective."""
    return played[label].ratio(played[_TETRIS_FOR[cost]], cost)


def _objective_row(label: str, played: Mapping[str, PlayedSequences]) -> list[str]:
    row = [label]
    for cost in _OBJECTIVES:
        row.append(with_half_width(played[label].estimate(cost), 2))
        row.append(with_interval(_to_tetris(label, played, cost)))
    return row


def _objective_json(label: str, played: Mapping[str, PlayedSequences]) -> dict[str, Any]:
    card = {_goal(cost): played[label].estimate(cost).to_json() for cost in _OBJECTIVES}
    for cost in _OBJECTIVES:
        card[f"{_goal(cost)}_to_tetris"] = _to_tetris(label, played, cost).to_json()
    return card


def _draw_objectives(estimates: Mapping[Cost, Mapping[str, Estimate]], figure: Any) -> None:
    labels = ("average job slowdown", "average job completion time (steps)")
    for axis, label, entry in zip(figure.subplots(1, 2), labels, estimates.values(), strict=True):
        bar_panel(axis, entry, label)


@dataclass
class DeepRMCurve:
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


_CURVE_NOTES = (
    "recipe paper: the same 100 sequences in all iterations; fresh: 100 new sequences in "
    "each iteration; fast: as fresh, with Adam, and the only actions are to start a job "
    "now or to let time pass; every sequence is run 20 times",
    "a curve passes a policy at the first of three measured iterations in a row that are "
    "below it (every tenth iteration is measured); the table shows the checkpoints that "
    "were best on the selection runs of their training",
    "reward: mean over all runs of an iteration, and mean over its sequences of the best "
    "of 20 runs",
)


def fig6(request: PackingRequest) -> StudyResult:
    """Learning curves at a load of 70%: slowdown, and mean and best reward.

    Source: DeepRM, Figure 6.
    """
    stage = stage_of(request, _RATE_70)
    curves = {recipe: DeepRMCurve(stage) for recipe in RECIPES}
    learned = _trained(request, curves)
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
        [_curve_row(label, played, curves, passed) for label in played],
        {
            "slowdown": {label: estimate.to_json() for label, estimate in lines.items()},
            "passed": passed,
            "curves": {recipe: curve.to_json() for recipe, curve in curves.items()},
        },
        [
            *_CURVE_NOTES,
            *setting_notes(stage, (_RATE_70,)),
            *(entry.words for entry in learned.values()),
        ],
        partial(
            save,
            partial(_draw_curves, curves, {label: lines[label].mean for label in rules}),
            (11.0, 4.4),
        ),
    )


def _trained(
    request: PackingRequest, curves: Mapping[str, DeepRMCurve]
) -> dict[str, LearnedPacking]:
    """Train with every recipe, for equal times; the curves record the progress."""
    learned = {}
    for recipe, curve in curves.items():
        learned[recipe] = train_deeprm(
            request,
            _RATE_70,
            Cost.SLOWDOWN,
            request.budget_s / len(curves),
            recipe=recipe,
            progress=curve.add,
        )
    return learned


def _curve_row(
    label: str,
    played: Mapping[str, PlayedSequences],
    curves: Mapping[str, DeepRMCurve],
    passed: Mapping[str, Mapping[str, int | None]],
) -> list[str]:
    slowdown = with_half_width(played[label].estimate(Cost.SLOWDOWN), 2)
    ratio = with_interval(played[label].ratio(played["tetris*"], Cost.SLOWDOWN))
    # Heuristics have no training time.
    recipe = label.split(", ")[1] if label.startswith("deeprm") else ""
    took = f"{curves[recipe].seconds:.0f}" if recipe else ""
    passed_in = [str(passed[recipe].get(label) or "") for recipe in curves]
    return [label, slowdown, ratio, took, *passed_in]


def _draw_curves(
    curves: Mapping[str, DeepRMCurve], lines: Mapping[str, float], figure: Any
) -> None:
    left, right = figure.subplots(1, 2)
    for row, (recipe, curve) in enumerate(curves.items()):
        _draw_curve(left, right, recipe, curve, policy_color(row))
    # The heuristics are horizontal lines; their colours follow those of the curves.
    for row, (label, line) in enumerate(lines.items(), len(curves)):
        left.axhline(line, color=policy_color(row), label=label, linestyle=":", linewidth=1.2)
    left.set_ylim(bottom=0)
    tidy(left, ("iteration", "average job slowdown"))
    tidy(right, ("iteration", "reward of a run"))


def _draw_curve(left: Any, right: Any, recipe: str, curve: DeepRMCurve, color: str) -> None:
    """Draw the slowdown of a training on the left, and its mean and best reward on the right."""
    name = f"deeprm, {recipe}"
    left.plot(curve.iterations, curve.slowdown, color=color, label=name, linewidth=1.5)
    steps = np.arange(1, len(curve.mean_reward) + 1)
    best = f"{recipe}: best"
    right.plot(steps, curve.best_reward, color=color, linestyle="--", label=best, linewidth=1)
    right.plot(steps, curve.mean_reward, color=color, label=f"{recipe}: mean", linewidth=1.5)
