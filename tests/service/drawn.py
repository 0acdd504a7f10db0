"""An event loop, clocks and connections that are drawn: nothing of them depends on the machine."""

from __future__ import annotations

import errno
import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from parcae.service.protocol import FrameReader, ServerMessage, decode_server_message
from parcae.service.turns import Turns


class Clock:
    """A clock that only goes on when it is told to, and the time that each thread has spent."""

    def __init__(self, start_s: float = 1e6) -> None:
        self.at_s = start_s
        self._spent = threading.local()

    def now_s(self) -> float:
        return self.at_s

    def spent_s(self) -> float:
        return float(getattr(self._spent, "s", 0.0))

    def spend(self, for_s: float) -> None:
        """Let this thread be busy, for a number of microseconds of which all sums are exact."""
        for_s = round(for_s * (1 << 20)) / (1 << 20)
        self.at_s += for_s
        self._spent.s = self.spent_s() + for_s


class Timer:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call: Callable[[], Any] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """What the server uses of an event loop, by a drawn clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ready: deque[Callable[[], Any]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self._clock.at_s

    def call_soon(self, call: Callable[..., Any], *given: Any) -> None:
        self._ready.append(lambda: call(*given))

    call_soon_threadsafe = call_soon

    def call_at(self, at_s: float, call: Callable[..., Any], *given: Any) -> Timer:
        timer = Timer(lambda: call(*given))
        heapq.heappush(self._timers, (at_s, next(self._numbers), timer))
        return timer

    def call_later(self, after_s: float, call: Callable[..., Any], *given: Any) -> Timer:
        return self.call_at(self.time() + after_s, call, *given)

    def run_once(self) -> bool:
        """Do what is due now. Returns whether there was anything."""
        while self._timers and self._timers[0][0] <= self.time():
            timer = heapq.heappop(self._timers)[2]
            if timer.call is not None:
                self._ready.append(timer.call)
        calls = list(self._ready)
        self._ready.clear()
        for call in calls:
            call()
        return bool(calls)


class DrawnTurns(Turns):
    """Turns that go on only within `step`: one slice of one piece of work at a time."""

    def __init__(self, loop: Any, clock: Clock, most_threads: int = 64) -> None:
        super().__init__(loop, most_threads, now_s=self._now_s, spent_s=clock.spent_s)
        self._may_work = threading.Semaphore(0)
        self._has_paused = threading.Semaphore(0)
        self._own = threading.local()
        self._clock = clock
        #: Draws how long work takes from one `make_way` to the next.
        self.draw_s: Callable[[], float] = lambda: 0.0
        self._wait_for_a_step = set[int]()

    def _now_s(self) -> float:
        if getattr(self._own, "works", False):
            self._clock.spend(self.draw_s())
        return self._clock.at_s

    def breathe(self) -> None:
        """Let the test go on until it steps again."""
        self._has_paused.release()
        self._may_work.acquire()

    def _let_next(self) -> None:
        super()._let_next()
        self._own.has_let = self._working is not None
        if self._working is not None and not getattr(self._own, "works", False):
            self._wait_for_a_step.add(self._working.number)

    def _do(self, work: Any) -> None:
        """Do the work; the one that it lets go on does so within the same step."""
        self._own.works = True
        with self._lock:
            must_wait = work.number in self._wait_for_a_step
        if must_wait:
            self._may_work.acquire()
        super()._do(work)
        if not self._own.has_let:
            self._has_paused.release()

    def step(self) -> bool:
        """Let the work whose turn it is go on to its next pause. Returns whether there was any."""
        if self.is_idle:
            return False
        self._may_work.release()
        self._has_paused.acquire()
        return True


class Wire:
    """A connection: what the server sees of it, and what its client does with it."""

    def __init__(self, loop: Loop, connection: Any) -> None:
        self._loop = loop
        self.connection = connection
        self.sent = bytearray()  # by the client, not delivered yet
        self.unread = bytearray()  # by the client
        self.frames = FrameReader(1 << 31)
        self.is_half_closed = False  # the client sends no more
        self.is_lost = False
        self.is_aborted = False
        self._is_closing = False
        self._is_paused = False
        self._most_unread = 1 << 16
        self._is_full = False
        connection.connection_made(self)

    # What the server calls.

    def write(self, data: bytes) -> None:
        if not self._is_closing:
            self.unread += data
            if len(self.unread) > self._most_unread and not self._is_full:
                self._is_full = True
                self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.unread)

    def set_write_buffer_limits(self, high: int) -> None:
        self._most_unread = high

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True
        if not self.unread:
            self._lose()

    def abort(self) -> None:
        self.is_aborted = self._is_closing = True
        self._lose()

    def _lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._loop.call_soon(self.connection.connection_lost, None)

    # What the client and the network do.

    def deliver(self, most: int) -> bool:
        """Bring some bytes, or the end, to the server. Returns whether there were any bytes."""
        if self._is_paused or self._is_closing or not self.sent:
            if self.is_half_closed and not (self._is_paused or self._is_closing):
                self.connection.eof_received()
                self.close()
            return False
        data = bytes(self.sent[:most])
        del self.sent[:most]
        self.connection.data_received(data)
        return True

    def read(self) -> list[ServerMessage]:
        """All that the server has written."""
        data = bytes(self.unread)
        self.unread.clear()
        if self._is_closing:
            self._lose()
        elif self._is_full:
            self._is_full = False
            self.connection.resume_writing()
        return [decode_server_message(payload) for payload in self.frames.feed(data)]


class Disk:
    """A folder in memory that fails as drawn."""

    def __init__(self, fails: Callable[[], bool]) -> None:
        self.fails = fails
        self.files: dict[str, bytearray] = {}

    def mkdir(self, **_: Any) -> None:
        pass

    def __truediv__(self, name: str) -> DrawnPath:
        return DrawnPath(self, name)

    def check(self) -> None:
        if self.fails():
            raise OSError(errno.ENOSPC, "No space left on device")


class DrawnPath:
    def __init__(self, disk: Disk, name: str) -> None:
        self._disk = disk
        self.name = name

    def with_name(self, name: str) -> DrawnPath:
        return DrawnPath(self._disk, name)

    def rename(self, other: DrawnPath) -> None:
        self._disk.check()
        self._disk.files[other.name] = self._disk.files.pop(self.name)

    def open(self, *_: Any, **__: Any) -> DrawnPath:
        self._disk.check()
        self._disk.files[self.name] = bytearray()
        return self

    def write(self, data: bytes) -> int:
        if self._disk.fails():  # a part of it is written
            self._disk.files[self.name] += data[: len(data) // 2]
            return len(data) // 2
        self._disk.files[self.name] += data
        return len(data)

    def close(self) -> None:
        pass
