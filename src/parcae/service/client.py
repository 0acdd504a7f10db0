"""`Client`: a small blocking TCP client for benchmarks, tests and demonstrations."""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import ssl
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from parcae.base.errors import ConfigError, ProtocolError
from parcae.service.protocol import (
    Challenge,
    ClientMessage,
    Code,
    Error,
    Events,
    FrameReader,
    Hello,
    OrdersMessage,
    Proof,
    ServerMessage,
    StateMessage,
    Welcome,
    decode_server_message,
    encode,
    frame,
    is_proof,
    proof_mac,
)
from parcae.service.simulated_client import SimulatedClient

#: The protocol version of the Spark plugin.
PROTOCOL = 2

_HEADER = struct.Struct(">I")
_LAST_PORT = 65_535
_LARGEST_REPLY = 1 << 20  # bytes; a greeting has a few hundred
_IS_SERVICE = "is it a Parcae service, and does it use TLS?"
_START = "start one with `parcae serve`"


@dataclass(frozen=True)
class Greeting:
    """The reply of a service that accepts the application."""

    policy: str
    has_secret: bool


def host_and_port(service: str) -> tuple[str, int]:
    """The host and the port in the address of a service.

    Example: `host_and_port("[::1]:7177")` is ("::1", 7177).
    """
    host, _, port = service.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) <= _LAST_PORT):
        raise ConfigError(f"the service must be HOST:PORT, not {service!r}")
    return host.strip("[]"), int(port)


def greet(
    service: str, secret: bytes | None = None, tls_ca: Path | None = None, timeout_s: float = 5.0
) -> Greeting:
    """Open a session with the service as an application would, and close it at once."""
    name, port = host_and_port(service)
    tls = _trusting(tls_ca) if tls_ca is not None else None
    try:
        with socket.create_connection((name, port), timeout_s) as plain:
            stream = plain if tls is None else tls.wrap_socket(plain, server_hostname=name)
            return _introduce(stream, service, secret)
    except TimeoutError as error:
        what = f"{service} does not answer within {timeout_s:g} s"
        raise ConfigError(f"{what}: {_IS_SERVICE}") from error
    except ssl.SSLError as error:
        raise ConfigError(f"{service}: TLS failed ({error.reason}): see --tls-ca") from error
    except ConnectionRefusedError as error:
        raise ConfigError(f"nothing listens at {service}: {_START}") from error
    except (OSError, UnicodeError) as error:  # the latter: the host is no name
        raise ConfigError(f"{service} cannot be reached ({error}): {_START}") from error


def _trusting(tls_ca: Path) -> ssl.SSLContext:
    """The TLS settings that trust the certificates in a file."""
    try:
        return ssl.create_default_context(cafile=str(tls_ca))
    except OSError as error:  # an SSLError is one, too
        what = f"{tls_ca} is no file of CA certificates in PEM ({error.strerror})"
        raise ConfigError(f"{what}: see --tls-ca") from error


def _introduce(stream: socket.socket, service: str, secret: bytes | None) -> Greeting:
    application = f"parcae-doctor-{secrets.token_hex(4)}"
    nonce = secrets.token_hex(16)
    _send(
        stream,
        type="hello",
        protocol=PROTOCOL,
        application_id=application,
        application_name="parcae spark doctor",
        nonce=nonce,
    )
    reply = _receive(stream, service)
    challenge = reply.get("nonce") if reply.get("type") == "challenge" else None
    if challenge is not None:
        names = (nonce, str(challenge), application)
        reply = _prove(stream, service, secret, names)
    _check_welcome(reply, service)
    _send(stream, type="bye")
    return Greeting(str(reply.get("policy")), challenge is not None)


def _prove(
    stream: socket.socket, service: str, secret: bytes | None, names: tuple[str, str, str]
) -> dict[str, Any]:
    """Prove that we know the secret, and check the service's own proof. Returns its reply."""
    if not secret:
        raise ConfigError(f"{service} requires a secret: give its file with --secret-file")
    _send(stream, type="proof", mac=_mac(secret, "client", *names))
    reply = _receive(stream, service)
    expected = _mac(secret, "service", *names)
    is_proved = hmac.compare_digest(str(reply.get("mac")).encode(), expected.encode())
    if reply.get("type") == "welcome" and not is_proved:
        raise ConfigError(f"{service} does not know the secret: is it your service?")
    return reply


