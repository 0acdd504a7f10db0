"""Training of A2cScheduler: advantage actor-critic with multi-step temporal differences.

Source: A2cScheduler (Liang et al., 2019), Algorithm 1, with multi-step returns as its section 3.1
says, after Mnih et al., "Asynchronous methods for deep reinforcement learning".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field

from parcae.base.errors import DivergedError
from parcae.learning.config import recipe_settings
from parcae.learning.loop import IterationSeeds
from parcae.policies.checkpoint import Weights
from parcae.policies.networks.training import optimizer_state, restore_optimizer
from parcae.rigid.a2c.layout import FEATURE_VERSION, KIND, Architecture, draw_weights
from parcae.rigid.a2c.lookup import (
    EncodedImages,
    FirstLayer,
    PatternEncoder,
    outputs,
)
from parcae.rigid.a2c.network import A2cNetwork, Windows
from parcae.rigid.a2c.policy import (
    A2cPolicy,
    draw_actions,
    masks_of,
    prefixed,
    settings_for,
    slots_of,
)
from parcae.rigid.layout import Cost
from parcae.rigid.learner import PackingLearner
from parcae.rigid.metrics import mean_cost
from parcae.rigid.sources import PackingSource
from parcae.rigid.world import PackingBatch

FloatArray = npt.NDArray[np.float64]
#: A time step fits into this many bits, so that a sequence's index and a time fit into one int64.
_TIME_BITS = 32


class A2cOptimizer(StrEnum):
    """The optimizer of the weights."""

    SGD = "sgd"
    RMSPROP = "rmsprop"
    ADAM = "adam"


class A2cConfig(BaseModel):
    """The settings of a training. Unknown keys are rejected. The defaults are the recipe "fast".

    Args:
        num_sequences: fresh job sequences in an iteration.
        repeats: number of clusters that run each of them.
        num_steps: decisions of each cluster between two updates. When some clusters are over, the
            others decide more often. Returns sum the rewards of these decisions; the critic
            estimates the rest.
        discount: discount of rewards, per decision.
        actor_rate: learning rate of the actor.
        critic_rate: learning rate of the critic.
        final_share: the learning rates fall linearly to this share by the end of the training.
        optimizer: sgd, rmsprop or adam.
        entropy: weight of the entropy bonus; it falls linearly to 0.
        max_norm: maximum norm of each network's gradient; 0 for no maximum.
        is_aligned: subtract from each advantage its mean over the clusters at the same time (and
            with the same sequence, if `repeats` is above 1). An image does not show for how long
            jobs will continue to arrive, so the critic cannot know it.
        is_normalized: divide advantages by their standard deviation.
        reward_scale: rewards are divided by this.
        architecture: of actor and critic.
        hidden: units of the layer between flattened image and outputs; 0 for no such layer.
        is_masked: only jobs that can start now can be chosen. Otherwise others can be chosen too,
            which reserves their start in advance. The training then soon ends up in a policy that
            reserves everything at once.
        void_prior: initial logit of letting time pass; those of jobs are about 0.
        max_decisions: episodes in training are cut off after this many decisions; the critic
            estimates the rest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    num_sequences: int = Field(default=16, ge=1)
    repeats: int = Field(default=8, ge=1)
    num_steps: int = Field(default=32, ge=1)
    discount: float = Field(default=0.97, gt=0, le=1)
    actor_rate: float = Field(default=3e-4, gt=0)
    critic_rate: float = Field(default=1e-3, gt=0)
    final_share: float = Field(default=0.05, ge=0, le=1)
    optimizer: A2cOptimizer = A2cOptimizer.ADAM
    entropy: float = Field(default=0.01, ge=0)
    max_norm: float = Field(default=1.0, ge=0)
    is_aligned: bool = True
    is_normalized: bool = True
    reward_scale: float = Field(default=40.0, gt=0)
    architecture: Architecture = Architecture.CONV_16
    hidden: int = Field(default=32, ge=0)
    is_masked: bool = True
    void_prior: float = -2.0
    max_decisions: int = Field(default=2000, ge=1)


# Deviation: A2cScheduler Algorithm 1 and 4.3: "fast" has Adam with falling rates and bounded
# gradients, an entropy bonus, advantages that are aligned in time and normalised, a mask of the
# jobs that cannot start, a dense layer before the outputs, and a first policy that seldom lets time
# pass, because a training is to take minutes, and without the mask it soon ends up in a policy that
# reserves everything at once.
#: Recipes by name. "paper" is Algorithm 1: one cluster, one update per decision, plain gradient
#: steps, no mask. The paper gives no values of the settings, so these are ours.
RECIPES: dict[str, A2cConfig] = {
    "fast": A2cConfig(),
    "paper": A2cConfig(
        num_sequences=1, repeats=1, num_steps=1, discount=0.99, actor_rate=1e-4, critic_rate=1e-3,
        final_share=1.0, optimizer=A2cOptimizer.SGD, entropy=0.0, max_norm=0.0, is_aligned=False,
        is_normalized=False, hidden=0, is_masked=False, void_prior=0.0,
    ),
}  # fmt: skip


