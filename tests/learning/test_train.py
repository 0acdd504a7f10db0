"""The training loop: it learns, saves, resumes exactly, and stops when it diverges."""

from pathlib import Path

import numpy as np
import pytest

from parcae.errors import ConfigError, DivergedError, FormatError
from parcae.learning.config import Algorithm, TrainConfig, override
from parcae.learning.recipes import Recipe, parse_recipe, recipe_config
from parcae.learning.run import TrainRequest, train_policy
from parcae.learning.scenario import Scenario
from parcae.learning.train import STATE_FILE
from parcae.metrics.objectives import Objective
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parcae.policies.decima.layout import DecimaSettings
from parcae.policies.rule.layout import RuleParameter
from parcae.policies.rule.policy import start_parameters
from parcae.simulation.config import SimulationConfig
from parcae.workloads.job import JobSpec, StageSpec, TaskDurations, Workload
from parcae.workloads.synthetic import RandomDags, random_dags

_WORKLOAD = random_dags(
    RandomDags(num_jobs=10, mean_tasks=6.0), np.random.default_rng(0), "made up"
)
_CONFIG = SimulationConfig(num_executors=6)
_SCENARIO = Scenario(_WORKLOAD, _CONFIG, "batch", 5)
_SMALL = TrainConfig(
    num_groups=2,
    group_size=4,
    capacity=256,
    minibatch=256,
    select_every=2,
    num_selection=8,
    averaging=0.5,
)


def _longest_first() -> np.ndarray:  # type: ignore[type-arg]
    """A rule that is as bad as possible: the most remaining work first."""
    theta = start_parameters()
    theta[RuleParameter.SCORE_WORK] = -3.0
    return theta


def _request(**changes: object) -> TrainRequest:
    given: dict[str, object] = {
        "parameters": _longest_first(),
        "budget_s": 1e6,
        "max_iterations": 6,
        **changes,
    }
    return TrainRequest(
        _SCENARIO,
        changes.pop("config", _SMALL),
        **{k: v for k, v in given.items() if k != "config"},
    )  # type: ignore[arg-type]


def test_training_mends_a_bad_rule_in_seconds() -> None:
    config = _SMALL.model_copy(
        update={"num_groups": 4, "learning_rate": 5e-3, "prior": (0.5, 0.5, 0.5)}
    )
    result = train_policy(_request(config=config, max_iterations=24))
    untrained = train_policy(_request(config=config, max_iterations=1))
    assert result.ending == "done"
    assert result.ratio_to_fair < 0.97 * untrained.ratio_to_fair


@pytest.mark.parametrize("network", ["parcae", "decima"])
def test_a_training_that_was_killed_resumes_to_the_very_same_weights(
    network: str, tmp_path: Path
) -> None:
    whole = train_policy(_request(network=network, folder=tmp_path / "whole"))
    stopped: list[int] = []

    def kill(iteration: object) -> None:
        stopped.append(1)
        if len(stopped) == 3:  # one iteration after the state was last written
            raise MemoryError

    with pytest.raises(MemoryError):
        train_policy(_request(network=network, folder=tmp_path / "killed"), kill)
    resumed = train_policy(_request(network=network, folder=tmp_path / "killed", is_resumed=True))
    assert resumed.iterations == whole.iterations == 6
    assert resumed.decisions == whole.decisions
    states = [read_checkpoint(tmp_path / name / STATE_FILE) for name in ("whole", "killed")]
    for name, array in states[0].weights.items():
        assert np.array_equal(array, states[1].weights[name]), name


def test_a_stream_is_walked_through_in_windows_with_a_critic(tmp_path: Path) -> None:
    scenario = Scenario(_WORKLOAD, _CONFIG, "load:0.6", 12)
    config = recipe_config(Recipe.FAST, scenario)
    assert config.window_s is not None
    small = config.model_copy(
        update={
            "num_groups": 2,
            "group_size": 4,
            "num_selection": 4,
            "select_every": 3,
            "capacity": 128,
        }
    )
    losses: list[float] = []
    request = TrainRequest(
        scenario, small, parameters=start_parameters(), budget_s=1e6, max_iterations=6
    )
    result = train_policy(request, lambda i: losses.append(i.report.value_loss))
    assert result.iterations == 6
    assert all(loss > 0 for loss in losses)


