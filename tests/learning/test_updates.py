from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from parcae.base.errors import DivergedError
from parcae.decima.corrector.family import CorrectorFamily
from parcae.decima.corrector.network import CorrectorModule
from parcae.decima.learning.advantages import (
    aligned_baseline,
    costs_to_go,
    differential_costs,
    normalized,
)
from parcae.decima.learning.updates import Rate, Step, clipped_loss, update
from parcae.decima.rule.policy import start_parameters
from parcae.learning.scenario import Scenario
from parcae.simulation.config import SimulationConfig
from tests.conftest import made_up
from tests.learning.collected import collected

_WORKLOAD = made_up(10, 6.0)
_SCENARIO = Scenario(_WORKLOAD, SimulationConfig(num_executors=8), "batch", 5)
_CPU = torch.device("cpu")


def _family() -> CorrectorFamily:
    return CorrectorFamily(_SCENARIO, start_parameters(), (1.0, 1.0, 1.0))


def test_the_clipped_loss_counts_a_doubled_probability_up_to_the_clip() -> None:
    one = torch.ones(1)
    assert clipped_loss(
        torch.log(torch.tensor([0.4])), torch.log(torch.tensor([0.2])), one, 0.2
    ).item() == pytest.approx(-1.2)
    assert clipped_loss(
        torch.log(torch.tensor([0.4])), torch.log(torch.tensor([0.2])), -one, 0.2
    ).item() == pytest.approx(2.0)


def test_the_gradient_of_the_log_probability_matches_finite_differences() -> None:
    family = _family()
    weights = family.initial_weights(np.random.default_rng(3))
    rng = np.random.default_rng(4)
    weights = {
        name: array + rng.normal(0, 0.3, array.shape).astype(np.float32)
        for name, array in weights.items()
    }
    data = collected(_SCENARIO, family, weights, seed=1)
    network = CorrectorModule(weights).double()
    batch = data.decisions(np.arange(min(40, len(data))), _CPU)
    batch = type(batch)(
        **{k: v.double() if v.dtype == torch.float32 else v for k, v in batch.__dict__.items()}
    )
    network(batch).log_prob.sum().backward()
    for name in ("job1_weight", "context_weight", "choice2_weight", "limit1_weight", "prior"):
        parameter = network.table[name]
        flat = parameter.data.view(-1)
        gradient = parameter.grad.view(-1)
        at = parameter.numel() // 2
        if name == "prior":
            at = 2
        sides = []
        for step in (1e-5, -1e-5):
            flat[at] += step
            with torch.no_grad():
                sides.append(network(batch).log_prob.sum().item())
            flat[at] -= step
        assert gradient[at].item() == pytest.approx(
            (sides[0] - sides[1]) / 2e-5, rel=1e-4, abs=1e-6
        ), name


def test_an_update_makes_choices_with_positive_advantage_more_likely() -> None:
    family = _family()
    weights = family.initial_weights(np.random.default_rng(0))
    data = collected(_SCENARIO, family, weights, seed=1)
    network = CorrectorModule(weights)
    advantage = np.where(np.arange(len(data)) % 2 == 0, 1.0, -1.0)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    step = Step(epochs=3, minibatch=64, clip=0.2, entropy=0.0, value_weight=0.0, max_norm=0.5)
    update(network, optimizer, data, advantage, None, step, np.random.default_rng(0), _CPU)
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
    step = Step(epochs=1, minibatch=64, clip=0.2, entropy=0.0, value_weight=0.0, max_norm=0.5)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    with pytest.raises(DivergedError, match="not finite"):
        update(network, optimizer, data, advantage, None, step, np.random.default_rng(0), _CPU)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_undiscounted_cost_to_go_is_what_is_left_of_the_cost() -> None:
    to_go = costs_to_go(np.array([0.0, 2.0, 5.0]), np.array([0.0, 3.0, 9.0]), 8.0, 10.0)
    assert to_go.tolist() == [10.0, 7.0, 1.0]


def test_discounting_fades_cost_that_accrues_evenly() -> None:
    # A cost of 1 per second for 10 s, discounted at 0.1 per second: the integral of exp(-0.1 t)
    # from 0 to 10.
    to_go = costs_to_go(np.array([0.0]), np.array([0.0]), 10.0, 10.0, rate=0.1)
    assert to_go[0] == pytest.approx((1 - np.exp(-1.0)) / 0.1)


def test_discounting_in_pieces_equals_discounting_at_once() -> None:
    whole = costs_to_go(np.array([0.0]), np.array([0.0]), 10.0, 10.0, rate=0.2)
    pieces = costs_to_go(np.array([0.0, 2.5, 7.0]), np.array([0.0, 2.5, 7.0]), 10.0, 10.0, rate=0.2)
    assert pieces[0] == pytest.approx(whole[0])


def test_decisions_at_one_time_have_the_same_cost_to_go_when_nothing_accrues_between() -> None:
    to_go = costs_to_go(np.array([1.0, 1.0]), np.array([4.0, 4.0]), 3.0, 8.0, rate=0.5)
    assert to_go[0] == pytest.approx(to_go[1])


def test_the_baseline_is_the_mean_of_all_rollouts_at_the_same_time() -> None:
    times = [np.array([0.0, 10.0]), np.array([0.0, 5.0, 10.0])]
    to_go = [np.array([10.0, 0.0]), np.array([20.0, 4.0, 0.0])]
    first, second = aligned_baseline(times, to_go)
    assert first.tolist() == [15.0, 0.0]
    assert second.tolist() == [15.0, 4.5, 0.0]  # at 5 s the first rollout has 5 to go, this one 4


def test_a_rollout_that_is_over_counts_with_nothing_to_go() -> None:
    times = [np.array([0.0, 2.0]), np.array([0.0, 8.0])]
    to_go = [np.array([6.0, 0.0]), np.array([8.0, 0.0])]
    assert aligned_baseline(times, to_go)[1].tolist() == [7.0, 0.0]


def test_differential_costs_count_beyond_the_mean_rate() -> None:
    assert differential_costs(np.array([0.0, 2.0]), np.array([1.0, 9.0]), 3.0).tolist() == [
        1.0,
        3.0,
    ]


def test_the_running_mean_forgets_old_rollouts() -> None:
    rate = Rate()
    rate.add(np.array([0.0, 1.0]), np.array([0.0, 20.0]), 2.0, 50.0)
    assert rate.mean == 25.0
    rate.add(np.zeros(200_000), np.zeros(200_000), 10.0, 10.0)
    assert rate.mean == pytest.approx(1.0)
    assert Rate.from_json(rate.to_json()).mean == rate.mean


def test_advantages_are_standardised_and_clipped() -> None:
    values = np.append(np.zeros(999), 1e6)
    scaled = normalized(values)
    assert scaled.max() == 5.0
    assert normalized(np.array([1.0, 3.0])).tolist() == pytest.approx([-1.0, 1.0])
