"""The cluster's environment with several executor classes and idle slots.

Tests the spaces, the masks, the meaning of actions, and that episodes equal simulated runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parcae.base.errors import PolicyError
from parcae.cluster.kernels.tables import slot_ms
from parcae.cluster.observation import Decision, Observation, objection
from parcae.cluster.state import ANY_CLASS, ExecutorClass
from parcae.decima.catalog import make_policy
from parcae.decima.graph.layout import NO_SLOT_NAME, DecimaSettings, decima_levels, initial_weights
from parcae.decima.graph.policy import DecimaPolicy
from parcae.environments.cluster import ClusterEnv
from parcae.environments.layout import ClusterFeature, ObservedClassFeature, SlotFeature
from parcae.policies.additions import named_policy
from parcae.simulation.config import SimulationConfig
from parcae.workloads.archive import load_workload
from parcae.workloads.demands import with_drawn_memory
from parcae.workloads.job import JobSpec
from parcae.workloads.workload import Workload
from tests.conftest import job
from tests.environment.episodes import Shown, assert_same_run, at_random, play

_TWO = (ExecutorClass(2, 1.0, 0.25), ExecutorClass(2, 1.0, 1.0))
_THREE = (ExecutorClass(2, 1.0, 0.4), ExecutorClass(1, 2.0, 0.7), ExecutorClass(2, 2.0, 1.0))
_TPCH, _ = with_drawn_memory("uniform:1")(load_workload("tpch"))


def _needs(spec: JobSpec, *memory: float) -> JobSpec:
    return replace(
        spec, stages=tuple(replace(s, memory=m) for s, m in zip(spec.stages, memory, strict=True))
    )


def _small_and_large(**settings: Any) -> ClusterEnv:
    """One job with a stage that fits every class and one that fits the large class only.

    Two executors of each class, no delays.
    """
    spec = _needs(job("a", (4, 1_000, ()), (4, 3_000, ())), 0.25, 0.5)
    values = {"executor_classes": _TWO, "moving_delay_ms": 0, "warmup_delay_ms": 0, **settings}
    return ClusterEnv(workload=Workload("test", (spec,)), num_jobs=1, **values)


def _one_long(**settings: Any) -> ClusterEnv:
    """A task of 40 s, two executors without delays; slot lengths are quarters of 40 s."""
    values = {"workload": Workload("test", (job("a", (1, 40_000, ())),)), "num_jobs": 1, **settings}
    return ClusterEnv(executors=2, moving_delay_ms=0, warmup_delay_ms=0, idle_lengths=4, **values)


@pytest.mark.parametrize(
    ("settings", "sizes", "entries"),
    [
        ({}, [3, 4], set()),
        ({"executor_classes": (ExecutorClass(4),)}, [3, 4], set()),
        ({"executor_classes": _TWO}, [3, 4, 3], {"classes", "stage_fit", "class_mask"}),
        ({"idle_lengths": 5}, [3, 4, 6], {"stage_slot", "slot_mask"}),
        (
            {"executor_classes": "2x1x1,2x1x2", "idle_lengths": 1},
            [3, 4, 3, 2],
            {"classes", "stage_fit", "class_mask", "stage_slot", "slot_mask"},
        ),
    ],
    ids=["neither", "one class", "classes", "slots", "both"],
)
def test_entries_without_a_choice_are_left_out(
    settings: dict[str, Any], sizes: list[int], entries: set[str]
) -> None:
    workload = Workload("test", (job("a", (1, 1_000, ()), (1, 1_000, (0,))),))
    env = ClusterEnv(workload=workload, num_jobs=1, num_limits=4, executors=4, **settings)
    assert env.action_space.nvec.tolist() == sizes
    always = {"stages", "stage_job", "edges", "jobs", "cluster", "action_mask"}
    assert set(env.observation_space.spaces) == entries | always
    assert env.observation_space["action_mask"].shape == (sum(sizes),)


def test_an_observation_says_what_classes_there_are_and_which_fit() -> None:
    env = _small_and_large()
    shown, _ = env.reset(seed=1)
    assert shown["classes"].tolist() == [[1.0, 0.25, 0.5, 0.5, 0.5], [1.0, 1.0, 0.5, 0.5, 0.5]]
    assert shown["stage_fit"].tolist() == [[1.0, 0.25, 1.0, 1.0], [1.0, 0.5, 0.0, 1.0]]
    assert shown["class_mask"].tolist() == [
        [True, True, True],
        [False, True, True],
        [False, False, True],
    ]
    assert shown["action_mask"].tolist() == [True, True, False] + [True] * 7
    # All large executors to the stage that the small ones fit, too.
    shown, *_ = env.step(np.array([0, 3, 1]))
    assert shown["classes"][:, ObservedClassFeature.OFFERED].tolist() == [0.5, 0.0]
    assert shown["class_mask"].tolist() == [
        [True, False, True],
        [False, False, True],
        [False, False, True],
    ]
    assert shown["action_mask"][-3:].tolist() == [True, False, True]


def test_a_class_that_is_too_small_counts_as_the_first_that_is_not_masked() -> None:
    env = _small_and_large()
    env.reset(seed=1)
    decide = env.episodes.decision
    assert decide(0, np.array([0, 3, 0])) == Decision(0, 4, executor_class=0)
    assert decide(0, np.array([1, 0, 1])) == Decision(1, 1, executor_class=1)
    assert decide(0, np.array([1, 1, 2])) == Decision(1, 2, ANY_CLASS)
    assert env.episodes._num_masked[0] == 0
    assert decide(0, np.array([1, 1, 0])) == Decision(1, 2, executor_class=1)
    assert env.episodes._num_masked[0] == 1


def test_idle_executors_are_counted_class_by_class() -> None:
    env = ClusterEnv(
        workload=_TPCH,
        num_jobs=4,
        executor_classes=_THREE,
        arrivals="poisson:5s",
        moving_delay_ms=0,
    )
    draw = at_random(env, 1000)
    seen = []

    def choose(shown: Shown) -> Any:
        idle = shown["classes"][:, ObservedClassFeature.IDLE]
        assert idle.sum() == pytest.approx(shown["cluster"][ClusterFeature.IDLE])
        assert (idle <= shown["classes"][:, ObservedClassFeature.EXECUTORS] + 1e-6).all()
        seen.append(idle.copy())
        return draw(shown)

    play(env, choose, 1000)
    assert np.max(seen, axis=0).tolist() == pytest.approx([0.4, 0.2, 0.4])


def test_an_idle_slot_runs_its_length_may_be_decided_anew_and_is_the_stages_only_one() -> None:
    env = _one_long(workload=Workload("test", (job("a", (1, 40_000, ()), (1, 8_000, ())),)))
    shown, _ = env.reset(seed=1)
    assert shown["stage_slot"].tolist() == [[0.0] * 3] * 2
    assert shown["slot_mask"].tolist() == [[True] * 5] * 2 + [[True] + [False] * 4]
    assert env.episodes.decision(0, np.array([0, 0, 2])) == Decision(0, 1, ANY_CLASS, 20_000)
    shown, reward, *_ = env.step(np.array([0, 0, 2]))  # one executor waits 20 s for the long stage
    assert (reward, shown["stage_slot"][0].tolist()) == (
        0.0,
        [1.0, 1.0, pytest.approx(np.log1p(20 / 24))],
    )
    # The other executor runs the short stage, then the long one is due.
    shown, reward, *_ = env.step(np.array([1, 0, 0]))
    assert reward == pytest.approx(-0.01 * 8)
    assert shown["stage_slot"][0].tolist() == [1.0, 1.0, pytest.approx(np.log1p(12 / 24))]
    assert shown["slot_mask"].tolist() == [[True] * 5] + [[True] + [False] * 4] * 2
    assert env.episodes.decision(0, np.array([0, 0, 1])) == Decision(0, 1, ANY_CLASS, 2_000)
    shown, reward, *_ = env.step(np.array([0, 0, 1]))  # the slot now ends 10 s after its beginning
    assert reward == pytest.approx(-0.01 * 2)
    assert shown["stage_slot"][
        0, [SlotFeature.HAD, SlotFeature.RUNS, SlotFeature.LEFT]
    ].tolist() == [1.0, 0.0, 0.0]
    assert shown["slot_mask"][0].tolist() == [True] + [False] * 4
    assert env.episodes.decision(0, np.array([0, 0, 4])) == Decision(0, 1)
    # A second slot: the stage runs instead, and the action counts as masked.
    _, reward, terminated, _, info = env.step(np.array([0, 0, 4]))
    assert (terminated, info["num_masked_actions"], info["average_jct_s"]) == (True, 2, 50.0)


@pytest.mark.parametrize(
    ("settings", "num_slots"),
    [
        ({"executor_classes": _THREE}, 0),
        ({"executors": 4, "idle_lengths": 3}, 5),
        (
            {
                "executor_classes": _THREE,
                "idle_lengths": 4,
                "arrivals": "poisson:2s",
                "num_limits": 2,
                "max_stages": 6,
            },
            5,
        ),
    ],
    ids=["classes", "slots", "both"],
)
def test_unmasked_actions_are_valid_decisions_and_complete_all_jobs(
    settings: dict[str, Any], num_slots: int
) -> None:
    env = ClusterEnv(workload=_TPCH, num_jobs=3, **settings)
    num_lengths = settings.get("idle_lengths", 0)
    draw = at_random(env, 1000)
    held = []

    def choose(shown: Shown) -> Any:
        _assert_masks(env, shown, env.episodes.observe(0), num_lengths)
        action = draw(shown)
        held.append(num_lengths > 0 and action[-1] > 0)
        assert (env.episodes.decision(0, action).hold_ms > 0) == held[-1]
        return action

    info = play(env, choose, 1000).info
    assert (info["num_unfinished"], info["num_masked_actions"]) == (0, 0)
    assert sum(held) >= num_slots


def _assert_masks(
    env: ClusterEnv, shown: dict[str, np.ndarray], seen: Observation, num_lengths: int
) -> None:
    for row, stage in enumerate(map(int, env.episodes._shown.stages[0])):
        is_allowed = bool(shown["action_mask"][row])
        assert is_allowed == (stage >= 0 and objection(seen, Decision(stage, 1)) is None)
        if "class_mask" in shown:
            for c, may in enumerate(shown["class_mask"][row, :-1]):
                assert may == (stage >= 0 and objection(seen, Decision(stage, 1, c)) is None)
        if num_lengths:
            may_wait = is_allowed and objection(seen, Decision(stage, 1, hold_ms=1)) is None
            most = int(seen.now.num_source[0])
            left = [
                may_wait and slot_ms(seen, stage, most, k, num_lengths) > 0
                for k in range(1, num_lengths + 1)
            ]
            assert shown["slot_mask"][row].tolist() == [True, *left]


@pytest.mark.parametrize(
    ("name", "names_classes"),
    [("tetris", True), ("graphene", True), ("tuned:classes", True), ("fair", False)],
)
def test_a_policy_for_classes_through_the_environment_is_the_policy(
    name: str, names_classes: bool
) -> None:
    config = SimulationConfig(num_executors=12, executor_classes="decima")
    policy = (
        named_policy(name, _TPCH, config) if name.startswith("tuned") else make_policy(name, 12)
    )
    env = ClusterEnv(
        workload=_TPCH, num_jobs=6, executors=12, executor_classes="decima", arrivals="poisson:5s"
    )
    num_classes, num_slots = assert_same_run(env, policy, 1003)
    assert (num_classes > 0, num_slots) == (names_classes, 0)


def test_the_theory_of_idle_slots_through_the_environment_is_the_theory() -> None:
    times = [(10_000, 15_000 * row) for row in range(12)] + [(50_000, 181_000), (10_000, 186_000)]
    jobs = tuple(
        replace(job(str(row), (1, length, ())), arrival_ms=at)
        for row, (length, at) in enumerate(times)
    )
    settings = {
        "moving_delay_ms": 0,
        "warmup_delay_ms": 0,
        "arrivals": "recorded",
        "idle_lengths": 1,
    }
    env = ClusterEnv(workload=Workload("test", jobs), num_jobs=14, executors=1, **settings)
    assert assert_same_run(env, make_policy("idle-theory", 1), 0) == (0, 1)
    assert env.episodes.state(0).jobs.completion_ms[-2:].tolist() == [246_000, 196_000]


def test_a_network_that_chooses_both_through_the_environment_is_the_network() -> None:
    settings = DecimaSettings(executor_classes=True, idle_lengths=4)
    rng = np.random.default_rng(0)
    weights = initial_weights(rng, settings, len(decima_levels(5, settings)))
    weights = {
        name: (array + rng.normal(0, 0.1, array.shape)).astype(np.float32)
        for name, array in weights.items()
    }
    weights[NO_SLOT_NAME][:] = 0.0
    env = ClusterEnv(
        workload=_TPCH, num_jobs=5, executor_classes=_THREE, idle_lengths=4, arrivals="poisson:5s"
    )
    num_classes, num_slots = assert_same_run(env, DecimaPolicy("both", weights, settings, 5), 1000)
    assert num_classes >= num_slots >= 5


def test_decisions_without_an_action_are_refused_and_slots_are_rounded_up() -> None:
    env = _small_and_large()
    env.reset(seed=1)
    with pytest.raises(
        PolicyError, match="stage 1 gets an idle slot, but the environment has none to choose from"
    ):
        env.episodes.action(0, Decision(1, 1, hold_ms=5))
    env = _one_long()
    env.reset(seed=1)
    slots = [
        env.episodes.action(0, Decision(0, 1, hold_ms=ms)).tolist()
        for ms in (0, 1, 10_000, 10_001, 90_000)
    ]
    assert slots == [[0, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 2], [0, 0, 4]]
