"""Sessions without I/O: a client's messages in, the service's messages out.

A session belongs to one application. With scope `application` every session has a mirror of its own;
with scope `cluster` all share one, and what one application's events mean for another's order is
pushed to the other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from parcae.errors import ProtocolError
from parcae.service.jobs import DurationBook
from parcae.service.mirror import Counts, EndedJob, Mirror
from parcae.service.policies import Plan, PolicyFor
from parcae.service.protocol import (
    MENDED_BY_STATE,
    PROTOCOL_VERSION,
    Bye,
    Challenge,
    ClientMessage,
    Code,
    Error,
    Events,
    Hello,
    Orders,
    Ping,
    Pong,
    Proof,
    ServerMessage,
    State,
    Then,
    Welcome,
    decode_client_message,
    is_proof,
    new_nonce,
    proof_mac,
)
from parcae.service.sharing import Sharing

_LOG = logging.getLogger(__name__)
_MS_PER_S = 1e3


class Scope(StrEnum):
    """Who shares a cluster."""

    APPLICATION = "application"  # every application has its own
    CLUSTER = "cluster"  # all applications share one


class _Stage(Enum):
    NEW = "new"
    CHALLENGED = "challenged"
    OPEN = "open"
    CLOSED = "closed"


class Watcher:
    """Whoever looks on: metrics, the live page, a recording. Does nothing by itself."""

    def opened(self, session: Session) -> None:
        """A client was welcomed."""

    def closed(self, session: Session) -> None:
        """A session that was open is no more."""

    def heard(self, session: Session, message: ClientMessage) -> None:
        """An open session's client said something."""

    def said(self, session: Session, message: ServerMessage) -> None:
        """The service said something to it."""

    def planned(self, mirror: Mirror, plan: Plan) -> None:
        """New orders came into force."""

    def ended(self, job: EndedJob) -> None:
        """A job ended well."""

    def answered(self, session: Session, message: State | Events, took_ms: float) -> None:
        """A request was carried out, after so many milliseconds."""


@dataclass
class Service:
    """All sessions, and the mirrors behind them.

    Args:
        policy_for: the policy for a cluster of so many cores.
        policy_name: what clients are told.
        book: what is known of durations, shared by all.
        secret: what clients must prove to know, or None.
        sharing: how applications share one cluster, or None where each has its own.
        foretells: let mirrors keep a virtual run of fair sharing, for who shows it.
        watchers: who looks on; must be there before the first session.
    """

    policy_for: PolicyFor
    policy_name: str
    book: DurationBook
    secret: bytes | None = None
    sharing: Sharing | None = None
    foretells: bool = False
    watchers: list[Watcher] = field(default_factory=list)
    sessions: dict[str, Session] = field(default_factory=dict, init=False)  # by application
    mirrors: dict[str, Mirror] = field(
        default_factory=dict, init=False
    )  # by application; one under "" where all share it
    counts: Counts = field(default_factory=Counts, init=False)
    _num_opened: int = field(default=0, init=False)

    @property
    def scope(self) -> Scope:
        """Who shares a cluster."""
        return Scope.APPLICATION if self.sharing is None else Scope.CLUSTER

    def open(self, push: Callable[[ServerMessage], None] | None = None) -> Session:
        """A session for a client that just connected; `push` takes what the service says unasked."""
        self._num_opened += 1
        return Session(self, f"s{self._num_opened}", push)

    def mirror_of(self, application: str) -> Mirror:
        """The application's mirror; a new one where there is none."""
        key = self._key(application)
        if key not in self.mirrors:
            self.mirrors[key] = self.new_mirror()
        return self.mirrors[key]

    def new_mirror(self) -> Mirror:
        """An empty cluster."""
        return Mirror(
            self.policy_for,
            self.book,
            num_cores=self.sharing.num_cores if self.sharing is not None else None,
            counts=self.counts,
            foretells=self.foretells,
            on_plan=self._planned if self.watchers else None,
            on_end=self._ended if self.watchers else None,
        )

    def _key(self, application: str) -> str:
        return "" if self.sharing is not None else application

    def _planned(self, mirror: Mirror, plan: Plan) -> None:
        for watcher in self.watchers:
            watcher.planned(mirror, plan)

    def _ended(self, job: EndedJob) -> None:
        for watcher in self.watchers:
            watcher.ended(job)

    def enter(self, session: Session) -> None:
        """The session speaks for its application from now on; an older one is closed."""
        older = self.sessions.get(session.application)
        if older is not None:
            older.dismiss(Code.REPLACED, "a newer connection speaks for this application")
        self.sessions[session.application] = session
        for watcher in self.watchers:
            watcher.opened(session)

    def left(self, session: Session) -> None:
        """The session ended; its application's jobs with it, unless a newer session speaks for them."""
        if self.sessions.get(session.application) is not session:
            return
        del self.sessions[session.application]
        if self.sharing is not None:
            mirror = self.mirror_of(session.application)
            mirror.forget(session.application)
            mirror.settle()
            self.sharing.forget(session.application)
            self.push_orders(mirror, session.application)
        else:
            self.mirrors.pop(session.application, None)
        for watcher in self.watchers:
            watcher.closed(session)

    def orders_for(self, mirror: Mirror, application: str) -> Orders:
        """The standing order of an application."""
        orders = mirror.orders(application)
        if self.sharing is None:
            return orders
        return orders.model_copy(
            update={"executors": self.sharing.executors_of(application, mirror)}
        )

    def push_orders(self, mirror: Mirror, asker: str) -> None:
        """Tell the others what the asker's events mean for them, where that is something new."""
        if self.sharing is None:
            return
        for application, session in self.sessions.items():
            if application != asker and not session.needs_state:
                session.push_if_new(self.orders_for(mirror, application))

    def forget(self, application: str) -> None:
        """A bug of ours left a state that cannot be trusted: drop it; whoever relied on it must send `state`."""
        self.mirrors.pop(self._key(application), None)
        for name, session in self.sessions.items():
            if self.sharing is not None and name != application:
                session.needs_state = True
                session.push(
                    Error(
                        code=Code.NO_STATE,
                        message="the shared state was lost; send state",
                        then=Then.STATE,
                    )
                )


