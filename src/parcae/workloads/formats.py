"""Guesses which format a file has, so that an error can say what reads it.

The first bytes decide, decompressed where the file is compressed. Nothing is read to its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from parcae.base.errors import FormatError
from parcae.base.loader import chunks, members, open_file

P = ParamSpec("P")
R = TypeVar("R")
Paths = TypeVar("Paths")

_HEAD_BYTES = 64 * 1024
_ROLLING_PART = re.compile(r"events_\d+_")
_SWF_LINE = re.compile(rb"\s*(-?\d+(\.\d+)?\s+){17}-?\d+(\.\d+)?\s*$")
_ALIBABA_ROW = re.compile(rb"[^,]+,\d*,[^,]*,[^,]*,(Terminated|Failed|Running|Waiting|Ready),")


@dataclass(frozen=True)
class FileKind:
    """A kind of file."""

    format: str
    called: str
    reads: str


def _imported(format_name: str, called: str) -> FileKind:
    return FileKind(format_name, called, f"parcae workload import {format_name} PATH -o W.parcae")


WORKLOAD = FileKind("parcae", "a workload file", "parcae workload describe PATH")
SPARK = _imported("spark-events", "a Spark event log")
TPCH = _imported("tpch-profiles", "TPC-H profiles")
ALIBABA = _imported("alibaba", "batch tasks of Alibaba's trace")
CSV = _imported("csv", "a CSV table of stages")
PARQUET = _imported("parquet", "a Parquet file")
JSON = _imported("json", "a JSON table of stages")
SWF = FileKind(
    "swf",
    "a log of a batch cluster (SWF)",
    "parcae simulate --world rigid --swf PATH --policy easy",
)
JOB_SETS = FileKind("job-sets", "a file of job sets", "parcae simulate --job-set PATH")
_SPARK_WORLD = FileKind(
    "spark-world", "conformance runs", "parcae simulate --world cores --job-set PATH"
)
_CHECKPOINT = FileKind("checkpoint", "a checkpoint of a policy", "--policy PATH")

#: Of JSON: what the first bytes contain, in the order in which they are tried.
_JSON_KINDS: tuple[tuple[re.Pattern[bytes], FileKind], ...] = (
    (re.compile(rb'^\{\s*"Event"\s*:'), SPARK),
    (re.compile(rb'"format"\s*:\s*"parcae spark world'), _SPARK_WORLD),
    (re.compile(rb'"(\d+g/q\d+|tpch_q\d+_\d+g_maxCores_\d+)"\s*:'), TPCH),
    (re.compile(rb'"task_name"\s*:'), ALIBABA),
    (re.compile(rb'"sets(\[id\])?"\s*:\s*[{"]'), JOB_SETS),
    (re.compile(rb'"job"\s*:(?s:.*)"stage"\s*:|"stage"\s*:(?s:.*)"job"\s*:'), JSON),
)


def guess_format(path: Path) -> FileKind | None:
    """The kind of a file or folder, as far as its first bytes or its names say; None if unknown.

    Example: `guess_format(Path("batch_task.csv")).format` is "alibaba".
    """
    try:
        if path.is_dir():
            return _kind_of_folder(path)
        if not path.is_file():
            return None
        with open_file(path) as stream:
            first = stream.read(8)
        if first.startswith(b"PK\x03\x04"):
            return _kind_of_names([info.filename for info in members(path)])
        if first.startswith(b"PAR1"):
            return PARQUET
        return _kind_of_text(first_bytes(path))
    except (OSError, FormatError):
        return None


def first_bytes(path: Path) -> bytes:
    """The first 64 KiB of a file, decompressed if it is gzip, zstd or Spark's lz4."""
    return first_of(chunks(path), _HEAD_BYTES)


def first_of(pieces: Iterable[bytes], num_bytes: int) -> bytes:
    """The first bytes of what comes in pieces; the first piece may have only one."""
    head = b""
    for piece in pieces:
        head += piece[:num_bytes]
        if len(head) >= num_bytes:
            break
    return head[:num_bytes]


def _kind_of_folder(folder: Path) -> FileKind | None:
    names = [f"{child.name}/" if child.is_dir() else child.name for child in folder.iterdir()]
    sizes = [name for name in names if re.fullmatch(r"\d+g/", name)]
    below = [f"{size}{child.name}" for size in sizes for child in (folder / size).iterdir()]
    if kind := _kind_of_names([*names, *below]):
        return kind
    # The kind of the files that it contains, as far as the first of them says.
    files = sorted(name for name in names if not name.startswith(".") and not name.endswith("/"))
    return guess_format(folder / files[0]) if files else None


def _kind_of_names(names: Sequence[str]) -> FileKind | None:
    """The kind of an archive or a folder by the names in it."""
    if "manifest.npy" in names:
        return WORKLOAD
    if any(re.search(r"(adj_mat_\d+\.npy|tpch_profiles\.json)$", name) for name in names):
        return TPCH
    if any(_ROLLING_PART.match(name.rpartition("/")[2]) for name in names):
        return SPARK
    # The History Server gives a zip with one log, called like its application.
    spark_names = re.compile(r"(app-|application_|local-|spark-)[\w-]+(\.\w+)*$")
    return SPARK if any(spark_names.search(name) for name in names) else None


def _kind_of_text(head: bytes) -> FileKind | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return next((kind for pattern, kind in _JSON_KINDS if pattern.search(text)), None)
    # The length of a header in 8 bytes, then the header in JSON.
    if head[8:9] == b"{" and b'"dtype"' in head:
        return _CHECKPOINT
    lines = [line for line in text.split(b"\n") if line.strip() and not line.startswith(b";")]
    if not lines:
        return SWF if text.startswith(b";") else None
    first = lines[0]
    if _SWF_LINE.match(first):
        return SWF
    if _ALIBABA_ROW.match(first):
        return ALIBABA
    columns = {
        word.strip().strip('"').lower() for word in re.split(r"[,;\t]", first.decode("latin-1"))
    }
    if "task_name" in columns:
        return ALIBABA
    return CSV if {"job", "stage"} <= columns else None


def who_reads(path: Path, not_format: str) -> str:
    """What to say about a file that the reader of `not_format` refused; "" if nothing is known."""
    kind = guess_format(path)
    if kind is None or kind.format == not_format:
        return ""
    return f"it looks like {kind.called}: {kind.reads.replace('PATH', str(path))}"


def saying_what_reads(
    format_name: str,
) -> Callable[[Callable[Concatenate[Paths, P], R]], Callable[Concatenate[Paths, P], R]]:
    """A decorator of readers: errors about the format of a file say what reads the file.

    The reader's first argument is a path or a list of paths.

    Example: after `@saying_what_reads("swf")`, a reader of SWF that refuses an event log adds "it
    looks like a Spark event log: parcae workload import spark-events ...".
    """

    def decorated(
        read: Callable[Concatenate[Paths, P], R],
    ) -> Callable[Concatenate[Paths, P], R]:
        @wraps(read)
        def reading(paths: Paths, /, *args: P.args, **options: P.kwargs) -> R:
            try:
                return read(paths, *args, **options)
            except FormatError as error:
                given: Any = [paths] if isinstance(paths, str | Path) else paths
                hints = (who_reads(Path(path), format_name) for path in given)
                hint = next(filter(None, hints), "")
                if not hint or hint in str(error):
                    raise
                raise FormatError(f"{error}; {hint}") from error

        return reading

    return decorated
