"""Names and lines that come from elsewhere, and numbers, as they can be shown."""

from __future__ import annotations

import math
import re

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
