"""What long commands say in a log file, where there is no terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parcae.cli import progress
from parcae.workloads.archive import BUNDLED
from tests.cli.running import ran, run


@pytest.fixture
def _all_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is left out."""
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)


@pytest.mark.usefixtures("_all_lines")
def test_a_training_says_how_far_it_is(tmp_path: Path) -> None:
    command = (
        "parcae train toy --world executors --executors 4 --arrivals batch --jobs 3 "
        "--iterations 2 --budget 5 --set num_selection=2 --set select_every=1 -o training"
    )
    done = ran(command, tmp_path)
    lines = [line for line in done.stderr.splitlines() if "s left  iteration" in line]
    said = r" +\d+% +\d+ s left  iteration 1, best average-jct (\d+\.\d+) of fair, now (\d+\.\d+)"
    found = re.match(said, lines[0])
    assert found is not None
    # The best may be the policy that the training started from.
    assert float(found[1]) <= float(found[2])
    assert len(lines) == 2


@pytest.mark.usefixtures("_all_lines")
def test_a_comparison_says_how_many_runs_are_left(tmp_path: Path) -> None:
    done = ran("parcae compare toy --policies fair,fifo --jobs 3 --seeds 3 --cores 4", tmp_path)
    lines = re.findall(r"^simulating: (\d+)%(.*)$", done.stderr, re.MULTILINE)
    shares = [int(share) for share, _ in lines]
    assert shares == sorted(shares)
    assert lines[-1] == ("100", ", about 0 s left")


def test_lines_are_few(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s)
    with progress.counting("reading") as show:
        for now_s in range(200):
            show(now_s, 0)
    assert capsys.readouterr().err == "reading\n" * 3


def test_the_time_left_is_that_of_the_work_that_was_left_at_the_beginning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s)
    with progress.counting("simulating") as show:
        show(50, 100)
        now_s = 60.0
        show(70, 100)
    assert capsys.readouterr().err == "simulating: 70%, about 90 s left\n"


def test_a_study_says_what_it_does(tmp_path: Path) -> None:
    done = ran("parcae reproduce decima-fig16 -o rep", tmp_path)
    assert "comparing critical path, fair on 2 runs" in done.stderr.splitlines()


def test_a_search_for_orders_says_the_best_so_far_from_time_to_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "parcae bounds toy --jobs 3 --executors 2 --orders"
    few = run(command, tmp_path).stderr.splitlines()
    assert "" not in few
    assert "best order so far" not in "".join(few)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    assert "best order so far" in run(command, tmp_path).stderr


def test_two_logs_are_counted_each_and_no_line_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes((BUNDLED / "example-event-log.zstd").read_bytes())
    assert "" not in run("parcae compare-logs a b", tmp_path).stderr.splitlines()
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    lines = run("parcae compare-logs a b", tmp_path).stderr.splitlines()
    assert lines[-1].startswith("reading B: 100%")
    assert all(re.match("reading [AB]: ", line) for line in lines)
