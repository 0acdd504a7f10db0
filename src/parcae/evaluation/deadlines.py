"""How policies do against deadlines: the share that they miss, and by how much, over all seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.base.texts import MS_PER_S
from parcae.evaluation.statistics import (
    DEFAULT_METHOD,
    UNKNOWN,
    Estimate,
    Method,
    mean_over_jobs,
    share_estimate,
)
from parcae.evaluation.who_pays import PairedRuns

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DeadlineResult:
    """How one policy did against the deadlines of the jobs that have one."""

    missed_share: Estimate
    missed_minus_first: Estimate
    tardiness_s: Estimate
    tardiness_minus_first_s: Estimate

    @property
    def met_share(self) -> Estimate:
        """Share of these jobs that meet their deadline."""
        missed = self.missed_share
        return Estimate(1 - missed.mean, 1 - missed.high, 1 - missed.low)

    def to_json(self) -> dict[str, Any]:
        """The fields by name; unknown values are null."""
        return {name: one.to_json() for name, one in vars(self).items()}

    def to_columns(self) -> dict[str, float]:
        """For a table: of every field NAME the values NAME, NAME_low and NAME_high."""
        columns: dict[str, float] = {}
        for name, one in vars(self).items():
            columns |= {name: one.mean, f"{name}_low": one.low, f"{name}_high": one.high}
        return columns


def deadline_result(
    runs: Sequence[PairedRuns],
    policy: int,
    method: Method = DEFAULT_METHOD,
    rng: np.random.Generator | None = None,
) -> DeadlineResult | None:
    """Count missed deadlines and tardiness under a policy; None if the runs have no deadlines."""
    counted = _Counted.of(runs, policy)
    first = _Counted.of(runs, 0)
    if counted is None or first is None:
        return None
    # A seed on which no job has a deadline says nothing.
    known = (counted.jobs > 0) & (first.jobs > 0)
    if not known.any():
        return DeadlineResult(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)

    def mean(sums: FloatArray) -> Estimate:
        return mean_over_jobs(sums[known], counted.jobs[known], method, rng)

    return DeadlineResult(
        share_estimate(counted.missed[known], counted.jobs[known], method, rng),
        mean(counted.missed - first.missed).within(-1.0, 1.0),
        mean(counted.tardiness_s).within(0.0),
        mean(counted.tardiness_s - first.tardiness_s),
    )


class _Counted(NamedTuple):
    """Of every seed: jobs with a deadline, how many miss it, and the sum of their tardiness."""

    jobs: FloatArray
    missed: FloatArray
    tardiness_s: FloatArray

    @classmethod
    def of(cls, runs: Sequence[PairedRuns], policy: int) -> _Counted | None:
        """Count under one policy; None if the runs have no deadlines."""
        if any(run.deadline_ms is None for run in runs):
            return None
        return cls(
            np.array([run.has_deadline[policy].sum() for run in runs], np.float64),
            np.array([run.missed[policy].sum() for run in runs], np.float64),
            np.array([run.tardiness_ms[policy].sum() for run in runs]) / MS_PER_S,
        )


def fewest_missed(results: Mapping[str, DeadlineResult | None], first: str) -> str:
    """Which policies miss the fewest deadlines, in one sentence; no text without deadlines.

    Example: "edf misses the fewest deadlines: 3.1% (95% interval 2.0% to 4.2%), 5.0 percentage
    points fewer than fair (95% interval 3.0 to 7.0)."
    """
    known = {
        name: one
        for name, one in results.items()
        if one is not None and not math.isnan(one.missed_share.mean)
    }
    if not known:
        return ""
    best, *others = sorted(known, key=lambda name: known[name].missed_share.mean)
    share = known[best].missed_share
    who = f"{best} misses"
    if also := [name for name in others if known[name].missed_share.mean == share.mean]:
        who = f"{', '.join([best, *also[:-1]])} and {also[-1]} miss"
    said = f"{who} the fewest deadlines: {share.mean:.1%}"
    if not share.is_unknown:
        said += f" (95% interval {share.low:.1%} to {share.high:.1%})"
    more = known[best].missed_minus_first
    compared = "" if best == first or more.mean == 0 else _compared(more, first)
    return f"{said}{compared}."


def _compared(more: Estimate, first: str) -> str:
    """How many percentage points fewer than under the first policy, or more if it is no choice."""
    shown, word = more, "more"
    if more.mean < 0:
        shown, word = Estimate(-more.mean, -more.high, -more.low), "fewer"
    points = f", {100 * shown.mean:.1f} percentage points {word} than {first}"
    if more.is_unknown:
        return points
    return f"{points} (95% interval {100 * shown.low:.1f} to {100 * shown.high:.1f})"
