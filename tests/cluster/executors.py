"""A cluster of Decima's world that tests step by hand, without the simulator.

The test is the simulator: it sets the clock, ends tasks and lets executors arrive.
"""

from __future__ import annotations

from collections.abc import Sequence

from parcae.cluster.kernels.decisions import apply_decision
from parcae.cluster.kernels.executors import offer_to_newcomers
from parcae.cluster.kernels.transitions import (
    continue_stage,
    executor_arrived,
    reset,
    stage_exhausted,
)
from parcae.cluster.state import (
    ANY_CLASS,
    NO_STAGE,
    ClusterState,
    CommandKind,
    ExecutorClass,
    World,
    allocate,
    select,
)
from parcae.workloads.durations import Wave
from tests.cluster.cores import Stages, add_job
from tests.cluster.invariants import check_invariants

Command = tuple[str, int, int] | tuple[str, int, int, int, str]


class Executors:
    """A cluster with the given executor classes; a number stands for that many alike.

    Example: `cluster = Executors(2); cluster.submit([(3, 100.0, ())]); cluster.decide(0, 2)`.
    """

    def __init__(self, *classes: int | ExecutorClass, num_jobs: int = 4) -> None:
        sizes = tuple(c if isinstance(c, ExecutorClass) else ExecutorClass(c) for c in classes)
        self.state: ClusterState = select(allocate(1, sizes, num_jobs, 16, 32), 0)
        assert self.state.now.world[0] == World.EXECUTORS
        reset(self.state)

    def submit(self, stages: Stages, memory: Sequence[float] = ()) -> int:
        """Add a job and offer the idle executors. Returns the job's row."""
        job = add_job(self.state, stages, memory)
        offer_to_newcomers(self.state)
        return job

    def at(self, clock_ms: int) -> None:
        """Set the clock."""
        self.state.now.clock_ms[0] = clock_ms

    def decide(
        self, stage: int, limit: int = 1, executor_class: int = ANY_CLASS, hold_ms: int = 0
    ) -> int:
        """Apply a decision. Returns the number of committed executors, or -1."""
        count = int(apply_decision(self.state, stage, limit, executor_class, hold_ms))
        if count >= 0:
            check_invariants(self.state)
        return count

    def idle(self) -> int:
        """Decide to let all offered executors idle. Returns their number."""
        return self.decide(NO_STAGE)

    def end(self, executor: int) -> bool:
        """End the executor's task. Returns whether it goes on with the next one of its stage."""
        goes_on = bool(continue_stage(self.state, executor, self.state.executors.stage[executor]))
        if not goes_on:
            stage_exhausted(self.state, executor)
        check_invariants(self.state)
        return goes_on

    def arrive(self, executor: int) -> None:
        """Let a moving executor arrive."""
        executor_arrived(self.state, executor)
        check_invariants(self.state)

    def commands(self) -> list[Command]:
        """Take the written commands.

        They are ("move", executor, stage) or ("start", executor, stage, task, wave).
        """
        taken: list[Command] = []
        for row in self.state.commands[: int(self.state.now.num_commands[0])]:
            where = (int(row.executor), int(row.stage))
            if row.kind == CommandKind.MOVE_EXECUTOR:
                taken.append(("move", *where))
            else:
                taken.append(("start", *where, int(row.task), Wave(int(row.wave)).name.lower()))
        self.state.now.num_commands[0] = 0
        return taken

    def offered(self) -> tuple[int, int]:
        """Return (job whose executors the round offers, their number)."""
        now = self.state.now
        return int(now.source_job[0]), int(now.num_source[0])
