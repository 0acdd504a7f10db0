"""A cluster of the world of cores that tests step by hand, without the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.kernels.cores import accept_orders, complete_stage, end_task, reveal_stage
from parcae.cluster.kernels.dispatch import dispatch
from parcae.cluster.kernels.transitions import job_arrived, reset
from parcae.cluster.observation import observe
from parcae.cluster.orders import first_come, put
from parcae.cluster.state import (
    NO_STAGE,
    STAGE_SPEC,
    ClusterState,
    ExecutorClass,
    VirtualRun,
    World,
    allocate,
    allocate_virtual,
    select,
)


class Cores:
    """A cluster with a given number of cores, whose jobs arrive when the test says so.

    Example: `cores = Cores(2); job = cores.arrive([(3, 100.0, ())]); cores.reveal(job, 0)`.
    """

    def __init__(self, num_cores: int, num_jobs: int = 4, num_stages: int = 16) -> None:
        many = allocate(1, (ExecutorClass(num_cores),), num_jobs, num_stages, 32, World.CORES)
        self.state: ClusterState = select(many, 0)
        self.virtual: VirtualRun = allocate_virtual(num_jobs, num_stages)
        reset(self.state)

    def arrive(self, stages: Stages) -> int:
        """Add a job without runnable stages. Returns its row."""
        return add_job(self.state, stages)

    def row(self, job: int, stage: int) -> int:
        """Return the row of a job's stage."""
        return int(self.state.jobs.stage_start[job]) + stage

    def reveal(self, job: int, stage: int) -> None:
        """Make a stage without parents runnable."""
        reveal_stage(self.state, self.row(job, stage))

    def follow(self, **changes: Any) -> bool:
        """Put first-come orders into force, with the given columns changed.

        Columns of stages start with `stage_`, the others are columns of jobs.
        """
        orders = first_come(observe(self.state))
        for name, values in changes.items():
            table = orders.stages if name.startswith("stage_") else orders.jobs
            table[name.removeprefix("stage_")][: len(values)] = values
        put(orders, self.state)
        return bool(accept_orders(self.state))

    def offer(self) -> list[tuple[int, int, int]]:
        """Run one offer round. Returns (core, job, stage) of every task that starts."""
        state = self.state
        dispatch(state)
        started = []
        for command in state.commands[: int(state.now.num_commands[0])]:
            job = int(state.stages.job[command.stage])
            started.append((int(command.executor), job, int(command.stage) - self.row(job, 0)))
        state.now.num_commands[0] = 0
        return started

    def end(self, core: int) -> int:
        """End the core's task. Returns its stage if the task was the last one, else NO_STAGE."""
        return int(end_task(self.state, core))

    def end_stage(self, core: int) -> None:
        """End the core's task, the last of its stage, and complete the stage."""
        stage = self.end(core)
        assert stage != NO_STAGE
        complete_stage(self.state, stage)


Stages = Sequence[tuple[int, float, tuple[int, ...]]]  # (number of tasks, ms of one, parents)


def add_job(
    state: ClusterState, stages: Stages, memory: Sequence[float] = (), knowledge: float = 1.0
) -> int:
    """Let a job arrive now, whose stages' tasks demand this memory. Returns its row."""
    specs, children = _specs(stages, memory)
    now_ms = int(state.now.clock_ms[0])
    return int(job_arrived(state, specs, children, 0, len(stages), 0, now_ms, knowledge))


def _specs(stages: Stages, memory: Sequence[float]) -> tuple[Any, npt.NDArray[np.int64]]:
    """Return (STAGE_SPEC rows, children) of a job."""
    specs = np.zeros(len(stages), STAGE_SPEC).view(np.recarray)
    edges: list[int] = []
    for row, (num_tasks, task_ms, parents) in enumerate(stages):
        children = [child for child, stage in enumerate(stages) if row in stage[2]]
        needed = memory[row] if memory else 0.0
        first = len(edges)
        specs[row] = (num_tasks, len(parents), first, len(children), task_ms, 0.0, 0.0, needed)
        edges.extend(children)
    return specs, np.array(edges or [0], np.int64)
