"""Packing comparisons by user, where a log names its users."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from parcae.evaluation.report import write_report
from parcae.rigid.evaluation.compare import by_user, compare_log, compare_packing, first_outcomes
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.logs import read_log
from parcae.rigid.metrics import bounded_slowdown
from tests.evaluation.rigid.test_compare import SOURCE, log


def _log_with_users() -> RigidJobs:
    """User 7 submits every second job, user 3 every fourth; the other jobs' user is unknown."""
    jobs = log()
    rows = np.arange(len(jobs))
    return replace(jobs, users=np.where(rows % 2 == 0, 7, np.where(rows % 4 == 1, 3, -1)))


@pytest.mark.parametrize("piece_jobs", [None, 60])
def test_every_user_has_its_mean_and_its_ratio(piece_jobs: int | None) -> None:
    comparison = compare_log(_log_with_users(), ["fcfs", "sjf"], part="all", piece_jobs=piece_jobs)
    often, seldom = by_user(comparison)
    num_jobs = 200 if piece_jobs is None else 180
    assert (often.user, often.jobs) == (7, num_jobs // 2)
    assert (seldom.user, seldom.jobs) == (3, num_jobs // 4)
    own = comparison.jobs.filter(pl.col("user") == 7).partition_by("column")
    values = [jobs["bounded_slowdown"].to_numpy() for jobs in own]
    assert often.means["sjf"].mean == pytest.approx(values[1].mean())
    assert often.ratios["sjf"].mean == pytest.approx(values[1].mean() / values[0].mean())
    assert often.ratios["sjf"].low < often.ratios["sjf"].mean < often.ratios["sjf"].high
    assert often.ratios["fcfs"].mean == 1
    if piece_jobs is None:
        whole = bounded_slowdown(first_outcomes(comparison)["sjf"])
        assert often.means["sjf"].mean == pytest.approx(whole[::2].mean())


def test_the_report_and_the_json_have_users_only_where_a_log_names_them(tmp_path: Path) -> None:
    comparison = compare_log(_log_with_users(), ["fcfs", "sjf"])
    report = tmp_path / "report.html"
    write_report(comparison, report)
    page = report.read_text()
    assert "Users: gains and losses" in page
    assert "The 2 users with the most jobs, of 2." in page
    users = json.loads(json.dumps(comparison.to_json()))["users"]
    assert [user["user"] for user in users] == [7, 3]
    assert users[0]["ratios_to_first"]["fcfs"]["mean"] == 1
    for without in (compare_log(log(), ["fcfs"]), compare_packing(SOURCE, ["sjf"], num_seeds=2)):
        assert by_user(without) == []
        assert "users" not in without.to_json()


def test_a_log_names_the_users_of_its_jobs(tmp_path: Path) -> None:
    lines = [
        f"{job} {submit} 0 10 2 -1 -1 2 10 -1 1 {user} 1 1 1 1 -1 -1\n"
        for job, submit, user in ((1, 50, 8), (2, 0, 5), (3, 90, -1))
    ]
    path = tmp_path / "log.swf"
    path.write_text("".join(lines))
    jobs = read_log(path).jobs
    assert jobs.users.tolist() == [5, 8, -1]
    assert jobs.piece(1, 3).users.tolist() == [8, -1]
    path.write_text("".join(line.replace(" 8 1 1", " 5 1 1") for line in lines[:2]))
    assert read_log(path).jobs.users.tolist() == []
