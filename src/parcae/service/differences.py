"""`Comparison`: where the orders of two policies for the same jobs differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile

from parcae.service.meaning import Meaning, meaning_of
from parcae.service.protocol import Orders

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
class Share:
    """A job with its weight among those that it shares with, and its limit (None: no limit)."""

    job_id: str
    weight: float
    limit: int | None


#: Jobs in the order of service, in groups of jobs that share.
Shares = tuple[tuple[Share, ...], ...]


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
class Comparison:
    """Counts the kinds of differences between recorded and other orders, and lists the first."""

    num_orders: int = 0
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    differences: list[Difference] = field(default_factory=list)
    _first_ms: int = 0

    def add(
        self,
        clock_ms: int,
        recorded: Orders,
        other: Orders,
        stages_of: Mapping[str, Collection[int]],
    ) -> None:
        """Compare two orders; orders without jobs, or of different jobs, are ignored.

        Args:
            clock_ms: the cluster's clock.
            recorded: the recorded order.
            other: the other policy's order.
            stages_of: by job id, the stages that have not ended.
        """
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
            self.differences.append(Difference(clock_ms, since_ms, kind, *orders))


def _compare(
    recorded: Meaning, other: Meaning, stages_of: Mapping[str, Collection[int]]
) -> tuple[Kind | None, tuple[Shares, Shares]]:
    """How the orders differ (None: not), and both orders from their first different group on."""
    orders = _shares(recorded, stages_of), _shares(other, stages_of)
    ids = _ids(orders[0]), _ids(orders[1])
    if ids[0] != ids[1]:
        begin = _num_equal(*ids)
        kind = Kind.FIRST if begin == 0 else Kind.LATER
        return kind, (_shown(orders[0][begin:]), _shown(orders[1][begin:]))
    if orders[0] != orders[1]:
        begin = _num_equal(*orders)
        return Kind.SHARES, (_shown(orders[0][begin:]), _shown(orders[1][begin:]))
    if recorded.stages != other.stages:
        jobs = {key[0] for key, _ in recorded.stages.items() ^ other.stages.items()}
        return Kind.STAGES, (_only(jobs, orders[0]), _only(jobs, orders[1]))
    return None, orders


def _shares(meaning: Meaning, stages_of: Mapping[str, Collection[int]]) -> Shares:
    """All jobs in the order of service, in groups of jobs that share.

    Only the ratios of a group's weights matter, so they are divided by the largest.
    """
    shares = []
    for group in meaning.groups(stages_of):
        jobs = [meaning.jobs[job_id] for job_id in group]
        largest = max(job.weight for job in jobs) or 1.0
        shares.append(
            tuple(
                Share(job_id, round(job.weight / largest, 6) if len(group) > 1 else 1.0, job.limit)
                for job_id, job in zip(group, jobs, strict=True)
            )
        )
    return tuple(shares)


def _ids(order: Shares) -> list[list[str]]:
    return [[share.job_id for share in group] for group in order]


def _num_equal(one: Sequence[object], other: Sequence[object]) -> int:
    """How many groups are equal at the beginning of both orders."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _only(jobs: set[str], order: Shares) -> Shares:
    """The groups without any other job."""
    kept = (tuple(share for share in group if share.job_id in jobs) for group in order)
    return _shown(tuple(group for group in kept if group))


def _shown(order: Shares) -> Shares:
    """The first groups, with at most `_NUM_SHOWN` jobs together."""
    shown: list[tuple[Share, ...]] = []
    room = _NUM_SHOWN
    for group in order:
        if room == 0:
            break
        shown.append(group[:room])
        room -= len(shown[-1])
    return tuple(shown)
