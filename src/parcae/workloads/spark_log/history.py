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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from parcae.base.errors import ConfigError, FormatError
from parcae.base.files import check_folder, replacing
from parcae.base.loader import parsed_json
from parcae.base.texts import BYTES_PER_MIB
from parcae.workloads.import_report import ImportReport, Progress, counted
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


class ServedLog(NamedTuple):
    """The log of one attempt of an application.

    `address` is its path below that of the interface, `file_name` the name of its archive.
    """

    address: str
    file_name: str


class ServedApplication(NamedTuple):
    """An application of the server's list, with the logs of its completed attempts."""

    name: str
    logs: list[ServedLog]


class HistoryServer:
    """A History Server.

    Raises:
        ConfigError: no web address.
    """

    def __init__(self, url: str, max_mib: float, max_minutes: float) -> None:
        self.url = _base(url)
        self._max_mib = max_mib
        self._num_bytes = 0
        self._deadline = time.monotonic() + 60 * max_minutes

    def applications(self, query: Mapping[str, str]) -> list[ServedApplication]:
        """The applications that fit a query, the newest first."""
        content = b""
        for piece in self._pieces(f"applications?{urlencode(query)}"):
            content += piece
            if len(content) > _LIST_BYTES:
                raise FormatError(
                    f"{self.url}: a list of more than 64 MiB; give --min-date and --max-date"
                )
        try:
            return [_application(one) for one in parsed_json(self.url, content, _LAYOUT)]
        except (FormatError, LookupError, TypeError, AttributeError):
            raise FormatError(
                f"{self.url}: this is no History Server: its list of applications is not {_LAYOUT}"
            ) from None

    def download(self, log: ServedLog, path: Path) -> None:
        """Download the archive of a log; the file is complete or not there."""
        with replacing(path) as stream:
            pieces = self._pieces(log.address)
            for index, piece in enumerate(pieces):
                if index == 0 and not piece.startswith(_ZIP_MAGIC):
                    raise FormatError(f"{self.url}: {log.address} is no zip archive of event logs")
                self._num_bytes += len(piece)
                if self._num_bytes > self._max_mib * BYTES_PER_MIB:
                    raise ConfigError(
                        f"{self.url}: the logs are larger than {self._max_mib:g} MiB; "
                        "choose fewer by --min-date, --applications or --limit, or raise --max-mib"
                    )
                stream.write(piece)

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise ConfigError(
                f"{self.url}: the download takes longer than --max-minutes allows; choose fewer "
                "applications by --min-date or --limit, or raise it"
            )

    def _pieces(self, address: str) -> Iterator[bytes]:
        """A response in pieces; everything that can go wrong with a connection is one error."""
        self._check_time()
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/{address}", timeout=SILENCE_S
            ) as response:
                while piece := response.read1(_CHUNK_BYTES):
                    # A server that sends a few bytes a minute is stopped, too.
                    self._check_time()
                    yield piece
                # `length` is what a server that announced its size still owes.
                if response.length:
                    raise FormatError(f"{self.url}: the connection broke; try again")
        except urllib.error.HTTPError as error:
            raise self._refused(address, error) from None
        # A host that no name can have is a ValueError.
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise FormatError(f"{self.url}: {_problem(error)}") from None

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
    logs = []
    for attempt in entry["attempts"]:
        if attempt.get("completed", True):
            # Attempts have ids only on some kinds of clusters.
            ids = [str(entry["id"]), *map(str, filter(None, [attempt.get("attemptId")]))]
            address = "/".join(quote(part, safe="") for part in ["applications", *ids, "logs"])
            file_name = re.sub(r"[^\w.-]", "-", "_".join(ids)) + ".zip"
            logs.append(ServedLog(address, file_name))
    return ServedApplication(str(entry["name"]), logs)


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


#: A PiB and a year: no real limits.
_MOST_MIB = 2**30
_MOST_MINUTES = 366 * 24 * 60


def list_query(min_date: str | None, max_date: str | None) -> dict[str, str]:
    """The parameters of the server's list of applications that started in these dates."""
    first = _moment("--min-date", min_date)
    last = _moment("--max-date", max_date)
    if last and len(str(max_date)) <= len("2026-03-31"):
        # A day without a time ends with its last moment.
        last = last.replace(hour=23, minute=59, second=59, microsecond=999_000)
    if first and last and first > last:
        raise ConfigError(f"--min-date {min_date} is after --max-date {max_date}")
    # As Spark parses times: 2015-02-03T16:42:40.000GMT.
    given = {
        name: f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}GMT"
        for name, moment in (("minDate", first), ("maxDate", last))
        if moment
    }
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
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def read_history_server(
    url: str,
    *,
    name: str = "spark",
    progress: Progress | None = None,
    min_date: str | None = None,
    max_date: str | None = None,
    limit: int | None = None,
    applications: str | None = None,
    max_mib: float = 4096.0,
    max_minutes: float = 60.0,
    folder: str | None = None,
    **options: Any,
) -> tuple[Workload, ImportReport]:
    """Read the event logs of a History Server into a workload. Returns the workload and the import
    report.

    Further options are those of `read_spark_event_logs`.

    Example: `read_history_server("http://history:18080", limit=10, key="plan")`.
    """
    query = list_query(min_date, max_date)
    if not (1 <= max_mib <= _MOST_MIB and 0 <= max_minutes <= _MOST_MINUTES):
        raise ConfigError(
            f"--max-mib must be from 1 to {_MOST_MIB:,}, --max-minutes from 0 to {_MOST_MINUTES:,}"
        )
    server = HistoryServer(url, max_mib, max_minutes)
    with tempfile.TemporaryDirectory(prefix="parcae-history-") as temporary:
        kept = Path(temporary if folder is None else folder)
        check_folder(kept)
        kept.mkdir(parents=True, exist_ok=True)
        listed = server.applications(query)
        pattern = applications or "*"
        fitting = [one for one in listed if fnmatch.fnmatchcase(one.name, pattern)][:limit]
        if not fitting:
            names = ", ".join(dict.fromkeys(one.name for one in listed[:20])) or "none"
            raise FormatError(
                f"{server.url}: no completed application fits (in these dates there are: {names}); "
                "check --applications, --min-date and --max-date"
            )
        chosen = [log for one in fitting for log in one.logs]
        logs, notes = _downloaded(server, chosen, kept, progress)
        workload, report = read_spark_event_logs(logs, name=name, progress=progress, **options)
    provenance = {**workload.provenance, "history_server": server.url}
    workload = replace(workload, provenance=provenance)
    return workload, replace(report, notes=(*notes, *report.notes))


def _downloaded(
    server: HistoryServer, chosen: Sequence[ServedLog], folder: Path, progress: Progress | None
) -> tuple[list[Path], list[str]]:
    """Download logs; notes say which were left out."""
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
        # For example the log of an application that wrote no event.
        except FormatError as error:
            notes.append(f"Left out {str(error).replace(f'{folder}/', '')}.")
    if not logs:
        raise FormatError(f"{server.url}: none of the logs can be read. {' '.join(notes[:3])}")
    return logs, [f"Downloaded {counted(len(logs), 'log')} from {server.url}.", *notes]
