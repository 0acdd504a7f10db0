"""`parcae serve` as one function: the service, its server, the admin side and the recording."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from parcae.errors import ConfigError
from parcae.policies.learned import is_learned
from parcae.service.admin import Admin
from parcae.service.board import Board
from parcae.service.demonstration import demonstrate, simulated_client
from parcae.service.jobs import DurationBook
from parcae.service.learned import Learned, LearnedFile
from parcae.service.policies import InBackground, PolicyFor, policies_by_size
from parcae.service.protocol import (
    PROTOCOL_VERSION,
    Events,
    Hello,
    JobArrived,
    JobEnded,
    JobMessage,
    SlotArrived,
    SlotMessage,
    StageMessage,
    Sync,
    TaskFinished,
    encode,
    new_nonce,
)
from parcae.service.record import Recorder
from parcae.service.server import Server, ServerConfig, read_secret
from parcae.service.session import DEFAULT_TIMEOUT_MS, Scope, Service
from parcae.workloads.job import Workload

#: How much faster than its own clock a demonstration runs.
_DEMO_TIMES_FASTER = 2.0
#: How often learned durations are written.
_SAVE_EVERY_S = 60.0


@dataclass(frozen=True)
class ServeSettings:
    """What is served.

    Args:
        policy: as in `parcae policies`; learned ones are bound to the workload.
        scope: whether every application has a cluster of its own.
        num_slots: slots that are expected; the policy is made ready for so many before the first client comes.
        moving_delay_ms: what it costs to move a slot between jobs, for learned policies.
        arrivals: how jobs arrive, by which the nearest of the shipped variants is chosen.
        admin_port: of the HTTP side on the loopback; None for none, 0 for a free one.
        record: folder of the recordings, or None.
        learned: file in which learned durations are kept, or None.
        demo_jobs: jobs of a simulated application that is scheduled for show; 0 for none.
        for_s: end after so many seconds, or None to go on.
    """

    policy: str = "parcae"
    scope: Scope = Scope.APPLICATION
    num_slots: int = 50
    moving_delay_ms: int = 0
    arrivals: str = "poisson:25s"
    host: str = "127.0.0.1"
    port: int = 7177
    admin_port: int | None = 7178
    secret_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    timeout_ms: int = DEFAULT_TIMEOUT_MS
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


def make_service(settings: ServeSettings, workload: Workload, learned: Learned | None = None) -> Service:
    """The service, with its policy made ready; for other numbers of slots than the expected one that happens in a thread.

    Args:
        learned: durations that are known already.

    Raises:
        PolicyError, FormatError, FileNotFoundError: a policy that does not exist.
    """
    policy_for = policies_by_size(settings.policy, workload, settings.moving_delay_ms, settings.arrivals)
    policy_for(settings.num_slots)  # a policy that does not exist is refused here
    _warm_up(policy_for, settings.num_slots)
    book = DurationBook(workload, learned=learned)
    others = InBackground(policy_for, [settings.num_slots]) if is_learned(settings.policy) else policy_for
    return Service(others, settings.policy, book, scope=settings.scope, timeout_ms=settings.timeout_ms)


def _warm_up(policy_for: PolicyFor, num_slots: int) -> None:
    """Load what is compiled before a client waits for it: a job of two stages is scheduled by a service that nobody sees."""
    stages = (StageMessage(stage_id=0, tasks=2), StageMessage(stage_id=1, tasks=1, parents=(0,)))
    job = JobMessage(job_id=0, name="warm-up", arrival_ms=0, stages=stages)
    session = Service(policy_for, "warm-up", DurationBook(None)).open()
    slots = tuple(SlotMessage(slot=slot) for slot in range(num_slots))
    done = [TaskFinished(slot=slot, job_id=0, stage_id=0, duration_ms=1) for slot in (0, 1)]
    for message in (
        Hello(protocol=PROTOCOL_VERSION, application_id="warm-up", nonce=new_nonce()),
        Sync(seq=1, clock_ms=0, slots=slots),
        Events(seq=2, clock_ms=0, events=(JobArrived(job=job),)),
        Events(seq=3, clock_ms=0, events=(SlotArrived(slot=0), SlotArrived(slot=1))),
        Events(seq=4, clock_ms=1, events=tuple(done)),
        Events(seq=5, clock_ms=1, events=(JobEnded(job_id=0),)),
    ):
        for reply in session.receive(encode(message)):
            encode(reply)


def serve(settings: ServeSettings, workload: Workload, on_ready: Callable[[int, int | None], None]) -> None:
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
        asyncio.run(_serve(settings, Server(service, config), on_ready, _demonstration(settings, workload, config), kept))
    finally:
        if kept is not None:
            kept.save(kept.snapshot())
        if recorder is not None:
            recorder.close()


def _demonstration(settings: ServeSettings, workload: Workload, config: ServerConfig) -> Callable[[int], None]:
    """What begins the demonstration on a port; nothing where none is wanted.

    Raises:
        ConfigError: a demonstration over TLS or on another address than this machine's.
    """
    if not settings.demo_jobs:
        return lambda port: None
    if settings.tls_cert is not None or settings.host != "127.0.0.1":
        raise ConfigError("--demo plays on 127.0.0.1 without TLS; leave out --host and --tls-cert")
    client = simulated_client(workload, settings.demo_jobs, settings.num_slots, settings.moving_delay_ms)

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
