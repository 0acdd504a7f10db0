"""`parcae compare` in this process: which jobs end later, and the file of all jobs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from parcae.base.errors import ConfigError, InputError
from parcae.cli.main import app
from parcae.workloads.archive import BUNDLED, write_workload
from parcae.workloads.synthetic import toy_workload

_COMMAND = "compare toy --policies fair,fifo --executors 2 --jobs 4 --seeds 3"


def test_the_table_and_the_files_say_who_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    options = ["--per-job", str(tmp_path / "jobs.parquet"), "--json", str(tmp_path / "c.json")]
    recurring = ["--recurring", str(tmp_path / "recurring.json")]
    done = CliRunner().invoke(app, [*_COMMAND.split(), *options, *recurring])
    assert done.exit_code == 0, done.output
    heading = next(line for line in done.output.splitlines() if "average JCT" in line)
    words = "policy|average JCT|ratio to first|later|worst|p95 JCT|p99 JCT|makespan|busy"
    # Even short times differ: they have a tenth of a second.
    cells = next(line for line in done.output.splitlines() if line.startswith("│ fifo"))
    assert re.search(r"(│ +\d+\.\d ){3}│ +\d+% │$", cells)
    places = [heading.index(word) for word in words.split("|")]
    assert places == sorted(places)
    assert "…" not in done.output
    fifo = json.loads((tmp_path / "c.json").read_text())["policies"]["fifo"]
    assert {row["policy"] for row in json.loads((tmp_path / "recurring.json").read_text())} == {
        "fair",
        "fifo",
    }
    jobs = pl.read_parquet(tmp_path / "jobs.parquet")
    assert jobs.height == 3 * 4 * 2
    ratio = jobs.filter(pl.col("policy") == "fifo")["ratio_to_first"]
    assert fifo["worst_ratio_to_first"] == ratio.max()
    assert fifo["later_than_first_share"]["mean"] == pytest.approx((ratio > 1.05).mean())
    assert fifo["later_than_first_by_10_percent_share"]["mean"] == pytest.approx(
        (ratio > 1.1).mean()
    )


def test_a_report_that_fails_loses_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: object, **kwargs: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("parcae.cli.compare.write_report", failing)
    files = ["--report", str(tmp_path / "r.html"), "--per-job", str(tmp_path / "jobs.csv")]
    done = CliRunner().invoke(app, [*_COMMAND.split(), *files])
    assert str(done.exception) == "no space left"
    assert pl.read_csv(tmp_path / "jobs.csv").height == 3 * 4 * 2


def test_a_picture_of_logs_that_fails_loses_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("parcae.cli.compare_logs.gantt", fail)
    log = str(BUNDLED / "example-event-log.zstd")
    picture = str(tmp_path / "gantt.png")
    done = CliRunner().invoke(app, ["compare-logs", log, log, "--plot", picture])
    assert str(done.exception) == "no space left"
    assert "By recurring job" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        "compare toy --cores 2 --jobs 2 --seeds 2 --policies",
        "compare --world rigid --load 0.5 --seeds 2 --policies",
        "bench decision --workload toy --policies",
        "bench simulator --workload toy --policy",
    ],
)
def test_no_policy_is_no_wish_for_the_default_ones(command: str) -> None:
    done = CliRunner().invoke(app, [*command.split(), ""])
    assert isinstance(done.exception, InputError), done.output


def test_learn_prints_its_warnings_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: object) -> None:
        raise ConfigError("stopped")

    monkeypatch.setattr("parcae.api.study._learn", stopped)
    write_workload(toy_workload(), tmp_path / "toy.parcae")
    options = [str(tmp_path / "toy.parcae"), "-o", str(tmp_path / "out"), "--arrivals", "load:2"]
    done = CliRunner().invoke(app, ["learn", *options])
    assert "warning: arrivals bring 2.00 times the work that 50 cores can do" in done.output
    assert str(done.exception) == "stopped"


def test_a_comparison_says_what_goes_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "c.json"
    faults = ["--faults", "failures=0.2,lost=60,restart=1,speculation=on"]
    done = CliRunner().invoke(app, [*_COMMAND.split(), *faults, "--json", str(path)])
    assert done.exit_code == 0, done.output
    assert "with faults: failures=0.2,lost=60,restart=1,speculation=on; " in done.output
    result = json.loads(path.read_text())
    assert result["settings"]["faults"] == faults[1]
    for policy in result["policies"].values():
        assert 0 < policy["wasted_share"] < 1
        assert policy["failed_attempts"] > 0
    plain = CliRunner().invoke(app, [*_COMMAND.split(), "--json", str(path)])
    assert "with faults" not in plain.output
    assert "wasted_share" not in json.loads(path.read_text())["policies"]["fair"]
