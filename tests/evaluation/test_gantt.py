from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.cluster.trace import TASK_RECORD, Trace
from parcae.evaluation.gantt import (
    COMPLETION_COLOR,
    MAX_BARS,
    MAX_ROWS,
    Bars,
    cluster_chart,
    gantt_picture,
    job_color,
    merged,
)
from parcae.evaluation.pictures import svg_text
from parcae.policies.additions import named_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.workloads.job import DriverTime
from tests.conftest import batch, job
from tests.metrics.hand_made import cut_off, trace


def _striped(num_tasks: int, num_executors: int = 4) -> Trace:
    """Two jobs that take turns on every executor, 90 ms of task and 10 ms of idle time."""
    rows = [
        (n % 2, 0, n, e, 100 * n, 100 * n + 90)
        for n in range(num_tasks // num_executors)
        for e in range(num_executors)
    ]
    end = rows[-1][-1]
    return trace(
        tuple(rows),
        arrival_ms=(0, 0),
        completion_ms=(end - 100, end),
        clock_ms=end,
        num_executors=num_executors,
    )


def _merged(run: Trace) -> Bars:
    return merged(cluster_chart(run).panels[0].shown_bars())


def test_a_job_has_the_same_colour_in_every_chart_and_none_is_the_red_of_completions() -> None:
    assert job_color(0) == "#dbac76"
    colors = [job_color(job) for job in range(240)]
    assert len(set(colors)) > 230
    for color in (*colors, job_color(100_000)):
        red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
        assert not (red > 180 and green < 90 and blue < 90), color
    assert COMPLETION_COLOR not in colors


def test_tasks_are_merged_only_for_one_job_on_one_executor_without_a_gap() -> None:
    tasks = (
        (0, 0, 0, 0, 0, 1_000),
        (0, 0, 1, 0, 1_000, 2_000),
        (0, 0, 2, 0, 2_500, 4_000),
        (1, 0, 0, 0, 4_000, 5_000),
    )
    bars = _merged(trace(tasks, completion_ms=(4_000, 5_000)))
    assert bars.job.tolist() == [0, 0, 1]
    assert bars.start.tolist() == [0, 2.5, 4]
    assert bars.finish.tolist() == [2, 4, 5]


def _drawn(run: Trace) -> Any:
    """The axes of the picture of one run."""
    return gantt_picture([cluster_chart(run)]).axes[0]


def test_two_hundred_thousand_tasks_are_drawn_as_one_light_picture() -> None:
    drawn = _drawn(_striped(200_000))
    assert len(drawn.patches) == 0
    assert len(svg_text(drawn.figure)) < 500_000


def test_few_tasks_are_drawn_as_bars_with_their_times() -> None:
    drawn = _drawn(trace())
    bars = [(*bar.get_xy(), bar.get_width(), bar.get_height()) for bar in drawn.patches]
    assert bars == [(0, -0.5, 4, 1), (5, -0.5, 2, 1), (1, 0.5, 4, 1)]
    page = svg_text(drawn.figure)
    assert "<title>0: job-0, executor 1, 1.0 to 5.0 s</title>" in page
    assert "average JCT 5.5 s, last completion 7.0 s" in drawn.get_title("left")
    assert [at for (at, _), _ in drawn.collections[0].get_segments()] == [5.0, 7.0]
    assert len(_merged(_striped(4_000)).row) > MAX_BARS


def test_a_run_cut_off_says_so_and_marks_no_completion_that_was_not() -> None:
    drawn = _drawn(cut_off())
    assert drawn.get_title("left").endswith(", 1 job unfinished")
    assert [at for (at, _), _ in drawn.collections[0].get_segments()] == [5.0]


def test_a_run_without_completions_or_tasks_is_still_a_chart() -> None:
    empty = trace((), completion_ms=(-1, -1), clock_ms=2_000)
    assert "2 jobs unfinished" in _drawn(empty).get_title("left")
    assert empty.tasks is not None
    assert empty.tasks.dtype == TASK_RECORD


def test_large_clusters_show_evenly_chosen_executors() -> None:
    shown = cluster_chart(trace(num_executors=30_000)).panels[0].shown_rows()
    assert len(shown) == MAX_ROWS
    assert (shown[0], shown[-1]) == (0, 29_999)
    assert np.ptp(np.diff(shown)) <= 1


def test_charts_without_recorded_tasks_are_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="record=True"):
        cluster_chart(trace(recorded=False))


def test_a_row_below_the_cores_shows_when_jobs_run_no_task() -> None:
    spec = job("etl", (1, 1_000, ()), (1, 500, (0,)))
    times = DriverTime(np.array([[100, 50]]), np.array([[0, 0]]), np.array([30]))
    sequence = batch(replace(spec, driver_time=times))
    config = SimulationConfig(world=WorldName.CORES, num_executors=1)
    trace = simulate(
        sequence, named_policy("fifo", sequence.workload, config), config, 1, record=True
    )
    _, panel = cluster_chart(trace).panels
    assert panel.bars.start.tolist() == [0.0, 1.1, 1.65]
    assert panel.bars.finish.tolist() == [0.1, 1.15, 1.68]
    assert panel.num_rows == 1
