"""Parses JSON files, with an error that names the file, the line and the expected layout."""

import json
from collections.abc import Callable
from typing import Any

from parcae.errors import FormatError


def parsed_json(
    path: object,
    data: bytes,
    layout: str,
    of_pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Parse the content of a JSON file.

    Args:
        path: the file, for messages.
        data: its content.
        layout: the expected layout, for messages.
        of_pairs: makes an object from its pairs; None: a dict.

    Raises:
        FormatError: the content is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(data, object_pairs_hook=of_pairs)
    except json.JSONDecodeError as error:
        raise FormatError(
            f"{path}:{error.lineno}: not JSON ({error.msg}); expected {layout}"
        ) from None
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not text ({error}); expected {layout}") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not JSON ({str(error)[:80]}); expected {layout}") from None


def shown(value: object) -> str:
    """A value as JSON, cut to 60 characters, for messages."""
    return json.dumps(value)[:60]
