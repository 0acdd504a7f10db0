"""Who has executors, learned: Decima's network corrects the rule that lends."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks import applications_learning
from benchmarks.applications import mean_s, simulated, systems
from benchmarks.applications_learning import (
    USUAL,
    Drawn,
    LendingLearner,
    RuleProblem,
    learn,
    learned_system,
)
from benchmarks.lending_network import Weights, first_weights

from parcae.base.errors import ConfigError, FormatError
from parcae.learning.config import STATE_FILE
from parcae.learning.evolution import EvolutionSettings
from parcae.learning.loop import TrainingPlan, train
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint

_ARGS = Namespace(start=2.0, sigma=0.5, tick=0.1)
_TINY = EvolutionSettings(num_pairs=1, runs_per_scenario=1, num_selection=1, select_every=1)


@pytest.fixture
def no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of a run, a function of the weights."""

    def mean_s(drawn: Drawn, rule: Weights, weights: Weights | None = None) -> float:
        return 2.0 if weights is None else 2.0 + float(np.tanh(weights.sum() / 100.0))

    monkeypatch.setattr(Drawn, "mean_s", mean_s)
    monkeypatch.setattr(applications_learning, "_SETTINGS", _TINY)


def test_a_network_whose_heads_are_zero_lends_as_the_rule_does() -> None:
    usual = simulated(systems(2_000)["serve:srpt"], 7, 0.5, _ARGS)
    assert simulated(learned_system(USUAL, first_weights(3), 2.0), 7, 0.5, _ARGS) == usual
    drawn = np.random.default_rng(1).normal(0.0, 1.0, len(first_weights(3)))
    other = simulated(learned_system(USUAL, drawn, 2.0), 7, 0.5, _ARGS)
    assert mean_s(other) != mean_s(usual)
    assert other["most"] <= usual["most"] == 8


@pytest.mark.usefixtures("no_runs")
def test_a_training_of_a_network_that_lends_is_resumed_exactly(tmp_path: Path) -> None:
    def trained(folder: str, generations: int, is_resumed: bool = False) -> Weights:
        plan = TrainingPlan(600, generations, tmp_path / folder, is_resumed)
        train(LendingLearner(USUAL, _TINY), plan)
        return read_checkpoint(tmp_path / folder / STATE_FILE).weights["now.network"]

    whole = trained("whole", 5)
    part = trained("part", 2)
    assert not np.array_equal(part, whole)
    assert np.array_equal(trained("part", 5, is_resumed=True), whole)


@pytest.mark.usefixtures("no_runs")
def test_the_numbers_of_a_searched_rule_are_kept_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "rule.safetensors"
    searched, _ = learn(tmp_path, 0.001)
    assert searched.tolist() == pytest.approx(USUAL)
    write_checkpoint(replace(read_checkpoint(file), weights={"rule": 2.0 * USUAL}), file)
    with pytest.raises(ConfigError, match="rule"):
        learn(tmp_path, 0.001)
    write_checkpoint(Checkpoint("rule", 1, {"rule": USUAL}), file)
    with pytest.raises(FormatError, match="not of 'lending-rule'"):
        learn(tmp_path, 0.001)


def test_the_search_measures_a_rule_beside_the_usual_one() -> None:
    problem = RuleProblem(num_runs=1)
    problem.draw(0)
    assert problem.cost(np.log(USUAL)) == pytest.approx(1.0, rel=0.05)
    # It lends at once and to anybody.
    assert problem.cost(np.log(0.02 * USUAL)) > 1.02
