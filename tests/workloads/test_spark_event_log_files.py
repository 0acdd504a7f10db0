"""Finding and decompressing logs: codecs, rolling directories, torn, compacted and zipped logs."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import zstandard

from parcae.base.errors import FormatError
from parcae.base.lz import DamagedBlock, lzf_block, snappy_block
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.files import find_logs, read_lines
from parcae.workloads.spark_log.run import read_spark_run
from tests.conftest import shared_data
from tests.workloads.spark_log_builder import (
    application_start,
    executor,
    lz4_blocks,
    lzf_blocks,
    small_log,
    snappy_blocks,
    sql_end,
    sql_start,
    stage_info,
    to_bytes,
    whole_job,
)

_CUT = "1 truncated last line ignored; complete lines were kept."


def _weights(path: Path) -> tuple[float, ...] | None:
    return read_spark_event_logs([path])[0].weights


def _rolling(folder: Path, data: bytes, parts: int = 3) -> Path:
    log = folder / "eventlog_v2_app-1"
    log.mkdir()
    (log / "appstatus_app-1").touch()
    lines = data.splitlines(keepends=True)
    step = len(lines) // parts
    for part in range(parts):
        end = None if part == parts - 1 else (part + 1) * step
        packed = zstandard.compress(b"".join(lines[part * step : end]))
        (log / f"events_{part + 1}_app-1.zstd").write_bytes(packed)
    return log


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("app-1", lambda data: data),
        ("app-1.zstd", zstandard.compress),
        ("app-1.zst", lambda data: zstandard.compress(data[:900]) + zstandard.compress(data[900:])),
        ("app-1.lz4", lz4_blocks),
        ("app-1.gz", lambda data: gzip.compress(data[:900]) + gzip.compress(data[900:])),
        # Blocks that are stored: the first read of the file gives a single byte.
        ("app-1.gz", lambda data: gzip.compress(data, 0)),
        ("app-1", lambda data: b" " * 20 + data),
        ("app-1.snappy", snappy_blocks),
        ("app-1.snappy", lambda data: snappy_blocks(data[:900]) + snappy_blocks(data[900:])),
        ("app-1.lzf", lzf_blocks),
        ("app-1.bz2", lambda data: bz2.compress(data[:900]) + bz2.compress(data[900:])),
        ("app-1.xz", lambda data: lzma.compress(data) + bytes(512)),
        ("app-1.lz4", lz4.frame.compress),
    ],
)
def test_every_compression_reads_the_same(  # type: ignore[no-untyped-def]
    tmp_path: Path, name: str, pack
) -> None:
    (tmp_path / name).write_bytes(pack(small_log(runs=4)))
    assert _weights(tmp_path / name) == (4.0,)


def test_a_rolling_log_is_read_in_the_order_of_its_parts(tmp_path: Path) -> None:
    log = _rolling(tmp_path, small_log(runs=12), parts=11)
    workload, report = read_spark_event_logs([log])
    assert workload.weights == (12.0,)
    assert report.num_files == 11


def test_a_folder_of_logs_is_searched_and_other_files_are_noted(tmp_path: Path) -> None:
    _rolling(tmp_path, small_log(runs=2))
    (tmp_path / "nested").mkdir()
    (tmp_path / "nested" / "app-2").write_bytes(small_log(runs=3))
    (tmp_path / "README").write_text("not a log")
    (tmp_path / ".app-2.crc").write_bytes(b"crc")
    (tmp_path / "nested" / "up").symlink_to(tmp_path)
    workload, report = read_spark_event_logs([tmp_path])
    assert workload.weights == (5.0,)
    assert report.num_files == 4
    assert any("README does not begin like a Spark event log" in note for note in report.notes)
    link = tmp_path / "nested" / "up"
    assert f"Left out {link}: a link to a folder; give the folder itself." in report.notes


def test_an_application_counts_once_however_many_copies_there_are(tmp_path: Path) -> None:
    data = small_log(runs=2, start=application_start("app-1"))
    (tmp_path / "app-1").write_bytes(data)
    (tmp_path / "app-1.gz").write_bytes(gzip.compress(data))
    with zipfile.ZipFile(tmp_path / "download.zip", "w") as archive:
        archive.writestr("app-1", data)
    workload, report = read_spark_event_logs([tmp_path])
    assert workload.weights == (2.0,)
    assert report.num_files == 1
    copy_of = f"the same application as {tmp_path}/app-1."
    assert f"Left out {tmp_path}/app-1.gz: {copy_of}" in report.notes
    assert f"Left out {tmp_path}/download.zip!app-1: {copy_of}" in report.notes


@pytest.mark.parametrize("name", ["aa-1.gz", "zz-1.gz"])
def test_a_compressed_copy_is_the_most_complete_although_it_is_smaller(
    tmp_path: Path, name: str
) -> None:
    data = small_log(runs=30, start=application_start("app-1"))
    # A copy that was made while the application ran.
    early = data[: len(data) // 2]
    compressed = gzip.compress(data)
    assert len(compressed) < len(early)
    (tmp_path / "app-1").write_bytes(early)
    (tmp_path / name).write_bytes(compressed)
    assert _weights(tmp_path) == (30.0,)
    # The name says that an application was running.
    (tmp_path / "0.inprogress").write_bytes(data + data.splitlines()[-1])
    assert _weights(tmp_path) == (30.0,)


def test_the_copy_of_a_rolling_log_with_the_most_parts_is_read(tmp_path: Path) -> None:
    for hour in ("0900", "1000", "1100"):
        (tmp_path / hour).mkdir()
        _rolling(tmp_path / hour, small_log(runs=9, start=application_start("app-1")))
    # The earlier copies were made while the application ran.
    (tmp_path / "0900" / "eventlog_v2_app-1" / "events_3_app-1.zstd").unlink()
    last = tmp_path / "1000" / "eventlog_v2_app-1" / "events_3_app-1.zstd"
    last.write_bytes(last.read_bytes()[:20])
    workload, report = read_spark_event_logs([tmp_path])
    assert workload.weights == (9.0,)
    for hour in ("0900", "1000"):
        same = f"the same application as {tmp_path}/1100/eventlog_v2_app-1."
        assert f"Left out {tmp_path}/{hour}/eventlog_v2_app-1: {same}" in report.notes


@pytest.mark.parametrize(
    "other", [application_start("app-2"), application_start("app-1", attempt="2")]
)
def test_other_applications_and_attempts_are_no_copies(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    (tmp_path / "1").write_bytes(small_log(runs=2, start=application_start("app-1", attempt="1")))
    (tmp_path / "2").write_bytes(small_log(runs=3, start=other))
    assert _weights(tmp_path) == (5.0,)


def test_applications_that_were_joined_into_one_file_are_refused(tmp_path: Path) -> None:
    logs = [small_log(start=application_start(f"app-{row}")) for row in (1, 2)]
    (tmp_path / "all.log").write_bytes(b"".join(logs))
    for read in (read_spark_event_logs, read_spark_run):
        with pytest.raises(FormatError, match=r"all.log: the events of several applications"):
            read([tmp_path / "all.log"])
    # The same event twice is one application.
    (tmp_path / "all.log").write_bytes(logs[0] + logs[0].splitlines(keepends=True)[1])
    assert _weights(tmp_path) == (3.0,)


def test_a_path_may_be_given_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app-1").write_bytes(small_log(runs=2))
    monkeypatch.chdir(tmp_path)
    found = find_logs([Path("app-1"), tmp_path / "app-1", tmp_path / "." / "app-1"])
    assert len(found.sources) == 1
    assert not found.notes


def test_lost_starts_of_spark_jobs_are_counted(tmp_path: Path) -> None:
    lines = small_log(runs=3).splitlines(keepends=True)
    is_lost = [b"SparkListenerJobStart" in line and b'"Job ID":1' in line for line in lines]
    kept = [line for line, lost in zip(lines, is_lost, strict=True) if not lost]
    (tmp_path / "log").write_bytes(b"".join(kept))
    workload, report = read_spark_event_logs([tmp_path / "log"])
    assert workload.weights == (2.0,)
    left_out = [note for note in report.notes if note.startswith("Left out ")]
    assert left_out[:2] == [
        "Left out 1 Spark job whose start is missing in the log.",
        "Left out 3 task ends whose stage belongs to no Spark job in the log.",
    ]
    assert set(left_out[:2]) <= set(read_spark_run([tmp_path / "log"]).notes)


@pytest.mark.parametrize("key", ["plan", "shape"])
def test_queries_without_a_plan_are_counted_where_the_key_is_their_plan(
    tmp_path: Path, key: str
) -> None:
    query = whole_job(0, 0, (stage_info(0, 1), 0, 10), spark_sql_execution_id="0")
    log = tmp_path / "log"
    log.write_bytes(to_bytes([executor(), sql_start(0, 0), *query, sql_end(0)]))
    note = "1 SQL query has no plan in the log; it keeps its name."
    workload, report = read_spark_event_logs([log], key=key)
    assert [job.name for job in workload.jobs] == ["query"]
    assert note in report.notes
    assert note in read_spark_run([log], key=key).notes
    assert not any("no plan" in text for text in read_spark_event_logs([log])[1].notes)


@pytest.mark.parametrize(
    ("data", "weight", "is_cut"),
    [
        (small_log(runs=3)[:-20], 2.0, True),
        (small_log(runs=3) + b'{"Event":"SparkListenerBlockUpdated","St', 3.0, True),
        (small_log(runs=3) + b'{"Event":"SparkListenerTaskEnd","St', 3.0, True),
        (small_log(runs=3).rstrip(b"\n"), 3.0, False),
    ],
)
def test_a_torn_log_keeps_its_complete_lines(
    tmp_path: Path, data: bytes, weight: float, is_cut: bool
) -> None:
    (tmp_path / "app-1.inprogress").write_bytes(data)
    workload, report = read_spark_event_logs([tmp_path / "app-1.inprogress"])
    assert (workload.weights, report.num_bad_rows) == ((weight,), 0)
    assert (_CUT in report.notes) is is_cut


@pytest.mark.parametrize("kept", [b"", b'{"Event":"SparkListenerBlockUpdated","Bl'])
def test_a_cut_part_inside_a_rolling_log_is_refused(tmp_path: Path, kept: bytes) -> None:
    log = _rolling(tmp_path, small_log(runs=12))
    part = log / "events_2_app-1.zstd"
    part.write_bytes(zstandard.compress(kept))
    with pytest.raises(FormatError, match=r"events_2_app-1.zstd is cut off.*copy it again"):
        read_spark_event_logs([log])


def test_the_last_part_of_a_rolling_log_may_be_empty_or_cut(tmp_path: Path) -> None:
    log = _rolling(tmp_path, small_log(runs=12))
    (log / "events_4_app-1").touch()
    workload, report = read_spark_event_logs([log])
    assert (workload.weights, _CUT in report.notes) == ((12.0,), False)
    (log / "events_4_app-1").unlink()
    part = log / "events_3_app-1.zstd"
    lines = zstandard.decompress(part.read_bytes())
    part.write_bytes(zstandard.compress(lines[:-20]))
    workload, report = read_spark_event_logs([log])
    assert (workload.weights, _CUT in report.notes) == ((11.0,), True)


@pytest.mark.parametrize(
    "pack",
    [zstandard.compress, lz4_blocks, gzip.compress, snappy_blocks, lzf_blocks, lzma.compress],
)
def test_a_truncated_compressed_log_gives_what_it_contains(  # type: ignore[no-untyped-def]
    tmp_path: Path, pack
) -> None:
    packed = pack(small_log(runs=400))
    (tmp_path / "log").write_bytes(packed[: len(packed) * 9 // 10])
    weights = _weights(tmp_path / "log")
    assert weights is not None
    assert 200 < weights[0] < 400


def test_absent_parts_of_a_rolling_log_are_noted(tmp_path: Path) -> None:
    log = _rolling(tmp_path, small_log(runs=12), parts=6)
    (log / "events_6_app-1.zstd").rename(log / "events_9_app-1.zstd")
    workload, report = read_spark_event_logs([log])
    assert workload.weights == (12.0,)
    assert f"{log} lacks parts [6, 7, 8]: Spark may skip a number" in " ".join(report.notes)
    (log / "events_1_app-1.zstd").unlink()
    notes = find_logs([log]).notes
    assert notes[0].startswith(f"{log} begins with part 2: the parts before it are absent")


def test_parts_may_be_numbered_from_0_and_none_is_there_twice(tmp_path: Path) -> None:
    log = _rolling(tmp_path, small_log(runs=12), parts=2)
    (log / "events_1_app-1.zstd").rename(log / "events_0_app-1.zstd")
    (log / "events_2_app-1.zstd").rename(log / "events_1_app-1.zstd")
    workload, report = read_spark_event_logs([log])
    assert workload.weights == (12.0,)
    assert not any(str(log) in note for note in report.notes)
    (log / "events_1_app-1").touch()
    with pytest.raises(FormatError, match=r"the part events_1_app-1\S* is there twice"):
        find_logs([log])


def test_a_compacted_log_begins_with_the_file_that_was_made_of_its_first_parts(
    tmp_path: Path,
) -> None:
    log = _rolling(tmp_path, small_log(runs=12), parts=4)
    # Spark deletes the parts that it compacted later: one of them is still there.
    compacted = zstandard.compress(small_log(runs=0))
    (log / "events_2_app-1.zstd.compact").write_bytes(compacted)
    (log / "events_1_app-1.zstd").unlink()
    [source], notes = find_logs([log]).sources, find_logs([log]).notes
    names = ["events_2_app-1.zstd.compact", "events_3_app-1.zstd", "events_4_app-1.zstd"]
    assert [part.name for part in source.parts] == names
    assert notes[0].startswith(f"{log} was compacted up to part 2: the jobs that had ended by then")
    assert _weights(log) == (6.0,)


def test_hourly_files_are_one_log_of_which_the_plain_file_is_the_newest(tmp_path: Path) -> None:
    data = small_log(runs=9, start=application_start("app-d"))
    data = data.replace(b'"SparkListenerLogStart"', b'"DBCEventLoggingListenerMetadata"')
    lines = data.splitlines(keepends=True)
    names = ["eventlog-2026-01-05--10-00.gz", "eventlog-2026-01-05--11-00.gz", "eventlog"]
    folder = tmp_path / "7"
    folder.mkdir()
    for number, name in enumerate(names):
        content = b"".join(lines[number * 30 : (number + 1) * 30 if number < 2 else None])
        (folder / name).write_bytes(gzip.compress(content) if "gz" in name else content)
    for given in ([folder], [folder / name for name in sorted(names)]):
        workload, report = read_spark_event_logs(given)
        assert (workload.weights, report.num_files) == ((9.0,), 3)
        assert workload.provenance["spark_versions"] == "4.0.0"
    with tarfile.open(tmp_path / "logs.tar", "w") as archive:
        archive.add(folder, "cluster/7")
    assert _weights(tmp_path / "logs.tar") == (9.0,)


def test_parts_of_rolling_logs_that_are_given_one_by_one_are_one_log_each(tmp_path: Path) -> None:
    log = _rolling(tmp_path, small_log(runs=12, start=application_start("app-1")), parts=11)
    other = log / "events_1_app-2"
    other.write_bytes(small_log(runs=2, start=application_start("app-2")))
    parts = sorted(log.glob("events_*"))
    workload, report = read_spark_event_logs(parts)
    assert (workload.weights, report.num_files) == ((14.0,), 12)
    assert "Left out 2 first runs" in " ".join(report.notes)


def test_rolling_logs_that_cannot_be_read_do_not_stop_the_import_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app-2").write_bytes(small_log(runs=2))
    log = _rolling(tmp_path, small_log())
    (log / "events_1_app-1.zstd").write_bytes(b"PAR1rest")
    forbidden = tmp_path / "eventlog_v2_app-3"
    forbidden.mkdir()
    iterdir = Path.iterdir

    def guarded(folder: Path) -> Iterator[Path]:
        if folder == forbidden:
            raise PermissionError(13, "Permission denied", str(folder))
        return iterdir(folder)

    monkeypatch.setattr(Path, "iterdir", guarded)
    workload, report = read_spark_event_logs([tmp_path])
    assert workload.weights == (2.0,)
    left_out = [note for note in report.notes if note.startswith("Left out ")][:2]
    assert "events_1_app-1.zstd: this is a table (Parquet)" in left_out[0]
    assert f"Permission denied: '{forbidden}'" in left_out[1]


def test_a_zip_download_is_read(tmp_path: Path) -> None:
    log = _rolling(tmp_path, small_log(runs=2))
    with zipfile.ZipFile(tmp_path / "download.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in log.iterdir():
            archive.write(path, f"{log.name}/{path.name}")
        archive.writestr("app-2", small_log(runs=5))
    assert _weights(tmp_path / "download.zip") == (7.0,)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_archive_is_read_however_it_is_compressed(tmp_path: Path, mode: str) -> None:
    log = _rolling(tmp_path, small_log(runs=2))
    path = tmp_path / "logs.tar"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        archive.add(log, "a/eventlog_v2_app-1")
        info = tarfile.TarInfo("a/app-2")
        info.size = len(content := small_log(runs=5))
        archive.addfile(info, io.BytesIO(content))
    assert _weights(path) == (7.0,)
    packed = path.read_bytes()
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(FormatError, match=r"logs.tar"):
        find_logs([path])


def test_a_header_of_a_tar_archive_cannot_fill_the_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("app-1")
    info.pax_headers = {"comment": "x" * 3_000_000}
    with tarfile.open(tmp_path / "logs.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info)
    with pytest.raises(FormatError, match="a header of more than 1 MiB"):
        find_logs([tmp_path / "logs.tar"])


def test_foreign_files_are_refused_with_a_remedy(tmp_path: Path) -> None:
    event = json.dumps(small_log().splitlines()[0].decode())
    (tmp_path / "log.json").write_text(f'{{"date":1700000000.1,"log":{event}}}\n')
    with pytest.raises(FormatError, match=r"text in a field 'log'.*jq -r '\.\[\"log\"\]'"):
        find_logs([tmp_path / "log.json"])
    (tmp_path / "log.csv").write_text("a,b\n")
    with pytest.raises(FormatError, match="does not begin like a Spark event log"):
        find_logs([tmp_path / "log.csv"])
    with pytest.raises(FormatError, match="no such file"):
        find_logs([tmp_path / "absent"])
    signatures = (b"\x28\xb5\x2f\xfd", b"LZ4Block", b"\x1f\x8b", b"PK\x03\x04", b"BZh9", b"ZV")
    for stub in (b"", b"\n", b"{", *signatures):
        (tmp_path / "stub").write_bytes(stub)
        with pytest.raises(FormatError, match="stub"):
            read_spark_event_logs([tmp_path / "stub"])


@pytest.mark.parametrize(
    ("pack", "at"), [(lz4_blocks, 760), (snappy_blocks, 20), (lzf_blocks, 705), (bz2.compress, 90)]
)
def test_damaged_compressed_data_is_refused(  # type: ignore[no-untyped-def]
    tmp_path: Path, pack, at: int
) -> None:
    packed = bytearray(pack(small_log(runs=4)))
    packed[at] ^= 0xFF
    (tmp_path / "log").write_bytes(bytes(packed))
    with pytest.raises(FormatError):
        read_spark_event_logs([tmp_path / "log"])


def test_blocks_of_snappy_and_lzf_repeat_what_came_before() -> None:
    assert snappy_block(b"\x09\x08abc\x09\x03", 9) == b"abcabcabc"
    assert snappy_block(b"\x06\x08abc\x0a\x03\x00", 9) == b"abcabc"
    assert lzf_block(b"\x02abc\x80\x02", 9) == b"abcabcabc"
    # Too large, a copy from before the block, one of nothing, and a block that ends too early.
    for damaged in (
        b"\x0a\x08abc",
        b"\x09\x08abc\x09\x04",
        b"\x03\x08abc\x05\x00",
        b"\x09\x08abc\x09",
    ):
        with pytest.raises(DamagedBlock):
            snappy_block(damaged, 9)
    for damaged in (b"\x02abc\x80\x03", b"\x02abc\x80", b"\x02ab", b"\x02abc"):
        with pytest.raises(DamagedBlock):
            lzf_block(damaged, 9)


@pytest.mark.parametrize(
    "name", ["lzf/local-1795855431975.lzf", "snappy/local-1795855423886.snappy"]
)
def test_logs_that_spark_compressed_are_whole(name: str) -> None:
    [source] = find_logs([shared_data(f"real-logs/own/codec_{name}")]).sources
    lines = [line for line, _ in read_lines(source.parts[0])]
    assert len(lines) > 100
    assert all(json.loads(line)["Event"] for line in lines)
    assert b"SparkListenerApplicationEnd" in lines[-1]
