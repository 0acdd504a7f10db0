"""The admin side over HTTP: /health, /metrics for Prometheus, the live page and its event stream.

It listens on the loopback address only and is read-only. To reach it from another machine, use a
tunnel.
"""

from __future__ import annotations

import asyncio
import time
from importlib.resources import files
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from parcae.service.board import Board
from parcae.service.server import Server
from parcae.version import __version__

_HOST = "127.0.0.1"
#: Shortest time between two pictures of the state, in s.
_REFRESH_S = 0.25
#: Longest share of the event loop's time that is spent on pictures.
_SHARE = 0.05
#: Seconds without data after which a comment keeps the stream alive.
_ALIVE_S = 15.0
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:"
)
_NAMES = ("127.0.0.1", "localhost", "[::1]")


@web.middleware
async def _only_here(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests for another host name: they come from a foreign page by DNS rebinding."""
    if request.host.rsplit(":", 1)[0] not in _NAMES:
        raise web.HTTPForbidden(text="use http://127.0.0.1 or http://localhost for this page\n")
    return await handler(request)


class Admin:
    """The HTTP server beside a `Server`.

    Args:
        server: the server whose service is shown.
        board: source of the figures; must be a watcher of that service.
        port: port on the loopback address; 0 takes a free one.
    """

    def __init__(self, server: Server, board: Board, port: int) -> None:
        self.server = server
        self.board = board
        self._port = port
        self._page = files("parcae.service").joinpath("page.html").read_text()
        self._runner: web.AppRunner | None = None
        self._picture = b""  # the state as JSON, once for all viewers
        self._shown = -1  # the board's version that it shows
        self._next_s = 0.0  # when it may be taken again

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._runner is not None
        return int(self._runner.addresses[0][1])

    async def start(self) -> None:
        """Start to listen.

        Raises:
            OSError: the port is in use.
        """
        app = web.Application(middlewares=[_only_here])
        app.router.add_get("/", self._show)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/state", self._state)
        app.router.add_get("/events", self._events)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, _HOST, self._port).start()

    async def stop(self) -> None:
        """Stop the HTTP server."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _show(self, request: web.Request) -> web.Response:
        headers = {
            "Content-Security-Policy": _POLICY,
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }
        return web.Response(text=self._page, content_type="text/html", headers=headers)

    async def _health(self, request: web.Request) -> web.Response:
        service = self.server.service
        return _json(
            {
                "status": "ok",
                "parcae": __version__,
                "policy": service.policy_name,
                "sessions": len(service.sessions),
                "connections": self.server.num_connections,
                "fallbacks": service.counts.fallbacks,
            }
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self.board.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def _state(self, request: web.Request) -> web.Response:
        return web.Response(body=self._current(), content_type="application/json")

    def _current(self) -> bytes:
        """The state as JSON: a new picture if it has changed and the last one is old enough."""
        start_s = time.monotonic()
        if self.board.version != self._shown and start_s >= self._next_s:
            self._shown = self.board.version
            self._picture = orjson.dumps(self.board.snapshot())
            took_s = time.monotonic() - start_s
            self._next_s = start_s + max(_REFRESH_S, took_s / _SHARE)
        return self._picture

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: the whole state when it has changed, at most four times a second."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        seen = b""
        silent_s = 0.0
        try:
            while True:
                picture = self._current()
                if picture is not seen:
                    seen = picture
                    silent_s = 0.0
                    await response.write(b"data: " + picture + b"\n\n")
                elif silent_s >= _ALIVE_S:
                    silent_s = 0.0
                    await response.write(b": still here\n\n")
                await asyncio.sleep(_REFRESH_S)
                silent_s += _REFRESH_S
        except (ConnectionError, asyncio.CancelledError):
            return response


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json")
