"""The reader of job sets of Spark's world: what it reads, and its one-line errors."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.base.errors import FormatError, InputError, WorkloadError
from parcae.workloads.job_sets import (
    SPARK_WORLD_FORMAT,
    holds_spark_world_sets,
    read_spark_world_sets,
)
from parcae.workloads.pools import PoolSpec
from tests.conftest import shared_data
from tests.oracle.spark_world import random_set

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


def test_the_shared_file_is_read_whole() -> None:
    path = shared_data("conformance/spark-world.json")
    sets = read_spark_world_sets(path)
    assert list(sets) == [f"set-{number}" for number in range(4000, 4012)]
    one = sets["set-4001"]
    assert (one.cores, one.sequence.num_jobs, one.workload.num_tasks) == (8, 12, 8986)
    assert one.pools == (PoolSpec("p0", 2, 5), PoolSpec("p1", 3, 5), PoolSpec("p2", 3, 0))
    assert one.job_pools[:3] == ("p2", "p2", "p1")
    assert set(one.expected) == {"fifo", "fair", "fair-pools", "sjf", "srpt", "orders"}
    unused = {name: {p.name for p in s.pools} - set(s.job_pools) for name, s in sets.items()}
    assert unused["set-4003"] == {"p1"}  # a pool without jobs is no error


@pytest.mark.parametrize("seed", range(20))
def test_random_sets_survive_the_file(tmp_path: Path, seed: int) -> None:
    drawn = random_set(random.Random(seed))
    path = written(tmp_path, {"format": SPARK_WORLD_FORMAT, "sets": [drawn.as_entry("r")]})
    one = read_spark_world_sets(path)["r"]
    assert [pool.name for pool in one.pools] == list(drawn.pools)
    for spec, job in zip(one.workload.jobs, drawn.jobs, strict=True):
        assert [s.durations.rest[0].tolist() for s in spec.stages] == job.task_ms
        edges = {(parent, child) for child, s in enumerate(spec.stages) for parent in s.parents}
        assert edges == set(job.edges)


_NOTHING = object()


@pytest.mark.parametrize(
    ("place", "value", "error", "says"),
    [
        (("format",), "parcae spark world conformance 2", FormatError, '"format" is "parcae spark'),
        (("format",), _NOTHING, FormatError, '"format" is null; expected'),
        (("sets",), {}, FormatError, '"sets" must be a list'),
        (("sets", 0, "name"), 7, FormatError, "set 0: the name is 7"),
        (
            ("sets", 0, "cores"),
            0,
            FormatError,
            "set 'two': cores is 0; it must be a whole number from 1",
        ),
        (("sets", 0, "cores"), 65_537, FormatError, "cores is 65537"),
        (("sets", 0, "cores"), 2.5, FormatError, "cores is 2.5"),
        (("sets", 0, "cores"), _NOTHING, FormatError, "cores is null"),
        (("sets", 0, "jobs"), [], WorkloadError, "set 'two': no jobs"),
        (("sets", 0, "pools", "a", "weight"), -1, FormatError, "pool 'a': weight is -1"),
        (("sets", 0, "pools", "a", "min_share"), -2, FormatError, "pool 'a': min_share is -2"),
        (("sets", 0, "pools", "a", "share"), 1, FormatError, "pool 'a' is"),
        (("sets", 0, "expected"), [1], FormatError, '"expected" is not an object'),
        (
            ("job", "pool"),
            "b",
            FormatError,
            'job 0: pool "b" is not defined; known are a, default, empty',
        ),
        (("job", "arrival_ms"), -1, FormatError, "set 'two', job 0: arrival_ms is -1"),
        (("job", "arrival_ms"), _NOTHING, FormatError, "arrival_ms is null"),
        (("job", "tier"), float("nan"), FormatError, "job 0: tier is NaN; it must be a number"),
        (("job", "tier"), True, FormatError, "tier is true"),
        (("job", "tier"), 10**400, FormatError, "tier is 1000"),
        (
            ("job", "edges"),
            [[0, 1], [1, 2], [2, 0]],
            WorkloadError,
            "job 0: job 'job-000' has a cycle",
        ),
        (("job", "edges"), [[1, 1]], WorkloadError, "has a cycle"),
        (
            ("job", "edges"),
            [[0, 3]],
            WorkloadError,
            "edge [0, 3] names a stage that does not exist (0..2)",
        ),
        (("job", "edges"), [[-1, 0]], WorkloadError, "does not exist"),
        (("job", "edges"), [[0]], FormatError, "edge [0] is not [parent stage, child stage]"),
        (("job", "task_ms"), [], WorkloadError, "job 0: no stages"),
        (("job", "task_ms", 1), [], WorkloadError, "job 0, stage 1: no tasks"),
        (("job", "task_ms", 0, 1), None, WorkloadError, "stage 0, task 1: the duration is missing"),
        (("job", "task_ms", 0, 1), float("nan"), FormatError, "task 1: the duration is NaN"),
        (("job", "task_ms", 0, 1), -3, FormatError, "the duration is -3"),
        (
            ("job", "task_ms", 0, 1),
            2.5,
            FormatError,
            "the duration is 2.5; it must be a whole number",
        ),
        (("job", "task_ms", 0, 1), "7", FormatError, 'the duration is "7"'),
        (("job", "limits"), [1, 1], FormatError, "limits are [1, 1]; expected one for each of 3"),
        (("job", "limits", 2), 0, WorkloadError, "stage 2: a limit of 0 would stall the cluster"),
        (("job", "limits", 2), -1, FormatError, "stage 2: limit is -1"),
        (("job", "limits", 2), 1.5, FormatError, "limit is 1.5"),
        (("job", "limits", 2), float("nan"), FormatError, "limit is NaN"),
    ],
)
def test_bad_input_gets_one_clear_line(
    tmp_path: Path,
    place: tuple[Any, ...],
    value: Any,
    error: type[InputError],
    says: str,
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
    with pytest.raises(error) as caught:
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
