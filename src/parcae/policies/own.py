"""Policies of one's own: policy objects and plain functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from parcae.base.errors import PolicyError
from parcae.base.texts import s_from_ms
from parcae.cluster.kernels.tables import remaining_ms, total_ms
from parcae.cluster.observation import Decision, Observation, Policy
from parcae.cluster.orders import Orders, Planner, first_come
from parcae.cluster.state import NO_PROFILE, World
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import CompiledPolicy
from parcae.workloads.workload import Workload


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


AnyPolicy = Policy | Planner | CompiledPolicy
"""A policy that decides, one that plans, or one that can only run whole simulations (with
accounts)."""

PolicyFunction = Callable[[SchedulerView], "Iterable[JobView] | Orders | Decision"]
"""A plain function: the jobs in order of priority, or a whole answer (`Orders`, `Decision`)."""

PolicyLike = str | Path | AnyPolicy | PolicyFunction
"""Whatever may stand for a policy."""

_ANSWERS = "return the view's jobs in order of priority"


class _FunctionPolicy:
    """A plain function as a policy.

    Args:
        function: the function.
        names: the names of the workload's recurring jobs.
        name: the policy's name, if it is another than the function's.
    """

    def __init__(
        self, function: PolicyFunction, names: Sequence[str], name: str | None = None
    ) -> None:
        self.name = name or name_of(function)
        self._function = function
        self._names = names


class FunctionPlanner(_FunctionPolicy):
    """A plain function as a policy of the world of cores.

    The function is called at every plan. It returns the jobs in order of priority, the first to be
    served first; jobs that it leaves out come last, in order of arrival. It may return `Orders`
    instead.
    """

    def plan(self, observation: Observation) -> Orders:
        """The orders from now on.

        Raises:
            PolicyError: the function returned something else than jobs or orders.
        """
        view = SchedulerView(observation, self._names)
        answer = self._function(view)
        if isinstance(answer, Orders):
            return answer
        orders = first_come(observation)
        rows = _rows(answer, view, self.name, "Orders")
        orders.jobs.tier[:] = float(len(rows))
        for tier, row in enumerate(rows):
            orders.jobs.tier[row] = float(tier)
        return orders


class FunctionDecider(_FunctionPolicy):
    """A plain function as a policy of Decima's world.

    The function is called at every decision. It returns the jobs in order of priority: the first
    stage that may be chosen, of the first job that has one, gets all executors. It may return a
    `Decision` instead.
    """

    def decide(self, observation: Observation) -> Decision:
        """The stage that gets the executors.

        Raises:
            PolicyError: the function returned something else than jobs or a decision.
        """
        view = SchedulerView(observation, self._names)
        answer = self._function(view)
        if isinstance(answer, Decision):
            return answer
        rows = _rows(answer, view, self.name, "a Decision")
        others = [int(row) for row in observation.active_jobs if int(row) not in set(rows)]
        for row in (*rows, *others):
            for stage in observation.stages_of(row):
                if observation.is_schedulable(stage):
                    return Decision(stage, view.num_idle)
        return Decision()


def _rows(answer: Any, view: SchedulerView, name: str, other: str) -> list[int]:
    """The rows of the jobs that a function returned, in its order, each once."""
    hint = f"policy {name!r}: {_ANSWERS}, or {other}"
    if answer is None or isinstance(answer, str) or not isinstance(answer, Iterable):
        raise PolicyError(f"{hint}; it returned {answer!r}")
    rows = []
    for job in answer:
        if not isinstance(job, JobView):
            raise PolicyError(f"{hint}; it returned {job!r} among them")
        rows.append(job.row)
    known = {job.row for job in view.jobs}
    if unknown := [row for row in rows if row not in known]:
        raise PolicyError(f"{hint}; job {unknown[0]} is not in the system any more")
    return list(dict.fromkeys(rows))


def name_of(policy: Any) -> str:
    """How tables call a policy: its name, or the function's."""
    if isinstance(policy, str | Path):
        return str(policy)
    name = getattr(policy, "name", None) or getattr(policy, "__name__", None)
    return str(name or type(policy).__name__)


def policy_object(
    policy: PolicyLike, workload: Workload, cluster: SimulationConfig, name: str | None = None
) -> AnyPolicy | str:
    """A policy object for a plain function, a name for a path; others stay as they are.

    Args:
        policy: a name, the path of a checkpoint, a policy object, or a function over a
            `SchedulerView`.
        workload: whose recurring jobs the function sees by name.
        cluster: says whether the policy plans or decides.
        name: what a function is called as a policy; None: its own name.

    Raises:
        PolicyError: something else.
    """
    is_class = isinstance(policy, type)
    if isinstance(policy, Path):
        return str(policy)
    if not is_class and isinstance(policy, str | Planner | CompiledPolicy):
        return policy
    if not is_class and hasattr(policy, "decide") and hasattr(policy, "name"):
        return cast(Policy, policy)
    if is_class or not callable(policy) or hasattr(policy, "decide"):
        raise PolicyError(
            f"{policy!r} is no policy: give a name (`parcae.list_policies()` shows them), an "
            "object (not a class) with a name and plan(observation) or decide(observation), or a "
            "function"
        )
    names = [job.name for job in workload.jobs]
    if cluster.world is WorldName.CORES:
        return FunctionPlanner(policy, names, name)
    return FunctionDecider(policy, names, name)


def instance(value: Any, text: str) -> Any:
    """An object of a policy's class, called `text` where it has no name; others stay as they are.

    Raises:
        PolicyError: the class needs arguments.
    """
    if not isinstance(value, type):
        return value
    try:
        made = value()
    except TypeError as error:
        raise PolicyError(
            f"policy {text!r}: an object of the class is made without arguments ({error}); name an "
            "object of it, or a function of a SchedulerView"
        ) from None
    if not hasattr(made, "name"):
        made.name = text
    return made
