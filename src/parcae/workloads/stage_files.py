"""Opens tables of stages: CSV, Parquet, and JSON (an array of objects, or one object a line)."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parcae.codecs import GZIP_MAGIC, LZ4_BLOCK_MAGIC, ZSTD_MAGIC
from parcae.errors import FormatError
from parcae.loader import open_file, parsed_json, read_file
from parcae.workloads.formats import first_bytes
from parcae.workloads.parquet_frame import read_parquet_frame

_JSON_LAYOUT = '[{"job": "a", "stage": 0, ...}, ...] or one such object a line'


@dataclass(frozen=True)
class Table:
    """A table of a file.

    Args:
        path: the file, for messages.
        columns: the cells of every column, by its name.
        numbers: the number of every row in messages: its line in a text file, else counted from 1.
        repeated: names that several columns of the file have; `columns` has the first of them.
        has_decimal_commas: whether a comma in a number is a decimal comma: in CSV whose columns are
            separated by semicolons.
    """

    path: Path
    columns: dict[str, list[Any]]
    numbers: Sequence[int]
    repeated: frozenset[str] = frozenset()
    has_decimal_commas: bool = False


def open_csv(path: Path) -> Table:
    """Open a CSV table with a header; columns are separated by commas, semicolons or tabs.

    Raises:
        FormatError: the file is no such table.
        OSError: the file cannot be read.
    """
    import polars as pl

    _check_is_file(path)
    header = first_bytes(path).partition(b"\n")[0]
    separator = max((",", ";", "\t"), key=lambda one: header.count(one.encode()))
    with open_file(path) as stream:
        is_compressed = stream.read(8).startswith((GZIP_MAGIC, ZSTD_MAGIC, LZ4_BLOCK_MAGIC))
    # Decompressed here, where the size is bounded. Polars opens no file whose name is not UTF-8.
    source = read_file(path) if is_compressed else path.read_bytes()
    try:
        # All cells as text: a type that is guessed from the first rows may not fit the others.
        frame = pl.read_csv(source, separator=separator, infer_schema=False)
        names = pl.read_csv(
            source, separator=separator, infer_schema=False, has_header=False, n_rows=1
        ).row(0)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = str(error).strip().partition("\n")[0][:120]
        message = f"{path}: no CSV table with a header, or a damaged one ({reason})"
        raise FormatError(message) from None
    # Polars gives the second column of a name another one.
    repeated = frozenset(name for name, count in Counter(names).items() if name and count > 1)
    table = replace(_of_frame(path, frame, 2), numbers=_line_numbers(names, frame))
    table = _without_blank_lines(table)
    return replace(table, repeated=repeated, has_decimal_commas=separator == ";")


def _line_numbers(names: Sequence[str | None], frame: Any) -> list[int]:
    """The line at which each row of a CSV file begins: cells between quotes may have line breaks.

    Args:
        names: the cells of the header.
        frame: the polars frame of the rows, all cells as text.
    """
    number = 2 + sum(name.count("\n") for name in names if name)
    numbers = []
    for cells in frame.iter_rows():
        numbers.append(number)
        number += 1 + sum(cell.count("\n") for cell in cells if cell)
    return numbers


def open_parquet(path: Path) -> Table:
    """Open a Parquet file.

    Raises:
        FormatError: the file is no such table.
        OSError: the file cannot be read.
    """
    import polars as pl

    _check_is_file(path)
    # Impala and old versions of Hive write text as bytes.
    texts = pl.col(pl.Binary).map_elements(_text, return_dtype=pl.String)
    return _of_frame(path, read_parquet_frame(path).with_columns(texts), 1)


def _text(cell: bytes) -> str:
    """Bytes as text; those that are none are shown as escapes."""
    return cell.decode(errors="backslashreplace")


def _without_blank_lines(table: Table) -> Table:
    """The table without rows whose cells are all empty."""
    rows = list(zip(*table.columns.values(), strict=True))
    kept = [row for row, cells in enumerate(rows) if any(cell is not None for cell in cells)]
    columns = {name: [cells[row] for row in kept] for name, cells in table.columns.items()}
    return replace(table, columns=columns, numbers=[table.numbers[row] for row in kept])


def _check_is_file(path: Path) -> None:
    """Refuse a folder, and a pipe, which would be waited for."""
    if path.exists() and not path.is_file():
        raise FormatError(f"{path}: expected a file with a table of stages")


def _of_frame(path: Path, frame: Any, first: int) -> Table:
    """The table of a polars frame; `first` is the number of its first row."""
    columns = {name: frame.get_column(name).to_list() for name in frame.columns}
    return Table(path, columns, range(first, first + frame.height))


def open_json(path: Path) -> Table:
    """Open a JSON array of objects, or JSON lines; also compressed (gzip, zstd).

    Raises:
        FormatError: the file is no such table, or larger than 1 GiB.
        OSError: the file cannot be read.
    """
    _check_is_file(path)
    content = read_file(path).removeprefix(BOM_UTF8)
    if content.lstrip()[:1] == b"[":
        entries = parsed_json(path, content, _JSON_LAYOUT)
        rows = list(enumerate(entries, 1))
    else:
        lines = enumerate(content.split(b"\n"), 1)
        rows = [
            (number, parsed_json(f"{path}:{number}", line, _JSON_LAYOUT))
            for number, line in lines
            if line.strip()
        ]
    for number, row in rows:
        if not isinstance(row, dict):
            raise FormatError(f"{path}:{number}: not an object; expected {_JSON_LAYOUT}")
    names = dict.fromkeys(name for _, row in rows for name in row)
    columns = {name: [row.get(name) for _, row in rows] for name in names}
    return Table(path, columns, [number for number, _ in rows])
