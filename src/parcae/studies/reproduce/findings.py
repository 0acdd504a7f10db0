"""Findings of a paper, each held against the results of its study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from parcae.evaluation.statistics import Estimate, with_interval


class Verdict(StrEnum):
    """Whether the results show what the paper found."""

    SAME = "as in the paper"
    OTHER = "not as in the paper"
    OPEN = "cannot be told"


@dataclass(frozen=True)
class Finding:
    """A sentence of a paper that says that one quantity is smaller than another.

    Args:
        claim: the sentence.
        ratio: the first quantity / the second, in the results.
        most: the ratio below which the sentence holds; above 1 where it allows some loss.
    """

    claim: str
    ratio: Estimate
    most: float = 1.0

    @property
    def verdict(self) -> Verdict:
        """What the interval of the ratio says. It cannot be told where the interval is unknown."""
        if self.ratio.high < self.most:
            return Verdict.SAME
        if self.ratio.low > self.most:
            return Verdict.OTHER
        return Verdict.OPEN

    def row(self) -> list[str]:
        """The cells of a table's row: claim, ratio, limit and verdict."""
        return [self.claim, with_interval(self.ratio), f"{self.most:g}", str(self.verdict)]

    def to_json(self) -> dict[str, Any]:
        """The finding as plain JSON."""
        verdict = str(self.verdict)
        ratio = self.ratio.to_json()
        return {"claim": self.claim, "ratio": ratio, "most": self.most, "verdict": verdict}


#: The columns of `Finding.row`.
COLUMNS: Sequence[str] = ("the paper's finding", "ratio here", "holds below", "verdict")
