"""The A2cScheduler paper's table 3: convergence of five network architectures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from parcae.evaluation.statistics import Estimate, with_half_width
from parcae.learning.loop import Iteration
from parcae.learning.packing.a2c import A2cConfig, a2c_config
from parcae.packing.layout import Cost
from parcae.policies.a2c.layout import A2cSettings, Architecture
from parcae.policies.a2c.policy import A2cPolicy
from parcae.studies.reproduce.a2c_trainings import train_a2c
from parcae.studies.reproduce.findings import Finding
from parcae.studies.reproduce.packing import Played, Stage, source_at, stage_of
from parcae.studies.reproduce.pictures import line_panel, save
from parcae.studies.reproduce.study import PackingRequest, StudyResult

_RATE = 0.7
#: The paper's results: converges, speed, epochs.
PUBLISHED: Mapping[Architecture, str] = {
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
class Curve:
    """The progress of a training.

    Args:
        iterations: iteration of each measurement.
        seconds: seconds of training until each measurement.
        slowdowns: slowdown on the selection runs at each measurement.
        first: slowdown of the first iteration.
    """

    iterations: Sequence[float]
    seconds: Sequence[float]
    slowdowns: Sequence[float]
    first: float

    @staticmethod
    def of(curve: Sequence[Iteration]) -> Curve:
        """The progress from a training's iterations."""
        # `selected` is NaN in iterations without a measurement.
        measured = [one for one in curve if np.isfinite(one.selected)]
        return Curve(
            [one.iteration for one in measured],
            [one.seconds for one in measured],
            [one.selected for one in measured],
            curve[0].numbers["cost"],
        )


def convergence(curve: Curve) -> int | None:
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
    """The training of one architecture.

    Args:
        curve: its progress.
        played: runs of its best policy on other sequences.
        speed: decisions per second of the training.
        size: number of parameters.
    """

    curve: Curve
    played: Played
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
        Curve.of(result.curve),
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
        f"{trained.speed:,.0f}", with_half_width(trained.slowdown), PUBLISHED[architecture],
    ]  # fmt: skip


def _draw(curves: Mapping[Architecture, Curve], figure: Any) -> None:
    lines = {
        a.value: (curve.seconds, curve.slowdowns) for a, curve in curves.items() if curve.slowdowns
    }
    line_panel(
        figure.subplots(), lines, ("seconds of training", "slowdown on the selection's runs")
    )
