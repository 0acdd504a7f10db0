"""The settings of a simulated cluster."""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from parcae.base.errors import ConfigError, problem
from parcae.base.options import option
from parcae.cluster.state import ExecutorClass, World
from parcae.simulation.elastic import Elastic, Slots, check_whole
from parcae.simulation.faults import Faults, parse_faults
from parcae.simulation.tables import LARGEST_SIGMA, DurationMode, Interpolation
from parcae.workloads.durations import LARGEST_ARRIVAL_MS, MOST_EXECUTORS
from parcae.workloads.import_report import counted
from parcae.workloads.workload import ArrivalProcess, Workload, recorded_work_ms

#: Normalised memory of Decima's executor classes, each of one core.
DECIMA_MEMORY = (0.25, 0.5, 0.75, 1.0)
#: Settings that have an effect in the world of executors only.
ONLY_EXECUTORS = ("executor_classes", "moving_delay_ms", "warmup_delay_ms", "interpolation")
_CLASSES_HELP = (
    "write decima, or EXECUTORSxCPUxMEMORY of each class: 50x1x0.25,50x1x0.5,50x1x0.75,50x1x1"
)


def decima_classes(num_executors: int) -> tuple[ExecutorClass, ...]:
    """Decima's four executor classes, each with a quarter of the executors.

    Every executor has 1 core; the classes have 0.25, 0.5, 0.75 and 1 unit of memory. If the number
    of executors is not a multiple of four, the classes with the most memory get the rest.

    Source: Decima, section 7.3. Example: of 6 executors the classes have 1, 1, 2 and 2.
    """
    if num_executors < len(DECIMA_MEMORY):
        raise ConfigError(
            f"Decima's four executor classes need at least 4 executors, not {num_executors}"
        )
    return _sized(tuple(ExecutorClass(1, 1.0, memory) for memory in DECIMA_MEMORY), num_executors)


