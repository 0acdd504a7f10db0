"""Reads the event logs that Spark's History Server offers by its REST interface.

The logs of the chosen applications are downloaded as the server's zip archives and read by the
reader of event logs, so nothing is lost that the logs have.

Source: Spark, monitoring.md, "REST API": /applications and /applications/[app-id]/logs.
"""

from __future__ import annotations

import fnmatch
import http.client
import re
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from parcae.base.errors import ConfigError, FormatError
from parcae.base.files import check_folder, replacing
from parcae.base.loader import parsed_json
from parcae.base.texts import BYTES_PER_MIB
from parcae.workloads.import_report import ImportReport, counted
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.files import find_logs
from parcae.workloads.workload import Workload

#: A server that sends nothing for this long does not answer.
SILENCE_S = 60.0
_LIST_BYTES = 64 * BYTES_PER_MIB
_CHUNK_BYTES = BYTES_PER_MIB
_ZIP_MAGIC = b"PK"
_SERVER_ERRORS = 500
_LAYOUT = '[{"id": ..., "name": ..., "attempts": [...]}, ...]'


class LogNotThere(FormatError):
    """The server lists an application, but cannot give its log."""


@dataclass(frozen=True)
class ServedLog:
    """The log of one attempt of an application; `attempt` is None where attempts have no ids."""

    application: str
    attempt: str | None

    @property
    def address(self) -> str:
        """The path of the log, below that of the interface."""
        parts = ["applications", self.application, *([self.attempt] if self.attempt else [])]
        return "/".join(quote(part, safe="") for part in [*parts, "logs"])

    @property
    def file_name(self) -> str:
        """The name of its archive."""
        attempt = f"_{self.attempt}" if self.attempt else ""
        return re.sub(r"[^\w.-]", "-", f"{self.application}{attempt}") + ".zip"


@dataclass(frozen=True)
class ServedApplication:
    """An application of the server's list, with the logs of its completed attempts."""

    name: str
    logs: tuple[ServedLog, ...]


