"""Packing policies by name, tuned ones at rest, and the ones that ship."""

from __future__ import annotations

import numpy as np
import pytest

from parcae.base.errors import ConfigError, FormatError, PolicyError
from parcae.policies.checkpoint import Checkpoint, read_checkpoint
from parcae.rigid.config import PackingConfig
from parcae.rigid.evaluation.compare import run_policy
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import VOID, select
from parcae.rigid.policies.catalog import (
    LEARNED,
    SHIPPED,
    PackingSetting,
    make_packing_policy,
    policy_of_checkpoint,
)
from parcae.rigid.policies.policy import HandMadePolicy
from parcae.rigid.policies.scores import PackingKind, WithholdParameter
from parcae.rigid.sources import DrawnSource
from parcae.rigid.world import PackingBatch

_ALL_SHIPPED = sorted(SHIPPED.folder.glob("*.safetensors"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sfj", "did you mean 'sjf'"),
        ("sjf:3", "takes no argument"),
        ("tetris", "tuned for a load or a log first"),
        ("deeprm:", "names no variant after the colon; write 'deeprm'"),
        ("tetris-k2", "a number from 0 to 1"),
        ("conservative:0", "a whole number from 1"),
        ("conservative:²", "a whole number from 1"),
        ("conservative:" + 400 * "9", "a whole number from 1"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_a_remedy(text, message):
    with pytest.raises(PolicyError, match=message):
        make_packing_policy(text)


def test_a_checkpoint_that_does_not_pack_is_refused():
    with pytest.raises(FormatError, match="'decima' policy, which does not pack"):
        policy_of_checkpoint(Checkpoint("decima", 1, {}), "a.safetensors", "a")
    with pytest.raises(FormatError, match="'withhold' with 3 parameters"):
        policy_of_checkpoint(
            Checkpoint("packing-rule", 1, {"params": np.zeros(3)}, {"kind": "withhold"}), "a", "a"
        )


def _view_of(jobs: RigidJobs, steps: int = 0, **settings):
    batch = PackingBatch([jobs], PackingConfig(**settings), wants_profile=True)
    batch.begin()
    for _ in range(steps):
        batch.step(np.array([VOID]))
    return batch, select(batch.show(), 0)


def _withholding(**parameters: float) -> HandMadePolicy:
    params = np.zeros(len(WithholdParameter))
    for name, value in parameters.items():
        params[WithholdParameter[name]] = value
    return HandMadePolicy("withhold", PackingKind.WITHHOLD, params)


def test_the_withholding_rule_holds_a_long_job_until_an_empty_cluster_has_waited_long_enough():
    rule = _withholding(RESERVE=1.0, STEEPNESS=10.0, LENGTH=np.log(5.0), PAUSE=3.0)
    long_job = RigidJobs("long", [0], [12], [[5, 1]], [10, 10])
    assert [rule.decide(_view_of(long_job, steps)[1]) for steps in (0, 2, 3)] == [VOID, VOID, 0]
    both = RigidJobs("both", [0, 0], [12, 2], [[5, 1], [5, 1]], [10, 10])
    assert rule.decide(_view_of(both)[1]) == 1


def test_the_withholding_rule_never_leaves_an_empty_cluster_empty_with_exact_times():
    jobs = RigidJobs("log", [0, 0], [10, 10], [[4], [4]], [8], step="s")
    batch = PackingBatch([jobs], PackingConfig.for_log(jobs))
    batch.run(_withholding(RESERVE=10.0, PAUSE=1e9).play_many)
    assert batch.outcome(0).start.tolist() == [0, 10]


def test_the_best_score_wins_and_ties_go_to_the_lowest_slot():
    jobs = RigidJobs("three", [0, 0, 0], [2, 3, 2], [[5, 5], [9, 9], [5, 5]], [10, 10])
    view = _view_of(jobs)[1]
    for name, slot in (("sjf", 0), ("packer", 1), ("area", 0), ("tetris-k0.0", 0)):
        assert make_packing_policy(name).decide(view) == slot


@pytest.mark.parametrize("policy", ["packer", "tetris-k0.005"])
@pytest.mark.parametrize("step", ["s", "step"])
def test_alignment_does_not_depend_on_the_unit_of_memory(policy, step):
    # 4 TB in GB and in KB, whose square exceeds the largest int64.
    starts = []
    for unit in (1, 1_000_000):
        demand = [[40, 400 * unit], [30, 4_000 * unit], [20, 3_000 * unit], [64, 10 * unit]]
        jobs = RigidJobs("m", [0] * 4, [5, 6, 7, 8], demand, [4_000, 4_000 * unit], step=step)
        is_exact = step == "s"
        config = PackingConfig.for_log(jobs) if is_exact else PackingConfig()
        made = make_packing_policy(policy, PackingSetting(is_exact=is_exact))
        starts.append(run_policy(made, [jobs], config, 1)[0].start.tolist())
    assert starts[0] == starts[1]


@pytest.mark.parametrize("params", [(0.0,), np.zeros((2, 4))])
def test_a_heuristic_with_another_number_of_parameters_is_refused(params):
    with pytest.raises(PolicyError, match="'rule': the parameters must be a list of 8 numbers"):
        HandMadePolicy("rule", PackingKind.WITHHOLD, params)
    with pytest.raises(PolicyError, match="'t': the parameters must be a list of 1 number"):
        HandMadePolicy("t", PackingKind.TETRIS, ())


@pytest.mark.parametrize("name", ["easy", "conservative", "set:logs"])
def test_a_policy_that_needs_profiles_is_refused_where_views_have_none(name):
    jobs = RigidJobs("log", [0, 0, 1], [10, 5, 5], [[6], [6], [2]], [8], step="s")
    config = PackingConfig.for_log(jobs)
    policy = make_packing_policy(name)
    batch = PackingBatch([jobs], config)
    with pytest.raises(ConfigError, match=rf"'{name}' needs to see when .*wants_profile"):
        batch.run(policy.play_many)
    batch.begin()
    with pytest.raises(ConfigError, match="wants_profile"):
        policy.decide(select(batch.show(), 0))


@pytest.mark.parametrize("path", _ALL_SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_policy_has_a_card_and_starts_every_job(path):
    checkpoint = read_checkpoint(path)
    assert {"source", "cost", "seed", "iterations", "seconds", "command"} <= set(checkpoint.card)
    curve = checkpoint.card["curve"]
    assert len(curve) > 5
    best = checkpoint.card["cost_on_selection_runs"]
    assert min(cost for _, _, cost in curve) == pytest.approx(best, rel=1e-4)
    name, _, variant = path.stem.partition("-")
    assert name in LEARNED
    policy = make_packing_policy(f"{name}:{variant}")
    if checkpoint.card["source"]["config"]["mode"] == "exact":
        jobs = RigidJobs("log", range(0, 400, 10), [50] * 40, [[3]] * 40, [8], step="s")
        batch = PackingBatch(
            [jobs], PackingConfig.for_log(jobs), wants_profile=policy.wants_profile
        )
    else:
        source = DrawnSource(rates=(0.7,), window=20)
        batch = PackingBatch(
            source.draw([1000, 1001]), source.config, wants_profile=policy.wants_profile
        )
    batch.run(policy.play_many)
    assert all((outcome.start >= 0).all() for outcome in batch.outcomes())


def test_random_draws_from_the_waiting_jobs_of_a_log() -> None:
    # All jobs fit at once, so that nearly every draw starts one, however many the log has.
    count = 300
    ones = np.ones(count, np.int64)
    jobs = RigidJobs("together", 0 * ones, ones, ones[:, None], np.array([count]), step="s")
    policy = make_packing_policy("random", PackingSetting(is_exact=True))
    outcome = run_policy(policy, [jobs], PackingConfig.for_log(jobs), 1)[0]
    assert (outcome.start >= 0).all()
    assert outcome.num_decisions < 2 * count
