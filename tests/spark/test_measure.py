"""The script that measures TPC-H: rounds that are left, the profile, and (slow) a real Spark."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.spark import tables
from benchmarks.spark.measure import Measurement, parser, with_fresh_durations

from parcae.base.errors import ConfigError
from parcae.workloads.archive import load_workload
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from tests.spark.needs import needs_spark
from tests.workloads.spark_log_builder import (
    executor,
    job_end,
    job_start,
    ran,
    stage_info,
    to_bytes,
)

_MACHINE = {name: name for name in ("cpu", "cpus", "java", *tables.PACKAGES)}


def _measurement(folder: Path, words: str = "--scale-factors 1 --repetitions 2") -> Measurement:
    options = f"{words} --queries 1,6 --work {folder} -o {folder}/tpch.parcae"
    return Measurement(parser().parse_args(options.split()))


def _write_round(measured: Measurement, name: str, jobs: list[tuple[str, int]]) -> None:
    """A finished round of one-stage jobs (name, ms of each of two tasks), in turn on one core."""
    events = [executor(cores=1)]
    for number, (job, task_ms) in enumerate(jobs):
        start = number * 10_000
        info = stage_info(number, 2, scope="scan")
        events += [
            job_start(number, start, [info], parcae_query=job),
            *ran(info, start, start + 2 * task_ms),
            job_end(number),
        ]
    logs = measured.args.work / "event-logs" / name
    logs.mkdir(parents=True)
    (logs / "log").write_bytes(to_bytes(events))
    note = {"seconds": {}, "at": "2026-01-02T03:04:05+00:00", "load": 2.0}
    measured.work.kept(f"finished/{name}", lambda: note)


def test_only_the_smallest_scale_factor_is_also_measured_on_new_executors(tmp_path: Path) -> None:
    measured = _measurement(tmp_path, "--scale-factors 2,0.1 --repetitions 1")
    assert measured.rounds(2.0) == {"sf2-round-1": (1, 6)}
    cold = {"cold-sf0.1-q1": (1,), "cold-sf0.1-q6": (6,)}
    assert measured.rounds(0.1) == {"sf0.1-round-1": (1, 6), **cold}


def test_what_is_missing_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tables, "_generator", lambda: "tpchgen-cli")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "pyspark" else find(n))
    with pytest.raises(ConfigError, match=r"pyspark.*pip install -r"):
        tables.check_tools()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="needs Java 17 or newer"):
        tables.check_tools()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    picked = 'Picked up JAVA_TOOL_OPTIONS: -Dversion="9"'
    for says, version in (('openjdk version "17.0.15" 2025', "17.0.15"), ("Java", "unknown")):
        java.write_text(f"#!/bin/sh\necho '{picked}' >&2\necho '{says}' >&2\n")
        java.chmod(0o755)
        assert tables._java_version() == version


def test_the_profile_has_warm_durations_and_fresh_ones_of_new_executors(tmp_path: Path) -> None:
    measured = _measurement(tmp_path)
    measured.work.kept("machine", lambda: _MACHINE)
    _write_round(measured, "sf1-round-1", [("warm-up", 900), ("q1-sf1", 100), ("q6-sf1", 30)])
    _write_round(measured, "sf1-round-2", [("warm-up", 900), ("q1-sf1", 110), ("q6-sf1", 40)])
    _write_round(measured, "cold-sf1-q1", [("q1-sf1", 3_000)])
    _write_round(measured, "cold-sf1-q6", [])
    workload = measured.run()  # everything is there, so that no Spark starts
    assert [(job.name, job.num_runs) for job in workload.jobs] == [("q1-sf1", 2), ("q6-sf1", 2)]
    first, sixth = (job.stages[0].durations for job in workload.jobs)
    found = [waves[0].tolist() for waves in (first.fresh, first.first, first.rest, sixth.fresh)]
    assert found == [[3_000], [105, 105], [105, 105], []]
    assert round(workload.jobs[0].work_sigma, 4) == 0.0674  # log(110 / 100) / sqrt 2
    assert workload.provenance["dates"] == "2026-01-02"
    assert workload.provenance["load average"] == "median 2.0"


def _durations(
    fresh: list[int], first: list[int], rest: list[int], level: int = 2
) -> TaskDurations:
    waves = (np.array(samples, float) for samples in (fresh, first, rest))
    return TaskDurations((level,), *((samples,) for samples in waves))


_WARM = StageSpec(3, _durations([], [100], [50, 50]), name="scan")
_COLD = StageSpec(3, _durations([3_000], [500], [400]), name="scan")
_OTHER_LEVEL = StageSpec(3, _durations([3_000], [], [], level=1), name="scan")


def _join(first: StageSpec, second: StageSpec, swap: bool) -> JobSpec:
    """Two similar scans, of which one is sorted before the join."""
    sort = StageSpec(4, _WARM.durations, (int(swap),), name="sort")
    return JobSpec("q", (first, second, sort, StageSpec(4, _WARM.durations, (int(not swap), 2))))


@pytest.mark.parametrize(
    ("warm", "cold", "fresh"),
    [
        (JobSpec("q", (_WARM,)), JobSpec("q", (_COLD,)), [[3_000]]),
        # A level that the warm job lacks: the nearest one.
        (JobSpec("q", (_WARM,)), JobSpec("q", (_OTHER_LEVEL,)), [[3_000]]),
        # Another number of tasks is another stage.
        (JobSpec("q", (_WARM,)), JobSpec("q", (StageSpec(4, _COLD.durations, name="scan"),)), [[]]),
        # Stages are known again by their readers, in another order.
        (_join(_WARM, _WARM, False), _join(_COLD, _WARM, True), [[], [3_000], [], []]),
    ],
)
def test_a_stage_takes_the_fresh_samples_of_its_cold_run_only(
    warm: JobSpec, cold: JobSpec, fresh: list[list[int]]
) -> None:
    merged = with_fresh_durations(warm, cold)
    assert [stage.durations.fresh[0].tolist() for stage in merged.stages] == fresh
    assert merged.stages[0].durations.first == _WARM.durations.first
    assert merged.stages[0].mean_task_ms == _WARM.mean_task_ms


def test_the_bundled_workload_holds_all_22_queries_as_measured() -> None:
    workload = load_workload("tpch")
    assert {f"q{query}-sf1" for query in range(1, 23)} <= {job.name for job in workload.jobs}
    stages = [stage for job in workload.jobs for stage in job.stages]
    assert {level for stage in stages for level in stage.durations.levels} <= {1, 2}
    assert all(sum(not children for children in job.children) == 1 for job in workload.jobs)
    provenance = {"measured", "machine", "load average", "versions", "spark configuration"}
    assert provenance <= workload.provenance.keys()


@pytest.mark.slow
@needs_spark
@pytest.mark.skipif(
    bool(tables.missing_tools()) or shutil.which("java") is None,
    reason="needs Java and pip install -r benchmarks/spark/requirements.txt",
)
def test_a_real_spark_is_measured_and_a_second_call_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "--scale-factors 0.01 --repetitions 1"
    workload = _measurement(tmp_path, words).run()
    assert [job.name for job in workload.jobs] == ["q1-sf0.01", "q6-sf0.01"]
    assert all(any(s.durations.fresh[0].size for s in job.stages) for job in workload.jobs)
    monkeypatch.setattr(Measurement, "_round", lambda *_: 1 / 0)
    again: Any = _measurement(tmp_path, words).run()
    assert [job.work_ms for job in again.jobs] == [job.work_ms for job in workload.jobs]
