"""The benchmark of expert iteration: what it judges, learns and takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.expert_iteration import (
    Judged,
    StudentPolicy,
    gather,
    keep_kind,
    learn,
    padded,
)
from benchmarks.planning_profile import two_profiles

from parcae.base.errors import ConfigError
from parcae.decima.rollouts.policy import RolloutPolicy
from parcae.evaluation.compare import ClusterWorld
from parcae.policies.additions import named_policy
from parcae.simulation.config import SimulationConfig
from parcae.simulation.simulator import simulate
from parcae.workloads.archive import load_workload
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import Workload


@pytest.fixture(scope="module")
def world() -> ClusterWorld:
    """Small batches of the bundled workload."""
    return ClusterWorld(load_workload("tpch"), SimulationConfig(num_executors=8), "batch", 3)


@pytest.fixture(scope="module")
def planner(world: ClusterWorld) -> RolloutPolicy:
    """`plan` over the fair policy."""
    made = named_policy("plan:fair", world.workload, world.config)
    assert isinstance(made, RolloutPolicy)
    return made


def test_judged_decisions_have_features_and_differences_from_the_base(
    world: ClusterWorld, planner: RolloutPolicy, tmp_path: Path
) -> None:
    judged = gather(world, StudentPolicy("base", planner, None), 12, first_seed=7)
    assert len(judged) == 12
    assert np.isfinite(judged.features).all()
    assert (judged.count > 1).all()
    # The base differs by nothing from itself; others do, for better and for worse.
    assert not judged.mean_s[:, 0].any()
    assert not judged.error_s[:, 0].any()
    assert judged.mean_s.max() > 0 > judged.mean_s.min()
    judged.save(tmp_path / "round-0.npz")
    again = Judged.load(tmp_path / "round-0.npz")
    assert np.array_equal(again.mean_s, judged.mean_s)
    assert np.array_equal(again.features, judged.features)


def test_decisions_that_were_judged_for_another_base_are_not_taken(tmp_path: Path) -> None:
    keep_kind({"base": "fair", "jobs": 3}, tmp_path)
    keep_kind({"base": "fair", "jobs": 3}, tmp_path)
    with pytest.raises(ConfigError, match="were judged for"):
        keep_kind({"base": "srpt-cap", "jobs": 3}, tmp_path)
    # What the decisions are of that an earlier version judged is not known.
    (tmp_path / "kind.json").rename(tmp_path / "round-0.npz")
    with pytest.raises(ConfigError, match="unknown base"):
        keep_kind({"base": "fair", "jobs": 3}, tmp_path)


def test_a_student_learns_what_features_say_and_takes_the_better_candidate(
    world: ClusterWorld, planner: RolloutPolicy
) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(600):
        features = rng.normal(size=(5, 4)).astype(np.float32)
        mean_s = (features[:, 1] - features[0, 1]).astype(np.float32)
        rows.append((features, mean_s, np.ones(5, np.float32)))
    student = learn(padded(rows))
    features = rng.normal(size=(50, 4)).astype(np.float32)
    expected_s = student.expected_s(features)
    assert expected_s[0] == 0
    # How bad a bad candidate is beyond two seconds does not matter.
    wanted_s = np.minimum(features[:, 1] - features[0, 1], 2)
    assert np.abs(expected_s - wanted_s).mean() < 0.3


def test_without_a_better_candidate_the_base_decides(
    world: ClusterWorld, planner: RolloutPolicy
) -> None:
    seen = []

    class Doubtful:
        """Expects every other candidate to be half a second better."""

        def expected_s(self, features: np.ndarray) -> np.ndarray:
            seen.append(features)
            return np.where(np.arange(len(features)) > 0, -0.5, 0.0)

    def ends(policy: Any) -> list[int]:
        trace = simulate(world.draw(3), policy, world.config, 3)
        return [int(end) for end in trace.completion_ms]

    def student(margin_s: float) -> StudentPolicy:
        return StudentPolicy("student", planner, Doubtful(), margin_s)  # type: ignore[arg-type]

    assert ends(student(0.6)) == ends(planner.base)
    assert ends(student(0.4)) != ends(planner.base)
    assert all(np.isfinite(features).all() for features in seen)


def test_the_runs_that_are_known_share_no_duration_with_those_that_happen() -> None:
    samples = np.arange(1, 9) * 1_000
    durations = TaskDurations((2,), (samples,), (samples + 1,), (np.array([7]),))
    stage = StageSpec(4, durations)
    workload = Workload("made up", (JobSpec("job", (stage, StageSpec(2, durations, (0,)))),))
    happening, known = two_profiles(workload, seed=0)
    for new, old in zip(happening.jobs[0].stages, known.jobs[0].stages, strict=True):
        for wave in ("fresh", "first"):
            (a,), (b,) = getattr(new.durations, wave), getattr(old.durations, wave)
            assert len(a) == len(b) == 4
            both = np.sort(np.concatenate([a, b]))
            assert both.tolist() == getattr(durations, wave)[0].tolist()
        # A single sample is all that is known of its wave.
        assert new.durations.rest[0].tolist() == old.durations.rest[0].tolist() == [7]
        # Schedulers are told the mean of the other runs.
        assert new.mean_task_ms == old.mean_task_ms == old.durations.mean_ms
        assert new.parents == old.parents
