"""DeepRM's learning: REINFORCE with a baseline of each sequence's own runs.

    theta += rate x RMSProp(mean over decisions of grad log pi(a | s) (v - b)),  v the reward from the decision to the end of its
    run, b the mean of v over the runs of the same sequence at the same time

Source: DeepRM, section 3.3 and Figure 3; objectives as in section 3.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from parcae.errors import ConfigError, DivergedError
from parcae.learning.config import override
from parcae.learning.packing.loop import IterationSeeds, Weights
from parcae.metrics.packing import mean_cost
from parcae.packing.config import PackingConfig
from parcae.packing.images import ImageSettings
from parcae.packing.layout import Cost
from parcae.packing.sources import PackingSource
from parcae.packing.world import PackingBatch
from parcae.policies.deeprm.kernels import explore_many, scatter
from parcae.policies.deeprm.layout import (
    FEATURE_VERSION,
    HIDDEN,
    KIND,
    Actions,
    DeepRMSettings,
    Network,
    Record,
    Work,
    allocate_record,
    checked,
    initial_weights,
    weight_gradient,
)
from parcae.policies.deeprm.policy import DeepRMPolicy, check_fits, make_network
from parcae.workloads.random_streams import TRAINING_SEED_START

FloatArray = npt.NDArray[np.float64]
#: Parts of an iteration that can be worked on at once; their sums are added in order, so that threads change nothing.
_PARTS = 4


class Sequences(StrEnum):
    """Which sequences an iteration learns from."""

    FIXED = "fixed"  # the paper: the same in all iterations; what is learned fits them better than others
    FRESH = "fresh"  # new ones in every iteration


class Baseline(StrEnum):
    """Which decisions of a sequence's runs are compared."""

    TIME = "time"  # those at the same time step (the paper's text)
    DECISION = "decision"  # those with the same number (the released code)


class Optimizer(StrEnum):
    """How gradients become steps."""

    RMSPROP = "rmsprop"  # acc = 0.9 acc + 0.1 g^2; step = rate g / sqrt(acc + 1e-9)
    ADAM = "adam"  # Kingma and Ba, with 0.9, 0.999 and 1e-8


