"""The heads for executor classes and idle slots: compiled equals batched, masks, and training."""

from dataclasses import replace

import numpy as np
import pytest

from parcae.cluster.state import ANY_CLASS, NO_STAGE, ExecutorClass
from parcae.decima.graph.family import DecimaFamily
from parcae.decima.graph.kernels.features import critical_ms
from parcae.decima.graph.kernels.heads import hold_ms
from parcae.decima.graph.layout import (
    NO_SLOT_NAME,
    DecimaSettings,
    FeatureSet,
    decima_levels,
    initial_weights,
    shapes,
)
from parcae.decima.graph.policy import DecimaPolicy
from parcae.decima.kernels.classes import best_fitting
from parcae.decima.kernels.recording import Teacher
from parcae.decima.learning.gradients import gradient_learner
from parcae.decima.learning.recipes import Recipe, TrainRequest, recipe_config
from parcae.decima.learning.simulators import RolloutWorker, Setup, Threads
from parcae.decima.rule.kernels import Rule
from parcae.decima.rule.policy import start_parameters
from parcae.decima.solo_curves import solo_curves
from parcae.learning.config import TrainConfig
from parcae.learning.loop import TrainingPlan, train
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Weights
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator
from parcae.workloads.demands import with_work
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.synthetic import RandomDags, random_dags
from parcae.workloads.workload import JobSequence, Workload
from tests.conftest import made_up
from tests.learning.collected import collected

_CLASSES = tuple(ExecutorClass(3, cpu=1.0, memory=memory) for memory in (0.25, 0.5, 0.75, 1.0))
_CONFIG = SimulationConfig(executor_classes=_CLASSES)


def _with_memory(workload: Workload) -> Workload:
    rng = np.random.default_rng(3)
    drawn = [
        tuple(replace(stage, memory=1.0 - float(rng.random())) for stage in job.stages)
        for job in workload.jobs
    ]
    return Workload(
        "made up",
        tuple(
            replace(job, stages=stages) for job, stages in zip(workload.jobs, drawn, strict=True)
        ),
    )


_WORKLOAD = _with_memory(made_up(12, 8.0))
_STREAM = Scenario(_WORKLOAD, _CONFIG, "load:0.7", 8)


def _stirred(family: DecimaFamily) -> Weights:
    rng = np.random.default_rng(1)
    fresh = family.initial_weights(np.random.default_rng(0))
    if NO_SLOT_NAME in fresh:
        fresh[NO_SLOT_NAME] = np.full(1, 1.0, np.float32)
    return {
        name: (array + rng.normal(0, 0.1, array.shape)).astype(np.float32)
        for name, array in fresh.items()
    }


@pytest.mark.parametrize("features", [FeatureSet.RELATIVE, FeatureSet.JOBS])
def test_relative_features_know_no_unit_of_time(features: FeatureSet) -> None:
    settings = DecimaSettings(features=features)
    config = SimulationConfig(num_executors=12)
    slower = config.model_copy(
        update={
            "moving_delay_ms": 10 * config.moving_delay_ms,
            "warmup_delay_ms": 10 * config.warmup_delay_ms,
        }
    )
    workload = random_dags(RandomDags(num_jobs=10), np.random.default_rng(3))
    ends = []
    weights = _stirred(DecimaFamily(Scenario(workload, config, "batch", 8), settings))
    for factor, cluster in ((1, config), (10, slower)):
        scenario = Scenario(with_work(factor)(workload)[0], cluster, "batch", 8)
        runs = scenario.batch([7])
        runs.cost(DecimaFamily(scenario, settings).policy(weights).play_many)
        ends.append(runs.simulators.states.jobs.completion_ms[0])
    assert ends[1].tolist() == (10 * ends[0]).tolist()


def test_what_is_switched_off_takes_no_weights() -> None:
    plain = shapes(DecimaSettings(), 50)
    both = shapes(DecimaSettings(executor_classes=True, idle_lengths=10), 50)
    assert not any(name.startswith(("class", "idle")) for name in plain)
    assert {name.partition(".")[0] for name in both} - {
        name.partition(".")[0] for name in plain
    } == {"class", "idle"}
    assert sum(int(np.prod(shape)) for shape in plain.values()) == 8_386


