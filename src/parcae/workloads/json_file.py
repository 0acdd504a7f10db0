"""Parses JSON files, with an error that names the file, the line and the expected layout."""

import json
import math
from collections.abc import Callable
from typing import Any

from parcae.errors import FormatError

# The digits and the sign of the smallest integer of 64 bits.
_MAX_DIGITS = 20


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


def bounded_json(
    data: bytes | str, of_pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Parse JSON whose numbers fit into 64 bits.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or has a number that does not fit.
    """
    try:
        return json.loads(
            data,
            object_pairs_hook=of_pairs,
            parse_int=_integer,
            parse_float=_real,
            parse_constant=_real,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _integer(text: str) -> int:
    # The length is checked first: Python refuses to convert integers of thousands of digits.
    if len(text) > _MAX_DIGITS or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"the number {text[:20]}... does not fit into 64 bits")
    return int(text)


def _real(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no finite number")
    return number


def shown(value: object) -> str:
    """A value as JSON, cut to 60 characters, for messages."""
    return json.dumps(value)[:60]
