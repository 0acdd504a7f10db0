"""`parcae size` held against Spark, with the simulator in Spark's place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.base.errors import ConfigError, PolicyError
from parcae.policies.checkpoint import write_checkpoint
from parcae.policies.learned import order_rule_checkpoint
from parcae.policies.orders.catalog import make_cores_policy
from parcae.policies.rule.policy import search_start
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.spark.fidelity import ClusterCosts, FidelityConfig, MeasuredCluster
from parcae.spark.home import SparkHome
from parcae.spark.sizing_fidelity import SizingFidelity, run_sizing_fidelity, sleeping_mixes
from parcae.spark.sizing_fidelity_page import page_text, rows
from parcae.workloads.archive import load_workload, write_workload
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec, Workload
from tests.cli.running import run
from tests.conftest import job

#: Every stage has one duration, so that Spark's place can be taken by the simulator exactly.
_WORKLOAD = Workload(
    "w", (job("a", (20, 300, ()), (4, 500, (0,))), job("b", (6, 200, ())), job("c", (30, 100, ())))
)
_CONFIG = FidelityConfig("w", ("fifo", "srpt"), 2, 6, "load:0.7", 3, 1000, 1.0)


class _Spark:
    """Replays mixes in the simulator; every job takes `factor` times as long."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.runs: list[str] = []

    def replay(
        self, name: str, policy: str, _: Workload, mixes: list[dict[str, Any]], cores: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        self.runs.append(name)
        return [self._replayed(policy, mix, cores) for mix in mixes]

    def _replayed(
        self, policy: str, mix: dict[str, Any], cores: int
    ) -> tuple[np.ndarray, np.ndarray]:
        specs = tuple(_job(one) for one in mix["jobs"])
        arrival_ms = np.array([one["arrival_ms"] for one in mix["jobs"]], np.int64)
        workload = Workload("mix", specs)
        config = SimulationConfig(world=WorldName.CORES, num_executors=cores)
        name = "srpt" if policy.endswith(".safetensors") else policy
        planner = make_cores_policy(name, workload, config)
        sequence = JobSequence(workload, np.arange(len(specs)), arrival_ms)
        trace = simulate(sequence, planner, config, 0)
        took = trace.completion_ms - arrival_ms
        return arrival_ms.astype(float), arrival_ms + self.factor * took


def _job(one: dict[str, Any]) -> JobSpec:
    stages = []
    for stage in one["stages"]:
        sleeps = stage["sleep_ms"]
        durations = TaskDurations.of(np.array(sleeps[:1], np.int64))
        stages.append(StageSpec(len(sleeps), durations, tuple(stage["parents"])))
    return JobSpec(one["name"], tuple(stages))


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Spark:
    """A Spark on which jobs take exactly as long as in the simulator."""
    fake = _Spark(1.0)
    monkeypatch.setattr(MeasuredCluster, "replay", lambda _, *arguments: fake.replay(*arguments))
    no_costs = ClusterCosts(0.0, 0.0, 0.0)
    monkeypatch.setattr(MeasuredCluster, "costs", lambda _, workload: no_costs)
    write_workload(_WORKLOAD, tmp_path / "w.parcae")
    return fake


def _held(
    tmp_path: Path, version: str = "4.3.0", work: str = "work", **changes: Any
) -> SizingFidelity:
    config = replace(_CONFIG, workload=str(tmp_path / "w.parcae"), **changes)
    home = SparkHome(tmp_path, version, "2.13")
    silent = list[str]().append
    return run_sizing_fidelity(config, (2, 4), home, Path("p.jar"), tmp_path / work, silent)


def test_what_cannot_be_compared_is_refused_before_costs_are_measured(
    spark: _Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object) -> ClusterCosts:
        raise AssertionError("costs were measured")

    monkeypatch.setattr(MeasuredCluster, "costs", measured)
    with pytest.raises(ConfigError, match="give --seeds 2 or more"):
        _held(tmp_path, seeds=1)
    with pytest.raises(ConfigError, match="no recorded arrivals"):
        _held(tmp_path, arrivals="recorded")


def test_a_spark_like_the_simulator_has_no_error(spark: _Spark, tmp_path: Path) -> None:
    result = _held(tmp_path)
    places = [(error.predicted.cores, error.predicted.policy) for error in result.errors]
    assert places == [(2, "fifo"), (2, "srpt"), (4, "fifo"), (4, "srpt")]
    for error in result.errors:
        assert error.average_error.mean == pytest.approx(0, abs=1e-12)
        assert error.p95_error.mean == pytest.approx(0, abs=1e-12)
        assert error.job_error.mean == 0
        assert error.real_average_s.mean == pytest.approx(error.predicted.average_s.mean)
    assert result.load(2) == pytest.approx(0.7, rel=1e-3)
    assert result.load(4) == pytest.approx(0.35, rel=1e-3)


def test_errors_are_relative_to_spark_and_stand_on_the_page(spark: _Spark, tmp_path: Path) -> None:
    spark.factor = 1.25
    result = _held(tmp_path)
    for error in result.errors:
        assert error.average_error.mean == pytest.approx(-0.2)
        assert error.average_error.high == pytest.approx(-0.2)
        assert error.job_error.mean == pytest.approx(0.2)
    page = page_text(result, "parcae spark fidelity")
    assert page.count("-20.0% [-20.0%, -20.0%]") == 8
    assert "largest error of an average is -20.0% (" in page
    assert json.loads(json.dumps(result.to_json()))["errors"][0]["predicted"]["cores"] == 2


def test_a_batch_has_a_row_and_no_load(spark: _Spark, tmp_path: Path) -> None:
    result = _held(tmp_path, arrivals="batch")
    assert [row[0] for row in rows(result)] == ["2, batch", "2, batch", "4, batch", "4, batch"]


def test_recorded_arrivals_have_their_mean_load(spark: _Spark, tmp_path: Path) -> None:
    jobs = [replace(job, arrival_ms=4_000 * row) for row, job in enumerate(_WORKLOAD.jobs)]
    recorded = replace(_WORKLOAD, jobs=tuple(jobs))
    write_workload(recorded, tmp_path / "w.parcae")
    result = _held(tmp_path, arrivals="recorded", policies=("fifo",), num_jobs=3)
    work_ms = recorded.expected_work_ms(runs_vary=True)
    assert result.load(2) == pytest.approx(work_ms / 4_000 / 2)
    assert "--arrivals recorded" in result.size_command


def test_the_predictions_are_those_of_parcae_size(spark: _Spark, tmp_path: Path) -> None:
    result = _held(tmp_path, work="a work folder")
    done = run(f"{result.size_command} --processes 1 --json size.json", tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "size.json").read_text())
    assert said["results"] == [error.predicted.to_json() for error in result.errors]
    assert said["settings"] == result.question.to_json()


