"""Names and lines that come from elsewhere, as they can be shown."""

from __future__ import annotations

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
