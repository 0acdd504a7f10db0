"""Figure 19: the critical path as a task to learn."""

from __future__ import annotations

import numpy as np

from parcae.papers.supervised import Examples, accuracy, graph_batch, learn_critical_path
from tests.conftest import job


def test_targets_are_the_work_on_the_longest_path_in_units_of_the_mean_stage() -> None:
    # Works 2, 4, 6 s: the mean is 4 s. Stage 2 follows both others.
    batch = graph_batch([job("v", (1, 2_000, ()), (1, 4_000, ()), (1, 6_000, (0, 1)))], 5)
    np.testing.assert_allclose(batch.target.numpy(), [2.0, 2.5, 1.5])
    np.testing.assert_allclose(batch.x.numpy()[:, 0], [0.5, 1.0, 1.5])
    (parents, children) = batch.edges[0]
    assert sorted(zip(parents.tolist(), children.tolist(), strict=True)) == [(0, 2), (1, 2)]
    assert batch.is_choice.tolist() == [True]


def test_edges_go_from_leaves_to_roots_and_every_dag_keeps_its_own_stages() -> None:
    chain = job("chain", (1, 1_000, ()), (1, 1_000, (0,)), (1, 1_000, (1,)))
    batch = graph_batch([chain, chain], 5)
    by_height = [sorted(zip(p.tolist(), c.tolist(), strict=True)) for p, c in batch.edges]
    assert by_height == [[(1, 2), (4, 5)], [(0, 1), (3, 4)]]
    assert batch.owner.tolist() == [0, 0, 0, 1, 1, 1]
    assert batch.is_choice.tolist() == [False, False]


def test_accuracy_counts_the_dags_in_which_the_longest_path_is_found() -> None:
    spec = job("v", (1, 2_000, ()), (1, 4_000, ()), (1, 6_000, (0, 1)))
    batch = graph_batch([spec, spec], 5)
    target = batch.target.numpy()
    assert accuracy(target, batch) == 1.0
    half = target.copy()
    half[0] = 9.0
    assert accuracy(half, batch) == 0.5


def test_two_transforms_find_the_critical_path_more_often_than_one() -> None:
    examples = Examples.draw(seed=0, num_batches=30, num_test=200)
    two, one = (
        learn_critical_path(has_two, examples, 250, 600.0, 0, every=50) for has_two in (True, False)
    )
    assert two.last > one.last
    assert two.error[-1] < 0.8 * one.error[-1]
    assert two.iterations == (50, 100, 150, 200, 250)


def test_the_budget_ends_the_learning() -> None:
    examples = Examples.draw(seed=1, num_batches=2, num_test=20)
    curve = learn_critical_path(True, examples, 100_000, 0.5, 0)
    assert 0 < curve.iterations[-1] < 100_000


def test_no_dag_to_test_on_is_one_to_learn_from() -> None:
    examples = Examples.draw(seed=0, num_batches=2, num_test=64)
    learned = {float(v) for batch in examples.train for v in batch.target}
    assert not learned & {float(v) for v in examples.test.target}
