from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.cluster.trace import NOT_COMPLETED
from parcae.learning.scenario import Scenario
from parcae.simulation.config import SimulationConfig
from parcae.simulation.metrics import (
    RunSummary,
    arrived,
    bounded_slowdown,
    busy_executors,
    concurrency,
    cores_held,
    executor_share,
    executors_per_job,
    ideal_ms,
    jct_ms,
    last_completion_ms,
    makespan_ms,
    mean_over_spans,
    slowdown,
    steps,
    summarize,
    utilization,
    work_inflation,
)
from parcae.simulation.simulator import Simulator
from tests.conftest import arriving, batch, job
from tests.metrics.hand_made import cut_off, sequence, three_jobs, trace


def test_the_makespan_runs_from_the_first_arrival_to_the_last_completion() -> None:
    assert last_completion_ms(trace()) == 7_000
    assert makespan_ms(trace(arrival_ms=(500, 1_000))) == 6_500


def test_a_run_cut_off_lasts_until_its_end() -> None:
    assert makespan_ms(cut_off()) == 6_000


def test_an_elastic_cluster_is_measured_by_the_cores_that_it_held() -> None:
    elastic = replace(trace(), held_ms=12_000)
    assert utilization(elastic) == 10_000 / 12_000
    assert cores_held(elastic) == 12_000 / 8_000
    assert cores_held(trace()) is None


def test_a_run_of_no_time_has_utilization_zero() -> None:
    assert utilization(trace((), arrival_ms=(0, 0), completion_ms=(0, 0))) == 0.0


def test_work_inflation_compares_executed_time_to_mean_work() -> None:
    cheaper = arriving((job("long", (2, 2_000, ())), 0), (job("short", (1, 1_000, ())), 1_000))
    assert work_inflation(trace(), sequence()) == 1.0
    assert work_inflation(trace(), cheaper) == 2.0


def test_work_inflation_is_of_completed_jobs_only() -> None:
    assert work_inflation(cut_off(), three_jobs()) == 1.0


def test_steps_at_the_same_time_are_one_step() -> None:
    times, count = steps(np.array([0, 5, 5]), np.array([5, 9, 9]))
    assert times.tolist() == [0, 5, 9]
    assert count.tolist() == [1, 2, 0]


def test_concurrency_counts_the_jobs_in_the_system() -> None:
    times, count = concurrency(trace())
    assert times.tolist() == [0, 1_000, 5_000, 7_000]
    assert count.tolist() == [1, 2, 1, 0]


def test_a_job_that_did_not_arrive_or_complete_neither_enters_nor_leaves() -> None:
    times, count = concurrency(cut_off())
    assert times.tolist() == [0, 1_000, 5_000]
    assert count.tolist() == [1, 2, 1]


def test_busy_executors_are_counted_over_all_jobs_or_of_one() -> None:
    times, count = busy_executors(trace())
    assert times.tolist() == [0, 1_000, 4_000, 5_000, 7_000]
    assert count.tolist() == [1, 2, 1, 1, 0]
    with pytest.raises(ConfigError, match="record=True"):
        busy_executors(trace(recorded=False))


def test_the_executor_share_is_executed_time_over_time_in_the_system() -> None:
    assert executor_share(trace()).tolist() == [8_000 / 5_000, 2_000 / 6_000]


def test_executors_are_counted_for_each_job_in_the_system() -> None:
    per_job = executors_per_job(trace(), np.array([0.0, 1_000.0, 4_000.0, 7_000.0, 9_000.0]))
    assert per_job.tolist() == [1.0, 1.0, pytest.approx(1 / (4 / 3)), 0.0]


def test_means_over_spans_keep_the_area_under_the_steps() -> None:
    times = np.array([0, 5, 8])
    count = np.array([2, 4, 0])
    means = mean_over_spans(times, count, np.array([0.0, 2.5, 7.5, 10.0]))
    assert means.tolist() == [2.0, 3.0, 0.8]
    assert mean_over_spans(times, np.array([2, 4, 1]), np.array([6.0, 10.0])).tolist() == [2.5]
    assert mean_over_spans(times[:0], count[:0], np.array([0.0, 1.0])).tolist() == [0.0]
    assert mean_over_spans(np.array([4]), np.array([1]), np.array([0.0, 4.0, 8.0])).tolist() == [
        0.0,
        1.0,
    ]


