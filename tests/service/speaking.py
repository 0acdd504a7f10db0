"""A client that numbers its requests, and short words for what it says and is told."""

from __future__ import annotations

from parcae.cluster.decision import Policy
from parcae.policies.catalog import make_policy
from parcae.service.jobs import DurationBook
from parcae.service.protocol import Commands, Error, Event, Events, Hello, JobMessage, SlotMessage, StageMessage, Sync
from parcae.service.session import Service
from tests.service.recording import Wire

NONCE = "0123456789abcdef"


def service_of(policy: Policy | None = None, *, book: DurationBook | None = None, **settings: object) -> Service:
    """A service of fair sharing, or of another policy, without a profile."""
    book = book or DurationBook(None)
    return Service(lambda slots: policy or make_policy("fair", slots), "fair", book, **settings)  # type: ignore[arg-type]


def job_of(job_id: int, *stages: tuple[int, tuple[int, ...]], name: str = "", is_open: bool = False) -> JobMessage:
    """A job from (number of tasks, parents) for each stage."""
    made = tuple(StageMessage(stage_id=i, tasks=n, parents=parents) for i, (n, parents) in enumerate(stages))
    return JobMessage(job_id=job_id, name=name, arrival_ms=0, is_open=is_open, stages=made)


class Speaker:
    """Speaks to a session and numbers its requests."""

    def __init__(self, service: Service, application: str = "app", first_slot: int = 0) -> None:
        self.wire, self.seq, self.application, self.first = Wire(service), 0, application, first_slot
        self.welcome = self.wire.ask(Hello(protocol=1, application_id=application, nonce=NONCE))

    def sync(self, num_slots: int, *jobs: JobMessage, clock_ms: int = 0, **settings: bool) -> Commands | Error:
        slots = tuple(SlotMessage(slot=self.first + number) for number in range(num_slots))
        return self.say(Sync(seq=self._next(), clock_ms=clock_ms, slots=slots, jobs=jobs, **settings))

    def events(self, clock_ms: int, *events: Event) -> Commands | Error:
        return self.say(Events(seq=self._next(), clock_ms=clock_ms, events=events))

    def say(self, message: Sync | Events) -> Commands | Error:
        (reply,) = self.wire.ask(message)
        assert isinstance(reply, Commands | Error)
        return reply

    def _next(self) -> int:
        self.seq += 1
        return self.seq


def code_of(reply: Commands | Error) -> tuple[str, str]:
    """Code and `then` of an error."""
    assert isinstance(reply, Error), reply
    return reply.code.value, reply.then.value


def said_by(reply: Commands | Error) -> list[tuple[str, int, int | None, int | None]]:
    """(kind, slot, job, stage) of every command."""
    assert isinstance(reply, Commands), reply
    return [(c.kind, c.slot, c.job_id, c.stage_id) for c in reply.commands]


def tokens_of(reply: Commands | Error) -> dict[tuple[int, int], int]:
    """Slots by (job, stage)."""
    assert isinstance(reply, Commands), reply
    return {(s.job_id, s.stage_id): s.slots for s in reply.stages}
