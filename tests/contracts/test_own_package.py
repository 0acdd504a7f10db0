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


#: Runs the commands that are its arguments, one after the other, in one process.
_COMMANDS = """
import json, sys
from pathlib import Path
from tests.cli.running import run
if __name__ == "__main__":
    done = [run("parcae " + command, Path.cwd()) for command in sys.argv[1:]]
    print(json.dumps([[one.returncode, one.stdout + one.stderr] for one in done]))
"""


def _run(
    folder: Path, environment: Mapping[str, str] | None, *commands: str
) -> list[tuple[int, str]]:
    """The exit codes of commands, and what they printed."""
    # Python puts the script's folder on the path of modules; the command does not.
    safe = {**(environment or os.environ), "PYTHONSAFEPATH": "1"}
    path = [str(REPOSITORY), safe.get("PYTHONPATH", "")]
    safe["PYTHONPATH"] = os.pathsep.join(path).strip(os.pathsep)
    (folder / "commands.py").write_text(_COMMANDS)
    words = [sys.executable, "commands.py", *commands]
    done = subprocess.run(words, cwd=folder, env=safe, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [(code, output) for code, output in json.loads(done.stdout)]


def test_an_installed_package_adds_a_policy_and_a_learner(
    installed: Mapping[str, str], tmp_path: Path
) -> None:
    train = "train toy --network aged --jobs 4 --iterations 2 -o training"
    names = "fair,aged,aged:0.5,training/best.safetensors"
    listed, trained, compared, wrong, unused = _run(
        tmp_path,
        installed,
        "policies --json",
        train,
        f"compare toy --policies {names} --jobs 4 --seeds 2 --processes 1 --json out.json",
        "compare toy --policies aged:x",
        train + "2 --device cpu",
    )
    assert (listed[0], "aged[:WEIGHT]" in listed[1]) == (0, True), listed
    assert trained[0] == 0, trained
    assert compared[0] == 0, compared
    assert list(json.loads((tmp_path / "out.json").read_text())["policies"]) == names.split(",")
    assert (wrong[0], "the weight is a number" in wrong[1]) == (2, True), wrong
    said = "--device has no effect with --network aged"
    assert (unused[0], said in unused[1]) == (2, True), unused


def test_a_module_of_the_current_folder_is_named_at_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(_MODULE)
    (tmp_path / "t.txt").write_text("4")
    compare = "compare toy --policies fair,mine:oldest_first,mine:Newest --jobs 4 --seeds 2"
    one, two, guarded, tuned, read = _run(
        tmp_path,
        None,
        f"{compare} --processes 1 --json 1.json",
        f"{compare} --processes 2 --json 2.json",
        "compare toy --policies mine:Newest+account --jobs 4",
        "tune toy --jobs 3 --budget 0.01 -o t.safetensors --objective mine:median_jct",
        "workload import mine:table t.txt -o t.parcae",
    )
    assert (one[0], two[0], tuned[0]) == (0, 0, 0), (one, two, tuned)
    found = [json.loads((tmp_path / f"{n}.json").read_text())["policies"] for n in (1, 2)]
    assert list(found[0]) == ["fair", "mine:oldest_first", "mine:Newest"]
    assert found[0] == found[1]
    refused = "accounts need a compiled order by size"
    assert (guarded[0], refused in guarded[1]) == (2, True), guarded
    assert (read[0], "1 job" in read[1]) == (0, True), read


_NO_POLICIES = {
    "mine:NUMBER": "3 is no policy",
    "mine:Oldest": "there is no 'Oldest' in ",
    "mine:NeedsArguments": "made without arguments",
    "nine:oldest_first": "there is no module 'nine' either",
    "broken:policy": "module 'broken' cannot be imported: ZeroDivisionError",
}


def test_what_cannot_be_a_policy_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(_MODULE)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    commands = (f"simulate toy --policy {name}" for name in _NO_POLICIES)
    for (code, output), message in zip(
        _run(tmp_path, None, *commands), _NO_POLICIES.values(), strict=True
    ):
        assert code == 2
        assert message in output
        assert output.count("\n") == 1
