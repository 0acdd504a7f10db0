"""Damaged logs never end in anything but a workload or a clear error."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

import parcae.workloads
from parcae.base.errors import FormatError, WorkloadError
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from tests.workloads.spark_log_builder import small_log

PACKED = (
    Path(parcae.workloads.__file__).parent / "bundled" / "example-event-log.zstd"
).read_bytes()
LINES = (
    zstandard.ZstdDecompressor()
    .decompress(PACKED, max_output_size=1 << 24)
    .splitlines(keepends=True)
)
#: A log short enough to be damaged thousands of times: the start, one query and the end of the real
#: one.
REAL = b"".join(LINES[:100])
SPLICES = st.sampled_from(
    [
        b"",
        b"-1",
        b"null",
        b"[]",
        b"{}",
        b'""',
        b"9" * 25,
        b"1e999",
        b"NaN",
        b"\x00",
        b"\xff",
        b"\n",
        b'{"a":' * 600,
        b"}",
    ]
)


def _assert_read_or_refused(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(data)
        for recorded in (False, True):
            with suppress(FormatError, WorkloadError):
                workload, report = read_spark_event_logs(
                    [path], max_bad_share=1.0, recorded=recorded
                )
                assert report.num_jobs == len(workload.jobs) > 0


@settings(max_examples=120, deadline=None)
@given(st.integers(0, len(REAL)))
def test_a_log_cut_anywhere_reads_or_is_refused(cut: int) -> None:
    _assert_read_or_refused(REAL[:cut])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(REAL)), st.integers(0, 40), SPLICES), min_size=1, max_size=12
    )
)
def test_a_log_with_bytes_replaced_reads_or_is_refused(edits: list[tuple[int, int, bytes]]) -> None:
    data = bytearray(REAL)
    for position, length, splice in edits:
        data[position : position + length] = splice
    _assert_read_or_refused(bytes(data))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_log_with_values_swapped_for_others_reads_or_is_refused(data: st.DataObject) -> None:
    text = small_log(runs=2)
    for _ in range(data.draw(st.integers(1, 6))):
        starts = [index for index in range(len(text)) if text[index : index + 1] == b":"]
        start = data.draw(st.sampled_from(starts)) + 1
        end = min(
            (i for mark in b",}]" if (i := text.find(bytes([mark]), start)) > 0), default=start
        )
        text = text[:start] + data.draw(SPLICES) + text[end:]
    _assert_read_or_refused(text)


@settings(max_examples=60, deadline=None)
@given(st.permutations(small_log(runs=3).splitlines(keepends=True)), st.integers(0, 20))
def test_a_log_with_lines_shuffled_or_lost_reads_or_is_refused(
    lines: list[bytes], lost: int
) -> None:
    _assert_read_or_refused(b"".join(lines[lost:]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(PACKED) - 1), st.integers(0, 255))
@example(4, 255)
def test_damaged_compression_reads_or_is_refused(position: int, value: int) -> None:
    packed = bytearray(PACKED)
    packed[position] = value
    _assert_read_or_refused(bytes(packed))


@pytest.mark.parametrize(
    "data",
    [b"", b"\n", b"{", b"\x28\xb5\x2f\xfd", b"LZ4Block", b"\x1f\x8b", b"PK\x03\x04", b"\xff" * 99],
)
def test_stubs_of_files_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(FormatError):
        read_spark_event_logs([tmp_path / "log"])
