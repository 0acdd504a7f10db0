"""The settings of a packing cluster: a strict, frozen config that is saved beside results."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from parcae.base.options import option
from parcae.rigid.jobs import RigidJobs

#: Default of `max_decisions`: the jobs of a run limit its decisions, see `most_decisions`.
_BY_JOBS = 1 << 40
#: Decisions that a run may take beyond those that its jobs need: a policy may hesitate.
_SPARE = 20_000
#: Most steps of a horizon, job slots and jobs of a backlog: a cluster has memory for each of them.
_MOST = 1 << 20
#: Bounded slowdown takes shorter jobs as this long: 10 s, as is usual for logs of batch clusters.
BOUND_S = 10


class TimeMode(StrEnum):
    """How time advances."""

    STEPS = "steps"  # in steps, with a horizon and job slots (DeepRM)
    EXACT = "exact"  # from event to event (logs of batch clusters)


class PackingConfig(BaseModel):
    """The settings of a packing cluster; unknown keys are refused.

    Args:
        mode: time steps with a horizon and job slots (DeepRM), or exact times from event to event,
            in which every waiting job is visible (logs of batch clusters).
        num_slots, backlog_size, horizon: steps only.
        window: steps that a run lasts at least.
        ends_early: the run ends with the window, even if jobs are unfinished.
        as_coded: reproduce two quirks of the released code: a job that finishes together with
            another may stay one step longer (and cost), and no job is booked into the horizon's
            last row (steps only; with exact times it is refused).
        bound: bounded slowdown takes shorter durations as this long.
        max_decisions: the run ends after so many decisions, in case the policy lets time pass for
            ever. Jobs that never started are reported. By default the jobs say how many, see
            `most_decisions`.

    Source: DeepRM, section 3 and 4.1 (its 20 steps, 10 slots, backlog of 60).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: TimeMode = TimeMode.STEPS
    num_slots: int = option(
        10, "Number of job slots (waiting jobs that are visible).", "--slots", ge=1, le=_MOST
    )
    backlog_size: int = option(
        60,
        "Maximum number of further waiting jobs; jobs beyond it are lost, and counted.",
        "--backlog",
        ge=0,
        le=_MOST,
    )
    # No job may be longer.
    horizon: int = option(20, "Number of time steps that are planned ahead.", ge=1, le=_MOST)
    window: int = Field(default=0, ge=0)
    ends_early: bool = False
    as_coded: bool = False
    bound: float = Field(default=1.0, gt=0)
    max_decisions: int = Field(default=_BY_JOBS, ge=1, le=_BY_JOBS)

    @model_validator(mode="after")
    def _has_quirks_in_steps_only(self) -> PackingConfig:
        if self.as_coded and self.mode is TimeMode.EXACT:
            raise ValueError(
                "as_coded has no meaning with exact times, as the released code counts time in "
                "steps: leave out as_coded, or the mode 'exact'"
            )
        return self

    @classmethod
    def for_log(cls, jobs: RigidJobs) -> PackingConfig:
        """Return the config for a log: exact times, with a bound of 10 s if steps are seconds."""
        return cls(mode=TimeMode.EXACT, bound=float(BOUND_S) if jobs.step == "s" else 1.0)

    def most_decisions(self, jobs: RigidJobs) -> int:
        """Return the number of decisions after which a run of these jobs ends.

        By default, these are 20,000 more than it takes to run the jobs one after another. A policy
        that starts jobs now and then does not reach them.
        """
        if self.max_decisions < _BY_JOBS:
            return self.max_decisions
        # Each start is a decision, and so is each step without one, or each arrival and finish.
        is_exact = self.mode is TimeMode.EXACT
        passing = 2 * len(jobs) if is_exact else max(self.window, most_steps(jobs))
        return _SPARE + len(jobs) + passing


def most_steps(jobs: RigidJobs, num_jobs: int | None = None) -> int:
    """Return the most steps in which jobs of an episode arrive and then run one after another.

    Example: jobs of 3 and 1 steps that arrive at 2 and 5 take at most 5 + 4 = 9 steps.
    """
    count = len(jobs) if num_jobs is None else num_jobs
    if not 1 <= count <= len(jobs):
        return 0
    begin = 0 if num_jobs is None else jobs.arrival[: len(jobs) - count + 1]
    done = np.concatenate([[0], np.cumsum(jobs.duration)])
    return int((jobs.arrival[count - 1 :] - begin + done[count:] - done[:-count]).max())
