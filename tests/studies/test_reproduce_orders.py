"""Figure 22: the search over orders of jobs, many at a time."""

from __future__ import annotations

import numpy as np
import pytest

from parcae.errors import ConfigError
from parcae.evaluation.bounds import best_job_order, simplified
from parcae.simulation.config import SimulationConfig
from parcae.studies.reproduce.orders import search_orders_many
from parcae.workloads.arrivals import JobSequence, draw_sequence
from parcae.workloads.catalog import load_workload
from parcae.workloads.random_streams import RandomStreams
from parcae.workloads.synthetic import toy_workload

_NO_DELAYS = {"moving_delay_ms": 0, "warmup_delay_ms": 0}


def test_the_best_order_of_the_toy_jobs_is_short_middle_long() -> None:
    sequence = JobSequence(toy_workload(), np.arange(3), np.zeros(3, np.int64))
    best = search_orders_many(sequence, SimulationConfig(num_executors=1, **_NO_DELAYS), seed=0)
    assert best.order == (2, 1, 0)
    assert best.average_jct_ms == 5_000


@pytest.mark.parametrize("seed", [1, 2])
def test_many_orders_side_by_side_find_what_one_after_the_other_finds(seed: int) -> None:
    config = SimulationConfig(num_executors=5)
    drawn = draw_sequence(load_workload("synthetic"), "batch", 5, 5, RandomStreams(seed))
    sequence, cluster = simplified(drawn, config)
    told: list[tuple[int, int]] = []
    many = search_orders_many(sequence, cluster, seed, lambda done, total: told.append((done, total)))
    one = best_job_order(sequence, cluster, seed)
    assert (many.order, many.average_jct_ms) == (one.order, one.average_jct_ms)
    assert told[-1][1] == 120


def test_more_than_ten_jobs_are_refused() -> None:
    sequence = JobSequence(toy_workload(), np.zeros(11, np.int64), np.zeros(11, np.int64))
    with pytest.raises(ConfigError, match="at most 10"):
        search_orders_many(sequence, SimulationConfig(num_executors=1), seed=0)
