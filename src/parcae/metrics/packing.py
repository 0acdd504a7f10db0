"""What a run of rigid jobs meant for its jobs and for the cluster.

Jobs that never started have no slowdown: means are over the others, and their number stands beside (`unallocated`: waiting to
the end; `dropped`: lost because slots and backlog were full).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.errors import ConfigError
from parcae.metrics.cluster import mean_over_spans
from parcae.packing.config import BOUND_S, TimeMode
from parcae.packing.layout import NOT_YET, Cost
from parcae.packing.world import Outcome, PackingBatch
from parcae.workloads.rigid import RigidJobs

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
#: Costs that count by job; the others count by run.
BY_JOB = (Cost.SLOWDOWN, Cost.BOUNDED_SLOWDOWN, Cost.COMPLETION)
#: A start that never comes.
_NEVER = np.iinfo(np.int64).max


def parse_cost(text: str) -> Cost:
    """The cost that an objective's name stands for.

    Raises:
        ConfigError: there is none of that name.

    Example: `parse_cost("bounded-slowdown")` is `Cost.BOUNDED_SLOWDOWN`.
    """
    names = {cost.name.lower().replace("_", "-"): cost for cost in Cost}
    if text not in names:
        raise ConfigError(f"objective {text!r}: write one of {', '.join(names)}")
    return names[text]


def mean_cost(batch: PackingBatch, cost: Cost) -> float:
    """Mean slowdown, bounded slowdown or completion time of a job, or the mean of the runs' costs, of runs that were played."""
    costs = batch.costs(cost)
    if cost not in BY_JOB:
        return float(costs.mean())
    return float(costs.sum() / max(1, int(batch.asked.num_jobs[batch.sequence].sum())))


def typical_cost(batch: PackingBatch, cost: Cost) -> float:
    """What tuning and training make small: `mean_cost`; of several logs the geometric mean of each log's.

    Logs are told apart by their clusters. In one log slowdowns may be a hundred times those of another: a plain mean over both
    would be that of the one.
    """
    if cost not in BY_JOB or batch.config.mode is not TimeMode.EXACT:
        return mean_cost(batch, cost)
    _, log = np.unique(batch.states.capacity, axis=0, return_inverse=True)
    costs = np.bincount(log.ravel(), batch.costs(cost))
    jobs = np.bincount(log.ravel(), batch.asked.num_jobs[batch.sequence, 0])
    return float(np.exp(np.log(np.maximum(costs, 1e-9) / np.maximum(1, jobs)).mean()))


def has_started(outcome: Outcome) -> npt.NDArray[np.bool_]:
    """Which jobs were placed, bool[num_jobs]."""
    return np.asarray(outcome.start != NOT_YET)


def completion(outcome: Outcome) -> FloatArray:
    """Finish - arrival, float64[num_jobs]; NaN where a job never started."""
    return np.where(has_started(outcome), outcome.finish - outcome.jobs.arrival, np.nan)


def waiting(outcome: Outcome) -> FloatArray:
    """Start - arrival, float64[num_jobs]; NaN where a job never started."""
    return np.where(has_started(outcome), outcome.start - outcome.jobs.arrival, np.nan)


def slowdown(outcome: Outcome) -> FloatArray:
    """(finish - arrival) / duration, float64[num_jobs], not floored; NaN where a job never started.

    Example: a job of 3 steps that waits for 2 has slowdown 5/3.
    """
    return np.asarray(completion(outcome) / outcome.jobs.duration)


def bound_of(jobs: RigidJobs) -> float:
    """What durations count as at least in bounded slowdown: 10 s in logs, 1 where time is counted in steps."""
    return float(BOUND_S) if jobs.step == "s" else 1.0


def bounded_slowdown(outcome: Outcome) -> FloatArray:
    """max(1, (finish - arrival) / max(bound, duration)), float64[num_jobs]; NaN where a job never started.

    Source: Feitelson and Rudolph, "Metrics and benchmarking for parallel job scheduling" (bound of 10 s).
    Example: a job of 1 s that waits for 19 s has slowdown 20 and bounded slowdown 2.
    """
    return np.maximum(
        1.0, completion(outcome) / np.maximum(bound_of(outcome.jobs), outcome.jobs.duration)
    )


#: What is measured of every job, by name.
MEASURES = {
    "slowdown": slowdown,
    "bounded_slowdown": bounded_slowdown,
    "completion": completion,
    "waiting": waiting,
}


def makespan(outcome: Outcome) -> int:
    """Last finish - first arrival; 0 where no job started."""
    done = has_started(outcome)
    return int(outcome.finish[done].max() - outcome.jobs.arrival[0]) if done.any() else 0


