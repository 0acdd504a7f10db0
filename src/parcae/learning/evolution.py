"""Trains the network of the world of cores by an evolution strategy on simulated runs.

Each generation draws pairs of opposite perturbations of the weights and measures all of them on
the same new runs, relative to the rule that the network corrects. Adam follows the gradient that
the ranks of these costs estimate. Separate selection runs decide which moving average of the
weights is kept. Where none is better than the start, the start is returned.

Why this and not CMA-ES: with several hundred weights and noisy costs a full covariance matrix
cannot be learned, so CMA-ES would have little more than a mean and a step size. The whole state of
this search is a few arrays, and its draws follow from the seed and the generation. An interrupted
search therefore continues to exactly the same weights, while CMA-ES saves its state only by pickle.

Source: Salimans et al., "Evolution Strategies as a Scalable Alternative to Reinforcement Learning"
(2017), sections 2 and 2.1: antithetic sampling, ranks, Adam.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError, PolicyError
from parcae.learning.loop import IterationSeeds, Measured, compile_kernels
from parcae.learning.scenario import Scenario, Yardstick
from parcae.policies import checkpoint
from parcae.policies.learned import require_durations
from parcae.policies.network.kernels import (
    FEATURE_VERSION,
    KIND,
    NUM_ORDER_WEIGHTS,
    initial_weights,
)
from parcae.policies.network.policy import play_rows
from parcae.policies.rule.kernels import NUM_ORDER_PARAMETERS
from parcae.simulation.config import WorldName
from parcae.simulation.simulator import PlayMany

Weights = npt.NDArray[np.float64]

#: Decay rates and epsilon of Adam. The second decay rate is smaller than usual (0.999), because a
#: search has only a few hundred generations.
_MOMENTUM = 0.9
_MEMORY = 0.99
_EPSILON = 1e-8
#: What a resumed search needs beside the weights.
_STATE = ("average", "first", "second", "simulated_runs")
#: Each candidate is measured on about this many jobs, over all scenarios together.
_JOBS_PER_CANDIDATE = 120


@dataclass(frozen=True)
class EvolutionSettings:
    """The settings of the search."""

    num_pairs: int = 16
    spread: float = 0.25
    learning_rate: float = 0.06
    weight_decay: float = 0.02
    averaging: float = 0.1
    runs_per_scenario: int | None = None
    num_selection: int = 100
    select_every: int = 10


class _Measurement:
    """Measures candidates on runs of one scenario, relative to the rule on the same runs."""

    def __init__(
        self, scenario: Scenario, rule: npt.ArrayLike, num_runs: int, num_selection: int
    ) -> None:
        self.scenario = scenario
        self.rule = rule
        self.num_runs = num_runs
        runs = scenario.selection(num_selection)
        # A network whose weights are 0 is the rule itself.
        of_rule = np.zeros((num_selection, NUM_ORDER_WEIGHTS))
        self._selection = Yardstick(runs, runs.mean(self._play(of_rule)))

    def _play(self, rows: Weights) -> PlayMany:
        """Networks with these weights, one for each run."""
        return play_rows(rows, self.rule, self.scenario.workload.mean_work_ms)

    def selection(self, weights: Weights) -> float:
        """Ratio to the rule on the selection runs, which are used for nothing else."""
        count = len(self._selection.runs.sequences)
        return self._selection.ratio(self._play(np.tile(weights, (count, 1))))

    def ratios(self, candidates: Weights, at: IterationSeeds) -> npt.NDArray[np.float64]:
        """Ratios to the rule on new runs, the same for all candidates, float64[len(candidates)]."""
        seeds = at.sequences(self.num_runs)
        rows = np.vstack([np.zeros(NUM_ORDER_WEIGHTS), candidates])  # zeros: the rule itself
        # All candidates run in one batch: row r of the weights plays its own copy of every run.
        runs = self.scenario.batch(seeds * len(rows))
        repeated = np.repeat(rows, len(seeds), axis=0)
        cost = runs.cost(self._play(repeated)).reshape(len(rows), len(seeds)).mean(axis=1)
        of_rule, *of_candidates = cost.tolist()
        return np.array([self.scenario.ratio(one, of_rule) for one in of_candidates])


class Evolution:
    """The evolution strategy for a network that corrects a rule; a learner, see
    `parcae.learning.loop.Learner`.

    It minimises the mean of what `measurements` say, which are such as `_Measurement`. A resumed
    search ends with exactly the same weights as an uninterrupted one, if both run the same number
    of generations.
    """

    kind = KIND
    feature_version = FEATURE_VERSION
    measured = "ratio_to_rule"
    iterations_name = "generations"

    def __init__(
        self,
        measurements: Sequence[Any],
        rule: npt.ArrayLike,
        start: npt.ArrayLike,
        search: EvolutionSettings,
        seed: int,
    ) -> None:
        self.measurements = measurements
        self.rule = np.array(rule, np.float64)
        self.search = search
        self.seed = seed
        self.select_every = search.select_every
        # The weights around which candidates are drawn, and their moving average.
        self.mean = np.array(start, np.float64)
        self.average = self.mean.copy()
        # Moments of Adam.
        self.first = np.zeros(len(self.mean))
        self.second = np.zeros(len(self.mean))
        self.simulated_runs = 0

    def settings(self) -> dict[str, Any]:
        """None: the network has no settings."""
        return {}

    def counts(self) -> dict[str, int]:
        """The simulated runs."""
        return {"simulated_runs": self.simulated_runs}

    def begin(self) -> Sequence[Measured]:
        """Measure the weights at the start."""
        return self.measure()

    def iterate(self, seeds: IterationSeeds, done: float) -> Mapping[str, float]:
        """Run one generation."""
        del done  # the learning rate does not fall
        search = self.search
        # Draws depend only on the seed and the generation, so that a resumed search repeats them.
        rng = np.random.default_rng([seeds.seed, seeds.iteration])
        noise = rng.standard_normal((search.num_pairs, len(self.mean)))
        noise = np.vstack([noise, -noise])  # antithetic pairs
        candidates = self.mean + search.spread * noise
        self.simulated_runs += sum(one.num_runs for one in self.measurements) * len(candidates)
        ratios = np.mean([one.ratios(candidates, seeds) for one in self.measurements], axis=0)
        gradient = _centred_ranks(ratios) @ noise / len(noise) / search.spread
        self._step(gradient, seeds.iteration + 1)
        self.average = self.average + search.averaging * (self.mean - self.average)
        return {"run/ratio_to_rule": float(ratios.mean())}

    def _step(self, gradient: Weights, count: int) -> None:
        """A step of Adam with decoupled weight decay (Loshchilov and Hutter 2019).

        `count` is the number of the step, from 1, so that the bias corrections are not 0.
        """
        self.first = _MOMENTUM * self.first + (1.0 - _MOMENTUM) * gradient
        self.second = _MEMORY * self.second + (1.0 - _MEMORY) * gradient**2
        first = self.first / (1.0 - _MOMENTUM**count)
        second = self.second / (1.0 - _MEMORY**count)
        # The gradient is that of a cost, so the step goes against it.
        step = first / (np.sqrt(second) + _EPSILON) + self.search.weight_decay * self.mean
        self.mean = self.mean - self.search.learning_rate * step

    def measure(self) -> Sequence[Measured]:
        """Measure the average of the weights, which has less noise than the weights themselves."""
        ratio = float(np.mean([one.selection(self.average) for one in self.measurements]))
        return [(ratio, {"rule": self.rule, "network": self.average})]

    def weights(self) -> checkpoint.Weights:
        """The weights around which candidates are drawn, and the rule."""
        return {"rule": self.rule, "network": self.mean}

    def state(self) -> dict[str, Any]:
        """The average, Adam's moments and the number of simulated runs."""
        return {name: getattr(self, name) for name in _STATE}

    def restore(self, weights: checkpoint.Weights, state: dict[str, Any]) -> None:
        """Continue from what `weights` and `state` returned."""
        self.mean = weights["network"]
        for name in _STATE:
            setattr(self, name, state[name])


