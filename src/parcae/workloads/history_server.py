"""A client of the REST interface of Spark's History Server: lists applications, downloads logs."""

from __future__ import annotations

import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from parcae.errors import ConfigError, FormatError
from parcae.files import replacing
from parcae.loader import parsed_json
from parcae.units import BYTES_PER_MIB

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

    Args:
        url: its address; a path to one of its pages is cut off.
        max_bytes: largest sum of the archives that are downloaded.
        max_s: longest time for everything, in seconds.

    Raises:
        ConfigError: no web address.
    """

    def __init__(self, url: str, max_bytes: int, max_s: float) -> None:
        self.url = _base(url)
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._deadline = time.monotonic() + max_s

    def applications(self, query: Mapping[str, str]) -> list[ServedApplication]:
        """The applications that fit a query, the newest first.

        Raises:
            FormatError: no server answers, or none with this interface.
        """
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
        """Download the archive of a log; the file is complete or not there.

        Raises:
            LogNotThere: the server cannot give the log.
            ConfigError: more data or more time than allowed.
            FormatError: the connection broke, or no archive.
            OSError: the file cannot be written.
        """
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
