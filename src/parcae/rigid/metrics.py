"""Metrics of a run of rigid jobs, for its jobs and for the cluster.

Jobs that never started have no slowdown: means are taken over the other jobs. The jobs that never
started are counted as `unallocated` (waiting until the end) or `dropped` (lost because job slots
and backlog were full).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.base.arrays import BoolArray, Float64Array, Int64Array
from parcae.base.errors import ConfigError
from parcae.rigid.config import BOUND_S, TimeMode
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import NOT_YET, Cost
from parcae.rigid.world import PackingBatch, RigidOutcome, work_of
from parcae.simulation.metrics import steps

#: Costs that are sums over jobs; the others are one number per run.
BY_JOB = (Cost.SLOWDOWN, Cost.BOUNDED_SLOWDOWN, Cost.COMPLETION, Cost.SLOWDOWN_MAKESPAN)
#: The start of a job that never starts.
_NEVER = np.iinfo(np.int64).max


def parse_cost(text: str, is_of_run: bool = False) -> Cost:
    """Return the cost with the given objective's name.

    Example: `parse_cost("bounded-slowdown")` is `Cost.BOUNDED_SLOWDOWN`.
    """
    names = {cost.objective: cost for cost in Cost}
    if text not in names:
        known = [name for name in names if not (is_of_run and names[name] is Cost.UTILIZATION)]
        raise ConfigError(f"objective {text!r} does not exist: write one of {', '.join(known)}")
    return names[text]


def require_ranking(cost: Cost) -> None:
    """Check that an objective tells policies apart by the cost of whole runs."""
    if cost is Cost.UTILIZATION:
        raise ConfigError(
            f"objective {cost.objective!r} adds up to the work of the jobs, which is the same for "
            "every policy that starts them all: use makespan"
        )


def num_never_started(batch: PackingBatch) -> Int64Array:
    """Return how many jobs of each run were lost or never started, int64[num_clusters]."""
    jobs = batch.sequence_tables.num_jobs[batch.sequence_rows, 0]
    return np.asarray(jobs - batch.states.clock["num_placed"][:, 0], np.int64)


def comparable_costs(batch: PackingBatch, cost: Cost) -> Float64Array:
    """Return the costs by which policies are ranked, float64[num_clusters].

    Jobs that were lost or never started are charged as if they ran after the end of the run, one
    after another in order of arrival. So the cost is always that of a schedule of all jobs: a
    policy gains nothing from losing them. Without such jobs it is the cost that accrued. For
    utilization, whose sum says nothing about a policy that starts every job, nothing is charged.

    Example: a job of 2 steps arrives at step 1 and is lost; the run ends at step 5. The job would
    finish at step 7, so its slowdown is charged with (7 - 1) / 2 = 3.
    """
    costs = batch.costs(cost)
    # Deviation: DeepRM's cost (section 3.2) counts jobs in the system only, so that a policy that
    # lets the backlog overflow has the smaller cost.
    for row in np.flatnonzero(num_never_started(batch)):
        costs[row] += _charge(batch, int(row), cost)
    return costs


def _charge(batch: PackingBatch, row: int, cost: Cost) -> float:
    """Return the cost of running the jobs that never started after the end of their run."""
    outcome = batch.outcome(row)
    is_left = ~has_started(outcome)
    arrival = outcome.jobs.arrival[is_left]
    duration = outcome.jobs.duration[is_left]
    finish = np.maximum(outcome.end + np.cumsum(duration), arrival + duration)
    # The costs of jobs that wait at the end have accrued until then.
    is_waiting = ~outcome.is_dropped[is_left] & (arrival <= outcome.end)
    time = finish - np.where(is_waiting, outcome.end, arrival)
    rules = batch.sequence_tables.rules[batch.sequence_rows[row], 0]
    bounded = float((time / np.maximum(rules["bound"], duration)).sum())
    longer = float(duration.sum())
    charges = {
        Cost.SLOWDOWN: float((time / duration).sum()),
        Cost.BOUNDED_SLOWDOWN: bounded,
        Cost.COMPLETION: float(time.sum()),
        Cost.UTILIZATION: 0.0,
        Cost.MAKESPAN: longer,
        Cost.SLOWDOWN_MAKESPAN: bounded + float(rules["makespan_weight"]) * longer,
    }
    return charges[cost]


def mean_cost(batch: PackingBatch, cost: Cost) -> float:
    """Return the mean of `comparable_costs`: per job for costs in BY_JOB, otherwise per run."""
    return _mean(batch, cost, comparable_costs(batch, cost), 0)


def mean_cost_of_started(batch: PackingBatch, cost: Cost) -> float:
    """Return the mean cost that accrued, per job that was not lost, or per run.

    For `Cost.SLOWDOWN`, this is the mean slowdown that comparisons report if no job waits at the
    end.
    """
    return _mean(batch, cost, batch.costs(cost), int(batch.states.clock["num_dropped"].sum()))


def _mean(batch: PackingBatch, cost: Cost, costs: Float64Array, num_left_out: int) -> float:
    if cost not in BY_JOB:
        return float(costs.mean())
    jobs = int(batch.sequence_tables.num_jobs[batch.sequence_rows].sum())
    return float(costs.sum() / max(1, jobs - num_left_out))


def typical_cost(batch: PackingBatch, cost: Cost, log_of: npt.ArrayLike) -> float:
    """Return the number that tuning and training minimize.

    This is `mean_cost` or, for runs of several logs, the geometric mean of the logs' mean costs.
    The slowdowns or makespans of one log may be a hundred times those of another, so that a plain
    mean would depend on that log only.
    """
    # Utilization is a negative cost, and has no geometric mean.
    if cost is Cost.UTILIZATION or batch.config.mode is not TimeMode.EXACT:
        return mean_cost(batch, cost)
    _, log = np.unique(np.asarray(log_of)[batch.sequence_rows], return_inverse=True)
    costs = np.bincount(log, comparable_costs(batch, cost))
    jobs = batch.sequence_tables.num_jobs[batch.sequence_rows, 0]
    counts = np.bincount(log, jobs if cost in BY_JOB else None)
    # The floor keeps a log without cost from making the geometric mean 0.
    return float(np.exp(np.log(np.maximum(costs, 1e-9) / np.maximum(1, counts)).mean()))


def has_started(outcome: RigidOutcome) -> BoolArray:
    """Return which jobs were started, bool[num_jobs]."""
    return np.asarray(outcome.start != NOT_YET)


def completion(outcome: RigidOutcome) -> Float64Array:
    """Return finish - arrival, float64[num_jobs]; NaN for a job that never started."""
    return np.where(has_started(outcome), outcome.finish - outcome.jobs.arrival, np.nan)


def waiting(outcome: RigidOutcome) -> Float64Array:
    """Return start - arrival, float64[num_jobs]; NaN for a job that never started."""
    return np.where(has_started(outcome), outcome.start - outcome.jobs.arrival, np.nan)


def slowdown(outcome: RigidOutcome) -> Float64Array:
    """Return (finish - arrival) / duration, float64[num_jobs]; NaN for a job that never started.

    Example: a job of 3 steps that waits for 2 has slowdown 5/3.
    """
    return np.asarray(completion(outcome) / outcome.jobs.duration)


def bounded_slowdown(outcome: RigidOutcome) -> Float64Array:
    """Return max(1, (finish - arrival) / max(bound, duration)), float64[num_jobs].

    The bound is 10 s in logs, else 1 time step. NaN for a job that never started.

    Source: Feitelson and Rudolph, "Metrics and benchmarking for parallel job scheduling" (bound of
    10 s).
    Example: a job of 1 s that waits for 19 s has slowdown 20 and bounded slowdown 2.
    """
    bound = BOUND_S if outcome.jobs.step == "s" else 1
    return np.maximum(1.0, completion(outcome) / np.maximum(bound, outcome.jobs.duration))


#: The metrics of every job, by name.
MEASURES = {
    "slowdown": slowdown,
    "bounded_slowdown": bounded_slowdown,
    "completion": completion,
    "waiting": waiting,
}
#: The least value of the measures that have one above 0, by name: a job takes its own duration.
LEAST = {"slowdown": 1.0, "bounded_slowdown": 1.0}


def makespan(outcome: RigidOutcome) -> int:
    """Return last finish - first arrival, or 0 if no job started."""
    done = has_started(outcome)
    return int(outcome.finish[done].max() - outcome.jobs.arrival[0]) if done.any() else 0


def usage(outcome: RigidOutcome, resource: int) -> tuple[Int64Array, Int64Array]:
    """Return a resource's units in use over time: (times, units from that time on)."""
    done = has_started(outcome)
    units = outcome.jobs.demand[done, resource]
    return steps(outcome.start[done], outcome.finish[done], units)


