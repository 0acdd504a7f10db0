"""Policies of a live cluster by name, and the plan that they make: a scheduler must answer whatever its policy does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from parcae.cluster.decision import Policy, objection
from parcae.cluster.kernels.cores import accept_orders, ask_for_plan, plan_stage
from parcae.cluster.kernels.serving import forget_orders
from parcae.cluster.observation import observe
from parcae.cluster.orders import Planner, objection_to_orders, orders_of, put
from parcae.cluster.state import NO_JOB, NOT_YET, ClusterState, VirtualRun
from parcae.errors import PolicyError
from parcae.policies.decima.policy import DecimaPolicy
from parcae.policies.learned import is_learned, learned_policy
from parcae.policies.orders.catalog import make_cores_policy, split_guard
from parcae.policies.orders.layout import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.policies.parcae.policy import ParcaePolicy
from parcae.policies.planning import CompiledPlanner
from parcae.service.tables import Repacked, Room, copy_virtual, virtual_runs
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.job import Workload

_LOG = logging.getLogger(__name__)
_MS_PER_S = 1e3


@dataclass(frozen=True)
class LivePolicy:
    """A policy and the factor of its guard (0: none). It belongs to one cluster: planners keep a memory of its jobs."""

    policy: Any
    guard: float = 0.0


#: Makes a policy for a cluster of so many cores.
PolicyFor = Callable[[int], LivePolicy]


def policies_for(text: str, workload: Workload, arrivals: str = "load:0.9") -> PolicyFor:
    """The policy of the world of cores that `text` names; what it takes long to make is made once for a number of cores.

    Args:
        workload: the profile that learned policies are bound to.
        arrivals: how jobs arrive, by which the nearest of the shipped variants is chosen.

    Raises:
        PolicyError, ConfigError, FormatError, OSError: when it is called: no such policy, or one that a live
            cluster cannot follow.
    """
    bare, factor = split_guard(text)

    @lru_cache(maxsize=64)
    def made(num_cores: int) -> Any:
        config = SimulationConfig(world=WorldName.CORES, num_executors=max(1, num_cores))
        if is_learned(bare):
            return learned_policy(bare, workload, config, arrivals)
        policy = make_cores_policy(bare, workload, config)
        if isinstance(policy, OrderPolicy) and policy.kind in (OrderKind.POOLS, OrderKind.GIVEN):
            raise PolicyError(
                f"policy {text!r} orders by Spark's pools, of which a live order knows nothing: "
                "set spark.scheduler.allocation.file in Spark, or choose `fair`"
            )
        return policy

    return lambda num_cores: LivePolicy(_of_its_own(made(num_cores)), factor or 0.0)


def _of_its_own(policy: Any) -> Any:
    """The same policy with a memory of its own; those without one are shared."""
    return replace(policy) if isinstance(policy, DecimaPolicy | ParcaePolicy) else policy


@dataclass(frozen=True)
class Plan:
    """What came of one plan."""

    took_ms: float
    is_fallback: bool


class Planning:
    """Plans for one cluster, by its policy or, where that fails, by fair sharing.

    Args:
        policy_for: asked for every number of cores.
        num_cores: of the cluster now.
        room: of its tables.
    """

    def __init__(self, policy_for: PolicyFor, num_cores: int, room: Room) -> None:
        self._policy_for = policy_for
        self._fair = OrderPolicy("fair", OrderKind.FAIR, plan_tables())
        self._fair_arguments = self._fair.arguments(room.jobs, room.stages)
        self._arguments: tuple[Any, ...] = ()
        self._num_cores = num_cores
        self._live = policy_for(num_cores)
        self._make_memory(room)

    def _make_memory(self, room: Room) -> None:
        policy = self._live.policy
        if isinstance(policy, CompiledPlanner):
            self._arguments = policy.arguments(room.jobs, room.stages)

    @property
    def guard(self) -> float:
        """Factor of the policy's guard; 0: none."""
        return self._live.guard

    @property
    def decides(self) -> bool:
        """Whether the policy decides about stages, and plans through the adapter."""
        return not isinstance(self._live.policy, CompiledPlanner | Planner)

    @property
    def runs(self) -> list[VirtualRun]:
        """The virtual runs that the policy keeps."""
        return list(virtual_runs(self._arguments))

    def resize(self, num_cores: int) -> None:
        """The cluster has so many cores now."""
        if num_cores == self._num_cores:
            return
        self._num_cores = num_cores
        if self.decides:  # planners see the number of cores in every observation
            self._live = self._policy_for(num_cores)

    def moved(self, repacked: Repacked, room: Room) -> None:
        """Rows are elsewhere: take the memory along."""
        if self.decides:
            self._live = replace(self._live, policy=_of_its_own(self._live.policy))
            return
        old = self.runs
        self._make_memory(room)
        for before, after in zip(old, self.runs, strict=True):
            copy_virtual(before, after, repacked.jobs, repacked.stages)

    def plan(self, state: ClusterState) -> Plan:
        """Put new orders into force, whatever the policy does."""
        state.now["guard"][0] = self.guard
        start = time.perf_counter()
        try:
            self._ask(state)
            self._accept(state)
            is_fallback = False
        except Exception as error:  # whatever a policy raises, the cluster must go on
            _LOG.warning(
                "policy %s failed (%s: %s); fair plans",
                _name(self._live.policy),
                type(error).__name__,
                error,
            )
            state.now["guard"][0] = 0.0
            self._begin(state)
            self._fair.kernels[0](state, orders_of(state), *self._fair_arguments)
            accept_orders(state)
            is_fallback = True
        return Plan(_MS_PER_S * (time.perf_counter() - start), is_fallback)

    @staticmethod
    def _begin(state: ClusterState) -> None:
        ask_for_plan(state)
        forget_orders(state)

    def _ask(self, state: ClusterState) -> None:
        policy = self._live.policy
        self._begin(state)
        if isinstance(policy, CompiledPlanner):
            policy.kernels[0](state, orders_of(state), *self._arguments)
        elif isinstance(policy, Planner):
            put(policy.plan(observe(state)), state)
        else:
            _decide(policy, state)

    @staticmethod
    def _accept(state: ClusterState) -> None:
        if not accept_orders(state):
            raise PolicyError(f"its orders make no sense: {objection_to_orders(state)}")
        now = state.now
        runs_nothing = now["num_idle"][0] == now["num_executors"][0]
        if (
            runs_nothing
            and now["num_schedulable"][0] > 0
            and now["wake_ms"][0] == NOT_YET
            and state.contest[1] == NO_JOB
        ):
            raise PolicyError("its orders hold every core back for ever")


def _decide(policy: Policy, state: ClusterState) -> None:
    """Ask a policy that decides until all cores are given away.

    Raises:
        PolicyError: a decision that cannot be carried out.
    """
    num_left = np.inf
    while (num_source := int(state.now["num_source"][0])) > 0 and num_source < num_left:
        num_left = num_source
        observation = observe(state)
        decision = policy.decide(observation)
        why = objection(observation, decision)
        if why is not None:
            raise PolicyError(why)
        plan_stage(state, decision.stage, decision.limit)
    if state.now["num_source"][0] > 0:
        raise PolicyError("its decision takes no core")


def _name(policy: Any) -> str:
    return str(getattr(policy, "name", type(policy).__name__))
