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
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn.functional import embedding_bag

from parcae.base.errors import DivergedError
from parcae.learning.config import recipe_settings
from parcae.learning.loop import IterationSeeds
from parcae.policies.checkpoint import Weights
from parcae.policies.networks.training import optimizer_state, restore_optimizer
from parcae.rigid.deeprm.kernels import explore_many
from parcae.rigid.deeprm.layout import (
    FEATURE_VERSION,
    KIND,
    Actions,
    DeepRMNetwork,
    DeepRMRecord,
    DeepRMSettings,
    Work,
    allocate_record,
    checked,
    initial_weights,
    sums_of,
)
from parcae.rigid.deeprm.policy import DeepRMPolicy, check_fits, make_network
from parcae.rigid.layout import Cost
from parcae.rigid.learner import PackingLearner
from parcae.rigid.metrics import mean_cost
from parcae.rigid.sources import PackingSource
from parcae.rigid.world import ImageSettings, PackingBatch
from parcae.workloads.workload import TRAINING_SEED_START

FloatArray = npt.NDArray[np.float64]
#: Parts of an iteration that threads work on. The number is fixed and the sums are added in order,
#: so that the result does not depend on the number of threads.
_PARTS = 4
#: Log probabilities below this one count as it where entropies are added up: 0 x -inf is no number.
_LEAST_LOG = -50.0


class Sequences(StrEnum):
    """Which job sequences an iteration learns from."""

    FIXED = "fixed"  # the paper: the same in all iterations, to which the network overfits
    FRESH = "fresh"  # new ones in every iteration


class Baseline(StrEnum):
    """Over which decisions of a sequence's runs the baseline is the mean."""

    TIME = "time"  # those at the same time step (the paper's text)
    DECISION = "decision"  # those with the same index in their run (the released code)


class DeepRMOptimizer(StrEnum):
    """The optimizer of the weights."""

    RMSPROP = "rmsprop"  # acc = 0.9 acc + 0.1 g^2; step = rate g / sqrt(acc)
    ADAM = "adam"  # Kingma and Ba, with 0.9, 0.999 and 1e-8


class DeepRMLearning(BaseModel):
    """The settings of DeepRM's training. Unknown keys are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    sequences: Sequences = Sequences.FRESH
    num_sequences: int = Field(default=100, ge=1)
    num_runs: int = Field(default=20, ge=2)
    baseline: Baseline = Baseline.TIME
    optimizer: DeepRMOptimizer = DeepRMOptimizer.RMSPROP
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
        actions=Actions.STARTABLE,
        optimizer=DeepRMOptimizer.ADAM,
        learning_rate=3e-3,
        final_rate=0.1,
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


@dataclass
class Gradient:
    """Sums over decisions of the gradients of the network's parts, and of two statistics."""

    parts: list[Tensor]
    entropy: float = 0.0
    decisions: int = 0

    def merge(self, other: Gradient) -> None:
        """Add the sums of another part."""
        for part, more in zip(self.parts, other.parts, strict=True):
            part += more
        self.entropy += other.entropy
        self.decisions += other.decisions


