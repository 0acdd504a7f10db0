"""Jobs that end later than under the first policy, compared with numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from parcae.base.errors import ConfigError
from parcae.cluster.trace import Trace
from parcae.evaluation.who_pays import deadline_counts, later_counts, paired_jobs
from tests.metrics.hand_made import cut_off, trace

_WHOLE = trace(arrival_ms=(0, 1_000, 9_000), completion_ms=(5_000, 3_000, 9_500), clock_ms=10_000)


def _under(column: int, *traces: Trace) -> pl.DataFrame:
    return paired_jobs(traces).filter(pl.col("column") == column)


def test_ratios_are_of_each_jobs_own_completion_time() -> None:
    jobs = paired_jobs([trace(), trace(completion_ms=(4_000, 8_200), clock_ms=9_000)])
    assert jobs.select("position", "column", "job", "jct_ms", "ratio_to_first").rows() == [
        (0, 0, "job-0", 5_000, 1.0),
        (0, 1, "job-0", 4_000, 0.8),
        (1, 0, "job-1", 6_000, 1.0),
        (1, 1, "job-1", 7_200, 1.2),
    ]


def test_a_job_that_only_the_other_policy_cut_off_has_a_lower_bound() -> None:
    jobs = _under(1, _WHOLE, cut_off())
    assert jobs["ratio_to_first"].to_list() == [1.0, 2.5, 0.002]
    assert jobs["completion_ms"].to_list() == [5_000, None, None]


def test_a_job_that_the_first_policy_cut_off_has_no_ratio() -> None:
    for column in (0, 1):
        jobs = _under(column, cut_off(), _WHOLE)
        assert jobs["ratio_to_first"].is_null().to_list() == [False, True, True]


def test_a_job_that_takes_no_time_counts_as_one_ms() -> None:
    jobs = _under(1, trace(completion_ms=(0, 1_000)), trace(completion_ms=(0, 1_003)))
    assert jobs["ratio_to_first"].to_list() == [1.0, 3.0]


def test_a_job_that_did_not_arrive_has_no_deadline_to_miss() -> None:
    due_ms = np.array([4_000.0, np.inf, 1_000.0])
    counts = paired_jobs([cut_off()], deadline_ms=due_ms).select(deadline_counts())
    assert counts.rows() == [(1, 1, 1.0)]
    # It would arrive at the very end.
    ended = trace(arrival_ms=(0, 6_000), completion_ms=(5_000, -1), clock_ms=6_000)
    jobs = paired_jobs([ended], deadline_ms=np.array([4_000.0, 1_000.0]))
    assert jobs["has_arrived"].to_list() == [True, False]
    assert jobs.select(deadline_counts())["due"].to_list() == [1]


def test_exactly_five_percent_more_is_not_later_and_unknown_ratios_do_not_count() -> None:
    ratios = pl.DataFrame({"ratio_to_first": [1.0, 1.05, 1.2, 1.06, None]})
    assert ratios.select(later_counts()).rows() == [(4, 2, 1, 1.2)]
    unknown = pl.DataFrame({"ratio_to_first": [None]}, {"ratio_to_first": pl.Float64})
    assert unknown.select(later_counts()).rows() == [(0, 0, 0, None)]


def test_runs_of_different_jobs_do_not_pair() -> None:
    others = (
        trace(arrival_ms=(0, 2_000)),
        cut_off(),
        replace(trace(), job_names=("job-1", "job-0")),
    )
    for other in others:
        with pytest.raises(ConfigError, match="not of the same jobs"):
            paired_jobs([trace(), other])
    with pytest.raises(ConfigError, match="at least one run"):
        paired_jobs([])