class DeepRMLearning(BaseModel):
    """How DeepRM learns; an unknown key is refused.

    Args:
        sequences, num_sequences, num_runs: which, how many an iteration, and runs of each.
        baseline: which decisions are compared.
        optimizer, learning_rate: final_rate is the share of the learning rate that is left at the end, reached linearly.
        entropy: weight of the policy's entropy, in units of the reward.
        is_scaled: divides a sequence's advantages by their deviation, so that all sequences count the same.
        actions: which actions have a chance. has_pause: the released code's last column of the image.
        max_decisions: ends a run, so that a policy that waits for ever costs little; what waits then costs nothing more.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sequences: Sequences = Sequences.FRESH
    num_sequences: int = Field(default=100, ge=1)
    num_runs: int = Field(default=20, ge=2)
    baseline: Baseline = Baseline.TIME
    optimizer: Optimizer = Optimizer.RMSPROP
    learning_rate: float = Field(default=1e-3, gt=0)
    final_rate: float = Field(default=1.0, gt=0, le=1)
    entropy: float = Field(default=0.0, ge=0)
    is_scaled: bool = False
    actions: Actions = Actions.ALL
    has_pause: bool = False
    max_decisions: int = Field(default=2_000, ge=1)


# Deviation: DeepRM 3.2 and 4.1: an empty slot's action lets time pass, jobs can be booked ahead, RMSProp with a rate of 0.001.
# "fast" lets the network choose among the jobs that can start now, and time, and uses Adam with a rate that falls from 0.003
# (`parcae reproduce deeprm-fig6` shows all three side by side).
#: Ways of learning by name: the paper's, the same on fresh sequences, and a fast one.
RECIPES = {
    "paper": DeepRMLearning(sequences=Sequences.FIXED),
    "fresh": DeepRMLearning(),
    "fast": DeepRMLearning(
        actions=Actions.STARTABLE, optimizer=Optimizer.ADAM, learning_rate=3e-3, final_rate=0.1
    ),
}


def parse_deeprm_recipe(name: str) -> DeepRMLearning:
    """The recipe of that name.

    Raises:
        ConfigError: there is none.
    """
    if name in RECIPES:
        return RECIPES[name]
    raise ConfigError(f"no recipe {name!r} for DeepRM; write one of {', '.join(RECIPES)}")


def run_advantages(
    position: npt.NDArray[np.int64], reward: FloatArray, run: npt.NDArray[np.int64], num_runs: int
) -> FloatArray:
    """Reward to go of each decision less its mean over all runs at the same position; ended runs have nothing to go.

    Args:
        position: int64[num_decisions], time step or number of the decision within its run.
        reward: float64[num_decisions], from the decision to the end of its run; the same for all of a run at one position.
        run: int64[num_decisions], below num_runs.

    Source: DeepRM, Figure 3 and footnote 4.
    Example: two runs with 4 and 2 to go at step 0, the second over at step 1, the first with 3 to go: 1, -1 and 1.5.
    """
    to_go = np.zeros((num_runs, int(position.max(initial=0)) + 1))
    to_go[run, position] = reward
    return np.asarray(reward - to_go.mean(axis=0)[position])


def logit_gradient(
    chances: npt.NDArray[np.float32],
    action: npt.NDArray[np.int64],
    advantage: FloatArray,
    entropy: float,
) -> npt.NDArray[np.float32]:
    """Gradient of advantage x log chance(action) + entropy weight x entropy with respect to the logits, float32 as `chances`.

    d log p_a / d logit_i = [i = a] - p_i,   d H / d logit_i = -p_i (log p_i + H)
    """
    gradient = -advantage[:, None] * chances
    gradient[np.arange(len(action)), action] += advantage
    if entropy:
        logs = np.log(np.maximum(chances, 1e-12))
        gradient -= entropy * chances * (logs - (chances * logs).sum(axis=1, keepdims=True))
    return gradient.astype(np.float32)


@dataclass
class Gradient:
    """Sums over decisions of the gradient of the network's parts, and what else is counted."""

    sums: npt.NDArray[np.float32]
    bias: FloatArray
    actions: FloatArray
    actions_bias: FloatArray
    entropy: float = 0.0
    decisions: int = 0

    @classmethod
    def zeros(cls, network: Network) -> Gradient:
        """Nothing yet."""
        num_actions = len(network.actions_bias)
        return cls(
            np.zeros_like(network.sums),
            np.zeros(HIDDEN),
            np.zeros((HIDDEN, num_actions)),
            np.zeros(num_actions),
        )

    def add(self, network: Network, work: Work, of_logits: npt.NDArray[np.float32]) -> None:
        """Add decisions, given the gradient of their logits: backwards through the network."""
        matrix = network.actions.reshape(HIDDEN, -1)
        of_hidden = (of_logits @ matrix.T) * (work.hidden > 0)
        self.actions += work.hidden.T @ of_logits
        self.actions_bias += of_logits.sum(axis=0)
        self.bias += of_hidden.sum(axis=0)
        scatter(work, np.ascontiguousarray(of_hidden), self.sums, len(of_logits))
        self.entropy -= float((work.chances * np.log(np.maximum(work.chances, 1e-12))).sum())
        self.decisions += len(of_logits)

    def merge(self, other: Gradient) -> None:
        """Add another part's."""
        self.sums += other.sums
        self.bias += other.bias
        self.actions += other.actions
        self.actions_bias += other.actions_bias
        self.entropy += other.entropy
        self.decisions += other.decisions

    def of_weights(self, settings: DeepRMSettings) -> dict[str, FloatArray]:
        """Means over decisions, by the weights' names."""
        parts = {
            "hidden.weight": weight_gradient(self.sums, settings),
            "hidden.bias": self.bias,
            "actions.weight": self.actions,
            "actions.bias": self.actions_bias,
        }
        return {name: part / max(1, self.decisions) for name, part in parts.items()}


