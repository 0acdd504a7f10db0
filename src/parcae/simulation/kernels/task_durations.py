"""How long a task takes: its own luck, the wave that it runs in and the parallelism of its job.

Every (job, stage, task) has one 64-bit luck, a hash of the run's seed, whatever the policy does: two policies that are
compared on one seed see the same arrivals and the same luck.

Source: Decima, section 6.2 and Appendix D.
"""

from __future__ import annotations

import numpy as np

from parcae.kernels import inlined, mix

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_JOB_STEP = np.uint64(0xD1342543DE82EF95)
_LOW_BITS = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@inlined
def job_luck(seed, job):  # type: ignore[no-untyped-def]
    """Where the luck of a job's tasks starts."""
    return mix(mix(seed ^ _GOLDEN) + np.uint64(job) * _JOB_STEP + np.uint64(1))


@inlined
def task_luck(stage_luck, task):  # type: ignore[no-untyped-def]
    """The luck of one task; `stage_luck` is job_luck + (stage index << 32)."""
    return mix(stage_luck + np.uint64(task))


@inlined
def task_duration_ms(tables, stage_profile, task, num_attached, wave, luck, warmup_delay_ms):  # type: ignore[no-untyped-def]
    """Duration of the stage's task number `task` that starts while its job holds `num_attached` executors.

    The luck's upper half chooses between the measured levels of parallelism around `num_attached`, its lower half the
    sample.
    """
    laws = tables.laws
    grid = laws.grid_row[stage_profile] + min(num_attached, laws.top[stage_profile])
    upper = ((luck >> _HALF) * np.uint64(tables.grids.span[grid])) >> _HALF
    level = (
        tables.grids.upper[grid]
        if np.int64(upper) < tables.grids.weight[grid]
        else tables.grids.lower[grid]
    )
    row = laws.list_row[stage_profile] + wave * laws.num_levels[stage_profile] + level
    if laws.is_listed[stage_profile]:
        sample = task % tables.lists.count[row]
    else:
        sample = np.int64(((luck & _LOW_BITS) * np.uint64(tables.lists.count[row])) >> _HALF)
    duration_ms = np.int64(tables.samples[tables.lists.start[row] + sample])
    return duration_ms + tables.lists.adds_warmup[row] * warmup_delay_ms
