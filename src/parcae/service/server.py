"""`Server`: serves sessions over TCP, with limits on time, memory and message rate per client.

A plan takes well under a millisecond, so plans run in the thread of the event loop. A client that
stalls, sends too much or sends invalid messages affects only itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path

from parcae.errors import ConfigError, ProtocolError
from parcae.service.frames import MAX_FRAME_BYTES, FrameReader, frame
from parcae.service.protocol import Code, Error, ServerMessage, Then, encode
from parcae.service.session import Service, Session

_LOG = logging.getLogger(__name__)
_CHUNK = 1 << 16
#: Shortest secret that is accepted.
_MIN_SECRET_BYTES = 16


@dataclass(frozen=True)
class ServerConfig:
    """Address and limits of the server.

    Args:
        host: address to listen on; without a secret it must be a loopback address.
        port: port to listen on; 0 takes a free one.
        secret: the secret that clients must prove to know, or None.
        tls_cert, tls_key: PEM files; both or none.
        max_frame_bytes: largest frame that a client may send.
        max_connections: number of connections; more are refused with `busy`.
        max_waiting_bytes: a client with more unread bytes of replies is dropped.
        messages_per_s: rate limit of a connection; messages beyond it are read later.
        hello_timeout_s: time from the connection until the session must be open.
        idle_timeout_s: a client that is silent for longer is dropped.
        write_timeout_s: a client that does not read a reply for longer is dropped.

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
    max_waiting_bytes: int = 4 << 20
    messages_per_s: float = 20_000.0
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
        """The TLS settings with the certificate, or None without TLS.

        Raises:
            ConfigError: the files are not a certificate and its key.
            OSError: a file cannot be read.
        """
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
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_secret(path: Path) -> bytes:
    """Read the secret in a file, without white space at its end.

    Raises:
        ConfigError: the secret is shorter than 16 bytes.
        OSError: the file cannot be read.
    """
    secret = path.read_bytes().rstrip()
    if len(secret) < _MIN_SECRET_BYTES:
        raise ConfigError(
            f"{path}: a secret of {len(secret)} bytes; it needs {_MIN_SECRET_BYTES} at least "
            "(make one with: openssl rand -hex 32)"
        )
    return secret


@dataclass
class _Connection:
    """One connection: its streams, its session and its rate limit (a token bucket)."""

    session: Session
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    config: ServerConfig
    allowance: float = field(init=False)
    refilled_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.allowance = self.config.messages_per_s

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
        """Wait until the client has read most of its replies.

        Raises:
            TimeoutError: it does not read them in time.
        """
        async with asyncio.timeout(self.config.write_timeout_s):
            await self.writer.drain()

    async def pause(self) -> None:
        """Wait if the client sends messages faster than its rate limit."""
        now_s = time.monotonic()
        rate = self.config.messages_per_s
        self.allowance = min(rate, self.allowance + (now_s - self.refilled_s) * rate) - 1.0
        self.refilled_s = now_s
        if self.allowance < 0:
            await asyncio.sleep(-self.allowance / rate)


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
        """Start to listen.

        Raises:
            OSError: the address is in use or does not belong to this machine.
        """
        context = self.config.ssl_context()
        self._server = await asyncio.start_server(
            self._serve, self.config.host, self.config.port, ssl=context, limit=_CHUNK, backlog=512
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection from its beginning to its end."""
        task = asyncio.current_task()
        assert task is not None
        # Too many clients: send the reason, and do not read anything.
        if len(self._connections) >= self.config.max_connections:
            self.num_refused += 1
            message = f"{self.config.max_connections} clients are connected; try again later"
            writer.write(frame(encode(Error(code=Code.BUSY, message=message, then=Then.CLOSE))))
            writer.close()
            return
        connection = _Connection(self.service.open(), reader, writer, self.config)
        connection.session.redirect(connection.send)
        self._connections[task] = connection
        try:
            await self._converse(connection)
        except TimeoutError:  # the client does not read: `close` would wait for that forever
            writer.transport.abort()
        except (ConnectionError, ssl.SSLError, asyncio.CancelledError):
            pass
        finally:
            del self._connections[task]
            connection.session.close()
            writer.close()

    async def _converse(self, connection: _Connection) -> None:
        """Read and answer messages until the session or the connection is closed.

        Raises:
            TimeoutError: the client does not read its replies.
        """
        frames = FrameReader(self.config.max_frame_bytes)
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
                connection.send(
                    session.refuse(
                        ProtocolError(Code.TIMEOUT, "the client sent no message for too long")
                    )
                )
                break
            if not data:
                return
            await self._answer(connection, frames, data)
        await connection.flush()

    async def _answer(self, connection: _Connection, frames: FrameReader, data: bytes) -> None:
        """Answer all messages that are complete with the new data."""
        session = connection.session
        try:
            payloads = frames.feed(data)
        except ProtocolError as error:
            connection.send(session.refuse(error))
            return
        for payload in payloads:
            await connection.pause()
            for reply in session.receive(payload):
                connection.send(reply)
            await connection.flush()
            if session.is_closed:
                return

    def request_stop(self) -> None:
        """Make `run_until_stopped` return."""
        self._stopped.set()

    async def run_until_stopped(self, for_s: float | None = None) -> None:
        """Serve until SIGTERM, Ctrl-C, `request_stop` or, if given, `for_s` seconds have passed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Handlers cannot be added on Windows, nor outside the main thread.
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(number, self.request_stop)
        try:
            async with asyncio.timeout(for_s):
                await self._stopped.wait()
        except TimeoutError:
            pass
        await self.stop()

    async def stop(self) -> None:
        """Send `closing` to every client and close all connections."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections)
        for connection in list(self._connections.values()):
            connection.session.dismiss(
                Code.CLOSING, "the service shuts down; use your own order and connect again later"
            )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
