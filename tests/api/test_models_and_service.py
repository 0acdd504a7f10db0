"""Models as policies, and any policy in the service."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import parcae
import parcae.environments
from parcae.base.errors import ConfigError, PolicyError
from parcae.environments.cluster import ClusterEpisodes
from parcae.environments.layout import NO_ROW
from parcae.environments.settings import read_cluster
from parcae.policies.additions import named_policy
from parcae.service.policies import PolicyFor
from parcae.service.serve import ServeSettings, demonstrate, simulated_client
from parcae.service.session import Scope
from parcae.simulation.config import SimulationConfig
from parcae.simulation.simulator import Simulator
from parcae.simulation.simulator import simulate as play
from tests.conftest import batch, job
from tests.service.running import stopped_when

_SETTINGS = {"workload": "toy", "num_jobs": 4, "executors": 4, "num_limits": 4}


class FirstChoice:
    """A model that takes the first action that is not masked, as Stable-Baselines3 models do."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.observation_space = env.observation_space
        self.sizes = env.action_space.nvec  # type: ignore[attr-defined]
        self.num_calls = 0

    def predict(
        self, observation: Any, deterministic: bool = False, action_masks: Any = None
    ) -> tuple[Any, Any]:
        assert set(observation) == set(self.observation_space.spaces)
        self.num_calls += 1
        masks = np.split(action_masks, np.cumsum(self.sizes)[:-1])
        return np.array([int(np.argmax(mask)) for mask in masks]), None


def test_a_model_decides_in_the_simulator_as_it_does_in_its_environment() -> None:
    env = gymnasium.make("parcae/Cluster-v0", **_SETTINGS)
    model = FirstChoice(env)
    observation, info = env.reset(seed=7)
    while "average_jct_s" not in info:
        masks = env.get_wrapper_attr("action_masks")()
        action, _ = model.predict(observation, action_masks=masks)
        observation, _, _, _, info = env.step(action)
    episodes: ClusterEpisodes = env.unwrapped.episodes  # type: ignore[attr-defined]
    sequence = episodes.settings.sequence(episodes.workload, 7)
    policy = parcae.ModelPolicy(model, env, name="first")
    run = play(sequence, policy, episodes.settings.cluster, 7)
    average_s = float((run.completion_ms - run.arrival_ms).mean()) / 1000
    assert average_s == pytest.approx(info["average_jct_s"])
    assert run.policy == "first"


def test_a_model_is_compared_in_the_table_on_more_jobs_than_it_was_trained_on() -> None:
    env = gymnasium.make("parcae/Cluster-v0", **_SETTINGS)
    policy = parcae.ModelPolicy(FirstChoice(env), env, name="first")
    cluster = parcae.Cluster(executors=4)
    jobs = parcae.workload("toy").draw(9, "batch", cluster, seed=1)
    frame = parcae.compare(jobs, ["fair", policy], cluster, seeds=2, processes=1).to_frame()
    assert frame["policy"].to_list() == ["fair", "first"]
    assert frame["unfinished"].to_list() == [0, 0]


def test_a_model_of_another_environment_is_refused() -> None:
    env = gymnasium.make("parcae/Cluster-v0", **_SETTINGS)
    other = gymnasium.make("parcae/Cluster-v0", **{**_SETTINGS, "num_jobs": 5})
    with pytest.raises(ConfigError, match="trained on another observation"):
        parcae.ModelPolicy(FirstChoice(env), other)
    with pytest.raises(ConfigError, match="is not parcae/Cluster-v0"):
        parcae.ModelPolicy(FirstChoice(env), gymnasium.make("parcae/Packing-v0"))


