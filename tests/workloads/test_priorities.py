"""Files of priorities."""

from __future__ import annotations

from pathlib import Path

import pytest

from parcae.base.errors import ConfigError, FormatError
from parcae.workloads.tables import JobLine, JobTable, priorities_of, read_priorities


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