def test_a_stopped_command_continues_and_more_seeds_are_added(
    spark: _Spark, tmp_path: Path
) -> None:
    first = _held(tmp_path)
    assert len(spark.runs) == 8  # 2 policies at 2 sizes; 3 mixes are two applications
    assert _held(tmp_path).to_json() == first.to_json()
    assert len(spark.runs) == 8
    _held(tmp_path, seeds=6)
    assert len(spark.runs) == 8 + 8  # seeds 1000 and 1001 are there; 1002 ran alone
    _held(tmp_path, version="4.0.5")
    assert len(spark.runs) == 16 + 8  # another Spark takes other times


def test_a_checkpoint_that_changed_runs_again(spark: _Spark, tmp_path: Path) -> None:
    checkpoint = tmp_path / "rule.safetensors"
    write_checkpoint(order_rule_checkpoint(search_start(), {}), checkpoint)
    for num_runs in (8, 8):
        _held(tmp_path, policies=("fifo", str(checkpoint)))
        assert len(spark.runs) == num_runs
    write_checkpoint(order_rule_checkpoint(search_start(), {"made": "again"}), checkpoint)
    _held(tmp_path, policies=("fifo", str(checkpoint)))
    assert len(spark.runs) == 8 + 4  # those under fifo are kept


def test_a_policy_that_the_plugin_cannot_plan_by_is_refused_first(
    spark: _Spark, tmp_path: Path
) -> None:
    with pytest.raises(PolicyError, match="cannot be exported"):
        _held(tmp_path, policies=("fifo", "psbs"))
    assert not spark.runs


def test_tasks_take_equally_long_at_all_sizes(tmp_path: Path) -> None:
    spread = TaskDurations.of(np.array([100, 900, 4000], np.int64))
    workload = Workload("w", (JobSpec("a", (StageSpec(30, spread),)),))
    write_workload(workload, tmp_path / "w.parcae")
    question = _question_of(tmp_path / "w.parcae")
    costs = ClusterCosts(0.0, 0.0, 0.0)
    other = replace(question, cores=(16,))
    assert sleeping_mixes(question, costs) == sleeping_mixes(other, costs)


def _question_of(profile: Path) -> Any:
    from parcae.spark.sizing_fidelity import _question

    return _question(replace(_CONFIG, workload=str(profile)), (2, 4), load_workload(str(profile)))


def test_jobs_do_not_run_alone_at_several_sizes(tmp_path: Path) -> None:
    done = run("parcae spark fidelity --cores 8,16 --alone 2", tmp_path)
    assert done.returncode == 2
    assert "--alone is for one size" in done.stderr
    done = run("parcae spark fidelity --cores 8 --page page.md", tmp_path)
    assert done.returncode == 2
    assert "--page is for several sizes" in done.stderr
