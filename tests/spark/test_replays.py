"""The scripts that replay mixes of sleeping jobs, with the simulator in Spark's place."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.spark import demo, fidelity, replaying
from benchmarks.spark.fidelity import ClusterCosts, costly_workload, slept
from benchmarks.spark.replaying import (
    RealSpark,
    ReplayedMix,
    ReplayRequest,
    drawn_sleeps,
    mix_json,
    parents_first,
    read_replayed,
    warm_workload,
)
from benchmarks.spark.work import Work

from parcae.base.errors import ConfigError, PolicyError, WorkloadError
from parcae.policies.additions import named_policy
from parcae.policies.checkpoint import write_checkpoint
from parcae.policies.learned import order_rule_checkpoint
from parcae.policies.rule.policy import search_start
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.spark.home import SparkHome
from parcae.workloads.archive import load_workload, write_workload
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import JobSequence, RandomStreams, Workload, draw_sequence
from tests.cli.running import run
from tests.conftest import job

#: Every stage has one duration, so that Spark's place can be taken by the simulator exactly.
_WORKLOAD = Workload(
    "w", (job("a", (20, 300, ()), (4, 500, (0,))), job("b", (6, 200, ())), job("c", (30, 100, ())))
)
_COSTS = ClusterCosts(task=3.0, stage=7.0, job=11.0)


class _Spark:
    """Replays mixes in the simulator; every job takes `factor` times as long."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.requests: list[ReplayRequest] = []

    @property
    def runs(self) -> list[str]:
        """The names of the applications that ran, without the calibration."""
        names = [request.name for request in self.requests]
        return [name for name in names if not name.startswith("calibration")]

    def replay(self, request: ReplayRequest, mixes: Sequence[dict[str, Any]]) -> list[ReplayedMix]:
        self.requests.append(request)
        request.event_logs.mkdir(exist_ok=True)
        (request.event_logs / "log").write_text(request.name)
        return [self._replayed(request, mix) for mix in mixes]

    def _replayed(self, request: ReplayRequest, mix: dict[str, Any]) -> ReplayedMix:
        specs = tuple(_job(one) for one in mix["jobs"])
        arrival_ms = np.array([one["arrival_ms"] for one in mix["jobs"]], np.int64)
        workload = Workload("mix", specs)
        config = SimulationConfig(world=WorldName.CORES, num_executors=request.cores)
        planner = named_policy("srpt" if request.plugin else request.mode.lower(), workload, config)
        sequence = JobSequence(workload, np.arange(len(specs)), arrival_ms)
        trace = simulate(sequence, planner, config, 0)
        took = (trace.completion_ms - arrival_ms) * (
            1.0 if request.name.startswith("calibration") else self.factor
        )
        return ReplayedMix(arrival_ms.astype(float), arrival_ms + took)


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
    fake = _Spark()
    monkeypatch.setattr(replaying, "replay", fake.replay)
    monkeypatch.setattr(demo, "read_spark_run", lambda logs, key: logs[0].read_text())
    monkeypatch.setattr(demo, "gantt", lambda charts, picture, title: None)
    write_workload(_WORKLOAD, tmp_path / "w.parcae")
    return fake


def _args(script: Any, tmp_path: Path, policies: str, **changes: Any) -> argparse.Namespace:
    words = ["--policies", policies, "--workload", str(tmp_path / "w.parcae"), "--time-scale", "1"]
    args = script.parser().parse_args(words)
    args.work = tmp_path / "work"
    vars(args).update(changes)
    return args


def _real(tmp_path: Path, args: argparse.Namespace) -> RealSpark:
    return RealSpark(SparkHome(tmp_path, "4.3.0", "2.13"), Path("p.jar"), Work(args.work))


def _sizes(tmp_path: Path, policies: str = "fifo,srpt", **changes: Any) -> Any:
    given = {"cores": (2, 4), "jobs": 6, "seeds": 3, **changes}
    args = _args(fidelity, tmp_path, policies, **given)
    return fidelity.compare_sizes(args, _real(tmp_path, args))


def _runs(tmp_path: Path, policies: str) -> Any:
    args = _args(fidelity, tmp_path, policies, cores=(4,), jobs=3, seeds=2, arrivals="batch")
    return fidelity.compare_runs(args, _real(tmp_path, args))


