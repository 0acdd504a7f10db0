"""Training of DeepRM: returns, gradients, updates, and that it learns."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch

from parcae.base.compiled.tables import allocate_tables
from parcae.base.errors import DivergedError
from parcae.evaluation.statistics import ratio_estimate
from parcae.learning.loop import IterationSeeds
from parcae.rigid.benchmark import benchmark_packing
from parcae.rigid.config import PackingConfig
from parcae.rigid.deeprm.kernels import DeepRMRecord, DeepRMSettings, shapes, sums_of
from parcae.rigid.deeprm.learner import DeepRMLearner, logits_of, run_advantages
from parcae.rigid.deeprm.policy import DeepRMPolicy
from parcae.rigid.layout import Cost, select
from parcae.rigid.policies import explore
from parcae.rigid.sources import DrawnSource
from parcae.rigid.world import PackingBatch
from tests.packing.images import images_of
from tests.policies.deeprm.network import log_probabilities

#: A small world in which a good policy gains much: short and long jobs on a narrow cluster.
_TOY = DrawnSource(rates=(0.7,), window=15, settings=PackingConfig(num_slots=3, backlog_size=20))
_FEW = ("num_sequences=6", "num_runs=4")


def test_advantages_compare_decisions_at_the_same_time() -> None:
    position = np.array([0, 0, 1, 0])
    run = np.array([0, 0, 0, 1])
    advantages = run_advantages(position, np.array([-4.0, -4.0, -3.0, -2.0]), run, 2)
    assert advantages.tolist() == [-1.0, -1.0, -1.5, 1.0]


@pytest.mark.parametrize("has_pause", [False, True])
def test_the_gradient_through_the_sums_is_that_of_a_dense_network(has_pause: bool) -> None:
    settings = DeepRMSettings(has_pause=has_pause)
    rng = np.random.default_rng(1)
    parts = {
        name: torch.from_numpy(rng.normal(0, 0.1, shape).astype(np.float32)).requires_grad_()
        for name, shape in shapes(settings).items()
    }
    weights = {name: part.detach().numpy() for name, part in parts.items()}
    source = DrawnSource(rates=(0.9,))
    batch = PackingBatch(source.draw(range(1_000, 1_020)), source.config, wants_profile=True)
    batch.begin()
    for _ in range(40):
        batch.step(rng.integers(-1, 10, len(batch)))
    record = allocate_tables(DeepRMRecord, 1, decisions=20, **settings.sizes)
    views = batch.show()
    tables = DeepRMPolicy("deeprm", weights, settings).tables(views)
    for row in range(20):
        explore(select(views, row), 0.0, select(record, 0), tables)
    weigh = torch.from_numpy(rng.normal(size=(20, 11)).astype(np.float32))

    def gradient(logs: torch.Tensor) -> list[np.ndarray]:
        return [g.numpy() for g in torch.autograd.grad((logs * weigh).mean(), [*parts.values()])]

    sums = sums_of(parts["hidden.weight"], settings)
    logits = logits_of(record.rows[0], record.num_rows[0], [sums, *list(parts.values())[1:]])
    images = torch.from_numpy(images_of(batch, has_pause=settings.has_pause))
    for found, wanted in zip(
        gradient(torch.log_softmax(logits, 1)),
        gradient(log_probabilities(parts, images)),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, atol=2e-6 + 1e-4 * np.abs(wanted).max())


def test_fixed_sequences_stay_and_fresh_ones_do_not() -> None:
    def arrivals(recipe: str, iteration: int) -> list[int]:
        learner = DeepRMLearner(_TOY, recipe=recipe, settings=_FEW)
        batch = learner._batch(IterationSeeds(0, iteration))
        assert len(batch) == 24
        return [int(a) for jobs in batch.sequences for a in jobs.arrival]

    assert arrivals("paper", 0) == arrivals("paper", 1)
    assert arrivals("fresh", 0) != arrivals("fresh", 1)


def _step(learner: DeepRMLearner, slope: float, left: float) -> None:
    """A step whose gradient is `slope` everywhere but in the first layer's matrix."""
    sums = sums_of(learner._weights["hidden.weight"], learner.network)
    others = list(learner._weights.values())[1:]
    parts = [torch.zeros_like(sums), *(torch.full_like(part, slope) for part in others)]
    learner._step(sums, parts, left)


