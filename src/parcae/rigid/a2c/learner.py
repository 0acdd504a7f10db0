"""Training of A2cScheduler: advantage actor-critic with multi-step temporal differences.

Source: A2cScheduler (Liang et al., 2019), Algorithm 1, with multi-step returns as its section 3.1
says, after Mnih et al., "Asynchronous methods for deep reinforcement learning".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from parcae.base.arrays import BoolArray, Float64Array, Int64Array
from parcae.base.errors import DivergedError
from parcae.learning.loop import IterationSeeds
from parcae.policies.checkpoint import Weights
from parcae.policies.networks.training import (
    TableNetwork,
    optimizer_state,
    restore_optimizer,
    set_rate,
)
from parcae.rigid.a2c.kernels import PATTERNS
from parcae.rigid.a2c.layout import (
    FEATURE_VERSION,
    KIND,
    A2cSettings,
    Architecture,
    EncodedImages,
    LookupNetwork,
    draw_weights,
    encode_clusters,
)
from parcae.rigid.a2c.policy import (
    A2cPolicy,
    draw_actions,
    masks_of,
    prefixed,
    settings_for,
    slots_of,
)
from parcae.rigid.learner import PackingLearner
from parcae.rigid.metrics import mean_cost
from parcae.rigid.world import PackingBatch

#: A time step fits into this many bits, so that a sequence's index and a time fit into one int64.
_TIME_BITS = 32


class Windows(NamedTuple):
    """The windows of encoded images, by the distinct pairs of place and pattern."""

    pairs: Tensor  # int64[num_windows], the pair of each window
    starts: Tensor  # int64[num_images], where each image's windows begin
    place: Tensor  # int64[num_pairs]
    pattern: Tensor  # int64[num_pairs], row of `patterns`
    patterns: Int64Array  # int64[num_patterns]

    @classmethod
    def of(cls, encoded: EncodedImages) -> Windows:
        """Find the distinct pairs of images."""
        keys, pairs = encoded.distinct()
        patterns, pattern = np.unique(keys % PATTERNS, return_inverse=True)
        return cls(
            torch.from_numpy(pairs),
            torch.from_numpy(encoded.starts[:-1]),
            torch.from_numpy(keys // PATTERNS),
            torch.from_numpy(pattern),
            patterns,
        )


class A2cNetwork(TableNetwork):
    """An actor (outputs: a logit for each action) or a critic (one output: the state's value).

    The parameters share memory with the result of `arrays`. `dense.weight` is [places, filters,
    outputs].

    Source: A2cScheduler, section 4.3 and Table 3: 3x3 filters, rectified, 2x2 max-pooling or none,
    flattened, dense.
    """

    def __init__(self, weights: Weights, settings: A2cSettings, num_outputs: int) -> None:
        super().__init__(weights, settings.shapes(num_outputs))
        self.settings = settings

    def arrays(self) -> Weights:
        """Return the weights by name; they share the parameters' memory."""
        return {name: array.detach().numpy() for name, array in self.by_name().items()}

    def looked_up(self, windows: Windows) -> Tensor:
        """Return the outputs [B, num_outputs] for encoded images.

        As in `LookupNetwork`, what a window adds to the dense layer's sums is computed once for
        each pair of place and pattern that occurs.
        """
        dense = self.table["dense_weight"]
        features = self._features(windows.patterns).index_select(0, windows.pattern)
        added = torch.bmm(features.unsqueeze(1), dense.index_select(0, windows.place)).squeeze(1)
        sums = nn.functional.embedding_bag(windows.pairs, added, windows.starts, mode="sum")
        return self._last(sums + self._blank() @ dense.sum(0) + self.table["dense_bias"])

    def _features(self, patterns: Int64Array) -> Tensor:
        """Return what patterns of a window give beyond a window of zeros, [P, filters]."""
        size = self.settings.architecture.window
        if size == 1:
            return torch.ones(len(patterns), 1)
        # Bit row + size x column of a pattern is a cell of its window.
        bits = (patterns[:, None] >> np.arange(size**2)) & 1
        cells = torch.from_numpy(bits.astype(np.float32)).reshape(-1, size, size).transpose(1, 2)
        return self._convolved(cells).flatten(1) - self._blank()

    def _blank(self) -> Tensor:
        """Return what a window of zeros gives, [filters]."""
        if self.settings.architecture is Architecture.FC:
            return torch.zeros(1)
        blank: Tensor = self.table["conv_bias"].relu()
        return blank

    def _convolved(self, images: Tensor) -> Tensor:
        """Return the rectified and pooled convolution, [B, filters, rows, columns]."""
        table = self.table
        x = nn.functional.conv2d(
            images.unsqueeze(1), table["conv_weight"].unsqueeze(1), table["conv_bias"]
        ).relu()
        return nn.functional.max_pool2d(x, 2) if self.settings.architecture.has_pool else x

    def _last(self, x: Tensor) -> Tensor:
        return self.linear("out", x.relu()) if self.settings.hidden else x


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
        optimizer: of both networks.
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
    optimizer: Literal["sgd", "rmsprop", "adam"] = "adam"
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
        final_share=1.0, optimizer="sgd", entropy=0.0, max_norm=0.0, is_aligned=False,
        is_normalized=False, hidden=0, is_masked=False, void_prior=0.0,
    ),
}  # fmt: skip


