"""`serve`: runs the service, its TCP server, the admin side and the recording in one call."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from parcae.base.errors import ConfigError, ProtocolError, refuse_unknown
from parcae.base.texts import MS_PER_S
from parcae.policies.registry import named_policy
from parcae.service.admin import Admin, Board
from parcae.service.client import Client
from parcae.service.jobs import DurationModel
from parcae.service.learned import Learned, LearnedFile
from parcae.service.policies import PolicyFor, policies_for
from parcae.service.protocol import (
    PROTOCOL_VERSION,
    ClientMessage,
    Events,
    Hello,
    JobArrived,
    JobEnded,
    JobMessage,
    StageBegunAgain,
    StageChanged,
    StageEnded,
    StageMessage,
    StagesAdded,
    State,
    TasksReported,
    encode,
)
from parcae.service.record import Recorder
from parcae.service.server import Server, ServerConfig, read_secret
from parcae.service.session import Scope, Service
from parcae.service.sharing import Sharing
from parcae.service.simulated_client import SimulatedClient, task_times
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.workloads.arrivals import ArrivalProcess, RandomStreams, draw_sequence
from parcae.workloads.job import Workload

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
    """
    config = SimulationConfig(world=WorldName.CORES, num_executors=num_cores)
    sequence = draw_sequence(workload, arrivals, num_jobs, num_cores, RandomStreams(seed))
    fifo = named_policy("fifo", workload, config)
    # The policy does not matter: in the world of cores durations do not depend on it.
    trace = simulate(sequence, fifo, config, seed, record=True)
    first_ms = int(time.time() * MS_PER_S)
    return SimulatedClient(
        sequence, task_times(trace), num_cores, name, is_open=True, first_ms=first_ms
    )


def demonstrate(
    port: int, client: SimulatedClient, times_faster: float, secret: bytes | None = None
) -> threading.Thread:
    """Run the client against the service on this machine, in a daemon thread."""
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


#: Simulated time / real time of a demonstration.
_DEMO_TIMES_FASTER = 2.0
_LAST_PORT = 65_535
#: Seconds between two writes of the learned durations.
_SAVE_EVERY_S = 60.0
#: Settings that are paths.
_PATHS = ("secret_file", "tls_cert", "tls_key", "record", "learned")


@dataclass(frozen=True)
class ServeSettings:
    """Settings of the service.

    Args:
        policy: name of a policy of the world of cores, see `parcae policies`; a learned policy is
            bound to the workload.
        scope: whether each application has its own cluster or all share one.
        num_cores: cores that all applications share; with scope `application`, the expected number
            of cores of an application.
        executor_cores: cores of one executor, with scope `cluster`.
        moving_delay_ms: with scope `cluster`, shortest time between two executors taken from one
            application.
        arrivals: the expected arrival process; chooses the nearest shipped variant of a policy.
        host: address to listen on; others than loopback addresses need a secret.
        port: port for clients; 0 takes a free one.
        admin_port: port of the HTTP side on the loopback address; None: no HTTP side, 0: a free
            port.
        secret_file: file with the secret that clients must prove to know, or None.
        tls_cert, tls_key: certificate and key for TLS (PEM files), or None.
        record: folder for recordings, or None.
        learned: file that keeps learned durations, or None.
        demo_jobs: number of jobs of a simulated application, for demonstrations; 0: none.
        for_s: stop after this many seconds; None: serve until stopped.
    """

    policy: str = "parcae"
    scope: Scope = Scope.APPLICATION
    num_cores: int = 50
    executor_cores: int = 1
    moving_delay_ms: int = 0
    arrivals: str = "load:0.9"
    host: str = "127.0.0.1"
    port: int = 7177
    admin_port: int | None = 7178
    secret_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    record: Path | None = None
    learned: Path | None = None
    demo_jobs: int = 0
    for_s: float | None = None


