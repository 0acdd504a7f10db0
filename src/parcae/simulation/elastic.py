"""Elastic clusters: the settings of Spark's dynamic allocation, and the tables of a run with it."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from parcae.base.options import option
from parcae.simulation.future import ELASTIC, ELASTIC_EXECUTOR, SLOT_CHANGE, Future
from parcae.workloads.import_report import counted

#: Largest time in ms that a setting may have: a day.
_DAY_MS = 86_400_000


class Elastic(BaseModel):
    """How an elastic cluster grows and shrinks; its maximum is the config's `num_executors` cores.

    The defaults are those of Spark, where Spark has one.

    Raises:
        pydantic.ValidationError: a value is out of range, or cores are not whole executors.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: `spark.dynamicAllocation.minExecutors` x cores of an executor.
    min_cores: int = Field(default=0, ge=0, le=1 << 20, description="Fewest cores.")
    # `spark.executor.cores`. Spark's default depends on the cluster manager; 4 is usual.
    cores_per_executor: int = option(
        4,
        "With --cores MIN..MAX: cores of an executor. Cores come and go by executors.",
        ge=1,
        le=1 << 20,
    )
    #: Cores that are up when the run begins; None: `min_cores`.
    initial_cores: int | None = Field(default=None, ge=0, le=1 << 20)
    # `schedulerBacklogTimeout`.
    backlog_ms: int = option(
        1_000,
        "With --cores MIN..MAX: tasks wait so long before each request for executors.",
        "--backlog-timeout",
        ge=1,
        le=_DAY_MS,
        check="ms",
    )
    #: `sustainedSchedulerBacklogTimeout`: tasks wait so long before each further request; None:
    #: `backlog_ms`.
    sustained_backlog_ms: int | None = Field(default=None, ge=1, le=_DAY_MS)
    # `executorIdleTimeout`.
    idle_ms: int = option(
        60_000,
        "With --cores MIN..MAX: an executor that is idle for so long is removed.",
        "--idle-timeout",
        ge=1,
        le=_DAY_MS,
        check="ms",
    )
    # A JVM starts and registers in 2 to 3 s; granting a container takes about as long where the
    # machine is up.
    start_ms: int = option(
        5_000,
        "With --cores MIN..MAX: time from the request of an executor until it runs tasks.",
        "--executor-start",
        ge=0,
        le=_DAY_MS,
        check="ms",
    )

    @model_validator(mode="after")
    def _checked(self) -> Elastic:
        check_whole(self.min_cores, self.cores_per_executor)
        check_whole(self.first_cores, self.cores_per_executor)
        if self.first_cores < self.min_cores:
            raise ValueError(
                f"{self.first_cores} initial cores are fewer than the least number of cores, "
                f"{self.min_cores}"
            )
        return self

    @property
    def first_cores(self) -> int:
        """Cores that are up when the run begins."""
        return self.min_cores if self.initial_cores is None else self.initial_cores


def check_whole(cores: int, cores_per_executor: int) -> None:
    """Check that cores are whole executors."""
    if cores % cores_per_executor:
        raise ValueError(
            f"{counted(cores, 'core')} cannot be whole executors of {cores_per_executor} cores: "
            f"choose a multiple of {cores_per_executor}, or other executors"
        )


Slots = tuple[tuple[int, int], ...]


def with_elastic(
    futures: Future, elastic: Elastic | None, max_cores: int, slots: Slots = ()
) -> Future:
    """Return the tables of simulators with those for an elastic cluster; as they are without one.

    With `slots`, pairs of (time in ms, change of the number of cores) in order of time, cores come
    and go as recorded; a core leaves once it is idle.
    """
    if slots:
        elastic = Elastic(cores_per_executor=1)
    if elastic is None:
        return futures
    count = len(futures.events)
    cores = elastic.cores_per_executor
    table = np.zeros((count, 1), ELASTIC).view(np.recarray)
    table.executor_cores[:] = cores
    table.min_executors[:] = elastic.min_cores // cores
    table.max_executors[:] = max_cores // cores
    table.initial_executors[:] = elastic.first_cores // cores
    table.backlog_ms[:] = elastic.backlog_ms
    table.sustained_ms[:] = elastic.sustained_backlog_ms or elastic.backlog_ms
    table.idle_ms[:] = elastic.idle_ms
    table.start_ms[:] = elastic.start_ms
    executors = np.zeros((count, max_cores // cores), ELASTIC_EXECUTOR).view(np.recarray)
    changes = np.broadcast_to(np.array(list(slots), SLOT_CHANGE), (count, len(slots)))
    return futures._replace(
        slots=changes.copy().view(np.recarray),
        elastic=table,
        elastic_executors=executors,
        core_idle_ms=np.zeros((count, max_cores), np.int64),
    )


def held_core_ms(future: Future, clock_ms: int) -> int | None:
    """The integral of cores up and starting over time, in core ms; None for a fixed cluster."""
    if len(future.elastic) == 0:
        return None
    table = future.elastic[0]
    held = (int(table.num_up) + int(table.num_starting)) * int(table.executor_cores)
    return int(table.held_ms) + held * (clock_ms - int(table.held_until_ms))
