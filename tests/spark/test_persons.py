"""The script that measures persons who share a Spark, with made-up times in Spark's place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.spark import persons
from benchmarks.spark.replaying import ReplayedMix, ReplayRequest, read_replayed

from parcae.spark.home import SparkHome
from tests.spark.machine import Machine

_ACCOUNT_IS_FASTER = 0.5


class _Spark:
    """Every query takes its work, half of that under accounts; closed loops begin at their end."""

    def __init__(self) -> None:
        self.asked = dict[str, tuple[ReplayRequest, dict[str, Any]]]()

    def replay(self, request: ReplayRequest, mixes: list[dict[str, Any]]) -> list[ReplayedMix]:
        (mix,) = mixes
        self.asked[request.name] = request, mix
        factor = _ACCOUNT_IS_FASTER if request.name.startswith("account") else 1.0
        begun, ended = list[float](), list[float]()
        for job in mix["jobs"]:
            after = ended[job["after"]] + job["think_ms"] if "after" in job else job["arrival_ms"]
            is_left_out = not after <= mix.get("until_ms", np.inf)
            begun.append(np.nan if is_left_out else after)
            work_ms = sum(sum(stage["sleep_ms"]) for stage in job["stages"])
            ended.append(begun[-1] + factor * work_ms)
        return [ReplayedMix(np.array(begun, float), np.array(ended, float))]


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> _Spark:
    made = _Spark()
    monkeypatch.setattr(persons, "replay", made.replay)
    monkeypatch.setattr(persons, "find_spark", lambda: SparkHome(Path("/nowhere"), "4.3.0", "2.13"))
    monkeypatch.setattr(persons, "find_jar", lambda spark: Path("/nowhere/plugin.jar"))
    return made


def _measure(folder: Path, scenario: str, *more: str) -> dict[str, list[dict[str, Any]]]:
    words = ["--scenario", scenario, "--seeds", "2", "--work", str(folder), *more]
    return persons.Measurement(persons.parser().parse_args(words)).run()


def test_unlike_persons_are_compared_with_their_pools_also_at_the_same_arrivals(
    spark: _Spark, tmp_path: Path
) -> None:
    runs = _measure(tmp_path, "unlike")
    rows = {(row[0], row[1]): row for row in persons.rows_of("unlike", runs)}
    assert rows["account", "dash"][3].startswith("0.5")
    assert rows["account", "ana"][5].startswith("0.5")  # the same queries at the same times
    assert rows["pools", "etl"][3] == ""
    _, pools = spark.asked["pools-1000-run"]
    assert {job["pool"] for job in pools["jobs"]} == {"ana", "dash", "etl"}
    _, same = spark.asked["same-1000-run"]
    ran = [one for one in runs["account"][0]["queries"] if one]
    assert len(ran) < len(pools["jobs"])  # later ones of the sessions had no time
    assert [job["arrival_ms"] for job in same["jobs"]] == [int(one["from_ms"]) for one in ran]
    assert all("after" not in job for job in same["jobs"])
    request, _ = spark.asked["account-2-1000-run"]
    control = json.loads(Path(request.conf["spark.parcae.control"]).read_text())
    assert control == {"weights": {"etl": 2}}
    assert request.plugin is not None
    assert request.plugin.policy is None
    assert len({job["name"] for job in pools["jobs"]}) == len(pools["jobs"])  # a cold start
    spark.asked.clear()
    assert _measure(tmp_path, "unlike") == runs
    assert not spark.asked  # all were kept


def test_the_big_query_is_held_against_the_equal_split(spark: _Spark, tmp_path: Path) -> None:
    for scenario, num_persons in (("loop", 2), ("loops", 3)):
        rows = persons.rows_of(scenario, _measure(tmp_path, scenario))
        (row,) = [row for row in rows if row[:2] == ["account", "etl"]]
        expected = _ACCOUNT_IS_FASTER * 4 / num_persons  # alone on one core, of four
        assert row[6].startswith(f"{expected:.3f}"[:4])
        assert spark.asked["srpt-1000-run"][0].plugin is not None


def test_a_published_trace_has_a_row_of_its_small_jobs(spark: _Spark, tmp_path: Path) -> None:
    head = "job,name,stage,parents,tasks,duration_mean_ms,arrival_s,pool\n"
    stages = ["{0},q,map,,2,{1},{0},ann", "{0},q,sum,map,1,10,,ann"]
    lines = [line.format(job, 10_000 if job == 4 else 100) for job in range(5) for line in stages]
    (tmp_path / "homo.csv").write_text(head + "\n".join(lines) + "\n")
    runs = _measure(tmp_path, "homo", "--traces", str(tmp_path), "--time-scale", "0.5")
    _, mix = spark.asked["pools-1000-run"]
    assert [job["arrival_ms"] for job in mix["jobs"]] == [0, 500, 1_000, 1_500, 2_000]
    assert mix["jobs"][0]["stages"] == [
        {"parents": [], "sleep_ms": [50, 50]},
        {"parents": [0], "sleep_ms": [5]},
    ]
    rows = {(row[0], row[1]): row for row in persons.rows_of("homo", runs)}
    assert {whose for _, whose in rows} == {"all", "small"}
    assert rows["fair", "small"][2] == "0.10"  # 105 ms each; the large one has 10,005
    assert rows["fair", "all"][2] == "2.08"


def test_a_replayed_job_waits_for_another_and_is_left_out_when_its_time_is_over(
    machine: Machine, tmp_path: Path
) -> None:
    stage = {"parents": [], "sleep_ms": [200]}
    jobs = [
        {"name": "first", "arrival_ms": 0, "stages": [stage], "user": "ann", "pool": "mine"},
        {"name": "next", "after": 0, "think_ms": 300, "stages": [stage]},
        {"name": "late", "after": 1, "think_ms": 120_000, "stages": [stage]},
    ]
    mix = tmp_path / "mixes.json"
    mix.write_text(json.dumps({"mixes": [{"jobs": jobs, "until_ms": 120_000}]}))
    settings = {
        "spark.master": "local[2]",
        "spark.app.name": "replay",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.parcae.replay.warmUp": "0",
    }
    for name, value in settings.items():
        machine.jvm.System.setProperty(name, value)
    try:
        arguments = machine.jvm.java.lang.reflect.Array.newInstance(
            machine.jvm.java.lang.Class.forName("java.lang.String"), 2
        )
        arguments[0], arguments[1] = str(mix), str(tmp_path / "results.json")
        machine.jvm.parcae.spark.Replay.main(arguments)
    finally:
        for name in settings:
            machine.jvm.System.clearProperty(name)
    (times,) = read_replayed(tmp_path / "results.json")
    assert times.submitted_ms[1] >= times.finished_ms[0] + 299
    assert np.isnan(times.submitted_ms[2])
    assert times.jct_ms[:2].min() >= 200
