"""How the orders of two policies differ: what a client would do, not which numbers it was sent."""

from __future__ import annotations

from typing import Any

import pytest

from parcae.service.protocol import JobOrder, OrdersMessage, StageOrder
from parcae.service.replay import Kind, ReplayedOrders


def _orders(*jobs: dict[str, Any], stages: tuple[StageOrder, ...] = ()) -> OrdersMessage:
    named = tuple(
        JobOrder(**{"job_id": name, **job}) for name, job in zip("abcdefgh", jobs, strict=False)
    )
    return OrdersMessage(
        seq=1, jobs=named, stages=stages, other_tier=max(job.tier for job in named)
    )


def _strict(*tiers: float) -> OrdersMessage:
    return _orders(*({"tier": tier} for tier in tiers))


def _sharing(*tiers: float) -> OrdersMessage:
    return _orders(*({"tier": tier, "weight": 1} for tier in tiers))


def _stage(job: str, **order: Any) -> StageOrder:
    return StageOrder(job_id=job, stage_id=1, **order)


@pytest.mark.parametrize(
    ("recorded", "other", "kind"),
    [
        # Only the order of the tiers matters, and only the ratios of the weights.
        (_strict(0, 1, 2), _strict(-5, 0.5, 90), None),
        (
            _orders({"tier": 0, "weight": 1}, {"tier": 0, "weight": 2}),
            _orders({"tier": 7, "weight": 3}, {"tier": 7, "weight": 6}),
            None,
        ),
        (_orders({"tier": 0, "weight": 1}), _orders({"tier": 0, "weight": 9}), None),
        (_strict(0, 1, 2), _strict(1, 0, 2), Kind.FIRST),
        # Jobs of one tier without weights are served in the order of their arrival.
        (_strict(0, 1), _strict(0, 0), None),
        # A job that is served alone first is served otherwise than one that shares.
        (_strict(0, 1), _sharing(0, 0), Kind.FIRST),
        # A policy that decides gives tiers to stages: a job is served with its first stage.
        (
            _strict(0, 0),
            _orders({"tier": 0}, {"tier": 0}, stages=(_stage("b", tier=-1.0),)),
            Kind.FIRST,
        ),
        (_strict(0, 1, 2), _strict(0, 2, 1), Kind.LATER),
        (_strict(0, 1, 2), _sharing(0, 1, 1), Kind.LATER),
        (
            _orders({"tier": 0, "weight": 1}, {"tier": 0, "weight": 2}),
            _orders({"tier": 0, "weight": 1}, {"tier": 0, "weight": 1}),
            Kind.SHARES,
        ),
        (_orders({"tier": 0, "limit": 3}), _orders({"tier": 0}), Kind.SHARES),
        (
            _orders({"tier": 0}, {"tier": 1}, stages=(_stage("b", rank=2.0),)),
            _orders({"tier": 0}, {"tier": 1}),
            Kind.STAGES,
        ),
    ],
)
def test_orders_differ_where_a_client_would_do_otherwise(
    recorded: OrdersMessage, other: OrdersMessage, kind: Kind | None
) -> None:
    compared = ReplayedOrders()
    compared.add(1_000, recorded, other, {"b": [1]})
    assert compared.num_orders == 1
    assert compared.counts == {one: int(one is kind) for one in Kind}
    assert [one.kind for one in compared.differences] == ([] if kind is None else [kind])


def test_a_difference_shows_the_jobs_from_the_first_different_group_on() -> None:
    compared = ReplayedOrders()
    compared.add(5_000, _strict(0, 1, 2), _strict(0, 1, 2), {})
    compared.add(7_500, _strict(0, 1, 2, 3, 4, 5, 6, 7), _sharing(0, 1, 1, 2, 2, 2, 2, 2), {})
    (one,) = compared.differences
    assert (one.clock_ms, one.since_ms) == (7_500, 2_500)
    ids = [[[share.job_id for share in group] for group in of] for of in (one.recorded, one.other)]
    assert ids == [[["b"], ["c"], ["d"], ["e"], ["f"]], [["b", "c"], ["d", "e", "f"]]]


def test_a_difference_of_stages_shows_their_jobs() -> None:
    compared = ReplayedOrders()
    limited = _orders({"tier": 0}, {"tier": 1}, stages=(_stage("b", limit=2),))
    compared.add(0, limited, _strict(0, 1), {"b": [1, 2]})
    (one,) = compared.differences
    assert [[share.job_id for share in group] for group in one.recorded] == [["b"]]
    assert one.other == one.recorded


def test_orders_without_jobs_or_of_different_jobs_are_not_compared() -> None:
    compared = ReplayedOrders()
    compared.add(
        0,
        OrdersMessage(seq=1, jobs=(), other_tier=0),
        OrdersMessage(seq=1, jobs=(), other_tier=0),
        {},
    )
    compared.add(0, _strict(0), _strict(0, 1), {})
    assert (compared.num_orders, compared.differences) == (0, [])
