"""The random draws of the reference simulator, the same as those of the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from parcae.simulation.tables import DurationMode, Interpolation

_MASK = (1 << 64) - 1
_LOW_BITS = (1 << 32) - 1

#: Rows of a job, of a stage within the job and of a task within the stage.
TaskKey = tuple[int, int, int]

#: random_bits(job, stage, task) -> 64 bits
RandomBits = Callable[[int, int, int], int]


def _mix(z: int) -> int:
    """Hash 64 bits; the same function as `parcae.base.compiled.kernels.mix`."""
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & _MASK
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def task_bits(seed: int, job: int, stage: int, task: int) -> int:
    """The 64 random bits of one task, the same as in the kernels."""
    start = _mix((_mix((seed ^ 0x9E3779B97F4A7C15) & _MASK) + job * 0xD1342543DE82EF95 + 1) & _MASK)
    return _mix((start + (stage << 32) + task) & _MASK)


class Draws(Protocol):
    """The random choices when a task starts: the level of parallelism, then the sample."""

    def takes_upper(self, task: TaskKey, n: int, low: int, high: int) -> bool:
        """Choose between two measured levels of parallelism.

        Args:
            task: the task that starts.
            n: executors of its job; low < n < high.
            low: the next smaller measured level.
            high: the next larger measured level.

        Returns:
            whether level `high` is used.
        """

    def sample(self, task: TaskKey, samples: list[int]) -> int:
        """Choose the duration in ms from a list that is not empty."""


@dataclass(frozen=True)
class RandomBitDraws:
    """Draws by a task's random bits: the upper 32 choose the level, the lower 32 the sample.

    Example: `RandomBitDraws(lambda job, stage, task: 0)` always takes the first sample, and the
    upper level if its probability is not 0.
    """

    random_bits: RandomBits
    durations: DurationMode = DurationMode.SAMPLED
    interpolation: Interpolation = Interpolation.LINEAR

    def takes_upper(self, task: TaskKey, n: int, low: int, high: int) -> bool:
        """See `Draws.takes_upper`."""
        weight = {
            Interpolation.LINEAR: n - low,
            Interpolation.INVERTED: high - n,
            Interpolation.LOWER: 0,
        }[self.interpolation]
        return ((self.random_bits(*task) >> 32) * (high - low)) >> 32 < weight

    def sample(self, task: TaskKey, samples: list[int]) -> int:
        """See `Draws.sample`."""
        if self.durations is DurationMode.FIRST:
            return samples[0]
        if self.durations is DurationMode.LISTED:
            return samples[task[2] % len(samples)]
        if self.durations is DurationMode.MEAN:
            return int(sum(samples) / len(samples) + 0.5)
        return samples[((self.random_bits(*task) & _LOW_BITS) * len(samples)) >> 32]
