"""Tables of many runs, declared in named tuples, and recorded decisions that are joined.

A field of such a named tuple has a `Table` as its default. The first axis of a table of a record
says what its rows are: "decisions", or the rows of another list, whose length in use is the field
`all_NAME` of the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import numpy as np

Tables = TypeVar("Tables", bound=tuple[Any, ...])


class Table(NamedTuple):
    """An array: the type of its numbers, its axes, each a size or a name for one, and its start."""

    dtype: str
    axes: tuple[int | str, ...]
    fill: int = 0
    #: The list whose rows the numbers are, if any: they move when lists are joined.
    into: str = ""


def floats(*axes: int | str) -> Any:
    """A table of float32."""
    return Table("f4", axes)


def doubles(*axes: int | str) -> Any:
    """A table of float64."""
    return Table("f8", axes)


def integers(*axes: int | str, fill: int = 0, into: str = "") -> Any:
    """A table of int64."""
    return Table("i8", axes, fill, into)


def flags(*axes: int | str) -> Any:
    """A table of booleans."""
    return Table("?", axes)


def _tables_of(kind: Any) -> dict[str, Table]:
    declared: dict[str, Table] = kind._field_defaults
    return declared


def empty_tables(kind: Any, *leading: int, **sizes: int) -> dict[str, Any]:
    """Return empty tables by field, with further leading axes. `sizes` are those of named axes."""
    arrays = {}
    for name, table in _tables_of(kind).items():
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in table.axes]
        # Zeros cost no memory until they are written.
        arrays[name] = np.zeros((*leading, *shape), table.dtype)
        if table.fill:
            arrays[name][:] = table.fill
    return arrays


def allocate(kind: type[Tables], count: int, **sizes: int) -> Tables:
    """Return empty tables for each of many runs (the leading axis); see `empty_tables`."""
    return kind(**empty_tables(kind, count, **sizes))


def _in_use(record: Any, table: Table, of_decisions: slice) -> slice:
    """Which rows of a record's table are in use; `of_decisions` are those of decisions."""
    rows = table.axes[0]
    if rows == "decisions":
        return of_decisions
    return slice(None) if isinstance(rows, int) else slice(int(getattr(record, f"all_{rows}")[0]))


def trimmed(record: Any) -> Any:
    """Return a copy of a record without its unused rows; the final state has a row, too."""
    decisions = slice(int(record.count[0]) + 1)
    tables = _tables_of(type(record)).values()
    return type(record)(
        *(
            np.array(array[_in_use(record, table, decisions)])
            for array, table in zip(record, tables, strict=True)
        )
    )


def joined(records: Sequence[Tables], spans: Sequence[tuple[int, int]]) -> Tables:
    """Return the decisions first .. last - 1 of each record as one record, and all other rows."""
    columns = []
    for at, table in enumerate(_tables_of(type(records[0])).values()):
        pieces = [
            record[at][_in_use(record, table, slice(*span))]
            for record, span in zip(records, spans, strict=True)
        ]
        if table.into:
            counts = [int(getattr(record, f"all_{table.into}")[0]) for record in records]
            shifts = accumulate(counts, initial=0)
            pieces = [piece + shift for piece, shift in zip(pieces, shifts, strict=False)]
        columns.append(np.concatenate(pieces))
    return type(records[0])(*columns)
