"""The settings of a simulated cluster."""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from parcae.cluster.state import ExecutorClass, World
from parcae.errors import ConfigError
from parcae.simulation.tables import DurationMode, Interpolation

#: Normalised memory of Decima's executor classes, each of one core.
DECIMA_MEMORY = (0.25, 0.5, 0.75, 1.0)
_CLASSES_HELP = (
    "write decima, or EXECUTORSxCPUxMEMORY of each class: 50x1x0.25,50x1x0.5,50x1x0.75,50x1x1"
)


def decima_classes(num_executors: int) -> tuple[ExecutorClass, ...]:
    """Decima's four classes: 1 core and 0.25, 0.5, 0.75 or 1 unit of memory, a quarter of the executors each.

    What a division by four leaves over goes to the largest classes.

    Raises:
        ConfigError: fewer than four executors.

    Source: Decima, section 7.3. Example: of 6 executors the classes have 1, 1, 2 and 2.
    """
    if num_executors < len(DECIMA_MEMORY):
        raise ConfigError(
            f"Decima's four executor classes need at least 4 executors, not {num_executors}"
        )
    return _sized(tuple(ExecutorClass(1, 1.0, memory) for memory in DECIMA_MEMORY), num_executors)


def _sized(classes: tuple[ExecutorClass, ...], num_executors: int) -> tuple[ExecutorClass, ...]:
    """The classes with so many executors together, in the shares that they have now, at least one each."""
    shares = [c.num_executors / sum(own.num_executors for own in classes) for c in classes]
    counts = [max(1, math.floor(share * num_executors)) for share in shares]
    for row in range(len(classes) - 1, -1, -1):
        missing = num_executors - sum(counts)
        counts[row] = max(1, counts[row] + (missing > 0) + min(0, missing))
    return tuple(
        ExecutorClass(count, c.cpu, c.memory) for count, c in zip(counts, classes, strict=True)
    )


def parse_executor_classes(text: str, num_executors: int) -> tuple[ExecutorClass, ...]:
    """Read executor classes: decima (of so many executors), or EXECUTORSxCPUxMEMORY of each class, separated by commas.

    Raises:
        ConfigError: anything else; the message shows what is understood.

    Example: "50x1x0.25,50x1x1" is two classes of 50 executors.
    """
    if text == "decima":
        return decima_classes(num_executors)
    classes = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)x(\d*\.?\d+)x(\d*\.?\d+)", part.strip())
        if match is None:
            raise ConfigError(f"executor classes {text!r} are not understood: {_CLASSES_HELP}")
        classes.append(ExecutorClass(int(match[1]), float(match[2]), float(match[3])))
    return tuple(classes)


class WorldName(StrEnum):
    """How the cluster gives its executors away, by the names of `--world`."""

    CORES = (
        "cores"  # one Spark application: every core is free after every task and goes to any job
    )
    EXECUTORS = "executors"  # Decima's cluster: executors stay with a stage and move between jobs

    @property
    def world(self) -> World:
        """The state machine's world."""
        return World[self.name]


class SimulationConfig(BaseModel):
    """A simulated cluster; every field is saved beside the results.

    Args:
        world: which world the cluster lives in; a core of the world of cores is an executor that runs one task at a time.
        num_executors: alike executors of the cluster (each runs one task at a time).
        executor_classes: executors of several sizes instead; `num_executors` is then how many they are. Text is understood as
            well: "decima" for that paper's classes of `num_executors`, or EXECUTORSxCPUxMEMORY of each class.
        moving_delay_ms: time that an executor takes to move between jobs (Decima, section 6.2, item 2).
        warmup_delay_ms: added to a first-wave duration where a fresh executor's was not measured.
        durations: sampled from the profile, or deterministic (first, mean).
        interpolation: which level of parallelism stands for numbers of executors between the measured ones.
        end_ms: end of the episode, or None to run to the last event.
        mean_episode_ms: draw the episode's end from an exponential distribution of this mean (Decima, section 5.3).
        unknown_share: share of the jobs whose task durations the scheduler is not told (Decima, Appendix J).
        estimate_error: sigma of a log-normal error on the durations that the scheduler is told; or "log": it is told the
            profile, and runs differ from that as they did in the workload's log (`parcae.simulation.uncertainty`).
        corrects_estimates: world of cores: estimates follow what the finished tasks of a run took.

    Raises:
        pydantic.ValidationError: an unknown key, or a value out of range.
        ConfigError: executor classes that are not understood.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    world: WorldName = WorldName.EXECUTORS
    num_executors: int = Field(default=50, ge=1, le=1 << 20)
    executor_classes: tuple[ExecutorClass, ...] = ()
    moving_delay_ms: int = Field(default=2_000, ge=0)
    warmup_delay_ms: int = Field(default=1_000, ge=0)
    durations: DurationMode = DurationMode.SAMPLED
    interpolation: Interpolation = Interpolation.LINEAR
    end_ms: int | None = Field(default=None, ge=1)
    mean_episode_ms: float | None = Field(default=None, gt=0)
    unknown_share: float = Field(default=0.0, ge=0, le=1)
    estimate_error: Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal["log"] = 0.0
    corrects_estimates: bool = True

    @field_validator("executor_classes", mode="before")
    @classmethod
    def _read_classes(cls, value: Any, info: ValidationInfo) -> Any:
        return (
            parse_executor_classes(value, info.data.get("num_executors", 0))
            if isinstance(value, str)
            else value
        )

    @model_validator(mode="after")
    def _checked(self) -> SimulationConfig:
        if self.executor_classes:
            object.__setattr__(
                self, "num_executors", sum(c.num_executors for c in self.executor_classes)
            )
        if self.executor_classes and self.world is WorldName.CORES:
            raise ValueError(
                "executor classes exist in the world of executors only; leave them out or choose world='executors'"
            )
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

    def resized(self, num_executors: int) -> SimulationConfig:
        """The same cluster with another number of executors; classes keep their shares, and at least one executor each.

        Raises:
            ConfigError: fewer executors than classes.

        Example: two classes of 30 and 10 executors, resized to 20, have 15 and 5.
        """
        if num_executors < max(1, len(self.executor_classes)):
            raise ConfigError(
                f"{num_executors} executors are too few for {len(self.executor_classes)} executor classes"
            )
        classes = _sized(self.executor_classes, num_executors) if self.executor_classes else ()
        return self.model_copy(update={"num_executors": num_executors, "executor_classes": classes})

    def with_reference_semantics(self) -> SimulationConfig:
        """The released code's choices where it departs from the paper (Decima's public simulator)."""
        lower = self.durations is not DurationMode.SAMPLED
        return self.model_copy(
            update={"interpolation": Interpolation.LOWER if lower else Interpolation.INVERTED}
        )