def usage(outcome: Outcome, resource: int) -> tuple[IntArray, IntArray]:
    """Units of a resource that are in use over time: (times, units from that time on)."""
    done = has_started(outcome)
    units = outcome.jobs.demand[done, resource]
    return _level(outcome.start[done], outcome.finish[done], units)


def jobs_waiting(outcome: Outcome) -> tuple[IntArray, IntArray]:
    """Jobs that wait (those that are lost left out) over time: (times, jobs from that time on)."""
    here = ~outcome.is_dropped
    end = np.where(
        has_started(outcome), outcome.start, np.maximum(outcome.end, outcome.jobs.arrival)
    )
    return _level(outcome.jobs.arrival[here], end[here], np.ones(int(here.sum()), np.int64))


def _level(up: IntArray, down: IntArray, amount: IntArray) -> tuple[IntArray, IntArray]:
    """A level that rises by `amount` at `up` and falls by it at `down`."""
    at, row = np.unique(np.concatenate([up, down]), return_inverse=True)
    change = np.zeros(len(at), np.int64)
    np.add.at(change, row, np.concatenate([amount, -amount]))
    return at, np.cumsum(change)


def utilization(outcome: Outcome) -> FloatArray:
    """Share of each resource in use from the first arrival to the last finish, float64[num_resources]."""
    done = has_started(outcome)
    span = makespan(outcome)
    if span == 0:
        return np.zeros(len(outcome.jobs.capacity))
    work = (outcome.jobs.demand[done] * outcome.jobs.duration[done, None]).sum(axis=0)
    return np.asarray(work / (outcome.jobs.capacity * span))


def utilization_over_time(outcome: Outcome, resource: int, edges: FloatArray) -> FloatArray:
    """Share of a resource in use, as means of the spans between edges."""
    return mean_over_spans(*usage(outcome, resource), edges) / float(
        outcome.jobs.capacity[resource]
    )


def withheld_share(outcome: Outcome, num_visible: int | None = None) -> float:
    """Of the time in which jobs waited, the share in which one of them would have fit into what was free, and was not started.

    A job that was booked ahead waits until it starts.

    Args:
        num_visible: jobs that a policy could choose from, the longest waiting; None: all.

    Example: of two jobs that fit side by side, one starts at 0 and one at 1: all waiting (1 step) was withholding, 1.0.
    """
    held = total = 0
    for span, fits in _waiting_spans(outcome, num_visible):
        total += span
        held += span * fits
    return held / total if total else 0.0


def _waiting_spans(outcome: Outcome, num_visible: int | None) -> Iterator[tuple[int, bool]]:
    """(length, whether a visible waiting job fits) of every span between events in which jobs wait."""
    jobs = outcome.jobs
    done = has_started(outcome)
    start = np.where(done, outcome.start, np.where(outcome.is_dropped, NOT_YET, _NEVER))
    times = np.unique(
        np.concatenate([jobs.arrival, outcome.start[done], outcome.finish[done], [outcome.end]])
    )
    times = times[times <= outcome.end]
    free = np.stack(
        [jobs.capacity[r] - _at(usage(outcome, r), times) for r in range(len(jobs.capacity))],
        axis=1,
    )
    arrived = np.searchsorted(jobs.arrival, times, side="right")
    first = 0
    for row in range(len(times) - 1):
        while first < len(jobs) and start[first] <= times[row]:
            first += 1
        here = np.flatnonzero(start[first : arrived[row]] > times[row])[:num_visible] + first
        if len(here):
            yield (
                int(times[row + 1] - times[row]),
                bool((jobs.demand[here] <= free[row]).all(axis=1).any()),
            )


def _at(level: tuple[IntArray, IntArray], times: IntArray) -> IntArray:
    """A level at given times; 0 before its first."""
    at, value = level
    row = np.searchsorted(at, times, side="right") - 1
    return (
        np.where(row >= 0, value[np.maximum(row, 0)], 0)
        if len(at)
        else np.zeros(len(times), np.int64)
    )


@dataclass(frozen=True)
class SizeGroups:
    """Jobs by size, to tell what a policy means for small ones and for large ones.

    Args:
        what: which size.
        names: of the groups, ascending.
        edges: float64[num_groups - 1], the largest size of each group but the last.
        by_area: size is duration x the largest share of a resource; else the duration.
    """

    what: str
    names: tuple[str, ...]
    edges: tuple[float, ...]
    by_area: bool

    def of(self, jobs: RigidJobs) -> IntArray:
        """The group of each job, int64[num_jobs]."""
        return np.searchsorted(np.array(self.edges), _size(jobs, self.by_area), side="left").astype(
            np.int64
        )


