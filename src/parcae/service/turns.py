"""`Turns`: the work of many peers, each in a thread of its own, of which one works at a time.

A piece of work pauses wherever it calls `make_way`. Then the peer that has had the least time goes
on: first among addresses, then among the applications of one. Who was idle has saved up a little.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

_LOG = logging.getLogger(__name__)
_Item = TypeVar("_Item")
#: How long a thread works before it lets the event loop and others run, in s.
_SLICE_S = 2e-3
#: How long it waits for the event loop at most, in s.
_LONGEST_WAIT_S = 0.1
#: Time that a peer may save up, in s.
_SAVED_S = 0.05
#: The share of the event loop's time that a peer may use.
_SHARE = 0.5
#: Messages above this size begin only while those that have begun are not too large together: in
#: memory, a message is ten times as large.
_SMALL_BYTES = 64 << 10
_MOST_BEGUN_BYTES = 16 << 20


class Account:
    """The time that a peer has had, in turns and on the event loop.

    It is a part of another account: that of an application is a part of its address's.
    """

    def __init__(self, whole: Account | None = None) -> None:
        self.whole = whole
        self.used_s = 0.0  # in turns
        self._reached_s = 0.0  # what the part that had the last turn had used
        self._num_works = 0
        self._saved_s = _SAVED_S  # on the event loop
        self._counted_s = 0.0

    @property
    def place(self) -> tuple[float, ...]:
        """Whose turn it is: that of the smallest."""
        return (*self.whole.place, self.used_s) if self.whole is not None else ()

    def enter(self) -> None:
        """Note that work begins to wait; who had none is level with the others, or a bit ahead."""
        if self.whole is not None:
            if not self._num_works:
                self.used_s = max(self.used_s, self.whole._reached_s - _SAVED_S)
            self.whole.enter()
        self._num_works += 1

    def leave(self) -> None:
        """Note that work has ended."""
        self._num_works -= 1
        if self.whole is not None:
            self.whole.leave()

    def take_turn(self) -> None:
        """Note that its work goes on now."""
        if self.whole is not None:
            self.whole._reached_s = max(self.whole._reached_s, self.used_s)
            self.whole.take_turn()

    def use(self, took_s: float) -> None:
        """Charge time in a turn."""
        self.used_s += took_s
        if self.whole is not None:
            self.whole.use(took_s)

    def has_saved(self, now_s: float) -> bool:
        """Whether its work may be done on the event loop, at once."""
        earned_s = _SHARE * (now_s - self._counted_s)
        self._saved_s = min(_SAVED_S, self._saved_s + earned_s)
        self._counted_s = now_s
        return self.whole is None or (self._saved_s >= 0.0 and self.whole.has_saved(now_s))

    def spend(self, took_s: float) -> None:
        """Charge time on the event loop."""
        self._saved_s -= took_s
        if self.whole is not None:
            self.whole.spend(took_s)


class _DroppedError(BaseException):
    """The work is not needed any more."""


class PeerWork:
    """A piece of work of a peer."""

    def __init__(
        self,
        number: int,
        account: Account,
        size: int,
        run: Callable[[], object],
        done: Callable[[object], None],
    ) -> None:
        self.number = number
        self.account = account
        self.size = size
        self.run = run
        self.done = done
        self.has_begun = False
        self.is_dropped = False  # it ends at its next pause, or does not begin
        self.go = threading.Event()
        self.counted_s = 0.0

    @property
    def place(self) -> tuple[float, ...]:
        """Which work goes on next: the one with the smallest."""
        return (*self.account.place, self.number)


class _Turn(threading.local):
    """The work of this thread, and when it makes way for others; None: it never has to."""

    turns: Turns | None = None
    work: PeerWork
    next_s = 0.0
    is_whole = False


_turn = _Turn()


class Turns:
    """Does the work of many peers beside an event loop; each has its fair share of the time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        most_threads: int,
        *,
        now_s: Callable[[], float] = time.perf_counter,
        spent_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._loop = loop
        self.now_s = now_s
        #: The processor time of this thread: it may have waited for the event loop's.
        self.spent_s = spent_s
        self._pool = ThreadPoolExecutor(most_threads, "parcae-heavy")
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: list[PeerWork] = []
        self._working: PeerWork | None = None
        self._num_begun = 0
        self._begun_bytes = 0
        self._is_stopped = False

    @property
    def is_idle(self) -> bool:
        """Whether there is no work."""
        return self._working is None and not self._waiting

    def begin(
        self,
        account: Account,
        size: int,
        run: Callable[[], object],
        done: Callable[[object], None],
    ) -> PeerWork:
        """Have `run` called in its turn; `done` gets its result on the event loop.

        The result is None if the work was dropped, or failed.
        """
        work = PeerWork(next(self._numbers), account, size, run, done)
        work.is_dropped = self._is_stopped
        with self._lock:
            account.enter()
            self._waiting.append(work)
            if self._working is None:
                self._let_next()
        return work

    def stop(self) -> None:
        """Drop all work, now and from now on."""
        self._is_stopped = True
        with self._lock:
            for work in (*self._waiting, *([self._working] if self._working else ())):
                work.is_dropped = True

    def close(self) -> None:
        """Begin nothing any more, and wait for nothing."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> PeerWork | None:
        """The work that should go on; large messages wait until there is room for them."""
        most = _MOST_BEGUN_BYTES - self._begun_bytes
        fit = (one for one in self._waiting if one.has_begun or one.size <= max(_SMALL_BYTES, most))
        return min(fit, key=lambda one: one.place, default=None)

    def _let_next(self) -> None:
        """Let the next work go on, if there is any; with the lock."""
        self._working = work = self._next()
        if work is None:
            return
        self._waiting.remove(work)
        work.account.take_turn()
        if work.has_begun:
            work.go.set()
            return
        work.has_begun = True
        self._num_begun += 1
        self._begun_bytes += work.size
        self._pool.submit(self._do, work)

    def _do(self, work: PeerWork) -> None:
        """Do a piece of work, in a thread of its own.

        Garbage is not collected meanwhile: a large message is hundreds of thousands of objects, and
        to look for garbage among them would stop all threads. What is left of them is set aside for
        `tidy`.
        """
        gc.disable()
        work.counted_s = self.spent_s()
        _turn.turns, _turn.work, _turn.next_s = self, work, self.now_s() + _SLICE_S
        result = None
        try:
            if not work.is_dropped:
                result = work.run()
        except _DroppedError:
            pass
        except Exception:
            _LOG.exception("internal error")
        _turn.turns = None
        with self._lock:
            self._count(work)
            work.account.leave()
            self._begun_bytes -= work.size
            self._num_begun -= 1
            if not self._num_begun:
                gc.freeze()
                gc.enable()
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(work.done, result)
            self._let_next()

    def _count(self, work: PeerWork) -> None:
        spent_s = self.spent_s()
        work.account.use(spent_s - work.counted_s)
        work.counted_s = spent_s

    def pause(self, work: PeerWork) -> None:
        """Let the event loop run once, and then who has had less time than this work's peer."""
        self.breathe()
        if not _turn.is_whole:
            with self._lock:
                self._count(work)
                best = self._next()
                must_wait = best is not None and best.place < work.place
                if must_wait:
                    self._waiting.append(work)
                    self._let_next()
                else:
                    work.account.take_turn()
            if must_wait:
                work.go.wait()
                work.go.clear()
            if work.is_dropped:
                raise _DroppedError
        _turn.next_s = self.now_s() + _SLICE_S

    def breathe(self) -> None:
        """Wait until the event loop has run once."""
        has_run = threading.Event()
        # What the event loop has to do now is done before a callback of its next round.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.call_soon, has_run.set)
            has_run.wait(_LONGEST_WAIT_S)


def make_way() -> None:
    """Let others go on, if this thread does the work of a peer and that is due."""
    if _turn.turns is not None and _turn.turns.now_s() >= _turn.next_s:
        _turn.turns.pause(_turn.work)


def paced(items: Iterable[_Item]) -> Iterator[_Item]:
    """The items, with `make_way` before each."""
    for item in items:
        make_way()
        yield item


@contextmanager
def whole(is_whole: bool) -> Iterator[None]:
    """Within it, `make_way` lets only the event loop run: others would wait for what it holds."""
    before = _turn.is_whole
    _turn.is_whole = before or is_whole
    try:
        yield
    finally:
        _turn.is_whole = before


def tidy() -> None:
    """Collect all garbage, and set aside what is left: the next collections do not look at it."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
