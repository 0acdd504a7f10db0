"""The loader: bounds of decompression, lines, archives and numbers, and one line for each error."""

from __future__ import annotations

import gzip
import io
import os
import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from parcae.base import loader
from parcae.base.errors import FormatError
from parcae.base.loader import (
    lines,
    members,
    number,
    open_file,
    parsed_json,
    read_file,
    read_member,
    shown,
    whole_number,
)
from parcae.decima.alibaba import read_alibaba
from parcae.rigid.logs import read_log
from parcae.workloads import archive
from parcae.workloads.archive import read_workload
from parcae.workloads.durations import LARGEST_ARRIVAL_MS, TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from tests.workloads.spark_log_builder import lz4_blocks

_CONTENT = b'{"a": 1}\n' * 1_000


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_file_is_decompressed_by_its_first_bytes_and_bounded(pack: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(pack(_CONTENT))
    assert read_file(path) == _CONTENT
    assert read_file(path, len(_CONTENT)) == _CONTENT
    with pytest.raises(FormatError, match=r"a\.json: more than"):
        read_file(path, len(_CONTENT) - 1)
    assert list(lines(path)) == [(b'{"a": 1}', True)] * 1_000


@pytest.mark.parametrize("pack", [zstandard.ZstdCompressor().compress, lz4_blocks])
def test_compressed_data_that_ends_early_is_refused(pack: Any, tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(5 << 20)
    packed = pack(content)
    path = tmp_path / "a.json"
    path.write_bytes(packed + packed)
    assert read_file(path) == content + content
    for cut in (packed[:-1], packed[: len(packed) // 2], packed[:17], packed + packed[:-9]):
        path.write_bytes(cut)
        with pytest.raises(FormatError, match=r"a\.json: truncated (zstd|lz4) data"):
            read_file(path)


def test_a_line_is_bounded_where_a_file_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"x" * (9 << 20)))
    monkeypatch.setattr(loader, "MAX_LINE_BYTES", 1 << 20)
    with pytest.raises(FormatError, match=r"a\.gz: a line is longer than"):
        list(lines(path))


def test_gzip_has_members_and_padding_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    packed = gzip.compress(_CONTENT)
    path.write_bytes(packed + packed + b"\x00" * 600)
    assert read_file(path) == 2 * _CONTENT
    flipped = bytearray(packed)
    flipped[-6] ^= 1
    for damaged in (packed[:-1], packed[:30], b"", b"plain", bytes(flipped), packed + b"x"):
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"a\.gz: .*gzip data"):
            read_file(path)


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        for read in (open_file, read_file, members, lambda one: list(lines(one))):
            with pytest.raises(FormatError, match="this is a"):
                read(path)


def test_a_secret_may_come_through_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_WRITER_S", 0.1)
    (tmp_path / "file").write_bytes(b"x")
    assert loader.read_short(tmp_path / "file") == b"x"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FormatError, match="nothing comes through this pipe"):
        loader.read_short(pipe)
    monkeypatch.setattr(loader, "_WRITER_S", 5.0)
    with ThreadPoolExecutor() as pool:
        written = pool.submit(pipe.write_bytes, b"secret")
        assert loader.read_short(pipe) == b"secret"
        written.result()
    (tmp_path / "file").write_bytes(b"x" * 70_000)
    with pytest.raises(FormatError, match="more than 64 KiB"):
        loader.read_short(tmp_path / "file")
    with pytest.raises(FormatError, match="this is a device"):
        loader.read_short(Path("/dev/zero"))
    with pytest.raises(IsADirectoryError, match=re.escape(str(tmp_path))):
        loader.read_short(tmp_path)


def _zip(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a", content)
    return path


def test_members_of_archives_are_checked_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _zip(tmp_path / "z.zip", bytes(1 << 20))
    assert len(read_member(path, "a")) == 1 << 20
    with pytest.raises(FormatError, match=r"z\.zip!a: more than 0 MiB"):
        read_member(path, "a", 1_000)
    with pytest.raises(FormatError, match=r"z\.zip!b: damaged archive"):
        read_member(path, "b")
    # The checksum of the content is wrong.
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02")
    data[at + 16] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(FormatError, match=r"z\.zip!a: damaged archive \(Bad CRC"):
        read_member(path, "a")
    monkeypatch.setattr(loader, "MAX_MEMBERS", 0)
    with pytest.raises(FormatError, match="1 files; at most 0"):
        members(path)


@pytest.mark.parametrize("text", ["[" * 5_000, "9" * 5_000, "{", "\xff", '{"a": nan}'])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match=r"a\.json.*expected a list"):
        parsed_json("a.json", text.encode("latin-1"), "a list")


