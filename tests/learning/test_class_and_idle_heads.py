"""The heads for executor classes and idle slots: compiled equals batched, masks, and training."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from parcae.cluster.observation import Decision
from parcae.cluster.state import ANY_CLASS, NO_STAGE, ExecutorClass
from parcae.decima.graph.family import DecimaFamily
from parcae.decima.graph.kernels.features import critical_ms
from parcae.decima.graph.layout import (
    NO_SLOT_NAME,
    DecimaSettings,
    FeatureSet,
    decima_levels,
    initial_weights,
)
from parcae.decima.graph.policy import DecimaPolicy
from parcae.decima.learning.simulators import RolloutWorker, Setup, Simulators
from parcae.decima.queries import Teacher, best_fitting
from parcae.decima.rule import Rule, start_parameters
from parcae.decima.solo_curves import solo_curves
from parcae.learning.config import TrainConfig
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
    jobs = [
        replace(
            job,
            stages=tuple(replace(stage, memory=1.0 - float(rng.random())) for stage in job.stages),
        )
        for job in workload.jobs
    ]
    return Workload("made up", tuple(jobs))


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


def _decisions(simulator: Simulator, policy: DecimaPolicy) -> Iterator[Decision]:
    """The decisions of a whole run."""
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        yield (decision := policy.decide(simulator.observe()))
        simulator.step(decision)
    assert simulator.status is Status.COMPLETE


def _alone(config: SimulationConfig, *stages: StageSpec) -> Simulator:
    """A run of one job that has just begun."""
    workload = Workload("one", (JobSpec("one", stages),))
    sequence = JobSequence(workload, np.zeros(1, np.int64), np.zeros(1, np.int64))
    simulator = Simulator(sequence, config, 0)
    simulator.start()
    return simulator


@pytest.mark.parametrize("features", [FeatureSet.RELATIVE, FeatureSet.JOBS])
def test_relative_features_know_no_unit_of_time(features: FeatureSet) -> None:
    settings = DecimaSettings(features=features)
    config = SimulationConfig(num_executors=12)
    names = ("moving_delay_ms", "warmup_delay_ms")
    slower = config.model_copy(update={name: 10 * getattr(config, name) for name in names})
    workload = random_dags(RandomDags(num_jobs=10), np.random.default_rng(3))
    ends = []
    weights = _stirred(DecimaFamily(Scenario(workload, config, "batch", 8), settings))
    for factor, cluster in ((1, config), (10, slower)):
        scenario = Scenario(with_work(factor)(workload)[0], cluster, "batch", 8)
        runs = scenario.batch([7])
        runs.cost(DecimaFamily(scenario, settings).policy(weights).play_many)
        ends.append(runs.simulators.states.jobs.completion_ms[0])
    assert ends[1].tolist() == (10 * ends[0]).tolist()


@pytest.mark.parametrize(
    "classes",
    [_CLASSES[3:], _CLASSES, (ExecutorClass(5, memory=0.6), ExecutorClass(7, memory=1.0))],
)
def test_one_set_of_weights_decides_on_clusters_of_any_size_and_number_of_classes(
    classes: tuple[ExecutorClass, ...],
) -> None:
    settings = DecimaSettings(executor_classes=True)
    weights, large = (
        initial_weights(np.random.default_rng(0), settings, len(decima_levels(size, settings)))
        for size in (12, 3_000)
    )
    assert {n: a.shape for n, a in weights.items()} == {n: a.shape for n, a in large.items()}
    config = SimulationConfig(executor_classes=classes)
    policy = DecimaPolicy("decima", weights, settings, config.total_executors)
    for decision in _decisions(Simulator(_STREAM.sequence(2), config, 2), policy):
        assert decision.executor_class in range(len(classes)) or decision.stage == NO_STAGE


_AT_ONCE = SimulationConfig(num_executors=1, moving_delay_ms=0, warmup_delay_ms=0)


def test_the_critical_path_of_what_is_left_shrinks_as_tasks_start() -> None:
    first = StageSpec(4, TaskDurations.constant(1_000))
    second = StageSpec(1, TaskDurations.constant(5_000), parents=(0,))
    simulator = _alone(_AT_ONCE, first, second)
    assert critical_ms(simulator.observe(), 0) == 9_000.0
    simulator.state.stages.num_started[0] = 3
    assert critical_ms(simulator.observe(), 0) == 6_000.0


def test_a_fresh_network_seldom_idles_and_its_most_probable_decisions_never_do() -> None:
    scenario = Scenario(_WORKLOAD, SimulationConfig(num_executors=6), "load:0.5", 6)
    family = DecimaFamily(scenario, DecimaSettings(idle_lengths=10))
    weights = family.initial_weights(np.random.default_rng(0))
    data = collected(scenario, family, weights, seed=0, num_groups=1, capacity=400)
    assert 0.0 < float((data.table.idle_choice > 0).mean()) < 0.3
    simulator = Simulator(scenario.sequence(1), scenario.config, 1)
    for decision in _decisions(simulator, family.policy(weights)):
        assert (decision.hold_ms, decision.executor_class) == (0, ANY_CLASS)


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
    simulator = _alone(_CONFIG, StageSpec(9, TaskDurations.constant(1_000), memory=0.3))
    assert best_fitting(simulator.observe(), 0) == 1
    simulator.state.source_count[1] = 0
    assert best_fitting(simulator.observe(), 0) == 2
    simulator.state.source_count[:] = 0
    assert best_fitting(simulator.observe(), 0) == ANY_CLASS


def test_load_grows_over_the_first_half_of_a_training() -> None:
    family = DecimaFamily(_STREAM, DecimaSettings())
    network = family.policy(family.initial_weights(np.random.default_rng(0))).network
    arrivals = {}
    for gap in (1.0, 2.5):
        setup = Setup(_STREAM, family, TrainConfig(num_groups=1, group_size=2, capacity=16))
        player = Simulators(setup)
        RolloutWorker(setup, seed=0, player=player).collect(network, gap=gap)
        arrivals[gap] = player.many.futures.arrival_ms[0].copy()
    assert np.abs(arrivals[2.5] - 2.5 * arrivals[1.0]).max() <= 0.5
    assert arrivals[1.0][-1] > 0


def test_an_idle_slot_that_outlasts_a_window_goes_on_in_the_next() -> None:
    job = JobSpec("long", (StageSpec(1, TaskDurations.constant(50_000)),))
    scenario = Scenario(Workload("long", (job,)), _AT_ONCE, "batch", 2)
    family = DecimaFamily(scenario, DecimaSettings(idle_lengths=2))
    weights = family.initial_weights(np.random.default_rng(0))
    weights[NO_SLOT_NAME] = np.full(1, -50.0, np.float32)
    config = TrainConfig(num_groups=1, group_size=2, window_s=20.0, capacity=64)
    worker = RolloutWorker(Setup(scenario, family, config), seed=0)
    network = family.policy(weights).network
    ends = [[r.is_complete for r in group] for _ in range(3) for group in worker.collect(network)]
    assert ends == [[False, False]] * 3
