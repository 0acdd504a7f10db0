from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from parcae.base.errors import FormatError, WorkloadError
from parcae.workloads.job_sets import read_job_sets
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload

_WORKLOAD = Workload("w", (chain(1, 1, 1, "q1-2g"), chain(1, 1, 1, "q2-5g")))


def _write(tmp_path: Path, data: object) -> Path:
    path = tmp_path / "sets.json"
    path.write_text(json.dumps(data))
    return path


def test_jobs_run_in_order_of_arrival_and_report_by_position(tmp_path: Path) -> None:
    sets = read_job_sets(
        _write(tmp_path, {"sets": {"a": {"exec": 4, "jobs": [[2, "5g", 900], [1, "2g", 0]]}}})
    )
    sequence = sets["a"].sequence(_WORKLOAD)
    assert (sets["a"].num_executors, sets["a"].moving_delay_ms) == (4, 2_000)
    assert sets["a"].warmup_delay_ms == 1_000
    assert (sequence.job_index.tolist(), sequence.arrival_ms.tolist()) == ([0, 1], [0, 900])
    assert sets["a"].by_position(np.array([10, 20])) == [20, 10]


@pytest.mark.parametrize(
    "data",
    [
        [],
        {},
        {"sets": {}},
        {"sets": {"a": {}}},
        {"sets": {"a": {"exec": 0, "jobs": [[1, "2g", 0]]}}},
        {"sets": {"a": {"exec": 65_537, "jobs": [[1, "2g", 0]]}}},
        {"sets": {"a": {"exec": 5, "jobs": [[1, "2g", -4]]}}},
    ],
)
def test_files_of_another_layout_are_refused(tmp_path: Path, data: object) -> None:
    with pytest.raises(FormatError, match=r"sets\.json"):
        read_job_sets(_write(tmp_path, data))


def test_a_job_that_the_workload_lacks_is_named(tmp_path: Path) -> None:
    sets = read_job_sets(_write(tmp_path, {"sets": {"a": {"exec": 4, "jobs": [[9, "2g", 0]]}}}))
    with pytest.raises(WorkloadError, match="q9-2g"):
        sets["a"].sequence(_WORKLOAD)
