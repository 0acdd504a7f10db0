"""Policies that withhold jobs of a log only where this has proved better than EASY."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.base.errors import ConfigError, PolicyError
from parcae.policies.checkpoint import write_checkpoint
from parcae.rigid.config import PackingConfig
from parcae.rigid.evaluation.compare import run_policy
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.jobset.policy import JobSetPolicy
from parcae.rigid.layout import NOT_YET
from parcae.rigid.policies.catalog import PackingSetting, make_packing_policy, rule_checkpoint
from parcae.rigid.policies.earned import EarnedPolicy, allocate_virtual, play_earned
from parcae.rigid.policies.policy import HandMadePolicy
from parcae.rigid.policies.scores import PackingKind
from parcae.rigid.world import PackingBatch, RigidOutcome

_LOG = PackingSetting(is_exact=True)
#: A withholding rule that lets all but the shortest jobs wait for an almost empty cluster.
_STUBBORN = HandMadePolicy("stubborn", PackingKind.WITHHOLD, (0.0, 0.0, 0.9, 3.0, 2.0, 0.0, 0.0, 3))


def _jobs(
    load: float, seed: int = 0, count: int = 300, overestimate: float = 1.0, widest: int = 16
) -> RigidJobs:
    rng = np.random.default_rng(seed)
    duration = np.maximum(1, np.rint(rng.lognormal(5.0, 1.5, count))).astype(np.int64)
    width = 2 ** rng.integers(0, widest.bit_length(), count)
    length = float((duration * width).sum()) / (load * 64)
    arrival = np.sort(rng.uniform(0, length, count)).astype(np.int64)
    estimate = np.ceil(duration * rng.uniform(1.0, overestimate, count)).astype(np.int64)
    return RigidJobs(
        "made up", arrival, duration, width[:, None], np.array([64]), estimate, step="s"
    )


def _run(policy: Any, jobs: RigidJobs) -> RigidOutcome:
    return run_policy(policy, [jobs], PackingConfig.for_log(jobs), 1)[0]


def _slowdown(outcome: RigidOutcome) -> float:
    jobs = outcome.jobs
    length = outcome.start - jobs.arrival + jobs.duration
    return float(np.maximum(1.0, length / np.maximum(10, jobs.duration)).mean())


def _play(jobs: RigidJobs) -> Any:
    """The virtual runs after a run of the stubborn rule."""
    batch = PackingBatch([jobs], PackingConfig.for_log(jobs), wants_profile=True)
    rule = _STUBBORN.tables(batch.views)
    virtual = allocate_virtual(batch.states, batch.views)
    play_earned(batch.clusters, batch.views, rule, virtual, 0, 1)
    return virtual


@pytest.mark.parametrize("load", [0.5, 1.3])
def test_with_exact_estimates_the_virtual_runs_are_the_runs_of_their_policies(load: float) -> None:
    jobs = _jobs(load, count=120)
    virtual = _play(jobs)
    policies = [*map(make_packing_policy, ("easy", "xfactor", "sjf-backfill")), _STUBBORN]
    for run, policy in enumerate(policies):
        start = virtual.states.jobs.start[run]
        alone = _run(policy, jobs).start
        # A virtual run goes as far as the real one.
        has_started = start != NOT_YET
        assert has_started.sum() > 60
        assert start[has_started].tolist() == alone[has_started].tolist(), policy.name


def test_durations_of_jobs_that_have_not_ended_change_nothing() -> None:
    jobs = _jobs(1.1, count=200, overestimate=5.0)
    before = _run(EarnedPolicy(_STUBBORN), jobs)
    late = np.argsort(before.start)[120]
    duration = jobs.duration.copy()
    duration[late] = jobs.estimate[late]
    assert duration[late] > jobs.duration[late]
    changed = RigidJobs(
        "changed", jobs.arrival, duration, jobs.demand, jobs.capacity, jobs.estimate, step="s"
    )
    after = _run(EarnedPolicy(_STUBBORN), changed)
    assert after.start.tolist() != before.start.tolist()
    is_earlier = before.start < before.finish[late]
    assert is_earlier.sum() > 120
    assert after.start[is_earlier].tolist() == before.start[is_earlier].tolist()


@pytest.mark.parametrize("seed", range(5))
def test_where_little_waits_withholding_does_hardly_any_harm(seed: int) -> None:
    jobs = _jobs(0.3, seed, overestimate=4.0)
    usual = _slowdown(_run(make_packing_policy("easy"), jobs))
    assert usual < 1.5
    assert _slowdown(_run(_STUBBORN, jobs)) > 2.0 * usual
    assert _slowdown(_run(EarnedPolicy(_STUBBORN), jobs)) < 1.05 * usual


@pytest.mark.parametrize(
    ("name", "load", "seed", "shape", "slowdown"),
    [
        *(("set", 1.4, seed, {"count": 1_500, "overestimate": 4.0}, 0.5) for seed in range(3)),
        # If short jobs overtake wide ones for a while, and those start in order of arrival later,
        # all others wait longer.
        *(
            ("set", load, 0, {"count": 6_000, "overestimate": 2.0, "widest": 64}, 0.7)
            for load in (0.8, 1.0)
        ),
        # Shortest job first leaves wide jobs for the end here, and withholding leaves processors
        # idle.
        *(
            ("stubborn", 1.4, seed, {"count": 1_500, "overestimate": 4.0, "widest": 64}, 0.2)
            for seed in range(3)
        ),
    ],
)
def test_under_load_the_gain_is_kept_and_no_jobs_are_left_for_the_end(
    name: str, load: float, seed: int, shape: dict[str, Any], slowdown: float
) -> None:
    jobs = _jobs(load, seed, **shape)
    usual = _run(make_packing_policy("easy"), jobs)
    is_stubborn = name == "stubborn"
    kept = _run(EarnedPolicy(_STUBBORN) if is_stubborn else make_packing_policy(name, _LOG), jobs)
    assert _slowdown(kept) < slowdown * _slowdown(usual)
    assert kept.finish.max() < (1.2 if is_stubborn else 1.1) * usual.finish.max()
    if is_stubborn:
        assert _run(_STUBBORN, jobs).finish.max() > 2.0 * usual.finish.max()
    elif load == 1.4:
        ends = [float(np.percentile(one.finish, 99)) for one in (kept, usual)]
        assert ends[0] < 1.1 * ends[1]


def test_a_job_that_alone_would_make_the_run_longer_starts_soon() -> None:
    # Two units stay busy with short jobs under shortest job first and under withholding, so that
    # the long job of two units, which EASY starts at 100 s, would wait for the last of them.
    count = 400
    arrival = np.arange(count) * 50
    duration = np.full(count, 100)
    width = np.ones(count, np.int64)
    duration[1] = 20_000
    width[1] = 2
    jobs = RigidJobs("one long", arrival, duration, width[:, None], np.array([2]), step="s")
    usual = _run(make_packing_policy("easy"), jobs)
    stubborn = _run(_STUBBORN, jobs)
    assert stubborn.start[1] > 19_000
    kept = _run(EarnedPolicy(_STUBBORN), jobs)
    assert usual.start[1] <= kept.start[1] < 1_000
    assert kept.finish.max() < 1.05 * usual.finish.max()


def test_names_choose_whether_a_policy_must_earn_its_decisions(tmp_path: Path) -> None:
    assert isinstance(make_packing_policy("set", _LOG), EarnedPolicy)
    assert isinstance(make_packing_policy("set+unguarded", _LOG), JobSetPolicy)
    assert isinstance(make_packing_policy("set"), JobSetPolicy)
    with pytest.raises(PolicyError, match="for policies that withhold"):
        make_packing_policy("sjf+unguarded", _LOG)
    tetris = tmp_path / "tetris.safetensors"
    write_checkpoint(
        rule_checkpoint(HandMadePolicy("tetris", PackingKind.TETRIS, (0.5,)), {}), tetris
    )
    assert isinstance(make_packing_policy(str(tetris), _LOG), HandMadePolicy)
    with pytest.raises(PolicyError, match="for policies that withhold"):
        make_packing_policy(f"{tetris}+unguarded", _LOG)


def test_a_policy_that_must_earn_its_decisions_is_refused_in_steps() -> None:
    jobs = _jobs(1.0, count=20)
    config = PackingConfig(num_slots=20, horizon=10_000)
    batch = PackingBatch([jobs], config, wants_profile=True)
    with pytest.raises(ConfigError, match="'stubborn': only with exact times"):
        batch.run(EarnedPolicy(_STUBBORN).play_many)
