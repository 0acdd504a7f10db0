"""Several applications on one cluster: one order for all jobs, and executors by that order."""

from __future__ import annotations

from typing import Any

import pytest

from parcae.base.errors import ConfigError
from parcae.cluster.kernels.serving import share_out_cores
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
    JobEnded,
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


def _service(cores: int, executor_cores: int = 1, delay_ms: int = 0) -> Service:
    return service_of(planner(OrderKind.SJF), sharing=Sharing(cores, executor_cores, delay_ms))


def _two(
    cores: int, executor_cores: int = 1, delay_ms: int = 0
) -> tuple[Service, Speaker, Speaker]:
    """A shared cluster, and two applications on it."""
    service = _service(cores, executor_cores, delay_ms)
    return service, Speaker(service, "one"), Speaker(service, "two")


def _executors(client: Speaker) -> int | None:
    """The executors in the last orders that were pushed to the client."""
    last = client.pushed[-1]
    assert isinstance(last, OrdersMessage)
    assert last.seq is None
    return last.executors


def test_executors_go_to_the_application_whose_jobs_come_first() -> None:
    _, one, two = _two(cores=8, executor_cores=2)
    assert one.state(0).executors == 0  # type: ignore[union-attr]
    two.state(0)
    reply = one.events(0, JobArrived(job=job_of("long", (100, ()))))
    assert reply.executors == 4  # type: ignore[union-attr]
    reply = two.events(5, JobArrived(job=job_of("short", (5, ()))))
    assert reply.executors == 3  # type: ignore[union-attr]
    assert _executors(one) == 1  # never below one while the order serves its job
    assert order_of(reply) == ["short"]  # each application gets its own jobs only
    two.events(9, began("short", 0, 5), ended("short", 0, 5, 20), JobEnded(job_id="short"))
    assert _executors(one) == 4
    assert order_of(one.events(10)) == ["long"]


def test_jobs_of_two_applications_may_have_one_id() -> None:
    service, one, two = _two(cores=4)
    one.state(4, job_of("a", (3, ())))
    two.state(0, job_of("a", (9, ())))
    one.events(5, began("a", 0, 3), ended("a", 0, 3, 3))
    mirror = service.mirrors[""]
    assert set(mirror.jobs) == {("two", "a")}


def test_an_application_keeps_executors_that_no_other_needs() -> None:
    _, one, two = _two(cores=4)
    one.state(4, job_of("a", (4, ())))
    two.state(0)
    reply = one.events(5, began("a", 0, 4), ended("a", 0, 4, 4))
    assert reply.executors == 4  # type: ignore[union-attr]
    two.events(6, JobArrived(job=job_of("b", (3, ()))))
    assert _executors(one) == 1


def _with_a_delay() -> tuple[Speaker, OrdersMessage | Error]:
    """A client whose short job has just arrived beside a long one of another, and its orders."""
    _, one, two = _two(cores=4, delay_ms=1_000)
    one.state(4, job_of("long", (100, ())))
    two.state(0)
    return two, two.events(10, JobArrived(job=job_of("short", (50, ()))))


def test_executors_are_not_taken_too_often() -> None:
    two, orders = _with_a_delay()
    assert orders.executors == 1  # type: ignore[union-attr]
    assert two.events(500).executors == 1  # type: ignore[union-attr]
    assert two.events(1_010).executors == 2  # type: ignore[union-attr]
    assert two.events(2_010).executors == 3  # type: ignore[union-attr]
    # The long job is served as well.
    assert two.events(9_000).executors == 3  # type: ignore[union-attr]


def test_executors_go_on_moving_without_events_when_the_delay_is_over() -> None:
    two, orders = _with_a_delay()
    given = []
    # A client that sends an empty message at the time that the orders name, and nothing else.
    while isinstance(orders, OrdersMessage) and orders.wake_ms is not None:
        given.append((orders.executors, orders.wake_ms))
        orders = two.events(orders.wake_ms)
    assert given == [(1, 1_010), (2, 2_010)]
    assert isinstance(orders, OrdersMessage)
    assert orders.executors == 3


def test_the_time_to_ask_next_is_passed_on_by_who_leaves() -> None:
    service = _service(cores=6, delay_ms=1_000)
    one, two, three = (Speaker(service, name) for name in ("one", "two", "three"))
    one.state(6, job_of("long", (100, ())))
    three.state(0)
    two.state(0, job_of("short", (50, ())))
    three.wire.ask(Bye())
    last = one.pushed[-1]
    assert isinstance(last, OrdersMessage)
    assert last.wake_ms == 1_000


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
    one.state(4, job_of("long", (100, ())))
    two.state(0, job_of("short", (50, ())))
    assert _executors(one) == 1
    two.wire.ask(Bye())
    assert _executors(one) == 4
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


def test_one_applications_nonsense_leaves_the_others_alone() -> None:
    _, one, two = _two(cores=4)
    one.state(4, job_of("long", (100, ())))
    two.state(0, job_of("short", (50, ())))
    assert code_of(two.events(5, began("unknown", 0))) == ("unknown_job", "state")
    assert order_of(one.events(6, began("long", 0, 4))) == ["long"]
    assert not any(isinstance(message, Error) for message in one.pushed)
    assert order_of(two.state(0, job_of("short", (50, ())), clock_ms=7)) == ["short"]


def test_no_more_executors_are_given_than_there_are() -> None:
    _, one, two = _two(cores=8, executor_cores=2, delay_ms=10_000)
    assert one.state(8, job_of("long", (100, ()))).executors == 4  # type: ignore[union-attr]
    assert two.state(8, job_of("short", (3, ()))).executors == 2  # type: ignore[union-attr]
    assert _executors(one) == 2


def test_the_cores_are_shared_out_once_for_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    num_cores: list[int] = []

    def counted(state: Any, cores: int, *tables: Any) -> None:
        num_cores.append(cores)
        share_out_cores(state, cores, *tables)

    monkeypatch.setattr(sharing, "share_out_cores", counted)
    service = _service(cores=12)
    board = Board(service)
    clients = [Speaker(service, f"app {number}") for number in range(5)]
    for number, client in enumerate(clients):
        client.state(0, job_of("a", (9 + number, ())))
    assert len(num_cores) == 5
    assert clients[4].events(1).executors == 1  # type: ignore[union-attr]
    assert code_of(clients[3].events(1, began("unknown", 0))) == ("unknown_job", "state")
    clients[2].wire.ask(Bye())
    assert len(num_cores) == 8
    (cluster,) = board.snapshot()["clusters"]
    assert cluster["executors"] == {"app 0": 9, "app 1": 2, "app 3": 0, "app 4": 1}
    assert len(num_cores) == 8


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
