"""Calls of the command line, made from the commands' own options, each in a process of its own.

Run as a program, this module imports Parcae once and then forks for every call: a fork of a warm
interpreter takes milliseconds, a new interpreter seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from tests.workloads.spark_log_builder import small_log

#: Commands that start Spark, measure for hours, or build jars: only their options are tried, with
#: `--help` beside them or without what they need.
_HEAVY = ("spark submit", "bench training", "bench service", "bench rigid")
#: A valid, quick call of each command; generated options come behind it.
_BASES = {
    "simulate": "toy --jobs 3 --cores 4",
    "size": "toy --cores 2,4 --jobs 3 --arrivals poisson:5s --seeds 2 --processes 1",
    "compare": "toy --jobs 3 --cores 4 --seeds 2 --processes 1 --policies fifo,fair",
    "judge": "fifo toy --jobs 3 --cores 4 --seeds 2",
    "compare-logs": "log log",
    "forecast": "log",
    "explain": "srpt log",
    "consolidate": "log",
    "learn": "log -o learned --budget 0.01 --jobs 2 --seeds 2",
    "reproduce": "no-such-study",
    "tune": "toy -o t.safetensors --budget 0.01 --jobs 2 --cores 4",
    "train": "toy -o trained --budget 0.01 --iterations 1 --jobs 2 --cores 4",
    "serve": "--port 0 --admin-port 0 --for 0.1 --cores 4",
    "replay": "missing.jsonl --workload toy",
    "export": "srpt toy -o p.json",
    "bounds": "toy --jobs 3 --cores 4",
    "workload describe": "toy",
    "workload sample": "toy -o s.parcae --jobs 2",
    "workload prepare": "toy -o s.parcae --most-cpu 1",
    "bench simulator": "--workload toy --jobs 2 --runs 1",
    "bench decision": "--workload toy --decisions 10 --policies fair",
    "spark conf": "--service localhost:1",
    "spark jar": "",
    "spark doctor": "",
    "train --world rigid": "set -o trained --load 1 --budget 0.01 --iterations 1 --window 10",
    "tune --world rigid": "withhold --load 1 -o t.safetensors --budget 0.01 --window 10 "
    "--generations 1",
    "simulate --world rigid": "--load 1 --window 10",
    "compare --world rigid": "--load 1 --window 10 --seeds 2 --policies sjf,packer",
    "workload describe --world rigid": "--swf log.swf",
    "workload import spark-events": "log -o w.parcae",
    "workload import csv": "s.csv -o w.parcae",
    "workload import alibaba": "batch_task.csv -o w.parcae",
    "workload import tpch-profiles": "tpch.json -o w.parcae",
    "workload import queries": "q.csv -o w.parcae",
    "workload import json": "s.json -o w.parcae",
    "workload import parquet": "s.csv -o w.parcae",
    "workload import spark-history": "http://127.0.0.1:9 -o w.parcae",
}
#: Values that are wrong for most options. No valid number is large: it would be obeyed for hours.
_VALUES = (
    *("-1", "0", "1", "2", "0.5", "nan", "inf", "-inf", "1e400", "-1e400", "99999999999999999999"),
    *("-99999999999999999999", "9" * 5_000, "", " ", "ünï", "a,b,,c", ",", ":", "x:y", "\ud800"),
    *("missing.file", "missing/folder.json", "pipe", "folder", "/dev/null", "/dev/zero", "/proc"),
    *("log", "out.json", "toy", "fair", "fifo,fair", "cores", "executors", "batch", "poisson:nan"),
    *(
        "load:1e9",
        "poisson:-1s",
        "tuned",
        "srpt-cap:1e400",
        "fair+account:nan",
        "a=b",
        "all",
        "tpch",
    ),
    *("1x1x1", "4xnanx1", "best", "average < 1e999s", "first", "mean", "{}", "[" * 3_000, "../x"),
)
#: A call may take this long on a busy machine (compiling kernels included).
MOST_SECONDS = 120


def commands() -> dict[str, list[Any]]:
    """The options and arguments of every command, by its words."""
    import typer

    from parcae.cli.main import app

    found: dict[str, list[Any]] = {}

    def walk(command: Any, words: tuple[str, ...]) -> None:
        if hasattr(command, "list_commands"):
            for name in command.list_commands(None):
                walk(command.get_command(None, name), (*words, name))
        else:
            found[" ".join(words)] = command.params

    walk(typer.main.get_command(app), ())
    return found


def generated(number: int, params_of: dict[str, list[Any]]) -> list[str]:
    """The words of call `number`."""
    random = Random(f"call {number}")
    name = random.choice(sorted(params_of))
    # A folder of a training is used once.
    base = _BASES.get(name, "").replace("trained", f"trained-{number}")
    words = [*name.split(), *base.split()]
    options = [param for param in params_of[name] if param.opts[0].startswith("-")]
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        if not options:
            break
        option = random.choice(options)
        words.append(random.choice(option.opts))
        if not getattr(option, "is_flag", False) or random.random() < 0.05:
            words.append(random.choice(_VALUES))
    if random.random() < 0.1:
        words.insert(random.randrange(1, len(words) + 1), random.choice(_VALUES))
    # These would start Spark, or measure for minutes, if their options were valid.
    return [*words, "--no-such-option"] if name in _HEAVY else words


def prepare(folder: Path) -> None:
    """The files that calls may name. No library with threads is used: forks would hang."""
    (folder / "log").write_bytes(small_log(runs=2))
    (folder / "log.swf").write_text("; MaxProcs: 8\n1 0 5 9 4 -1 -1 4 20 -1 1 1 1 1 1 1 -1 -1\n")
    (folder / "s.csv").write_text("job,name,stage,parents,tasks,durations_ms\nr,r,s,,2,5;6\n")
    (folder / "q.csv").write_text("arrival_s,duration_s,cpu_s,user\n0,2,5,a\n")
    (folder / "s.json").write_text(
        '[{"job": "r", "stage": "s", "parents": [], "tasks": 2, "durations_ms": [5, 6]}]'
    )
    (folder / "batch_task.csv").write_text("M1,2,j_1,1,Terminated,100,110,100,0.5\n")
    stage = {wave: {"5": [9]} for wave in ("fresh_durations", "first_wave", "rest_wave")}
    query = {"num_stages": 1, "edges": [], "task_durations_ms": {"0": stage}}
    (folder / "tpch.json").write_text(json.dumps({"2g/q1": query}))
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")


def call(words: list[str], folder: Path) -> dict[str, Any]:
    """Call Parcae in a fork: exit status (negative: the signal), error output, seconds."""
    said = folder / "stderr.txt"
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        _become(words, folder, said)
    status = _waited(child, begin)
    return {
        "words": words,
        "status": os.waitstatus_to_exitcode(status),
        "stderr": said.read_text(errors="replace"),
        "seconds": time.monotonic() - begin,
    }


def _waited(child: int, begin: float) -> int:
    """The status of a child, which is killed if it takes too long."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() - begin > MOST_SECONDS:
            os.killpg(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1]
        time.sleep(0.005)


def _become(words: list[str], folder: Path, said: Path) -> None:
    """In the child: run the command and end."""
    status = 99
    try:
        os.setsid()
        os.chdir(folder)
        for stream, path in ((0, "/dev/null"), (1, "/dev/null"), (2, said)):
            flags = os.O_RDONLY if stream == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(path, flags, 0o644), stream)
        sys.argv = ["parcae", *words]
        from parcae.cli.main import main

        main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def main(first: int, count: int, folder: Path) -> None:
    """Make calls, and print what became of each as a line of JSON."""
    prepare(folder)
    params_of = commands()
    for number in range(first, first + count):
        result = call(generated(number, params_of), folder)
        print(json.dumps({"number": number, **result}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
