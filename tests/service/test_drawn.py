"""The real server, sessions, mirrors and recordings by a drawn clock, network and disk.

A seed draws who does what, in which order all goes on, how long it takes and when the disk fails,
so that it replays a failure: `_run(SEED)`. Whatever is drawn, nobody is starved, nobody uses more
than its budget, orders are those of a mirror that takes the same requests one after another, and
nothing is left behind.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from parcae.base.errors import ProtocolError
from parcae.policies.orders.kernels import OrderKind
from parcae.service import session, turns
from parcae.service.jobs import DurationModel
from parcae.service.mirror import Mirror
from parcae.service.protocol import (
    Bye,
    ClientMessage,
    Code,
    Error,
    Event,
    Events,
    Hello,
    JobArrived,
    JobEnded,
    JobMessage,
    OrdersMessage,
    Ping,
    ServerMessage,
    StateMessage,
    Welcome,
    encode,
    frame,
)
from parcae.service.record import Recorder
from parcae.service.server import Server, ServerConfig
from parcae.service.session import Service, Session, Watcher
from parcae.service.sharing import Sharing
from parcae.service.turns import Account
from tests.service.drawn import Clock, Disk, DrawnTurns, Loop, Wire
from tests.service.speaking import began, ended, job_of, planner

_NUM_STEPS = 200
_MOST_BYTES = 8 << 20
#: The longest time from one `make_way` to the next that is drawn, in s.
_LONGEST_S = 4e-3
_HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
_KINDS = ("light", "light", "heavy", "greedy", "pinging", "deaf", "silent", "wrong", "ahead")
#: Those that nothing is refused.
_HONEST = ("light", "heavy", "pinging", "ahead")
_SPENT_S: dict[Account, float] = defaultdict(float)


class _Log:
    """All calls of a mirror, for one that gets them one after another."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, str, tuple[Any, ...], dict[str, Any], object]] = []
        self.caller: int | None = None


class _Logged(Mirror):
    """A mirror that notes what is asked of it, and that nobody else asks meanwhile."""

    def _noted(self, name: str, *given: Any, **named: Any) -> Any:
        call = getattr(super(), name)
        log = self.__dict__.setdefault("log", _Log())
        if log.caller == threading.get_ident():
            return call(*given, **named)
        assert log.caller is None, f"{name} while {log.calls[-1][1]} is not over"
        log.caller = threading.get_ident()
        result: object = "dropped"
        try:
            result = call(*given, **named)
        except ProtocolError as error:
            result = (error.code, str(error))
            raise
        finally:
            log.calls.append((self._now_s(), name, given, named, result))
            log.caller = None
        return result

    def take_state(self, *given: Any, **named: Any) -> None:
        self._noted("take_state", *given, **named)

    def take_events(self, *given: Any, **named: Any) -> None:
        self._noted("take_events", *given, **named)

    def reserve(self, jobs: Any) -> None:
        self._noted("reserve", tuple(jobs))

    def drop(self, *given: Any) -> bool:
        return cast("bool", self._noted("drop", *given))

    def forget(self, *given: Any) -> None:
        self._noted("forget", *given)

    def settle(self) -> None:
        self._noted("settle")

    def drafted(self, *given: Any) -> Callable[[], OrdersMessage]:
        return cast("Callable[[], OrdersMessage]", self._noted("drafted", *given))


class _Turns(DrawnTurns):
    """Turns that note how long each piece of work had to wait and what others had meanwhile."""

    def __init__(self, loop: Any, clock: Clock) -> None:
        super().__init__(loop, clock)
        self.worked: list[tuple[Account | None, float]] = []
        self.spans: list[list[Any]] = []
        self.works: list[Any] = []

    def begin(self, account: Account, size: int, run: Any, done: Any) -> Any:
        span = [account.whole, len(self.worked), None]
        self.spans.append(span)

        def noted() -> object:
            try:
                return run()
            finally:
                span[2] = len(self.worked) + 1  # its last slice is counted after this

        work = super().begin(account, size, noted, done)
        self.works.append(work)
        return work

    def _count(self, work: Any) -> None:
        before_s = work.counted_s
        super()._count(work)
        self.worked.append((work.account.whole, work.counted_s - before_s))

    def check(self, most_s: float) -> None:
        """Nobody who waited had less than its share of the time, but for a little."""
        longest_s = max((took_s for _, took_s in self.worked), default=0.0)
        assert longest_s <= most_s
        for work, (account, begun, end) in zip(self.works, self.spans, strict=True):
            if work.is_dropped:  # perhaps it never began
                continue
            meanwhile = self.worked[begun:end]
            peers = {
                id(one)
                for one, first, last in self.spans
                if first < (end or len(self.worked)) and (last is None or last > begun)
            }
            all_s = sum(took_s for _, took_s in meanwhile)
            own_s = sum(took_s for one, took_s in meanwhile if one is account)
            assert own_s >= all_s / len(peers | {id(account)}) - turns._SAVED_S - 3 * longest_s


