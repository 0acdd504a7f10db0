"""Policies for live clusters: make them by name, and let them plan.

If a policy fails, fair sharing plans in its place: a live cluster always gets orders.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from parcae.base.errors import PolicyError
from parcae.base.texts import MS_PER_S
from parcae.cluster.kernels.cores import (
    accept_orders,
    ask_for_plan,
    is_stalled,
    plan_stage,
    settle_round,
)
from parcae.cluster.kernels.policies import plan
from parcae.cluster.kernels.serving import forget_orders
from parcae.cluster.observation import Policy, objection, observe
from parcae.cluster.orders import Planner, objection_to_orders, orders_of, put
from parcae.cluster.state import NOT_YET, ClusterState, VirtualRun
from parcae.policies.additions import Accounted, TenantPolicy
from parcae.policies.checkpoint import read_checkpoint
from parcae.policies.compiled import CompiledPlanner, virtual_runs
from parcae.policies.formula.policy import FormulaPolicy
from parcae.policies.names import parse_live_name
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.policies.registry import PolicySetting, make
from parcae.service.tables import Repacked, Room, copy_virtual
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.durations import MOST_EXECUTORS
from parcae.workloads.workload import Workload

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class LivePolicy:
    """A policy, and the accounts of users under it (None: they keep none).

    It belongs to one cluster, because planners remember the cluster's jobs.
    """

    policy: Any
    accounts: Accounted | FormulaPolicy | None = None


#: Makes a policy for a cluster with a given number of cores.
PolicyFor = Callable[[int], LivePolicy]


def policies_for(text: str, workload: Workload, arrivals: str = "load:0.9") -> PolicyFor:
    """A function that makes the named policy of the world of cores.

    The expensive part of a policy is made once for each number of cores.
    """
    name = parse_live_name(text)
    if name.account:
        raise PolicyError(f"policy {text!r}: in the service all users have equal weights")
    # Once: a file that is replaced or removed must not change or end a service that runs.
    read = cache(read_checkpoint)

    @lru_cache(maxsize=64)
    def made(num_cores: int) -> Any:
        # A larger cluster gets the policy of the largest one that can be simulated.
        cores = min(max(1, num_cores), MOST_EXECUTORS)
        # Runs of a job differ from its profile as they did in the workload's log.
        config = SimulationConfig(world=WorldName.CORES, num_executors=cores, estimate_error="log")
        policy = make(name, PolicySetting(workload, config, arrivals, read))
        if isinstance(policy, TenantPolicy):
            raise PolicyError(f"policy {text!r} gives each user a pool, which Spark has to keep")
        of_spark = (OrderKind.POOLS, OrderKind.POOLS_SPARK_JOBS)
        if isinstance(policy, OrderPolicy) and policy.kind in of_spark:
            raise PolicyError(
                f"policy {text!r} orders by Spark's pools, which orders of the service do not "
                "contain: set spark.scheduler.allocation.file in Spark, or choose `fair`"
            )
        return policy

    def live(num_cores: int) -> LivePolicy:
        policy = with_new_memory(made(num_cores))
        if isinstance(policy, FormulaPolicy) and policy.keeps_accounts:
            return LivePolicy(policy, policy)
        return LivePolicy(policy, None if name.account is None else Accounted(text, policy))

    return live


def with_new_memory(policy: Any) -> Any:
    """The same policy with a separate, empty memory; policies without memory are shared."""
    return replace(policy) if getattr(policy, "has_memory", False) else policy


@dataclass(frozen=True)
class TimedPlan:
    """How long a plan took, and whether fair sharing made it in place of the policy."""

    took_ms: float
    is_fallback: bool


class Planning:
    """Plans for one cluster with its policy or, if that fails, with fair sharing."""

    def __init__(self, policy_for: PolicyFor, num_cores: int, room: Room) -> None:
        self._policy_for = policy_for
        self._fair = OrderPolicy("fair", OrderKind.FAIR, plan_tables())
        self._fair_tables = self._fair.tables_for(room.jobs, room.stages)
        self._tables: Any = None
        self._num_cores = num_cores
        self._live = policy_for(num_cores)
        self._make_memory(room)

    def _make_memory(self, room: Room) -> None:
        """Allocate the policy's tables for jobs and stages; they are empty."""
        policy = self._live.policy
        if isinstance(policy, CompiledPlanner):
            self._tables = policy.tables_for(room.jobs, room.stages, 1)

    def begin(self, state: ClusterState) -> None:
        """Let a new state keep the accounts of users, if the policy has them."""
        if self._live.accounts is not None:
            self._live.accounts.keep(state.now)

    @property
    def decides(self) -> bool:
        """Whether the policy makes decisions about stages, which an adapter turns into a plan."""
        return not isinstance(self._live.policy, CompiledPlanner | Planner)

    @property
    def runs(self) -> list[VirtualRun]:
        """The virtual runs in the policy's memory."""
        return list(virtual_runs(self._tables))

    def resize(self, num_cores: int) -> None:
        """Adapt the policy to a new number of cores."""
        if num_cores == self._num_cores:
            return
        self._num_cores = num_cores
        # A planner reads the number of cores from every observation and stays as it is.
        if self.decides:
            self._live = self._policy_for(num_cores)

    def moved(self, repacked: Repacked, room: Room) -> None:
        """Move the policy's memory to the rows of repacked tables, which have the size `room`."""
        if self.decides:
            self._live = replace(self._live, policy=with_new_memory(self._live.policy))
            return
        old = self.runs
        self._make_memory(room)
        for before, after in zip(old, self.runs, strict=True):
            copy_virtual(before, after, repacked.jobs, repacked.stages)

    def plan(self, state: ClusterState) -> TimedPlan:
        """Put new orders into force: the policy's or, if it fails, those of fair sharing."""
        self.begin(state)
        start = time.perf_counter()
        try:
            self._ask(state)
            self._accept(state)
            is_fallback = False
        except Exception as error:  # a policy may raise anything; the cluster must go on
            _LOG.warning(
                "policy %s failed (%s: %s); fair sharing made this plan",
                _name(self._live.policy),
                type(error).__name__,
                error,
            )
            self.plan_fairly(state)
            is_fallback = True
        return TimedPlan(MS_PER_S * (time.perf_counter() - start), is_fallback)

    def plan_fairly(self, state: ClusterState) -> None:
        """Put the orders of fair sharing into force in place of the policy's."""
        state.now["account_factor"][0] = 0.0
        settle_round(state, False)  # decisions before a failure have committed cores
        self._begin(state)
        plan(state, orders_of(state), self._fair_tables)
        accept_orders(state)

    @staticmethod
    def _begin(state: ClusterState) -> None:
        ask_for_plan(state)
        forget_orders(state)

    def _ask(self, state: ClusterState) -> None:
        """Let the policy write its orders into the state."""
        policy = self._live.policy
        self._begin(state)
        if isinstance(policy, CompiledPlanner):
            plan(state, orders_of(state), self._tables)
        elif isinstance(policy, Planner):
            put(policy.plan(observe(state)), state)
        else:
            _decide(policy, state)

    @staticmethod
    def _accept(state: ClusterState) -> None:
        """Put the written orders into force."""
        if not accept_orders(state):
            raise PolicyError(f"its orders are invalid: {objection_to_orders(state)}")
        if is_stalled(state) and state.now["wake_ms"][0] == NOT_YET:
            raise PolicyError("its orders hold every core back forever")


def _decide(policy: Policy, state: ClusterState) -> None:
    """Call a policy that decides until all cores are assigned."""
    num_left = int(state.now["num_source"][0])
    while num_left > 0:
        observation = observe(state)
        decision = policy.decide(observation)
        why = objection(observation, decision)
        if why is not None:
            raise PolicyError(why)
        num_left = plan_stage(state, decision.stage, decision.limit)
    if num_left < 0:
        raise PolicyError("its decision assigns no core")


def _name(policy: Any) -> str:
    return str(getattr(policy, "name", type(policy).__name__))
