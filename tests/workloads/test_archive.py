from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parcae.errors import FormatError
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.describe import fingerprint
from parcae.workloads.job import Workload
from parcae.workloads.synthetic import RandomDags, random_dags


def _workload() -> Workload:
    made = random_dags(RandomDags(num_jobs=4), np.random.default_rng(1))
    jobs = tuple(job.at(1_000 * row) for row, job in enumerate(made.jobs))
    return Workload("four", jobs, weights=(1.0, 2.0, 3.0, 4.0), provenance={"source": "a test"})


def test_a_workload_comes_back_as_it_was(tmp_path: Path) -> None:
    written = _workload()
    write_workload(written, tmp_path / "w.parcae")
    read = read_workload(tmp_path / "w.parcae")
    assert fingerprint(read) == fingerprint(written)
    assert (read.name, read.weights, read.provenance) == (written.name, written.weights, {"source": "a test"})
    assert [job.arrival_ms for job in read.jobs] == [0, 1_000, 2_000, 3_000]


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


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.parcae"
    write_workload(_workload(), path)
    before = path.read_bytes()

    def full_disk(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_workload(_workload(), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["w.parcae"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_refused_or_read_but_never_crash(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "w.parcae"
    write_workload(_workload(), path)
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(raw))
    try:
        read = read_workload(path)
    except FormatError as error:
        message = str(error)
    else:
        message = str(path) if read.jobs else "a workload without jobs"
    assert str(path) in message
