"""The guard around a policy: it bounds every job's time in the system relative to fair sharing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parcae.cluster.state import ClusterState
from parcae.errors import PolicyError
from parcae.policies.compiled import PlaysRuns
from parcae.simulation.kernels.simulations import Simulation, Simulations


@dataclass
class Guarded(PlaysRuns):
    """A policy of the world of cores with the guard (`parcae.cluster.kernels.guard`).

    Args:
        name: name in tables and reports.
        policy: the policy whose orders are guarded; it must have the compiled methods `play` and
            `play_many`.
        factor: upper bound of (a job's time in the system / its time under fair sharing), > 1.

    Raises:
        PolicyError: the factor is not a finite number above 1, or the policy is not compiled.

    Example: `Guarded("srpt+guard:1.1", srpt, 1.1)`.
    """

    name: str
    policy: Any
    factor: float

    def __post_init__(self) -> None:
        if not 1.0 < self.factor < float("inf"):
            raise PolicyError(
                f"policy {self.name!r}: the guard's factor must be a finite number above 1, "
                "e.g. +guard:1.1"
            )
        if not hasattr(self.policy, "play"):
            raise PolicyError(
                f"policy {self.name!r}: in a simulation only a compiled policy can be guarded, "
                "and neither plan nor a policy in Python is one; leave the guard out"
            )

    @property
    def kernels(self) -> tuple[Any, Any, Any]:
        """No kernel to plan; functions that play the policy's runs under the guard."""
        return None, self._play, self._play_many

    def arguments_for(self, state: ClusterState) -> tuple[Any, ...]:
        """No further arguments: the policy has its own."""
        return ()

    def _play(self, simulation: Simulation) -> int:
        # The kernels apply the guard to the policy's orders if this factor is set.
        now = simulation.state.now
        now.guard[:] = self.factor
        try:
            return int(self.policy.play(simulation))
        finally:
            # The tables may serve another policy next.
            now.guard[:] = 0.0

    def _play_many(self, simulations: Simulations, first: int, last: int) -> None:
        now = simulations.states.now
        now.guard[first:last] = self.factor
        try:
            self.policy.play_many(simulations, first, last)
        finally:
            now.guard[first:last] = 0.0
