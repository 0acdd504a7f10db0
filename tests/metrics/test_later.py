"""Jobs that end later than under the first policy, compared with numbers worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.evaluation.who_pays import LATER, PROMISE, count_later, paired_runs, worst_ratio
from tests.metrics.hand_made import cut_off, trace


def test_the_thresholds_are_five_and_ten_percent() -> None:
    assert (LATER, PROMISE) == (1.05, 1.1)


def test_ratios_are_of_each_jobs_own_completion_time() -> None:
    runs = paired_runs([trace(), trace(completion_ms=(4_000, 8_200), clock_ms=9_000)])
    assert runs.names == ("job-0", "job-1")
    assert runs.jct_ms.tolist() == [[5_000, 6_000], [4_000, 7_200]]
    assert runs.ratio_to_first.tolist() == [[1.0, 1.0], [0.8, 1.2]]
    assert runs.is_complete.all()


def test_a_job_that_only_the_other_policy_cut_off_has_a_lower_bound() -> None:
    whole = trace(
        arrival_ms=(0, 1_000, 9_000), completion_ms=(5_000, 3_000, 9_500), clock_ms=10_000
    )
    ratios = paired_runs([whole, cut_off()]).ratio_to_first
    assert ratios[1].tolist() == [1.0, 2.5, 0.002]


def test_a_job_that_the_first_policy_cut_off_has_no_ratio() -> None:
    whole = trace(
        arrival_ms=(0, 1_000, 9_000), completion_ms=(5_000, 3_000, 9_500), clock_ms=10_000
    )
    ratios = paired_runs([cut_off(), whole]).ratio_to_first
    assert np.isnan(ratios).tolist() == [[False, True, True], [False, True, True]]


def test_a_job_that_takes_no_time_counts_as_one_ms() -> None:
    runs = paired_runs([trace(completion_ms=(0, 1_000)), trace(completion_ms=(0, 1_003))])
    assert runs.ratio_to_first.tolist() == [[1.0, 1.0], [1.0, 3.0]]


def test_a_job_that_would_arrive_after_the_end_has_no_deadline_to_miss() -> None:
    runs = paired_runs([cut_off()], deadline_ms=np.array([4_000.0, math.inf, 1_000.0]))
    assert runs.has_deadline.tolist() == [[True, False, False]]
    assert runs.missed.tolist() == [[True, False, False]]


def test_a_job_that_would_arrive_at_the_very_end_did_not_arrive() -> None:
    ended = trace(arrival_ms=(0, 6_000), completion_ms=(5_000, -1), clock_ms=6_000)
    assert paired_runs([ended]).has_arrived.tolist() == [[True, False]]
    runs = paired_runs([ended], deadline_ms=np.array([4_000.0, 1_000.0]))
    assert runs.has_deadline.tolist() == [[True, False]]


def test_exactly_five_percent_more_is_not_later() -> None:
    runs = paired_runs([trace(completion_ms=(100, 1_100)), trace(completion_ms=(105, 1_106))])
    assert count_later(runs.ratio_to_first[1], LATER) == (1, 2)


def test_unknown_ratios_do_not_count() -> None:
    ratio = np.array([1.0, 1.05, 1.2, math.nan])
    assert count_later(ratio, LATER) == (1, 3)
    assert worst_ratio(ratio) == 1.2
    assert math.isnan(worst_ratio(np.array([math.nan])))
    assert math.isnan(worst_ratio(np.array([])))


def test_runs_of_different_jobs_do_not_pair() -> None:
    with pytest.raises(ConfigError, match="not of the same jobs"):
        paired_runs([trace(), trace(arrival_ms=(0, 2_000))])
    with pytest.raises(ConfigError, match="not of the same jobs"):
        paired_runs([trace(), cut_off()])
    with pytest.raises(ConfigError, match="not of the same jobs"):
        paired_runs([trace(), replace(trace(), job_names=("job-1", "job-0"))])
    with pytest.raises(ConfigError, match="at least one run"):
        paired_runs([])
