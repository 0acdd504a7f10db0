"""The evolution strategy for the network of the world of cores.

It resumes exactly, and never returns a network that is worse than its start.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parcae.errors import ConfigError, FormatError, PolicyError
from parcae.learning import order_evolution
from parcae.learning.order_evolution import (
    BEST_FILE,
    STATE_FILE,
    EvolutionSettings,
    Evolved,
    evolve_network,
)
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import read_checkpoint
from parcae.policies.order_network.layout import initial_weights
from parcae.policies.order_network.policy import OrderNetworkPolicy, bind_network
from parcae.policies.order_rule.layout import NUM_ORDER_PARAMETERS, OrderParameter
from parcae.policies.order_rule.policy import OrderRulePolicy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.random_streams import TUNING_SEED_START
from parcae.workloads.synthetic import RandomDags, random_dags

_DAGS = RandomDags(num_jobs=12, mean_tasks=8.0)
_WORKLOAD = random_dags(_DAGS, np.random.default_rng(0), "made up")
_CONFIG = SimulationConfig(world=WorldName.CORES, num_executors=6, estimate_error=0.8)
_SCENARIO = Scenario(_WORKLOAD, _CONFIG, "batch", 8)
_OTHER = replace(_SCENARIO, arrivals="load:0.9", num_jobs=10)
_TINY = EvolutionSettings(
    num_pairs=3, runs_per_scenario=2, num_selection=6, select_every=2, max_generations=2
)
_RULE = tuple(
    -10.0 if parameter == OrderParameter.PROBE else 0.0 for parameter in range(NUM_ORDER_PARAMETERS)
)


def test_two_generations_over_two_scenarios() -> None:
    seen: list[Evolved] = []
    evolved = evolve_network(
        [_SCENARIO, _OTHER], _RULE, budget_s=60, settings=_TINY, progress=seen.append
    )
    assert (evolved.generations, evolved.ending) == (2, "done")
    assert evolved.evaluations == 2 * 6 * 2 * 2
    assert evolved.ratio_to_rule <= 1.0
    assert seen[0].ratio_to_rule == 1.0  # the start is the rule
    assert seen[-1] is evolved


def test_a_resumed_search_ends_with_the_same_weights(tmp_path: Path) -> None:
    longer = replace(_TINY, max_generations=7)
    whole = evolve_network(
        _SCENARIO, _RULE, budget_s=60, folder=tmp_path / "whole", settings=longer
    )
    shorter = replace(_TINY, max_generations=3)
    evolve_network(_SCENARIO, _RULE, budget_s=60, folder=tmp_path / "part", settings=shorter)
    resumed = evolve_network(
        _SCENARIO, _RULE, budget_s=60, folder=tmp_path / "part", is_resumed=True, settings=longer
    )
    assert np.array_equal(resumed.weights, whole.weights)
    assert resumed.ratio_to_rule == whole.ratio_to_rule
    assert resumed.evaluations == whole.evaluations
    states = [read_checkpoint(tmp_path / name / STATE_FILE).weights for name in ("whole", "part")]
    for key, array in states[0].items():
        assert np.array_equal(array, states[1][key]), key


def test_an_interrupted_search_keeps_the_best(tmp_path: Path) -> None:
    def interrupt(evolved: Evolved) -> None:
        if evolved.generations == 4 and evolved.ending == "running":
            os.kill(os.getpid(), signal.SIGINT)

    endless = replace(_TINY, max_generations=1000)
    evolved = evolve_network(
        _SCENARIO, _RULE, budget_s=600, folder=tmp_path, settings=endless, progress=interrupt
    )
    assert (evolved.ending, evolved.generations) == ("interrupted", 4)
    checkpoint = read_checkpoint(tmp_path / BEST_FILE)
    policy = bind_network(checkpoint, "best", _WORKLOAD, _CONFIG)
    assert np.array_equal(policy.weights, evolved.weights)
    assert policy.parameters == _RULE
    assert checkpoint.card["ratio_to_rule_on_selection_runs"] == evolved.ratio_to_rule
    assert (tmp_path / STATE_FILE).exists()


def test_where_nothing_beats_it_the_start_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_evolution._Measurement, "selection", lambda *_: 1.0)
    evolved = evolve_network(_SCENARIO, _RULE, budget_s=60, seed=3, settings=_TINY)
    assert np.array_equal(evolved.weights, initial_weights(3))


def test_evolution_beats_a_poor_rule_on_runs_that_it_never_saw() -> None:
    """The rule serves the longest job first; the network must learn to reverse that."""
    poor = list(_RULE)
    poor[OrderParameter.TOTAL] = -1.5
    settings = EvolutionSettings(
        num_pairs=12, runs_per_scenario=4, num_selection=20, learning_rate=0.05, max_generations=30
    )
    evolved = evolve_network(_SCENARIO, poor, budget_s=60, settings=settings)
    runs = _SCENARIO.batch(range(100))
    network = OrderNetworkPolicy("n", evolved.weights, tuple(poor), _WORKLOAD.mean_work_ms)
    rule = OrderRulePolicy("r", tuple(poor), _WORKLOAD.mean_work_ms)
    assert runs.cost(network.play_many).mean() < runs.cost(rule.play_many).mean()


def test_it_runs_on_seeds_that_comparisons_are_refused() -> None:
    seeds = [seed for generation in range(3) for seed in order_evolution._seeds(2, generation, 10)]
    assert len(set(seeds)) == 30
    assert min(seeds) >= TUNING_SEED_START


def test_equal_costs_share_their_ranks() -> None:
    ranks = order_evolution._centred_ranks(np.array([3.0, 1.0, 1.0, 2.0, 9.0]))
    assert ranks.tolist() == [0.25, -0.375, -0.375, 0.0, 0.5]


def test_what_cannot_be_searched_is_refused(tmp_path: Path) -> None:
    executors = replace(_SCENARIO, config=SimulationConfig(num_executors=6))
    with pytest.raises(ConfigError, match="use --world cores"):
        evolve_network(executors, _RULE, budget_s=1)
    with pytest.raises(PolicyError, match="parameters of the rule, not 3"):
        evolve_network(_SCENARIO, np.zeros(3), budget_s=1)
    with pytest.raises(PolicyError, match="weights, not 3"):
        evolve_network(_SCENARIO, _RULE, budget_s=1, start=np.zeros(3))
    with pytest.raises(ConfigError, match="give its folder"):
        evolve_network(_SCENARIO, _RULE, budget_s=1, is_resumed=True)
    with pytest.raises(FileNotFoundError):
        evolve_network(_SCENARIO, _RULE, budget_s=1, folder=tmp_path, is_resumed=True)
    evolve_network(_SCENARIO, _RULE, budget_s=60, folder=tmp_path, settings=_TINY)
    with pytest.raises(ConfigError, match="already contains a training"):
        evolve_network(_SCENARIO, _RULE, budget_s=60, folder=tmp_path, settings=_TINY)
    with pytest.raises(ConfigError, match="another seed"):
        evolve_network(
            _SCENARIO, _RULE, budget_s=60, folder=tmp_path, is_resumed=True, seed=1, settings=_TINY
        )
    (tmp_path / STATE_FILE).write_bytes(b"torn")
    with pytest.raises(FormatError, match="incomplete"):
        evolve_network(
            _SCENARIO, _RULE, budget_s=60, folder=tmp_path, is_resumed=True, settings=_TINY
        )
