"""The set network as a learner: proximal policy optimisation over groups of runs of one sequence.

The mean cost to go of a group, aligned in time, is the baseline; each group's advantages count in units of their own spread, so
that loads and logs whose slowdowns differ a hundredfold teach alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field

from parcae.errors import ConfigError
from parcae.learning.config import override
from parcae.learning.packing.loop import IterationSeeds, Weights
from parcae.learning.ppo import Step, update
from parcae.learning.returns import aligned_baseline, costs_to_go
from parcae.metrics.packing import mean_cost
from parcae.packing.layout import Cost, select
from parcae.packing.sources import PackingSource
from parcae.packing.world import PackingBatch, spread
from parcae.policies.jobset.kernels import Record, explore_many
from parcae.policies.jobset.layout import (
    FEATURE_VERSION,
    MAX_ROWS,
    PRIOR,
    START_RULE,
    initial_weights,
)
from parcae.policies.jobset.network import Decisions, JobSetNetwork
from parcae.policies.jobset.policy import JobSetPolicy, allocate_record, allocate_workspace

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class SetConfig(BaseModel):
    """The settings of the set network's learning; an unknown key is refused.

    Args:
        num_groups, group_size: runs of an iteration; those of a group have the same sequence.
        capacity: decisions that one run can record; row_capacity: waiting jobs in them together.
        learning_rate, final_share: Adam's, falling linearly to `final_share` of it.
        epochs, minibatch, clip, max_norm: of the proximal update. entropy: weight of the entropy bonus, falling likewise.
        horizon: time in which the cost of a decision fades, in steps; None: it counts until the run's end.
        prior: what the rule's choices weigh in a fresh network (start, hold), as logits.
        advantage_clip: advantages beyond so many of their spreads count no more.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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


#: Recipes by name: runs of a few dozen jobs, and pieces of logs with hundreds.
RECIPES = {
    "steps": SetConfig(),
    "log": SetConfig(num_groups=8, group_size=8, capacity=4096, row_capacity=65536, minibatch=4096),
}


def set_learner(
    source: PackingSource,
    cost: Cost,
    recipe: str | None = None,
    settings: Sequence[str] = (),
    weights: Weights | None = None,
    seed: int = 0,
) -> SetLearner:
    """A learner for the source.

    Args:
        recipe: "steps" or "log"; unless given, what fits the source's mode.
        settings: other values, each "key=value".
        weights: a checkpoint's weights to start from (its rule included), or a tuned rule's alone ({"rule": ...}).

    Raises:
        ConfigError: an unknown recipe or setting.
    """
    name = recipe or ("log" if source.config.mode == "exact" else "steps")
    if name not in RECIPES:
        raise ConfigError(f"recipe {name!r} of the set network: write one of {', '.join(RECIPES)}")
    return SetLearner(source, cost, override(RECIPES[name], settings), weights, seed)