class HistoryServer:
    """A History Server.

    Raises:
        ConfigError: no web address.
    """

    def __init__(self, url: str, max_bytes: int, max_s: float) -> None:
        self.url = _base(url)
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._deadline = time.monotonic() + max_s

    def applications(self, query: Mapping[str, str]) -> list[ServedApplication]:
        """The applications that fit a query, the newest first."""
        pieces = []
        left = _LIST_BYTES
        for piece in self._pieces(f"applications?{urlencode(query)}"):
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                raise FormatError(
                    f"{self.url}: a list of more than 64 MiB; give --min-date and --max-date"
                )
        try:
            return [_application(one) for one in parsed_json(self.url, b"".join(pieces), _LAYOUT)]
        except (FormatError, LookupError, TypeError, AttributeError):
            raise FormatError(
                f"{self.url}: this is no History Server: its list of applications is not {_LAYOUT}"
            ) from None

    def download(self, log: ServedLog, path: Path) -> None:
        """Download the archive of a log; the file is complete or not there."""
        with replacing(path) as stream:
            is_first = True
            for piece in self._pieces(log.address):
                if is_first and not piece.startswith(_ZIP_MAGIC):
                    raise FormatError(f"{self.url}: {log.address} is no zip archive of event logs")
                is_first = False
                self._num_bytes += len(piece)
                self._check_size()
                stream.write(piece)

    def _check_size(self) -> None:
        if self._num_bytes > self._max_bytes:
            raise ConfigError(
                f"{self.url}: the logs are larger than {self._max_bytes / BYTES_PER_MIB:g} MiB; "
                "choose fewer by --min-date, --applications or --limit, or raise --max-mib"
            )

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise ConfigError(
                f"{self.url}: the download takes longer than --max-minutes allows; choose fewer "
                "applications by --min-date or --limit, or raise it"
            )

    def _pieces(self, address: str) -> Iterator[bytes]:
        """A response in pieces; everything that can go wrong with a connection is one error."""
        self._check_time()
        with self._opened(address) as response:
            while piece := self._read(response):
                # A server that sends a few bytes a minute is stopped, too.
                self._check_time()
                yield piece

    def _opened(self, address: str) -> http.client.HTTPResponse:
        try:
            response: http.client.HTTPResponse = urllib.request.urlopen(
                f"{self.url}/api/v1/{address}", timeout=SILENCE_S
            )
        except urllib.error.HTTPError as error:
            raise self._refused(address, error) from None
        # A host that no name can have is a ValueError.
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise FormatError(f"{self.url}: {_problem(error)}") from None
        return response

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            piece = response.read1(_CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise FormatError(f"{self.url}: {_problem(error)}") from None
        # `length` is what a server that announced its size still owes.
        if not piece and response.length:
            raise FormatError(f"{self.url}: the connection broke; try again")
        return piece

    def _refused(self, address: str, error: urllib.error.HTTPError) -> FormatError:
        what = f"HTTP {error.code} {error.reason}".strip()
        if error.code == HTTPStatus.NOT_FOUND and not address.endswith("/logs"):
            return FormatError(
                f"{self.url}: this is no History Server ({what} for /api/v1/applications); "
                "give its address and port, e.g. http://history:18080"
            )
        message = f"{self.url}: the server answers {what} for /api/v1/{address}"
        # A log that was deleted or cannot be read is the trouble of this log only.
        is_about_log = error.code == HTTPStatus.NOT_FOUND or error.code >= _SERVER_ERRORS
        return LogNotThere(message) if is_about_log else FormatError(message)


def _base(url: str) -> str:
    """The address of the server without the path of one of its pages."""
    expected = "expected the address of a History Server, http://HOST:18080"
    try:
        parts = urlsplit(url.strip())
    except ValueError as error:
        raise ConfigError(f"{url}: {expected} ({error})") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url}: {expected}")
    if "@" in parts.netloc:
        raise ConfigError(
            "names and passwords in an address are not supported; "
            "download the logs as zip archives and import them by spark-events"
        )
    path = re.split(r"/(?:api/v1|history)(?:/|$)", parts.path)[0].rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _application(entry: Any) -> ServedApplication:
    completed = [attempt for attempt in entry["attempts"] if attempt.get("completed", True)]
    logs = (ServedLog(str(entry["id"]), _text(one.get("attemptId"))) for one in completed)
    return ServedApplication(str(entry["name"]), tuple(logs))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _problem(error: Exception) -> str:
    """What went wrong with a connection, and what to do."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({reason.verify_message}); set SSL_CERT_FILE to the "
            "certificate of its authority"
        )
    if isinstance(reason, ssl.SSLError):
        return f"no TLS connection ({reason.reason or reason}); is it an http:// address?"
    if isinstance(reason, TimeoutError):
        return f"the server did not answer for {SILENCE_S:g} s"
    if isinstance(error, urllib.error.URLError):
        return f"no server answers ({reason}); check the address and the port (18080 by default)"
    if isinstance(error, ValueError | http.client.InvalidURL):
        return f"this is no valid address ({error})"
    return f"the connection broke ({type(error).__name__}: {error}); try again"


Progress = Callable[[int, int], None]
#: A PiB and a year: no real limits.
_MOST_MIB = 2**30
_MOST_MINUTES = 366 * 24 * 60


@dataclass(frozen=True)
class Wanted:
    """Which applications are read, and how much may be downloaded.

    Raises:
        ConfigError: a date that cannot be read, or an earliest date after the latest.
    """

    min_date: str | None = None
    max_date: str | None = None
    limit: int | None = None
    applications: str | None = None
    max_mib: float = 4096.0
    max_minutes: float = 60.0
    folder: str | None = None

    def __post_init__(self) -> None:
        first = _moment("--min-date", self.min_date)
        last = _last_moment("--max-date", self.max_date)
        if first and last and first > last:
            raise ConfigError(f"--min-date {self.min_date} is after --max-date {self.max_date}")
        if not (1 <= self.max_mib <= _MOST_MIB and 0 <= self.max_minutes <= _MOST_MINUTES):
            raise ConfigError(
                f"--max-mib must be from 1 to {_MOST_MIB:,}, --max-minutes from 0 to "
                f"{_MOST_MINUTES:,}"
            )

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the server's list of applications."""
        dates = {
            "minDate": _moment("--min-date", self.min_date),
            "maxDate": _last_moment("--max-date", self.max_date),
        }
        given = {name: _in_sparks_form(moment) for name, moment in dates.items() if moment}
        return {"status": "completed", **given}


