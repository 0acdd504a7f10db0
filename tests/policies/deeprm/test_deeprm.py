"""DeepRM's network: its size, its sums, its draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from parcae.base.errors import ConfigError, FormatError
from parcae.cluster.kernels.policies import decide
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parcae.policies.networks.layout import Weights
from parcae.rigid.config import PackingConfig, TimeMode
from parcae.rigid.deeprm.kernels import DeepRM
from parcae.rigid.deeprm.layout import (
    HIDDEN,
    Actions,
    DeepRMSettings,
    allocate_work,
    initial_weights,
    shapes,
    sums_of,
)
from parcae.rigid.deeprm.policy import DeepRMPolicy, deeprm_policy, make_network
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import VOID, View, select
from parcae.rigid.sources import DrawnSource
from parcae.rigid.world import Images, ImageSettings, PackingBatch
from tests.policies.deeprm.network import DeepRMNetwork

_SMALL = DeepRMSettings(capacity=(3, 5), num_slots=2, backlog_size=7, horizon=4, has_pause=True)


def _random_weights(settings: DeepRMSettings, seed: int = 0) -> Weights:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(0.0, 0.3, shape).astype(np.float32)
        for name, shape in shapes(settings).items()
    }


def _visited(
    config: PackingConfig, capacity: tuple[int, ...], seed: int, steps: int
) -> PackingBatch:
    """Clusters somewhere on their way: random decisions, among them jobs that are booked ahead."""
    rng = np.random.default_rng(seed)
    sequences = []
    for _ in range(6):
        n = 40
        demand = np.stack([rng.integers(1, units + 1, n) for units in capacity], axis=1)
        durations = rng.integers(1, config.horizon, n)
        sequences.append(
            RigidJobs(
                "random", np.sort(rng.integers(0, 20, n)), durations, demand, np.array(capacity)
            )
        )
    batch = PackingBatch(sequences, config, wants_profile=True)
    batch.begin()
    for _ in range(steps):
        batch.step(rng.integers(-1, config.num_slots, len(batch)))
    return batch


def _hidden(
    batch: PackingBatch, weights: Weights, settings: DeepRMSettings
) -> tuple[npt.NDArray[np.float32], list[int]]:
    network = make_network(weights, settings)
    views = batch.show()
    found = []
    counts = []
    for row in range(len(batch)):
        work = allocate_work(settings)
        decide(select(views, row), DeepRM(network, work, False))
        found.append(work.hidden)
        counts.append(int(work.count[0]))
    return np.array(found), counts


def test_the_papers_network_has_89451_parameters_and_the_codes_89851() -> None:
    def count(settings: DeepRMSettings) -> int:
        return sum(
            array.size for array in initial_weights(np.random.default_rng(0), settings).values()
        )

    assert count(DeepRMSettings()) == 89_451
    assert count(DeepRMSettings(has_pause=True)) == 89_851


def test_first_weights_are_small_and_biases_zero() -> None:
    weights = initial_weights(np.random.default_rng(0), DeepRMSettings())
    assert 0.0099 < weights["hidden.weight"].std() < 0.0101
    assert not weights["hidden.bias"].any()


@pytest.mark.parametrize("has_pause", [False, True])
@pytest.mark.parametrize("steps", [0, 7, 30, 60])
def test_the_sums_equal_the_dense_product_on_the_drawn_image(has_pause: bool, steps: int) -> None:
    config = PackingConfig()
    settings = DeepRMSettings.of(config, (10, 10), ImageSettings(has_pause=has_pause))
    batch = _visited(config, (10, 10), steps, steps)
    weights = initial_weights(np.random.default_rng(1), settings)
    images = Images(batch, settings.image).draw().reshape(len(batch), -1)
    dense = images.astype(np.float64) @ weights["hidden.weight"] + weights["hidden.bias"]
    found, counts = _hidden(batch, weights, settings)
    np.testing.assert_allclose(found, np.maximum(dense, 0.0), atol=2e-6)
    assert max(counts) <= settings.num_sums
    if steps == 30:
        ahead = batch.states.jobs["start"] > batch.states.clock["now"]
        assert ahead.any(), "no job was booked ahead"
        assert batch.states.clock["num_backlog"].max() > 0


def test_an_image_without_a_backlog_has_no_columns_for_it() -> None:
    config = PackingConfig(num_slots=2, backlog_size=0, horizon=4)
    settings = DeepRMSettings.of(config, (3, 5), ImageSettings())
    batch = _visited(config, (3, 5), 0, 25)
    weights = _random_weights(settings)
    images = Images(batch).draw()
    assert images.shape[1:] == (4, 8 * 3)
    assert (batch.states.jobs["is_dropped"] == 1).any()
    dense = images.reshape(len(batch), -1) @ weights["hidden.weight"] + weights["hidden.bias"]
    np.testing.assert_allclose(
        _hidden(batch, weights, settings)[0], np.maximum(dense, 0.0), atol=1e-5
    )


def test_the_sums_equal_the_dense_product_with_unequal_resources_and_a_full_backlog() -> None:
    config = PackingConfig(num_slots=2, backlog_size=7, horizon=4)
    batch = _visited(config, (3, 5), 0, 25)
    weights = _random_weights(_SMALL)
    images = Images(batch, _SMALL.image).draw()
    assert images.shape[1:] == (4, _SMALL.width)
    dense = (
        images.reshape(len(batch), -1).astype(np.float64) @ weights["hidden.weight"]
        + weights["hidden.bias"]
    )
    np.testing.assert_allclose(
        _hidden(batch, weights, _SMALL)[0], np.maximum(dense, 0.0), atol=2e-6
    )


def test_the_gradient_of_the_weights_is_the_transpose_of_the_sums() -> None:
    rng = np.random.default_rng(3)
    weight = rng.normal(size=shapes(_SMALL)["hidden.weight"])
    sums = sums_of(weight, _SMALL)
    of_sums = rng.normal(size=sums.shape)
    tensor = torch.from_numpy(weight).requires_grad_()
    found = sums_of(tensor, _SMALL)
    np.testing.assert_allclose(found.detach().numpy(), sums, atol=1e-5)
    (gradient,) = torch.autograd.grad(found, tensor, torch.from_numpy(of_sums).float())
    assert (sums * of_sums).sum() == pytest.approx((weight * gradient.numpy()).sum(), rel=1e-4)


def test_probabilities_equal_those_of_the_network_in_pytorch() -> None:
    batch = _visited(PackingConfig(), (10, 10), 0, 30)
    settings = DeepRMSettings()
    weights = _random_weights(settings)
    policy = DeepRMPolicy("deeprm", weights, settings)
    network = DeepRMNetwork(weights, settings)
    wanted = network(torch.from_numpy(Images(batch).draw())).exp().detach().numpy()
    views = batch.show()
    found = np.stack([policy.probabilities(select(views, row)) for row in range(len(batch))])
    np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_actions_are_drawn_as_often_as_their_probabilities_say() -> None:
    settings = DeepRMSettings()
    weights = _random_weights(settings)
    jobs = RigidJobs("one", np.array([0]), np.array([3]), np.array([[5, 1]]), np.array([10, 10]))
    batch = PackingBatch([jobs], PackingConfig(), repeats=4_000, wants_profile=True, seed=1)
    batch.begin()
    views = batch.show()
    policy = DeepRMPolicy("deeprm", weights, settings)
    drawn = np.bincount(
        [policy.decide(select(views, row)) % 11 for row in range(4_000)], minlength=11
    )
    np.testing.assert_allclose(drawn / 4_000, policy.probabilities(select(views, 0)), atol=0.03)


def test_actions_that_are_left_out_have_no_chance() -> None:
    jobs = RigidJobs(
        "two", np.array([0, 0]), np.array([3, 2]), np.array([[9, 1], [9, 1]]), np.array([10, 10])
    )
    batch = PackingBatch([jobs], PackingConfig(), wants_profile=True)
    batch.begin()
    batch.step(np.array([0]))
    view = select(batch.show(), 0)

    def can(actions: Actions) -> list[int]:
        settings = DeepRMSettings(actions=actions)
        return np.flatnonzero(
            DeepRMPolicy("deeprm", _random_weights(settings), settings).probabilities(view)
        ).tolist()

    assert (can(Actions.ALL), can(Actions.FILLED), can(Actions.STARTABLE)) == (
        list(range(11)),
        [1, 10],
        [10],
    )


def _holding() -> Weights:
    """Weights that would rather let time pass."""
    weights = initial_weights(np.random.default_rng(0), DeepRMSettings())
    weights["actions.bias"][-1] = 9.0
    return weights


def test_a_greedy_policy_does_not_hold_jobs_for_ever() -> None:
    source = DrawnSource(rates=(0.4,))
    batch = PackingBatch(source.draw(range(1_000, 1_004)), source.config, wants_profile=True)
    batch.run(DeepRMPolicy("deeprm", _holding(), DeepRMSettings(), is_greedy=True).play_many, 1)
    assert all((outcome.start >= 0).all() for outcome in batch.outcomes())


def test_a_greedy_policy_may_hold_a_job_while_another_runs() -> None:
    jobs = RigidJobs(
        "two", np.array([0, 0]), np.array([3, 2]), np.array([[5, 1], [5, 1]]), np.array([10, 10])
    )
    batch = PackingBatch([jobs], PackingConfig(), wants_profile=True)
    batch.begin()
    policy = DeepRMPolicy("deeprm", _holding(), DeepRMSettings(), is_greedy=True)

    def answer() -> int:
        view: View = select(batch.show(), 0)
        return policy.decide(view)

    first = answer()
    batch.step(np.array([first]))
    assert (first in (0, 1), answer()) == (True, VOID)


def test_runs_do_not_depend_on_the_number_of_threads() -> None:
    source = DrawnSource()
    policy = DeepRMPolicy("deeprm", _random_weights(DeepRMSettings()), DeepRMSettings())
    found = []
    config = source.config.model_copy(update={"max_decisions": 300})
    for threads in (1, 3):
        batch = PackingBatch(source.draw(range(1_000, 1_010)), config, wants_profile=True, seed=2)
        batch.run(policy.play_many, threads)
        found.append(batch.costs())
    assert found[0].tolist() == found[1].tolist()


def test_a_policy_refuses_clusters_that_it_is_not_for() -> None:
    policy = DeepRMPolicy("deeprm", _random_weights(DeepRMSettings()), DeepRMSettings())
    source = DrawnSource(settings=PackingConfig(num_slots=5))
    batch = PackingBatch(source.draw([1_000]), source.config, wants_profile=True)
    with pytest.raises(
        ConfigError, match="horizon of 20, 10 slots and a backlog of 60, not for 20, 5 and 60"
    ):
        batch.run(policy.play_many, 1)
    other = DrawnSource(num_units=20)
    batch = PackingBatch(other.draw([1_000]), other.config, wants_profile=True)
    with pytest.raises(ConfigError, match=r"clusters of \[10, 10\] units, not \[20, 20\]"):
        batch.run(policy.play_many, 1)


def test_a_policy_must_be_shown_what_is_free_when() -> None:
    policy = DeepRMPolicy("deeprm", _random_weights(DeepRMSettings()), DeepRMSettings())
    source = DrawnSource()
    batch = PackingBatch(source.draw([1_000]), source.config)
    batch.begin()
    with pytest.raises(ConfigError, match="wants_profile"):
        policy.decide(select(batch.show(), 0))
    with pytest.raises(ConfigError, match="wants_profile"):
        batch.run(policy.play_many, 1)


def test_colours_and_exact_times_are_refused() -> None:
    with pytest.raises(ConfigError, match="without colours"):
        DeepRMSettings.of(PackingConfig(), (10, 10), ImageSettings(is_colored=True))
    with pytest.raises(ConfigError, match="time in steps"):
        DeepRMSettings.of(PackingConfig(mode=TimeMode.EXACT), (10, 10))


def test_a_checkpoint_gives_back_the_policy_and_another_kind_is_refused(tmp_path: Path) -> None:
    settings = DeepRMSettings(actions=Actions.FILLED)
    path = tmp_path / "deeprm.safetensors"
    weights = _random_weights(settings)
    write_checkpoint(
        Checkpoint("deeprm", 1, weights, {"network": settings.model_dump(mode="json")}), path
    )
    policy = deeprm_policy(read_checkpoint(path), str(path))
    assert policy.settings == settings
    assert all((policy.weights[name] == weights[name]).all() for name in weights)
    with pytest.raises(FormatError, match="not of 'deeprm'"):
        deeprm_policy(Checkpoint("rule", 1, weights), "x")
    with pytest.raises(FormatError, match=r"'hidden.bias' should have shape \(20,\), found none"):
        DeepRMPolicy("deeprm", {"hidden.weight": weights["hidden.weight"]}, settings)


def test_the_network_in_pytorch_gives_back_its_weights() -> None:
    first = _random_weights(_SMALL, 1)
    second = _random_weights(_SMALL, 2)
    network = DeepRMNetwork(first, _SMALL)
    network.load_arrays(second)
    assert all((network.export()[name] == second[name]).all() for name in second)
    assert network.hidden(torch.zeros(1, 4, _SMALL.width)).shape == (1, HIDDEN)
