"""`replay_recording`: compares the recorded orders of a session with those of another policy.

It also estimates both policies' average JCT by simulating the recorded jobs.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import Any

from parcae.base.errors import FormatError, ProtocolError
from parcae.base.texts import MS_PER_S
from parcae.service.jobs import DurationModel
from parcae.service.policies import PolicyFor, policies_for
from parcae.service.protocol import (
    PROTOCOL_VERSION,
    Code,
    Error,
    OrdersMessage,
    ServerMessage,
    decode_server_message,
)
from parcae.service.record import Recording, find_recordings, read_recording
from parcae.service.recorded_jobs import RecordedJobs
from parcae.service.session import Meaning, Service, Session, meaning_of
from parcae.service.sharing import Sharing
from parcae.workloads.workload import Workload

#: Number of differences that are listed.
_NUM_LISTED = 20
#: Number of jobs that a listed difference shows of each order.
_NUM_SHOWN = 5


class Kind(StrEnum):
    """How two orders differ: the first of these that applies."""

    #: Other jobs are served first.
    FIRST = "first"
    #: The same jobs are served first, and later ones in another order.
    LATER = "later"
    #: All jobs have the same order, and other weights or limits.
    SHARES = "shares"
    #: Only the order of stages, or their limits, differ.
    STAGES = "stages"


@dataclass(frozen=True)
class ReplayedShare:
    """A job with its weight among those that it shares with, and its limit (None: no limit)."""

    job_id: str
    weight: float
    limit: int | None


#: Jobs in the order of service, in groups of jobs that share.
Shares = tuple[tuple[ReplayedShare, ...], ...]


@dataclass(frozen=True)
class Difference:
    """A moment at which the orders differ.

    Args:
        clock_ms: the cluster's clock.
        since_ms: time since the first order that was compared.
        kind: how they differ.
        recorded: the recorded order from its first different place on, in groups that share.
        other: the same of the other policy.
    """

    clock_ms: int
    since_ms: int
    kind: Kind
    recorded: Shares
    other: Shares


@dataclass
class ReplayedOrders:
    """Counts the kinds of differences between recorded and other orders, and lists the first."""

    num_orders: int = 0
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    differences: list[Difference] = field(default_factory=list)
    _first_ms: int = 0

    def add(
        self,
        clock_ms: int,
        recorded: OrdersMessage,
        other: OrdersMessage,
        stages_of: Mapping[str, Collection[int]],
    ) -> None:
        """Compare two orders; orders without jobs, or of different jobs, are ignored."""
        meanings = meaning_of(recorded), meaning_of(other)
        if not meanings[0].jobs or meanings[0].jobs.keys() != meanings[1].jobs.keys():
            return
        if self.num_orders == 0:
            self._first_ms = clock_ms
        self.num_orders += 1
        kind, orders = _compare(*meanings, stages_of)
        if kind is None:
            return
        self.counts[kind] += 1
        if len(self.differences) < _NUM_LISTED:
            since_ms = clock_ms - self._first_ms
            self.differences.append(Difference(clock_ms, since_ms, kind, *map(_shown, orders)))


def _compare(
    recorded: Meaning, other: Meaning, stages_of: Mapping[str, Collection[int]]
) -> tuple[Kind | None, list[Shares]]:
    """How the orders differ (None: not), and both orders from their first different group on."""
    orders = [_shares(meaning, stages_of) for meaning in (recorded, other)]
    ids = [[[share.job_id for share in group] for group in order] for order in orders]
    if ids[0] != ids[1]:
        begin = _num_equal(*ids)
        kind = Kind.FIRST if begin == 0 else Kind.LATER
    elif orders[0] != orders[1]:
        begin = _num_equal(*orders)
        kind = Kind.SHARES
    elif recorded.stages != other.stages:
        jobs = {key[0] for key, _ in recorded.stages.items() ^ other.stages.items()}
        return Kind.STAGES, [_only(jobs, order) for order in orders]
    else:
        return None, orders
    return kind, [order[begin:] for order in orders]


def _shares(meaning: Meaning, stages_of: Mapping[str, Collection[int]]) -> Shares:
    """All jobs in the order of service, in groups of jobs that share.

    A job is served when the first of its stages is. Jobs of the same tier share if they have
    weights, of which only the ratios matter: they are divided by the largest. Jobs with weight 0
    are served in the order of their arrival, which is that of `meaning.jobs`.
    """
    groups: dict[tuple[int, float], list[str]] = defaultdict(list)
    for number, (job_id, job) in enumerate(meaning.jobs.items()):
        stages = [meaning.stages.get((job_id, one)) for one in stages_of.get(job_id, ())]
        place = min((one.place if one else job.place for one in stages), default=job.place)
        groups[place, math.inf if job.weight else number].append(job_id)
    shares = []
    for key in sorted(groups):
        jobs = {job_id: meaning.jobs[job_id] for job_id in sorted(groups[key])}
        largest = max(job.weight for job in jobs.values())
        shares.append(
            tuple(
                ReplayedShare(
                    job_id, round(job.weight / largest, 6) if len(jobs) > 1 else 1.0, job.limit
                )
                for job_id, job in jobs.items()
            )
        )
    return tuple(shares)


def _num_equal(one: Sequence[object], other: Sequence[object]) -> int:
    """How many groups are equal at the beginning of both orders."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _only(jobs: set[str], order: Shares) -> Shares:
    """The groups without any other job."""
    kept = (tuple(share for share in group if share.job_id in jobs) for group in order)
    return tuple(group for group in kept if group)


