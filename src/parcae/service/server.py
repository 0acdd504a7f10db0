"""`Server`: serves sessions over TCP, with limits on time, memory and work per client.

A plan takes well under a millisecond, so messages are handled in the thread of the event loop.
Those of a client that needs more time are handled in a second thread, where they wait for each
other. A client that stalls, sends too much or sends invalid messages affects only itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import ssl
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from parcae.base.errors import ConfigError, ProtocolError
from parcae.base.loader import read_short
from parcae.service.protocol import (
    MAX_FRAME_BYTES,
    Code,
    Error,
    FrameReader,
    ServerMessage,
    Then,
    apart_from,
    encode,
    frame,
    tidy,
)
from parcae.service.session import Service, Session

_LOG = logging.getLogger(__name__)
_CHUNK = 1 << 16
#: Largest frame before the client was welcomed.
_FIRST_FRAME_BYTES = 4 << 10
#: Messages above this size are handled in the second thread.
_LARGE_BYTES = 16 << 10
#: A client whose last messages took longer than this has its next one handled there, too ...
_SLOW_S = 10e-3
#: ... if they were so many more than the quicker ones. One alone may have met a pause.
_MOST_SLOW = 2
#: And so has a client that needs more than this share of the event loop's time ...
_SHARE = 0.5
#: ... for longer than it may save up, in s.
_SAVED_S = 0.05
#: Time between two collections of all garbage, in s.
_TIDY_EVERY_S = 60.0
#: How long the event loop may wait for the interpreter while the second thread runs, in s.
_SWITCH_S = 1e-3
#: Shortest secret that is accepted.
_MIN_SECRET_BYTES = 16


@dataclass(frozen=True)
class ServerConfig:
    """Address and limits of the server.

    Raises:
        ConfigError: the host is not a loopback address and there is no secret, or only one of
            `tls_cert` and `tls_key` is given.
    """

    host: str = "127.0.0.1"
    port: int = 0
    secret: bytes | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    max_frame_bytes: int = MAX_FRAME_BYTES
    max_connections: int = 1_000
    max_strangers: int = 128
    max_waiting_bytes: int = 4 << 20
    hello_timeout_s: float = 10.0
    idle_timeout_s: float = 600.0
    write_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        if self.secret is None and not is_loopback(self.host):
            raise ConfigError(
                f"--host {self.host}: other machines could connect; give --secret-file, or use "
                "127.0.0.1"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key belong together; give both or none")

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS settings with the certificate, or None without TLS."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        for path in (self.tls_cert, self.tls_key):
            path.open("rb").close()  # `load_cert_chain` does not name the file in its error
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        except ssl.SSLError as error:
            raise ConfigError(
                f"{self.tls_cert}, {self.tls_key}: not a certificate and its key in PEM "
                f"({error.reason})"
            ) from None
        return context


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def read_secret(path: Path) -> bytes:
    """Read the secret in a file, without white space at its end."""
    secret = read_short(path).rstrip()
    if len(secret) < _MIN_SECRET_BYTES:
        raise ConfigError(
            f"{path}: a secret of {len(secret)} bytes; it needs {_MIN_SECRET_BYTES} at least "
            "(make one with: openssl rand -hex 32)"
        )
    return secret


@dataclass
class _Connection:
    """One connection: its streams, its session, and how much work it causes."""

    session: Session
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    config: ServerConfig
    lock: asyncio.Lock
    num_slow: int = 0  # slow messages, minus those that were not
    saved_s: float = _SAVED_S  # time on the event loop that it may use at once
    charged_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def push(self, message: ServerMessage) -> None:
        """Queue a message, from any thread."""
        if threading.get_ident() == self._thread:
            self.send(message)
        else:
            self._loop.call_soon_threadsafe(self.send, message)

    def send(self, message: ServerMessage) -> None:
        """Queue a message; drop a client with too many unread bytes."""
        transport = self.writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > self.config.max_waiting_bytes:
            _LOG.warning(
                "%s does not read its replies and was dropped",
                self.session.application or "a client",
            )
            transport.abort()
            return
        self.writer.write(frame(encode(message), 1 << 31))
        if isinstance(message, Error) and message.then is Then.CLOSE:
            self.writer.close()  # `close` first writes what is queued

    async def flush(self) -> None:
        """Wait until the client has read most of its replies."""
        async with asyncio.timeout(self.config.write_timeout_s):
            await self.writer.drain()

    def is_heavy(self, payload: bytes) -> bool:
        """Whether a message should not be handled in the event loop's thread."""
        return (
            len(payload) > _LARGE_BYTES
            or self.session.is_heavy
            or self.num_slow >= _MOST_SLOW
            or self.saved_s < 0.0
        )

    def charge(self, took_s: float, *, is_heavy: bool) -> None:
        """Note how long a message took, and where."""
        now_s = time.monotonic()
        earned_s = _SHARE * (now_s - self.charged_s)
        self.saved_s = min(_SAVED_S, self.saved_s + earned_s) - (0.0 if is_heavy else took_s)
        self.charged_s = now_s
        change = 1 if took_s > _SLOW_S else -1
        self.num_slow = min(_MOST_SLOW, max(0, self.num_slow + change))


async def _tidy_often() -> None:
    """Collect garbage from time to time; it takes 0.1 s where clients have very large states."""
    while True:
        await asyncio.sleep(_TIDY_EVERY_S)
        tidy()


def _timed(
    session: Session, payload: bytes, loop: asyncio.AbstractEventLoop | None = None
) -> tuple[list[ServerMessage], float]:
    """Handle a message; in the second thread, with the `loop` for which it makes way.

    Returns the replies, and the processor time that it took in s. Not the time on the clock: the
    thread may have waited for the other one.
    """
    start_s = time.thread_time()
    with apart_from(loop) if loop is not None else contextlib.nullcontext():
        return session.receive(payload), time.thread_time() - start_s


