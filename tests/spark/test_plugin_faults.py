"""Tests of a real Spark under services that fail, stall, send wrong messages or vanish.

Every job ends, and the orders of a correct service are obeyed again afterwards.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.spark.fake_service import (
    MISBEHAVIOURS,
    FakeService,
    certificate_for,
    frame,
    saying,
    welcome,
)
from tests.spark.machine import Application, Machine
from tests.spark.proofs import free_port

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _assert_no_complaints(machine: Machine) -> Iterator[None]:
    yield
    assert machine.complaints() == []


class Guided:
    """An application under a fake service."""

    def __init__(self, machine: Machine, application: Application, service: FakeService) -> None:
        self.machine = machine
        self.application = application
        self.service = service

    def wait_for_service(self) -> None:
        """Wait until the service has received the whole state in a new connection."""
        before = self.service.num_states
        self.service.change(None)
        wait_until(lambda: self.service.num_states > before)

    def assert_guided(self, run: Any, num_jobs: int = 1) -> None:
        """What runs is sent to the service, and the service's picture of it is right."""
        self.wait_for_service()
        before = len(self.service.picture.ended)
        run()
        wait_until(lambda: len(self.service.picture.ended) >= before + num_jobs)
        wait_until(lambda: not self.service.picture.jobs)
        assert self.service.picture.faults == []


@pytest.fixture(scope="class")
def guided(machine: Machine) -> Iterator[Guided]:
    service = FakeService()
    with machine.context(service.port, spark_parcae_orderTtlMs=1_500) as application:
        yield Guided(machine, application, service)
    service.close()


class TestOneApplication:
    """All faults that one application may meet, one after the other."""

    def test_jobs_are_reported_to_the_service(self, guided: Guided) -> None:
        guided.assert_guided(lambda: guided.application.run(6), 6)
        names = [job["names"][0] for job in guided.service.picture.seen[-6:]]
        assert sorted(names) == ["workout 0"] * 2 + ["workout 1"] * 2 + ["workout 2"] * 2

    @pytest.mark.parametrize("name", MISBEHAVIOURS)
    def test_jobs_end_under_a_service_that_is_none(self, guided: Guided, name: str) -> None:
        guided.wait_for_service()
        guided.service.change(MISBEHAVIOURS[name])
        visits = guided.service.num_visits
        wait_until(lambda: guided.service.num_visits > visits)
        guided.application.run()
        guided.application.run()
        guided.assert_guided(guided.application.run)

    def test_jobs_end_while_connections_break(self, guided: Guided) -> None:
        guided.wait_for_service()
        stop = threading.Event()

        def breaking() -> None:
            while not stop.wait(0.15):
                guided.service.drop()

        thread = threading.Thread(target=breaking)
        thread.start()
        try:
            guided.application.run(8, 8, 40)
        finally:
            stop.set()
            thread.join()
        guided.assert_guided(guided.application.run)

    @pytest.mark.parametrize(
        ("fault", "size"), [("flaky", 9), ("forgetful", 4), ("cancelled", 500)]
    )
    def test_tasks_that_fail_lose_their_output_or_are_cancelled_are_reported(
        self, guided: Guided, fault: str, size: int
    ) -> None:
        def run() -> None:
            assert getattr(guided.application.workouts, fault)(guided.application.java, size)

        guided.assert_guided(run)

    def test_a_barrier_runs_all_its_tasks_together(self, guided: Guided) -> None:
        from pyspark import BarrierTaskContext

        def run() -> None:
            rows = guided.application.context.parallelize(range(4), 4).barrier()
            found = rows.mapPartitions(
                lambda part: [len(BarrierTaskContext.get().allGather(str(list(part))))]
            ).collect()
            assert found == [4] * 4

        guided.assert_guided(run)

    def test_queries_at_once_come_to_the_right_results_and_are_one_job_each(
        self, guided: Guided
    ) -> None:
        from pyspark.sql import SparkSession

        session = SparkSession(guided.application.context)
        guided.wait_for_service()
        before = len(guided.service.picture.seen)

        def run() -> None:
            with ThreadPoolExecutor(6) as threads:
                found = list(threads.map(lambda number: _query(session, number), range(2, 10)))
            assert found == [_expected(number) for number in range(2, 10)]

        guided.assert_guided(run, 8)
        assert len(guided.service.picture.seen) == before + 8


def test_a_thousand_connections_leave_nothing_behind(machine: Machine) -> None:
    service = FakeService()
    with machine.context(service.port, spark_parcae_retryMs=100) as application:
        wait_until(lambda: service.num_states)
        files = len(_open_files(machine))
        service.change(welcome)  # and then the connection ends
        wait_until(lambda: service.num_visits >= 1_000, 600)
        states = service.num_states
        service.change(None)
        wait_until(lambda: service.num_states > states)
        application.run()
        threads = machine.jvm.java.lang.Thread.getAllStackTraces().keySet()
        names = [thread.getName() for thread in threads if "parcae-" in thread.getName()]
        assert sorted(names) == ["parcae-link", "parcae-reader"]
        assert len(_open_files(machine)) < files + 20
    service.close()