def _shown(order: Shares) -> Shares:
    """The first groups, with at most `_NUM_SHOWN` jobs together."""
    shown: list[tuple[ReplayedShare, ...]] = []
    room = _NUM_SHOWN
    for group in order:
        if room == 0:
            break
        shown.append(group[:room])
        room -= len(shown[-1])
    return tuple(shown)


@dataclass(frozen=True)
class ReplayedEstimate:
    """Average JCT of both policies in the simulator, over jobs with known durations of all stages.

    `num_left_out` is the number of jobs that the recording does not show completely.
    """

    num_jobs: int
    num_left_out: int
    recorded_average_jct_ms: float
    other_average_jct_ms: float


@dataclass(frozen=True)
class Replay:
    """The comparison of a recording with another policy.

    Args:
        recorded_policy: name of the policy of the recording.
        other_policy: name of the policy that it is compared with.
        num_orders: number of compared orders; they have at least one job.
        counts: how many of them differ, by kind (see `Kind`).
        num_lost: recorded requests that could not be applied: before the first state, or refused.
        differences: the first differences.
        estimate: None if no job was recorded completely, or a policy or so many cores cannot be
            simulated.
    """

    recorded_policy: str
    other_policy: str
    num_orders: int
    counts: dict[Kind, int]
    num_lost: int
    differences: tuple[Difference, ...]
    estimate: ReplayedEstimate | None

    def to_json(self) -> dict[str, Any]:
        """The result as a dictionary for JSON."""
        return asdict(self)


def replay_recording(paths: list[Path], policy: str, workload: Workload) -> Replay:
    """Send the requests of a recording to a service in which another policy plans."""
    recording = read_recording(*find_recordings(paths))
    policy_for = policies_for(policy, workload)
    policy_for(1)  # raises an error now if the policy does not exist
    head = recording.head
    recorded = RecordedJobs()
    compared = ReplayedOrders()
    try:
        num_lost = _follow(recording, policy_for, DurationModel(workload), recorded, compared)
    except ProtocolError as error:
        raise FormatError(
            f"{recording.source}: not a message of protocol {PROTOCOL_VERSION} ({error}); was the "
            "file edited?"
        ) from None
    return Replay(
        head.policy,
        policy,
        compared.num_orders,
        compared.counts,
        num_lost,
        tuple(compared.differences),
        _estimate(recorded, (head.policy, policy), head.cores),
    )


def _estimate(
    recorded: RecordedJobs, policies: tuple[str, str], num_cores: int | None
) -> ReplayedEstimate | None:
    """Simulate the recorded jobs under both policies, if that can be done."""
    cores = num_cores or max(recorded.num_cores.values(), default=1)
    found = recorded.simulated(policies, cores)
    if found is None:
        return None
    averages = [float(jct_ms.mean()) for jct_ms in found.jct_ms]
    return ReplayedEstimate(len(found.keys), found.num_left_out, *averages)


def _follow(
    recording: Recording,
    policy_for: PolicyFor,
    duration_model: DurationModel,
    recorded: RecordedJobs,
    compared: ReplayedOrders,
) -> int:
    """Apply all lines of the recording. Returns the number of requests that were lost."""
    wall_s = 0.0
    head = recording.head
    service = Service(
        policy_for,
        "replay",
        duration_model,
        sharing=Sharing(head.cores) if head.cores is not None else None,
        watchers=[recorded],
        now_s=lambda: wall_s,
    )
    duration_model.learned.restore(head.learned)
    num_lost = 0
    for line in recording.lines:
        wall_s = line.wall_ms / MS_PER_S
        session = service.sessions.get(line.application)
        kind = line.message.get("type")
        if line.learned is not None:
            duration_model.learned.restore(line.learned)
        elif line.sender == "client" and kind in ("state", "events"):
            reply = _said(session or _opened(service, line.application), line.message)
            num_lost += isinstance(reply, Error)
        elif session is None:
            continue
        elif line.left:
            session.close()
        elif kind == "orders" and line.message.get("seq") is not None and not session.needs_state:
            orders = decode_server_message(json.dumps(line.message).encode())
            assert isinstance(orders, OrdersMessage)
            mirror = service.mirror_of(line.application)
            others = mirror.orders(line.application)
            compared.add(mirror.clock_ms, orders, others, mirror.stages_of(line.application))
    return num_lost


def _opened(service: Service, application: str) -> Session:
    """The session of an application of which the recording has the first request."""
    session = service.open(lambda pushed: None)
    hello = {"type": "hello", "protocol": PROTOCOL_VERSION, "application_id": application}
    _said(session, hello)
    return session


def _said(session: Session, message: Mapping[str, Any]) -> ServerMessage:
    """The reply to a recorded message."""
    (reply,) = session.receive(json.dumps(message).encode())
    if isinstance(reply, Error) and reply.code is Code.BAD_MESSAGE:
        raise ProtocolError(reply.code, reply.message)
    return reply
