"""The A2cScheduler paper's tables 1 to 4.

Source: Liang, Yang, Jin and Chen, "Data centers job scheduling with deep reinforcement learning"
(2019), section 4.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError
from parcae.evaluation.statistics import (
    DEFAULT_METHOD,
    METHODS,
    Estimate,
    mean_estimate,
    ratio_estimate,
    with_half_width,
    with_interval,
)
from parcae.learning.loop import Iteration, TrainingPlan, TrainResult, train
from parcae.papers.findings import Finding
from parcae.papers.packing import (
    PlayedSequences,
    Stage,
    given_or_shipped,
    keep_trained,
    load_at,
    require_fitting,
    source_at,
    stage_of,
    tuned_tetris,
    unfinished_note,
)
from parcae.papers.pictures import bar_panels, line_panel, save
from parcae.papers.study import PackingRequest, StudyResult
from parcae.policies.checkpoint import Checkpoint
from parcae.rigid.a2c.layout import KIND, A2cSettings, Architecture
from parcae.rigid.a2c.learner import A2cConfig, A2cLearner, a2c_config
from parcae.rigid.a2c.policy import A2cPolicy
from parcae.rigid.config import PackingConfig
from parcae.rigid.jobs import RigidJobs, SteppedJobs, to_steps
from parcae.rigid.layout import Cost
from parcae.rigid.policies.kernels.decisions import PackingKind
from parcae.rigid.policies.policy import HandMadePolicy, PackingPolicy
from parcae.rigid.sources import PackingSource, RigidLogSource
from parcae.rigid.swf import read_swf


@dataclass(frozen=True)
class LearnedA2c:
    """A policy that was read or trained."""

    checkpoint: Checkpoint
    words: str

    @property
    def card(self) -> Mapping[str, Any]:
        """The checkpoint's model card."""
        return self.checkpoint.card

    @property
    def policies(self) -> dict[str, A2cPolicy]:
        """The policy that draws its actions at random, and the greedy one."""
        return {
            "a2c": A2cPolicy.from_checkpoint(self.checkpoint, "a2c"),
            "a2c, greedy": A2cPolicy.from_checkpoint(
                self.checkpoint, "a2c, greedy", is_greedy=True
            ),
        }


def require_fitting_a2c(request: PackingRequest, sources: Sequence[PackingSource]) -> None:
    """Check that a study of these sources uses one of the request's checkpoints."""
    require_fitting(request, KIND, "A2cScheduler", [partial(is_for, one) for one in sources])


def learned_a2c(
    request: PackingRequest,
    source: PackingSource,
    where: str,
    share_s: float,
    architecture: Architecture = Architecture.CONV_16,
    num_selection: int = 200,
    settings: Sequence[str] = (),
) -> LearnedA2c:
    """A2cScheduler for a source: one of the given or shipped checkpoints, or newly trained."""
    # Deviation: A2cScheduler 4.3 decides against pooling. The shipped policy of tables 1 and 2 has
    # it, because with it a training plays twice as many decisions in the same time.
    found = given_or_shipped(request, KIND, "A2cScheduler", partial(is_for, source))
    if found is not None:
        path, checkpoint = found
        words = (
            f"{path.name}, {checkpoint.card['iterations']} iterations "
            f"in {checkpoint.card['seconds']:,.0f} s; {_network_words(checkpoint, architecture)}"
        )
        return LearnedA2c(checkpoint, f"a2c at {where}: {words}")
    result = train_a2c(
        request,
        source,
        where,
        share_s,
        architecture,
        num_selection=num_selection,
        settings=settings,
    )
    ended = "" if result.ending == "done" else f"; it ended early: {result.ending}"
    changed = "".join(f", {setting}" for setting in settings)
    words = (
        f"trained here, {result.iterations} iterations in {result.seconds:,.0f} s{changed}; cost "
        f"{result.best:.3f} on the selection runs{result.late_words}{ended}; "
        f"{_network_words(result.checkpoint, architecture)}"
    )
    return LearnedA2c(result.checkpoint, f"a2c at {where}: {words}")


