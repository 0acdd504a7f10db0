"""Applications that share a cluster, over real sockets: slots go from one to the other, and an application may die."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from parcae.cluster.invariants import check_invariants
from parcae.errors import ProtocolError
from parcae.policies.catalog import make_policy
from parcae.service.client import Client
from parcae.service.jobs import DurationBook
from parcae.service.mirror import Mirror
from parcae.service.protocol import Commands, Error, Events, Ping, Pong, SlotMessage, Sync
from parcae.service.record import Recorder
from parcae.service.replay import replay_recording
from parcae.service.server import Server, ServerConfig, serve_in_thread
from parcae.service.session import Scope, Service
from parcae.service.simulated_client import SimulatedClient, task_times
from parcae.simulation.config import SimulationConfig
from parcae.simulation.run import simulate
from parcae.workloads.arrivals import draw_sequence
from parcae.workloads.random_streams import RandomStreams
from parcae.workloads.synthetic import RandomDags, random_dags

_NUM_SLOTS = 5
_WORKLOAD = random_dags(RandomDags(num_jobs=8, mean_tasks=5.0), np.random.default_rng(0), "made up")


def _application(name: str, seed: int, *, num_jobs: int = 8, is_adaptive: bool = False) -> SimulatedClient:
    """An application that knows of all slots of the cluster."""
    sequence = draw_sequence(_WORKLOAD, "poisson:6s", num_jobs, _NUM_SLOTS, RandomStreams(seed))
    config = SimulationConfig(num_executors=_NUM_SLOTS, moving_delay_ms=300)
    trace = simulate(sequence, make_policy("fair", _NUM_SLOTS), config, seed, record=True)
    return SimulatedClient(sequence, task_times(trace), _NUM_SLOTS, 300, application_id=name, is_adaptive=is_adaptive)


def _is_whole(application: SimulatedClient) -> bool:
    return len(application.tasks) == application.sequence.num_tasks


def _slots(application: SimulatedClient) -> list[SlotMessage]:
    return [application._slot_now(number, slot) for number, slot in application._slots.items()]


class _Cluster:
    """Applications in one order of time, each with a connection; whatever is pushed to one is heard before time goes on."""

    def __init__(self, port: int, service: Service) -> None:
        self.port, self._service, self._now_ms, self._pings = port, service, 0, 0
        self.members: dict[str, tuple[SimulatedClient, Client]] = {}

    @property
    def mirror(self) -> Mirror:
        return self._service.mirrors[""]

    def join(self, application: SimulatedClient) -> None:
        client = Client("127.0.0.1", self.port)
        client.greet(application.hello())
        self.members[application.application_id] = application, client
        application.clock_ms = self._now_ms
        application.obey(client.commands(application.sync()))
        self._hear()

    def die(self, name: str) -> None:
        _, client = self.members.pop(name)
        client.close()
        until_s = time.monotonic() + 10
        while name in self._service.sessions:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        self._hear()

    def _hear(self) -> None:
        """What was said unasked, in its order: a ping's answer comes behind it."""
        for application, client in self.members.values():
            self._pings += 1
            reply = client.ask(Ping(seq=self._pings))
            while not isinstance(reply, Pong):
                assert isinstance(reply, Commands), reply
                assert reply.seq is None
                application.clock_ms = max(application.clock_ms, self._now_ms)
                application.obey(reply)
                reply = client.receive()

    def step(self) -> bool:
        """One message of whoever is next; False at the end."""
        waiting = {name: own[0].next_ms for name, own in self.members.items()}
        times = {name: at_ms for name, at_ms in waiting.items() if at_ms is not None}
        if not times:
            return False
        name = min(times, key=lambda name: (times[name], name))
        application, client = self.members[name]
        self._now_ms = max(self._now_ms, times[name])
        message = application.next_message()
        assert message is not None
        application.obey(client.commands(message))
        self._hear()
        check_invariants(self.mirror.state)
        self._check_slots()
        return True

    def _check_slots(self) -> None:
        """No slot works for two applications, and every side knows what its own do."""
        placed = {slot.slot: slot for slot in self.mirror.picture().slots if slot.state != "idle"}
        for name, (application, _) in self.members.items():
            told = {slot.slot: slot for slot in _slots(application) if slot.state != "idle"}
            own = {number: slot for number, slot in placed.items() if slot.application == name}
            assert {n: (s.state, s.job_id, s.stage_id) for n, s in told.items()} == {
                n: (s.state, s.job_id, s.stage_id) for n, s in own.items()
            }


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[tuple[_Cluster, Service]]:
    """A cluster that is shared and recorded, under fair sharing."""
    service = Service(lambda slots: make_policy("fair", slots), "fair", DurationBook(None), scope=Scope.CLUSTER)
    service.watchers.append(Recorder(tmp_path))
    server, stop = serve_in_thread(lambda: Server(service, ServerConfig()))
    yield _Cluster(server.port, service), service
    stop()


def _assert_follows(folder: Path, service: Service) -> None:
    result = replay_recording([folder], "fair", _WORKLOAD, 300)
    assert (result.num_stage, result.num_limit, result.num_lost) == (0, 0, 0)
    assert result.num_decisions == service.counts.decisions
    other = replay_recording([folder], "fifo", _WORKLOAD, 300)
    assert other.num_decisions == result.num_decisions
    assert other.num_stage + other.num_limit > 0


