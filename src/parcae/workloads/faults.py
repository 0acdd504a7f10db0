"""What went wrong in the applications that a workload was made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from parcae.errors import WorkloadError
from parcae.units import MS_PER_HOUR


@dataclass(frozen=True)
class LoggedFaults:
    """Counts over all event logs of a workload; `parcae ... --faults log` simulates their rates.

    Args:
        num_attempts: attempts of tasks that succeeded or failed. Those that were killed, whose
            executor was lost or whose input was lost do not count.
        num_failed: those of them that failed.
        num_speculative: copies of running tasks that Spark started.
        num_lost_executors: executors that were lost, not removed because they were idle.
        executor_ms: time that all executors were up, together.
        executor_cores: cores of most executors; 0 if unknown.
        num_restarts: losses after which a new executor came.
        restarts_ms: time from those losses to the new executors, together.

    Raises:
        WorkloadError: a count is negative or not finite, or more attempts failed than there were.
    """

    num_attempts: int
    num_failed: int = 0
    num_speculative: int = 0
    num_lost_executors: int = 0
    executor_ms: float = 0.0
    executor_cores: int = 0
    num_restarts: int = 0
    restarts_ms: float = 0.0

    def __post_init__(self) -> None:
        values = [float(value) for value in vars(self).values()]
        if not all(0 <= value < math.inf for value in values):
            raise WorkloadError("a count of faults is negative or not finite")
        if self.num_failed > self.num_attempts:
            raise WorkloadError(
                f"{self.num_failed} of {self.num_attempts} attempts of tasks cannot have failed"
            )

    @property
    def failure_rate(self) -> float:
        """Share of the attempts that failed."""
        return self.num_failed / self.num_attempts if self.num_attempts else 0.0

    @property
    def lost_per_hour(self) -> float:
        """Losses per executor and hour."""
        if self.executor_ms <= 0:
            return 0.0
        return self.num_lost_executors / (self.executor_ms / MS_PER_HOUR)

    @property
    def restart_ms(self) -> float:
        """Mean time from a loss to the next new executor; 0 if none came."""
        return self.restarts_ms / self.num_restarts if self.num_restarts else 0.0

    def __str__(self) -> str:
        """The counts and rates in words."""
        hours = self.executor_ms / MS_PER_HOUR
        return (
            f"failed attempts: {self.num_failed:,} of {self.num_attempts:,} "
            f"({self.failure_rate:.2%}); lost executors: {self.num_lost_executors:,} in "
            f"{hours:,.1f} executor hours; speculative copies: {self.num_speculative:,}"
        )


def combined(counts: Sequence[LoggedFaults]) -> LoggedFaults:
    """The counts of several applications together; cores are those of the longest-running one."""
    longest = max(counts, key=lambda one: one.executor_ms)
    return LoggedFaults(
        num_attempts=sum(one.num_attempts for one in counts),
        num_failed=sum(one.num_failed for one in counts),
        num_speculative=sum(one.num_speculative for one in counts),
        num_lost_executors=sum(one.num_lost_executors for one in counts),
        executor_ms=sum(one.executor_ms for one in counts),
        executor_cores=longest.executor_cores,
        num_restarts=sum(one.num_restarts for one in counts),
        restarts_ms=sum(one.restarts_ms for one in counts),
    )
