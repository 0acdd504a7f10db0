"""The server over real sockets, and everything that may go wrong on them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parcae.base.errors import ConfigError, ProtocolError
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.service.client import Client
from parcae.service.protocol import (
    Error,
    Events,
    JobEnded,
    OrdersMessage,
    Ping,
    Pong,
    StateMessage,
    encode,
    frame,
)
from parcae.service.serve import ServeSettings, serve
from parcae.service.server import Server, ServerConfig, read_secret
from parcae.service.sharing import Sharing
from parcae.service.simulated_client import SimulatedClient, task_times
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.workloads.archive import load_workload
from parcae.workloads.workload import RandomStreams, draw_sequence
from tests.conftest import made_up, wait_until
from tests.service.running import connected, hello, refused, serving, stop_service
from tests.service.speaking import job_of, planner, service_of
from tests.spark.fake_service import certificate_for

_SECRET = b"0123456789abcdef0123"
Start = Callable[..., Server]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers, which stop after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *given, **settings: stack.enter_context(serving(*given, **settings))


def _simulated(application: str = "simulated") -> SimulatedClient:
    workload = made_up(6, 4.0)
    sequence = draw_sequence(workload, "poisson:3s", 6, 4, RandomStreams(0))
    config = SimulationConfig(world=WorldName.CORES, num_executors=4)
    trace = simulate(
        sequence, OrderPolicy("fifo", OrderKind.FIFO, plan_tables()), config, 0, record=True
    )
    return SimulatedClient(sequence, task_times(trace), 4, application, is_open=True)


def _last_words(client: Client) -> Error:
    reply = refused(client)
    with pytest.raises(ConnectionError):
        client.receive()
    return reply


def _assert_serves(server: Server) -> None:
    with connected(server, "bystander") as client:
        assert client.ask(Ping(seq=1)) == Pong(seq=1)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "too_large"),
        (frame(b"\x00\xff garbage"), "bad_message"),
        (frame(b'{"type":"hello","protocol":0}'), "bad_protocol"),
        (frame(b'{"type":"ping","seq":1}'), "unexpected"),
        (struct.pack(">I", (4 << 20) + 1), "too_large"),
        (struct.pack(">I", 5_000), "too_large"),  # before the welcome, frames are small
    ],
)
def test_nonsense_gets_one_clear_error_and_disturbs_no_other_client(
    start: Start, data: bytes, code: str
) -> None:
    server = start()
    with connected(server, "bystander") as bystander:
        with Client("127.0.0.1", server.port) as client:
            client.socket.sendall(data)
            assert _last_words(client).code == code
        assert bystander.ask(Ping(seq=1)) == Pong(seq=1)
    assert list(server.service.sessions) in ([], ["bystander"])


def test_a_client_that_says_nothing_is_dropped(start: Start) -> None:
    server = start(hello_timeout_s=0.2)
    with Client("127.0.0.1", server.port) as client:
        client.socket.sendall(b"\x00\x00")
        assert _last_words(client).code == "timeout"


def test_orders_that_another_application_caused_are_not_taken_for_a_reply(start: Start) -> None:
    server = start(service_of(sharing=Sharing(num_cores=4)))
    with connected(server, "client") as client, connected(server, "other") as other:
        jobs = (job_of("a", (8, ())),)
        assert client.orders(StateMessage(seq=1, clock_ms=0, cores=4, jobs=jobs)).executors == 4
        # Its two are still the other's, who is told at once.
        assert other.orders(StateMessage(seq=1, clock_ms=0, cores=0, jobs=jobs)).executors == 0
        orders = client.orders(Events(seq=2, clock_ms=1, events=(JobEnded(job_id="a"),)))
        assert (orders.seq, orders.jobs) == (2, ())


def test_a_wrong_secret_is_denied_and_the_right_one_is_not(start: Start) -> None:
    server = start(secret=_SECRET)
    with (
        pytest.raises(ProtocolError, match="the proof is wrong"),
        connected(server, secret=b"another secret...."),
    ):
        pass
    with Client("127.0.0.1", server.port) as client:
        assert client.greet(hello(), _SECRET).policy == "fair"


def test_a_client_leaves_a_service_that_does_not_know_the_secret() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Client("127.0.0.1", listener.getsockname()[1]) as client,
        listener.accept()[0] as service,
    ):
        # The service answers without knowing what the client sends.
        for mac in ('"' + "0" * 64 + '"', "null"):
            service.sendall(frame(b'{"type":"challenge","nonce":"0123456789abcdef"}'))
            welcome = f'{{"type":"welcome","protocol":2,"session":"s","policy":"p","mac":{mac}}}'
            service.sendall(frame(welcome.encode()))
            with pytest.raises(ProtocolError, match="the service does not know the secret"):
                client.greet(hello(), _SECRET)


def test_a_client_that_does_not_read_is_dropped_and_disturbs_no_other_client(start: Start) -> None:
    server = start(max_waiting_bytes=50_000, write_timeout_s=0.5)
    with connected(server) as client:
        client.socket.settimeout(120)
        (connection,) = server._connections
        # The kernel would keep megabytes of answers.
        connection.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096
        )
        flood = frame(b'{"type":"ping","seq":1}') * 10_000
        with pytest.raises(ConnectionError):
            _send_often(client, flood)
        _assert_serves(server)
        wait_until(lambda: "app" not in server.service.sessions)


def test_of_two_clients_with_one_application_id_the_newer_wins(start: Start) -> None:
    server = start()
    with connected(server) as older, connected(server) as newer:
        assert _last_words(older).code == "replaced"
        assert newer.ask(Ping(seq=1)) == Pong(seq=1)


def test_one_client_too_many_is_refused_as_busy(start: Start) -> None:
    server = start(max_connections=1)
    with connected(server) as first:
        with Client("127.0.0.1", server.port) as second:
            assert _last_words(second).code == "busy"
        assert first.ask(Ping(seq=1)) == Pong(seq=1)


def _serves(server: Server) -> bool:
    try:
        _assert_serves(server)
    except (ProtocolError, OSError):
        return False
    return True


def _send_often(client: Client, data: bytes) -> None:
    for _ in range(2_000):
        client.socket.sendall(data)


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.slow)])
def test_dropped_connections_leave_nothing_behind(start: Start, count: int) -> None:
    server = start()
    greeting = frame(encode(hello()))
    for number in range(count):
        with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
            connection.sendall((b"", b"\x00\x00\x00", greeting)[number % 3])
    wait_until(lambda: _serves(server))  # those that were dropped may still wait in line
    wait_until(lambda: server.num_connections == 0)
    assert server.service.sessions == {}
    assert server.service.mirrors == {}


def test_a_restarted_service_gets_the_whole_state_and_every_job_ends() -> None:
    service = service_of()
    simulated = _simulated()
    with serving(service) as server:
        port = server.port
        client = Client("127.0.0.1", port)
        client.greet(simulated.hello())
        simulated.apply_orders(client.orders(simulated.state()))
        for _ in range(25):
            message = simulated.next_message()
            assert message is not None
            simulated.apply_orders(client.orders(message))
        lost = simulated.next_message()  # happened while the service was away
        assert lost is not None
    assert _last_words(client).code == "closing"
    with serving(service, port=port), Client("127.0.0.1", port) as client:
        client.greet(simulated.hello())
        reply = client.ask(lost)
        assert isinstance(reply, Error)
        assert (reply.code, reply.then) == ("no_state", "state")
        simulated.run(client.orders)
    assert len(simulated.tasks) == simulated.sequence.num_tasks


def test_tls_is_spoken_where_a_certificate_is_given(start: Start, tmp_path: Path) -> None:
    cert, key = certificate_for("IP:127.0.0.1", tmp_path / "tls")
    server = start(tls_cert=cert, tls_key=key, secret=_SECRET)
    tls = ssl.create_default_context(cafile=str(cert))
    with connected(server, secret=_SECRET, tls=tls) as client:
        simulated = _simulated()
        assert isinstance(client.ask(simulated.state()), OrdersMessage)
    with pytest.raises(ConfigError, match="not a certificate and its key"):
        ServerConfig(tls_cert=key, tls_key=cert).ssl_context()


def test_open_doors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --secret-file"):
        ServerConfig(host="0.0.0.0")
    with pytest.raises(ConfigError, match="belong together"):
        ServerConfig(tls_cert=tmp_path / "cert.pem")
    (tmp_path / "secret").write_text("short\n")
    with pytest.raises(ConfigError, match="a secret of 5 bytes; it needs 16"):
        read_secret(tmp_path / "secret")
    (tmp_path / "secret").write_bytes(_SECRET + b"\n")
    assert read_secret(tmp_path / "secret") == _SECRET
    assert ServerConfig(host="0.0.0.0", secret=_SECRET).host == "0.0.0.0"


def test_a_host_without_an_address_is_named() -> None:
    server = Server(service_of(), ServerConfig(host="256.1.1.1", secret=_SECRET))
    with pytest.raises(ConfigError, match=r"--host 256\.1\.1\.1: no address of this machine"):
        asyncio.run(server.start())


def test_a_service_that_is_stopped_as_soon_as_it_is_ready_ends_in_order() -> None:
    """Programs that started it wait for its line, and may end it at once."""
    missed: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: missed.append(number))
    try:
        settings = ServeSettings(port=0, admin_port=None, for_s=5.0)
        serve(settings, load_workload("toy"), lambda *_: stop_service(), planner())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not missed
