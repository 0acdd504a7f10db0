"""The compiled networks against the batched ones, and with and without kept embeddings."""

import numpy as np
import pytest
import torch

from parcae.base.errors import FormatError
from parcae.decima.corrector.family import CorrectorFamily
from parcae.decima.corrector.kernels import NUM_WEIGHTS
from parcae.decima.graph import network
from parcae.decima.graph.family import DecimaFamily, GraphDecisions
from parcae.decima.graph.layout import DecimaSettings, shapes
from parcae.decima.graph.network import GROUP
from parcae.decima.learning.recipes import Family
from parcae.decima.rule import RulePolicy, start_parameters
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Weights
from parcae.policies.networks.training import Surrogate
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator
from tests.conftest import made_up
from tests.learning.collected import collected

_WORKLOAD = made_up(12, 8.0)
_CONFIG = SimulationConfig(num_executors=12)
_BATCH = Scenario(_WORKLOAD, _CONFIG, "batch", 6)
_STREAM = Scenario(_WORKLOAD, _CONFIG, "load:0.7", 8)
_DECIMAS = (
    {},
    {"features": "code", "knows_gap": True},
    {"limits": "outputs"},
    {"limits": "stage"},
    {"limits": "none"},
    {"has_graph": False},
    {"has_two_transforms": False},
    {"features": "jobs"},
    {"features": "jobs", "critical_path": True},
)


def _stirred(weights: Weights, seed: int = 1) -> Weights:
    rng = np.random.default_rng(seed)
    return {
        name: (array + rng.normal(0, 0.2, array.shape)).astype(np.float32)
        for name, array in weights.items()
    }


def _largest_difference(family: Family, scenario: Scenario, weights: Weights) -> float:
    data = collected(scenario, family, weights, group_size=3, capacity=400)
    assert len(data) > 100
    with torch.no_grad():
        judged = family.network(weights)(data.decisions(np.arange(len(data)), torch.device("cpu")))
    assert bool(torch.isfinite(judged.entropy).all())
    return float(np.abs(judged.log_prob.numpy() - data.log_prob).max())


@pytest.mark.parametrize("scenario", [_BATCH, _STREAM])
def test_parcae_compiled_equals_batched(scenario: Scenario) -> None:
    family = CorrectorFamily(scenario, start_parameters(), (2.0, 2.0, 2.0))
    weights = _stirred(family.initial_weights(np.random.default_rng(0)))
    assert _largest_difference(family, scenario, weights) < 1e-5


def test_an_untrained_parcae_decides_as_its_rule_does() -> None:
    family = CorrectorFamily(_BATCH, start_parameters(), (5.5, 5.5, 4.0))
    network = family.policy(family.initial_weights(np.random.default_rng(0)))
    rule = RulePolicy("rule", tuple(start_parameters()), family.curves)
    simulator = Simulator(_BATCH.sequence(3), _CONFIG, 3)
    simulator.start()
    same = total = 0
    while simulator.status is Status.NEEDS_DECISION:
        wanted = rule.decide(simulator.observe())
        decision = network.decide(simulator.observe())
        same = same + (wanted.stage == decision.stage)
        total = total + 1
        simulator.step(wanted)
    assert same == total > 30


@pytest.mark.parametrize("settings", _DECIMAS)
def test_decima_with_kept_embeddings_decides_as_one_that_forgets(
    settings: dict[str, object],
) -> None:
    family = DecimaFamily(_STREAM, DecimaSettings.model_validate(settings))
    weights = _stirred(family.initial_weights(np.random.default_rng(0)))
    keeps = family.policy(weights)
    simulator = Simulator(_STREAM.sequence(3), _CONFIG, 3)
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        forgets = family.policy(weights)
        observation = simulator.observe()
        decision = keeps.decide(observation)
        assert decision == forgets.decide(observation)
        kept, fresh = keeps._kept.work, forgets._kept.work
        count = int(kept.now[3])
        assert kept.stage[:count].tolist() == fresh.stage[:count].tolist()
        assert np.allclose(kept.logits[:count], fresh.logits[:count], atol=1e-5)
        assert np.allclose(kept.z, fresh.z, atol=1e-5)
        simulator.step(decision)


