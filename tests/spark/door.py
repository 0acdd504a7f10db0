"""A door before a service: what comes through is passed on, or answered as no service should."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

Answer = Callable[[socket.socket], None]


def _read(connection: socket.socket) -> dict[str, Any]:
    """The next message of the client."""
    data = b""
    while len(data) < 4:
        data += _some(connection)
    (length,) = struct.unpack(">I", data[:4])
    while len(data) < 4 + length:
        data += _some(connection)
    message: dict[str, Any] = json.loads(data[4 : 4 + length])
    return message


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 16)
    if not data:
        raise ConnectionResetError
    return data


def _say(connection: socket.socket, message: dict[str, Any]) -> None:
    payload = json.dumps(message).encode()
    connection.sendall(struct.pack(">I", len(payload)) + payload)


def _welcomed(connection: socket.socket) -> None:
    _read(connection)
    _say(connection, {"type": "welcome", "protocol": 1, "session": "s1", "policy": "nonsense", "timeout_ms": 1000, "mac": None})


def raw(data: bytes) -> Answer:
    """Say these bytes whatever is asked, then nothing."""

    def answer(connection: socket.socket) -> None:
        _read(connection)
        connection.sendall(data)
        _read(connection)

    return answer


def dripping(connection: socket.socket) -> None:
    """A reply to `sync` that comes byte by byte and never ends."""
    _welcomed(connection)
    _read(connection)
    connection.sendall(struct.pack(">I", 1_000_000))
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)


def mute(connection: socket.socket) -> None:
    """Welcome, and no word after it."""
    _welcomed(connection)
    while True:
        _read(connection)


def replying(make: Callable[[dict[str, Any]], dict[str, Any]]) -> Answer:
    """Welcome, then a reply that is made from the request."""

    def answer(connection: socket.socket) -> None:
        _welcomed(connection)
        while True:
            _say(connection, make(_read(connection)))

    return answer


def no_tokens(request: dict[str, Any]) -> dict[str, Any]:
    """Nothing is to run, ever."""
    return {"type": "commands", "seq": request["seq"], "commands": [], "stages": [], "wake_ms": None}


def nonsense(request: dict[str, Any]) -> dict[str, Any]:
    """Slots and stages that do not exist, counts that are wrong, and a wish to be asked again at once."""
    start = {"kind": "start", "slot": 2_000_000_000, "job_id": 1, "stage_id": 1_999_999_999}
    moved = {"kind": "start", "slot": 0, "job_id": 77, "stage_id": 1_888_888_888}
    stages = [{"job_id": 77, "stage_id": number, "slots": 1_000_000} for number in range(2000)]
    return {"type": "commands", "seq": request["seq"], "commands": [start, moved], "stages": stages, "wake_ms": 0}


def always_sync(request: dict[str, Any]) -> dict[str, Any]:
    """Whatever is said, everything is wanted anew."""
    return {"type": "error", "code": "resync", "message": "again", "then": "sync", "seq": request["seq"]}


def wrong_seq(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to another request."""
    return {**no_tokens(request), "seq": request["seq"] + 7}


_OLD = {"type": "error", "code": "bad_protocol", "message": "protocol 1 is not spoken here; spoken are 2", "then": "close"}
_PAYLOAD = json.dumps(_OLD).encode()

#: Services that are none, by name.
MISBEHAVIOURS: dict[str, Answer] = {
    "garbage": raw(os.urandom(3) + b"\x00" * 5000),
    "http": raw(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
    "oversized": raw(struct.pack(">I", 0x7FFFFFFF) + b"{" * 100),
    "older": raw(struct.pack(">I", len(_PAYLOAD)) + _PAYLOAD),
    "dripping": dripping,
    "mute": mute,
    "no_tokens": replying(no_tokens),
    "nonsense": replying(nonsense),
    "always_sync": replying(always_sync),
    "wrong_seq": replying(wrong_seq),
}


class Door:
    """Listens; `answer` says how those who come are treated, None passes them on to `service`.

    Example: `Door(server.port)`; `door.change(MISBEHAVIOURS["mute"])` drops whoever was there.
    """

    def __init__(self, service: int) -> None:
        self.service, self.answer, self.num_visits = service, None, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    answer: Answer | None

    @property
    def port(self) -> int:
        """Where it is."""
        return int(self._listener.getsockname()[1])

    def change(self, answer: Answer | None) -> None:
        """Drop all who are inside, and treat those who come as said from now on."""
        self.answer = answer
        self.drop()

    def drop(self) -> None:
        """Cut all connections."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Shut for good."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.num_visits += 1
            threading.Thread(target=self._serve, args=(connection, self.answer), daemon=True).start()

    def _serve(self, connection: socket.socket, answer: Answer | None) -> None:
        self._open.add(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError, ValueError), connection:
            if answer is not None:
                answer(connection)
            else:
                self._pass_on(connection)
        self._open.discard(connection)

    def _pass_on(self, connection: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self.service)) as behind:
            behind.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.add(behind)
            back = threading.Thread(target=_pump, args=(behind, connection), daemon=True)
            back.start()
            _pump(connection, behind)
            back.join()
            self._open.discard(behind)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
