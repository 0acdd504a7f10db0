"""The cluster's environment: Gymnasium's interface, rewards, and equality with the simulator."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from parcae.base.errors import ConfigError, PolicyError, WorkloadError
from parcae.cluster.observation import Decision
from parcae.cluster.state import ExecutorClass
from parcae.decima.catalog import make_policy
from parcae.environments import CLUSTER_ID
from parcae.environments.cluster import ClusterEnv
from parcae.environments.layout import NO_ROW, ClusterFeature, ObservedJobFeature, StageFeature
from parcae.simulation.faults import Faults
from parcae.workloads.archive import load_workload, write_workload
from parcae.workloads.workload import TRAINING_SEED_START, Workload
from tests.conftest import job
from tests.environment.episodes import Played, Shown, assert_same_run, at_random, largest, play


def _played(env: ClusterEnv, seed: int) -> Played:
    return play(env, at_random(env, seed), seed)


def _two_jobs(**settings: Any) -> ClusterEnv:
    """Two jobs a, each with two stages one after the other: two tasks of 1 s, then two of 3 s.

    Two executors without delays.
    """
    workload = Workload("test", (job("a", (2, 1_000, ()), (2, 3_000, (0,))),))
    return ClusterEnv(
        workload=workload, num_jobs=2, executors=2, moving_delay_ms=0, warmup_delay_ms=0, **settings
    )


@pytest.mark.parametrize(
    "settings",
    [{"executors": 2}, {"executors": 4, "executor_classes": "decima", "idle_lengths": 3}],
)
def test_gymnasium_check_env_passes(settings: dict[str, Any]) -> None:
    env = gymnasium.make(CLUSTER_ID, workload="toy", num_jobs=3, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def test_every_bound_is_finite() -> None:
    spaces = ClusterEnv(num_jobs=2, executors=3).observation_space.spaces
    assert set(spaces) == {"stages", "stage_job", "edges", "jobs", "cluster", "action_mask"}
    assert all(
        np.isfinite(space.low).all() and np.isfinite(space.high).all() for space in spaces.values()
    )
    assert spaces["action_mask"].shape == (2 * 18 + 1 + 3,)


def test_an_observation_describes_the_cluster() -> None:
    env = _two_jobs()
    observation, _ = env.reset(seed=1)
    shown = [StageFeature.IS_SHOWN, StageFeature.IS_SCHEDULABLE, StageFeature.IS_RUNNABLE]
    assert observation["stages"][:, shown].tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 1], [1, 0, 0]]
    assert observation["stage_job"].tolist() == [0, 0, 1, 1]
    assert observation["edges"].tolist() == [[0, 1], [2, 3]]
    assert observation["jobs"][0, ObservedJobFeature.STAGES_LEFT] == pytest.approx(np.log1p(2 / 2))
    assert observation["stages"][0, StageFeature.TASK_TIME] == pytest.approx(
        np.log1p(1_000 / 2_000)
    )
    assert observation["stages"][1, StageFeature.WORK_LEFT] == pytest.approx(
        np.log1p(6_000 / 8_000)
    )
    assert observation["cluster"].tolist() == pytest.approx([1.0, 1.0, np.log1p(2), 0.0])
    assert observation["action_mask"].tolist() == [True, False, True, False, False, True, True]


def test_a_step_commits_executors_and_earns_what_accrues_until_the_next() -> None:
    env = _two_jobs(reward_scale=1.0)
    env.reset(seed=1)
    # One executor to job 0's first stage; the other one is still offered.
    observation, reward, *_ = env.step(np.array([0, 0]))
    assert (reward, observation["cluster"][ClusterFeature.OFFERED]) == (0.0, 0.5)
    # It goes to job 1; each runs its two tasks of 1 s: 2 jobs x 2 s.
    observation, reward, *_ = env.step(np.array([2, 0]))
    assert reward == -4.0
    assert observation["stages"][0, StageFeature.CRITICAL_PATH] == pytest.approx(
        np.log1p(6_000 / 8_000)
    )


def test_executors_may_idle_only_while_others_work() -> None:
    env = _two_jobs()
    observation, _ = env.reset(seed=1)
    idle = env.episodes.max_stages
    assert not observation["action_mask"][idle]
    observation, *_ = env.step(np.array([0, 0]))
    assert observation["action_mask"][idle]
    observation, *_ = env.step(np.array([idle, 0]))
    # The other executor's stage is done: it is offered while the first one still idles.
    assert observation["cluster"][[ClusterFeature.IDLE, ClusterFeature.OFFERED]].tolist() == [
        1.0,
        0.5,
    ]
    assert not observation["action_mask"][idle]


@pytest.mark.parametrize(
    "settings",
    [
        {"num_jobs": 6, "executors": 5},
        {"workload": "synthetic", "num_jobs": 4, "executors": 7, "num_limits": 3, "max_jobs": 2},
        {"num_jobs": 8, "executors": 4, "arrivals": "poisson:3s", "max_stages": 1},
        {"num_jobs": 5, "executors": 3, "unknown_share": 0.5, "moving_delay_ms": 0},
    ],
    ids=["batch", "little room", "one row", "unknown durations"],
)
def test_random_unmasked_choices_complete_all_jobs(settings: dict[str, Any]) -> None:
    env = ClusterEnv(**settings)
    for seed in (1000, 1001):
        total, info, truncated = _played(env, seed)
        completion_ms = env.episodes.state(0).jobs.completion_ms
        arrival_ms = env.episodes.simulators.sequence(0).arrival_ms
        assert (info["num_unfinished"], info["num_masked_actions"], truncated) == (0, 0, False)
        assert total == pytest.approx(-0.01 * (completion_ms - arrival_ms).sum() / 1000)
        assert info["average_jct_s"] == pytest.approx((completion_ms - arrival_ms).mean() / 1000)


@pytest.mark.parametrize(
    ("settings", "metric", "times"),
    [
        ({"arrivals": "poisson:3s", "objective": "makespan"}, "makespan_s", 1),
        # The time before the first executor of an elastic cluster counts, in each episode anew.
        (
            {"arrivals": "poisson:5s", "world": "cores", "elastic": {"start_ms": 3_000}},
            "average_jct_s",
            6,
        ),
    ],
)
def test_the_return_is_minus_the_objective(
    settings: dict[str, Any], metric: str, times: int
) -> None:
    env = ClusterEnv(num_jobs=6, executors=8, reward_scale=1.0, **settings)
    for seed in (1000, 1001):
        total, info, _ = _played(env, seed)
        assert total == pytest.approx(-times * info[metric])


def test_an_episode_that_is_cut_off_is_truncated() -> None:
    total, info, truncated = _played(ClusterEnv(num_jobs=6, executors=5, end_ms=4_000), 1000)
    assert (truncated, info["num_unfinished"]) == (True, 6)
    assert total == pytest.approx(-0.01 * 6 * 4.0)


def test_the_same_seed_is_the_same_episode_and_no_seed_is_one_of_the_trainings() -> None:
    env = ClusterEnv(num_jobs=4, executors=4)
    first, second, other = (_played(env, seed) for seed in (7, 7, 8))
    assert first == second != other
    seeds = [play(env, largest).info["seed"] for _ in range(2)]
    assert TRAINING_SEED_START <= min(seeds) < max(seeds) < 2 * TRAINING_SEED_START


@pytest.mark.parametrize(
    ("name", "error"), [("fifo", 0.0), ("fair", 0.0), ("srpt-cap", 0.0), ("fair", "log")]
)
def test_a_heuristic_through_the_environment_is_the_heuristic(
    name: str, error: float | Literal["log"]
) -> None:
    tpch = load_workload("tpch")
    workload = replace(tpch, jobs=tuple(replace(one, work_sigma=0.7) for one in tpch.jobs))
    env = ClusterEnv(
        workload=workload, num_jobs=8, executors=10, arrivals="poisson:2s", estimate_error=error
    )
    assert_same_run(env, make_policy(name, 10), 1003)


def test_a_stage_that_is_not_shown_any_more_has_no_action() -> None:
    settings = {"num_jobs": 6, "executors": 6, "max_jobs": 2, "moving_delay_ms": 100}
    env = ClusterEnv(workload="tpch", arrivals="poisson:500ms", **settings)
    policy = make_policy("sjf-cp", 6)
    refused = []

    def choose(shown: Shown) -> Any:
        decision = policy.decide(env.episodes.observe(0))
        try:
            action = env.episodes.action(0, decision)
        except PolicyError as error:
            refused.append(error)
            return largest(shown)
        assert env.episodes.decision(0, action).stage == decision.stage
        return action

    for seed in range(4):
        play(env, choose, seed)
    assert len(refused) > 10


def test_a_cluster_that_has_lost_all_cores_is_in_the_space() -> None:
    faults = "lost=600,restart=5,executor-cores=4"
    env = ClusterEnv(
        workload="toy", num_jobs=5, world="cores", executors=4, faults=faults, mean_episode_ms=8e3
    )
    num_without = 0
    for seed in range(20):
        play(env, largest, seed)
        num_without += int(env.episodes.state(0).now.num_executors[0]) == 0
    assert num_without > 0


def test_with_few_rows_stages_that_may_be_chosen_are_shown_first() -> None:
    env = _two_jobs(max_stages=2)
    observation, _ = env.reset(seed=1)
    assert observation["stages"][:, StageFeature.IS_SCHEDULABLE].tolist() == [1, 1]
    assert observation["stage_job"].tolist() == [0, 1]
    assert (observation["edges"] == NO_ROW).all()
    env = _two_jobs(max_jobs=1)
    observation, _ = env.reset(seed=1)
    assert observation["edges"].tolist() == [[0, 1]]
    assert observation["cluster"][ClusterFeature.HIDDEN_JOBS] == pytest.approx(np.log(2))
    with pytest.raises(PolicyError, match="not shown"):
        env.episodes.action(0, Decision(2, 1))
    # The stage was chosen in this round: now the other job's stage may be chosen.
    observation, *_ = env.step(np.array([0, 0]))
    assert observation["stages"][:, StageFeature.IS_SCHEDULABLE].tolist() == [1, 0]


def test_limits_beyond_the_offered_executors_are_masked() -> None:
    workload = Workload("test", (job("a", (20, 1_000, ())),))
    env = ClusterEnv(workload=workload, num_jobs=3, executors=10, num_limits=4)
    assert env.episodes.levels.tolist() == [3, 5, 8, 10]
    observation, _ = env.reset(seed=1000)
    assert observation["action_mask"][4:].tolist() == [True] * 4
    observation, *_ = env.step(np.array([0, 1]))
    assert observation["action_mask"][4:].tolist() == [True, True, False, False]


def test_a_masked_choice_counts_as_the_first_that_is_not() -> None:
    env = _two_jobs()
    env.reset(seed=1)
    assert env.episodes.decision(0, np.array([1, 1])) == Decision(0, 2)
    assert env.episodes.decision(0, np.array([4, 0])) == Decision(0, 1)


def test_a_step_after_the_end_asks_for_a_reset() -> None:
    env = ClusterEnv(workload="toy", num_jobs=1, executors=1)
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        env.step(np.array([0, 0]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_job": 3}, "did you mean 'num_jobs'"),
        ({"idle_lenghts": 3}, "did you mean 'idle_lengths'"),
        (
            {"world": "cores", "idle_lengths": 2},
            "idle_lengths: the world of cores has no idle slots",
        ),
        ({"idle_lengths": -1}, "setting idle_lengths = -1: Input should be greater than or equal"),
        ({"executors": 3, "executor_classes": "decima"}, "at least 4 executors, not 3"),
        ({"executor_classes": "4x1"}, "write decima, or EXECUTORSxCPUxMEMORY"),
        ({"zzz": 3}, "known are workload"),
        ({"num_jobs": 0}, "setting num_jobs = 0: Input should be greater than or equal to 1"),
        ({"workload": "tpchh"}, "did you mean 'tpch'"),
        ({"arrivals": "often"}, "write batch, poisson:25s"),
        ({"arrivals": "recorded"}, "import it with"),
        ({"objective": "p95-jct"}, "write one of average-jct, makespan"),
        ({"executors": 4, "num_limits": 5}, "ask for at most as many limits"),
        ({"end_ms": 5, "mean_episode_ms": 5.0}, "not both"),
        ({"parallelism_model": "some"}, "write one of none"),
        (
            {"world": "cores", "moving_delay_ms": 100},
            "setting moving_delay_ms: it exists in the world of executors only",
        ),
        (
            {"world": "cores", "parallelism_model": "decima-cluster"},
            "setting parallelism_model: it exists in the world of executors only",
        ),
        ({"end_ms": 10**30}, "setting end_ms = 1.*: Input should be less"),
        ({"reward_scale": np.inf}, "setting reward_scale = inf: Input should be a finite number"),
    ],
)
def test_wrong_settings_are_refused_with_a_remedy(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gymnasium.make(CLUSTER_ID, **settings)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        # Demands of every job of the workload, and losses of executors on an elastic cluster.
        (
            {"executor_classes": (ExecutorClass(2, 0.5, 0.0),)},
            WorkloadError,
            "no executor class is as large",
        ),
        (
            {
                "world": "cores",
                "executors": 8,
                "elastic": {"min_cores": 0},
                "faults": Faults(lost_per_hour=1.0),
            },
            ConfigError,
            "clusters of a fixed size only",
        ),
    ],
)
def test_what_cannot_be_played_is_refused_before_the_first_episode(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ClusterEnv(**settings)


def test_a_workload_may_be_given_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "own.parcae"
    write_workload(Workload("own", load_workload("toy").jobs), path)
    assert ClusterEnv(workload=path).episodes.workload.name == "own"