class _Slow(Watcher):
    """Lets messages take time on the event loop."""

    def __init__(self, draw: _Draw) -> None:
        self._draw = draw

    def received(self, session: Session, message: ClientMessage) -> None:
        if threading.get_ident() == self._draw.thread:
            self._draw.clock.spend(self._draw.cost_s())


class _Client:
    """An application: what it has sent, and what it expects of the answers."""

    def __init__(self, draw: _Draw, number: int) -> None:
        self.draw = draw
        self.kind = draw.one_of(_KINDS)
        self.host = draw.one_of(_HOSTS)
        self.name = f"{self.kind} {number}"
        self.jobs: dict[str, JobMessage] = {}
        self.wire: Wire | None = None
        self.is_welcome = False
        self.waiting: list[tuple[int, set[str]]] = []  # requests without an answer
        self.num_answers = 0
        self.seq = 0
        self.clock_ms = 1_000
        self.number = 0

    def connect(self) -> None:
        self.is_welcome = False
        self.waiting.clear()
        self.jobs.clear()
        connection = self.draw.server.admit(self.host)
        self.wire = None if connection is None else Wire(self.draw.loop, connection)
        if self.wire is not None and self.kind != "silent":
            self._say(Hello(protocol=2, application_id=self.name))
            self._send_state(self.draw.below(4) if self.kind != "heavy" else 20)

    def act(self) -> None:
        """Do one thing."""
        if self.wire is None:
            self.connect()
            return
        if self.kind != "deaf":
            for message in self.wire.read():
                self._hear(message)
        if self.wire.is_lost:
            if self.wire.is_half_closed and self.kind in _HONEST:
                assert self.wire.is_aborted or not self.waiting, "a reply was lost"
            self.connect()
            return
        if self.kind == "silent" or len(self.waiting) > 3 or self.wire.is_half_closed:
            return
        chance = self.draw.below(20)
        if chance == 0:
            self.wire.abort()
        elif chance in (1, 3) and self.kind != "deaf":
            self._say(Bye()) if chance == 1 else self._send_events()
            self.wire.is_half_closed = True
        elif self.kind in ("pinging", "deaf"):
            for _ in range(20):
                self._say(Ping(seq=self.seq))
        elif self.kind == "wrong" and chance < 8:
            self._send_nonsense(chance)
        elif self.kind == "heavy" or chance == 2:
            self._send_state(20 if self.kind == "heavy" else 2)
        else:
            self._send_events()

    def _say(self, message: ClientMessage) -> None:
        assert self.wire is not None
        self.wire.sent += frame(encode(message))

    def _next(self) -> int:
        self.seq += 1
        self.clock_ms += 59_000 if self.kind == "ahead" else self.draw.below(50)
        return self.seq

    def _new_job(self) -> JobMessage:
        self.number += 1
        stages = ((1 + self.draw.below(5), ()), (1 + self.draw.below(3), (0,)))
        job = job_of(f"j{self.number}", *stages, is_open=True)
        self.jobs[job.job_id] = job
        return job

    def _send_state(self, num_jobs: int) -> None:
        self.jobs.clear()
        jobs = tuple(self._new_job() for _ in range(num_jobs))
        cores = 40_000 if self.kind == "greedy" else 1 + self.draw.below(8)
        seq = self._next()
        self.waiting.append((seq, set(self.jobs)))
        self._say(StateMessage(seq=seq, clock_ms=self.clock_ms, cores=cores, jobs=jobs))

    def _send_events(self) -> None:
        events: list[Event] = []
        for _ in range(1 + self.draw.below(3)):
            if not self.jobs or self.draw.below(2):
                job = self._new_job()
                tasks = job.stages[0].tasks
                events += [JobArrived(job=job), began(job.job_id, 0, tasks)]
                events.append(ended(job.job_id, 0, 1, 100))
            else:
                job_id = self.draw.one_of(sorted(self.jobs))
                del self.jobs[job_id]
                events.append(JobEnded(job_id=job_id))
        seq = self._next()
        self.waiting.append((seq, set(self.jobs)))
        self._say(Events(seq=seq, clock_ms=self.clock_ms, events=tuple(events)))

    def _send_nonsense(self, chance: int) -> None:
        assert self.wire is not None
        if chance < 5:
            seq = self._next()
            nonsense = (JobEnded(job_id="unknown"),)
            self._say(Events(seq=seq, clock_ms=self.clock_ms, events=nonsense))
            self._send_state(1)
        else:
            self.wire.sent += frame(b"{]") if chance < 7 else b"\xff" * 8

    def _hear(self, message: ServerMessage) -> None:
        """Check an answer: requests are answered in order, with exactly the jobs there are."""
        if isinstance(message, Welcome):
            self.is_welcome = True
        elif isinstance(message, OrdersMessage) and message.seq is not None:
            seq, jobs = self.waiting.pop(0)
            self.num_answers += 1
            assert (message.seq, {job.job_id for job in message.jobs}) == (seq, jobs)
        elif isinstance(message, Error) and self.kind in _HONEST:
            assert message.code in (Code.CLOSING, Code.TIMEOUT), message


