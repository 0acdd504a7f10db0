"""The consoles on which commands print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parcae.base.texts import printable

if TYPE_CHECKING:
    from rich.console import Console


def new_console(**options: Any) -> Console:
    """A console that prints names as they are, but no control characters in them."""
    from rich.console import Console
    from rich.text import Text

    class PlainConsole(Console):
        """Replaces control characters before texts are measured."""

        def render_str(self, text: str, **kwargs: Any) -> Text:
            return super().render_str(printable(text), **kwargs)

    # By default rich makes pictures of parts of names, such as a thumb of plan:weighted-fair:-1:50.
    return PlainConsole(emoji=False, **options)
