"""Sessions without I/O: messages of a client in, messages of the service out.

A session belongs to one application. With scope `application` every session has its own mirror.
With scope `cluster` all sessions share one mirror; if the events of one application change the
order of another, the new order is pushed to that other one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple

from parcae.base.errors import ProtocolError
from parcae.base.texts import MS_PER_HOUR, MS_PER_S
from parcae.service.jobs import DurationModel
from parcae.service.live_tables import Counts, EndedJob, LiveSettings
from parcae.service.mirror import Mirror
from parcae.service.policies import PolicyFor, TimedPlan
from parcae.service.protocol import (
    PROTOCOL_VERSION,
    RECOVERED_BY_STATE,
    Bye,
    Challenge,
    ClientMessage,
    Code,
    Error,
    Event,
    Events,
    Hello,
    JobArrived,
    OrdersMessage,
    Ping,
    Pong,
    Proof,
    ServerMessage,
    StagesAdded,
    StateMessage,
    Then,
    Welcome,
    arriving,
    decode_client_message,
    is_proof,
    new_nonce,
    proof_mac,
)
from parcae.service.sharing import Sharing
from parcae.service.turns import make_way, paced, whole

#: How far the clock of an application may be ahead of the service's own.
_MOST_AHEAD_MS = 24 * MS_PER_HOUR
#: Events and stages of a request that a shared cluster takes at once, at most.
_MOST_IN_PART = 300
#: How long it should take to do so, in s.
_PART_S = 2e-3


class JobMeaning(NamedTuple):
    """A job's place among all tiers (0: served first), its weight and its limit."""

    place: int
    weight: float
    limit: int | None


class StageMeaning(NamedTuple):
    """A stage's place among all tiers, its place among all ranks, and its limit."""

    place: int
    rank: int
    limit: int | None


@dataclass(frozen=True)
class Meaning:
    """What a client does under its orders."""

    jobs: dict[str, JobMeaning]
    stages: dict[tuple[str, int], StageMeaning]
    other_place: int
    executors: int | None


def meaning_of(orders: OrdersMessage) -> Meaning:
    """What the orders mean: tiers and ranks are replaced by their places, the smallest first."""
    tier_of = {job.job_id: job.tier for job in paced(orders.jobs)}
    tiers = [tier_of.get(one.job_id, orders.other_tier) + one.tier for one in paced(orders.stages)]
    place = _places([orders.other_tier, *tier_of.values(), *tiers])
    rank = _places([0.0, *(stage.rank for stage in orders.stages)])
    return Meaning(
        {
            job.job_id: JobMeaning(place[job.tier], job.weight, job.limit)
            for job in paced(orders.jobs)
        },
        {
            (stage.job_id, stage.stage_id): StageMeaning(place[tier], rank[stage.rank], stage.limit)
            for stage, tier in paced(zip(orders.stages, tiers, strict=True))
        },
        place[orders.other_tier],
        orders.executors,
    )


def _places(values: Iterable[float]) -> dict[float, int]:
    """The place of every value among the different ones, from the smallest."""
    return {value: place for place, value in enumerate(sorted(set(values)))}


_LOG = logging.getLogger(__name__)


class Scope(StrEnum):
    """Which applications share a cluster."""

    APPLICATION = "application"  # every application has its own cluster
    CLUSTER = "cluster"  # all applications share one cluster


class _Stage(Enum):
    """How far the connection has been set up."""

    NEW = "new"
    CHALLENGED = "challenged"
    OPEN = "open"
    CLOSED = "closed"


class Watcher:
    """Base class of observers such as metrics, the live page and recordings.

    The service calls these methods, from the event loop's thread or from the one for heavy
    messages; by default they do nothing. A watcher that raises an exception is removed: nothing
    that watches may end a session.
    """

    #: Files that it keeps open for every session.
    files_each = 0

    def opened(self, session: Session) -> None:
        """A session was opened: its client was welcomed."""

    def closed(self, session: Session) -> None:
        """An open session was closed."""

    def received(self, session: Session, message: ClientMessage) -> None:
        """The client of an open session sent a message."""

    def sent(self, session: Session, message: ServerMessage) -> None:
        """The service sent a message to the session's client, which was welcomed."""

    def planned(self, mirror: Mirror, plan: TimedPlan) -> None:
        """New orders came into force."""

    def ended(self, job: EndedJob) -> None:
        """A job ended successfully."""

    def answered(self, session: Session, message: StateMessage | Events, took_ms: float) -> None:
        """A request was carried out."""


