"""Missed deadlines and tardiness, computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.evaluation.statistics import Estimate
from parcae.evaluation.who_pays import (
    MISSED,
    MISSED_MINUS_FIRST,
    TARDINESS,
    TARDINESS_MINUS_FIRST,
    deadline_estimates,
    fewest_missed,
)
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.metrics import deadlines_ms, missed_and_tardiness
from parcae.simulation.objectives import FinishedJobs, objective_cost, parse_objective
from parcae.simulation.simulator import simulate
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import JobSequence, Workload
from tests.evaluation.made import counts_of, jobs_of, run_of

#: One core; jobs of 4, 2 and 1 s arrive together and are served in this order: they take 4, 6 and
#: 7 s. The first two have deadlines of 5 s.
_WORKLOAD = Workload(
    "three",
    tuple(
        JobSpec(name, (StageSpec(1, TaskDurations.constant(ms)),), deadline_ms=due)
        for name, ms, due in (("a", 4_000, 5_000), ("b", 2_000, 5_000), ("c", 1_000, None))
    ),
)
_SEQUENCE = JobSequence(_WORKLOAD, np.arange(3), np.zeros(3, np.int64))
_CONFIG = SimulationConfig(world=WorldName.CORES, num_executors=1)
_NONE = np.inf


def test_one_of_two_deadlines_is_missed_by_a_second() -> None:
    trace = simulate(_SEQUENCE, OrderPolicy("fifo", OrderKind.FIFO, plan_tables()), _CONFIG, 0)
    assert trace.completion_ms.tolist() == [4_000, 6_000, 7_000]
    assert missed_and_tardiness(trace, _SEQUENCE) == {
        "deadlines": 2,
        "missed_deadline_share": 0.5,
        "mean_tardiness_ms": 500.0,
    }
    due_ms = deadlines_ms(_SEQUENCE)
    assert due_ms is not None
    assert due_ms.tolist() == [5_000, 5_000, _NONE]


def test_a_run_that_ends_before_jobs_counts_those_that_arrived() -> None:
    arrivals = np.array([0, 0, 9_000])
    workload = _WORKLOAD.with_deadlines({"*": 3})
    sequence = JobSequence(workload, np.arange(3), arrivals)
    config = _CONFIG.model_copy(update={"end_ms": 5_000})
    trace = simulate(sequence, OrderPolicy("fifo", OrderKind.FIFO, plan_tables()), config, 0)
    found = missed_and_tardiness(trace, sequence)
    # The first took 4 s, the second is 2 s beyond its deadline and not complete at the end.
    assert found == {"deadlines": 2, "missed_deadline_share": 1.0, "mean_tardiness_ms": 1_500.0}


def test_without_deadlines_there_is_nothing_to_count() -> None:
    workload = Workload("one", (JobSpec("a", _WORKLOAD.jobs[0].stages),))
    sequence = JobSequence(workload, np.zeros(1, np.int64), np.zeros(1, np.int64))
    trace = simulate(sequence, OrderPolicy("fifo", OrderKind.FIFO, plan_tables()), _CONFIG, 0)
    assert missed_and_tardiness(trace, sequence) == {}


def _estimates(
    runs: Sequence[tuple[Sequence[Sequence[int]], Sequence[float]]], column: int
) -> dict[str, Estimate]:
    """Of runs with completion times by policy, and deadlines."""
    frames = [
        run_of(("x",) * len(due_ms), *completion_ms, deadline_ms=due_ms)
        for completion_ms, due_ms in runs
    ]
    counts = (counts_of(jobs_of(*frames), one) for one in (column, 0))
    return deadline_estimates(*counts)


def test_policies_are_compared_job_by_job_over_the_seeds() -> None:
    due_ms = [5_000.0, 5_000.0, _NONE]
    runs = [
        ([[4_000, 6_000, 9_000], [5_000, 5_000, 9_000]], due_ms),
        ([[7_000, 8_000, 9_000], [4_000, 7_000, 9_000]], due_ms),
        # No job of this seed has a deadline: it does not count.
        ([[7_000, 8_000, 9_000], [4_000, 7_000, 9_000]], [_NONE] * 3),
    ]
    first = _estimates(runs, 0)
    second = _estimates(runs, 1)
    assert first[MISSED].mean == 0.75
    assert first[TARDINESS].mean == 1.5
    assert (first[MISSED_MINUS_FIRST].low, first[MISSED_MINUS_FIRST].high) == (0.0, 0.0)
    assert second[MISSED].mean == 0.25
    assert second[TARDINESS].mean == 0.5
    assert second[TARDINESS_MINUS_FIRST].mean == -1.0
    assert second[TARDINESS].low >= 0.0
    # With both seeds the same difference, the interval has no width.
    assert second[MISSED_MINUS_FIRST] == Estimate(-0.5, -0.5, -0.5)
    said = fewest_missed({"fair": first, "edf": second}, "fair")
    assert said.startswith("edf misses the fewest deadlines: 25.0%")
    assert said.endswith("; less that share of fair, -50.0% [-50.0%, -50.0%].")
    # The first policy is an oracle, which may not be the best.
    worse = {**second, MISSED_MINUS_FIRST: Estimate(0.2, 0.1, 0.4)}
    said = fewest_missed({"edf": worse}, "oracle")
    assert said.endswith("; less that share of oracle, +20.0% [+10.0%, +40.0%].")
    assert fewest_missed({"fair": first}, "fair").endswith("100.0%].")
    same = {"fair": first, "srpt": second, "edf": second, "las": second}
    assert fewest_missed(same, "fair").startswith("srpt, edf and las miss the fewest deadlines: 25")
    assert fewest_missed({"fair": {}}, "fair") == ""


def test_a_difference_of_shares_is_at_most_1() -> None:
    due_ms = [5_000.0, 5_000.0]
    runs = [([[9_000, 9_000], [1_000, 9_000]], due_ms), ([[9_000, 9_000]] * 2, due_ms)]
    assert _estimates(runs, 1)[MISSED_MINUS_FIRST] == Estimate(-0.25, -1.0, 1.0)


def test_one_seed_leaves_the_interval_of_tardiness_unknown() -> None:
    found = _estimates([([[9_000]], [5_000.0]), ([[9_000]], [_NONE])], 0)
    assert found[TARDINESS].to_json() == {"mean": 4.0, "ci95": [None, None]}


def test_runs_in_which_no_job_has_a_deadline_are_unknown() -> None:
    found = _estimates([([[1_000]], [_NONE])], 0)
    assert found[MISSED].to_json() == {"mean": None, "ci95": [None, None]}
    assert fewest_missed({"fair": found}, "fair") == ""


def test_the_objective_is_the_share_missed_plus_the_capped_tardiness() -> None:
    objective = parse_objective("deadlines")
    end_ms = np.array([[8_000.0, 15_000.0, 99_000.0], [40_000.0, 10_000.0, 1.0], [1.0, 1.0, 1.0]])
    due_ms = np.array([[10_000.0, 10_000.0, _NONE]] * 2 + [[_NONE] * 3])
    jobs = FinishedJobs(np.zeros((3, 3)), end_ms, np.ones((3, 3)), due_ms)
    # 15 s: missed, by half of the deadline. 40 s: by three deadlines, which count as one.
    assert objective_cost(objective, jobs).tolist() == [0.75, 1.0, 0.0]
    with pytest.raises(ConfigError, match="give --deadlines FILE"):
        objective_cost(objective, FinishedJobs(np.zeros((1, 1)), np.ones((1, 1)), np.ones((1, 1))))
