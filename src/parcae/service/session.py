"""Sessions without I/O: a client's messages in, the service's messages out.

A session belongs to one application. With scope `application` every session has a mirror of its own; with scope `cluster` all
share one, and what one application's events mean for another's slots is pushed to the other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from parcae.errors import ProtocolError
from parcae.service.deciding import Counts, DecisionRecord
from parcae.service.jobs import DurationBook
from parcae.service.mirror import Mirror
from parcae.service.policies import PolicyFor
from parcae.service.protocol import (
    PROTOCOL_VERSION,
    Bye,
    Challenge,
    ClientMessage,
    Code,
    Commands,
    Error,
    Events,
    Hello,
    Ping,
    Pong,
    Proof,
    ServerMessage,
    Sync,
    Then,
    Welcome,
    decode_client_message,
    is_proof,
    new_nonce,
    proof_mac,
)
from parcae.service.rows import Room

_LOG = logging.getLogger(__name__)
#: How long a client should wait for a reply (a trial in Spark: 50 ms were too few on a busy machine).
DEFAULT_TIMEOUT_MS = 200
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

    def decided(self, record: DecisionRecord) -> None:
        """The policy answered a question."""

    def answered(self, session: Session, message: Sync | Events, took_ms: float) -> None:
        """A request was carried out, after so many milliseconds."""


@dataclass
class Service:
    """All sessions, and the mirrors behind them.

    Args:
        policy_for: the policy for a cluster of so many slots.
        policy_name: what clients are told.
        book: what is known of durations, shared by all.
        secret: what clients must prove to know, or None.
        room: of the mirrors' tables at first.
        asks_again: see Mirror.
        watchers: who looks on; must be there before the first session.
    """

    policy_for: PolicyFor
    policy_name: str
    book: DurationBook
    scope: Scope = Scope.APPLICATION
    secret: bytes | None = None
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    room: Room | None = None
    asks_again: bool = True
    watchers: list[Watcher] = field(default_factory=list)
    sessions: dict[str, Session] = field(default_factory=dict, init=False)  # by application
    mirrors: dict[str, Mirror] = field(default_factory=dict, init=False)  # by application; one under "" where all share it
    counts: Counts = field(default_factory=Counts, init=False)
    _num_opened: int = field(default=0, init=False)

    def open(self, push: Callable[[ServerMessage], None] | None = None) -> Session:
        """A session for a client that just connected; `push` takes what the service says unasked."""
        self._num_opened += 1
        return Session(self, f"s{self._num_opened}", push)

    def mirror_of(self, application: str) -> Mirror:
        """The application's mirror; a new one where there is none."""
        key = "" if self.scope is Scope.CLUSTER else application
        if key not in self.mirrors:
            shared = self.scope is Scope.CLUSTER
            self.mirrors[key] = Mirror(
                self.policy_for,
                self.book,
                room=self.room,
                is_shared=shared,
                asks_again=self.asks_again,
                counts=self.counts,
                on_decision=self._decided if self.watchers else None,
            )
        return self.mirrors[key]

    def _decided(self, record: DecisionRecord) -> None:
        for watcher in self.watchers:
            watcher.decided(record)

    def enter(self, session: Session) -> None:
        """The session speaks for its application from now on; an older one is closed."""
        older = self.sessions.get(session.application)
        if older is not None:
            older.dismiss(Code.REPLACED, "a newer connection speaks for this application")
        self.sessions[session.application] = session
        for watcher in self.watchers:
            watcher.opened(session)

    def left(self, session: Session) -> None:
        """The session ended; its application's jobs and slots with it, unless a newer session speaks for them."""
        if self.sessions.get(session.application) is not session:
            return
        del self.sessions[session.application]
        if self.scope is Scope.CLUSTER:
            mirror = self.mirror_of(session.application)
            mirror.leave(session.application)
            self.deliver(mirror, session.application)
        else:
            self.mirrors.pop(session.application, None)
        for watcher in self.watchers:
            watcher.closed(session)

    def deliver(self, mirror: Mirror, asker: str) -> Commands:
        """The asker's reply; what concerns others is pushed to them."""
        told = mirror.take_commands()
        for application, commands in told.items():
            if application != asker and (commands.commands or commands.stages) and application in self.sessions:
                self.sessions[application].push(commands)
        return told.get(asker, Commands(seq=None))

    def forget(self, application: str) -> None:
        """A bug of ours left a state that cannot be trusted: drop it; whoever relied on it must send sync."""
        key = "" if self.scope is Scope.CLUSTER else application
        self.mirrors.pop(key, None)
        for name, session in self.sessions.items():
            if self.scope is Scope.CLUSTER and name != application:
                session.needs_sync = True
                session.push(Error(code=Code.RESYNC, message="the shared state was lost; send sync", then=Then.SYNC))