@dataclass
class Service:
    """All sessions, and the mirrors of their clusters."""

    policy_for: PolicyFor
    policy_name: str
    duration_model: DurationModel
    secret: bytes | None = None
    sharing: Sharing | None = None
    watchers: list[Watcher] = field(default_factory=list)
    now_s: Callable[[], float] = time.monotonic
    today_s: Callable[[], float] = time.time
    sessions: dict[str, Session] = field(default_factory=dict, init=False)  # by application
    # By application; if all share one cluster, its only key is "".
    mirrors: dict[str, Mirror] = field(default_factory=dict, init=False)
    counts: Counts = field(default_factory=Counts, init=False)
    #: Whether all sessions end, so that none has to learn that another one does.
    is_closing: bool = field(default=False, init=False)
    _num_opened: int = field(default=0, init=False)

    @property
    def scope(self) -> Scope:
        """Which applications share a cluster."""
        return Scope.APPLICATION if self.sharing is None else Scope.CLUSTER

    def open(self, push: Callable[[ServerMessage], None] | None = None) -> Session:
        """Make a session for a new connection."""
        self._num_opened += 1
        return Session(self, f"s{self._num_opened}", push)

    def mirror_of(self, application: str) -> Mirror:
        """The mirror that holds the application's jobs; made if there is none."""
        key = self.key_of(application)
        if key not in self.mirrors:
            self.mirrors[key] = self.new_mirror()
        return self.mirrors[key]

    def new_mirror(self) -> Mirror:
        """A mirror without jobs, with the settings of this service."""
        return Mirror(
            self.policy_for,
            self.duration_model,
            LiveSettings(self.sharing.num_cores if self.sharing is not None else None),
            counts=self.counts,
            on_plan=lambda mirror, plan: self.tell(lambda watcher: watcher.planned(mirror, plan)),
            on_end=lambda job: self.tell(lambda watcher: watcher.ended(job)),
            now_s=self.now_s,
        )

    def key_of(self, application: str) -> str:
        """The key of the application's mirror in `mirrors`."""
        return "" if self.sharing is not None else application

    def tell(self, what: Callable[[Watcher], None]) -> None:
        """Call a method of every watcher; a watcher that fails is removed."""
        for watcher in tuple(self.watchers):
            try:
                what(watcher)
            except Exception:
                _LOG.exception("%s failed and watches no longer", type(watcher).__name__)
                self.watchers.remove(watcher)

    def enter(self, session: Session) -> None:
        """Register an opened session for its application; an older session of it is closed."""
        while (older := self.sessions.get(session.application)) is not None:
            older.dismiss(Code.REPLACED, "a newer connection of this application replaced this one")
        self.sessions[session.application] = session
        self.tell(lambda watcher: watcher.opened(session))

    def left(self, session: Session) -> None:
        """Remove a closed session and its application's jobs, unless a newer one replaced it."""
        if self.sessions.get(session.application) is not session:
            return
        application = session.application
        del self.sessions[application]
        self.duration_model.forget(application)
        if self.sharing is None or self.is_closing:
            self.mirrors.pop(application, None)
        self.tell(lambda watcher: watcher.closed(session))
        if self.sharing is None or self.is_closing:
            return
        mirror = self.mirror_of(application)
        try:
            drop_in_parts(mirror, application, lambda: application not in self.sessions)
        finally:  # also if who replaces it leaves meanwhile
            with whole(True), mirror.lock:
                if application not in self.sessions:  # else a newer state replaces what is left
                    mirror.forget(application)
                    mirror.settle()
                    self.sharing.forget(application)
                    self.share_out(mirror, application)
                    self._pass_wake_on(mirror)

    def drafted_for(self, mirror: Mirror, application: str) -> Callable[[], OrdersMessage]:
        """The order of an application as it is now, with the executors of the last sharing."""
        worded = mirror.drafted(application)
        return self.sharing.completed(worded, mirror, application) if self.sharing else worded

    def share_out(self, mirror: Mirror, asker: str) -> None:
        """Divide the executors anew, and push orders that changed.

        They go to all applications but `asker`, which gets a reply anyway. Does nothing if
        applications do not share a cluster.
        """
        if self.sharing is None:
            return
        self.sharing.share_out(mirror)
        for application, session in tuple(self.sessions.items()):
            if application != asker and not session.needs_state:
                if session.later is not None:
                    session.later()
                else:
                    session.push_if_new(self.drafted_for(mirror, application)())

    def _pass_wake_on(self, mirror: Mirror) -> None:
        """Tell an application when to ask next; one that left may have been alone in knowing."""
        asking = [session for session in self.sessions.values() if not session.needs_state]
        if asking:
            fewest = min(asking, key=lambda session: len(mirror.jobs_of(session.application)))
            orders = self.drafted_for(mirror, fewest.application)()
            if orders.wake_ms is not None:
                fewest.push(orders)

    def forget(self, application: str) -> None:
        """Drop the application's mirror after an internal error left it in an unknown state.

        All applications that shared it must send `state`.
        """
        self.mirrors.pop(self.key_of(application), None)
        for name, session in tuple(self.sessions.items()):
            if self.sharing is not None and name != application:
                session.needs_state = True
                session.push(
                    Error(
                        code=Code.NO_STATE,
                        message="the service lost the shared state; send state",
                        then=Then.STATE,
                    )
                )