def settings_of(policy: str, num_cores: int, given: Mapping[str, Any]) -> ServeSettings:
    """Make settings of Python's arguments; paths and the scope may be text."""
    apart = ("policy", "num_cores")
    refuse_unknown(given, [one.name for one in fields(ServeSettings) if one.name not in apart])
    settings = dict(given)
    if "scope" in settings:
        settings["scope"] = parse_scope(settings["scope"])
    for key in _PATHS:
        if settings.get(key) is not None:
            settings[key] = Path(settings[key])
    return ServeSettings(policy=policy, num_cores=num_cores, **settings)


def parse_scope(text: str) -> Scope:
    """Parse the name of a scope."""
    if text not in set(Scope):
        raise ConfigError(f"--scope {text}: write one of {', '.join(Scope)}")
    return Scope(text)


def make_service(
    settings: ServeSettings,
    workload: Workload,
    learned: Learned | None = None,
    policy_for: PolicyFor | None = None,
) -> Service:
    """Make the service and compile all code that its policy needs."""
    # Most policies have no variants, so that they would not look at it.
    ArrivalProcess.parse(settings.arrivals)
    policy_for = policy_for or policies_for(settings.policy, workload, settings.arrivals)
    policy_for(settings.num_cores)  # raises an error now if the policy does not exist
    sharing = None
    if settings.scope is Scope.CLUSTER:
        sharing = Sharing(settings.num_cores, settings.executor_cores, settings.moving_delay_ms)
    duration_model = DurationModel(workload, learned=learned)
    has_page = settings.admin_port is not None
    warm_up(
        Service(
            policy_for,
            "warm-up",
            DurationModel(workload),
            sharing=sharing and Sharing(4),
            predicts_fair=has_page,
        )
    )
    return Service(
        policy_for, settings.policy, duration_model, sharing=sharing, predicts_fair=has_page
    )


def warm_up(service: Service) -> None:
    """Load all compiled code, before a client has to wait for it.

    Sends every kind of event once to a service, which the caller then throws away, and looks at it
    as the live page does. Lets fair sharing plan once, as after a failure of the policy.
    """
    board = Board(service)
    service.watchers.append(board)
    session = service.open()
    opening = (
        Hello(protocol=PROTOCOL_VERSION, application_id="warm-up"),
        State(seq=1, clock_ms=0, cores=4, jobs=()),
    )
    messages: list[ClientMessage] = [*opening, *_warm_up_events()]
    for message in messages:
        for reply in session.receive(encode(message)):
            encode(reply)
            if reply.type == "error":
                raise ConfigError(f"the service failed its first test: {reply.message}")
        board.snapshot()
    mirror = service.mirror_of(session.application)
    mirror.planning.plan_fairly(mirror.state)


def _warm_up_events() -> tuple[Events, ...]:
    """Every kind of event, of an open job "a" and a closed job "b"."""
    stages = (StageMessage(stage_id=0, tasks=3), StageMessage(stage_id=1, tasks=2, parents=(0,)))
    job = JobMessage(job_id="a", names=("warm-up",), arrival_ms=0, stages=stages)
    closed = JobMessage(job_id="b", names=("warm-up",), arrival_ms=0, is_open=False, stages=stages)
    # More than there are free rows for behind the job: the rows of all jobs move.
    more = (StageMessage(stage_id=number, tasks=2) for number in range(3, 20))
    child = StageMessage(stage_id=2, tasks=2, parents=(0, 1))
    added = StagesAdded(job_id="a", stages=(child, *more))
    changed = StageChanged(job_id="a", stage_id=1, tasks=3)
    again = StageBegunAgain(job_id="a", stage_id=0, tasks=1)
    ended = StageEnded(job_id="a", stage_id=1)
    failed = JobEnded(job_id="b", is_failed=True)
    return (
        Events(seq=2, clock_ms=1, events=(JobArrived(job=job), JobArrived(job=closed))),
        Events(seq=3, clock_ms=2, events=(_warm_up_tasks(started=3), added)),
        Events(seq=4, clock_ms=3, cores=8, events=(_warm_up_tasks(finished=2, failed=1),)),
        Events(seq=5, clock_ms=4, events=(_warm_up_tasks(started=1), changed)),
        Events(seq=6, clock_ms=5, events=(_warm_up_tasks(finished=1), again)),
        Events(seq=7, clock_ms=6, events=(ended, JobEnded(job_id="a"))),
        Events(seq=8, clock_ms=10_000),
        Events(seq=9, clock_ms=10_001, events=(failed,)),
    )


