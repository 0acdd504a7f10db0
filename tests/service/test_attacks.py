"""Attacks on a server: each harms nobody else, and its end is not delayed."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import ssl
import time
from pathlib import Path
from typing import Any, cast

import pytest

from parcae.base.errors import ProtocolError
from parcae.service import server as module
from parcae.service.client import Client
from parcae.service.protocol import (
    ClientMessage,
    Error,
    Events,
    JobMessage,
    OrdersMessage,
    Ping,
    Pong,
    StageMessage,
    StateMessage,
)
from parcae.service.record import PART, Recorder
from parcae.service.server import LimitedLog
from parcae.service.session import Session, Watcher
from parcae.service.sharing import Sharing
from parcae.service.turns import make_way
from tests.conftest import wait_until
from tests.service.running import connected, refused, serving
from tests.service.speaking import job_of, service_of
from tests.spark.fake_service import certificate_for

_SECRET = b"0123456789abcdef0123"


def _state(*, cores: int = 4) -> StateMessage:
    return StateMessage(seq=1, clock_ms=0, cores=cores, jobs=(job_of("a", (3, ())),))


class _Endless(Watcher):
    """Makes the messages of one application take for ever."""

    def received(self, session: Session, message: ClientMessage) -> None:
        while session.application == "endless" and message.type == "state":
            make_way()
            time.sleep(0.001)


@pytest.mark.parametrize("sharing", [None, Sharing(4)], ids=["application", "cluster"])
def test_a_message_without_end_delays_nobody_else(sharing: Sharing | None) -> None:
    service = service_of(sharing=sharing, watchers=[_Endless()])
    with serving(service) as server, contextlib.ExitStack() as open_:
        before = open_.enter_context(connected(server, "before"))
        assert isinstance(before.ask(_state()), OrdersMessage)
        endless = open_.enter_context(connected(server, "endless"))
        endless.send(_state(cores=100_000))
        wait_until(lambda: not server.turns.is_idle)
        after = open_.enter_context(connected(server, "after"))
        assert isinstance(after.ask(_state()), OrdersMessage)
        assert before.orders(Events(seq=2, clock_ms=1, events=())).seq == 2


def test_what_is_queued_does_not_delay_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(tmp_path)
    service = service_of(watchers=[_Endless(), recorder])
    with contextlib.ExitStack() as open_:
        with serving(service) as server:
            client = open_.enter_context(connected(server, "client"))
            client.ask(_state())
            endless = open_.enter_context(connected(server, "endless"))
            endless.send(_state())
            wait_until(lambda: not server.turns.is_idle)
            for number in range(5):
                open_.enter_context(connected(server, f"waiting {number}")).send(_state())
        assert server.turns.is_idle
        assert server.num_connections == 0
        assert service.sessions == {}
        for one in (client, endless):
            assert refused(one).code == "closing"
    assert "Error" not in caplog.text
    recorder.close()
    assert list(tmp_path.iterdir())
    assert not list(tmp_path.glob(f"*{PART}"))


def test_the_largest_clients_are_refused_when_all_need_too_much() -> None:
    most = 64 << 20
    with serving(max_bytes=most) as server, contextlib.ExitStack() as open_:
        small = open_.enter_context(connected(server, "small"))
        assert isinstance(small.ask(_state()), OrdersMessage)
        greedy = {}
        for number in range(12):
            name = f"greedy {number}"
            greedy[name] = open_.enter_context(connected(server, name))
            assert isinstance(greedy[name].ask(_state(cores=131_072)), OrdersMessage)
        assert small.ask(Ping(seq=2)) == Pong(seq=2)
        assert 0 < server.num_bytes <= most
        dropped = [name for name in greedy if name not in server.service.sessions]
        assert 0 < len(dropped) < len(greedy)
        for name in dropped:
            reply = refused(greedy[name])
            assert reply.code == "too_large"
            assert "more than its 64 MiB, and this one the most" in reply.message


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory is read in /proc")
def test_the_memory_of_clients_that_are_gone_is_given_back() -> None:
    one = StageMessage(stage_id=1, tasks=262_000, started=262_000)
    state = StateMessage(
        seq=1,
        clock_ms=0,
        cores=131_072,
        jobs=(JobMessage(job_id="a", names=(), arrival_ms=0, stages=(one,)),),
    )
    with serving(max_bytes=128 << 20) as server, contextlib.ExitStack() as open_:
        before_mb = _resident_mb()
        for number in range(60):
            client = open_.enter_context(connected(server, f"greedy {number}"))
            assert client.ask(state).type in ("orders", "error")
        assert _resident_mb() - before_mb < 180.0


def test_bytes_that_are_no_whole_frame_count() -> None:
    with (
        serving(max_bytes=2 << 20) as server,
        connected(server, "small") as small,
        connected(server, "endless") as large,
    ):
        with contextlib.suppress(ConnectionError):
            large.socket.sendall((3 << 20).to_bytes(4, "big") + bytes((3 << 20) - 1))
        assert refused(large).code == "too_large"
        assert small.ask(Ping(seq=2)) == Pong(seq=2)


@pytest.mark.parametrize("has_tls", [False, True], ids=["tcp", "tls"])
def test_strangers_of_one_address_make_room_among_themselves(
    has_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = certificate_for("IP:127.0.0.1", tmp_path / "tls") if has_tls else (None, None)
    tls = ssl.create_default_context(cafile=str(files[0])) if has_tls else None
    settings = {"max_strangers": 4, "tls_cert": files[0], "tls_key": files[1]}
    with serving(**settings) as server, contextlib.ExitStack() as silent:
        address = ("127.0.0.1", server.port)
        other = socket.create_connection(address, 60, source_address=("127.0.0.2", 0))
        wait_until(lambda: server.num_connections == 1)
        for _ in range(12):
            silent.enter_context(socket.create_connection(address))
        wait_until(lambda: server.num_connections == 4)
        with connected(server, "late", tls=tls) as client:
            assert client.ask(Ping(seq=1)) == Pong(seq=1)
        monkeypatch.setattr(socket, "create_connection", lambda *_: other)
        with connected(server, "other", tls=tls) as client:
            assert client.ask(Ping(seq=1)) == Pong(seq=1)


def test_who_opens_connections_too_fast_is_refused_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_ACCEPT_S", 1.0)
    with serving() as server:
        address = ("127.0.0.1", server.port)
        with contextlib.ExitStack() as fast:
            for _ in range(20):
                fast.enter_context(
                    socket.create_connection(address, 60, source_address=("127.0.0.2", 0))
                )
            wait_until(lambda: server.num_refused == 19)
            with connected(server, "other") as client:
                assert client.ask(Ping(seq=1)) == Pong(seq=1)
    assert caplog.text.count("it opens connections too fast") == 1


def test_without_file_descriptors_the_log_gets_one_line_and_clientswait_until(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept = socket.socket.accept
    num_failed = [0]

    def fail(listener: socket.socket) -> Any:
        if num_failed[0] < 5:
            num_failed[0] += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(module, "_OUT_OF_FILES_S", 1e-3)
    with serving() as server:
        monkeypatch.setattr(socket.socket, "accept", fail)
        with connected(server) as client:
            assert client.ask(Ping(seq=1)) == Pong(seq=1)
    assert num_failed[0] == 5
    assert caplog.text.count("Too many open files") == 1


def test_few_file_descriptors_are_shared_by_clients_and_their_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = cast(Any, module).resource
    monkeypatch.setattr(limits, "getrlimit", lambda _: (64, 64))
    monkeypatch.setattr(limits, "setrlimit", lambda *_: None)
    service = service_of(watchers=[Recorder(tmp_path)])
    with serving(service) as server, contextlib.ExitStack() as open_:
        assert server.most_strangers == 8
        assert server.most_welcomed == 12
        for number in range(12):
            open_.enter_context(connected(server, f"app {number}"))
        late = open_.enter_context(Client("127.0.0.1", server.port, timeout_s=60.0))
        assert refused(late).message == "12 clients are connected; try again later"


def test_wrong_proofs_and_bad_requests_get_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    with serving(secret=_SECRET) as server:
        for _ in range(10):
            with (
                pytest.raises(ProtocolError, match="the proof is wrong"),
                connected(server, "stranger\u2028", b"another secret...."),
            ):
                pass
        with connected(server, secret=_SECRET) as client:
            for _ in range(10):
                assert isinstance(client.ask(_state(cores=1)), Error | OrdersMessage)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == [
        "127.0.0.1: 'stranger\\u2028': the proof is wrong: client and service must share a secret",
        "127.0.0.1: 'app': seq 1 must be larger than the last, 1",
    ]


def test_what_the_log_does_not_get_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    log = LimitedLog(lambda: now_s[0])
    for number in range(1_000):
        log.say("denied", f"10.0.0.{number % 250}", "the proof is wrong")
    assert len(caplog.records) == 10
    now_s[0] = 11.0
    log.say("denied", "10.0.0.1", "the proof is wrong")
    assert [record.getMessage() for record in caplog.records[10:]] == [
        "990 more lines like these were left out",
        "10.0.0.1: the proof is wrong",
    ]
