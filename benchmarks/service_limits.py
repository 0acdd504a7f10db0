"""What the service bears, at full size: a row for every promise, with what was measured.

    python -m benchmarks.service_limits

Silent connections before TLS, a process without file descriptors, storms of connects, clients that
need all memory, and a live page of 300 applications.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import resource
import socket
import ssl
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from benchmarks.service_attacks import Served, job, served, stage, strangers, visit
from tests.spark.fake_service import certificate_for

from parcae.base.errors import ProtocolError
from parcae.service.client import Client
from parcae.service.protocol import Error, Events, Hello, Ping, StageMessage, StateMessage

_HOST = "127.0.0.1"
#: How long clients come and go beside a storm.
_STORM_S = 10.0
#: What was measured, and what was promised.
Measured = tuple[str, float, str]


def _allow_files() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (2_000, hard))


@contextlib.contextmanager
def _beside(what: Callable[[int], None], port: int) -> Iterator[None]:
    """Another process that does something to a port."""
    process = multiprocessing.get_context("spawn").Process(target=what, args=(port,))
    process.start()
    time.sleep(4.0)  # it starts Python
    try:
        yield
    finally:
        process.kill()
        process.join()


def _hold_silent(port: int) -> None:
    """Hold 1,200 connections that say nothing; replace those that the service ends."""
    _allow_files()
    links: list[socket.socket] = []
    while True:
        with contextlib.suppress(OSError):
            links.append(socket.create_connection((_HOST, port), 5))
        if len(links) > 1_200:
            links.pop(0).close()
            time.sleep(0.002)


def silent(folder: Path) -> Iterator[Measured]:
    """1,200 silent connections before the handshake."""
    cert, key = certificate_for(f"IP:{_HOST}", folder / "tls")
    tls = ssl.create_default_context(cafile=str(cert))
    took_s = []
    with (
        served(folder, "--tls-cert", str(cert), "--tls-key", str(key)) as service,
        _beside(_hold_silent, service.port),
    ):
        end_s = time.monotonic() + 20
        size = (folder / "log").stat().st_size
        while time.monotonic() < end_s:
            start_s = time.perf_counter()
            with Client(_HOST, service.port, timeout_s=30.0, tls=tls) as client:
                client.greet(Hello(protocol=2, application_id="late"))
                client.ask(Ping(seq=1))
            took_s.append(time.perf_counter() - start_s)
            time.sleep(0.05)
        grown = (folder / "log").stat().st_size - size
    yield "longest wait of another client, s", max(took_s), "at most 1"
    yield "log, KB/s", grown / 20e3, "below 1"


def _limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def few_files(folder: Path) -> Iterator[Measured]:
    """60 clients of a service that may open 64 files."""
    num_served = num_refused = 0
    with served(folder, before=_limit_files) as service, contextlib.ExitStack() as open_:
        size = (folder / "log").stat().st_size
        for number in range(60):
            client = open_.enter_context(Client(_HOST, service.port, timeout_s=30.0))
            try:
                _first_state(client, f"app {number}")
                num_served += 1
            except (ProtocolError, OSError):
                num_refused += 1
        time.sleep(5.0)
        grown = (folder / "log").stat().st_size - size
        open_.close()
        time.sleep(1.0)
        with Client(_HOST, service.port, timeout_s=30.0) as client:
            _first_state(client, "later")
        time.sleep(1.0)
        later = [path for path in (folder / "records").iterdir() if "later" in path.name]
        num_lines = sum(path.read_bytes().count(b"\n") for path in later)
    yield "clients that were served", num_served, "above 0"
    yield "clients that were refused", num_refused, ""
    yield "log, KB/s", grown / 5e3, "below 1"
    yield "recorded lines of who came later", num_lines, "above 0"


def _first_state(client: Client, name: str) -> None:
    client.greet(Hello(protocol=2, application_id=name))
    client.orders(StateMessage(seq=1, clock_ms=0, cores=4, jobs=(job("a", stage(1)),)))


def storm(folder: Path) -> Iterator[Measured]:
    """Connects as fast as they come from one address; clients of another one come and go."""
    took_ms = list[float]()
    num_dropped = 0
    with served(folder) as service, _beside(strangers, service.port):
        end_s = time.monotonic() + _STORM_S
        while time.monotonic() < end_s:
            try:
                took_ms.append(visit(service.port))
            except (ProtocolError, OSError):  # a word of refusal, or none
                num_dropped += 1
            time.sleep(0.02)
    p99_ms = float(np.percentile(took_ms, 99)) if took_ms else np.inf
    yield "99th percentile of new clients, ms", p99_ms, "at most 100"
    yield "clients that were dropped", num_dropped, "0"


def heavy(folder: Path) -> Iterator[Measured]:
    """1,000 connections, each with a state of 150 bytes that needs 12 MB."""
    _allow_files()
    one = StageMessage(stage_id=1, tasks=262_000, started=262_000)
    state = StateMessage(seq=1, clock_ms=0, cores=131_072, jobs=(job("a", one, name=""),))
    most_mb = 0.0
    counts = {"served": 0, "too_large": 0, "other": 0}
    with served(folder) as service, contextlib.ExitStack() as open_:
        idle_mb = service.resident_mb
        clients = []
        for number in range(1_000):
            client = open_.enter_context(Client(_HOST, service.port, timeout_s=60.0))
            clients.append(client)
            try:
                client.greet(Hello(protocol=2, application_id=f"app {number}"))
                client.orders(state)
            except (ProtocolError, OSError):
                pass
            most_mb = max(most_mb, service.resident_mb)
        for client in clients:
            try:
                reply = client.ask(Ping(seq=2))
                kind = reply.code.value if isinstance(reply, Error) else "served"
                counts[kind if kind in counts else "other"] += 1
            except OSError:
                counts["other"] += 1
    yield "resident before, MiB", idle_mb, ""
    yield "most resident, MiB", most_mb, "below 1,024 more"
    yield "clients that are served", counts["served"], ""
    yield "clients that were refused as the largest", counts["too_large"], ""
    yield "clients that got no word", counts["other"], "0"


def page(folder: Path) -> Iterator[Measured]:
    """300 applications, a client among them, with and without somebody who looks at the page."""
    _allow_files()
    p99_ms: dict[bool, list[float]] = {False: [], True: []}
    num_pictures = [0]
    with served(folder) as service, contextlib.ExitStack() as open_:
        for number in range(300):
            client = open_.enter_context(Client(_HOST, service.port, timeout_s=60.0))
            client.greet(Hello(protocol=2, application_id=f"app {number}"))
            jobs = tuple(job(f"j{n}", stage(n)) for n in range(10))
            client.orders(StateMessage(seq=1, clock_ms=0, cores=50, jobs=jobs))
        seq = 2
        for turn in range(10):
            is_watched = bool(turn % 2)
            over = threading.Event()
            watching = threading.Thread(target=_watch, args=(service, over, num_pictures))
            if is_watched:
                watching.start()
            took_ms = []
            end_s = time.monotonic() + 4
            while time.monotonic() < end_s:
                start_s = time.perf_counter()
                client.orders(Events(seq=seq, clock_ms=seq, events=()))
                took_ms.append(1e3 * (time.perf_counter() - start_s))
                seq += 1
                time.sleep(0.002)
            over.set()
            if is_watched:
                watching.join()
            p99_ms[is_watched].append(float(np.percentile(took_ms, 99)))
    alone, watched = (float(np.median(p99_ms[one])) for one in (False, True))
    yield "pictures that the viewer got", num_pictures[0], "above 0"
    yield "99th percentile without a viewer, ms", alone, ""
    yield "99th percentile with a viewer, ms", watched, f"at most {alone + 5:.1f}"


def _watch(service: Served, over: threading.Event, num_pictures: list[int]) -> None:
    """Look at the live page."""
    address = f"http://{_HOST}:{service.admin_port}/events"
    with urllib.request.urlopen(address, timeout=30) as stream:
        while not over.is_set():
            num_pictures[0] += stream.readline().startswith(b"data:")


_ROWS = (silent, few_files, storm, heavy, page)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[row.__name__ for row in _ROWS])
    given = parser.parse_args()
    print("| case | measured | | promised |")
    print("| --- | --- | --- | --- |")
    for row in _ROWS:
        if row.__name__ in given.only:
            with tempfile.TemporaryDirectory() as name:
                for what, value, promise in row(Path(name)):
                    case = (row.__doc__ or "").rstrip(".")
                    print(f"| {case} | {what} | {value:,.1f} | {promise} |", flush=True)


if __name__ == "__main__":
    main()
