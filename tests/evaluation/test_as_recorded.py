"""A log that is compared with itself has its own completion times as the first row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parcae.evaluation.compare import ClusterWorld, compare
from parcae.evaluation.comparison import RECORDED, Comparison, comparison_table
from parcae.evaluation.report import write_report
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.spark_log.logged_order import LOGGED_ORDER, LOGGED_POLICY
from parcae.workloads.workload import Workload
from tests.conftest import job

_CORES = SimulationConfig(world=WorldName.CORES, num_executors=2)


def _workload(*took_ms: int | None) -> Workload:
    """Two jobs at once, of 4 tasks of 1 s each: FIFO ends them after 2 and 4 s."""
    jobs = tuple(
        replace(job(name, (4, 1_000, ())), arrival_ms=0, recorded_ms=ms)
        for name, ms in zip("ab", took_ms, strict=True)
    )
    return Workload("log", jobs, provenance={LOGGED_POLICY: "fifo", LOGGED_ORDER: "Spark's FIFO"})


def _compared(workload: Workload, arrivals: str = "recorded", *policies: str) -> Comparison:
    world = ClusterWorld(workload, _CORES, arrivals, 2)
    return compare(world, policies or ("fifo", "srpt"), num_seeds=2, processes=1)


def test_the_logs_own_times_are_the_first_row_paired_and_never_the_best(tmp_path: Path) -> None:
    workload = _workload(2_000, 4_100)
    write_workload(workload, tmp_path / "w.parcae")
    comparison = _compared(read_workload(tmp_path / "w.parcae"))
    recorded, fifo, _ = comparison.rows
    assert [one.name for one in comparison.rows] == [RECORDED, "fifo", "srpt"]
    assert comparison_table(comparison).columns[0]._cells[0] == RECORDED
    assert recorded.average_jct_s.mean == pytest.approx(3.05)
    assert recorded.ratio_to_first.mean == pytest.approx(3.05 / 3.0)
    assert recorded.numbers["makespan_s"] == pytest.approx(4.1)
    assert fifo.ratio_to_first.mean == 1.0
    assert RECORDED not in {one.name for one in comparison.ranked()}
    assert any("its order: Spark's FIFO (policy fifo)" in note for note in comparison.notes())
    assert not any("in the log jobs took" in text for text in comparison.warnings())
    as_json = comparison.to_json()["policies"][RECORDED]
    assert as_json["average_jct_s"]["mean"] == pytest.approx(3.05)
    write_report(comparison, tmp_path / "report.html")
    assert RECORDED in (tmp_path / "report.html").read_text()


def test_jobs_of_a_session_came_when_the_log_says() -> None:
    """On two cores, b comes half a second after a ended at 2 s; in the log a took 3 s."""
    first, second = _workload(3_000, 2_000).jobs
    jobs = (
        replace(first, session=0),
        replace(second, session=0, arrival_ms=3_500, pauses_ms=(500,)),
    )
    comparison = _compared(replace(_workload(1, 1), jobs=jobs), "sessions")
    recorded, fifo, _ = comparison.rows
    assert (recorded.name, recorded.average_jct_s.mean) == (RECORDED, 2.5)
    assert recorded.numbers["makespan_s"] == 5.5
    assert (fifo.average_jct_s.mean, fifo.numbers["makespan_s"]) == (2.0, 4.5)


def test_it_is_said_where_the_logs_own_order_took_another_time() -> None:
    said = "in the log jobs took 6.0 s on average, in the simulation under fifo"
    far = _workload(5_000, 7_000)
    assert any(text.startswith(said) for text in _compared(far).warnings())
    # Another order than the log's says nothing about the simulator.
    fair = _compared(far, "recorded", "fair", "srpt")
    assert not any("in the log jobs took" in text for text in fair.warnings())


def test_there_is_no_such_row_where_the_jobs_are_not_those_of_the_log() -> None:
    for workload, arrivals in (
        (_workload(2_000, 4_000), "batch"),
        (_workload(None, 1), "recorded"),
    ):
        assert [one.name for one in _compared(workload, arrivals).rows] == ["fifo", "srpt"]
