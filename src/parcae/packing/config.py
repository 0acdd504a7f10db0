"""The settings of a packing cluster: a strict, frozen config that is saved beside results."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from parcae.workloads.rigid import RigidJobs

#: Default limit of decisions per run: no policy that lets time pass now and then reaches it.
_MANY = 1 << 40
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
        num_slots: number of job slots, at most 2^20, which are the visible waiting jobs (steps
            only).
        backlog_size: number of further waiting jobs, at most 2^20. Jobs beyond it are dropped and
            counted (steps only).
        horizon: steps that are planned ahead, at most 2^20; no job may be longer (steps only).
        window: steps that a run lasts at least.
        ends_early: the run ends with the window, even if jobs are unfinished.
        as_coded: reproduce two quirks of the released code: a job that finishes together with
            another may stay one step longer (and cost), and no job is booked into the horizon's
            last row.
        bound: bounded slowdown takes shorter durations as this long.
        max_decisions: the run ends after so many decisions, in case the policy lets time pass for
            ever. Jobs that never started are reported.

    Source: DeepRM, section 3 and 4.1 (its 20 steps, 10 slots, backlog of 60).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: TimeMode = TimeMode.STEPS
    num_slots: int = Field(default=10, ge=1, le=_MOST)
    backlog_size: int = Field(default=60, ge=0, le=_MOST)
    horizon: int = Field(default=20, ge=1, le=_MOST)
    window: int = Field(default=0, ge=0)
    ends_early: bool = False
    as_coded: bool = False
    bound: float = Field(default=1.0, gt=0)
    max_decisions: int = Field(default=_MANY, ge=1, le=_MANY)

    @classmethod
    def for_log(cls, jobs: RigidJobs) -> PackingConfig:
        """Return the config for a log: exact times, with a bound of 10 s if steps are seconds."""
        return cls(mode=TimeMode.EXACT, bound=float(BOUND_S) if jobs.step == "s" else 1.0)
