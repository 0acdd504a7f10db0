"""Reads the JSON of a large message piece by piece, with a pause between two pieces.

One call of a decoder lets no other thread run, so a large message in one piece would stop the whole
service. Only objects that are listed in a `Shape` are looked into; all other values are small.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, TypeAdapter

from parcae.service.yielding import make_way

_DECODE_AT = json.JSONDecoder().raw_decode
_SPACE = re.compile(r"[ \t\r\n]*")
#: Largest value that is decoded in one call, in characters: 10,000 parents of a stage fit.
_LARGEST = 200_000


@dataclass(frozen=True)
class Shape:
    """An object that is read key by key.

    Args:
        adapter: validates the object.
        inner: the shapes of the values that are read by themselves, by key.
        lists: the keys of those values that are lists, with the largest number of elements.
        stand_in: a valid value for this object where it is not looked into.
    """

    adapter: TypeAdapter[Any]
    inner: Mapping[str, Shape] = field(default_factory=dict)
    lists: Mapping[str, int] = field(default_factory=dict)
    stand_in: Mapping[str, Any] = field(default_factory=dict)

    def read(self, text: str) -> Any:
        """Read the text of an object.

        Raises:
            ValueError, IndexError, TypeError, RecursionError: it is not the text of such an object.
        """
        value, at = self._read_at(text, _skip(text, 0))
        if text[at:].strip():
            raise ValueError("text behind the object")
        return value

    def _read_at(self, text: str, at: int) -> tuple[Any, int]:
        """Read the object at a position. Returns it and the position behind it."""
        make_way()
        if not self.inner:
            end = _end_of(text, at)
            return self.adapter.validate_json(text[at:end]), end
        fields: dict[str, Any] = {}
        read: dict[str, Any] = {}
        at = _skip(text, at, "{")
        while text[at] != "}":
            key, at = _DECODE_AT(text, at)
            at = _skip(text, at, ":")
            shape = self.inner.get(key)
            if shape is None:
                end = _end_of(text, at)
                fields[key] = json.loads(text[at:end])
                at = end
            elif key in self.lists:
                read[key], at = _list_at(text, at, shape, self.lists[key])
                # Some lists must not be empty; the stand-in's elements are replaced.
                fields[key] = [shape.stand_in] if read[key] else []
            else:
                read[key], at = shape._read_at(text, at)
                fields[key] = shape.stand_in
            at = _next(text, at, "}")
        message: BaseModel = self.adapter.validate_json(json.dumps(fields))
        return message.model_copy(update=read), at + 1


def _list_at(text: str, at: int, shape: Shape, most: int) -> tuple[tuple[Any, ...], int]:
    """Read the list of objects at a position. Returns them and the position behind the list."""
    elements = []
    at = _skip(text, at, "[")
    while text[at] != "]":
        element, at = shape._read_at(text, at)
        elements.append(element)
        at = _next(text, at, "]")
    if len(elements) > most:
        raise ValueError(f"{len(elements)} elements")
    return tuple(elements), at + 1


def _end_of(text: str, at: int) -> int:
    """The position behind the value at a position, which must be small."""
    closing = {"{": "}", "[": "]"}.get(text[at])
    # Small values have no lists or objects inside, but for parents at the end of a stage.
    if closing is not None and not 0 <= text.find(closing, at) - at <= _LARGEST:
        raise ValueError("a value that is too large")
    return _DECODE_AT(text, at)[1]


def _next(text: str, at: int, end: str) -> int:
    """The position of the next element, or of the `end` if there is no comma before it."""
    at = _skip(text, at)
    if text[at] == end:
        return at
    at = _skip(text, at, ",")
    if text[at] == end:
        raise ValueError("a comma without an element")
    return at


def _skip(text: str, at: int, expected: str = "") -> int:
    """The position of the next character that is no white space, behind an expected one."""
    if expected:
        if text[at] != expected:
            raise ValueError(f"{expected!r} is missing")
        at += 1
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
