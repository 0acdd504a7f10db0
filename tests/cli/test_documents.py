"""Every command in the documents runs."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from parcae.workloads.archive import BUNDLED
from tests.cli.packing_files import write_packing_files
from tests.cli.running import run
from tests.conftest import REPOSITORY, shared_data
from tests.fuzzing.commands import commands
from tests.spark.needs import needs_spark


def _documented() -> list[str]:
    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    lines = [line.strip() for page in pages for line in page.read_text().splitlines()]
    return sorted(
        {line.split("   #")[0].strip() for line in lines if re.match("parcae [a-z]", line)}
    )


#: Three jobs of Alibaba's trace, each of two stages.
_TRACE = "".join(
    f"M1,2,j_{at},1,Terminated,{at},{at + 10},100,0.5\n"
    f"R2_1,3,j_{at},1,Terminated,{at + 10},{at + 30},50,1\n"
    for at in (100, 200, 300)
)
#: An instance of each of its tasks.
_INSTANCES = "".join(
    f"i,{task},j_{at},1,Terminated,{at},{at + 5},m_1,1,1,50,90,0.1,0.2\n"
    for at in (100, 200, 300)
    for task in ("M1", "R2_1")
)


#: A policy of one's own: Spark's FIFO.
_MODULE = """
from parcae import first_come


class MyPolicy:
    name = "mine"

    def plan(self, observation):
        return first_come(observation)
"""


#: A network of one's own.
NETWORK = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.score = torch.nn.Linear(6, 1)

    def forward(self, seen):
        return self.score(seen.jobs).squeeze(2)
"""


@pytest.fixture(scope="module")
def user_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the documents' commands name."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "event-logs").mkdir()
    log = BUNDLED / "example-event-log.zstd"
    for copy in (folder / "event-logs" / log.name, folder / "before.zstd", folder / "after.zstd"):
        copy.write_bytes(log.read_bytes())
    (folder / "batch_task.csv").write_text(_TRACE)
    (folder / "batch_instance.csv").write_text(_INSTANCES)
    _write_stages(folder)
    _write_tenants(folder)
    _write_deadlines(folder)
    sets = {"sets": {"a": {"exec": 5, "jobs": [[1, "2g", 0], [9, "2g", 400]]}}}
    (folder / "sets.json").write_text(json.dumps(sets))
    job_set = {
        "name": "a",
        "cores": 2,
        "jobs": [{"arrival_ms": 0, "task_ms": [[5, 6], [7]], "edges": [[0, 1]]}],
    }
    world = {"format": "parcae spark world conformance 1", "sets": [job_set]}
    (folder / "spark-world.json").write_text(json.dumps(world))
    write_packing_files(folder)
    (folder / "mymodule.py").write_text(_MODULE)
    (folder / "mynetwork.py").write_text(NETWORK)
    return folder


def _write_stages(folder: Path) -> None:
    """The table of stages of the document, and the same in the other formats."""
    page = (REPOSITORY / "docs" / "workloads.md").read_text()
    (table,) = re.findall(r"```\n(job,name,stage.*?)```", page, re.DOTALL)
    (folder / "stages.csv").write_text(table)
    (queries,) = re.findall(r"```\n(arrival,user.*?)```", page, re.DOTALL)
    (folder / "queries.csv").write_text(queries)
    rows = list(csv.DictReader(table.splitlines()))
    (folder / "stages.json").write_text(json.dumps(rows))
    pl.DataFrame(rows).write_parquet(folder / "stages.parquet")


