"""Tables have room in the terminal's width, and names are whole where there is none."""

from pathlib import Path

import pytest

from parcae.cli.tables import print_catalog, print_rows
from parcae.evaluation.described import description_tables
from parcae.workloads.describe import describe_workload
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload
from tests.cli.running import ran
from tests.workloads.spark_log_builder import small_log


def test_a_catalogue_in_a_pipe_is_not_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    usage = "a-policy-with-a-long-name:" + "PARAMETER:" * 5
    print_catalog("title", [(usage, "what it does in many words " * 6, "a source")], False)
    assert usage in capsys.readouterr().out


def test_names_have_no_pictures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    name = "plan:weighted-fair:-1:100:2"
    print_rows(name, ["policy"], [[name]])
    print_catalog(name, [(name, name, name)], False)
    assert capsys.readouterr().out.count(name) == 6


def test_names_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """An escape sequence in a job's name could clear the screen or change the window's title."""
    print_rows("title", ["job"], [["query \x1b]0;title\x07\x1b[2J\r1"]])
    printed = capsys.readouterr().out
    assert "query \ufffd]0;title\ufffd\ufffd[2J\ufffd1" in printed
    assert not any(character in printed for character in "\x1b\x07\r")


def test_times_below_a_second_are_described_with_two_digits() -> None:
    described = describe_workload(Workload("quick", (chain(2, 3, 4),)))
    facts, spread, jobs = description_tables(described)
    assert "0.024 s of one executor" in facts.columns[1].cells
    assert next(iter(spread.columns[1].cells)) == "0.024"
    assert [next(iter(column.cells)) for column in jobs.columns][4:] == ["0.024", "0.0080", "3.0"]


_FIGURES = {
    "compare toy --policies fair,weighted-fair:tuned --cores 2 --jobs 3 --seeds 2 --processes 1": (
        "average JCT", "ratio to first", "later", "worst", "p95 JCT", "p99 JCT", "makespan", "busy",
    ),
    "size toy --cores 1,2 --arrivals poisson:5s --jobs 3 --seeds 2 --processes 1 --price 100 "
    "--target 'p99 < 1h'": (
        "policy", "average", "p95", "p99", "busy", "load", "cost/h", "cost/job", "in time",
        "target",
    ),
    "workload check an-application-of-a-name-that-is-longer-than-a-quarter-of-the-line.json": (
        "queries", "replayed", "drawn", "constant cores", "without driver", "log s", "simulated s",
        "ratio", "driver", "why they differ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", _FIGURES)
def test_all_figures_have_room_in_80_columns(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no room beside the others follows in a further table, with the names again."""
    (tmp_path / command.split()[-1].strip("'")).write_bytes(small_log())
    shown = {}
    for columns in ("80", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        lines = ran(f"parcae {command}", tmp_path).stdout.splitlines()
        tables = [line for line in lines if line and line[0] in "┏┃┡│└"]
        assert max(map(len, tables)) <= int(columns)
        cells = [cell.strip() for line in tables for cell in line.strip("┃│").split("│")]
        shown[columns] = {cell for cell in cells if cell[:1].isdigit()}
        words = " ".join(tables).replace("┃", " ").split()
        assert {word for name in _FIGURES[command] for word in name.split()} <= set(words)
    assert shown["80"] == shown["300"] != set()


def test_a_table_that_is_too_wide_goes_on_with_the_names_of_its_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    print_rows("title", ("job", "first", "second", "third"), [("a", *["1234567"] * 3)], "below")
    printed = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in printed if "a" in line or "ir" in line] == [
        "┃ job ┃   first ┃  second ┃",
        "│ a   │ 1234567 │ 1234567 │",
        "┃ job ┃   third ┃",
        "│ a   │ 1234567 │",
    ]
    assert (printed[0].strip(), printed[-1]) == ("title", "below")
