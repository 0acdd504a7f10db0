"""Training of the set network: proximal policy optimisation over groups of runs of one sequence.

A group's mean cost to go at the same time is the baseline. The advantages of each group are divided
by their standard deviation, so that loads and logs whose slowdowns differ a hundredfold have equal
weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from parcae.base.arrays import Float64Array
from parcae.decima.learning.updates import Trainee, costs_to_go, gains, update
from parcae.learning.loop import IterationSeeds
from parcae.policies.checkpoint import Weights
from parcae.policies.networks.training import (
    DeepSetNetwork,
    JobChoices,
    JobData,
    Judged,
    optimizer_state,
    restore_optimizer,
    set_rate,
)
from parcae.rigid.jobset.kernels import (
    CRITIC_SHAPES,
    FEATURE_VERSION,
    MAX_ROWS,
    NET,
    PRIOR,
    SHAPES,
    START_RULE,
    JobSetRecord,
    RigidJobFeature,
    initial_weights,
)
from parcae.rigid.jobset.policy import JobSetPolicy
from parcae.rigid.learner import PackingLearner
from parcae.rigid.metrics import mean_cost
from parcae.rigid.world import PackingBatch


class JobSetNetwork(DeepSetNetwork):
    """The set network with a critic, over ragged batches of decisions."""

    NET = NET

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights, {**SHAPES, **CRITIC_SHAPES})

    def logits(self, batch: JobChoices) -> tuple[Tensor, Tensor, Tensor]:
        """Return (logits of jobs [R], of hold [B], context [B, HIDDEN]); -inf means impossible."""
        hidden, context = self._contexts(batch)
        can_start = batch.rows[:, RigidJobFeature.CAN_START] != 0
        return *self._choices(batch, hidden, context, can_start), context

    def forward(self, batch: JobChoices) -> Judged:
        """Evaluate recorded decisions: log probability of each choice, entropy, and state value."""
        jobs, hold, context = self.logits(batch)
        return Judged(*self._judged(batch, jobs, hold), self._value(context))


class SetConfig(BaseModel):
    """The settings of the set network's training. Unknown keys are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    num_groups: int = Field(default=48, ge=1)
    group_size: int = Field(default=8, ge=2)
    capacity: int = Field(default=1024, ge=8)
    row_capacity: int = Field(default=8192, ge=256)
    learning_rate: float = Field(default=2e-3, gt=0)
    final_share: float = Field(default=0.05, ge=0, le=1)
    epochs: int = Field(default=2, ge=1)
    minibatch: int = Field(default=2048, ge=1)
    clip: float = Field(default=0.2, gt=0)
    max_norm: float = Field(default=0.5, gt=0)
    entropy: float = Field(default=0.01, ge=0)
    horizon: float | None = Field(default=None, gt=0)
    prior: tuple[float, float] = PRIOR
    advantage_clip: float = Field(default=5.0, gt=0)


#: Recipes by name: for runs of a few dozen jobs in steps, and for pieces of logs with hundreds.
RECIPES = {
    "steps": SetConfig(),
    "log": SetConfig(num_groups=8, group_size=8, capacity=4096, row_capacity=65536, minibatch=4096),
}


class SetLearner(PackingLearner):
    """The learner of the set network."""

    kind = "set"
    feature_version = FEATURE_VERSION
    recipes = RECIPES
    salt = 0x7365_7400
    config: SetConfig

    def default_recipe(self) -> str:
        """The recipe for logs, or for steps."""
        return "log" if self.source.config.mode == "exact" else "steps"

    def start(self, rng: np.random.Generator) -> None:
        """Make the network, which starts as the rule."""
        # The rule is not trained: the network corrects it.
        self.rule = np.array(START_RULE, np.float64)
        self.module = JobSetNetwork(initial_weights(rng, self.config.prior))
        self.optimizer = torch.optim.Adam(self.module.parameters(), lr=self.config.learning_rate)

    def weights(self) -> Weights:
        """The weights of the network, and the parameters of the rule."""
        return {**self.module.export(), "rule": self.rule}

    def policy(self) -> JobSetPolicy:
        """The policy with the present weights."""
        return JobSetPolicy("set", self.weights())

    def state(self) -> Weights:
        """Adam's moments."""
        return optimizer_state(self.module.named_parameters(), self.optimizer)

    def restore(self, weights: Weights, state: Weights) -> None:
        """Continue from what `weights` and `state` returned."""
        self.module.load_arrays(weights)
        self.rule = np.array(weights["rule"], np.float64)
        restore_optimizer(self.module.named_parameters(), self.optimizer, state)

    def iterate(self, seeds: IterationSeeds, done: float) -> Mapping[str, float]:
        """Run one iteration: runs of fresh sequences, then the proximal update."""
        config = self.config
        rng = seeds.rng
        batch = PackingBatch(
            self.source.draw(seeds.sequences(config.num_groups)),
            self.source.config,
            repeats=config.group_size,
            wants_profile=True,
            seed=int(rng.integers(1 << 62)),
        )
        # A record has room for the largest view even if the capacity is small.
        rows = max(config.row_capacity, 2 * MAX_ROWS)
        records = self.explore(batch, JobSetRecord, decisions=config.capacity, rows=rows)
        fade = set_rate(self.optimizer, config.learning_rate, config.final_share, 1.0 - done)
        data = JobData(records, [(0, int(one.count[0])) for one in records], JobChoices)
        advantage = np.concatenate(list(self._advantages(batch, records)))
        trainee = Trainee(self.module, self.optimizer, rng, torch.device("cpu"))
        report = update(trainee, data, advantage, None, config, config.entropy * fade)
        return {
            "cost": mean_cost(batch, self.cost),
            "decisions": float(len(data)),
            "entropy": report.entropy,
            "kl": report.kl,
            "loss": report.loss,
            "learning_rate": config.learning_rate * fade,
        }

    def _advantages(
        self, batch: PackingBatch, records: list[JobSetRecord]
    ) -> Iterator[Float64Array]:
        """The advantages of all recorded decisions, one run after another.

        An advantage is the group's mean cost to go at that time minus the decision's cost to go.
        """
        ends = batch.states.clock["now"][:, 0]
        horizon = self.config.horizon
        rate = 0.0 if horizon is None else 1.0 / horizon
        times: list[Float64Array] = []
        to_go: list[Float64Array] = []
        for record, end, total in zip(records, ends, batch.costs(self.cost), strict=True):
            n = int(record.count[0])
            times.append(np.append(record.now[:n], end).astype(np.float64))
            to_go.append(costs_to_go(times[-1], np.append(record.cost[:n], total), rate))
        size = self.config.group_size
        for first in range(0, len(times), size):
            advantages = gains(times[first : first + size], to_go[first : first + size])
            joined = np.concatenate(advantages)
            deviation = max(float(joined.std()), 1e-6) if len(joined) else 1.0
            limit = self.config.advantage_clip
            for advantage in advantages:
                yield np.clip(advantage / deviation, -limit, limit)
