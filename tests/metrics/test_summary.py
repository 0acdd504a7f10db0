import json

import pytest

from parcae.base.errors import ConfigError
from parcae.cluster.trace import NOT_COMPLETED
from parcae.simulation.metrics import RunSummary, summarize
from tests.conftest import arriving, job
from tests.metrics.hand_made import cut_off, sequence, trace


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
    )


def test_jobs_cut_off_are_counted_and_jobs_yet_to_arrive_are_left_out() -> None:
    three = arriving(
        (job("a", (2, 4_000, ())), 0),
        (job("b", (1, 2_000, ())), 1_000),
        (job("c", (1, 1, ())), 9_000),
    )
    summary = summarize(cut_off(), three)
    assert summary.unfinished == 1
    assert summary.average_jct_ms == 5_000.0
    assert summary.mean_slowdown == (1.25 + 2.5) / 2


def test_a_run_that_ended_before_its_first_arrival_has_no_summary() -> None:
    none = trace((), completion_ms=(NOT_COMPLETED, NOT_COMPLETED), clock_ms=-1)
    with pytest.raises(ConfigError, match="no job arrived before the run ended at -1 ms"):
        summarize(none, sequence())


def test_a_summary_is_plain_json() -> None:
    assert json.loads(json.dumps(summarize(trace(), sequence()).to_json()))["makespan_ms"] == 7_000