def _open_files(machine: Machine) -> list[Path]:
    pid = machine.jvm.java.lang.ProcessHandle.current().pid()
    return list(Path(f"/proc/{pid}/fd").iterdir())


def _query(session: Any, divisor: int) -> list[tuple[int, int]]:
    """Run a query with a broadcast join, an aggregate and a subquery, under adaptive execution."""
    rows = session.range(0, 3000, 1, 4).selectExpr("id", f"id % {divisor} AS k")
    names = session.range(0, divisor).selectExpr("id AS k", "id * 10 AS name")
    rows.createOrReplaceTempView(f"rows_{divisor}")
    names.createOrReplaceTempView(f"names_{divisor}")
    found = session.sql(
        f"SELECT /*+ BROADCAST(n) */ n.name, count(*) "
        f"FROM rows_{divisor} r JOIN names_{divisor} n ON r.k = n.k "
        f"WHERE r.id > (SELECT avg(id) FROM rows_{divisor} WHERE k = 1) "
        f"GROUP BY n.name ORDER BY n.name"
    )
    return [tuple(row) for row in found.collect()]


def _expected(divisor: int) -> list[tuple[int, int]]:
    ones = [number for number in range(3000) if number % divisor == 1]
    mean = sum(ones) / len(ones)
    counts = Counter(10 * (number % divisor) for number in range(3000) if number > mean)
    return sorted(counts.items())


def test_without_a_service_spark_says_so_once(machine: Machine) -> None:
    before = len(machine.said())
    port = free_port()
    with machine.context(port, spark_parcae_orderTtlMs=500) as application:
        wait_until(lambda: "Spark schedules by itself" in machine.said()[before:])
        application.run()
        _hang_up(port, 3)  # the plugin goes on trying
    assert machine.said()[before:].count("Spark schedules by itself") == 1
    assert "Connection refused" in machine.said()[before:]


def _hang_up(port: int, times: int) -> None:
    """Wait for so many connections to the port, and end every one of them at once."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(60)
        for _ in range(times):
            connection, _address = listener.accept()
            connection.close()


def test_a_context_can_be_stopped_while_it_connects(machine: Machine) -> None:
    service = FakeService()
    has_hung_up = threading.Event()

    def say_nothing(connection: socket.socket) -> None:
        time.sleep(20)
        has_hung_up.set()

    service.change(say_nothing)
    with machine.context(service.port) as application:
        wait_until(lambda: service.num_visits)
        application.stop()
        assert not has_hung_up.is_set()  # the context did not wait for the service
    service.close()


def test_wrong_settings_leave_spark_as_it_is(machine: Machine, tmp_path: Path) -> None:
    for settings in (
        {"spark_parcae_service": "nowhere"},
        {"spark_parcae_service": "host:99999"},
        {"spark_parcae_secretFile": tmp_path / "none"},
        {"spark_parcae_orderTtlMs": "soon"},
        {"spark_parcae_fallbackExecutors": 2},  # a local master has one executor
    ):
        before = len(machine.said())
        with machine.context(1, **settings) as application:
            application.run(1)
        (name,) = settings
        (line,) = [line for line in machine.said()[before:].splitlines() if "parcae: off" in line]
        assert name.replace("_", ".") in line
    machine.forgive()


_SECRET = "a secret of the test"


@pytest.mark.parametrize(("mine", "theirs"), [(None, True), (_SECRET, False)])
def test_who_does_not_share_the_secret_is_left_alone(
    machine: Machine, tmp_path: Path, mine: str | None, theirs: bool
) -> None:
    service = FakeService()
    settings = dict[str, object]()
    if theirs:
        service.change(saying(frame({"type": "challenge", "nonce": "n" * 32})))
    if mine:
        (tmp_path / "secret").write_text(mine)
        settings["spark_parcae_secretFile"] = tmp_path / "secret"
    before = len(machine.said())
    with machine.context(service.port, spark_parcae_orderTtlMs=500, **settings) as application:
        application.run()
        wait_until(lambda: "Spark schedules by itself" in machine.said()[before:])
    assert "secret" in machine.said()[before:]
    assert service.num_states == 0
    service.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    return certificate_for("IP:127.0.0.1", tmp_path_factory.mktemp("tls") / "own")


def test_tls_is_spoken_to_whom_is_trusted(machine: Machine, certificate: tuple[Path, Path]) -> None:
    service = FakeService(certificate=certificate)
    with machine.context(service.port, spark_parcae_tls_ca=certificate[0]) as application:
        wait_until(lambda: service.num_states)
        application.run()
        wait_until(lambda: len(service.picture.ended) == 4)
    service.close()
    assert service.picture.faults == []
