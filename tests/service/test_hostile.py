"""Clients that send too much, too large or impossible things, and what watches them."""

from __future__ import annotations

import errno
import json
import shutil
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from parcae.base.errors import ProtocolError
from parcae.service import mirror, protocol
from parcae.service import turns as yielding
from parcae.service.admin import Admin, Board
from parcae.service.protocol import (
    Bye,
    ClientMessage,
    Events,
    JobArrived,
    JobEnded,
    OrdersMessage,
    Ping,
    Pong,
    StagesAdded,
    StateMessage,
    decode_client_message,
    encode,
)
from parcae.service.record import Recorder, read_recording
from parcae.service.server import Server, ServerConfig
from parcae.service.session import Session, Watcher
from parcae.service.sharing import Sharing
from parcae.service.tables import Room
from tests.service.running import connected, refused, serving
from tests.service.speaking import (
    Speaker,
    began,
    code_of,
    ended,
    job_of,
    order_of,
    service_of,
    stages_of,
)

_DAY_MS = 86_400_000


def _large() -> tuple[ClientMessage, ...]:
    jobs = tuple(job_of(f"j{n}", (3, ()), (2, (0,)), name="nightly") for n in range(40))
    arrivals = tuple(JobArrived(job=job) for job in jobs)
    return StateMessage(seq=1, clock_ms=5, cores=4, jobs=jobs), Events(
        seq=2, clock_ms=6, events=arrivals
    )


@pytest.mark.parametrize("message", _large(), ids=["state", "events"])
def test_a_message_in_pieces_is_the_message(
    message: ClientMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_LARGE_BYTES", 100)
    assert decode_client_message(encode(message)) == message
    indented = json.dumps(json.loads(encode(message)), indent=2).encode()
    assert decode_client_message(indented) == message


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"state","seq":1,"clock_ms":1,"cores":1,"jobs":[1,]}',
        '{"type":"state","seq":1,"clock_ms":1,"cores":1,"jobs":[],}',
        '{"type":"state","seq":1,"clock_ms":1,"cores":1,"jobs":[]} x',
        '{"type":"state" "seq":1,"clock_ms":1,"cores":1,"jobs":[]}',
        '{"type":"state","seq":1,"clock_ms":1,"cores":1,"jobs":[NaN]}',
        '{"type":"state","seq":NaN,"clock_ms":1,"cores":1,"jobs":[]}',
        '{"type":"events","seq":1,"clock_ms":1,"jobs":[]}',
        '{"type":"bye","events":[]}',
        '{"type":"state","jobs":[',
        "[" * 5_000,
        '{"jobs":' + "[" * 5_000,
        '{[1]:2,"jobs":[]}',
    ],
)
def test_what_is_no_message_is_refused_in_pieces_as_well(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_LARGE_BYTES", 0)
    with pytest.raises(ProtocolError) as refusal:
        decode_client_message(text.encode())
    assert refusal.value.code == "bad_message"


def test_an_application_has_a_bounded_number_of_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "MOST", Room(2, 4, 2))
    chain = job_of("a", (1, ()), (1, (0,)), is_open=True)
    for excess in (
        JobArrived(job=job_of("b", *[(1, ())] * 3)),
        StagesAdded(job_id="a", stages=stages_of((1, (0,)), (1, (1,)), first=2)),
    ):
        app = Speaker(service_of())
        app.state(4, chain)
        assert code_of(app.events(1, excess)) == ("too_large", "close")
    app = Speaker(service_of())
    app.state(4, chain)
    # A job that ended makes room for others.
    for number in range(5):
        arrived = app.events(2 * number, JobArrived(job=job_of(f"c{number}", (1, ()), (1, ()))))
        assert isinstance(arrived, OrdersMessage)
        app.events(2 * number + 1, JobEnded(job_id=f"c{number}"))
    assert isinstance(app.state(4, chain), OrdersMessage)


def test_a_job_has_a_bounded_number_of_stages_however_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mirror, "MOST_STAGES", 3)
    app = Speaker(service_of())
    app.state(4, job_of("a", (1, ()), (1, (0,)), is_open=True))
    one_more = StagesAdded(job_id="a", stages=stages_of((1, ()), first=2))
    assert isinstance(app.events(1, one_more), OrdersMessage)
    one_more = StagesAdded(job_id="a", stages=stages_of((1, ()), first=3))
    assert code_of(app.events(2, one_more)) == ("too_large", "close")


def test_a_cluster_runs_a_bounded_number_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "MOST_RUNNING", 64)
    app = Speaker(service_of())
    app.state(4, job_of("a", (1_000, ()), is_open=True))
    assert isinstance(app.events(1, began("a", 0, 60)), OrdersMessage)
    assert code_of(app.events(2, began("a", 0, 5))) == ("too_large", "close")