class Session:
    """One client's connection, without the connection."""

    def __init__(self, service: Service, name: str, push: Callable[[ServerMessage], None] | None) -> None:
        self.service, self.name = service, name
        self.pushed: list[ServerMessage] = []
        self._push = push or self.pushed.append
        self._stage = _Stage.NEW
        self._hello: Hello | None = None
        self._nonce = ""
        self._last_seq = -1
        self.needs_sync = True

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
        was_open, self._stage = self.is_open, _Stage.CLOSED
        if was_open:
            self.service.left(self)

    def _refuse(self, error: ProtocolError, seq: int | None) -> Error:
        code, then = Code(error.code), Then.SYNC if self.is_open and error.code in _MENDED_BY_SYNC else Then.CLOSE
        if then is Then.CLOSE:
            self.close()
        else:
            self.needs_sync = True
        return Error(code=code, message=str(error), then=then, seq=seq)

    def _handle(self, message: ClientMessage) -> list[ServerMessage]:
        if self._stage is _Stage.NEW and isinstance(message, Hello):
            return self._greet(message)
        if self._stage is _Stage.CHALLENGED and isinstance(message, Proof):
            return self._verify(message)
        if self._stage is not _Stage.OPEN or isinstance(message, Hello | Proof):
            raise ProtocolError(Code.UNEXPECTED, f"{message.type} has no place here: {_EXPECTED[self._stage]}")
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
        self._nonce, self._stage = new_nonce(), _Stage.CHALLENGED
        return [Challenge(nonce=self._nonce)]

    def _verify(self, proof: Proof) -> list[ServerMessage]:
        hello, secret = self._hello, self.service.secret
        assert hello is not None
        assert secret is not None
        wanted = proof_mac(secret, "client", hello.nonce, self._nonce, hello.application_id)
        if not is_proof(proof.mac, wanted):
            raise ProtocolError(Code.DENIED, "the proof is wrong: client and service must share a secret")
        return [self._welcome(proof_mac(secret, "service", hello.nonce, self._nonce, hello.application_id))]

    def _welcome(self, mac: str | None) -> Welcome:
        self._stage = _Stage.OPEN
        self.service.enter(self)
        service = self.service
        return Welcome(
            protocol=PROTOCOL_VERSION, session=self.name, policy=service.policy_name, timeout_ms=service.timeout_ms, mac=mac
        )

    def _request(self, message: Sync | Events) -> ServerMessage:
        if message.seq <= self._last_seq:
            raise ProtocolError(Code.SEQUENCE, f"seq {message.seq} does not rise above {self._last_seq}")
        self._last_seq = message.seq
        if self.needs_sync and not isinstance(message, Sync):
            raise ProtocolError(Code.RESYNC, "the service has no picture of this application; send sync")
        start = time.perf_counter()
        reply = self._carry_out(message)
        for watcher in self.service.watchers:
            watcher.answered(self, message, _MS_PER_S * (time.perf_counter() - start))
        return reply

    def _carry_out(self, message: Sync | Events) -> ServerMessage:
        mirror = self.service.mirror_of(self.application)
        try:
            if isinstance(message, Sync):
                mirror.sync(self.application, message)
                self.needs_sync = False
            else:
                mirror.events(self.application, message)
        except ProtocolError:
            self.service.deliver(mirror, self.application)  # what the events before it mean for others
            raise
        except Exception:
            _LOG.exception("a bug of the service, on a %s of %s", message.type, self.application)
            self.service.forget(self.application)
            raise ProtocolError(Code.INTERNAL, "a bug of the service; its log tells more; send sync") from None
        return self.service.deliver(mirror, self.application).model_copy(update={"seq": message.seq})

    def _watch_said(self, message: ServerMessage) -> None:
        for watcher in self.service.watchers if self._hello else ():
            watcher.said(self, message)


_EXPECTED = {
    _Stage.NEW: "say hello first",
    _Stage.CHALLENGED: "answer the challenge with proof",
    _Stage.OPEN: "the session is open; send sync, events, ping or bye",
    _Stage.CLOSED: "the session is closed",
}
_MENDED_BY_SYNC = frozenset(
    {
        Code.SEQUENCE,
        Code.CLOCK,
        Code.RESYNC,
        Code.UNKNOWN_JOB,
        Code.UNKNOWN_STAGE,
        Code.UNKNOWN_SLOT,
        Code.WRONG_SLOT,
        Code.DUPLICATE_JOB,
        Code.DUPLICATE_STAGE,
        Code.DUPLICATE_SLOT,
        Code.BAD_JOB,
        Code.BAD_SLOT,
        Code.INTERNAL,
    }
)
