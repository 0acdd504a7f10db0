"""What all learners of packing policies have in common: the source, the cost, the selection runs.

All draws of an iteration follow from the training's seed and the iteration's number. A training
that was interrupted and resumed therefore continues exactly as it would have without interruption.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel

from parcae.base.compiled.tables import Tables, allocate_tables
from parcae.base.errors import ConfigError, FormatError
from parcae.base.extensions import load, require
from parcae.learning.config import recipe_settings
from parcae.learning.loop import Learner, Measured, compile_kernels
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.networks.layout import require_shapes
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.kernels.stepping import explore_many
from parcae.rigid.layout import Cost, select
from parcae.rigid.metrics import require_ranking, typical_cost
from parcae.rigid.policies.catalog import RULE_KIND, policy_of_checkpoint
from parcae.rigid.policies.policy import PackingPolicy
from parcae.rigid.sources import PackingSource, origins, require_waiting
from parcae.rigid.world import PackingBatch
from parcae.simulation.simulator import spread
from parcae.workloads.workload import SELECTION_SEED_START

#: Module and class of each learner. Modules are imported only on use: some need PyTorch.
LEARNERS = {
    "deeprm": "parcae.rigid.deeprm.learner:DeepRMLearner",
    "a2c": "parcae.rigid.a2c.learner:A2cLearner",
    "set": "parcae.rigid.jobset.learner:SetLearner",
}
#: Settings of networks that may differ from those of the network that a training starts from: they
#: change no input.
_FREE = ("actions", "is_masked")


def make_learner(
    kind: str,
    source: PackingSource,
    cost: Cost = Cost.SLOWDOWN,
    recipe: str | None = None,
    settings: Sequence[str] = (),
    seed: int = 0,
) -> PackingLearner:
    """Make the learner with this name; settings are changes of its recipe's, each "key=value".

    Example: `make_learner("set", DrawnSource())`
    """
    if kind not in LEARNERS:
        raise ConfigError(f"no learner {kind!r}: write one of {', '.join(LEARNERS)}")
    require("torch")
    require_ranking(cost)
    require_waiting(source)
    make = load(LEARNERS[kind], "learner")
    learner: PackingLearner = make(source, cost, recipe, settings, seed)
    return learner


def start_from(learner: PackingLearner, checkpoint: Checkpoint, path: str) -> None:
    """Let a learner that has not begun start from a checkpoint instead of random weights.

    The set network can also start from a tuned withholding rule, which it then corrects.
    """
    kind = learner.kind
    is_rule = checkpoint.kind == RULE_KIND and checkpoint.settings.get("kind") == "withhold"
    if checkpoint.kind != kind and not (kind == "set" and is_rule):
        also = " (or a tuned withholding rule)" if kind == "set" else ""
        raise FormatError(
            f"{path} is a checkpoint of a {checkpoint.kind!r} policy: give a checkpoint of "
            f"{kind!r}{also} to start from"
        )
    # The same checks as where the policy is used.
    policy_of_checkpoint(checkpoint, path, path)
    if is_rule:
        weights = {"rule": checkpoint.weights["params"]}
    else:
        _check_network(learner, checkpoint, path)
        weights = checkpoint.weights
    fresh = learner.weights()
    started = fresh | {name: weights[name] for name in fresh.keys() & weights.keys()}
    require_shapes(started, {name: array.shape for name, array in fresh.items()}, path)
    learner.restore(started, learner.state())


def _check_network(learner: PackingLearner, checkpoint: Checkpoint, path: str) -> None:
    """Raise an error if a network has other parts than the learner's, or sees another image."""
    saved = checkpoint.settings.get("network", {})
    for key, value in learner.settings().get("network", {}).items():
        # Older checkpoints do not have every setting.
        before = saved.get(key, value)
        if key not in _FREE and before != value:
            raise FormatError(
                f"{path}: a network with {key} {before}, but this training's has {value}: to start "
                "from it, train with the same sizes and settings"
            )


