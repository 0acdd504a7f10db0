"""Whose work goes on: who has had the least, among addresses and then among their applications."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from parcae.service import turns as module
from parcae.service.turns import Account, make_way, whole
from tests.service.drawn import Clock, DrawnTurns, Loop

_SLICE_S = 5e-3


class _Table:
    """Turns, and a record of who worked when."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.loop = Loop(self.clock)
        self.turns = DrawnTurns(self.loop, self.clock)
        self.all = Account()
        self.slices: list[str] = []
        self.ended: dict[str, object] = {}

    def begin(self, name: str, account: Account, count: int, size: int = 0) -> Any:
        """Begin work of a number of slices."""
        return self.turns.begin(
            account, size, self._slices(name, count), lambda result: self._end(name, result)
        )

    def _slices(self, name: str, count: int) -> Callable[[], str]:
        def run() -> str:
            for _ in range(count):
                self.slices.append(name)
                self.clock.spend(_SLICE_S)
                make_way()
            return name

        return run

    def _end(self, name: str, result: object) -> None:
        self.ended[name] = result

    def run(self, num_steps: int = 10**6) -> None:
        for _ in range(num_steps):
            worked = self.turns.step()
            if not self.loop.run_once() and not worked:
                return


@pytest.fixture
def table() -> Iterator[_Table]:
    made = _Table()
    yield made
    made.turns.stop()
    made.run()


def test_a_new_peer_is_served_before_those_who_work_all_the_time(table: _Table) -> None:
    address = Account(table.all)
    for number in range(40):
        table.begin(f"flooder {number}", Account(address), 1_000)
    table.run(600)
    table.slices.clear()
    table.begin("new", Account(address), 5)
    table.run(7)
    assert table.ended == {"new": "new"}
    assert table.slices.count("new") == 5


def test_applications_of_an_address_share_alike(table: _Table) -> None:
    address = Account(table.all)
    for name in "abc":
        table.begin(name, Account(address), 100)
    table.run(120)
    assert [abs(table.slices.count(name) - 40) <= 1 for name in "abc"] == [True] * 3


def test_who_was_idle_has_not_saved_up_more_than_a_little(table: _Table) -> None:
    idle, busy = Account(table.all), Account(table.all)
    table.begin("busy", Account(busy), 1_000)
    table.run(500)
    table.slices.clear()
    table.begin("idle", Account(idle), 1_000)
    table.run(100)
    saved = module._SAVED_S / _SLICE_S
    assert 50 <= table.slices.count("idle") <= 50 + saved


def test_what_is_whole_is_not_left_for_others(table: _Table) -> None:
    def run() -> None:
        with whole(True):
            table._slices("whole", 5)()
        table._slices("open", 5)()

    table.turns.begin(Account(Account(table.all)), 0, run, lambda _: None)
    table.run(1)
    table.begin("other", Account(Account(table.all)), 3)
    table.run()
    assert table.slices[:8] == ["whole"] * 5 + ["open", "other", "other"]


def test_work_that_is_dropped_ends_at_its_next_pause_or_does_not_begin(table: _Table) -> None:
    address = Account(table.all)
    first = table.begin("first", Account(address), 10)
    second = table.begin("second", Account(address), 10)
    table.run(1)
    first.is_dropped = second.is_dropped = True
    table.run()
    assert table.ended == {"first": None, "second": None}
    assert table.slices == ["first"]
    table.turns.stop()
    table.begin("late", Account(address), 1)
    table.run()
    assert table.ended["late"] is None


def test_messages_are_decoded_only_as_far_as_memory_allows(table: _Table) -> None:
    address = Account(table.all)
    large = module._MOST_BEGUN_BYTES // 4
    for number in range(40):
        table.begin(f"large {number}", Account(address), 50, large)
    table.run(150)
    assert len(set(table.slices)) == 4
    table.begin("small", Account(address), 3, 100)
    table.run(4)
    assert table.ended == {"small": "small"}


def test_work_that_fails_ends_alone(table: _Table, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("a fault")

    ends: list[object] = []
    table.turns.begin(Account(Account(table.all)), 0, fail, ends.append)
    table.begin("other", Account(Account(table.all)), 1)
    table.run()
    assert ends == [None]
    assert table.ended == {"other": "other"}
    assert "a fault" in caplog.text