def test_the_networks_have_the_stated_numbers_of_parameters() -> None:
    assert sum(int(np.prod(shape)) for shape in shapes(DecimaSettings(), 50).values()) == 8_386
    family = CorrectorFamily(_BATCH, start_parameters(), (2.0, 2.0, 2.0))
    weights = family.initial_weights(np.random.default_rng(0))
    sizes = {name: array.size for name, array in weights.items() if not name.startswith("value")}
    assert sum(sizes.values()) == NUM_WEIGHTS


def test_decima_goes_on_with_the_critic_that_it_starts_from() -> None:
    family = DecimaFamily(_BATCH, DecimaSettings())
    trained = _stirred(family.network(family.initial_weights(np.random.default_rng(0))).export())
    again = family.network(trained).export()
    assert again.keys() == trained.keys()
    assert all(np.array_equal(array, again[name]) for name, array in trained.items())
    with pytest.raises(FormatError, match=r"weights 'critic\.2\.bias' should have shape"):
        family.network({**trained, "critic.2.bias": np.zeros(2, np.float32)})


def _recorded(settings: DecimaSettings) -> tuple[DecimaFamily, GraphDecisions]:
    family = DecimaFamily(_STREAM, settings)
    weights = family.initial_weights(np.random.default_rng(0))
    return family, collected(_STREAM, family, weights, group_size=3, capacity=400)


def test_jobs_and_stages_that_do_not_change_are_recorded_once() -> None:
    for features, most, most_rows in (("paper", 0.99, 1.0), ("jobs", 0.7, 0.5)):
        _, data = _recorded(DecimaSettings.model_validate({"features": features}))
        table = data.table
        members = int(table.num_jobs.sum())
        assert len(table.state) == members
        distinct = len(np.unique(table.state))
        assert distinct < most * members
        # A state stands for the same list, and every list belongs to one state.
        _, first = np.unique(table.state, return_index=True)
        assert int(table.num_listed[first].sum()) == len(table.listed)
        assert len(np.unique(table.first_listed[first])) == distinct
        by_state = dict(zip(table.state[first], table.first_listed[first], strict=True))
        assert [by_state[state] for state in table.state] == table.first_listed.tolist()
        # Every row is listed, and most of them more than once.
        assert np.unique(table.listed).tolist() == list(range(len(table.x)))
        assert len(table.x) <= most_rows * len(table.listed)


def test_groups_of_successive_decisions_stay_together_when_decisions_are_shuffled() -> None:
    _, data = _recorded(DecimaSettings())
    order = data.shuffled(np.random.default_rng(1))
    assert sorted(order.tolist()) == list(range(len(data)))
    assert order.tolist() != list(range(len(data)))
    for start in np.flatnonzero(order % GROUP == 0):
        first = int(order[start])
        length = min(GROUP, len(data) - first)
        assert order[start : start + length].tolist() == list(range(first, first + length))


def test_decisions_are_judged_alike_in_groups_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    family, data = _recorded(DecimaSettings.model_validate({"features": "jobs"}))
    weights = family.initial_weights(np.random.default_rng(3))
    chosen = np.arange(100), torch.device("cpu")
    surrogate = Surrogate(np.ones(100, np.float32))
    wide = family.network(weights).judge(data.decisions(*chosen), surrogate)[1]
    # There is room for the largest decision only.
    monkeypatch.setattr(network, "_GROUP_ROWS", 1)
    monkeypatch.setattr(network, "_GROUP_LISTED", 1)
    small = GraphDecisions(data.table, data.edges, 20, (family.decima, len(family.levels)))
    narrow = family.network(weights).judge(small.decisions(*chosen), surrogate)[1]
    assert torch.allclose(wide.log_prob, narrow.log_prob, atol=1e-6)
    assert torch.allclose(wide.entropy, narrow.entropy, atol=1e-6)