class Server:
    """Serves a `Service` over TCP.

    Example:
        server = Server(service, ServerConfig(port=7177))
        await server.start()
        await server.run_until_stopped()
    """

    def __init__(self, service: Service, config: ServerConfig) -> None:
        self.service = service
        self.config = config
        self.service.secret = config.secret
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._server: asyncio.Server | None = None
        self._stopped = asyncio.Event()
        self._cluster_lock = asyncio.Lock()
        # One thread: each further one would make the event loop wait longer for the interpreter.
        self._worker = ThreadPoolExecutor(1, "parcae-heavy")
        self.num_refused = 0

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def num_connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    async def start(self) -> None:
        """Start to listen; from now on SIGTERM and Ctrl-C end `run_until_stopped`."""
        context = self.config.ssl_context()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Handlers cannot be added on Windows, nor outside the main thread.
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(number, self.request_stop)
        sys.setswitchinterval(_SWITCH_S)
        tidy()
        host = self.config.host
        try:
            self._server = await asyncio.start_server(
                self._serve, host, self.config.port, ssl=context, limit=_CHUNK, backlog=512
            )
        except socket.gaierror as error:
            raise ConfigError(f"--host {host}: no address of this machine ({error})") from None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection from its beginning to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._drop_a_stranger()
        # Too many clients: send the reason, and do not read anything.
        if len(self._connections) >= self.config.max_connections:
            self.num_refused += 1
            message = f"{self.config.max_connections} clients are connected; try again later"
            writer.write(frame(encode(Error(code=Code.BUSY, message=message, then=Then.CLOSE))))
            writer.close()
            return
        is_shared = self.service.sharing is not None
        lock = self._cluster_lock if is_shared else asyncio.Lock()
        connection = _Connection(self.service.open(), reader, writer, self.config, lock)
        connection.session.outlet = connection.push
        self._connections[task] = connection
        try:
            await self._converse(connection)
        except TimeoutError:  # the client does not read: `close` would wait for that forever
            writer.transport.abort()
        except (ConnectionError, ssl.SSLError, asyncio.CancelledError):
            pass
        finally:
            self._connections.pop(task, None)
            async with lock:
                connection.session.close()
            writer.close()

    def _drop_a_stranger(self) -> None:
        """Make room for a new connection if too many have not been welcomed: drop the oldest."""
        strangers = [t for t, c in self._connections.items() if not c.session.is_open]
        if len(strangers) >= self.config.max_strangers:
            self._connections.pop(strangers[0]).writer.transport.abort()

    async def _converse(self, connection: _Connection) -> None:
        """Read and answer messages until the session or the connection is closed."""
        frames = FrameReader(_FIRST_FRAME_BYTES)
        session = connection.session
        begun_s = time.monotonic()
        while not session.is_closed:
            left_s = begun_s + self.config.hello_timeout_s - time.monotonic()
            try:
                async with asyncio.timeout(
                    self.config.idle_timeout_s if session.is_open else left_s
                ):
                    data = await connection.reader.read(_CHUNK)
            except TimeoutError:
                silence = ProtocolError(Code.TIMEOUT, "the client sent no message for too long")
                await self._refuse(connection, silence)
                break
            if not data:
                return
            try:
                await self._answer(connection, frames, data)
            except ProtocolError as error:
                await self._refuse(connection, error)
        await connection.flush()

    async def _refuse(self, connection: _Connection, error: ProtocolError) -> None:
        """Close the session and say why, when the second thread does not work on its cluster."""
        async with connection.lock:
            connection.send(connection.session.refuse(error))

    async def _answer(self, connection: _Connection, frames: FrameReader, data: bytes) -> None:
        """Answer all messages that are complete with the new data."""
        session = connection.session
        for payload in frames.feed(data):
            for reply in await self._receive(connection, payload):
                connection.send(reply)
            await connection.flush()
            if session.is_closed:
                return
            if session.is_open:
                frames.max_bytes = self.config.max_frame_bytes
            await asyncio.sleep(0)  # other clients first

    async def _receive(self, connection: _Connection, payload: bytes) -> list[ServerMessage]:
        """Handle a message in the thread that it is fit for. Returns the replies."""
        session = connection.session
        async with connection.lock:
            is_heavy = connection.is_heavy(payload)
            if is_heavy:
                loop = asyncio.get_running_loop()
                handling = loop.run_in_executor(self._worker, _timed, session, payload, loop)
                try:
                    replies, took_s = await asyncio.shield(handling)
                except asyncio.CancelledError:
                    await asyncio.wait([handling])
                    raise
            else:
                replies, took_s = _timed(session, payload)
            connection.charge(took_s, is_heavy=is_heavy)
        return replies

    def request_stop(self) -> None:
        """Make `run_until_stopped` return."""
        self._stopped.set()

    async def run_until_stopped(self, for_s: float | None = None) -> None:
        """Serve until SIGTERM, Ctrl-C, `request_stop` or, if given, `for_s` seconds have passed."""
        tidying = asyncio.create_task(_tidy_often())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), for_s)
        tidying.cancel()
        await self.stop()

    async def stop(self) -> None:
        """Send `closing` to every client and close all connections."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections)
        for connection in list(self._connections.values()):
            async with connection.lock:
                connection.session.dismiss(
                    Code.CLOSING,
                    "the service shuts down; use your own order and connect again later",
                )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._worker.shutdown(wait=False)
