"""What all learners of packing policies have in common: the source, the cost, the selection runs.

All draws of an iteration follow from the training's seed and the iteration's number. A training
that was interrupted and resumed therefore continues exactly as it would have without interruption.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from parcae.learning.loop import Learner, Measured, compile_kernels
from parcae.metrics.packing import typical_cost
from parcae.packing.layout import Cost
from parcae.packing.sources import PackingSource, origins
from parcae.packing.world import PackingBatch
from parcae.policies.packing.policy import PackingPolicy
from parcae.workloads.random_streams import SELECTION_SEED_START
from parcae.workloads.rigid import RigidJobs

#: In a training's identity; users read it where a training is resumed from another source.
_SOURCE = "source of jobs (the log and how it is read, or the load)"


class PackingLearner(Learner):
    """A learner of a packing policy.

    Before a training starts, the number of selection runs and of iterations between measurements
    may be changed.

    All packing learners are made with the same arguments, see
    `parcae.learning.packing.catalog.make_learner`.

    Args:
        source: where job sequences are drawn.
        cost: the objective to minimise.
        seed: seed of the training.
    """

    measured = "cost"
    iterations_name = "iterations"
    select_every = 25
    num_selection = 200

    def __init__(self, source: PackingSource, cost: Cost, seed: int) -> None:
        self.source = source
        self.cost = cost
        self.seed = seed

    @abstractmethod
    def policy(self) -> PackingPolicy:
        """The policy with the present weights."""

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

    @property
    def _selection_seeds(self) -> range:
        return range(SELECTION_SEED_START, SELECTION_SEED_START + self.num_selection)

    @cached_property
    def _selection(self) -> list[RigidJobs]:
        return self.source.draw(self._selection_seeds)
