"""DeepRM's training: REINFORCE, whose baseline is the mean over runs of the same job sequence.

    theta += rate x RMSProp(mean over decisions of grad log pi(a | s) (v - b))

where v is the reward from the decision to the end of its run, and b is the mean of v over the runs
of the same sequence at the same time.

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

from parcae.base.errors import DivergedError
from parcae.learning.config import recipe_settings
from parcae.learning.loop import IterationSeeds
from parcae.policies.checkpoint import Weights
from parcae.rigid.deeprm.kernels import add_gradient_of_sums, explore_many
from parcae.rigid.deeprm.layout import (
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
from parcae.rigid.deeprm.policy import DeepRMPolicy, check_fits, make_network
from parcae.rigid.layout import Cost
from parcae.rigid.learner import PackingLearner
from parcae.rigid.metrics import mean_cost
from parcae.rigid.sources import PackingSource
from parcae.rigid.world import ImageSettings, PackingBatch
from parcae.workloads.arrivals import TRAINING_SEED_START

FloatArray = npt.NDArray[np.float64]
#: Parts of an iteration that threads work on. The number is fixed and the sums are added in order,
#: so that the result does not depend on the number of threads.
_PARTS = 4


class Sequences(StrEnum):
    """Which job sequences an iteration learns from."""

    FIXED = "fixed"  # the paper: the same in all iterations, to which the network overfits
    FRESH = "fresh"  # new ones in every iteration


class Baseline(StrEnum):
    """Over which decisions of a sequence's runs the baseline is the mean."""

    TIME = "time"  # those at the same time step (the paper's text)
    DECISION = "decision"  # those with the same index in their run (the released code)


class Optimizer(StrEnum):
    """The optimizer of the weights."""

    RMSPROP = "rmsprop"  # acc = 0.9 acc + 0.1 g^2; step = rate g / sqrt(acc + 1e-9)
    ADAM = "adam"  # Kingma and Ba, with 0.9, 0.999 and 1e-8


class DeepRMLearning(BaseModel):
    """The settings of DeepRM's training. Unknown keys are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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


# Deviation: in DeepRM 3.2 and 4.1 the action of an empty job slot lets time pass, jobs can be
# reserved a later start, and RMSProp has a rate of 0.001. In "fast" the network chooses only among
# letting time pass and the jobs that can start now, and Adam has a rate that falls from 0.003.
# (`parcae reproduce deeprm-fig6` compares all three.)
#: Recipes by name: the paper's, the same with fresh sequences, and a fast one.
RECIPES = {
    "paper": DeepRMLearning(sequences=Sequences.FIXED),
    "fresh": DeepRMLearning(),
    "fast": DeepRMLearning(
        actions=Actions.STARTABLE, optimizer=Optimizer.ADAM, learning_rate=3e-3, final_rate=0.1
    ),
}


def run_advantages(
    position: npt.NDArray[np.int64], reward: FloatArray, run: npt.NDArray[np.int64], num_runs: int
) -> FloatArray:
    """Reward to go of each decision minus its mean over all runs at the same position.

    Runs that have ended count with a reward to go of 0.

    Source: DeepRM, Figure 3 and footnote 4.
    Example: two runs have 4 and 2 to go at step 0. At step 1 the second is over, the first has 3 to
    go. The advantages are 1, -1 and 1.5.
    """
    to_go = np.zeros((num_runs, int(position.max(initial=0)) + 1))
    to_go[run, position] = reward
    return np.asarray(reward - to_go.mean(axis=0)[position])


def logit_gradient(
    probabilities: npt.NDArray[np.float32],
    action: npt.NDArray[np.int64],
    advantage: FloatArray,
    entropy: float,
) -> npt.NDArray[np.float32]:
    """Gradient of advantage x log p_action + entropy weight x H with respect to the logits. Returns
    float32[num_decisions, num_actions].

    d log p_a / d logit_i = [i = a] - p_i,   d H / d logit_i = -p_i (log p_i + H)
    """
    gradient = -advantage[:, None] * probabilities
    gradient[np.arange(len(action)), action] += advantage
    if entropy:
        # Impossible actions have probability 0; the bound avoids log(0).
        logs = np.log(np.maximum(probabilities, 1e-12))
        gradient -= (
            entropy * probabilities * (logs - (probabilities * logs).sum(axis=1, keepdims=True))
        )
    return gradient.astype(np.float32)


@dataclass
class Gradient:
    """Sums over decisions of the gradients of the network's parts, and of two statistics."""

    sums: npt.NDArray[np.float32]
    bias: FloatArray
    actions: FloatArray
    actions_bias: FloatArray
    entropy: float = 0.0
    decisions: int = 0

    @classmethod
    def zeros(cls, network: Network) -> Gradient:
        """A gradient to which nothing was added yet."""
        num_actions = len(network.actions_bias)
        return cls(
            np.zeros_like(network.sums),
            np.zeros(HIDDEN),
            np.zeros((HIDDEN, num_actions)),
            np.zeros(num_actions),
        )

    def add(self, network: Network, work: Work, of_logits: npt.NDArray[np.float32]) -> None:
        """Backpropagate the gradient of some decisions' logits through the network, and add it."""
        matrix = network.actions.reshape(HIDDEN, -1)
        of_hidden = (of_logits @ matrix.T) * (work.hidden > 0)  # through the ReLU
        self.actions += work.hidden.T @ of_logits
        self.actions_bias += of_logits.sum(axis=0)
        self.bias += of_hidden.sum(axis=0)
        add_gradient_of_sums(work, np.ascontiguousarray(of_hidden), self.sums, len(of_logits))
        self.entropy -= float(
            (work.probabilities * np.log(np.maximum(work.probabilities, 1e-12))).sum()
        )
        self.decisions += len(of_logits)

    def merge(self, other: Gradient) -> None:
        """Add the sums of another part."""
        self.sums += other.sums
        self.bias += other.bias
        self.actions += other.actions
        self.actions_bias += other.actions_bias
        self.entropy += other.entropy
        self.decisions += other.decisions

    def of_weights(self, settings: DeepRMSettings) -> dict[str, FloatArray]:
        """The gradients by the weights' names, as means over decisions."""
        parts = {
            "hidden.weight": weight_gradient(self.sums, settings),
            "hidden.bias": self.bias,
            "actions.weight": self.actions,
            "actions.bias": self.actions_bias,
        }
        return {name: part / max(1, self.decisions) for name, part in parts.items()}


