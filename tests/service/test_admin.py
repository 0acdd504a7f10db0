"""The admin side: health, metrics, the live page and its stream."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest

import parcae.service
from parcae.base.errors import ConfigError
from parcae.service import admin as board
from parcae.service.admin import Board
from parcae.service.client import Client
from parcae.service.protocol import Events, Hello, JobArrived, JobEnded, StateMessage
from parcae.service.serve import ServeSettings, serve
from parcae.workloads.archive import load_workload
from tests.conftest import wait_until
from tests.service.speaking import Speaker, began, ended, job_of, service_of
from tests.spark.proofs import free_port

_PAGE = Path(parcae.service.__file__).parent / "page.html"


@pytest.fixture(scope="module")
def ports() -> Iterator[list[int]]:
    """The ports of a running service with policy srpt.

    Its client has submitted three jobs; one of them has ended.
    """
    ready = threading.Event()
    opened = list[int]()
    settings = ServeSettings(
        policy="srpt", port=0, admin_port=0, metrics_port=free_port(), num_cores=4, for_s=600.0
    )

    def on_ready(port: int, admin_port: int | None) -> None:
        opened.extend((port, admin_port or 0, settings.metrics_port or 0))
        ready.set()

    threading.Thread(
        target=serve, args=(settings, load_workload("toy"), on_ready), daemon=True
    ).start()
    assert ready.wait(240)
    with Client("127.0.0.1", opened[0]) as client:
        client.greet(Hello(protocol=2, application_id="app", application_name="<b>nightly</b>"))
        client.orders(StateMessage(seq=1, clock_ms=0, cores=4, jobs=()))
        for number, tasks in ((1, 9), (2, 5), (3, 1)):
            job = job_of(f"j{number}", (tasks, ()), name="<i>job</i>", is_open=True)
            client.orders(Events(seq=1 + number, clock_ms=number, events=(JobArrived(job=job),)))
        done = (began("j3", 0), ended("j3", 0, 1, 4_000), JobEnded(job_id="j3"), began("j1", 0, 3))
        client.orders(Events(seq=9, clock_ms=4_003, events=done))
        yield opened


def _get(ports: list[int], path: str, row: int = 1, **headers: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{ports[row]}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as reply:
        return str(reply.read().decode())


def test_health_says_who_serves(ports: list[int]) -> None:
    health = json.loads(_get(ports, "/health"))
    names = ("status", "policy", "sessions", "fallbacks")
    assert [health[name] for name in names] == ["ok", "srpt", 1, 0]


def test_metrics_are_those_that_prometheus_reads(ports: list[int]) -> None:
    text = _get(ports, "/metrics")
    expected = [
        "parcae_plan_seconds_bucket",
        'parcae_request_seconds_count{type="events"} 4.0',
        "parcae_events_total 7.0",
        "parcae_fallbacks_total 0.0",
        'parcae_jobs{state="waiting"} 1.0',
        "parcae_sessions 1.0",
        "parcae_cores 4.0",
        "parcae_cores_busy 3.0",
        "parcae_completion_seconds_total 4.003",
    ]
    for name in expected:
        assert name in text, name
    # Prometheus asks by the pod's address.
    assert "parcae_cores_busy 3.0" in _get(ports, "/metrics", 2, Host="10.0.0.1:7179")
    for path in ("/", "/state", "/health"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            _get(ports, path, 2)


def test_metrics_alone_need_the_live_page() -> None:
    settings = ServeSettings(port=0, admin_port=None, metrics_port=7179)
    with pytest.raises(ConfigError, match="leave out --admin-port -1"):
        serve(settings, load_workload("toy"), print)


def test_the_state_lists_the_order_in_force_and_what_fair_would_have_taken(
    ports: list[int],
) -> None:
    state = json.loads(_get(ports, "/state"))
    (cluster,) = state["clusters"]
    assert [(job["job_id"], job["running"], job["tasks"]) for job in cluster["jobs"]] == [
        ("j2", 0, 5),
        ("j1", 3, 9),
    ]
    assert cluster["jobs"][0]["tier"] < cluster["jobs"][1]["tier"]
    assert 0 < cluster["jobs"][0]["left_ms"] < cluster["jobs"][1]["left_ms"]
    assert (cluster["busy"], cluster["cores"], cluster["history"][-1][1:]) == (3, 4, [2, 3])
    (ended_job,) = state["ended"]
    assert (ended_job["name"], ended_job["took_s"]) == ("<i>job</i>", 4.003)
    assert (state["num_ended"], state["took_s"], state["against_fair"]) == (1, 4.003, None)
    # The estimate is made beside the thread that serves. Alone, the job would take its one task.
    wait_until(lambda: json.loads(_get(ports, "/state"))["ended"][0]["fair_s"] == 4.003)


def test_the_stream_begins_with_the_state(ports: list[int]) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}/events", timeout=10) as stream:
        line = stream.readline()
    assert line.startswith(b"data: ")
    assert json.loads(line[6:])["policy"] == "srpt"


def test_foreign_names_are_refused(ports: list[int]) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        _get(ports, "/state", Host="evil.example:80")


def test_the_page_has_no_outside_parts_and_never_writes_html_from_data(
    ports: list[int],
) -> None:
    page = _get(ports, "/")
    assert page == _PAGE.read_text()
    links = []

    class Finder(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            links.extend(value for name, value in attributes if name in ("src", "href"))

    Finder().feed(page)
    assert links == ["data:,"]  # an empty icon, so that browsers do not ask for one
    assert "http" not in page
    assert "innerHTML" not in page
    assert "prefers-color-scheme: dark" in page


def test_the_chart_goes_on_when_the_machines_clock_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = SimpleNamespace(time=lambda: 5_000.0, monotonic=lambda: 100.0)
    monkeypatch.setattr(board, "time", clocks)
    service = service_of()
    seen = Board(service)
    service.watchers.append(seen)
    client = Speaker(service)
    client.state(4)
    clocks.monotonic = lambda: 102.0
    clocks.time = lambda: 1_000.0
    client.events(1)
    snapshot = seen.snapshot()
    (cluster,) = snapshot["clusters"]
    assert [at_s for at_s, _, _ in cluster["history"]] == [5_000.0, 1_000.0, 1_000.0]
    assert snapshot["uptime_s"] == 2.0


def test_metrics_may_be_read_while_the_other_thread_takes_a_sample() -> None:
    service = service_of()
    seen = Board(service)
    service.watchers.append(seen)

    class Meanwhile(dict[str, Any]):
        """What happens in the event loop while a sample is written in the other thread."""

        def setdefault(self, name: str, default: Any = None) -> Any:
            Speaker(service, "late").state(4)
            assert b"parcae_cores 8.0" in generate_latest(seen.registry)
            return super().setdefault(name, default)

    seen._history = Meanwhile()
    Speaker(service).state(4)
    assert service.watchers == [seen]
    assert list(seen._history) == ["app"]
