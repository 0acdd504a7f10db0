"""The consoles on which commands print."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

#: Control characters that a terminal would obey, without the tab and the line break.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text with a replacement character for every control character.

    Names of jobs and lines of logs come from elsewhere: they must not steer the user's terminal.
    """
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def new_console(**options: Any) -> Console:
    """A console that prints names as they are, but no control characters in them.

    Args:
        options: further arguments of `rich.console.Console`.
    """
    from rich.console import Console
    from rich.text import Text

    class PlainConsole(Console):
        """Replaces control characters before texts are measured."""

        def render_str(self, text: str, **kwargs: Any) -> Text:
            return super().render_str(printable(text), **kwargs)

    # By default rich makes pictures of parts of names, such as a thumb of plan:weighted-fair:-1:50.
    return PlainConsole(emoji=False, **options)
