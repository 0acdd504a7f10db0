"""A command's paths, outputs and signals where they are not as they should be."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.running import refused, run
from tests.workloads.spark_log_builder import small_log

PARCAE = (sys.executable, "-m", "parcae.cli.main")
NEEDS_FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this needs /dev/full")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("compare-logs '' log", "A"),
        ("compare-logs log ''", "B"),
        ("compare-logs log log --plot ''", "--plot"),
        ("workload import spark-events '' -o w.parcae", "PATHS"),
        ("workload import spark-events log '' -o w.parcae", "PATHS"),
        ("workload import spark-events log -o ''", "--output"),
        ("workload describe ''", "NAME|FILE"),
        ("size '' --cores 2", "LOGS|WORKLOAD"),
        ("size log --cores 2 --csv ''", "--csv"),
        ("learn '' -o learned", "LOGS"),
        ("learn log -o ''", "--output"),
        ("simulate '' --policy fair", "NAME|FILE"),
        ("simulate toy --deadlines ''", "--deadlines"),
    ],
)
def test_an_empty_path_is_refused(tmp_path: Path, command: str, name: str) -> None:
    (tmp_path / "log").write_bytes(small_log())
    done = refused(f"parcae {command}", tmp_path, "is empty, perhaps an unset variable")
    assert name in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_no_file_is_named_like_a_stream(tmp_path: Path) -> None:
    command = "parcae size toy --cores 2 --arrivals poisson:5s --jobs 2 --seeds 2 --processes 1"
    refused(f"{command} --csv -", tmp_path, "--csv -: no stream has this name", "/dev/stdout")
    assert not any(tmp_path.iterdir())


def test_a_command_that_fails_leaves_no_new_folder(tmp_path: Path) -> None:
    def fail(*args: object, **options: object) -> None:
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "kept" / "of").mkdir(parents=True, exist_ok=True)
        (tmp_path / "kept" / "file").write_text("")
        raise OSError(5, "the disk is broken", "disk")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parcae.cli.learn.read_logs", fail)
        (tmp_path / "log").write_bytes(small_log())
        assert run("parcae learn log -o a/b", tmp_path).returncode == 2
        assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "log"]
        assert run("parcae learn log -o kept/of", tmp_path).returncode == 2
        assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["file", "of"]


@NEEDS_FULL
@pytest.mark.parametrize(
    ("words", "stream"),
    [
        ("policies --json", "standard output"),
        ("--version", "standard output"),
        ("size toy --cores 2 --arrivals batch --seeds 2 --jobs 2 --csv /dev/full", "/dev/full"),
    ],
)
def test_a_full_output_is_named(tmp_path: Path, words: str, stream: str) -> None:
    out = "/dev/full" if stream == "standard output" else str(tmp_path / "out")
    with Path(out).open("wb") as full:
        done = subprocess.run(
            [*PARCAE, *shlex.split(words)],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    last = done.stderr.splitlines()
    assert (done.returncode, last) == (2, [f"parcae: {stream}: No space left on device"])


@pytest.mark.parametrize("columns", ["1000000000", "9" * 5_000, "0", "-3", "wide"])
def test_a_width_that_no_terminal_has_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    done = run("parcae policies", tmp_path)
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) < 1_000


_PROCESS = """
import hashlib, threading, time
from parcae.cli import process
process._GRACE_S = {grace_s}
process.end_on_sigterm()
# While the work goes on.
threading.Timer(0.3, print, ["ready"], {{"flush": True}}).start()
try:
    {work}
finally:
    print("cleaning", flush=True)
    time.sleep({cleaning_s})
    print("cleaned", flush=True)
"""
#: As the compilation of a function: one call of C for minutes, without a step of Python.
_COMPILING = "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"


def _process(
    work: str, grace_s: float, cleaning_s: float, before: str = ""
) -> subprocess.Popen[str]:
    """A process that works and has got SIGTERM."""
    code = before + _PROCESS.format(work=work, grace_s=grace_s, cleaning_s=cleaning_s)
    words = [sys.executable, "-c", code]
    begun = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert begun.stdout is not None
    assert begun.stdout.readline() == "ready\n"
    begun.send_signal(signal.SIGTERM)
    return begun


@pytest.mark.parametrize(("grace_s", "left"), [(60.0, "cleaned\n"), (0.5, "")])
def test_a_second_sigterm_ends_the_cleaning_up_only_after_a_while(
    grace_s: float, left: str
) -> None:
    cleaning_s = 0.3 if left else 60.0
    with _process("time.sleep(60)", grace_s, cleaning_s) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "cleaning\n"
        if not left:
            time.sleep(grace_s)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == left
        assert process.wait(60) == 143


_HELD = """
import threading, time
from numba.core.compiler_lock import global_compiler_lock

@global_compiler_lock
def compiling():
    time.sleep(60)

threading.Thread(target=compiling).start()
"""


def test_sigterm_ends_a_command_that_waits_for_threads_which_compile() -> None:
    with _process("time.sleep(60)", 0.5, 60.0, _HELD) as process:
        assert process.communicate(timeout=50) == ("cleaning\n", "parcae: interrupted\n")
        assert process.wait(60) == 143


def test_sigterm_ends_a_process_that_is_in_no_step_of_python() -> None:
    with _process(_COMPILING, 0.1, 0.0) as process:
        assert process.communicate(timeout=60) == ("", "parcae: interrupted\n")
        assert process.wait(60) == 143