def test_durations_that_no_task_can_have_are_refused() -> None:
    app = Speaker(service_of())
    app.state(4, job_of("a", (10_000_000, ()), name="new", is_open=True))
    app.events(1, began("a", 0, 2))
    assert code_of(app.events(2, ended("a", 0, 2, (1 << 53) - 1))) == ("bad_job", "state")
    learned = app.wire.session.service.duration_model.learned
    assert learned.any_task_ms == 0.0
    app.state(4, job_of("a", (10_000_000, ()), name="new", is_open=True))
    app.events(3, began("a", 0, 2))
    assert isinstance(app.events(4, ended("a", 0, 2, 2 * 10**10)), OrdersMessage)
    # A job of 10 million such tasks is longer than the age of mankind, and still no overflow.
    reply = app.events(5, JobArrived(job=job_of("b", (10_000_000, ()), name="new", is_open=True)))
    assert order_of(reply)
    assert app.wire.session.service.counts.fallbacks == 0


class _Failing(Watcher):
    def received(self, session: Session, message: ClientMessage) -> None:
        raise RuntimeError("a full disk, say")


def test_a_watcher_that_fails_ends_no_session() -> None:
    service = service_of()
    service.watchers.append(_Failing())
    app = Speaker(service)
    assert isinstance(app.state(4, job_of("a", (3, ()))), OrdersMessage)
    assert service.watchers == []


