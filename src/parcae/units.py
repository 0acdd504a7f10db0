"""Conversions between units of time and size; only this module contains a bare 1_000."""

MS_PER_S = 1_000
MS_PER_MINUTE = 60 * MS_PER_S
MS_PER_HOUR = 60 * MS_PER_MINUTE
#: Units of times that users write, such as 90s or 5m.
UNITS_MS = {"ms": 1, "s": MS_PER_S, "m": MS_PER_MINUTE, "min": MS_PER_MINUTE, "h": MS_PER_HOUR}
BYTES_PER_MIB = 1 << 20


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