def a2c_config(recipe: str = "fast", settings: Sequence[str] = ()) -> A2cConfig:
    """The settings of a recipe, with changes that are given as "key=value"."""
    return recipe_settings(RECIPES, recipe, KIND, settings)


def n_step_returns(
    rewards: FloatArray,
    is_over: npt.NDArray[np.bool_],
    last_values: FloatArray,
    discount: float | FloatArray,
) -> FloatArray:
    """Discounted rewards up to the last step, plus the critic's estimate of all later rewards.

    Source: A2cScheduler, Algorithm 1 (num_steps 1) and section 3.1.
    Example: rewards of 1 and 2, discount 0.5 and a last value of 4 give the returns
    1 + 0.5 (2 + 0.5 x 4) = 3 and 4.
    """
    returns = np.zeros_like(rewards)
    discounts = np.broadcast_to(discount, rewards.shape)
    ahead = np.array(last_values, np.float64)
    for step in range(len(rewards) - 1, -1, -1):
        ahead = rewards[step] + discounts[step] * np.where(is_over[step], 0.0, ahead)
        returns[step] = ahead
    return returns


class _Step(NamedTuple):
    """One decision of all clusters: encoded images, masks of possible actions, rewards, ends.

    A run that is cut off after its last allowed decision is not over: the critic estimates the
    rest.
    """

    encoded: EncodedImages
    masks: npt.NDArray[np.bool_]
    actions: npt.NDArray[np.int64]
    is_alive: npt.NDArray[np.bool_]
    rewards: FloatArray
    is_over: npt.NDArray[np.bool_]
    # Clusters at the same time (and with the same sequence, if it runs several times) are a group.
    groups: npt.NDArray[np.int64]

    @property
    def num_deciding(self) -> int:
        """Number of clusters that took a decision, because their run was not over."""
        return int(self.is_alive.sum())


class _Trained:
    """A network in training: its weights, its compiled first layer and its optimizer."""

    def __init__(
        self, network: A2cNetwork, encoder: PatternEncoder, config: A2cConfig, rate: float
    ) -> None:
        self.network = network
        self.config = config
        self.rate = rate
        self.arrays = network.arrays()
        self.layer = FirstLayer(self.arrays, encoder)
        self.optimizer = _optimizer(network, config.optimizer, rate)

    def outputs(self, encoded: EncodedImages) -> npt.NDArray[np.float32]:
        """The network's outputs, without gradients."""
        return outputs(self.layer.sums(encoded), self.layer.blank, self.arrays)

    def step(self, loss: torch.Tensor, left: float) -> None:
        """One step of gradient descent."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.config.max_norm:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.max_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * (
                self.config.final_share + (1 - self.config.final_share) * left
            )
        self.optimizer.step()
        self.layer.refresh()

    def state(self) -> Weights:
        """Copies of the optimizer's moments."""
        return optimizer_state(self.network.table.items(), self.optimizer)

    def restore(self, weights: Weights, state: Weights) -> None:
        for name, array in self.arrays.items():
            array[...] = weights[name]
        restore_optimizer(self.network.table.items(), self.optimizer, state)
        self.layer.refresh()


def _optimizer(network: A2cNetwork, kind: A2cOptimizer, rate: float) -> torch.optim.Optimizer:
    if kind is A2cOptimizer.SGD:
        return torch.optim.SGD(network.parameters(), rate)
    if kind is A2cOptimizer.RMSPROP:
        return torch.optim.RMSprop(network.parameters(), rate, alpha=0.99, eps=1e-5)
    # Fused, because the dense layer of a wide image has millions of weights.
    return torch.optim.Adam(network.parameters(), rate, eps=1e-5, fused=True)


