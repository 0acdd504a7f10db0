"""The formats that workloads are imported from: a table with a reader for each.

`parcae workload import FORMAT` and `read_workload` take every reader of the table.
`register_reader` adds one from outside the package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from parcae.base.errors import ConfigError, FormatError, suggestion
from parcae.base.extensions import import_function, is_reference, load, rows
from parcae.base.loader import chunks, members, open_file
from parcae.base.urls import address_of
from parcae.workloads.import_report import ImportReport, Progress
from parcae.workloads.workload import Workload

Reading = TypeVar("Reading", bound=Callable[..., Any])

_HEAD_BYTES = 64 * 1024
_ROLLING_PART = re.compile(r"events_\d+_")
_SWF_LINE = re.compile(rb"\s*(-?\d+(\.\d+)?\s+){15}\S+\s+\S+\s+-?\d+(\.\d+)?(\s|$)")
#: A record of PBS or Torque, or of LSF.
_RECORD = re.compile(rb'\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;\w;|"[A-Z_]+" "[\d.]+" \d+ ')
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
QUERIES = _imported("queries", "a table of queries")
SWF = FileKind(
    "swf",
    "a log of a batch cluster (SWF)",
    "parcae simulate --world rigid --swf PATH --policy easy",
)
ACCOUNTING = FileKind("swf", "the accounting of a batch cluster", SWF.reads)
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
    """The first 64 KiB of a file, decompressed."""
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
    # Simulators begin with a line of column names.
    if _SWF_LINE.match(first) or first.split()[1:2] == [b"submit"]:
        return SWF
    if _RECORD.match(first):
        return ACCOUNTING
    if _ALIBABA_ROW.match(first):
        return ALIBABA
    columns = {
        word.strip().strip('"').lower() for word in re.split(r"[,;|\t]", first.decode("latin-1"))
    }
    if "task_name" in columns:
        return ALIBABA
    if {"job", "stage"} <= columns:
        return CSV
    # Redset, Snowset, Bendset.
    if columns & {"arrival_timestamp", "createdtime", "query_start_time"}:
        return QUERIES
    # Without --parsable2, sacct separates columns by spaces: the reader says so.
    is_sacct = "jobid" in columns or first.lower().startswith(b"jobid ")
    return ACCOUNTING if is_sacct or any(name.startswith("submit") for name in columns) else None


def who_reads(path: Path, not_format: str) -> str:
    """What to say about a file that the reader of `not_format` refused; "" if nothing is known."""
    kind = guess_format(path)
    # A Parquet file is a table of either kind.
    is_either = kind is PARQUET and not_format == QUERIES.format
    if kind is None or kind.format == not_format or is_either:
        return ""
    return f"it looks like {kind.called}: {kind.reads.replace('PATH', str(path))}"


def saying_what_reads(format_name: str) -> Callable[[Reading], Reading]:
    """A decorator of readers: errors about the format of a file say what reads the file.

    The reader's first argument is a path or a list of paths.

    Example: after `@saying_what_reads("swf")`, a reader of SWF that refuses an event log adds "it
    looks like a Spark event log: parcae workload import spark-events ...".
    """

    def decorated(read: Reading) -> Reading:
        @wraps(read)
        def reading(paths: Any, /, *args: Any, **options: Any) -> Any:
            try:
                return read(paths, *args, **options)
            except FormatError as error:
                given = [paths] if isinstance(paths, str | Path) else paths
                hints = (who_reads(Path(path), format_name) for path in given)
                hint = next(filter(None, hints), "")
                if not hint or hint in str(error):
                    raise
                raise FormatError(f"{error}; {hint}") from error

        return cast(Reading, reading)

    return decorated


Read = Callable[..., tuple[Workload, ImportReport]]
"""A function that reads a workload.