def test_one_set_of_weights_decides_on_clusters_of_any_size_and_number_of_classes() -> None:
    settings = DecimaSettings(executor_classes=True)
    weights = {
        size: initial_weights(
            np.random.default_rng(0), settings, len(decima_levels(size, settings))
        )
        for size in (12, 3_000)
    }
    assert {n: a.shape for n, a in weights[12].items()} == {
        n: a.shape for n, a in weights[3_000].items()
    }
    for classes in (
        _CLASSES[3:],
        _CLASSES,
        (ExecutorClass(5, memory=0.6), ExecutorClass(7, memory=1.0)),
    ):
        config = SimulationConfig(executor_classes=classes)
        simulator = Simulator(_STREAM.sequence(2), config, 2)
        policy = DecimaPolicy("decima", weights[12], settings, config.total_executors)
        simulator.start()
        while simulator.status is Status.NEEDS_DECISION:
            decision = policy.decide(simulator.observe())
            assert decision.executor_class in range(len(classes)) or decision.stage == NO_STAGE
            simulator.step(decision)
        assert simulator.status is Status.COMPLETE


def _one_by_one(*stages: StageSpec) -> JobSpec:
    return JobSpec(
        "chain",
        tuple(
            replace(stage, parents=(row - 1,) if row else ()) for row, stage in enumerate(stages)
        ),
    )


def test_the_critical_path_of_what_is_left_shrinks_as_tasks_start() -> None:
    job = _one_by_one(
        StageSpec(4, TaskDurations.constant(1_000)), StageSpec(1, TaskDurations.constant(5_000))
    )
    sequence = JobSequence(Workload("chain", (job,)), np.zeros(1, np.int64), np.zeros(1, np.int64))
    simulator = Simulator(
        sequence, SimulationConfig(num_executors=1, moving_delay_ms=0, warmup_delay_ms=0), 0
    )
    simulator.start()
    assert critical_ms(simulator.observe(), 0) == 9_000.0
    simulator.state.stages.num_started[0] = 3
    assert critical_ms(simulator.observe(), 0) == 6_000.0


def _idle(stage: StageSpec, executors: int) -> tuple[Simulator, DecimaPolicy]:
    sequence = JobSequence(
        Workload("one", (JobSpec("one", (stage,)),)), np.zeros(1, np.int64), np.zeros(1, np.int64)
    )
    simulator = Simulator(
        sequence, SimulationConfig(num_executors=executors, moving_delay_ms=0, warmup_delay_ms=0), 0
    )
    simulator.start()
    settings = DecimaSettings(idle_lengths=10)
    return simulator, DecimaPolicy(
        "d", initial_weights(np.random.default_rng(0), settings, executors), settings, executors
    )


def test_idle_slots_are_tenths_of_the_stage_and_end_no_later_when_decided_again() -> None:
    simulator, policy = _idle(StageSpec(1, TaskDurations.constant(50_000)), 4)
    state = simulator.state
    network = policy.network
    assert [hold_ms(simulator.observe(), network, 0, 1, length) for length in (0, 1, 5, 10)] == [
        0,
        5_000,
        25_000,
        50_000,
    ]
    state.stages.hold_from_ms[0] = 0
    state.stages.hold_until_ms[0] = 30_000
    state.now.clock_ms[0] = 20_000
    assert [hold_ms(simulator.observe(), network, 0, 1, length) for length in (0, 4, 5, 10)] == [
        0,
        0,
        5_000,
        30_000,
    ]
    state.now.clock_ms[0] = 30_000
    assert [hold_ms(simulator.observe(), network, 0, 1, length) for length in (0, 5, 10)] == [
        0,
        0,
        0,
    ]


def test_a_stage_of_many_tasks_is_as_long_as_its_executors_need() -> None:
    simulator, policy = _idle(StageSpec(8, TaskDurations.constant(10_000)), 4)
    assert [hold_ms(simulator.observe(), policy.network, 0, limit, 10) for limit in (1, 2, 4)] == [
        80_000,
        40_000,
        20_000,
    ]


def test_a_fresh_network_seldom_idles_and_its_most_probable_decisions_never_do() -> None:
    scenario = Scenario(_WORKLOAD, SimulationConfig(num_executors=6), "load:0.5", 6)
    family = DecimaFamily(scenario, DecimaSettings(idle_lengths=10))
    weights = family.initial_weights(np.random.default_rng(0))
    data = collected(scenario, family, weights, seed=0, num_groups=1, capacity=400)
    assert 0.0 < float((data.table.idle_choice > 0).mean()) < 0.3
    simulator = Simulator(scenario.sequence(1), scenario.config, 1)
    policy = family.policy(weights)
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        decision = policy.decide(simulator.observe())
        assert decision.hold_ms == 0
        assert decision.executor_class == ANY_CLASS
        simulator.step(decision)


def test_the_rule_shows_the_best_fitting_class_and_no_idle_slots() -> None:
    family = DecimaFamily(_STREAM, DecimaSettings(executor_classes=True, idle_lengths=4))
    teacher = Teacher(Rule(start_parameters(), *solo_curves(_WORKLOAD, _CONFIG)), 1.0)
    weights = family.initial_weights(np.random.default_rng(0))
    data = collected(_STREAM, family, weights, seed=0, teacher=teacher, num_groups=1)
    assert len(data) > 50
    assert not data.table.idle_choice.any()
    # The idle head learns nothing from it.
    assert data.table.can_idle.sum(axis=1).tolist() == [1] * len(data)
    smallest = np.argmax(data.table.can_class, axis=1)
    assert (data.table.class_choice == smallest).all()
    assert len(np.unique(smallest)) == 4