_OUT_OF_RANGE = (10**5_000, 1e400, -1e400, float("nan"), "x", None, True, [], -1)


@pytest.mark.parametrize("row", range(len(_OUT_OF_RANGE)))
def test_numbers_out_of_range_are_refused_with_their_place(row: int) -> None:
    value: Any = _OUT_OF_RANGE[row]
    with pytest.raises(FormatError, match=r"f: cores is .*; it must be a whole number from 0 to 9"):
        whole_number("f: cores", value, 0, 9)
    with pytest.raises(FormatError, match=r"f: cores is .*; it must be a number from 0 to 9"):
        number("f: cores", value, 0, 9)


def test_numbers_in_range_are_returned() -> None:
    assert (whole_number("x", 5.0, 0, 9), number("x", "2.5", 0, 9)) == (5, 2.5)
    assert shown(10**5_000) == "a very long int"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TaskDurations((10**9,), ([1],), ([1],), ([1],)), "level is 1000000000"),
        (lambda: TaskDurations.of(np.array([1 << 62])), "35 years"),
        (lambda: TaskDurations.constant(10**400), "must be numbers"),
        (lambda: StageSpec(10**400, TaskDurations.constant(1)), "a very long int|tasks"),
        (lambda: StageSpec(float("nan"), TaskDurations.constant(1)), "empty stage"),
        (
            lambda: JobSpec(
                "a", (StageSpec(1, TaskDurations.constant(1)),), 1 + LARGEST_ARRIVAL_MS
            ),
            "a time is from 0",
        ),
        (
            lambda: JobSpec("a", (StageSpec(10_000_000, TaskDurations.constant(1 << 40)),)),
            "of work",
        ),
    ],
)
def test_a_workload_has_no_numbers_that_overflow(make: Any, words: str) -> None:
    from parcae.base.errors import WorkloadError

    with pytest.raises(WorkloadError, match=words):
        make()


def test_a_workload_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _zip(tmp_path / "w.parcae", bytes(10_000))
    monkeypatch.setattr(archive, "MAX_ARCHIVE_BYTES", 1_000)
    with pytest.raises(FormatError, match=r"w\.parcae: 10,000 bytes when decompressed"):
        read_workload(path)


def test_a_workload_file_with_a_huge_level_is_refused(tmp_path: Path) -> None:
    from parcae.workloads.archive import load_workload, write_workload

    path = tmp_path / "w.parcae"
    write_workload(load_workload("toy"), path)
    with np.load(path) as stored:
        arrays = dict(stored)
    arrays["levels"] = arrays["levels"] + 10**9
    np.savez(path.open("wb"), **arrays)
    with pytest.raises(FormatError, match=r"w\.parcae: .*a parallelism level is 10000000"):
        read_workload(path)


def test_times_that_overflow_are_bad_rows_not_cycles(tmp_path: Path) -> None:
    path = tmp_path / "batch_task.csv"
    path.write_text("M1,1,a,1,Terminated,1,2,1,1\nM1,1,b,1,Terminated,1,1e300,1,1\n")
    _, report = read_alibaba(path, max_bad_share=0.5)
    assert report.num_bad_rows == 1
    assert not any("cycle" in note for note in report.notes)
    assert "end_time" in report.bad_samples[0]


def test_a_name_of_thousands_of_digits_has_no_edges(tmp_path: Path) -> None:
    path = tmp_path / "batch_task.csv"
    path.write_text(f"M1_{'9' * 5_000},1,a,1,Terminated,1,2,1,1\n")
    assert read_alibaba(path)[0].jobs[0].stages[0].parents == ()


def test_a_header_with_a_huge_cluster_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.swf"
    line = "1 0 5 9 4 -1 -1 4 20 -1 1 1 1 1 1 1 -1 -1\n"
    for size in ("9" * 30, "9" * 5_000):
        path.write_text(f"; MaxProcs: {size}\n{line}")
        with pytest.raises(FormatError, match=r"l\.swf: MaxProcs of the header is"):
            read_log(path)


def test_npy_with_an_absurd_shape_is_refused() -> None:
    from parcae.decima.tpch import read_object_array

    stream = io.BytesIO()
    np.save(stream, np.zeros(2))
    data = stream.getvalue()
    for shape in (b"(9" + b"9" * 25 + b",)", b"(99999999999999,)"):
        changed = data.replace(b"(2,)", shape, 1).replace(b" " * (len(shape) - 4), b"", 1)
        with pytest.raises(FormatError, match="x: "):
            read_object_array(changed, "x")