def logits_of(work: Work, parts: Sequence[Tensor]) -> Tensor:
    """The logits of recorded decisions, float32[num_decisions, num_actions].

    `parts` are the sums of the first layer's rows, its bias, and the last layer's matrix and bias.
    """
    sums, bias, actions, actions_bias = parts
    is_used = np.arange(work.rows.shape[1]) < work.count
    starts = np.cumsum(work.count[:, 0]) - work.count[:, 0]
    rows = torch.from_numpy(work.rows[is_used].astype(np.int64))
    hidden = embedding_bag(rows, sums, torch.from_numpy(starts), mode="sum") + bias
    return torch.addmm(actions_bias, hidden.relu(), actions)


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
        self._weights = {
            name: torch.from_numpy(array).requires_grad_()
            for name, array in initial_weights(rng, self.network).items()
        }
        self._optimizer = _optimizer(learning, self._weights)
        most = min(source.config.max_decisions, learning.max_decisions)
        self._config = source.config.model_copy(update={"max_decisions": most})
        # One record per part, which is used again for each of the part's sequences.
        self._record = [
            allocate_record(
                self.network, learning.num_runs, learning.num_runs * self._config.max_decisions
            )
            for _ in range(_PARTS)
        ]

    def settings(self) -> dict[str, Any]:
        """The settings of the network and of the training."""
        return {
            "network": self.network.model_dump(mode="json"),
            "learning": self.learning.model_dump(mode="json"),
        }

    def weights(self) -> Weights:
        """The present weights (copies)."""
        return {name: weight.detach().numpy().copy() for name, weight in self._weights.items()}

    def policy(self) -> DeepRMPolicy:
        """The policy with the present weights; it draws its actions."""
        return DeepRMPolicy(KIND, self.weights(), self.network)

    def state(self) -> Weights:
        """The optimizer's moments and numbers of steps."""
        return optimizer_state(self._weights.items(), self._optimizer)

    def restore(self, weights: Weights, state: Weights) -> None:
        """Continue from what `weights` and `state` returned."""
        with torch.no_grad():
            for name, array in checked(weights, self.network).items():
                self._weights[name].copy_(torch.from_numpy(array))
        restore_optimizer(self._weights.items(), self._optimizer, state)

    def iterate(self, seeds: IterationSeeds, done: float) -> Mapping[str, float]:
        """Run every sequence `num_runs` times, and update the weights once."""
        batch = self._batch(seeds)
        sums = sums_of(self._weights["hidden.weight"], self.network)
        total = self._learn(batch, sums.detach())
        norm = self._step(sums, total, 1.0 - done)
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

    def _learn(self, batch: PackingBatch, sums: Tensor) -> Gradient:
        """Run all sequences, and add up the gradients of their decisions."""
        bounds = np.linspace(0, self.learning.num_sequences, _PARTS + 1).astype(int).tolist()
        network = make_network(self.weights(), self.network)

        def part(index: int) -> Gradient:
            # Every part has its own leaves, so that threads share no gradient.
            others = list(self._weights.values())[1:]
            leaves = [one.detach().clone().requires_grad_() for one in (sums, *others)]
            total = Gradient([torch.zeros_like(leaf) for leaf in leaves])
            for sequence in range(bounds[index], bounds[index + 1]):
                total.merge(self._learn_from(batch, network, sequence, self._record[index], leaves))
            return total

        if self.num_threads == 1:
            gradients = [part(index) for index in range(_PARTS)]
        else:
            with ThreadPoolExecutor(min(_PARTS, self.num_threads)) as pool:
                gradients = list(pool.map(part, range(_PARTS)))
        for other in gradients[1:]:
            gradients[0].merge(other)
        return gradients[0]

    def _learn_from(
        self,
        batch: PackingBatch,
        network: DeepRMNetwork,
        sequence: int,
        record: DeepRMRecord,
        leaves: list[Tensor],
    ) -> Gradient:
        """Run one sequence `num_runs` times; return the gradient of its decisions."""
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
        # Impossible actions have a probability of 0: their logits are masked.
        logits = logits_of(work, leaves).masked_fill(
            torch.from_numpy(work.probabilities == 0.0), -math.inf
        )
        logs = torch.log_softmax(logits, 1)
        action = torch.from_numpy(record.action[:count])
        chosen = logs.gather(1, action[:, None])[:, 0]
        entropy = -(logs.exp() * logs.clamp(min=_LEAST_LOG)).sum()
        goal = (
            torch.from_numpy(advantage.astype(np.float32)) * chosen
        ).sum() + self.learning.entropy * entropy
        return Gradient(list(torch.autograd.grad(goal, leaves)), float(entropy.detach()), count)

    def _step(self, sums: Tensor, total: Gradient, left: float) -> float:
        """One step of gradient ascent on the reward. Returns the gradient's norm."""
        of_sums, *others = (part / max(1, total.decisions) for part in total.parts)
        (first,) = torch.autograd.grad(sums, [self._weights["hidden.weight"]], of_sums)
        for weight, slope in zip(self._weights.values(), (first, *others), strict=True):
            weight.grad = slope
        norm = float(torch.nn.utils.get_total_norm([first, *others]))
        # Checked before the step, so that weights stay finite.
        if not math.isfinite(norm):
            raise DivergedError("the gradient of DeepRM is not finite; lower the learning rate")
        settings = self.learning
        fade = settings.final_rate + (1.0 - settings.final_rate) * left
        for group in self._optimizer.param_groups:
            group["lr"] = settings.learning_rate * fade
        self._optimizer.step()
        return norm


# Deviation: the released code of DeepRM divides by sqrt(square + 1e-9), PyTorch by
# sqrt(square) + eps. With this eps both divide by the same number where the square is 0.
_RMSPROP_EPS = 1e-9**0.5


def _optimizer(learning: DeepRMLearning, weights: Mapping[str, Tensor]) -> torch.optim.Optimizer:
    rate = learning.learning_rate
    if learning.optimizer is DeepRMOptimizer.ADAM:
        return torch.optim.Adam(weights.values(), rate, maximize=True)
    return torch.optim.RMSprop(weights.values(), rate, alpha=0.9, eps=_RMSPROP_EPS, maximize=True)