def _demo(tmp_path: Path, policies: str, version: str = "4.3.0", jobs: int = 3) -> Any:
    args = _args(demo, tmp_path, policies, jobs=jobs, cores=4, arrivals="batch", seeds=2)
    return demo.run_demo(args, SparkHome(tmp_path, version, "2.13"), Path("p.jar"))


def _checkpoint(folder: Path) -> Path:
    path = folder / "own" / "rule.safetensors"
    path.parent.mkdir()
    write_checkpoint(order_rule_checkpoint(search_start(), {}), path)
    return path


# Mixes, and the overheads of the cluster.


def test_a_mix_lists_parents_first_and_every_task() -> None:
    workload = warm_workload(load_workload("tpch"), 2)
    sequence = draw_sequence(workload, "poisson:2s", 5, 8, RandomStreams(3))
    sleeps = drawn_sleeps(sequence, 3)
    assert drawn_sleeps(sequence, 3) == sleeps != drawn_sleeps(sequence, 4)
    mix = mix_json(sequence, sleeps)
    assert [one["arrival_ms"] for one in mix["jobs"]] == sequence.arrival_ms.tolist()
    for one, spec in zip(mix["jobs"], sequence.jobs, strict=True):
        counts = sorted(len(stage["sleep_ms"]) for stage in one["stages"])
        assert counts == sorted(stage.num_tasks for stage in spec.stages)
        edges = [(p, row) for row, stage in enumerate(one["stages"]) for p in stage["parents"]]
        assert all(parent < row for parent, row in edges)
        assert len(edges) == sum(len(stage.parents) for stage in spec.stages)
    total = sum(sum(stage["sleep_ms"]) for one in mix["jobs"] for stage in one["stages"])
    assert total == sum(sleeps.values())


def test_a_job_has_one_last_stage_and_may_have_many_in_a_row() -> None:
    stage = StageSpec(1, TaskDurations.constant(5))
    with pytest.raises(WorkloadError, match="2 last stages"):
        parents_first(JobSpec("two", (stage, stage)))
    backwards = [replace(stage, parents=(row + 1,)) for row in range(2_999)]
    assert parents_first(JobSpec("c", (*backwards, stage))) == [*reversed(range(3_000))]


def test_what_was_simulated_is_slept_without_the_clusters_costs() -> None:
    stages = (
        StageSpec(6, TaskDurations.constant(50)),
        StageSpec(2, TaskDurations.constant(20), (0,)),
    )
    workload = costly_workload(Workload("w", (JobSpec("a", stages), JobSpec("b", stages))), _COSTS)
    sequence = JobSequence(workload, np.array([0, 1]), np.zeros(2, np.int64))
    config = SimulationConfig(world=WorldName.CORES, num_executors=3)
    trace = simulate(sequence, named_policy("fair", workload, config), config, 0, record=True)
    sleeps = slept(trace, _COSTS)
    assert {key[1:]: ms for key, ms in sleeps.items()} == {
        **{(0, task): 50 for task in range(6)},
        **{(1, task): 20 for task in range(2)},
    }
    assert trace.tasks is not None
    assert {*(trace.tasks["finish_ms"] - trace.tasks["start_ms"]).tolist()} == {53, 23}