def test_the_best_fitting_class_is_the_smallest_that_is_asked_about_and_large_enough() -> None:
    job = JobSpec("one", (StageSpec(9, TaskDurations.constant(1_000), memory=0.3),))
    sequence = JobSequence(Workload("one", (job,)), np.zeros(1, np.int64), np.zeros(1, np.int64))
    simulator = Simulator(sequence, _CONFIG, 0)
    simulator.start()
    assert best_fitting(simulator.observe(), 0) == 1
    simulator.state.source_count[1] = 0
    assert best_fitting(simulator.observe(), 0) == 2
    simulator.state.source_count[:] = 0
    assert best_fitting(simulator.observe(), 0) == ANY_CLASS


def test_training_with_both_heads_imitates_explores_selects_and_resumes_exactly(  # type: ignore[no-untyped-def]
    tmp_path,
) -> None:
    config = TrainConfig(
        num_groups=1,
        group_size=2,
        capacity=64,
        minibatch=256,
        select_every=2,
        num_selection=2,
        imitation=0.5,
        window_s=60.0,
        early_gap=2.0,
    )
    decima = DecimaSettings(
        executor_classes=True, idle_lengths=4, critical_path=True, average_width=True
    )
    request = TrainRequest([_STREAM], config, "decima", start_parameters(), decima)
    whole = train(gradient_learner(request), TrainingPlan(1e6, 4, tmp_path / "whole"))
    calls: list[int] = []

    def kill(iteration: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError

    with pytest.raises(MemoryError):
        train(gradient_learner(request), TrainingPlan(1e6, 4, tmp_path / "killed"), kill)
    resumed = train(
        gradient_learner(request), TrainingPlan(1e6, 4, tmp_path / "killed", is_resumed=True)
    )
    assert whole.ending == resumed.ending == "done"
    for name, array in whole.checkpoint.weights.items():
        assert np.array_equal(array, resumed.checkpoint.weights[name]), name


def test_load_grows_over_the_first_half_of_a_training() -> None:
    family = DecimaFamily(_STREAM, DecimaSettings())
    network = family.policy(family.initial_weights(np.random.default_rng(0))).network
    arrivals = {}
    for gap in (1.0, 2.5):
        setup = Setup(_STREAM, family, TrainConfig(num_groups=1, group_size=2, capacity=16))
        player = Threads(setup)
        RolloutWorker(setup, seed=0, player=player).collect(network, gap=gap)
        arrivals[gap] = player.simulators.many.futures.arrival_ms[0].copy()
    assert np.abs(arrivals[2.5] - 2.5 * arrivals[1.0]).max() <= 0.5
    assert arrivals[1.0][-1] > 0


def test_imitation_collects_less_at_a_time_where_executors_differ() -> None:
    alike = Scenario(_WORKLOAD, SimulationConfig(num_executors=12), "load:0.3", 40)
    several = replace(alike, config=_CONFIG)
    plain, with_classes = (
        recipe_config(Recipe.IMITATION, scenario, "decima") for scenario in (alike, several)
    )
    assert (
        plain.num_groups * plain.group_size,
        with_classes.num_groups * with_classes.group_size,
    ) == (32, 12)
    assert (plain.imitation, with_classes.imitation) == (0.5, 0.7)
    assert plain.window_s is not None
    assert with_classes.window_s is not None
    assert with_classes.window_s < 0.9 * plain.window_s
    assert recipe_config(Recipe.FAST, several, "corrector").num_groups == 8


def test_an_idle_slot_that_outlasts_a_window_goes_on_in_the_next() -> None:
    job = JobSpec("long", (StageSpec(1, TaskDurations.constant(50_000)),))
    config = SimulationConfig(num_executors=1, moving_delay_ms=0, warmup_delay_ms=0)
    scenario = Scenario(Workload("long", (job,)), config, "batch", 2)
    family = DecimaFamily(scenario, DecimaSettings(idle_lengths=2))
    weights = family.initial_weights(np.random.default_rng(0))
    weights[NO_SLOT_NAME] = np.full(1, -50.0, np.float32)
    worker = RolloutWorker(
        Setup(
            scenario, family, TrainConfig(num_groups=1, group_size=2, window_s=20.0, capacity=64)
        ),
        seed=0,
    )
    network = family.policy(weights).network
    ends = [[r.is_complete for r in group] for _ in range(3) for group in worker.collect(network)]
    assert ends == [[False, False]] * 3
