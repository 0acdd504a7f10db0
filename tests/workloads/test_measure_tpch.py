"""Measuring TPC-H: the plan, pending runs, the profile from the logs, and (slow) a real Spark."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parcae.base.errors import ConfigError
from parcae.workloads import measure_tpch as measuring
from parcae.workloads import tpch_tools
from parcae.workloads.archive import load_workload
from parcae.workloads.measure_tpch import (
    MeasureConfig,
    finished,
    measure_tpch,
    pending,
    plan,
    profile,
)
from parcae.workloads.tpch_application import ApplicationRequest, QueryRun
from tests.workloads.spark_log_builder import (
    executor,
    job_end,
    job_start,
    ran,
    stage_info,
    to_bytes,
)

MACHINE = {
    "cpu": "A CPU",
    "cpus": "2",
    "java": "17",
    "pyspark": "4.3.0",
    "duckdb": "1.1.3",
    "tpchgen-cli": "4.0.0",
}


def _config(folder: Path, **changes: Any) -> MeasureConfig:
    return MeasureConfig(
        **{
            "scale_factors": (1.0,),
            "repetitions": 2,
            "queries": (1, 6),
            "work_dir": folder,
            **changes,
        }
    )


def _note(folder: Path, application: str, *runs: tuple[int, int], end: str = "") -> None:
    """Note runs (round, query) of an application as finished."""
    lines = [
        json.dumps(
            {"round": r, "query": q, "seconds": 1.0, "at": "2026-01-02T03:04:05+00:00", "load": 2.0}
        )
        for r, q in runs
    ]
    (folder / "finished").mkdir(exist_ok=True)
    (folder / "finished" / f"{application}.jsonl").write_text(
        "".join(line + "\n" for line in lines) + end
    )


def _write_log(folder: Path, application: str, jobs: list[tuple[str, int]]) -> None:
    """An event log of one-stage jobs (name, ms of each of two tasks), run in turn on one core."""
    events = [executor(cores=1)]
    for number, (name, task_ms) in enumerate(jobs):
        start = number * 10_000
        info = stage_info(number, 2, scope="scan")
        events += [
            job_start(number, start, [info], parcae_job=name),
            *ran(info, start, start + 2 * task_ms),
            job_end(number),
        ]
    (folder / "event-logs" / application).mkdir(parents=True)
    (folder / "event-logs" / application / "log").write_bytes(to_bytes(events))


def test_the_plan_has_a_warm_application_per_scale_factor_and_cold_ones_at_the_smallest() -> None:
    applications = list(plan(_config(Path("work"), scale_factors=(2.0, 0.1))))
    assert [a.name for a in applications] == ["sf0.1", "cold-sf0.1-q1", "cold-sf0.1-q6", "sf2"]
    assert [a.master for a in applications[:2]] == ["local[2]", "local-cluster[2,1,1500]"]
    assert [(run.round, run.query, run.job) for run in applications[0].runs] == [
        (0, 1, "warm-up"),
        (0, 6, "warm-up"),
        (1, 1, "q1-sf0.1"),
        (1, 6, "q6-sf0.1"),
        (2, 1, "q1-sf0.1"),
        (2, 6, "q6-sf0.1"),
    ]


def test_what_is_finished_is_not_run_again_and_what_is_left_is_warmed_up_again(
    tmp_path: Path,
) -> None:
    config = _config(tmp_path)
    warm = next(plan(config))
    assert len(pending(config, warm)) == 6
    _note(tmp_path, "sf1", (0, 1), (0, 6), (1, 1), (1, 6), (2, 1))
    assert [(run.round, run.query) for run in pending(config, warm)] == [(0, 6), (2, 6)]
    _note(tmp_path, "sf1", (0, 1), (0, 6), (1, 1), (1, 6), (2, 1), (0, 6), (2, 6))
    assert pending(config, warm) == ()


def test_progress_tells_how_far_it_is_and_how_long_the_rest_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six runs of equal cost: four took 4 minutes, so the last two take 2."""
    lines: list[str] = []
    clock = iter((0.0, 240.0, 360.0))
    monkeypatch.setattr(measuring, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    config = _config(tmp_path, cold_scale_factors=())
    estimate = measuring._ProgressReport(config, lines.append)
    estimate.add(next(plan(config)), 4)
    estimate.add(next(plan(config)), 2)
    assert lines == ["sf1: 4 of 6 runs finished, about 2 min left", "sf1: 6 of 6 runs finished"]


def test_a_torn_note_does_not_count_as_finished(tmp_path: Path) -> None:
    _note(tmp_path, "sf1", (1, 1), end='{"round": 1, "que')
    config = _config(tmp_path)
    assert [note["query"] for note in finished(config, next(plan(config)))] == [1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale_factors": ()}, "scale factors"),
        ({"scale_factors": (0.0,)}, "above 0"),
        ({"scale_factors": (1.0, 1.0)}, "once"),
        ({"repetitions": 0}, "0 repetitions"),
        ({"cores": 0}, "0 cores"),
        ({"queries": (23,)}, "1 to 22"),
        ({"cold_scale_factors": (5.0,)}, "choose among the scale factors that are measured"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _config(Path("work"), **changes)


def test_a_missing_package_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyspark" else find(name)
    )
    with pytest.raises(ConfigError, match=r"pyspark.*pip install 'parcae\[measure\]'"):
        measure_tpch(_config(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_java_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(tpch_tools, "_generator", lambda: "tpchgen-cli")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="needs Java 17 or newer"):
        measure_tpch(_config(tmp_path))


def test_the_version_of_java_is_not_one_of_its_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    picked = 'Picked up JAVA_TOOL_OPTIONS: -Dversion="9"'
    for says, version in (('openjdk version "17.0.15" 2025', "17.0.15"), ("Java", "unknown")):
        java.write_text(f"#!/bin/sh\necho '{picked}' >&2\necho '{says}' >&2\n")
        java.chmod(0o755)
        assert tpch_tools._java_version() == version


def test_a_spark_failure_is_reported_with_its_log_and_leaves_nothing_finished(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measuring, "check_tools", lambda: None)
    monkeypatch.setattr(measuring, "describe_machine", lambda: MACHINE)
    monkeypatch.setattr(ApplicationRequest, "to_json", lambda request: "no request")
    (tmp_path / "data-sf1").mkdir()
    with pytest.raises(ConfigError, match=r"sf1\.log; run the command again"):
        measure_tpch(_config(tmp_path))
    assert "JSONDecodeError" in (tmp_path / "sf1.log").read_text()
    assert len(pending(_config(tmp_path), next(plan(_config(tmp_path))))) == 6


def test_a_request_survives_the_command_line() -> None:
    request = ApplicationRequest(
        "sf1", "local[2]", "/data", (QueryRun(1, 6, "q6-sf1"),), {"a": "b"}, "/notes"
    )
    assert ApplicationRequest.from_json(request.to_json()) == request


def test_a_profile_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no query was measured yet"):
        profile(_config(tmp_path))


def test_the_profile_has_warm_durations_fresh_ones_of_new_executors_and_no_warm_ups(
    tmp_path: Path,
) -> None:
    _write_log(
        tmp_path,
        "sf1",
        [("warm-up", 900), ("q1-sf1", 100), ("q6-sf1", 30), ("q1-sf1", 110), ("q6-sf1", 40)],
    )
    _note(tmp_path, "sf1", (0, 1), (0, 6), (1, 1), (1, 6), (2, 1), (2, 6))
    _write_log(tmp_path, "cold-sf1-q1", [("q1-sf1", 3_000)])
    _note(tmp_path, "cold-sf1-q1", (1, 1))
    (tmp_path / "machine.json").write_text(json.dumps(MACHINE))
    workload = profile(_config(tmp_path))
    assert [job.name for job in workload.jobs] == ["q1-sf1", "q6-sf1"]
    first, sixth = (job.stages[0].durations for job in workload.jobs)
    assert [waves[0].tolist() for waves in (first.fresh, first.first, first.rest)] == [
        [3_000],
        [105, 105],
        [105, 105],
    ]
    assert [waves[0].tolist() for waves in (sixth.fresh, sixth.first, sixth.rest)] == [
        [],
        [35, 35],
        [35, 35],
    ]
    assert [job.num_runs for job in workload.jobs] == [2, 2]
    assert [round(job.work_sigma, 4) for job in workload.jobs] == [
        0.0674,
        0.2034,
    ]  # log(110 / 100) / sqrt 2, log(40 / 30) ...
    assert workload.provenance["measured"] == "sf1: 2 runs of 2 queries after a warm-up"
    assert workload.provenance["fresh executors"].startswith(
        "sf1: 1 queries once each in new executors"
    )
    assert workload.provenance["dates"] == "2026-01-02"
    assert workload.provenance["load average"] == "sf1: median 2.0; new executors: median 2.0"


def test_the_bundled_workload_holds_all_22_queries_as_measured() -> None:
    workload = load_workload("tpch")
    assert {f"q{query}-sf1" for query in range(1, 23)} <= {job.name for job in workload.jobs}
    levels = {
        level for job in workload.jobs for stage in job.stages for level in stage.durations.levels
    }
    assert levels <= {1, 2}
    assert all(sum(not children for children in job.children) == 1 for job in workload.jobs)
    assert {
        "measured",
        "machine",
        "load average",
        "versions",
        "spark configuration",
    } <= workload.provenance.keys()


@pytest.mark.slow
def test_a_real_spark_is_measured_and_a_second_call_runs_nothing(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="measuring is an extra: pip install 'parcae[measure]'")
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        pytest.skip("needs Java and pip install 'parcae[measure]'")
    config = _config(tmp_path, scale_factors=(0.01,), repetitions=1)
    lines: list[str] = []
    workload = measure_tpch(config, lines.append)
    assert [job.name for job in workload.jobs] == ["q1-sf0.01", "q6-sf0.01"]
    assert all(any(s.durations.fresh[0].size for s in job.stages) for job in workload.jobs)
    assert lines[0] == "generating TPC-H data at scale factor 0.01"
    assert lines[-1] == "cold-sf0.01-q6: 6 of 6 runs finished"
    again: list[str] = []
    measure_tpch(config, again.append)
    assert again == []