class DeepRMLearner(PackingLearner):
    """The learner of DeepRM.

    Args:
        source: where job sequences are drawn; time is in steps.
        cost: the objective to minimise.
        recipe: "paper", "fresh" or "fast".
        settings: changes of the recipe's settings, each "key=value", see `DeepRMLearning`.
        seed: seed of the training.
        num_threads: threads for the runs and the gradient. The result does not depend on it.

    Raises:
        ConfigError: the recipe or a setting is unknown or invalid, or the source has exact times.

    Example: `train(DeepRMLearner(DrawnSource()), Plan(max_iterations=1000))`
    """

    kind = KIND
    feature_version = FEATURE_VERSION

    def __init__(
        self,
        source: PackingSource,
        cost: Cost = Cost.SLOWDOWN,
        recipe: str = "fresh",
        settings: Sequence[str] = (),
        seed: int = 0,
        num_threads: int = 1,
    ) -> None:
        super().__init__(source, cost, seed)
        self.learning = recipe_settings(RECIPES, recipe, KIND, settings)
        self.num_threads = num_threads
        learning = self.learning
        # The capacities of the resources are in the sequences: draw one to know the image's size.
        capacity = source.draw([TRAINING_SEED_START])[0].capacity
        image = ImageSettings(has_pause=learning.has_pause)
        self.network = DeepRMSettings.of(source.config, capacity, image, learning.actions)
        rng = np.random.default_rng([0x6465_6570, seed])
        self._weights: Weights = initial_weights(rng, self.network)
        self._moments = {
            name: np.zeros_like(array) for name, array in self._moments_of(self._weights)
        }
        self._steps = 0
        most = min(source.config.max_decisions, learning.max_decisions)
        self._config = source.config.model_copy(update={"max_decisions": most})
        # One record per part, which is used again for each of the part's sequences.
        self._record = [
            allocate_record(
                self.network, learning.num_runs, learning.num_runs * self._config.max_decisions
            )
            for _ in range(_PARTS)
        ]

    def _moments_of(self, weights: Weights) -> list[tuple[str, npt.NDArray[Any]]]:
        kinds = ("square", "mean") if self.learning.optimizer is Optimizer.ADAM else ("square",)
        return [(f"{kind}.{name}", array) for kind in kinds for name, array in weights.items()]

    def settings(self) -> dict[str, Any]:
        """The settings of the network and of the training."""
        return {
            "network": self.network.model_dump(mode="json"),
            "learning": self.learning.model_dump(mode="json"),
        }

    def weights(self) -> Weights:
        """The present weights (copies)."""
        return {name: array.copy() for name, array in self._weights.items()}

    def policy(self) -> DeepRMPolicy:
        """The policy with the present weights; it draws its actions."""
        return DeepRMPolicy(KIND, self.weights(), self.network)

    def state(self) -> Weights:
        """The optimizer's moments and its number of steps."""
        return {name: array.copy() for name, array in self._moments.items()} | {
            "steps": np.array([self._steps], np.int64)
        }

    def restore(self, weights: Weights, state: Weights) -> None:
        """Continue from what `weights` and `state` returned."""
        self._weights = checked(weights, self.network)
        self._moments = {name: np.array(state[name]) for name in self._moments}
        self._steps = int(state["steps"][0])

    def iterate(self, seeds: IterationSeeds, done: float) -> Mapping[str, float]:
        """Run every sequence `num_runs` times, and update the weights once."""
        batch = self._batch(seeds)
        network = make_network(self._weights, self.network)
        total = self._learn(batch, network)
        gradient = total.of_weights(self.network)
        # Checked before the step, so that weights stay finite.
        norm = math.sqrt(sum(float((part**2).sum()) for part in gradient.values()))
        if not math.isfinite(norm):
            raise DivergedError(
                f"the gradient of DeepRM is not finite after {self._steps} steps; lower the "
                "learning rate"
            )
        self._step(gradient, 1.0 - done)
        # The reward of a run is minus its cost.
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
        draw_seed = int(seeds.rng.integers(1 << 62))
        batch = PackingBatch(
            sequences,
            self._config,
            repeats=self.learning.num_runs,
            wants_profile=True,
            seed=draw_seed,
        )
        check_fits(self.network, batch.states)
        return batch

    def _learn(self, batch: PackingBatch, network: Network) -> Gradient:
        bounds = np.linspace(0, self.learning.num_sequences, _PARTS + 1).astype(int).tolist()
        gradients = [Gradient.zeros(network) for _ in range(_PARTS)]

        def part(index: int) -> None:
            for sequence in range(bounds[index], bounds[index + 1]):
                self._learn_from(batch, network, sequence, self._record[index], gradients[index])

        if self.num_threads == 1:
            for index in range(_PARTS):
                part(index)
        else:
            with ThreadPoolExecutor(min(_PARTS, self.num_threads)) as pool:
                list(pool.map(part, range(_PARTS)))
        for other in gradients[1:]:
            gradients[0].merge(other)
        return gradients[0]

    def _learn_from(
        self,
        batch: PackingBatch,
        network: Network,
        sequence: int,
        record: Record,
        gradient: Gradient,
    ) -> None:
        """Run one sequence `num_runs` times, and add its decisions to `gradient`."""
        runs = self.learning.num_runs
        first = sequence * runs
        explore_many(
            batch.clusters, batch.views, network, record, int(self.cost), first, first + runs
        )
        # The decisions of all runs stand one run after another; run k ends before ends[k].
        count = int(record.ends[-1])
        lengths = np.diff(record.ends, prepend=0)
        run = np.repeat(np.arange(runs), lengths)
        reward = record.cost[:count] - record.end_cost[run]
        # Where decisions are compared: at their time, or at their index in the run.
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
        gradient.add(
            network,
            work,
            logit_gradient(
                work.probabilities, record.action[:count], advantage, self.learning.entropy
            ),
        )

    def _step(self, gradient: Mapping[str, FloatArray], left: float) -> None:
        """One step of gradient ascent on the reward."""
        settings = self.learning
        self._steps += 1
        rate = settings.learning_rate * (settings.final_rate + (1.0 - settings.final_rate) * left)
        for name, slope in gradient.items():
            g = slope.astype(np.float32)
            square = self._moments[f"square.{name}"]
            if settings.optimizer is Optimizer.RMSPROP:
                square += 0.1 * (g * g - square)
                self._weights[name] += rate * g / np.sqrt(square + 1e-9)
            else:
                mean = self._moments[f"mean.{name}"]
                mean += 0.1 * (g - mean)
                square += 0.001 * (g * g - square)
                unbiased = np.sqrt(square / (1.0 - 0.999**self._steps)) + 1e-8
                self._weights[name] += rate * (mean / (1.0 - 0.9**self._steps)) / unbiased
