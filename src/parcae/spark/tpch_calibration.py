"""Finds the arrival rate at which the cores are as busy under FAIR as the settings ask for."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from parcae.base.files import write_text

_FILE = "calibration.json"
#: The rate is found when in so many runs the load was this close to the requested one.
_CLOSE = 0.02
NUM_CLOSE = 2
#: Runs whose load is further from the requested one are not used for the rate.
_NEAR = 0.06
#: The gap changes at most by this factor from run to run.
_MAX_STEP = 2.0


@dataclass(frozen=True)
class Calibrated:
    """The calibrated arrival rate."""

    gap_s: float
    points: tuple[tuple[float, float], ...]

    def describe(self, load: float | None) -> str:
        """A sentence about the rate and the runs from which it was computed.

        `load` is the requested one, 0..1; None if the rate was requested instead.
        """
        shares = ", ".join(f"{busy:.1%} at {gap_s:.2f} s" for gap_s, busy in self.points)
        rate = f"A query every {self.gap_s:.2f} s on average"
        text = f"{rate}; in earlier runs under FAIR the cores were busy for {shares}"
        if load is None or any(abs(busy - load) <= _NEAR for _, busy in self.points):
            return f"{text}."
        return f"{text}: none of these is near {load:.0%}, so the rate is a guess."

    def write(self, work: Path) -> None:
        """Write it to a work folder."""
        write_text(work / _FILE, json.dumps(asdict(self), indent=1) + "\n")


def calibration_of(work: Path) -> Calibrated | None:
    """The arrival rate of a work folder; None if it is not calibrated yet."""
    path = work / _FILE
    if not path.exists():
        return None
    stored = json.loads(path.read_text())
    return Calibrated(stored["gap_s"], tuple((gap, busy) for gap, busy in stored["points"]))


def next_gap(points: Sequence[tuple[float, float]], load: float) -> float:
    """The mean time between arrivals to try next: the last one, scaled by at most 2.

    Example: if the cores are 60% busy at 10 s, the next try for 80% is 7.5 s.
    """
    gap_s, busy = points[-1]
    return gap_s * min(_MAX_STEP, max(1 / _MAX_STEP, busy / load))


def is_found(points: Sequence[tuple[float, float]], load: float) -> bool:
    """Whether the load was close to the requested one in enough runs."""
    return sum(abs(busy - load) <= _CLOSE for _, busy in points) >= NUM_CLOSE


def fitted_gap(points: Sequence[tuple[float, float]], load: float) -> float:
    """The mean time between arrivals for a load, from all runs near that load.

    Each of these runs gives an estimate, and the result is their geometric mean. If no run is near
    the load, the result is `next_gap`.
    """
    near = [gap_s * busy / load for gap_s, busy in points if abs(busy - load) <= _NEAR]
    if not near:
        return next_gap(points, load)
    return math.exp(math.fsum(map(math.log, near)) / len(near))
