"""The simulator beside the logs themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from parcae.base.errors import FormatError
from parcae.evaluation.log_check import ReplayedLog, check_log, replay_note
from parcae.workloads.archive import BUNDLED
from parcae.workloads.spark_log.event_log import read_runs
from tests.conftest import shared_data

_EXAMPLE = BUNDLED / "example-event-log.zstd"


def _checked(path: Path) -> list[ReplayedLog]:
    try:
        return check_log(read_runs([path]))
    except FormatError:  # no log, or none with a completed job
        return []


def test_the_example_log_comes_out_as_it_was_and_not_without_its_driver() -> None:
    logged = read_runs([_EXAMPLE])
    (checked,) = check_log(logged)
    assert abs(checked.ratio - 1) < 0.005
    assert all(abs(one.simulated_s / one.logged_s - 1) < 0.01 for one in checked.queries)
    assert checked.without_driver_time < 0.9
    assert "at 0.99" in replay_note(logged) or "at 1.00" in replay_note(logged)


def test_real_logs_come_out_as_they_were() -> None:
    folders = sorted(shared_data("real-logs").glob("*/*"))
    checked = [one for path in folders for one in _checked(path)]
    ratios = np.array([one.ratio for one in checked])
    assert len(ratios) >= 20
    assert np.abs(ratios - 1).mean() <= 0.02
    assert np.abs(ratios - 1).max() <= 0.15
    # Predictions draw durations: they foretell a log almost as well as its own durations do.
    drawn = np.array([one.drawn_durations for one in checked])
    assert np.abs(drawn - 1).max() <= 0.1
    assert np.abs(drawn / ratios - 1).max() <= 0.02
