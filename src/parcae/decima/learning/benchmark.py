"""Measures training speed: decisions per CPU second of the whole loop, rollouts and updates."""

from __future__ import annotations

import time
from dataclasses import dataclass

from parcae.decima.graph.layout import DecimaSettings
from parcae.decima.learning.gradients import GradientLearner
from parcae.decima.learning.recipes import Recipe, TrainRequest, recipe_config
from parcae.decima.rule import start_parameters
from parcae.learning.loop import TrainingPlan, train
from parcae.learning.scenario import Scenario


@dataclass(frozen=True)
class TrainingBenchmark:
    """Training speed of one network."""

    network: str
    recipe: str
    device: str
    iterations: int
    decisions: int
    wall_seconds: float
    cpu_seconds: float
    decisions_per_cpu_second: float
    decisions_per_second: float
    rollout_share: float


def benchmark_training(
    scenario: Scenario,
    network: str,
    recipe: str = "fast",
    iterations: int = 5,
    decima: DecimaSettings | None = None,
    device: str = "cpu",
) -> TrainingBenchmark:
    """Time training iterations, without set-up, compilation and selection runs.

    Args:
        scenario: what to train on.
        network: "corrector" or "decima".
        recipe: name of the recipe.
        iterations: number of iterations to time.
        decima: features and parts of Decima's network; None: the paper's.
        device: PyTorch's device for the updates, "cpu" or "cuda".

    Raises:
        ConfigError: the device does not exist.
    """
    decima = decima or DecimaSettings()
    # Selection runs and imitation are not part of what is timed: selection never comes due here.
    config = recipe_config(Recipe(recipe), scenario, network, decima).model_copy(
        update={"num_selection": 2, "select_every": 1_000_000, "imitation": 0.0}
    )
    rule = start_parameters()
    request = TrainRequest([scenario], config, network, rule, decima, device=device)
    learner = GradientLearner(request)
    train(learner, TrainingPlan(1e9, max_iterations=1))  # compiles the kernels
    decisions = learner.decisions
    wall = time.perf_counter()
    cpu = time.process_time()
    rollout = 0.0
    for _ in range(iterations):
        began = time.perf_counter()
        groups = learner.collect()
        rollout += time.perf_counter() - began
        learner.learn(groups, 1.0)
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    count = learner.decisions - decisions
    return TrainingBenchmark(
        network=network,
        recipe=recipe,
        device=device,
        iterations=iterations,
        decisions=count,
        wall_seconds=wall,
        cpu_seconds=cpu,
        decisions_per_cpu_second=count / cpu,
        decisions_per_second=count / wall,
        rollout_share=rollout / wall,
    )
