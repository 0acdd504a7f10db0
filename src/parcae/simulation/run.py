"""`simulate`: one run of a job sequence under a policy, which returns its trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

from parcae.cluster.decision import Policy
from parcae.cluster.orders import Planner, Remembers
from parcae.cluster.trace import Trace
from parcae.errors import PolicyError
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.future import Status
from parcae.simulation.kernels.simulations import Simulation
from parcae.simulation.simulator import NO_ORDERS, Simulator, check_status
from parcae.workloads.arrivals import JobSequence


@runtime_checkable
class CompiledPolicy(Protocol):
    """A policy that plays a whole run in one compiled call."""

    @property
    def name(self) -> str:
        """Name of the policy in reports."""

    def play(self, simulation: Simulation) -> int:
        """Run from start to end in one compiled call, and return a `Status`."""


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
        sequence: the jobs and their arrival times.
        policy: a policy that decides, or (world of cores only) one that plans. A compiled policy
            plays the run in one call. In the world of cores, a policy that decides is called at
            every plan until all cores are assigned.
        config: the cluster settings.
        seed: seed of the tasks' random bits. Use the same seed for policies that are compared.
        record: keep every task and decision in the trace.

    Raises:
        PolicyError: a decision or orders that cannot be carried out, a policy that leaves
            everything idle forever, or a planning policy in the executors world.
        WorkloadError: a job that this cluster cannot run.
    """
    if isinstance(policy, Planner) and config.world is not WorldName.CORES:
        raise PolicyError(f"{policy.name}: {NO_ORDERS}")
    simulator = Simulator(sequence, config, seed, record=record)
    if isinstance(policy, Remembers):
        policy.restart()
    if isinstance(policy, CompiledPolicy):
        status = policy.play(simulator.simulation)
        check_status(status, simulator.state, sequence)
    else:
        simulator.start()
        while simulator.status is Status.NEEDS_DECISION:
            _ask(policy, simulator)
    return simulator.trace(policy.name)


def _ask(policy: Policy | Planner, simulator: Simulator) -> None:
    """Let a policy decide or plan, and run until it is due again.

    Raises:
        PolicyError: the decision or the orders cannot be carried out; the message says whose they
            are, and of what time.
    """
    observation = simulator.observe()
    clock_ms = int(observation.now.clock_ms[0])
    proceed: Callable[[], Status]
    if isinstance(policy, Planner):
        proceed = partial(simulator.follow, policy.plan(observation))
    else:
        proceed = partial(simulator.step, policy.decide(observation))
    try:
        proceed()
    except PolicyError as error:
        raise PolicyError(f"policy {policy.name!r} at {clock_ms} ms: {error}") from error