Called as `read(path, name=..., progress=..., **options)`: `path` is a list of paths if the reader
takes many, and `progress(done, total)` may be called while it reads.
"""


@dataclass(frozen=True)
class ReaderOption:
    """An option of a reader beside the name of the workload.

    Args:
        name: the reader's keyword argument; on the command line, with dashes for underscores.
        type: bool, int, float or str.
        default: the value if the option is not given; None for none.
        help: what the option does.
        bounds: the smallest and the largest number.
        useless_with: name of another option, with which this one has no effect.
        is_file: whether it names a file to read, which the output must not replace.
    """

    name: str
    type: type[bool] | type[int] | type[float] | type[str]
    default: Any
    help: str
    bounds: tuple[float | None, float | None] = (None, None)
    useless_with: str | None = None
    is_file: bool = False


@dataclass(frozen=True)
class Reader:
    """A row of the table.

    Args:
        format: what the format is called on the command line, e.g. "alibaba".
        summary: what is imported, in one sentence.
        source: what the paths are.
        example: the path or paths in the command's example.
        read: the function, or "module:function" so that it is imported only where it is used.
        name: name of the workload unless another is given.
        takes_many: whether several paths can be read into one workload.
        options: its further options.
        takes_url: whether it reads from a web address, not from a path.
    """

    format: str
    summary: str
    source: str
    example: str
    read: Read | str
    name: str
    takes_many: bool = False
    options: tuple[ReaderOption, ...] = ()
    takes_url: bool = False


#: How much of an input may be invalid; an option of several readers.
BAD_SHARE = ReaderOption(
    "max_bad_share", float, 0.01, "Fail if more than this share of the rows is invalid.", (0, 1)
)
_RECORDED = ReaderOption(
    "recorded",
    bool,
    False,
    "Keep every run as a separate job with its arrival time, instead of recurring jobs.",
)
KEY_HELP = (
    "Spark property that names the recurring job; or plan | shape: name SQL queries by their "
    "physical plan."
)
USER_HELP = (
    "Only jobs of users that fit this pattern: those whom a server names, else who submitted the "
    "application: 'etl-*'."
)
QUEUE_HELP = "Only applications in YARN's queues that fit this pattern: 'root.etl*'."
_SPARK_OPTIONS = (
    ReaderOption("key", str, None, KEY_HELP),
    ReaderOption("user", str, None, USER_HELP),
    ReaderOption("queue", str, None, QUEUE_HELP),
    _RECORDED,
    ReaderOption(
        "keep_first_runs",
        bool,
        False,
        "Include a job's first run in each application in its profile (it is slower).",
        useless_with="recorded",
    ),
    BAD_SHARE,
)
_HISTORY_OPTIONS = (
    ReaderOption(
        "min_date", str, None, "Earliest start of an application: 2026-03-31 or 2026-03-31T18:00."
    ),
    ReaderOption("max_date", str, None, "Latest start of an application."),
    ReaderOption("limit", int, None, "Read this many applications, the newest first.", (1, None)),
    ReaderOption(
        "applications", str, None, "Read applications whose names match this pattern: 'nightly-*'."
    ),
    ReaderOption("max_mib", float, 4096.0, "Download at most this many MiB.", (1, None)),
    ReaderOption("max_minutes", float, 60.0, "Download for at most this long.", (0, None)),
    ReaderOption(
        "folder", str, None, "Keep the downloaded logs here, and download only those not yet there."
    ),
)
_TABLE_OPTIONS = (
    ReaderOption(
        "unit", str, None, "Unit of times in columns whose names do not end in one: ms, s or min."
    ),
    ReaderOption(
        "columns",
        str,
        None,
        "Names of the columns where they differ, as MEANING=COLUMN,...: user=run_by.",
    ),
    _RECORDED,
    BAD_SHARE,
)
_QUERY_OPTIONS = (
    ReaderOption(
        "width", int, None, "Cores that a query without CPU time keeps busy, e.g. 8.", (1, 100_000)
    ),
    ReaderOption("cluster", str, None, "Only queries that ran on this cluster."),
    *_TABLE_OPTIONS,
)


def _table_reader(format_name: str, called: str, ending: str) -> Reader:
    return Reader(
        format_name,
        f"Import a table of stages, as {called}: one row for each stage of each run.",
        f"The table ({ending}), with columns job, name, stage, parents, tasks, durations, arrival.",
        f"stages{ending} -o mine.parcae",
        f"parcae.workloads.stage_table:read_{format_name}_stages",
        "stages",
        options=_TABLE_OPTIONS,
    )


_READERS = (
    Reader(
        "spark-events",
        "Import Spark event logs (Spark 1.3 to 4.x; in all codecs; rolling; hourly; cut off).",
        "Event logs, rolling log folders, or folders of them.",
        "/var/log/spark-events -o mine.parcae",
        "parcae.workloads.spark_log.event_log:read_spark_event_logs",
        "spark",
        takes_many=True,
        options=_SPARK_OPTIONS,
    ),
    Reader(
        "spark-history",
        "Import the event logs of a Spark History Server, by its REST interface.",
        "The server's address, http://HOST:18080.",
        "http://history:18080 -o mine.parcae --min-date 2026-03-01",
        "parcae.workloads.spark_log.history:read_history_server",
        "spark",
        options=(*_HISTORY_OPTIONS, *_SPARK_OPTIONS),
        takes_url=True,
    ),
    _table_reader("csv", "CSV", ".csv"),
    _table_reader("parquet", "Parquet", ".parquet"),
    _table_reader("json", "JSON or JSON lines", ".json"),
    Reader(
        "queries",
        "Import tables of queries (CSV, Parquet, JSON): Redset, Snowset, Bendset, or your own.",
        "The tables, with columns arrival, duration, cpu, user, fingerprint, bytes, ...",
        "part-0.parquet part-1.parquet --width 8 --recorded -o mine.parcae",
        "parcae.workloads.query_table:read_queries",
        "queries",
        takes_many=True,
        options=_QUERY_OPTIONS,
    ),
)
_REGISTERED: list[Reader] = []


def readers() -> tuple[Reader, ...]:
    """All readers: those for Spark and tables, those of other packages, registered ones."""
    return (*_READERS, *rows("readers"), *_REGISTERED)


def register_reader(reader: Reader) -> None:
    """Add a reader for as long as the program runs."""
    if any(other.format == reader.format for other in readers()):
        raise ConfigError(f"there is a reader of {reader.format!r} already; choose another name")
    _REGISTERED.append(reader)


def find_reader(format_name: str) -> Reader:
    """Return the reader of a format, or one that `module:attribute` names.

    The attribute is a `Reader`, or a function that reads one path.
    """
    for reader in readers():
        if reader.format == format_name:
            return reader
    if is_reference(format_name):
        found = load(format_name, "reader")
        if isinstance(found, Reader):
            return found
        if callable(found):
            word = format_name.partition(":")[2]
            return Reader(format_name, f"Import with {format_name}.", "The path.", "", found, word)
        raise ConfigError(
            f"reader {format_name!r} is {found!r}: give a parcae.workloads.readers.Reader or a "
            "function of a path"
        )
    hint = suggestion(format_name, [reader.format for reader in readers()])
    raise ConfigError(f"no reader of {format_name!r}; {hint}")


def read_workload(
    format_name: str,
    paths: Sequence[Path | str],
    *,
    name: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[Workload, ImportReport]:
    """Read a workload from files of another format.

    Example: `read_workload("alibaba", [Path("batch_task.csv")], max_bad_share=0.1)`
    """
    reader = find_reader(format_name)
    known = [option.name for option in reader.options]
    for option in options:
        if option not in known:
            hint = suggestion(option, known)
            raise ConfigError(f"the reader of {format_name!r} has no option {option!r}; {hint}")
    if not reader.takes_many and len(paths) != 1:
        raise ConfigError(f"{format_name} is read from one path, not from {len(paths)}")
    given = [path if reader.takes_url or address_of(path) else Path(path) for path in paths]
    source = given if reader.takes_many else given[0]
    read: Read = saying_what_reads(format_name)(import_function(reader.read))
    return read(source, name=name or reader.name, progress=progress, **options)
