"""`serve`: runs the service, its TCP server, the admin side and the recording in one call."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from parcae.base.errors import ConfigError, ProtocolError, refuse_unknown, refused_settings
from parcae.base.options import option
from parcae.base.texts import MS_PER_S
from parcae.policies.additions import named_policy
from parcae.service.admin import Admin, Board
from parcae.service.client import Client
from parcae.service.jobs import DurationModel
from parcae.service.learned import LearnedDurations, LearnedFile
from parcae.service.policies import PolicyFor, policies_for
from parcae.service.protocol import (
    PROTOCOL_VERSION,
    ClientMessage,
    Event,
    Events,
    Hello,
    JobArrived,
    JobEnded,
    JobMessage,
    OrdersMessage,
    StageBegunAgain,
    StageChanged,
    StageEnded,
    StageMessage,
    StagesAdded,
    StateMessage,
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
from parcae.workloads.durations import MOST_EXECUTORS
from parcae.workloads.workload import ArrivalProcess, RandomStreams, Workload, draw_sequence

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
    sequence = draw_sequence(workload.warm, arrivals, num_jobs, num_cores, RandomStreams(seed))
    fifo = named_policy("fifo", workload, config)
    # The policy does not matter: in the world of cores durations do not depend on it.
    trace = simulate(sequence, fifo, config, seed, record=True)
    first_ms = int(time.time() * MS_PER_S)
    return SimulatedClient(
        sequence, task_times(trace), num_cores, name, is_open=True, first_ms=first_ms
    )


def demonstrate(
    port: int,
    clients: Iterable[SimulatedClient],
    times_faster: float,
    secret: bytes | None = None,
) -> threading.Thread:
    """Run clients against the service on this machine, one after another, in a daemon thread."""

    def play() -> None:
        try:
            for simulated in clients:
                begun_s = time.monotonic()
                with Client("127.0.0.1", port) as client:
                    client.greet(simulated.hello(), secret)
                    simulated.run(partial(paced, client, simulated, begun_s))
        except (OSError, ProtocolError) as error:
            _LOG.info("the demonstration has stopped: %s", error)

    def paced(
        client: Client,
        simulated: SimulatedClient,
        begun_s: float,
        message: StateMessage | Events,
    ) -> OrdersMessage:
        """Send a message when real time has caught up with the simulated clock."""
        elapsed_s = (message.clock_ms - simulated.first_ms) / MS_PER_S
        time.sleep(max(0.0, elapsed_s / times_faster - (time.monotonic() - begun_s)))
        return client.orders(message)

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    return thread


#: Simulated time / real time of a demonstration.
_DEMO_TIMES_FASTER = 2.0
#: Seconds between two writes of the learned durations.
_SAVE_EVERY_S = 60.0


class ServeSettings(BaseModel):
    """Settings of the service."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str = option(
        "parcae", "Policy that plans; see `parcae policies`, world of cores.", check="policy"
    )
    scope: Scope = option(
        Scope.APPLICATION,
        "application: each application has its own cores | cluster: all share --cores.",
    )
    num_cores: int = option(
        50,
        "Cores that all share; with --scope application, expected cores of each. With "
        "spark.task.cpus above 1, divide by it.",
        "--cores",
        "--slots",
        ge=1,
        le=MOST_EXECUTORS,
    )
    executor_cores: int = option(
        1,
        "With --scope cluster: cores of one executor. With spark.task.cpus above 1, divide by it.",
        ge=1,
    )
    arrivals: str = option(
        "load:0.9", "Expected arrivals; chooses the nearest shipped variant of a policy."
    )
    host: str = option("127.0.0.1", "Address to listen on; all but the loopback need a secret.")
    port: int = option(7177, "Port for clients; 0: a free port.", ge=0, le=65535)
    #: None: no live page, and no other HTTP.
    admin_port: int | None = option(
        7178, "Port of the live page (loopback); 0: a free port, -1: no live page.", ge=-1, le=65535
    )
    metrics_port: int | None = option(
        None,
        "Port at --host of the live page's /metrics, for Prometheus; without a secret.",
        ge=1,
        le=65535,
    )
    secret_file: Path | None = option(
        None, "File with the secret that clients must know.", check="read"
    )
    tls_cert: Path | None = option(None, "Certificate (PEM).", check="read")
    tls_key: Path | None = option(None, "Its key (PEM).", check="read")
    record: Path | None = option(None, "Folder for recordings of all sessions.", check="folder")
    learned: Path | None = option(
        None, "File that keeps learned durations between runs.", check="write"
    )
    demo_jobs: int = option(
        0,
        "Also schedule simulated applications with this number of jobs, one after another.",
        "--demo",
        ge=0,
        le=1_000_000,
    )
    for_s: float | None = option(None, "Stop after this number of seconds.", "--for", ge=0)

    @field_validator("admin_port")
    @classmethod
    def _no_port(cls, value: int | None) -> int | None:
        return None if value == -1 else value


def settings_of(policy: str, num_cores: int, given: Mapping[str, Any]) -> ServeSettings:
    """Make settings of Python's arguments; paths and the scope may be text."""
    apart = ("policy", "num_cores")
    refuse_unknown(given, [name for name in ServeSettings.model_fields if name not in apart])
    try:
        return ServeSettings(policy=policy, num_cores=num_cores, **given)
    except ValidationError as error:
        raise refused_settings(error.errors(), {}) from None


