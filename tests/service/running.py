"""Servers in threads of their own, and services in the main thread that end by a condition."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from parcae.service.client import Client
from parcae.service.protocol import Error, Hello, new_nonce
from parcae.service.server import Server, ServerConfig
from parcae.service.session import Service
from tests.service.speaking import service_of


@contextmanager
def serving(service: Service | None = None, **settings: Any) -> Iterator[Server]:
    """A running server of the service, or of fair sharing, in a thread of its own."""
    started: list[Server] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        server = Server(service or service_of(), ServerConfig(**settings))
        await server.start()
        started.append(server)
        ready.set()
        await server.run_until_stopped()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert ready.wait(60), "the server did not start within a minute"
    try:
        yield started[0]
    finally:
        loop.call_soon_threadsafe(started[0].request_stop)
        thread.join(30)


@contextmanager
def connected(
    server: Server, application: str = "app", secret: bytes | None = None, **how: Any
) -> Iterator[Client]:
    """A client that the server has welcomed."""
    with Client("127.0.0.1", server.port, timeout_s=60.0, **how) as client:
        client.greet(hello(application), secret)
        yield client


def hello(application: str = "app") -> Hello:
    return Hello(protocol=2, application_id=application, nonce=new_nonce())


def refused(client: Client) -> Error:
    """The error that the client gets next."""
    reply = client.receive()
    assert isinstance(reply, Error)
    return reply


def stop_service() -> None:
    """Stop the service that runs in the main thread of this process, as a shell would."""
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def stopped_when(condition: Callable[[], object]) -> Iterator[None]:
    """Stop the service that the block runs as soon as the condition holds.

    The condition must not hold before the service has answered a client: the service listens to
    signals from then on.
    """
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            if condition():
                stop_service()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