def test_a_step_of_rmsprop_is_the_falling_rate_times_the_scaled_gradient() -> None:
    # acc = 0.1 x 4, so that the step is 0.001 x 2 / (sqrt(0.4) + sqrt(1e-9)).
    for left, share in ((1.0, 1.0), (0.5, 0.6), (0.0, 0.2)):
        learner = DeepRMLearner(_TOY, settings=(*_FEW, "final_rate=0.2"))
        before = learner.weights()["actions.bias"]
        _step(learner, 2.0, left)
        step = learner.weights()["actions.bias"] - before
        np.testing.assert_allclose(step, share * 0.0031621, atol=1e-7)


@pytest.mark.parametrize("cost", [Cost.SLOWDOWN, Cost.COMPLETION, Cost.UTILIZATION, Cost.MAKESPAN])
def test_every_objective_can_be_learned_and_rewards_are_minus_its_costs(cost: Cost) -> None:
    learner = DeepRMLearner(_TOY, cost, settings=_FEW)
    numbers = learner.iterate(IterationSeeds(0, 0), 0.0)
    assert numbers["reward/best"] >= numbers["reward/mean"]
    assert numbers["gradient_norm"] > 0
    if cost is Cost.MAKESPAN:
        assert numbers["cost"] == pytest.approx(-numbers["reward/mean"])


@pytest.mark.parametrize(
    "setting",
    ["baseline=decision", "optimizer=adam", "is_scaled=true", "entropy=0.1", "actions=startable"],
)
def test_other_ways_of_learning_take_other_steps(setting: str) -> None:
    def after(*settings: str) -> float:
        learner = DeepRMLearner(_TOY, settings=(*_FEW, *settings))
        for iteration in range(2):
            learner.iterate(IterationSeeds(0, iteration), 0.0)
        return float(np.abs(learner.weights()["hidden.weight"]).sum())

    assert after(setting) != after()


def test_a_network_that_never_starts_a_job_is_measured_and_pays_for_it() -> None:
    learner = DeepRMLearner(_TOY, settings=_FEW)
    learner.num_selection = 2
    ((before, weights),) = learner.measure()
    # It lets time pass, with a probability of 1 in float32.
    weights["actions.bias"][-1] = 200.0
    learner.restore(weights, learner.state())
    ((after, _),) = learner.measure()
    assert after > 100 * before


def test_threads_change_nothing() -> None:
    weights = []
    for threads in (1, 3):
        learner = DeepRMLearner(_TOY, settings=_FEW)
        learner.num_threads = threads
        learner.iterate(IterationSeeds(0, 0), 0.0)
        weights.append(learner.weights()["hidden.weight"])
    np.testing.assert_array_equal(*weights)


def test_weights_that_are_not_finite_end_the_training() -> None:
    learner = DeepRMLearner(_TOY, settings=_FEW)
    weights = learner.weights()
    weights["actions.bias"][0] = np.nan
    learner.restore(weights, learner.state())
    with pytest.raises(DivergedError, match="lower the learning rate"):
        learner.iterate(IterationSeeds(0, 0), 0.0)


def test_a_few_small_iterations_learn_to_do_better_on_other_sequences() -> None:
    settings = ("num_sequences=20", "num_runs=10", "learning_rate=0.003")
    learner = DeepRMLearner(_TOY, settings=settings)
    costs = []
    for iterations in (0, 30):
        for iteration in range(iterations):
            learner.iterate(IterationSeeds(0, iteration), 0.0)
        sequences = _TOY.draw(range(1_000, 1_200))
        batch = PackingBatch(sequences, _TOY.config, wants_profile=True, seed=1)
        batch.run(learner.policy().play_many, 1)
        costs.append(batch.costs())
    assert ratio_estimate(costs[1], costs[0]).high < 0.85


def test_the_benchmark_measures_every_part() -> None:
    result = asdict(benchmark_packing(0.2, clusters=4, repetitions=1))
    assert all(value > 0 for value in result.values())