def _warm_up_tasks(*, started: int = 0, finished: int = 0, failed: int = 0) -> TasksReported:
    """Tasks of the first stage of job "a"."""
    return TasksReported(
        job_id="a",
        stage_id=0,
        started=started,
        finished=finished,
        failed=failed,
        executed_ms=finished,
    )


def serve(
    settings: ServeSettings,
    workload: Workload,
    on_ready: Callable[[int, int | None], None],
    policy_for: PolicyFor | None = None,
) -> None:
    """Serve until SIGTERM, Ctrl-C or the end of `for_s`."""
    _check_no_loop()
    for what, port in (("port", settings.port), ("admin_port", settings.admin_port)):
        is_port = isinstance(port, int) and 0 <= port <= _LAST_PORT
        if port is not None and not is_port:
            raise ConfigError(f"{what} = {port!r}: give a number from 0 to {_LAST_PORT}")
    for_s = settings.for_s
    if for_s is not None and not (isinstance(for_s, int | float) and for_s >= 0):
        raise ConfigError(f"for_s = {for_s!r}: give seconds from 0 on, or None")
    secret = read_secret(settings.secret_file) if settings.secret_file else None
    config = ServerConfig(settings.host, settings.port, secret, settings.tls_cert, settings.tls_key)
    config.ssl_context()  # raises an error now if the certificate cannot be used
    learned_file = LearnedFile(settings.learned) if settings.learned else None
    learned = learned_file.learned if learned_file else None
    service = make_service(settings, workload, learned, policy_for)
    recorder = Recorder(settings.record) if settings.record else None
    if recorder is not None:
        service.watchers.append(recorder)
    try:
        asyncio.run(
            _serve(
                settings,
                Server(service, config),
                on_ready,
                _demonstration(settings, workload, config),
                learned_file,
            )
        )
    finally:
        if learned_file is not None:
            learned_file.save(learned_file.snapshot())
        if recorder is not None:
            recorder.close()


def _check_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(
        "this thread runs an event loop, as notebooks do: serve in a thread of its own, as in "
        "threading.Thread(target=parcae.serve, args=(policy, workload, cluster)).start()"
    )


def _demonstration(
    settings: ServeSettings, workload: Workload, config: ServerConfig
) -> Callable[[int], None]:
    """A function that starts the demonstration on a port; it does nothing without `demo_jobs`."""
    if not settings.demo_jobs:
        return lambda port: None
    if settings.tls_cert is not None or settings.host != "127.0.0.1":
        raise ConfigError("--demo runs on 127.0.0.1 without TLS; leave out --host and --tls-cert")
    client = simulated_client(workload, settings.demo_jobs, settings.num_cores)

    def begin(port: int) -> None:
        demonstrate(port, client, _DEMO_TIMES_FASTER, config.secret)

    return begin


async def _save_often(learned_file: LearnedFile) -> None:
    """Write learned durations from time to time, without blocking the server."""
    while True:
        await asyncio.sleep(_SAVE_EVERY_S)
        await asyncio.to_thread(learned_file.save, learned_file.snapshot())


async def _serve(
    settings: ServeSettings,
    server: Server,
    on_ready: Callable[[int, int | None], None],
    begin: Callable[[int], None],
    learned_file: LearnedFile | None,
) -> None:
    saving = asyncio.create_task(_save_often(learned_file)) if learned_file is not None else None
    admin = None
    if settings.admin_port is not None:
        board = Board(server.service)
        server.service.watchers.append(board)
        admin = Admin(server, board, settings.admin_port)
    await server.start()
    try:
        if admin is not None:
            await admin.start()
        on_ready(server.port, admin.port if admin is not None else None)
        begin(server.port)
        await server.run_until_stopped(settings.for_s)
    finally:
        if saving is not None:
            saving.cancel()
        if admin is not None:
            await admin.stop()
