"""What went wrong in an application, from its event log to simulated faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.base.errors import ConfigError, FormatError, WorkloadError
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.faults import Faults, check_losses, parse_faults, resolve_faults
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.describe import describe_workload, fingerprint
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, LoggedFaults, StageSpec, combined
from parcae.workloads.spark_log.application import ApplicationLog
from parcae.workloads.spark_log.event_log import logged_faults, read_spark_event_logs
from parcae.workloads.spark_log.events import add_event
from parcae.workloads.workload import Workload
from tests.conftest import job
from tests.workloads.spark_log_builder import (
    executor,
    job_end,
    job_start,
    removed,
    stage_completed,
    stage_info,
    task_end,
    to_bytes,
)

_HOUR = 3_600_000


def _log() -> bytes:
    """Two executors of 4 cores for an hour; one is lost after 15 minutes and replaced after 20 s.

    Of five attempts one fails, one is lost with its executor, one is a copy that is killed.
    """
    stage = stage_info(0, 2)
    loss = _HOUR // 4
    return to_bytes(
        [
            executor("1", 4),
            executor("2", 4),
            job_start(0, 0, [stage]),
            task_end(0, 0, 0, 1_000, reason="ExceptionFailure"),
            task_end(0, 0, 1_000, 3_000),
            task_end(0, 1, 0, loss, "2", reason="ExecutorLostFailure"),
            removed("2", loss, "Remote RPC client disassociated. Likely due to containers"),
            {**executor("3", 4), "Timestamp": loss + 20_000},
            task_end(0, 1, loss, loss + 9_000, "1"),
            task_end(0, 1, loss, loss + 9_000, "3", reason="TaskKilled", Speculative=True),
            stage_completed(stage, 0, loss + 9_000),
            job_end(0),
            removed("3", loss + 20_000 + _HOUR // 4, "Executor killed by driver."),
            removed("1", _HOUR - 500, "worker lost"),  # the application ends
            {"Event": "SparkListenerApplicationEnd", "Timestamp": _HOUR},
        ]
    )


def _imported(tmp_path: Path) -> tuple[Workload, tuple[str, ...]]:
    (tmp_path / "log").write_bytes(_log())
    workload, report = read_spark_event_logs([tmp_path / "log"])
    return workload, report.notes


def test_a_log_gives_counts_and_rates(tmp_path: Path) -> None:
    workload, notes = _imported(tmp_path)
    faults = workload.faults
    assert faults == LoggedFaults(
        num_attempts=3,
        num_failed=1,
        num_speculative=1,
        num_lost_executors=1,
        executor_ms=_HOUR - 500 + 2 * _HOUR // 4,
        executor_cores=4,
        num_restarts=1,
        restarts_ms=20_000,
    )
    assert faults.failure_rate == pytest.approx(1 / 3)
    assert faults.lost_per_hour == pytest.approx(1 / 1.5, rel=1e-3)
    (note,) = [note for note in notes if "--faults log" in note]
    assert "failed attempts: 1 of 3 (33.33%); lost executors: 1 in 1.5 executor hours" in note


def _read_log(events: list[dict[str, Any]]) -> ApplicationLog:
    log = ApplicationLog("log")
    for line in to_bytes(events).splitlines():
        add_event(log, line)
    return log


def test_ends_that_spark_does_not_count_as_failures_are_none() -> None:
    ends = ("ExceptionFailure", "TaskCommitDenied", "FetchFailed", "Success", "Success")
    tasks = [task_end(0, row % 2, 0, 1_000, reason=reason) for row, reason in enumerate(ends)]
    for task in tasks:
        task["Task Info"]["Failed"] = task["Task End Reason"]["Reason"] != "Success"
    log = _read_log([executor(), job_start(0, 0, [stage_info(0, 2)]), *tasks])
    faults = logged_faults(log, log.tasks())
    assert (faults.num_failed, faults.num_attempts) == (1, 3)
    assert log.count_attempts(log.tasks()) == {
        "failed": 1,
        "killed": 1,
        "lost with their executor": 0,
        "ended by lost shuffle data": 1,
        "speculative": 0,
    }


def test_an_executor_that_never_came_up_is_not_lost() -> None:
    end = {"Event": "SparkListenerApplicationEnd", "Timestamp": _HOUR}
    crashes = [removed(str(n), n * 1_000, "Command exited with code 1") for n in range(1, 9)]
    log = _read_log([executor("1", 4), *crashes[1:], end])
    assert logged_faults(log, log.tasks()).num_lost_executors == 0


def test_the_rates_of_the_log_are_simulated(tmp_path: Path) -> None:
    workload, _ = _imported(tmp_path)
    found = resolve_faults(Faults(from_log=True, straggler_share=0.1), workload)
    assert found == Faults(
        failure_rate=1 / 3,
        lost_per_hour=_HOUR / (_HOUR - 500 + 2 * _HOUR // 4),
        executor_cores=4,
        restart_s=20,
        straggler_share=0.1,
        speculation=True,
    )


def test_what_is_given_beside_log_holds(tmp_path: Path) -> None:
    workload, _ = _imported(tmp_path)
    given = parse_faults("log,failures=0.2,lost=0,restart=120,executor-cores=16,speculation=off")
    found = resolve_faults(given, workload)
    assert found == Faults(failure_rate=0.2, restart_s=120, executor_cores=16)
    assert resolve_faults(parse_faults("log,lost=0"), workload) == resolve_faults(
        Faults(from_log=True, lost_per_hour=0), workload
    )


@pytest.mark.parametrize("text", ["log", "log,lost=0,speculation=off", "failures=0.2,restart=20"])
def test_settings_that_were_saved_take_as_much_from_the_log(tmp_path: Path, text: str) -> None:
    workload, _ = _imported(tmp_path)
    config = SimulationConfig(world=WorldName.CORES, faults=parse_faults(text))
    saved = json.loads(json.dumps(config.model_dump(mode="json")))
    reloaded = SimulationConfig.model_validate(saved)
    assert str(reloaded.faults) == text
    assert resolve_faults(reloaded.faults, workload) == resolve_faults(config.faults, workload)


def _with_counts(**counts: float) -> Workload:
    logged = LoggedFaults(10, **counts)  # type: ignore[arg-type]
    return Workload("ours", (job("a", (1, 10, ())),), faults=logged)


def test_an_executor_may_be_back_in_the_millisecond_of_its_loss() -> None:
    for counts, restart_s in (({"num_restarts": 3}, 0.001), ({}, 30.0)):
        found = resolve_faults(Faults(from_log=True), _with_counts(**counts, restarts_ms=0))
        assert found is not None
        assert found.restart_s == restart_s


def test_rates_of_a_log_beyond_those_that_can_be_given_are_refused() -> None:
    slow = _with_counts(num_restarts=1, restarts_ms=1e300)
    with pytest.raises(
        WorkloadError, match=r"'ours' have restart=1e\+297: .*--faults log,restart=1"
    ):
        resolve_faults(Faults(from_log=True), slow)
    assert resolve_faults(parse_faults("log,restart=5"), slow) == Faults(restart_s=5)
    many = _with_counts(num_lost_executors=9, executor_ms=1e-3)
    with pytest.raises(WorkloadError, match="lost="):
        resolve_faults(Faults(from_log=True), many)


def test_losses_that_would_end_no_attempt_are_refused() -> None:
    jobs = [job("a", (2, 60_000, ()))]
    check_losses(Faults(lost_per_hour=600), jobs)  # ten losses a minute
    with pytest.raises(ConfigError, match=r"lost 60 times .* \(60 s\).* at most lost=600"):
        check_losses(Faults(lost_per_hour=3_600), jobs)
    with pytest.raises(ConfigError, match=r"\(300 s\).* at most lost=120"):
        check_losses(Faults(lost_per_hour=600, straggler_share=1), jobs)
    # A run may be slower than its profile.
    with pytest.raises(ConfigError, match=r"lost 20 times .* \(120 s\)"):
        check_losses(Faults(lost_per_hour=600), jobs, np.array([2.0]))
    few_long = TaskDurations.of([1_000] * 99 + [1_000_000])
    jobs = [JobSpec("b", (StageSpec(4, few_long),))]
    check_losses(Faults(lost_per_hour=100), jobs)
    with pytest.raises(ConfigError, match=r"\(1,000 s\).* at most lost=36"):
        check_losses(Faults(lost_per_hour=100, redraws=False), jobs)


@pytest.mark.parametrize("task_ms", [41, 2_911, 60_007, 86_399_999])
def test_the_number_of_losses_that_an_error_names_is_accepted(task_ms: int) -> None:
    jobs = [job("a", (2, task_ms, ()))]
    with pytest.raises(ConfigError) as error:
        check_losses(Faults(lost_per_hour=1e6), jobs)
    named = str(error.value).rpartition(" at most ")[2]
    accepted = parse_faults(named)
    assert accepted is not None
    check_losses(accepted, jobs)


def test_a_workload_file_keeps_the_counts_or_their_absence(tmp_path: Path) -> None:
    workload, _ = _imported(tmp_path)
    plain = Workload("plain", (job("a", (1, 10, ())),))
    for written, words in ((workload, "failed attempts: 1 of 3"), (plain, "not known")):
        write_workload(written, tmp_path / "w.parcae")
        again = read_workload(tmp_path / "w.parcae")
        assert again.faults == written.faults
        assert fingerprint(again) == fingerprint(written)
        assert words in describe_workload(again)["faults_in_words"]
    assert describe_workload(workload)["faults"]["num_lost_executors"] == 1


@pytest.mark.parametrize("broken", [{"num_attempts": -1}, {"num_tries": 3}, [1], 3])
def test_broken_counts_in_a_file_are_refused(
    tmp_path: Path, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload, _ = _imported(tmp_path)
    path = tmp_path / "w.parcae"
    monkeypatch.setattr("parcae.workloads.archive.asdict", lambda _: broken)
    write_workload(workload, path)
    with pytest.raises(FormatError, match=r"w\.parcae"):
        read_workload(path)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(WorkloadError, match="3 of 2 attempts"):
        LoggedFaults(2, 3)
    with pytest.raises(WorkloadError, match="negative or not finite"):
        LoggedFaults(2, executor_ms=float("nan"))


def test_applications_add_up() -> None:
    both = combined([LoggedFaults(10, 1, executor_ms=5.0, executor_cores=2), LoggedFaults(20, 2)])
    assert both == LoggedFaults(30, 3, executor_ms=5.0, executor_cores=2)
    assert LoggedFaults(0).failure_rate == LoggedFaults(0).lost_per_hour == 0.0