#: In a training's identity; users read it where a training is resumed from another source.
_SOURCE = "source of jobs (the log and how it is read, or the load)"


class PackingLearner(Learner):
    """A learner of a packing policy.

    Before a training starts, the number of selection runs and of iterations between measurements
    may be changed, and the number of threads (None: one a core), on which no result depends.

    Args:
        source: where job sequences are drawn.
        cost: the objective to minimise.
        recipe: name of a recipe; None for the learner's default.
        settings: changes of the recipe's settings, each "key=value".
        seed: seed of the training.
    """

    measured = "cost"
    iterations_name = "iterations"
    select_every = 25
    num_selection = 200
    num_threads: int | None = None
    #: Recipes by name; the first one is the default.
    recipes: ClassVar[Mapping[str, BaseModel]]
    #: Keeps the seeds of the learners' initial weights apart.
    salt: ClassVar[int]
    #: The shape of the network, if it depends on the cluster.
    network: Any = None

    def __init__(
        self,
        source: PackingSource,
        cost: Cost = Cost.SLOWDOWN,
        recipe: str | None = None,
        settings: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        self.source = source
        self.cost = cost
        self.seed = seed
        name = recipe or self.default_recipe()
        self.config: Any = recipe_settings(self.recipes, name, self.kind, settings)
        self.start(np.random.default_rng([self.salt, seed]))

    def default_recipe(self) -> str:
        """The name of the recipe for the source."""
        return next(iter(self.recipes))

    @abstractmethod
    def start(self, rng: np.random.Generator) -> None:
        """Make the networks with random weights."""

    @abstractmethod
    def policy(self) -> PackingPolicy:
        """The policy with the present weights."""

    def settings(self) -> dict[str, Any]:
        """The settings of the network and of the training."""
        shape = {"network": self.network.model_dump(mode="json")} if self.network else {}
        return {**shape, "learning": self.config.model_dump(mode="json")}

    def identity(self) -> dict[str, Any]:
        """Where sequences are drawn, and the cost."""
        return {_SOURCE: self.source.card(), "cost": self.cost.name}

    def card(self) -> dict[str, Any]:
        """Where sequences were drawn, and the cost."""
        return {"source": self.source.card(), "cost": self.cost.name.lower()}

    def counts(self) -> dict[str, int]:
        """Nothing: a packing training reports its iterations only."""
        return {}

    def begin(self) -> Sequence[Measured]:
        """Compile all kernels; the weights at the start are not kept."""
        compile_kernels(self)
        return []

    def measure(self) -> Sequence[Measured]:
        """The cost of the present policy on the selection runs."""
        policy = self.policy()
        # The same seed every time, so that policies that draw are measured on the same draws.
        batch = PackingBatch(
            self._selection, self.source.config, wants_profile=policy.wants_profile, seed=self.seed
        )
        batch.run(policy.play_many)
        log_of = origins(self.source, self._selection_seeds)
        return [(typical_cost(batch, self.cost, log_of), self.weights())]

    def explore(self, batch: PackingBatch, kind: type[Tables], **sizes: int) -> list[Tables]:
        """Run all clusters with drawn decisions. Returns the record of each run."""
        records = allocate_tables(kind, len(batch), **sizes)
        policy: Any = self.policy()

        def run(first: int, last: int) -> None:
            own = kind(*(table[first:last] for table in records))
            tables = policy.tables(batch.views)
            explore_many(batch.clusters, batch.views, tables, own, int(self.cost), first, last)

        spread(run, len(batch), self.num_threads)
        return [select(records, row) for row in range(len(batch))]

    @property
    def _selection_seeds(self) -> range:
        return range(SELECTION_SEED_START, SELECTION_SEED_START + self.num_selection)

    @cached_property
    def _selection(self) -> list[RigidJobs]:
        return self.source.draw(self._selection_seeds)
