"""Further job sequences like a recorded one: a bootstrap of blocks of its (gap, job) pairs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from parcae.errors import ConfigError
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.random_streams import RandomStreams

#: Bounds of `growth`: others are mistakes, and arrivals would overflow.
LEAST_GROWTH = 0.001
MOST_GROWTH = 1_000.0


def default_block(num_jobs: int) -> int:
    """Length of a block for this many recorded jobs: the square root, rounded up.

    A block is shorter than the record. The best length for the variance of a mean grows with the
    cube root; completion times depend on bursts, which longer blocks keep.

    Example: 100 recorded jobs are resampled in blocks of 10.
    """
    return max(1, min(num_jobs - 1, math.ceil(math.sqrt(num_jobs))))


def check_block(block: int, num_recorded: int) -> None:
    """Check that blocks of this many jobs can be drawn from a record.

    Raises:
        ConfigError: they cannot, or every draw would repeat the whole record.
    """
    if not 1 <= block < max(2, num_recorded):
        raise ConfigError(
            f"blocks of {block} jobs cannot be drawn from {num_recorded} recorded jobs: give "
            f"--block a number from 1 to {max(1, num_recorded - 1)}"
        )


def resampled(recorded: JobSequence, num_jobs: int, block: int, *, seed: int) -> JobSequence:
    """Draw a sequence from a recorded one, in blocks of consecutive (gap, job) pairs.

    Each job keeps the gap that was recorded before it. Blocks begin at random places, and within a
    block jobs and gaps keep their order, so that bursts of up to `block` jobs stay as they were.
    The record is closed to a circle: after its last job comes its first, whose gap is the mean gap.
    So every pair is drawn with the same probability, and the means of gaps and of work are those of
    the record. (Without the circle, the ends of the record would be drawn less often.)

    Args:
        recorded: the recorded jobs and their arrivals.
        num_jobs: number of jobs to draw, >= 1.
        block: number of jobs in a block.
        seed: the seed; equal seeds draw equal sequences.

    Returns:
        The sequence; its first job arrives at 0.

    Raises:
        ConfigError: there is no job to draw, or the block is not shorter than the record.

    Source: Kuensch, The jackknife and the bootstrap for general stationary observations (1989), for
    moving blocks; Politis & Romano, A circular block-resampling procedure (1992), for the circle.
    """
    check_block(block, recorded.num_jobs)
    if num_jobs < 1:
        raise ConfigError(f"a run needs at least one job, not {num_jobs}")
    gaps_ms = np.diff(recorded.arrival_ms)
    mean_ms = round(float(gaps_ms.mean())) if gaps_ms.size else 0
    circle_ms = np.concatenate([[mean_ms], gaps_ms])
    num_blocks = math.ceil(num_jobs / block)
    starts = RandomStreams(seed).arrivals.integers(0, recorded.num_jobs, num_blocks)
    places = (starts[:, None] + np.arange(block)).ravel()[:num_jobs] % recorded.num_jobs
    drawn_ms = circle_ms[places]
    drawn_ms[0] = 0
    return replace(recorded, job_index=recorded.job_index[places], arrival_ms=np.cumsum(drawn_ms))


def check_growth(growth: float) -> None:
    """Check that arrivals can be divided by this number.

    Raises:
        ConfigError: it is not a number from `LEAST_GROWTH` to `MOST_GROWTH`.
    """
    if not LEAST_GROWTH <= growth <= MOST_GROWTH:
        raise ConfigError(
            f"--growth {growth:g}: write a number from {LEAST_GROWTH:g} to {MOST_GROWTH:g}, as in "
            "1.5"
        )


def grown(sequence: JobSequence, growth: float) -> JobSequence:
    """The same jobs in a shorter time: every arrival divided by `growth`, in whole ms.

    Raises:
        ConfigError: `growth` is out of range.
    """
    check_growth(growth)
    arrival_ms = np.floor(sequence.arrival_ms / growth).astype(np.int64)
    return replace(sequence, arrival_ms=arrival_ms)
