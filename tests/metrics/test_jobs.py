import numpy as np
import pytest

from parcae.learning.scenario import Scenario
from parcae.simulation.config import SimulationConfig
from parcae.simulation.metrics import (
    arrived,
    bounded_slowdown,
    ideal_ms,
    jct_ms,
    jct_percentiles_ms,
    slowdown,
    summarize,
)
from parcae.simulation.simulator import Simulator
from tests.conftest import arriving, batch, job
from tests.metrics.hand_made import cut_off, sequence, trace


def test_the_completion_time_counts_from_the_arrival() -> None:
    assert jct_ms(trace()).tolist() == [5_000, 6_000]


def test_a_job_cut_off_by_the_end_counts_up_to_the_end_and_one_yet_to_arrive_counts_nothing() -> (
    None
):
    assert jct_ms(cut_off()).tolist() == [5_000, 5_000, 0]
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
    assert ideal_ms(jobs, 2).tolist() == [5_000, 4_000]
    assert ideal_ms(jobs, 100).tolist() == [1_000, 4_000]


def test_slowdown_is_completion_time_over_ideal_duration() -> None:
    assert slowdown(trace(), sequence()).tolist() == [1.25, 3.0]


def test_slowdown_is_never_below_one() -> None:
    lucky = trace(
        ((0, 0, 0, 0, 0, 1), (0, 0, 1, 1, 0, 1)), arrival_ms=(0, 1_000), completion_ms=(1, 2_000)
    )
    assert slowdown(lucky, sequence()).tolist() == [1.0, 1.0]


def test_bounded_slowdown_counts_short_jobs_as_long_as_the_bound() -> None:
    assert bounded_slowdown(trace(), sequence(), bound_ms=3_000).tolist() == [1.25, 2.0]


def test_percentiles_are_of_the_jobs_that_arrived() -> None:
    assert jct_percentiles_ms(trace(), (0, 50, 100)) == (5_000.0, 5_500.0, 6_000.0)
    assert jct_percentiles_ms(cut_off(), (0, 100)) == (5_000.0, 5_000.0)


def test_completion_times_are_whole_milliseconds() -> None:
    assert jct_ms(trace()).dtype == np.int64