def jobs_waiting(outcome: RigidOutcome) -> tuple[Int64Array, Int64Array]:
    """Return the number of waiting jobs over time: (times, jobs from that time on).

    Lost jobs do not count.
    """
    is_kept = ~outcome.is_dropped
    # A job that never started waits until the end of the run.
    end = np.where(
        has_started(outcome), outcome.start, np.maximum(outcome.end, outcome.jobs.arrival)
    )
    return steps(outcome.jobs.arrival[is_kept], end[is_kept])


def utilization(outcome: RigidOutcome) -> Float64Array:
    """Return the share of each resource in use, float64[num_resources].

    The time is that from the first arrival to the last finish.
    """
    done = has_started(outcome)
    span = makespan(outcome)
    if span == 0:
        return np.zeros(len(outcome.jobs.capacity))
    jobs = outcome.jobs
    work = work_of(jobs.demand[done], jobs.duration[done])
    return np.asarray(work / (jobs.capacity * float(span)))


def withheld_share(outcome: RigidOutcome, num_visible: int | None = None) -> float:
    """Return the share of the waiting time in which a job that fits was not started.

    The waiting time is the time in which at least one job waits. A job that is planned for a later
    start waits until it starts.

    Example: of two jobs that fit side by side, one starts at 0 and one at 1: a job that fits was
    withheld for the whole waiting time (1 step), so the share is 1.0.
    """
    spans = list(waiting_spans(outcome, num_visible))
    held = sum(span for span, durations in spans if len(durations))
    return held / max(1, sum(span for span, _ in spans))


