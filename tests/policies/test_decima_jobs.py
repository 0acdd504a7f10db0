"""The feature set `jobs` of Decima's network: what the scores know directly."""

import math

import numpy as np
import pytest
from pydantic import ValidationError

from parcae.decima.graph.kernels.embeddings import embed
from parcae.decima.graph.kernels.heads import score_stages
from parcae.decima.graph.layout import (
    DecimaSettings,
    Direct,
    LimitFeature,
    decima_levels,
    initial_weights,
)
from parcae.decima.graph.policy import DecimaPolicy, curves_for, magnitudes_of
from parcae.decima.learning.recipes import TrainRequest, make_family
from parcae.decima.queries import draw_decision
from parcae.learning.config import TrainConfig
from parcae.learning.scenario import Scenario
from parcae.policies.compiled import size_of
from parcae.simulation.config import SimulationConfig
from parcae.simulation.simulator import Simulator
from parcae.workloads.job import JobSpec
from parcae.workloads.workload import JobSequence, Workload
from tests.conftest import job

_SETTINGS = DecimaSettings.model_validate({"features": "jobs"})
#: Eight executors that move and warm up in no time.
_CONFIG = SimulationConfig(num_executors=8, moving_delay_ms=0, warmup_delay_ms=0)


def _job(name: str, *num_tasks: int) -> JobSpec:
    """A chain of stages with tasks of a second."""
    stages = [(count, 1_000, (row - 1,) if row else ()) for row, count in enumerate(num_tasks)]
    return job(name, *stages)


def _begun(settings: DecimaSettings = _SETTINGS) -> tuple[Simulator, DecimaPolicy]:
    """Two jobs that wait for eight executors: 8 + 4 tasks one after another, and 36 tasks."""
    workload = Workload("two", (_job("small", 8, 4), _job("large", 36)))
    zeros = np.zeros(2, np.int64)
    simulator = Simulator(JobSequence(workload, np.arange(2), zeros), _CONFIG, 0)
    simulator.start()
    levels = len(decima_levels(8, settings))
    weights = initial_weights(np.random.default_rng(0), settings, levels)
    magnitudes = magnitudes_of(workload, _CONFIG)
    curves = curves_for(settings, workload, _CONFIG)
    return simulator, DecimaPolicy("decima", weights, settings, 8, magnitudes, curves)


def _scored(settings: DecimaSettings = _SETTINGS) -> list[dict[Direct, float]]:
    """What the scores know directly of each stage that may be chosen."""
    simulator, policy = _begun(settings)
    view = simulator.observe()
    work = policy.tables_for(*size_of(view)).work
    embed(view, policy.network, work)
    count = int(score_stages(view, policy.network, work))
    assert (work.stage[0], work.stage[count - 1]) == (0, 2)
    return [dict(zip(Direct, row.tolist(), strict=True)) for row in work.direct[:count]]


def test_what_the_scores_know_of_a_stage() -> None:
    small, *_, large = _scored()
    # The mean work is 24 s; 48 s remain; all eight executors are offered and belong to no job.
    expected = {
        Direct.OFFERED: math.log(9),
        Direct.IS_GLOBAL: 1.0,
        Direct.JOBS: math.log(2),
        Direct.TOTAL: math.log(2.001),
        Direct.REMAINING: math.log(0.501),
        Direct.WORTH: math.log(0.501),
        Direct.WAVES: math.log(2),
        Direct.TASK: math.log(11),
        Direct.OF_JOB: 2 / 3,
        **dict.fromkeys((Direct.IS_LOCAL, Direct.RANK, Direct.STARTED, Direct.HELD), 0.0),
        **dict.fromkeys((Direct.IS_RUNNABLE, Direct.PATH, Direct.DEMAND), 1.0),
        Direct.ROUNDING: 0.0,
        Direct.OF_SIBLINGS: 1.0,
    }
    assert {feature: small[feature] for feature in expected} == pytest.approx(expected, rel=1e-5)
    # 36 tasks on 8 executors.
    expected = {
        Direct.RANK: 0.5,
        Direct.REMAINING: math.log(1.501),
        Direct.WAVES: math.log1p(36 / 8),
        Direct.ROUNDING: 0.5,
    }
    assert {feature: large[feature] for feature in expected} == pytest.approx(expected, rel=1e-5)
    # At a high price of executors fewer suit a job.
    assert 1.0 >= small[Direct.LEVEL_CHEAP] >= small[Direct.LEVEL_DEAREST] > 0.0


