import numpy as np
import pytest

from parcae.decima.bounds import best_job_order, simplified
from parcae.decima.catalog import make_policy, order_policy
from parcae.simulation.bounds import alone_ms, lower_bounds
from parcae.simulation.config import SimulationConfig
from parcae.simulation.simulator import simulate
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from tests.conftest import arriving, batch, job


def test_a_job_alone_takes_the_waves_of_its_longest_path_or_its_share_of_the_work() -> None:
    chain = job("chain", (3, 1_000, ()), (1, 2_000, (0,)))
    assert alone_ms(chain, 2) == 4_000  # two waves of 1 s, then 2 s
    assert (
        alone_ms(job("wide", (4, 1_000, ()), (4, 1_000, ())), 4) == 2_000
    )  # no path, but 8 s of work on 4 executors


def test_jobs_that_come_later_are_bounded_by_shortest_remaining_first_on_shared_executors() -> None:
    # One executor: 10 s of work from 0 on. In the relaxation, 2 s of work at 4 s interrupt it: the
    # jobs end at 6 s and 12 s.
    bounds = lower_bounds(
        arriving((job("long", (10, 1_000, ())), 0), (job("short", (2, 1_000, ())), 4_000)), 1
    )
    assert bounds.average_jct_ms == (12_000 + 2_000) / 2
    assert bounds.makespan_ms == 12_000


def test_idle_time_before_a_late_job_is_part_of_the_makespan_bound() -> None:
    bounds = lower_bounds(
        arriving((job("a", (1, 1_000, ())), 0), (job("b", (1, 1_000, ())), 50_000)), 4
    )
    assert bounds.makespan_ms == 51_000
    assert bounds.average_jct_ms == 1_000


def test_bounds_use_the_shortest_duration_of_any_wave_and_parallelism() -> None:
    samples = tuple(np.array(v) for v in ([9_000, 8_000], [5_000, 6_000]))
    durations = TaskDurations((1, 50), samples, samples, (np.array([7_000]), np.array([3_000])))
    assert alone_ms(JobSpec("measured", (StageSpec(1, durations),)), 10) == 3_000


@pytest.mark.parametrize("policy", ["fair", "fifo", "srpt-cap:2"])
def test_no_simulated_run_beats_the_bounds(policy: str) -> None:
    jobs = arriving(
        *((job(f"j{n}", (2 * n, 700, ()), (n, 300, (0,))), 400 * n) for n in range(1, 7))
    )
    config = SimulationConfig(num_executors=3, moving_delay_ms=0, warmup_delay_ms=0)
    trace = simulate(jobs, make_policy(policy, 3), config, 0)
    bounds = lower_bounds(jobs, 3)
    assert float((trace.completion_ms - trace.arrival_ms).mean()) >= bounds.average_jct_ms
    assert int(trace.completion_ms.max() - trace.arrival_ms.min()) >= bounds.makespan_ms


def test_the_simplified_setting_has_neither_waves_nor_delays_nor_slowdowns() -> None:
    cold = (np.array([9_000]), np.array([9_000]))
    warm = (np.array([1_000]), np.array([2_000]))
    durations = TaskDurations((1, 4), cold, warm, warm)
    jobs = batch(
        JobSpec("a", (StageSpec(8, durations, mean_task_ms=1_500.4),)),
        JobSpec("b", (StageSpec(4, durations, mean_task_ms=1_000.0),)),
    )
    plain, config = simplified(jobs, SimulationConfig(num_executors=4))
    trace = simulate(plain, order_policy([0, 1]), config, 0)
    assert trace.completion_ms.tolist() == [3_000, 4_000]
    assert plain.jobs[0].work_ms == pytest.approx(8 * 1_500.4)
    best = best_job_order(plain, config, seed=0)
    assert (best.order, best.average_jct_ms) == ((1, 0), 2_500.0)
