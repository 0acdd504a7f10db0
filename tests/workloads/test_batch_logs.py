"""Logs of batch clusters as rigid jobs: SWF, sacct, PBS and Torque, LSF, tables."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from parcae.base.errors import ConfigError, FormatError
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.logs import FIELDS, read_log
from tests.conftest import shared_data

_HEADER = "; MaxNodes: 4\n; MaxProcs: 16\n"


def _line(number: int, submit: object, run: object, processors: object, **others: object) -> str:
    """A line with those fields, completed, and -1 in all others but those named."""
    named: Mapping[str, Any] = {
        "job_number": number,
        "submit_time": submit,
        "run_time": run,
        "allocated_processors": processors,
    }
    fields = {"status": 1, **named, **others}
    return " ".join(str(fields.get(field, -1)) for field in FIELDS)


def test_rows_are_those_of_all_lines_by_submission_however_the_log_is_read(tmp_path: Path) -> None:
    path = _log(
        tmp_path,
        _line(5, 300, 30, 4, partition=1),
        _line(-1, 100, 30, 4, partition=2),
        _line(-1, 200, 30, 4, partition=1, status=5),
        _line(5, 200, 30, 4, partition=1),
    )
    assert read_log(path).jobs.rows.tolist() == [0, 1, 2, 3]
    assert read_log(path, partitions=[1]).jobs.rows.tolist() == [1, 2, 3]
    assert read_log(path, partitions=[1], cancelled="drop").jobs.halves()[1].rows.tolist() == [3]


def _log(tmp_path: Path, *lines: str, header: str = _HEADER, end: str = "\n") -> Path:
    path = tmp_path / "small.swf"
    path.write_text(header + "\n".join(lines) + end)
    return path


def test_fields_become_rigid_jobs_in_seconds_since_the_first(tmp_path: Path) -> None:
    path = _log(
        tmp_path,
        _line(7, 100, 30, 4, requested_time=60, requested_processors=8),
        _line(8, 130, 50, -1, requested_processors=2),
        header="; UnixStartTime: 1000000\n;MaxProcs: 16 (8 boards)\n",
    )
    log = read_log(path)
    jobs = log.jobs
    assert (jobs.name, jobs.step, jobs.resources) == ("small", "s", ("processors",))
    assert (jobs.capacity.tolist(), jobs.ids.tolist()) == ([16], [7, 8])
    assert (jobs.arrival.tolist(), jobs.duration.tolist()) == ([0, 30], [30, 50])
    assert (jobs.demand.tolist(), jobs.estimate.tolist()) == ([[4], [2]], [60, 50])
    assert log.start_unix_s == 1_000_100
    assert (log.report.num_rows, log.report.num_jobs, log.report.num_bad_rows) == (2, 2, 0)


def test_the_header_is_kept_with_the_lines_that_go_on_with_a_value(tmp_path: Path) -> None:
    header = "; Computer: a cluster\n;\n; Note: first\n;\tand more: see\n;     http://there/\n"
    header += "; Queue: 0 a\n; Queue: 1 b\n; MaxProcs: -1\n"
    log = read_log(_log(tmp_path, _line(1, 0, 5, 3), header=header))
    assert log.header.entries == (
        ("Computer", "a cluster"),
        ("Note", "first and more: see http://there/"),
        ("Queue", "0 a"),
        ("Queue", "1 b"),
        ("MaxProcs", "-1"),
    )
    assert (log.header.text("Queue"), log.header.number("MaxProcs")) == ("0 a", None)
    assert log.start_unix_s is None


def test_a_comment_between_jobs_does_not_go_on_with_the_header(tmp_path: Path) -> None:
    comments = "; 12 jobs are left out here\n;\n; since a failure\n; Note: back\n; again\n"
    jobs = (_line(1, 0, 5, 3), comments + _line(2, 0, 5, 1))
    log = read_log(_log(tmp_path, *jobs, header="; MaxNodes: 4\n; MaxProcs:\n"))
    assert log.header.entries == (("MaxNodes", "4"), ("MaxProcs", ""), ("Note", "back again"))
    assert log.jobs.capacity.tolist() == [4]


@pytest.mark.parametrize(
    ("header", "processors", "size", "source"),
    [
        ("; MaxNodes: 4\n; MaxProcs: 16\n", None, 16, "MaxProcs"),
        ("; MaxNodes: 4\n; MaxProcs: -1\n", None, 4, "MaxNodes"),
        ("; MaxProcs: 1,024\n", None, 1_024, "MaxProcs"),
        (";MaxProcs:64\n;made at 10:30 by http://host\n", None, 64, "MaxProcs"),
        ("; MaxProcs: 16, of 2 boards\n", None, 16, "MaxProcs"),
        ("", None, 3, "the largest job's"),
        ("; MaxProcs: 16\n", 9, 9, "given"),
    ],
)
def test_the_size_of_the_cluster_is_given_or_read(
    tmp_path: Path, header: str, processors: int | None, size: int, source: str
) -> None:
    log = read_log(
        _log(tmp_path, _line(1, 0, 5, 3), _line(2, 0, 5, 1), header=header), processors=processors
    )
    assert log.jobs.capacity.tolist() == [size]
    assert source in log.report.notes[0]


def test_memory_is_a_resource_where_the_clusters_is_given(tmp_path: Path) -> None:
    path = _log(
        tmp_path,
        _line(1, 0, 5, 4, requested_memory=1_000, used_memory=50),
        _line(2, 0, 5, 2, used_memory=50),
        _line(3, 0, 5, 1),
    )
    log = read_log(path, memory=8_000)
    assert log.jobs.resources == ("processors", "memory")
    assert log.jobs.capacity.tolist() == [16, 8_000]
    assert log.jobs.demand.tolist() == [[4, 4_000], [2, 100], [1, 0]]
    assert [(f.what, f.count, f.first) for f in log.findings if "memory" in f.what] == [
        ("no memory given, taken as 0", 1, f"{path}:5")
    ]
    unknown = read_log(path)
    assert unknown.jobs.demand.tolist() == [[4], [2], [1]]
    assert any("give it to make memory a resource" in note for note in unknown.report.notes)
    with pytest.raises(FormatError, match=r"swf:3: the job takes 4,000 KB .* has 3,999: give the"):
        read_log(path, memory=3_999)
    assert read_log(path, memory=4_000).jobs.capacity.tolist() == [16, 4_000]


def test_given_memory_is_of_no_use_where_no_job_tells_its_own(tmp_path: Path) -> None:
    log = read_log(_log(tmp_path, _line(1, 0, 5, 4)), memory=8_000)
    assert log.jobs.resources == ("processors",)
    assert any("contains no job's memory" in note for note in log.report.notes)


def test_schedulers_see_the_requested_or_the_actual_time(tmp_path: Path) -> None:
    path = _log(
        tmp_path,
        _line(1, 0, 5, 1, requested_time=60),
        _line(2, 0, 90, 1, requested_time=60),
        _line(3, 0, 7, 1, requested_time=0),
    )
    requested = read_log(path)
    assert requested.jobs.estimate.tolist() == [60, 60, 7]
    assert read_log(path, estimates="actual").jobs.estimate.tolist() == [5, 90, 7]
    counts = {finding.what: (finding.count, finding.first) for finding in requested.findings}
    assert counts["ran longer than they asked for"] == (1, f"{path}:4")
    assert counts["no requested time: schedulers see the run time"] == (1, f"{path}:5")


def test_jobs_that_never_ran_are_dropped_each_with_its_reason_and_first_line(
    tmp_path: Path,
) -> None:
    path = _log(
        tmp_path,
        _line(1, 0, 5, 1),
        _line(2, 1, -1, -1, status=5),
        _line(3, 1, 0, 2, status=5),
        _line(4, 2, -1, 2),
        _line(5, 2, 9, -1),
        _line(6, 2, 9, 0, requested_processors=0),
        _line(7, 3, 9, 2, status=2),
        _line(8, 4, 9, 2, status=5),
    )
    log = read_log(path)
    dropped = {f.what.partition(" of")[0]: (f.count, f.first) for f in log.findings if f.is_dropped}
    assert dropped == {
        "parts": (1, f"{path}:9"),
        "cancelled before they started": (2, f"{path}:4"),
        "no run time": (1, f"{path}:6"),
        "no processors": (2, f"{path}:7"),
    }
    assert (log.jobs.ids.tolist(), log.report.num_rows, log.report.num_jobs) == ([1, 8], 8, 2)
    assert f"2 dropped: no processors (first: {path}:7)" in log.report.notes


def test_jobs_cancelled_while_they_ran_can_be_dropped(tmp_path: Path) -> None:
    path = _log(tmp_path, _line(1, 0, 5, 1), _line(2, 1, 9, 2, status=5))
    kept = read_log(path)
    dropped = read_log(path, cancelled="drop")
    assert (kept.jobs.ids.tolist(), dropped.jobs.ids.tolist()) == ([1, 2], [1])
    found = [f for f in (*kept.findings, *dropped.findings) if "cancelled while" in f.what]
    assert [f.is_dropped for f in found] == [False, True]


def test_short_fractional_and_unsorted_jobs_are_mended_and_counted(tmp_path: Path) -> None:
    path = _log(
        tmp_path,
        _line(1, 10, 0, 1),
        _line(2, "20.6", "3.4", 1),
        _line(3, 5, 9, 1),
        _line(4, 6, "1e2", 1, status=9),
    )
    log = read_log(path)
    assert log.jobs.ids.tolist() == [3, 4, 1, 2]
    assert log.jobs.arrival.tolist() == [0, 1, 5, 16]
    assert log.jobs.duration.tolist() == [9, 100, 1, 3]
    assert {f.what: (f.count, f.first) for f in log.findings if "requested" not in f.what} == {
        "a status that the format does not have, taken as jobs that ran": (1, f"{path}:6"),
        "ran less than 1 s, taken as 1 s": (1, f"{path}:3"),
        "fractions of seconds, rounded": (1, f"{path}:4"),
        "submitted before a job listed above them, sorted": (2, f"{path}:5"),
    }


def test_fractions_of_requested_times_are_counted_where_schedulers_see_them(tmp_path: Path) -> None:
    path = _log(tmp_path, _line(1, 0, 5, 1, requested_time="9.5"), _line(2, 1, 5, 1))
    for estimates, counts in (("requested", [1]), ("actual", [])):
        found = read_log(path, estimates=estimates).findings
        assert [f.count for f in found if "frac" in f.what] == counts


def test_jobs_of_some_partitions_alone(tmp_path: Path) -> None:
    path = _log(tmp_path, *(_line(n, n, 5, 1, partition=n % 3) for n in range(6)))
    whole = read_log(path, partitions=(0, 2))
    assert "a header counts the processors of all partitions" in whole.report.notes[0]
    log = read_log(path, partitions=(0, 2), processors=4)
    assert log.report.notes[0] == "the cluster has 4 processors (given)"
    assert log.jobs.ids.tolist() == [0, 2, 3, 5]
    assert (log.findings[0].what, log.findings[0].count) == ("of other partitions", 2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (_line(2, 1, 5, 1).rsplit(" ", 1)[0], "17 fields, expected 18"),
        (_line(2, 1, 5, 1) + " -1", "19 fields, expected 18"),
        (_line(2, 1, "five", 1), r"field 4 \(run time\) is 'five', not a number"),
        (_line(2, "1-0", 5, 1), r"field 2 \(submit time\) is '1-0', not a number"),
        (_line(2, 1, "1e999", 1), r"field 4 \(run time\) is inf, which is out of range"),
        (_line(2, -7, 5, 1), r"field 2 \(submit time\) is -7: negative"),
        (_line(2, 1, 5, 1, wait_time=-3), r"field 3 \(wait time\) is -3: negative"),
        (_line(2, -1, 5, 1), r"field 2 \(submit time\) is missing"),
        (_line(2, 1, 5, 1.5), r"field 5 \(allocated processors\) is 1\.5, not a whole number"),
        (_line(2, 1, 5, 17), r"the job takes 17 .* has 16 \(MaxProcs of the header\): give the"),
    ],
)
def test_lines_that_cannot_be_refuse_the_log_or_are_counted(
    tmp_path: Path, line: str, message: str
) -> None:
    path = _log(tmp_path, _line(1, 0, 5, 1), line, _line(3, 2, 5, 16))
    with pytest.raises(FormatError, match=rf"1 of 3 rows could .*small\.swf:4: {message}"):
        read_log(path)
    tolerant = read_log(path, max_bad_share=0.34)
    assert tolerant.jobs.ids.tolist() == [1, 3]
    assert (tolerant.report.num_rows, tolerant.report.num_bad_rows) == (3, 1)
    assert tolerant.report.bad_samples[0].startswith(f"{path}:4: ")


def test_a_torn_log_keeps_its_complete_lines(tmp_path: Path) -> None:
    path = _log(tmp_path, _line(1, 0, 5, 1), _line(2, 1, 5, 1)[:9], end="")
    log = read_log(path)
    assert (log.jobs.ids.tolist(), log.report.num_rows, log.report.num_bad_rows) == ([1], 2, 1)
    assert log.report.bad_samples == (f"{path}:4: truncated: 4 fields, expected 18",)
    whole = read_log(_log(tmp_path, _line(1, 0, 5, 1), _line(2, 1, 5, 1), end=""))
    assert (whole.jobs.ids.tolist(), whole.report.num_bad_rows) == ([1, 2], 0)


def test_blank_lines_comments_between_jobs_and_other_line_ends_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "windows.swf"
    lines = (
        "; MaxProcs: 4",
        _line(1, 0, 5, 1),
        "",
        "  ; Note: caf\xe9",
        f"\t{_line(2, 1, 5, 1)}",
        "",
    )
    path.write_bytes("\r\n".join(lines).encode("latin-1"))
    log = read_log(path)
    assert (log.jobs.ids.tolist(), log.report.num_rows) == ([1, 2], 2)
    assert log.header.number("MaxProcs") == 4


def test_compressed_logs_are_read_and_torn_ones_refused(tmp_path: Path) -> None:
    packed = gzip.compress(_log(tmp_path, *(_line(n, n, 5, 1) for n in range(500))).read_bytes())
    path = tmp_path / "log.swf.gz"
    path.write_bytes(packed)
    assert (len(read_log(path).jobs), read_log(path).jobs.name) == (500, "log")
    for content in (packed[:-20], b"; no gzip data", packed[:40] + b"\xff" * 40 + packed[80:]):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=r"log\.swf\.gz: .* gzip data"):
            read_log(path)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "no job that ran; expected lines of 18 numbers"),
        ((_line(1, 0, -1, 1),), r"no job that ran; 1 dropped: no run time \(first: .*swf:3\)"),
        (("PK\x03\x04 zip",), "2 fields, expected 18"),
    ],
)
def test_files_without_jobs_are_refused(
    tmp_path: Path, lines: tuple[str, ...], message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        read_log(_log(tmp_path, *lines))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processors": 0}, "processors is 0"),
        ({"processors": 10**20}, f"processors is {10**20}; give a number from 1 to 9,007,199,"),
        ({"memory": -4}, "memory is -4"),
        ({"estimates": "true"}, "write requested or actual"),
        ({"cancelled": "no"}, "write keep or drop"),
        ({"max_bad_share": 2.0}, "between 0 and 1"),
    ],
)
def test_options_that_cannot_be_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_log(_log(tmp_path, _line(1, 0, 5, 1)), **options)


def test_the_log_of_an_academic_cluster_is_read_whole() -> None:
    log = read_log(shared_data("swf/DOST-ASTI_COARE-Saliksik-2020-cln.swf"))
    assert (len(log.jobs), log.jobs.capacity.tolist()) == (19_760, [1_728])
    assert log.jobs.span // 86_400 == 182
    assert {f.what: f.count for f in log.findings}["ran longer than they asked for"] == 1_375
    assert [f for f in log.findings if f.is_dropped] == []
    assert log.header.text("Installation") == "DOST-ASTI - COARE Saliksik Cluster"
    assert log.start_unix_s == 1_583_160_579
    first, second = log.jobs.halves()
    assert (len(first), len(second), int(second.arrival[0])) == (9_880, 9_880, 0)
    assert int(second.ids[0]) == int(log.jobs.ids[9_880])


def test_further_columns_and_a_line_of_names_are_noted(tmp_path: Path) -> None:
    plain = [_line(n, 10 * n, 60, 4, wait_time=5) for n in range(3)]
    wide = [f"{line} {{11,12}} q_1d" for line in plain]
    names = "id submit wait " + " ".join(f"c{n}" for n in range(17))
    log = read_log(_log(tmp_path, *wide))
    assert "2 further columns behind the 18th, left out" in log.report.notes
    assert log.jobs.waits.tolist() == [5, 5, 5]
    named = read_log(_log(tmp_path, names, *wide, header=""))
    assert (named.report.num_rows, named.jobs.capacity.tolist()) == (3, [4])
    assert "a line of column names" in named.report.notes[1]
    for part in (log.jobs, named.jobs):
        assert part.arrival.tolist() == read_log(_log(tmp_path, *plain)).jobs.arrival.tolist()


def test_a_list_of_preceding_jobs_is_taken_as_unknown(tmp_path: Path) -> None:
    path = _log(tmp_path, _line(1, 0, 5, 1), _line(2, 1, 5, 1, preceding_job="1&4"))
    log = read_log(path)
    assert "1 word in fields that are not read, taken as unknown" in log.report.notes
    assert log.jobs.ids.tolist() == [1, 2]


def test_partitions_are_named_by_the_header(tmp_path: Path) -> None:
    header = "; MaxProcs: 16\n; Partition: 0 gpu\n; Partition: 1 batch\n"
    path = _log(tmp_path, *(_line(n, n, 5, 1, partition=n % 2) for n in range(4)), header=header)
    assert read_log(path).partitions == {0: "gpu", 1: "batch"}
    assert read_log(path, partitions=["batch"], processors=8).jobs.ids.tolist() == [1, 3]
    assert read_log(path).jobs.partitions.tolist() == [0, 1, 0, 1]
    with pytest.raises(ConfigError, match="no partition 'fat'; known are gpu, batch"):
        read_log(path, partitions=["fat"])


_HEAD = "JobID|User|State|Submit|Start|End|Elapsed|Timelimit|NCPUS|NNodes|ReqMem|Partition\n"
_DAY = "2026-01-05T"
SACCT = f"""{_HEAD}\
101|u1|COMPLETED|{_DAY}10:00:00|{_DAY}10:00:05|{_DAY}10:10:05|00:10:00|01:00:00|4|1|16G|short
101.batch||COMPLETED|{_DAY}10:00:05|{_DAY}10:00:05|{_DAY}10:10:05|00:10:00||4|1||
101.0||COMPLETED|{_DAY}10:00:06|{_DAY}10:00:06|{_DAY}10:10:04|00:09:58||4|1||
102|u2|TIMEOUT|{_DAY}10:01:00|{_DAY}10:01:10|2026-01-06T11:01:10|1-01:00:00|1-00:00:00|8|2|4Gn|long
103_1|u1|COMPLETED|{_DAY}10:02:00|{_DAY}10:12:00|{_DAY}10:12:40|00:00:40|UNLIMITED|2|1|2Gc|short
103_[2-5]|u1|PENDING|{_DAY}10:02:00|Unknown|Unknown|00:00:00|UNLIMITED|2|1|4G|short
104|u3|CANCELLED by 1000|{_DAY}10:03:00|None|{_DAY}10:03:30|00:00:00|Partition_Limit|16|4|64G|long
105|u3|CANCELLED by 9|{_DAY}10:04:00|{_DAY}10:12:00|{_DAY}10:13:00|00:01:00|00:30:00|2|1|4G|short
106|u3|RUNNING|{_DAY}10:05:00|{_DAY}10:06:00|Unknown|00:01:00|00:30:00|2|1|4G|short
"""


def _read(folder: Path, text: str, **options: object) -> RigidJobs:
    path = folder / "jobs.txt"
    path.write_text(text)
    return read_log(path, **options).jobs  # type: ignore[arg-type]


def test_jobs_of_sacct_have_their_steps_arrays_states_and_limits(tmp_path: Path) -> None:
    jobs = _read(tmp_path, SACCT)
    assert jobs.ids.tolist() == [101, 102, 103, 105]
    assert jobs.arrival.tolist() == [0, 60, 120, 240]
    assert jobs.duration.tolist() == [600, 90_000, 40, 60]
    assert jobs.estimate.tolist() == [3_600, 86_400, 40, 1_800]
    assert jobs.demand[:, 0].tolist() == [4, 8, 2, 2]
    assert jobs.waits.tolist() == [5, 10, 600, 480]
    assert [jobs.user_names[user] for user in jobs.users] == ["u1", "u2", "u1", "u3"]
    # At 10:12 job 102 holds 8, and 103_1 and 105 hold 2 each.
    assert jobs.capacity.tolist() == [12]
    log = read_log(tmp_path / "jobs.txt", memory=20 << 30)
    assert log.jobs.demand[:, 1].tolist() == [16 << 20, 8 << 20, 4 << 20, 4 << 20]
    assert (log.report.num_rows, log.report.num_bad_rows) == (7, 0)
    assert "2 lines left out: steps of jobs" in log.report.notes
    assert {f.what: f.count for f in log.findings if f.is_dropped} == {
        "cancelled before they started": 1,
        "they still waited or ran": 2,
    }


def test_a_partition_is_chosen_by_its_name(tmp_path: Path) -> None:
    jobs = _read(tmp_path, SACCT, partitions=["short"])
    assert (jobs.ids.tolist(), jobs.capacity.tolist()) == ([101, 103, 105], [4])
    with pytest.raises(ConfigError, match="no partition 'lnog'; did you mean 'long'"):
        _read(tmp_path, SACCT, partitions=["lnog"])


PBS = """\
01/05/2026 10:00:00;Q;7.server;queue=batch
01/05/2026 10:10:05;E;7.server;user=ann queue=batch ctime=1767607200 qtime=1767607201 \
start=1767607205 end=1767607805 Resource_List.ncpus=4 Resource_List.walltime=01:00:00 \
Resource_List.mem=16gb Exit_status=0
01/05/2026 10:20:00;E;8[].server;user=bob queue=fat ctime=1767607260 Exit_status=0
01/05/2026 10:20:00;E;8[2].server;user=bob queue=fat ctime=1767607260 start=1767607805 \
end=1767608400 Resource_List.nodes=2:ppn=8+1 Resource_List.walltime=100:00:00 Exit_status=271
"""
LSF = """\
"JOB_FINISH" "10.1" 1767607805 7 501 33 4 1767607200 0 0 1767607205 "ann" "batch" "" "" ""
"EVENT_ADRSV_FINISH" "10.1" 1767607806 1 2
"JOB_FINISH" "10.1" 1767608400 8 502 33 17 1767607260 0 0 1767607805 "bob" "fat" "a ""b"" c" ""
"JOB_FINISH" "10.1" 1767608400 9 502 33 1 1767607270 0 0 0 "bob" "fat" "" ""
"""
TABLE = """\
id;user;queue;submit;start;end;slots;walltime
7;ann;batch;2026-01-05 10:00:00;2026-01-05T10:00:05Z;Jan  5 10:10:05 2026 L;4;01:00:00
8;bob;fat;01/05/2026 10:01:00;1767607805;1767608400;17;100:00:00
"""


@pytest.mark.parametrize("text", [PBS, LSF, TABLE], ids=["pbs", "lsf", "table"])
def test_other_batch_systems_give_the_same_jobs(tmp_path: Path, text: str) -> None:
    jobs = _read(tmp_path, text)
    assert jobs.ids.tolist() == [7, 8]
    assert (jobs.arrival.tolist(), jobs.waits.tolist()) == ([0, 60], [5, 545])
    assert (jobs.duration.tolist(), jobs.demand[:, 0].tolist()) == ([600, 595], [4, 17])
    assert (jobs.user_names, jobs.partitions.tolist()) == (("ann", "bob"), [0, 1])
    assert jobs.estimate.tolist() == ([600, 595] if text is LSF else [3_600, 360_000])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1|2026-01-05T10:00:00|2026-01-05T09:00:00|00:01|4", "started before it was submitted"),
        ("1|yesterday|2026-01-05T09:00:00|00:01|4", "submit is 'yesterday', which is not"),
        ("1|2026-01-05T10:00:00|2026-01-05T10:00:00|1 week|4", "elapsed is '1 week'"),
        ("1|Unknown|2026-01-05T10:00:00|00:01|4", "no time of submission"),
        ("1|2026-01-05T10:00:00|2026-01-05T10:00:00|00:01|4|x", "6 cells, but the header has 5"),
        ("1|2026-01-05T10:00:00|2026-01-05T10:00:00|00:01|1.5", "not a whole number"),
    ],
)
def test_rows_that_cannot_be_name_their_line_and_the_option(
    tmp_path: Path, line: str, message: str
) -> None:
    good = "9|2026-01-05T10:00:00|2026-01-05T10:00:00|00:01|4\n"
    text = f"JobID|Submit|Start|Elapsed|AllocCPUS\n{line}\n{good}"
    with pytest.raises(FormatError, match=rf"jobs\.txt:2: .*{message}.*\(--max-bad-share\)"):
        _read(tmp_path, text)
    assert _read(tmp_path, text, max_bad_share=0.5).ids.tolist() == [9]


def test_a_table_without_a_needed_column_names_it_and_how_to_export_it(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no column for processors .*alloccpus.*sacct -a -P -o"):
        _read(tmp_path, "JobID|Submit|Start|Elapsed\n1|1|2|3\n")
    with pytest.raises(FormatError, match=r"no column for .*submit.* export it with: sacct -a -P"):
        _read(tmp_path, "JobID    JobName  Submit\n-------- ------- ------\n101 a 5\n")
