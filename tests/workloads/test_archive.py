from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.base.errors import FormatError, WorkloadError
from parcae.workloads.archive import load_workload, read_workload, write_workload
from parcae.workloads.describe import fingerprint
from parcae.workloads.job import JobSpec
from parcae.workloads.synthetic import RandomDags, random_dags
from parcae.workloads.workload import Workload


def _workload() -> Workload:
    made = random_dags(RandomDags(num_jobs=4), np.random.default_rng(1))
    jobs = tuple(job.at(1_000 * row) for row, job in enumerate(made.jobs))
    return Workload("four", jobs, weights=(1.0, 2.0, 3.0, 4.0), provenance={"source": "a test"})


def test_a_workload_comes_back_as_it_was(tmp_path: Path) -> None:
    written = _workload()
    write_workload(written, tmp_path / "w.parcae")
    read = read_workload(tmp_path / "w.parcae")
    assert fingerprint(read) == fingerprint(written)
    assert (read.name, read.weights) == (written.name, written.weights)
    assert read.provenance == {"source": "a test"}
    assert [job.arrival_ms for job in read.jobs] == [0, 1_000, 2_000, 3_000]


def test_numbers_of_numpy_make_the_same_workload_as_plain_ones() -> None:
    job = _workload().jobs[0]
    plain = replace(job, arrival_ms=1_000, work_sigma=0.5)
    numbers: dict[str, Any] = {"arrival_ms": np.int64(1_000), "work_sigma": np.float64(0.5)}
    of_numpy = replace(job, **numbers)
    marks = {fingerprint(Workload("one", (one,))) for one in (plain, of_numpy)}
    assert len(marks) == 1


@pytest.mark.parametrize("setting", ["arrival_ms", "deadline_ms"])
def test_a_missing_number_of_a_table_is_no_time(setting: str) -> None:
    changes: dict[str, Any] = {setting: float("nan")}
    with pytest.raises(WorkloadError, match=r"(?i)nan ms"):
        replace(_workload().jobs[0], **changes)


def _with_spread(job: JobSpec, row: int) -> JobSpec:
    changes = {"duration_sigma": 0.1 * row, "input_bytes": 5.0}
    stages = tuple(replace(stage, **changes) for stage in job.stages)  # type: ignore[arg-type]
    pool = "bi" if row else ""
    factors = np.arange((row + 1) * len(stages)) / 7 if row > 1 else ()
    return replace(
        job,
        stages=stages,
        work_sigma=0.5 * row,
        num_runs=row + 1,
        scan_bytes=100.0 * row,
        pool=pool,
        run_factors=factors,
    )


def test_the_spread_of_runs_pools_and_input_bytes_come_back(tmp_path: Path) -> None:
    made = _workload()
    written = replace(made, jobs=tuple(_with_spread(job, row) for row, job in enumerate(made.jobs)))
    write_workload(written, tmp_path / "w.parcae")
    read = read_workload(tmp_path / "w.parcae")
    assert fingerprint(read) == fingerprint(written) != fingerprint(made)
    assert [job.work_sigma for job in read.jobs] == [0.0, 0.5, 1.0, 1.5]
    assert [job.num_runs for job in read.jobs] == [1, 2, 3, 4]
    assert [job.scan_bytes for job in read.jobs] == [0.0, 100.0, 200.0, 300.0]
    assert [job.pool for job in read.jobs] == ["", "bi", "bi", "bi"]
    num_stages = len(made.jobs[3].stages)
    assert [len(job.run_factors) for job in read.jobs] == [0, 0, 3, 4]
    assert (read.jobs[3].run_factors.ravel() == np.arange(4 * num_stages) / 7).all()
    assert {stage.duration_sigma for stage in read.jobs[2].stages} == {0.2}
    assert {stage.input_bytes for stage in read.jobs[0].stages} == {5.0}


def test_an_older_file_has_no_spread_and_keeps_its_fingerprint() -> None:
    """The bundled workload has format version 1; its fingerprint selects shipped policies."""
    read = load_workload("tpch")
    assert fingerprint(read) == "904943c2577bf2db"
    assert {(job.work_sigma, job.num_runs, job.pool) for job in read.jobs} == {(0.0, 1, "")}
    assert {
        (stage.duration_sigma, stage.input_bytes) for job in read.jobs for stage in job.stages
    } == {(0.0, 0.0)}


def test_a_newer_version_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "w.parcae"
    write_workload(_workload(), path)
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    manifest = json.loads(arrays["manifest"].tobytes()) | {"version": 99}
    arrays["manifest"] = np.frombuffer(json.dumps(manifest).encode(), np.uint8)
    with path.open("wb") as stream:
        np.savez(stream, **arrays)
    with pytest.raises(FormatError, match=r"version 99.*update Parcae"):
        read_workload(path)


def test_a_foreign_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.parcae"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(FormatError, match="not a Parcae workload file"):
        read_workload(path)


def test_an_array_whose_header_is_cut_off_is_refused(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1,".ljust(117) + b"\n"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)
    path = tmp_path / "w.parcae"
    write_workload(_workload(), path)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, array)
    with pytest.raises(FormatError, match="not a Parcae workload file"):
        read_workload(path)
