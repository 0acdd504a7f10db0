"""A simulated application for `parcae serve --demo`: fills the live page without a real cluster."""

from __future__ import annotations

import logging
import threading
import time

from parcae.errors import ProtocolError
from parcae.policies.orders.catalog import make_order_policy
from parcae.service.client import Client
from parcae.service.simulated_client import SimulatedClient, task_times
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.run import simulate
from parcae.units import MS_PER_S
from parcae.workloads.arrivals import draw_sequence
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import RandomStreams

_LOG = logging.getLogger(__name__)
_LOAD = "load:0.9"


def simulated_client(
    workload: Workload,
    num_jobs: int,
    num_cores: int,
    *,
    arrivals: str = _LOAD,
    seed: int = 0,
    name: str = "demonstration",
) -> SimulatedClient:
    """Make a client with drawn jobs and with the task durations of a simulated run.

    It reports the stages of a job only when they become runnable, as Spark does.

    Args:
        workload: the jobs to draw from.
        num_jobs: number of jobs.
        num_cores: cores of the application.
        arrivals: the arrival process, e.g. "load:0.9" or "batch".
        seed: seed of arrivals and task durations.
        name: id of the application.
    """
    config = SimulationConfig(world=WorldName.CORES, num_executors=num_cores)
    sequence = draw_sequence(workload, arrivals, num_jobs, num_cores, RandomStreams(seed))
    fifo = make_order_policy("fifo", workload, config)
    # The policy does not matter: in the world of cores durations do not depend on it.
    trace = simulate(sequence, fifo, config, seed, record=True)
    first_ms = int(time.time() * MS_PER_S)
    return SimulatedClient(
        sequence, task_times(trace), num_cores, name, is_open=True, first_ms=first_ms
    )


def demonstrate(
    port: int, client: SimulatedClient, times_faster: float, secret: bytes | None = None
) -> threading.Thread:
    """Run the client against the service on this machine, in a daemon thread.

    Args:
        port: port of the service on 127.0.0.1.
        client: the simulated application.
        times_faster: simulated time / real time.
        secret: the service's secret, or None.
    """
    thread = threading.Thread(target=_play, args=(port, client, times_faster, secret), daemon=True)
    thread.start()
    return thread


def _play(port: int, simulated: SimulatedClient, times_faster: float, secret: bytes | None) -> None:
    begun_s = time.monotonic()
    try:
        with Client("127.0.0.1", port) as client:
            client.greet(simulated.hello(), secret)
            simulated.apply_orders(client.orders(simulated.state()))
            while (message := simulated.next_message()) is not None:
                elapsed_s = (message.clock_ms - simulated.first_ms) / MS_PER_S
                # Wait until real time has caught up with the simulated clock.
                ahead_s = elapsed_s / times_faster - (time.monotonic() - begun_s)
                if ahead_s > 0:
                    time.sleep(ahead_s)
                simulated.apply_orders(client.orders(message))
    except (OSError, ProtocolError) as error:
        _LOG.info("the demonstration has stopped: %s", error)
