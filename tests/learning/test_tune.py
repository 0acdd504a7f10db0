from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.base.errors import ConfigError, FormatError
from parcae.cli.train import TuneOptions
from parcae.decima.rule import RulePolicy, start_parameters
from parcae.decima.solo_curves import solo_curves
from parcae.learning.scenario import Scenario, search_seeds, start_rule
from parcae.learning.tune import tune_rule
from parcae.policies.additions import Accounted
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.policies.parameter_search import search_parameters
from parcae.policies.rule.policy import search_start
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.metrics import jct_ms
from parcae.simulation.objectives import Objective, missed_and_tardy
from parcae.simulation.simulator import simulate
from parcae.workloads.workload import TUNING_SEED_START
from tests.conftest import made_up

_WORKLOAD = made_up(12, 8.0)
_CONFIG = SimulationConfig(num_executors=10)


def test_tuning_beats_its_start_on_runs_that_it_never_saw() -> None:
    scenario = Scenario(_WORKLOAD, _CONFIG, "batch", 8)
    tuned = tune_rule(
        scenario, budget_s=60, max_generations=20, runs_per_generation=16, num_selection=30
    )
    curves = solo_curves(_WORKLOAD, _CONFIG)
    runs = scenario.batch(range(200))
    costs = [
        runs.cost(RulePolicy("r", tuple(theta), curves).play_many).mean()
        for theta in (start_parameters(), tuned.parameters)
    ]
    assert costs[1] < costs[0]
    assert tuned.generations == 20
    assert tuned.evaluations == 20 * 16 * 13  # CMA-ES asks 13 candidates in 21 dimensions


def test_kernels_are_compiled_before_the_clock_of_a_tuning_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played: list[int] = []
    play_many = RulePolicy.play_many

    def counted(self: RulePolicy, *arguments: Any) -> Any:
        played.append(1)
        return play_many(self, *arguments)

    def search(*arguments: Any, **options: Any) -> Any:
        assert played, "the first run of the rule counts in the budget"
        return search_parameters(*arguments, **options)

    monkeypatch.setattr(RulePolicy, "play_many", counted)
    monkeypatch.setattr("parcae.learning.tune.search_parameters", search)
    scenario = Scenario(_WORKLOAD, _CONFIG, "batch", 8)
    tune_rule(scenario, budget_s=60, max_generations=1, runs_per_generation=2, num_selection=2)


def test_searches_run_on_seeds_that_comparisons_are_refused() -> None:
    seeds = [seed for generation in range(3) for seed in search_seeds(2, generation, 10)]
    assert len(set(seeds)) == 30
    assert min(seeds) >= TUNING_SEED_START


def test_tuning_starts_from_the_shipped_rule_unless_told_otherwise() -> None:
    scenario = Scenario(_WORKLOAD, SimulationConfig(world=WorldName.CORES), "batch", 4)
    shipped = TuneOptions(output=Path("x.safetensors")).start_parameters(scenario)
    assert shipped is not None
    assert np.array_equal(shipped, start_rule("tuned", scenario))
    assert not np.array_equal(shipped, search_start())
    named = TuneOptions(output=Path("x.safetensors"), start="tuned:cores").start_parameters(
        scenario
    )
    assert named is not None
    assert (
        TuneOptions(output=Path("x.safetensors"), start="scratch").start_parameters(scenario)
        is None
    )


@pytest.mark.parametrize(
    ("world", "name"), [(WorldName.EXECUTORS, "tuned:cores"), (WorldName.CORES, "tuned:batch")]
)
def test_tuning_does_not_start_from_a_rule_of_the_other_world(world: WorldName, name: str) -> None:
    scenario = Scenario(_WORKLOAD, SimulationConfig(world=world), "batch", 4)
    with pytest.raises(FormatError, match=f"give one that `parcae tune --world {world.value}`"):
        start_rule(name, scenario)


def test_tuning_for_deadlines_misses_fewer_than_fair_sharing() -> None:
    config = SimulationConfig(world=WorldName.CORES, num_executors=10)
    workload = _WORKLOAD.with_deadlines(
        {job.name: 3 * job.critical_path_ms / 1_000 + 0.001 for job in _WORKLOAD.jobs}
    )
    scenario = Scenario(workload, config, "load:0.9", 12, missed_and_tardy)
    tuned = tune_rule(
        scenario, budget_s=60, max_generations=3, runs_per_generation=8, num_selection=20
    )
    assert tuned.ratio_to_fair < 1
    card = scenario.card()
    assert card["objective"] == "deadlines"
    assert card["deadlines_s"].keys() == {job.name for job in workload.jobs}
    assert (
        scenario.identity()
        != replace(scenario, workload=_WORKLOAD.with_deadlines({"*": 9})).identity()
    )
    with pytest.raises(ConfigError, match="objective deadlines needs deadlines"):
        Scenario(_WORKLOAD, config, "batch", 4, missed_and_tardy)


def test_ratios_stay_numbers_where_hardly_a_deadline_is_missed() -> None:
    shares = Scenario(_WORKLOAD, _CONFIG, "batch", 4, Objective.MISSED_DEADLINES)
    assert shares.ratio(0.0, 0.0) == 1.0
    assert shares.ratio(0.002, 0.001) == pytest.approx(1.1)
    assert shares.ratio(0.2, 0.4) == 0.5
    assert Scenario(_WORKLOAD, _CONFIG, "batch", 4).ratio(3.0, 4.0) == 0.75


def test_fair_sharing_among_cores_is_that_of_spark() -> None:
    cores = SimulationConfig(world=WorldName.CORES, num_executors=10)
    scenario = Scenario(_WORKLOAD, cores, "load:0.9", 8)
    found = scenario.batch(range(5)).cost(scenario.fair_policy().play_many)
    spark = OrderPolicy("fair", OrderKind.FAIR, plan_tables())
    for seed, cost in enumerate(found.tolist()):
        trace = simulate(scenario.sequence(seed), spark, cores, seed)
        assert jct_ms(trace).mean() == pytest.approx(cost)


def test_accounts_do_not_stay_for_the_next_policy() -> None:
    cores = SimulationConfig(world=WorldName.CORES, num_executors=10)
    runs = Scenario(_WORKLOAD, cores, "batch", 10).batch(range(20))
    srpt = OrderPolicy("srpt", OrderKind.SRPT, plan_tables())
    first = runs.cost(srpt.play_many)
    charged = runs.cost(Accounted("srpt+account", srpt).play_many)
    assert charged.tolist() != first.tolist()
    assert runs.cost(srpt.play_many).tolist() == first.tolist()
