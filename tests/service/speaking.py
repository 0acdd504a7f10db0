"""Helpers for tests of the service: a client that numbers its requests, and short constructors."""

from __future__ import annotations

from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.service.jobs import DurationModel
from parcae.service.policies import LivePolicy, PolicyFor
from parcae.service.protocol import (
    ClientMessage,
    Error,
    Event,
    Events,
    FrameReader,
    Hello,
    JobMessage,
    OrdersMessage,
    ServerMessage,
    StageMessage,
    StateMessage,
    TasksReported,
    decode_server_message,
    encode,
    frame,
)
from parcae.service.session import Service, Session

NONCE = "0123456789abcdef"


def planner(kind: OrderKind = OrderKind.FAIR) -> PolicyFor:
    """A policy by formula for every number of cores."""
    return lambda num_cores: LivePolicy(OrderPolicy(kind.name.lower(), kind, plan_tables()))


def service_of(
    policy_for: PolicyFor | None = None,
    *,
    duration_model: DurationModel | None = None,
    **settings: object,
) -> Service:
    """A service of fair sharing, or of another policy, without a profile."""
    return Service(
        policy_for or planner(),
        "fair",
        duration_model or DurationModel(None),
        **settings,  # type: ignore[arg-type]
    )


def stages_of(*stages: tuple[int, tuple[int, ...]], first: int = 0) -> tuple[StageMessage, ...]:
    """Stages from (number of tasks, ids of the parents)."""
    return tuple(
        StageMessage(stage_id=first + i, tasks=n, parents=parents)
        for i, (n, parents) in enumerate(stages)
    )


def job_of(
    job_id: str,
    *stages: tuple[int, tuple[int, ...]],
    name: str = "",
    is_open: bool = False,
    arrival_ms: int = 0,
    first: int = 0,
) -> JobMessage:
    """A job from (number of tasks, parents) for each stage."""
    names = (name,) if name else ()
    return JobMessage(
        job_id=job_id,
        names=names,
        arrival_ms=arrival_ms,
        is_open=is_open,
        stages=stages_of(*stages, first=first),
    )


def began(job_id: str, stage_id: int, count: int = 1) -> TasksReported:
    """The event that `count` tasks started."""
    return TasksReported(job_id=job_id, stage_id=stage_id, started=count)


def ended(job_id: str, stage_id: int, count: int, executed_ms: int) -> TasksReported:
    """The event that `count` tasks ended successfully, with the sum of their durations."""
    return TasksReported(job_id=job_id, stage_id=stage_id, finished=count, executed_ms=executed_ms)


class Wire:
    """A client and a session that exchange encoded bytes."""

    def __init__(self, service: Service) -> None:
        self.session: Session = service.open()
        self._to_service = FrameReader()
        self._to_client = FrameReader()

    def ask(self, message: ClientMessage) -> list[ServerMessage]:
        (payload,) = self._to_service.feed(frame(encode(message)))
        replies = self.session.receive(payload)
        return [
            decode_server_message(p)
            for reply in replies
            for p in self._to_client.feed(frame(encode(reply)))
        ]

    def orders(self, message: ClientMessage) -> OrdersMessage:
        (reply,) = self.ask(message)
        assert isinstance(reply, OrdersMessage), reply
        return reply


class Speaker:
    """A client that sends messages to a session and numbers its requests."""

    def __init__(self, service: Service, application: str = "app") -> None:
        self.wire = Wire(service)
        self.seq = 0
        self.application = application
        self.welcome = self.wire.ask(Hello(protocol=2, application_id=application, nonce=NONCE))

    @property
    def pushed(self) -> list[ServerMessage]:
        """The messages of the service that were no replies."""
        return self.wire.session.pushed

    def state(self, cores: int, *jobs: JobMessage, clock_ms: int = 0) -> OrdersMessage | Error:
        return self.say(StateMessage(seq=self._next(), clock_ms=clock_ms, cores=cores, jobs=jobs))

    def events(
        self, clock_ms: int, *events: Event, cores: int | None = None
    ) -> OrdersMessage | Error:
        return self.say(Events(seq=self._next(), clock_ms=clock_ms, cores=cores, events=events))

    def say(self, message: StateMessage | Events) -> OrdersMessage | Error:
        (reply,) = self.wire.ask(message)
        assert isinstance(reply, OrdersMessage | Error)
        return reply

    def _next(self) -> int:
        self.seq += 1
        return self.seq


def code_of(reply: OrdersMessage | Error) -> tuple[str, str]:
    """Code and `then` of an error."""
    assert isinstance(reply, Error), reply
    return reply.code.value, reply.then.value


def order_of(reply: OrdersMessage | Error) -> list[str]:
    """Ids of the jobs by tier, the first served first."""
    assert isinstance(reply, OrdersMessage), reply
    return [job.job_id for job in sorted(reply.jobs, key=lambda job: job.tier)]
