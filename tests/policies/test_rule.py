import math
from pathlib import Path

import numpy as np
import pytest

from parcae.base.errors import FormatError, PolicyError
from parcae.cluster.kernels.tables import wait_ms
from parcae.cluster.state import ExecutorClass
from parcae.decima.checkpoints import rule_parameters
from parcae.decima.rule import NUM_PARAMETERS, RuleParameter, RulePolicy, start_parameters
from parcae.decima.solo_curves import SoloCurves, limit_levels, solo_curves
from parcae.learning.scenario import Scenario
from parcae.learning.tune import tune_rule
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parcae.simulation.config import SimulationConfig
from parcae.simulation.simulator import Simulator, simulate
from parcae.workloads.workload import JobSequence, RandomStreams, Workload, draw_sequence
from tests.conftest import batch, job, made_up

_FREE = SimulationConfig(num_executors=4, moving_delay_ms=0, warmup_delay_ms=0)


def _rule(curves: SoloCurves, **parameters: float) -> RulePolicy:
    theta = np.zeros(NUM_PARAMETERS)
    theta[RuleParameter.STAGE_RUNNABLE] = 3.0
    for name, value in parameters.items():
        theta[RuleParameter[name]] = value
    return RulePolicy("rule", tuple(theta), curves)


def test_a_job_of_ideal_parallelism_halves_its_duration_with_twice_the_executors() -> None:
    curves = solo_curves(Workload("w", (job("a", (4, 1_000, ())),)), _FREE)
    assert curves.levels.tolist() == [1, 2, 3, 4]
    # Three executors need two waves for four tasks.
    assert curves.stretch[0].tolist() == [1.0, 0.5, 0.5, 0.25]
    assert curves.stretch[-1].tolist() == pytest.approx([1.0, 0.5, 0.5, 0.25])
    assert curves.mean_work_ms[0] == 4_000


def test_levels_are_ascending_and_end_with_the_cluster() -> None:
    for executors in (1, 2, 6, 50, 199, 200, 1_000, 30_000):
        levels = limit_levels(executors)
        assert levels[-1] == executors
        assert (np.diff(levels) > 0).all()
    assert len(limit_levels(30_000)) < 60


def test_the_cap_is_where_another_executor_stops_paying() -> None:
    # T(p)(1 + price p / 4) with T = 1, 1/2, 1/2, 1/4: a price of 1 gives 1.25, .75, .875, .5; of
    # 100, 26, 25.5, 38, 25.25; of 1000, 251, 250.5, 375.5, 250.25: four executors in any case. A
    # chain, in contrast, gains nothing.
    chain = job("chain", (1, 1_000, ()), (1, 1_000, (0,)))
    curves = solo_curves(Workload("w", (job("wide", (4, 1_000, ())), chain)), _FREE)
    simulator = Simulator(batch(chain), _FREE, 0)
    simulator.start()
    rule = _rule(SoloCurves(curves.levels, curves.stretch[[1, 2]], curves.mean_work_ms))
    assert rule.decide(simulator.observe()).limit == 1


def test_a_price_counts_the_executors_of_a_level() -> None:
    # Levels of 1, 2 and 4 executors cost 1 x 2, .9 x 3 and .36 x 5: the last is best.
    # By their rows, they would cost 1 x 1, .9 x 2 and .36 x 3.
    stretch = np.array([[1.0, 0.9, 0.36]] * 2)
    curves = SoloCurves(np.array([1, 2, 4]), stretch, np.array([4_000.0]))
    simulator = Simulator(batch(job("wide", (4, 1_000, ()))), _FREE, 0)
    simulator.start()
    assert _rule(curves, PRICE=math.log(4)).decide(simulator.observe()).limit == 4


def test_the_shortest_remaining_work_is_served_first() -> None:
    sequence = batch(job("long", (8, 1_000, ())), job("short", (2, 1_000, ())))
    assert _completions(sequence, PRICE=-10.0)[1] == 1_000


def _completions(
    sequence: JobSequence, config: SimulationConfig = _FREE, **parameters: float
) -> list[int]:
    policy = _rule(solo_curves(sequence.workload, config), **parameters)
    completions: list[int] = simulate(sequence, policy, config, 0).completion_ms.tolist()
    return completions


def test_a_reserve_is_kept_from_large_jobs_for_the_small_ones_to_come() -> None:
    jobs = (job("long", (8, 10_000, ())), job("short", (1, 1_000, ())))
    sequence = JobSequence(Workload("w", jobs), np.array([0, 1]), np.array([0, 2_000]))
    assert _completions(sequence, PRICE=-10.0) == [20_000, 21_000]
    # A quarter of four idles, which the short job may not take either.
    assert _completions(sequence, PRICE=-10.0, RESERVE=2.5) == [30_000, 21_000]
    # mean work 40.5 s: log(80 / 40.5) = 0.68; -3.7
    kept = {"RESERVE": 1.0, "RESERVE_REMAINING": 1.0}
    assert _completions(sequence, PRICE=-10.0, **kept) == [23_000, 3_000]


def test_executors_that_a_job_has_already_are_not_kept_from_it() -> None:
    chain = job("chain", (4, 1_000, ()), (4, 1_000, (0,)))
    # Two of four; all its own go on.
    assert _completions(batch(chain), PRICE=-10.0, RESERVE=5.0) == [4_000]


