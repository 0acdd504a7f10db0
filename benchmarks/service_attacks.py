"""What clients of the service notice of one that attacks it: the 99th percentile of their answers.

    python -m benchmarks.service_attacks

Three clients take their turns beside every attack: a light one with ten jobs in the system, new
ones that connect, send a state and leave, and a large one with 1,500 jobs. Each is timed from its
message to the decoded orders. The attacker is a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parcae.service.client import Client
from parcae.service.protocol import (
    Event,
    Events,
    Hello,
    JobArrived,
    JobEnded,
    JobMessage,
    Ping,
    StageMessage,
    StateMessage,
    TasksReported,
    encode,
    frame,
)

#: A recurring job of the bundled TPC-H profile.
_PROFILED = "q1-sf1"


def job(job_id: str, *stages: StageMessage, name: str = _PROFILED) -> JobMessage:
    """A job that comes at time 0."""
    return JobMessage(job_id=job_id, names=(name,), arrival_ms=0, stages=stages)


def _chains(num_jobs: int, num_stages: int) -> tuple[JobMessage, ...]:
    """Jobs whose stages run one after another."""
    return tuple(
        job(
            f"a{n}",
            *[
                StageMessage(
                    stage_id=num_stages * n + k,
                    tasks=3,
                    parents=(num_stages * n + k - 1,) if k else (),
                )
                for k in range(num_stages)
            ],
        )
        for n in range(num_jobs)
    )


@contextlib.contextmanager
def _attacker(port: int, name: str = "attacker") -> Iterator[Client]:
    with Client("127.0.0.1", port, timeout_s=300.0) as client:
        client.greet(Hello(protocol=2, application_id=name))
        client.orders(StateMessage(seq=1, clock_ms=1, cores=50, jobs=()))
        yield client


def _forever(port: int, *events: Event) -> None:
    """Send the same events again and again, each time as a new application."""
    message = frame(encode(Events(seq=2, clock_ms=2, events=events)), 1 << 30)
    while True:
        with contextlib.suppress(OSError), _attacker(port) as client:
            client.socket.sendall(message)
            client.receive()


def _pour(port: int, message: bytes) -> None:
    """Send a message without waiting for answers, which are read and thrown away."""
    with _attacker(port) as client:

        def drain() -> None:
            with contextlib.suppress(OSError):
                while client.socket.recv(1 << 16):
                    pass

        threading.Thread(target=drain, daemon=True).start()
        while True:
            client.socket.sendall(message * 1_000)


def empty_reports(port: int) -> None:
    """Empty reports as fast as they are read."""
    with _attacker(port) as client:
        seq = 2
        threading.Thread(
            target=lambda: [client.socket.recv(1 << 16) for _ in iter(int, 1)], daemon=True
        ).start()
        while True:
            many = (encode(Events(seq=seq + n, clock_ms=seq + n, events=())) for n in range(1_000))
            client.socket.sendall(b"".join(map(frame, many)))
            seq += 1_000


def pings(port: int) -> None:
    """Pings as fast as they are read."""
    _pour(port, frame(encode(Ping(seq=2))))


def large_job(port: int) -> None:
    """Jobs of 10,000 stages."""
    _forever(port, JobArrived(job=job("a", *(stage(n) for n in range(10_000)))))


def dense_job(port: int) -> None:
    """Jobs of 600 stages, each with all earlier ones as parents."""
    _forever(port, JobArrived(job=job("a", *(stage(n, range(n)) for n in range(600)))))


def stage(number: int, parents: range = range(0)) -> StageMessage:
    """A stage with one task more than its number."""
    return StageMessage(stage_id=number, tasks=1 + number, parents=tuple(parents))


def many_jobs(port: int) -> None:
    """15,000 jobs in one message."""
    arrivals = (JobArrived(job=job(f"a{n}", stage(n), name="")) for n in range(15_000))
    _forever(port, *arrivals)


def whole_states(port: int, num_connections: int = 1) -> None:
    """States of 3,000 jobs with 30,000 stages, again and again."""
    jobs = _chains(3_000, 10)
    heads = [StateMessage(seq=seq, clock_ms=seq, cores=50, jobs=()) for seq in range(2, 10_000)]
    tail = encode(StateMessage(seq=1, clock_ms=1, cores=50, jobs=jobs)).partition(b'"jobs":')[2]

    def attack(name: str) -> None:
        while True:
            with contextlib.suppress(OSError), _attacker(port, name) as client:
                for head in heads:
                    client.socket.sendall(frame(encode(head).partition(b"[")[0] + tail))
                    client.receive()

    for number in range(1, num_connections):
        threading.Thread(target=attack, args=(f"attacker {number}",), daemon=True).start()
    attack("attacker 0")


def whole_states_40(port: int) -> None:
    """The same on 40 connections at once."""
    whole_states(port, 40)


def many_cores(port: int) -> None:
    """States with another number of cores each, about 100,000."""
    with _attacker(port) as client:
        for seq in range(2, 10**9):
            client.ask(StateMessage(seq=seq, clock_ms=seq, cores=100_000 - seq % 1_000, jobs=()))


def silent_connections(port: int) -> None:
    """1,200 connections that say nothing, not even a handshake."""
    connections = []
    while True:
        with contextlib.suppress(OSError):
            connections.append(socket.create_connection(("127.0.0.1", port), 5))
        if len(connections) > 1_200:
            connections.pop(0).close()
            time.sleep(0.001)


def strangers(port: int) -> None:
    """Connections that end at once, as fast as they come, from another address."""
    while True:
        with contextlib.suppress(OSError), socket.socket() as link:
            link.bind(("127.0.0.9", 0))
            link.connect(("127.0.0.1", port))


def large_frames_of_strangers(port: int) -> None:
    """Frames of 4 MiB before the welcome."""
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as link:
            link.sendall((4 << 20).to_bytes(4, "big") + bytes(4 << 20))


def _timed(client: Client, message: StateMessage | Events, took_ms: list[float]) -> None:
    start_s = time.perf_counter()
    client.orders(message)
    took_ms.append(1e3 * (time.perf_counter() - start_s))


def _of_jobs(port: int, jobs: tuple[JobMessage, ...], for_s: float) -> list[float]:
    """A client with some jobs in the system to which others come, run and go."""
    took_ms: list[float] = []
    with Client("127.0.0.1", port, timeout_s=300.0) as client:
        client.greet(Hello(protocol=2, application_id="victim"))
        client.orders(StateMessage(seq=1, clock_ms=0, cores=50, jobs=jobs))
        end_s = time.monotonic() + for_s
        seq = 2
        while time.monotonic() < end_s:
            number = 10**6 + seq
            one = job(f"x{seq}", StageMessage(stage_id=number, tasks=1), name="recurring")
            task = TasksReported(
                job_id=one.job_id, stage_id=number, started=1, finished=1, executed_ms=50
            )
            for event in (JobArrived(job=one), task, JobEnded(job_id=one.job_id)):
                _timed(client, Events(seq=seq, clock_ms=seq, events=(event,)), took_ms)
                seq += 1
            time.sleep(0.005)
    return took_ms


def light(port: int, for_s: float) -> list[float]:
    """A client with ten jobs."""
    return _of_jobs(port, tuple(job(f"v{n}", stage(n)) for n in range(10)), for_s)


def large(port: int, for_s: float) -> list[float]:
    """A client with 1,500 jobs."""
    return _of_jobs(port, _chains(1_500, 2), for_s)


def new(port: int, for_s: float) -> list[float]:
    """Clients that connect, send their first state and leave: all of it is timed."""
    took_ms = []
    end_s = time.monotonic() + for_s
    while time.monotonic() < end_s:
        took_ms.append(visit(port))
        time.sleep(0.02)
    return took_ms


def visit(port: int) -> float:
    """The ms in which a new client connects, sends its state and gets orders; then it leaves."""
    jobs = tuple(job(f"v{n}", stage(n)) for n in range(10))
    start_s = time.perf_counter()
    with Client("127.0.0.1", port, timeout_s=300.0) as client:
        client.greet(Hello(protocol=2, application_id=f"new {start_s}"))
        client.orders(StateMessage(seq=1, clock_ms=0, cores=50, jobs=jobs))
        return 1e3 * (time.perf_counter() - start_s)


_ATTACKS: tuple[Callable[[int], None], ...] = (
    empty_reports,
    pings,
    large_job,
    dense_job,
    many_jobs,
    whole_states,
    whole_states_40,
    many_cores,
    silent_connections,
    strangers,
    large_frames_of_strangers,
)
_VICTIMS = (light, new, large)


@dataclass(frozen=True)
class Row:
    """What one client noticed of one attack, in ms."""

    scope: str
    attack: str
    victim: str
    answers: int
    p50: float
    p99: float
    longest: float


@dataclass(frozen=True)
class Served:
    """A service that runs, its ports and its process."""

    port: int
    admin_port: int
    process: subprocess.Popen[str]

    @property
    def resident_mb(self) -> float:
        """The memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@contextlib.contextmanager