class Session:
    """The protocol state of one connection; the caller transports the bytes."""

    def __init__(
        self, service: Service, name: str, push: Callable[[ServerMessage], None] | None
    ) -> None:
        self.service = service
        self.name = name
        self.pushed: list[ServerMessage] = []
        #: Called with messages that are not replies.
        self.outlet = push or self.pushed.append
        #: Called when orders that are no reply may be due, which `refreshed` returns; None: they
        #: are pushed at once.
        self.later: Callable[[], None] | None = None
        self._stage = _Stage.NEW
        self._hello: Hello | None = None
        self._nonce = ""
        self._is_welcomed = False
        self._last_seq = -1
        self._last_meaning: Meaning | None = None  # of the last orders sent
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
    def is_heavy(self) -> bool:
        """Whether any request may take milliseconds.

        The cluster is large, or the policy must be bound to its number of cores: a planner only
        once, a policy that decides whenever the number changes.
        """
        mirror = self._mirror
        is_quick = mirror is not None and not mirror.is_large and not mirror.planning.decides
        return self.is_open and not is_quick

    @property
    def num_bytes(self) -> int:
        """What the application's jobs hold in memory, about."""
        mirror = self._mirror
        return mirror.bytes_of(self.application) if self.is_open and mirror is not None else 0

    @property
    def _mirror(self) -> Mirror | None:
        return self.service.mirrors.get(self.service.key_of(self.application))

    @property
    def application(self) -> str:
        """The application's id; empty before `hello`."""
        return self._hello.application_id if self._hello else ""

    @property
    def application_name(self) -> str:
        """The application's name, or its id if it has none."""
        return (self._hello.application_name or self._hello.application_id) if self._hello else ""

    def push(self, message: ServerMessage) -> None:
        """Send a message that is not a reply."""
        self._watch_sent(message)
        self.outlet(message)

    def push_if_new(self, orders: OrdersMessage) -> None:
        """Send orders, unless they mean the same as the last ones that were sent."""
        if self._are_new(orders):
            self.push(orders)

    def refreshed(self) -> list[ServerMessage]:
        """The orders that events of other applications caused, if they are new."""
        if not self.is_open or self.needs_state:
            return []
        mirror = self.service.mirror_of(self.application)
        with whole(True), mirror.lock:
            worded = self.service.drafted_for(mirror, self.application)
        orders = worded()
        if not self._are_new(orders):
            return []
        self._watch_sent(orders)
        return [orders]

    def _are_new(self, orders: OrdersMessage) -> bool:
        """Whether orders mean something else than the last ones, which they replace."""
        before = self._last_meaning
        self._last_meaning = meaning_of(orders)
        return self._last_meaning != before

    def receive(self, payload: bytes) -> list[ServerMessage]:
        """Handle one message of the client and return the replies; never raises.

        The session may be closed afterwards: see `is_closed`.
        """
        if self.is_closed:
            return []
        seq = None  # stays None if the message cannot be decoded
        try:
            message = decode_client_message(payload)
            seq = getattr(message, "seq", None)
            reply = self._handle(message)
        except ProtocolError as error:
            reply = self._refuse(error, seq)
        if reply is None:
            return []
        self._watch_sent(reply)
        return [reply]

    def refuse(self, error: ProtocolError) -> Error:
        """Close the session because of bytes that are not a message. Returns the error to send."""
        self.close()
        return Error(code=Code(error.code), message=str(error), then=Then.CLOSE)

    def dismiss(self, code: Code, why: str) -> None:
        """Close the session from the service's side and send the reason."""
        if not self.is_closed:
            self.push(Error(code=code, message=why, then=Then.CLOSE))
            self.close()

    def close(self) -> None:
        """Close the session, because the connection is lost or will be closed."""
        was_open = self.is_open
        self._stage = _Stage.CLOSED
        if was_open:
            self.service.left(self)

    def _refuse(self, error: ProtocolError, seq: int | None) -> Error:
        """Close the session or make it wait for `state`. Returns the error to send."""
        code = Code(error.code)
        then = Then.STATE if self.is_open and error.code in RECOVERED_BY_STATE else Then.CLOSE
        if then is Then.CLOSE:
            self.close()
        else:
            self.needs_state = True
        return Error(code=code, message=str(error), then=then, seq=seq)

    def _handle(self, message: ClientMessage) -> ServerMessage | None:
        """Handle a decoded message by the stage of the session."""
        if self._stage is _Stage.NEW and isinstance(message, Hello):
            return self._greet(message)
        if self._stage is _Stage.CHALLENGED and isinstance(message, Proof):
            return self._verify(message)
        if self._stage is not _Stage.OPEN or isinstance(message, Hello | Proof):
            raise ProtocolError(
                Code.UNEXPECTED, f"{message.type} is not expected here: {_EXPECTED[self._stage]}"
            )
        self.service.tell(lambda watcher: watcher.received(self, message))
        if isinstance(message, Ping):
            return Pong(seq=message.seq)
        if isinstance(message, Bye):
            self.close()
            return None
        start = time.perf_counter()
        reply = self._carry_out(message)
        took_ms = MS_PER_S * (time.perf_counter() - start)
        self.service.tell(lambda watcher: watcher.answered(self, message, took_ms))
        return reply

    def _greet(self, hello: Hello) -> ServerMessage:
        self._hello = hello
        if self.service.secret is None:
            return self._welcome(None)
        if hello.nonce is None:
            raise ProtocolError(
                Code.DENIED,
                "this service requires a secret: send a nonce with hello and answer the challenge",
            )
        self._nonce = new_nonce()
        self._stage = _Stage.CHALLENGED
        return Challenge(nonce=self._nonce)

    def _verify(self, proof: Proof) -> Welcome:
        assert self._hello is not None
        assert self.service.secret is not None
        names = (self._hello.nonce or "", self._nonce, self.application)
        if not is_proof(proof.mac, proof_mac(self.service.secret, "client", *names)):
            raise ProtocolError(
                Code.DENIED, "the proof is wrong: client and service must share a secret"
            )
        return self._welcome(proof_mac(self.service.secret, "service", *names))

    def _welcome(self, mac: str | None) -> Welcome:
        self._stage = _Stage.OPEN
        self._is_welcomed = True
        self.service.enter(self)
        policy = self.service.policy_name
        return Welcome(protocol=PROTOCOL_VERSION, session=self.name, policy=policy, mac=mac)

    def _carry_out(self, message: StateMessage | Events) -> OrdersMessage:
        """Apply a request to the mirror, plan if needed, and return the new orders."""
        application = self.application
        is_shared = self.service.sharing is not None
        mirror = self.service.mirror_of(application)
        try:
            self._check(message)
            if is_shared:
                self._apply_in_parts(mirror, message)
            else:
                with mirror.lock:
                    self._apply(mirror, message)
            with whole(is_shared), mirror.lock:
                worded = self.service.drafted_for(mirror, application)
            orders = worded()
        except ProtocolError:
            # Events before the wrong one were applied: only a full state makes both sides agree.
            self._take_back(mirror)
            raise
        except Exception:
            _LOG.exception("internal error while handling %s of %s", message.type, application)
            self.service.forget(application)
            raise ProtocolError(
                Code.INTERNAL, "internal error of the service (see its log); send state"
            ) from None
        self.needs_state = False
        self._last_meaning = meaning_of(orders)
        return orders.model_copy(update={"seq": message.seq})

    def _apply_in_parts(self, mirror: Mirror, message: StateMessage | Events) -> None:
        """Apply a request to a mirror that others share, who go on between its parts."""
        if isinstance(message, StateMessage):
            drop_in_parts(mirror, self.application, lambda: self.is_open)
        parts = _Parts(message)
        with whole(True), mirror.lock:
            mirror.reserve(arriving(message))
        while not parts.is_over:
            part = parts.take()
            prepared = mirror.prepare(self.application, part)
            make_way()
            with whole(True), mirror.lock:
                if not self.is_open:  # a newer connection replaced it meanwhile
                    raise ProtocolError(Code.UNEXPECTED, _EXPECTED[self._stage])
                start_s = self.service.now_s()
                mirror.prepared = prepared
                self._apply(mirror, part, is_whole=parts.is_over)
                parts.took(self.service.now_s() - start_s)

    def _apply(self, mirror: Mirror, part: StateMessage | Events, *, is_whole: bool = True) -> None:
        """Apply a request, or a part of it, to the mirror, and share the executors out anew."""
        if isinstance(part, StateMessage):
            mirror.take_state(self.application, part, is_whole=is_whole)
        else:
            mirror.take_events(self.application, part, is_whole=is_whole)
        sharing = self.service.sharing
        if sharing is not None and part.cores is not None:
            sharing.report_cores(self.application, part.cores, mirror.clock_ms)
        if is_whole:
            self.service.share_out(mirror, self.application)

    def _take_back(self, mirror: Mirror) -> None:
        """Remove all of the application, unless a newer session has replaced this one."""
        is_shared = self.service.sharing is not None
        if is_shared:
            drop_in_parts(mirror, self.application, lambda: self.is_open)
        with whole(is_shared), mirror.lock:
            if self.is_open:
                mirror.forget(self.application)
                mirror.settle()
                self.service.share_out(mirror, self.application)

    def _check(self, message: StateMessage | Events) -> None:
        """Refuse a request with a wrong number or clock, or without a state before it."""
        if message.seq <= self._last_seq:
            raise ProtocolError(
                Code.SEQUENCE, f"seq {message.seq} must be larger than the last, {self._last_seq}"
            )
        self._last_seq = message.seq
        if message.clock_ms > MS_PER_S * self.service.today_s() + _MOST_AHEAD_MS:
            raise ProtocolError(
                Code.CLOCK,
                f"the clock, {message.clock_ms} ms, is more than a day ahead of the service's",
            )
        if isinstance(message, Events) and self.needs_state:
            raise ProtocolError(
                Code.NO_STATE, "the service has no state of this application; send state"
            )

    def _watch_sent(self, message: ServerMessage) -> None:
        if self._is_welcomed:  # a stranger may call itself as an application that is connected
            self.service.tell(lambda watcher: watcher.sent(self, message))


