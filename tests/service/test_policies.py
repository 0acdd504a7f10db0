"""Policies by number of slots: made in a thread while fair stands in, kept, and never shared by two clusters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from parcae.cluster.decision import Policy
from parcae.cluster.invariants import check_invariants
from parcae.errors import PolicyError
from parcae.policies.catalog import make_policy
from parcae.service.client import Client
from parcae.service.jobs import DurationBook
from parcae.service.policies import InBackground, OwnPolicies, policies_by_size
from parcae.service.protocol import Events, Hello, JobArrived, JobEnded, SlotMessage, Sync, new_nonce
from parcae.service.server import Server, ServerConfig, serve_in_thread
from parcae.service.session import Service
from parcae.workloads.catalog import load_workload
from tests.service.speaking import Speaker, job_of, tokens_of


def _wait(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until_s, "waited for ten seconds"
        time.sleep(0.01)


class _Gate:
    """Makes policies when it is opened."""

    def __init__(self) -> None:
        self.opened, self.asked = threading.Event(), list[int]()

    def __call__(self, num_slots: int) -> Policy:
        self.asked.append(num_slots)
        assert self.opened.wait(30)
        return make_policy("fifo", num_slots)


def test_fair_stands_in_until_the_policy_is_ready_and_nothing_is_forgotten() -> None:
    ready: list[Policy] = []
    service = Service(lambda slots: ready[0] if ready else None, "fifo", DurationBook(None))
    client = Speaker(service)
    client.sync(4, has_instant_moves=True)
    client.events(0, JobArrived(job=job_of(1, (9, ()))))
    assert service.counts.stand_ins == service.counts.decisions > 0
    assert service.counts.fallbacks == 0
    client.events(1, JobArrived(job=job_of(2, (9, ()))))
    mirror = service.mirror_of("app")
    state, before = mirror.state, service.counts.stand_ins
    ready.append(make_policy("fifo", 4))
    assert tokens_of(client.events(2, JobEnded(job_id=1))) == {(1, 0): 0, (2, 0): 4}
    assert mirror.state is state
    assert service.counts.stand_ins == before
    assert service.counts.decisions > before
    check_invariants(state)


def test_a_policy_is_made_in_a_thread_while_clients_are_answered() -> None:
    gate = _Gate()
    service = Service(InBackground(gate), "fifo", DurationBook(None))
    server, stop = serve_in_thread(lambda: Server(service, ServerConfig()))
    slots = tuple(SlotMessage(slot=number) for number in range(3))
    with Client("127.0.0.1", server.port) as client:
        client.greet(Hello(protocol=1, application_id="app", nonce=new_nonce()))
        client.commands(Sync(seq=1, clock_ms=0, slots=slots, has_instant_moves=True))
        reply = client.commands(Events(seq=2, clock_ms=0, events=(JobArrived(job=job_of(1, (2, ()))),)))
        assert len(reply.commands) == 4  # two moves, two starts
        assert service.counts.stand_ins == service.counts.decisions > 0
        assert service.counts.fallbacks == 0
        before = service.counts.decisions
        gate.opened.set()
        _wait(lambda: service.policy_for(3) is not None)
        client.commands(Events(seq=3, clock_ms=1, events=(JobArrived(job=job_of(2, (2, ()))),)))
        assert service.counts.stand_ins == before < service.counts.decisions
    stop()


def test_what_cannot_be_made_is_tried_once_and_fair_decides(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[int] = []

    def fail(num_slots: int) -> Policy:
        asked.append(num_slots)
        raise PolicyError("limits of another size of cluster")

    background = InBackground(fail)
    policies = OwnPolicies(background)
    assert policies.get(3) is None or policies.get(3).name == "fair"  # type: ignore[union-attr]
    _wait(lambda: policies.get(3) is not None)
    policy = policies.get(3)
    assert policy is not None
    assert policy.name == "fair"
    assert asked == [3]
    assert "limits of another size of cluster" in caplog.text


def test_an_order_of_known_jobs_is_refused() -> None:
    with pytest.raises(PolicyError, match="a live cluster has none: choose another"):
        policies_by_size("order:1-0", load_workload("toy"), 0)(5)


def test_a_cluster_keeps_its_policies_by_number_of_slots() -> None:
    asked: list[int] = []

    def make(num_slots: int) -> Policy:
        asked.append(num_slots)
        return make_policy("fair", num_slots)

    client = Speaker(Service(make, "fair", DurationBook(None)))
    for num_slots in (2, 3, 2, 4, 3, 2):
        client.sync(num_slots)
    assert asked == [2, 3, 4]
    for num_slots in (*range(5, 12), 2):
        client.sync(num_slots)
    assert asked == [2, 3, 4, *range(5, 12), 2]  # eight are kept


@pytest.mark.parametrize("name", ["parcae", "decima"])
def test_no_two_clusters_share_a_networks_memory(name: str) -> None:
    policy_for = policies_by_size(name, load_workload("toy"), 0)
    one, other = policy_for(5), policy_for(5)
    assert one is not other
    assert one._workspace is not other._workspace  # type: ignore[attr-defined]
    assert policies_by_size("fair", load_workload("toy"), 0)(5).name == "fair"
