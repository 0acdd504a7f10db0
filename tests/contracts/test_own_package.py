"""A stranger's package and a module of one's own at the command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

_OWN = REPOSITORY / "examples" / "own_package"
_MODULE = """
import numpy as np

from parcae.workloads.durations import TaskDurations
from parcae.workloads.import_report import ImportReport
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import Workload

NUMBER = 3


def oldest_first(view):
    return sorted(view.jobs, key=lambda job: -job.age_s)


class Newest:
    def plan(self, observation):
        from parcae.cluster.orders import first_come

        orders = first_come(observation)
        for tier, job in enumerate(reversed(observation.active_jobs)):
            orders.jobs.tier[job] = tier
        return orders


class NeedsArguments:
    def __init__(self, size):
        self.size = size


def median_jct(finished):
    return np.median(finished.jct_ms, axis=1)


def table(path, *, name, progress):
    stage = StageSpec(int(path.read_text()), TaskDurations.constant(1000), ())
    return Workload(name, (JobSpec("one", (stage,)),)), ImportReport(str(path), 1, 1, 0, (), (), 1)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a process that finds the package of the example."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    shutil.copytree(_OWN, source)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--no-index", "--target", folder / "site", source], check=True)
    path = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path.strip(os.pathsep)}


def _run(folder: Path, environment: Mapping[str, str] | None, command: str) -> tuple[int, str]:
    """The exit code of a command, and what it printed."""
    words = [sys.executable, "-m", "parcae.cli.main", *command.split()]
    # Python puts the current folder on the path of modules that `-m` runs; the command does not.
    safe = {**(environment or os.environ), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(words, cwd=folder, env=safe, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_an_installed_package_adds_a_policy_and_a_learner(
    installed: Mapping[str, str], tmp_path: Path
) -> None:
    code, output = _run(tmp_path, installed, "policies --json")
    assert (code, "aged[:WEIGHT]" in output) == (0, True), output
    train = "train toy --network aged --jobs 4 --iterations 2 -o training"
    code, output = _run(tmp_path, installed, train)
    assert code == 0, output
    names = "fair,aged,aged:0.5,training/best.safetensors"
    compare = f"compare toy --policies {names} --jobs 4 --seeds 2 --processes 2 --json out.json"
    code, output = _run(tmp_path, installed, compare)
    assert code == 0, output
    assert list(json.loads((tmp_path / "out.json").read_text())["policies"]) == names.split(",")
    code, output = _run(tmp_path, installed, "compare toy --policies aged:x")
    assert (code, "the weight is a number" in output) == (2, True), output
    code, output = _run(tmp_path, installed, train + "2 --device cpu")
    assert (code, "--device has no effect with --network aged" in output) == (2, True), output


def test_a_module_of_the_current_folder_is_named_at_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(_MODULE)
    compare = "compare toy --policies fair,mine:oldest_first,mine:Newest --jobs 4 --seeds 3"
    found = []
    for processes in (1, 2):
        words = f"{compare} --processes {processes} --json {processes}.json"
        code, output = _run(tmp_path, None, words)
        assert code == 0, output
        found.append(json.loads((tmp_path / f"{processes}.json").read_text())["policies"])
    assert list(found[0]) == ["fair", "mine:oldest_first", "mine:Newest"]
    assert found[0] == found[1]
    code, output = _run(tmp_path, None, "compare toy --policies mine:Newest+guard:1.5 --jobs 4")
    assert (code, "only a compiled policy can be guarded" in output) == (2, True), output
    tune = "tune toy --jobs 3 --budget 0.02 -o t.safetensors --objective mine:median_jct"
    code, output = _run(tmp_path, None, tune)
    assert code == 0, output

    (tmp_path / "t.txt").write_text("4")
    code, output = _run(tmp_path, None, "workload import mine:table t.txt -o t.parcae")
    assert (code, "1 job" in output) == (0, True), output


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("mine:NUMBER", "3 is no policy"),
        ("mine:Oldest", "there is no 'Oldest' in "),
        ("mine:NeedsArguments", "made without arguments"),
        ("nine:oldest_first", "there is no module 'nine' either"),
        ("broken:policy", "module 'broken' cannot be imported: ZeroDivisionError"),
    ],
)
def test_what_cannot_be_a_policy_is_refused_in_one_line(
    policy: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(_MODULE)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    code, output = _run(tmp_path, None, f"simulate toy --policy {policy}")
    assert code == 2
    assert message in output
    assert output.count("\n") == 1
