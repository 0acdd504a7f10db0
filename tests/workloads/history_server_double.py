"""A small stock History Server for tests: it serves a list and event logs as zip archives."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Served:
    """What the server answers: by path below /api/v1, the status and the content.

    `requests` collects the paths that were asked for, with their parameters.
    """

    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, list[str]]]] = field(default_factory=list)
    missing_bytes: int = 0

    def add(self, application: str, name: str, log: bytes, attempt: str | None = None) -> None:
        """Serve an application with its event log."""
        listed = json.loads(self.answers.get("/applications", (200, b"[]"))[1])
        one = {"completed": True, "startTime": "2026-03-01T00:00:00.000GMT"}
        if attempt is not None:
            one["attemptId"] = attempt
        listed.append({"id": application, "name": name, "attempts": [one]})
        self.answers["/applications"] = (200, json.dumps(listed).encode())
        middle = f"/{attempt}" if attempt else ""
        self.answers[f"/applications/{application}{middle}/logs"] = (200, zipped(application, log))


def zipped(name: str, log: bytes) -> bytes:
    """A zip archive with one log, as the History Server makes it."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(name, log)
    return content.getvalue()


@contextmanager
def serving(served: Served) -> Iterator[str]:
    """Serve on a free port of this machine; yields the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            path = address.path.removeprefix("/api/v1")
            served.requests.append((path, parse_qs(address.query)))
            status, content = served.answers.get(path, (404, b"not here"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content) + served.missing_bytes))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
