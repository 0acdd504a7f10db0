"""What a policy is learned for: a workload, a cluster, arrivals and an objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parcae.metrics.jobs import ideal_ms
from parcae.metrics.objectives import Objective, objective_cost
from parcae.simulation.config import SimulationConfig
from parcae.simulation.many import PlayMany, SimulatorBatch
from parcae.workloads.arrivals import JobSequence, draw_sequence
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import RandomStreams


@dataclass(frozen=True)
class Scenario:
    """Runs of `num_jobs` jobs of a workload on a cluster, and what is to be small.

    Args:
        arrivals: "batch", "poisson:25s", "load:0.85"; see `parcae.workloads.arrivals`.
    """

    workload: Workload
    config: SimulationConfig
    arrivals: str
    num_jobs: int
    objective: Objective = Objective.AVERAGE_JCT

    def sequence(self, seed: int) -> JobSequence:
        """The jobs of the run of one seed."""
        return draw_sequence(
            self.workload,
            self.arrivals,
            self.num_jobs,
            self.config.total_executors,
            RandomStreams(seed),
        )

    def batch(self, seeds: Sequence[int]) -> Runs:
        """Simulators for the runs of these seeds."""
        return Runs(self, seeds)


class Runs:
    """The same runs for one policy after another: every call of `cost` starts them afresh with the same luck."""

    def __init__(self, scenario: Scenario, seeds: Sequence[int]) -> None:
        self.scenario = scenario
        self.sequences = [scenario.sequence(seed) for seed in seeds]
        self.simulators = SimulatorBatch(self.sequences, scenario.config, list(seeds))
        self._arrival_ms = np.array([s.arrival_ms for s in self.sequences], np.float64)
        executors = scenario.config.total_executors
        needs_ideal = scenario.objective in (Objective.MEAN_SLOWDOWN, Objective.MISSED_DEADLINES)
        self._ideal_ms = (
            np.array([ideal_ms(s, executors) for s in self.sequences])
            if needs_ideal
            else np.ones_like(self._arrival_ms)
        )

    def cost(self, play_many: PlayMany) -> npt.NDArray[np.float64]:
        """The objective of every run under a policy, float64[num_runs].

        Raises:
            PolicyError: a policy that idles for ever.
        """
        self.simulators.run(play_many)
        states = self.simulators.states
        end_ms = states.jobs.completion_ms.astype(np.float64)
        unfinished = end_ms < 0
        end_ms = np.where(unfinished, np.maximum(states.now.clock_ms, self._arrival_ms), end_ms)
        return objective_cost(self.scenario.objective, self._arrival_ms, end_ms, self._ideal_ms)
