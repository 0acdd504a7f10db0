"""`--deadlines` on the command line: what the tables and files say, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from parcae.workloads.synthetic import toy_workload
from tests.cli.running import ran, run

_RUNS = "--cores 4 --jobs 8 --arrivals poisson:2s"
_NAMES = [job.name for job in toy_workload().jobs]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file of deadlines for the first job of the toy workload, and a bad file.

    The job takes 2 s alone, so only some of its runs meet the deadline.
    """
    (tmp_path / "deadlines.csv").write_text(f"job,deadline\n{_NAMES[0]},2200ms\n")
    (tmp_path / "bad.csv").write_text("job,deadline\n*,soon\n")
    return tmp_path


def test_compare_shows_missed_deadlines_everywhere(folder: Path) -> None:
    files = "--json c.json --recurring r.csv --per-job j.csv --report r.html"
    done = ran(
        f"parcae compare toy --policies fair,edf {_RUNS} --seeds 3 --processes 1 "
        f"--deadlines deadlines.csv {files}",
        folder,
    )
    assert f"{len(_NAMES) - 1} of {len(_NAMES)} recurring jobs have no deadline" in done.stderr
    for heading in ("missed", "missed - first", "tardiness"):
        assert heading in done.stdout
    result = json.loads((folder / "c.json").read_text())
    assert result["settings"]["deadlines_s"] == {_NAMES[0]: 2.2}
    missed = {name: one["deadlines"] for name, one in result["policies"].items()}
    assert missed["fair"]["missed_minus_first"]["mean"] == 0.0
    shares = [missed[policy]["missed_share"]["mean"] for policy in ("edf", "fair")]
    assert 0 < shares[0] < shares[1] < 1
    _check_tables(folder, missed)
    page = (folder / "r.html").read_text()
    assert "edf misses the fewest deadlines" in page
    assert "missed<small>first policy</small>" in page


def test_a_report_shows_a_deadline_of_weeks_in_whole_seconds(tmp_path: Path) -> None:
    (tmp_path / "weeks.csv").write_text("job,deadline\n*,350.5h\n")
    ran(
        f"parcae compare toy --policies fair,edf {_RUNS} --seeds 2 --processes 1 "
        "--deadlines weeks.csv --report r.html",
        tmp_path,
    )
    assert "<td>1,261,800</td>" in (tmp_path / "r.html").read_text()


def _check_tables(folder: Path, missed: dict[str, dict[str, dict[str, float]]]) -> None:
    """The tables of jobs give the same share as the comparison."""
    jobs = pl.read_csv(folder / "j.csv")
    assert jobs.filter(pl.col("job") != _NAMES[0])["missed"].null_count() > 0
    recurring = pl.read_csv(folder / "r.csv").filter(pl.col("deadline_s").is_not_null())
    assert set(recurring["job"]) == {_NAMES[0]}
    for policy in ("fair", "edf"):
        share = missed[policy]["missed_share"]["mean"]
        own = jobs.filter((pl.col("policy") == policy) & pl.col("missed").is_not_null())
        assert own["missed"].mean() == pytest.approx(share)
        row = recurring.filter(pl.col("policy") == policy)
        assert row["missed_share"].item() == pytest.approx(share)
        assert row["tardiness_s"].item() == pytest.approx(missed[policy]["tardiness_s"]["mean"])


def test_without_deadlines_nothing_is_said_of_them(folder: Path) -> None:
    done = run(
        f"parcae compare toy --policies fair,srpt {_RUNS} --seeds 2 --processes 1 "
        "--json c.json --recurring r.csv",
        folder,
    )
    assert "missed" not in done.stdout
    result = json.loads((folder / "c.json").read_text())
    assert "deadlines" not in result["policies"]["fair"]
    assert "deadlines_s" not in result["settings"]
    assert "deadline_s" not in pl.read_csv(folder / "r.csv").columns


def test_simulate_counts_missed_deadlines(folder: Path) -> None:
    command = f"parcae simulate toy --policy fifo,edf {_RUNS} --deadlines deadlines.csv"
    done = run(command, folder)
    assert "deadlines missed" in done.stdout
    lines = [json.loads(line) for line in run(f"{command} --json", folder).stdout.splitlines()]
    assert [line["policy"] for line in lines] == ["fifo", "edf"]
    assert all(0 < line["deadlines"] <= 8 for line in lines)
    assert all(0 < line["missed_deadline_share"] < 1 for line in lines)


def test_size_finds_the_cores_that_meet_a_share_of_the_deadlines(folder: Path) -> None:
    done = ran(
        "parcae size toy --cores 1,64 --policies fair,edf --arrivals poisson:2s --jobs 6 "
        '--seeds 3 --processes 1 --deadlines deadlines.csv --target "deadlines 50%" '
        "--json s.json --csv s.csv --plot s.svg",
        folder,
    )
    assert re.search(r"┃ +met ┃", done.stdout)
    assert "Target deadlines 50% (mean over 3 runs)" in done.stdout
    shares = pl.read_csv(folder / "s.csv")["deadlines_met"].to_list()
    # The job has more than 2.2 s of work, and 64 cores are never all busy.
    assert shares == [0.0, 0.0, 1.0, 1.0]
    first = json.loads((folder / "s.json").read_text())["results"][0]
    assert first["deadlines_met"]["mean"] == shares[0]
