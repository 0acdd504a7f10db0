"""Several applications on one cluster: one order for all jobs, and executors by that order."""

from __future__ import annotations

from typing import Any

import pytest

from parcae.base.errors import ConfigError
from parcae.cluster.kernels.serving import work_at_hand
from parcae.policies.orders.kernels import OrderKind
from parcae.service import session, sharing
from parcae.service.admin import Board
from parcae.service.mirror import Mirror
from parcae.service.policies import TimedPlan
from parcae.service.protocol import (
    Bye,
    Error,
    Events,
    JobArrived,
    JobOrder,
    OrdersMessage,
    StageMessage,
    StageOrder,
    StateMessage,
)
from parcae.service.session import Service, Watcher, _Parts, meaning_of
from parcae.service.sharing import Sharing
from tests.service.speaking import (
    Speaker,
    began,
    code_of,
    ended,
    job_of,
    order_of,
    planner,
    service_of,
)


def _service(cores: int, executor_cores: int = 1) -> Service:
    return service_of(planner(OrderKind.SJF), sharing=Sharing(cores, executor_cores))


def _two(cores: int, executor_cores: int = 1) -> tuple[Service, Speaker, Speaker]:
    """A shared cluster, and two applications on it."""
    service = _service(cores, executor_cores)
    return service, Speaker(service, "one"), Speaker(service, "two")


def _executors(client: Speaker) -> int | None:
    """The executors in the last orders that were pushed to the client."""
    last = client.pushed[-1]
    assert isinstance(last, OrdersMessage)
    assert last.seq is None
    return last.executors


def _given(reply: OrdersMessage | Error) -> int | None:
    assert isinstance(reply, OrdersMessage)
    return reply.executors


def test_the_first_application_keeps_what_it_has_until_another_has_work() -> None:
    _, one, two = _two(cores=8, executor_cores=2)
    assert _given(one.state(8, job_of("long", (100, ())))) == 4
    assert _given(two.state(0)) == 0
    assert _given(one.events(4)) == 4
    # Its split is two of the four, and they are still the other's.
    assert _given(two.events(5, JobArrived(job=job_of("short", (5, ()))))) == 0
    assert _executors(one) == 2
    one.events(6, cores=4)
    one.events(3_006)
    assert _executors(two) == 2
    assert order_of(two.events(3_007)) == ["short"]  # each application gets its own jobs only


def test_three_tasks_use_two_executors_of_two_cores() -> None:
    _, one, _ = _two(cores=8, executor_cores=2)
    assert _given(one.state(0, job_of("a", (3, ())))) == 2


def test_what_goes_takes_room_until_it_has_gone() -> None:
    _, one, two = _two(cores=4)
    one.state(4, job_of("long", (100, ())))
    two.state(0, job_of("b", (100, ())))
    assert _executors(one) == 2
    one.events(5, cores=3)
    assert not two.pushed  # its process may still be there for three seconds
    one.events(3_005)
    assert _executors(two) == 1
    assert _given(two.events(3_006)) == 1
    one.events(3_007, cores=2)
    assert _given(two.events(6_006)) == 1
    assert _given(two.events(6_007)) == 2


def test_an_executor_is_lent_after_three_starts_and_called_back_at_once() -> None:
    _, one, two = _two(cores=4)
    one.state(2, job_of("long", (100, ())))
    two.state(2)
    reply = one.events(23_000)  # a start of five seconds, and three for the room
    assert _given(reply) == 2
    assert isinstance(reply, OrdersMessage)
    assert reply.wake_ms == 23_500  # it waits for more, so the rule is to be asked again
    assert _given(one.events(24_000)) == 2  # the other one's executors are still there
    assert _executors(two) == 1  # the last one stays for longer
    two.events(24_500, cores=1)
    two.events(27_500)
    assert _executors(one) == 3
    one.events(28_000, cores=3)
    two.events(34_000, JobArrived(job=job_of("b", (9, ()))))
    assert _executors(one) == 2


