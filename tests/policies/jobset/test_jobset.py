"""The set network: its compiled pass against PyTorch, what it starts as, and what it never does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parcae.base.compiled.tables import allocate_tables
from parcae.base.errors import FormatError
from parcae.cluster.kernels.policies import decide
from parcae.policies.networks.training import JobChoices, JobData
from parcae.rigid.config import PackingConfig
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.jobset.kernels import (
    START_RULE,
    JobSetRecord,
    RigidJobFeature,
    RigidSharedFeature,
    initial_weights,
)
from parcae.rigid.jobset.learner import JobSetNetwork
from parcae.rigid.jobset.policy import JobSetPolicy
from parcae.rigid.kernels.stepping import explore_many
from parcae.rigid.layout import Cost, select
from parcae.rigid.policies.policy import HandMadePolicy
from parcae.rigid.policies.scores import PackingKind
from parcae.rigid.sources import DrawnSource, RigidLogSource
from parcae.rigid.world import PackingBatch

RULE = np.array(START_RULE)
#: The weights of a fresh network.
FRESH = {**initial_weights(np.random.default_rng(0)), "rule": RULE}


def _random_weights(seed: int):
    rng = np.random.default_rng(seed)
    weights = initial_weights(rng)
    return {k: (v + rng.normal(0, 0.2, v.shape)).astype(np.float32) for k, v in weights.items()}


def _log(num_resources: int) -> RigidJobs:
    rng = np.random.default_rng(4)
    duration = np.maximum(1, rng.lognormal(4, 1.5, 300).astype(int))
    demand = (
        rng.integers(0, 17, (300, num_resources))
        + np.eye(num_resources, dtype=int)[rng.integers(0, num_resources, 300)]
    )
    arrival = np.cumsum(rng.integers(0, 20, 300))
    demand = np.minimum(demand, 32)
    return RigidJobs("log", arrival, duration, demand, [32] * num_resources, 2 * duration, step="s")


def _explored(source, weights, capacity=2048):
    batch = PackingBatch(source.draw([1000, 1001]), source.config, wants_profile=True, seed=3)
    records = allocate_tables(JobSetRecord, 2, decisions=capacity, rows=40_000)
    policy = JobSetPolicy("set", {**weights, "rule": RULE})
    tables = policy.tables(batch.views)
    explore_many(batch.clusters, batch.views, tables, records, int(Cost.SLOWDOWN), 0, 2)
    return batch, [select(records, row) for row in range(2)]


@pytest.mark.parametrize(
    "source",
    [DrawnSource(rates=(0.9,)), RigidLogSource(_log(1), 200), RigidLogSource(_log(3), 200)],
)
def test_the_compiled_pass_and_pytorch_agree_on_every_recorded_choice(source):
    weights = _random_weights(1)
    _, records = _explored(source, weights)
    data = JobData(records, [(0, int(one.count[0])) for one in records], JobChoices)
    assert len(data) > 40
    # Shuffled, since minibatches keep their jobs.
    for index in (np.arange(len(data)), np.random.default_rng(0).permutation(len(data))[:30]):
        judged = JobSetNetwork(weights)(data.decisions(index, torch.device("cpu")))
        assert np.abs(judged.log_prob.detach().numpy() - data.log_prob[index]).max() < 1e-4
        assert float(judged.entropy.detach().min()) >= 0.0


def test_a_run_goes_on_to_its_end_when_its_record_is_full():
    source = DrawnSource(rates=(0.9,))
    weights = _random_weights(1)
    cut_batch, cut = _explored(source, weights, capacity=10)
    batch, whole = _explored(source, weights)
    assert cut_batch.is_over.all()
    np.testing.assert_array_equal(cut_batch.costs(Cost.SLOWDOWN), batch.costs(Cost.SLOWDOWN))
    for one, other in zip(cut, whole, strict=True):
        count = int(one.count[0])
        assert 0 < count < 10 < other.count[0]
        np.testing.assert_array_equal(one.choice[:count], other.choice[:count])


@pytest.mark.parametrize("source", [DrawnSource(rates=(0.8,)), RigidLogSource(_log(2), 250)])
def test_a_fresh_network_decides_as_the_rule_that_it_corrects(source):
    outcomes = []
    rule = HandMadePolicy("withhold", PackingKind.WITHHOLD, RULE)
    for policy in (JobSetPolicy("set", FRESH), rule):
        batch = PackingBatch(
            source.draw(range(1000, 1006)), source.config, wants_profile=policy.wants_profile
        )
        batch.run(policy.play_many)
        outcomes.append([outcome.start.tolist() for outcome in batch.outcomes()])
    assert outcomes[0] == outcomes[1]


def test_features_of_a_view_worked_out_by_hand():
    jobs = RigidJobs("three", [0, 0, 0], [4, 2, 8], [[6, 1], [5, 5], [1, 1]], [10, 10])
    batch = PackingBatch([jobs], PackingConfig(), wants_profile=True)
    batch.begin()
    batch.step(np.array([0]))  # four steps of 6 and 1 units
    view = select(batch.show(), 0)
    tables = JobSetPolicy("set", FRESH).tables(view)
    assert decide(view, tables) in (2, -1)  # only the third fits beside it
    work = tables.work
    assert work.row[:2].tolist() == [1, 0]  # the view's rows: what can start comes first
    first, other = (
        {feature: float(row[feature]) for feature in RigidJobFeature} for row in work.features[:2]
    )
    assert first == pytest.approx(
        first
        | {
            RigidJobFeature.ESTIMATE: np.log(8),
            RigidJobFeature.CAN_START: 1,
            RigidJobFeature.LEFT: 0.3,
            RigidJobFeature.ALIGNMENT: 0.4 * 0.1 + 0.9 * 0.1,
            RigidJobFeature.FREE_AT_END: 1.0,
        }
    )
    assert other == pytest.approx(
        other | {RigidJobFeature.CAN_START: 0, RigidJobFeature.LEFT: -0.1}
    )

    def ahead(features, first):
        return features[first : first + 6].tolist()

    # now, and after 1/4, 1/2, 1, 2 and 4 times the typical four steps
    free = ahead(work.shared, RigidSharedFeature.FREE_NOW)
    assert free == pytest.approx([0.4, 0.4, 0.4, 1.0, 1.0, 1.0])
    # the third job asks 1 of 10 of both; the first of equals counts as its own
    own = ahead(work.features[0], RigidJobFeature.DOMINANT_NOW)
    assert own == pytest.approx([0.3, 0.3, 0.3, 0.9, 0.9, 0.9])
    least = ahead(work.features[0], RigidJobFeature.OTHER_NOW)
    assert least == pytest.approx([0.8, 0.8, 0.8, 0.9, 0.9, 0.9])
    assert work.shared[RigidSharedFeature.STARTABLE] == pytest.approx(0.5)


def test_it_never_holds_for_ever():
    weights = {**FRESH, "hold.bias": np.array([1000.0], np.float32)}
    source = DrawnSource(rates=(0.5,), window=20)
    batch = PackingBatch(source.draw([1000]), source.config, wants_profile=True)
    batch.run(JobSetPolicy("set", weights).play_many)
    assert (batch.outcome(0).start >= 0).all()


def test_weights_of_another_shape_are_refused():
    with pytest.raises(FormatError, match=r"'job1.bias' should have shape \(24,\)"):
        JobSetPolicy("set", {**FRESH, "job1.bias": np.zeros(7, np.float32)})
    with pytest.raises(FormatError, match="rule of 7 parameters, not 8"):
        JobSetPolicy("set", {**FRESH, "rule": RULE[:7]})


def test_many_waiting_jobs_are_looked_at_by_the_rules_taste():
    count = 200
    durations = np.random.default_rng(1).permutation(np.arange(1, count + 1))
    jobs = RigidJobs("queue", [0] * count, durations, [[1]] * count, [64], step="s")
    batch = PackingBatch([jobs], PackingConfig.for_log(jobs), wants_profile=True)
    batch.begin()
    view = select(batch.show(), 0)
    tables = JobSetPolicy("set", FRESH).tables(view)
    assert durations[decide(view, tables)] == 1
    assert sorted(durations[tables.work.row]) == list(range(1, 33))
