"""A policy that keeps what it saw and answered, and a simulated run through it; the same run through the service's bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np

from parcae.cluster.decision import Decision, Policy
from parcae.cluster.observation import Observation
from parcae.service.jobs import DurationBook
from parcae.service.protocol import (
    ClientMessage,
    Commands,
    FrameReader,
    ServerMessage,
    decode_server_message,
    encode,
    frame,
)
from parcae.service.rows import Room
from parcae.service.session import Service, Session
from parcae.service.simulated_client import SimulatedClient, task_times
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator
from parcae.workloads.arrivals import JobSequence


@dataclass
class Recording:
    """Decides as `inner`, and keeps every observation (whole tables, copied) and decision."""

    inner: Policy
    seen: list[Observation] = field(default_factory=list)
    said: list[Decision] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.inner.name

    def decide(self, observation: Observation) -> Decision:
        self.seen.append(Observation(*(np.array(table, subok=True) for table in observation)))
        self.said.append(self.inner.decide(observation))
        return self.said[-1]


def simulated(sequence: JobSequence, policy: Policy, config: SimulationConfig, seed: int) -> tuple[Simulator, Recording]:
    recording = Recording(policy)
    simulator = Simulator(sequence, config, seed, record=True)
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        simulator.step(recording.decide(simulator.observe()))
    return simulator, recording


def room_of(simulator: Simulator) -> Room:
    return Room.of(simulator.state)


class Wire:
    """A client and a session, with nothing but bytes between them."""

    def __init__(self, service: Service) -> None:
        self.session: Session = service.open()
        self._to_service, self._to_client = FrameReader(), FrameReader()
        self.log: list[bytes] = []

    def ask(self, message: ClientMessage) -> list[ServerMessage]:
        (payload,) = self._to_service.feed(frame(encode(message)))
        self.log.append(payload)
        replies = self.session.receive(payload)
        return [decode_server_message(p) for reply in replies for p in self._to_client.feed(frame(encode(reply)))]

    def commands(self, message: ClientMessage) -> Commands:
        (reply,) = self.ask(message)
        assert isinstance(reply, Commands), reply
        return reply


def served(
    simulator: Simulator, recording: Recording, book: DurationBook, room: Room | None, *, asks_again: bool = False
) -> SimulatedClient:
    """Play the simulated run's jobs and task durations against the service."""
    service = Service(lambda _: recording, recording.name, book, room=room, asks_again=asks_again)
    trace, config = simulator.trace("simulated"), simulator.config
    client = SimulatedClient(
        simulator.sequence,
        task_times(trace),
        config.total_executors,
        config.moving_delay_ms,
        executor_classes=config.executor_classes,
    )
    wire = Wire(service)
    assert json.loads(encode(wire.ask(client.hello())[0]))["type"] == "welcome"
    client.obey(wire.commands(client.sync()))
    while (message := client.next_message()) is not None:
        client.obey(wire.commands(message))
    return client
