from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from parcae.base.errors import ConfigError, FormatError, WorkloadError
from parcae.rigid.job_sets import read_packing_sets

_PARAMS = {"job_slots": 5, "backlog_size": 0, "time_horizon": 20, "capacity": 10}


def _set(**changes: Any) -> dict[str, Any]:
    return {
        "name": "a",
        "arrival_window": 50,
        "params": _PARAMS,
        "jobs": [[1, 3, 5, 1], [1, 20, 0, 10]],
        **changes,
    }


def _write(tmp_path: Path, *sets: object, **more: object) -> Path:
    path = tmp_path / "sets.json"
    path.write_text(json.dumps({"sequences": list(sets), **more}))
    return path


def test_one_sequence_is_chosen_by_name_or_position(tmp_path: Path) -> None:
    path = _write(tmp_path, _set(), _set(name="b"), _set(name="0"))
    assert [one.name for one in read_packing_sets(path)] == ["a", "b", "0"]
    assert [read_packing_sets(path, which)[0].name for which in ("b", "1", "0")] == ["b", "b", "0"]
    for which, message in (
        ("3", "position 0..2"),
        ("-1", "known are a, b, 0"),
        ("aa", r"sets\.json: no sequence 'aa'; did you mean 'a'"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_packing_sets(path, which)


def test_a_sequence_may_have_no_jobs(tmp_path: Path) -> None:
    many = _set(jobs=[], params={**_PARAMS, "capacity": [4, 6]})
    one, listed = read_packing_sets(_write(tmp_path, _set(jobs=[]), many))
    assert (len(one.jobs), one.jobs.capacity.tolist(), listed.jobs.capacity.tolist()) == (
        0,
        [10],
        [4, 6],
    )


def test_a_name_that_two_sequences_have_needs_a_position(tmp_path: Path) -> None:
    path = _write(tmp_path, _set(), _set(arrival_window=7))
    assert read_packing_sets(path, "1")[0].config.window == 7
    with pytest.raises(
        ConfigError, match="several sequences have the name 'a'; choose one by its position: 0, 1"
    ):
        read_packing_sets(path, "a")


def test_any_number_of_resources_and_a_capacity_for_each(tmp_path: Path) -> None:
    given = _set(params={**_PARAMS, "capacity": [4, 8, 1]}, jobs=[[0, 1, 4, 8, 1]], seed=4)
    (one,) = read_packing_sets(_write(tmp_path, given, description="other keys are let be"))
    assert (one.jobs.demand.tolist(), one.jobs.capacity.tolist()) == ([[4, 8, 1]], [4, 8, 1])
    assert dict(one.expected) == {}


def _without(key: str) -> dict[str, Any]:
    return {name: value for name, value in _set().items() if name != key}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (_without("jobs"), r"1\.jobs is missing"),
        ({**_without("arrival_window"), "arival_window": 3}, r"arrival_window is missing"),
        (_set(params={**_PARAMS, "job_slot": 4}), r"params\.job_slot is 4: Extra inputs"),
        (_set(params={**_PARAMS, "time_horizon": "20"}), r'time_horizon is "20": .* a number'),
        (_set(params={**_PARAMS, "capacity": [1, 2, 3]}), r"3 resources, but the jobs have 2"),
        (_set(params={**_PARAMS, "capacity": []}), r"capacity is \[\]"),
        (_set(jobs=[[1, 3]]), r"jobs\.0 is \[1, 3\]"),
        (_set(jobs=[[1, 3, 5, 1], [2, 3, 5]]), r"jobs\[1\]: .* has not as many numbers"),
        (_set(jobs=[[1, 3, 5, float("nan")]]), r"jobs\.0\.3 is NaN"),
        (_set(jobs=[[-1, 3, 5, 1]]), r"jobs\.0\.0 is -1"),
        (_set(jobs=[[1, 3, 10**30, 1]]), r"jobs\.0\.2 is 10+"),
    ],
)
def test_files_of_another_layout_are_refused_with_the_place(
    tmp_path: Path, entry: object, message: str
) -> None:
    with pytest.raises(FormatError, match=message) as refusal:
        read_packing_sets(_write(tmp_path, _set(), entry))
    assert re.search(r"sets\.json: sequences[.[]1", str(refusal.value))


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ([0, 3, 5, 1], "arrives at 0, before the job listed above it: sort"),
        ([50, 3, 5, 1], "arrival_window has no room for 50: give at most 49"),
        ([1, 21, 5, 1], "time_horizon has no room for 21: give at most 20"),
    ],
)
def test_jobs_that_the_world_has_no_room_for_are_refused(
    tmp_path: Path, job: list[int], message: str
) -> None:
    with pytest.raises(WorkloadError, match=rf"sets\.json: sequences\[0\] \('a'\).*1.*{message}"):
        read_packing_sets(_write(tmp_path, _set(jobs=[[1, 3, 5, 1], job])))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"sequences": [\n{"name"', r"sets\.json:2: not JSON"),
        (b"\xff\xfe\x00", "not text"),
        (b'{"sequences": []}', r"sequences is \[\]"),
        (b'{"sequence": []}', "sequences is missing"),
    ],
)
def test_torn_and_foreign_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "sets.json"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message):
        read_packing_sets(path)