def drop_in_parts(mirror: Mirror, application: str, is_wanted: Callable[[], bool]) -> None:
    """Remove the jobs of an application from a mirror that others share, who go on meanwhile."""
    is_over = False
    while not is_over:
        make_way()
        with whole(True), mirror.lock:
            is_over = not is_wanted() or mirror.drop(application, _MOST_IN_PART)


class _Parts:
    """A request as several ones, each so large that it takes little time."""

    def __init__(self, message: StateMessage | Events) -> None:
        self._message = message
        self._events: Sequence[Event] = (
            message.events
            if isinstance(message, Events)
            else [
                JobArrived(job=job) for job in sorted(message.jobs, key=lambda job: job.arrival_ms)
            ]
        )
        self._at = 0
        self._most = float(_MOST_IN_PART)
        self.is_over = False

    def take(self) -> StateMessage | Events:
        """The next part."""
        message = self._message
        first, size = self._at, 0
        while self._at < len(self._events):
            size += _size_of(self._events[self._at])
            if size > self._most and self._at > first:
                break
            self._at += 1
        self.is_over = self._at == len(self._events)
        events = self._events[first : self._at]
        if isinstance(message, StateMessage) and not first:
            jobs = tuple(event.job for event in events if isinstance(event, JobArrived))
            return message.model_copy(update={"jobs": jobs})
        return Events(
            seq=message.seq, clock_ms=message.clock_ms, cores=message.cores, events=tuple(events)
        )

    def took(self, for_s: float) -> None:
        """Note how long the last part took: the next ones take about as long as is good."""
        self._most = min(_MOST_IN_PART, max(1.0, self._most * _PART_S / max(for_s, _PART_S / 2)))


def _size_of(event: Event) -> int:
    """How much work an event is, in stages."""
    if isinstance(event, JobArrived):
        return 1 + len(event.job.stages)
    return 1 + len(event.stages) if isinstance(event, StagesAdded) else 1


_EXPECTED = {
    _Stage.NEW: "send hello first",
    _Stage.CHALLENGED: "answer the challenge with proof",
    _Stage.OPEN: "the session is open; send state, events, ping or bye",
    _Stage.CLOSED: "the session is closed",
}
