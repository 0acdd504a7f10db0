"""Reads the cells of a table of stages: names, lists, numbers and times with their units."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.units import MS_PER_S
from parcae.workloads.limits import MOST_TASKS

Samples = npt.NDArray[np.int64]

#: By the end of a column's name, or the text of the option: the unit in ms.
UNITS = {"ms": 1.0, "s": float(MS_PER_S), "min": 60.0 * MS_PER_S}
#: Larger durations (31 years) and times are mistakes; sums of them would overflow.
MAX_DURATION_MS = 10**12
MAX_TIME_MS = 10**15
#: Number of samples that stand for a mean with a spread.
NUM_DRAWN = 100
#: Largest spread / mean that so few samples can have.
MAX_RELATIVE_SPREAD = 5.0
_NUMBER = re.compile(r"\s*[-+]?[\d.]+([eE][-+]?\d+)?\s*$")
#: What separates the entries of a list in a text, the first ones first.
_SEPARATORS = (re.compile(r";"), re.compile(r"[;,]"), re.compile(r"[;,\s]+"))
#: The same for numbers where a comma is a decimal comma.
_NO_COMMAS = re.compile(r"[;\s]+")
#: The brackets of a list in a text.
_ENCLOSED = re.compile(r"^[\[({](.*)[\])}]$", re.DOTALL)
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*$")


def is_empty(cell: Any) -> bool:
    """Whether a cell has no content."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


def as_name(cell: Any) -> str:
    """The text that identifies a job or a stage; 3, 3.0 and "3" are the same.

    Raises:
        ValueError: the cell is neither text nor a number.
    """
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    if isinstance(cell, bool | list | dict) or (isinstance(cell, float) and math.isnan(cell)):
        raise ValueError(f"{_shown(cell)} is not a name")
    name = str(cell).strip()
    # JSON can escape half of a surrogate pair, which cannot be written to any file.
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{_shown(cell)} is not a name: half a character is missing") from None
    return name


def as_list(cell: Any, *, at_commas: bool = True) -> list[Any]:
    """The entries of a list, or of a text in which `;`, `,` or spaces separate them.

    Args:
        cell: the cell.
        at_commas: whether commas separate, too; otherwise they are decimal commas.
    """
    inner = cell.strip().strip("[](){}") if isinstance(cell, str) else cell
    return _entries(inner, _SEPARATORS[-1] if at_commas else _NO_COMMAS)


def as_name_lists(cell: Any) -> list[tuple[str, ...]]:
    """The names in a cell, in every way to read it; the likeliest one is the first that fits.

    Example: "Stage 1; Stage 2" is one name, or "Stage 1" and "Stage 2", or four names.

    Raises:
        ValueError: an entry is not a name.
    """
    if not isinstance(cell, str):
        return [tuple(map(as_name, _entries(cell, _SEPARATORS[-1])))]
    # Brackets are those of names or, if no name fits, those of the list.
    texts = (cell, _ENCLOSED.sub(r"\1", cell.strip()))
    readings = [tuple(map(as_name, _entries(text, one))) for one in _SEPARATORS for text in texts]
    return [(as_name(cell),), *readings]


def _entries(cell: Any, separators: re.Pattern[str]) -> list[Any]:
    """The entries of a list, or of a text."""
    if is_empty(cell):
        return []
    if isinstance(cell, list | tuple):
        return [entry for entry in cell if not is_empty(entry)]
    if not isinstance(cell, str):
        return [cell]
    entries = separators.split(cell)
    return [entry for text in entries if (entry := text.strip().strip("\"'"))]


def as_number(cell: Any) -> float:
    """A finite number >= 0.

    Raises:
        ValueError: the cell is none.
    """
    try:
        if isinstance(cell, bool):
            raise TypeError
        number = float(cell)
    except (TypeError, ValueError, OverflowError):
        is_decimal = isinstance(cell, str) and _DECIMAL_COMMA.match(cell)
        hint = "; write a decimal point" if is_decimal else ""
        raise ValueError(f"{_shown(cell)} is not a number{hint}") from None
    if not math.isfinite(number):
        raise ValueError(f"{_shown(cell)} is not a finite number")
    if number < 0:
        raise ValueError(f"{_shown(cell)} is negative")
    return number


