"""`parcae serve` as one function: the service, its server, the admin side and the recording."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from parcae.errors import ConfigError
from parcae.service.admin import Admin
from parcae.service.board import Board
from parcae.service.demonstration import demonstrate, simulated_client
from parcae.service.jobs import DurationBook
from parcae.service.learned import Learned, LearnedFile
from parcae.service.policies import policies_for
from parcae.service.protocol import (
    PROTOCOL_VERSION,
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
    TasksTold,
    encode,
)
from parcae.service.record import Recorder
from parcae.service.server import Server, ServerConfig, read_secret
from parcae.service.session import Scope, Service
from parcae.service.sharing import Sharing
from parcae.workloads.job import Workload

#: How much faster than its own clock a demonstration runs.
_DEMO_TIMES_FASTER = 2.0
#: How often learned durations are written.
_SAVE_EVERY_S = 60.0


@dataclass(frozen=True)
class ServeSettings:
    """What is served.

    Args:
        policy: as in `parcae policies` of the world of cores; learned ones are bound to the workload.
        scope: whether every application has a cluster of its own.
        num_cores: cores that all applications share; with scope `application`, those that are expected.
        executor_cores: cores of one executor, with scope `cluster`.
        moving_delay_ms: with scope `cluster`, how often an executor is taken from an application at most.
        arrivals: how jobs arrive, by which the nearest of the shipped variants is chosen.
        admin_port: of the HTTP side on the loopback; None for none, 0 for a free one.
        record: folder of the recordings, or None.
        learned: file in which learned durations are kept, or None.
        demo_jobs: jobs of a simulated application that is scheduled for show; 0 for none.
        for_s: end after so many seconds, or None to go on.
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


def parse_scope(text: str) -> Scope:
    """The scope that the text names.

    Raises:
        ConfigError: neither of them.
    """
    if text not in set(Scope):
        raise ConfigError(f"--scope {text}: write one of {', '.join(Scope)}")
    return Scope(text)


def make_service(
    settings: ServeSettings, workload: Workload, learned: Learned | None = None
) -> Service:
    """The service, with all that its policy runs compiled.

    Args:
        learned: durations that are known already.

    Raises:
        PolicyError, FormatError, FileNotFoundError: a policy that does not exist, or that a live cluster cannot follow.
        ConfigError: a cluster without room for one executor.
    """
    policy_for = policies_for(settings.policy, workload, settings.arrivals)
    policy_for(settings.num_cores)  # a policy that does not exist is refused here
    sharing = None
    if settings.scope is Scope.CLUSTER:
        sharing = Sharing(settings.num_cores, settings.executor_cores, settings.moving_delay_ms)
    book = DurationBook(workload, learned=learned)
    has_page = settings.admin_port is not None
    warm_up(
        Service(
            policy_for, "warm-up", DurationBook(workload), sharing=Sharing(4), foretells=has_page
        )
    )
    return Service(policy_for, settings.policy, book, sharing=sharing, foretells=has_page)


def warm_up(service: Service) -> None:
    """Load what is compiled before a client waits for it: a service that nobody sees is told of everything once.

    Args:
        service: one that is thrown away.

    Raises:
        ConfigError: it does not answer with orders.
    """
    session = service.open()
    stages = (StageMessage(stage_id=0, tasks=3), StageMessage(stage_id=1, tasks=2, parents=(0,)))
    job = JobMessage(job_id="a", names=("warm-up",), arrival_ms=0, stages=stages)
    closed = JobMessage(job_id="b", names=("warm-up",), arrival_ms=0, is_open=False, stages=stages)
    more = (StageMessage(stage_id=2, tasks=2, parents=(0, 1)), StageMessage(stage_id=3, tasks=2))

    def tasks(*, started: int = 0, finished: int = 0, failed: int = 0) -> TasksTold:
        return TasksTold(
            job_id="a",
            stage_id=0,
            started=started,
            finished=finished,
            failed=failed,
            executed_ms=finished,
        )

    again = StageBegunAgain(job_id="a", stage_id=0, tasks=1)
    messages = (
        Hello(protocol=PROTOCOL_VERSION, application_id="warm-up"),
        State(seq=1, clock_ms=0, cores=4, jobs=()),
        Events(seq=2, clock_ms=1, events=(JobArrived(job=job), JobArrived(job=closed))),
        Events(seq=3, clock_ms=2, events=(tasks(started=3), StagesAdded(job_id="a", stages=more))),
        Events(seq=4, clock_ms=3, cores=8, events=(tasks(finished=2, failed=1),)),
        Events(
            seq=5,
            clock_ms=4,
            events=(tasks(started=1), StageChanged(job_id="a", stage_id=1, tasks=3)),
        ),
        Events(seq=6, clock_ms=5, events=(tasks(finished=1), again)),
        Events(
            seq=7, clock_ms=6, events=(StageEnded(job_id="a", stage_id=1), JobEnded(job_id="a"))
        ),
        Events(seq=8, clock_ms=10_000),
        Events(seq=9, clock_ms=10_001, events=(JobEnded(job_id="b", is_failed=True),)),
    )
    for message in messages:
        for reply in session.receive(encode(message)):
            encode(reply)
            if reply.type == "error":
                raise ConfigError(f"the service does not work: {reply.message}")


def serve(
    settings: ServeSettings, workload: Workload, on_ready: Callable[[int, int | None], None]
) -> None:
    """Serve until SIGTERM, Ctrl-C or `for_s`.

    Args:
        on_ready: told the port, and that of the admin side.

    Raises:
        ConfigError, PolicyError, FormatError, OSError: settings that cannot be.
    """
    secret = read_secret(settings.secret_file) if settings.secret_file else None
    config = ServerConfig(settings.host, settings.port, secret, settings.tls_cert, settings.tls_key)
    config.ssl_context()
    kept = LearnedFile(settings.learned) if settings.learned else None
    service = make_service(settings, workload, kept.learned if kept else None)
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
                kept,
            )
        )
    finally:
        if kept is not None:
            kept.save(kept.snapshot())
        if recorder is not None:
            recorder.close()


def _demonstration(
    settings: ServeSettings, workload: Workload, config: ServerConfig
) -> Callable[[int], None]:
    """What begins the demonstration on a port; nothing where none is wanted.

    Raises:
        ConfigError: a demonstration over TLS or on another address than this machine's.
    """
    if not settings.demo_jobs:
        return lambda port: None
    if settings.tls_cert is not None or settings.host != "127.0.0.1":
        raise ConfigError("--demo plays on 127.0.0.1 without TLS; leave out --host and --tls-cert")
    client = simulated_client(workload, settings.demo_jobs, settings.num_cores)

    def begin(port: int) -> None:
        demonstrate(port, client, _DEMO_TIMES_FASTER, config.secret)

    return begin


async def _save_often(kept: LearnedFile) -> None:
    while True:
        await asyncio.sleep(_SAVE_EVERY_S)
        await asyncio.to_thread(kept.save, kept.snapshot())


async def _serve(
    settings: ServeSettings,
    server: Server,
    on_ready: Callable[[int, int | None], None],
    begin: Callable[[int], None],
    kept: LearnedFile | None,
) -> None:
    saving = asyncio.create_task(_save_often(kept)) if kept is not None else None
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
