"""`parcae spark tpch` on a real Spark, at a tiny scale factor."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parcae.workloads.tpch_tools import PACKAGES, missing_tools
from tests.spark.needs import needs_spark

_LESS = ("--scale-factor", "0.01", "--queries", "4", "--cores", "2", "--gap", "0.3", "--memory", "1g")
_QUICK = ("--warm-rounds", "0", "--profile-rounds", "1", "--calibration-runs", "1", "--no-foretell")

pytestmark = [
    pytest.mark.slow,
    needs_spark,
    pytest.mark.skipif(
        bool(missing_tools(PACKAGES)) or shutil.which("javac") is None,
        reason="needs pip install 'parcae[measure]' and a JDK",
    ),
]


def _run(work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "parcae.cli.main", "spark", "tpch", *_LESS, *_QUICK, "--work", str(work), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_policies_are_run_and_compared_and_nothing_is_run_twice(tmp_path: Path) -> None:
    work, told = tmp_path / "work", tmp_path / "tpch.json"
    arguments = ("--seeds", "1", "--repeats", "0", "--policies", "fifo,fair,srpt", "--json", str(told))
    done = _run(work, *arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads(told.read_text())["policies"]
    assert list(found) == ["fair", "fifo", "srpt"]
    for policy in found.values():
        assert policy["seeds"] == [1000]
        assert policy["num_wrong"] == 0
        assert policy["average_s"]["mean"] > 0
        assert policy["driver_cpu_s"]["mean"] > 0
        assert 0 < policy["makespan_busy_share"]["mean"] <= 1
    assert found["srpt"]["known_share"] == 1.0  # the plans are named as in the profile, run after run
    record = json.loads((work / "runs" / "seed-1000-srpt.json").read_text())
    assert any("parcae: on, srpt by" in line for line in record["plugin_lines"])
    assert (work / "ratios.png").stat().st_size > 1_000
    before = {path: path.stat().st_mtime_ns for path in sorted((work / "runs").iterdir())}
    assert _run(work, *arguments).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in sorted((work / "runs").iterdir())} == before


def test_what_is_measured_elsewhere_is_merged_and_simulated(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert _run(one, "--seeds", "0").returncode == 0
    shutil.copytree(one, other)
    for work, seed in ((one, "1000"), (other, "1001")):
        done = _run(work, "--seeds", "1", "--seed-start", seed, "--policies", "fair,srpt", "--foretell")
        assert done.returncode == 0, done.stderr
        assert "making the profile" not in done.stderr
    merged = _run(tmp_path / "none", "--merge", str(one), "--merge", str(other), "--json", str(tmp_path / "x.json"))
    assert merged.returncode == 0, merged.stderr
    found = json.loads((tmp_path / "x.json").read_text())["policies"]
    assert found["srpt"]["seeds"] == [1000, 1001]
    assert found["srpt"]["foretold_ratio"]["mean"] > 0
    assert list(found) == ["fair", "fair again", "srpt"]
