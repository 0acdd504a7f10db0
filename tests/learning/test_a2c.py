"""Training of A2cScheduler: returns by hand, resuming, and a toy problem that it learns."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from parcae.base.errors import ConfigError
from parcae.learning.loop import IterationSeeds, TrainingPlan, train
from parcae.policies.checkpoint import Checkpoint
from parcae.rigid.a2c import learner as a2c
from parcae.rigid.a2c.layout import Architecture
from parcae.rigid.a2c.learner import (
    RECIPES,
    A2cLearner,
    a2c_config,
    beyond_group_means,
    n_step_returns,
)
from parcae.rigid.a2c.policy import A2cPolicy
from parcae.rigid.config import PackingConfig
from parcae.rigid.layout import Cost
from parcae.rigid.learner import start_from
from parcae.rigid.metrics import mean_cost
from parcae.rigid.policies.kernels.decisions import PackingKind
from parcae.rigid.policies.policy import HandMadePolicy
from parcae.rigid.sources import DrawnSource
from parcae.rigid.world import Images, PackingBatch

#: A small world: 2 resources of 10 units, 3 job slots, 16 time steps.
_TOY = DrawnSource(
    (0.6,), window=15, settings=PackingConfig(num_slots=3, backlog_size=15, horizon=16)
)


def _learner(
    *settings: str, recipe: str = "fast", architecture: Architecture = Architecture.CONV_16_POOL
) -> A2cLearner:
    changes = [f"architecture={architecture.value}", *settings]
    return A2cLearner(_TOY, Cost.SLOWDOWN, recipe, changes)


def test_returns_of_several_steps_end_with_what_the_critic_expects() -> None:
    rewards = np.array([[1.0, -1.0], [2.0, -3.0], [0.0, 5.0]])
    is_over = np.zeros((3, 2), np.bool_)
    returns = n_step_returns(rewards, is_over, np.array([4.0, 8.0]), 0.5)
    assert returns.tolist() == [[2.5, -0.25], [3.0, 1.5], [2.0, 9.0]]


def test_nothing_is_expected_of_a_run_that_is_over() -> None:
    is_over = np.array([[False, True], [True, True]])
    assert n_step_returns(
        np.array([[1.0, -1.0], [2.0, 0.0]]), is_over, np.array([4.0, 8.0]), 0.5
    ).tolist() == [
        [2.0, -1.0],
        [2.0, 0.0],
    ]


def test_the_critic_estimates_the_rest_of_a_run_that_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def returns(
        rewards: np.ndarray, is_over: np.ndarray, last: np.ndarray, discount: np.ndarray
    ) -> np.ndarray:
        seen.append((rewards, is_over, last, discount))
        return n_step_returns(rewards, is_over, last, discount)

    monkeypatch.setattr(a2c, "n_step_returns", returns)
    # Within 6 decisions no run is over by itself, and the update comes after all of them.
    settings = ("num_sequences=2", "repeats=2", "num_steps=6", "max_decisions=6")
    learner = _learner(*settings)
    learner.iterate(IterationSeeds(0, 0), 0.0)
    learner.iterate(IterationSeeds(0, 1), 0.0)
    # The critic starts with values of 0.
    rewards, is_over, last, discount = seen[1]
    assert rewards.shape == (6, 4)
    assert not is_over.any()
    assert last.any()
    assert (discount == a2c_config().discount).all()


def test_the_critic_estimates_the_rest_of_a_cut_off_run_from_its_last_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def returns(
        rewards: np.ndarray, is_over: np.ndarray, last: np.ndarray, _: object
    ) -> np.ndarray:
        seen.append(last)
        return n_step_returns(rewards, is_over, last, 1.0)

    def batch(*arguments: Any, **settings: Any) -> PackingBatch:
        batches.append(PackingBatch(*arguments, **settings))
        return batches[-1]

    batches: list[PackingBatch] = []
    monkeypatch.setattr(a2c, "n_step_returns", returns)
    monkeypatch.setattr(a2c, "PackingBatch", batch)
    learner = _learner("num_sequences=2", "repeats=2", "num_steps=20", "max_decisions=20")
    critic = learner._critic
    rng = np.random.default_rng(0)
    for array in critic.arrays.values():
        array[...] = rng.normal(0.0, 0.3, array.shape)
    critic.layer.refresh()
    network = deepcopy(critic.network)
    learner.iterate(IterationSeeds(0, 0), 0.0)
    images = torch.from_numpy(Images(batches[0]).draw())
    assert (batches[0].states.clock["num_decisions"] == 20).all()
    assert images.any()
    expected = network(images).detach().numpy()[:, 0]
    np.testing.assert_allclose(seen[0], expected, rtol=1e-4, atol=1e-4)


def test_nothing_is_discounted_while_a_run_waits_for_the_others() -> None:
    discount = np.array([[0.5], [1.0], [1.0]])
    is_over = np.zeros((3, 1), np.bool_)
    rewards = np.array([[1.0], [0.0], [0.0]])
    assert n_step_returns(rewards, is_over, np.array([4.0]), discount)[0].tolist() == [3.0]


def test_returns_of_one_step_are_algorithm_1() -> None:
    assert n_step_returns(
        np.array([[-2.0]]), np.array([[False]]), np.array([10.0]), 0.9
    ).tolist() == [[7.0]]


def test_advantages_count_beyond_their_groups_mean() -> None:
    assert beyond_group_means(np.array([1.0, 5.0, 3.0, 2.0]), np.array([7, 9, 7, 2])).tolist() == [
        -1.0,
        0.0,
        1.0,
        0.0,
    ]


def test_the_papers_recipe_is_one_cluster_and_an_update_a_decision() -> None:
    numbers = _learner(recipe="paper").iterate(IterationSeeds(0, 0), 0.0)
    assert numbers["updates"] == numbers["decisions"] > 15


def test_an_iteration_updates_after_so_many_decisions_of_all_clusters() -> None:
    numbers = _learner("num_sequences=8", "repeats=1", "num_steps=4").iterate(
        IterationSeeds(0, 0), 0.0
    )
    assert numbers["decisions"] / 40 < numbers["updates"] <= numbers["decisions"] / 32 + 1
    assert np.isfinite(numbers["cost"])


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_resumed_training_goes_on_exactly(tmp_path: Path, recipe: str) -> None:
    def run(folder: str, iterations: int, is_resumed: bool = False) -> dict[str, np.ndarray]:
        learner = _learner(
            *(["num_sequences=2", "repeats=2"] if recipe == "fast" else []),
            "final_share=1",
            "entropy=0",
            recipe=recipe,
        )
        learner.select_every = 2
        learner.num_selection = 4
        train(learner, TrainingPlan(300, iterations, tmp_path / folder, is_resumed))
        return {**learner.weights(), **learner.state()}

    whole = run("whole", 4)
    run("parted", 2)
    parted = run("parted", 4, is_resumed=True)
    assert whole.keys() == parted.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(parted[name], array, err_msg=name)


def test_weights_to_start_from_are_taken() -> None:
    learned = _learner("num_sequences=2")
    learned.iterate(IterationSeeds(0, 0), 0.0)
    changes = (f"architecture={Architecture.CONV_16_POOL}", "num_sequences=2")
    again = A2cLearner(_TOY, settings=changes)
    card = Checkpoint("a2c", a2c.FEATURE_VERSION, learned.weights(), learned.settings())
    start_from(again, card, "a.safetensors")
    np.testing.assert_array_equal(
        again.weights()["actor.dense.weight"], learned.weights()["actor.dense.weight"]
    )


def test_unknown_recipes_and_settings_are_refused_with_a_hint() -> None:
    with pytest.raises(ConfigError, match="no recipe 'fats' of a2c; did you mean 'fast'"):
        a2c_config("fats")
    with pytest.raises(ConfigError, match="did you mean 'discount'"):
        a2c_config("fast", ("discont=0.9",))
    with pytest.raises(ValidationError):
        a2c_config("fast", ("discount=1.5",))


def _slowdown(policy: A2cPolicy | HandMadePolicy) -> float:
    batch = PackingBatch(
        _TOY.draw(range(1000, 1060)), _TOY.config.model_copy(update={"max_decisions": 5000})
    )
    batch.run(policy.play_many, 1)
    return mean_cost(batch, Cost.SLOWDOWN)


@pytest.mark.slow
def test_it_learns_a_toy() -> None:
    learner = _learner(
        "num_sequences=4",
        "num_steps=16",
        "actor_rate=1e-3",
        "critic_rate=2e-3",
        architecture=Architecture.FC,
    )
    before = _slowdown(learner.policy())
    learner.select_every = 40
    learner.num_selection = 4
    train(learner, TrainingPlan(1e9, max_iterations=40))
    after = _slowdown(learner.policy())
    rivals = {
        greedy: _slowdown(HandMadePolicy("random", PackingKind.RANDOM, (greedy,)))
        for greedy in (0.0, 1.0)
    }
    assert after < min(before, *rivals.values())
