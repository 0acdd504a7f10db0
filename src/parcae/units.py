"""Conversions between units of time and size; only this module contains a bare 1_000."""

import re

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

    Args:
        text: a number with one of UNITS_MS, as in 90s, 1.5h or "500 ms".
        default_unit: the unit of a number without one; "": it must have one.

    Example: `ms_from_text("5m")` is 300000.
    """
    found = _TIME.fullmatch(text)
    unit_ms = UNITS_MS.get(found[2] or default_unit) if found else None
    return None if found is None or unit_ms is None else float(found[1]) * unit_ms
