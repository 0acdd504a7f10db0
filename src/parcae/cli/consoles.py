"""The consoles on which commands print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def new_console(**options: Any) -> Console:
    """A console that prints names as they are.

    Args:
        options: further arguments of `rich.console.Console`.
    """
    from rich.console import Console

    # By default rich makes pictures of parts of names, such as a thumb of plan:weighted-fair:-1:50.
    return Console(emoji=False, **options)
