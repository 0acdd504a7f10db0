"""Logs whose jobs arrive faster, and the cost that weighs slowdown and makespan."""

import math

import numpy as np
import pytest

from parcae.errors import ConfigError
from parcae.metrics.packing import parse_cost, slowdown
from parcae.packing.config import PackingConfig
from parcae.packing.layout import Cost
from parcae.packing.sources import LogSource, sped_up
from parcae.packing.world import PackingBatch, shortest_makespan
from parcae.policies.packing.catalog import make_packing_policy
from parcae.workloads.rigid import RigidJobs

_JOBS = RigidJobs("three", np.array([0, 10, 20]), [40, 30, 20], [[3], [2], [4]], [4], step="step")


def test_jobs_arrive_faster() -> None:
    faster = sped_up(_JOBS, 2.0)
    assert faster.arrival.tolist() == [0, 5, 10]
    assert faster.duration.tolist() == _JOBS.duration.tolist()


def test_the_shortest_makespan_counts_arrivals_and_work() -> None:
    # 40 x 3 + 30 x 2 + 20 x 4 units of work on 4 units.
    assert shortest_makespan(_JOBS) == 65.0
    assert shortest_makespan(sped_up(_JOBS, 0.1)) == 200.0 + 20.0


@pytest.mark.parametrize("policy", ["fcfs", "sjf"])
def test_slowdown_and_makespan_count_alike_for_every_job(policy: str) -> None:
    batch = PackingBatch([_JOBS], PackingConfig.for_log(_JOBS))
    batch.run(make_packing_policy(policy).play_many, 1)
    outcome = batch.outcome(0)
    makespan = float(outcome.finish.max())
    expected = slowdown(outcome).sum() + 3 * makespan / 65.0
    assert batch.costs(Cost.SLOWDOWN_MAKESPAN)[0] == pytest.approx(expected)


def test_the_objective_has_a_name() -> None:
    assert parse_cost("slowdown+makespan") is Cost.SLOWDOWN_MAKESPAN


@pytest.mark.parametrize("speeds", [(), (1.0, 0.0), (math.nan,), (1e-300,), (math.inf,)])
def test_speeds_that_no_log_can_have_are_refused(speeds: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=r"give one or more numbers from 0\.001 to 1000"):
        LogSource(_JOBS, 1, speeds=speeds)
