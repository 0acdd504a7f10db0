"""Draws of task durations, by the random bits of the task, its wave and the parallelism of its job.

Every (job, stage, task) has 64 random bits: a hash of the run's seed that does not depend on the
policy. So two policies that are compared on one seed see the same arrivals and the same draws.

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
def job_bits(seed, job):  # type: ignore[no-untyped-def]
    """The hash input from which the random bits of all tasks of a job follow."""
    return mix(mix(seed ^ _GOLDEN) + np.uint64(job) * _JOB_STEP + np.uint64(1))


@inlined
def task_bits(stage_bits, task):  # type: ignore[no-untyped-def]
    """The 64 random bits of one task; `stage_bits` is `job_bits` + (stage index << 32)."""
    return mix(stage_bits + np.uint64(task))


@inlined
def task_duration_ms(  # type: ignore[no-untyped-def]
    tables, stage_profile, task, num_attached, wave, random_bits, warmup_delay_ms
):
    """Draw the duration in ms of a task; reads the tables, writes nothing.

    Args:
        tables: `WorkloadTables`.
        stage_profile: row of the stage in the tables.
        task: number of the task within the stage.
        num_attached: executors that the job holds when the task starts.
        wave: the `Wave` in which the task runs.
        random_bits: 64 random bits. The upper half chooses between the two measured levels of
            parallelism around `num_attached`, the lower half chooses the sample.
        warmup_delay_ms: added if samples of fresh executors were not measured.
    """
    durations = tables.durations
    grid = durations.grid_row[stage_profile] + min(num_attached, durations.top[stage_profile])
    # Multiply and shift: scales 32 random bits to 0..span - 1 without a division.
    upper = ((random_bits >> _HALF) * np.uint64(tables.grids.span[grid])) >> _HALF
    level = (
        tables.grids.upper[grid]
        if np.int64(upper) < tables.grids.weight[grid]
        else tables.grids.lower[grid]
    )
    row = durations.list_row[stage_profile] + wave * durations.num_levels[stage_profile] + level
    if durations.is_listed[stage_profile]:
        sample = task % tables.lists.count[row]
    else:
        sample = np.int64(((random_bits & _LOW_BITS) * np.uint64(tables.lists.count[row])) >> _HALF)
    duration_ms = np.int64(tables.samples[tables.lists.start[row] + sample])
    return duration_ms + tables.lists.adds_warmup[row] * warmup_delay_ms
