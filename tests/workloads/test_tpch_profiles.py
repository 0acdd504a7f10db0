from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.base.errors import FormatError
from parcae.decima.tpch import LEVELS, read_plain_pickle, read_tpch_profiles
from parcae.workloads.describe import fingerprint


def _stage(fresh: list[int], first: list[int], rest: list[int]) -> dict[str, dict[str, list[int]]]:
    """Level 2 counts tasks; level 5 has only what level 2 has not."""
    return {
        "fresh_durations": {"2": fresh, "5": fresh},
        "first_wave": {"2": first, "5": first},
        "rest_wave": {"2": rest, "5": rest},
    }


def _write(path: Path, stages: list[Any], edges: list[list[int]]) -> Path:
    entry = {
        "num_stages": len(stages),
        "edges": edges,
        "task_durations_ms": {str(i): s for i, s in enumerate(stages)},
    }
    path.write_text(json.dumps({"2g/q1": entry}))
    return path


def test_lists_are_preprocessed_as_the_released_simulator_does(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "p.json",
        [_stage([30, 40], [30, 40, 10], [5, 6, 7]), _stage([], [20], [])],
        [[0, 1]],
    )
    workload, report = read_tpch_profiles(path)
    first, second = workload.jobs[0].stages
    assert (workload.jobs[0].name, report.num_jobs) == ("q1-2g", 1)
    assert first.num_tasks == 6  # first + later waves of the raw lists at level 2
    assert first.durations.levels == LEVELS
    assert first.durations.first[0].tolist() == [10]  # less one of each fresh value
    assert first.durations.rest[-1].tolist() == [
        5,
        6,
        7,
    ]  # levels that were not measured take the largest that was
    assert first.mean_task_ms == pytest.approx((2 * 10 + 2 * 18 + 2 * 70) / 12)
    assert second.parents == (0,)


def test_entries_of_other_queries_and_sizes_are_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "p.json", [_stage([], [20], [])], [])
    entry = json.loads(path.read_text())["2g/q1"]
    path.write_text(json.dumps({"2g/q1": entry, "1g/q1": entry, "2g/q23": entry}))
    workload, report = read_tpch_profiles(path)
    assert [job.name for job in workload.jobs] == ["q1-2g"]
    assert report.notes == (
        "Left out 2 entries that are no such query and size: '1g/q1', '2g/q23'.",
    )
    path.write_text(json.dumps({"1g/q1": entry}))
    with pytest.raises(FormatError, match=r"keys such as .10g/q1., of the queries 1 to 22 at"):
        read_tpch_profiles(path)


def test_an_emptied_first_wave_takes_the_next_lower_level(tmp_path: Path) -> None:
    stage = {
        "fresh_durations": {"2": [], "5": [9], "10": [7]},
        "first_wave": {"2": [8], "5": [9], "10": [7, 3]},
        "rest_wave": {"2": [], "5": [], "10": []},
    }
    durations = (
        read_tpch_profiles(_write(tmp_path / "p.json", [stage], []))[0].jobs[0].stages[0].durations
    )
    assert durations.first[0].tolist() == [8]
    assert durations.first[1].tolist() == [3]


def _npy_folder(tmp_path: Path, durations: Any) -> Path:
    (tmp_path / "2g").mkdir()
    np.save(tmp_path / "2g" / "adj_mat_1.npy", np.array([[0.0, 1.0], [0.0, 0.0]]))
    np.save(
        tmp_path / "2g" / "task_duration_1.npy",
        np.array(durations, dtype=object),
        allow_pickle=True,
    )
    return tmp_path


def _as_integers(stage: dict[str, dict[str, list[int]]]) -> dict[str, dict[int, list[int]]]:
    return {
        wave: {int(level): samples for level, samples in lists.items()}
        for wave, lists in stage.items()
    }


def test_the_npy_folder_reads_the_same_as_the_json(tmp_path: Path) -> None:
    stages = [_stage([30, 40], [30, 40, 10], [5, 6, 7]), _stage([], [20], [])]
    from_json = read_tpch_profiles(_write(tmp_path / "p.json", stages, [[0, 1]]))[0]
    folder = _npy_folder(tmp_path, {row: _as_integers(stage) for row, stage in enumerate(stages)})
    assert fingerprint(read_tpch_profiles(folder)[0]) == fingerprint(from_json)


def test_the_npy_folder_may_be_deeper_or_in_a_zip(tmp_path: Path) -> None:
    stages = {0: _as_integers(_stage([], [20, 30], [7])), 1: _as_integers(_stage([], [20], []))}
    (tmp_path / "data" / "tpch").mkdir(parents=True)
    folder = _npy_folder(tmp_path / "data" / "tpch", stages)
    expected = fingerprint(read_tpch_profiles(folder)[0])
    assert fingerprint(read_tpch_profiles(tmp_path)[0]) == expected
    archive = Path(shutil.make_archive(str(tmp_path / "tpch"), "zip", tmp_path, "data"))
    assert fingerprint(read_tpch_profiles(archive)[0]) == expected
    shutil.copytree(folder / "2g", tmp_path / "other" / "2g")
    with pytest.raises(FormatError, match="several folders have profiles"):
        read_tpch_profiles(tmp_path)
    (folder / "2g" / "adj_mat_1.npy").unlink()
    with pytest.raises(FormatError, match=r"there is no 2g/adj_mat_1.npy"):
        read_tpch_profiles(folder)