# Deviation: A2cScheduler 3.2: its critic "takes as input the combination of action and state", but
# Algorithm 1 has v(S, w). Only a value of the state is a baseline that leaves the actor's gradient
# unbiased, so the critic is that of Algorithm 1.
# Deviation: A2cScheduler 3.1: the reward is -1 / T_j of one job j, which the text does not specify.
# Here it is the sum over all jobs in the system, in each time step (DeepRM, section 3.2), and 0
# when a job is placed. Summed over a run it is minus the sum of slowdowns.
class A2cLearner(PackingLearner):
    """Trains an actor and a critic, two separate networks, on parallel clusters in lockstep.

    Args:
        source: where job sequences are drawn; time is in steps.
        cost: its increase is the negative reward.
        recipe: "fast" or "paper".
        settings: changes of the recipe's settings, each "key=value", see `A2cConfig`.
        seed: seed of the training.

    Raises:
        ConfigError: the recipe or a setting is unknown, or the clusters have no images.
        pydantic.ValidationError: a value is out of range.

    Example: `A2cLearner(DrawnSource((0.7,)), settings=["num_steps=32"])`
    """

    kind = KIND
    feature_version = FEATURE_VERSION

    def __init__(
        self,
        source: PackingSource,
        cost: Cost = Cost.SLOWDOWN,
        recipe: str = "fast",
        settings: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        super().__init__(source, cost, seed)
        config = a2c_config(recipe, settings)
        self.config = config
        capacity = source.draw(IterationSeeds(seed, 0).sequences(1))[0].capacity
        network = settings_for(
            source.config, capacity, config.architecture, config.hidden, config.is_masked
        )
        self.network = network
        rng = np.random.default_rng(np.random.SeedSequence([0x6132_6373, seed]))
        drawn = draw_weights(network, network.num_actions, rng)
        # The last output is the action that lets time pass.
        drawn["out.bias" if network.hidden else "dense.bias"][-1] = config.void_prior
        actor = A2cNetwork(drawn, network, network.num_actions)
        critic = A2cNetwork(draw_weights(network, 1, rng), network, 1)
        self._encoder = PatternEncoder(network)
        self._actor = _Trained(actor, self._encoder, config, config.actor_rate)
        self._critic = _Trained(critic, self._encoder, config, config.critic_rate)

    def settings(self) -> dict[str, Any]:
        """The settings of the networks and of the training."""
        return {
            "network": self.network.model_dump(mode="json"),
            "learning": self.config.model_dump(mode="json"),
        }

    def weights(self) -> Weights:
        """The actor's weights (copies)."""
        return prefixed(self._actor.arrays, "actor")

    def policy(self) -> A2cPolicy:
        """The policy with the present weights; it draws its actions."""
        return A2cPolicy(KIND, self.weights(), self.network)

    def state(self) -> Weights:
        """The critic's weights and the moments of both optimizers."""
        return (
            prefixed(self._critic.arrays, "critic")
            | prefixed(self._actor.state(), "moments.actor")
            | prefixed(self._critic.state(), "moments.critic")
        )

    def restore(self, weights: Weights, state: Weights) -> None:
        """Continue from what `weights` and `state` returned."""
        self._actor.restore(_under("actor.", weights), _under("moments.actor.", state))
        self._critic.restore(_under("critic.", state), _under("moments.critic.", state))

    def iterate(self, seeds: IterationSeeds, done: float) -> Mapping[str, float]:
        """Run fresh sequences to their end; update after every `num_steps` x clusters decisions."""
        sequences = self.source.draw(seeds.sequences(self.config.num_sequences))
        world = self.source.config.model_copy(update={"max_decisions": self.config.max_decisions})
        batch = PackingBatch(sequences, world, repeats=self.config.repeats)
        batch.begin()
        rng = seeds.rng
        encoded = self._encode(batch)
        reports: list[Mapping[str, float]] = []
        while not batch.is_over.all():
            steps: list[_Step] = []
            while not batch.is_over.all() and sum(
                step.num_deciding for step in steps
            ) < self.config.num_steps * len(batch):
                steps.append(self._decide(batch, encoded, rng))
                encoded = self._encode(batch)
            reports.append(self._update(steps, encoded, 1.0 - done))
        decisions = float(batch.states.clock["num_decisions"].sum())
        means = {
            key: sum(report[key] * report["decisions"] for report in reports) / decisions
            for key in reports[0]
        }
        return {
            **means,
            "decisions": decisions,
            "cost": mean_cost(batch, self.cost),
            "updates": float(len(reports)),
        }

    def _encode(self, batch: PackingBatch) -> EncodedImages:
        return self._encoder.encode(batch.clusters, self._has_ended(batch))

    def _has_ended(self, batch: PackingBatch) -> npt.NDArray[np.bool_]:
        """bool[num_clusters], whether each run is over and was not cut off."""
        decisions = batch.states.clock["num_decisions"][:, 0]
        return np.asarray(batch.is_over & (decisions < self.config.max_decisions))

    def _decide(
        self, batch: PackingBatch, encoded: EncodedImages, rng: np.random.Generator
    ) -> _Step:
        logits = self._actor.outputs(encoded)
        masks = np.ones(logits.shape, np.bool_)
        # Otherwise every action is possible.
        if self.network.is_masked:
            masks = masks_of(batch.show())
        actions = draw_actions(np.where(masks, logits, np.float32(-np.inf)), rng.random(len(batch)))
        is_alive = ~batch.is_over  # before the step: these clusters take this decision
        before = batch.costs(self.cost)
        groups = batch.states.clock["now"][:, 0] + (
            batch.sequence_rows << _TIME_BITS if self.config.repeats > 1 else 0
        )
        batch.step(slots_of(actions, self.network.num_slots))
        rewards = (before - batch.costs(self.cost)) / self.config.reward_scale
        is_over = self._has_ended(batch)
        return _Step(encoded, masks, actions, is_alive, rewards, is_over, groups)

    def _update(self, steps: list[_Step], after: EncodedImages, left: float) -> Mapping[str, float]:
        is_alive = np.stack([step.is_alive for step in steps])
        # Clusters that were over at a step took no decision there, and are left out.
        flat = is_alive.ravel()
        encoded = EncodedImages.joined([step.encoded for step in steps]).only(flat)
        windows = Windows.of(encoded, self._encoder.index)
        values = self._critic.network.looked_up(windows)[:, 0]
        returns = self._returns(steps, after)[is_alive]
        targets = torch.from_numpy(returns.astype(np.float32))
        advantages = returns - values.detach().numpy()
        if self.config.is_aligned:
            groups = np.stack([step.groups for step in steps])[is_alive]
            advantages = beyond_group_means(advantages, groups)
        weights = torch.from_numpy(advantages.astype(np.float32))
        masks = torch.from_numpy(np.concatenate([step.masks for step in steps])[flat])
        actions = torch.from_numpy(np.concatenate([step.actions for step in steps])[flat])
        loss, entropy = self._actor_loss(windows, masks, actions, weights, left)
        critic_loss = 0.5 * (targets - values).square().mean()
        # The last update of an iteration may have fewer decisions: its step is smaller.
        share = min(1.0, len(targets) / (self.config.num_steps * is_alive.shape[1]))
        if not bool(torch.isfinite(loss + critic_loss)):
            raise DivergedError(
                "the loss is not finite; use smaller step sizes (actor_rate, critic_rate)"
            )
        self._actor.step(share * loss, left)
        self._critic.step(share * critic_loss, left)
        return {
            "entropy": entropy,
            "critic_loss": float(critic_loss.detach()),
            "decisions": float(len(targets)),
        }

    def _returns(self, steps: list[_Step], after: EncodedImages) -> FloatArray:
        """Returns of all clusters, float64[num_steps, num_clusters].

        The critic's values after the last step estimate all later rewards.
        """
        last = self._critic.outputs(after)[:, 0].astype(np.float64)
        rewards = np.stack([step.rewards for step in steps])
        is_over = np.stack([step.is_over for step in steps])
        # A cluster that was cut off waits for the others: nothing is discounted meanwhile.
        is_alive = np.stack([step.is_alive for step in steps])
        discount = np.where(is_alive, self.config.discount, 1.0)
        return n_step_returns(rewards, is_over, last, discount)

    def _actor_loss(
        self,
        windows: Windows,
        masks: torch.Tensor,
        actions: torch.Tensor,
        advantages: torch.Tensor,
        left: float,
    ) -> tuple[torch.Tensor, float]:
        """The actor's loss, and the mean entropy.

        The loss is minus the mean of advantage x log probability, minus the entropy bonus.
        """
        logits = self._actor.network.looked_up(windows)
        logs = torch.log_softmax(logits.masked_fill(~masks, -torch.inf), 1)
        # 0 x -inf would be NaN, so impossible actions get a logarithm of 0 here.
        entropy = -(logs.exp() * logs.masked_fill(~masks, 0.0)).sum(1).mean()
        if self.config.is_normalized and len(advantages) > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        chosen = logs.gather(1, actions.unsqueeze(1)).squeeze(1)
        return -(advantages * chosen).mean() - self.config.entropy * left * entropy, float(
            entropy.detach()
        )


def _under(prefix: str, arrays: Weights) -> Weights:
    """The arrays whose names begin with a prefix, without it."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def beyond_group_means(values: FloatArray, groups: npt.NDArray[np.int64]) -> FloatArray:
    """Each value minus the mean of its group.

    Example: values of 1, 3 and 5 in groups 7, 7 and 8 are -1, 1 and 0.
    """
    _, group = np.unique(groups, return_inverse=True)
    return np.asarray(values - (np.bincount(group, values) / np.bincount(group))[group])
