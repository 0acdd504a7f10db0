import copy

import numpy as np
import pytest
import torch

from parcae.base.errors import DivergedError
from parcae.decima.corrector.family import ParcaeFamily
from parcae.decima.corrector.network import ParcaeNetwork
from parcae.decima.learning.simulators import RolloutWorker, Setup
from parcae.decima.learning.updates import Step, clipped_loss, update
from parcae.decima.rule.policy import start_parameters
from parcae.learning.config import TrainConfig
from parcae.learning.scenario import Scenario
from parcae.simulation.config import SimulationConfig
from parcae.workloads.synthetic import RandomDags, random_dags

_WORKLOAD = random_dags(
    RandomDags(num_jobs=10, mean_tasks=6.0), np.random.default_rng(0), "made up"
)
_SCENARIO = Scenario(_WORKLOAD, SimulationConfig(num_executors=8), "batch", 5)
_CPU = torch.device("cpu")


def _family() -> ParcaeFamily:
    return ParcaeFamily(_SCENARIO, start_parameters(), (1.0, 1.0, 1.0))


def _data(family: ParcaeFamily, weights: dict) -> object:  # type: ignore[type-arg]
    worker = RolloutWorker(
        Setup(_SCENARIO, family, TrainConfig(num_groups=2, group_size=2, capacity=200)), seed=1
    )
    groups = worker.collect(family.policy(weights).network)
    return family.gather([rollout for group in groups for rollout in group])


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
    data = _data(family, weights)
    network = ParcaeNetwork(weights).double()
    batch = data.decisions(  # type: ignore[attr-defined]
        np.arange(min(40, len(data))),  # type: ignore[arg-type]
        _CPU,
    )
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
    data = _data(family, weights)
    network = ParcaeNetwork(weights)
    advantage = np.where(np.arange(len(data)) % 2 == 0, 1.0, -1.0)  # type: ignore[arg-type]
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    step = Step(epochs=3, minibatch=64, clip=0.2, entropy=0.0, value_weight=0.0, max_norm=0.5)
    update(
        network,
        optimizer,
        data,  # type: ignore[arg-type]
        advantage,
        None,
        step,
        np.random.default_rng(0),
        _CPU,
    )
    with torch.no_grad():
        now = network(
            data.decisions(  # type: ignore[attr-defined]
                np.arange(len(data)),  # type: ignore[arg-type]
                _CPU,
            )
        ).log_prob.numpy()
    change = now - data.log_prob  # type: ignore[attr-defined]
    assert change[advantage > 0].mean() > change[advantage < 0].mean()


def test_a_loss_that_is_not_finite_leaves_the_weights_as_they_were() -> None:
    family = _family()
    weights = family.initial_weights(np.random.default_rng(0))
    data = _data(family, weights)
    network = ParcaeNetwork(weights)
    before = copy.deepcopy(network.state_dict())
    advantage = np.full(len(data), np.nan)  # type: ignore[arg-type]
    step = Step(epochs=1, minibatch=64, clip=0.2, entropy=0.0, value_weight=0.0, max_norm=0.5)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    with pytest.raises(DivergedError, match="not finite"):
        update(
            network,
            optimizer,
            data,  # type: ignore[arg-type]
            advantage,
            None,
            step,
            np.random.default_rng(0),
            _CPU,
        )
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