def test_windows_in_which_nothing_is_decided_are_passed_over() -> None:
    scenario = Scenario(_WORKLOAD, _CONFIG, "poisson:600s", 5)
    config = _SMALL.model_copy(update={"window_s": 20.0, "horizon_s": 20.0, "num_groups": 1})
    result = train_policy(
        TrainRequest(scenario, config, parameters=start_parameters(), budget_s=60, max_iterations=6)
    )
    assert (result.ending, result.iterations) == ("done", 6)


def test_the_horizon_grows_where_executors_hardly_rest() -> None:
    loads = (0.2, 0.85, 2.0)
    usual, busy, full = (
        recipe_config(Recipe.FAST, Scenario(_WORKLOAD, _CONFIG, f"load:{x}", 200)) for x in loads
    )
    gaps = [c.horizon_s / c.window_s for c in (usual, busy, full) if c.horizon_s and c.window_s]
    assert gaps[0] == pytest.approx(0.5)
    assert gaps[0] < gaps[1] <= gaps[2] == pytest.approx(170 / 50)
    assert full.entropy < usual.entropy


def test_decima_2019_ends_its_episodes_and_lets_them_grow() -> None:
    scenario = Scenario(_WORKLOAD, _CONFIG, "load:0.6", 30)
    config = recipe_config(Recipe.DECIMA_2019, scenario)
    assert config.algorithm is Algorithm.REINFORCE
    assert config.is_differential
    assert (config.num_groups, config.group_size, config.learning_rate) == (1, 16, 1e-3)
    assert config.episode_s is not None
    short = config.model_copy(
        update={"episode_s": config.episode_s / 8, "num_selection": 4, "capacity": 512}
    )
    counts: list[int] = []
    request = TrainRequest(scenario, short, "decima", budget_s=1e6, max_iterations=4)
    train_policy(request, lambda i: counts.append(i.decisions))
    unended = short.model_copy(
        update={"episode_s": None, "episode_growth_s": 0.0, "episode_max_s": None}
    )
    whole: list[int] = []
    request = TrainRequest(scenario, unended, "decima", budget_s=1e6, max_iterations=2)
    train_policy(request, lambda i: whole.append(i.decisions))
    assert max(counts) < 0.9 * min(whole)


def test_queues_that_grow_without_bound_stop_the_training_and_keep_the_best() -> None:
    config = _SMALL.model_copy(update={"max_jobs_factor": 1.0001})
    scenario = Scenario(_WORKLOAD, _CONFIG, "load:4", 40)
    result = train_policy(
        TrainRequest(
            scenario, config, parameters=start_parameters(), budget_s=1e6, max_iterations=3
        )
    )
    assert "queues grow without bound" in result.ending
    assert "best policy so far is kept" in result.ending
    assert np.isfinite(result.ratio_to_fair)
    assert issubclass(DivergedError, Exception)


@pytest.mark.parametrize("objective", list(Objective))
def test_every_objective_can_be_trained_for(objective: Objective) -> None:
    scenario = Scenario(_WORKLOAD, _CONFIG, "load:0.8", 8, objective)
    config = recipe_config(Recipe.FAST, scenario)
    small = config.model_copy(
        update={"num_groups": 2, "group_size": 2, "num_selection": 4, "capacity": 128}
    )
    result = train_policy(
        TrainRequest(scenario, small, parameters=start_parameters(), budget_s=1e6, max_iterations=2)
    )
    assert result.checkpoint.card["objective"] == objective
    assert np.isfinite(result.ratio_to_fair)