def make_service(
    settings: ServeSettings,
    workload: Workload,
    learned: LearnedDurations | None = None,
    policy_for: PolicyFor | None = None,
) -> Service:
    """Make the service and compile all code that its policy needs."""
    # Most policies have no variants, so that they would not look at it.
    ArrivalProcess.parse(settings.arrivals)
    policy_for = policy_for or policies_for(settings.policy, workload, settings.arrivals)
    policy_for(settings.num_cores)  # raises an error now if the policy does not exist
    sharing = None
    if settings.scope is Scope.CLUSTER:
        sharing = Sharing(settings.num_cores, settings.executor_cores)
    first = DurationModel(workload)
    warm_up(Service(policy_for, settings.policy, first, sharing=sharing and Sharing(4)))
    return Service(
        policy_for,
        settings.policy,
        DurationModel(workload, learned=learned),
        sharing=sharing,
    )


def warm_up(service: Service) -> None:
    """Load all compiled code, before a client has to wait for it.

    Sends every kind of event once to a service, which the caller then throws away, and looks at it
    as the live page does. Lets fair sharing plan once, as after a failure of the policy.
    """
    board = Board(service)
    service.watchers.append(board)
    session = service.open()
    messages: list[ClientMessage] = [
        Hello(protocol=PROTOCOL_VERSION, application_id="warm-up"),
        StateMessage(seq=1, clock_ms=0, cores=4, jobs=()),
    ]
    messages += [
        Events(seq=seq, clock_ms=2_000 * seq, cores=8 if seq > 3 else None, events=events)
        for seq, events in enumerate(_warm_up_events(), 2)
    ]
    for message in messages:
        for reply in session.receive(encode(message)):
            encode(reply)
            if reply.type == "error":
                raise ConfigError(f"the service failed its first test: {reply.message}")
        board.snapshot()
    board.estimate(board.jobs_to_play())
    mirror = service.mirror_of(session.application)
    mirror.planning.plan_fairly(mirror.state)


def _warm_up_events() -> Iterator[tuple[Event, ...]]:
    """Every kind of event, of an open job "a" and a closed job "b"."""
    stages = (StageMessage(stage_id=0, tasks=3), StageMessage(stage_id=1, tasks=2, parents=(0,)))
    job = JobMessage(job_id="a", names=("warm-up",), arrival_ms=0, stages=stages)
    yield (
        JobArrived(job=job),
        JobArrived(job=job.model_copy(update={"job_id": "b", "is_open": False})),
    )
    first = TasksReported(job_id="a", stage_id=0)
    # More than there are free rows for behind the job: the rows of all jobs move.
    more = (StageMessage(stage_id=number, tasks=2, parents=(0, 1)) for number in range(2, 20))
    yield first.model_copy(update={"started": 3}), StagesAdded(job_id="a", stages=tuple(more))
    yield (first.model_copy(update={"finished": 2, "failed": 1, "executed_ms": 2}),)
    changed = StageChanged(job_id="a", stage_id=1, tasks=3)
    yield first.model_copy(update={"started": 1}), changed
    again = StageBegunAgain(job_id="a", stage_id=0, tasks=1)
    yield first.model_copy(update={"finished": 1, "executed_ms": 1}), again
    yield StageEnded(job_id="a", stage_id=1), JobEnded(job_id="a")
    yield ()
    yield (JobEnded(job_id="b", is_failed=True),)


def serve(
    settings: ServeSettings,
    workload: Workload,
    on_ready: Callable[[int, int | None], None],
    policy_for: PolicyFor | None = None,
) -> None:
    """Serve until SIGTERM, Ctrl-C or the end of `for_s`."""
    _check_no_loop()
    secret = read_secret(settings.secret_file) if settings.secret_file else None
    config = ServerConfig(settings.host, settings.port, secret, settings.tls_cert, settings.tls_key)
    config.ssl_context()  # raises an error now if the certificate cannot be used
    if settings.metrics_port is not None and settings.admin_port is None:
        raise ConfigError("--metrics-port needs the live page: leave out --admin-port -1")
    demonstration: Iterator[SimulatedClient] | None = None
    if settings.demo_jobs:
        if settings.tls_cert is not None or settings.host != "127.0.0.1":
            raise ConfigError(
                "--demo runs on 127.0.0.1 without TLS; leave out --host and --tls-cert"
            )
        demonstration = (
            simulated_client(
                workload,
                settings.demo_jobs,
                settings.num_cores,
                seed=seed,
                name=f"demonstration-{seed + 1}",
            )
            for seed in itertools.count()
        )
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
                demonstration,
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


async def _save_often(learned_file: LearnedFile) -> None:
    """Write learned durations from time to time, without blocking the server."""
    while True:
        await asyncio.sleep(_SAVE_EVERY_S)
        await asyncio.to_thread(learned_file.save, learned_file.snapshot())


async def _serve(
    settings: ServeSettings,
    server: Server,
    on_ready: Callable[[int, int | None], None],
    demonstration: Iterator[SimulatedClient] | None,
    learned_file: LearnedFile | None,
) -> None:
    saving = asyncio.create_task(_save_often(learned_file)) if learned_file is not None else None
    admin = None
    if settings.admin_port is not None:
        board = Board(server.service)
        server.service.watchers.append(board)
        admin = Admin(server, board, settings.admin_port, (settings.host, settings.metrics_port))
    await server.start()
    try:
        if admin is not None:
            await admin.start()
        on_ready(server.port, admin.port if admin is not None else None)
        if demonstration is not None:
            demonstrate(server.port, demonstration, _DEMO_TIMES_FASTER, server.config.secret)
        await server.run_until_stopped(settings.for_s)
    finally:
        if saving is not None:
            saving.cancel()
        if admin is not None:
            await admin.stop()