class _Draw:
    """A service, its clients and all that is drawn, from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.thread = threading.get_ident()
        self.clock = Clock()
        self.loop = Loop(self.clock)
        self.turns = _Turns(self.loop, self.clock)
        self.turns.draw_s = self.cost_s
        self.disk = Disk(lambda: self.random.random() < 0.01)
        sharing = Sharing(8) if self.below(2) else None
        self.service = Service(
            planner(OrderKind.SJF),
            "sjf",
            DurationModel(None, is_learning=False),
            sharing=sharing,
            now_s=self.clock.now_s,
            today_s=self.clock.now_s,
        )
        self.recorder = Recorder(cast(Any, self.disk), max_file_bytes=20_000)
        self.service.watchers += [self.recorder, _Slow(self)]
        config = ServerConfig(max_connections=12, max_strangers=4, max_bytes=_MOST_BYTES)
        self.server = Server(self.service, config)
        self.server.attach(cast(Any, self.loop), self.turns)
        self.clients = [_Client(self, number) for number in range(8)]
        self.mirrors: list[_Logged] = []
        self.begun_s = self.clock.at_s
        #: By peer, before and after the welcome: time on the event loop.
        self.spent_s = _SPENT_S
        self.spent_s.clear()

    def below(self, count: int) -> int:
        return int(self.random.integers(count))

    def one_of(self, things: Any) -> Any:
        return things[self.below(len(things))]

    def cost_s(self) -> float:
        return float(self.random.random() ** 4) * _LONGEST_S

    def step(self) -> None:
        """Let one thing happen."""
        what = self.below(20)
        if what < 6:
            self.one_of(self.clients).act()
        elif what < 12:
            wire = self.one_of(self.clients).wire
            if wire is not None:
                wire.deliver(1 + self.below(20_000))
        elif what < 15:
            self.loop.run_once()
        elif what < 19:
            for _ in range(1 + self.below(8)):
                self.turns.step()
        else:
            self.clock.spend(float(self.random.random()) * 0.05)
        assert self.server.num_bytes <= _MOST_BYTES
        assert self.server._num_strangers <= self.server.config.max_strangers
        for mirror in self.service.mirrors.values():
            if mirror not in self.mirrors:
                self.mirrors.append(cast("_Logged", mirror))

    def end(self) -> None:
        """End the service, and check that nothing is left."""
        self.server.drop_work()
        self.finish()
        self.server.dismiss_all()
        for _ in range(3):
            self.clock.at_s += self.server.config.write_timeout_s
            self.finish()
        assert self.turns.is_idle
        assert self.server.num_connections == 0
        assert self.server.num_bytes == 0
        assert self.service.sessions == {}
        self.turns.close()
        self.disk.fails = lambda: False
        self.recorder.close()

    def finish(self) -> None:
        """Do what is to be done."""
        while self.turns.step() | self.loop.run_once():
            pass

    def check_applications(self) -> None:
        """An application whose connection stands has its session and its jobs, and no other one."""
        self.finish()
        connected = set()
        for connection in self.server._connections:
            if connection.session.is_open and not connection.transport.is_closing():
                connected.add(connection.session.application)
        assert set(self.service.sessions) == connected
        jobs = defaultdict(set)
        for mirror in self.service.mirrors.values():
            for application, job_id in mirror.jobs:
                jobs[application].add(job_id)
        assert set(jobs) <= connected

    def check_shares(self) -> None:
        """Nobody waited without its share, in turns and on the event loop."""
        # On a shared cluster nobody goes on before a part of a message is taken.
        at_once_s = turns._SLICE_S + 3 * _LONGEST_S if self.service.sharing is None else 0.25
        self.turns.check(at_once_s)
        for spent_s in self.spent_s.values():
            allowed_s = turns._SAVED_S + turns._SHARE * (self.clock.at_s - self.begun_s)
            assert spent_s <= allowed_s + _LONGEST_S

    def check_orders(self) -> None:
        """The mirrors said what others say that take the same requests one after another."""
        for mirror in self.mirrors:
            now_s = [0.0]
            twin = Mirror(
                self.service.policy_for,
                self.service.duration_model,
                mirror._settings,
                now_s=lambda now_s=now_s: now_s[0],  # type: ignore[misc]
            )
            for now_s[0], name, given, named, result in mirror.__dict__.get("log", _Log()).calls:
                if result == "dropped":
                    break
                try:
                    again = getattr(twin, name)(*given, **named)
                except ProtocolError as error:
                    again = (error.code, str(error))
                if name == "drafted":  # nothing that came later changes what it says
                    again, result = again(), cast("Any", result)()
                assert again == result, name

    def check_recordings(self) -> None:
        """Every line of a recording is whole, but for the last one of a file that failed."""
        for content in self.disk.files.values():
            for line in bytes(content).split(b"\n")[:-1]:
                json.loads(line)


@pytest.fixture(autouse=True)
def _drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Mirror", _Logged)
    monkeypatch.setattr(session, "_MOST_IN_PART", 10)
    monkeypatch.setattr(Account, "spend", _noting(Account.spend))


def _noting(spend: Callable[[Account, float], None]) -> Callable[[Account, float], None]:
    def noted(account: Account, took_s: float) -> None:
        spend(account, took_s)
        if account.whole is not None and account.whole.whole is None:
            _SPENT_S[account] += took_s

    return noted


def _run(seed: int) -> _Draw:
    """Let 200 things happen, and check everything."""
    draw = _Draw(seed)
    try:
        for _ in range(_NUM_STEPS):
            draw.step()
        draw.check_applications()
        draw.check_shares()
    finally:
        draw.end()
    draw.check_orders()
    draw.check_recordings()
    return draw


def _check(first: int, last: int) -> None:
    num_answers: Counter[str] = Counter()
    for seed in range(first, last):
        for client in _run(seed).clients:
            num_answers[client.kind] += client.num_answers
    # What is checked has happened.
    assert min(num_answers[kind] for kind in ("light", "heavy", "greedy", "wrong", "ahead")) > 50


def test_two_hundred_seeds() -> None:
    _check(0, 200)


@pytest.mark.slow
def test_ten_thousand_seeds() -> None:
    _check(200, 10_200)


def test_a_seed_replays_what_it_drew() -> None:
    seen = []
    for _ in range(2):
        draw = _run(7)
        calls = [
            (*call, result() if callable(result) else result)
            for mirror in draw.mirrors
            for *call, result in mirror.__dict__.get("log", _Log()).calls
        ]
        seen.append((calls, draw.turns.worked and [took for _, took in draw.turns.worked]))
    assert seen[0] == seen[1]
    assert seen[0][1]