class DeepRMLearner:
    """DeepRM as a learner of `train_packing`; see `deeprm_learner`."""

    kind = KIND
    feature_version = FEATURE_VERSION

    def __init__(
        self,
        source: PackingSource,
        cost: Cost,
        learning: DeepRMLearning,
        network: DeepRMSettings,
        weights: Weights,
        num_threads: int = 1,
    ) -> None:
        self.source = source
        self.cost = cost
        self.learning = learning
        self.network = network
        self.num_threads = num_threads
        self._weights: Weights = checked(weights, network)
        self._moments = {
            name: np.zeros_like(array) for name, array in self._moments_of(self._weights)
        }
        self._steps = 0
        self._config = self._capped(source.config)
        self._record = [
            allocate_record(
                network, learning.num_runs, learning.num_runs * self._config.max_decisions
            )
            for _ in range(_PARTS)
        ]

    def _capped(self, config: PackingConfig) -> PackingConfig:
        return config.model_copy(
            update={"max_decisions": min(config.max_decisions, self.learning.max_decisions)}
        )

    def _moments_of(self, weights: Weights) -> list[tuple[str, npt.NDArray[Any]]]:
        kinds = ("square", "mean") if self.learning.optimizer is Optimizer.ADAM else ("square",)
        return [(f"{kind}.{name}", array) for kind in kinds for name, array in weights.items()]

    def settings(self) -> dict[str, Any]:
        """The network, and how it learns."""
        return {
            "network": self.network.model_dump(mode="json"),
            "learning": self.learning.model_dump(mode="json"),
        }

    def weights(self) -> Weights:
        """The present weights (copies)."""
        return {name: array.copy() for name, array in self._weights.items()}

    def policy(self) -> DeepRMPolicy:
        """The policy with the present weights; it draws."""
        return DeepRMPolicy(KIND, self.weights(), self.network)

    def state(self) -> Weights:
        """The optimizer's moments and its number of steps."""
        return {name: array.copy() for name, array in self._moments.items()} | {
            "steps": np.array([self._steps], np.int64)
        }

    def restore(self, weights: Weights, state: Weights) -> None:
        """Go on from what `weights` and `state` gave."""
        self._weights = checked(weights, self.network)
        self._moments = {name: np.array(state[name]) for name in self._moments}
        self._steps = int(state["steps"][0])

    def iterate(self, seeds: IterationSeeds, left: float) -> Mapping[str, float]:
        """Run every sequence many times, and take one step.

        Raises:
            DivergedError: a gradient that is not finite.
        """
        batch = self._batch(seeds)
        network = make_network(self._weights, self.network)
        total = self._learn(batch, network)
        gradient = total.of_weights(self.network)
        norm = math.sqrt(sum(float((part**2).sum()) for part in gradient.values()))
        if not math.isfinite(norm):
            raise DivergedError(
                f"DeepRM's gradient is not finite after {self._steps} steps; lower the learning rate"
            )
        self._step(gradient, left)
        reward = -batch.costs(self.cost).reshape(-1, self.learning.num_runs)
        decisions = batch.states.clock["num_decisions"]
        return {
            "cost": mean_cost(batch, self.cost),
            "decisions": float(total.decisions),
            "entropy": total.entropy / max(1, total.decisions),
            "gradient_norm": norm,
            "reward/mean": float(reward.mean()),
            "reward/best": float(reward.max(axis=1).mean()),
            "runs/cut_off": float((decisions >= self._config.max_decisions).mean()),
        }

    def _batch(self, seeds: IterationSeeds) -> PackingBatch:
        count = self.learning.num_sequences
        is_fixed = self.learning.sequences is Sequences.FIXED
        sequences = self.source.draw(
            seeds.fixed_sequences(count) if is_fixed else seeds.sequences(count)
        )
        luck = int(seeds.rng.integers(1 << 62))
        batch = PackingBatch(
            sequences, self._config, repeats=self.learning.num_runs, wants_profile=True, seed=luck
        )
        check_fits(self.network, batch.states)
        return batch

    def _learn(self, batch: PackingBatch, network: Network) -> Gradient:
        bounds = np.linspace(0, self.learning.num_sequences, _PARTS + 1).astype(int).tolist()
        found = [Gradient.zeros(network) for _ in range(_PARTS)]

        def part(index: int) -> None:
            for sequence in range(bounds[index], bounds[index + 1]):
                self._learn_from(batch, network, sequence, self._record[index], found[index])

        if self.num_threads == 1:
            for index in range(_PARTS):
                part(index)
        else:
            with ThreadPoolExecutor(min(_PARTS, self.num_threads)) as pool:
                list(pool.map(part, range(_PARTS)))
        for other in found[1:]:
            found[0].merge(other)
        return found[0]

    def _learn_from(
        self, batch: PackingBatch, network: Network, sequence: int, record: Record, found: Gradient
    ) -> None:
        """Run one sequence, and add its gradient."""
        runs = self.learning.num_runs
        first = sequence * runs
        explore_many(
            batch.states,
            batch.asked,
            batch.sequence,
            batch.views,
            network,
            record,
            int(self.cost),
            first,
            first + runs,
        )
        count = int(record.ends[-1])
        lengths = np.diff(record.ends, prepend=0)
        run = np.repeat(np.arange(runs), lengths)
        reward = record.cost[:count] - record.end_cost[run]
        is_timed = self.learning.baseline is Baseline.TIME
        position = (
            record.clock[:count]
            if is_timed
            else np.arange(count) - np.repeat(record.ends - lengths, lengths)
        )
        advantage = run_advantages(position, reward, run, runs)
        if self.learning.is_scaled:
            advantage /= advantage.std() + 1e-8
        work = Work(*(table[:count] for table in record.work))
        found.add(
            network,
            work,
            logit_gradient(work.chances, record.action[:count], advantage, self.learning.entropy),
        )

    def _step(self, gradient: Mapping[str, FloatArray], left: float) -> None:
        """One step of ascent."""
        own = self.learning
        self._steps += 1
        rate = own.learning_rate * (own.final_rate + (1.0 - own.final_rate) * left)
        for name, slope in gradient.items():
            g = slope.astype(np.float32)
            square = self._moments[f"square.{name}"]
            if own.optimizer is Optimizer.RMSPROP:
                square += 0.1 * (g * g - square)
                self._weights[name] += rate * g / np.sqrt(square + 1e-9)
            else:
                mean = self._moments[f"mean.{name}"]
                mean += 0.1 * (g - mean)
                square += 0.001 * (g * g - square)
                unbiased = np.sqrt(square / (1.0 - 0.999**self._steps)) + 1e-8
                self._weights[name] += rate * (mean / (1.0 - 0.9**self._steps)) / unbiased


