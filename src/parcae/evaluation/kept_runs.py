"""Finished runs of a comparison in a file, from which a stopped comparison goes on.

The file has one JSON object a line: first the settings, which must be the same when it is used
again, then the runs in the order in which they ended.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from parcae.base.errors import ConfigError, FormatError
from parcae.base.files import check_regular, named_in_errors, write_bytes
from parcae.evaluation.comparison import Played
from parcae.policies.names import mentioned_files

#: What parsing a damaged line raises. Numbers may exceed 64 bits, and lists may be too deep.
_DAMAGES = (
    ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError,
    pl.exceptions.PolarsError,
)  # fmt: skip
#: The first key of the first line; its value is the version of the format.
_KEY = "parcae_kept_runs"
_VERSION = 2
#: A line of the file: a seed, and its run's tables.
_FIELDS = ("seed", "runs", "jobs")
Schema = Mapping[str, pl.DataType | type[pl.DataType]]


class KeptRuns:
    """A file with the finished runs of a comparison."""

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        num_policies: int,
        runs: Schema,
        jobs: Schema,
    ) -> None:
        self._path = Path(path)
        self._num_policies = num_policies
        self._schemas = (runs, jobs)
        header = {_KEY: _VERSION, **settings}
        # Through JSON, so that it compares equal to what was read (lists, not tuples).
        self._header: dict[str, Any] = json.loads(json.dumps(header))
        #: The finished runs, by seed.
        self.rows: dict[int, Played] = {}
        lines = self._read()
        # Without a line that a stop cut off, so that new lines begin at the start of a line.
        write_bytes(self._path, b"".join(line + b"\n" for line in lines))

    def keep(self, seed: int, row: Played) -> None:
        """Add a finished run to the file."""
        tables = (frame.to_dict(as_series=False) for frame in (row.runs, row.jobs))
        line = json.dumps(dict(zip(_FIELDS, (seed, *tables), strict=True)))
        with named_in_errors(self._path), self._path.open("ab") as stream:
            stream.write(line.encode() + b"\n")
        self.rows[seed] = row

    def _read(self) -> list[bytes]:
        """Read the runs into `rows`; returns the file's whole lines, the settings first."""
        check_regular(self._path)
        content = self._path.read_bytes() if self._path.exists() else b""
        if not content:
            return [json.dumps(self._header).encode()]
        # A stop may have cut off the last line. The first is never cut off: it is written at once.
        lines = content.split(b"\n")[:-1]
        self._check_header(lines[0] if lines else b"")
        for number, line in enumerate(lines[1:], start=2):
            try:
                self._add(json.loads(line))
            except _DAMAGES:
                raise FormatError(
                    f"{self._path}: line {number} is damaged; delete this line, and its seed runs "
                    "again"
                ) from None
        return lines

    def _check_header(self, line: bytes) -> None:
        try:
            saved = json.loads(line)
            version = saved[_KEY]
        except _DAMAGES:
            raise FormatError(
                f"{self._path}: not a file of finished runs that parcae compare wrote; "
                "give the name of a new file"
            ) from None
        if version != _VERSION:
            raise FormatError(
                f"{self._path}: written by another version of Parcae; give the name of a new file"
            )
        was, now = _flat(saved), _flat(self._header)
        for what in sorted({*was, *now}):
            values = was.get(what, "null"), now.get(what, "null")
            if values[0] != values[1]:
                raise ConfigError(
                    f"{self._path}: its runs differ in {what[1:]} ({values[0]}, now {values[1]}); "
                    "use the same settings, or another file"
                )

    def _add(self, run: dict[str, Any]) -> None:
        """Add a run of the file; any error says that it is damaged."""
        seed, *tables = (run.pop(name) for name in _FIELDS)
        # Polars would leave out columns, and fill those that are missing.
        if run or any(
            table.keys() != one.keys() for table, one in zip(tables, self._schemas, strict=True)
        ):
            raise ValueError("other columns")
        runs, jobs = map(pl.DataFrame, tables, self._schemas)
        policies = self._num_policies
        columns = np.arange(len(jobs)) % policies
        is_whole = len(runs) == policies and len(jobs) % policies == 0
        if type(seed) is not int or not is_whole or (jobs["column"] != columns).any():
            raise ValueError("not one run under every policy")
        self.rows[seed] = Played(runs, jobs)


def _flat(value: Any, path: str = "") -> dict[str, str]:
    """Settings by path, as JSON.

    Example: `{"config": {"num_executors": 8}}` is `{".config.num_executors": "8"}`.
    """
    if not isinstance(value, dict):
        return {path: json.dumps(value)}
    parts = (_flat(inner, f"{path}.{key}") for key, inner in value.items())
    return {key: text for part in parts for key, text in part.items()}


def files_in_names(names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of every file that names of policies mention: a name does not say what is in it."""
    files = mentioned_files(names)
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
