"""Whole runs: a sequence, a policy, a trace."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from parcae.cluster.decision import Policy
from parcae.cluster.orders import Planner
from parcae.cluster.state import ClusterState
from parcae.cluster.trace import Trace
from parcae.errors import PolicyError
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.future import Future, Status
from parcae.simulation.simulator import NO_ORDERS, Simulator, check_status
from parcae.simulation.tables import WorkloadTables
from parcae.workloads.arrivals import JobSequence


@runtime_checkable
class CompiledPolicy(Protocol):
    """A policy that plays a whole run in one compiled call."""

    @property
    def name(self) -> str:
        """How reports call the policy."""

    def play(self, state: ClusterState, future: Future, tables: WorkloadTables) -> int:
        """Run from the start to the end. Returns a Status."""


def simulate(
    sequence: JobSequence,
    policy: Policy | Planner | CompiledPolicy,
    config: SimulationConfig,
    seed: int,
    *,
    record: bool = False,
) -> Trace:
    """Run a sequence of jobs under a policy.

    Args:
        sequence: the jobs and when they arrive.
        policy: who decides, or (world of cores) plans; a compiled policy plays the run in one call. In the world of cores a
            policy that decides is asked at every plan until all cores are given away.
        config: the cluster.
        seed: seed of the tasks' luck: the same for every policy that is compared.
        record: keep every task and decision in the trace.

    Raises:
        PolicyError: a decision or orders that cannot be carried out, a policy that idles for ever, or one that plans orders
            where the world knows none.
        WorkloadError: jobs that this cluster cannot run.
    """
    if isinstance(policy, Planner) and config.world is not WorldName.CORES:
        raise PolicyError(f"{policy.name}: {NO_ORDERS}")
    simulator = Simulator(sequence, config, seed, record=record)
    if isinstance(policy, CompiledPolicy):
        status = policy.play(simulator.state, simulator.future, simulator.tables)
        check_status(status, simulator.state, sequence)
    else:
        simulator.start()
        while simulator.status is Status.NEEDS_DECISION:
            if isinstance(policy, Planner):
                simulator.follow(policy.plan(simulator.observe()))
            else:
                simulator.step(policy.decide(simulator.observe()))
    return simulator.trace(policy.name)
