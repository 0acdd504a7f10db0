"""Latency of the service: a client sends messages over loopback TCP to a server process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError
from parcae.base.texts import MS_PER_S
from parcae.service.client import Client
from parcae.service.protocol import (
    PROTOCOL_VERSION,
    Events,
    Hello,
    OrdersMessage,
    Ping,
    StateMessage,
    new_nonce,
)
from parcae.service.serve import simulated_client
from parcae.service.simulated_client import SimulatedClient
from parcae.workloads.workload import Workload

#: Messages that are not counted: the first ones also load compiled code and touch new memory.
_WARM_UP = 200
_NUM_PINGS = 3_000


@dataclass(frozen=True)
class ServiceBenchmark:
    """Latencies with one policy over loopback TCP: from the client's message to decoded orders."""

    policy: str
    jobs: int
    cores: int
    messages: int
    message_p50_ms: float
    message_p99_ms: float
    ping_p50_ms: float
    ping_p99_ms: float
    plans: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def benchmark_service(
    workload: Workload,
    source: str,
    policies: list[str],
    *,
    num_jobs: int = 20,
    num_cores: int = 50,
    runs: int = 2,
) -> list[ServiceBenchmark]:
    """Measure the latency of every message while batches of jobs run.

    Args:
        workload: the jobs to draw from.
        source: the same workload as an argument of `parcae serve --workload`.
        policies: names of the policies; each gets a new server process.
        num_jobs: jobs of one batch.
        num_cores: cores of the application.
        runs: number of batches.

    Raises:
        ConfigError: the server did not start.
    """
    rows = []
    for policy in policies:
        process, port = _start(policy, source, num_cores)
        try:
            timed = []
            for seed in range(runs):
                name = f"bench {seed}"
                timed += _play(
                    port,
                    simulated_client(
                        workload, num_jobs, num_cores, arrivals="batch", seed=seed, name=name
                    ),
                )
            pings = _ping(port)
        finally:
            process.terminate()
            process.wait(30)
        rows.append(
            _row(policy, num_jobs, num_cores, timed[min(_WARM_UP, len(timed) // 2) :], pings)
        )
    return rows


def _start(policy: str, source: str, num_cores: int) -> tuple[subprocess.Popen[str], int]:
    options = f"--port 0 --admin-port -1 --cores {num_cores} --arrivals batch --json".split()
    command = [sys.executable, "-m", "parcae.cli.main", "serve", *options]
    command += ["--policy", policy, "--workload", source]
    # `--json` prints one line with the ports when the service is ready.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ConfigError(f"`parcae serve --policy {policy}` did not start; see its output above")
    return process, int(json.loads(line)["port"])


def _play(port: int, simulated: SimulatedClient) -> list[tuple[float, bool]]:
    """Run a batch. Returns (milliseconds, whether the service planned) for every message."""
    timed = []
    with Client("127.0.0.1", port, timeout_s=120.0) as client:

        def ask(message: StateMessage | Events) -> OrdersMessage:
            start = time.perf_counter()
            orders = client.orders(message)
            took_ms = MS_PER_S * (time.perf_counter() - start)
            if isinstance(message, Events):
                # Reports of tasks alone do not make a plan due.
                timed.append((took_ms, any(event.type != "tasks" for event in message.events)))
            return orders

        client.greet(simulated.hello())
        simulated.run(ask)
    return timed


def _row(
    policy: str, num_jobs: int, num_cores: int, timed: list[tuple[float, bool]], pings: list[float]
) -> ServiceBenchmark:
    every = np.array([took_ms for took_ms, _ in timed])
    plans = np.array([took_ms for took_ms, is_plan in timed if is_plan])
    return ServiceBenchmark(
        policy,
        num_jobs,
        num_cores,
        len(every),
        *_percentiles(every),
        *_percentiles(np.array(pings)),
        len(plans),
        *_percentiles(plans),
        round(float(plans.max()), 4),
    )


def _percentiles(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    p50, p99 = (round(float(v), 4) for v in np.percentile(values, (50, 99)))
    return p50, p99


def _ping(port: int) -> list[float]:
    times_ms = []
    with Client("127.0.0.1", port) as client:
        client.greet(Hello(protocol=PROTOCOL_VERSION, application_id="ping", nonce=new_nonce()))
        for seq in range(_NUM_PINGS):
            start = time.perf_counter()
            client.ask(Ping(seq=seq))
            times_ms.append(MS_PER_S * (time.perf_counter() - start))
    return times_ms[_WARM_UP:]
