"""Real Spark under services that fail, stall, lie or vanish: every job ends, and nothing of the plugin's gets in its way."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from parcae.service.client import Client
from parcae.service.protocol import Hello, new_nonce
from parcae.service.server import Server
from parcae.service.session import Service
from tests.spark.door import MISBEHAVIOURS, Door
from tests.spark.machine import Application, Listening, Machine, serving, start_machine, wait_until


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    started = start_machine(tmp_path_factory.mktemp("spark"))
    yield started
    started.close()


@pytest.fixture(autouse=True)
def _no_complaints(machine: Machine) -> Iterator[None]:
    yield
    assert machine.complaints() == []


class Guided:
    """An application under a service behind a door."""

    def __init__(self, application: Application, service: Service, server: Server, heard: Listening, door: Door) -> None:
        self.application, self.service, self.server, self.heard, self.door = application, service, server, heard, door

    def wait_for_service(self) -> None:
        """Until the service knows the application's slots again."""
        wait_until(lambda: any(not session.needs_sync for session in list(self.service.sessions.values())))

    def run_guided(self) -> None:
        """Jobs that the service schedules."""
        self.wait_for_service()
        before = self.service.counts.finished_tasks
        self.application.run(2)
        wait_until(lambda: self.service.counts.finished_tasks > before)


@pytest.fixture(scope="class")
def guided(machine: Machine) -> Iterator[Guided]:
    with serving() as (service, server, heard):
        door = Door(server.port)
        with machine.context(door.port) as application:
            yield Guided(application, service, server, heard, door)
            report = application.report()
        door.close()
    assert report["broken"] is None
    assert not report["is_replaced"]
    assert report["connections"] > len(MISBEHAVIOURS)  # the true service came back every time
    assert report["troubles"] > len(MISBEHAVIOURS)
    assert report["away_ms"] > 0
    assert report["tasks_guided"] > 0
    assert report["tasks_unguided"] > 0


class TestOneApplication:
    """Everything that one application may meet, one after the other."""

    def test_jobs_are_scheduled_by_the_service(self, guided: Guided) -> None:
        guided.wait_for_service()
        before, jobs = guided.service.counts.finished_tasks, len(guided.heard.jobs)
        guided.application.run(6)
        wait_until(lambda: guided.service.counts.finished_tasks - before == 6 * (6 + 6 + 2))  # the last are on their way
        assert sorted(guided.heard.jobs[jobs:]) == ["workout 0"] * 2 + ["workout 1"] * 2 + ["workout 2"] * 2
        assert guided.heard.num_syncs == guided.heard.num_sessions

    @pytest.mark.parametrize("name", MISBEHAVIOURS)
    def test_jobs_end_under_a_service_that_is_none(self, guided: Guided, name: str) -> None:
        guided.wait_for_service()
        guided.door.change(MISBEHAVIOURS[name])
        visits = guided.door.num_visits
        guided.application.run()
        wait_until(lambda: guided.door.num_visits > visits)
        guided.application.run()
        guided.door.change(None)
        before = guided.service.counts.finished_tasks
        guided.run_guided()
        assert guided.service.counts.finished_tasks > before

    def test_jobs_end_while_connections_break(self, guided: Guided) -> None:
        guided.wait_for_service()
        stop = threading.Event()

        def breaking() -> None:
            while not stop.wait(0.15):
                guided.door.drop()

        thread = threading.Thread(target=breaking)
        thread.start()
        try:
            guided.application.run(8, 8, 40)
        finally:
            stop.set()
            thread.join()
        before = guided.service.counts.finished_tasks
        guided.run_guided()
        assert guided.service.counts.finished_tasks > before

    def test_failed_tasks_are_tried_again(self, guided: Guided) -> None:
        guided.wait_for_service()
        before, syncs = guided.service.counts.failed_tasks, guided.heard.num_syncs
        assert guided.application.workouts.flaky(guided.application.java, 9)
        wait_until(lambda: guided.service.counts.failed_tasks - before == 6)
        assert guided.heard.num_syncs == syncs

    def test_stages_run_again_when_their_output_is_gone(self, guided: Guided) -> None:
        guided.wait_for_service()
        syncs = guided.heard.num_syncs
        assert guided.application.workouts.forgetful(guided.application.java, 4)
        assert guided.heard.num_syncs > syncs  # the service was told that a stage runs again
        guided.run_guided()

    def test_a_cancelled_job_leaves_its_slots_to_others(self, guided: Guided) -> None:
        guided.wait_for_service()
        before = guided.service.counts.failed_jobs
        assert guided.application.workouts.cancelled(guided.application.java, 500)
        wait_until(lambda: guided.service.counts.failed_jobs == before + 1)
        guided.run_guided()

    def test_a_barrier_runs_all_its_tasks_together(self, guided: Guided) -> None:
        from pyspark import BarrierTaskContext

        guided.wait_for_service()
        rows = guided.application.context.parallelize(range(4), 4).barrier()
        found = rows.mapPartitions(lambda part: [len(BarrierTaskContext.get().allGather(str(list(part))))]).collect()
        assert found == [4] * 4
        guided.run_guided()

    def test_a_query_is_one_job_whatever_it_runs(self, guided: Guided) -> None:
        from pyspark.sql import SparkSession

        guided.wait_for_service()
        session = SparkSession(guided.application.context)
        jobs, added, done = len(guided.heard.jobs), guided.heard.num_added, guided.service.counts.finished_jobs
        guided.application.context.setJobDescription("the query")
        assert _query(session, 3) == _expected(3)
        guided.application.context.setJobDescription(None)
        wait_until(lambda: guided.service.counts.finished_jobs == done + 1)
        assert guided.heard.jobs[jobs:] == ["the query"]
        assert guided.heard.num_added > added

    def test_queries_at_once_come_to_the_right_results(self, guided: Guided) -> None:
        from pyspark.sql import SparkSession

        guided.wait_for_service()
        session = SparkSession(guided.application.context)
        done = guided.service.counts.finished_jobs
        with ThreadPoolExecutor(6) as threads:
            found = list(threads.map(lambda number: _query(session, number), range(2, 10)))
        assert found == [_expected(number) for number in range(2, 10)]
        wait_until(lambda: guided.service.counts.finished_jobs == done + 8)


