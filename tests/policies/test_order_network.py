"""The network of the world of cores: it starts as the rule, and its compiled pass is what a plain
one computes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from parcae.base.errors import FormatError, PolicyError
from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parcae.policies.network.kernels import (
    FEATURE_VERSION,
    FULL_ERROR,
    KIND,
    NUM_ORDER_WEIGHTS,
    OFFSETS,
    SCALE,
    SHAPES,
    OrderFeature,
    initial_weights,
)
from parcae.policies.network.policy import (
    OrderNetworkPolicy,
    bind_network,
    order_network,
    play_rows,
)
from parcae.policies.rule.kernels import NUM_ORDER_PARAMETERS, PROBE_TIER, OrderParameter
from parcae.policies.rule.policy import OrderRulePolicy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from tests.conftest import made_up

_WORKLOAD = made_up(12, 8.0)
_CONFIG = SimulationConfig(world=WorldName.CORES, num_executors=6, estimate_error=0.8)
_SCENARIO = Scenario(_WORKLOAD, _CONFIG, "load:0.9", 12)
_MEAN_MS = _WORKLOAD.mean_work_ms


def _rule() -> tuple[float, ...]:
    """Parameters that use every feature, and that have jobs tried first."""
    theta = np.random.default_rng(5).normal(0.0, 0.5, NUM_ORDER_PARAMETERS)
    theta[OrderParameter.PROBE] = 1.2
    theta[OrderParameter.PROBE_SHARE] = 2.0
    return tuple(float(value) for value in theta)


def _network(weights: npt.NDArray[np.float64]) -> OrderNetworkPolicy:
    return OrderNetworkPolicy("network", weights, _rule(), _MEAN_MS)


def _drawn(seed: int) -> npt.NDArray[np.float64]:
    return np.random.default_rng(seed).normal(0.0, 0.6, NUM_ORDER_WEIGHTS)


def _ends(policy: OrderNetworkPolicy | OrderRulePolicy) -> list[list[int]]:
    runs = _SCENARIO.batch(range(6))
    runs.cost(policy.play_many)
    ends: list[list[int]] = runs.simulators.states.jobs.completion_ms.tolist()
    return ends


def test_output_weights_of_zero_are_the_rule_run_for_run() -> None:
    rule = _ends(OrderRulePolicy("rule", _rule(), _MEAN_MS))
    assert _ends(_network(initial_weights(0))) == rule
    assert _ends(_network(np.zeros(NUM_ORDER_WEIGHTS))) == rule
    assert _ends(_network(_drawn(1))) != rule


def test_rows_of_weights_run_as_each_alone() -> None:
    weights = np.stack([_drawn(1), initial_weights(0), _drawn(2)])
    runs = _SCENARIO.batch([4, 4, 5])
    found = runs.cost(play_rows(weights, _rule(), _MEAN_MS))
    alone = [
        float(_SCENARIO.batch([seed]).cost(_network(own).play_many)[0])
        for own, seed in zip(weights, (4, 4, 5), strict=True)
    ]
    assert found.tolist() == alone


class _Watched:
    """Plans with the network, and keeps what it saw and said beside what the rule says."""

    name = "watched"

    def __init__(self, weights: npt.NDArray[np.float64]) -> None:
        self.network = _network(weights)
        self.rule = OrderRulePolicy("rule", _rule(), _MEAN_MS)
        self.plans: list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]] = []
        self.shifts: list[npt.NDArray[np.float64]] = []

    def plan(self, observation: Observation) -> Orders:
        """The network's orders."""
        orders = self.network.plan(observation)
        plain = self.rule.plan(observation)
        active = observation.active[: int(observation.now.num_active[0])]
        assert self.network._kept is not None
        work = self.network._kept.work
        tiers = orders.jobs.tier[active]
        is_tried = plain.jobs.tier[active] == PROBE_TIER
        assert np.array_equal(tiers == PROBE_TIER, is_tried)
        assert np.array_equal(orders.jobs.limit[active], plain.jobs.limit[active])
        assert np.array_equal(orders.stages.rank, plain.stages.rank)
        assert orders.wake_ms[0] == plain.wake_ms[0]
        features = work.features[: len(active)].copy()
        assert np.array_equal(features[:, OrderFeature.IS_TRIED] == 1.0, is_tried)
        ranks = np.argsort(np.argsort(work.tier[: len(active)], kind="stable"), kind="stable")
        if len(set(work.tier[: len(active)])) == len(active) > 0:
            assert np.allclose(features[:, OrderFeature.RANK], ranks / len(active))
        self.plans.append((features, is_tried))
        self.shifts.append(np.where(is_tried, 0.0, tiers - plain.jobs.tier[active]))
        return orders


