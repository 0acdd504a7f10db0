"""Two event logs compared job by job."""

import json

import numpy as np
import pytest

from parcae.cli.compare_logs import _tables
from parcae.evaluation.compare_logs import compare_runs, summarize_run
from parcae.workloads.archive import BUNDLED
from parcae.workloads.recorded_run import (
    CORE_TASK,
    NOT_COMPLETED,
    JobOutcome,
    RecordedJob,
    RecordedRun,
)
from parcae.workloads.spark_log.run import read_spark_run
from tests.conftest import shared_data

EXAMPLE = BUNDLED / "example-event-log.zstd"


def recorded(*jobs: tuple[str, int, int], num_cores: int = 2) -> RecordedRun:
    """A run of (name, submission, completion) jobs with one task each.

    A completion of NOT_COMPLETED means unfinished, a smaller one failed.
    """
    rows = []
    times = dict[str, int]()
    for name, start, end in jobs:
        times[name] = times.get(name, 0) + 1
        outcome = (
            JobOutcome.UNFINISHED
            if end == NOT_COMPLETED
            else JobOutcome.FAILED
            if end < 0
            else JobOutcome.COMPLETED
        )
        rows.append(
            RecordedJob(
                name, times[name], start, end if end == NOT_COMPLETED else abs(end), outcome
            )
        )
    tasks = [
        (row, row % num_cores, job.submission_ms, max(job.completion_ms, job.submission_ms))
        for row, job in enumerate(rows)
    ]
    by_core = np.sort(np.array(tasks, CORE_TASK), order=["core", "start_ms"])
    return RecordedRun("log", ("app",), tuple(rows), by_core, num_cores, 10_000)


def test_the_ratio_is_of_the_means_of_the_matched_jobs() -> None:
    result = compare_runs(
        recorded(("x", 0, 2_000), ("y", 0, 4_000)), recorded(("y", 0, 3_000), ("x", 500, 1_500))
    )
    assert result.ratio is not None
    assert result.ratio.mean == pytest.approx(4 / 6)
    assert result.ratio.low < 4 / 6 < result.ratio.high
    assert [(row.name, row.pairs, tuple(row.average_jct_s.values())) for row in result.names] == [
        ("x", 1, (2.0, 1.0)),
        ("y", 1, (4.0, 3.0)),
    ]
    assert result.notes == ()


def test_a_job_that_failed_keeps_its_place_but_is_left_out_of_the_ratio() -> None:
    a = recorded(("x", 0, 1_000), ("x", 10, 2_010), ("x", 20, 3_020))
    b = recorded(("x", 0, 1_000), ("x", 10, -500), ("x", 20, 6_020))
    result = compare_runs(a, b)
    assert result.num_pairs == 2
    assert result.ratio is not None
    assert result.ratio.mean == pytest.approx(7 / 4)
    assert [(own.order, other.outcome) for own, other in result.not_compared] == [
        (2, JobOutcome.FAILED)
    ]


def test_jobs_without_a_counterpart_are_listed() -> None:
    a = recorded(("x", 0, 1_000), ("x", 5, 1_005), ("old", 7, 9))
    result = compare_runs(a, recorded(("x", 0, 1_000), ("new", 1, NOT_COMPLETED)))
    assert [[job.key for job in jobs] for jobs in result.unmatched] == [
        [("x", 2), ("old", 1)],
        [("new", 1)],
    ]
    unmatched = result.to_json()["unmatched"]
    assert unmatched["B"] == [
        {"name": "new", "order": 1, "submission_s": 0.001, "outcome": "unfinished"}
    ]


def test_logs_without_a_common_job_have_no_ratio() -> None:
    result = compare_runs(recorded(("x", 0, 1_000)), recorded(("y", 0, 1_000)))
    assert result.ratio is None
    assert result.to_json()["ratio"] is None
    assert "No job of A matches a job of B" in result.notes[-1]


def test_matched_jobs_that_did_not_complete_in_both_runs_are_no_mismatch() -> None:
    a = recorded(("x", 0, 1_000), ("y", 0, -500))
    result = compare_runs(a, recorded(("x", 0, -1_000), ("y", 0, 700)))
    assert result.notes == ("2 jobs match, but none completed in both runs.",)


def test_one_pair_has_no_interval_to_speak_of() -> None:
    result = compare_runs(recorded(("x", 0, 1_000)), recorded(("x", 0, 2_000)))
    assert result.ratio is not None
    assert result.ratio.is_unknown
    assert result.notes == ()
    caption = str(next(_tables(result)).caption)
    assert caption == "mean JCT B / A over 1 matched job: 2.000"


def test_the_caption_names_the_interval_and_the_pairs_left_out() -> None:
    a = recorded(("x", 0, 1_000), ("x", 5, 2_005), ("y", 9, 20))
    result = compare_runs(a, recorded(("x", 0, 1_000), ("x", 5, 2_005), ("y", 9, -20)))
    caption = str(next(_tables(result)).caption)
    assert "over 2 matched jobs: 1.000 [1.000, 1.000]" in caption
    assert caption.endswith(
        "(95% bootstrap interval over jobs, without 1 pair that did not complete in both)"
    )


def test_one_run_in_numbers() -> None:
    done = (("x", 0, 1_000), ("x", 100, 2_100), ("x", 200, 9_200))
    row = summarize_run(recorded(*done, ("y", 300, -400), ("z", 0, NOT_COMPLETED)))
    assert (row.num_jobs, row.completed, row.failed, row.unfinished) == (5, 3, 1, 1)
    assert (row.average_jct_s, row.median_jct_s, row.makespan_s, row.num_tasks) == (
        4.0,
        2.0,
        9.2,
        5,
    )
    assert (row.p95_jct_s, row.task_s) == (pytest.approx(8.3), pytest.approx(12.1))
    # Two cores for at most 5 s each: the log contradicts itself, and no clamp hides it.
    assert row.core_utilization == pytest.approx(1.21)


def test_a_log_compared_with_itself_has_ratio_1_and_the_json_has_no_nan() -> None:
    comparison = json.loads(
        json.dumps(
            compare_runs(*[read_spark_run([EXAMPLE], key="spark.jobGroup.id")] * 2).to_json(),
            allow_nan=False,
        )
    )
    assert comparison["ratio"] == {"mean": 1.0, "ci95": [1.0, 1.0], "pairs": 18}
    assert comparison["logs"]["A"] == comparison["logs"]["B"]
    assert comparison["logs"]["A"]["num_jobs"] == 18
    assert comparison["logs"]["A"]["core_utilization"] == pytest.approx(0.713, abs=0.001)
    assert comparison["unmatched"] == {"A": [], "B": []}
    assert comparison["names"][0]["ratio"]["ci95"] == [None, None]  # three pairs are too few


def test_real_logs_of_different_applications_are_compared() -> None:
    folder = shared_data("spark-event-logs")
    one, every = (read_spark_run([path]) for path in (folder / "app-20161115172038-0000", folder))
    result = compare_runs(one, every)
    assert result.num_pairs == 1
    assert len(result.unmatched[1]) == 11
    assert result.summaries[1].core_utilization is None
