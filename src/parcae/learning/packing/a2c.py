"""A2cScheduler: advantage actor-critic with multi-step temporal differences.

Source: A2cScheduler (Liang et al., 2019), Algorithm 1; with returns of several steps as its section 3.1 says, after Mnih et
al., "Asynchronous methods for deep reinforcement learning".
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field

from parcae.errors import ConfigError, DivergedError
from parcae.learning.config import override
from parcae.learning.packing.loop import IterationSeeds, Weights
from parcae.metrics.packing import mean_cost
from parcae.packing.layout import Cost
from parcae.packing.sources import PackingSource
from parcae.packing.world import PackingBatch
from parcae.policies.a2c.layout import (
    FEATURE_VERSION,
    KIND,
    A2cSettings,
    Architecture,
    draw_weights,
)
from parcae.policies.a2c.lookup import Eye, FirstLayer, GradientRoom, Seen, outputs
from parcae.policies.a2c.network import A2cNetwork
from parcae.policies.a2c.policy import A2cPolicy, draw_actions, fitting, masks_of, named, slots_of

FloatArray = npt.NDArray[np.float64]
#: Time takes less than so many bits.
_TIME_BITS = 32


class Optimizer(StrEnum):
    """What makes a step of a gradient."""

    SGD = "sgd"
    RMSPROP = "rmsprop"
    ADAM = "adam"


class A2cConfig(BaseModel):
    """The settings of a training; an unknown key is refused. Those by default are the recipe "fast".

    Args:
        num_sequences: fresh sequences of an iteration. repeats: clusters that run each of them, side by side.
        num_steps: decisions of each cluster between two updates (more of the others', once some are over); returns sum what is
            left of them, the critic judges the rest.
        discount: of reward, a decision.
        actor_rate, critic_rate: step sizes. final_share: what is left of them at the training's end, falling linearly.
        optimizer: sgd, rmsprop or adam.
        entropy: weight of the entropy bonus, falling like the step sizes.
        max_norm: largest norm of each network's gradient; 0 for any.
        is_aligned: advantages count beyond their mean over the clusters at the same time, with the same sequence if each has
            `repeats`: an image does not tell how long jobs will go on to arrive, so that the critic cannot know it.
        is_normalized: advantages are divided by their standard deviation.
        reward_scale: rewards are divided by it.
        architecture: of actor and critic.
        hidden: units between flattened image and outputs, 0 for none.
        is_masked: only jobs that can start now are chosen; else others too, which books them ahead: learning then ends early,
            where everything is booked at once.
        void_prior: logit of letting time pass at the start, those of jobs being about 0.
        max_decisions: an episode in training is cut off there; the critic judges the rest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_sequences: int = Field(default=16, ge=1)
    repeats: int = Field(default=8, ge=1)
    num_steps: int = Field(default=32, ge=1)
    discount: float = Field(default=0.97, gt=0, le=1)
    actor_rate: float = Field(default=3e-4, gt=0)
    critic_rate: float = Field(default=1e-3, gt=0)
    final_share: float = Field(default=0.05, ge=0, le=1)
    optimizer: Optimizer = Optimizer.ADAM
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


#: "paper": Algorithm 1 to the letter, one cluster, one update a decision, plain steps; its numbers are ours, for it has none.
RECIPES: dict[str, A2cConfig] = {
    "fast": A2cConfig(),
    "paper": A2cConfig(
        num_sequences=1, repeats=1, num_steps=1, discount=0.99, actor_rate=1e-4, critic_rate=1e-3, final_share=1.0,
        optimizer=Optimizer.SGD, entropy=0.0, max_norm=0.0, is_aligned=False, is_normalized=False, hidden=0, is_masked=False,
        void_prior=0.0,
    ),
}  # fmt: skip


def a2c_config(recipe: str = "fast", settings: Sequence[str] = ()) -> A2cConfig:
    """A recipe's settings, some of them changed ("key=value").

    Raises:
        ConfigError: no such recipe, or no such key.
        pydantic.ValidationError: a value out of range.
    """
    if recipe not in RECIPES:
        close = difflib.get_close_matches(recipe, RECIPES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"write one of {', '.join(RECIPES)}"
        raise ConfigError(f"no recipe {recipe!r} of a2c; {hint}")
    return override(RECIPES[recipe], settings)


def n_step_returns(
    rewards: FloatArray, is_over: npt.NDArray[np.bool_], last_values: FloatArray, discount: float
) -> FloatArray:
    """Discounted reward to the window's end, and what the critic expects thereafter.

    Args:
        rewards: float64[num_steps, num_clusters]. is_over: bool[num_steps, num_clusters], over after the step.
        last_values: float64[num_clusters], the critic's values of the states after the last step.

    Source: A2cScheduler, Algorithm 1 (num_steps 1) and section 3.1.
    Example: rewards of 1 and 2, discount 0.5 and a last value of 4 give 1 + 0.5 (2 + 0.5 x 4) = 3 and 4.
    """
    returns = np.zeros_like(rewards)
    ahead = np.array(last_values, np.float64)
    for step in range(len(rewards) - 1, -1, -1):
        ahead = rewards[step] + discount * np.where(is_over[step], 0.0, ahead)
        returns[step] = ahead
    return returns


class _Moment(NamedTuple):
    """One decision of all clusters."""

    seen: Seen
    sums: npt.NDArray[np.float32]
    masks: npt.NDArray[np.bool_]
    actions: npt.NDArray[np.int64]
    is_alive: npt.NDArray[np.bool_]
    rewards: FloatArray
    is_over: npt.NDArray[np.bool_]
    groups: npt.NDArray[np.int64]  # clusters with the same sequence (if there are several) and time

    @property
    def num_deciding(self) -> int:
        """Clusters that decided."""
        return int(self.is_alive.sum())


class _Trained:
    """A network, what looks for it, and what makes its steps."""

    def __init__(self, network: A2cNetwork, eye: Eye, config: A2cConfig, rate: float) -> None:
        self.network = network
        self.config = config
        self.rate = rate
        self.arrays = network.arrays()
        self.layer = FirstLayer(self.arrays, eye)
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        grads = {
            name: parameter.grad.numpy()
            for name, parameter in network.table.items()
            if parameter.grad is not None
        }
        self._room = GradientRoom(
            grads.get("conv_weight"), grads.get("conv_bias"), grads["dense_weight"]
        )
        self.optimizer = _optimizer(network, config.optimizer, rate)

    def outputs(self, sums: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Outputs, given the first layer's sums."""
        return outputs(sums, self.layer.blank, self.arrays)

    def step(self, seen: Seen, sums: torch.Tensor, loss: torch.Tensor, left: float) -> None:
        """One step down the loss, a function of what the network makes of `sums`."""
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()  # type: ignore[no-untyped-call]
        assert sums.grad is not None
        self.layer.gradient(seen, sums.grad.numpy(), self._room)
        if self.config.max_norm:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.max_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * (
                self.config.final_share + (1 - self.config.final_share) * left
            )
        self.optimizer.step()
        self.layer.renew()

    def state(self, prefix: str) -> Weights:
        """The optimizer's moments, copied."""
        return {
            f"{prefix}.{name}.{key}": np.array(torch.as_tensor(value).numpy())
            for name, parameter in self.network.table.items()
            for key, value in self.optimizer.state.get(parameter, {}).items()
            if value is not None
        }

    def restore(self, weights: Weights, state: Weights, prefix: str) -> None:
        """Take weights, and what `state` gave."""
        for name, array in self.arrays.items():
            array[...] = weights[f"{prefix}.{name}"]
        for name, parameter in self.network.table.items():
            own = f"{prefix}.{name}."
            found = {
                key.removeprefix(own): torch.from_numpy(array.copy())
                for key, array in state.items()
                if key.startswith(own)
            }
            if found:
                self.optimizer.state[parameter] = found
        self.layer.renew()


def _optimizer(network: A2cNetwork, kind: Optimizer, rate: float) -> torch.optim.Optimizer:
    if kind is Optimizer.SGD:
        return torch.optim.SGD(network.parameters(), rate)
    if kind is Optimizer.RMSPROP:
        return torch.optim.RMSprop(network.parameters(), rate, alpha=0.99, eps=1e-5)
    return torch.optim.Adam(network.parameters(), rate, eps=1e-5)


# Deviation: A2cScheduler 3.2: its critic "takes as input the combination of action and state", but Algorithm 1 has v(S, w), and
# only a value of the state is a baseline that leaves the actor's gradient unbiased; the critic is that of Algorithm 1.
# Deviation: A2cScheduler 3.1: the reward is -1 / T_j, of one job j that the text does not name; here it is the sum over all jobs
# in the system, each time step (DeepRM, section 3.4, whose sum over a run is minus the sum of slowdowns); 0 when a job is placed.
class A2cLearner:
    """Actor and critic, distinct networks, that learn from parallel clusters in lockstep.

    Args:
        source: of the sequences. cost: whose increase is the negative reward. settings: shape of the networks.
        config: how to learn. weights: to start from, the actor's; drawn with `seed` unless given.
    """

    kind = KIND
    feature_version = FEATURE_VERSION

    def __init__(
        self,
        source: PackingSource,
        cost: Cost,
        settings: A2cSettings,
        config: A2cConfig,
        weights: Weights | None = None,
        seed: int = 0,
    ) -> None:
        self.source = source
        self.cost = cost
        self.network = settings
        self.config = config
        rng = np.random.default_rng(np.random.SeedSequence([0x6132_6373, seed]))
        drawn = draw_weights(settings, settings.num_actions, rng)
        drawn["out.bias" if settings.hidden else "dense.bias"][-1] = config.void_prior
        actor = named(drawn, "actor") | dict(weights or {})
        critic = draw_weights(settings, 1, rng)
        eye = Eye(settings)
        own = {name.removeprefix("actor."): array for name, array in actor.items()}
        self._eye = eye
        self._actor = _Trained(
            A2cNetwork(own, settings, settings.num_actions), eye, config, config.actor_rate
        )
        self._critic = _Trained(A2cNetwork(critic, settings, 1), eye, config, config.critic_rate)

    def settings(self) -> dict[str, Any]:
        """Shape of the networks and settings of the learning."""
        return {
            "network": self.network.model_dump(mode="json"),
            "learning": self.config.model_dump(mode="json"),
        }

    def weights(self) -> Weights:
        """The actor's weights (copies)."""
        return named(self._actor.arrays, "actor")

    def policy(self) -> A2cPolicy:
        """The policy with the present weights, drawn from."""
        return A2cPolicy(KIND, self.weights(), self.network)

    def state(self) -> Weights:
        """The critic's weights and the moments of both optimizers."""
        moments = self._actor.state("moments.actor") | self._critic.state("moments.critic")
        return named(self._critic.arrays, "critic") | moments

    def restore(self, weights: Weights, state: Weights) -> None:
        """Go on from what `weights` and `state` gave."""
        moments = {
            key.removeprefix("moments."): array
            for key, array in state.items()
            if key.startswith("moments.")
        }
        self._actor.restore(weights, moments, "actor")
        self._critic.restore(state, moments, "critic")

    def iterate(self, seeds: IterationSeeds, left: float) -> Mapping[str, float]:
        """Run fresh sequences to their end, with an update after every `num_steps` x clusters decisions."""
        sequences = self.source.draw(seeds.sequences(self.config.num_sequences))
        world = self.source.config.model_copy(update={"max_decisions": self.config.max_decisions})
        batch = PackingBatch(sequences, world, repeats=self.config.repeats)
        batch.begin()
        rng = seeds.rng
        seen = self._look(batch)
        told: list[Mapping[str, float]] = []
        while not batch.is_over.all():
            moments: list[_Moment] = []
            while not batch.is_over.all() and sum(
                moment.num_deciding for moment in moments
            ) < self.config.num_steps * len(batch):
                moments.append(self._decide(batch, seen, rng))
                seen = self._look(batch)
            told.append(self._update(moments, seen, left))
        decisions = float(batch.states.clock["num_decisions"].sum())
        means = {
            key: sum(one[key] * one["decisions"] for one in told) / decisions for key in told[0]
        }
        return {
            **means,
            "decisions": decisions,
            "cost": mean_cost(batch, self.cost),
            "updates": float(len(told)),
        }

    def _look(self, batch: PackingBatch) -> Seen:
        return self._eye.look(batch.states, batch.asked, batch.sequence)

    def _decide(self, batch: PackingBatch, seen: Seen, rng: np.random.Generator) -> _Moment:
        sums = self._actor.layer.sums(seen)
        logits = self._actor.outputs(sums)
        masks = np.ones(logits.shape, np.bool_)
        if self.network.is_masked:
            masks = masks_of(batch.show())
        actions = draw_actions(np.where(masks, logits, np.float32(-np.inf)), rng.random(len(batch)))
        is_alive = ~batch.is_over
        before = batch.costs(self.cost)
        groups = batch.states.clock["now"][:, 0] + (
            batch.sequence << _TIME_BITS if self.config.repeats > 1 else 0
        )
        batch.step(slots_of(actions, self.network.num_slots))
        rewards = (before - batch.costs(self.cost)) / self.config.reward_scale
        return _Moment(seen, sums, masks, actions, is_alive, rewards, batch.is_over, groups)

    def _update(self, moments: list[_Moment], after: Seen, left: float) -> Mapping[str, float]:
        is_alive = np.stack([moment.is_alive for moment in moments])
        flat = is_alive.ravel()
        seen = Seen.joined([moment.seen for moment in moments]).only(flat)
        critic_sums = torch.from_numpy(self._critic.layer.sums(seen)).requires_grad_()
        values = self._critic.network.outputs(critic_sums)[:, 0]
        last = self._critic.outputs(self._critic.layer.sums(after))[:, 0].astype(np.float64)
        returns = n_step_returns(
            np.stack([moment.rewards for moment in moments]),
            np.stack([moment.is_over for moment in moments]),
            last,
            self.config.discount,
        )[is_alive]
        targets = torch.from_numpy(returns.astype(np.float32))
        advantages = returns - values.detach().numpy()
        if self.config.is_aligned:
            advantages = beyond_group_means(
                advantages, np.stack([moment.groups for moment in moments])[is_alive]
            )
        actor_sums = torch.from_numpy(
            np.concatenate([moment.sums for moment in moments])[flat]
        ).requires_grad_()
        masks, actions = (
            torch.from_numpy(np.concatenate(part)[flat])
            for part in ([m.masks for m in moments], [m.actions for m in moments])
        )
        loss, entropy = self._actor_loss(
            actor_sums, masks, actions, torch.from_numpy(advantages.astype(np.float32)), left
        )
        critic_loss = 0.5 * (targets - values).square().mean()
        share = min(1.0, len(targets) / (self.config.num_steps * is_alive.shape[1]))
        if not bool(torch.isfinite(loss + critic_loss)):
            raise DivergedError(
                "the loss is not finite; use smaller step sizes (actor_rate, critic_rate)"
            )
        self._actor.step(seen, actor_sums, share * loss, left)
        self._critic.step(seen, critic_sums, share * critic_loss, left)
        return {
            "entropy": entropy,
            "critic_loss": float(critic_loss.detach()),
            "decisions": float(len(targets)),
        }

    def _actor_loss(
        self,
        sums: torch.Tensor,
        masks: torch.Tensor,
        actions: torch.Tensor,
        advantages: torch.Tensor,
        left: float,
    ) -> tuple[torch.Tensor, float]:
        """Minus the mean of advantage x log probability, less the entropy's bonus; and the entropy."""
        logs = torch.log_softmax(
            self._actor.network.outputs(sums).masked_fill(~masks, -torch.inf), 1
        )
        entropy = -(logs.exp() * logs.masked_fill(~masks, 0.0)).sum(1).mean()
        if self.config.is_normalized and len(advantages) > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        chosen = logs.gather(1, actions.unsqueeze(1)).squeeze(1)
        return -(advantages * chosen).mean() - self.config.entropy * left * entropy, float(
            entropy.detach()
        )


def beyond_group_means(values: FloatArray, groups: npt.NDArray[np.int64]) -> FloatArray:
    """Each value less the mean of its group.

    Example: values of 1, 3 and 5 in groups 7, 7 and 8 are -1, 1 and 0.
    """
    _, group = np.unique(groups, return_inverse=True)
    return np.asarray(values - (np.bincount(group, values) / np.bincount(group))[group])


def a2c_learner(
    source: PackingSource,
    cost: Cost = Cost.SLOWDOWN,
    recipe: str = "fast",
    settings: Sequence[str] = (),
    architecture: Architecture | None = None,
    weights: Weights | None = None,
    seed: int = 0,
) -> A2cLearner:
    """A learner for the clusters of a source; `weights` (an actor's) to start from.

    Args:
        architecture: instead of that of the settings.

    Raises:
        ConfigError: an unknown recipe or setting, or clusters without images.
        FormatError: weights of other shapes.
        pydantic.ValidationError: a value out of range.

    Example: `a2c_learner(DrawnSource((0.7,)), settings=["num_steps=32"])`
    """
    config = a2c_config(recipe, settings)
    if architecture is not None:
        config = config.model_copy(update={"architecture": architecture})
    capacity = source.draw(IterationSeeds(seed, 0).sequences(1))[0].capacity
    network = fitting(source.config, capacity, config.architecture, config.hidden, config.is_masked)
    return A2cLearner(source, cost, network, config, weights, seed)
