"""Tables are whole where the output is no terminal."""

import pytest

from parcae.cli.tables import description_tables, print_catalog, print_rows
from parcae.workloads.describe import describe_workload
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload


def test_a_catalogue_in_a_pipe_is_not_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    usage = "a-policy-with-a-long-name:" + "PARAMETER:" * 5
    print_catalog("title", [(usage, "what it does in many words " * 6, "a source")], False)
    assert usage in capsys.readouterr().out


def test_names_have_no_pictures(capsys: pytest.CaptureFixture[str]) -> None:
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
