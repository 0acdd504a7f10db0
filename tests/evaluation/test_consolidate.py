"""One shared Spark in place of several applications, from their logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from parcae.evaluation.consolidate import UNSEEN, warmed
from parcae.workloads.spark_log.dag import JobRun, StageRun
from parcae.workloads.spark_log.durations import StageSamples
from tests.cli.running import ran, refused
from tests.conftest import shared_case
from tests.workloads import spark_log_builder as built

_S = 1_000
Events = list[dict[str, Any]]


def _query(number: int, at_s: int, tasks: int, user: str = "") -> Events:
    """A query of tasks of a second, one after the other."""
    at, end = at_s * _S, (at_s + tasks) * _S
    person = {"spark_parcae_user": user} if user else {}
    begin, *tasks_and_stage, _ = built.whole_job(
        number, at, (built.stage_info(number, tasks), at, end), spark_job_description="q", **person
    )
    return [begin, *tasks_and_stage, {**built.job_end(number), "Completion Time": end}]


def _application(name: str, *queries: Events, begin_s: int = 0, cores: int = 1) -> Events:
    """An application with one executor for ten seconds."""
    start = {**built.application_start(f"{name}-id", begin_s * _S), "App Name": name}
    executor = {**built.executor(cores=cores), "Timestamp": begin_s * _S}
    end = {"Event": "SparkListenerApplicationEnd", "Timestamp": (begin_s + 10) * _S}
    return [start, executor, *(event for query in queries for event in query), end]


def _write(folder: Path, **logs: Events) -> None:
    for name, events in logs.items():
        (folder / name).write_bytes(built.to_bytes(events))


def _found(folder: Path, words: str = "a b") -> Any:
    return json.loads(ran(f"parcae consolidate {words} --json", folder).stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two applications with a core each, whose queries of four seconds follow each other."""
    _write(
        tmp_path,
        a=_application("A", _query(0, 0, 4)),
        b=_application("B", _query(0, 4, 4)),
    )
    return tmp_path


def test_two_applications_lend_each_other_their_idle_cores(folder: Path) -> None:
    found = _found(folder)
    before = found["before"]
    assert before["core_hours"] == pytest.approx(20 / 3_600)
    assert before["busy_core_hours"] == pytest.approx(8 / 3_600)
    assert [before[key] for key in ("mean_s", "most_cores", "executors_started")] == [4, 2, 2]
    # Both cores work for the one query that there is.
    same, _, least = found["after"]
    assert (same["why"], same["policy"], same["cores"]) == ("same core-hours", "user-fair", 2)
    assert (same["mean_s"], same["core_hours"]) == (2, before["core_hours"])
    assert (least["why"], least["cores"], least["mean_s"]) == ("same mean time", 1, 4)
    assert [(one["kind"], one["name"], one["ratio"]) for one in found["parties"]] == [
        ("application", "A", 0.5),
        ("application", "B", 0.5),
    ]
    assert all(one["replayed"] == pytest.approx(1) for one in found["parties"])
    assert "spark.executor.instances=2" in found["next_command"]


def test_who_would_be_later_is_said_by_application_and_person(tmp_path: Path) -> None:
    _write(
        tmp_path,
        a=_application("A", _query(0, 0, 4, "ann"), _query(1, 4, 2, "bob")),
        b=_application("B", _query(0, 0, 8, "ann")),
    )
    shown = " ".join(ran("parcae consolidate a b --cores 1", tmp_path).stdout.split())
    assert "Later on average: " in shown
    assert "By person" in shown
    assert all(text in shown for text in UNSEEN)
    found = _found(tmp_path, "a b --cores 1")
    ratios = {(one["kind"], one["name"]): one["ratio"] for one in found["parties"]}
    assert ratios.keys() == {
        ("application", "A"),
        ("application", "B"),
        ("person", "ann"),
        ("person", "bob"),
    }
    # One core has twice the work.
    assert ratios["application", "B"] > 1.3
    assert f"application B ({ratios['application', 'B']:.2f} times as long)" in shown


def test_files_and_choices(folder: Path) -> None:
    done = ran("parcae consolidate a b --csv rows.csv -o report.html --json", folder)
    assert json.loads(done.stdout) == _found(folder)
    rows = pl.read_csv(folder / "rows.csv")
    assert rows["account_mean_s"].to_list() == [2, 2]
    page = (folder / "report.html").read_text()
    assert "One Spark or many?" in page
    assert "Cores in use over time" in page
    assert 'src="http' not in page
    assert [one["name"] for one in _found(folder, "a b --apps B*")["parties"]] == ["B"]
    assert [one["name"] for one in _found(folder, "a b --apps A-id")["parties"]] == ["A"]
    refused("parcae consolidate a b --apps C", folder, "no application that fits C", "A, B")


