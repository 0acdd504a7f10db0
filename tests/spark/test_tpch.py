"""Tests of the TPC-H study: arrivals, busy cores, the arrival rate, pairing, resuming."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from parcae.base.errors import ConfigError, FormatError
from parcae.cli.spark import app
from parcae.spark import tpch_spark, tpch_study
from parcae.spark.home import SparkHome
from parcae.spark.tpch_busy import TaskTimes, Waits, busy_ms, busy_share, idle_while_waiting_share
from parcae.spark.tpch_calibration import Calibrated, calibration_of, fitted_gap, is_found, next_gap
from parcae.spark.tpch_foretold import simulated_name
from parcae.spark.tpch_log import (
    CoreUse,
    core_use,
    plans_of_queries,
    profile_of,
    query_profile,
    read_log,
)
from parcae.spark.tpch_plan import RunKey, TpchConfig, draw_arrivals, judged_runs
from parcae.spark.tpch_record import (
    RunRecord,
    check_policy_files,
    check_settings,
    read_record,
    record_path,
)
from parcae.spark.tpch_result import AGAIN, draw, read_result
from parcae.spark.tpch_spark import Ending
from parcae.workloads.archive import write_workload
from parcae.workloads.job import Workload
from parcae.workloads.synthetic import chain
from tests.workloads.spark_log_builder import (
    executor,
    job_end,
    job_start,
    ran,
    stage_info,
    to_bytes,
)

_USE = CoreUse(0.8, 0.7, 0.01, 0.02, 10.0, 5.0, 40)


def _config(**changes: Any) -> TpchConfig:
    own = {"policies": ("fifo", "fair", "srpt"), "num_queries": 3, "seeds": 2}
    return TpchConfig(**{**own, **changes})


def _times(kind: type, *spans: tuple[float, float]) -> Any:
    table = np.array(spans, np.float64).reshape(-1, 2)
    return kind(table[:, 0], table[:, 1])


def _record(key: RunKey, seconds: tuple[float, ...], **changes: Any) -> RunRecord:
    endings = tuple(Ending(1 + row, 1.0 * row, 0.0, s, 1, 7) for row, s in enumerate(seconds))
    record = RunRecord(
        key=key,
        gap_s=1.0,
        endings=endings,
        use=_USE,
        wrong=(),
        known_share=1.0,
        setup_s=2.0,
        wall_s=9.0,
        driver_cpu_s=3.0,
        python_cpu_s=0.1,
        service_cpu_s=0.0,
        other_cores=0.5,
        load=(1.0, 1.5),
        plugin_lines=("parcae: on",),
        spark="4.3.0",
        at="2026-01-02T03:04:05+00:00",
    )
    return replace(record, **changes)


# What arrives when.


def test_every_seed_has_the_same_queries_in_the_same_time_in_another_order() -> None:
    config = _config(num_queries=44)
    one, other = (draw_arrivals(config, seed, 2.0) for seed in (1000, 1001))
    for arrivals in (one, other):
        assert sorted(arrival.query for arrival in arrivals) == sorted([*range(1, 23)] * 2)
        times = [arrival.at_s for arrival in arrivals]
        assert times[0] == 0.0
        assert times == sorted(times)
        assert times[-1] == pytest.approx(43 * 2.0)
    assert [arrival.query for arrival in one] != [arrival.query for arrival in other]
    assert one == draw_arrivals(config, 1000, 2.0)


def test_another_gap_changes_the_pace_only() -> None:
    slow, fast = (draw_arrivals(_config(num_queries=10), 5, gap_s) for gap_s in (4.0, 1.0))
    assert [arrival.query for arrival in slow] == [arrival.query for arrival in fast]
    quarter = [arrival.at_s / 4 for arrival in slow]
    assert quarter == pytest.approx([arrival.at_s for arrival in fast])


def test_the_policies_of_a_seed_run_in_random_order_with_repeats_of_fair() -> None:
    runs = judged_runs(_config(seeds=20, repeats=2))
    blocks = [runs[first : first + 5] for first in range(0, len(runs), 5)]
    for seed, block in enumerate(blocks, 1000):
        assert {key.seed for key in block} == {seed}
        keys = sorted((key.policy, key.repeat) for key in block)
        assert keys == [("fair", 0), ("fair", 1), ("fair", 2), ("fifo", 0), ("srpt", 0)]
    assert len({tuple((key.policy, key.repeat) for key in block) for block in blocks}) > 5


def test_runs_have_files_of_their_own() -> None:
    guarded = RunKey(1, "parcae+guard:1.1")
    keys = [guarded, RunKey(1, "fair"), RunKey(1, "fair", 1), RunKey(2, "fair")]
    names = [key.file_name for key in keys]
    assert names == ["seed-1-parcae_guard_1.1", "seed-1-fair", "seed-1-fair-again-1", "seed-2-fair"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": ("fifo",)}, "needs fair"),
        ({"policies": ("fair", "fair")}, "twice"),
        ({"scale_factor": 0}, "--scale-factor is 0"),
        ({"load": 1.0}, "--load is 1"),
        ({"num_queries": 1}, "--queries is 1"),
        ({"seed_start": 900_000}, "below 900000"),
        ({"gap_s": 0.0}, "--gap is 0"),
        ({"gap_s": float("nan")}, "--gap is nan"),
        ({"cores": 0}, "--cores is 0"),
        ({"repeats": -1}, "--repeats is -1"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _config(**changes)


# Busy cores.


def test_busy_time_is_that_within_the_window() -> None:
    tasks = _times(TaskTimes, (0, 10), (5, 20), (30, 40))
    assert busy_ms(tasks, 2, 8) == 6 + 3
    assert busy_share(tasks, 2, 0, 20) == 25 / 40
    assert busy_share(tasks, 2, 20, 20) == 0


def test_without_proc_the_cores_of_others_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    for reader in ("process_cpu_s", "_machine_cpu_s"):
        monkeypatch.setattr(tpch_spark, reader, lambda *_: math.nan)
    jvm_s, own_s, other_cores = tpch_spark._Meters(1).read()
    assert own_s >= 0
    assert math.isnan(jvm_s)
    assert math.isnan(other_cores)


def test_cores_that_are_idle_count_as_far_as_tasks_wait() -> None:
    tasks = _times(TaskTimes, (0, 10))
    assert idle_while_waiting_share(tasks, _times(Waits, (4, 6)), 2, 0, 10) == 2 / 20
    many = _times(Waits, (4, 6), (4, 6), (5, 6))
    assert idle_while_waiting_share(tasks, many, 2, 0, 10) == 2 / 20  # one idle core
    assert idle_while_waiting_share(tasks, many, 4, 0, 10) == (1 * 2 + 1 * 3) / 40
    assert idle_while_waiting_share(tasks, many, 1, 0, 10) == 0  # the one core is busy
    assert idle_while_waiting_share(tasks, _times(Waits), 2, 0, 10) == 0
    assert idle_while_waiting_share(tasks, many, 2, 10, 10) == 0


def test_idle_time_is_as_a_plain_count_says() -> None:
    """Whole milliseconds, counted one by one."""
    rng = np.random.default_rng(3)
    starts = rng.integers(0, 90, (2, 30))
    lengths = rng.integers(0, 12, (2, 30))
    spans = np.stack([starts, starts + lengths], axis=2).tolist()
    tasks, waiting = ([(s, f) for s, f in kind] for kind in spans)
    idle = 0
    for at in range(10, 80):
        running, waits = (sum(s <= at < f for s, f in kind) for kind in (tasks, waiting))
        idle += min(max(0, 4 - running), waits)
    share = idle_while_waiting_share(_times(TaskTimes, *tasks), _times(Waits, *waiting), 4, 10, 80)
    assert share == pytest.approx(idle / (4 * 70))


def _write_log(folder: Path, queries: list[tuple[str, int]], cut: Sequence[str] = ()) -> Path:
    """Queries of one stage of two tasks (name, ms of each) on one core, every 10 s.

    The end of the stages of the plans `cut` is missing. A name is that of a query, and for another
    plan of the query a letter: q1 and q1b.
    """
    events = [executor(cores=1)]
    for number, (name, task_ms) in enumerate(queries):
        start = number * 10_000
        info = stage_info(number, 2, scope=f"scan {name}")
        own = {"parcae_query": name.rstrip("b")} if name.startswith("q") else {}
        own["spark_job_description"] = f"text of job {name}"
        started = job_start(number, start, [info], **own)
        tasks = ran(info, start, start + 2 * task_ms)
        events += [started, *(tasks[:-1] if name in cut else tasks), job_end(number)]
    folder.mkdir(parents=True)
    (folder / "log").write_bytes(to_bytes(events))
    return folder


def test_the_log_of_a_run_tells_how_busy_the_cores_were(tmp_path: Path) -> None:
    logs = _write_log(tmp_path / "log", [("q1", 1_000), ("q6", 3_000)])
    use = core_use(logs, 2, first_ms=0.0, arrivals_s=10.0, makespan_s=16.0)
    assert use.busy_share == pytest.approx(2 / 20)
    assert use.makespan_busy_share == pytest.approx(8 / 32)
    # The second task of each waits beside an idle core.
    assert use.idle_while_waiting_share == pytest.approx((1 + 3) / 32)
    assert (use.task_s, use.num_tasks) == (8.0, 4)


def test_the_profile_says_which_job_every_query_is(tmp_path: Path) -> None:
    logs = _write_log(tmp_path / "log", [("q6", 30), ("q1", 100), ("other", 5), ("q1", 120)])
    plans = plans_of_queries([read_log(logs)])
    names = {query: dict(found) for query, found in plans.items()}
    assert names == {6: {"text of job q6": 1}, 1: {"text of job q1": 2}}
    profile = query_profile([logs])
    assert [job.name for job in profile.workload.jobs] == ["text of job q6", "text of job q1"]
    assert profile.job_of_query == {1: 1, 6: 0}
    profile.write(tmp_path)
    kept = profile_of(tmp_path)
    assert kept.job_of_query == {1: 1, 6: 0}
    assert [job.work_ms for job in kept.workload.jobs] == [60, 220]
    assert kept.knows(read_log(logs)) == 1.0
    assert kept.knows(read_log(_write_log(tmp_path / "next", [("q1", 9), ("q2", 9)]))) == 0.5


def test_the_job_of_a_query_is_the_most_frequent_plan_of_which_a_run_is_kept(
    tmp_path: Path,
) -> None:
    runs = [("q1", 100), ("q1", 100), ("q1b", 100), ("q6", 30)]
    profile = query_profile([_write_log(tmp_path / "log", runs, cut=["q1"])])
    assert [profile.workload.jobs[profile.job_of_query[q]].name for q in (1, 6)] == [
        "text of job q1b",
        "text of job q6",
    ]
    logs = _write_log(tmp_path / "none", runs, cut=["q1", "q1b"])
    with pytest.raises(FormatError, match=r"none: no run of query q1 can be used"):
        query_profile([logs])


# The arrival rate.


def test_the_next_gap_follows_how_busy_the_last_one_kept_the_cores() -> None:
    assert next_gap([(99.0, 0.1), (10.0, 0.6)], 0.8) == pytest.approx(7.5)
    assert next_gap([(10.0, 0.1)], 0.8) == 5.0  # by at most 2


def test_the_gap_is_what_the_runs_near_the_load_speak_for() -> None:
    points = [(20.0, 0.4), (10.0, 0.79), (9.9, 0.81)]
    assert is_found(points, 0.8)
    assert not is_found(points[:2], 0.8)
    assert fitted_gap(points, 0.8) == pytest.approx((10 * 0.79 * 9.9 * 0.81) ** 0.5 / 0.8)
    assert fitted_gap([(20.0, 0.4)], 0.8) == 10.0


def test_a_calibration_says_where_it_found_nothing(tmp_path: Path) -> None:
    assert calibration_of(tmp_path) is None
    found = Calibrated(2.5, ((2.0, 0.9), (2.5, 0.8)))
    found.write(tmp_path)
    assert calibration_of(tmp_path) == found
    assert "guess" not in found.describe(0.8)
    assert "none of these is near 30%, so the rate is a guess" in found.describe(0.3)
    assert "guess" not in found.describe(None)


def test_fifo_goes_by_spark_jobs_where_every_stage_is_one() -> None:
    assert simulated_name("fifo", is_adaptive=True) == "fifo:spark-jobs"
    assert simulated_name("fifo", is_adaptive=False) == "fifo"
    assert simulated_name("srpt", is_adaptive=True) == "srpt"
    assert _config().is_adaptive
    assert not _config(conf={"spark.sql.adaptive.enabled": "false"}).is_adaptive


# Records, pairing, merging.


_Runs = dict[tuple[int, str, int], tuple[float, ...]]


def _write_runs(work: Path, runs: _Runs, **changes: Any) -> None:
    check_settings(_config(**changes), work)
    for (seed, policy, repeat), seconds in runs.items():
        key = RunKey(seed, policy, repeat)
        _record(key, seconds).write(record_path(work, key))


_FIRST = {
    (1000, "fair", 0): (2.0, 4.0, 6.0),
    (1000, "fair", 1): (2.0, 4.6, 6.0),
    (1000, "fifo", 0): (8.0, 8.0, 8.0),
    (1000, "srpt", 0): (1.0, 4.0, 7.0),
    (1001, "srpt", 0): (1.0, 1.0, 1.0),
}


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = _record(RunKey(7, "fair", 1), (1.0, 2.5))
    path = record_path(tmp_path, record.key)
    record.write(path)
    assert read_record(path) == record
    assert record.makespan_s == 3.5
    path.write_text(json.dumps({"key": {}}))
    with pytest.raises(FormatError, match="remove it to run it again"):
        read_record(path)


def test_policies_are_paired_with_fair_by_seed(tmp_path: Path) -> None:
    _write_runs(tmp_path, _FIRST)
    key = RunKey(1000, "srpt")
    lines = ("INFO parcae: on, srpt", "WARN parcae: no orders for 6000 ms")
    _record(key, _FIRST[1000, "srpt", 0], plugin_lines=lines).write(record_path(tmp_path, key))
    result = read_result([tmp_path])
    assert list(result.policies) == ["fair", AGAIN, "fifo", "srpt"]
    srpt = result.policies["srpt"]
    assert srpt.seeds == (1000,)  # FAIR has not run seed 1001 yet
    assert srpt.ratio_to_fair.mean == pytest.approx(1.0)
    assert srpt.ratio_to_fifo is not None
    assert srpt.ratio_to_fifo.mean == pytest.approx(0.5)
    assert srpt.pays.later_than_promise_share.mean == pytest.approx(1 / 3)
    assert srpt.pays.worst_later == pytest.approx(7 / 6)
    again = result.policies[AGAIN]
    assert again.pays.later_than_promise_share.mean == pytest.approx(1 / 3)
    assert again.ratio_to_fair.mean == pytest.approx(12.6 / 12)
    assert (srpt.num_silences, result.policies["fifo"].num_silences) == (1, 0)
    content = json.loads(json.dumps(result.to_json()))
    assert content["policies"]["srpt"]["ratio_to_fair"]["mean"] == pytest.approx(1.0)
    assert content["seconds"]["fifo"] == [8.0, 8.0, 8.0]


def test_folders_with_seeds_of_their_own_are_one_result(tmp_path: Path) -> None:
    second = {}
    for (seed, policy, repeat), seconds in _FIRST.items():
        if (seed, policy) == (1000, "fair"):
            second[1001, policy, repeat] = seconds
    _write_runs(tmp_path / "a", _FIRST)
    _write_runs(tmp_path / "b", second)
    result = read_result([tmp_path / "a", tmp_path / "b"])
    assert result.policies["srpt"].seeds == (1000, 1001)
    assert result.policies["srpt"].ratio_to_fair.mean == pytest.approx((4 + 1) / (4 + 4))
    draw(result, tmp_path / "ratios.png")
    assert (tmp_path / "ratios.png").read_bytes().startswith(b"\x89PNG")


def test_folders_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    _write_runs(tmp_path / "a", _FIRST)
    _write_runs(tmp_path / "b", _FIRST)
    with pytest.raises(ConfigError, match="in another folder, too"):
        read_result([tmp_path / "a", tmp_path / "b"])
    _write_runs(tmp_path / "c", _FIRST, load=0.5)
    with pytest.raises(ConfigError, match=r"differ in load: 0\.8 and 0\.5"):
        read_result([tmp_path / "a", tmp_path / "c"])
    with pytest.raises(ConfigError, match="no work folder"):
        read_result([tmp_path])
    _write_runs(tmp_path / "d", {(1000, "fifo", 0): (1.0,)})
    with pytest.raises(ConfigError, match="no run under fair"):
        read_result([tmp_path / "d"])


def test_runs_of_other_arrivals_are_not_paired(tmp_path: Path) -> None:
    _write_runs(tmp_path, _FIRST)
    key = RunKey(1000, "srpt")
    record = _record(key, (1.0, 4.0, 7.0))
    late = tuple(replace(ending, arrival_s=ending.arrival_s + 1) for ending in record.endings)
    replace(record, endings=late).write(record_path(tmp_path, key))
    with pytest.raises(ConfigError, match="not given the same queries at the same times"):
        read_result([tmp_path])


# Resuming.


def test_a_finished_folder_needs_no_spark_and_a_stopped_one_only_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(repeats=0)
    check_settings(config, tmp_path)
    (tmp_path / "data-sf1").mkdir()
    (tmp_path / "queries.json").write_text("{}")
    write_workload(Workload("w", (chain(1, 2, 10, "plan-1"),)), tmp_path / "profile.parcae")
    (tmp_path / "profile.json").write_text("{}")
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "alone.json").write_text("[]")
    Calibrated(1.0, ((1.0, 0.8),)).write(tmp_path)
    ran_now: list[RunKey] = []

    def measure(_: Any, key: RunKey, gap_s: float, name: str) -> RunRecord:
        assert (gap_s, name) == (1.0, key.file_name)
        ran_now.append(key)
        if len(ran_now) == 4:
            raise KeyboardInterrupt
        return _record(key, (1.0, 2.0, 3.0))

    started: list[int] = []
    monkeypatch.setattr(tpch_study._Study, "_measure", measure)
    monkeypatch.setattr(tpch_study._Study, "_spark", property(lambda _: started.append(1)))
    reports: list[tuple[str, float]] = []

    def run(config: TpchConfig) -> None:
        home = SparkHome(tmp_path, "4.3.0", "2.13")
        tpch_study.run_tpch(
            config, home, tmp_path, lambda text, share: reports.append((text, share))
        )

    with pytest.raises(KeyboardInterrupt):
        run(config)
    assert list((tmp_path / "policies").iterdir()) == [tmp_path / "policies" / "srpt.json"]
    assert reports[3][0].startswith("seed 1001")
    assert reports[3][1] == 0.5
    run(config)
    assert ran_now == [*judged_runs(config)[:4], *judged_runs(config)[3:]]
    assert len(read_result([tmp_path]).policies) == 3
    run(config)
    assert len(ran_now) == 7
    assert len(started) == 2
    with pytest.raises(ConfigError, match=r"a query every 1\.000 s, not every 2\.000 s"):
        run(replace(config, gap_s=2.0))
    with pytest.raises(ConfigError, match="differ in cores"):
        check_settings(replace(config, cores=3), tmp_path)


def test_a_policy_whose_file_changed_does_not_go_on_in_the_same_folder(tmp_path: Path) -> None:
    rule = tmp_path / "rule.safetensors"
    rule.write_bytes(b"one")
    config = _config(policies=("fair", str(rule)))
    check_settings(config, tmp_path / "work")
    check_policy_files(config, tmp_path / "work")
    check_policy_files(_config(), tmp_path / "work")
    check_policy_files(config, tmp_path / "work")
    rule.write_bytes(b"another")
    home = SparkHome(tmp_path, "4.3.0", "2.13")
    with pytest.raises(ConfigError, match=r"rule\.safetensors is not what it was"):
        tpch_study.run_tpch(config, home, tmp_path / "work", lambda *_: None)


# The command.


def test_the_command_shows_and_draws_what_was_merged(tmp_path: Path) -> None:
    second = {(seed + 1, policy, repeat): s for (seed, policy, repeat), s in _FIRST.items()}
    _write_runs(tmp_path / "a", {key: s for key, s in _FIRST.items() if key[0] == 1000})
    _write_runs(tmp_path / "b", {key: s for key, s in second.items() if key[0] == 1001})
    words = ["tpch", "--merge", str(tmp_path / "a"), "--merge", str(tmp_path / "b")]
    words += ["--json", str(tmp_path / "x.json")]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "x.json").read_text())["policies"]
    assert content["srpt"]["seeds"] == [1000, 1001]
    assert "0.500 [0.500, 0.500]" in done.output  # srpt's ratio to fifo, the same on both seeds
    assert "33.3%" in done.output
    assert (tmp_path / "a" / "ratios.png").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policies", "srpt"], "needs fair"),
        (["--conf", "spark.sql.ansi.enabled"], "write NAME=VALUE"),
        (["--jar", "nowhere.jar"], "nowhere.jar does not exist"),
        (["--merge", "nowhere"], "nowhere is no work folder"),
        (["--merge", "nowhere", "--no-foretell"], "-foretell has no effect here"),
        (["--seeds", "0", "--json", "x.json"], "--json has no effect here"),
        (["--seeds", "0", "--picture", "x.png"], "--picture has no effect here"),
    ],
)
def test_a_command_that_cannot_run_says_why(words: list[str], message: str, tmp_path: Path) -> None:
    work = [] if "--merge" in words else ["--work", str(tmp_path)]
    done = CliRunner().invoke(app, ["tpch", *work, *words])
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
    assert list(tmp_path.iterdir()) == []
