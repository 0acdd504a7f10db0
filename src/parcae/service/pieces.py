"""Splits the JSON of a large message into the texts of the elements of its lists."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from parcae.service.yielding import make_way

_DECODE_AT = json.JSONDecoder().raw_decode
_SPACE = re.compile(r"[ \t\r\n]*")


def split(text: str, names: Collection[str]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Split the text of a JSON object.

    Args:
        text: the text.
        names: the keys whose lists are split.

    Returns:
        The object, in which those lists are empty, and the texts of their elements.

    Raises:
        ValueError, IndexError, TypeError, RecursionError: it is not the text of an object.
    """
    fields: dict[str, Any] = {}
    pieces: dict[str, list[str]] = {}
    at = _skip(text, _skip(text, 0, "{"))
    while text[at] != "}":
        key, at = _DECODE_AT(text, at)
        at = _skip(text, _skip(text, at, ":"))
        if key in names and text[at] == "[":
            pieces[key], at = _elements(text, at)
            fields[key] = []
        else:
            fields[key], at = _DECODE_AT(text, at)
        at = _next(text, at, "}")
    if text[at + 1 :].strip():
        raise ValueError("text behind the object")
    return fields, pieces


def _elements(text: str, at: int) -> tuple[list[str], int]:
    """The texts of the elements of the list that begins at `at`, and the position behind it."""
    elements = []
    at = _skip(text, at + 1)
    while text[at] != "]":
        make_way()
        _, end = _DECODE_AT(text, at)
        elements.append(text[at:end])
        at = _next(text, end, "]")
    return elements, at + 1


def _next(text: str, at: int, end: str) -> int:
    """The position of the next element, or of the `end` if there is no comma before it."""
    at = _skip(text, at)
    if text[at] == end:
        return at
    at = _skip(text, at, ",")
    at = _skip(text, at)
    if text[at] == end:
        raise ValueError("a comma without an element")
    return at


def _skip(text: str, at: int, expected: str = "") -> int:
    """The position of the next character that is no white space, behind an expected one."""
    match = _SPACE.match(text, at)
    assert match is not None
    if not expected:
        return match.end()
    if text[match.end()] != expected:
        raise ValueError(f"{expected!r} is missing")
    return match.end() + 1
