"""`Client`: a small blocking TCP client for benchmarks, tests and demonstrations."""

from __future__ import annotations

import secrets
import socket
import ssl
from pathlib import Path
from typing import TypeVar

from parcae.base.errors import ConfigError, ProtocolError
from parcae.service.protocol import (
    PROTOCOL_VERSION,
    Bye,
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
    new_nonce,
    proof_mac,
)
from parcae.service.simulated_client import SimulatedClient

_LAST_PORT = 65_535
_IS_SERVICE = "is it a Parcae service, and does it use TLS?"
_START = "start one with `parcae serve`"
_CHUNK = 1 << 16
#: Largest frame of a greeting, which has a few hundred bytes, and of later messages.
_FIRST_FRAME_BYTES = 1 << 20
_FRAME_BYTES = 1 << 31


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
) -> Welcome:
    """Open a session with the service as an application would, and close it at once."""
    host, port = host_and_port(service)
    hello = Hello(
        protocol=PROTOCOL_VERSION,
        application_id=f"parcae-doctor-{secrets.token_hex(4)}",
        application_name="parcae spark doctor",
        nonce=new_nonce(),
    )
    tls = _trusting(tls_ca) if tls_ca is not None else None
    try:
        with Client(host, port, timeout_s=timeout_s, tls=tls) as client:
            welcome = client.greet(hello, secret)
            client.send(Bye())
            return welcome
    except ssl.SSLError as error:
        raise ConfigError(f"{service}: TLS failed ({error.reason}): see --tls-ca") from error
    except ConnectionRefusedError as error:
        raise ConfigError(f"nothing listens at {service}: {_START}") from error
    except TimeoutError as error:
        what = f"{service} does not answer within {timeout_s:g} s"
        raise ConfigError(f"{what}: {_IS_SERVICE}") from error
    except ConnectionError as error:
        raise ConfigError(f"{service} closed the connection: {_IS_SERVICE}") from error
    except ProtocolError as error:
        raise ConfigError(
            f"{service} refuses ({error.code}), or is not a Parcae service: {error}"
        ) from error
    except (OSError, UnicodeError) as error:  # the latter: the host is no name
        raise ConfigError(f"{service} cannot be reached ({error}): {_START}") from error


def _trusting(tls_ca: Path) -> ssl.SSLContext:
    """The TLS settings that trust the certificates in a file."""
    try:
        return ssl.create_default_context(cafile=str(tls_ca))
    except OSError as error:  # an SSLError is one, too
        what = f"{tls_ca} is no file of CA certificates in PEM ({error.strerror})"
        raise ConfigError(f"{what}: see --tls-ca") from error


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
        self._frames = FrameReader(_FIRST_FRAME_BYTES)
        self._ready = list[bytes]()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
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
            if not secret:
                raise ProtocolError(
                    Code.DENIED, "it requires a secret: give its file with --secret-file"
                )
            names = (hello.nonce or "", reply.nonce, hello.application_id)
            reply = self.ask(Proof(mac=proof_mac(secret, "client", *names)))
            if isinstance(reply, Welcome) and not is_proof(
                reply.mac or "", proof_mac(secret, "service", *names)
            ):
                raise ProtocolError(
                    Code.DENIED, "the service does not know the secret: is it your service?"
                )
        welcome = _expected(reply, Welcome)
        if welcome.protocol != hello.protocol:
            raise ProtocolError(
                Code.BAD_PROTOCOL,
                f"the service uses protocol version {welcome.protocol}, not {hello.protocol}: "
                "install client and service from the same version of Parcae",
            )
        self._frames.max_bytes = _FRAME_BYTES
        return welcome

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
