"""Gantt charts of event logs."""

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.evaluation.gantt import gantt, job_rgb
from parcae.workloads.recorded_run import NO_JOB
from tests.evaluation.test_compare_logs import recorded


def _share(picture: Path, color: tuple[int, int, int]) -> float:
    """Share of the picture's pixels that have the colour."""
    pixels = np.round(255 * matplotlib.image.imread(picture)[..., :3]).astype(int)
    return float((abs(pixels - np.array(color)).max(axis=-1) <= 2).mean())


def test_a_job_has_its_colour_for_as_long_as_cores_worked_for_it(tmp_path: Path) -> None:
    run = recorded(("x", 0, 1_000), ("y", 0, 3_000))
    gantt([("one", run)], tmp_path / "one.png")
    x, y = (_share(tmp_path / "one.png", job_rgb(row)) for row in (0, 1))
    assert y / x == pytest.approx(3, rel=0.15)


def test_charts_share_the_time_axis_and_the_colours_of_matched_jobs(tmp_path: Path) -> None:
    slow = recorded(("x", 0, 4_000))
    fast = recorded(("x", 0, 1_000))
    gantt([("slow", slow), ("fast", fast)], tmp_path / "both.png", title="x twice")
    gantt([("slow", slow), ("slow", slow)], tmp_path / "same.png", title="x twice")
    ratio = _share(tmp_path / "both.png", job_rgb(0)) / _share(tmp_path / "same.png", job_rgb(0))
    assert ratio == pytest.approx((4 + 1) / (4 + 4), rel=0.05)
    assert _share(tmp_path / "both.png", job_rgb(1)) == 0


def test_the_tasks_of_jobs_without_the_key_are_grey(tmp_path: Path) -> None:
    run = recorded(("x", 0, 1_000), ("x", 0, 3_000))
    run.tasks["job"][0] = NO_JOB
    gantt([("log", run)], tmp_path / "log.png")
    assert _share(tmp_path / "log.png", (205, 209, 216)) > 0.05


@pytest.mark.parametrize(
    ("ending", "head"),
    [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF"), ("html", b"<!doctype")],
)
def test_the_file_s_ending_says_what_it_is(tmp_path: Path, ending: str, head: bytes) -> None:
    path = tmp_path / f"chart.{ending}"
    runs = [(r"_$x \alpha_{$", recorded((r"_a $b\x{$", 0, 10), ("$c", 0, 10)))]
    gantt(runs, path, title=r"$\none$")
    assert path.read_bytes().startswith(head)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", ["png", "html"])
def test_a_run_without_tasks_has_an_empty_chart(tmp_path: Path, ending: str) -> None:
    run = recorded(("x", 0, 10))
    empty = type(run)("log", ("app",), run.jobs, run.tasks[:0], 0, None)
    gantt([("none", empty)], tmp_path / f"chart.{ending}")
    assert (tmp_path / f"chart.{ending}").stat().st_size > 1_000


def test_long_names_that_begin_or_end_alike_can_be_told_apart(tmp_path: Path) -> None:
    names = (f"{'etl' * 12}-daily", f"{'etl' * 12}-weekly", f"report-{'etl' * 12}-daily")
    gantt([("one", recorded(*((name, 0, 10) for name in names)))], tmp_path / "chart.html")
    page = (tmp_path / "chart.html").read_text()
    for shown in ("letl-daily", "etl-weekly", "report-etletletle"):
        assert shown in page


def test_a_long_path_of_a_log_leaves_room_for_its_figures(tmp_path: Path) -> None:
    gantt([(f"A: {'folder-' * 30}log", recorded(("x", 0, 10)))], tmp_path / "chart.html")
    page = (tmp_path / "chart.html").read_text()
    title = page[page.index("A: folder") : page.index("makespan")]
    assert len(title) < 120


def test_no_chart_or_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.png, \.svg, \.pdf"):
        gantt([("one", recorded(("x", 0, 10)))], tmp_path / "chart.jpeg")
    with pytest.raises(ConfigError, match="at least one run"):
        gantt([], tmp_path / "chart.png")
    assert not list(tmp_path.iterdir())
