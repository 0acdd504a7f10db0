"""Deadlines and priorities by the names of recurring jobs: files, errors, whose is whose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parcae.base.errors import ConfigError, FormatError, WorkloadError
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.describe import fingerprint
from parcae.workloads.tables import (
    JobLine,
    JobTable,
    deadline_notes,
    parse_deadline_ms,
    priorities_of,
    read_deadlines,
    read_priorities,
)
from parcae.workloads.workload import Workload
from tests.conftest import job


def _workload(*names: str) -> Workload:
    return Workload("some", tuple(job(name, (1, 1_000, ())) for name in names))


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "deadlines.csv"
    path.write_text(text)
    return path


def _notes(path: Path, workload: Workload) -> list[str]:
    deadlines = read_deadlines(path)
    return deadline_notes(workload.with_deadlines(deadlines).jobs, deadlines)


def _deadlines_of(workload: Workload) -> list[int | None]:
    return [job.deadline_ms for job in workload.jobs]


def test_the_first_line_that_matches_counts(tmp_path: Path) -> None:
    path = _file(tmp_path, 'job,deadline\n"a, b",90\netl-1,1.5h\netl-*,5m\n\n*,2500ms\n')
    workload = _workload("etl-1", "etl-2", "a, b", "other")
    assert _deadlines_of(workload.with_deadlines(path)) == [5_400_000, 300_000, 90_000, 2_500]
    assert _notes(path, workload) == []


def test_a_mapping_does_as_a_file_does() -> None:
    workload = _workload("etl-1", "other").with_deadlines({"etl-*": "5m", "o?her": 2.5})
    assert _deadlines_of(workload) == [300_000, 2_500]


def test_jobs_without_a_match_have_no_deadline_and_new_deadlines_replace_old_ones() -> None:
    workload = _workload("a", "b").with_deadlines({"*": 1}).with_deadlines({"b": 2})
    assert _deadlines_of(workload) == [None, 2_000]
    assert workload.has_deadlines
    assert not _workload("a").has_deadlines


def test_a_name_with_the_signs_of_a_pattern_matches_itself() -> None:
    assert _deadlines_of(_workload("q[1]").with_deadlines({"q[1]": 3})) == [3_000]


def test_a_table_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_bytes(b"\xef\xbb\xbfJob, Deadline\r\na, 1 min\r\n")
    assert _deadlines_of(_workload("a").with_deadlines(path)) == [60_000]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ":1: the first line is not `job,deadline`"),
        ("name;deadline\n", ":1: the first line is not `job,deadline`"),
        ("job,deadline\n", "no deadline below the first line"),
        ("job,deadline\na,5m\nb,soon\n", ":3: deadline 'soon' is not understood: write a time"),
        ("job,deadline\na,999999h\n", "at most 8760h"),
        ("job,deadline\na,b,5m\n", ":2: 3 cells instead of 2; put a name with a comma"),
        ("job,deadline\n,5m\n", ":2: the name of the job is empty"),
        ('job,deadline\n"a,5m\n', "not a CSV table"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FormatError) as refused:
        read_deadlines(_file(tmp_path, text))
    assert said in str(refused.value)
    assert "deadlines.csv" in str(refused.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="not UTF-8 text"):
        read_deadlines(path)
    with pytest.raises(FileNotFoundError):
        read_deadlines(tmp_path / "none.csv")


@pytest.mark.parametrize(
    "value", ["", "5 weeks", "2y", "0s", "-5", "0.0001ms", float("nan"), float("inf"), -1]
)
def test_what_is_no_deadline_is_refused(value: float | str) -> None:
    with pytest.raises(ConfigError, match="not understood: write a time after the job's arrival"):
        parse_deadline_ms(value)


def test_names_that_match_nothing_are_reported(tmp_path: Path) -> None:
    path = _file(tmp_path, "job,deadline\netl-1,5m\netl*,6m\netl-1,7m\nreprot,1h\n")
    notes = _notes(path, _workload("etl-1", "etl-2", "report"))
    assert [note.removeprefix(str(path)) for note in notes] == [
        ":4: every job that 'etl-1' matches has its deadline from an earlier line; move this line "
        "up, or remove it",
        ":5: 'reprot' matches no job of the workload; did you mean 'report'?",
        ": 1 of 3 recurring jobs have no deadline: report",
    ]


def test_deadlines_of_no_job_are_refused(tmp_path: Path) -> None:
    path = _file(tmp_path, "job,deadline\nx,5m\n")
    with pytest.raises(ConfigError, match=r"no deadline matches a job of workload 'some'.* a, b"):
        _workload("a", "b").with_deadlines(path)
    with pytest.raises(ConfigError, match="there are no deadlines"):
        _workload("a").with_deadlines({})


def test_a_deadline_is_a_goal_and_no_property_of_the_workload(tmp_path: Path) -> None:
    plain = _workload("a")
    with_goal = plain.with_deadlines({"a": 1})
    assert fingerprint(with_goal) == fingerprint(plain)
    write_workload(with_goal, tmp_path / "w.parcae")
    assert not read_workload(tmp_path / "w.parcae").has_deadlines
    with pytest.raises(WorkloadError, match="must be above 0"):
        replace(plain.jobs[0], deadline_ms=0)


def test_a_deadline_that_no_cluster_can_meet_is_reported(tmp_path: Path) -> None:
    path = _file(tmp_path, "job,deadline\na,0.999\nb,1\n")
    (note,) = _notes(path, _workload("a", "b"))
    assert note.endswith(
        "no cluster is large enough for the deadlines of a: their longest path of stages takes "
        "longer, at mean durations"
    )


def test_many_lines_and_names_take_no_time_and_few_notes(tmp_path: Path) -> None:
    lines = "".join(f"job-{row},{row + 1}\n" for row in range(20_000))
    path = _file(tmp_path, f"job,deadline\njob-7*,1h\n{lines}*,2h\n")
    workload = _workload(*(f"job-{row}" for row in range(0, 20_000, 10)))
    due = {job.name: job.deadline_ms for job in workload.with_deadlines(path).jobs}
    assert due["job-70"] == 3_600_000
    assert due["job-600"] == 601_000
    notes = _notes(path, workload)
    assert len(notes) == 7
    assert notes[-1].endswith("more lines are no job's deadline")


def _table(*lines: JobLine[int]) -> JobTable[int]:
    return JobTable(lines, "p.csv")


def test_the_first_pattern_that_matches_applies(tmp_path: Path) -> None:
    path = tmp_path / "priorities.csv"
    path.write_bytes(b'\xef\xbb\xbfjob, priority\r\ndash*,10\r\n\r\n"nightly, big",-5\r\n*,1\r\n')
    priorities = read_priorities(path)
    assert priorities_of(priorities, ["dash-1", "nightly, big", "Dash"]) == (10, -5, 1)


def test_other_jobs_have_priority_0() -> None:
    assert priorities_of(_table(JobLine("a", 3, "p.csv:2")), ["b", "a"]) == (0, 3)


def test_a_pattern_without_a_job_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"p\.csv:2: no job is called 'dahs\*'; jobs are dash-1"):
        priorities_of(_table(JobLine("dahs*", 3, "p.csv:2")), ["dash-1"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("job,priority\na,high\n", ":2: priority 'high'"),
        ("job,priority\na,1.5\n", ":2:"),
        ("job,priority\na,1\nb,99999999999999\n", ":3:"),
        ("job,priority\na,3000000000\n", ":2:"),
        ("job,priority\n" + "a" * 200_000 + ",1\n", "not a CSV table"),
    ],
)
def test_what_is_no_file_of_priorities_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "priorities.csv"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        read_priorities(path)