def waiting_spans(
    outcome: RigidOutcome, num_visible: int | None = None
) -> Iterator[tuple[int, Int64Array]]:
    """Yield every time in which a visible job waits and nothing changes, and the durations of those
    that fit.
    """
    jobs = outcome.jobs
    done = has_started(outcome)
    starts, finishes, demand = outcome.start[done], outcome.finish[done], jobs.demand[done]
    # Between two consecutive events nothing changes.
    times = np.unique(np.concatenate([jobs.arrival, starts, finishes, [outcome.end]]))
    times = times[times <= outcome.end]
    free = jobs.capacity - (_sum_until(starts, demand, times) - _sum_until(finishes, demand, times))
    arrived = np.searchsorted(jobs.arrival, times, side="right")
    # A lost job leaves at once (its start counts as past); a job that never starts waits for ever.
    start = np.where(done, outcome.start, np.where(outcome.is_dropped, NOT_YET, _NEVER))
    first = 0
    for row, span in enumerate(np.diff(times).tolist()):
        # Jobs are in order of arrival: skip the leading ones that have started.
        while first < len(jobs) and start[first] <= times[row]:
            first += 1
        is_waiting = start[first : arrived[row]] > times[row]
        visible = np.flatnonzero(is_waiting)[:num_visible] + first
        if len(visible):
            yield span, jobs.duration[visible[(jobs.demand[visible] <= free[row]).all(axis=1)]]


def _sum_until(at: Int64Array, demand: Int64Array, times: Int64Array) -> Int64Array:
    """Return the demand of the jobs with an event up to each time, [num_times, num_resources]."""
    order = np.argsort(at)
    total = np.cumsum(demand[order], axis=0)
    none = np.zeros((1, demand.shape[1]), np.int64)
    return np.concatenate([none, total])[np.searchsorted(at[order], times, side="right")]


class SizeGroups(NamedTuple):
    """Groups of jobs by size, to compare what a policy does for small and for large jobs."""

    what: str
    names: tuple[str, ...]
    edges: tuple[float, ...]
    by_area: bool

    def of(self, jobs: RigidJobs) -> Int64Array:
        """Return the group of each job, int64[num_jobs]."""
        sizes = areas(jobs) if self.by_area else jobs.duration
        return np.searchsorted(np.array(self.edges), sizes, side="left").astype(np.int64)


def areas(jobs: RigidJobs) -> Float64Array:
    """Return the duration x the largest share of a resource of each job, float64[num_jobs]."""
    return np.asarray(jobs.duration * (jobs.demand / jobs.capacity).max(axis=1))


def size_groups(sequences: Sequence[RigidJobs]) -> SizeGroups:
    """Return the groups for the given runs: quartiles by area for logs, else short and long jobs.

    Short jobs last at most half the longest duration.

    Example: of DeepRM's jobs those of 1 to 3 steps are short, those of 10 to 15 long.
    """
    if sequences[0].step == "s":
        every = np.concatenate([areas(jobs) for jobs in sequences])
        what = "quarters of the jobs by area (duration x largest share of a resource)"
        edges = tuple(np.quantile(every, (0.25, 0.5, 0.75)).tolist())
        return SizeGroups(what, ("smallest", "small", "large", "largest"), edges, True)
    # Sequences without jobs are possible: the default of 1 gives them a valid edge.
    half = max((int(jobs.duration.max()) for jobs in sequences if len(jobs)), default=1) / 2
    return SizeGroups(f"duration, short up to {half:g} steps", ("short", "long"), (half,), False)


def mean_of_started(values: Float64Array) -> float:
    """Return the mean of the values that are not NaN, or NaN if all are."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def run_metrics(outcome: RigidOutcome, num_visible: int | None = None) -> dict[str, Any]:
    """Return the metrics of a run by name; see the module for jobs that never started.

    Example: jobs of 1 and 3 steps that take 2 and 3 have a `mean_slowdown` of 1.5.
    """
    return {
        "jobs": len(outcome.jobs),
        "unallocated": int((~has_started(outcome) & ~outcome.is_dropped).sum()),
        "dropped": int(outcome.is_dropped.sum()),
        **{f"mean_{name}": mean_of_started(measure(outcome)) for name, measure in MEASURES.items()},
        "makespan": makespan(outcome),
        "utilization": utilization(outcome).tolist(),
        "withheld_share": withheld_share(outcome, num_visible),
        "decisions": outcome.num_decisions,
    }
