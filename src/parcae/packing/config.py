"""How a packing cluster runs: a strict, frozen config that is saved beside results."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from parcae.workloads.rigid import RigidJobs

#: More decisions a run than any policy needs that lets time pass now and then.
_MANY = 1 << 40
#: Jobs shorter than this count as this long in bounded slowdown: 10 s, as is usual for logs of batch clusters.
BOUND_S = 10


class TimeMode(StrEnum):
    """How time goes."""

    STEPS = "steps"
    EXACT = "exact"


class PackingConfig(BaseModel):
    """The settings of a packing cluster; an unknown key is refused.

    Args:
        mode: steps of time with a horizon and job slots (DeepRM), or exact times from event to event with every waiting job
            visible (logs of batch clusters).
        num_slots: waiting jobs that are visible (steps only).
        backlog_size: further waiting jobs; those beyond are lost, and counted (steps only).
        horizon: steps that are planned ahead (steps only); no job may be longer.
        window: steps that a run lasts at least; ends_early: it ends with the window, whatever is unfinished.
        as_coded: the released code's quirks: jobs that finish together may linger a step (and cost), and no booking uses the
            horizon's last row.
        bound: durations below count as this in bounded slowdown.
        max_decisions: ends a run whose policy lets time pass for ever; jobs that never started are reported.

    Source: DeepRM, section 3 and 4.1 (its 20 steps, 10 slots, backlog of 60).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: TimeMode = TimeMode.STEPS
    num_slots: int = Field(default=10, ge=1)
    backlog_size: int = Field(default=60, ge=0)
    horizon: int = Field(default=20, ge=1)
    window: int = Field(default=0, ge=0)
    ends_early: bool = False
    as_coded: bool = False
    bound: float = Field(default=1.0, gt=0)
    max_decisions: int = Field(default=_MANY, ge=1)

    @classmethod
    def for_log(cls, jobs: RigidJobs) -> PackingConfig:
        """Exact times for a log in seconds."""
        return cls(mode=TimeMode.EXACT, bound=float(BOUND_S) if jobs.step == "s" else 1.0)
