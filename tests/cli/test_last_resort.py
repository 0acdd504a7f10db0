"""No command ends in a traceback, whatever it is given."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from parcae.base.errors import DivergedError
from parcae.cli import main as command_line
from tests.cli.running import refused, run


@pytest.mark.parametrize(
    "command",
    [
        "parcae simulate toy --jobs 2000000000",
        "parcae simulate toy --jobs 99999999999999999999",
        "parcae bounds toy --jobs 100000000000",
        "parcae simulate --world rigid --window 99999999999",
        "parcae simulate toy --policy srpt-cap:1e400",
        "parcae simulate toy --moving-delay-ms 9000000000000000000",
        "parcae compare toy --json missing/folder.json",
    ],
)
def test_bad_input_is_one_error(command: str, tmp_path: Path) -> None:
    refused(command, tmp_path)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ZeroDivisionError("x"), "PARCAE_TRACEBACK=1"),
        (MemoryError(), "memory"),
        (RecursionError(), "nested"),
    ],
)
def test_an_unexpected_error_is_one_line(
    error: Exception, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(command_line, "app", fail)
    done = run("parcae policies", tmp_path)
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_failed_outside_is_no_bug_of_parcae(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise DivergedError("Spark ended with status 1 (spark.log):\n" + "a line of its log " * 20)

    monkeypatch.setattr(command_line, "app", fail)
    done = run("parcae policies", tmp_path)
    assert done.returncode == 1
    said = " ".join(["parcae: Spark ended with status 1 (spark.log):", *["a line of its log"] * 20])
    assert done.stderr == f"{said}\n"


def test_a_current_folder_that_was_deleted_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    deleting = "import os; os.rmdir('../gone'); from parcae.cli.main import main; main()"
    words = [sys.executable, "-c", deleting, "compare", "toy"]
    done = subprocess.run(words, cwd=tmp_path / "gone", capture_output=True, text=True, check=False)
    said = "parcae: the current folder does not exist any more: change to another one\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_an_interrupted_command_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("parcae.cli.compare.compare_policies", interrupted)
    done = run("parcae compare toy --seeds 2", tmp_path)
    assert (done.returncode, done.stderr) == (130, "parcae: interrupted\n")
    (tmp_path / "kept").write_text("")
    done = run("parcae compare toy --seeds 2 --keep kept", tmp_path)
    assert done.returncode == 130
    assert done.stderr.splitlines() == [
        "the finished seeds are in kept; the same command goes on from there",
        "parcae: interrupted",
    ]


def test_a_terminated_command_says_so_and_ends_like_the_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminated(*args: object, **options: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("parcae.cli.compare.compare_policies", terminated)
    done = run("parcae compare toy --seeds 2", tmp_path)
    assert (done.returncode, done.stderr) == (143, "parcae: interrupted\n")


def _flipped(packed: bytes) -> bytes:
    """One bit of the compressed content is flipped, neither of the header nor of the checksum."""
    changed = bytearray(packed)
    changed[len(changed) // 2] ^= 0x10
    return bytes(changed)


_FILES = {
    "deep.json": b"[" * 5_000,
    "infinity.json": b'{"10g/q1": {"num_stages": Infinity}}',
    "long.json": b'{"10g/q1": ' + b"9" * 5_000 + b"}",
    "big.json": b'{"10g/q1": {"num_stages": 100000000000000000000}}',
    "torn.json.gz": gzip.compress(b'{"a": 1}' * 500)[:-20],
    "flipped.json.gz": _flipped(gzip.compress(Random(18).randbytes(500))),
}


@pytest.mark.parametrize("name", _FILES)
@pytest.mark.parametrize("format_name", ["tpch-profiles", "alibaba", "spark-events"])
def test_a_damaged_file_is_refused(name: str, format_name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(_FILES[name])
    done = run(f"parcae workload import {format_name} {name} -o out.parcae", tmp_path)
    assert done.returncode == 2, done.stderr


@pytest.mark.parametrize("format_name", ["alibaba", "spark-events", "tpch-profiles"])
def test_a_pipe_is_refused(format_name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    refused(f"parcae workload import {format_name} pipe.json -o out.parcae", tmp_path, "pipe")


def test_a_csv_field_that_is_too_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x" * 200_000 + ",1,2\n")
    refused("parcae workload import alibaba a.csv -o out.parcae", tmp_path, "not CSV")


def test_a_rolling_log_with_a_huge_number_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "eventlog_v2_a"
    folder.mkdir()
    (folder / "events_300000000_a").write_text("{}")
    refused(
        "parcae workload import spark-events eventlog_v2_a -o out.parcae",
        tmp_path,
        "does not begin like a Spark event log",
    )
