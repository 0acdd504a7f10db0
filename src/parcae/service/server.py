"""`Server`: serves sessions over TCP, with limits on time, memory and work per peer.

A plan takes well under a millisecond, so messages are handled in the thread of the event loop. What
needs more time waits for its turn: see `turns`. A peer is an address; what its connections do
before they are welcomed is counted apart from what they do afterwards. Who stalls, sends too much
or sends invalid messages affects only itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ipaddress
import logging
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from parcae.base.errors import ConfigError, ProtocolError
from parcae.base.loader import read_short
from parcae.service.protocol import (
    MAX_FRAME_BYTES,
    Code,
    Error,
    FrameReader,
    ServerMessage,
    Then,
    encode,
    frame,
)
from parcae.service.session import Service
from parcae.service.turns import Account, PeerWork, Turns, tidy

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_LOG = logging.getLogger(__name__)
#: Largest frame before the client was welcomed.
_FIRST_FRAME_BYTES = 4 << 10
#: Messages above this size wait for their turn.
_LARGE_BYTES = 16 << 10
#: A message in memory is about so many times as large as its bytes.
_DECODED = 12
#: What glibc takes from the system, and gives back, by itself if it is told so: see malloc.h.
_MMAP_THRESHOLD = -3
_LARGE_TABLE_BYTES = 1 << 20
#: Time between two collections of all garbage, in s.
_TIDY_EVERY_S = 60.0
#: How long the event loop may wait for the interpreter while another thread runs, in s.
_SWITCH_S = 1e-3
#: Shortest secret that is accepted.
_MIN_SECRET_BYTES = 16
#: Connections that are accepted before the event loop does something else.
_MOST_ACCEPTED = 32
#: What a connection costs the stranger that opens it, in s: without and with a handshake.
_ACCEPT_S = 0.2e-3
_HANDSHAKE_S = 1e-3
#: How long the server waits for file descriptors, in s.
_OUT_OF_FILES_S = 0.1
#: Descriptors that are kept for other things than connections.
_OTHER_FILES = 32
#: How long clients have to read why the service ends, in s.
_FAREWELL_S = 0.5
_BACKLOG = 4_096
#: Shortest time between two looks at how long a client was silent, in s.
_LEAST_S = 0.02
#: Lines a kind and address, and in all, that the log gets in so many seconds.
_LOG_EVERY_S = 10.0
_MOST_LINES = 10


class LimitedLog:
    """Writes few lines about clients: one a kind and address in ten seconds, and ten in all."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._begun_s = now_s()
        self._said = set[tuple[str, str]]()
        self._num_left_out = 0

    def say(self, kind: str, host: str, text: str) -> None:
        """Write a line, or count it."""
        now_s = self._now_s()
        if now_s >= self._begun_s + _LOG_EVERY_S:
            if self._num_left_out:
                _LOG.warning("%d more lines like these were left out", self._num_left_out)
            self._begun_s, self._num_left_out = now_s, 0
            self._said.clear()
        if (kind, host) in self._said or len(self._said) >= _MOST_LINES:
            self._num_left_out += 1
            return
        self._said.add((kind, host))
        _LOG.warning("%s: %s", host or "the service", text)


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
    max_bytes: int = 1 << 30
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


class _Peer:
    """What connects from one address."""

    def __init__(self, server: Server) -> None:
        self.known = Account(server.all_peers)
        #: Of its connections that are not welcomed yet.
        self.strange = Account(server.all_peers)
        self.strangers: dict[_Connection, None] = {}  # the oldest first
        self.num_bytes = 0

    def is_gone(self, now_s: float) -> bool:
        """Whether nothing needs to be known of it any more."""
        return not self.strangers and not self.num_bytes and self.strange.has_saved(now_s)


