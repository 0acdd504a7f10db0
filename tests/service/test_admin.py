"""The admin side: health, metrics, the live page and its stream."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import parcae.service
from parcae.cluster.state import NO_STAGE
from parcae.policies.learned import learned_policy
from parcae.service.client import Client
from parcae.service.protocol import Events, Hello, JobArrived, JobMessage, SlotMessage, StageMessage, Sync, new_nonce
from parcae.service.running import ServeSettings, serve
from parcae.simulation.config import SimulationConfig
from parcae.simulation.simulator import Simulator
from parcae.workloads.arrivals import draw_sequence
from parcae.workloads.catalog import load_workload
from parcae.workloads.random_streams import RandomStreams

_PAGE = Path(parcae.service.__file__).parent / "page.html"


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    """A whole service with the tuned network, and a client that has submitted two jobs."""
    ready, found = threading.Event(), list[int]()
    settings = ServeSettings(policy="parcae", port=0, admin_port=0, num_slots=4, for_s=20.0)

    def on_ready(port: int, admin_port: int | None) -> None:
        found.extend((port, admin_port or 0))
        ready.set()

    threading.Thread(target=serve, args=(settings, load_workload("toy"), on_ready), daemon=True).start()
    assert ready.wait(120)
    with Client("127.0.0.1", found[0]) as client:
        client.greet(Hello(protocol=1, application_id="app", application_name="<b>nightly</b>", nonce=new_nonce()))
        slots = tuple(SlotMessage(slot=number) for number in range(4))
        client.commands(Sync(seq=1, clock_ms=0, slots=slots, has_instant_moves=True))
        for number in (1, 2):
            job = JobMessage(job_id=number, name="<i>job</i>", arrival_ms=0, stages=(StageMessage(stage_id=0, tasks=9),))
            client.commands(Events(seq=1 + number, clock_ms=number, events=(JobArrived(job=job),)))
        yield found[0], found[1]


def _get(ports: tuple[int, int], path: str, **headers: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{ports[1]}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as reply:
        return str(reply.read().decode())


def test_health_says_who_serves(ports: tuple[int, int]) -> None:
    health = json.loads(_get(ports, "/health"))
    assert (health["status"], health["policy"], health["sessions"], health["fallbacks"]) == ("ok", "parcae", 1, 0)


def test_metrics_are_those_that_prometheus_reads(ports: tuple[int, int]) -> None:
    text = _get(ports, "/metrics")
    told = ["parcae_decision_seconds_bucket", 'parcae_request_seconds_count{type="events"} 2.0', "parcae_events_total 2.0"]
    told += ["parcae_fallbacks_total 0.0", 'parcae_jobs{state="waiting"}', "parcae_sessions 1.0", "parcae_slots 4.0"]
    for name in told:
        assert name in text, name


def test_the_state_lists_jobs_slots_and_decisions_with_probabilities(ports: tuple[int, int]) -> None:
    state = json.loads(_get(ports, "/state"))
    (cluster,) = state["clusters"]
    assert [job["tasks"] for job in cluster["jobs"]] == [9, 9]
    assert sum(job["slots"] for job in cluster["jobs"]) > 0
    now = {job["key"]: job["slots"] for job in cluster["jobs"] if job["slots"]}
    assert cluster["history"][-1][1] == now
    assert cluster["num_running"] == len(now)
    assert state["decisions"]
    choices = [decision["choices"] for decision in state["decisions"] if decision["choices"]]
    assert choices
    assert all(0.0 <= chance <= 1.0 for own in choices for _, chance in own)


def test_the_stream_begins_with_the_state(ports: tuple[int, int]) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}/events", timeout=10) as stream:
        line = stream.readline()
    assert line.startswith(b"data: ")
    assert json.loads(line[6:])["policy"] == "parcae"


def test_foreign_names_are_refused(ports: tuple[int, int]) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        _get(ports, "/state", Host="evil.example:80")


def test_the_page_has_no_outside_parts_and_never_writes_html_from_data(ports: tuple[int, int]) -> None:
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


@pytest.mark.parametrize("name", ["parcae", "decima"])
def test_a_network_says_how_probable_its_choices_were(name: str) -> None:
    workload, config = load_workload("tpch"), SimulationConfig(num_executors=10)
    policy = learned_policy(name, workload, config)
    simulator = Simulator(draw_sequence(workload, "batch", 5, 10, RandomStreams(0)), config, 0)
    simulator.start()
    for _ in range(20):
        decision = policy.decide(simulator.observe())
        choices = policy.probabilities(simulator.observe())  # type: ignore[union-attr]
        assert sum(chance for _, chance in choices) == pytest.approx(1.0)
        assert choices[0][0] == decision.stage
        assert all(stage == NO_STAGE or simulator.observe().is_schedulable(stage) for stage, _ in choices)
        simulator.step(decision)