def _sized(classes: tuple[ExecutorClass, ...], num_executors: int) -> tuple[ExecutorClass, ...]:
    """Scale the classes to `num_executors` in total: same shares, at least one executor each."""
    total = sum(c.num_executors for c in classes)
    counts = [max(1, c.num_executors * num_executors // total) for c in classes]
    # What rounding down leaves over goes to the last classes, one executor each. If the minimum of
    # one executor each gives too many, they are taken from the last classes.
    for row in range(len(classes) - 1, -1, -1):
        missing = num_executors - sum(counts)
        counts[row] = max(1, counts[row] + (missing > 0) + min(0, missing))
    return tuple(
        ExecutorClass(count, c.cpu, c.memory) for count, c in zip(counts, classes, strict=True)
    )


def parse_executor_classes(text: str, num_executors: int) -> tuple[ExecutorClass, ...]:
    """Parse "decima", or EXECUTORSxCPUxMEMORY for each class, separated by commas.

    `num_executors` is the total number of executors; it is used for "decima" only.

    Example: "50x1x0.25,50x1x1" is two classes of 50 executors.
    """
    if text == "decima":
        return decima_classes(num_executors)
    classes = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)x(\d*\.?\d+)x(\d*\.?\d+)", part.strip())
        if match is None:
            raise ConfigError(f"executor classes {text!r} cannot be parsed: {_CLASSES_HELP}")
        classes.append(ExecutorClass(int(match[1]), float(match[2]), float(match[3])))
    return tuple(classes)


class WorldName(StrEnum):
    """How the cluster assigns its executors to jobs; the values are the names of `--world`."""

    # One Spark application: a core is free after every task and can take a task of any job.
    CORES = "cores"
    # Decima's cluster: an executor stays with a stage, and moving it to another job takes time.
    EXECUTORS = "executors"

    @property
    def world(self) -> World:
        """The value that the state machine uses for this world."""
        return World[self.name]


class SimulationConfig(BaseModel):
    """Settings of a simulated cluster; every field is saved with the results.

    Raises:
        pydantic.ValidationError: a key is unknown or a value is out of range.
        ConfigError: the text of `executor_classes` or `faults` cannot be parsed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    #: The rules by which executors are assigned; in the world of cores an executor is one core.
    world: WorldName = WorldName.EXECUTORS
    num_executors: int = option(
        50, "Number of executors (or cores) of the cluster.", ge=1, le=MOST_EXECUTORS
    )
    # `num_executors` is then set to their total.
    executor_classes: tuple[ExecutorClass, ...] = option(
        (),
        "decima (four classes of 1 core and .25, .5, .75 or 1 unit of memory, a quarter of "
        "--executors each), or a list EXECUTORSxCPUxMEMORY,...",
    )
    # Decima, section 6.2, item 2.
    moving_delay_ms: int = option(
        2_000, "Time that an executor needs to move to another job, in ms.", ge=0, le=10**12
    )
    warmup_delay_ms: int = option(
        1_000,
        "Extra duration of the first task of a newly moved executor, if the profile has no "
        "measured durations of such tasks, in ms.",
        ge=0,
        le=10**12,
    )
    durations: DurationMode = option(
        DurationMode.SAMPLED,
        "Task durations: sampled | first (sample) | mean. The last two are deterministic.",
    )
    #: Which measured level of parallelism is used for a number of executors between two levels.
    interpolation: Interpolation = Interpolation.LINEAR
    #: End of the episode; None: the last event.
    end_ms: int | None = Field(default=None, ge=1, le=LARGEST_ARRIVAL_MS)
    #: Draw the end of the episode from an exponential distribution with this mean (Decima, section
    #: 5.3).
    mean_episode_ms: float | None = Field(default=None, gt=0, le=LARGEST_ARRIVAL_MS)
    # Decima, Appendix J.
    unknown_share: float = option(
        0.0, "Share of the jobs whose durations the policies do not know.", ge=0, le=1
    )
    estimate_error: Annotated[float, Field(ge=0, le=LARGEST_SIGMA)] | Literal["log"] = option(
        0.0,
        "log (runs differ from their profiles as in the workload's log), or the sigma of a "
        "log-normal error of the durations that the policies know.",
    )
    #: World of cores: adjust the estimate of a job by the durations of its finished tasks.
    corrects_estimates: bool = True
    faults: Faults | None = option(
        None,
        "none | log (at the rates of the workload's event logs) | KEY=VALUE,... such as "
        "failures=0.01,lost=0.5,speculation=on: what goes wrong in the world of cores.",
    )
    #: World of cores: the cluster grows to `num_executors` cores and shrinks; None: a fixed size.
    elastic: Elastic | None = None
    #: World of cores: how the number of cores changed in a log, as (time in ms, change).
    slots: Slots = ()

    @field_validator("executor_classes", mode="before")
    @classmethod
    def _read_classes(cls, value: Any, info: ValidationInfo) -> Any:
        return (
            parse_executor_classes(value, info.data.get("num_executors", 0))
            if isinstance(value, str)
            else value
        )

    @field_validator("faults", mode="before")
    @classmethod
    def _read_faults(cls, value: Any) -> Any:
        return parse_faults(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _checked(self) -> SimulationConfig:
        if self.executor_classes:
            object.__setattr__(
                self, "num_executors", sum(c.num_executors for c in self.executor_classes)
            )
            if self.num_executors > MOST_EXECUTORS:
                raise ValueError(
                    f"the executor classes have {self.num_executors} executors; at most "
                    f"{MOST_EXECUTORS} can be simulated"
                )
        if self.executor_classes and self.world is WorldName.CORES:
            raise ValueError(
                "executor classes exist in the world of executors only; leave them out or choose "
                "world='executors'"
            )
        if self.faults is not None and self.world is not WorldName.CORES:
            raise ValueError(
                "faults exist in the world of cores only; leave them out or choose world='cores'"
            )
        if self.elastic is not None:
            self._check_elastic(self.elastic)
        if self.end_ms is not None and self.mean_episode_ms is not None:
            raise ValueError("give end_ms or mean_episode_ms, not both")
        return self

    def _check_elastic(self, elastic: Elastic) -> None:
        if self.world is not WorldName.CORES:
            raise ValueError(
                "elastic clusters exist in the world of cores only; leave elastic out or choose "
                "world='cores'"
            )
        check_whole(self.num_executors, elastic.cores_per_executor)
        if elastic.first_cores > self.num_executors:
            raise ValueError(
                f"an elastic cluster of at most {counted(self.num_executors, 'core')} cannot "
                f"begin with {elastic.first_cores}"
            )

    @property
    def classes(self) -> tuple[ExecutorClass, ...]:
        """The executor classes; without any, one class with unlimited cpu and memory."""
        if self.executor_classes:
            return self.executor_classes
        return (ExecutorClass(self.num_executors, cpu=float("inf"), memory=float("inf")),)

    @property
    def total_executors(self) -> int:
        """Number of executors in all classes together."""
        return sum(c.num_executors for c in self.classes)

    @property
    def runs_vary(self) -> bool:
        """Whether runs deviate from their profiles as they did in the workload's log."""
        return self.estimate_error == "log"

    @property
    def size_text(self) -> str:
        """The size in words: "64 cores", or "8..64 cores" for an elastic cluster."""
        least = "" if self.elastic is None else f"{self.elastic.min_cores}.."
        return f"{least}{counted(self.total_executors, self.world.value.removesuffix('s'))}"

    def for_tasks_of(self, workload: Workload) -> SimulationConfig:
        """The cluster in slots for the tasks of a workload, each of which may take several cores.

        Example: 8 cores have 4 slots for tasks with `spark.task.cpus` of 2.
        """
        cores = workload.cores_per_task
        if cores == 1 or self.slots or self.world is not WorldName.CORES:
            return self
        elastic = self.elastic
        of_executor = self.num_executors if elastic is None else elastic.cores_per_executor
        slots = of_executor // cores
        if slots == 0:
            raise ConfigError(
                f"a task of workload {workload.name!r} takes {cores} cores (spark.task.cpus), but "
                f"there are only {of_executor}{' in an executor' if elastic else ''}: give more"
            )
        if elastic is not None:
            changes = {"cores_per_executor": slots}
            for name in ("min_cores", "initial_cores"):
                if (given := getattr(elastic, name)) is not None:
                    changes[name] = given // of_executor * slots
            elastic = elastic.model_copy(update=changes)
        size = self.num_executors // of_executor * slots
        return self.model_copy(update={"num_executors": size, "elastic": elastic})

    def jobs_of(self, workload: Workload) -> Workload:
        """The jobs as they are in the cluster's world."""
        return workload.warm if self.world is WorldName.CORES else workload

    def resized(self, num_executors: int) -> SimulationConfig:
        """The same cluster with another number of executors.

        Classes keep their shares of the total and at least one executor each.

        Example: two classes of 30 and 10 executors, resized to 20, have 15 and 5.
        """
        if num_executors < max(1, len(self.executor_classes)):
            raise ConfigError(
                f"too few executors ({num_executors}) for {len(self.executor_classes)} executor "
                "classes"
            )
        classes = _sized(self.executor_classes, num_executors) if self.executor_classes else ()
        try:
            return SimulationConfig(
                **{**dict(self), "num_executors": num_executors, "executor_classes": classes}
            )
        except ValidationError as error:
            size = counted(num_executors, "executor")
            raise ConfigError(f"{size}: {problem(error.errors()[0])}") from None

    def with_reference_semantics(self) -> SimulationConfig:
        """The same settings with the choices of Decima's public simulator.

        They are used where that code deviates from the paper.
        """
        lower = self.durations is not DurationMode.SAMPLED
        return self.model_copy(
            update={"interpolation": Interpolation.LOWER if lower else Interpolation.INVERTED}
        )


def offered_load(workload: Workload, config: SimulationConfig, arrivals: str) -> float:
    """Expected work of the arriving jobs / capacity of the cluster, with mean task durations.

    It is infinite if all jobs arrive at once (a batch).

    Example: a job of 40 s of work every 10 s on 10 executors is a load of 0.4.
    """
    workload = config.jobs_of(workload)
    gap_ms = mean_gap_ms(workload, config, arrivals)
    if gap_ms == 0:
        return math.inf
    process = ArrivalProcess.parse(arrivals)
    if process.kind == "trace" or process.replays(workload):
        work_ms = recorded_work_ms(workload, config.runs_vary)
    else:
        work_ms = workload.expected_work_ms(config.runs_vary)
    return work_ms / (gap_ms * config.for_tasks_of(workload).total_executors)


def mean_gap_ms(workload: Workload, config: SimulationConfig, arrivals: str) -> float:
    """Return the mean time between arrivals in ms; 0 if all jobs arrive at once."""
    process = ArrivalProcess.parse(arrivals)
    if not process.replays(workload):
        slots = config.for_tasks_of(workload).total_executors
        return process.mean_gap_ms(config.jobs_of(workload), slots, config.runs_vary)
    times = [job.arrival_ms or 0 for job in workload.jobs]
    return (max(times) - min(times)) / max(1, len(times) - 1)