def test_a_recording_whose_folder_is_removed_begins_again_in_a_new_one(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    service = service_of()
    recorder = Recorder(folder, max_file_bytes=500)
    service.watchers.append(recorder)
    app = Speaker(service)
    app.state(4, job_of("a", (3, ())))
    shutil.rmtree(folder)
    for clock_ms in range(1, 20):
        assert isinstance(app.events(clock_ms), OrdersMessage)
    folder.mkdir()
    app.state(4, job_of("a", (3, ())), clock_ms=20)
    assert isinstance(app.events(21), OrdersMessage)
    recorder.close()
    assert list(folder.iterdir())


def test_a_recording_goes_on_when_there_are_file_descriptors_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of()
    recorder = Recorder(tmp_path, max_file_bytes=500)
    service.watchers.append(recorder)
    app, late = Speaker(service), Speaker(service, "late")
    app.state(4, job_of("a", (3, ())))
    open_file = Path.open

    def refuse(path: Path, *given: Any, **named: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "open", refuse)
    for clock_ms in range(1, 20):
        app.events(clock_ms)
    late.state(4, job_of("b", (3, ())))
    monkeypatch.setattr(Path, "open", open_file)
    late.state(4, job_of("b", (3, ())), clock_ms=5)
    for clock_ms in range(20, 30):
        app.events(clock_ms)
    recorder.close()
    requests = dict[str, int]()
    for path in sorted(tmp_path.iterdir()):
        for line in read_recording(path).lines:
            if line.sender == "client" and line.message["type"] in ("state", "events"):
                requests[line.application] = requests.get(line.application, 0) + 1
    assert requests == {"app": 30, "late": 1}


def test_a_clock_in_microseconds_stops_the_clock_of_no_other_application() -> None:
    now_s = [0.0]
    service = service_of(sharing=Sharing(num_cores=4), now_s=lambda: now_s[0])
    app = Speaker(service, "milliseconds")
    app.state(4, clock_ms=_DAY_MS)
    strange = Speaker(service, "microseconds")
    strange.state(4, job_of("s", (9, ()), arrival_ms=1_000 * _DAY_MS), clock_ms=1_000 * _DAY_MS)
    mirror = service.mirror_of("")
    assert mirror.clock_ms == _DAY_MS  # its clock counts on from that of the cluster
    strange.events(1_000 * (_DAY_MS + 90_000))
    assert mirror.clock_ms == _DAY_MS + 60_000
    now_s[0] = 0.5
    job = job_of("m", (9, ()), arrival_ms=_DAY_MS + 501)
    assert isinstance(app.events(_DAY_MS + 501, JobArrived(job=job)), OrdersMessage)
    assert mirror.jobs["milliseconds", "m"].arrival_ms == _DAY_MS + 501
    strange.events(1_000 * (_DAY_MS + 90_500))
    assert mirror.clock_ms == _DAY_MS + 60_500


def test_a_clock_that_creeps_ahead_moves_that_of_the_cluster_by_a_minute_at_most() -> None:
    now_s = [0.0]
    service = service_of(sharing=Sharing(num_cores=4), now_s=lambda: now_s[0])
    app, creeping = Speaker(service, "app"), Speaker(service, "creeping")
    app.state(4, job_of("a", (9, ())), clock_ms=1_000)
    creeping.state(4, clock_ms=1_000)
    for number in range(1, 201):
        now_s[0] += 0.01
        reply = creeping.events(1_000 + 59_000 * number)
        assert isinstance(reply, OrdersMessage)
        assert isinstance(app.events(1_000 + 10 * number), OrdersMessage)
    assert service.mirror_of("").clock_ms == 1_000 + 2_000 + 60_000
    # The clock of an application that is alone is the cluster's.
    creeping.wire.ask(Bye())
    app.events(10_000_000)
    assert service.mirror_of("").clock_ms == 10_000_000


class _Threads(Watcher):
    """Notes in which thread messages are handled."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def received(self, session: Session, message: ClientMessage) -> None:
        if message.type != "ping":
            self.names.append(threading.current_thread().name)


def test_a_large_message_is_handled_beside_the_event_loop() -> None:
    threads = _Threads()
    with serving(service_of(watchers=[threads])) as server, connected(server) as client:
        jobs = tuple(job_of(f"j{n}", (3, ()), (2, (0,)), name="nightly") for n in range(400))
        orders = client.orders(StateMessage(seq=1, clock_ms=0, cores=4, jobs=jobs))
        assert len(orders.jobs) == 400
        assert client.ask(Ping(seq=2)) == Pong(seq=2)
    assert [name.startswith("parcae-heavy") for name in threads.names] == [True]
    assert yielding._turn.turns is None


class _Busy(Watcher):
    """Is busy with one message for a second, or until a session is closed."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self._is_closed = threading.Event()
        self.was_closed_meanwhile: bool | None = None

    def received(self, session: Session, message: ClientMessage) -> None:
        self.has_begun.set()
        self.was_closed_meanwhile = self._is_closed.wait(1.0)

    def closed(self, session: Session) -> None:
        if self.has_begun.is_set():
            self._is_closed.set()


@pytest.mark.parametrize(
    ("idle_timeout_s", "data", "code"),
    [(0.5, b"", "timeout"), (600.0, struct.pack(">I", 1 << 30), "too_large")],
    ids=["silent", "too large"],
)
def test_no_session_of_a_cluster_is_closed_while_a_message_changes_it(
    idle_timeout_s: float, data: bytes, code: str
) -> None:
    busy = _Busy()
    service = service_of(sharing=Sharing(num_cores=4), watchers=[busy])
    jobs = tuple(job_of(f"j{n}", (3, ()), (2, (0,)), name="nightly") for n in range(400))
    with (
        serving(service, idle_timeout_s=idle_timeout_s) as server,
        connected(server, "other") as other,
        connected(server, "busy") as client,
    ):
        client.send(StateMessage(seq=1, clock_ms=0, cores=4, jobs=jobs))
        assert busy.has_begun.wait(60)
        other.socket.sendall(data)
        assert isinstance(client.receive(), OrdersMessage)
        assert refused(other).code == code
    assert busy.was_closed_meanwhile is False


def test_the_page_is_drawn_once_for_all_viewers() -> None:
    service = service_of()
    board = Board(service)
    service.watchers.append(board)
    app = Speaker(service)
    app.state(4, job_of("a", (3, ())))
    admin = Admin(Server(service, ServerConfig()), board, 0)
    picture = admin._current()
    app.events(1, JobArrived(job=job_of("b", (3, ()))))
    assert admin._current() is picture  # too soon for another one
    admin._next_s = 0.0
    later = json.loads(admin._current())
    assert later["clusters"][0]["num_jobs"] == 2


def test_who_looks_at_a_cluster_does_not_wait_for_a_heavy_message() -> None:
    service = service_of()
    board = Board(service)
    app = Speaker(service)
    app.state(4, job_of("a", (3, ())))
    before = board.snapshot()["clusters"][0]
    with service.mirror_of("app").lock:
        assert board.snapshot()["clusters"][0] is before
    app.events(1, JobArrived(job=job_of("b", (3, ()))))
    assert board.snapshot()["clusters"][0]["num_jobs"] == 2


def test_the_page_shows_the_clusters_with_most_jobs_and_the_others_in_one() -> None:
    service = service_of()
    board = Board(service)
    service.watchers.append(board)
    apps = [Speaker(service, f"app {number}") for number in range(30)]
    for number, app in enumerate(apps):
        app.state(2, *(job_of(f"j{n}", (3, ())) for n in range(number + 1)))
        app.events(1, began("j0", 0, 2))
    for second in range(5):
        board._sampled_s -= 2.0
        apps[second].events(2)
    *shown, others = board.snapshot()["clusters"]
    assert [one["name"] for one in shown] == [f"app {number}" for number in range(10, 30)]
    assert [len(one["jobs"]) for one in shown] == [10] * 20
    assert sum(one["num_jobs"] for one in shown) == sum(range(11, 31))
    assert others["name"] == "10 other applications"
    assert (others["num_jobs"], others["cores"], others["busy"]) == (sum(range(1, 11)), 20, 20)
    assert set(board._history) == {one["name"] for one in shown}
