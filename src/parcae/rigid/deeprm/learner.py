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
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn.functional import embedding_bag

from parcae.base.arrays import Float64Array, Int64Array
from parcae.base.errors import DivergedError
from parcae.learning.loop import IterationSeeds
from parcae.policies.checkpoint import Weights
from parcae.policies.networks.layout import joined
from parcae.policies.networks.training import optimizer_state, restore_optimizer, set_rate
from parcae.rigid.deeprm.kernels import (
    FEATURE_VERSION,
    KIND,
    Actions,
    DeepRMRecord,
    DeepRMSettings,
    checked,
    initial_weights,
    sums_of,
)
from parcae.rigid.deeprm.policy import DeepRMPolicy, check_fits
from parcae.rigid.learner import PackingLearner
from parcae.rigid.metrics import mean_cost
from parcae.rigid.world import PackingBatch
from parcae.workloads.workload import TRAINING_SEED_START

#: Log probabilities below this one count as it where entropies are added up: 0 x -inf is no number.
_LEAST_LOG = -50.0


class DeepRMLearning(BaseModel):
    """The settings of DeepRM's training. Unknown keys are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # The paper's are fixed: the same in all iterations, to which the network overfits.
    sequences: Literal["fixed", "fresh"] = "fresh"
    num_sequences: int = Field(default=100, ge=1)
    num_runs: int = Field(default=20, ge=2)
    # The baseline is the mean over decisions at the same time step (the paper's text), or with the
    # same index in their run (the released code).
    baseline: Literal["time", "decision"] = "time"
    # RMSProp: acc = 0.9 acc + 0.1 g^2, step = rate g / sqrt(acc). Adam: with 0.9, 0.999 and 1e-8.
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
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
#: Recipes by name: with fresh sequences, the paper's, and a fast one.
RECIPES = {
    "fresh": DeepRMLearning(),
    "paper": DeepRMLearning(sequences="fixed"),
    "fast": DeepRMLearning(
        actions=Actions.STARTABLE, optimizer="adam", learning_rate=3e-3, final_rate=0.1
    ),
}


def run_advantages(
    position: Int64Array, reward: Float64Array, run: Int64Array, num_runs: int
) -> Float64Array:
    """Reward to go of each decision minus its mean over all runs at the same position.

    Runs that have ended count with a reward to go of 0.

    Source: DeepRM, Figure 3 and footnote 4.
    Example: two runs have 4 and 2 to go at step 0. At step 1 the second is over, the first has 3 to
    go. The advantages are 1, -1 and 1.5.
    """
    to_go = np.zeros((num_runs, int(position.max(initial=0)) + 1))
    to_go[run, position] = reward
    return np.asarray(reward - to_go.mean(axis=0)[position])


def logits_of(rows: npt.NDArray[np.int32], num_rows: Int64Array, parts: Sequence[Tensor]) -> Tensor:
    """The logits of recorded decisions, float32[num_decisions, num_actions].

    `parts` are the sums of the first layer's rows, its bias, and the last layer's matrix and bias.
    """
    sums, bias, actions, actions_bias = parts
    used = torch.from_numpy(rows[np.arange(rows.shape[1]) < num_rows[:, None]].astype(np.int64))
    starts = torch.from_numpy(np.cumsum(num_rows) - num_rows)
    hidden = embedding_bag(used, sums, starts, mode="sum") + bias
    return torch.addmm(actions_bias, hidden.relu(), actions)


class DeepRMLearner(PackingLearner):
    """The learner of DeepRM.

    Example: `train(DeepRMLearner(DrawnSource()), TrainingPlan(max_iterations=1000))`
    """

    kind = KIND
    feature_version = FEATURE_VERSION
    recipes = RECIPES
    salt = 0x6465_6570
    config: DeepRMLearning
    network: DeepRMSettings

    def start(self, rng: np.random.Generator) -> None:
        """Draw the weights."""
        config = self.config
        # The capacities of the resources are in the sequences: draw one to know the image's size.
        capacity = self.source.draw([TRAINING_SEED_START])[0].capacity
        self.network = DeepRMSettings.of(
            self.source.config, capacity, has_pause=config.has_pause, actions=config.actions
        )
        self._weights = {
            name: torch.from_numpy(array).requires_grad_()
            for name, array in initial_weights(rng, self.network).items()
        }
        self._optimizer = _optimizer(config, self._weights)
        most = min(self.source.config.max_decisions, config.max_decisions)
        self._world = self.source.config.model_copy(update={"max_decisions": most})

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
        gradient, entropy, count = self._learn(batch, sums)
        norm = self._step(sums, [part / max(1, count) for part in gradient], 1.0 - done)
        # The reward of a run is minus its cost.
        reward = -batch.costs(self.cost).reshape(-1, self.config.num_runs)
        decisions = batch.states.clock["num_decisions"]
        return {
            "cost": mean_cost(batch, self.cost),
            "decisions": float(count),
            "entropy": entropy / max(1, count),
            "gradient_norm": norm,
            "reward/mean": float(reward.mean()),
            "reward/best": float(reward.max(axis=1).mean()),
            "runs/cut_off": float((decisions >= self._world.max_decisions).mean()),
        }

    def _batch(self, seeds: IterationSeeds) -> PackingBatch:
        draw = seeds.fixed_sequences if self.config.sequences == "fixed" else seeds.sequences
        batch = PackingBatch(
            self.source.draw(draw(self.config.num_sequences)),
            self._world,
            repeats=self.config.num_runs,
            wants_profile=True,
            seed=int(seeds.rng.integers(1 << 62)),
        )
        check_fits(self.network, batch.states)
        return batch

    def _learn(self, batch: PackingBatch, sums: Tensor) -> tuple[list[Tensor], float, int]:
        """Run all sequences. Returns the sums over decisions of the gradients of the network's
        parts and of the entropies, and the number of decisions.
        """
        parts = [sums, *list(self._weights.values())[1:]]
        count = self.config.num_runs
        most = self._world.max_decisions
        records = self.explore(batch, DeepRMRecord, decisions=most, **self.network.sizes)

        def one(first: int) -> tuple[Sequence[Tensor], float, int]:
            # Every sequence has its own leaves, so that threads share no gradient.
            leaves = [part.detach().requires_grad_() for part in parts]
            ends = batch.states.costs[first : first + count, self.cost]
            goal, entropy, number = self._goal(records[first : first + count], ends, leaves)
            return torch.autograd.grad(goal, leaves), entropy, number

        gradient = [torch.zeros_like(part) for part in parts]
        entropies, decisions = 0.0, 0
        with ThreadPoolExecutor(self.num_threads) as pool:
            # Added in order, so that the result does not depend on the number of threads.
            for more, entropy, number in pool.map(one, range(0, len(batch), count)):
                for total, slope in zip(gradient, more, strict=True):
                    total += slope
                entropies, decisions = entropies + entropy, decisions + number
        return gradient, entropies, decisions

    def _goal(
        self, records: Sequence[DeepRMRecord], ends: Float64Array, leaves: list[Tensor]
    ) -> tuple[Tensor, float, int]:
        """What the runs of one sequence, whose costs are `ends`, say should grow, the sum of
        entropies, and the number of decisions.
        """
        lengths = np.array([int(record.count[0]) for record in records])
        # One run after another.
        data = joined(records, [(0, length) for length in lengths.tolist()])
        run = np.repeat(np.arange(len(lengths)), lengths)
        reward = data.cost - ends[run]
        # Where decisions are compared: at their time, or at their index in the run.
        position = data.clock
        if self.config.baseline == "decision":
            position = np.arange(len(run)) - (np.cumsum(lengths) - lengths)[run]
        advantage = run_advantages(position, reward, run, len(ends))
        if self.config.is_scaled:
            advantage /= advantage.std() + 1e-8
        # Impossible actions have a probability of 0: their logits are masked.
        logits = logits_of(data.rows, data.num_rows, leaves).masked_fill(
            torch.from_numpy(data.probabilities == 0.0), -math.inf
        )
        logs = torch.log_softmax(logits, 1)
        chosen = logs.gather(1, torch.from_numpy(data.action)[:, None])[:, 0]
        entropy = -(logs.exp() * logs.clamp(min=_LEAST_LOG)).sum()
        goal = (torch.from_numpy(advantage.astype(np.float32)) * chosen).sum()
        return goal + self.config.entropy * entropy, float(entropy.detach()), len(run)

    def _step(self, sums: Tensor, gradient: Sequence[Tensor], left: float) -> float:
        """One step of gradient ascent on the reward. Returns the gradient's norm."""
        of_sums, *others = gradient
        slopes = [
            *torch.autograd.grad(sums, [self._weights["hidden.weight"]], of_sums),
            *others,
        ]
        for weight, slope in zip(self._weights.values(), slopes, strict=True):
            weight.grad = slope
        norm = float(torch.nn.utils.get_total_norm(slopes))
        # Checked before the step, so that weights stay finite.
        if not math.isfinite(norm):
            raise DivergedError("the gradient of DeepRM is not finite; lower the learning rate")
        set_rate(self._optimizer, self.config.learning_rate, self.config.final_rate, left)
        self._optimizer.step()
        return norm


# Deviation: the released code of DeepRM divides by sqrt(square + 1e-9), PyTorch by
# sqrt(square) + eps. With this eps both divide by the same number where the square is 0.
_RMSPROP_EPS = 1e-9**0.5


def _optimizer(learning: DeepRMLearning, weights: Mapping[str, Tensor]) -> torch.optim.Optimizer:
    rate = learning.learning_rate
    if learning.optimizer == "adam":
        return torch.optim.Adam(weights.values(), rate, maximize=True)
    return torch.optim.RMSprop(weights.values(), rate, alpha=0.9, eps=_RMSPROP_EPS, maximize=True)