def _note(found: Any, words: str) -> bool:
    return any(words in note for note in found["notes"])


def test_one_application_has_nothing_to_share(folder: Path) -> None:
    found = _found(folder, "a")
    assert _note(found, "one application: nothing to share")
    assert [one["mean_s"] for one in found["after"]] == [4, 4, 4]
    assert not _note(_found(folder), "nothing to share")


def test_logs_of_other_times_keep_their_clock_unless_they_are_aligned(folder: Path) -> None:
    _write(folder, b=_application("B", _query(0, 104, 4), begin_s=100))
    found = _found(folder)
    assert _note(found, "No two applications had cores at the same time")
    assert found["after"][0]["cores"] == 1  # 20 core-seconds in 110 s
    aligned = _found(folder, "a b --align")
    assert not _note(aligned, "at the same time")
    assert (aligned["after"][0]["cores"], aligned["after"][0]["mean_s"]) == (2, 2)


def test_a_log_without_executors_holds_what_its_tasks_needed(folder: Path) -> None:
    events = [one for one in _application("B", _query(0, 4, 4)) if "Executor Info" not in one]
    _write(folder, b=events)
    found = _found(folder)
    assert _note(found, "The log of B has no executors with their cores")
    assert found["before"]["core_hours"] == pytest.approx((10 + 6) / 3_600)


def test_tasks_of_two_cores_are_played_as_two_tasks(folder: Path) -> None:
    wide = _application("B", _query(0, 4, 4), cores=2)
    settings = {
        "Event": "SparkListenerEnvironmentUpdate",
        "Spark Properties": {"spark.task.cpus": "2"},
    }
    _write(folder, b=[wide[0], settings, *wide[1:]])
    found = _found(folder, "a b --cores 2")
    assert _note(found, "spark.task.cpus: A 1, B 2")
    assert found["before"]["busy_core_hours"] == pytest.approx((4 + 8) / 3_600)
    # A has both cores, and B a task at a time.
    assert [one["account_mean_s"] for one in found["parties"]] == [2, 4]
    alone = _found(folder, "b --cores 3")
    assert alone["after"][0]["mean_s"] == 4  # the third core is too few for a task
    refused("parcae consolidate b --cores 1", folder, "a task takes 2 cores")


def test_what_a_log_without_its_beginning_lacks_is_said(folder: Path) -> None:
    torn = shared_case("02-log-without-its-beginning/tail-of-log")
    found = _found(folder, f"a {torn}")
    assert _note(found, "misses its beginning")
    assert _note(found, "had no beginning in the log")
    assert sum(one["queries"] for one in found["parties"]) == 2


def test_an_application_without_a_finished_query_held_its_cores(folder: Path) -> None:
    _write(folder, c=_application("C", _query(0, 0, 4)[:-1]))
    found = _found(folder, "a b c")
    assert _note(found, "Without a finished query: C")
    assert found["before"]["core_hours"] == pytest.approx(30 / 3_600)
    assert found["before"]["queries"] == 2


def test_an_executor_that_leaves_idle_is_held_until_then(folder: Path) -> None:
    *events, end = _application("B", _query(0, 4, 4))
    gone = {"Event": "SparkListenerExecutorRemoved", "Timestamp": 9_000, "Executor ID": "1"}
    _write(folder, b=[*events, {**gone, "Removed Reason": "idle"}, end])
    assert _found(folder)["before"]["core_hours"] == pytest.approx((10 + 9) / 3_600)


def test_executors_that_start_once_are_warm_and_nobody_waits_for_one() -> None:
    def stage(lag_ms: int, fresh_ms: list[int], others_ms: list[int]) -> StageRun:
        by_wave = tuple(np.array(ms, np.int64) for ms in (fresh_ms, [], others_ms))
        every = np.concatenate([by_wave[0], by_wave[2]])
        none = frozenset[int]()
        samples = StageSamples(1, by_wave)
        return StageRun("s", "s", len(every), none, none, samples, lag_ms=lag_ms, replayed_ms=every)

    stages = [stage(800, [900, 400], [500, 520, 510]), stage(7, [], [300]), stage(900, [700], [])]
    (run,) = warmed([JobRun("q", 0, stages, "a", end_ms=9)])
    # A first task that took no longer stays; without another task nothing is known.
    assert [one.replayed_ms.tolist() for one in run.stages] == [
        [510, 400, 500, 520, 510],
        [300],
        [700],
    ]
    assert [one.lag_ms for one in run.stages] == [7, 7, 7]
    assert stages[0].lag_ms == 800
