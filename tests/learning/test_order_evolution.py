"""The evolution strategy for the network of the world of cores.

It resumes exactly, and never returns a network that is worse than its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parcae.base.errors import ConfigError, FormatError, PolicyError
from parcae.learning import evolution as order_evolution
from parcae.learning.config import STATE_FILE
from parcae.learning.evolution import EvolutionLearner, EvolutionSettings
from parcae.learning.loop import (
    Iteration,
    IterationSeeds,
    Progress,
    TrainingPlan,
    TrainResult,
    train,
)
from parcae.learning.scenario import Runs, Scenario
from parcae.policies.checkpoint import read_checkpoint
from parcae.policies.network.kernels import initial_weights
from parcae.policies.network.policy import OrderNetworkPolicy
from parcae.policies.rule.kernels import NUM_ORDER_PARAMETERS, OrderParameter
from parcae.policies.rule.policy import OrderRulePolicy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.workload import TRAINING_SEED_START
from tests.conftest import made_up

_WORKLOAD = made_up(12, 8.0)
_CONFIG = SimulationConfig(world=WorldName.CORES, num_executors=6, estimate_error=0.8)
_SCENARIO = Scenario(_WORKLOAD, _CONFIG, "batch", 8)
_OTHER = replace(_SCENARIO, arrivals="load:0.9", num_jobs=10)
_TINY = EvolutionSettings(num_pairs=3, runs_per_scenario=2, num_selection=6, select_every=2)
_RULE = tuple(
    -10.0 if parameter == OrderParameter.PROBE else 0.0 for parameter in range(NUM_ORDER_PARAMETERS)
)


def _evolve(
    scenario: Scenario | Sequence[Scenario] = _SCENARIO,
    *,
    generations: int = 2,
    folder: Path | None = None,
    is_resumed: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> TrainResult:
    learner = EvolutionLearner(scenario, _RULE, _TINY, seed=seed)
    return train(learner, TrainingPlan(600, generations, folder, is_resumed), progress)


def test_two_generations_over_two_scenarios() -> None:
    seen: list[Iteration] = []
    evolved = _evolve([_SCENARIO, _OTHER], progress=seen.append)
    assert (evolved.iterations, evolved.ending) == (2, "done")
    assert evolved.counts == {"simulated_runs": 2 * 6 * 2 * 2}
    assert evolved.best <= 1.0
    assert seen[0].best == 1.0  # the start is the rule
    assert tuple(seen) == evolved.curve


def test_a_resumed_search_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole = _evolve(generations=7, folder=tmp_path / "whole")
    _evolve(generations=3, folder=tmp_path / "part")
    resumed = _evolve(generations=7, folder=tmp_path / "part", is_resumed=True)
    assert resumed.best == whole.best
    assert resumed.counts == whole.counts
    states = [read_checkpoint(tmp_path / name / STATE_FILE).weights for name in ("whole", "part")]
    for key, array in states[0].items():
        assert np.array_equal(array, states[1][key]), key


def test_where_nothing_beats_it_the_start_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_evolution._Measurement, "selection", lambda *_: 1.0)
    evolved = _evolve(seed=3)
    assert np.array_equal(evolved.checkpoint.weights["network"], initial_weights(3))


def test_evolution_beats_a_poor_rule_on_runs_that_it_never_saw() -> None:
    """The rule serves the longest job first; the network must learn to reverse that."""
    poor = list(_RULE)
    poor[OrderParameter.TOTAL] = -1.5
    settings = EvolutionSettings(
        num_pairs=12, runs_per_scenario=4, num_selection=20, learning_rate=0.05
    )
    evolved = train(
        EvolutionLearner(_SCENARIO, poor, settings), TrainingPlan(60, max_iterations=12)
    )
    weights = evolved.checkpoint.weights["network"]
    runs = _SCENARIO.batch(range(100))
    network = OrderNetworkPolicy("n", weights, tuple(poor), _WORKLOAD.mean_work_ms)
    rule = OrderRulePolicy("r", tuple(poor), _WORKLOAD.mean_work_ms)
    assert runs.cost(network.play_many).mean() < runs.cost(rule.play_many).mean()


def test_equal_costs_share_their_ranks() -> None:
    ranks = order_evolution._centred_ranks(np.array([3.0, 1.0, 1.0, 2.0, 9.0]))
    assert ranks.tolist() == [0.25, -0.375, -0.375, 0.0, 0.5]


def test_what_cannot_be_searched_is_refused(tmp_path: Path) -> None:
    executors = replace(_SCENARIO, config=SimulationConfig(num_executors=6))
    with pytest.raises(ConfigError, match="use --world cores"):
        EvolutionLearner(executors, _RULE)
    with pytest.raises(PolicyError, match="parameters of the rule, not 3"):
        EvolutionLearner(_SCENARIO, np.zeros(3))
    with pytest.raises(PolicyError, match="weights, not 3"):
        EvolutionLearner(_SCENARIO, _RULE, start=np.zeros(3))
    with pytest.raises(ConfigError, match="give its folder"):
        _evolve(is_resumed=True)
    _evolve(folder=tmp_path)
    with pytest.raises(ConfigError, match="another seed"):
        _evolve(folder=tmp_path, is_resumed=True, seed=1)
    (tmp_path / STATE_FILE).write_bytes(b"torn")
    with pytest.raises(FormatError, match="incomplete"):
        _evolve(folder=tmp_path, is_resumed=True)


def test_it_learns_on_seeds_of_the_training_range(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    batch = Scenario.batch

    def recorded(scenario: Scenario, seeds: Sequence[int]) -> Runs:
        drawn.extend(seeds)
        return batch(scenario, seeds)

    learner = EvolutionLearner(_SCENARIO, _RULE, _TINY)
    monkeypatch.setattr(Scenario, "batch", recorded)
    learner.iterate(IterationSeeds(0, 0), 0.0)
    learner.iterate(IterationSeeds(0, 1), 0.0)
    # Each generation has its own runs, and none of them tuned a rule.
    assert len(set(drawn)) == 2 * _TINY.runs_per_scenario
    assert all(seed >= TRAINING_SEED_START for seed in drawn)
