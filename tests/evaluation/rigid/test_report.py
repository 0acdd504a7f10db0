from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from parcae.evaluation.comparison import Comparison
from parcae.evaluation.report import write_report
from parcae.rigid.evaluation.compare import compare_log, compare_packing, first_outcomes
from parcae.rigid.evaluation.plots import boxes, slowdown_bars, slowdown_by_size, slowdown_cdf
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.sources import DrawnSource
from tests.evaluation.rigid.test_compare import SOURCE, log
from tests.metrics.test_packing import outcome


@pytest.fixture(scope="module")
def drawn() -> Comparison:
    return compare_packing(
        DrawnSource(rates=(0.7,)), ["packer", "sjf", "random"], num_seeds=12, label="<load> 1.3"
    )


def test_jobs_are_drawn_at_the_lowest_free_units() -> None:
    jobs = RigidJobs("three", [0, 0, 0], [2, 4, 2], [[1], [2], [2]], [4])
    bars = boxes(outcome(jobs, [0, 0, 2]), 0)
    found = list(zip(bars.job, bars.row, bars.height, bars.start, bars.finish, strict=True))
    assert found == [(0, 0, 1, 0, 2), (1, 1, 2, 0, 4), (2, 0, 1, 2, 4), (2, 3, 1, 2, 4)]
    nothing = RigidJobs("one", [0], [2], [[1, 0]], [4, 4])
    assert len(boxes(outcome(nothing, [0]), 1).job) == 0


def test_no_two_boxes_of_a_run_overlap(drawn: Comparison) -> None:
    for run in first_outcomes(drawn).values():
        for resource in range(2):
            grid = np.zeros((10, int(run.finish.max())), int)
            bars = boxes(run, resource)
            for row, start, finish, _, height in zip(*bars, strict=True):
                grid[row : row + height, start:finish] += 1
            assert grid.max() == 1
            assert grid.sum() == (run.jobs.demand[:, resource] * run.jobs.duration).sum()


def test_the_page_is_one_file_with_the_table_charts_of_every_resource_and_the_settings(
    drawn: Comparison, tmp_path: Path
) -> None:
    write_report(drawn, tmp_path / "r.html", command="parcae compare --world rigid --load 1.3")
    page = (tmp_path / "r.html").read_text()
    assert "<title>Parcae: &lt;load&gt; 1.3" in page
    assert "parcae compare --world rigid --load 1.3" in page
    assert page.count("<svg ") == 1 + 2 + 3 + 1
    assert "resource 1" in page
    assert re.search(
        '<tr class=best><td><i class=dot style="background:#[0-9a-f]{6}"></i>sjf', page
    )
    assert 'src="http' not in page


def test_the_page_of_a_log_shows_utilization_over_time_instead_of_boxes(tmp_path: Path) -> None:
    comparison = compare_log(log(1_000), ["easy", "sjf"])
    write_report(comparison, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "In use: resource 0" in page
    assert page.count("<svg ") == 1 + 2 + 2


def test_the_interval_of_a_single_run_is_said_to_be_over_its_jobs() -> None:
    one = compare_packing(SOURCE, ["sjf", "packer"], num_seeds=1)
    assert one.world.sampled(one) == "jobs"
    pieces = compare_log(log(1_000), ["easy", "sjf"], piece_jobs=500)
    assert (pieces.settings["pieces"], pieces.world.sampled(pieces)) == (1, "jobs")


def test_a_policy_that_lost_jobs_is_named_as_not_ranked(drawn: Comparison) -> None:
    packer, sjf, random = drawn.policies
    cut = replace(sjf, numbers={**sjf.numbers, "unallocated": 1})
    whole = replace(drawn, policies=(packer, cut, random))
    assert whole.best() is not cut
    said = whole.world.remark(whole, whole.best())
    assert said == "Not ranked, because some of their jobs never started: sjf."


def test_a_distribution_ends_below_1_where_jobs_never_started(drawn: Comparison) -> None:
    half = len(drawn.jobs.filter(pl.col("column") == 0)) // 2
    never = (pl.col("column") == 0) & (pl.col("column").cum_count().over("column") <= half)
    jobs = drawn.jobs.with_columns(pl.when(~never).then("slowdown").alias("slowdown"))
    axis = slowdown_cdf(replace(drawn, jobs=jobs)).axes[0]
    total = len(jobs) // 3
    assert axis.get_lines()[0].get_ydata().max() == pytest.approx(1 - half / total)


def test_bars_tell_means_over_all_and_by_size(drawn: Comparison) -> None:
    dots = slowdown_bars(drawn).axes[0].collections[-1].get_offsets()
    assert dots[:, 0].tolist() == [p.estimates["slowdown"].mean for p in drawn.policies]
    axis = slowdown_by_size(drawn).axes[0]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["short", "long"]
    short = drawn.jobs.filter((pl.col("column") == 1) & (pl.col("group") == 0))
    assert axis.get_lines()[1].get_ydata()[0] == pytest.approx(short["slowdown"].mean())
