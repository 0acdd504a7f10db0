"""DeepRM's network: its size, its sums, its draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from parcae.base.errors import ConfigError, FormatError
from parcae.cluster.kernels.policies import decide
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.networks.layout import Weights
from parcae.rigid.config import PackingConfig
from parcae.rigid.deeprm.kernels import (
    Actions,
    DeepRMSettings,
    Work,
    initial_weights,
    shapes,
)
from parcae.rigid.deeprm.policy import DeepRMPolicy
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import VOID, View, select
from parcae.rigid.sources import DrawnSource
from parcae.rigid.world import PackingBatch
from tests.packing.images import images_of
from tests.policies.deeprm.network import log_probabilities

_SMALL = DeepRMSettings(capacity=(3, 5), num_slots=2, backlog_size=7, horizon=4, has_pause=True)


def _random_weights(settings: DeepRMSettings, seed: int = 0) -> Weights:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(0.0, 0.3, shape).astype(np.float32)
        for name, shape in shapes(settings).items()
    }


def _policy(weights: Weights | None = None, **settings: Any) -> DeepRMPolicy:
    """The policy with random weights, or with these."""
    shape = DeepRMSettings(**settings)
    return DeepRMPolicy("deeprm", weights or _random_weights(shape), shape)


def _begun(demand: list[list[int]], **settings: Any) -> PackingBatch:
    """A cluster in which jobs of 3 and 2 steps have arrived."""
    count = len(demand)
    jobs = RigidJobs("few", [0] * count, [3, 2][:count], demand, [10, 10])
    batch = PackingBatch([jobs], PackingConfig(), wants_profile=True, **settings)
    batch.begin()
    return batch


def _work(policy: DeepRMPolicy, view: View) -> Work:
    """What the policy works out when it decides."""
    tables = policy.tables(view)
    decide(view, tables)
    work: Work = tables.work
    return work


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


def test_the_papers_network_has_89451_parameters_and_the_codes_89851_small_ones() -> None:
    for has_pause, expected in ((False, 89_451), (True, 89_851)):
        settings = DeepRMSettings(has_pause=has_pause)
        weights = initial_weights(np.random.default_rng(0), settings)
        assert sum(array.size for array in weights.values()) == expected
        assert 0.0099 < weights["hidden.weight"].std() < 0.0101
        assert not weights["hidden.bias"].any()


_TINY = PackingConfig(num_slots=2, backlog_size=7, horizon=4)


@pytest.mark.parametrize(
    ("config", "capacity", "has_pause", "steps", "width"),
    [
        *((PackingConfig(), (10, 10), has, n, 223 + has) for has in (0, 1) for n in (0, 7, 30, 60)),
        # Unequal resources and a full backlog, and an image without columns for a backlog.
        (_TINY, (3, 5), True, 25, _SMALL.width),
        (_TINY.model_copy(update={"backlog_size": 0}), (3, 5), False, 25, 8 * 3),
    ],
)
def test_the_sums_equal_the_dense_product_on_the_drawn_image(
    config: PackingConfig, capacity: tuple[int, ...], has_pause: bool, steps: int, width: int
) -> None:
    settings = DeepRMSettings.of(config, capacity, has_pause=has_pause)
    batch = _visited(config, capacity, steps, steps)
    weights = _random_weights(settings)
    images = images_of(batch, has_pause=has_pause)
    assert images.shape[1:] == (config.horizon, width)
    dense = images.reshape(len(batch), -1).astype(np.float64) @ weights["hidden.weight"]
    policy = DeepRMPolicy("deeprm", weights, settings)
    views = batch.show()
    for row, expected in enumerate(np.maximum(dense + weights["hidden.bias"], 0.0)):
        work = _work(policy, select(views, row))
        np.testing.assert_allclose(work.hidden, expected, atol=1e-6 * np.abs(dense).max())
        assert work.count[0] <= settings.sizes["sums"]
    if steps == 30:
        ahead = batch.states.jobs["start"] > batch.states.clock["now"]
        assert ahead.any(), "no job was booked ahead"
        assert batch.states.clock["num_backlog"].max() > 0
    if config.backlog_size == 0:
        assert (batch.states.jobs["is_dropped"] == 1).any()


def test_probabilities_equal_those_of_the_network_in_pytorch() -> None:
    batch = _visited(PackingConfig(), (10, 10), 0, 30)
    policy = _policy()
    parts = {name: torch.from_numpy(array) for name, array in policy.weights.items()}
    wanted = log_probabilities(parts, torch.from_numpy(images_of(batch))).exp().numpy()
    views = batch.show()
    found = [_work(policy, select(views, row)).probabilities for row in range(len(batch))]
    np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_actions_are_drawn_as_often_as_their_probabilities_say() -> None:
    views = _begun([[5, 1]], repeats=4_000, seed=1).show()
    policy = _policy()
    actions = [policy.decide(select(views, row)) % 11 for row in range(4_000)]
    wanted = _work(policy, select(views, 0)).probabilities
    np.testing.assert_allclose(np.bincount(actions, minlength=11) / 4_000, wanted, atol=0.03)


@pytest.mark.parametrize(
    ("actions", "possible"),
    [(Actions.ALL, [*range(11)]), (Actions.FILLED, [1, 10]), (Actions.STARTABLE, [10])],
)
def test_actions_that_are_left_out_have_no_chance(actions: Actions, possible: list[int]) -> None:
    batch = _begun([[9, 1], [9, 1]])
    batch.step(np.array([0]))
    work = _work(_policy(actions=actions), select(batch.show(), 0))
    assert np.flatnonzero(work.probabilities).tolist() == possible


def _greedy_but_holding() -> DeepRMPolicy:
    """A policy that would rather let time pass."""
    weights = initial_weights(np.random.default_rng(0), DeepRMSettings())
    weights["actions.bias"][-1] = 9.0
    return DeepRMPolicy("deeprm", weights, DeepRMSettings(), is_greedy=True)


def test_a_greedy_policy_does_not_hold_jobs_for_ever() -> None:
    source = DrawnSource(rates=(0.4,))
    batch = PackingBatch(source.draw(range(1_000, 1_004)), source.config, wants_profile=True)
    batch.run(_greedy_but_holding().play_many, 1)
    assert all((outcome.start >= 0).all() for outcome in batch.outcomes())


def test_a_greedy_policy_may_hold_a_job_while_another_runs() -> None:
    batch = _begun([[5, 1], [5, 1]])
    policy = _greedy_but_holding()
    first = policy.decide(select(batch.show(), 0))
    batch.step(np.array([first]))
    assert first in (0, 1)
    assert policy.decide(select(batch.show(), 0)) == VOID


@pytest.mark.parametrize(
    ("source", "has_profile", "message"),
    [
        (
            DrawnSource(settings=PackingConfig(num_slots=5)),
            True,
            "slots 10, not 5",
        ),
        (DrawnSource(num_units=20), True, r"units \(10, 10\), not \(20, 20\)"),
        (DrawnSource(), False, "wants_profile"),
    ],
)
def test_a_policy_refuses_clusters_and_views_that_it_is_not_for(
    source: DrawnSource, has_profile: bool, message: str
) -> None:
    batch = PackingBatch(source.draw([1_000]), source.config, wants_profile=has_profile)
    with pytest.raises(ConfigError, match=message):
        batch.run(_policy().play_many, 1)
    if not has_profile:
        batch.begin()
        with pytest.raises(ConfigError, match=message):
            _policy().decide(select(batch.show(), 0))


def test_a_checkpoint_gives_back_the_policy_and_another_kind_is_refused() -> None:
    policy = _policy(actions=Actions.FILLED)
    settings = {"network": policy.settings.model_dump(mode="json")}
    again = DeepRMPolicy.from_checkpoint(Checkpoint("deeprm", 1, policy.weights, settings), "x")
    assert again.settings == policy.settings
    assert all((again.weights[name] == policy.weights[name]).all() for name in policy.weights)
    with pytest.raises(FormatError, match="not of 'deeprm'"):
        DeepRMPolicy.from_checkpoint(Checkpoint("rule", 1, policy.weights), "x")
    with pytest.raises(FormatError, match=r"'hidden.bias' should have shape \(20,\), found none"):
        _policy({"hidden.weight": policy.weights["hidden.weight"]})
