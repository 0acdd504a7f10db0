"""Findings of a paper, each held against the results of its study."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.evaluation.statistics import UNKNOWN, Estimate, mean_estimate, with_interval


class Verdict(StrEnum):
    """Whether the results show what the paper found."""

    SAME = "as in the paper"
    OTHER = "not as in the paper"
    OPEN = "cannot be told"


@dataclass(frozen=True)
class Finding:
    """A sentence of a paper that says that one quantity is smaller than another."""

    claim: str
    ratio: Estimate
    most: float = 1.0
    paper: float | None = None

    @property
    def verdict(self) -> Verdict:
        """What the interval of the ratio says; OPEN where the interval is unknown."""
        if self.ratio.high < self.most:
            return Verdict.SAME
        if self.ratio.low >= self.most or self._is_slight:
            return Verdict.OTHER
        return Verdict.OPEN

    @property
    def _is_slight(self) -> bool:
        """Whether a difference of unknown sign is less than half of the paper's, on the logarithm.

        It then is not what the paper found, whatever its sign.
        """
        if self.paper is None:
            return False
        half = math.sqrt(self.most * self.paper)
        return half < self.ratio.low < self.most <= self.ratio.high

    @property
    def _verdict_text(self) -> str:
        """The verdict, and why, where the sign of the difference is not known."""
        if self._is_slight:
            return f"{self.verdict} ({self.paper:.3f}): less than half of that difference"
        return str(self.verdict)

    def row(self) -> list[str]:
        """The cells of a table's row: claim, ratio, limit and verdict."""
        return [self.claim, with_interval(self.ratio), f"{self.most:g}", self._verdict_text]

    def to_json(self) -> dict[str, Any]:
        """The finding as plain JSON."""
        return {
            "claim": self.claim,
            "ratio": self.ratio.to_json(),
            "most": self.most,
            "paper": self.paper,
            "verdict": str(self.verdict),
        }

    @staticmethod
    def from_json(card: Mapping[str, Any]) -> Finding:
        """The finding that `to_json` wrote."""
        ratio = card["ratio"]
        values = (math.nan if x is None else float(x) for x in (ratio["mean"], *ratio["ci95"]))
        # Earlier versions did not write the paper's ratio.
        paper = card.get("paper")
        return Finding(card["claim"], Estimate(*values), float(card["most"]), paper)


def over_trainings(findings: Sequence[Finding], *, are_on_same_jobs: bool = False) -> Finding:
    """One finding over several trainings, with the interval over them. Returns the finding with the
    geometric mean of the ratios; the interval is Student's t on their logarithms. With one
    training, or a ratio that is unknown, the interval is unknown.
    """
    first = findings[0]
    ratios = np.array([finding.ratio.mean for finding in findings])
    # A ratio that is NaN or not above 0 has no logarithm.
    if not (np.isfinite(ratios).all() and (ratios > 0).all()):
        return replace(first, ratio=UNKNOWN)
    mean = mean_estimate(np.log(ratios), "t")
    bounds = np.array([mean.low, mean.high])
    if are_on_same_jobs:
        bounds = mean.mean + np.array([-1, 1]) * np.hypot(bounds - mean.mean, _reach(findings))
    return replace(first, ratio=Estimate(*np.exp([mean.mean, *bounds]).tolist()))


def _reach(findings: Sequence[Finding]) -> npt.NDArray[np.float64]:
    """How far the findings' own intervals reach below and above their ratios, on the logarithm."""
    ratios = np.array([[one.ratio.low, one.ratio.mean, one.ratio.high] for one in findings])
    # Below 0 there is no ratio.
    with np.errstate(divide="ignore"):
        low, mean, high = np.log(np.maximum(0.0, ratios)).T
    return np.array([(mean - low).mean(), (high - mean).mean()])


#: The columns of `Finding.row`.
COLUMNS: Sequence[str] = ("the paper's finding", "ratio here", "holds below", "verdict")
