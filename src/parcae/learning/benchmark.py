"""How fast policies are trained: decisions a CPU-second of the whole loop, rollout and update."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from parcae.learning.recipes import Recipe, recipe_config
from parcae.learning.run import TrainRequest, make_family
from parcae.learning.scenario import Scenario
from parcae.learning.train import Trainer
from parcae.policies.rule.policy import start_parameters


@dataclass(frozen=True)
class TrainingBenchmark:
    """Speed of one network's training.

    Args:
        cpu_seconds: of all threads of the process together.
        rollout_share: share of the wall-clock time that the rollouts took.
    """

    network: str
    recipe: str
    iterations: int
    decisions: int
    wall_seconds: float
    cpu_seconds: float
    decisions_per_cpu_second: float
    decisions_per_second: float
    rollout_share: float

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self)


def benchmark_training(
    scenario: Scenario, network: str, recipe: str = "fast", iterations: int = 5
) -> TrainingBenchmark:
    """Time iterations of a training (set-up, compilation and selection runs left out)."""
    config = recipe_config(Recipe(recipe), scenario, network).model_copy(
        update={"num_selection": 2, "select_every": 1_000_000, "imitation": 0.0}
    )
    request = TrainRequest(scenario, config, network, parameters=start_parameters())
    trainer = Trainer(scenario, config, make_family(request))
    trainer.train(budget_s=1e9, max_iterations=1)
    decisions = trainer.decisions
    wall = time.perf_counter()
    cpu = time.process_time()
    rollout = 0.0
    for _ in range(iterations):
        began = time.perf_counter()
        groups = trainer.collect()
        rollout += time.perf_counter() - began
        trainer.learn(groups, 1.0)
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    count = trainer.decisions - decisions
    return TrainingBenchmark(
        network, recipe, iterations, count, wall, cpu, count / cpu, count / wall, rollout / wall
    )