def n_step_returns(
    rewards: Float64Array,
    is_over: BoolArray,
    last_values: Float64Array,
    discount: float | Float64Array,
) -> Float64Array:
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
    masks: BoolArray
    actions: Int64Array
    is_alive: BoolArray
    rewards: Float64Array
    is_over: BoolArray
    # Clusters at the same time (and with the same sequence, if it runs several times) are a group.
    groups: Int64Array


class _Trained:
    """A network in training: its weights, the same as looked up, and its optimizer."""

    def __init__(
        self, weights: Weights, shape: A2cSettings, config: A2cConfig, rate: float
    ) -> None:
        self.network = A2cNetwork(weights, shape, weights[shape.last_bias].size)
        self.looked_up = LookupNetwork(self.network.arrays(), shape)
        self.config = config
        self.rate = rate
        self.optimizer = _optimizer(self.network, config.optimizer, rate)

    def step(self, loss: Tensor, left: float) -> None:
        """One step of gradient descent."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.config.max_norm:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.max_norm)
        set_rate(self.optimizer, self.rate, self.config.final_share, left)
        self.optimizer.step()
        self.looked_up.refresh()

    def weights(self) -> Weights:
        """Copies of the weights."""
        return {name: array.copy() for name, array in self.network.arrays().items()}

    def state(self) -> Weights:
        """Copies of the optimizer's moments."""
        return optimizer_state(self.network.by_name().items(), self.optimizer)

    def restore(self, weights: Weights, state: Weights) -> None:
        self.network.load_arrays(weights)
        restore_optimizer(self.network.by_name().items(), self.optimizer, state)
        self.looked_up.refresh()


def _optimizer(network: A2cNetwork, kind: str, rate: float) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(network.parameters(), rate)
    if kind == "rmsprop":
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

    The reward is minus the increase of the cost.

    Example: `A2cLearner(DrawnSource((0.7,)), settings=["num_steps=32"])`
    """

    kind = KIND
    feature_version = FEATURE_VERSION
    recipes = RECIPES
    salt = 0x6132_6373
    config: A2cConfig
    network: A2cSettings

    def start(self, rng: np.random.Generator) -> None:
        """Make the networks, and draw their weights."""
        config = self.config
        capacity = self.source.draw(IterationSeeds(self.seed, 0).sequences(1))[0].capacity
        shape = settings_for(
            self.source.config, capacity, config.architecture, config.hidden, config.is_masked
        )
        self.network = shape
        drawn = draw_weights(shape, shape.num_actions, rng)
        # The last output is the action that lets time pass.
        drawn[shape.last_bias][-1] = config.void_prior
        self._actor = _Trained(drawn, shape, config, config.actor_rate)
        self._critic = _Trained(draw_weights(shape, 1, rng), shape, config, config.critic_rate)

    def weights(self) -> Weights:
        """The actor's weights (copies)."""
        return prefixed(self._actor.weights(), "actor")

    def policy(self) -> A2cPolicy:
        """The policy with the present weights; it draws its actions."""
        return A2cPolicy(KIND, self.weights(), self.network)

    def state(self) -> Weights:
        """The critic's weights and the moments of both optimizers."""
        return (
            prefixed(self._critic.weights(), "critic")
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
            count = 0
            while not batch.is_over.all() and count < self.config.num_steps * len(batch):
                steps.append(self._decide(batch, encoded, rng))
                count += int(steps[-1].is_alive.sum())
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
        return encode_clusters(batch.clusters, self._has_ended(batch), self.network)

    def _has_ended(self, batch: PackingBatch) -> BoolArray:
        """bool[num_clusters], whether each run is over and was not cut off."""
        decisions = batch.states.clock["num_decisions"][:, 0]
        return np.asarray(batch.is_over & (decisions < self.config.max_decisions))

    def _decide(
        self, batch: PackingBatch, encoded: EncodedImages, rng: np.random.Generator
    ) -> _Step:
        logits = self._actor.looked_up.outputs(encoded)
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
        images, *columns = zip(*steps, strict=True)
        masks, actions, is_alive, rewards, is_over, groups = map(np.stack, columns)
        # Clusters that were over at a step took no decision there, and are left out.
        windows = Windows.of(EncodedImages.joined(images, is_alive.ravel()))
        values = self._critic.network.looked_up(windows)[:, 0]
        # The critic's values after the last step estimate all later rewards.
        last = self._critic.looked_up.outputs(after)[:, 0].astype(np.float64)
        # A cluster that was cut off waits for the others: nothing is discounted meanwhile.
        discount = np.where(is_alive, self.config.discount, 1.0)
        returns = n_step_returns(rewards, is_over, last, discount)[is_alive]
        advantages = returns - values.detach().numpy()
        if self.config.is_aligned:
            advantages = beyond_group_means(advantages, groups[is_alive])
        targets, weights = (
            torch.from_numpy(numbers.astype(np.float32)) for numbers in (returns, advantages)
        )
        chosen = torch.from_numpy(masks[is_alive]), torch.from_numpy(actions[is_alive])
        loss, entropy = self._actor_loss(windows, *chosen, weights, left)
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

    def _actor_loss(
        self,
        windows: Windows,
        masks: Tensor,
        actions: Tensor,
        advantages: Tensor,
        left: float,
    ) -> tuple[Tensor, float]:
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


def beyond_group_means(values: Float64Array, groups: Int64Array) -> Float64Array:
    """Each value minus the mean of its group.

    Example: values of 1, 3 and 5 in groups 7, 7 and 8 are -1, 1 and 0.
    """
    _, group = np.unique(groups, return_inverse=True)
    return np.asarray(values - (np.bincount(group, values) / np.bincount(group))[group])