def _cloudlab(folder: Path, **changes: Any) -> Path:
    """Profiles of the ERDOS simulator for one query of three stages."""
    stage = {"stage_id": 0, "stage_name": "save", "num_tasks": 4, "average_runtime_ms": 99.6}
    stages = [stage, stage | {"num_tasks": 1}, stage | {"num_tasks": 2} | changes]
    (folder / "cloudlab").mkdir(parents=True)
    path = folder / "cloudlab" / "cloudlab_22query_tpch_profiles.json"
    path.write_text(json.dumps({"tpch_q3_50g_maxCores_75": stages}))
    (folder / "decima").mkdir()
    dags = {"workload_type": "tpch", "query_number": {"3": "[(0, 2), (1, 2)]"}}
    (folder / "decima" / "query_dag.json").write_text(json.dumps(dags))
    return path


def test_profiles_of_the_erdos_simulator_are_read_with_their_dags(tmp_path: Path) -> None:
    path = _cloudlab(tmp_path)
    workload, report = read_tpch_profiles(path)
    (job,) = workload.jobs
    assert job.name == "q3-50g-75c"
    assert [stage.num_tasks for stage in job.stages] == [4, 1, 2]
    assert [stage.parents for stage in job.stages] == [(), (), (0, 1)]
    assert {stage.mean_task_ms for stage in job.stages} == {100.0}
    assert "mean duration of each stage only" in report.notes[0]
    assert fingerprint(read_tpch_profiles(tmp_path)[0]) == fingerprint(workload)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_tasks": 0}, r"2\.num_tasks: .* greater than or equal to 1"),
        ({"average_runtime_ms": -1}, r"2\.average_runtime_ms: .* greater than or equal to 0"),
        ({"average_runtime_ms": 10**400}, r"2\.average_runtime_ms: "),
        ({"average_runtime_ms": "nan"}, r"2\.average_runtime_ms: "),
    ],
)
def test_damaged_profiles_of_the_erdos_simulator_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        read_tpch_profiles(_cloudlab(tmp_path, **changes))


_QUERIES_YAML = """# The DAGs.
graphs:
  - name: Q1
    graph:
      - name: 0
        children: [1]
      - name: 1

  - name: Q3
    graph:
      - name: 0
        children: [2]
      - name: 1
        children: [2]
      - name: 2
"""


def test_dags_may_be_in_a_file_of_their_own(tmp_path: Path) -> None:
    expected = read_tpch_profiles(_cloudlab(tmp_path))[0]
    (tmp_path / "decima" / "query_dag.json").unlink()
    (tmp_path / "queries.yaml").write_text(_QUERIES_YAML)
    assert fingerprint(read_tpch_profiles(tmp_path)[0]) == fingerprint(expected)
    (tmp_path / "queries.yaml").write_text(_QUERIES_YAML + "  - nome: Q4\n")
    with pytest.raises(FormatError, match=r"queries.yaml:16: '- nome: Q4'; expected"):
        read_tpch_profiles(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"query_number": {"3": "[(0, 1)]"}}', "3 stages, but the DAG of this query has 2"),
        ('{"query_number": {"4": "[(0, 1)]"}}', "query_dag.json has no query 3"),
        ('{"query_number": 4}', "query_dag.json: expected"),
        ("[", "query_dag.json:1: not JSON"),
        (None, r"there is no queries.yaml or query_dag.json in or"),
    ],
)
def test_profiles_without_their_dags_are_refused(
    tmp_path: Path, text: str | None, message: str
) -> None:
    path = _cloudlab(tmp_path)
    dags = tmp_path / "decima" / "query_dag.json"
    dags.unlink() if text is None else dags.write_text(text)
    with pytest.raises(FormatError, match=message):
        read_tpch_profiles(path)


class _Hostile:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, ("touch hostile-was-here",)


def test_a_hostile_pickle_is_refused_and_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = _npy_folder(tmp_path, {0: _Hostile(), 1: {}})
    with pytest.raises(FormatError, match=r"refused.*system"):
        read_tpch_profiles(folder)
    assert not (tmp_path / "hostile-was-here").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_pickles_of_every_protocol_are_read(protocol: int) -> None:
    value = {
        0: {"fresh": {2: [1, 2, 70_000, -5, 1 << 40], 5: []}},
        1: ["x", None, True, 2.5, (1, 2, 3, 4)],
    }
    assert read_plain_pickle(pickle.dumps(value, protocol=protocol), "a test") == value


_ONE = _stage([], [1], [])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, r"num_stages: Field required"),
        ({"num_stages": 1}, r"durations and edges of stages 0\.\.0"),
        ({"num_stages": 2, "stages": [_ONE] * 2, "edges": [[0, 2]]}, r"edges of stages 0\.\.1"),
        ({"num_stages": 1, "stages": [_ONE] * 2}, r"durations and edges of stages 0\.\.0"),
        ({"num_stages": 2, "stages": [_ONE] * 2, "edges": [[0, 1], [1, 0]]}, r"cycle.*\[0, 1\]"),
    ],
)
def test_jobs_that_do_not_fit_together_are_refused_by_name(
    tmp_path: Path, entry: dict[str, Any], message: str
) -> None:
    durations = {str(row): stage for row, stage in enumerate(entry.pop("stages", []))}
    given = {"edges": [], "task_durations_ms": durations, **entry}
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"2g/q1": given}))
    with pytest.raises(FormatError, match=rf"p\.json: 2g/q1.*{message}"):
        read_tpch_profiles(path)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_other_files_are_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=r"bad\.json"):
        read_tpch_profiles(path)
