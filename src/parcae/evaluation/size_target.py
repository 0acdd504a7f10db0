"""Targets of a sizing: what a size of the cluster has to reach."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from parcae.errors import ConfigError
from parcae.texts import seconds_text
from parcae.units import ms_from_text, s_from_ms

_HELP = (
    "write average, p95 or p99, then < and a time above 0 in ms, s, min or h, as in "
    '"p95 < 60s"; or deadlines and the share of them to meet, as in "deadlines 99%"'
)
#: A share is 1 minus a share of misses, so that it may be this much less than the number itself.
_ROUNDING = 1e-9


class SizeTarget(Protocol):
    """What a size has to reach over all runs."""

    @property
    def field(self) -> str:
        """The field of `parcae.evaluation.sizing.SizeResult` that the target is about."""

    @property
    def bound(self) -> float:
        """The bound in the field's unit."""

    def is_met(self, value: float) -> bool:
        """Whether a value of the field reaches the target."""

    def text(self, value: float) -> str:
        """A value of the field with its unit."""

    def __str__(self) -> str:
        """The target in words."""


@dataclass(frozen=True)
class Target:
    """A completion time that jobs should stay below.

    Args:
        measure: "average", "p95" or "p99".
        limit_ms: the limit in ms.
    """

    measure: str
    limit_ms: float

    @property
    def field(self) -> str:
        """The completion time in seconds."""
        return f"{self.measure}_s"

    @property
    def bound(self) -> float:
        """The limit in seconds."""
        return s_from_ms(self.limit_ms)

    def is_met(self, value: float) -> bool:
        """Whether the time is below the limit."""
        return value < self.bound

    def text(self, value: float) -> str:
        """A time in seconds."""
        return f"{seconds_text(value)} s"

    def __str__(self) -> str:
        return f"{self.measure} < {self.bound:.15g} s"


@dataclass(frozen=True)
class DeadlineTarget:
    """A share of the deadlines that should be met.

    Args:
        share: the least share, above 0 and at most 1.
    """

    share: float
    field = "deadlines_met"

    @property
    def bound(self) -> float:
        """The least share."""
        return self.share

    def is_met(self, value: float) -> bool:
        """Whether at least this share of the deadlines is met."""
        return value >= self.share - _ROUNDING

    def text(self, value: float) -> str:
        """A share in percent."""
        return f"{value:.1%}"

    def __str__(self) -> str:
        return f"deadlines {100 * self.share:g}%"


def parse_target(text: str) -> SizeTarget:
    """Parse a target such as "p95 < 60s", "average < 2min", "p99 < 500ms" or "deadlines 99%".

    Raises:
        ConfigError: any other text; the message lists the accepted forms.
    """
    share = re.fullmatch(r"\s*deadlines\s+(\d{1,3}(?:\.\d{1,6})?)\s*%\s*", text)
    if share is not None and 0 < float(share[1]) <= 100:
        return DeadlineTarget(float(share[1]) / 100)
    found = re.fullmatch(r"\s*(average|p95|p99)\s*<(.*)", text)
    limit_ms = ms_from_text(found[2]) if found else None
    if found is None or not limit_ms:
        raise ConfigError(f"target {text!r} is not understood: {_HELP}")
    return Target(found[1], limit_ms)