def served(folder: Path, *more: str, before: Callable[[], None] | None = None) -> Iterator[Served]:
    """A service with everything that watches.

    It records and learns in the folder, and logs to `folder / "log"`; `before` it starts, its
    process calls a function.
    """
    with (folder / "log").open("w") as log:
        command = [sys.executable, "-m", "parcae.cli.main", "serve", "--policy", "parcae"]
        command += ["--workload", "tpch", "--port", "0", "--admin-port", "0", "--json"]
        command += ["--record", str(folder / "records"), "--learned", str(folder / "learned.json")]
        process = subprocess.Popen(
            [*command, *more], stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=before
        )
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline())
            yield Served(ready["port"], ready["admin_port"], process)
        finally:
            start_s = time.monotonic()
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(60)
                took_s = time.monotonic() - start_s
                print(f"ended with {code} after {took_s:.1f} s", file=sys.stderr)
            except subprocess.TimeoutExpired:
                process.kill()
                print("did not end within 60 s", file=sys.stderr)


def measure(scope: str, attacks: list[str], victims: list[str], for_s: float) -> Iterator[Row]:
    """Measure the clients beside every attack, and without any."""
    with (
        tempfile.TemporaryDirectory() as name,
        served(Path(name), "--scope", scope) as service,
    ):
        for attack in (None, *(one for one in _ATTACKS if one.__name__ in attacks)):
            attacker = None
            if attack is not None:
                attacker = multiprocessing.get_context("spawn").Process(
                    target=attack, args=(service.port,)
                )
                attacker.start()
                time.sleep(4.0)  # it starts Python and makes its messages
            for victim in _VICTIMS:
                if victim.__name__ not in victims:
                    continue
                took_ms = np.array(victim(service.port, for_s))
                p50, p99 = np.percentile(took_ms, (50, 99)).tolist()
                name = (attack.__doc__ or "").rstrip(".") if attack is not None else "none"
                yield Row(
                    scope, name, victim.__name__, len(took_ms), p50, p99, float(took_ms.max())
                )
            if attacker is not None:
                attacker.kill()
                attacker.join()
            print(f"resident: {service.resident_mb:.0f} MB", file=sys.stderr)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scope", nargs="*", default=["application", "cluster"])
    parser.add_argument("--attack", nargs="*", default=[one.__name__ for one in _ATTACKS])
    parser.add_argument("--client", nargs="*", default=[one.__name__ for one in _VICTIMS])
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    print("| scope | attack | client | answers | p50, ms | p99, ms | longest, ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for scope in given.scope:
        for row in measure(scope, given.attack, given.client, given.seconds):
            print(
                f"| {row.scope} | {row.attack} | {row.victim} | {row.answers} "
                f"| {row.p50:.1f} | {row.p99:.1f} | {row.longest:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