class Session:
    """One client's connection, without the connection."""

    def __init__(
        self, service: Service, name: str, push: Callable[[ServerMessage], None] | None
    ) -> None:
        self.service = service
        self.name = name
        self.pushed: list[ServerMessage] = []
        self._push = push or self.pushed.append
        self._stage = _Stage.NEW
        self._hello: Hello | None = None
        self._nonce = ""
        self._last_seq = -1
        self._told: tuple[object, ...] | None = None
        self.needs_state = True

    @property
    def is_closed(self) -> bool:
        """Whether the connection is to be closed."""
        return self._stage is _Stage.CLOSED

    @property
    def is_open(self) -> bool:
        """Whether the client was welcomed and has not left."""
        return self._stage is _Stage.OPEN

    @property
    def application(self) -> str:
        """The application's id; empty before its hello."""
        return self._hello.application_id if self._hello else ""

    @property
    def application_name(self) -> str:
        """How the application calls itself."""
        return (self._hello.application_name or self._hello.application_id) if self._hello else ""

    def redirect(self, push: Callable[[ServerMessage], None]) -> None:
        """Let `push` take what the service says unasked."""
        self._push = push

    def push(self, message: ServerMessage) -> None:
        """Say something unasked."""
        self._watch_said(message)
        self._push(message)

    def push_if_new(self, orders: Orders) -> None:
        """Say orders unasked where they order jobs otherwise than those before."""
        meaning = _meaning(orders)
        if meaning != self._told:
            self._told = meaning
            self.push(orders)

    def receive(self, payload: bytes) -> list[ServerMessage]:
        """Answer one message; never raises. Afterwards look at `is_closed`."""
        if self.is_closed:
            return []
        seq = None
        try:
            message = decode_client_message(payload)
            seq = getattr(message, "seq", None)
            replies = self._handle(message)
        except ProtocolError as error:
            replies = [self._refuse(error, seq)]
        for reply in replies:
            self._watch_said(reply)
        return replies

    def refuse(self, error: ProtocolError) -> Error:
        """What is said about bytes that are no message; the session is closed."""
        self.close()
        return Error(code=Code(error.code), message=str(error), then=Then.CLOSE)

    def dismiss(self, code: Code, why: str) -> None:
        """Close the session from this side."""
        if not self.is_closed:
            self.push(Error(code=code, message=why, then=Then.CLOSE))
            self.close()

    def close(self) -> None:
        """The connection is gone, or is to go."""
        was_open = self.is_open
        self._stage = _Stage.CLOSED
        if was_open:
            self.service.left(self)

    def _refuse(self, error: ProtocolError, seq: int | None) -> Error:
        code = Code(error.code)
        then = Then.STATE if self.is_open and error.code in MENDED_BY_STATE else Then.CLOSE
        if then is Then.CLOSE:
            self.close()
        else:
            self.needs_state = True
        return Error(code=code, message=str(error), then=then, seq=seq)

    def _handle(self, message: ClientMessage) -> list[ServerMessage]:
        if self._stage is _Stage.NEW and isinstance(message, Hello):
            return self._greet(message)
        if self._stage is _Stage.CHALLENGED and isinstance(message, Proof):
            return self._verify(message)
        if self._stage is not _Stage.OPEN or isinstance(message, Hello | Proof):
            raise ProtocolError(
                Code.UNEXPECTED, f"{message.type} has no place here: {_EXPECTED[self._stage]}"
            )
        for watcher in self.service.watchers:
            watcher.heard(self, message)
        if isinstance(message, Ping):
            return [Pong(seq=message.seq)]
        if isinstance(message, Bye):
            self.close()
            return []
        return [self._request(message)]

    def _greet(self, hello: Hello) -> list[ServerMessage]:
        self._hello = hello
        if self.service.secret is None:
            return [self._welcome(None)]
        if hello.nonce is None:
            raise ProtocolError(
                Code.DENIED,
                "this service has a secret: send a nonce with hello, and answer the challenge",
            )
        self._nonce = new_nonce()
        self._stage = _Stage.CHALLENGED
        return [Challenge(nonce=self._nonce)]

    def _verify(self, proof: Proof) -> list[ServerMessage]:
        hello = self._hello
        secret = self.service.secret
        assert hello is not None
        assert secret is not None
        nonce = hello.nonce or ""
        wanted = proof_mac(secret, "client", nonce, self._nonce, hello.application_id)
        if not is_proof(proof.mac, wanted):
            raise ProtocolError(
                Code.DENIED, "the proof is wrong: client and service must share a secret"
            )
        return [
            self._welcome(proof_mac(secret, "service", nonce, self._nonce, hello.application_id))
        ]

    def _welcome(self, mac: str | None) -> Welcome:
        self._stage = _Stage.OPEN
        self.service.enter(self)
        service = self.service
        return Welcome(
            protocol=PROTOCOL_VERSION, session=self.name, policy=service.policy_name, mac=mac
        )

    def _request(self, message: State | Events) -> ServerMessage:
        if message.seq <= self._last_seq:
            raise ProtocolError(
                Code.SEQUENCE, f"seq {message.seq} does not rise above {self._last_seq}"
            )
        self._last_seq = message.seq
        if self.needs_state and not isinstance(message, State):
            raise ProtocolError(
                Code.NO_STATE, "the service knows nothing of this application; send state"
            )
        start = time.perf_counter()
        reply = self._carry_out(message)
        for watcher in self.service.watchers:
            watcher.answered(self, message, _MS_PER_S * (time.perf_counter() - start))
        return reply

    def _carry_out(self, message: State | Events) -> ServerMessage:
        service = self.service
        application = self.application
        mirror = service.mirror_of(application)
        try:
            if isinstance(message, State):
                mirror.take_state(application, message)
                self.needs_state = False
                if service.sharing is not None:
                    service.sharing.told_cores(application, message.cores)
            else:
                mirror.take_events(application, message)
                if service.sharing is not None and message.cores is not None:
                    service.sharing.told_cores(application, message.cores)
            orders = service.orders_for(mirror, application)
            service.push_orders(mirror, application)
        except ProtocolError:
            mirror.forget(application)
            mirror.settle()
            service.push_orders(mirror, application)
            raise
        except Exception:
            _LOG.exception("a bug of the service, on a message %s of %s", message.type, application)
            service.forget(application)
            raise ProtocolError(
                Code.INTERNAL, "a bug of the service; its log tells more; send state"
            ) from None
        self._told = _meaning(orders)
        return orders.model_copy(update={"seq": message.seq})

    def _watch_said(self, message: ServerMessage) -> None:
        for watcher in self.service.watchers if self._hello else ():
            watcher.said(self, message)


_EXPECTED = {
    _Stage.NEW: "say hello first",
    _Stage.CHALLENGED: "answer the challenge with proof",
    _Stage.OPEN: "the session is open; send state, events, ping or bye",
    _Stage.CLOSED: "the session is closed",
}


def _meaning(orders: Orders) -> tuple[object, ...]:
    """What a client would do by the orders: tiers may change without changing that."""
    ranked = sorted(orders.jobs, key=lambda job: job.tier)
    jobs = tuple((job.job_id, job.weight, job.limit) for job in ranked)
    stages = tuple((stage.job_id, stage.stage_id, stage.limit) for stage in orders.stages)
    return jobs, stages, orders.executors