def test_an_area_beyond_the_largest_int64_has_a_mean() -> None:
    # 1 PB of memory in KB for three years and then none for a day; times in seconds.
    years = 3 * 365 * 86_400
    times, count = steps(np.array([0]), np.array([years]), np.array([2**40]))
    means = mean_over_spans(times, count, np.array([0.0, years / 2, years, years + 86_400]))
    assert means == pytest.approx([2**40, 2**40, 0])


def test_a_job_cut_off_by_the_end_counts_up_to_the_end_and_one_yet_to_arrive_counts_nothing() -> (
    None
):
    assert jct_ms(cut_off()).tolist() == [5_000, 5_000, 0]
    assert jct_ms(cut_off()).dtype == np.int64
    assert arrived(cut_off()).tolist() == [True, True, False]


@pytest.mark.parametrize("cluster", [{}, {"world": "cores"}])
def test_a_job_that_would_arrive_when_the_run_ends_did_not_arrive(cluster: dict[str, str]) -> None:
    config = SimulationConfig.model_validate({"num_executors": 1, "end_ms": 1_000, **cluster})
    jobs = arriving((job("a", (1, 1_500, ())), 0), (job("b", (1, 1_500, ())), 1_000))
    simulator = Simulator(jobs, config, 0)
    simulator.start()
    assert arrived(simulator.trace("")).tolist() == [True, False]
    policy = Scenario(jobs.workload, config, "batch", 2).fair_policy()
    policy.play(simulator.simulation)
    trace = simulator.trace("")
    assert (trace.clock_ms, trace.completion_ms.tolist()) == (1_000, [-1, -1])
    assert arrived(trace).tolist() == [True, False]
    assert summarize(trace, jobs).unfinished == 1


def test_the_ideal_duration_is_the_critical_path_or_the_share_of_the_work() -> None:
    jobs = batch(job("wide", (10, 1_000, ())), job("deep", (1, 1_000, ()), (1, 3_000, (0,))))
    assert ideal_ms(jobs, 2, False).tolist() == [5_000, 4_000]
    assert ideal_ms(jobs, 100, False).tolist() == [1_000, 4_000]


def test_slowdown_is_never_below_one() -> None:
    lucky = trace(
        ((0, 0, 0, 0, 0, 1), (0, 0, 1, 1, 0, 1)), arrival_ms=(0, 1_000), completion_ms=(1, 2_000)
    )
    assert slowdown(lucky, sequence()).tolist() == [1.0, 1.0]


def test_bounded_slowdown_counts_short_jobs_as_long_as_the_bound() -> None:
    assert bounded_slowdown(trace(), sequence(), bound_ms=3_000).tolist() == [1.25, 2.0]


def test_a_run_by_hand_is_summarized_in_these_numbers() -> None:
    assert summarize(trace(), sequence()) == RunSummary(
        average_jct_ms=5_500.0,
        median_jct_ms=5_500.0,
        p95_jct_ms=5_950.0,
        p99_jct_ms=5_990.0,
        makespan_ms=7_000,
        last_completion_ms=7_000,
        mean_slowdown=2.125,
        bounded_slowdown=1.0,
        utilization=5 / 7,
        work_inflation=1.0,
        moves=3,
        decisions=3,
        events=9,
        tasks=3,
        unfinished=0,
        missed_deadlines=0.0,
        open_mean=11 / 7,
        open_most=2,
    )


def test_jobs_cut_off_are_counted_and_jobs_yet_to_arrive_are_left_out() -> None:
    summary = summarize(cut_off(), three_jobs())
    assert summary.unfinished == 1
    assert summary.average_jct_ms == 5_000.0
    assert summary.mean_slowdown == (1.25 + 2.5) / 2


def test_a_run_that_ended_before_its_first_arrival_has_no_summary() -> None:
    none = trace((), completion_ms=(NOT_COMPLETED, NOT_COMPLETED), clock_ms=-1)
    with pytest.raises(ConfigError, match="no job arrived before the run ended at -1 ms"):
        summarize(none, sequence())