def test_a_job_that_failed_is_said(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    fine = {"name": "a", "submitted_ms": 5, "finished_ms": 105}
    path.write_text(json.dumps({"mixes": [{"jobs": [fine]}]}))
    assert read_replayed(path)[0].jct_ms.tolist() == [100.0]
    path.write_text(json.dumps({"mixes": [{"jobs": [fine, {"name": "b", "error": "lost"}]}]}))
    with pytest.raises(WorkloadError, match="1 jobs of mix 0 failed: lost"):
        read_replayed(path)


# What is compared, refused, and kept.


def test_the_simulator_plays_the_policies_that_the_plugin_plans_by(
    spark: _Spark, tmp_path: Path
) -> None:
    result = _runs(tmp_path, "fair,srpt")
    assert list(result["parts"]) == ["alone", "shared, fair", "shared, srpt"]
    assert len(spark.requests) == 4  # the calibration, and the jobs that run alone
    assert result["parts"]["shared, srpt"]["mean_error"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("compare", "policies", "changes", "message"),
    [
        (_runs, "fair,stpr", {}, "policy 'stpr'"),
        (_runs, "fair,psbs", {}, "cannot be exported"),
        (_demo, "fair,stpr", {}, "policy 'stpr'"),
        (_demo, "fair,service:stpr", {}, "policy 'stpr'"),
        (_demo, "fifo", {}, "needs fair"),
        (_sizes, "fifo,psbs", {}, "cannot be exported"),
        (_sizes, "fifo", {"seeds": 1}, "give --seeds 2 or more"),
        (_sizes, "fifo", {"arrivals": "recorded"}, "no recorded arrivals"),
        (_sizes, "fifo", {"arrivals": "often"}, "arrivals 'often' are not understood"),
        (_sizes, "fifo", {"alone": 2}, "--alone is for one number of cores"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_spark_runs(
    spark: _Spark, tmp_path: Path, compare: Any, policies: str, changes: Any, message: str
) -> None:
    with pytest.raises((ConfigError, PolicyError), match=message):
        compare(tmp_path, policies, **changes)
    assert not spark.requests


def test_results_of_other_mixes_another_spark_or_another_checkpoint_are_kept_apart(
    spark: _Spark, tmp_path: Path
) -> None:
    checkpoint = _checkpoint(tmp_path)
    policies = f"fair,{checkpoint}"
    first = _demo(tmp_path, policies)
    assert len(spark.runs) == 2
    _demo(tmp_path, policies, jobs=5)
    _demo(tmp_path, policies, version="4.0.5")
    assert len(spark.runs) == 6
    assert _demo(tmp_path, policies) == first
    write_checkpoint(order_rule_checkpoint(search_start(), {"made": "again"}), checkpoint)
    _demo(tmp_path, policies)
    assert len(spark.runs) == 7
    shutil.rmtree(spark.requests[0].event_logs)  # the picture is drawn from it
    _demo(tmp_path, policies)
    assert spark.runs[7:] == [spark.runs[0]]
    assert [*checkpoint.parent.iterdir()] == [checkpoint]


def test_policies_of_the_demonstration_are_paired_with_sparks_own(
    spark: _Spark, tmp_path: Path
) -> None:
    result = _demo(tmp_path, "fair,fifo,srpt")["policies"]
    average_s = {name: np.mean(one["average_jct_s_by_seed"]) for name, one in result.items()}
    assert result["srpt"]["ratio_to_fair"]["mean"] == pytest.approx(
        average_s["srpt"] / average_s["fair"]
    )
    assert result["fifo"]["ratio_to_fifo"]["mean"] == 1


# Sizes.


def test_the_predictions_are_those_of_parcae_size(spark: _Spark, tmp_path: Path) -> None:
    result = _sizes(tmp_path, arrivals="batch")
    assert {error["load"] for error in result["errors"]} == {None}
    done = run(f"{result['size_command']} --processes 1 --json size.json", tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "size.json").read_text())
    assert said["results"] == [error["predicted"] for error in result["errors"]]
    assert said["settings"] == result["size"]


def test_a_stopped_comparison_of_sizes_continues_and_more_seeds_are_added(
    spark: _Spark, tmp_path: Path
) -> None:
    first = _sizes(tmp_path)
    assert len(spark.runs) == 8  # 2 policies at 2 sizes; 3 mixes are two applications
    assert _sizes(tmp_path) == first
    assert len(spark.runs) == 8
    _sizes(tmp_path, seeds=6)
    assert len(spark.runs) == 8 + 8  # seeds 1000 and 1001 are there; 1002 ran alone


def test_tasks_take_equally_long_at_all_sizes(tmp_path: Path) -> None:
    spread = TaskDurations.of(np.array([100, 900, 4000], np.int64))
    workload = Workload("w", (JobSpec("a", (StageSpec(30, spread),)),))
    question = fidelity.question_of(_args(fidelity, tmp_path, "fifo", cores=(2, 4)), workload)
    other = replace(question, cores=(16,))
    assert fidelity.sleeping_mixes(question, _COSTS) == fidelity.sleeping_mixes(other, _COSTS)