class SetLearner:
    """See `parcae.learning.packing.loop.Learner`."""

    kind = "set"
    feature_version = FEATURE_VERSION

    def __init__(
        self,
        source: PackingSource,
        cost: Cost,
        config: SetConfig,
        weights: Weights | None,
        seed: int,
    ) -> None:
        self.source = source
        self.cost = cost
        self.config = config
        start = dict(weights or {})
        self.rule = np.array(start.get("rule", START_RULE), np.float64)
        fresh = initial_weights(
            np.random.default_rng(np.random.SeedSequence([0x7365_7400, seed])), config.prior
        )
        self.network = JobSetNetwork(fresh | {k: v for k, v in start.items() if k in fresh})
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate)

    def settings(self) -> dict[str, Any]:
        """What must be the same for a training to go on."""
        return {"config": self.config.model_dump(mode="json")}

    def weights(self) -> Weights:
        """The network's weights and the rule."""
        return {**self.network.export(), "rule": self.rule}

    def policy(self) -> JobSetPolicy:
        """The policy with the present weights."""
        return JobSetPolicy("set", self.weights())

    def state(self) -> Weights:
        """Adam's moments."""
        kept: Weights = {}
        for name, parameter in self.network.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                kept[f"{key}.{name}"] = np.atleast_1d(value.detach().numpy()).copy()
        return kept

    def restore(self, weights: Weights, state: Weights) -> None:
        """Go on from what `weights` and `state` gave."""
        self.network.load_arrays(weights)
        self.rule = np.array(weights["rule"], np.float64)
        for name, parameter in self.network.named_parameters():
            own = {
                key: state[f"{key}.{name}"]
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"{key}.{name}" in state
            }
            if own:
                self.optimizer.state[parameter] = {
                    "step": torch.tensor(float(own["step"][0])),
                    "exp_avg": torch.from_numpy(own["exp_avg"].copy()).reshape(parameter.shape),
                    "exp_avg_sq": torch.from_numpy(own["exp_avg_sq"].copy()).reshape(
                        parameter.shape
                    ),
                }

    def iterate(self, seeds: IterationSeeds, left: float) -> Mapping[str, float]:
        """One iteration: runs of fresh sequences, then the proximal update."""
        config = self.config
        rng = seeds.rng
        batch = PackingBatch(
            self.source.draw(seeds.sequences(config.num_groups)),
            self.source.config,
            repeats=config.group_size,
            wants_profile=True,
            seed=int(rng.integers(1 << 62)),
        )
        records = self._explore(batch)
        fade = config.final_share + (1 - config.final_share) * left
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * fade
        data = Recorded(records)
        advantage = np.concatenate(list(self._advantages(batch, records)))
        step = Step(
            config.epochs,
            config.minibatch,
            config.clip,
            config.entropy * fade,
            0.0,
            config.max_norm,
        )
        report = update(
            self.network, self.optimizer, data, advantage, None, step, rng, torch.device("cpu")
        )
        return {
            "cost": mean_cost(batch, self.cost),
            "decisions": float(len(data)),
            "entropy": report.entropy,
            "kl": report.kl,
            "loss": report.loss,
            "learning_rate": config.learning_rate * fade,
        }

    def _explore(self, batch: PackingBatch) -> list[Record]:
        count = len(batch)
        config = self.config
        network = self.policy().network
        works = allocate_workspace(count)
        records = allocate_record(count, config.capacity, max(config.row_capacity, 2 * MAX_ROWS))
        run = (
            batch.states,
            batch.asked,
            batch.sequence,
            batch.views,
            network,
            works,
            records,
            int(self.cost),
        )
        spread(lambda first, last: explore_many(*run, first, last), count, torch.get_num_threads())
        return [select(records, row) for row in range(count)]

    def _advantages(self, batch: PackingBatch, records: list[Record]) -> Iterator[FloatArray]:
        """Of every recorded decision, run after run: less cost to go than the group's mean at that time is better."""
        totals = batch.costs(self.cost)
        ends = batch.states.clock["now"][:, 0]
        size = self.config.group_size
        limit = self.config.advantage_clip
        rate = 0.0 if self.config.horizon is None else 1.0 / self.config.horizon
        for first in range(0, len(records), size):
            times = []
            curves = []
            for row in range(first, first + size):
                n = int(records[row].count[0])
                now = records[row].now[:n].astype(np.float64)
                end = float(ends[row])
                times.append(np.append(now, end))
                curves.append(
                    np.append(costs_to_go(now, records[row].cost[:n], end, totals[row], rate), 0.0)
                )
            gains = [
                (b - own)[:-1]
                for own, b in zip(curves, aligned_baseline(times, curves), strict=True)
            ]
            spread_of = (
                max(float(np.concatenate(gains).std()), 1e-6) if sum(map(len, gains)) else 1.0
            )
            for gain in gains:
                yield np.clip(gain / spread_of, -limit, limit)


class Recorded:
    """Recorded decisions of many runs, for the update (`parcae.learning.family.DataSet`)."""

    def __init__(self, records: Sequence[Record]) -> None:
        counts = [int(r.count[0]) for r in records]
        rows = [int(r.num_rows[0]) for r in records]
        shift = np.cumsum([0, *rows])[:-1]
        self._first = np.concatenate(
            [r.first_row[:n] + s for r, n, s in zip(records, counts, shift, strict=True)]
        )
        self._num = np.concatenate(
            [np.diff(r.first_row[: n + 1]) for r, n in zip(records, counts, strict=True)]
        )
        self._rows = np.concatenate([r.rows[:n] for r, n in zip(records, rows, strict=True)])
        self._shared = np.concatenate([r.shared[:n] for r, n in zip(records, counts, strict=True)])
        self._choice = np.concatenate([r.choice[:n] for r, n in zip(records, counts, strict=True)])
        self.log_prob = np.concatenate(
            [r.log_prob[:n] for r, n in zip(records, counts, strict=True)]
        )

    def __len__(self) -> int:
        return len(self._choice)

    def decisions(self, index: IntArray, device: torch.device) -> Decisions:
        """The decisions `index` as tensors."""
        num = self._num[index]
        first = np.cumsum(num) - num
        owner = np.repeat(np.arange(len(index)), num)
        rows = np.arange(int(num.sum())) - first[owner] + self._first[index][owner]
        return Decisions(
            rows=torch.from_numpy(self._rows[rows]),
            owner=torch.from_numpy(owner),
            first_row=torch.from_numpy(first),
            num_jobs=torch.from_numpy(num),
            shared=torch.from_numpy(self._shared[index]),
            choice=torch.from_numpy(self._choice[index]),
        )
