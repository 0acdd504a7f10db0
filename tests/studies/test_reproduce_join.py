"""Figure 16's DAG: the numbers of Appendix A, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.papers.join import CriticalPath, Scripted, best_schedule, cluster, join_job
from parcae.simulation.bounds import lower_bounds
from parcae.simulation.config import SimulationConfig
from parcae.simulation.metrics import makespan_ms
from parcae.simulation.simulator import simulate
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.job import JobSpec, Workload
from tests.conftest import job


def _alone(spec: JobSpec) -> JobSequence:
    return JobSequence(Workload("one", (spec,)), np.zeros(1, np.int64), np.zeros(1, np.int64))


@pytest.mark.parametrize("epsilon_s", [0.1, 0.5])
def test_the_critical_path_takes_28_seconds_and_the_best_schedule_20(epsilon_s: float) -> None:
    spec = join_job(epsilon_s)
    trace = simulate(_alone(spec), CriticalPath(spec), cluster(), 0)
    assert makespan_ms(trace) == 28_000 + 3_000 * epsilon_s
    assert best_schedule(_alone(spec), cluster()).makespan_ms == 20_000 + 3_000 * epsilon_s


def test_the_branches_hold_90_and_10_task_seconds_beside_epsilon_and_end_in_the_join() -> None:
    left, right, green, orange, join = join_job(0.0).stages
    assert right.work_ms + orange.work_ms == 90_000
    assert left.work_ms + green.work_ms == 10_000
    assert (join.work_ms, tuple(join.parents)) == (0, (2, 3))


def test_the_best_schedule_is_proven_by_the_lower_bound_and_can_be_played_again() -> None:
    sequence = _alone(join_job())
    best = best_schedule(sequence, cluster())
    assert best.makespan_ms == lower_bounds(sequence, 5).makespan_ms
    trace = simulate(sequence, Scripted(list(best.decisions)), cluster(), 0)
    assert makespan_ms(trace) == best.makespan_ms


def test_the_search_tries_every_schedule_where_none_meets_the_bound() -> None:
    # Three stages of 3 s on 2 executors, two of them side by side: 1 + 1 + 1 tasks. No schedule
    # reaches the bound of 4.5 s.
    spec = job("three", (1, 3_000, ()), (1, 3_000, ()), (1, 3_000, ()))
    config = SimulationConfig(num_executors=2, moving_delay_ms=0, warmup_delay_ms=0)
    best = best_schedule(_alone(spec), config)
    assert best.makespan_ms == 6_000
    assert best.num_schedules > 1
    with pytest.raises(ConfigError, match="without reaching the lower bound"):
        best_schedule(_alone(spec), config, max_schedules=1)


def test_a_fork_and_join_takes_three_times_its_task_on_enough_executors() -> None:
    config = SimulationConfig(num_executors=3, moving_delay_ms=0, warmup_delay_ms=0)
    middle = [(1, 2_000, (0,))] * 3
    spec = job("fork-join", (1, 2_000, ()), *middle, (1, 2_000, (1, 2, 3)))
    assert best_schedule(_alone(spec), config).makespan_ms == 6_000
