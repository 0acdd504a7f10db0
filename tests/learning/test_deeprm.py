"""Training of DeepRM: returns, gradients, updates, and that it learns."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from parcae.base.errors import ConfigError, DivergedError
from parcae.cluster.kernels.policies import decide
from parcae.evaluation.statistics import ratio_estimate
from parcae.learning.loop import IterationSeeds, TrainingPlan, train
from parcae.learning.state_file import STATE_FILE
from parcae.policies.checkpoint import read_checkpoint
from parcae.rigid.benchmark import benchmark_packing
from parcae.rigid.config import PackingConfig
from parcae.rigid.deeprm.kernels import DeepRM
from parcae.rigid.deeprm.layout import DeepRMSettings, Work, allocate_work, shapes, sums_of
from parcae.rigid.deeprm.learner import DeepRMLearner, Gradient, logits_of, run_advantages
from parcae.rigid.deeprm.policy import DeepRMPolicy, make_network
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import Cost, select
from parcae.rigid.sources import DrawnSource, RigidLogSource
from parcae.rigid.world import Images, PackingBatch
from tests.policies.deeprm.network import DeepRMNetwork

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
    weights = {
        name: rng.normal(0, 0.1, shape).astype(np.float32)
        for name, shape in shapes(settings).items()
    }
    source = DrawnSource(rates=(0.9,))
    batch = PackingBatch(source.draw(range(1_000, 1_020)), source.config, wants_profile=True)
    batch.begin()
    for _ in range(40):
        batch.step(rng.integers(-1, 10, len(batch)))
    compiled = make_network(weights, settings)
    work = allocate_work(settings, 20)
    views = batch.show()
    for row in range(20):
        one = Work(*(table[row] for table in work))
        decide(select(views, row), DeepRM(compiled, one, False))
    action = rng.integers(11, size=20)
    advantage = rng.normal(size=20)
    parts = {name: torch.from_numpy(weight).requires_grad_() for name, weight in weights.items()}
    sums, *others = (sums_of(parts["hidden.weight"], settings), *list(parts.values())[1:])
    found = torch.log_softmax(logits_of(work, [sums, *others]), 1)
    weigh = torch.from_numpy(advantage.astype(np.float32))
    rows = torch.arange(20)
    (found[rows, torch.from_numpy(action)] * weigh).mean().backward()  # type: ignore[no-untyped-call]

    network = DeepRMNetwork(weights, settings)
    logs = network(torch.from_numpy(Images(batch, settings.image).draw()))
    chosen = logs[torch.arange(20), torch.from_numpy(action)]
    (chosen * torch.from_numpy(advantage.astype(np.float32))).mean().backward()  # type: ignore[no-untyped-call]
    for name, part in parts.items():
        assert part.grad is not None
        wanted = network.table[name.replace(".", "_")].grad
        assert wanted is not None
        np.testing.assert_allclose(
            part.grad.numpy(),
            wanted.numpy(),
            atol=2e-6 + 1e-4 * float(wanted.abs().max()),
            err_msg=name,
        )


def test_the_recipes_are_the_papers_and_fresh_sequences() -> None:
    paper = DeepRMLearner(_TOY, recipe="paper").settings()
    fresh = DeepRMLearner(_TOY).settings()
    assert paper["learning"] | {"sequences": "fresh"} == fresh["learning"]
    assert (
        paper["learning"]["num_sequences"],
        paper["learning"]["num_runs"],
        paper["learning"]["learning_rate"],
    ) == (
        100,
        20,
        1e-3,
    )


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
    learner._step(sums, Gradient(parts, decisions=1), left)


def test_a_step_of_rmsprop_is_the_rate_times_the_scaled_gradient() -> None:
    learner = DeepRMLearner(_TOY, settings=_FEW)
    before = learner.weights()
    _step(learner, 2.0, 1.0)
    # acc = 0.1 x 4, so that the step is 0.001 x 2 / (sqrt(0.4) + sqrt(1e-9)).
    assert np.allclose(
        learner.weights()["actions.bias"] - before["actions.bias"], 0.0031621, atol=1e-7
    )


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


def test_the_learning_rate_falls_linearly_to_its_share_at_the_end() -> None:
    def step(left: float) -> float:
        learner = DeepRMLearner(_TOY, settings=(*_FEW, "final_rate=0.2"))
        before = learner.weights()["actions.bias"]
        _step(learner, 2.0, left)
        return float((learner.weights()["actions.bias"] - before)[0])

    assert step(0.0) / step(1.0) == pytest.approx(0.2, rel=1e-3)
    assert step(0.5) / step(1.0) == pytest.approx(0.6, rel=1e-3)


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
    def after(threads: int) -> bytes:
        learner = DeepRMLearner(_TOY, settings=_FEW, num_threads=threads)
        learner.iterate(IterationSeeds(0, 0), 0.0)
        return bytes(learner.weights()["hidden.weight"].tobytes())

    assert after(1) == after(3)


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_a_resumed_training_goes_on_bit_for_bit(tmp_path: Path, optimizer: str) -> None:
    def run(folder: Path, iterations: int, is_resumed: bool = False) -> None:
        learner = DeepRMLearner(_TOY, settings=(*_FEW, f"optimizer={optimizer}"))
        learner.select_every = 2
        learner.num_selection = 5
        assert train(learner, TrainingPlan(300, iterations, folder, is_resumed)).ending == "done"

    run(tmp_path / "whole", 4)
    run(tmp_path / "parts", 2)
    run(tmp_path / "parts", 4, is_resumed=True)
    whole, parts = (
        read_checkpoint(tmp_path / folder / STATE_FILE) for folder in ("whole", "parts")
    )
    assert whole.weights.keys() == parts.weights.keys()
    assert all((whole.weights[name] == parts.weights[name]).all() for name in whole.weights)


def test_weights_that_are_not_finite_end_the_training() -> None:
    learner = DeepRMLearner(_TOY, settings=_FEW)
    weights = learner.weights()
    weights["actions.bias"][0] = np.nan
    learner.restore(weights, learner.state())
    with pytest.raises(DivergedError, match="lower the learning rate"):
        learner.iterate(IterationSeeds(0, 0), 0.0)


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="no recipe 'papper'"):
        DeepRMLearner(_TOY, recipe="papper")
    with pytest.raises(ConfigError, match="learning_rte"):
        DeepRMLearner(_TOY, settings=("learning_rte=1",))
    jobs = RigidJobs(
        "log", np.array([0, 1]), np.array([5, 5]), np.array([[1], [1]]), np.array([4]), step="s"
    )
    with pytest.raises(ConfigError, match="time in steps"):
        DeepRMLearner(RigidLogSource(jobs, 1))


def _slowdowns(learner: DeepRMLearner) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    sequences = _TOY.draw(range(1_000, 1_200))
    batch = PackingBatch(sequences, _TOY.config, wants_profile=True, seed=1)
    batch.run(DeepRMPolicy("deeprm", learner.weights(), learner.network).play_many, 1)
    return batch.costs()


def test_a_few_small_iterations_learn_to_do_better_on_other_sequences() -> None:
    learner = DeepRMLearner(
        _TOY, settings=("num_sequences=20", "num_runs=10", "learning_rate=0.003")
    )
    before = _slowdowns(learner)
    for iteration in range(30):
        learner.iterate(IterationSeeds(0, iteration), 0.0)
    ratio = ratio_estimate(_slowdowns(learner), before)
    assert ratio.high < 0.85


def test_the_benchmark_measures_every_part() -> None:
    result = asdict(benchmark_packing(0.2, clusters=4, repetitions=1))
    assert all(value > 0 for value in result.values())
    assert (
        result["deeprm_to_sjf"]
        == result["sjf_decisions_per_second"] / result["deeprm_decisions_per_second"]
    )