def test_executors_that_do_not_come_go_to_others() -> None:
    service, one, two = _two(cores=4)
    one.state(0, job_of("a", (100, ())))
    two.state(2, job_of("b", (100, ())))
    assert _given(one.events(1)) == 2
    assert _given(two.events(29_000)) == 2
    assert _given(two.events(31_000)) == 4
    assert _executors(one) == 0
    (cluster,) = Board(service).snapshot()["clusters"]
    assert cluster["executors"] == {"one": 0, "two": 4}
    assert cluster["shares"] == {
        "one": "0 of 0, a start takes 5.0 s; others do not come",
        "two": "2 of 4, a start takes 5.0 s",
    }
    assert cluster["lending"] == "saves 0% of the applications' time"


def test_how_long_executors_take_to_start_is_learned() -> None:
    service, one, _ = _two(cores=8)
    assert service.sharing is not None
    found = []
    one.state(0, job_of("a", (100, ())))
    # The first two, which start at once, are no proof yet.
    for cores in (2, 8):
        one.events(25_000, cores=cores)
        found.append(service.sharing._seen["one"].start_ms)
    assert found == [5_000, 25_000]


def test_nothing_is_pushed_where_nothing_changed_for_the_other() -> None:
    _, one, two = _two(cores=4)
    one.state(2, job_of("a", (100, ())))
    two.state(2, job_of("b", (90, ())))
    before = len(one.pushed)
    two.events(5, began("b", 0, 1))
    two.events(6, ended("b", 0, 1, 1))
    assert len(one.pushed) == before


def test_stages_of_two_jobs_that_change_places_mean_another_order() -> None:
    def orders(*tiers: float, others: float = 0.0) -> OrdersMessage:
        stages = [
            StageOrder(job_id=name, stage_id=0, tier=tier)
            for name, tier in zip("ab", tiers, strict=True)
        ]
        jobs = (JobOrder(job_id="a", tier=others), JobOrder(job_id="b", tier=others))
        return OrdersMessage(seq=1, jobs=jobs, stages=tuple(stages), other_tier=1e9)

    assert (
        meaning_of(orders(1, 2)) == meaning_of(orders(5, 7)) == meaning_of(orders(0.5, 2, others=3))
    )
    assert meaning_of(orders(1, 2)) != meaning_of(orders(2, 1))
    assert meaning_of(orders(1, 2)) != meaning_of(orders(1, 1))
    assert meaning_of(orders(1, 2)) != meaning_of(orders(-1, 2))  # before the jobs' other stages


def test_who_leaves_frees_the_cluster_for_the_others() -> None:
    service, one, two = _two(cores=4)
    one.state(2, job_of("long", (100, ())))
    two.state(2, job_of("short", (50, ())))
    two.wire.ask(Bye())
    assert _given(one.events(2_999)) == 2
    assert _given(one.events(3_000)) == 4
    assert set(service.mirrors[""].jobs) == {("one", "long")}


class _Locks(Watcher):
    """Notes at every plan whether the mirror is locked for those who only look."""

    def __init__(self) -> None:
        self.are_held: list[bool] = []

    def planned(self, mirror: Mirror, plan: TimedPlan) -> None:
        self.are_held.append(mirror.lock.locked())


def test_nobody_looks_at_a_cluster_that_an_application_is_leaving() -> None:
    service = _service(cores=4)
    locks = _Locks()
    service.watchers.append(locks)
    one = Speaker(service, "one")
    two = Speaker(service, "two")
    one.state(4, job_of("long", (100, ())))
    two.state(0, job_of("short", (50, ())))
    num_plans = len(locks.are_held)
    two.wire.ask(Bye())
    assert len(locks.are_held) > num_plans
    assert all(locks.are_held)


