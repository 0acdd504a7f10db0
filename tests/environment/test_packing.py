"""The packing world's environment: Gymnasium's interface, rewards, and equality with the world."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from parcae.base.errors import ConfigError, PolicyError, WorkloadError
from parcae.environments import PACKING_ID
from parcae.environments.cluster import ClusterEnv, ClusterVectorEnv
from parcae.environments.layout import PackingFeature, WaitingFeature
from parcae.environments.packing import PackingEnv, PackingVectorEnv
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import VOID, Cost
from parcae.rigid.policies.policy import HandMadePolicy
from parcae.rigid.policies.scores import PackingKind
from parcae.rigid.sources import DrawnSource
from parcae.rigid.world import PackingBatch
from tests.environment.episodes import Played, Shown, play

#: Two jobs that cannot run together at 0, and one later.
_THREE = RigidJobs("three", [0, 0, 1], [2, 3, 1], [[6, 1], [5, 1], [1, 6]], [10, 10])


def _played(env: PackingEnv, seed: int) -> Played:
    """Play at random; what is not masked does something."""
    rng = np.random.default_rng(seed)
    clock = env.episodes.state(0).clock
    expected = 0

    def choose(shown: Shown) -> Any:
        nonlocal expected
        assert int(clock["num_placed"][0]) == expected
        action = rng.choice(np.flatnonzero(shown["action_mask"]))
        expected += action != env.episodes.num_slots
        return action

    return play(env, choose, seed)


def _first(shown: Shown) -> Any:
    """The first job slot that may be chosen."""
    return np.int64(shown["action_mask"].argmax())


def test_gymnasium_check_env_passes() -> None:
    env = gymnasium.make(PACKING_ID)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def test_the_image_has_the_size_of_deeprms_and_can_be_left_out() -> None:
    spaces = PackingEnv().observation_space.spaces
    assert spaces["image"].shape == (20, 223)
    assert all(
        np.isfinite(space.low).all() and np.isfinite(space.high).all() for space in spaces.values()
    )
    assert "image" not in PackingEnv(has_image=False).observation_space.spaces


def test_an_observation_shows_slots_demands_and_what_is_free() -> None:
    env = PackingEnv(jobs=_THREE, num_slots=3, backlog_size=4)
    observation, _ = env.reset(seed=1)
    assert observation["jobs"][:, [WaitingFeature.IS_SHOWN, WaitingFeature.CAN_START]].tolist() == [
        [1, 1],
        [1, 1],
        [0, 0],
    ]
    assert observation["jobs"][1, [WaitingFeature.DURATION, 4, 5]].tolist() == pytest.approx(
        [3 / 20, 0.5, 0.1]
    )
    assert observation["action_mask"].tolist() == [True, True, False, True]
    assert observation["image"][0, 10:16].tolist() == [1] * 6
    observation, reward, *_ = env.step(np.int64(0))  # the first is placed: no time passes
    assert reward == 0.0
    assert observation["jobs"][:, WaitingFeature.CAN_START].tolist() == [0, 0, 0]
    assert observation["free"][:3, 0].tolist() == pytest.approx([0.4, 0.4, 1.0])
    # A step passes: jobs of 2 and 3 steps are in the system.
    observation, reward, *_ = env.step(np.int64(3))
    assert reward == pytest.approx(-(1 / 2 + 1 / 3))
    assert observation["jobs"][:, WaitingFeature.IS_SHOWN].tolist() == [1, 1, 0]
    assert observation["cluster"].tolist() == [0.0, 0.0]
    # The backlog is given as a share of its size.
    observation, _ = PackingEnv(jobs=_THREE, num_slots=1, backlog_size=4).reset(seed=1)
    assert observation["cluster"][PackingFeature.BACKLOG] == 0.25


@pytest.mark.parametrize(
    "settings", [{}, {"rates": (0.3, 0.9), "num_slots": 2, "backlog_size": 3, "mix": "paper"}]
)
def test_random_unmasked_choices_complete_all_jobs(settings: dict[str, Any]) -> None:
    env = PackingEnv(**settings)
    for seed in (1000, 1001):
        total, info, truncated = _played(env, seed)
        num_done = info["num_jobs"] - info["num_dropped"]
        assert (info["num_unfinished"], truncated) == (0, False)
        assert total == pytest.approx(-info["mean_slowdown"] * num_done)


@pytest.mark.parametrize(
    ("objective", "outcome"), [("completion", "average_jct"), ("makespan", "makespan")]
)
def test_the_return_is_minus_the_objective(objective: str, outcome: str) -> None:
    total, info, _ = _played(PackingEnv(objective=objective, reward_scale=0.5), 1002)
    times = info["num_jobs"] if objective == "completion" else 1
    assert total == pytest.approx(-0.5 * times * info[outcome])


@pytest.mark.parametrize(
    ("settings", "cost"), [({}, 0.2 + 0.5), ({"bound": 1.0}, 2 / 2 + 5 / 3)], ids=["log", "given"]
)
def test_jobs_in_seconds_that_are_short_count_as_ten_seconds(
    settings: dict[str, Any], cost: float
) -> None:
    """Jobs of 2 and 3 s run one after another; see `rigid.metrics.bounded_slowdown`."""
    jobs = RigidJobs("log", [0, 0], [2, 3], [[6], [6]], [10], step="s")
    env = PackingEnv(jobs=jobs, objective="bounded-slowdown", has_image=False, **settings)
    assert play(env, _first, 1).total == pytest.approx(-cost)


@pytest.mark.parametrize("seed", [0, 1, 2, 4])
def test_the_makespan_is_from_the_first_arrival_to_the_last_finish(seed: int) -> None:
    """Also where the first job arrives late, and where the window is longer."""
    env = PackingEnv(rates=(0.05,), objective="makespan")
    total, info, truncated = _played(env, seed)
    assert not truncated
    assert info["makespan"] < 50
    assert total == pytest.approx(-info["makespan"])


@pytest.mark.parametrize(
    ("kind", "params"), [(PackingKind.SJF, (0.0,)), (PackingKind.TETRIS, (0.5,))]
)
def test_a_heuristic_through_the_environment_is_the_heuristic(
    kind: PackingKind, params: tuple[float, ...]
) -> None:
    policy = HandMadePolicy("it", kind, params)
    source = DrawnSource()
    batch = PackingBatch(source.draw([1003]), source.config)
    batch.run(policy.play_many, 1)
    env = PackingEnv()

    def choose(_: Shown) -> Any:
        slot = policy.decide(env.episodes.view(0))
        return np.int64(env.episodes.num_slots if slot == VOID else slot)

    total, info, _ = play(env, choose, 1003)
    assert total == pytest.approx(-batch.costs(Cost.SLOWDOWN)[0])
    assert info["num_decisions"] == batch.outcome(0).num_decisions
    assert (
        env.episodes.state(0).jobs["finish"][: info["num_jobs"]].tolist()
        == batch.outcome(0).finish.tolist()
    )


def test_an_episode_that_only_lets_time_pass_is_stopped() -> None:
    env = PackingEnv(jobs=_THREE)
    env.reset(seed=1)
    # 40 decisions a job, and one for each step up to the last arrival and of each duration.
    count = 3 * 40 + int(_THREE.arrival[-1] + _THREE.duration.sum())
    results = [env.step(np.int64(10)) for _ in range(count)]
    assert [truncated for _, _, _, truncated, _ in results] == [False] * (count - 1) + [True]
    info = results[-1][4]
    assert (info["num_unfinished"], info["average_jct"]) == (3, (2 * count + count - 1) / 3)
    assert sum(reward for _, reward, *_ in results) == pytest.approx(-3 * info["mean_slowdown"])


@pytest.mark.parametrize(
    ("single", "many", "action"),
    [
        (PackingEnv, PackingVectorEnv, action)
        for action in (99, 11, -7, 1.0, 1.9, np.nan, True, [1], None, np.uint64(2**64 - 1))
    ]
    + [
        (ClusterEnv, ClusterVectorEnv, action)
        for action in ([0, 9], [-1, 0], [0.0, 0.0], [0], None)
    ],
)
def test_an_action_outside_of_the_space_is_refused_before_any_environment_steps(
    single: Any, many: Any, action: Any
) -> None:
    settings = {"jobs": _THREE} if single is PackingEnv else {"num_jobs": 2, "executors": 3}
    env = single(**settings)
    env.reset(seed=1)
    with pytest.raises(PolicyError, match=r"is not in .*Discrete.*; call action_space.sample"):
        env.step(action)
    vector = many(2, **settings)
    vector.reset(seed=1)
    with pytest.raises(PolicyError, match=r"is not in .*Discrete"):
        vector.step(np.array([np.zeros_like(action), action]))
    for one in (env, vector):
        state = one.episodes.state(0)
        clock = state.clock["num_decisions"] if single is PackingEnv else state.now.num_decisions
        assert clock[0] == 0


def test_the_action_of_an_environment_that_begins_an_episode_is_ignored() -> None:
    env = PackingVectorEnv(2, jobs=_THREE, max_decisions=2)
    env.reset(seed=1)
    for _ in range(2):
        _, _, terminated, truncated, _ = env.step(np.array([10, 10]))
    assert (terminated | truncated).all()
    _, rewards, *_ = env.step(np.array([-1, 99]))
    assert rewards.tolist() == [0.0, 0.0]


def test_pieces_of_given_jobs_are_drawn_by_seed() -> None:
    env = PackingEnv(jobs=_THREE, num_jobs=2)
    firsts = set()
    for seed in range(8):
        env.reset(seed=seed)
        firsts.add(int(env.episodes.batch.sequences[0].ids[0]))
    assert firsts == {0, 1}


@pytest.mark.parametrize(
    ("settings", "most_jobs"),
    [({"jobs": None, "window": 6}, 6), ({"jobs": _THREE, "ends_early": False}, 3)],
)
def test_settings_that_say_nothing_are_taken(settings: dict[str, Any], most_jobs: int) -> None:
    assert PackingEnv(num_jobs=None, **settings).episodes.settings.most_jobs == most_jobs


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 0.7}, "did you mean 'rates'"),
        ({"rates": (1.5,)}, "1.5"),
        ({"rates": ()}, "there is no arrival rate"),
        ({"window": 0}, "setting window = 0: Input should be greater"),
        ({"mix": "papre"}, "did you mean 'paper'"),
        ({"objective": "jct"}, "write one of slowdown, bounded-slowdown"),
        ({"mode": "exact"}, "leave mode out"),
        ({"reward_scale": np.inf}, "setting reward_scale = inf: Input should be a finite number"),
        ({"max_decisions": 10**30}, "setting max_decisions = 1.*: Input should be less"),
        ({"horizon": 9}, "give a longer horizon"),
        ({"horizon": 10**9}, "less than or equal to 1048576"),
        ({"jobs": RigidJobs("none", [], [], np.zeros((0, 1)), [4])}, "give at least one"),
        ({"jobs": _THREE, "num_jobs": 4}, "give a number from 1 to 3"),
        ({"num_jobs": 4}, "setting num_jobs = 4: .* leave num_jobs out .* or give jobs"),
        ({"jobs": _THREE, "rates": (0.7,)}, "setting rates: .* leave out rates, or leave out jobs"),
        ({"jobs": _THREE, "window": 50}, "setting window: .* leave out window"),
        ({"jobs": _THREE, "ends_early": True}, "setting ends_early: .* leave out ends_early"),
        ({"jobs": _THREE, "mix": "code"}, "setting mix: .* leave out mix"),
        ({"jobs": _THREE, "num_units": 4, "num_resources": 1}, "out num_units and num_resources"),
    ],
)
def test_wrong_settings_are_refused_with_a_remedy(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gymnasium.make(PACKING_ID, **settings)


def test_a_job_longer_than_the_horizon_is_refused_at_once() -> None:
    with pytest.raises(WorkloadError, match="longer than the horizon allows"):
        PackingEnv(jobs=RigidJobs("long", [0], [21], [[1]], [4]))


@pytest.mark.parametrize(
    ("arrival", "duration", "step"),
    [
        ([0, 200, 400], 5, "step"),
        ([0, 200, 400], 5, "s"),
        ([400, 401, 402], 5, "step"),
        ([0, 0, 0], 90, "step"),
    ],
    ids=["sparse", "in seconds", "late", "long"],
)
def test_jobs_that_take_their_time_do_not_end_an_episode(
    arrival: list[int], duration: int, step: str
) -> None:
    jobs = RigidJobs("log", arrival, [duration] * 3, [[6, 1]] * 3, [10, 10], step=step)
    env = gymnasium.make("parcae/Packing-v0", jobs=jobs, horizon=100)
    _, info, truncated = play(env.unwrapped, _first, 1)
    assert (truncated, info["num_unfinished"]) == (False, 0)
