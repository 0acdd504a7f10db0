"""The demonstration, the fidelity study and the full circle, on a real Spark."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.spark.home import find_spark
from parcae.spark.launch import environment
from parcae.workloads.spark_log.run import read_spark_run
from tests.cli.running import ran
from tests.conftest import REPOSITORY
from tests.spark.java import build_plugin
from tests.spark.needs import needs_spark

_PARCAE = [sys.executable, "-m", "parcae.cli.main"]
#: The scripts that compare a real Spark are no part of the package.
_PATH = {"PYTHONPATH": f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"}
pytestmark = needs_spark


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return _python(folder, "parcae.cli.main", *words)


def _python(folder: Path, module: str, *words: str) -> subprocess.CompletedProcess[str]:
    options: Any = {"cwd": folder, "env": {**os.environ, **_PATH}, "timeout": 900}
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


_SMALL = ("--jobs", "10", "--cores", "16", "--time-scale", "0.2", "--arrivals", "poisson:100ms")
#: Tasks that sleep so long that the order of the jobs counts for more than what else the machine
#: does: with those of `_SMALL`, a policy was once slower than FAIR on a busy machine.
_LONGER = ("--jobs", "10", "--cores", "16", "--time-scale", "0.8", "--arrivals", "poisson:400ms")


@pytest.mark.slow
def test_the_demonstration_runs_every_policy_on_the_same_mixes_and_goes_on_where_it_was(
    tmp_path: Path,
) -> None:
    words = ("--json", "--seeds", "2", *_LONGER, "--policies", "fair,fifo,srpt", "--work", "w")
    done = _python(tmp_path, "benchmarks.spark.demo", *words)
    result: dict[str, Any] = json.loads(done.stdout)
    assert set(result["policies"]) == {"fair", "fifo", "srpt"}
    for policy in result["policies"].values():
        low, high = policy["average_jct_s"]["ci95"]
        assert low <= policy["average_jct_s"]["mean"] <= high
        assert policy["average_jct_s"]["mean"] == pytest.approx(
            np.mean(policy["average_jct_s_by_seed"])
        )
    assert result["policies"]["srpt"]["ratio_to_fair"]["mean"] < 1
    assert "parcae: on, srpt by" in _only(tmp_path / "w", "srpt-*.log").read_text()
    # The jar is there, since it holds the jobs; the plugin is not.
    stock = _only(tmp_path / "w", "fair-*.log").read_text()
    assert "parcae: " not in stock
    assert "ParcaePlugin" not in stock
    assert (tmp_path / "w" / "gantt.png").read_bytes().startswith(b"\x89PNG")
    for policy in ("fair", "srpt"):
        log = _only(tmp_path / "w", f"{policy}-*-events/*")
        for number, mix in enumerate(_mixes(tmp_path / "w")):
            run = read_spark_run([log], key=f"parcae.mix.{number}")
            names = sorted(job["name"] for job in mix["jobs"])
            assert sorted(job.name for job in run.jobs) == names
            stages = [stage for job in mix["jobs"] for stage in job["stages"]]
            assert run.num_tasks == sum(len(stage["sleep_ms"]) for stage in stages)
            spans = [(job.submission_ms, job.completion_ms) for job in run.jobs]
            together = [sum(a <= at < b for a, b in spans) for at, _ in spans]
            assert max(together) >= 5
    again = _python(tmp_path, "benchmarks.spark.demo", *words)
    assert again.stderr == ""  # nothing runs again
    assert json.loads(again.stdout) == result


def _only(work: Path, pattern: str) -> Path:
    """The only file in the work folder that matches."""
    (path,) = work.glob(pattern)
    return path


def _mixes(work: Path) -> list[dict[str, Any]]:
    files = (_only(work, f"{policy}-*-mixes.json") for policy in ("srpt", "fair"))
    mixes, others = (json.loads(file.read_text())["mixes"] for file in files)
    assert others == mixes
    return list(mixes)


@pytest.mark.slow
def test_the_simulator_is_close_to_real_spark(tmp_path: Path) -> None:
    words = "--json --alone 6 --seeds 1 --jobs 10 --work w --policies fifo,srpt"
    done = _python(tmp_path, "benchmarks.spark.fidelity", *words.split())
    result = json.loads(done.stdout)
    parts = result["parts"]
    assert list(parts) == ["alone", "shared, fifo", "shared, srpt"]
    assert parts["alone"]["num_jobs"] == 6
    for comparison in parts.values():
        errors = [abs(simulated - real) / real for _, simulated, real in comparison["jobs"]]
        assert comparison["mean_error"] == pytest.approx(np.mean(errors))
        assert comparison["p95_error"] == pytest.approx(np.percentile(errors, 95))
        # A machine that does other work is slower; the figure itself is for a quiet one.
        assert comparison["mean_error"] < 0.25
        assert comparison["num_jobs"] == 10 or comparison is parts["alone"]
    assert 0 <= result["costs_ms"]["task"] < 100
    assert (tmp_path / "w" / "fidelity.png").read_bytes().startswith(b"\x89PNG")


_LESS = {
    "examples/queries.py": f"{REPOSITORY}/examples/queries.py 400000",
    "local[4]": "local[2]",
    "/path/to/": "",
    "spark.demo --seeds 3": "spark.demo --seeds 1 --policies fair,srpt " + " ".join(_SMALL),
    "spark.fidelity --json": "spark.fidelity --json --alone 2 --seeds 1 --time-scale 0.2",
    "--cores 8,16,24 --time-scale 4 --seeds 8": "--cores 2,4 --time-scale 0.1 --seeds 2 --jobs 2 "
    "--policies srpt",
}


def _commands(folder: Path) -> Path:
    """A folder with the commands `parcae` and `python`."""
    (folder / "bin").mkdir()
    for name, command in (("parcae", _PARCAE), ("python", _PARCAE[:1])):
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        script.chmod(0o755)
    return folder / "bin"


@pytest.mark.slow
def test_every_command_of_the_document_runs_and_the_circle_closes(tmp_path: Path) -> None:
    """The commands run with smaller numbers.

    Among them are all steps of the full circle: event logs, a profile of them, a policy for it, the
    application under that policy, and the comparison of both logs.

    The script of TPC-H queries is run by the test of its own page.
    """
    page = (REPOSITORY / "docs" / "spark.md").read_text().splitlines()
    commands = [
        line.strip()
        for line in page
        if line.startswith(("    parcae ", "    python ", "    spark-submit ", "    mkdir "))
    ]
    commands = [command for command in commands if "spark.tpch" not in command]
    assert len(commands) >= 12
    (tmp_path / "event-logs").mkdir()
    log = REPOSITORY / "src" / "parcae" / "workloads" / "bundled" / "example-event-log.zstd"
    (tmp_path / "event-logs" / log.name).write_bytes(log.read_bytes())
    spark = find_spark()
    build_plugin(spark)
    path = f"{_commands(tmp_path)}:{spark.path / 'bin'}:{os.environ['PATH']}"
    env = {**environment(spark.path), "PATH": path, **_PATH}
    for command in commands:
        line = command
        for whole, less in _LESS.items():
            line = line.replace(whole, less)
        done = subprocess.run(
            line,
            shell=True,
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr[-3000:]}"
        if "queries.py" in command:
            assert "12 queries" in done.stdout
        if "spark.plugins" in command:
            assert "parcae: on, account by what is learned" in done.stderr
    words = "compare-logs before after --key spark.jobGroup.id --json"
    result = json.loads(_run(tmp_path, *words.split()).stdout)
    assert result["logs"]["A"]["num_jobs"] == result["logs"]["B"]["num_jobs"]
    assert result["logs"]["B"]["failed"] == result["logs"]["B"]["unfinished"] == 0
    assert result["ratio"]["pairs"] >= 12


def test_settings_are_printed_to_paste(tmp_path: Path) -> None:
    (jar,) = ran("parcae spark jar", tmp_path).stdout.split()
    lines = ran("parcae spark conf --service h:1", tmp_path).stdout.splitlines()
    assert lines[:2] == [
        f"--conf spark.driver.extraClassPath={jar}",
        "--conf spark.plugins=parcae.spark.ParcaePlugin",
    ]
    words = "--properties --policy p.json --key my.job"
    lines = ran(f"parcae spark conf {words}", tmp_path).stdout.splitlines()
    assert f"spark.parcae.policy {tmp_path}/p.json" in lines
    assert "spark.parcae.jobKey my.job" in lines


@pytest.fixture(scope="session")
def spark35(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Spark 3.5: that of PARCAE_SPARK35, or one from PyPI."""
    if home := os.environ.get("PARCAE_SPARK35"):
        build_plugin(find_spark(Path(home)))
        return Path(home)
    folder = tmp_path_factory.mktemp("spark35")
    words = f"-m pip install --quiet --no-deps --target {folder} pyspark==3.5.*"
    command = [sys.executable, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        pytest.skip(
            f"PySpark 3.5 could not be installed ({done.stderr.strip()[-200:]}); "
            "PARCAE_SPARK35 may name one"
        )
    build_plugin(find_spark(folder / "pyspark"))
    return folder / "pyspark"


@pytest.mark.slow
def test_a_spark_3_5_obeys_too(tmp_path: Path, spark35: Path) -> None:
    words = ("--json", "--seeds", "2", *_SMALL, "--policies", "fair,srpt", "--work", "w")
    done = _python(tmp_path, "benchmarks.spark.demo", *words, "--spark-home", str(spark35))
    result = json.loads(done.stdout)
    assert result["spark"].startswith("3.5.")
    assert "parcae: on, srpt by" in _only(tmp_path / "w", "srpt-*.log").read_text()
