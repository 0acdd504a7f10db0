"""The learner of `aged`: tries other weights, and keeps what is better on the same runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from own_package.policy import KIND, VERSION, Aged
from parcae.learning.loop import IterationSeeds, Measured
from parcae.learning.scenario import Scenario
from parcae.learning.worlds import LearnerEntry, LearnerRequest
from parcae.policies.checkpoint import Weights
from parcae.simulation.metrics import jct_ms
from parcae.simulation.simulator import simulate
from parcae.workloads.workload import SELECTION_SEED_START


class AgedLearner:
    """A random search; see `parcae.learning.loop.Learner`."""

    kind = KIND
    feature_version = VERSION
    measured = "cost"
    iterations_name = "iterations"
    select_every = 1

    def __init__(self, scenarios: Sequence[Scenario], seed: int) -> None:
        self.scenarios = scenarios
        self.seed = seed
        self.weight = 0.0
        self.simulated_runs = 0

    def settings(self) -> dict[str, Any]:
        """No settings."""
        return {}

    def identity(self) -> dict[str, Any]:
        """The scenarios."""
        return {"scenarios": [scenario.identity() for scenario in self.scenarios]}

    def card(self) -> dict[str, Any]:
        """The first scenario."""
        return self.scenarios[0].card()

    def counts(self) -> dict[str, int]:
        """The simulated runs."""
        return {"simulated_runs": self.simulated_runs}

    def begin(self) -> Sequence[Measured]:
        """Measure the weight at the start."""
        return self.measure()

    def iterate(self, seeds: IterationSeeds, done: float) -> Mapping[str, float]:
        """Try one other weight; smaller steps towards the end."""
        runs = seeds.sequences(4)
        other = self.weight + (1.0 - done) * seeds.rng.standard_normal()
        if self._cost_s(other, runs) < self._cost_s(self.weight, runs):
            self.weight = other
        return {"weight": self.weight}

    def measure(self) -> Sequence[Measured]:
        """The average JCT in seconds on the selection runs."""
        runs = range(SELECTION_SEED_START, SELECTION_SEED_START + 8)
        return [(self._cost_s(self.weight, runs), self.weights())]

    def weights(self) -> Weights:
        """The present weight."""
        return {"weight": np.array([self.weight])}

    def state(self) -> dict[str, Any]:
        """What else a resumed training needs."""
        return {"simulated_runs": self.simulated_runs}

    def restore(self, weights: Weights, state: dict[str, Any]) -> None:
        """Continue from what `weights` and `state` returned."""
        self.weight = float(weights["weight"][0])
        self.simulated_runs = state["simulated_runs"]

    def _cost_s(self, weight: float, seeds: Sequence[int]) -> float:
        policy = Aged("aged", weight)
        runs = [(scenario, seed) for scenario in self.scenarios for seed in seeds]
        self.simulated_runs += len(runs)
        traces = [simulate(one.sequence(seed), policy, one.config, seed) for one, seed in runs]
        return float(np.mean([jct_ms(trace).mean() for trace in traces])) / 1000


def _make(request: LearnerRequest) -> AgedLearner:
    request.refuse_options("aged")
    return AgedLearner(request.scenarios, request.seed)


LEARNERS = (LearnerEntry("aged", _make),)
