"""A small service of version 2 of the protocol, for tests of the plugin.

It orders jobs by name, or misbehaves on purpose. It keeps a picture of the application from the
messages that it receives, and notes messages that contradict the picture.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Message = dict[str, Any]
#: The behaviour of a service: called with the socket of a connection, which ends when it returns.
Behaviour = Callable[[socket.socket], None]


def read(connection: socket.socket) -> Message:
    """Read the next message of the client.

    Raises:
        ConnectionResetError: the client has closed the connection.
    """
    (length,) = struct.unpack(">I", _bytes(connection, 4))
    message: Message = json.loads(_bytes(connection, length))
    return message


def _bytes(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


def frame(message: Message) -> bytes:
    """The bytes of a message: its length, then its JSON."""
    payload = json.dumps(message).encode()
    return struct.pack(">I", len(payload)) + payload


def welcome(connection: socket.socket) -> None:
    """Read the greeting and answer it."""
    hello = read(connection)
    assert hello["type"] == "hello"
    assert hello["protocol"] == 2
    connection.sendall(
        frame({"type": "welcome", "protocol": 2, "session": "s", "policy": "fake", "mac": None})
    )


def orders(seq: int | None, jobs: list[Message], **more: object) -> Message:
    """An `orders` message; jobs that it does not name come last."""
    return {
        "type": "orders",
        "seq": seq,
        "jobs": jobs,
        "stages": [],
        "other_tier": 1e9,
        "wake_ms": None,
        **more,
    }


class Picture:
    """A service's knowledge of an application, from its messages. `faults` holds contradictions."""

    def __init__(self) -> None:
        self.jobs = dict[str, Message]()
        self.seen = list[Message]()
        self.ended = list[str]()
        self.faults = list[str]()
        self.cores = 0

    def take(self, message: Message) -> None:
        """Apply a `state` or `events` message."""
        if message["type"] == "state":
            self.cores = message["cores"]
            self.jobs = {}
            for job in message["jobs"]:
                self._add(job)
            return
        self.cores = message.get("cores", self.cores)
        for event in message["events"]:
            self._take_event(event)

    def _add(self, job: Message) -> None:
        if job["job_id"] in self.jobs:
            self.faults.append(f"the job {job['job_id']} came twice")
        self.jobs[job["job_id"]] = {**job, "stages": {}}
        self.seen.append(job)
        self._add_stages(job["job_id"], job["stages"])

    def _add_stages(self, job_id: str, stages: list[Message]) -> None:
        own = self.jobs[job_id]["stages"]
        usual = {"parents": [], "started": 0, "finished": 0, "executed_ms": 0, "is_ended": False}
        for stage in stages:
            if stage["stage_id"] in own:
                self.faults.append(f"the stage {stage['stage_id']} came twice")
            own[stage["stage_id"]] = {**usual, **stage}
        if any(parent not in own for stage in stages for parent in stage.get("parents", ())):
            self.faults.append(f"unknown parents in {stages}")

    def _take_event(self, event: Message) -> None:
        kind = event["type"]
        job_id = event.get("job_id")
        if kind == "job_arrived":
            self._add(event["job"])
            return
        if job_id not in self.jobs:
            self.faults.append(f"an unknown job: {event}")
            return
        if kind == "stages_added":
            self._add_stages(job_id, event["stages"])
        elif kind == "job_ended":
            self.ended.append(self.jobs.pop(job_id)["names"][0])
        elif event["stage_id"] not in self.jobs[job_id]["stages"]:
            self.faults.append(f"an unknown stage: {event}")
        else:
            self._change_stage(self.jobs[job_id]["stages"][event["stage_id"]], event)

    def _change_stage(self, stage: Message, event: Message) -> None:
        kind = event["type"]
        if kind == "stage_ended":
            stage["is_ended"] = True
        elif kind == "stage_changed":
            stage["tasks"] = event["tasks"]
        elif kind == "stage_begun_again":
            stage["is_ended"] = False
            stage["started"] -= event["tasks"]
            stage["finished"] -= event["tasks"]
        elif kind == "tasks":
            stage["started"] += event.get("started", 0) - event.get("failed", 0)
            stage["finished"] += event.get("finished", 0)
            stage["executed_ms"] += event.get("executed_ms", 0)
        else:
            self.faults.append(f"an unknown event: {event}")
        if not 0 <= stage["finished"] <= stage["started"] <= stage["tasks"]:
            self.faults.append(f"{stage} after {event}")

    def shape(self) -> dict[str, dict[int, tuple[int, ...]]]:
        """Jobs' stages: tasks, started and finished ones, whether the stage ended."""
        keys = ("tasks", "started", "finished", "is_ended")
        return {
            job_id: {
                number: tuple(stage[key] for key in keys) for number, stage in job["stages"].items()
            }
            for job_id, job in self.jobs.items()
        }


