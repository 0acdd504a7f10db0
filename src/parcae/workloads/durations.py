"""Measured task durations of a stage, by wave and by degree of parallelism."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from parcae.base.arrays import Int64Array
from parcae.base.errors import WorkloadError
from parcae.base.loader import shown

LARGEST_DURATION_MS = 1 << 40  # 35 years
LARGEST_ARRIVAL_MS = 1 << 50
LARGEST_WORK_MS = 1 << 60
LARGEST_LEVEL = 100_000
MOST_TASKS = 10_000_000
#: With more, the numbers of pending events do not fit beside their times in the event queue.
MOST_EXECUTORS = 1 << 16


class Wave(IntEnum):
    """Which tasks of a stage a duration sample belongs to (Decima, section 6.2, item 1)."""

    FRESH = 0  # the first task that an executor runs for a job: the executor is cold
    FIRST = 1  # the first task of this stage on an executor that already worked for the job
    REST = 2  # every later task of the same stage on the same executor


NUM_WAVES = len(Wave)


def _as_samples(values: npt.ArrayLike, what: str) -> Int64Array:
    try:
        array = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=np.float64)
    except (OverflowError, ValueError, TypeError) as error:
        raise WorkloadError(f"{what}: durations must be numbers ({error})") from None
    if array.ndim != 1:
        raise WorkloadError(
            f"{what}: durations must be a flat list of numbers, not shape {array.shape}"
        )
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise WorkloadError(
                f"{what}: a duration is NaN or infinite; durations are milliseconds >= 0"
            )
        array = np.rint(array)
    if array.dtype.kind not in "fiu":
        raise WorkloadError(f"{what}: durations must be numbers, not {array.dtype}")
    if array.size and array.max() > LARGEST_DURATION_MS:
        raise WorkloadError(
            f"{what}: a duration is {array.max():g} ms; at most {LARGEST_DURATION_MS:g} ms "
            "(35 years) is a duration"
        )
    samples = array.astype(np.int64)
    if samples.size and samples.min() < 0:
        raise WorkloadError(
            f"{what}: a duration is negative ({samples.min()} ms); durations are milliseconds >= 0"
        )
    samples.flags.writeable = False
    return samples


@dataclass(frozen=True, eq=False)
class TaskDurations:
    """Measured task durations of a stage in ms, by wave and by degree of parallelism.

    Args:
        levels: degrees of parallelism (executors of the job) at which samples were taken,
            ascending.
        fresh, first, rest: samples of each wave, one int64 array (ms) for each level. An array may
            be empty where another wave of the same level can replace it; every level needs at least
            one sample in `fresh` or `first`.

    Raises:
        WorkloadError: levels not ascending and positive, NaN or negative durations, or a level
            without samples.

    Example: `TaskDurations.constant(2_000)` describes a stage whose every task takes two seconds.
    Source: Decima, section 6.2 and Appendix D.
    """

    levels: tuple[int, ...]
    fresh: tuple[Int64Array, ...]
    first: tuple[Int64Array, ...]
    rest: tuple[Int64Array, ...]

    def __post_init__(self) -> None:
        # Callers may pass any sequences of numbers; the object keeps checked int64 arrays. The
        # class is frozen, so converted values need `object.__setattr__`.
        levels = tuple(int(level) for level in self.levels)
        is_ascending = all(low < high for low, high in itertools.pairwise(levels))
        if not levels or not is_ascending or levels[0] < 1:
            raise WorkloadError(
                f"parallelism levels must be positive and ascending, not {list(self.levels)}"
            )
        if levels[-1] > LARGEST_LEVEL:
            raise WorkloadError(
                f"a parallelism level is {shown(levels[-1])}; at most {LARGEST_LEVEL:,} is one"
            )
        object.__setattr__(self, "levels", levels)
        for name in ("fresh", "first", "rest"):
            lists = getattr(self, name)
            if len(lists) != len(levels):
                raise WorkloadError(
                    f"{name}: {len(lists)} sample lists for {len(levels)} parallelism levels"
                )
            what = (f"{name} wave at level {level}" for level in levels)
            object.__setattr__(self, name, tuple(map(_as_samples, lists, what)))
        for level, fresh, first in zip(levels, self.fresh, self.first, strict=True):
            if fresh.size == 0 and first.size == 0:
                raise WorkloadError(
                    f"level {level} has no samples in the fresh and the first wave; "
                    "give at least one"
                )

    @classmethod
    def of(cls, samples: Int64Array) -> TaskDurations:
        """The same samples in every wave and at every parallelism.

        A fresh executor costs no extra time.
        """
        return cls((1,), (samples,), (samples,), (samples,))

    @classmethod
    def constant(cls, duration_ms: int) -> TaskDurations:
        """Every task takes `duration_ms`."""
        return cls.of(_as_samples([duration_ms], "a constant duration"))

    def by_wave(self, wave: Wave) -> tuple[Int64Array, ...]:
        """The samples of one wave, one array for each level."""
        return (self.fresh, self.first, self.rest)[wave]

    @property
    def all_samples(self) -> Int64Array:
        """The samples of all waves and levels, once if all waves have the same."""
        if self._has_same(self.first, self.rest) and self._has_same(self.first, self.fresh):
            return np.concatenate(self.first)
        return np.concatenate([*self.first, *self.rest, *self.fresh])

    @staticmethod
    def _has_same(samples: tuple[Int64Array, ...], others: tuple[Int64Array, ...]) -> bool:
        return all(map(np.array_equal, samples, others))

    @cached_property
    def warm(self) -> TaskDurations:
        """What tasks take in the world of cores, where no executor is fresh.

        No task has a wave or a parallelism of its own there: a core is free after every task, and a
        task contends with all tasks of the application. A stage that has only samples of fresh
        executors keeps them.
        """
        samples = np.concatenate([*self.first, *self.rest])
        is_like_first = self._has_same(self.fresh, self.first)
        if is_like_first or not samples.size or not sum(ms.size for ms in self.fresh):
            return self
        return TaskDurations((1,), (samples[:0],), (samples,), (samples[:0],))

    @cached_property
    def mean_ms(self) -> float:
        """Mean of all samples of all waves and levels.

        It is the "rough" duration of the released simulator.
        """
        return float(self.all_samples.mean())
