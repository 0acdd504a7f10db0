from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parcae.base.errors import DivergedError
from parcae.decima.corrector.family import CorrectorFamily, CorrectorModule
from parcae.decima.learning.updates import (
    Rate,
    Rollout,
    Trainee,
    aligned_baseline,
    costs_to_go,
    normalized,
    reinforce_advantages,
    update,
)
from parcae.decima.rule import start_parameters
from parcae.learning.config import TrainConfig
from parcae.learning.scenario import Scenario
from parcae.policies.networks.training import Judged, Surrogate
from parcae.simulation.config import SimulationConfig
from tests.conftest import made_up
from tests.learning.collected import collected

_WORKLOAD = made_up(10, 6.0)
_SCENARIO = Scenario(_WORKLOAD, SimulationConfig(num_executors=8), "batch", 5)
_CONFIG = TrainConfig(epochs=3, minibatch=64)
_CPU = torch.device("cpu")


def _family() -> CorrectorFamily:
    return CorrectorFamily(_SCENARIO, start_parameters(), (1.0, 1.0, 1.0))


def _trainee(network: CorrectorModule) -> Trainee:
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    return Trainee(network, optimizer, np.random.default_rng(0), _CPU)


@pytest.mark.parametrize(("weight", "loss"), [(1.0, -1.2), (-1.0, 2.0)])
def test_the_clipped_loss_counts_a_doubled_probability_up_to_the_clip(
    weight: float, loss: float
) -> None:
    judged = Judged(torch.log(torch.tensor([0.4])), torch.zeros(1), torch.zeros(1))
    given = Surrogate(*np.array([[weight], [np.log(0.2)]], np.float32), clip=0.2)
    assert given.loss(judged).item() == pytest.approx(loss)


def test_an_update_makes_choices_with_positive_advantage_more_likely() -> None:
    family = _family()
    weights = family.initial_weights(np.random.default_rng(0))
    data = collected(_SCENARIO, family, weights, seed=1)
    network = CorrectorModule(weights)
    advantage = np.where(np.arange(len(data)) % 2 == 0, 1.0, -1.0)
    update(_trainee(network), data, advantage, None, _CONFIG, 0.0)
    with torch.no_grad():
        now = network(data.decisions(np.arange(len(data)), _CPU)).log_prob.numpy()
    change = now - data.log_prob
    assert change[advantage > 0].mean() > change[advantage < 0].mean()


def test_a_loss_that_is_not_finite_leaves_the_weights_as_they_were() -> None:
    family = _family()
    weights = family.initial_weights(np.random.default_rng(0))
    data = collected(_SCENARIO, family, weights, seed=1)
    network = CorrectorModule(weights)
    before = copy.deepcopy(network.state_dict())
    advantage = np.full(len(data), np.nan)
    with pytest.raises(DivergedError, match="not finite"):
        update(_trainee(network), data, advantage, None, _CONFIG, 0.0)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


@pytest.mark.parametrize(
    ("times", "costs", "rate", "after", "first"),
    [
        # What is left of the cost.
        ([0.0, 2.0, 5.0, 8.0], [0.0, 3.0, 9.0, 10.0], 0.0, 0.0, [10.0, 7.0, 1.0, 0.0]),
        ([0.0, 2.0, 8.0], [0.0, 3.0, 10.0], 0.0, 4.0, [14.0, 11.0, 4.0]),
        # 1 per second for 10 s, discounted at 0.1 per second: the integral of exp(-0.1 t).
        ([0.0, 10.0], [0.0, 10.0], 0.1, 0.0, [(1 - np.exp(-1.0)) / 0.1, 0.0]),
        ([0.0, 10.0], [0.0, 0.0], 0.1, 2.0, [2 * np.exp(-1.0), 2.0]),
        # Discounting in pieces equals discounting at once.
        ([0.0, 2.5, 7.0, 10.0], [0.0, 2.5, 7.0, 10.0], 0.2, 0.0, [(1 - np.exp(-2.0)) / 0.2]),
        # Nothing accrues between two decisions at one time.
        ([1.0, 1.0, 3.0], [4.0, 4.0, 8.0], 0.5, 0.0, [4 * (1 - np.exp(-1.0))] * 2),
    ],
)
def test_costs_to_go_are_discounted_where_they_accrue(
    times: list[float], costs: list[float], rate: float, after: float, first: list[float]
) -> None:
    to_go = costs_to_go(np.array(times), np.array(costs), rate, after)
    assert len(to_go) == len(times)
    assert to_go[: len(first)].tolist() == pytest.approx(first)


def test_the_baseline_is_the_mean_of_all_rollouts_at_the_same_time() -> None:
    times = [np.array([0.0, 10.0]), np.array([0.0, 5.0, 10.0])]
    to_go = [np.array([10.0, 0.0]), np.array([20.0, 4.0, 0.0])]
    first, second = aligned_baseline(times, to_go)
    assert first.tolist() == [15.0, 0.0]
    assert second.tolist() == [15.0, 4.5, 0.0]  # at 5 s the first rollout has 5 to go, this one 4

    # A rollout that is over counts with nothing to go.
    times = [np.array([0.0, 2.0]), np.array([0.0, 8.0])]
    to_go = [np.array([6.0, 0.0]), np.array([8.0, 0.0])]
    assert aligned_baseline(times, to_go)[1].tolist() == [7.0, 0.0]


def _rollout(clock_ms: list[int], cost: list[float], end_ms: int, end_cost: float) -> Rollout:
    record = SimpleNamespace(
        count=np.array([len(cost)]),
        clock_ms=np.array(clock_ms),
        cost=np.array(cost),
        end_ms=np.array([end_ms]),
        end_cost=np.array([end_cost]),
    )
    return Rollout(record, True)


def test_differential_advantages_count_beyond_the_mean_rate() -> None:
    """At 3 per second, 1 and 9 at 0 and 2 s are 1 and 3, and leave 2 and 0 to go."""
    config = TrainConfig(is_differential=True, cost_scale=1.0)
    group = [_rollout([0, 2_000], [1.0, 9.0], 4_000, 15.0), _rollout([0], [0.0], 1_000, 1.0)]
    rate = Rate()
    found = reinforce_advantages([group], config, rate)
    assert rate.mean == 3.0
    # The other one has -2 to go at 0 s, and nothing later.
    assert found.tolist() == [-2.0, 0.0, 2.0]


def test_the_running_mean_forgets_old_rollouts() -> None:
    rate = Rate()
    rate.add(np.array([0.0, 1.0, 2.0]), np.array([0.0, 20.0, 50.0]))
    assert rate.mean == 25.0
    rate.add(np.append(np.zeros(200_000), 10.0), np.append(np.zeros(200_000), 10.0))
    assert rate.mean == pytest.approx(1.0)
    assert Rate(json.loads(json.dumps(rate.pieces))).mean == rate.mean


def test_advantages_are_standardised_and_clipped() -> None:
    values = np.append(np.zeros(999), 1e6)
    scaled = normalized(values)
    assert scaled.max() == 5.0
    assert normalized(np.array([1.0, 3.0])).tolist() == pytest.approx([-1.0, 1.0])