def as_count(cell: Any) -> int:
    """A number of tasks.

    Raises:
        ValueError: the cell is no whole number from 1 to `MOST_TASKS`.
    """
    number = as_number(cell)
    if number != int(number) or not 1 <= number <= MOST_TASKS:
        raise ValueError(f"{_shown(cell)} tasks: expected a whole number from 1 to {MOST_TASKS:,}")
    return int(number)


def as_duration(cell: Any, unit_ms: Callable[[], float]) -> float:
    """A duration in ms.

    Args:
        cell: a number, or a duration of a typed column.
        unit_ms: gives the unit of numbers; it raises an error if the table does not say it.

    Raises:
        ValueError: the cell is no duration, or one of more than `MAX_DURATION_MS`.
    """
    if isinstance(cell, timedelta):
        ms = as_number(cell / timedelta(milliseconds=1))
    else:
        ms = as_number(cell) * unit_ms()
    if ms > MAX_DURATION_MS:
        raise ValueError(f"{_shown(cell)} is a duration of more than 31 years")
    return ms


def as_time(cell: Any, unit_ms: Callable[[], float]) -> int:
    """A point in time in ms; only differences between times count.

    Args:
        cell: a number, a date with a time, or the same as text (ISO 8601; UTC unless it says).
        unit_ms: gives the unit of numbers; it raises an error if the table does not say it.

    Raises:
        ValueError: the cell is no time.
    """
    # Digits alone are a number, also where they could be a date.
    if isinstance(cell, str) and not _NUMBER.match(cell):
        with suppress(ValueError):
            cell = datetime.fromisoformat(cell.strip())
    if isinstance(cell, date) and not isinstance(cell, datetime):
        cell = datetime.combine(cell, time())
    if isinstance(cell, datetime):
        moment = cell if cell.tzinfo is not None else cell.replace(tzinfo=UTC)
        ms = (moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1)
    else:
        ms = as_number(cell) * unit_ms()
    if not 0 <= ms <= MAX_TIME_MS:
        raise ValueError(f"{_shown(cell)} is out of range for a time")
    return round(ms)


def samples_of_spread(mean_ms: float, spread_ms: float) -> Samples:
    """Durations with a mean and a standard deviation, as quantiles of a lognormal distribution.

    Raises:
        ValueError: the spread is more than `MAX_RELATIVE_SPREAD` times the mean.

    Example: `samples_of_spread(2_000, 0)` is one duration of 2,000 ms.
    """
    if spread_ms == 0:
        return np.array([round(mean_ms)], np.int64)
    if mean_ms == 0 or spread_ms / mean_ms > MAX_RELATIVE_SPREAD:
        raise ValueError(
            f"a spread of {spread_ms:g} ms around {mean_ms:g} ms; it may be at most "
            f"{MAX_RELATIVE_SPREAD:g} times the mean (give the durations themselves)"
        )
    # Rounded sums keep the mean correct to a fraction of a ms.
    ends = np.rint(np.cumsum(mean_ms * _shape(spread_ms / mean_ms))).astype(np.int64)
    return np.asarray(np.diff(ends, prepend=0), np.int64)


@lru_cache(maxsize=1_024)
def _shape(relative_spread: float) -> npt.NDArray[np.float64]:
    """Lognormal quantiles of mean 1 whose standard deviation is `relative_spread`."""
    normal = NormalDist()
    scores = np.array([normal.inv_cdf((i + 0.5) / NUM_DRAWN) for i in range(NUM_DRAWN)])
    low = 0.0
    high = 20.0
    # The spread of finitely many quantiles grows with sigma: bisection finds the sigma that fits.
    for _ in range(60):
        sigma = (low + high) / 2
        values = np.exp(sigma * scores)
        values /= values.mean()
        if values.std() < relative_spread:
            low = sigma
        else:
            high = sigma
    shape: npt.NDArray[np.float64] = values
    return shape


def _shown(cell: Any) -> str:
    """A cell in a message, cut to 40 characters."""
    text = repr(cell) if isinstance(cell, str) else str(cell)[:60]
    return text if len(text) <= 40 else f"{text[:37]}..."