class EvolutionLearner(Evolution):
    """The evolution strategy for the network of the world of cores.

    Args:
        scenario: what to train for. With several scenarios the mean of their ratios to the rule is
            minimised, so that one network serves all of them.
        rule: parameters of the rule that the network corrects, float64[NUM_ORDER_PARAMETERS].
        settings: the settings of the search; None for the defaults.
        start: weights to start from, float64[NUM_ORDER_WEIGHTS]; None to start from the rule.
        seed: seed of the search, 0 to 255.

    Raises:
        ConfigError: a scenario is of the world of executors or has no durations.
        PolicyError: the number of parameters or weights is wrong.
    """

    def __init__(
        self,
        scenario: Scenario | Sequence[Scenario],
        rule: npt.ArrayLike,
        settings: EvolutionSettings | None = None,
        *,
        start: Weights | None = None,
        seed: int = 0,
    ) -> None:
        self.scenarios = [scenario] if isinstance(scenario, Scenario) else list(scenario)
        search = settings or EvolutionSettings()
        theta = np.array(rule, np.float64)
        weights = initial_weights(seed) if start is None else np.array(start, np.float64)
        _check(self.scenarios, theta, weights)
        # Every scenario gets its share of the runs.
        count = len(self.scenarios)
        num_selection = max(1, search.num_selection // count)
        measurements = []
        for one in self.scenarios:
            fitting = max(1, _JOBS_PER_CANDIDATE // count // one.num_jobs)
            runs = search.runs_per_scenario or fitting
            measurements.append(_Measurement(one, theta, runs, num_selection))
        super().__init__(measurements, theta, weights, search, seed)

    def identity(self) -> dict[str, Any]:
        """The settings of the search, the rule and the scenarios."""
        return {
            "search": asdict(self.search),
            "rule": self.rule.tolist(),
            "scenarios": [scenario.identity() for scenario in self.scenarios],
        }

    def card(self) -> dict[str, Any]:
        """The first scenario, and a list of the others."""
        first, *others = (scenario.card() for scenario in self.scenarios)
        return {**first, "also": others}

    def begin(self) -> Sequence[Measured]:
        """Compile all kernels, and measure the weights at the start."""
        compile_kernels(self)
        return super().begin()


def _centred_ranks(ratios: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Ranks from -0.5 (the smallest) to 0.5; equal ratios share the mean of their ranks."""
    _, value, count = np.unique(ratios, return_inverse=True, return_counts=True)
    places = np.cumsum(count) - (count + 1) / 2
    ranks: npt.NDArray[np.float64] = places[value] / max(1, len(ratios) - 1) - 0.5
    return ranks


def _check(scenarios: Sequence[Scenario], theta: Weights, start: Weights) -> None:
    """Raise an error if the search cannot work with these scenarios, parameters or weights."""
    for scenario in scenarios:
        if scenario.config.world is not WorldName.CORES:
            raise ConfigError(
                "this network corrects orders of the world of cores: use --world cores"
            )
        require_durations(scenario.workload)
    sizes = (
        ("parameters of the rule", theta, NUM_ORDER_PARAMETERS),
        ("weights", start, NUM_ORDER_WEIGHTS),
    )
    for what, values, size in sizes:
        if values.shape != (size,):
            raise PolicyError(f"the world of cores has {size} {what}, not {values.size}")