@pytest.mark.parametrize(
    ("parameters", "completions"),
    [
        # The second executor waits for the chain's second stage.
        ({}, [12_000, 24_000]),
        ({"AHEAD": 1.0}, [14_000, 20_000]),
        ({"AHEAD": -math.log(5), "AHEAD_WAIT": 1.0}, [14_000, 20_000]),
        ({"AHEAD": -math.log(20), "AHEAD_WAIT": 1.0}, [12_000, 24_000]),
    ],
)
def test_executors_are_kept_from_stages_whose_parents_still_run(
    parameters: dict[str, float], completions: list[int]
) -> None:
    chain = job("chain", (1, 10_000, ()), (4, 1_000, (0,)))
    sequence = batch(chain, job("other", (4, 6_000, ())))
    config = _FREE.model_copy(update={"num_executors": 2})
    assert _completions(sequence, config, PRICE=-10.0, **parameters) == completions


def test_the_wait_for_a_stage_is_the_longest_task_of_its_parents_that_are_not_complete() -> None:
    diamond = job("diamond", (1, 1_000, ()), (1, 4_000, ()), (1, 500, (0, 1)), (1, 500, (2,)))
    simulator = Simulator(batch(diamond), _FREE, 0)
    simulator.start()
    waits = [wait_ms(simulator.state, stage) for stage in range(4)]
    assert waits == [0.0, 0.0, 4_000.0, 500.0]
    simulator.state.stages.num_finished[1] = 1
    assert wait_ms(simulator.state, 2) == 1_000.0


def test_jobs_that_the_profile_does_not_know_are_scheduled_by_the_typical_curve() -> None:
    workload = made_up(12, 8.0)
    known = SimulationConfig(num_executors=10)
    unknown = known.model_copy(update={"unknown_share": 1.0})
    policy = RulePolicy("rule", tuple(start_parameters()), solo_curves(workload, known))
    sequence = draw_sequence(workload, "batch", 10, 10, RandomStreams(1))
    simulator = Simulator(sequence, unknown, 1)
    simulator.start()
    assert (simulator.state.jobs.profile[:10] == -1).all()
    assert (simulate(sequence, policy, unknown, 1).completion_ms > 0).all()


def test_no_parameters_however_wild_let_a_run_hang() -> None:
    workload = made_up(12, 8.0)
    alike = SimulationConfig(num_executors=10)
    sizes = (0.25, 0.5, 0.75, 1.0)
    several = SimulationConfig(executor_classes=tuple(ExecutorClass(2, memory=m) for m in sizes))
    rng = np.random.default_rng(0)
    for seed in range(60):
        config = several if seed % 2 else alike
        curves = solo_curves(workload, config)
        policy = RulePolicy("wild", tuple(rng.normal(0, 3.0, NUM_PARAMETERS)), curves)
        sequence = draw_sequence(workload, "load:0.9", 12, 10, RandomStreams(seed))
        assert (simulate(sequence, policy, config, seed).completion_ms > 0).all()


def test_parameters_of_another_number_or_that_are_not_finite_are_refused() -> None:
    curves = solo_curves(Workload("w", (job("a", (4, 1_000, ())),)), _FREE)
    with pytest.raises(PolicyError, match="33 finite parameters"):
        RulePolicy("rule", (0.0,), curves)
    with pytest.raises(PolicyError, match="finite"):
        RulePolicy("rule", (float("nan"),) * NUM_PARAMETERS, curves)
    with pytest.raises(
        FormatError, match=r"33 parameters \(earlier versions: 21 or 29\), not 22; make it again"
    ):
        rule_parameters(Checkpoint("rule", 1, {"rule": np.zeros(22)}), "torn")


@pytest.mark.parametrize("count", [21, 29])
def test_parameters_of_a_checkpoint_from_before_executor_classes_or_reserves_are_padded(
    tmp_path: Path, count: int
) -> None:
    old = start_parameters()[:count]
    write_checkpoint(Checkpoint("rule", 1, {"rule": old}), tmp_path / "old.safetensors")
    read = rule_parameters(read_checkpoint(tmp_path / "old.safetensors"), "old")
    assert read == (*old.tolist(), *[0.0] * (33 - count))


def test_alike_executors_are_tuned_without_the_parameters_about_classes() -> None:
    workload = made_up(6, 4.0)
    sizes = {"budget_s": 60.0, "runs_per_generation": 2, "num_selection": 2, "max_generations": 1}
    alike = tune_rule(Scenario(workload, SimulationConfig(num_executors=4), "batch", 3), **sizes)  # type: ignore[arg-type]
    assert alike.evaluations == 2 * (4 + int(3 * np.log(25)))
    assert alike.parameters[21:29].tolist() == start_parameters()[21:29].tolist()
    classes = SimulationConfig(
        executor_classes=(ExecutorClass(2, memory=0.5), ExecutorClass(2, memory=1.0))
    )
    tuned = tune_rule(Scenario(workload, classes, "batch", 3), **sizes)  # type: ignore[arg-type]
    assert tuned.evaluations == 2 * (4 + int(3 * np.log(33)))


def test_curves_stay_as_they_are_from_as_many_executors_as_a_job_has_tasks() -> None:
    narrow = job("narrow", (2, 1_000, ()), (1, 500, (0,)))
    wide = job("wide", (12, 1_000, ()))
    curves = solo_curves(
        Workload("w", (narrow, wide)),
        SimulationConfig(num_executors=12, moving_delay_ms=0, warmup_delay_ms=0),
    )
    assert curves.levels.tolist() == [1, 2, 3, 4, 5, 7, 9, 11, 12]
    assert (curves.stretch[0] * 2_500).tolist() == pytest.approx([2_500] + 8 * [1_500])
    assert (curves.stretch[1] * 12).tolist() == pytest.approx([12, 6, 4, 3, 3, 2, 2, 2, 1])