def test_the_cluster_is_looked_at_once_for_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def counted(state: Any, *tables: Any) -> None:
        looks.append(len(state.jobs))
        work_at_hand(state, *tables)

    monkeypatch.setattr(sharing, "work_at_hand", counted)
    service = _service(cores=12)
    board = Board(service)
    clients = [Speaker(service, f"app {number}") for number in range(5)]
    for number, client in enumerate(clients):
        client.state(0, job_of("a", (9 + number, ())))
    assert len(looks) == 5
    assert _given(clients[4].events(1)) == 2
    assert code_of(clients[3].events(1, began("unknown", 0))) == ("unknown_job", "state")
    clients[2].wire.ask(Bye())
    assert len(looks) == 8
    (cluster,) = board.snapshot()["clusters"]
    assert set(cluster["executors"]) == {"app 0", "app 1", "app 3", "app 4"}
    assert sum(cluster["executors"].values()) <= 12
    assert len(looks) == 8


def test_a_cluster_without_room_for_an_executor_is_refused() -> None:
    with pytest.raises(ConfigError, match="--cores 2 --executor-cores 4"):
        Sharing(2, 4)


def test_a_job_of_an_application_that_connects_again_has_no_estimate_under_fair() -> None:
    """What it did before is not known, so it cannot be played."""
    service = service_of(sharing=Sharing(10))
    board = Board(service)
    service.watchers.append(board)
    other = Speaker(service, "other")
    other.state(10, job_of("x", (1, ())))
    other.events(99_000, began("x", 0), ended("x", 0, 1, 9_000))
    again = Speaker(service, "again")
    stage = StageMessage(stage_id=0, tasks=1_000, started=1_000, finished=990, executed_ms=990_000)
    job = job_of("old").model_copy(update={"stages": (stage,)})
    again.state(10, job, job_of("new", (10, ()), arrival_ms=100_000), clock_ms=100_000)
    again.events(101_000, ended("old", 0, 10, 10_000), began("new", 0, 10))
    again.events(102_000, ended("new", 0, 10, 10_000))
    service.policy_name = "fair"
    board.estimate(board.jobs_to_play())
    estimates = [(job["job_id"], job["fair_s"]) for job in board.snapshot()["ended"]]
    assert estimates == [("x", 99.0), ("old", None), ("new", 2.0)]


def test_parts_of_a_request_are_as_large_as_their_time_allows() -> None:
    jobs = tuple(job_of(f"j{n}", *((1, ()),) * (n + 1), arrival_ms=60 - n) for n in range(60))
    parts = _Parts(StateMessage(seq=1, clock_ms=0, cores=4, jobs=jobs))
    taken: list[str] = []
    sizes = []
    while not parts.is_over:
        part = parts.take()
        assert isinstance(part, Events if taken else StateMessage)
        more = (
            [job.job_id for job in part.jobs]
            if isinstance(part, StateMessage)
            else [event.job.job_id for event in part.events if isinstance(event, JobArrived)]
        )
        taken += more
        sizes.append(len(more))
        parts.took(1.0)
    assert taken == [f"j{n}" for n in reversed(range(60))]
    assert sizes[0] > 1
    assert set(sizes[4:]) == {1}


def test_who_leaves_is_dropped_in_parts_between_which_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = _service(cores=12)
    leaving, other = (Speaker(service, name) for name in ("leaving", "other"))
    leaving.state(4, *(job_of(f"j{n}", (1, ())) for n in range(700)))
    left: list[int] = []
    is_on = [True]

    def go_on() -> None:
        if is_on.pop():
            left.append(len(service.mirrors[""].jobs))
            orders = other.state(4, job_of("x", (1, ())))
            assert isinstance(orders, OrdersMessage)
            assert [job.job_id for job in orders.jobs] == ["x"]
            other.state(4)
        is_on.append(True)

    monkeypatch.setattr(session, "make_way", lambda: go_on() if is_on else None)
    leaving.wire.session.close()
    assert left[:3] == [700, 400, 100]
    assert not service.mirrors[""].jobs
