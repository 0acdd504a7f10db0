"""Guessing what a file is, and errors that say what reads it."""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import zstandard

from parcae.workloads.archive import load_workload, write_workload
from parcae.workloads.readers import guess_format
from tests.cli.running import run
from tests.workloads.history_server_double import zipped
from tests.workloads.spark_log_builder import small_log

_SWF = "1 0 5 10 4 -1 -1 4 20 -1 1 1 1 -1 1 -1 -1 -1\n"
_TASKS = "M1,2,j_1,1,Terminated,100,110,100,0.5\n"
_DAGS = {"job_name": "a", "tasks": [{"task_name": "M1"}]}


def _rolling(path: Path) -> None:
    path.mkdir()
    (path / "events_1_app").write_bytes(small_log())


def _profiles(path: Path) -> None:
    (path / "2g").mkdir(parents=True)
    (path / "2g" / "adj_mat_1.npy").touch()


def _logs(path: Path) -> None:
    path.mkdir()
    (path / "app-1").write_bytes(small_log())


def _text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def _bytes(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _zip_of_profiles(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tpch/2g/adj_mat_1.npy", b"")


#: The format, a name, and what writes such a file or folder.
KINDS: list[tuple[str | None, str, Callable[[Path], object]]] = [
    ("spark-events", "log", _bytes(small_log())),
    ("spark-events", "log.zstd", _bytes(zstandard.compress(small_log()))),
    ("spark-events", "log.zip", _bytes(zipped("app-2016-0000", small_log()))),
    ("spark-events", "eventlog_v2_a", _rolling),
    ("spark-events", "logs", _logs),
    ("tpch-profiles", "profiles", _profiles),
    ("tpch-profiles", "profiles.zip", _zip_of_profiles),
    ("tpch-profiles", "p.json", _text('{"2g/q1": {"num_stages": 1}}')),
    ("tpch-profiles", "c.json", _text('{"tpch_q1_50g_maxCores_50": []}')),
    ("alibaba", "batch_task.csv", _text(_TASKS)),
    ("alibaba", "named.csv", _text("task_name,instance_num\n" + _TASKS)),
    ("alibaba", "dags.jsonl.gz", _bytes(gzip.compress(json.dumps(_DAGS).encode()))),
    ("csv", "s.csv", _text('Job;"stage";durations_s\n1;2;3\n')),
    ("json", "s.json", _text('[{"stage": 1, "tasks": 2, "job": 3}]')),
    ("parquet", "s.parquet", lambda path: pl.DataFrame({"a": [1]}).write_parquet(path)),
    ("swf", "log.swf", _text("; Version: 2\n" + _SWF)),
    ("swf", "head.swf", _text("; Version: 2\n")),
    ("job-sets", "sets.json", _text('{"sets": {"a": {"exec": 5}}}')),
    ("spark-world", "w.json", _text('{"format": "parcae spark world conformance 1"}')),
    ("parcae", "w.parcae", lambda path: write_workload(load_workload("toy"), path)),
    (None, "empty", _bytes(b"")),
    (None, "noise", _bytes(bytes(range(256)))),
    (None, "damaged.gz", _bytes(b"\x1f\x8b" + b"\x00" * 20)),
    (None, "damaged.zip", _bytes(b"PK\x03\x04" + b"\x00" * 20)),
    (None, "letter.txt", _text("Dear Sir, or Madam,\n")),
    (None, "other.json", _text('{"a": 1}')),
    (None, "pipe", os.mkfifo),
    (None, "empty-folder", lambda path: path.mkdir()),
    (None, "nothing", lambda _: None),
]


@pytest.mark.parametrize(("kind", "name", "make"), KINDS, ids=[name for _, name, _ in KINDS])
def test_the_first_bytes_say_what_a_file_is(
    tmp_path: Path, kind: str | None, name: str, make: Callable[[Path], object]
) -> None:
    make(tmp_path / name)
    guessed = guess_format(tmp_path / name)
    assert (guessed.format if guessed else None) == kind


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("workload import alibaba log -o x.parcae", "parcae workload import spark-events log"),
        ("workload import tpch-profiles t.csv -o x.parcae", "parcae workload import alibaba t.csv"),
        ("workload import spark-events t.csv -o x.parcae", "parcae workload import alibaba t.csv"),
        ("workload import csv log.swf -o x.parcae", "parcae simulate --world rigid --swf log.swf"),
        ("workload import parquet log -o x.parcae", "parcae workload import spark-events log"),
        ("workload import json t.csv -o x.parcae", "parcae workload import alibaba t.csv"),
        ("workload import json w.parcae -o x.parcae", "it looks like a workload file"),
        ("workload describe log", "parcae workload import spark-events log -o W.parcae"),
        ("workload describe logs", "logs is a folder, not a workload file; it looks like"),
        ("simulate t.csv", "parcae workload import alibaba t.csv -o W.parcae"),
        ("compare-logs t.csv log", "parcae workload import alibaba t.csv"),
        ("learn t.csv -o x.safetensors", "parcae workload import alibaba t.csv"),
        ("simulate --world rigid --swf log", "parcae workload import spark-events log"),
        ("simulate toy --world executors --job-set log", "import spark-events log"),
    ],
)
def test_a_command_that_does_not_know_a_file_says_what_does(
    tmp_path: Path, command: str, hint: str
) -> None:
    (tmp_path / "log").write_bytes(small_log())
    _logs(tmp_path / "logs")
    (tmp_path / "t.csv").write_text(_TASKS)
    (tmp_path / "log.swf").write_text("; Version: 2\n" + _SWF)
    write_workload(load_workload("toy"), tmp_path / "w.parcae")
    done = run(f"parcae {command}", tmp_path)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1), done.stderr
    assert hint in done.stderr
    assert done.stderr.count("it looks like") == 1
