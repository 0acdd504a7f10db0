"""Named tuples of tables: fields declare the type and the axes of their arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np

Tables = TypeVar("Tables", bound=tuple[Any, ...])


class FieldSpec(NamedTuple):
    """An array: the type of its numbers, its axes, each a size or a name for one, and its start."""

    dtype: Any
    axes: tuple[int | str, ...]
    fill: int = 0
    #: The list whose rows the numbers are, if any: they move when lists are joined.
    into: str = ""


def floats(*axes: int | str) -> Any:
    """A table of float32."""
    return FieldSpec("f4", axes)


def doubles(*axes: int | str, fill: int = 0) -> Any:
    """A table of float64."""
    return FieldSpec("f8", axes, fill)


def integers(*axes: int | str, fill: int = 0, into: str = "") -> Any:
    """A table of int64."""
    return FieldSpec("i8", axes, fill, into)


def flags(*axes: int | str) -> Any:
    """A table of booleans."""
    return FieldSpec("?", axes)


def records(dtype: np.dtype[Any], *axes: int | str) -> Any:
    """A table whose fields read like columns."""
    return FieldSpec(dtype, axes)


def specs_of(kind: Any) -> dict[str, FieldSpec]:
    """What the fields of a named tuple of tables declare."""
    declared: dict[str, FieldSpec] = kind._field_defaults
    return declared


def empty_tables(kind: Any, *leading: int, **sizes: int) -> dict[str, Any]:
    """Return empty tables by field, with further leading axes. `sizes` are those of named axes."""
    arrays = {}
    for name, table in specs_of(kind).items():
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in table.axes]
        # Zeros cost no memory until they are written.
        array = np.zeros((*leading, *shape), table.dtype)
        if table.fill:
            array[:] = table.fill
        arrays[name] = array if array.dtype.names is None else array.view(np.recarray)
    return arrays


def allocate_tables(kind: type[Tables], *leading: int, **sizes: int) -> Tables:
    """Return empty tables, for each of many runs with a leading axis; see `empty_tables`."""
    return kind(**empty_tables(kind, *leading, **sizes))
