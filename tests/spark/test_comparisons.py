"""Tests of `parcae spark demo` and `fidelity`, with the simulator in Spark's place."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parcae
from parcae.base.errors import ConfigError, PolicyError
from parcae.policies.checkpoint import write_checkpoint
from parcae.policies.learned import order_rule_checkpoint
from parcae.policies.rule.policy import search_start
from parcae.spark import demo, fidelity
from parcae.spark.applications import ReplayRequest
from parcae.spark.demo import DemoConfig, DemoResult, run_demo
from parcae.spark.fidelity import FidelityConfig, FidelityResult, run_fidelity
from parcae.spark.home import SparkHome
from parcae.spark.mixes import ReplayedMix
from parcae.workloads.archive import write_workload
from parcae.workloads.job import Workload
from tests.cli.running import run
from tests.conftest import job

_WORKLOAD = Workload("w", (job("a", (20, 300, ()), (4, 500, (0,))), job("b", (6, 200, ()))))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ReplayRequest]:
    """The applications that ran on a Spark on which every job takes a second."""
    requests: list[ReplayRequest] = []

    def replay(request: ReplayRequest, mixes: Sequence[dict[str, Any]]) -> list[ReplayedMix]:
        requests.append(request)
        request.event_logs.mkdir(exist_ok=True)
        (request.event_logs / "log").write_text(f"{request.name}, run {len(requests)}")
        counts = [len(mix["jobs"]) for mix in mixes]
        return [ReplayedMix(np.zeros(count), np.full(count, 1_000.0)) for count in counts]

    monkeypatch.setattr(demo, "replay", replay)
    monkeypatch.setattr(fidelity, "replay", replay)
    write_workload(_WORKLOAD, tmp_path / "w.parcae")
    return requests


def _fidelity(tmp_path: Path, *policies: str) -> FidelityResult:
    config = FidelityConfig(str(tmp_path / "w.parcae"), policies, 4, 3, "batch", 2, 1000, 1.0)
    home = SparkHome(tmp_path, "4.3.0", "2.13")
    return run_fidelity(config, home, Path("p.jar"), tmp_path / "work", list[str]().append)


def test_the_simulator_plays_the_policies_that_the_plugin_plans_by(
    runs: list[ReplayRequest], tmp_path: Path
) -> None:
    policies = ("fair", "tuned", "srpt+guard:1.1")
    result = _fidelity(tmp_path, *policies)
    assert tuple(result.shared) == policies
    assert len(runs) == 2 + len(policies)  # the calibration, and the jobs that run alone


@pytest.mark.parametrize("policies", [("fair", "stpr"), ("fair", "psbs"), ()])
def test_a_policy_that_cannot_be_compared_is_refused_before_spark_runs(
    runs: list[ReplayRequest], tmp_path: Path, policies: tuple[str, ...]
) -> None:
    with pytest.raises((ConfigError, PolicyError)):
        _fidelity(tmp_path, *policies)
    assert not runs


def test_arrivals_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ConfigError, match="arrivals 'often' are not understood"):
        FidelityConfig(arrivals="often")


def test_a_time_scale_is_a_number_that_durations_can_have(tmp_path: Path) -> None:
    for scale in ("inf", "nan", "0"):
        done = run(f"parcae spark demo --time-scale {scale}", tmp_path)
        assert done.returncode == 2
        assert "--time-scale" in done.stderr


def _demo(tmp_path: Path, *policies: str, version: str = "4.3.0", jobs: int = 3) -> DemoResult:
    workload = str(tmp_path / "w.parcae")
    config = DemoConfig(("spark-fair", *policies), workload, jobs, 4, "batch", 2)
    home = SparkHome(tmp_path, version, "2.13")
    return run_demo(config, home, Path("p.jar"), tmp_path / "work", list[str]().append)


@pytest.mark.parametrize("policy", ["stpr", "service:stpr"])
def test_the_demonstration_refuses_a_policy_before_spark_runs(
    runs: list[ReplayRequest], tmp_path: Path, policy: str
) -> None:
    with pytest.raises(PolicyError, match="policy 'stpr'"):
        _demo(tmp_path, policy)
    assert not runs


def test_results_of_other_mixes_or_another_spark_are_kept_apart(
    runs: list[ReplayRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They and their event logs have other names, so the charts show the mixes of the table."""
    drawn: list[str] = []

    def charts_of(logs: Sequence[Path], key: str) -> str:
        drawn.append(logs[0].read_text())
        return key

    monkeypatch.setattr(demo, "read_spark_run", charts_of)
    monkeypatch.setattr(demo, "gantt", lambda charts, picture, title: None)
    first = _demo(tmp_path, "srpt")
    assert len(runs) == 2
    _demo(tmp_path, "srpt", jobs=5)
    _demo(tmp_path, "srpt", version="4.0.5")
    assert len(runs) == 6
    assert _demo(tmp_path, "srpt").to_json() == first.to_json()
    assert len(runs) == 6
    assert drawn[-2:] == drawn[:2]
    assert len({*drawn}) == 6


def test_a_policy_whose_event_log_was_deleted_runs_again(
    runs: list[ReplayRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The picture is drawn from the event log."""
    monkeypatch.setattr(demo, "read_spark_run", lambda logs, key: logs[0].read_text())
    monkeypatch.setattr(demo, "gantt", lambda charts, picture, title: None)
    _demo(tmp_path, "srpt")
    shutil.rmtree(runs[1].event_logs)
    _demo(tmp_path, "srpt")
    assert [request.name for request in runs] == [runs[0].name, runs[1].name, runs[1].name]


def _checkpoint(folder: Path) -> Path:
    """A copy of the shipped rule of the world of cores in a folder of its own."""
    copy = folder / "own" / "rule.safetensors"
    copy.parent.mkdir()
    shutil.copy(Path(parcae.__file__).parent / "policies/shipped/tuned-cores.safetensors", copy)
    return copy


def test_a_checkpoint_that_changed_runs_again(
    runs: list[ReplayRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_draw", lambda *_: tmp_path)
    checkpoint = _checkpoint(tmp_path)
    for _ in range(2):
        _demo(tmp_path, str(checkpoint))
        assert len(runs) == 2
    write_checkpoint(order_rule_checkpoint(search_start(), {}), checkpoint)
    for _ in range(2):
        _demo(tmp_path, str(checkpoint))
        assert len(runs) == 3


def test_the_files_of_a_checkpoint_in_another_folder_are_in_the_work_folder(
    runs: list[ReplayRequest], tmp_path: Path
) -> None:
    checkpoint = _checkpoint(tmp_path)
    _fidelity(tmp_path, "fair", str(checkpoint))
    assert [*checkpoint.parent.iterdir()] == [checkpoint]