def test_jobs_that_are_drawn_more_often_weigh_more_in_the_mean_job() -> None:
    jobs = (_job("small", 1), _job("large", 1_000))
    alike = magnitudes_of(Workload("alike", jobs), _CONFIG)
    assert (alike.tasks, alike.task_ms) == (500.5, 1_000.0)
    # 99 jobs of a task for every job of 1,000 tasks: 10.99 tasks on average, still of a second.
    often = magnitudes_of(Workload("often", jobs, weights=(99.0, 1.0)), _CONFIG)
    assert (often.tasks, often.task_ms) == pytest.approx((10.99, 1_000.0))


def test_a_cluster_with_more_jobs_than_in_training_looks_as_if_it_had_no_more() -> None:
    found = _scored(DecimaSettings.model_validate({"features": "jobs", "most_jobs": 1}))[0]
    # One job of the mean work, 24 s; its rank among both jobs stays.
    expected = {Direct.JOBS: 0.0, Direct.OPEN: 0.0, Direct.TOTAL: math.log(1.001), Direct.RANK: 0.0}
    assert {feature: found[feature] for feature in expected} == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValidationError, match="most_jobs applies to features=jobs only"):
        DecimaSettings(most_jobs=20)


def test_a_training_notes_the_most_jobs_of_its_scenarios() -> None:
    workload = Workload("two", (_job("small", 8, 4), _job("large", 36)))
    scenarios = [Scenario(workload, _CONFIG, "batch", count) for count in (5, 8)]
    for settings, most_jobs in (
        (_SETTINGS, 6),
        (_SETTINGS.model_copy(update={"most_jobs": 4}), 4),
        (DecimaSettings(), 0),
    ):
        request = TrainRequest(scenarios, TrainConfig(), "decima", decima=settings)
        assert make_family(request, scenarios[0]).settings["most_jobs"] == most_jobs


def test_limits_that_give_away_the_same_executors_are_one_option() -> None:
    simulator, policy = _begun()
    view = simulator.observe()
    work = policy.tables_for(*size_of(view)).work
    stage, *_ = draw_decision(view, work, np.uint64(4), policy.network)
    assert stage >= 0
    assert np.isfinite(work.limit_logits).all()
    levels = [1, 2, 3, 4, 5, 7, 8]
    assert policy.network.levels.tolist() == levels
    assert work.limit_x[:, LimitFeature.OF_SOURCE].tolist() == [level / 8 for level in levels]
    # Tasks of a second: 36 of them take ceil(36 / limit) seconds, 8 and then 4 as many rounds.
    tasks = (36,) if stage == 2 else (8, 4)
    rounds = [sum(math.ceil(count / level) for count in tasks) for level in levels]
    stretch = [math.log(one / rounds[-1]) for one in rounds]
    assert work.limit_x[:, LimitFeature.STRETCH] == pytest.approx(stretch, abs=1e-5)
    waves = [(36 if stage == 2 else 8) / level for level in levels]
    assert work.limit_x[:, LimitFeature.WAVES] == pytest.approx(np.log1p(waves), rel=1e-5)
    empty = [math.ceil(one) - one for one in waves]
    assert work.limit_x[:, LimitFeature.ROUNDING] == pytest.approx(empty, abs=1e-5)
    assert work.limit_x[-1, LimitFeature.OF_DEMAND] == pytest.approx(8 / (36 if stage == 2 else 8))
    simulator.state.now.num_source[0] = 3
    draw_decision(simulator.observe(), work, np.uint64(4), policy.network)
    assert np.isfinite(work.limit_logits).tolist() == [True] * 3 + [False] * 4


@pytest.mark.parametrize(
    "changes", [{"limits": "stage"}, {"has_graph": False}, {"executor_classes": True}]
)
def test_what_does_not_go_with_the_features_of_jobs_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="features=jobs needs a graph, limits=input"):
        DecimaSettings.model_validate({"features": "jobs", **changes})