def deeprm_learner(
    source: PackingSource,
    cost: Cost = Cost.SLOWDOWN,
    recipe: str = "fresh",
    settings: Sequence[str] = (),
    weights: Weights | None = None,
    seed: int = 0,
    num_threads: int = 1,
) -> DeepRMLearner:
    """DeepRM for the sequences of a source.

    Args:
        cost: what to make small. recipe: "paper", "fresh" or "fast".
        settings: other values of the recipe's settings, each "key=value", see `DeepRMLearning`.
        weights: to go on from; otherwise drawn, from `seed`.
        num_threads: of the runs and the gradient; the result is the same with any number.

    Raises:
        ConfigError: an unknown recipe, settings that cannot be, exact times. FormatError: weights of another shape.

    Example: `train_packing(deeprm_learner(DrawnSource()), PackingTraining(DrawnSource(), max_iterations=1000))`
    """
    learning = override(parse_deeprm_recipe(recipe), settings)
    capacity = source.draw([TRAINING_SEED_START])[0].capacity
    network = DeepRMSettings.of(
        source.config, capacity, ImageSettings(has_pause=learning.has_pause), learning.actions
    )
    start = (
        initial_weights(np.random.default_rng([0x6465_6570, seed]), network)
        if weights is None
        else weights
    )
    return DeepRMLearner(source, cost, learning, network, start, num_threads)
