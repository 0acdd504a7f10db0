"""Inputs without an end: small files that unpack to gigabytes, endless jobs, deep folders."""

from __future__ import annotations

import contextlib
import gzip
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from parcae.base import loader
from parcae.base.errors import FormatError
from parcae.base.loader import split_lines
from parcae.base.texts import BYTES_PER_MIB
from parcae.workloads.spark_log import dag
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.run import read_spark_run
from tests.workloads.spark_log_builder import (
    executor,
    job_start,
    ran,
    small_log,
    stage_info,
    to_bytes,
    whole_job,
)


@contextlib.contextmanager
def _within_a_minute() -> Iterator[None]:
    """What is promised of inputs without an end, in time of the processor."""
    begin_s = time.process_time()
    yield
    assert time.process_time() - begin_s < 60


def _followed_by(data: bytes, path: Path, piece: bytes, mib: int) -> None:
    """Compress data and many repetitions of a piece of one MiB."""
    with path.open("wb") as stream, zstandard.ZstdCompressor().stream_writer(stream) as packed:
        packed.write(data)
        for _ in range(mib):
            packed.write(piece)


def test_blank_lines_are_passed_over(tmp_path: Path) -> None:
    blank = b" \n" * (BYTES_PER_MIB // 2)
    _followed_by(small_log(), tmp_path / "log", blank, 64)
    workload, report = read_spark_event_logs([tmp_path / "log"])
    assert len(workload.jobs) == 1
    assert (report.num_bad_rows, report.num_rows) == (0, len(small_log().splitlines()))


@pytest.mark.parametrize("piece", [b"\n", b" \n", b"\t\n\n"])
def test_a_blank_piece_ends_the_line_before_it(piece: bytes) -> None:
    found = list(split_lines([b"a\nb", piece * 9, b"c\nd"], "log"))
    assert [line.strip() for line, _ in found if line.strip()] == [b"a", b"b", b"c", b"d"]
    assert [line for line, _ in split_lines([b"a", b"  ", b"b\n"], "log")] == [b"a  b"]


@pytest.mark.parametrize("piece", [b"\n", b"{}\n", b'{"Event":"x"}\n'])
def test_a_small_file_that_unpacks_to_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: bytes
) -> None:
    monkeypatch.setattr(loader, "_MUCH_UNPACKED", BYTES_PER_MIB)
    _followed_by(small_log(), tmp_path / "log", piece * (BYTES_PER_MIB // len(piece)), 16)
    with pytest.raises(FormatError, match=r"log: unpacks to more than 1,000 times its size"):
        read_spark_event_logs([tmp_path / "log"])


def test_a_file_of_bad_lines_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parcae.workloads.spark_log.event_log._MANY_BAD", 100)
    (tmp_path / "log").write_bytes(small_log() + b"{}\n" * 10_000)
    with pytest.raises(FormatError, match=r"10\d of 1\d\d rows could not be read"):
        read_spark_event_logs([tmp_path / "log"])


def _of_stages(num_stages: int) -> bytes:
    infos = [stage_info(stage, 1, (stage - 1,) if stage else ()) for stage in range(num_stages)]
    start = job_start(0, 0, infos, spark_jobGroup_id="endless")
    ends = [event for stage, info in enumerate(infos) for event in ran(info, stage, stage + 1)]
    others = whole_job(1, 0, (stage_info(num_stages, 1), 0, 10), spark_jobGroup_id="other")
    end = {**others[-1], "Job ID": 0}
    return to_bytes([executor(), start, *ends, end, *others])


@pytest.mark.parametrize(
    ("stages", "most"), [(11, 10), pytest.param(300_000, 10_000, marks=pytest.mark.slow)]
)
def test_a_job_of_too_many_stages_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stages: int, most: int
) -> None:
    monkeypatch.setattr(dag, "MOST_STAGES", most)
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(_of_stages(stages), 1))
    with _within_a_minute():
        workload, report = read_spark_event_logs([path])
    assert [job.name for job in workload.jobs] == ["other"]
    assert f"Left out 1 job that had more than {most:,} stages: endless." in report.notes
    assert len(read_spark_run([path]).jobs) == 2


def test_a_folder_of_1500_levels_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(small_log())
    deep = tmp_path
    for _ in range(1_500):
        deep /= "d"
        deep.mkdir()
    try:
        with _within_a_minute():
            workload, report = read_spark_event_logs([tmp_path])
        with pytest.raises(FormatError, match="a folder this deep has no logs"):
            read_spark_event_logs([tmp_path / "d"])
    finally:
        os.removedirs(deep)  # what pytest cannot
    assert len(workload.jobs) == 1
    assert any("a folder this deep has no logs" in note for note in report.notes)
