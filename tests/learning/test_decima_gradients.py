"""Decima's training kernels against plain PyTorch: judged decisions and gradients."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from parcae.decima.graph.family import DecimaFamily
from parcae.decima.graph.layout import DecimaSettings, FeatureSet, Limits, shapes
from parcae.decima.graph.network import DecimaNetwork
from parcae.decima.learning.updates import clipped_loss
from parcae.learning.scenario import Scenario
from parcae.policies.networks.layout import places
from parcae.policies.networks.training import Judged, Surrogate
from tests.learning.collected import collected
from tests.learning.plain_decima import PlainDecima, graphs_of
from tests.learning.test_class_and_idle_heads import _STREAM as _WITH_CLASSES
from tests.learning.test_networks import _BATCH, _DECIMAS, _stirred

_SWITCHES = ("critical_path", "executor_classes", "idle_lengths", "average_width")
_CASES = [
    *((_BATCH, settings) for settings in _DECIMAS),
    *(
        (_WITH_CLASSES, {**dict(zip(_SWITCHES, chosen, strict=True)), "limits": limits})
        for chosen in [*product((0, 1), (0, 1), (0, 4), (0,)), (1, 1, 4, 1)]
        for limits in ("input", "stage")
    ),
    *((_WITH_CLASSES, {"features": features}) for features in FeatureSet),
]


def _gradients(network: torch.nn.Module, batch: object, slopes: torch.Tensor) -> list[np.ndarray]:
    """Log probabilities, entropies, values, and gradients of sums of them with these slopes."""
    result = network(batch)
    judged = (result.log_prob, result.entropy, result.value)
    total = sum((a * b.to(a.dtype)).sum() for a, b in zip(judged, slopes, strict=True))
    total.backward()
    gradients = _by_name(network).values()
    return [array.detach().double().numpy() for array in (*judged, *gradients)]


def _by_name(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The gradients by name, zero where there are none."""
    if not isinstance(network, DecimaNetwork):
        return {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in network.by_name().items()
        }
    by_name = places(shapes(network.settings, len(network.limits))).items()
    gradient = network.flat.grad
    assert gradient is not None
    critic = {f"critic.{name}": p.grad for name, p in network.critic.named_parameters()}
    return {name: gradient[place].view(shape) for name, (place, shape) in by_name} | critic


@pytest.mark.parametrize(("scenario", "switches"), _CASES)
def test_judged_decisions_and_gradients_are_those_of_plain_pytorch(
    scenario: Scenario, switches: dict[str, object]
) -> None:
    family = DecimaFamily(scenario, DecimaSettings.model_validate(switches))
    weights = _stirred(family.initial_weights(np.random.default_rng(0)))
    data = collected(scenario, family, weights)
    rng = np.random.default_rng(7)
    assert len(data) > 150
    assert len(np.unique(data.table.class_choice)) == (4 if family.decima.executor_classes else 1)
    assert bool(data.table.idle_choice.any()) == bool(family.decima.idle_lengths)
    index = rng.permutation(len(data))[:150]
    slopes = torch.from_numpy(rng.normal(0.0, 1.0, (3, len(index))).astype(np.float32))
    network = family.network(weights)
    found = _gradients(network, data.decisions(index, torch.device("cpu")), slopes)
    # The decisions were made by the compiled network.
    assert np.isfinite(found[1]).all()
    assert np.abs(found[0] - data.log_prob[index]).max() < 3e-5
    plain = PlainDecima(weights, family.decima, family.levels)
    plain.critic.load_state_dict(network.critic.state_dict())
    graphs = graphs_of(data, index, family.levels, family.decima.limits is Limits.NONE)
    single = _gradients(plain, graphs, slopes)
    plain.zero_grad(set_to_none=True)
    expected = _gradients(plain.double(), graphs.double(), slopes)
    # Some gradients are zero but for rounding, such as that of a bias that all options share.
    least = 0.1 * max(float(np.linalg.norm(array)) for array in expected[3:])
    names = ["log_prob", "entropy", "value", *network.by_name()]
    for name, array, other, rounded in zip(names, found, expected, single, strict=True):
        error = float(np.linalg.norm(array - other))
        # Where large terms cancel, PyTorch's own float32 has no smaller error.
        inevitable = 2.0 * float(np.linalg.norm(rounded - other))
        most = max(1e-5 * least, 1e-5 * float(np.linalg.norm(other)), inevitable)
        assert error <= most, name


def _gradient(network: DecimaNetwork, judged: Judged, surrogate: Surrogate) -> np.ndarray:
    """The gradient of the surrogate's loss, in PyTorch."""
    network.zero_grad(set_to_none=True)
    weight = torch.from_numpy(surrogate.weight)
    loss = -surrogate.entropy * judged.entropy.sum()
    if surrogate.old_log_prob is None:
        loss = loss - (weight * judged.log_prob.clamp(min=surrogate.least)).sum()
    else:
        old = torch.from_numpy(surrogate.old_log_prob)
        loss = loss + len(old) * clipped_loss(judged.log_prob, old, weight, surrogate.clip)
    loss.backward()
    assert network.flat.grad is not None
    return network.flat.grad.numpy()


@pytest.mark.parametrize("kind", ["plain", "least", "ratio", "wrong"])
def test_the_gradient_in_the_pass_that_judges_is_that_of_the_loss(kind: str) -> None:
    family = DecimaFamily(_BATCH, DecimaSettings())
    weights = _stirred(family.initial_weights(np.random.default_rng(0)))
    data = collected(_BATCH, family, weights)
    network = family.network(weights)
    batch = data.decisions(np.arange(150), torch.device("cpu"))
    rng = np.random.default_rng(7)
    weight = rng.normal(0.0, 1.0, len(batch)).astype(np.float32)
    plain = network(batch)
    # Far enough from the present probabilities that a part of the decisions is clipped.
    noise = rng.normal(0.0, 0.3, len(batch)).astype(np.float32)
    old = plain.log_prob.detach().numpy() + noise
    surrogate = Surrogate(weight, entropy=0.1)
    if kind == "least":
        surrogate = replace(surrogate, least=float(plain.log_prob.detach().median()))
    if kind == "ratio":
        surrogate = replace(surrogate, old_log_prob=old, clip=0.2)
    expected = _gradient(network, plain, surrogate)
    announced = replace(surrogate, weight=-weight) if kind == "wrong" else surrogate
    found = _gradient(network, network.judge(batch, announced), surrogate)
    assert float(np.linalg.norm(found - expected)) <= 1e-5 * float(np.linalg.norm(expected))