def _query(session: Any, divisor: int) -> list[tuple[int, int]]:
    """A join with a broadcast table, an aggregate and a scalar subquery, under adaptive execution."""
    rows = session.range(0, 3000, 1, 4).selectExpr("id", f"id % {divisor} AS k")
    names = session.range(0, divisor).selectExpr("id AS k", "id * 10 AS name")
    rows.createOrReplaceTempView(f"rows_{divisor}")
    names.createOrReplaceTempView(f"names_{divisor}")
    found = session.sql(
        f"SELECT /*+ BROADCAST(n) */ n.name, count(*) FROM rows_{divisor} r JOIN names_{divisor} n ON r.k = n.k "
        f"WHERE r.id > (SELECT avg(id) FROM rows_{divisor} WHERE k = 1) GROUP BY n.name ORDER BY n.name"
    )
    return [tuple(row) for row in found.collect()]


def _expected(divisor: int) -> list[tuple[int, int]]:
    ones = [number for number in range(3000) if number % divisor == 1]
    mean = sum(ones) / len(ones)
    counts = Counter(10 * (number % divisor) for number in range(3000) if number > mean)
    return sorted(counts.items())


def test_the_older_of_two_drivers_of_one_name_goes_on_by_itself(machine: Machine) -> None:
    with serving() as (service, server, heard), machine.context(server.port) as application:
        name = application.context.applicationId
        wait_until(lambda: service.counts.syncs)
        application.run()
        with Client("127.0.0.1", server.port) as newer:
            newer.greet(Hello(protocol=1, application_id=name, nonce=new_nonce()))
            sessions = heard.num_sessions
            application.run(8, 8, 40)
            application.run(8, 8, 40)
            assert heard.num_sessions == sessions == 2
        report = application.report()
    assert report["is_replaced"]
    assert report["tasks_unguided"] >= 2 * 8 * 8
    assert report["connections"] == 1


_SECRET = "a secret of the test"


@pytest.fixture(scope="module")
def secret_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secret") / "secret"
    path.write_text(_SECRET + "\n")
    return path


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no openssl to make a certificate with")
    return cert, key


def test_secret_and_tls(machine: Machine, secret_file: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    tls = {"tls_cert": cert, "tls_key": key}
    settings = {"spark_parcae_secretFile": secret_file, "spark_parcae_tls_ca": cert}
    with (
        serving(secret=_SECRET.encode(), **tls) as (service, server, _),
        machine.context(server.port, **settings) as application,
    ):
        wait_until(lambda: service.counts.syncs)
        application.run()
        assert service.counts.finished_tasks > 0
        assert application.report()["troubles"] == 0


@pytest.mark.parametrize(("mine", "theirs"), [("another secret, quite", _SECRET), (None, _SECRET), (_SECRET, None)])
def test_who_does_not_share_the_secret_is_left_alone(
    machine: Machine, tmp_path: Path, mine: str | None, theirs: str | None
) -> None:
    settings = {}
    if mine:
        (tmp_path / "secret").write_text(mine)
        settings["spark_parcae_secretFile"] = tmp_path / "secret"
    before = len(machine.said())
    with (
        serving(secret=theirs.encode() if theirs else None) as (service, server, _),
        machine.context(server.port, **settings) as application,
    ):
        application.run()
        wait_until(lambda: "Spark schedules by itself" in machine.said()[before:])
        report = application.report()
    assert service.counts.syncs == 0
    assert report["troubles"] > 0
    assert report["tasks_guided"] == 0
    assert "secret" in report["last_trouble"]


def test_without_a_service_spark_warns_once(machine: Machine) -> None:
    with serving() as (_, server, _):
        port = server.port
    before = len(machine.said())
    with machine.context(port) as application:
        application.run()
        application.run()
        report = application.report()
    assert machine.said()[before:].count("Spark schedules by itself") == 1
    assert report["connections"] == 0
    assert report["away_ms"] > 0


def test_a_context_can_be_stopped_while_it_connects(machine: Machine) -> None:
    door = Door(0)
    door.change(lambda connection: threading.Event().wait(20))  # says nothing
    start = time.monotonic()
    with machine.context(door.port) as application:
        wait_until(lambda: door.num_visits)
        stopping = time.monotonic()
        application.stop()
        assert time.monotonic() - stopping < 5
    assert time.monotonic() - start < 20
    door.close()


def test_wrong_settings_are_refused_at_the_start(machine: Machine, tmp_path: Path) -> None:
    for settings in (
        {"spark_parcae_service": "nowhere"},
        {"spark_parcae_service": "host:99999"},
        {"spark_parcae_secretFile": tmp_path / "none"},
    ):
        with pytest.raises(Exception, match=r"spark\.parcae|External scheduler"), machine.context(1, **settings):
            pass
    machine.forgive()  # Spark tells in its log why it did not start
