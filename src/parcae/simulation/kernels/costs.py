"""What a run has cost up to now, for an objective: the sum of these increments is what policies are trained on.

Source: Decima, section 5.3 (the penalty is the time that jobs spend in the system) and section 8 (other objectives).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from parcae.cluster.state import NO_PROFILE, NOT_YET
from parcae.kernels import inlined, kernel


class CostKind(IntEnum):
    """How time in the system becomes cost, in ms unless it says otherwise."""

    JOB_TIME = 0  # sum over jobs of their time in the system
    CLOCK = 1  # time itself
    TAIL = 2  # sum over jobs of their time in the system beyond `threshold`
    SLOWDOWN = 3  # sum over jobs of their time in the system / ideal duration
    MISSED = 4  # jobs whose time in the system exceeds `threshold` ideal durations


_JOB_TIME = int(CostKind.JOB_TIME)
_CLOCK = int(CostKind.CLOCK)
_TAIL = int(CostKind.TAIL)
_SLOWDOWN = int(CostKind.SLOWDOWN)


class Costing(NamedTuple):
    """An objective as a cost that accrues with time."""

    kind: Any  # int64[1], CostKind
    threshold: Any  # float64[1]
    ideal_ms: Any  # float64[num_profiles]


@inlined
def _job_cost(state, costing, job, kind):  # type: ignore[no-untyped-def]
    completion_ms = state.jobs.completion_ms[job]
    end_ms = state.now.clock_ms[0] if completion_ms == NOT_YET else completion_ms
    age_ms = float(end_ms - state.jobs.arrival_ms[job])
    profile = state.jobs.profile[job]
    if kind == _TAIL:
        return max(0.0, age_ms - costing.threshold[0])
    ideal_ms = max(
        1.0, costing.ideal_ms[profile] if profile != NO_PROFILE else state.jobs.work_ms[job]
    )
    if kind == _SLOWDOWN:
        return max(1.0, age_ms / ideal_ms)
    return 1.0 if age_ms > costing.threshold[0] * ideal_ms else 0.0


@kernel
def cost_so_far(state, costing):  # type: ignore[no-untyped-def]
    """The run's cost up to the clock."""
    now = state.now
    kind = costing.kind[0]
    if kind == _JOB_TIME:
        return float(now.job_ms[0] + now.num_active[0] * (now.clock_ms[0] - now.accounted_ms[0]))
    if kind == _CLOCK:
        return float(now.clock_ms[0])
    total = 0.0
    for job in range(now.num_jobs[0]):
        total += _job_cost(state, costing, job, kind)
    return total
