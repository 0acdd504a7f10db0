"""Training by gradients: it learns, saves, resumes exactly, and stops when it diverges."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from parcae.base.errors import ConfigError, FormatError
from parcae.decima.checkpoints import rule_checkpoint
from parcae.decima.graph.layout import DecimaSettings, FeatureSet, Limits
from parcae.decima.learning.gradients import GradientLearner
from parcae.decima.learning.recipes import (
    Recipe,
    TrainRequest,
    fair_runs,
    mean_gap_s,
    parse_recipe,
    recipe_config,
)
from parcae.decima.learning.world import start_deciding_rule, start_weights
from parcae.decima.rule import RuleParameter, start_parameters
from parcae.learning.config import STATE_FILE, Algorithm, TrainConfig, override
from parcae.learning.loop import (
    BEST_FILE,
    IterationSeeds,
    Progress,
    TrainingPlan,
    TrainResult,
    train,
)
from parcae.learning.scenario import Scenario, start_rule
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.objectives import Objective
from parcae.workloads.demands import with_work
from parcae.workloads.workload import Workload
from tests.conftest import job, made_up
from tests.learning.test_class_and_idle_heads import _STREAM as _WITH_CLASSES

_WORKLOAD = made_up(10, 6.0)
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


def _train(
    request: TrainRequest, iterations: int, progress: Progress | None = None, **plan: Any
) -> TrainResult:
    """Train for a number of iterations; `plan` has further fields of the plan."""
    return train(GradientLearner(request), TrainingPlan(1e6, iterations, **plan), progress)


_REQUEST = TrainRequest([_SCENARIO], _SMALL, parameters=_longest_first())


def test_training_mends_a_bad_rule_in_seconds() -> None:
    config = _SMALL.model_copy(
        update={"num_groups": 4, "learning_rate": 5e-3, "prior": (0.5, 0.5, 0.5)}
    )
    request = replace(_REQUEST, config=config)
    result = _train(request, 24)
    untrained = _train(request, 1)
    assert result.ending == "done"
    assert result.best < 0.97 * untrained.best


#: It imitates in the first half, and then explores, in windows.
_BOTH_HEADS = TrainRequest(
    [_WITH_CLASSES],
    _SMALL.model_copy(update={"imitation": 0.5, "window_s": 60.0, "early_gap": 2.0}),
    "decima",
    start_parameters(),
    DecimaSettings(executor_classes=True, idle_lengths=4, critical_path=True, average_width=True),
)


@pytest.mark.parametrize(
    "request_",
    [_REQUEST, replace(_REQUEST, network="decima"), _BOTH_HEADS],
    ids=["corrector", "decima", "both heads"],
)
def test_a_training_that_was_killed_resumes_to_the_very_same_weights(
    request_: TrainRequest, tmp_path: Path
) -> None:
    whole = _train(request_, 6, folder=tmp_path / "whole")
    stopped: list[int] = []

    def kill(iteration: object) -> None:
        stopped.append(1)
        if len(stopped) == 3:  # one iteration after the state was last written
            raise MemoryError

    with pytest.raises(MemoryError):
        _train(request_, 6, kill, folder=tmp_path / "killed")
    resumed = _train(request_, 6, folder=tmp_path / "killed", is_resumed=True)
    assert resumed.iterations == whole.iterations == 6
    assert resumed.counts == whole.counts
    states = [read_checkpoint(tmp_path / name / STATE_FILE) for name in ("whole", "killed")]
    for name, array in states[0].weights.items():
        assert np.array_equal(array, states[1].weights[name]), name


def test_one_network_serves_several_settings_in_turn(tmp_path: Path) -> None:
    larger = with_work(10.0)(_WORKLOAD)[0]
    others = [
        Scenario(_WORKLOAD, _CONFIG.model_copy(update={"num_executors": 120}), "load:0.6", 8),
        Scenario(larger, _CONFIG, "batch", 4),
    ]
    request = TrainRequest(
        [_SCENARIO, *others], _SMALL, "decima", decima=DecimaSettings(features="relative")
    )
    whole = _train(request, 6, folder=tmp_path / "whole")
    # Three iterations and then three more are the same as six.
    _train(request, 4, folder=tmp_path / "parts")
    resumed = _train(request, 6, folder=tmp_path / "parts", is_resumed=True)
    assert resumed.iterations == whole.iterations == 6
    weights = [read_checkpoint(tmp_path / name / STATE_FILE).weights for name in ("whole", "parts")]
    assert weights[0].keys() == weights[1].keys()
    card = whole.checkpoint.card
    assert [one["executors"] for one in (card, *card["also"])] == [6, 120, 6]
    # What is measured is the mean of the ratios to fair sharing in each setting.
    learner = GradientLearner(request)
    alone = [GradientLearner(replace(request, scenarios=[one])) for one in request.scenarios]
    assert learner.begin()[0][0] > 0
    start = learner.weights()
    ratios = []
    for one in alone:
        one.network.load_arrays(start)
        ratios.append(one.measure()[0][0])
    assert learner.measure()[0][0] == pytest.approx(np.mean(ratios))


@pytest.mark.parametrize(
    ("arrivals", "num_jobs", "window_s", "seed", "is_known"),
    [
        # A missed deadline costs 0.001; what a new critic says may be a hundred times as much.
        *(("load:1.5", 60, 600.0, seed, True) for seed in range(3)),
        # Without costs the critic gets its scale later.
        ("poisson:1000s", 20, 60.0, 0, False),
    ],
)
def test_the_scale_of_the_critic_is_that_of_costs_alone(
    arrivals: str, num_jobs: int, window_s: float, seed: int, is_known: bool
) -> None:
    scenario = Scenario(_WORKLOAD, _CONFIG, arrivals, num_jobs, Objective.MISSED_DEADLINES)
    config = _SMALL.model_copy(update={"window_s": window_s})
    learner = GradientLearner(TrainRequest([scenario], config, "decima", seed=seed))
    learner.iterate(IterationSeeds(seed, 0), 0.0)
    mean, spread = learner.state()["settings"][0]["value"]
    if is_known:
        assert 0.0 < mean < 0.02
        assert 0.0 < spread < 0.02
    else:
        assert (mean, spread) == (0.0, 1.0)


def test_one_output_for_each_limit_needs_clusters_of_one_size() -> None:
    other = replace(_SCENARIO, config=_CONFIG.model_copy(update={"num_executors": 4}))
    settings = DecimaSettings(limits="outputs")
    request = TrainRequest([_SCENARIO, other], _SMALL, "decima", decima=settings)
    with pytest.raises(ConfigError, match="use limits=input"):
        GradientLearner(request)


def test_a_stream_is_walked_through_in_windows_with_a_critic() -> None:
    scenario = Scenario(_WORKLOAD, _CONFIG, "load:0.6", 12)
    config = recipe_config(Recipe.FAST, scenario)
    assert config.window_s is not None
    sizes = {"num_groups": 2, "group_size": 4, "num_selection": 4, "select_every": 3}
    small = config.model_copy(update={**sizes, "capacity": 128})
    losses: list[float] = []
    request = TrainRequest([scenario], small, parameters=start_parameters())
    result = _train(request, 6, lambda i: losses.append(i.numbers["loss/value"]))
    assert result.iterations == 6
    assert all(loss > 0 for loss in losses)


def test_windows_in_which_nothing_is_decided_are_passed_over() -> None:
    scenario = Scenario(_WORKLOAD, _CONFIG, "poisson:600s", 5)
    config = _SMALL.model_copy(update={"window_s": 20.0, "horizon_s": 20.0, "num_groups": 1})
    result = _train(TrainRequest([scenario], config, parameters=start_parameters()), 6)
    assert (result.ending, result.iterations) == ("done", 6)


def test_windows_and_horizons_are_longer_than_jobs_take() -> None:
    """On a large cluster with long moves, a job takes many gaps between arrivals."""
    config = SimulationConfig(num_executors=60, moving_delay_ms=20_000)
    scenario = Scenario(_WORKLOAD, config, "load:0.5", 200)
    recipe = recipe_config(Recipe.FAST, scenario)
    fair = fair_runs(scenario)
    assert fair.average_jct_s > 10 * mean_gap_s(scenario)
    assert recipe.window_s == pytest.approx(7 * fair.average_jct_s)
    assert recipe.horizon_s == pytest.approx(5 * fair.average_jct_s)


def test_jobs_that_an_end_cuts_off_count_up_to_it_and_those_that_never_arrive_do_not() -> None:
    config = SimulationConfig(num_executors=6, end_ms=100_000)
    scenario = Scenario(_WORKLOAD, config, "load:0.3", 100)
    setting = GradientLearner(replace(_REQUEST, scenarios=[scenario]))._setting
    average_s = setting.measured.cost / 1000
    # All of these runs have about as many jobs.
    assert setting.fair_jct_s == pytest.approx(average_s, rel=0.2)
    assert average_s < setting.tail_ms / 1000 < 100
    assert fair_runs(scenario).average_jct_s == pytest.approx(average_s, rel=0.2)


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

    def decisions(iterations: int, **changes: float | None) -> list[float]:
        small = config.model_copy(update={"num_selection": 4, "capacity": 512, **changes})
        counts: list[float] = []
        request = TrainRequest([scenario], small, "decima")
        _train(request, iterations, lambda i: counts.append(i.numbers["run/decisions"]))
        return counts

    whole = decisions(2, episode_s=None, episode_growth_s=0.0, episode_max_s=None)
    assert max(decisions(4, episode_s=config.episode_s / 8)) < 0.9 * min(whole)


def test_queues_that_grow_without_bound_stop_the_training_and_keep_the_best() -> None:
    config = _SMALL.model_copy(update={"max_jobs_factor": 1.0001})
    scenario = Scenario(_WORKLOAD, _CONFIG, "load:4", 40)
    result = _train(TrainRequest([scenario], config, parameters=start_parameters()), 3)
    assert "queues grow without bound" in result.ending
    assert "best policy so far is kept" in result.ending
    assert np.isfinite(result.best)


@pytest.mark.parametrize("network", ["corrector", "decima"])
def test_weights_that_explode_stop_the_training_and_keep_the_best(
    network: str, tmp_path: Path
) -> None:
    # A single step, after which no loss is computed that would not be finite.
    single = {"learning_rate": 1e30, "epochs": 1, "minibatch": 100_000}
    request = replace(_REQUEST, network=network, config=_SMALL.model_copy(update=single))
    result = _train(request, 3, folder=tmp_path)
    assert re.search("no longer numbers|not finite", result.ending)
    assert read_checkpoint(tmp_path / BEST_FILE).weights.keys() == result.checkpoint.weights.keys()
    assert np.isfinite(result.best)


@pytest.mark.parametrize("objective", list(Objective))
def test_every_objective_can_be_trained_for(objective: Objective) -> None:
    scenario = Scenario(_WORKLOAD, _CONFIG, "load:0.8", 8, objective)
    config = recipe_config(Recipe.FAST, scenario)
    small = config.model_copy(
        update={"num_groups": 2, "group_size": 2, "num_selection": 4, "capacity": 128}
    )
    result = _train(TrainRequest([scenario], small, parameters=start_parameters()), 2)
    assert result.checkpoint.card["objective"] == objective
    assert np.isfinite(result.best)


_TAUGHT = TrainRequest(
    [_SCENARIO], _SMALL.model_copy(update={"imitation": 1.0}), "decima", start_parameters()
)


@pytest.mark.parametrize(
    ("request_", "others"),
    [
        (
            _REQUEST,
            {
                "another config": {"config": _SMALL.model_copy(update={"learning_rate": 0.5})},
                "another rule": {"parameters": start_parameters()},
                "another kind": {"network": "decima"},
            },
        ),
        (
            replace(_REQUEST, scenarios=[_SCENARIO, replace(_SCENARIO, num_jobs=4)]),
            {"another also": {"scenarios": [_SCENARIO]}},
        ),
        (_TAUGHT, {"another imitated rule": {"parameters": _longest_first()}}),
    ],
    ids=["one setting", "several", "taught"],
)
def test_a_training_of_something_else_is_not_resumed(
    request_: TrainRequest, others: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    _train(request_, 2, folder=tmp_path)
    for what, changes in others.items():
        with pytest.raises(ConfigError, match=what):
            _train(replace(request_, **changes), 4, folder=tmp_path, is_resumed=True)
    assert _train(request_, 4, folder=tmp_path, is_resumed=True).iterations == 4


def test_a_state_of_another_version_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    _train(_REQUEST, 2, folder=folder)
    path = folder / STATE_FILE
    saved = read_checkpoint(path)
    write_checkpoint(Checkpoint(saved.kind, 99, saved.weights, saved.settings), path)
    with pytest.raises(FormatError, match="feature version 99"):
        _train(_REQUEST, 6, folder=folder, is_resumed=True)
    # States of earlier versions of Parcae have no identity.
    write_checkpoint(Checkpoint(saved.kind, saved.feature_version, saved.weights, {}), path)
    with pytest.raises(FormatError, match="use the version that wrote it"):
        _train(_REQUEST, 6, folder=folder, is_resumed=True)


def test_a_training_does_not_start_from_weights_that_mean_something_else(tmp_path: Path) -> None:
    code = DecimaSettings(features=FeatureSet.CODE)
    request = TrainRequest([_SCENARIO], _SMALL, "decima", decima=code)
    path = tmp_path / "code.safetensors"
    trained = Checkpoint("decima", 1, GradientLearner(request).weights(), code.model_dump())
    write_checkpoint(trained, path)
    # The features of the paper are as many, but others.
    with pytest.raises(FormatError, match="add --decima features=code"):
        start_weights(str(path), "decima", _SCENARIO, DecimaSettings())
    assert start_weights(str(path), "decima", _SCENARIO, code).keys() == trained.weights.keys()
    # A training with idle slots would lack the weights of their head.
    slots = DecimaSettings(features=FeatureSet.CODE, idle_lengths=5)
    with pytest.raises(FormatError, match="add --decima idle_lengths=0"):
        start_weights(str(path), "decima", _SCENARIO, slots)
    write_checkpoint(replace(trained, settings=slots.model_dump()), path)
    start_weights(str(path), "decima", _SCENARIO, slots.model_copy(update={"idle_lengths": 3}))
    write_checkpoint(replace(trained, feature_version=0), path)
    with pytest.raises(FormatError, match="feature version 0"):
        start_weights(str(path), "decima", _SCENARIO, code)
    write_checkpoint(replace(rule_checkpoint(start_parameters(), {}), feature_version=0), path)
    with pytest.raises(FormatError, match="feature version 0"):
        start_rule(str(path), _SCENARIO)


def test_weights_to_start_from_are_complete_and_of_any_precision() -> None:
    weights = GradientLearner(_REQUEST).network.export()
    with pytest.raises(FormatError, match="'prior' should have shape"):
        GradientLearner(replace(_REQUEST, weights={**weights, "prior": weights["prior"][:1]}))
    del weights["value1.weight"]
    with pytest.raises(FormatError, match=r"'value1\.weight' should have shape"):
        GradientLearner(replace(_REQUEST, weights=weights))
    doubles = {
        name: array.astype(np.float64)
        for name, array in GradientLearner(_REQUEST).network.export().items()
    }
    assert _train(replace(_REQUEST, weights=doubles), 1).ending == "done"


def test_settings_are_overridden_by_name_and_unknown_ones_refused() -> None:
    changed = override(TrainConfig(), ["learning_rate=0.5", "prior=1,2,3", "window_s=none"])
    assert (changed.learning_rate, changed.prior, changed.window_s) == (0.5, (1.0, 2.0, 3.0), None)
    assert override(DecimaSettings(), ["has_graph=false"]).has_graph is False
    for limits in Limits:
        assert override(DecimaSettings(), [f"limits={limits}"]).limits is limits
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        override(TrainConfig(), ["learning_rat=1"])
    with pytest.raises(ConfigError, match="key=value"):
        override(TrainConfig(), ["epochs"])
    for setting in ("window_s=inf", "episode_s=inf", "window_s=0.0004", "prior=nan,1,1"):
        with pytest.raises(ValidationError):
            override(TrainConfig(), [setting])
    with pytest.raises(ConfigError, match="fast, imitation, decima-2019"):
        parse_recipe("slow")


_NOTHING = Workload("nothing", (job("a", (1, 0, ())),))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": "gcn"}, "corrector or decima"),
        ({"parameters": None}, "--rule"),
        *(({"device": device}, "write cpu or cuda") for device in ("gpu", "meta", "")),
        ({"device": "cuda:99"}, "no such CUDA device"),
        ({"config": _SMALL.model_copy(update={"early_gap": 3.0})}, "early_gap=3 stretches"),
        ({"scenarios": [Scenario(_NOTHING, _CONFIG, "batch", 2)]}, "no durations"),
    ],
)
def test_what_cannot_be_trained_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GradientLearner(replace(_REQUEST, **changes))


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
    fresh = _train(TrainRequest([_SCENARIO], config, "decima"), 1)
    imitating = config.model_copy(update={"imitation": 1.0})
    losses: list[float] = []
    request = TrainRequest([_SCENARIO], imitating, "decima", rule)
    taught = _train(request, 50, lambda i: losses.append(i.numbers["loss/policy"]))
    assert losses[-1] < 0.85 * losses[0]
    assert taught.best < fresh.best
    with pytest.raises(ConfigError, match="needs a tuned rule"):
        GradientLearner(replace(request, parameters=None))
    with pytest.raises(ConfigError, match="needs no imitation"):
        _train(replace(request, network="corrector"), 1)


_ON_GPU = TrainRequest([_SCENARIO], _SMALL, parameters=start_parameters(), device="cuda")
_needs_gpu = pytest.mark.skipif(
    torch.cuda.device_count() == 0, reason="PyTorch finds no CUDA device on this machine"
)


@_needs_gpu
@pytest.mark.parametrize("network", ["corrector", "decima"])
def test_an_iteration_changes_the_weights_as_on_the_cpu(network: str) -> None:
    moved = {}
    for device in ("cpu", "cuda"):
        learner = GradientLearner(replace(_ON_GPU, network=network, device=device))
        before = learner.network.export()
        learner.learn(learner.collect(), 1.0)
        after = learner.network.export()
        moved[device] = np.concatenate([(after[name] - before[name]).ravel() for name in before])
    # Adam moves a weight whose gradient is zero but for rounding as far as any other.
    difference = float(np.linalg.norm(moved["cuda"] - moved["cpu"]))
    assert difference < 0.05 * float(np.linalg.norm(moved["cpu"]))


@_needs_gpu
@pytest.mark.parametrize("network", ["corrector", "decima"])
def test_a_training_goes_on_with_another_device(network: str, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    request = replace(_ON_GPU, network=network)
    first = train(GradientLearner(request), TrainingPlan(1e6, 2, folder=folder))
    assert first.iterations == 2
    plan = TrainingPlan(1e6, 4, folder=folder, is_resumed=True)
    for device, iterations in (("cpu", 3), ("cuda", 4)):
        more = replace(plan, max_iterations=iterations)
        result = train(GradientLearner(replace(request, device=device)), more)
        assert result.iterations == iterations
    assert np.isfinite(result.best)
    for array in read_checkpoint(folder / BEST_FILE).weights.values():
        assert np.isfinite(array).all()


_ON_CORES = SimulationConfig(world=WorldName.CORES, num_executors=6)


@pytest.mark.parametrize("arrivals", ["batch", "load:0.8"])
@pytest.mark.parametrize("network", ["corrector", "decima"])
def test_an_iteration_of_training_runs_on_cores(network: str, arrivals: str) -> None:
    scenario = Scenario(_WORKLOAD, _ON_CORES, arrivals, 5)
    request = TrainRequest([scenario], _SMALL, network, start_parameters())
    result = train(GradientLearner(request), TrainingPlan(1e6, max_iterations=1))
    assert result.ending == "done"
    assert result.counts["decisions"] > 0
    assert 0.1 < result.best < 10  # a network that has learned nothing


@pytest.mark.parametrize("network", ["corrector", "decima"])
def test_a_rule_that_plans_orders_is_neither_corrected_nor_imitated(network: str) -> None:
    scenario = Scenario(_WORKLOAD, _ON_CORES, "batch", 5)
    imitating = _SMALL.model_copy(update={"imitation": 0.3 if network == "decima" else 0.0})
    orders = start_rule("tuned", scenario)
    with pytest.raises(ConfigError, match="plans orders"):
        GradientLearner(TrainRequest([scenario], imitating, network, orders))
    with pytest.raises(FormatError, match=r"--rule tuned: .*--recipe fast"):
        start_deciding_rule("tuned", scenario)
    assert start_deciding_rule("tuned:batch", scenario).shape == start_parameters().shape


def test_idle_slots_are_refused_before_the_training() -> None:
    scenario = Scenario(_WORKLOAD, _ON_CORES, "batch", 5)
    request = TrainRequest([scenario], _SMALL, "decima", decima=DecimaSettings(idle_lengths=4))
    with pytest.raises(ConfigError, match="the world of cores has no idle slots"):
        GradientLearner(request)