def test_a_folder_that_holds_a_training_is_not_overwritten(tmp_path: Path) -> None:
    train_policy(_request(folder=tmp_path / "a", max_iterations=2))
    with pytest.raises(ConfigError, match="resume it with --resume"):
        train_policy(_request(folder=tmp_path / "a"))
    changed = _SMALL.model_copy(update={"learning_rate": 0.5})
    with pytest.raises(ConfigError, match="another config"):
        train_policy(_request(config=changed, folder=tmp_path / "a", is_resumed=True))
    with pytest.raises(ConfigError, match="another rule"):
        train_policy(
            _request(folder=tmp_path / "a", is_resumed=True, parameters=start_parameters())
        )
    with pytest.raises(FileNotFoundError):
        train_policy(_request(folder=tmp_path / "nothing", is_resumed=True))


def test_a_state_of_another_feature_version_is_refused(tmp_path: Path) -> None:
    train_policy(_request(folder=tmp_path / "a", max_iterations=2))
    path = tmp_path / "a" / STATE_FILE
    old = read_checkpoint(path)
    write_checkpoint(Checkpoint(old.kind, 99, old.weights, old.settings), path)
    with pytest.raises(FormatError, match="feature version 99"):
        train_policy(_request(folder=tmp_path / "a", is_resumed=True))


def test_a_full_disk_in_mid_checkpoint_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a"
    train_policy(_request(folder=folder, max_iterations=2))
    before = (folder / STATE_FILE).read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        train_policy(_request(folder=folder, max_iterations=4, is_resumed=True))
    monkeypatch.undo()
    assert (folder / STATE_FILE).read_bytes() == before
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]
    assert train_policy(_request(folder=folder, max_iterations=4, is_resumed=True)).iterations == 4


def test_a_workload_without_durations_is_refused() -> None:
    nothing = Workload("nothing", (JobSpec("a", (StageSpec(1, TaskDurations.constant(0)),)),))
    with pytest.raises(ConfigError, match="no durations"):
        train_policy(
            TrainRequest(
                Scenario(nothing, _CONFIG, "batch", 2), _SMALL, parameters=start_parameters()
            )
        )


def test_settings_are_overridden_by_name_and_unknown_ones_refused() -> None:
    changed = override(TrainConfig(), ["learning_rate=0.5", "prior=1,2,3", "window_s=none"])
    assert (changed.learning_rate, changed.prior, changed.window_s) == (0.5, (1.0, 2.0, 3.0), None)
    assert override(DecimaSettings(), ["has_graph=false"]).has_graph is False
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        override(TrainConfig(), ["learning_rat=1"])
    with pytest.raises(ConfigError, match="key=value"):
        override(TrainConfig(), ["epochs"])
    with pytest.raises(ConfigError, match="fast, decima-2019"):
        parse_recipe("slow")


def test_unknown_devices_and_networks_are_refused() -> None:
    with pytest.raises(ConfigError, match="parcae or decima"):
        train_policy(_request(network="gcn"))
    with pytest.raises(ConfigError, match="--rule"):
        train_policy(_request(parameters=None))


def test_decima_imitates_a_rule_before_it_learns_by_itself() -> None:
    config = TrainConfig(
        num_groups=2,
        group_size=4,
        capacity=256,
        minibatch=128,
        select_every=50,
        num_selection=16,
        learning_rate=3e-3,
    )
    rule = start_parameters()
    fresh = train_policy(TrainRequest(_SCENARIO, config, "decima", budget_s=1e6, max_iterations=1))
    imitating = config.model_copy(update={"imitation": 1.0})
    request = TrainRequest(
        _SCENARIO, imitating, "decima", parameters=rule, budget_s=1e6, max_iterations=50
    )
    losses: list[float] = []
    taught = train_policy(request, lambda i: losses.append(i.report.loss))
    assert losses[-1] < 0.85 * losses[0]
    assert taught.ratio_to_fair < fresh.ratio_to_fair
    with pytest.raises(ConfigError, match="needs a tuned rule"):
        train_policy(TrainRequest(_SCENARIO, imitating, "decima", budget_s=1e6, max_iterations=1))
    with pytest.raises(ConfigError, match="needs no imitation"):
        train_policy(
            TrainRequest(
                _SCENARIO, imitating, "parcae", parameters=rule, budget_s=1e6, max_iterations=1
            )
        )
