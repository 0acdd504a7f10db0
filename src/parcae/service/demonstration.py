"""A simulated application that a service schedules for show: something to see on the live page without a cluster."""

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
    """A client with drawn jobs, whose tasks take as long as they took in a simulated run; its stages are revealed late."""
    config = SimulationConfig(world=WorldName.CORES, num_executors=num_cores)
    sequence = draw_sequence(workload, arrivals, num_jobs, num_cores, RandomStreams(seed))
    fifo = make_order_policy("fifo", workload, config)
    trace = simulate(sequence, fifo, config, seed, record=True)
    first_ms = int(time.time() * MS_PER_S)
    return SimulatedClient(
        sequence, task_times(trace), num_cores, name, is_open=True, first_ms=first_ms
    )


def demonstrate(
    port: int, client: SimulatedClient, times_faster: float, secret: bytes | None = None
) -> threading.Thread:
    """Play the client against the service on this machine, in a thread, so many times faster than its own clock."""
    thread = threading.Thread(target=_play, args=(port, client, times_faster, secret), daemon=True)
    thread.start()
    return thread


def _play(port: int, simulated: SimulatedClient, times_faster: float, secret: bytes | None) -> None:
    begun_s = time.monotonic()
    try:
        with Client("127.0.0.1", port) as client:
            client.greet(simulated.hello(), secret)
            simulated.obey(client.orders(simulated.state()))
            while (message := simulated.next_message()) is not None:
                elapsed_s = (message.clock_ms - simulated.first_ms) / MS_PER_S
                ahead_s = elapsed_s / times_faster - (time.monotonic() - begun_s)
                if ahead_s > 0:
                    time.sleep(ahead_s)
                simulated.obey(client.orders(message))
    except (OSError, ProtocolError) as error:
        _LOG.info("the demonstration ends: %s", error)