class _Connection(asyncio.Protocol):
    """One connection: its bytes, its session, and what it may use."""

    transport: asyncio.Transport  # once it is made

    def __init__(self, server: Server, peer: _Peer, host: str) -> None:
        self.server = server
        self.peer = peer
        self.host = host
        self.session = server.service.open(self.push)
        self.session.later = self._refresh_soon
        self.shaking: asyncio.Task[None] | None = None
        self.num_bytes = 0
        self._state_bytes = 0
        self._account = Account(peer.strange)
        self._frames = FrameReader(_FIRST_FRAME_BYTES)
        self._work: PeerWork | None = None
        self._is_made = False
        self._is_busy = False
        self._is_stale = False  # its orders may have changed
        self._is_stuck = False  # it does not read its replies
        self._has_left = False
        self._begun_s = self._heard_s = self._stuck_s = server.loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._thread = threading.get_ident()

    # -- what the transport calls ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read, if there are not too many clients."""
        self.transport = cast("asyncio.Transport", transport)
        self._is_made = True
        self.transport.set_write_buffer_limits(1 << 16)
        self._watch()
        if self.server.num_welcomed >= self.server.most_welcomed:
            self.server.num_refused += 1
            message = f"{self.server.most_welcomed} clients are connected; try again later"
            self.dismiss(Code.BUSY, message)

    def data_received(self, data: bytes) -> None:
        """Handle what is complete."""
        self._heard_s = self.server.loop.time()
        self._frames.add(data)
        self._go_on()
        self._note_bytes()

    def pause_writing(self) -> None:
        """Handle no more messages of a client that does not read."""
        self.transport.pause_reading()
        self._is_stuck = True
        self._stuck_s = self.server.loop.time()
        self._watch()

    def resume_writing(self) -> None:
        """Go on with its messages."""
        self._is_stuck = False
        self._go_on()

    def eof_received(self) -> None:
        """End the session of a client that has said all, and close once it has its replies."""
        self._close()
        if not self._is_busy:
            self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        """End its work, and its session."""
        if self._timer is not None:
            self._timer.cancel()
        if self._work is not None:
            self._work.is_dropped = True
        self.server.forget(self)
        if not self._is_busy:
            self._leave()

    # -- messages ----------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Handle the next message that is complete, unless another one is being handled."""
        if self._is_over or self._is_busy or self._is_stuck:
            return
        # What comes meanwhile waits, and so does the end of what a client says.
        self.transport.pause_reading()
        if self._is_stale:
            self._is_stale = False
            self._handle(0, lambda: self._all_framed(self.session.refreshed()), in_turn=True)
            return
        try:
            payload = self._frames.take()
        except ProtocolError as error:
            self._refuse(error)
            return
        if payload is None:
            self.transport.resume_reading()
            return
        in_turn = (
            self.server.service.sharing is not None
            or len(payload) > _LARGE_BYTES
            or self.session.is_heavy
            or not self._account.has_saved(self.server.turns.now_s())
        )
        self._handle(
            len(payload), lambda: self._all_framed(self.session.receive(payload)), in_turn=in_turn
        )

    def _handle(self, size: int, run: Callable[[], list[bytes]], *, in_turn: bool) -> None:
        """Do a piece of work that ends with frames to send, at once or when it is our turn."""
        self._is_busy = True
        if in_turn:
            self.server.note_bytes(self, self.num_bytes + _DECODED * size)
            if self._is_over:  # that was too much
                self._is_busy = False
                self._leave()
                return
            done = cast("Callable[[object], None]", self._handled)
            self._work = self.server.turns.begin(self._account, size, run, done)
            return
        start_s = self.server.turns.spent_s()
        frames = run()
        self._account.spend(self.server.turns.spent_s() - start_s)
        self._send(frames)
        self.server.loop.call_soon(self._handled, [])  # other clients first

    def _handled(self, frames: list[bytes] | None) -> None:
        """Send what is to be sent, and go on."""
        self._work = None
        self._is_busy = False
        self._send(frames or [])
        session = self.session
        if session.is_open and self._account.whole is self.peer.strange:
            self._account = Account(self.peer.known)
            self._frames.max_bytes = self.server.config.max_frame_bytes
            self.server.welcome(self)
            self._watch()
        self._state_bytes = session.num_bytes
        self._note_bytes()
        if session.is_closed:
            self._close()
        if self._is_over:
            self._leave()
        else:
            self._go_on()

    def _refuse(self, error: ProtocolError) -> None:
        """Close the session and say why."""
        in_turn = self.session.is_open and self.server.service.sharing is not None
        self._handle(0, lambda: self._all_framed([self.session.refuse(error)]), in_turn=in_turn)

    def _all_framed(self, messages: list[ServerMessage]) -> list[bytes]:
        """The frames of messages; the log gets a line of a refusal."""
        for message in messages:
            if isinstance(message, Error) and message.code is not Code.CLOSING:
                self.server.say(message.code.value, self, message.message)
        return [_framed(message) for message in messages]

    def _leave(self) -> None:
        """Close the session of a connection that is lost; on a shared cluster, in its turn."""
        if self._has_left:
            return
        self._has_left = True
        service = self.server.service
        if not self.session.is_open or service.sharing is None or service.is_closing:
            self.session.close()
        else:
            self._is_busy = True
            self.server.turns.begin(self._account, 0, self.session.close, lambda _: None)

    def push(self, message: ServerMessage) -> None:
        """Send a message that is no reply, from any thread."""
        data = _framed(message)
        is_last = isinstance(message, Error) and message.then is Then.CLOSE
        if threading.get_ident() == self._thread:
            self._send([data], is_last=is_last)
        else:
            self.server.loop.call_soon_threadsafe(partial(self._send, [data], is_last=is_last))

    def _refresh_soon(self) -> None:
        """Send new orders when it is this client's turn; from any thread."""
        if not self._is_stale:
            self._is_stale = True
            self.server.loop.call_soon_threadsafe(self._go_on)

    def _send(self, frames: list[bytes], *, is_last: bool = False) -> None:
        """Send frames; drop a client with too many unread bytes."""
        if self._is_over:
            return
        for data in frames:
            self.transport.write(data)
        if self.transport.get_write_buffer_size() > self.server.config.max_waiting_bytes:
            self.server.say("unread", self, "it does not read its replies and was dropped")
            self.transport.abort()
        elif is_last:
            self._close()

    def _close(self) -> None:
        """Write what is queued, and close the connection."""
        if not self._is_over:
            self.transport.close()
            if self._timer is not None:
                self._timer.cancel()
            wait_s = self.server.config.write_timeout_s
            self._timer = self.server.loop.call_later(wait_s, self.transport.abort)

    # -- limits ------------------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        return not self._is_made or self.transport.is_closing()

    def _note_bytes(self) -> None:
        """Count what the connection holds in memory."""
        written = self.transport.get_write_buffer_size()
        self.server.note_bytes(self, self._frames.num_waiting + written + self._state_bytes)

    def dismiss(self, code: Code, why: str) -> None:
        """End the connection from the service's side, and say why."""
        if self._work is not None:
            self._work.is_dropped = True
        self._send(self._all_framed([Error(code=code, message=why, then=Then.CLOSE)]), is_last=True)
        if not self._is_busy:
            self._leave()

    def abort(self) -> None:
        """End the connection at once."""
        if self._is_made:
            self.transport.abort()
        elif self.shaking is not None:
            self.shaking.cancel()

    def _watch(self) -> None:
        """End a connection that was silent for too long or does not read; look again later."""
        if self._is_over:
            return
        if self._timer is not None:
            self._timer.cancel()
        config = self.server.config
        now_s = self.server.loop.time()
        if self._is_stuck and now_s >= self._stuck_s + config.write_timeout_s:
            self.transport.abort()
            return
        due_s = self._begun_s + config.hello_timeout_s
        if self.session.is_open:
            due_s = (now_s if self._is_busy else self._heard_s) + config.idle_timeout_s
        if now_s >= due_s and not self._is_busy:
            self._refuse(ProtocolError(Code.TIMEOUT, "the client sent no message for too long"))
            return
        if self._is_stuck:
            due_s = min(due_s, self._stuck_s + config.write_timeout_s)
        self._timer = self.server.loop.call_at(max(due_s, now_s + _LEAST_S), self._watch)


