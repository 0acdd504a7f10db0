"""Finds the arrival rate at which FAIR keeps the cores as busy as was asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from parcae.files import write_text

_FILE = "calibration.json"
#: The rate is found when so many runs kept the cores this close to the load that was asked for.
_CLOSE = 0.02
NUM_CLOSE = 2
#: Runs further from the load than this tell nothing of the rate.
_NEAR = 0.06
_MAX_STEP = 2.0


@dataclass(frozen=True)
class Calibrated:
    """The arrival rate.

    Args:
        gap_s: mean time between arrivals.
        points: of every run that it was found by, the mean time between arrivals and the share of
            the cores' time that FAIR kept busy.
    """

    gap_s: float
    points: tuple[tuple[float, float], ...]

    def describe(self, load: float) -> str:
        """How the rate was found, in words."""
        shares = ", ".join(f"{busy:.1%} at {gap_s:.2f} s" for gap_s, busy in self.points)
        rate = f"A query every {self.gap_s:.2f} s on average"
        told = f"{rate}; earlier runs under FAIR kept the cores busy for {shares}"
        is_near = any(abs(busy - load) <= _NEAR for _, busy in self.points)
        if is_near:
            return f"{told}."
        return f"{told}: none of them near {load:.0%}, so the rate is a guess."

    def write(self, work: Path) -> None:
        """Keep it in a work folder."""
        write_text(work / _FILE, json.dumps(asdict(self), indent=1) + "\n")


def calibration_of(work: Path) -> Calibrated | None:
    """The arrival rate that was found in a work folder, or None."""
    path = work / _FILE
    if not path.exists():
        return None
    told = json.loads(path.read_text())
    return Calibrated(told["gap_s"], tuple((gap, busy) for gap, busy in told["points"]))


def next_gap(points: Sequence[tuple[float, float]], load: float) -> float:
    """The time between arrivals to try next: the last one, scaled by at most 2.

    Example: if 10 s keep the cores 60% busy, 7.5 s are to keep them 80% busy.
    """
    gap_s, busy = points[-1]
    return gap_s * min(_MAX_STEP, max(1 / _MAX_STEP, busy / load))


def is_found(points: Sequence[tuple[float, float]], load: float) -> bool:
    """Whether enough runs kept the cores as busy as was asked for."""
    return sum(abs(busy - load) <= _CLOSE for _, busy in points) >= NUM_CLOSE


def fitted_gap(points: Sequence[tuple[float, float]], load: float) -> float:
    """The geometric mean of the times between arrivals that the runs near the load propose.

    Without a run near the load, what the last one proposes.
    """
    near = [gap_s * busy / load for gap_s, busy in points if abs(busy - load) <= _NEAR]
    if not near:
        return next_gap(points, load)
    return math.exp(math.fsum(map(math.log, near)) / len(near))