def test_edges_of_another_workload_that_have_no_row_are_left_out() -> None:
    # A toy job has at most 2 edges, a job of four stages that wait for all before them has 6.
    dense = job("dense", *((1, 1_000, tuple(range(row))) for row in range(4)))
    simulator = Simulator(batch(dense, dense, dense), SimulationConfig(num_executors=4), 1)
    simulator.start()
    episodes = ClusterEpisodes(2, read_cluster(_SETTINGS))
    assert episodes.follow(0, simulator.observe())
    edges = episodes.observations()["edges"]
    of_one = [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert edges[0].tolist() == [*of_one, [4, 5], [4, 6]]
    assert (edges[1] == NO_ROW).all()


def test_a_model_that_chooses_classes_is_refused_on_a_cluster_without_them() -> None:
    env = gymnasium.make("parcae/Cluster-v0", **_SETTINGS, executor_classes="decima")
    policy = parcae.ModelPolicy(FirstChoice(env), env)
    jobs = parcae.workload("toy").draw(4, "batch", parcae.Cluster(executors=4), seed=1)
    with pytest.raises(PolicyError, match=r"1 executor class.* in an environment with 4; give"):
        parcae.simulate(jobs, policy, parcae.Cluster(executors=4))
    classes = parcae.Cluster(executors=4, executor_classes="decima")
    assert parcae.simulate(jobs, policy, classes).summary.unfinished == 0


@pytest.mark.parametrize("scales_observations", [True, False])
def test_a_model_of_normalised_observations_is_refused(scales_observations: bool) -> None:
    env = gymnasium.make("parcae/Cluster-v0", **_SETTINGS)
    model = FirstChoice(env)
    trained_on = VecNormalize(DummyVecEnv([lambda: env]), norm_obs=scales_observations)
    model.get_vec_normalize_env = lambda: trained_on  # type: ignore[attr-defined]
    if scales_observations:
        with pytest.raises(ConfigError, match="observations that VecNormalize scales"):
            parcae.ModelPolicy(model, env)
    else:
        assert parcae.ModelPolicy(model, env, name="first").name == "first"


def test_a_model_with_a_memory_is_refused() -> None:
    class Recurrent(FirstChoice):
        def predict(self, observation: Any, **options: Any) -> tuple[Any, Any]:
            mask = observation["action_mask"]
            action, _ = super().predict(observation, action_masks=mask)
            return action, np.zeros(3)

    env = gymnasium.make("parcae/Cluster-v0", **_SETTINGS)
    cluster = parcae.Cluster(executors=4)
    jobs = parcae.workload("toy").draw(4, "batch", cluster, seed=1)
    with pytest.raises(PolicyError, match="'recurrent': recurrent models cannot be policies"):
        parcae.simulate(jobs, parcae.ModelPolicy(Recurrent(env), env), cluster)


def newest_first(view: parcae.SchedulerView) -> list[parcae.JobView]:
    """The newest job first."""
    return list(reversed(view.jobs))


def test_a_plain_function_plans_for_a_live_application() -> None:
    calls = []

    def policy(view: parcae.SchedulerView) -> list[parcae.JobView]:
        calls.append(len(view.jobs))
        return newest_first(view)

    workload = parcae.workload("toy")
    players: list[threading.Thread] = []

    def begin(port: int, admin_port: int | None) -> None:
        client = simulated_client(workload, 3, 4)
        players.append(demonstrate(port, [client], times_faster=1000.0))

    with stopped_when(lambda: players and not players[0].is_alive()):
        parcae.serve(
            policy,
            workload,
            parcae.Cluster(cores=4),
            on_ready=begin,
            port=0,
            admin_port=None,
            for_s=60,
        )
    assert players
    assert max(calls) >= 2


def test_a_service_in_a_notebook_needs_a_thread_of_its_own() -> None:
    def serve() -> None:
        parcae.serve("fair", parcae.workload("toy"), parcae.Cluster(cores=4), port=0, for_s=0.0)

    async def of_notebook() -> None:
        with pytest.raises(ConfigError, match=r"^this thread runs an event loop, as notebooks"):
            serve()
        await asyncio.to_thread(serve)

    asyncio.run(of_notebook())


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServeSettings]:
    """The settings of the services that the test begins; none of them runs."""
    begun: list[ServeSettings] = []

    def serve(settings: ServeSettings, *_: object, **__: object) -> None:
        begun.append(settings)

    monkeypatch.setattr("parcae.api.serving.run", serve)
    return begun


def test_the_scope_and_the_paths_of_a_service_may_be_text(served: list[ServeSettings]) -> None:
    parcae.serve("fair", parcae.workload("toy"), scope="cluster", record="runs", learned=None)
    assert (served[0].scope is Scope.CLUSTER, served[0].record) == (True, Path("runs"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prot": 0}, "setting 'prot' does not exist; did you mean 'port'"),
        ({"num_cores": 4}, "setting 'num_cores' does not exist"),
        ({"scope": "all"}, "scope = .all.: Input should be .application. or .cluster."),
        ({"port": "x"}, "port = 'x': Input should be a valid integer"),
        ({"for_s": "x"}, "for_s = 'x': Input should be a valid number"),
        ({"for_s": -1.0}, "Input should be greater than or equal to 0"),
        ({"for_s": float("nan")}, "Input should be greater than or equal to 0"),
        ({"port": -2}, "^setting port = -2: Input should be "),
        ({"admin_port": 65_536}, "^setting admin_port = 65536: Input should be "),
    ],
)
def test_settings_of_a_service_that_do_not_exist_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parcae.serve("fair", parcae.workload("toy"), **settings)


def test_a_policy_object_has_a_memory_of_its_own_for_every_application(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []

    def serve(settings: Any, workload: Any, on_ready: Any, policy_for: PolicyFor) -> None:
        made.extend(policy_for(4).policy for _ in range(2))

    monkeypatch.setattr("parcae.api.serving.run", serve)
    cluster = parcae.Cluster(cores=4)
    workload = parcae.workload("toy")
    policy = named_policy("decima:batch", workload, cluster)
    parcae.serve(policy, workload, cluster)
    assert made[0] is not made[1]
    assert made[0].name == made[1].name == policy.name
