"""Policies of one's own: policy objects and plain functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from parcae.base.errors import PolicyError
from parcae.cluster.decision import Decision, Policy
from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders, Planner, first_come
from parcae.policies.views import JobView, SchedulerView
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import CompiledPolicy
from parcae.workloads.workload import Workload

AnyPolicy = Policy | Planner | CompiledPolicy
"""A policy that decides, one that plans, or one that can only run whole simulations (guarded)."""

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
