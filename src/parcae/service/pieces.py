"""Reads the JSON of a large message piece by piece, with a pause between two pieces.

One call of a decoder lets no other thread run, so a large message in one piece would stop the whole
service. Only objects that are listed in a `Shape` are looked into; all other values are small.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, TypeAdapter

#: How long the second thread works before it lets the event loop run, in s.
_WORK_S = 2e-3
#: How long it waits for the event loop at most, in s.
_LONGEST_WAIT_S = 0.1


class _Turn(threading.local):
    """The event loop that this thread makes way for, and when; None: it never has to."""

    loop: asyncio.AbstractEventLoop | None = None
    next_s = 0.0


_turn = _Turn()


@contextmanager
def apart_from(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Within it, `make_way` in this thread lets the event loop run.

    Garbage is not collected: a large message is hundreds of thousands of objects, and to look for
    garbage among them would stop all threads. What is left of them is set aside for `tidy`.
    """
    _turn.loop = loop
    _turn.next_s = time.perf_counter() + _WORK_S
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        _turn.loop = None


def tidy() -> None:
    """Collect all garbage, and set aside what is left: the next collections do not look at it."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def make_way() -> None:
    """Wait for the event loop to run once, if this is the second thread and that is due."""
    loop = _turn.loop
    if loop is None or time.perf_counter() < _turn.next_s:
        return
    has_run = threading.Event()
    # What the event loop has to do now is done before a callback of its next round.
    loop.call_soon_threadsafe(loop.call_soon, has_run.set)
    has_run.wait(_LONGEST_WAIT_S)
    _turn.next_s = time.perf_counter() + _WORK_S


_DECODE_AT = json.JSONDecoder().raw_decode
_SPACE = re.compile(r"[ \t\r\n]*")
#: Largest value that is decoded in one call, in characters: 10,000 parents of a stage fit.
_LARGEST = 200_000


@dataclass(frozen=True)
class Shape:
    """An object that is read key by key."""

    adapter: TypeAdapter[Any]
    inner: Mapping[str, Shape] = field(default_factory=dict)
    lists: Mapping[str, int] = field(default_factory=dict)
    stand_in: Mapping[str, Any] = field(default_factory=dict)

    def read(self, text: str) -> Any:
        """Read the text of an object."""
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
