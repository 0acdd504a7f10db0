"""Tests of the plugin with a small fake service, on a real Spark.

Orders arrive and are obeyed, and Spark continues without them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmarks.spark.replaying import running_service

from parcae.policies.policy_file import export_policy, write_policy
from parcae.workloads.archive import write_workload
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload
from tests.conftest import REPOSITORY, wait_until
from tests.service.speaking import service_of
from tests.spark.fake_service import (
    MISBEHAVIOURS,
    FakeService,
    Picture,
    certificate_for,
    frame,
    once,
    read,
)
from tests.spark.java import run_java
from tests.spark.machine import Machine
from tests.spark.test_guest import Queries

_ORDERS_FIXTURES = REPOSITORY / "protocol" / "fixtures" / "service"
_LONG_S = 2.0
_AWAY = "Spark schedules by itself"
#: The fake service orders queries of these names first.
_TIERS = {"short": 1.0, "long": 2.0}


def _proof(secret: str, side: str, client: str, service: str, application: str) -> dict[str, str]:
    """A proof, computed as the text of the protocol says."""
    parts = ("parcae 2", side, client, service, application)
    text = b"".join(part.encode() + b"\0" for part in parts)
    mac = hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
    names = ("secret", "side", "client", "service", "application", "mac")
    return dict(zip(names, (secret, *parts[1:], mac), strict=True))


def test_the_wire_speaks_the_protocol(class_path: str, tmp_path: Path) -> None:
    cases = [
        _proof("0123456789abcdef", "client", "a" * 32, "b" * 32, "app-1"),
        _proof("gehéim-€-secret-16", "service", "n1", "n2", "local-😀"),
    ]
    path = tmp_path / "proofs.json"
    path.write_text(json.dumps(cases))
    assert "ok proofs" in run_java(class_path, "guest.WireTest", path, _ORDERS_FIXTURES)


def test_the_picture_step_by_step(class_path: str) -> None:
    assert "ok bounds" in run_java(class_path, "guest.PictureTest")


def test_events_add_up_to_states(class_path: str) -> None:
    """Random applications: applying all events gives the same as the state."""
    mine = Picture()
    num_compared = 0
    for line in run_java(class_path, "guest.PictureTest", 20, 1_000).splitlines():
        message = json.loads(line)
        if message["type"] == "state":
            known = mine.shape()
            cores = mine.cores
            faults = mine.faults
            mine = Picture()
            mine.take(message)
            assert faults == []
            if message["seq"]:  # else it is said instead of events
                assert (known, cores) == (mine.shape(), mine.cores)
                num_compared += bool(known)
        else:
            mine.take(message)
    assert num_compared > 100


def test_the_service_accepts_whatever_happens_to_tasks_and_stages(class_path: str) -> None:
    """Applications with failures, lost executors and cancelled jobs: no message is refused."""
    service = service_of()
    session = None
    num_messages = 0
    for line in run_java(class_path, "guest.RandomApplication", 40, 400).splitlines():
        if json.loads(line)["type"] == "application":
            session = service.open()
            hello = {"type": "hello", "protocol": 2, "application_id": f"app {num_messages}"}
            session.receive(json.dumps(hello).encode())
            continue
        assert session is not None
        assert [one for one in session.receive(line.encode()) if one.type == "error"] == []
        num_messages += 1
    assert num_messages > 1_000
    assert service.counts.failed_tasks > 100


def test_a_busy_application_and_the_link_do_not_wait_for_each_other(class_path: str) -> None:
    service = FakeService(wake_ms=1)
    fading = FakeService()
    fading.behaviour = once
    try:
        said = run_java(class_path, "guest.LinkTest", service.port, fading.port)
    finally:
        service.close()
        fading.close()
    assert "ok a busy application" in said
    assert "ok why there is no connection" in said
    assert "ok why orders end" in said
    assert service.picture.faults == []
    assert service.num_events > 10


def _left(class_path: str, *cases: tuple[FakeService, str, Path, str]) -> list[bool]:
    """Whether the plugin with a setting (name, value) visits a service and sends it no state.

    The plugin's own test checks that it leaves the service for the reason given.
    """
    try:
        words = [word for service, *others in cases for word in (service.port, *others)]
        said = run_java(class_path, "guest.TrustTest", *words)
        assert "ok services that are not trusted" in said
        return [service.num_visits > 0 and service.num_states == 0 for service, *_ in cases]
    finally:
        for service, *_ in cases:
            service.close()


def test_certificates_that_are_not_trusted_or_for_another_host_are_refused(
    class_path: str, tmp_path: Path
) -> None:
    mine = certificate_for("IP:127.0.0.1", tmp_path / "mine")
    other = certificate_for("IP:127.0.0.1", tmp_path / "other")
    elsewhere = certificate_for("DNS:elsewhere.invalid", tmp_path / "elsewhere")
    setting = "spark.parcae.tls.ca"
    foreign = FakeService(certificate=other), setting, mine[0], "PKIX path"
    reason = "No subject alternative names"
    misplaced = FakeService(certificate=elsewhere), setting, elsewhere[0], reason
    assert _left(class_path, foreign, misplaced) == [True, True]


def test_a_service_that_does_not_prove_the_secret_is_refused(
    class_path: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of the test")
    service = FakeService()

    def guess(connection: socket.socket) -> None:
        read(connection)
        connection.sendall(frame({"type": "challenge", "nonce": "n" * 32}))
        # The client's own proof is none of the service.
        mac = read(connection)["mac"]
        answer = {"type": "welcome", "protocol": 2, "session": "s", "policy": "fake", "mac": mac}
        connection.sendall(frame(answer))
        service._answer(connection, read(connection))

    service.change(guess)
    case = service, "spark.parcae.secretFile", secret, "does not know the secret"
    assert _left(class_path, case) == [True]


@contextmanager
def _service() -> Iterator[FakeService]:
    service = FakeService(_TIERS)
    try:
        yield service
    finally:
        service.close()


def _lines(machine: Machine, before: int, word: str) -> list[str]:
    return [line for line in machine.said()[before:].splitlines() if word in line]


def test_orders_are_obeyed_and_are_dropped_when_they_are_too_old(machine: Machine) -> None:
    before = len(machine.said())
    with (
        _service() as service,
        machine.context(service.port, 2, spark_parcae_orderTtlMs=2_000) as application,
    ):
        queries = Queries(application.context)
        wait_until(lambda: _lines(machine, before, "parcae: orders come from"))
        assert "INFO" in _lines(machine, before, "parcae: orders come from")[0]
        assert queries.run_both() > 0.3 * _LONG_S
        wait_until(lambda: service.picture.ended == ["warm", "short", "long"])
        assert service.picture.cores == 2
        assert service.picture.faults == []
        assert service.num_states == 1
        names = service.picture.seen[-1]["names"]
        assert names[0] == "short"
        assert [name.split("-")[0] for name in names[1:3]] == ["plan", "shape"]
        before = len(machine.said())
        service.change(MISBEHAVIOURS["mute"])
        wait_until(lambda: _lines(machine, before, _AWAY))
        assert queries.run_both() < 0.2 * _LONG_S  # Spark's own order is the first come
        (line,) = _lines(machine, before, _AWAY)
        assert f"127.0.0.1:{service.port}" in line
        service.change(None)
        wait_until(lambda: _lines(machine, before, "parcae: orders come from"))
        # Whoever sees only warnings sees it come back, too.
        (line,) = _lines(machine, before, "parcae: orders come from")
        assert "WARN" in line
        assert queries.run_both() > 0.3 * _LONG_S
    assert machine.complaints() == []


def _traced(trace: Path) -> list[list[str]]:
    """Where the estimates of every traced order come from; a service's order does not say."""
    plans = [json.loads(line)["jobs"] for line in trace.read_text().splitlines()]
    return [[job.get("known", "service") for job in jobs] for jobs in plans]