def _network_words(checkpoint: Checkpoint, expected: Architecture) -> str:
    """The policy's architecture, hidden layer and mask, and where they are not the paper's.

    `expected` is the architecture that the study would train.
    """
    settings = checkpoint.network_settings(A2cSettings, KIND)
    notes = []
    if settings.architecture is not expected:
        notes.append(f"a training of this study has {expected.value}")
    if settings.architecture.has_pool:
        notes.append("the paper decides against pooling, section 4.3")
    in_brackets = f" ({'; '.join(notes)})" if notes else ""
    layer = f"a layer of {settings.hidden} units (the paper names none)"
    choice = "a job that can start or none (the paper: any of the N jobs or none, section 3.1)"
    return (
        f"network {settings.architecture.value}{in_brackets}, then "
        f"{layer if settings.hidden else 'no further layer'}; it chooses "
        f"{choice if settings.is_masked else 'any of the N jobs or none'}"
    )


def is_for(source: PackingSource, checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint was trained on the source, possibly with further rates.

    Its network may be another one than the study trains; the note on the policy says so.
    """
    learned = checkpoint.card.get("source", {})
    wanted = source.card()
    # All settings must be equal, except that the training may have had more rates. The cards of
    # older versions lack rows and digests of logs.
    is_among = set(wanted.get("rates", ())) <= set(learned.get("rates", ()))
    known = {key: value for key, value in learned.items() if key != "rates"}
    return is_among and "config" in known and known == {key: wanted.get(key) for key in known}


def train_a2c(
    request: PackingRequest,
    source: PackingSource,
    where: str,
    share_s: float,
    architecture: Architecture,
    select_every: int = 20,
    num_selection: int = 200,
    settings: Sequence[str] = (),
) -> TrainResult:
    """Train A2cScheduler and write the checkpoint to the study's folder."""
    request.say(f"training A2cScheduler ({architecture.value}) at {where}, {share_s:.0f} s")
    settings = [f"architecture={architecture.value}", *settings]
    learner = A2cLearner(
        source, Cost.SLOWDOWN, request.recipe, settings, seed=request.training_seed
    )
    learner.select_every = select_every
    learner.num_selection = num_selection
    result = train(learner, TrainingPlan(share_s))
    keep_trained(request, result, f"a2c-{where.replace(' ', '-')}-{architecture.value}")
    return result


_RATE = 0.7
#: The paper's results: converges, speed, epochs.
PUBLISHED_ARCHITECTURES: Mapping[Architecture, str] = {
    Architecture.FC: "no",
    Architecture.CONV_16: "yes, fast, 500",
    Architecture.CONV_32: "yes, slow, 1100",
    Architecture.CONV_16_POOL: "yes, fast, 700",
    Architecture.CONV_32_POOL: "yes, fast, 900",
}
#: Pairs of architectures, the better one in the paper first: convolutions, and without pooling.
_BETTER = (
    (Architecture.CONV_16, Architecture.FC),
    (Architecture.CONV_32, Architecture.FC),
    (Architecture.CONV_16, Architecture.CONV_16_POOL),
    (Architecture.CONV_32, Architecture.CONV_32_POOL),
)
#: Constants of the criterion; see `convergence`.
_LEAST_GAIN = 0.1
_BAND = 0.05
_SETTLED_SHARE = 0.25
_LEAST_POINTS = 8
#: Number of iterations between two measurements.
_EVERY = 10


@dataclass(frozen=True)
class A2cCurve:
    """The progress of a training."""

    iterations: Sequence[float]
    seconds: Sequence[float]
    slowdowns: Sequence[float]
    first: float

    @staticmethod
    def of(curve: Sequence[Iteration]) -> A2cCurve:
        """The progress from a training's iterations."""
        # `selected` is NaN in iterations without a measurement.
        measured = [one for one in curve if np.isfinite(one.selected)]
        return A2cCurve(
            [one.iteration for one in measured],
            [one.seconds for one in measured],
            [one.selected for one in measured],
            curve[0].numbers["cost"],
        )


def convergence(curve: A2cCurve) -> int | None:
    """The index of the measurement at which a training has converged; None if it has not.

    There must be at least 8 measurements. A training has converged if the mean slowdown of the last
    quarter of them is at least 10% below that of the first iteration and at most 5% below that of
    the quarter before. It converged at the first measurement from which on all are within 5% of the
    last quarter's mean.
    """
    slowdowns = np.asarray(curve.slowdowns)
    # `count` is a quarter of the measurements.
    count = int(len(slowdowns) * _SETTLED_SHARE)
    if len(slowdowns) < _LEAST_POINTS:
        return None
    final = slowdowns[-count:].mean()
    before = slowdowns[-2 * count : -count].mean()
    if final > (1 - _LEAST_GAIN) * curve.first or final < (1 - _BAND) * before:
        return None
    # The training converged right after the last measurement outside the band.
    outside = np.flatnonzero(np.abs(slowdowns - final) > _BAND * final)
    row = int(outside[-1]) + 1 if len(outside) else 0
    return row if row < len(slowdowns) else None


@dataclass(frozen=True)
class _Trained:
    """The training of one architecture."""

    curve: A2cCurve
    played: PlayedSequences
    speed: float
    size: int

    @property
    def slowdown(self) -> Estimate:
        """Slowdown on these sequences."""
        return self.played.estimate(Cost.SLOWDOWN)

    def to_json(self) -> dict[str, Any]:
        """The training as plain numbers."""
        return {
            "parameters": self.size,
            "iterations": list(self.curve.iterations),
            "seconds": list(self.curve.seconds),
            "slowdown_on_selection_runs": list(self.curve.slowdowns),
            "first": self.curve.first,
            "converged": convergence(self.curve),
            "decisions_per_s": self.speed,
            "slowdown": self.slowdown.to_json(),
        }


def table3(request: PackingRequest) -> StudyResult:
    """Five architectures at a job rate of 0.7, each trained for a fifth of the budget.

    Source: A2cScheduler, Table 3.
    """
    stage = stage_of(request, _RATE)
    config = a2c_config(request.recipe)
    trained = {architecture: _train(request, architecture, stage) for architecture in Architecture}
    return StudyResult(
        "five architectures of A2cScheduler at a job rate of 0.7",
        "a fully connected layer does not converge; 3x3 convolutions do, better without pooling; "
        "16 filters are fastest (Table 3)",
        (
            "architecture", "parameters", "converges", "after iterations", "episodes", "seconds",
            "decisions/s", "slowdown", "the paper: converges, speed, epochs",
        ),
        [_row(architecture, one, config) for architecture, one in trained.items()],
        {architecture.value: one.to_json() for architecture, one in trained.items()},
        [
            "converged: the mean slowdown of the last quarter of the measurements is at least 10% "
            "below that of the first iteration and at most 5% below that of the quarter before; "
            "it converged at the first measurement from which on all are within 5% of that mean; "
            "there must be at least 8 measurements, each on the same 200 runs, which are used "
            "neither for training nor for evaluation",
            f"each architecture is trained for {request.budget_s / len(Architecture):,.0f} s with "
            f"recipe {request.recipe}, so a slower one has fewer iterations; a curve that still "
            "falls has not converged. The paper does not define its criterion or an epoch",
            f"an iteration runs {config.num_sequences * config.repeats} episodes; hidden units "
            f"between the flattened image and the outputs: {config.hidden}",
            f"slowdown: best policy of each training on {stage.num_runs} sequences that no policy "
            "was trained on, 95% intervals",
        ],
        partial(save, partial(_draw, {a: one.curve for a, one in trained.items()}), (8.0, 4.4)),
        [_finding(trained, *pair) for pair in _BETTER],
    )  # fmt: skip


def _finding(
    trained: Mapping[Architecture, _Trained], better: Architecture, worse: Architecture
) -> Finding:
    """One architecture has a smaller slowdown than another after the same time."""
    ratio = trained[better].played.ratio(trained[worse].played, Cost.SLOWDOWN)
    return Finding(f"after the same time, slowdown of {better} below {worse}", ratio)


def _train(request: PackingRequest, architecture: Architecture, stage: Stage) -> _Trained:
    result = train_a2c(
        request,
        source_at(_RATE),
        f"rate {_RATE:g}",
        request.budget_s / len(Architecture),
        architecture,
        _EVERY,
    )
    policy = A2cPolicy.from_checkpoint(result.checkpoint)
    num_decisions = sum(one.numbers["decisions"] for one in result.curve)
    return _Trained(
        A2cCurve.of(result.curve),
        stage.play(policy),
        num_decisions / result.seconds,
        _size(policy.settings),
    )


def _size(settings: A2cSettings) -> int:
    """Number of parameters of actor and critic."""
    return sum(
        int(np.prod(shape))
        for count in (settings.num_actions, 1)
        for shape in settings.shapes(count).values()
    )


def _row(architecture: Architecture, trained: _Trained, config: A2cConfig) -> list[str]:
    curve = trained.curve
    row = convergence(curve)
    where = ["-", "-", "-"]
    if row is not None:
        episodes = curve.iterations[row] * config.num_sequences * config.repeats
        where = [f"{curve.iterations[row]:,.0f}", f"{episodes:,.0f}", f"{curve.seconds[row]:,.0f}"]
    return [
        architecture.value, f"{trained.size:,}", "no" if row is None else "yes", *where,
        f"{trained.speed:,.0f}", with_half_width(trained.slowdown),
        PUBLISHED_ARCHITECTURES[architecture],
    ]  # fmt: skip


def _draw(curves: Mapping[Architecture, A2cCurve], figure: Any) -> None:
    lines = {
        a.value: (curve.seconds, curve.slowdowns) for a, curve in curves.items() if curve.slowdowns
    }
    line_panel(
        figure.subplots(), lines, ("seconds of training", "slowdown on the selection's runs")
    )


FloatArray = npt.NDArray[np.float64]
METRICS = ("slowdown", "completion time", "waiting time")
#: The paper's policies, by our names. Its Tetris orders jobs "by a combined score of preferences
#: for the short jobs and resource packing" (section 4.4), whose weights it does not give: ours are
#: tuned.
_RANDOM = "random"
_TETRIS = "tetris"
_SJF = "sjf"
_A2C = "a2c"
#: The paper's values of Tables 1 and 2: by rate and policy, slowdown, completion time, waiting
#: time.
PUBLISHED: Mapping[float, Mapping[str, tuple[float, float, float]]] = {
    0.9: {
        _RANDOM: (5.50, 12.51, 8.22),
        _TETRIS: (2.90, 8.61, 3.32),
        _SJF: (1.81, 7.42, 2.21),
        _A2C: (2.03, 7.20, 2.20),
    },
    0.8: {
        _RANDOM: (6.2, 14.21, 9.15),
        _TETRIS: (3.25, 8.50, 1.93),
        _SJF: (2.52, 6.50, 2.12),
        _A2C: (2.30, 6.20, 2.10),
    },
    0.7: {
        _RANDOM: (5.05, 13.15, 8.32),
        _TETRIS: (3.32, 10.02, 4.51),
        _SJF: (2.14, 7.66, 2.53),
        _A2C: (1.91, 6.10, 1.82),
    },
    0.6: {
        _RANDOM: (3.22, 10.0, 8.32),
        _TETRIS: (1.82, 5.50, 1.48),
        _SJF: (1.56, 5.50, 1.48),
        _A2C: (1.36, 5.50, 1.50),
    },
}
#: The same for Table 4.
PUBLISHED_LOG = {
    _RANDOM: (3.52, 10.2, 6.32),
    _TETRIS: (1.82, 5.55, 1.25),
    _SJF: (1.61, 5.51, 1.21),
    _A2C: (1.01, 2.58, 0.01),
}


@dataclass(frozen=True)
class Measured:
    """What every policy did on the job sequences."""

    values: Mapping[str, FloatArray]
    num_unfinished: Mapping[str, int]
    names: Mapping[str, str]

    @staticmethod
    def of(stage: Stage, policies: Mapping[str, PackingPolicy]) -> Measured:
        """Run every job sequence under every policy."""
        played = {label: stage.play(policy) for label, policy in policies.items()}
        return Measured(
            {label: _metrics(entry) for label, entry in played.items()},
            {label: entry.num_unfinished for label, entry in played.items()},
            {label: policy.name for label, policy in policies.items()},
        )

    @property
    def num_sequences(self) -> int:
        """Number of job sequences."""
        return len(next(iter(self.values.values()))[0])

    def estimates(self, label: str) -> tuple[Estimate, ...]:
        """The means of a policy's three metrics."""
        return tuple(mean_estimate(row) for row in self.values[label])

    def to_sjf(self, label: str) -> Estimate:
        """Slowdown / that of SJF on the same sequences."""
        return ratio_estimate(self.values[label][0], self.values[_SJF][0])

    def to_json(self) -> dict[str, Any]:
        """Estimates, ratios and unfinished jobs by policy."""
        return {
            label: {
                **{
                    name: entry.to_json()
                    for name, entry in zip(METRICS, self.estimates(label), strict=True)
                },
                "slowdown to sjf": self.to_sjf(label).to_json(),
                "unfinished": self.num_unfinished[label],
            }
            for label in self.values
        }


def _metrics(played: PlayedSequences) -> FloatArray:
    """Mean slowdown, completion time and waiting time of every sequence: [3, num_sequences]."""
    completion = played.per_job(Cost.COMPLETION)
    waiting = completion - [jobs.duration.mean() for jobs in played.batch.sequences]
    return np.array([played.per_job(Cost.SLOWDOWN), completion, waiting])


def rivals(source: PackingSource, num_threads: int | None = None) -> dict[str, PackingPolicy]:
    """The paper's baselines; also packing alone, and uniformly random actions."""
    return {
        _RANDOM: HandMadePolicy("random", PackingKind.RANDOM, (1.0,)),
        "random, any action": HandMadePolicy("random, any action", PackingKind.RANDOM),
        "packer": HandMadePolicy("packer", PackingKind.PACKER),
        _TETRIS: tuned_tetris(source, Cost.SLOWDOWN, num_threads),
        _SJF: HandMadePolicy("sjf", PackingKind.SJF),
    }


def table1(request: PackingRequest) -> StudyResult:
    """Slowdown, completion time and waiting time at job rates of 0.9 and 0.8.

    Source: A2cScheduler, Table 1.
    """
    return _rates(request, (0.9, 0.8), "Table 1")


def table2(request: PackingRequest) -> StudyResult:
    """Slowdown, completion time and waiting time at job rates of 0.7 and 0.6.

    Source: A2cScheduler, Table 2.
    """
    return _rates(request, (0.7, 0.6), "Table 2")


def _rates(request: PackingRequest, rates: Sequence[float], table: str) -> StudyResult:
    require_fitting_a2c(request, [source_at(rate) for rate in rates])
    measured: dict[str, Measured] = {}
    learned: dict[float, LearnedA2c] = {}
    for rate in rates:
        learned[rate] = learned_a2c(
            request, source_at(rate), f"rate {rate:g}", request.budget_s / len(rates)
        )
        stage = stage_of(request, rate)
        request.say(f"running all policies at a rate of {rate:g}")
        measured[f"rate {rate:g}"] = Measured.of(
            stage, {**rivals(stage.source, request.processes), **learned[rate].policies}
        )
    by_rate = dict(zip(rates, measured.values(), strict=True))
    return StudyResult(
        "A2cScheduler and its baselines at job rates of "
        f"{' and '.join(f'{rate:g}' for rate in rates)}",
        f"A2cScheduler is the best or close to the best at every rate ({table}, section 4.5)",
        ("rate", "policy", *METRICS, "slowdown to sjf", "the paper's three"),
        [row for rate in rates for row in rows_of(f"{rate:g}", by_rate[rate], PUBLISHED[rate])],
        {f"{rate:g}": _rate_json(rate, by_rate[rate], learned[rate]) for rate in rates},
        [
            *(
                note
                for rate in rates
                for note in orderings(f"rate {rate:g}", by_rate[rate], PUBLISHED[rate])
            ),
            PUBLISHED_NOTE,
            _setting_note(stage_of(request, rates[0]), rates),
            *policy_notes(measured),
            *unfinished_notes(measured),
            *(entry.words for entry in learned.values()),
        ],
        partial(save, partial(draw_slowdowns, measured), (9.0, 4.2)),
        [
            finding
            for rate in rates
            for finding in slowdown_findings(f"rate {rate:g}", by_rate[rate], PUBLISHED[rate])
        ],
    )


def _rate_json(rate: float, measured: Measured, learned: LearnedA2c) -> dict[str, Any]:
    return {
        "load": load_at(rate),
        "policies": measured.to_json(),
        "paper": {policy: list(values) for policy, values in PUBLISHED[rate].items()},
        "a2c": dict(learned.card),
    }


def _setting_note(stage: Stage, rates: Sequence[float]) -> str:
    last_seed = stage.first_seed + stage.num_runs - 1
    loads = ", ".join(f"{load_at(rate):.0%}" for rate in rates)
    return (
        f"our setting: {stage.num_runs} sequences of {stage.source.config.window} steps that "
        f"no policy was trained on, seeds {stage.first_seed} to {last_seed}, the same for all; "
        f"DeepRM's jobs as its code draws them (loads {loads}), 2 "
        "resources of 10 units, 10 job slots, a backlog of 60, a horizon of 20 steps; runs end "
        f"when all jobs are done; {METHODS[DEFAULT_METHOD]}"
    )


PUBLISHED_NOTE = (
    "no setting that we tried gives the published values, and they are inconsistent: completion "
    "time minus waiting time is the mean duration, which is equal for all policies on the same "
    "jobs, but in the paper it differs (rate 0.9: 4.29, 5.29, 5.21 and 5.00); compare orderings, "
    "not values"
)


def policy_notes(measured: Mapping[str, Measured]) -> list[str]:
    """A note that describes the policies; `measured` has the results by setting."""
    weights = ", ".join(f"{entry.names[_TETRIS]} for {place}" for place, entry in measured.items())
    return [
        f"{_TETRIS}: a score of short jobs and packing together, as the paper says (section 4.4) "
        "without their weights; the weight of packing is the one of about two dozen, from 0 (sjf) "
        f"to 1 (packer), that is best on other sequences: {weights}",
        "random starts any job that fits, as the paper's baselines do; 'random, any action' takes "
        "any action; a2c draws its actions at random, greedy takes the most probable ones",
    ]


def unfinished_notes(measured: Mapping[str, Measured]) -> list[str]:
    """A note on jobs that never started or were lost."""
    counts = {
        f"{place} {label}": count
        for place, entry in measured.items()
        for label, count in entry.num_unfinished.items()
    }
    return [unfinished_note(counts, "every job was finished, under every policy")]


def rows_of(
    place: str, measured: Measured, published: Mapping[str, tuple[float, float, float]]
) -> list[list[str]]:
    """The table's rows for one setting."""
    rows = []
    for label in measured.values:
        entry = [
            with_half_width(estimate, 2 if estimate.mean < 10 else 1)
            for estimate in measured.estimates(label)
        ]
        paper = " / ".join(f"{value:g}" for value in published[label]) if label in published else ""
        rows.append([place, label, *entry, with_interval(measured.to_sjf(label)), paper])
    return rows


def orderings(
    place: str, measured: Measured, published: Mapping[str, tuple[float, float, float]]
) -> list[str]:
    """Notes, one per metric, on the pairs of policies whose order in the paper also holds here."""
    notes = []
    for row, metric in enumerate(METRICS):
        agree: list[str] = []
        differ: list[str] = []
        # Compare every pair of policies that the paper has values for.
        for one, other in itertools.combinations(published, 2):
            paper = published[one][row] - published[other][row]
            ours = measured.values[one][row] - measured.values[other][row]
            # Larger values are worse.
            better = (other, one) if paper > 0 else (one, other)
            words = f"{better[0]} {'<' if paper else '='} {better[1]}"
            (agree if _holds(paper, mean_estimate(ours)) else differ).append(words)
        notes.append(
            f"{place}, {metric}: {len(agree)} of the paper's {len(agree) + len(differ)} orderings "
            "hold here, with a significant paired difference (95%): "
            f"{', '.join(agree) or 'none'}" + (f"; not: {', '.join(differ)}" if differ else "")
        )
    return notes


def slowdown_findings(
    place: str, measured: Measured, published: Mapping[str, tuple[float, float, float]]
) -> list[Finding]:
    """Of every two policies that differ in the paper: the one with the smaller slowdown there."""
    findings = []
    for pair in itertools.combinations(published, 2):
        better, worse = sorted(pair, key=lambda one: published[one][0])
        if published[better][0] < published[worse][0]:
            ratio = ratio_estimate(measured.values[better][0], measured.values[worse][0])
            paper = published[better][0] / published[worse][0]
            claim = f"{place}: slowdown of {better} below {worse}"
            findings.append(Finding(claim, ratio, paper=paper))
    return findings


def _holds(paper: float, gap: Estimate) -> bool:
    """Whether a difference has the sign that it has in the paper.

    A strict order must be significant here; equal values in the paper must not differ
    significantly. A difference is significant if its interval does not contain 0.
    """
    is_clear = not gap.is_unknown and (gap.low > 0 or gap.high < 0)
    if paper == 0:
        return not is_clear
    return is_clear and (gap.mean > 0) == (paper > 0)


def draw_slowdowns(measured: Mapping[str, Measured], figure: Any) -> None:
    """Draw the slowdown of each policy, one panel per setting."""
    panels = {
        place: {label: entry.estimates(label)[0] for label in entry.values}
        for place, entry in measured.items()
    }
    bar_panels(figure, panels, "average job slowdown")


@dataclass(frozen=True)
class LogSetting:
    """How a log is converted to a packing world."""

    num_jobs: int
    train_jobs: int
    processors: int | None
    num_units: int
    backlog: int
    architecture: Architecture
    actor_rate: float
    quick: int
    full: int
    step_s: int = 3600
    horizon: int = 48

    @property
    def world(self) -> PackingConfig:
        """The cluster's settings."""
        return PackingConfig(num_slots=10, backlog_size=self.backlog, horizon=self.horizon)

    def stepped(self, jobs: RigidJobs) -> SteppedJobs:
        """Convert a part of the log to steps and units."""
        # The cluster is never larger than the log's.
        size = min(self.processors or int(jobs.capacity[0]), int(jobs.capacity[0]))
        return to_steps(
            jobs,
            step_s=self.step_s,
            num_units=min(self.num_units, size),
            horizon=self.horizon,
            capacity=(size,),
        )

    def learning(self, recipe: str) -> list[str]:
        """Changes of the recipe's settings; the recipe "paper" stays as it is."""
        return [f"actor_rate={self.actor_rate}"] if recipe == "fast" else []

    def source(self, stepped: SteppedJobs, num_jobs: int) -> RigidLogSource:
        """A source of pieces of `num_jobs` jobs, or of the whole part if it is shorter."""
        return RigidLogSource(stepped.jobs, min(num_jobs, len(stepped.jobs)), self.world)

    def place(self, name: str, stepped: SteppedJobs) -> str:
        """The name of the results: that of the setting, or the real size of smaller pieces."""
        size = min(self.num_jobs, len(stepped.jobs))
        return name if size == self.num_jobs else f"{size:,} jobs (for {name})"


@dataclass(frozen=True)
class PieceStage(Stage):
    """Consecutive pieces of a log without a common job, `num_runs` at most.

    The first one begins at a job that the seed draws. The source is a `RigidLogSource`.
    """

    @cached_property
    def sequences(self) -> list[RigidJobs]:
        """The pieces, in order of their jobs."""
        source = self.source
        assert isinstance(source, RigidLogSource)
        jobs = source.jobs
        size = source.num_jobs or len(jobs)
        total = min(self.num_runs, len(jobs) // size) * size
        first = int(np.random.default_rng(self.first_seed).integers(len(jobs) - total + 1))
        return [jobs.piece(at, at + size) for at in range(first, first + total, size)]


#: Fewest pieces from which a verdict is given: an interval needs two.
_FEWEST = 2
# Deviation: A2cScheduler 4.3 decides against pooling. The long pieces have it, because without it
# the dense layer of their wide image has four times as many weights; in our table 3 a training then
# plays half as many decisions in the same time.
# The actors' rates were chosen among 0.0003 to 0.005 by trainings of minutes on the log's first
# half. At the rate of the recipe "fast", which suits the paper's jobs, they hardly learn anything.
#: The paper's piece of 60 jobs, on a cluster so small that some jobs wait; and pieces of thousands
#: of jobs on the whole cluster, where jobs wait in bursts.
SETTINGS: Mapping[str, LogSetting] = {
    "60 jobs": LogSetting(60, 60, 256, 32, 60, Architecture.CONV_16, 0.002, 100, 100),
    "2,400 jobs": LogSetting(2_400, 256, None, 54, 2_000, Architecture.CONV_16_POOL, 0.005, 8, 20),
}


def table4(request: PackingRequest) -> StudyResult:
    """Evaluation on a log's second half; training and tuning use its first half.

    Source: A2cScheduler, Table 4.
    """
    log = _log_of(request)
    # The first half is for training and tuning, the second for evaluation.
    halves = read_swf(log, estimates="actual").jobs.halves()
    stepped = {name: tuple(map(one.stepped, halves)) for name, one in SETTINGS.items()}
    sources = {name: one.source(stepped[name][0], one.train_jobs) for name, one in SETTINGS.items()}
    require_fitting_a2c(request, list(sources.values()))
    measured: dict[str, Measured] = {}
    learned: dict[str, LearnedA2c] = {}
    notes: list[str] = []
    for name, setting in SETTINGS.items():
        first, second = stepped[name]
        place = setting.place(name, second)
        learned[place] = learned_a2c(
            request, sources[name], f"pieces of {name}",
            request.budget_s / len(SETTINGS), setting.architecture, num_selection=50,
            settings=setting.learning(request.recipe),
        )  # fmt: skip
        measured[place] = _measure(request, name, first, second, learned[place])
        notes.append(_pieces_note(place, measured[place].num_sequences, setting, first, second))
        if measured[place].num_sequences >= _FEWEST:
            notes += orderings(place, measured[place], PUBLISHED_LOG)
        else:
            notes.append(f"{place}: no verdict, since the log has a single piece of this size")
    return StudyResult(
        f"A2cScheduler on a real log ({log.name})",
        "60 jobs of an academic cluster's log: A2cScheduler reduces the slowdown to 1.01 and the "
        "waiting time to almost 0 (Table 4, section 4.5)",
        ("pieces", "policy", *METRICS, "slowdown to sjf", "the paper's three (60 jobs)"),
        [row for place, entry in measured.items() for row in rows_of(place, entry, PUBLISHED_LOG)],
        {
            place: {
                "policies": entry.to_json(),
                "paper": {k: list(v) for k, v in PUBLISHED_LOG.items()},
                "a2c": dict(learned[place].card),
            }
            for place, entry in measured.items()
        },
        [
            *notes,
            PUBLISHED_NOTE,
            "times are in steps of 3,600 s; slowdown uses durations rounded up to whole steps",
            *policy_notes(measured),
            *unfinished_notes(measured),
            *(entry.words for entry in learned.values()),
        ],
        partial(save, partial(draw_slowdowns, measured), (9.0, 4.2)),
        [
            finding
            for place, entry in measured.items()
            if entry.num_sequences >= _FEWEST
            for finding in slowdown_findings(place, entry, PUBLISHED_LOG)
        ],
    )


def _log_of(request: PackingRequest) -> Path:
    if request.log is None:
        raise ConfigError(
            "a2c-table4 needs a log of a batch cluster: give --workload LOG.swf. The paper's log "
            "is not public; the DOST-ASTI log of the Parallel Workloads Archive is from an "
            "academic cluster"
        )
    return request.log


def _measure(
    request: PackingRequest, name: str, first: SteppedJobs, second: SteppedJobs, learned: LearnedA2c
) -> Measured:
    """Run all policies on pieces of the log's second half."""
    setting = SETTINGS[name]
    source = setting.source(second, setting.num_jobs)
    num_runs = request.runs(setting.quick, setting.full)
    stage = PieceStage(source, request.first_seed, num_runs, request.processes)
    request.say(f"running all policies on pieces of {name}")
    tuning = setting.source(first, setting.train_jobs)
    return Measured.of(stage, {**rivals(tuning, request.processes), **learned.policies})


def _pieces_note(
    place: str, num_pieces: int, setting: LogSetting, first: SteppedJobs, second: SteppedJobs
) -> str:
    return (
        f"{place}: {num_pieces} consecutive pieces of the log's second half, without a common job; "
        f"{second}; load {second.jobs.load[0]:.2f}; 10 job slots, a "
        f"backlog of {setting.backlog}, a horizon of {setting.horizon} steps; trained on "
        f"pieces of {setting.source(first, setting.train_jobs).num_jobs} jobs of the first half: "
        f"{first}"
    )
