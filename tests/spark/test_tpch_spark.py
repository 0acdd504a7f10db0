"""The script of TPC-H queries on a real Spark, at a tiny scale factor."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.spark.tables import missing_tools

from tests.conftest import REPOSITORY
from tests.spark.needs import needs_spark

_SCRIPT = (sys.executable, "-m", "benchmarks.spark.tpch")
_SMALL = ["--scale-factor", "0.01", "--queries", "4", "--gap", "0.3"]
_LESS = [*_SMALL, "--cores", "2", "--memory", "1g"]
_QUICK = ["--warm-rounds", "0", "--profile-rounds", "1", "--calibration-runs", "1", "--no-foretell"]

pytestmark = [
    pytest.mark.slow,
    needs_spark,
    pytest.mark.skipif(
        bool(missing_tools()) or shutil.which("javac") is None,
        reason="needs pip install -r benchmarks/spark/requirements.txt and a JDK",
    ),
]


def _run(work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*_SCRIPT, *_LESS, *_QUICK, "--work", str(work), *arguments]
    options: Any = {"cwd": REPOSITORY, "capture_output": True, "text": True, "timeout": 300}
    return subprocess.run(command, check=False, **options)


def test_policies_are_run_and_compared_and_nothing_is_run_twice(tmp_path: Path) -> None:
    work = tmp_path / "work"
    result_file = tmp_path / "tpch.json"
    choice = ["--seeds", "1", "--repeats", "0", "--policies", "fifo,fair,srpt"]
    arguments = (*choice, "--json", str(result_file))
    done = _run(work, *arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads(result_file.read_text())["policies"]
    assert list(found) == ["fair", "fifo", "srpt"]
    for policy in found.values():
        assert policy["seeds"] == [1000]
        assert policy["num_wrong"] == 0
        assert policy["average_s"]["mean"] > 0
        assert policy["driver_cpu_s"]["mean"] > 0
        assert 0 < policy["makespan_busy_share"]["mean"] <= 1
    assert found["srpt"]["known_share"]["mean"] == 1.0  # plans have the same names in every run
    record = json.loads((work / "runs" / "seed-1000-srpt.json").read_text())
    assert any("parcae: on, srpt by" in line for line in record["plugin_lines"])
    assert (work / "ratios.png").stat().st_size > 1_000
    before = {path: path.stat().st_mtime_ns for path in sorted((work / "runs").iterdir())}
    assert _run(work, *arguments).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in sorted((work / "runs").iterdir())} == before


def test_the_commands_of_the_document_run_and_merge(tmp_path: Path) -> None:
    """On fewer cores, with fewer and smaller queries, and one seed where the page has several."""
    page = (REPOSITORY / "docs" / "spark-tpch.md").read_text().splitlines()
    starts = ("    python -m benchmarks.spark.tpch", "    taskset", "    cp ")
    lines = [line.strip() for line in page if line.startswith(starts)]
    assert len(lines) == 6
    for line in lines:
        command = re.sub(r"^taskset -c \S+ ", "", line)
        if command.startswith("python"):
            own = [*_LESS, *_QUICK[:-1], *(["--seeds", "1"] if "--seeds 0" not in command else [])]
            words = [*_SCRIPT, *command.split()[3:], *(own if "--merge" not in command else [])]
        else:
            words = command.split()
        path = f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"
        options: Any = {"capture_output": True, "text": True, "timeout": 600}
        options["env"] = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(words, cwd=tmp_path, check=False, **options)
        assert done.returncode == 0, f"{line}\n{done.stderr[-3000:]}"
        assert ("making the profile" in done.stderr) == ("--seeds" in line and "-start" not in line)
    found = json.loads((tmp_path / "tpch.json").read_text())["policies"]
    assert found["srpt"]["seeds"] == [1000, 1004]
    assert found["srpt"]["foretold_ratio"]["mean"] > 0
    assert list(found) == ["fair", "fair again", "fifo", "srpt"]
