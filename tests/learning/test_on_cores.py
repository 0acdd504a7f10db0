"""Training in the world of cores: rollouts of policies that decide."""

from __future__ import annotations

import pytest

from parcae.base.errors import ConfigError, FormatError
from parcae.decima.graph.layout import DecimaSettings
from parcae.decima.learning.gradients import gradient_learner
from parcae.decima.learning.recipes import TrainRequest
from parcae.decima.learning.world import start_deciding_rule
from parcae.decima.rule import start_parameters
from parcae.learning.config import TrainConfig
from parcae.learning.loop import TrainingPlan, train
from parcae.learning.scenario import Scenario, start_rule
from parcae.simulation.config import SimulationConfig, WorldName
from tests.conftest import made_up

_WORKLOAD = made_up(10, 6.0)
_CONFIG = SimulationConfig(world=WorldName.CORES, num_executors=6)
_SMALL = TrainConfig(num_groups=2, group_size=4, capacity=512, minibatch=256, num_selection=8)


@pytest.mark.parametrize("arrivals", ["batch", "load:0.8"])
@pytest.mark.parametrize("network", ["corrector", "decima"])
def test_an_iteration_of_training_runs(network: str, arrivals: str) -> None:
    scenario = Scenario(_WORKLOAD, _CONFIG, arrivals, 5)
    request = TrainRequest([scenario], _SMALL, network, start_parameters())
    result = train(gradient_learner(request), TrainingPlan(1e6, max_iterations=1))
    assert result.ending == "done"
    assert result.counts["decisions"] > 0
    assert 0.1 < result.best < 10  # a network that has learned nothing


@pytest.mark.parametrize("network", ["corrector", "decima"])
def test_a_rule_that_plans_orders_is_neither_corrected_nor_imitated(network: str) -> None:
    scenario = Scenario(_WORKLOAD, _CONFIG, "batch", 5)
    imitating = _SMALL.model_copy(update={"imitation": 0.3 if network == "decima" else 0.0})
    orders = start_rule("tuned", scenario)
    with pytest.raises(ConfigError, match="plans orders"):
        gradient_learner(TrainRequest([scenario], imitating, network, orders))
    with pytest.raises(FormatError, match=r"--rule tuned: .*--recipe fast"):
        start_deciding_rule("tuned", scenario)
    assert start_deciding_rule("tuned:batch", scenario).shape == start_parameters().shape


def test_idle_slots_are_refused_before_the_training() -> None:
    scenario = Scenario(_WORKLOAD, _CONFIG, "batch", 5)
    request = TrainRequest([scenario], _SMALL, "decima", decima=DecimaSettings(idle_lengths=4))
    with pytest.raises(ConfigError, match="the world of cores has no idle slots"):
        gradient_learner(request)
