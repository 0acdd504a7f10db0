"""Reads the lines and the header of a log in the Standard Workload Format.

`parcae.workloads.swf` describes the format, and makes jobs of the lines.
"""

from __future__ import annotations

import contextlib
import re
from array import array
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.loader import lines
from parcae.workloads.import_report import BadRows

FloatArray = npt.NDArray[np.float64]


class Field(IntEnum):
    """The 18 fields of a line, in order; times in seconds, memory in KB per processor."""

    JOB_NUMBER = 0
    SUBMIT_TIME = 1
    WAIT_TIME = 2
    RUN_TIME = 3
    ALLOCATED_PROCESSORS = 4
    CPU_TIME = 5
    USED_MEMORY = 6
    REQUESTED_PROCESSORS = 7
    REQUESTED_TIME = 8
    REQUESTED_MEMORY = 9
    STATUS = 10
    USER = 11
    GROUP = 12
    EXECUTABLE = 13
    QUEUE = 14
    PARTITION = 15
    PRECEDING_JOB = 16
    THINK_TIME = 17


NUM_FIELDS = len(Field)
#: The value of a number that is not known.
MISSING = -1
# `float` also accepts "nan" and "1_000", which are not valid here: a line is checked first.
#: Characters of a line of numbers, and the syntax of one number.
_NUMERIC = re.compile(rb"[-+.\deE\s]+")
_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
#: Of a number in the header. Larger ones are out of range after the cut as well.
_MOST_DIGITS = 20
_HEADER_NUMBER = re.compile(r"\d{1,3}(,\d{3})+(?!\d)|\d+")
#: A key and its value. Without a space the value is a number, since text has addresses (http://...)
#: and times (10:30).
_HEADER_KEY = re.compile(r"(\w+):(?:\s+(.*)|(?<=[A-Za-z]:)(\d.*))?$")


@dataclass(frozen=True)
class SwfHeader:
    """The header comments as pairs (key, value) in the order of the file.

    A comment line without a key continues the value of the comment line right before it. After a
    line with a job it is no part of the header.

    Example: `header.number("MaxProcs")` of a log with the line `; MaxProcs: 1728` is 1728.
    """

    entries: tuple[tuple[str, str], ...] = ()

    def text(self, key: str) -> str | None:
        """The first value of a key; None if the header lacks the key."""
        return next((value for name, value in self.entries if name == key), None)

    def number(self, key: str) -> int | None:
        """The whole number >= 0 at the start of a key's value, also with commas as in 1,024.

        None if there is none, as in `; MaxNodes: -1`.
        """
        match = _HEADER_NUMBER.match(self.text(key) or "")
        # A number of thousands of digits takes Python long, or is refused; no reader needs it.
        return int(match[0].replace(",", "")[:_MOST_DIGITS]) if match else None


class Lines(NamedTuple):
    """The header of a log, and its lines with a job that have 18 numbers."""

    header: SwfHeader
    values: FloatArray  # [num_lines, NUM_FIELDS]
    number: npt.NDArray[np.int64]  # [num_lines], from 1
    truncated: str  # what is wrong with a last line without a newline, "" if nothing


def read_lines(path: Path, bad: BadRows) -> Lines:
    """Read a log, plain or compressed; lines that are no numbers are added to `bad`.

    Raises:
        FormatError: truncated or damaged compressed data, or a line of more than 256 MiB.
        FileNotFoundError: no such file.
    """
    values = array("d")
    numbers = array("q")
    truncated = ""
    comments: list[str] = []
    # Whether a job's line stands between the last comment and this line.
    is_after_job = False
    for number, (line, is_whole) in enumerate(lines(path), 1):
        text = line.strip()
        if not text:
            continue
        if text.startswith(b";"):
            comment = text.decode(errors="replace").lstrip(";").strip()
            if not is_after_job or _HEADER_KEY.match(comment):
                comments.append(comment)
                is_after_job = False
            continue
        is_after_job = True
        try:
            values.extend(_numbers(text))
            numbers.append(number)
        except ValueError as error:
            if is_whole:
                bad.add(path, number, str(error))
            else:
                truncated = f"{path}:{number}: truncated: {error}"
    table = np.array(values, np.float64).reshape(-1, NUM_FIELDS)
    return Lines(_header(comments), table, np.array(numbers, np.int64), truncated)


def _numbers(line: bytes) -> list[float]:
    """The fields of a line as numbers.

    Raises:
        ValueError: a wrong number of fields, or a field that is not a number.
    """
    words = line.split()
    if len(words) != NUM_FIELDS:
        raise ValueError(f"{len(words)} fields, expected {NUM_FIELDS}")
    if _NUMERIC.fullmatch(line):
        with contextlib.suppress(ValueError):
            return list(map(float, words))
    # Slow path: the line does not parse as a whole, so find the field that is to blame.
    column = next(column for column, word in enumerate(words) if not _NUMBER.fullmatch(word))
    text = words[column][:40].decode(errors="replace")
    raise ValueError(f"{field_name(column)} is {text!r}, not a number")


def field_name(column: int) -> str:
    """The number of a field, from 1, and its name, for messages."""
    return f"field {column + 1} ({Field(column).name.lower().replace('_', ' ')})"


def _header(comments: list[str]) -> SwfHeader:
    entries: list[tuple[str, str]] = []
    for text in comments:
        match = _HEADER_KEY.match(text)
        if match:
            entries.append((match[1], (match[2] or match[3] or "").strip()))
        elif text and entries:
            key, value = entries[-1]
            entries[-1] = (key, f"{value} {text}".strip())
    return SwfHeader(tuple(entries))