def _size(jobs: RigidJobs, by_area: bool) -> FloatArray:
    return (
        jobs.duration * (jobs.demand / jobs.capacity).max(axis=1)
        if by_area
        else jobs.duration.astype(np.float64)
    )


def size_groups(sequences: Sequence[RigidJobs]) -> SizeGroups:
    """Short jobs (up to half the longest duration) and long ones; of logs, quarters by area.

    Example: of DeepRM's jobs those of 1 to 3 steps are short, those of 10 to 15 long.
    """
    if sequences[0].step == "s":
        areas = np.concatenate([_size(jobs, True) for jobs in sequences])
        edges = tuple(float(edge) for edge in np.quantile(areas, (0.25, 0.5, 0.75)))
        what = "quarters of the jobs by area (duration x largest share of a resource)"
        return SizeGroups(what, ("smallest", "small", "large", "largest"), edges, True)
    half = max((int(jobs.duration.max()) for jobs in sequences if len(jobs)), default=1) / 2
    return SizeGroups(f"duration, short up to {half:g} steps", ("short", "long"), (half,), False)


@dataclass(frozen=True)
class PackingSummary:
    """What one run came to; see the module for jobs that never started.

    Args:
        jobs, unallocated, dropped: how many there were, never started, were lost.
        mean_slowdown, mean_bounded_slowdown, mean_completion, mean_waiting: over jobs that started; NaN without any.
        quantiles: of slowdown and bounded slowdown, by name ("p50_slowdown").
        makespan: last finish - first arrival, in steps or s.
        utilization: of each resource.
        slowdown_by_size: mean bounded slowdown (logs) or slowdown (steps) of each group; NaN where it is empty.
        withheld_share: see `withheld_share`.
        decisions: those that let time pass included.
    """

    jobs: int
    unallocated: int
    dropped: int
    mean_slowdown: float
    mean_bounded_slowdown: float
    mean_completion: float
    mean_waiting: float
    quantiles: Mapping[str, float]
    makespan: int
    utilization: Mapping[str, float]
    slowdown_by_size: Mapping[str, float]
    withheld_share: float
    decisions: int

    @property
    def is_complete(self) -> bool:
        """Whether every job started."""
        return self.unallocated + self.dropped == 0

    def to_json(self) -> dict[str, Any]:
        """Plain numbers; null where there is none."""
        json: dict[str, Any] = plain(asdict(self))
        return json


def plain(value: Any) -> Any:
    """The same without NaN, which JSON does not have: null."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def mean_of_started(values: FloatArray) -> float:
    """Mean of what is not NaN; NaN where all is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def summarize_packing(
    outcome: Outcome, groups: SizeGroups | None = None, num_visible: int | None = None
) -> PackingSummary:
    """Summarize a run.

    Args:
        groups: by size; unless given, those of the run's own jobs.
        num_visible: job slots, see `withheld_share`.

    Example: jobs of 1 and 3 steps that take 2 and 3 have mean slowdown 1.5.
    """
    jobs = outcome.jobs
    groups = groups or size_groups([outcome.jobs])
    values = {name: measure(outcome) for name, measure in MEASURES.items()}
    by_size = values["bounded_slowdown" if jobs.step == "s" else "slowdown"]
    group = groups.of(jobs)
    return PackingSummary(
        jobs=len(jobs),
        unallocated=int((~has_started(outcome) & ~outcome.is_dropped).sum()),
        dropped=int(outcome.is_dropped.sum()),
        mean_slowdown=mean_of_started(values["slowdown"]),
        mean_bounded_slowdown=mean_of_started(values["bounded_slowdown"]),
        mean_completion=mean_of_started(values["completion"]),
        mean_waiting=mean_of_started(values["waiting"]),
        quantiles=dict(_quantiles(values)),
        makespan=makespan(outcome),
        utilization=dict(zip(jobs.resources, utilization(outcome).tolist(), strict=True)),
        slowdown_by_size={
            name: mean_of_started(by_size[group == row]) for row, name in enumerate(groups.names)
        },
        withheld_share=withheld_share(outcome, num_visible),
        decisions=outcome.num_decisions,
    )


def _quantiles(values: Mapping[str, FloatArray]) -> Iterator[tuple[str, float]]:
    for name in ("slowdown", "bounded_slowdown"):
        known = values[name][~np.isnan(values[name])]
        for share in (50, 95, 99):
            yield f"p{share}_{name}", float(np.percentile(known, share)) if len(known) else math.nan
