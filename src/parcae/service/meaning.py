"""`Meaning`: what orders mean for a client; orders with other numbers may mean the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from parcae.service.protocol import Orders


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
    """What a client does under its orders.

    Args:
        jobs: by job id, in the order of arrival.
        stages: by job id and stage id, the stages whose orders differ from the default.
        other_place: place of the jobs that the service does not know yet.
        executors: how many executors the application should have, if applications share a cluster.
    """

    jobs: dict[str, JobMeaning]
    stages: dict[tuple[str, int], StageMeaning]
    other_place: int
    executors: int | None

    def groups(self, stages_of: Mapping[str, Collection[int]]) -> tuple[tuple[str, ...], ...]:
        """The jobs in the order of service, in groups of jobs that share.

        A job is served when the first of its stages is. Jobs of the same tier share if they have
        weights. Those with weight 0 are served in the order of their arrival, which is that of
        `jobs`.

        Args:
            stages_of: by job id, the stages that have not ended.
        """
        sharing: dict[int, list[str]] = {}
        groups: list[tuple[int, list[str]]] = []
        for job_id, job in self.jobs.items():
            default = StageMeaning(job.place, 0, None)
            stages = (self.stages.get((job_id, one), default) for one in stages_of.get(job_id, ()))
            place = min((stage.place for stage in stages), default=job.place)
            if job.weight == 0:
                groups.append((place, [job_id]))
            else:
                sharing.setdefault(place, []).append(job_id)
        groups += sharing.items()
        return tuple(tuple(sorted(jobs)) for _, jobs in sorted(groups, key=lambda group: group[0]))


def meaning_of(orders: Orders) -> Meaning:
    """What the orders mean: tiers and ranks are replaced by their places, the smallest first."""
    tier_of = {job.job_id: job.tier for job in orders.jobs}
    tiers = [tier_of.get(one.job_id, orders.other_tier) + one.tier for one in orders.stages]
    place = _places([orders.other_tier, *tier_of.values(), *tiers])
    rank = _places([0.0, *(stage.rank for stage in orders.stages)])
    return Meaning(
        {job.job_id: JobMeaning(place[job.tier], job.weight, job.limit) for job in orders.jobs},
        {
            (stage.job_id, stage.stage_id): StageMeaning(place[tier], rank[stage.rank], stage.limit)
            for stage, tier in zip(orders.stages, tiers, strict=True)
        },
        place[orders.other_tier],
        orders.executors,
    )


def _places(values: Iterable[float]) -> dict[float, int]:
    """The place of every value among the different ones, from the smallest."""
    return {value: place for place, value in enumerate(sorted(set(values)))}
