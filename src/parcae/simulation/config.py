"""The settings of a simulated cluster."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from parcae.cluster.state import ExecutorClass
from parcae.simulation.tables import DurationMode, Interpolation


class SimulationConfig(BaseModel):
    """A simulated cluster; every field is saved beside the results.

    Args:
        num_executors: alike executors of the cluster (each runs one task at a time).
        executor_classes: executors of several sizes instead; overrides `num_executors`.
        moving_delay_ms: time that an executor takes to move between jobs (Decima, section 6.2, item 2).
        warmup_delay_ms: added to a first-wave duration where a fresh executor's was not measured.
        durations: sampled from the profile, or deterministic (first, mean).
        interpolation: which level of parallelism stands for numbers of executors between the measured ones.
        end_ms: end of the episode, or None to run to the last event.
        mean_episode_ms: draw the episode's end from an exponential distribution of this mean (Decima, section 5.3).
        unknown_share: share of the jobs whose task durations the scheduler is not told (Decima, Appendix J).
        estimate_error: sigma of a log-normal error on the durations that the scheduler is told.

    Raises:
        pydantic.ValidationError: an unknown key, or a value out of range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    num_executors: int = Field(default=50, ge=1, le=1 << 20)
    executor_classes: tuple[ExecutorClass, ...] = ()
    moving_delay_ms: int = Field(default=2_000, ge=0)
    warmup_delay_ms: int = Field(default=1_000, ge=0)
    durations: DurationMode = DurationMode.SAMPLED
    interpolation: Interpolation = Interpolation.LINEAR
    end_ms: int | None = Field(default=None, ge=1)
    mean_episode_ms: float | None = Field(default=None, gt=0)
    unknown_share: float = Field(default=0.0, ge=0, le=1)
    estimate_error: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _one_end(self) -> SimulationConfig:
        if self.end_ms is not None and self.mean_episode_ms is not None:
            raise ValueError("give end_ms or mean_episode_ms, not both")
        return self

    @property
    def classes(self) -> tuple[ExecutorClass, ...]:
        """The executor classes: those given, or one class that holds every demand."""
        if self.executor_classes:
            return self.executor_classes
        return (ExecutorClass(self.num_executors, cpu=float("inf"), memory=float("inf")),)

    @property
    def total_executors(self) -> int:
        """Executors of all classes."""
        return sum(c.num_executors for c in self.classes)

    def with_reference_semantics(self) -> SimulationConfig:
        """The released code's choices where it departs from the paper (Decima's public simulator)."""
        lower = self.durations is not DurationMode.SAMPLED
        return self.model_copy(update={"interpolation": Interpolation.LOWER if lower else Interpolation.INVERTED})
