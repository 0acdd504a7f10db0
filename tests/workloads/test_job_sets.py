"""The readers of job sets of both worlds: what they read, and their one-line errors."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.base.errors import FormatError, InputError, WorkloadError
from parcae.workloads.job_sets import (
    holds_spark_world_sets,
    read_job_sets,
    read_spark_world_sets,
)
from parcae.workloads.pools import PoolSpec
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload

_DOCUMENT: dict[str, Any] = {
    "format": "parcae spark world conformance 1",
    "rules": ["as they are"],
    "sets": [
        {
            "name": "two",
            "cores": 3,
            "pools": {
                "a": {"weight": 3, "min_share": 0},
                "empty": {"weight": 1, "min_share": 9, "mode": "FAIR"},
            },
            "jobs": [
                {
                    "arrival_ms": 40,
                    "edges": [[0, 2], [1, 2], [0, 2]],
                    "task_ms": [[5, 7, 7], [0], [2, 3]],
                    "pool": "a",
                    "tier": 1.5,
                    "limits": [2, 1000, 1],
                },
                {
                    "arrival_ms": 0,
                    "edges": [],
                    "task_ms": [[9]],
                    "pool": "a",
                    "tier": 0,
                    "limits": [1],
                },
                {"arrival_ms": 40, "task_ms": [[4, 4]]},
            ],
            "expected": {"fifo": {"completion_ms": [54, 9, 51], "tasks": 9}},
        }
    ],
}


def written(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "sets.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_a_set_is_read_as_it_is_written(tmp_path: Path) -> None:
    one = read_spark_world_sets(written(tmp_path, _DOCUMENT))["two"]
    assert (one.name, one.cores) == ("two", 3)
    assert [job.name for job in one.workload.jobs] == ["job-000", "job-001", "job-002"]
    assert one.sequence.job_index.tolist() == [1, 0, 2]
    assert one.sequence.arrival_ms.tolist() == [0, 40, 40]
    assert one.by_position(np.array([9, 54, 51])) == [54, 9, 51]
    assert one.job_pools == ("a", "a", "default")
    assert one.pools == (PoolSpec("a", 3), PoolSpec("empty", 1, 9, "FAIR"), PoolSpec("default"))
    assert one.tiers == (1.5, 0.0, 0.0)
    assert one.limits == ((2, 1000, 1), (1,), None)
    assert one.expected["fifo"]["completion_ms"] == [54, 9, 51]
    stage = one.workload.jobs[0].stages[0]
    assert stage.num_tasks == 3
    assert stage.durations.levels == (1,)
    for wave in (stage.durations.fresh, stage.durations.first, stage.durations.rest):
        assert wave[0].tolist() == [5, 7, 7]
    assert stage.mean_task_ms == 19 / 3
    assert one.workload.jobs[0].stages[2].parents == (0, 1)
    assert one.workload.jobs[0].work_ms == 24.0


def test_a_file_says_whether_it_is_of_this_format(tmp_path: Path) -> None:
    assert holds_spark_world_sets(written(tmp_path, _DOCUMENT))
    assert not holds_spark_world_sets(written(tmp_path, {"sets": {}}))
    assert not holds_spark_world_sets(written(tmp_path, [1]))
    assert not holds_spark_world_sets(written(tmp_path, "no json"))


_NOTHING = object()


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("format",), "parcae spark world conformance 2", 'format is "parcae spark world conf'),
        (("format",), _NOTHING, "format is missing: Field required; expected"),
        (("sets", 0, "name"), 7, "sets.0.name is 7: Input should be a valid string"),
        (("sets", 0, "cores"), 0, "sets.0.cores is 0: Input should be greater than or equal to 1"),
        (("sets", 0, "cores"), 65_537, "cores is 65537"),
        (("sets", 0, "jobs"), [], "sets.0.jobs is []: List should have at least 1 item"),
        (("sets", 0, "pools", "a", "weight"), -1, "sets.0.pools.a.weight is -1"),
        (("sets", 0, "pools", "a", "share"), 1, "sets.0.pools.a.share is 1: Extra inputs are not"),
        (("job", "pool"), "b", 'job 0: pool "b" is not defined; known are a, default, empty'),
        (("job", "arrival_ms"), -1, "sets.0.jobs.0.arrival_ms is -1"),
        (("job", "tier"), float("nan"), "jobs.0.tier is NaN"),
        (("job", "tier"), True, "tier is true: Input should be a number"),
        (("job", "edges"), [[0, 1], [1, 2], [2, 0]], "job 0: job 'job-000' has a cycle"),
        (("job", "edges"), [[0, 3]], "edge [0, 3] names a stage that does not exist (0..2)"),
        (("job", "edges"), [[-1, 0]], "edges.0.0 is -1"),
        (("job", "task_ms"), [], "jobs.0.task_ms is []"),
        (("job", "task_ms", 1), [], "jobs.0.task_ms.1 is []"),
        (("job", "task_ms", 0, 1), -3, "task_ms.0.1 is -3"),
        (("job", "task_ms", 0, 1), 2.5, "task_ms.0.1 is 2.5: Input should be a valid integer"),
        (("job", "task_ms", 0, 1), "7", 'task_ms.0.1 is "7": Input should be a number'),
        (("job", "limits"), [1, 1], "limits are [1, 1]; expected one for each of 3"),
        (("job", "limits", 2), 0, "limits.2 is 0: Input should be greater than or equal to 1"),
    ],
)
def test_bad_input_gets_one_clear_line(
    tmp_path: Path, place: tuple[Any, ...], value: Any, says: str
) -> None:
    document = copy.deepcopy(_DOCUMENT)
    steps = ("sets", 0, "jobs", 0, *place[1:]) if place[0] == "job" else place
    target: Any = document
    for step in steps[:-1]:
        target = target[step]
    if value is _NOTHING:
        del target[steps[-1]]
    else:
        target[steps[-1]] = value
    path = written(tmp_path, document)
    with pytest.raises(InputError) as caught:
        read_spark_world_sets(path)
    message = str(caught.value)
    assert says in message
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "[1]", '"a"', "\x00"])
def test_what_is_no_such_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(FormatError) as caught:
        read_spark_world_sets(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_two_sets_of_one_name_are_refused(tmp_path: Path) -> None:
    document = {**_DOCUMENT, "sets": _DOCUMENT["sets"] * 2}
    with pytest.raises(FormatError, match="several sets have the name 'two'"):
        read_spark_world_sets(written(tmp_path, document))


_WORKLOAD = Workload("w", (chain(1, 1, 1, "q1-2g"), chain(1, 1, 1, "q2-5g")))


def test_jobs_run_in_order_of_arrival_and_report_by_position(tmp_path: Path) -> None:
    sets = read_job_sets(
        written(tmp_path, {"sets": {"a": {"exec": 4, "jobs": [[2, "5g", 900], [1, "2g", 0]]}}})
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
        read_job_sets(written(tmp_path, data))


def test_a_job_that_the_workload_lacks_is_named(tmp_path: Path) -> None:
    sets = read_job_sets(written(tmp_path, {"sets": {"a": {"exec": 4, "jobs": [[9, "2g", 0]]}}}))
    with pytest.raises(WorkloadError, match="q9-2g"):
        sets["a"].sequence(_WORKLOAD)
