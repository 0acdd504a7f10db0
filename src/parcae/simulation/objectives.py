"""Objectives: what a policy is tuned or trained for, as one number per run; smaller is better.

The named objectives are the members of `Objective`, with a row each in one table, and the function
`missed_and_tardy`, called `deadlines`. `register_objective` gives a name to a function from outside
the package.

Source: Decima, section 8 ("other objectives"): average JCT, makespan, tail, deadlines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from parcae.base.arrays import AnyArray, Float64Array, Int64Array
from parcae.base.errors import ConfigError
from parcae.base.extensions import is_reference, load, rows


class Objective(StrEnum):
    """The available objectives, by name."""

    AVERAGE_JCT = "average-jct"
    MAKESPAN = "makespan"
    P95_JCT = "p95-jct"
    MEAN_SLOWDOWN = "mean-slowdown"
    MISSED_DEADLINES = "missed-deadlines"

    @property
    def entry(self) -> ObjectiveEntry:
        """What is known of the objective."""
        return _TABLE[self]


#: A job's deadline is its arrival + this many times its ideal duration (see
#: `parcae.simulation.metrics.ideal_ms`).
DEADLINE_SLOWDOWN = 4.0


@dataclass(frozen=True, eq=False)
class FinishedJobs:
    """The jobs of several runs, as an objective sees them; times in simulated ms.

    Jobs that had not arrived when a run ended are left out; see `finished_jobs`.

    Args:
        arrival_ms: float64[num_runs, num_jobs].
        end_ms: float64[num_runs, num_jobs], time of completion; the end of the run for a job that
            did not complete.
        ideal_ms: float64[num_runs, num_jobs], ideal durations (`metrics.ideal_ms`).
        deadline_ms: float64[num_runs, num_jobs], deadlines after arrival, infinite for a job
            without one; None if the workload has none.
        last_ms: float64[num_runs], the last completion, or the end of a run that did not complete
            all of its jobs; None: the last of `end_ms`.
    """

    arrival_ms: Float64Array
    end_ms: Float64Array
    ideal_ms: Float64Array
    deadline_ms: Float64Array | None = None
    last_ms: Float64Array | None = None

    @property
    def run_end_ms(self) -> Float64Array:
        """When the last job of every run completed, float64[num_runs]."""
        return np.asarray(self.end_ms.max(axis=1)) if self.last_ms is None else self.last_ms

    @property
    def jct_ms(self) -> Float64Array:
        """Completion time - arrival time, float64[num_runs, num_jobs]."""
        return np.maximum(0.0, self.end_ms - self.arrival_ms)

    @property
    def slowdown(self) -> Float64Array:
        """JCT / ideal duration, at least 1, float64[num_runs, num_jobs]."""
        return np.maximum(1.0, self.jct_ms / np.maximum(1.0, self.ideal_ms))


def finished_jobs(
    arrival_ms: Int64Array,
    completion_ms: Int64Array,
    *,
    num_arrived: int,
    clock_ms: int,
    ideal_ms: Float64Array,
    deadline_ms: Float64Array | None,
) -> FinishedJobs:
    """The jobs of one run that arrived before it ended.

    Args:
        arrival_ms: int64[num_jobs], in ascending order.
        completion_ms: int64[num_jobs], negative for a job that did not complete; whatever for one
            that did not arrive.
        num_arrived: number of jobs that arrived. A run that ended before the first job arrived
            counts with that job, which takes no time.
        clock_ms: when the run ended.
        ideal_ms: float64[num_jobs], ideal durations.
        deadline_ms: float64[num_jobs], or None; see `FinishedJobs`.
    """
    is_complete = (np.arange(len(arrival_ms)) < num_arrived) & (completion_ms >= 0)
    end_ms = np.where(is_complete, completion_ms, np.maximum(clock_ms, arrival_ms))
    here = slice(max(1, num_arrived))
    last_ms = end_ms.max() if is_complete.all() else max(clock_ms, int(arrival_ms[0]))

    def of_run(values: AnyArray) -> Float64Array:
        return np.array([values[here]], np.float64)

    return FinishedJobs(
        of_run(arrival_ms),
        of_run(end_ms),
        of_run(ideal_ms),
        None if deadline_ms is None else of_run(deadline_ms),
        np.array([last_ms], np.float64),
    )


ObjectiveFunction = Callable[[FinishedJobs], Float64Array]
"""An objective of your own: a smaller number from 0 on for a better run, float64[num_runs]."""


@dataclass(frozen=True)
class ObjectiveEntry:
    """What is known of a named objective."""

    function: ObjectiveFunction
    column: str
    cost: str
    needs_ideal: bool = False


_TABLE: Mapping[Objective, ObjectiveEntry] = {
    Objective.AVERAGE_JCT: ObjectiveEntry(
        lambda jobs: jobs.jct_ms.mean(axis=1), "average_jct_ms", "JOB_TIME"
    ),
    Objective.MAKESPAN: ObjectiveEntry(
        lambda jobs: jobs.run_end_ms - jobs.arrival_ms.min(axis=1), "makespan_ms", "CLOCK"
    ),
    Objective.P95_JCT: ObjectiveEntry(
        lambda jobs: np.percentile(jobs.jct_ms, 95, axis=1), "p95_jct_ms", "TAIL"
    ),
    Objective.MEAN_SLOWDOWN: ObjectiveEntry(
        lambda jobs: jobs.slowdown.mean(axis=1), "mean_slowdown", "SLOWDOWN", True
    ),
    Objective.MISSED_DEADLINES: ObjectiveEntry(
        lambda jobs: (jobs.slowdown > DEADLINE_SLOWDOWN).mean(axis=1),
        "missed_deadlines",
        "MISSED",
        True,
    ),
}
#: The name of the objective for given deadlines (`parcae.workloads.tables`).
DEADLINES = "deadlines"
NEEDS_DEADLINES = (
    f"objective {DEADLINES} needs deadlines by job name: give --deadlines FILE "
    "(`Workload.with_deadlines` in Python)"
)
#: A job that takes twice as long as its deadline allows counts as no worse if it takes longer, so
#: that a few hopeless jobs do not hide the others.
_MOST_TARDINESS = 1.0


def missed_and_tardy(jobs: FinishedJobs) -> Float64Array:
    """The objective `deadlines`: share of missed deadlines + mean relative tardiness, capped at 1.

    The share alone is flat: a policy that misses every deadline by less is no better. So every job
    with a deadline adds 1 if it misses it, and its time beyond the deadline / the deadline, at most
    1. The sum is divided by the number of these jobs; 0 for a run without any.

    Example: of two jobs with deadlines of 10 s that take 8 s and 15 s, the second adds 1 + 0.5; the
    objective is 0.75.
    """
    if jobs.deadline_ms is None:
        raise ConfigError(NEEDS_DEADLINES)
    has_deadline = np.isfinite(jobs.deadline_ms)
    late_ms = np.where(has_deadline, np.maximum(0.0, jobs.jct_ms - jobs.deadline_ms), 0.0)
    missed = np.count_nonzero(late_ms > 0, axis=1)
    tardiness = np.minimum(_MOST_TARDINESS, late_ms / jobs.deadline_ms).sum(axis=1)
    return np.asarray((missed + tardiness) / np.maximum(1, has_deadline.sum(axis=1)))


_REGISTERED: dict[str, ObjectiveFunction] = {}


def _functions() -> dict[str, ObjectiveFunction]:
    """Functions by name: that for deadlines, those of other packages, registered ones."""
    return {DEADLINES: missed_and_tardy, **dict(rows("objectives")), **_REGISTERED}


def register_objective(name: str, function: ObjectiveFunction) -> None:
    """Give an objective of your own a name, for as long as the program runs.

    The function returns a smaller number for a better run, float64[num_runs]. No number is below
    0, because policies are measured by the ratio to another one.
    Tuning takes it, and training in the world of cores. Training by policy gradients needs a cost
    that accrues while a run goes on, and refuses it.
    """
    if name in (*Objective, *_functions()):
        raise ConfigError(f"there is an objective {name!r} already; choose another name")
    _REGISTERED[name] = function


def parse_objective(text: str) -> Objective | ObjectiveFunction:
    """The objective of this name, or the function that `module:attribute` names."""
    functions = _functions()
    if text in functions:
        return functions[text]
    if text in list(Objective):
        return Objective(text)
    if is_reference(text):
        function: ObjectiveFunction = load(text, "objective")
        if not callable(function):
            raise ConfigError(
                f"objective {text!r} is {function!r}: give a function of the finished jobs"
            )
        return function
    known = ", ".join((*Objective, *functions))
    raise ConfigError(f"objective {text!r} does not exist: write one of {known}")


def objective_name(objective: Objective | ObjectiveFunction) -> str:
    """Return the name of an objective, or of the function that is one."""
    if isinstance(objective, Objective):
        return str(objective)
    for name, function in _functions().items():
        if function is objective:
            return name
    return str(getattr(objective, "__name__", type(objective).__name__))


def objective_cost(objective: Objective | ObjectiveFunction, jobs: FinishedJobs) -> Float64Array:
    """Return the objective of each of several runs, float64[num_runs].

    The unit of a named objective is ms; slowdown and the share of missed deadlines have no unit.

    Example: jobs of ideal duration 2 s that take 4 s and 10 s have mean slowdown 3.5; the second
    misses its deadline.
    """
    if isinstance(objective, Objective):
        return objective.entry.function(jobs)
    if not callable(objective):
        raise ConfigError(
            f"{objective!r} is not an objective: give one of {', '.join(Objective)} by "
            "`parse_objective`, or a function of the finished jobs"
        )
    cost = np.asarray(objective(jobs), np.float64)
    is_usable = np.isfinite(cost) & (cost >= 0)
    if cost.shape != jobs.end_ms.shape[:1] or not is_usable.all():
        raise ConfigError(
            f"objective {objective_name(objective)} must return one finite number from 0 on for "
            f"each of {len(jobs.end_ms)} runs; it returned {cost!r}"
        )
    return cost
