"""The exhaustive search over orders of jobs, against trying them all."""

from __future__ import annotations

import itertools

import pytest

from parcae.base.errors import ConfigError
from parcae.decima.bounds import best_job_order, simplified
from parcae.decima.catalog import order_policy
from parcae.simulation.bounds import lower_bounds
from parcae.simulation.config import SimulationConfig
from parcae.simulation.simulator import simulate
from parcae.workloads.archive import load_workload
from parcae.workloads.workload import JobSequence, RandomStreams, draw_sequence
from tests.conftest import batch, job


def _average_jct_ms(
    sequence: JobSequence, order: tuple[int, ...], config: SimulationConfig, seed: int
) -> float:
    trace = simulate(sequence, order_policy(order), config, seed)
    return float((trace.completion_ms - trace.arrival_ms).mean())


def _tried(sequence: JobSequence, config: SimulationConfig, seed: int) -> float:
    orders = itertools.permutations(range(sequence.num_jobs))
    return min(_average_jct_ms(sequence, order, config, seed) for order in orders)


@pytest.mark.parametrize("name", ["tpch", "synthetic"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_search_finds_what_trying_every_order_finds(name: str, seed: int) -> None:
    config = SimulationConfig(num_executors=5)
    sequence, cluster = simplified(
        draw_sequence(load_workload(name), "batch", 5, 5, RandomStreams(seed)), config
    )
    best = best_job_order(sequence, cluster, seed)
    assert best.average_jct_ms == _tried(sequence, cluster, seed)
    assert best.average_jct_ms == _average_jct_ms(sequence, best.order, cluster, seed)
    assert best.average_jct_ms >= lower_bounds(sequence, 5).average_jct_ms


@pytest.mark.parametrize("arrivals", ["batch", "poisson:2s"])
def test_it_does_so_with_delays_chance_and_later_arrivals(arrivals: str) -> None:
    config = SimulationConfig(num_executors=4, moving_delay_ms=300, warmup_delay_ms=100)
    for seed in range(3):
        sequence = draw_sequence(load_workload("tpch"), arrivals, 5, 4, RandomStreams(seed))
        best = best_job_order(sequence, config, seed)
        assert best.average_jct_ms == _tried(sequence, config, seed)
        assert best.average_jct_ms == _average_jct_ms(sequence, best.order, config, seed)


def test_bounds_spare_most_of_the_orders_of_ten_jobs() -> None:
    config = SimulationConfig(num_executors=20)
    sequence, cluster = simplified(
        draw_sequence(load_workload("tpch"), "batch", 10, 20, RandomStreams(1)), config
    )
    reported: list[int] = []
    best = best_job_order(sequence, cluster, 1, lambda done, _: reported.append(done))
    assert best.num_beginnings < 1_000_000
    assert reported[-1] == best.num_beginnings
    by_work = sorted(range(10), key=lambda row: sequence.jobs[row].work_ms)
    assert best.average_jct_ms <= _average_jct_ms(sequence, tuple(by_work), cluster, 1)


def test_too_many_jobs_and_runs_that_end_early_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"13 jobs have 6,227,020,800 orders.*at most 12"):
        best_job_order(batch(*[job("a", (1, 1, ()))] * 13), SimulationConfig(), seed=0)
    with pytest.raises(ConfigError, match="completed runs"):
        best_job_order(batch(job("a", (1, 1, ()))), SimulationConfig(end_ms=5), seed=0)
