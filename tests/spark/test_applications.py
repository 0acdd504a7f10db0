"""The script that measures applications on a YARN, with made-up runs in YARN's place."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.spark import applications
from benchmarks.spark.applications import executor_counts, schedule, system


def test_a_schedule_is_drawn_by_its_seed_and_scaled() -> None:
    jobs = schedule(1, 1)
    assert jobs == schedule(1, 1) != schedule(2, 1)
    assert [job["arrival_ms"] for job in jobs] == sorted(job["arrival_ms"] for job in jobs)
    work_ms = sum(sum(stage["sleep_ms"]) for job in jobs for stage in job["stages"])
    assert work_ms == 605_000  # .69 of 8 cores in 110 s
    assert {job["app"] for job in jobs} == set(applications.APPS)
    longer = schedule(1, 3)
    assert [len(job["stages"]) for job in longer] == [len(job["stages"]) for job in jobs]
    assert longer[5]["stages"][0]["sleep_ms"][0] == 3 * jobs[5]["stages"][0]["sleep_ms"][0]
    assert longer[-1]["arrival_ms"] == pytest.approx(3 * jobs[-1]["arrival_ms"], abs=3)


def test_names_of_systems_have_options() -> None:
    fair = system("fair:min=0:idle=1.5:ratio=0.5:preempt=0")
    conf = fair.conf("B")
    assert conf["spark.yarn.queue"] == "B"
    assert conf["spark.dynamicAllocation.minExecutors"] == 0
    assert conf["spark.dynamicAllocation.executorIdleTimeout"] == "1500ms"
    assert conf["spark.dynamicAllocation.executorAllocationRatio"] == 0.5
    assert fair.plan("", 1).site["yarn.scheduler.fair.preemption"] == "false"
    assert system("fair").plan("", 1).site["yarn.scheduler.fair.preemption"] == "true"
    assert system("static").conf("A")["spark.executor.instances"] == 2
    assert system("one").plan("", 1).cores == 9  # eight executors, and one for the application
    serve = system("serve:weighted:0.5")
    assert (serve.policy, serve.options) == ("weighted:0.5", {})
    for wrong in ("fear", "serve", "static:min=1", "fair:max=3"):
        with pytest.raises(argparse.ArgumentTypeError, match=wrong.partition(":")[0]):
            system(wrong)


def test_executors_and_tasks_are_counted_by_logs(tmp_path: Path) -> None:
    def task(index: int, launch_ms: int, reason: str = "Success") -> dict[str, Any]:
        info = {"Index": index, "Partition ID": index, "Launch Time": launch_ms, "Executor ID": "1"}
        info |= {"Finish Time": launch_ms + 50, "Failed": reason != "Success", "Killed": False}
        return {
            "Event": "SparkListenerTaskEnd", "Stage ID": 0, "Stage Attempt ID": 0,
            "Task End Reason": {"Reason": reason}, "Task Info": {**info, "Speculative": False},
        }  # fmt: skip

    def executor(name: str, at_ms: int) -> dict[str, Any]:
        event = "SparkListenerExecutorAdded"
        info = {"Host": "h", "Total Cores": 1}
        return {"Event": event, "Timestamp": at_ms, "Executor ID": name, "Executor Info": info}

    removed = {"Event": "SparkListenerExecutorRemoved", "Timestamp": 1_500, "Removed Reason": "r"}
    logs = {
        "a": [executor("1", 500), executor("2", 1_200), {**removed, "Executor ID": "1"}],
        "b": [executor("1", 900), executor("2", 1_600), executor("3", 9_000)],
    }
    logs["a"] += [task(0, 900), task(0, 1_100), task(0, 1_300), task(1, 1_100, "ExecutorLost")]
    for name, events in logs.items():
        start = {"Event": "SparkListenerApplicationStart", "App Name": name, "App ID": name}
        lines = [{**start, "Timestamp": 1, "User": "u"}, *events]
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)) + "\n")
    counts = executor_counts(tmp_path, 1_000, 2_000)
    assert counts == {"started": 2, "most": 3, "again": 1, "lost": 1}


def test_systems_are_drawn_in_every_seed_kept_and_compared_by_seed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = list[tuple[str, int]]()

    def measured(_: object, one: applications.System, seed: int, name: str) -> dict[str, Any]:
        asked.append((one.name, seed))
        ms = {"fair": 1_000, "static": 500, "one": 250}[one.kind] * seed
        jobs = [{"app": app, "ms": ms} for app in applications.APPS]
        counts = {"started": 4, "again": seed, "lost": 0, "most": 6 + seed}
        return {"load": [0.5, 1.5], "taken_s": 9.0, "jobs": jobs, **counts}

    monkeypatch.setattr(applications.Measurement, "_run", measured)
    args = applications.parser().parse_args(["--work", str(tmp_path)])
    runs = applications.Measurement(args).run()
    assert sorted(asked) == sorted((name, seed) for name in runs for seed in (1, 2, 3))
    assert applications.Measurement(args).run() == runs
    assert len(asked) == 9
    rows = {row[0]: row for row in applications.rows_of(runs)}
    assert rows["one"][:7] == ["one", "0.50", "0.50", "0.50", "0.50", "0.50", "4.0"]
    assert rows["one"][7:10] == ["2.0", "0.0", "9"]
    assert rows["one"][10].startswith("0.250")
    assert rows["one"][11].startswith("0.500")
    assert rows["fair"][10] == ""
