"""What a plain Python function sees of the cluster: jobs and stages with typed fields.

A view reads the cluster's tables when a field is read, so that a function pays only for what it
looks at. It is valid until the function returns: the next event changes the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from parcae.base.texts import s_from_ms
from parcae.cluster.kernels.estimates import remaining_ms, total_ms
from parcae.cluster.observation import Observation
from parcae.cluster.state import NO_PROFILE, World


@dataclass(frozen=True, eq=False)
class StageView:
    """A stage of a job in the system; times in seconds."""

    _observation: Observation
    row: int

    @property
    def num_tasks(self) -> int:
        """Tasks of the stage."""
        return int(self._observation.stages.num_tasks[self.row])

    @property
    def num_waiting(self) -> int:
        """Tasks that wait to start: for the first time, after a failure, or as a copy of a task."""
        return self.num_tasks - int(self._observation.stages.num_started[self.row])

    @property
    def num_finished(self) -> int:
        """Tasks that have finished."""
        return int(self._observation.stages.num_finished[self.row])

    @property
    def num_running(self) -> int:
        """Tasks that run now. A task and its copy count as two."""
        stages = self._observation.stages
        if self._observation.now.world[0] == World.CORES:
            return int(stages.num_bound[self.row])
        return int(stages.num_started[self.row]) - self.num_finished

    @property
    def task_s(self) -> float:
        """Estimated mean duration of a task; 0 where nothing is known."""
        return s_from_ms(float(self._observation.stages.task_ms[self.row]))

    @property
    def is_runnable(self) -> bool:
        """Whether one of its tasks could start now, given a core (or executor)."""
        if self._observation.now.world[0] == World.EXECUTORS:
            return self._observation.is_schedulable(self.row)
        is_ready = int(self._observation.stages.frontier_rank[self.row]) >= 0
        return is_ready and self.num_waiting > 0


@dataclass(frozen=True, eq=False)
class JobView:
    """A job in the system; times in seconds."""

    _observation: Observation
    _names: Sequence[str]
    row: int

    @property
    def name(self) -> str:
        """The recurring job's name; empty where the workload does not know the job."""
        profile = int(self._observation.jobs.profile[self.row])
        return "" if profile == NO_PROFILE else self._names[profile]

    @property
    def arrival_s(self) -> float:
        """When it arrived."""
        return s_from_ms(int(self._observation.jobs.arrival_ms[self.row]))

    @property
    def age_s(self) -> float:
        """How long it has been in the system."""
        return s_from_ms(int(self._observation.now.clock_ms[0])) - self.arrival_s

    @property
    def total_s(self) -> float:
        """Estimated work of all its tasks, in core-seconds."""
        return s_from_ms(float(total_ms(self._observation, self.row)))

    @property
    def remaining_s(self) -> float:
        """Estimated work of the tasks that have not started, in core-seconds.

        In the world of cores the estimate follows the durations of the job's finished tasks.
        """
        return s_from_ms(float(remaining_ms(self._observation, self.row)))

    @property
    def num_running(self) -> int:
        """Tasks that run now; see `StageView.num_running`."""
        return sum(stage.num_running for stage in self.stages)

    @property
    def num_waiting(self) -> int:
        """Tasks that wait to start; see `StageView.num_waiting`."""
        return sum(stage.num_waiting for stage in self.stages)

    @cached_property
    def stages(self) -> tuple[StageView, ...]:
        """Its stages, in the job's order."""
        return tuple(
            StageView(self._observation, row) for row in self._observation.stages_of(self.row)
        )


@dataclass(frozen=True, eq=False)
class SchedulerView:
    """What a scheduler knows at one moment.

    Args:
        observation: the tables behind the view, for what the view does not show.
        names: the names of the workload's recurring jobs, by profile.
    """

    observation: Observation
    names: Sequence[str]

    @property
    def time_s(self) -> float:
        """Seconds since the start of the run."""
        return s_from_ms(int(self.observation.now.clock_ms[0]))

    @property
    def num_cores(self) -> int:
        """Cores (or executors) of the cluster."""
        return int(self.observation.now.num_executors[0])

    @property
    def num_idle(self) -> int:
        """Cores that are idle; in Decima's world the executors that wait for this decision."""
        is_cores = self.observation.now.world[0] == World.CORES
        now = self.observation.now
        return int(now.num_idle[0] if is_cores else now.num_source[0])

    @cached_property
    def jobs(self) -> tuple[JobView, ...]:
        """The jobs in the system, in order of arrival."""
        rows = self.observation.active_jobs
        return tuple(JobView(self.observation, self.names, int(row)) for row in rows)