def _moment(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{option} {text}: expected a date such as 2026-03-31 or 2026-03-31T18:00"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _last_moment(option: str, text: str | None) -> datetime | None:
    """The moment that a text names; the last one of the day if it names no time."""
    moment = _moment(option, text)
    if moment is None or text is None or len(text) > len("2026-03-31"):
        return moment
    return moment.replace(hour=23, minute=59, second=59, microsecond=999_000)


def _in_sparks_form(moment: datetime) -> str:
    """A time as Spark parses it: 2015-02-03T16:42:40.000GMT."""
    utc = moment.astimezone(UTC)
    return f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 1000:03}GMT"


def read_history_server(
    url: str, *, name: str = "spark", progress: Progress | None = None, **options: Any
) -> tuple[Workload, ImportReport]:
    """Read the event logs of a History Server into a workload. Returns the workload and the import
    report.

    Example: `read_history_server("http://history:18080", limit=10, key="plan")`.
    """
    choices = {field.name for field in fields(Wanted)}
    wanted = Wanted(**{option: value for option, value in options.items() if option in choices})
    reading = {option: value for option, value in options.items() if option not in choices}
    server = HistoryServer(url, round(wanted.max_mib * 2**20), 60 * wanted.max_minutes)
    with _folder(wanted.folder) as folder:
        logs, notes = _downloaded(server, wanted, folder, progress)
        workload, report = read_spark_event_logs(logs, name=name, progress=progress, **reading)
    provenance = {**workload.provenance, "history_server": server.url}
    workload = replace(workload, provenance=provenance)
    return workload, replace(report, notes=(*notes, *report.notes))


@contextmanager
def _folder(kept: str | None) -> Iterator[Path]:
    """The folder of the archives: the given one, or one that is deleted in the end."""
    if kept is not None:
        folder = Path(kept)
        check_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="parcae-history-") as temporary:
        yield Path(temporary)


def _downloaded(
    server: HistoryServer, wanted: Wanted, folder: Path, progress: Progress | None
) -> tuple[list[Path], list[str]]:
    """Download the logs of the wanted applications; notes say which were left out."""
    chosen = _chosen(server, wanted)
    logs = []
    notes = []
    for index, log in enumerate(chosen):
        if progress is not None:
            progress(index, len(chosen))
        path = folder / log.file_name
        try:
            if not path.exists():
                server.download(log, path)
        except LogNotThere as error:
            notes.append(f"Left out {error}.")
            continue
        try:
            find_logs([path])
            logs.append(path)
        # For example a compacted log, which the server gives like any other.
        except FormatError as error:
            notes.append(f"Left out {str(error).replace(f'{folder}/', '')}.")
    if not logs:
        raise FormatError(f"{server.url}: none of the logs can be read. {' '.join(notes[:3])}")
    return logs, [f"Downloaded {counted(len(logs), 'log')} from {server.url}.", *notes]


def _chosen(server: HistoryServer, wanted: Wanted) -> Sequence[Any]:
    """The logs of the applications that fit, the newest first."""
    listed = server.applications(wanted.query)
    pattern = wanted.applications or "*"
    fitting = [one for one in listed if fnmatch.fnmatchcase(one.name, pattern)][: wanted.limit]
    if not fitting:
        names = ", ".join(dict.fromkeys(one.name for one in listed[:20])) or "none"
        raise FormatError(
            f"{server.url}: no completed application fits (in these dates there are: {names}); "
            "check --applications, --min-date and --max-date"
        )
    return [log for one in fitting for log in one.logs]
