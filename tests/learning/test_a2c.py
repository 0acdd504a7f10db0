"""Training of A2cScheduler: returns by hand, resuming, and a toy problem that it learns."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

from parcae.learning.loop import IterationSeeds, TrainingPlan, train
from parcae.rigid.a2c import learner as a2c
from parcae.rigid.a2c.layout import Architecture
from parcae.rigid.a2c.learner import A2cLearner, beyond_group_means, n_step_returns
from parcae.rigid.a2c.policy import A2cPolicy
from parcae.rigid.config import PackingConfig
from parcae.rigid.layout import Cost
from parcae.rigid.metrics import mean_cost
from parcae.rigid.sources import DrawnSource
from parcae.rigid.world import PackingBatch
from tests.packing.images import images_of
from tests.policies.a2c.test_network import convolved

#: A small world: 2 resources of 10 units, 3 job slots, 16 time steps.
_TOY = DrawnSource(
    (0.6,), window=15, settings=PackingConfig(num_slots=3, backlog_size=15, horizon=16)
)


def _learner(
    *settings: str, recipe: str = "fast", architecture: Architecture = Architecture.CONV_16_POOL
) -> A2cLearner:
    changes = [f"architecture={architecture.value}", *settings]
    return A2cLearner(_TOY, Cost.SLOWDOWN, recipe, changes)


@pytest.mark.parametrize(
    ("rewards", "is_over", "last", "discount", "returns"),
    [
        # Returns of several steps end with what the critic expects; those of one step are
        # Algorithm 1.
        (
            [[1.0, -1.0], [2.0, -3.0], [0.0, 5.0]],
            [[0, 0], [0, 0], [0, 0]],
            [4.0, 8.0],
            0.5,
            [[2.5, -0.25], [3.0, 1.5], [2.0, 9.0]],
        ),
        ([[-2.0]], [[0]], [10.0], 0.9, [[7.0]]),
        # Nothing is expected of a run that is over.
        (
            [[1.0, -1.0], [2.0, 0.0]],
            [[0, 1], [1, 1]],
            [4.0, 8.0],
            0.5,
            [[2.0, -1.0], [2.0, 0.0]],
        ),
        # Nothing is discounted while a run waits for the others.
        (
            [[1.0], [0.0], [0.0]],
            [[0], [0], [0]],
            [4.0],
            [[0.5], [1.0], [1.0]],
            [[3.0], [4.0], [4.0]],
        ),
    ],
)
def test_returns_worked_out_by_hand(
    rewards: Any, is_over: Any, last: Any, discount: Any, returns: Any
) -> None:
    over = np.array(is_over, np.bool_)
    found = n_step_returns(np.array(rewards), over, np.array(last), np.array(discount))
    assert found.tolist() == returns


def test_the_critic_estimates_the_rest_of_a_cut_off_run_from_its_last_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[Any, ...]] = []
    batches: list[PackingBatch] = []

    def returns(*arguments: Any) -> np.ndarray:
        seen.append(arguments)
        return n_step_returns(*arguments)

    def batch(*arguments: Any, **settings: Any) -> PackingBatch:
        batches.append(PackingBatch(*arguments, **settings))
        return batches[-1]

    monkeypatch.setattr(a2c, "n_step_returns", returns)
    monkeypatch.setattr(a2c, "PackingBatch", batch)
    # Within 20 decisions no run is over by itself, and the update comes after all of them.
    learner = _learner("num_sequences=2", "repeats=2", "num_steps=20", "max_decisions=20")
    critic = learner._critic
    rng = np.random.default_rng(0)
    for array in critic.network.arrays().values():
        array[...] = rng.normal(0.0, 0.3, array.shape)
    critic.looked_up.refresh()
    network = deepcopy(critic.network)
    learner.iterate(IterationSeeds(0, 0), 0.0)
    images = torch.from_numpy(images_of(batches[0]))
    assert (batches[0].states.clock["num_decisions"] == 20).all()
    assert images.any()
    rewards, is_over, last, discount = seen[0]
    assert rewards.shape == (20, 4)
    assert not is_over.any()
    assert (discount == learner.config.discount).all()
    expected = convolved(network, images).detach().numpy()[:, 0]
    np.testing.assert_allclose(last, expected, rtol=1e-4, atol=1e-4)


def test_advantages_count_beyond_their_groups_mean() -> None:
    found = beyond_group_means(np.array([1.0, 5.0, 3.0, 2.0]), np.array([7, 9, 7, 2]))
    assert found.tolist() == [-1.0, 0.0, 1.0, 0.0]


def test_the_papers_recipe_is_one_cluster_and_an_update_a_decision() -> None:
    numbers = _learner(recipe="paper").iterate(IterationSeeds(0, 0), 0.0)
    assert numbers["updates"] == numbers["decisions"] > 15


def test_an_iteration_updates_after_so_many_decisions_of_all_clusters() -> None:
    numbers = _learner("num_sequences=8", "repeats=1", "num_steps=4").iterate(
        IterationSeeds(0, 0), 0.0
    )
    assert numbers["decisions"] / 40 < numbers["updates"] <= numbers["decisions"] / 32 + 1
    assert np.isfinite(numbers["cost"])


def _slowdown(policy: A2cPolicy) -> float:
    batch = PackingBatch(
        _TOY.draw(range(1000, 1060)), _TOY.config.model_copy(update={"max_decisions": 5000})
    )
    batch.run(policy.play_many, 1)
    return mean_cost(batch, Cost.SLOWDOWN)


def test_a_policy_that_would_rather_let_time_pass_soon_learns_to_start_jobs() -> None:
    rates = ("actor_rate=3e-3", "critic_rate=3e-3", "void_prior=2.0")
    learner = _learner("num_sequences=4", "num_steps=16", *rates, architecture=Architecture.FC)
    before = _slowdown(learner.policy())
    learner.select_every = 8
    learner.num_selection = 4
    train(learner, TrainingPlan(1e9, max_iterations=8))
    assert _slowdown(learner.policy()) < 0.8 * before
