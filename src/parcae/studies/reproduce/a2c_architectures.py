"""The A2cScheduler paper's table 3: which of five architectures converge, and how fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from parcae.evaluation.statistics import Estimate
from parcae.learning.packing.a2c import A2cConfig, a2c_config
from parcae.learning.packing.loop import PackingIteration
from parcae.packing.layout import Cost
from parcae.policies.a2c.layout import A2cSettings, Architecture
from parcae.policies.a2c.policy import A2cPolicy
from parcae.studies.reproduce.a2c_trainings import train_a2c
from parcae.studies.reproduce.contest import with_half_width
from parcae.studies.reproduce.packing import source_at, stage_of
from parcae.studies.reproduce.pictures import line_panel, save
from parcae.studies.reproduce.study import PackingRequest, StudyResult

_RATE = 0.7
#: Converges, converging speed, converging epochs.
PUBLISHED: Mapping[Architecture, str] = {
    Architecture.FC: "no",
    Architecture.CONV_16: "yes, fast, 500",
    Architecture.CONV_32: "yes, slow, 1100",
    Architecture.CONV_16_POOL: "yes, fast, 700",
    Architecture.CONV_32_POOL: "yes, fast, 900",
}
#: The criterion, see `convergence`.
_LEAST_GAIN = 0.1
_BAND = 0.05
_SETTLED_SHARE = 0.25
_LEAST_POINTS = 8
#: Iterations between two measurements.
_EVERY = 10


@dataclass(frozen=True)
class Curve:
    """How a training went: iterations, seconds and slowdown on the selection's runs at each measurement."""

    iterations: Sequence[float]
    seconds: Sequence[float]
    slowdowns: Sequence[float]
    first: float

    @staticmethod
    def of(curve: Sequence[PackingIteration]) -> Curve:
        """Of a training's iterations; `first` is the cost of the first, of a policy that has hardly learned."""
        measured = [one for one in curve if np.isfinite(one.selected)]
        return Curve(
            [one.iteration for one in measured],
            [one.seconds for one in measured],
            [one.selected for one in measured],
            curve[0].numbers["cost"],
        )


def convergence(curve: Curve) -> int | None:
    """Position of the measurement from which on a training has converged; None if it has not.

    It has, if the slowdown of the last quarter of the measurements (at least 8 in all) is on average a tenth below that of the
    first iteration, and not more than 5% below that of the quarter before; from the first measurement on after which all are
    within 5% of that average.
    """
    slowdowns = np.asarray(curve.slowdowns)
    count = int(len(slowdowns) * _SETTLED_SHARE)
    if len(slowdowns) < _LEAST_POINTS:
        return None
    final = slowdowns[-count:].mean()
    before = slowdowns[-2 * count : -count].mean()
    if final > (1 - _LEAST_GAIN) * curve.first or final < (1 - _BAND) * before:
        return None
    outside = np.flatnonzero(np.abs(slowdowns - final) > _BAND * final)
    row = int(outside[-1]) + 1 if len(outside) else 0
    return row if row < len(slowdowns) else None


def table3(request: PackingRequest) -> StudyResult:
    """Five architectures at a job rate of 0.7, each trained for a fifth of the budget.

    Source: A2cScheduler, Table 3.
    """
    stage = stage_of(request, _RATE)
    config = a2c_config(request.recipe)
    curves: dict[Architecture, Curve] = {}
    slowdowns: dict[Architecture, Estimate] = {}
    speeds: dict[Architecture, float] = {}
    sizes: dict[Architecture, int] = {}
    for architecture in Architecture:
        result = train_a2c(
            request,
            source_at(_RATE),
            f"rate {_RATE:g}",
            request.budget_s / len(Architecture),
            architecture,
            _EVERY,
        )
        curves[architecture] = Curve.of(result.curve)
        policy = A2cPolicy.from_checkpoint(result.checkpoint)
        slowdowns[architecture] = stage.play(policy).estimate(Cost.SLOWDOWN)
        speeds[architecture] = (
            sum(one.numbers["decisions"] for one in result.curve) / result.seconds
        )
        sizes[architecture] = _size(policy.settings)
    return StudyResult(
        "five architectures of A2cScheduler at a job rate of 0.7",
        "a fully connected layer does not converge, 3x3 convolutions do, without pooling better; 16 filters fastest (Table 3)",
        (
            "architecture", "parameters", "converges", "after iterations", "episodes", "seconds", "decisions/s", "slowdown",
            "the paper: converges, speed, epochs",
        ),
        [_row(a, sizes[a], curves[a], config, speeds[a], slowdowns[a]) for a in Architecture],
        {
            a.value: {
                "parameters": sizes[a], "iterations": list(curves[a].iterations), "seconds": list(curves[a].seconds),
                "slowdown_on_selection_runs": list(curves[a].slowdowns), "first": curves[a].first,
                "converged": convergence(curves[a]),
                "decisions_per_s": speeds[a], "slowdown": slowdowns[a].to_json(),
            }
            for a in Architecture
        },
        [
            "converged: the slowdown of the last quarter of the measurements (each on the same 200 runs that are neither "
            "trained nor "
            "evaluated on; at least 8 measurements) is on average at least 10% below that of the first iteration and no more "
            "than 5% "
            "below that of the quarter before; from the first measurement on after which all are within 5% of that average",
            f"each architecture is trained for {request.budget_s / len(Architecture):,.0f} s with recipe {request.recipe}, "
            "so that a "
            "slower one has fewer iterations; one that is still falling has not converged. The paper gives no criterion and "
            "no epoch",
            f"an iteration runs {config.num_sequences * config.repeats} episodes; hidden units between the flattened image "
            "and the "
            f"outputs: {config.hidden}",
            f"slowdown: best policy of each training on {stage.num_runs} sequences that nobody learned from, 95% intervals",
        ],
        partial(save, partial(_draw, curves), (8.0, 4.4)),
    )  # fmt: skip


def _size(settings: A2cSettings) -> int:
    """Parameters of actor and critic."""
    return sum(
        int(np.prod(shape))
        for count in (settings.num_actions, 1)
        for shape in settings.shapes(count).values()
    )


def _row(
    architecture: Architecture,
    size: int,
    curve: Curve,
    config: A2cConfig,
    speed: float,
    slowdown: Estimate,
) -> list[str]:
    row = convergence(curve)
    where = ["-", "-", "-"]
    if row is not None:
        episodes = curve.iterations[row] * config.num_sequences * config.repeats
        where = [f"{curve.iterations[row]:,.0f}", f"{episodes:,.0f}", f"{curve.seconds[row]:,.0f}"]
    return [
        architecture.value, f"{size:,}", "no" if row is None else "yes", *where, f"{speed:,.0f}", with_half_width(slowdown),
        PUBLISHED[architecture],
    ]  # fmt: skip


def _draw(curves: Mapping[Architecture, Curve], figure: Any) -> None:
    lines = {
        a.value: (curve.seconds, curve.slowdowns) for a, curve in curves.items() if curve.slowdowns
    }
    line_panel(
        figure.subplots(), lines, ("seconds of training", "slowdown on the selection's runs")
    )
