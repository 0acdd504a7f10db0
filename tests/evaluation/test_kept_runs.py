from __future__ import annotations

import json
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parcae
from parcae.base.errors import ConfigError, FormatError
from parcae.decima.catalog import make_policy
from parcae.evaluation.compare import ClusterWorld, compare
from parcae.evaluation.comparison import Comparison
from parcae.evaluation.kept_runs import files_in_names
from parcae.simulation.config import SimulationConfig, WorldName
from tests.conftest import made_up

_SHIPPED = Path(parcae.__file__).parent / "policies" / "shipped"
_WORKLOAD = made_up(20, 6.0)
_WORLD = ClusterWorld(_WORKLOAD, SimulationConfig(num_executors=8), "batch", 6)


def _compared(num_seeds: int, keep: Path | None, world: ClusterWorld = _WORLD) -> Comparison:
    return compare(world, ["fair", "fifo"], num_seeds=num_seeds, processes=1, keep=keep)


class _Stopped(Exception):
    pass


def test_a_stopped_comparison_goes_on_and_has_the_same_result(tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise _Stopped

    with pytest.raises(_Stopped):
        compare(_WORLD, ["fair", "fifo"], num_seeds=5, processes=1, keep=kept, progress=stop)
    # The stop came in the middle of writing the third seed.
    kept.write_bytes(kept.read_bytes()[:-20])

    done: list[int] = []
    resumed = compare(
        _WORLD,
        ["fair", "fifo"],
        num_seeds=5,
        processes=1,
        keep=kept,
        progress=lambda k, n: done.append(k),
    )
    assert done == [2, 3, 4, 5]
    whole = _compared(5, None)
    assert resumed.to_json() == whole.to_json()
    assert resumed.jobs_frame().equals(whole.jobs_frame())


def test_a_run_that_does_not_fit_is_reported_with_the_file(tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"
    _compared(2, kept)
    before = kept.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="too large") as error:
            _compared(3, kept)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.filename == str(kept)
    _compared(2, kept)
    assert kept.read_bytes() == before


def test_more_seeds_and_fewer_use_the_kept_ones(tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"
    _compared(4, kept)
    before = kept.read_bytes()
    assert _compared(2, kept).to_json() == _compared(2, None).to_json()
    assert kept.read_bytes() == before
    assert _compared(6, kept).to_json() == _compared(6, None).to_json()
    assert kept.read_bytes().startswith(before)


def test_kept_seeds_hold_deadlines_pools_and_unfinished_jobs(tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"
    pools = tmp_path / "pools.xml"
    pools.write_text('<allocations><pool name="a"/><pool name="b"/></allocations>')
    # Half of the jobs have no deadline, which is an infinite one.
    jobs = (
        replace(job, pool="ab"[k % 2], deadline_ms=10_000 if k % 2 else None)
        for k, job in enumerate(_WORKLOAD.jobs)
    )
    workload = replace(_WORKLOAD, jobs=tuple(jobs))
    # Runs end before any job does, whose ratio to the first policy is then undefined.
    config = SimulationConfig(world=WorldName.CORES, num_executors=8, end_ms=1)
    world = ClusterWorld(workload, config, "batch", 6)
    first, again = (
        compare(world, ["fair", f"srpt+pools:{pools}"], num_seeds=2, processes=1, keep=kept)
        for _ in range(2)
    )
    assert set(first.jobs["pool"]) == {"a", "b"}
    np.testing.assert_equal(again.to_json(), first.to_json())
    assert again.jobs.equals(first.jobs)
    assert again.runs.equals(first.runs)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"num_jobs": 7}, "jobs"),
        ({"arrivals": "poisson:9s"}, "arrivals"),
        ({"config": SimulationConfig(num_executors=9)}, r"config.num_executors \(8, now 9\)"),
        (
            {"workload": _WORKLOAD.with_deadlines({"*": 9})},
            rf"deadlines_s.{min(job.name for job in _WORKLOAD.jobs)} \(null, now 9.0\)",
        ),
    ],
)
def test_runs_with_other_settings_are_refused(
    other: dict[str, Any], what: str, tmp_path: Path
) -> None:
    kept = tmp_path / "runs.jsonl"
    _compared(2, kept)
    before = kept.read_bytes()
    world = ClusterWorld(**{**vars(_WORLD), **other})
    with pytest.raises(ConfigError, match=f"its runs differ in {what}"):
        _compared(2, kept, world)
    with pytest.raises(ConfigError, match="differ in policies"):
        compare(_WORLD, ["fifo", "fair"], num_seeds=2, processes=1, keep=kept)
    assert kept.read_bytes() == before