@pytest.mark.parametrize("has_file", [True, False])
def test_the_trace_has_the_orders_in_force(
    machine: Machine, tmp_path: Path, has_file: bool
) -> None:
    """Only the one that orders is in the trace: the service, and then the policy file or none."""
    policy = tmp_path / "policy.json"
    trace = tmp_path / "trace.jsonl"
    settings = {"spark_parcae_trace": trace}
    if has_file:
        write_policy(export_policy("srpt", Workload("w", (chain(1, 2, 100, "short"),))), policy)
        settings["spark_parcae_policy"] = policy
    before = len(machine.said())
    with (
        _service() as service,
        machine.context(service.port, 2, spark_parcae_orderTtlMs=2_000, **settings) as application,
    ):
        queries = Queries(application.context)
        wait_until(lambda: _lines(machine, before, "parcae: orders come from"))
        queries.run("short", 2)
        wait_until(lambda: service.picture.ended == ["short"])
        assert {name for names in _traced(trace) for name in names} == {"service"}
        running = threading.Thread(target=queries.run, args=("long", 2), kwargs={"sleep_ms": 9_000})
        running.start()
        wait_until(lambda: service.picture.jobs)
        service.change(MISBEHAVIOURS["mute"])
        wait_until(lambda: _lines(machine, before, "the policy file plans" if has_file else _AWAY))
        wait_until(lambda: _traced(trace)[-1] == (["unknown"] if has_file else []), timeout_s=2.0)
        running.join(60)
    assert machine.complaints() == []


def test_a_query_that_begins_with_a_broadcast_has_the_name_of_the_query(machine: Machine) -> None:
    """The broadcast is a job of its own, without a description, on a thread of Spark."""
    from pyspark.sql import SparkSession

    with _service() as service, machine.context(service.port, 2) as application:
        session = SparkSession(application.context)
        wait_until(lambda: service.num_states)
        few = session.range(50).hint("broadcast")
        assert session.range(1_000).join(few, "id").count() == 50
        wait_until(lambda: service.picture.ended)
        assert service.picture.seen[0]["names"][-1].startswith("count at ")
    assert machine.complaints() == []


@pytest.mark.slow
def test_a_real_service_plans_and_is_heard_again_after_it_was_killed(
    machine: Machine, tmp_path: Path
) -> None:
    """`parcae serve` knows both queries by the names that the user gave them."""
    profile = tmp_path / "profile.parcae"
    log = tmp_path / "serve.log"
    write_workload(Workload("w", (chain(1, 40, 100, "long"), chain(1, 2, 100, "short"))), profile)
    before = len(machine.said())
    with (
        running_service("srpt", str(profile), log=log) as service,
        machine.context(service.port, 2) as application,
    ):
        queries = Queries(application.context)
        wait_until(lambda: _lines(machine, before, "parcae: orders come from"))
        assert queries.run_both() > 0.3 * _LONG_S
        service.process.kill()
        wait_until(lambda: _lines(machine, before, _AWAY))
        assert queries.run_both() < 0.2 * _LONG_S
        with running_service("srpt", str(profile), port=service.port, log=log):
            wait_until(lambda: len(_lines(machine, before, "parcae: orders come from")) == 2)
            assert queries.run_both() > 0.3 * _LONG_S
    assert "anew" not in machine.said()[before:]  # the service and the plugin never differed
    assert machine.complaints() == []