def _check_welcome(reply: dict[str, Any], service: str) -> None:
    if reply.get("type") != "welcome":
        raise ConfigError(
            f"{service} answers {reply.get('type')!r} to hello: it is not a Parcae service"
        )
    if reply.get("protocol") != PROTOCOL:
        raise ConfigError(
            f"{service} uses protocol version {reply.get('protocol')}, the plugin uses "
            f"{PROTOCOL}: install both from the same version of Parcae"
        )


def _mac(secret: bytes, side: str, *names: str) -> str:
    parts = (f"parcae {PROTOCOL}", side, *names)
    return hmac.new(secret, b"".join(part.encode() + b"\0" for part in parts), "sha256").hexdigest()


def _send(stream: socket.socket, **message: object) -> None:
    content = json.dumps(message).encode()
    stream.sendall(_HEADER.pack(len(content)) + content)


def _receive(stream: socket.socket, service: str) -> dict[str, Any]:
    """Wait for the next message."""
    (length,) = _HEADER.unpack(_take(stream, _HEADER.size, service))
    if length > _LARGEST_REPLY:
        raise ConfigError(f"{service} is not a Parcae service: its reply is not a valid frame")
    try:
        message = json.loads(_take(stream, length, service))
    except ValueError as error:
        raise ConfigError(f"{service} is not a Parcae service: its reply is not JSON") from error
    if not isinstance(message, dict):
        raise ConfigError(f"{service} is not a Parcae service: its reply is not a JSON object")
    if message.get("type") == "error":
        raise ConfigError(f"{service} refuses ({message.get('code')}): {message.get('message')}")
    return message


def _take(stream: socket.socket, size: int, service: str) -> bytes:
    content = b""
    while len(content) < size:
        part = stream.recv(size - len(content))
        if not part:
            raise ConfigError(f"{service} closed the connection: {_IS_SERVICE}")
        content += part
    return content


_CHUNK = 1 << 16


class Client:
    """One connection to a service.

    Example:
        with Client("127.0.0.1", 7177) as client:
            client.greet(Hello(protocol=2, application_id="app", nonce=new_nonce()))
    """

    def __init__(
        self, host: str, port: int, *, timeout_s: float = 10.0, tls: ssl.SSLContext | None = None
    ) -> None:
        # Without Nagle's algorithm: small requests must not wait for the reply before.
        self.socket: socket.socket = socket.create_connection((host, port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self._frames = FrameReader(1 << 31)
        self._ready = list[bytes]()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection without `bye`."""
        self.socket.close()

    def send(self, message: ClientMessage) -> None:
        """Send a message."""
        self.socket.sendall(frame(encode(message)))

    def receive(self) -> ServerMessage:
        """Wait for the next message of the service."""
        while not self._ready:
            data = self.socket.recv(_CHUNK)
            if not data:
                raise ConnectionResetError("the service closed the connection")
            self._ready += self._frames.feed(data)
        return decode_server_message(self._ready.pop(0))

    def ask(self, message: ClientMessage) -> ServerMessage:
        """Send a message and wait for the next message of the service."""
        self.send(message)
        return self.receive()

    def orders(self, message: StateMessage | Events) -> OrdersMessage:
        """Send `state` or `events` and return the orders in the reply.

        Orders that another application caused may come before it; they are out of date then.
        """
        orders = _expected(self.ask(message), OrdersMessage)
        while orders.seq != message.seq:
            orders = _expected(self.receive(), OrdersMessage)
        return orders

    def greet(self, hello: Hello, secret: bytes | None = None) -> Welcome:
        """Open the session; if the service has a secret, prove it and check the service's proof."""
        reply = self.ask(hello)
        if isinstance(reply, Challenge):
            names = (hello.nonce or "", reply.nonce, hello.application_id)
            reply = self.ask(Proof(mac=proof_mac(secret or b"", "client", *names)))
            if isinstance(reply, Welcome) and not is_proof(
                reply.mac or "", proof_mac(secret or b"", "service", *names)
            ):
                raise ProtocolError(Code.DENIED, "the service does not know the secret")
        return _expected(reply, Welcome)

    def play(self, simulated: SimulatedClient, secret: bytes | None = None) -> None:
        """Run a simulated application to its end with the orders of the service."""
        self.greet(simulated.hello(), secret)
        simulated.run(self.orders)


_Reply = TypeVar("_Reply", OrdersMessage, Welcome)


def _expected(reply: ServerMessage, kind: type[_Reply]) -> _Reply:
    if isinstance(reply, Error):
        raise ProtocolError(reply.code, reply.message)
    if not isinstance(reply, kind):
        raise ProtocolError(
            Code.UNEXPECTED, f"the service sent {reply.type}; {kind.__name__} was expected"
        )
    return reply