def test_a_checkpoint_with_other_weights_is_another_policy(tmp_path: Path) -> None:
    net = tmp_path / "net.safetensors"
    shutil.copy(_SHIPPED / "tuned-batch.safetensors", net)
    assert list(files_in_names([f"plan:{net}:20ms", "fair"])) == [str(net)]
    kept = tmp_path / "runs.jsonl"
    compare(_WORLD, ["fair", str(net)], num_seeds=2, processes=1, keep=kept)
    shutil.copy(_SHIPPED / "tuned-stream.safetensors", net)
    with pytest.raises(ConfigError, match=r"differ in files\..*net.safetensors"):
        compare(_WORLD, ["fair", str(net)], num_seeds=2, processes=1, keep=kept)


def test_pools_of_sparks_file_that_a_json_file_names_are_part_of_the_settings(
    tmp_path: Path,
) -> None:
    pools = tmp_path / "pools.json"
    pools.write_text(json.dumps({"pools": "fairscheduler.xml"}))
    xml = tmp_path / "fairscheduler.xml"
    xml.write_text("<allocations/>")
    assert list(files_in_names([f"fair:{pools}"])) == [str(xml), str(pools)]
    assert list(files_in_names([f"srpt+pools:{xml}"])) == [str(xml)]
    other = tmp_path / "date=2026+1:2"
    other.mkdir()
    for path in (xml, pools):
        shutil.copy(path, other / path.name)
    moved = [f"fair:{other / pools.name}", f"srpt+pools:{other / xml.name}+account"]
    assert set(files_in_names(moved)) == {str(other / pools.name), str(other / xml.name)}
    pools.write_text("[")
    assert list(files_in_names([f"fair:{pools}"])) == [str(pools)]


def test_runs_of_policy_objects_cannot_be_kept(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="policy that is an object cannot be kept"):
        compare(_WORLD, [make_policy("fair", 8)], num_seeds=2, keep=tmp_path / "runs.jsonl")
    assert not (tmp_path / "runs.jsonl").exists()


def test_runs_of_another_version_are_refused(tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"
    _compared(2, kept)
    kept.write_text(kept.read_text().replace('"parcae_kept_runs": 2', '"parcae_kept_runs": 1'))
    with pytest.raises(FormatError, match="written by another version of Parcae"):
        _compared(2, kept)


_DEEP = "[" * 100_000 + "\n"


@pytest.mark.parametrize("text", ["name,jct\nfair,3\n", "{}\n", "not ours", "[1]\n\n", _DEEP])
def test_other_files_are_refused_and_unchanged(text: str, tmp_path: Path) -> None:
    other = tmp_path / "results.csv"
    other.write_text(text)
    with pytest.raises(FormatError, match="not a file of finished runs"):
        _compared(2, other)
    assert other.read_text() == text


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"
    _compared(3, kept)
    lines = kept.read_text().splitlines(keepends=True)
    short = json.loads(lines[2])
    short["jobs"]["completion_ms"].pop()
    late = json.loads(lines[2])
    late["jobs"]["arrival_ms"][0] = 10**30
    for damaged in (
        lines[2][:100] + "\n", "\n", json.dumps(short) + "\n", json.dumps(late) + "\n",
        '{"seed": "x"}\n', _DEEP,
    ):  # fmt: skip
        kept.write_text("".join([*lines[:2], damaged, lines[3]]))
        with pytest.raises(FormatError, match="line 3 is damaged"):
            _compared(3, kept)
    kept.write_text("".join([*lines[:2], lines[3]]))
    assert _compared(3, kept).to_json() == _compared(3, None).to_json()