def _plain_shift(
    weights: npt.NDArray[np.float64], features: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    parts = {
        name: weights[OFFSETS[name] : OFFSETS[name] + int(np.prod(shape))].reshape(shape)
        for name, shape in SHAPES.items()
    }
    hidden = np.tanh(features @ parts["job.weight"] + parts["job.bias"])
    base = hidden.mean(axis=0) @ parts["mixed.context"] + parts["mixed.bias"]
    mixed = np.tanh(hidden @ parts["mixed.own"] + base)
    trust = np.minimum(1.0, features[:, OrderFeature.ERRING] / FULL_ERROR)
    found: npt.NDArray[np.float64] = trust * SCALE * np.tanh(mixed @ parts["output.weight"])
    return found


def test_the_compiled_pass_is_what_a_plain_one_computes() -> None:
    weights = _drawn(3)
    watched = _Watched(weights)
    simulate(_SCENARIO.sequence(1), watched, _CONFIG, 1)
    assert len(watched.plans) > 10
    assert any(is_tried.any() for _, is_tried in watched.plans)
    for (features, is_tried), shift in zip(watched.plans, watched.shifts, strict=True):
        assert np.isfinite(features).all()
        if len(features) > 0:
            expected = np.where(is_tried, 0.0, _plain_shift(weights, features))
            np.testing.assert_allclose(shift, expected, rtol=0, atol=1e-9)


def test_plans_are_deterministic_and_play_is_what_plans_make() -> None:
    policy = _network(_drawn(4))
    sequence = _SCENARIO.sequence(2)
    planned = [simulate(sequence, _Watched(_drawn(4)), _CONFIG, 2) for _ in range(2)]
    ends = [own.completion_ms.tolist() for own in planned]
    assert ends[0] == ends[1]
    runs = _SCENARIO.batch([2])
    runs.cost(policy.play_many)
    assert runs.simulators.states.jobs.completion_ms[0].tolist() == ends[0]


def test_a_checkpoint_comes_back_and_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    weights = _drawn(6)
    arrays = {"rule": np.array(_rule()), "network": weights}
    write_checkpoint(Checkpoint(KIND, FEATURE_VERSION, arrays), tmp_path / "n.safetensors")
    policy = bind_network(read_checkpoint(tmp_path / "n.safetensors"), "n", _WORKLOAD)
    assert np.array_equal(policy.weights, weights)
    assert policy.parameters == _rule()
    assert policy.mean_work_ms == _MEAN_MS
    good = {"rule": np.zeros(NUM_ORDER_PARAMETERS), "network": weights}
    refused = [
        (Checkpoint("rule", FEATURE_VERSION, good), "not of 'order-network'"),
        (Checkpoint(KIND, FEATURE_VERSION + 1, good), "feature version 2"),
        (Checkpoint(KIND, FEATURE_VERSION, {**good, "network": weights[1:]}), "'network' should"),
        (Checkpoint(KIND, FEATURE_VERSION, {**good, "rule": np.zeros(3)}), "not 3; make it again"),
        (Checkpoint(KIND, FEATURE_VERSION, {"rule": good["rule"]}), "there is nothing"),
    ]
    for checkpoint, message in refused:
        with pytest.raises(FormatError, match=message):
            bind_network(checkpoint, "n", _WORKLOAD)


def test_another_number_of_weights_is_refused() -> None:
    with pytest.raises(PolicyError, match="has 564 weights, not 3"):
        order_network(np.zeros(3), _rule(), 1.0, 2, 2)