def certificate_for(name: str, folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate and its key.

    Args:
        name: whom it is for, such as `IP:127.0.0.1`.
        folder: where both are written; it is made.
    """
    folder.mkdir()
    cert, key = (folder / file for file in ("cert.pem", "key.pem"))
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"]
    command += ["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", f"subjectAltName={name}", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no openssl to make a certificate with")
    return cert, key


class FakeService:
    """Listens on a port of its own.

    Args:
        tiers: tier by the first name of a job; other jobs have 1,000.
        certificate: speak TLS with this certificate and its key.
        more: further keys of every `orders` message.
    """

    def __init__(
        self,
        tiers: dict[str, float] | None = None,
        certificate: tuple[Path, Path] | None = None,
        **more: object,
    ) -> None:
        self._tls = None
        if certificate:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._tls.load_cert_chain(*certificate)
        self.tiers = tiers or {}
        self.more = more
        self.picture = Picture()
        self.num_states = self.num_events = self.num_visits = 0
        self.behaviour: Behaviour | None = None
        self._open = set[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def change(self, behaviour: Behaviour | None) -> None:
        """Drop everyone, and treat those who come so from now on; None is to be a service again."""
        self.behaviour = behaviour
        self.drop()

    def drop(self) -> None:
        """Cut all connections."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.num_visits += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            spoken = (
                self._tls.wrap_socket(connection, server_side=True) if self._tls else connection
            )
            stack.enter_context(spoken)
            self._open.add(spoken)
            stack.callback(self._open.discard, spoken)
            (self.behaviour or self._converse)(spoken)

    def _converse(self, connection: socket.socket) -> None:
        welcome(connection)
        while (message := read(connection))["type"] != "bye":
            if message["type"] == "ping":
                connection.sendall(frame({"type": "pong", "seq": message["seq"]}))
            else:
                self._answer(connection, message)

    def _answer(self, connection: socket.socket, message: Message) -> None:
        self.picture.take(message)
        self.num_states += message["type"] == "state"
        self.num_events += message["type"] == "events"
        jobs = [
            {"job_id": job_id, "tier": self.tiers.get(job["names"][0], 1_000.0)}
            for job_id, job in list(self.picture.jobs.items())
        ]
        connection.sendall(frame(orders(message["seq"], jobs, **self.more)))


def refusal(message: Message) -> Message:
    """The error by which a service asks for the whole state."""
    return {
        "type": "error",
        "code": "no_state",
        "message": "again",
        "then": "state",
        "seq": message["seq"],
    }


def saying(data: bytes) -> Behaviour:
    """A service that sends these bytes after the first message, then nothing."""

    def behave(connection: socket.socket) -> None:
        read(connection)
        connection.sendall(data)
        read(connection)

    return behave


def replying(make: Callable[[Message], Message]) -> Behaviour:
    """A service that makes a reply from every request."""

    def behave(connection: socket.socket) -> None:
        welcome(connection)
        while True:
            connection.sendall(frame(make(read(connection))))

    return behave


def mute(connection: socket.socket) -> None:
    """Send nothing after the welcome."""
    welcome(connection)
    while True:
        read(connection)


def once(connection: socket.socket) -> None:
    """Send orders once, then nothing."""
    welcome(connection)
    connection.sendall(frame(orders(read(connection)["seq"], [])))
    while True:
        read(connection)


def deaf(connection: socket.socket) -> None:
    """Read nothing after the welcome."""
    welcome(connection)
    time.sleep(60)


def only_pongs(connection: socket.socket) -> None:
    """Answer pings, and no requests."""
    welcome(connection)
    while True:
        message = read(connection)
        if message["type"] == "ping":
            connection.sendall(frame({"type": "pong", "seq": message["seq"]}))


def dripping(connection: socket.socket) -> None:
    """Send a reply that comes byte by byte and never ends."""
    welcome(connection)
    read(connection)
    connection.sendall(struct.pack(">I", 1_000_000))
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)


def flood(connection: socket.socket) -> None:
    """Send orders without a request, one after the other, for jobs that do not exist."""
    welcome(connection)
    message = read(connection)
    jobs = [{"job_id": f"{number}", "tier": -1.0 * number} for number in range(10_000, 10_200)]
    connection.sendall(frame(orders(message["seq"], jobs)))
    while True:
        connection.sendall(frame(orders(None, jobs)))


def nothing_may_run(request: Message) -> Message:
    """A limit of 0 for all jobs and stages."""
    jobs = [{"job_id": f"{number}", "tier": 0, "limit": 0} for number in range(2_000)]
    more = [{"job_id": f"job {number}", "tier": 0, "limit": 0} for number in range(2_000)]
    return orders(request["seq"], jobs + more)


def wrong_seq(request: Message) -> Message:
    """An answer to a request that was never sent."""
    return orders(request["seq"] + 7_000, [])


def not_an_order(request: Message) -> Message:
    """An order with a tier that is not a number."""
    return orders(request["seq"], [{"job_id": "1", "tier": "first"}])


_OLD: Message = {
    "type": "error",
    "code": "bad_protocol",
    "message": "protocol 2 is not spoken here; spoken are 1",
    "then": "close",
    "seq": None,
}

#: Services that misbehave, by name.
MISBEHAVIOURS: dict[str, Behaviour] = {
    "garbage": saying(os.urandom(3) + b"\x00" * 5000),
    "http": saying(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
    "oversized": saying(struct.pack(">I", 0x7FFFFFFF) + b"{" * 100),
    "older": saying(frame(_OLD)),
    "mute": mute,
    "deaf": deaf,
    "only_pongs": only_pongs,
    "dripping": dripping,
    "flood": flood,
    "nothing_may_run": replying(nothing_may_run),
    "always_state": replying(refusal),
    "wrong_seq": replying(wrong_seq),
    "not_an_order": replying(not_an_order),
}
