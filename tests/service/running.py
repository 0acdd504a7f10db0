"""A server in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from parcae.base.errors import ConfigError
from parcae.service.server import Server


def serve_in_thread(make: Callable[[], Server]) -> tuple[Server, Callable[[], None]]:
    """Run a server in a new thread, which the caller stops.

    Args:
        make: makes the server; called in that thread.

    Returns:
        the server, and a function that stops it.

    Raises:
        ConfigError: the server did not start within a minute.
    """
    started: list[Server] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        server = make()
        await server.start()
        started.append(server)
        ready.set()
        await server.run_until_stopped()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    if not ready.wait(60):
        raise ConfigError("the server did not start within a minute")

    def stop() -> None:
        loop.call_soon_threadsafe(started[0].request_stop)
        thread.join(30)

    return started[0], stop
