"""Names and lines that come from elsewhere, and numbers, as they can be shown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

__version__ = "0.1.0"


MS_PER_S = 1_000
MS_PER_MINUTE = 60 * MS_PER_S
MS_PER_HOUR = 60 * MS_PER_MINUTE
#: Units of times that users write, such as 90s or 5m.
UNITS_MS = {"ms": 1, "s": MS_PER_S, "m": MS_PER_MINUTE, "min": MS_PER_MINUTE, "h": MS_PER_HOUR}
BYTES_PER_MIB = 1 << 20
_TIME = re.compile(r"\s*(\d{1,12}(?:\.\d{1,18})?)\s*([a-z]*)\s*", re.ASCII)


def ms_from_s(seconds: float) -> int:
    """Return `seconds` in milliseconds, rounded to a whole number.

    Example: `ms_from_s(2.5)` is 2500.
    """
    return round(seconds * MS_PER_S)


def s_from_ms(milliseconds: float) -> float:
    """Return `milliseconds` in seconds.

    Example: `s_from_ms(2500)` is 2.5.
    """
    return milliseconds / MS_PER_S


def ms_from_text(text: str, default_unit: str = "") -> float | None:
    """Return the time in a text that a user wrote, in ms; None for any other text.

    Example: `ms_from_text("5m")` is 300000.
    """
    found = _TIME.fullmatch(text)
    unit_ms = UNITS_MS.get(found[2] or default_unit) if found else None
    return None if found is None or unit_ms is None else float(found[1]) * unit_ms


#: Control characters, without the tab and the line break, and what is no character at all (halves
#: of pairs, U+FFFE and U+FFFF). A terminal would obey some of them, and XML has none of them.
_UNSHOWABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """The text with a replacement character for everything that cannot be shown.

    Names of jobs and lines of logs must not steer the user's terminal, nor break a picture's file.

    Example: `printable("a\\x1b[31m")` is "a\\ufffd[31m".
    """
    return _UNSHOWABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def num_decimals(value: float, least: int = 0) -> int:
    """Digits after the point, `least` or more, with which a number shows at least three digits.

    Example: 4 for 0.0123, which is shown as 0.0123; 0 for 1234.
    """
    return max(least, 2 - math.floor(math.log10(value))) if value > 0 else 2


def time_decimals(seconds: float) -> int:
    """Digits after the point of a time in seconds: one, or as many as a short time needs for two
    significant ones.
    """
    return max(1, num_decimals(seconds) - 1)


def seconds_text(seconds: float) -> str:
    """A time in seconds, as text.

    Example: "1,234.5", "12.3" and "0.045".
    """
    return f"{seconds:,.{time_decimals(seconds)}f}"


#: Units of durations for people: from so many seconds on, its name and its length in seconds.
_UNITS = ((172_800, "days", 86_400), (7_200, "h", 3_600), (120, "min", 60), (0, "s", 1))


def duration_unit(seconds: float) -> tuple[str, int]:
    """The unit in which people read a duration, and its length in seconds.

    Example: ("min", 60) for 150 s; ("h", 3600) for 7200 s.
    """
    # What is not known has seconds.
    return next(((unit, length) for least, unit, length in _UNITS if seconds >= least), ("s", 1))


def duration_text(seconds: float) -> str:
    """A duration with its unit.

    Example: "95.0 s", "2.5 min" and "3.1 days".
    """
    unit, length = duration_unit(seconds)
    return f"{seconds_text(seconds / length)} {unit}"


def plain(value: Any) -> Any:
    """The value as JSON has it: objects by their fields, null in place of NaN and infinity."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if fields := getattr(value, "_fields", getattr(value, "__dataclass_fields__", None)):
        value = {name: getattr(value, name) for name in fields}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