def _return_memory() -> None:
    """Have the memory of large tables that are gone returned to the system at once.

    The arenas of threads, from which glibc takes them after a while, keep it.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no glibc
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_TABLE_BYTES)


def _framed(message: ServerMessage) -> bytes:
    return frame(encode(message), 1 << 31)


def _peer_of(host: str) -> str:
    """The address by which a peer is known: of an IPv6 address, what its network gives."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.version == 6 and address.ipv4_mapped is None:
            return str(ipaddress.ip_network((address, 64), strict=False))
    return host


class Server:
    """Serves a `Service` over TCP.

    Example:
        server = Server(service, ServerConfig(port=7177))
        await server.start()
        await server.run_until_stopped()
    """

    loop: asyncio.AbstractEventLoop
    turns: Turns

    def __init__(self, service: Service, config: ServerConfig) -> None:
        self.service = service
        self.config = config
        self.service.secret = config.secret
        self.num_refused = 0
        self.most_welcomed = config.max_connections
        self.most_strangers = config.max_strangers
        self.all_peers = Account()
        self._peers: dict[str, _Peer] = {}
        #: Connections, and those of them that are not welcomed yet, by peer; the oldest first.
        self._connections: dict[_Connection, None] = {}
        self._num_strangers = 0
        self._num_bytes = 0
        self._listeners: list[socket.socket] = []
        self._context: ssl.SSLContext | None = None
        self._stopped = asyncio.Event()
        self._log = LimitedLog()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._listeners[0].getsockname()[1])

    @property
    def num_connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    @property
    def num_welcomed(self) -> int:
        """Number of connections of clients that were welcomed."""
        return len(self._connections) - self._num_strangers

    @property
    def num_bytes(self) -> int:
        """What all clients hold in memory."""
        return self._num_bytes

    def say(self, kind: str, connection: _Connection | None, text: str) -> None:
        """Have the log get a line about a client, unless it got many like it."""
        name = connection.session.application if connection is not None else ""
        line = f"{name!a}: {ascii(text[:200])[1:-1]}" if name else ascii(text[:200])[1:-1]
        self._log.say(kind, connection.host if connection is not None else "", line)

    # -- connections -------------------------------------------------------------------------------

    def attach(self, loop: asyncio.AbstractEventLoop, turns: Turns) -> None:
        """Use an event loop, and the turns beside it."""
        self.loop = loop
        self.turns = turns

    async def start(self) -> None:
        """Start to listen; from now on SIGTERM and Ctrl-C end `run_until_stopped`."""
        self._context = self.config.ssl_context()
        loop = asyncio.get_running_loop()
        most_threads = self.config.max_connections + self.config.max_strangers
        self.attach(loop, Turns(loop, most_threads))
        for number in (signal.SIGTERM, signal.SIGINT):
            # Handlers cannot be added on Windows, nor outside the main thread.
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(number, self.request_stop)
        loop.set_exception_handler(self._complain)
        self._limit_files()
        _return_memory()
        sys.setswitchinterval(_SWITCH_S)
        tidy()
        host = self.config.host
        try:
            found = await loop.getaddrinfo(
                host, self.config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except socket.gaierror as error:
            raise ConfigError(f"--host {host}: no address of this machine ({error})") from None
        for family, *_, address in dict.fromkeys(found):
            listener = socket.create_server(address, family=family, backlog=_BACKLOG)
            listener.setblocking(False)
            self._listeners.append(listener)
            self._listen(listener)

    def _limit_files(self) -> None:
        """Accept only as many clients as the process may have open files for."""
        if resource is None or not hasattr(resource, "getrlimit"):
            return
        each = 1 + sum(watcher.files_each for watcher in self.service.watchers)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _OTHER_FILES + self.config.max_strangers + each * self.config.max_connections
        if soft != resource.RLIM_INFINITY and soft < wanted:
            more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, more), hard))
            free = max(8, max(soft, more) - _OTHER_FILES)
            self.most_strangers = min(self.most_strangers, free // 4)
            self.most_welcomed = min(self.most_welcomed, (free - self.most_strangers) // each)

    def _listen(self, listener: socket.socket) -> None:
        if not self._stopped.is_set():
            self.loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept connections that wait."""
        for _ in range(_MOST_ACCEPTED):
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self.say("accept", None, f"no connection is accepted: {error}")
                self._drop_a_stranger()
                self.loop.remove_reader(listener)
                self.loop.call_later(_OUT_OF_FILES_S, self._listen, listener)
                return
            accepted.setblocking(False)
            connection = self.admit(str(address[0]))
            if connection is None:
                accepted.close()
            else:
                connection.shaking = self.loop.create_task(self._shake_hands(connection, accepted))

    def admit(self, host: str) -> _Connection | None:
        """A connection from an address; None if there were too many."""
        peer = self._peers.setdefault(_peer_of(host), _Peer(self))
        if not peer.strange.has_saved(self.turns.now_s()):
            self.num_refused += 1
            self._log.say("strangers", host, "it opens connections too fast; some are refused")
            return None
        peer.strange.spend(_ACCEPT_S if self._context is None else _HANDSHAKE_S)
        if self._num_strangers >= self.most_strangers:
            self._drop_a_stranger()
        connection = _Connection(self, peer, host)
        self._connections[connection] = peer.strangers[connection] = None
        self._num_strangers += 1
        return connection

    async def _shake_hands(self, connection: _Connection, accepted: socket.socket) -> None:
        """Give a connection its transport, after the handshake with TLS."""
        timeout_s = self.config.hello_timeout_s if self._context is not None else None
        try:
            await self.loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._context, ssl_handshake_timeout=timeout_s
            )
        except (OSError, asyncio.CancelledError):
            accepted.close()
            self.forget(connection)

    def _drop_a_stranger(self) -> None:
        """Make room for a connection: drop the oldest that is not welcomed, of who has the most."""
        peer = max(self._peers.values(), key=lambda one: len(one.strangers), default=None)
        if peer is not None and peer.strangers:
            stranger = next(iter(peer.strangers))
            self.forget(stranger)
            stranger.abort()

    def welcome(self, connection: _Connection) -> None:
        """Note that a connection is one of a client."""
        if connection in connection.peer.strangers:
            del connection.peer.strangers[connection]
            self._num_strangers -= 1

    def forget(self, connection: _Connection) -> None:
        """Forget a connection that is lost."""
        if connection in self._connections:
            self.note_bytes(connection, 0)
            self.welcome(connection)
            del self._connections[connection]

    def note_bytes(self, connection: _Connection, num_bytes: int) -> None:
        """Note what a connection holds; if all hold too much, the largest of the largest goes."""
        if connection not in self._connections:
            return
        change = num_bytes - connection.num_bytes
        connection.num_bytes += change
        connection.peer.num_bytes += change
        self._num_bytes += change
        while self._num_bytes > self.config.max_bytes:
            peer = max((one.peer for one in self._connections), key=lambda one: one.num_bytes)
            largest = max(
                (one for one in self._connections if one.peer is peer),
                key=lambda one: one.num_bytes,
            )
            if not largest.num_bytes:
                return
            held = largest.num_bytes
            self.note_bytes(largest, 0)
            largest.dismiss(
                Code.TOO_LARGE,
                f"the clients of the service need more than its {self.config.max_bytes >> 20} MiB, "
                f"and this one the most, {held >> 10} KiB; use your own order and try again later",
            )

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what asyncio could not handle: one line where a client may repeat it."""
        error = context.get("exception")
        if isinstance(error, OSError):
            self.say("os", None, f"{context['message']}: {error}")
        else:
            loop.default_exception_handler(context)

    # -- the end -----------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """Make `run_until_stopped` return."""
        self._stopped.set()

    async def run_until_stopped(self, for_s: float | None = None) -> None:
        """Serve until SIGTERM, Ctrl-C, `request_stop` or, if given, `for_s` seconds have passed."""
        tidying = asyncio.create_task(self._tidy_often())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), for_s)
        tidying.cancel()
        await self.stop()

    async def _tidy_often(self) -> None:
        """Collect garbage from time to time; it takes 0.1 s where clients have large states."""
        while True:
            await asyncio.sleep(_TIDY_EVERY_S)
            tidy()
            gone = [host for host, peer in self._peers.items() if peer.is_gone(self.turns.now_s())]
            for host in gone:
                del self._peers[host]

    def drop_work(self) -> None:
        """Drop what is queued, and what is being done as soon as it pauses."""
        self._stopped.set()
        self.service.is_closing = True
        self.turns.stop()

    def dismiss_all(self) -> None:
        """Send `closing` to every client."""
        for connection in list(self._connections):
            connection.dismiss(
                Code.CLOSING, "the service shuts down; use your own order and connect again later"
            )

    async def stop(self) -> None:
        """Close all connections, with a last word; nothing that is queued delays it."""
        for listener in self._listeners:
            self.loop.remove_reader(listener)
            listener.close()
        self.drop_work()
        await self._wait_until(lambda: self.turns.is_idle)
        self.dismiss_all()
        await self._wait_until(lambda: not self._connections)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)
        self.turns.close()

    async def _wait_until(self, is_over: Callable[[], bool]) -> None:
        until_s = self.loop.time() + _FAREWELL_S
        while not is_over() and self.loop.time() < until_s:
            await asyncio.sleep(0.01)
