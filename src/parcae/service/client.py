"""A small blocking client over TCP: for benchmarks, tests and demonstrations."""

from __future__ import annotations

import socket
import ssl
from types import TracebackType
from typing import TypeVar

from parcae.errors import ProtocolError
from parcae.service.protocol import (
    Challenge,
    ClientMessage,
    Code,
    Error,
    FrameReader,
    Hello,
    Orders,
    Proof,
    ServerMessage,
    Welcome,
    decode_server_message,
    encode,
    frame,
    is_proof,
    proof_mac,
)
from parcae.service.simulated_client import SimulatedClient

_CHUNK = 1 << 16


class Client:
    """One connection.

    Example:
        with Client("127.0.0.1", 7177) as client:
            client.greet(Hello(protocol=2, application_id="app", nonce=new_nonce()))
    """

    def __init__(
        self, host: str, port: int, *, timeout_s: float = 10.0, tls: ssl.SSLContext | None = None
    ) -> None:
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
        """Drop the connection."""
        self.socket.close()

    def send(self, message: ClientMessage) -> None:
        """Say something."""
        self.socket.sendall(frame(encode(message)))

    def receive(self) -> ServerMessage:
        """The next thing that the service says.

        Raises:
            ConnectionError: it closed the connection.
            TimeoutError: it says nothing.
        """
        while not self._ready:
            data = self.socket.recv(_CHUNK)
            if not data:
                raise ConnectionResetError("the service closed the connection")
            self._ready += self._frames.feed(data)
        return decode_server_message(self._ready.pop(0))

    def ask(self, message: ClientMessage) -> ServerMessage:
        """Say something and take the reply."""
        self.send(message)
        return self.receive()

    def orders(self, message: ClientMessage) -> Orders:
        """The reply to `state` or `events`.

        Raises:
            ProtocolError: the service refused it.
        """
        return _expected(self.ask(message), Orders)

    def greet(self, hello: Hello, secret: bytes | None = None) -> Welcome:
        """Introduce oneself, and prove and check the secret where the service asks for it.

        Raises:
            ProtocolError: refused, or a service that does not know the secret.
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
        """Run a simulated application to its end under the service's orders."""
        self.greet(simulated.hello(), secret)
        simulated.obey(self.orders(simulated.state()))
        while (message := simulated.next_message()) is not None:
            simulated.obey(self.orders(message))


_Reply = TypeVar("_Reply", Orders, Welcome)


def _expected(reply: ServerMessage, kind: type[_Reply]) -> _Reply:
    if isinstance(reply, Error):
        raise ProtocolError(reply.code, reply.message)
    if not isinstance(reply, kind):
        raise ProtocolError(Code.UNEXPECTED, f"a {reply.type}, where {kind.__name__} was expected")
    return reply
