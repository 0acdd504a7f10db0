"""Decima's training kernels against plain PyTorch: judged decisions and gradients."""

from itertools import product

import numpy as np
import pytest
import torch

from parcae.decima.graph.family import DecimaFamily
from parcae.decima.graph.layout import DecimaSettings, FeatureSet, Limits
from parcae.decima.graph.network import DecimaNetwork
from parcae.learning.scenario import Scenario
from parcae.policies.networks.training import NamedNetwork, Surrogate
from tests.learning.collected import collected
from tests.learning.plain_decima import PlainDecima, graphs_of
from tests.learning.test_class_and_idle_heads import _STREAM as _WITH_CLASSES
from tests.learning.test_networks import _BATCH, _DECIMAS, _stirred

_SWITCHES = ("critical_path", "executor_classes", "idle_lengths", "average_width")
_CASES = [
    *((_BATCH, {}, kind) for kind in ("least", "ratio")),
    *((_BATCH, settings, "plain") for settings in _DECIMAS),
    *(
        (_WITH_CLASSES, {**dict(zip(_SWITCHES, chosen, strict=True)), "limits": limits}, "plain")
        for chosen in [*product((0, 1), (0, 1), (0, 4), (0,)), (1, 1, 4, 1)]
        for limits in ("input", "stage")
    ),
    *((_WITH_CLASSES, {"features": features}, "plain") for features in FeatureSet),
]


def _gradients(
    network: NamedNetwork, batch: object, surrogate: Surrogate, slopes: torch.Tensor
) -> list[np.ndarray]:
    """Log probabilities, entropies, values, and gradients of the loss plus weighed values."""
    loss, result = network.judge(batch, surrogate)
    (loss + (result.value * slopes.to(result.value.dtype)).sum()).backward()
    judged = (result.log_prob, result.entropy, result.value)
    gradients = _by_name(network).values()
    return [array.detach().double().numpy() for array in (*judged, *gradients)]


def _by_name(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The gradients by name, zero where there are none."""
    if not isinstance(network, DecimaNetwork):
        return {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in network.by_name().items()
        }
    by_name = network._places.items()
    gradient = network.flat.grad
    assert gradient is not None
    critic = {f"critic.{name}": p.grad for name, p in network.critic.named_parameters()}
    return {name: gradient[place].view(shape) for name, (place, shape) in by_name} | critic


@pytest.mark.parametrize(("scenario", "switches", "kind"), _CASES)
def test_judged_decisions_and_gradients_are_those_of_plain_pytorch(
    scenario: Scenario, switches: dict[str, object], kind: str
) -> None:
    family = DecimaFamily(scenario, DecimaSettings.model_validate(switches))
    weights = _stirred(family.initial_weights(np.random.default_rng(0)))
    data = collected(scenario, family, weights)
    rng = np.random.default_rng(7)
    assert len(data) > 150
    assert len(np.unique(data.table.class_choice)) == (4 if family.decima.executor_classes else 1)
    assert bool(data.table.idle_choice.any()) == bool(family.decima.idle_lengths)
    index = rng.permutation(len(data))[:150]
    weight, slopes = rng.normal(0.0, 1.0, (2, len(index))).astype(np.float32)
    old = data.log_prob[index]
    # Far enough from the present probabilities that a part of the decisions is clipped.
    far = old + rng.normal(0.0, 0.3, len(index)).astype(np.float32)
    surrogate = {
        "plain": Surrogate(weight, entropy=0.7),
        "least": Surrogate(weight, least=float(np.median(old)), entropy=0.7),
        "ratio": Surrogate(weight, far, clip=0.2, entropy=0.7),
    }[kind]
    given = (surrogate, torch.from_numpy(slopes))
    network = family.network(weights)
    found = _gradients(network, data.decisions(index, torch.device("cpu")), *given)
    # The decisions were made by the compiled network.
    assert np.isfinite(found[1]).all()
    assert np.abs(found[0] - data.log_prob[index]).max() < 3e-5
    plain = PlainDecima(weights, family.decima, family.levels)
    plain.critic.load_state_dict(network.critic.state_dict())
    graphs = graphs_of(data, index, family.levels, family.decima.limits is Limits.NONE)
    single = _gradients(plain, graphs, *given)
    plain.zero_grad(set_to_none=True)
    expected = _gradients(plain.double(), graphs.double(), *given)
    # Some gradients are zero but for rounding, such as that of a bias that all options share.
    least = 0.1 * max(float(np.linalg.norm(array)) for array in expected[3:])
    names = ["log_prob", "entropy", "value", *network.by_name()]
    for name, array, other, rounded in zip(names, found, expected, single, strict=True):
        error = float(np.linalg.norm(array - other))
        # Where large terms cancel, PyTorch's own float32 has no smaller error.
        inevitable = 2.0 * float(np.linalg.norm(rounded - other))
        most = max(1e-5 * least, 1e-5 * float(np.linalg.norm(other)), inevitable)
        assert error <= most, name