def _write_tenants(folder: Path) -> None:
    """The files of pools and priorities that the document shows."""
    page = (REPOSITORY / "docs" / "tenants.md").read_text()
    (pools,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    (priorities,) = re.findall(r"```csv\n(.*?)```", page, re.DOTALL)
    (folder / "tenants.json").write_text(pools)
    (folder / "priorities.csv").write_text(priorities)


def _write_deadlines(folder: Path) -> None:
    """The table of deadlines of the document."""
    page = (REPOSITORY / "docs" / "deadlines.md").read_text()
    (table,) = re.findall(r"```\n(job,deadline.*?)```", page, re.DOTALL)
    (folder / "deadlines.csv").write_text(table)


#: Commands that learn, measure or run studies take minutes if nothing is compiled yet. Commands
#: that read the files which these write must run after them.
_LONG = re.compile(r"parcae (learn|train|tune|bench|reproduce) |[\w/]\.safetensors")


def test_every_documented_option_exists() -> None:
    flags = {
        name: {flag for param in params for flag in param.opts}
        for name, params in commands().items()
    }
    for command in _documented():
        own = re.split(r" -- | \| ", command.removeprefix("parcae "))[0]
        name = max((name for name in flags if _begins(own, name)), key=len, default="")
        unknown = set(re.findall(r"(?<=\s)--?[a-z][\w-]*", own)) - flags.get(name, set())
        assert name, command
        assert unknown <= {"--world"}, command


def _begins(command: str, name: str) -> bool:
    """Whether a command line is one of the command of this name, such as "tune --world rigid"."""
    verb, _, world = name.partition(" --world ")
    return command.startswith(verb) and (not world or f"--world {world}" in command)


def test_short_commands_in_the_documents_run_if_no_other_test_names_their_options(
    user_folder: Path,
) -> None:
    own = Path(__file__)
    others = "".join(path.read_text() for path in own.parent.glob("*.py") if path != own)
    named = set(re.findall(r"--[\w-]+", others))
    short = [command for command in _runnable() if not _LONG.search(command)]
    rare = [command for command in short if set(re.findall(r"--[\w-]+", command)) - named]
    assert rare
    _run_all(rare, user_folder)


@pytest.mark.slow
def test_every_command_in_the_documents_runs(user_folder: Path) -> None:
    every = _runnable()
    assert sum(_LONG.search(command) is not None for command in every) >= 12
    _run_all(every, user_folder)


def test_no_benchmark_has_the_name_of_a_library() -> None:
    # Python looks for imports in the script's folder first.
    names = {path.stem for path in (REPOSITORY / "benchmarks").glob("*.py")}
    assert [name for name in sorted(names) if importlib.util.find_spec(name)] == []


@pytest.mark.slow
@needs_spark
def test_the_documented_benchmark_of_the_plugin_runs(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "spark-where.md").read_text()
    (command,) = re.findall(r"^ +python (benchmarks/\S+ .*)$", page, re.MULTILINE)
    smaller = (("tasks", 500), ("task-ms", 1), ("cores", 2), ("pairs", 1))
    for option, number in smaller:
        command, count = re.subn(rf"--{option} \d+", f"--{option} {number}", command)
        assert count == 1, option
    script, *words = command.split()
    done = subprocess.run(
        [sys.executable, REPOSITORY / script, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "throughput with the plugin / without: " in done.stdout


def _runnable() -> list[str]:
    """The commands that run here. Other tests run those that need Spark or its History Server."""
    return [
        c
        for c in _documented()
        if not re.search("parcae spark|spark-history|circle|before after", c)
    ]


def _run_all(documented: list[str], user_folder: Path) -> None:
    """Run the commands in an order in which each finds the files that it reads."""
    profiles = shared_data("tpch-decima/tpch_profiles.json.gz")
    (user_folder / profiles.name).write_bytes(profiles.read_bytes())
    (user_folder / "secret").write_text("a secret that is hard to guess\n")
    first = (
        "import",
        "workload prepare",
        "tune --world rigid",
        "train --world rigid",
        "parcae tune",
        "parcae train",
        "parcae learn",
        "parcae serve",
    )
    for command in sorted(
        documented, key=lambda c: (min([i for i, w in enumerate(first) if w in c], default=9), c)
    ):
        done = run(_made_small(command), user_folder)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


#: What makes the documents' commands small: (commands, pattern, replacement).
_SMALLER = (
    ("", r"/path/to/event-logs", "event-logs"),
    ("learn(?!.*--budget)", r"$", " --budget 1"),
    ("", r"--(tune-)?budget \S+", r"--\1budget 0.02"),  # minutes
    ("compare", r"--seeds \d+", "--seeds 2"),
    ("compare", r"--jobs \d+", "--jobs 5"),
    ("bounds", r"--jobs \d+", "--jobs 4"),
    ("size", r"$", " --jobs 5 --seeds 2 --processes 1"),
    ("learn|train|tune", r"--executors \d+", "--executors 8"),
    ("learn|train|tune", r"(--|\b)jobs([ =])\d+", r"\1jobs\g<2>4"),
    ("bench decision", r"$", " --decisions 30"),
    ("bench training", r"$", " --iterations 1"),
    ("bench service", r"$", " --jobs 3 --runs 1"),
    ("reproduce decima-fig11", r"$", " --executors 8 --jobs 2 --runs 2 --budget 0.02"),
    ("reproduce decima-fig20", r"$", " --executors 8 --jobs 2"),
    # Only a recording, which a later command replays, needs the time to see a job.
    ("serve.*--record", r"--for \S+", "--for 3"),
    ("serve(?!.*--record)", r"--for \S+", "--for 0.2"),
    ("serve", r"$", " --port 0 --admin-port 0"),
)


def _made_small(command: str) -> str:
    """The command with fewer runs, jobs and minutes; all else is as in the document."""
    for these, pattern, replacement in _SMALLER:
        if re.match(f"parcae ({these})", command):
            command = re.sub(pattern, replacement, command, count=0 if pattern != "$" else 1)
    return command
