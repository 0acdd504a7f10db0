"""Accounting of batch systems as rigid jobs: sacct, PBS and Torque, LSF, tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from parcae.base.errors import ConfigError, FormatError
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.logs import read_log

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
