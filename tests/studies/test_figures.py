"""What single figures do in their own way, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.cluster.observation import Decision, Observation
from parcae.decima.catalog import make_policy
from parcae.decima.graph.layout import DecimaSettings, FeatureSet
from parcae.decima.learning.recipes import Recipe, fair_runs
from parcae.learning.scenario import Scenario
from parcae.papers import critical_path, figures
from parcae.papers.contenders import (
    Part,
    RecordedTrace,
    Request,
    RigidTraining,
    Stage,
    Training,
    checkpoint_path,
    drawn,
    learn,
    network_training,
    pieces,
    requested,
    rigid_values,
    with_sweeps,
    without_trainings,
)
from parcae.papers.runner import StudyRun
from parcae.papers.table import STUDIES
from parcae.policies.checkpoint import Checkpoint, read_checkpoint
from parcae.rigid.config import PackingConfig
from parcae.rigid.deeprm.kernels import DeepRMSettings, initial_weights
from parcae.rigid.deeprm.policy import DeepRMPolicy
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.policies.catalog import make_packing_policy
from parcae.rigid.sources import DrawnSource, RigidLogSource
from parcae.simulation.bounds import lower_bounds
from parcae.simulation.config import SimulationConfig, decima_classes
from parcae.simulation.metrics import makespan_ms
from parcae.simulation.simulator import simulate
from parcae.workloads.archive import load_workload
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.synthetic import chain, synthetic_jobs, toy_workload
from parcae.workloads.workload import JobSequence, Workload
from tests.conftest import arriving, job
from tests.metrics.hand_made import sequence, trace

_CLUSTER = SimulationConfig(num_executors=2, moving_delay_ms=0, warmup_delay_ms=0)


def _job(seconds: int, memory: float, arrival_ms: int | None = None) -> JobSpec:
    stage = StageSpec(1, TaskDurations.constant(1_000 * seconds), memory=memory)
    return JobSpec(f"{seconds} s", (stage,), arrival_ms)


_PLAIN = Workload("plain", tuple(_job(seconds, 0.0) for seconds in range(1, 11)))
_LOG = Workload("log", tuple(_job(2, 0.9, 1_000 * row) for row in range(10)))
_CLASSES = SimulationConfig(executor_classes=decima_classes(8))


def _request(folder: Path, **changes: Any) -> Request:
    return replace(Request(folder, toy_workload(), _CLUSTER, "load:0.5", processes=1), **changes)


def test_policies_that_ship_are_trained_if_the_request_wants_new_ones(tmp_path: Path) -> None:
    workload = Workload("two", (chain(2, 3, 1_000, "small"), chain(1, 4, 3_000, "large")))
    request = _request(tmp_path, workload=workload, budget_s=1.0, num_jobs=3)
    (part,) = STUDIES["decima-fig9a"].parts(request)
    shipped = learn(request, part.trainings)
    assert {key: one.name.split(":")[0] for key, one in shipped.items()} == {
        key: key for key in ("decima", "corrector", "tuned")
    }
    assert not list(tmp_path.iterdir())
    made = learn(replace(request, trains_anew=True), part.trainings)
    assert {Path(one.name) for one in made.values()} == set(tmp_path.iterdir())
    # The network corrects the rule that was tuned here.
    tuned, corrector = (
        read_checkpoint(tmp_path / f"{key}.safetensors").weights["rule"]
        for key in ("tuned", "corrector")
    )
    np.testing.assert_array_equal(tuned, corrector)


def test_policies_of_the_request_are_labelled_by_their_files_unless_two_are_alike() -> None:
    texts = ("one/best.safetensors", "other/best.safetensors", "rule.safetensors", "fair")
    assert list(requested(texts)) == [*texts[:2], "rule", "fair"]
    part = Part("", None, {"fair": "fair", "decima": "key"}, {"key": Training(())})
    replaced = without_trainings(part, ("mine/fair.safetensors",))
    assert replaced.policies == {"fair": "fair", "mine/fair.safetensors": "mine/fair.safetensors"}
    request = Request(Path("folder"))
    assert checkpoint_path(request, "rule for (a)").name == "rule-for-a.safetensors"


def test_a_variant_of_decima_changes_only_what_it_sets(tmp_path: Path) -> None:
    request = _request(tmp_path, decima=DecimaSettings(features=FeatureSet.JOBS))
    scenario = Scenario(load_workload("toy"), _CLUSTER, "batch", 2)
    knowing = Training((scenario,), network=DecimaSettings(knows_gap=True))
    prepared, words = network_training(request, knowing, 200.0, {})
    assert prepared.decima == DecimaSettings(features=FeatureSet.JOBS, knows_gap=True)
    assert words == "with the feature set jobs, recipe fast"
    by_algorithm_1 = Training((scenario,), recipe=Recipe.DECIMA_2019)
    short, long = (
        network_training(_request(tmp_path), by_algorithm_1, share_s, {})[1]
        for share_s in (110.0, 120.0)
    )
    assert short == "recipe decima-2019 (8 rollouts of a job sequence, the paper has 16)"
    assert long == "recipe decima-2019"


def test_stream_facts_of_two_jobs_by_hand() -> None:
    # One executor: 2 s and 4 s of work, arriving together: JCTs of 2 and 6 s, 8 job-seconds in 6 s.
    jobs = arriving((chain(1, 1, 2_000, "small"), 0), (chain(1, 1, 4_000, "large"), 0))
    config = SimulationConfig(num_executors=1, moving_delay_ms=0, warmup_delay_ms=0)
    run = simulate(jobs, make_policy("fifo", 1), config, 0, record=True)
    facts = figures.stream_facts(jobs, {"fifo": run})["fifo"]
    assert facts["mean_jobs"] == pytest.approx(8 / 6)
    by_hand = {"most_jobs": 2, "small_jct_s": 2.0, "slowest_eighth_jct_s": 6.0, "inflation": 1.0}
    assert {key: facts[key] for key in by_hand} == by_hand
    busy = figures.stream_facts(sequence(), {"by hand": trace()})["by hand"]
    assert busy["busy_jobs"] == 2.0
    # The second job came just before the first busy span.
    assert math.isnan(busy["busy_jct_s"])


def test_jobs_are_binned_in_fifths_by_work() -> None:
    assert figures.bin_edges_ms(_PLAIN).tolist() == [2_000, 4_000, 6_000, 8_000]
    heavy = Workload("heavy", _PLAIN.jobs[:2], weights=(9.0, 1.0))
    assert figures.bin_edges_ms(heavy).tolist() == [1_000] * 4
    # Jobs of 1, 2, 5 and 9 s.
    jobs = JobSequence(_PLAIN, np.array([0, 1, 4, 8]), np.arange(4))
    means = figures.means_by_size(jobs, x=[1.0, 3.0, 10.0, 7.0])
    assert [means[f"{size}: x"] for size in figures.BINS[::2]] == [2.0, 10.0, 7.0]
    assert all(math.isnan(means[f"{size}: x"]) for size in figures.BINS[1::2])


def test_latencies_are_measured_for_every_decision_and_intervals_between_moments() -> None:
    # Jobs of one task arrive at 0, 4 and 9 s; each completes after 1 s, which is another event.
    jobs = arriving(*((chain(1, 1, 1_000, "one"), at) for at in (0, 4_000, 9_000)))
    config = SimulationConfig(num_executors=1, moving_delay_ms=0, warmup_delay_ms=0)
    latency, interval = figures.measure_latencies(jobs, make_policy("fair", 1), config, 0)
    assert (latency > 0).all()
    assert interval.tolist() == [1_000, 3_000, 1_000, 4_000, 1_000]


def test_the_worlds_are_tpch_with_drawn_memory_and_the_halves_of_the_trace(tmp_path: Path) -> None:
    recorded = RecordedTrace(_LOG, SimulationConfig(), "trace:0.8")
    request = Request(tmp_path, _PLAIN, SimulationConfig(), "load:0.5", recorded=recorded)
    parts, trained = zip(*figures.worlds(request), strict=True)
    tpch, log = (part.setting for part in parts)
    assert isinstance(tpch, Scenario)
    assert isinstance(log, Scenario)
    assert all(0 < stage.memory <= 1 for job in tpch.workload.jobs for stage in job.stages)
    assert [c.num_executors for c in tpch.config.classes] == [50] * 4
    assert [c.num_executors for c in log.config.classes] == [250] * 4
    assert [job.arrival_ms for job in trained[1].workload.jobs] == list(range(0, 5_000, 1_000))
    assert [job.arrival_ms for job in log.workload.jobs] == list(range(5_000, 10_000, 1_000))
    # Only a quarter of the executors fits: a load is a share of what the classes can serve.
    assert (log.arrivals, log.num_jobs, trained[1].num_jobs) == ("trace:0.2000", 200, 60)
    assert figures.usable_arrivals("poisson:3s", _LOG, _CLASSES) == "poisson:3s"


def test_heuristics_of_executor_classes_are_tuned_on_few_jobs(tmp_path: Path) -> None:
    request = _request(tmp_path / "fig-policies", workload=_PLAIN, num_runs=2)
    scenario = Scenario(_PLAIN, _CLASSES.resized(4), "load:0.5", 2)
    part = Part("", scenario, {"srpt-cap:tuned": "srpt-cap:tuned"})

    tuned = with_sweeps(request, part)
    assert "of 4 values from 1 to 4, on 4 tuning seeds of 2 jobs" in tuned.notes[-1]
    assert tuned.policies["srpt-cap:tuned"] in [f"srpt-cap:{value}" for value in range(1, 5)]


def test_applications_hold_executors_and_one_application_starts_none(tmp_path: Path) -> None:
    jobs = tuple(chain(1, tasks, 800 * tasks, f"job {tasks}") for tasks in range(1, 9))
    cluster = SimulationConfig(num_executors=4)
    request = _request(tmp_path, workload=Workload("eight", jobs), config=cluster, num_jobs=8)
    request = replace(request, num_runs=1)
    (part, *_) = figures.application_parts(request)
    study = STUDIES["applications"]
    (outcome,) = study.play(StudyRun(study, request, [part], {}))
    started = {label: found["executors_started"][0] for label, found in outcome.values.items()}
    assert started.pop("FairScheduler") > 0
    assert started["static split"] == started["one application"] == 0
    # Sharing leaves no core idle beside a job that waits; a split does.
    times = {label: found["average_jct_s"][0] for label, found in outcome.values.items()}
    assert times["one application"] < times["static split"]


def test_shifts_resizes_a_cluster_of_executor_classes(tmp_path: Path) -> None:
    request = _request(tmp_path, config=_CLASSES, policies=("fair:active",), num_jobs=3)
    parts = figures.shifted_parts(request)
    sized = [part for part in parts if part.name.endswith("executors")]
    sizes = {part.setting.config.total_executors for part in sized}  # type: ignore[union-attr]
    # 0.3 and 0.5 of 8 executors are both 4, one of each class; that is one setting.
    assert sizes == {4, 8, 16, 32}
    assert len({part.name for part in parts}) == len(parts)


@pytest.mark.parametrize("epsilon_s", [0.1, 0.5])
def test_the_critical_path_takes_28_seconds_and_the_best_schedule_20(epsilon_s: float) -> None:
    jobs = arriving((figures.join_job(epsilon_s), 0))
    config = figures.cluster()
    path, best = (
        makespan_ms(simulate(jobs, make_policy(name, 5), config, 0)) for name in ("sjf-cp", "fair")
    )
    assert path == 28_000 + 3_000 * epsilon_s
    # No schedule is shorter.
    assert best == 20_000 + 3_000 * epsilon_s == lower_bounds(jobs, 5).makespan_ms


def test_targets_are_the_work_on_the_longest_path_in_units_of_the_mean_stage() -> None:
    # Works 2, 4, 6 s: the mean is 4 s. Stage 2 follows both others.
    spec = job("v", (1, 2_000, ()), (1, 4_000, ()), (1, 6_000, (0, 1)))
    batch = critical_path.graph_batch([spec, spec])
    target = batch.target.numpy()
    np.testing.assert_allclose(target, [2.0, 2.5, 1.5] * 2)
    pairs = batch.children.to_dense().nonzero().tolist()
    assert pairs == [[0, 2], [1, 2], [3, 5], [4, 5]]
    assert batch.is_choice.tolist() == [True, True]
    assert batch.accuracy(batch.target) == 1.0
    half = batch.target.clone()
    half[0] = 9.0
    assert batch.accuracy(half) == 0.5


def test_two_transforms_find_the_critical_path_more_often_than_one() -> None:
    train = critical_path.draw_batches(1, 0, 30, 64)
    (test,) = critical_path.draw_batches(2, 0, 1, 200)
    two, one = (
        critical_path.learn_critical_path(has_two, train, test, 150, 600.0, 0)
        for has_two in (True, False)
    )
    assert np.mean([right for _, right, _ in two[-3:]]) > np.mean([x for _, x, _ in one[-3:]])
    assert [iteration for iteration, _, _ in two] == list(range(10, 151, 10))
    (few,) = critical_path.draw_batches(2, 0, 1, 64)
    learned = {float(value) for batch in train[:2] for value in batch.target}
    assert not learned & {float(value) for value in few.target}


class _AlwaysWaits:
    """Puts a slot of 3 s before every stage that never had one."""

    name = "always waits"

    def decide(self, observation: Observation) -> Decision:
        chosen = observation.schedulable_stages()
        if not chosen:
            return Decision()
        waited = observation.stages.hold_from_ms[chosen[0]] >= 0
        return Decision(chosen[0], 1, hold_ms=0 if waited else 3_000)


def test_a_pair_is_two_jobs_on_one_machine() -> None:
    scenario = figures.pairs()
    drawn = [scenario.sequence(seed) for seed in range(400)]
    assert {int(s.jobs[0].work_ms) for s in drawn} == {15_000, 25_000, 50_000, 70_000}
    assert {int(s.jobs[1].work_ms) for s in drawn} == {10_000}
    assert np.mean([s.arrival_ms[1] for s in drawn]) == pytest.approx(10_000, rel=0.15)
    assert figures.first_slot_s(_AlwaysWaits(), scenario, 1) == 3.0
    assert figures.first_slot_s(make_policy("fifo", 1), scenario, 1) == 0.0


def test_the_data_sets_of_idle_slots_run_on_clusters_loaded_under_80_percent() -> None:
    huge = Workload("huge", (job("huge", (100, 8_880, ())),))
    assert figures.smallest_cluster(synthetic_jobs(), 10.0) == 4
    request = Request(Path("unused"), huge, num_jobs=30)
    one = figures.synthetic_scenario(request)
    assert (one.config.num_executors, one.arrivals) == (4, "poisson:10s")
    # 888 s / 40 s / 28 = 79%.
    real = figures.real_scenario(request)
    assert (real.config.num_executors, real.arrivals) == (28, "poisson:40s")
    given = figures.real_scenario(replace(request, is_cluster_given=True))
    assert given.config.num_executors == 50
    found = figures.at_busy(Scenario(load_workload("toy"), _CLUSTER, "batch", 60), 0.6)
    busy = fair_runs(replace(found, num_jobs=1_000)).busy_share
    assert busy == pytest.approx(0.6, abs=0.03)


def _stage(source: DrawnSource) -> Stage:
    return Stage(source, source.draw(range(5_000, 5_004)), 5_000)


def test_waits_are_between_arrival_and_start_and_losing_jobs_gains_nothing() -> None:
    source = DrawnSource(rates=(1.0,))
    # Sixty jobs, two slots and no backlog: most jobs are lost.
    few = replace(source, settings=PackingConfig(num_slots=2, backlog_size=0))
    policy = make_packing_policy("sjf")
    batch = _stage(source).play(policy)
    keeping, losing = (rigid_values(one) for one in (batch, _stage(few).play(policy)))
    waits = [(run.start - run.jobs.arrival).mean() for run in batch.outcomes()]
    assert keeping["waiting"] == pytest.approx(waits)
    assert losing["unfinished"].sum() > 50 > keeping["unfinished"].sum() == 0
    assert (losing["slowdown"] > keeping["slowdown"]).all()
    assert 40 < len(drawn(DrawnSource(rates=(0.05,)), Request(Path()), 60).sequences) < 60


def _log(num_jobs: int) -> RigidJobs:
    return RigidJobs(
        "log", np.arange(num_jobs), np.full(num_jobs, 2), np.ones((num_jobs, 1)), [4], step="step"
    )


@pytest.mark.parametrize(("num_jobs", "count"), [(500, 4), (250, 2), (199, 1)])
def test_pieces_of_a_log_have_no_job_in_common(num_jobs: int, count: int) -> None:
    source = RigidLogSource(_log(num_jobs), 100, PackingConfig())
    first, other = (
        np.concatenate([piece.ids for piece in pieces(source, request, 4, source).sequences])
        for request in (Request(Path()), Request(Path(), seed=1))
    )
    assert np.array_equal(first, np.arange(first[0], first[0] + 100 * count))
    assert first[0] != other[0]


def test_a_checkpoint_is_for_the_log_that_it_learned_from() -> None:
    source = RigidLogSource(_log(200), 100, PackingConfig())
    longer = replace(_log(200), duration=np.full(200, 3))
    cards = (source.card(), replace(source, jobs=longer).card(), DrawnSource().card(), None)
    training = RigidTraining(source, "a2c")
    found = [training.fits(Checkpoint("a2c", 1, {}, {}, {"source": one})) for one in cards]
    assert found == [True, False, False, False]
    rates = RigidTraining(DrawnSource(rates=(0.7,)), "a2c")
    several = DrawnSource(rates=(0.6, 0.7)).card()
    assert rates.fits(Checkpoint("a2c", 1, {}, {}, {"source": several}))


def _two_sequences() -> Stage:
    """One job of 3 steps; and two jobs of 2 and 10 steps that need the whole cluster."""
    capacity = np.array([10, 10])
    one = RigidJobs("one", np.array([0]), np.array([3]), np.array([[5, 1]]), capacity)
    both = np.array([[10, 1], [10, 1]])
    two = RigidJobs("two", np.array([0, 0]), np.array([2, 10]), both, capacity)
    return Stage(DrawnSource(window=0), [one, two], 0)


def test_what_is_withheld_is_counted_by_step_and_job() -> None:
    """A greedy policy that would rather wait starts a job only in an empty cluster."""
    weights = initial_weights(np.random.default_rng(0), DeepRMSettings())
    weights["actions.bias"][-1] = 9.0
    weights["actions.bias"][0] = 5.0
    policy = DeepRMPolicy("deeprm", weights, DeepRMSettings(), is_greedy=True)
    outcomes = _two_sequences().play(policy).outcomes()
    shares = figures.withholding(outcomes, 10)
    # 3 steps with no job waiting; 2 steps in which the long job waits and cannot start; its 10.
    assert shares["withheld"] == 0.0
    by_size = figures.slowdowns_by_size(outcomes)
    assert by_size["slowdown, small jobs"] == [1.0, 1.0]
    assert by_size["slowdown, large jobs"][1] == pytest.approx(1.2)
    assert math.isnan(by_size["slowdown, large jobs"][0])


def test_a_training_passes_a_line_and_converges_where_its_curve_stays() -> None:
    costs = [9.0, 4.0, 6.0, 4.0, 3.0, 3.0]
    points = [(10 * row, 0.0, cost) for row, cost in enumerate(costs)]
    assert figures.crossing(points, 5.0) == 30
    assert math.isnan(figures.crossing(points, 2.0))
    assert figures.convergence([9.0, 7.0, 5.1, 5.0, 5.1, 5.0, 5.0, 5.0], 10.0) == 2
    # What hardly gained, still falls or was hardly measured has not converged.
    for curve in ([9.5] * 8, [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0], [5.0] * 3):
        assert figures.convergence(curve, 10.0) is None
