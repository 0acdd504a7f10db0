"""The columns of a table of stages: which of them are there, under which name, in which unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parcae.errors import ConfigError, FormatError, suggestion
from parcae.workloads.stage_cells import UNITS
from parcae.workloads.stage_files import Table

#: What a column can mean, by its name.
MEANINGS = {
    "job": "the run that the stage belongs to",
    "name": "name of the recurring job",
    "stage": "the stage, unique within its job",
    "parents": "the stages that must end first",
    "tasks": "number of tasks",
    "durations": "durations of tasks",
    "duration_mean": "their mean",
    "duration_sd": "their standard deviation",
    "arrival": "when the job arrived",
    "pool": "Spark's scheduler pool",
}
_TIMES = ("durations", "duration_mean", "duration_sd", "arrival")


@dataclass(frozen=True)
class Column:
    """A column of the table: its name in the file, its cells, and the unit of its numbers in ms."""

    name: str
    cells: list[Any]
    unit: float | None = None

    def unit_ms(self) -> float:
        """The unit of the numbers.

        Raises:
            FormatError: neither the column's name nor an option says it.
        """
        if self.unit is None:
            raise FormatError(
                f"the column {self.name!r} does not say its unit: call it {self.name}_ms or "
                f"{self.name}_s, or give --unit ms, s or min"
            )
        return self.unit


class Columns:
    """The columns of a table by their meaning.

    Args:
        table: the table.
        called: by meaning, the name that a column has in the file.
        unit: the unit of numbers in columns whose names have no unit: ms, s or min; "" for none.

    Raises:
        ConfigError: a meaning, a column or a unit that does not exist, or a unit that no column
            needs.
        FormatError: two columns of one meaning, or columns that are missing.
    """

    def __init__(self, table: Table, called: Mapping[str, str], unit: str) -> None:
        if unit and unit not in UNITS:
            raise ConfigError(f"no unit {unit!r}; {suggestion(unit, UNITS)}")
        _check_names(table, called)
        self.path: Path = table.path
        self.has_decimal_commas = table.has_decimal_commas
        self.ignored: list[str] = []
        self._of: dict[str, Column] = {}
        needs_unit: list[str] = []
        meaning_of = {name: meaning for meaning, name in called.items()}
        for name, cells in table.columns.items():
            meaning, of_name = _meaning(meaning_of.get(name, name))
            of_name = _unit_at_end(name) or of_name
            if meaning is None or (meaning in called and name not in meaning_of):
                self.ignored.append(name)
                continue
            self._refuse_second(meaning, name)
            self._of[meaning] = Column(name, cells, UNITS.get(of_name or unit))
            if name in table.repeated:
                self._refuse_second(meaning, name)
            if of_name is None and meaning in _TIMES:
                needs_unit.append(name)
        if unit and not needs_unit:
            raise ConfigError(
                f"--unit {unit} has no effect: the names of all columns of times in {table.path} "
                "end in their units; leave it out"
            )
        self._check_complete(table)

    def cell(self, meaning: str, row: int) -> Any:
        """A cell; None if there is no such column."""
        return self._of[meaning].cells[row] if meaning in self._of else None

    def unit_ms(self, meaning: str) -> float:
        """The unit of the numbers in a column of times, in ms."""
        return self._of[meaning].unit_ms()

    def __contains__(self, meaning: str) -> bool:
        return meaning in self._of

    def _refuse_second(self, meaning: str, name: str) -> None:
        if meaning in self._of:
            raise FormatError(
                f"{self.path}: the columns {self._of[meaning].name!r} and {name!r} both give "
                f"{meaning} ({MEANINGS[meaning]}); remove one of them"
            )

    def _check_complete(self, table: Table) -> None:
        missing = [meaning for meaning in ("job", "stage") if meaning not in self]
        if "durations" not in self:
            missing += [] if "duration_mean" in self else ["durations (or duration_mean)"]
            missing += [] if "tasks" in self else ["tasks"]
        if "duration_sd" in self and "duration_mean" not in self:
            missing.append("duration_mean (of duration_sd)")
        if missing:
            raise FormatError(
                f"{table.path}: no column {', '.join(missing)}; the table has "
                f"{', '.join(table.columns) or 'no columns'}. Rename its columns, or name them "
                "by --columns, e.g. --columns job=run_id,durations=times"
            )


def parsed_names(text: str | None) -> dict[str, str]:
    """The names of columns by meaning, from a text such as "job=run_id,name=query".

    Raises:
        ConfigError: the text is not of this form, there is no such meaning, or a meaning or a
            column is there twice.
    """
    called: dict[str, str] = {}
    for part in (text or "").split(",") if text else []:
        meaning, _, name = (word.strip() for word in part.partition("="))
        if not name:
            raise ConfigError(f"--columns {text}: expected MEANING=COLUMN, e.g. job=run_id")
        if meaning not in MEANINGS:
            raise ConfigError(f"--columns {text}: {suggestion(meaning, MEANINGS)}")
        if meaning in called or name in called.values():
            twice = meaning if meaning in called else name
            raise ConfigError(f"--columns {text}: {twice} is there twice; give each of them once")
        called[meaning] = name
    return called


def _check_names(table: Table, called: Mapping[str, str]) -> None:
    for meaning, name in called.items():
        if name not in table.columns:
            hint = suggestion(name, table.columns, "the table has")
            raise ConfigError(
                f"--columns {meaning}={name}: {table.path} has no such column; {hint}"
            )


def _meaning(name: str) -> tuple[str | None, str | None]:
    """What a column of this name means, and the unit that the name has; None for neither."""
    word = name.strip().lower()
    if word in MEANINGS:
        return word, None
    unit = _unit_at_end(word)
    meaning = word.removesuffix(f"_{unit}")
    return (meaning, unit) if unit and meaning in _TIMES else (None, None)


def _unit_at_end(name: str) -> str | None:
    """The unit that a name ends in, such as "s" in "durations_s"."""
    end = name.strip().lower().rpartition("_")[2]
    return end if "_" in name and end in UNITS else None
