"""`Client`: a small blocking TCP client for benchmarks, tests and demonstrations."""

from __future__ import annotations

import socket
import ssl
from types import TracebackType
from typing import TypeVar

from parcae.errors import ProtocolError
from parcae.service.frames import FrameReader, frame
from parcae.service.protocol import (
    Challenge,
    ClientMessage,
    Code,
    Error,
    Events,
    Hello,
    Orders,
    Proof,
    ServerMessage,
    State,
    Welcome,
    decode_server_message,
    encode,
    is_proof,
    proof_mac,
)
from parcae.service.simulated_client import SimulatedClient

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
        """Wait for the next message of the service.

        Raises:
            ConnectionError: the service closed the connection.
            TimeoutError: no message came in time.
        """
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

    def orders(self, message: State | Events) -> Orders:
        """Send `state` or `events` and return the orders in the reply.

        Orders that another application caused may come before it; they are out of date then.

        Raises:
            ProtocolError: the service refused the request.
        """
        orders = _expected(self.ask(message), Orders)
        while orders.seq != message.seq:
            orders = _expected(self.receive(), Orders)
        return orders

    def greet(self, hello: Hello, secret: bytes | None = None) -> Welcome:
        """Open the session; if the service has a secret, prove it and check the service's proof.

        Raises:
            ProtocolError: the service refused, or does not know the secret.
        """
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


_Reply = TypeVar("_Reply", Orders, Welcome)


def _expected(reply: ServerMessage, kind: type[_Reply]) -> _Reply:
    if isinstance(reply, Error):
        raise ProtocolError(reply.code, reply.message)
    if not isinstance(reply, kind):
        raise ProtocolError(
            Code.UNEXPECTED, f"the service sent {reply.type}; {kind.__name__} was expected"
        )
    return reply