@pytest.mark.parametrize("is_adaptive", [False, True])
def test_slots_go_from_one_application_to_the_other_and_all_jobs_end(
    shared: tuple[_Cluster, Service], tmp_path: Path, is_adaptive: bool
) -> None:
    cluster, service = shared
    one, other = (_application(name, seed, is_adaptive=is_adaptive) for seed, name in enumerate(("one", "other"), 1))
    cluster.join(one)
    for _ in range(40):
        assert cluster.step()
    cluster.join(other)
    while cluster.step():
        pass
    assert _is_whole(one)
    assert _is_whole(other)
    assert one.num_releases > 0
    assert other.num_releases > 0
    assert service.counts.finished_jobs == one.sequence.num_jobs + other.sequence.num_jobs
    assert service.counts.fallbacks == 0
    for _, client in cluster.members.values():
        client.close()
    _wait_for_the_end(service)
    _assert_follows(tmp_path, service)


def _wait_for_the_end(service: Service) -> None:
    until_s = time.monotonic() + 10
    while service.sessions:
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_the_slots_of_an_application_that_dies_work_for_the_other(shared: tuple[_Cluster, Service], tmp_path: Path) -> None:
    cluster, service = shared
    one, other = _application("one", 1, num_jobs=12), _application("other", 2, num_jobs=12)
    cluster.join(one)
    cluster.join(other)
    while len(one.tasks) < one.sequence.num_tasks // 2 or not any(slot.state == "running" for slot in _slots(one)):
        assert cluster.step()
    cluster.die("one")
    check_invariants(cluster.mirror.state)
    assert {job.application for job in cluster.mirror.jobs} <= {"other"}
    while cluster.step():
        pass
    assert _is_whole(other)
    assert not _is_whole(one)
    late = {slot for _, _, _, slot, _, _ in other.tasks[-other.sequence.num_tasks // 3 :]}
    assert late == set(range(_NUM_SLOTS))  # all of them
    _assert_follows(tmp_path, service)


class _Live:
    """An application that runs by the clock on the wall (two hundred times faster); pushes are heard whenever they come."""

    def __init__(self, application: SimulatedClient, port: int, begun_s: float, dies_at: int, sync_every: int) -> None:
        self.application, self.port, self.begun_s = application, port, begun_s
        self.dies_at, self.sync_every, self.num_refused = dies_at, sync_every, 0
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with Client("127.0.0.1", self.port, timeout_s=60.0) as client:
                client.greet(self.application.hello())
                self._live(client)
        except (AssertionError, ProtocolError, OSError) as error:
            self.failure = error

    def _now_ms(self) -> int:
        return round(200 * 1e3 * (time.monotonic() - self.begun_s))

    def _obey(self, reply: Commands) -> None:
        self.application.clock_ms = max(self.application.clock_ms, self._now_ms())
        self.application.obey(reply)

    def _talk(self, client: Client, message: Sync | Events) -> None:
        """Say something, and hear all that is said up to its answer."""
        client.send(message)
        while True:
            reply = client.receive()
            if isinstance(reply, Error):
                assert reply.then == "sync", reply
                self.num_refused += 1
                message = self.application.sync()
                client.send(message)
                continue
            assert isinstance(reply, Commands)
            if reply.seq is not None:
                self._obey(reply)
                return
            if isinstance(message, Events):  # what was pushed before a sync was answered is void
                self._obey(reply)

    def _live(self, client: Client) -> None:
        application, count = self.application, 0
        self._talk(client, application.sync())
        while not _is_whole(application) or application.next_ms is not None:
            if len(application.tasks) > self.dies_at:
                return
            at_ms = application.next_ms
            if at_ms is not None and at_ms <= self._now_ms():
                application.clock_ms = max(application.clock_ms, self._now_ms())
                message = application.next_message()
                assert message is not None
                self._talk(client, message)
                count += 1
                if count % self.sync_every == 0:
                    self._talk(client, application.sync())
                continue
            client.socket.settimeout(0.002)
            try:
                pushed = client.receive()
            except TimeoutError:
                continue
            finally:
                client.socket.settimeout(60.0)
            assert isinstance(pushed, Commands), pushed
            self._obey(pushed)


_NEVER = 1 << 30


@pytest.mark.parametrize("sync_every", [_NEVER, 5])
@pytest.mark.parametrize("one_dies", [False, True])
def test_applications_in_threads_of_their_own_end_too(shared: tuple[_Cluster, Service], one_dies: bool, sync_every: int) -> None:
    cluster, _ = shared
    applications, begun_s = [_application("one", 1), _application("other", 2)], time.monotonic()
    dies_at = applications[0].sequence.num_tasks // 2
    one, other = (
        _Live(application, cluster.port, begun_s, dies, sync_every)
        for application, dies in zip(applications, [dies_at if one_dies else _NEVER, _NEVER], strict=True)
    )
    for own in (one, other):
        own.thread.join(60)
        assert not own.thread.is_alive()
        assert own.failure is None
    assert _is_whole(other.application)
    assert _is_whole(one.application) is not one_dies
