"""The script that compares policies by TPC-H queries: arrivals, busy cores, pairing, resuming."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.spark import demo, measure, queries, tpch
from benchmarks.spark.cores import (
    QueryProfile,
    Spans,
    busy_ms,
    busy_share,
    idle_while_waiting_share,
    plans_of_queries,
    query_profile,
    read_log,
)
from benchmarks.spark.tpch_result import AGAIN, draw, print_result, read_result
from benchmarks.spark.work import Work

from parcae.base.errors import ConfigError, FormatError
from parcae.spark.home import SparkHome
from parcae.workloads.archive import write_workload
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload
from tests.workloads.spark_log_builder import (
    executor,
    job_end,
    job_start,
    ran,
    stage_info,
    to_bytes,
)


def _args(work: Path, words: str = "", **changes: Any) -> Any:
    options = f"--work {work} --policies fifo,fair,srpt --queries 3 --seeds 2 --cores 2 {words}"
    args = tpch.parser().parse_args(options.split())
    vars(args).update(changes)
    return args


def _spans(*spans: tuple[float, float]) -> Spans:
    table = np.array(spans, np.float64).reshape(-1, 2)
    return Spans(table[:, 0], table[:, 1])


def _record(seed: int, policy: str, repeat: int, seconds: Sequence[float]) -> dict[str, Any]:
    shares = ("busy_share", "makespan_busy_share")
    shares += ("idle_while_waiting_share", "unused_while_waiting_share")
    return {
        "seed": seed,
        "policy": policy,
        "repeat": repeat,
        "gap_s": 1.0,
        "endings": [
            {"query": 1 + row, "arrival_s": 1.0 * row, "seconds": s, "rows": 1, "digest": 7}
            for row, s in enumerate(seconds)
        ],
        "makespan_s": max(row + s for row, s in enumerate(seconds)),
        "use": {**dict.fromkeys(shares, 0.5), "task_s": 10.0},
        "num_wrong": 0,
        "num_silences": int(policy == "srpt"),
        "known_share": 1.0,
        "wall_s": 9.0,
        "driver_cpu_s": 3.0,
        "service_cpu_s": 0.0,
        "other_cores": 0.5,
        "load": [1.0, 1.5],
        "spark": "4.3.0",
    }


# What arrives when.


def test_every_seed_has_the_same_queries_in_the_same_time_in_another_order() -> None:
    one, other, slow = (
        tpch.draw_arrivals(44, seed, gap_s)
        for seed, gap_s in ((1000, 2.0), (1001, 2.0), (1000, 8.0))
    )
    for arrivals in (one, other):
        assert sorted(arrival.query for arrival in arrivals) == sorted([*range(1, 23)] * 2)
        times = [arrival.at_s for arrival in arrivals]
        assert times == sorted(times)
        assert (times[0], times[-1]) == (0.0, pytest.approx(43 * 2.0))
    assert [arrival.query for arrival in one] != [arrival.query for arrival in other]
    assert [arrival.query for arrival in one] == [arrival.query for arrival in slow]
    assert [arrival.at_s for arrival in slow] == pytest.approx([4 * a.at_s for a in one])


def test_the_policies_of_a_seed_run_in_random_order_with_repeats_of_fair(tmp_path: Path) -> None:
    runs = tpch.judged_runs(_args(tmp_path, seeds=20, repeats=2))
    blocks = [runs[first : first + 5] for first in range(0, len(runs), 5)]
    for seed, block in enumerate(blocks, 1000):
        assert {run[0] for run in block} == {seed}
        found = sorted(run[1:] for run in block)
        assert found == [("fair", 0), ("fair", 1), ("fair", 2), ("fifo", 0), ("srpt", 0)]
    assert len({tuple(run[1:] for run in block) for block in blocks}) > 5
    assert tpch.run_name(1, "parcae+account", 2) == "seed-1-parcae_account-again-2"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (tpch, "--policies fair,fair"),
        (tpch, "--scale-factor 0"),
        (tpch, "--load 1"),
        (tpch, "--queries 1"),
        (tpch, "--seed-start 900000"),
        (tpch, "--gap nan"),
        (tpch, "--cores 0"),
        (tpch, "--conf spark.sql.ansi.enabled"),
        (tpch, "--conf spark.driver.memory=2g"),
        (tpch, "--conf spark.eventLog.enabled=true"),
        (measure, "--scale-factors 0"),
        (measure, "--repetitions 0"),
        (measure, "--queries 23"),
        (demo, "--time-scale inf"),
        (demo, "--seeds 0"),
        (demo, "--policies a,,b"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    script: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        script.parser().parse_args(words.split())
    assert words.split()[0] in capsys.readouterr().err


# Busy cores.


def test_busy_time_is_that_within_the_window() -> None:
    tasks = _spans((0, 10), (5, 20), (30, 40))
    assert busy_ms(tasks, 2, 8) == 6 + 3
    assert busy_share(tasks, 2, 0, 20) == 25 / 40
    assert busy_share(tasks, 2, 20, 20) == 0


def test_without_proc_the_cores_of_others_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    for reader in ("process_cpu_s", "_machine_cpu_s"):
        monkeypatch.setattr(queries, reader, lambda *_: math.nan)
    read = queries._meters(1)()
    assert read["python_cpu_s"] >= 0
    assert math.isnan(read["jvm_cpu_s"])
    assert math.isnan(read["other_cores"])


def test_idle_time_is_as_a_plain_count_says() -> None:
    """Whole milliseconds, counted one by one: idle cores count as far as tasks wait."""
    rng = np.random.default_rng(3)
    starts = rng.integers(0, 90, (2, 30))
    lengths = rng.integers(0, 12, (2, 30))
    tasks, waiting = np.stack([starts, starts + lengths], axis=2).tolist()
    idle = 0
    for at in range(10, 80):
        running, waits = (sum(s <= at < f for s, f in kind) for kind in (tasks, waiting))
        idle += min(max(0, 4 - running), waits)
    share = idle_while_waiting_share(_spans(*tasks), _spans(*waiting), 4, 10, 80)
    assert share == pytest.approx(idle / (4 * 70))
    assert idle_while_waiting_share(_spans(*tasks), _spans(), 2, 10, 10) == 0


def _write_log(folder: Path, runs: list[tuple[str, int]], cut: Sequence[str] = ()) -> Path:
    """Queries of one stage of two tasks (name, ms of each) on one core, every 10 s.

    The end of the stages of the plans `cut` is missing. A name is that of a query, and for another
    plan of the query a letter: q1 and q1b.
    """
    events = [executor(cores=1)]
    for number, (name, task_ms) in enumerate(runs):
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


def test_the_profile_says_which_job_every_query_is(tmp_path: Path) -> None:
    logs = _write_log(tmp_path / "log", [("q6", 30), ("q1", 100), ("other", 5), ("q1", 120)])
    plans = plans_of_queries([read_log(logs)])
    names = {query: dict(found) for query, found in plans.items()}
    assert names == {6: {"text of job q6": 1}, 1: {"text of job q1": 2}}
    profile = query_profile([logs])
    assert [job.name for job in profile.workload.jobs] == ["text of job q6", "text of job q1"]
    assert [job.work_ms for job in profile.workload.jobs] == [60, 220]
    assert profile.job_of_query == {1: 1, 6: 0}
    assert profile.knows(read_log(logs)) == 1.0
    assert profile.knows(read_log(_write_log(tmp_path / "next", [("q1", 9), ("q2", 9)]))) == 0.5


def test_the_job_of_a_query_is_the_most_frequent_plan_of_which_a_run_is_kept(
    tmp_path: Path,
) -> None:
    runs = [("q1", 100), ("q1", 100), ("q1b", 100), ("q6", 30)]
    profile = query_profile([_write_log(tmp_path / "log", runs, cut=["q1"])])
    assert [profile.workload.jobs[profile.job_of_query[q]].name for q in (1, 6)] == [
        "text of job q1b",
        "text of job q6",
    ]
    with pytest.raises(FormatError, match=r"none: no run of query q1 can be used"):
        query_profile([_write_log(tmp_path / "none", runs, cut=["q1", "q1b"])])


# The arrival rate.


def test_the_gap_follows_how_busy_the_cores_were() -> None:
    assert tpch.next_gap([(99.0, 0.1), (10.0, 0.6)], 0.8) == pytest.approx(7.5)
    assert tpch.next_gap([(10.0, 0.1)], 0.8) == 5.0  # by at most 2
    points = [(20.0, 0.4), (10.0, 0.79), (9.9, 0.81)]
    assert tpch.is_found(points, 0.8)
    assert not tpch.is_found(points[:2], 0.8)
    assert tpch.fitted_gap(points, 0.8) == pytest.approx((10 * 0.79 * 9.9 * 0.81) ** 0.5 / 0.8)
    assert tpch.fitted_gap([(20.0, 0.4)], 0.8) == 10.0
    found = {"gap_s": 2.5, "points": [(2.0, 0.9), (2.5, 0.8)]}
    for load, is_guess in ((0.8, False), (0.3, True), (None, False)):
        assert ("guess" in tpch.described(found, load)) == is_guess


def test_fifo_goes_by_spark_jobs_where_every_stage_is_one() -> None:
    assert tpch.simulated_name("fifo", {}) == "fifo:spark-jobs"
    assert tpch.simulated_name("fifo", {"spark.sql.adaptive.enabled": "false"}) == "fifo"
    assert tpch.simulated_name("srpt", {}) == "srpt"


# Pairing and merging.


_FIRST = {
    (1000, "fair", 0): (2.0, 4.0, 6.0),
    (1000, "fair", 1): (2.0, 4.6, 6.0),
    (1000, "fifo", 0): (8.0, 8.0, 8.0),
    (1000, "srpt", 0): (1.0, 4.0, 7.0),
    (1001, "srpt", 0): (1.0, 1.0, 1.0),
}


def _write_runs(folder: Path, runs: dict[tuple[int, str, int], Any], load: float = 0.8) -> None:
    work = Work(folder, {"queries": 3, "scale_factor": 1.0, "cores": 2, "load": load})
    for key, seconds in runs.items():
        record = seconds if isinstance(seconds, dict) else _record(*key, seconds)
        work.kept(f"runs/{tpch.run_name(*key)}", lambda record=record: record)


def test_policies_are_paired_with_fair_by_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_runs(tmp_path / "a", _FIRST)
    policies = read_result([tmp_path / "a"])["policies"]
    assert list(policies) == ["fair", AGAIN, "fifo", "srpt"]
    srpt = policies["srpt"]
    assert srpt["seeds"] == [1000]  # FAIR has not run seed 1001 yet
    assert srpt["ratio_to_fair"]["mean"] == pytest.approx(1.0)
    assert srpt["ratio_to_fifo"]["mean"] == pytest.approx(0.5)
    later = "later_than_first_by_10_percent_share"
    assert srpt["pays"][later]["mean"] == pytest.approx(1 / 3)
    assert srpt["pays"]["worst_ratio_to_first"] == pytest.approx(7 / 6)
    assert policies[AGAIN]["ratio_to_fair"]["mean"] == pytest.approx(12.6 / 12)
    assert (srpt["num_silences"], policies["fifo"]["num_silences"]) == (1, 0)
    fair = {(1001, policy, 0): s for (seed, policy, again), s in _FIRST.items() if not again}
    _write_runs(tmp_path / "b", {key: s for key, s in fair.items() if key[1] == "fair"})
    result = read_result([tmp_path / "a", tmp_path / "b"])
    assert result["policies"]["srpt"]["seeds"] == [1000, 1001]
    assert result["policies"]["srpt"]["ratio_to_fair"]["mean"] == pytest.approx((4 + 1) / (4 + 4))
    draw(result, tmp_path / "ratios.png")
    assert (tmp_path / "ratios.png").read_bytes().startswith(b"\x89PNG")
    print_result(result)
    assert "srpt: 16.7% of the jobs end more than 5% later" in capsys.readouterr().out


# Resuming.


def test_a_finished_folder_needs_no_spark_and_a_stopped_one_only_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = _args(tmp_path, "--repeats 0")
    home = SparkHome(tmp_path, "4.3.0", "2.13")
    work = Work(tmp_path)
    write_workload(Workload("w", (chain(1, 2, 10, "plan-1"),)), tmp_path / "profile.parcae")
    kept = {"profile": {}, "earlier/alone": [], "calibration": {"gap_s": 1.0, "points": []}}
    for name, content in kept.items():
        work.kept(name, lambda content=content: content)
    ran_now: list[tuple[int, str, int]] = []

    def run_now(_: Any, seed: int, policy: str, again: int, gap_s: float, name: str) -> Any:
        assert (gap_s, name) == (1.0, tpch.run_name(seed, policy, again))
        ran_now.append((seed, policy, again))
        if len(ran_now) == 4:
            raise KeyboardInterrupt
        return _record(seed, policy, again, (1.0, 2.0, 3.0))

    monkeypatch.setattr(tpch.Study, "_measure", run_now)

    def run(args: Any) -> None:
        with tpch.Study(args, home) as study:
            study.prepare()
            study.judge()

    with pytest.raises(KeyboardInterrupt):
        run(args)
    assert json.loads((tmp_path / "policies" / "srpt.json").read_text())
    runs = tpch.judged_runs(args)
    run(args)
    assert ran_now == [*runs[:4], *runs[3:]]
    assert len(read_result([tmp_path])["policies"]) == 3
    run(args)
    assert len(ran_now) == 7
    with pytest.raises(ConfigError, match=r"a query every 1\.000 s, not every 2\.000 s"):
        run(_args(tmp_path, "--repeats 0 --gap 2"))
    with pytest.raises(ConfigError, match="differ in cores"):
        run(_args(tmp_path, "--cores 3"))


def test_what_was_measured_is_simulated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = _args(tmp_path, "--policies fair,srpt --seeds 1")
    work = Work(tmp_path)
    work.kept("calibration", lambda: {"gap_s": 1.0, "points": []})
    study = tpch.Study(args, SparkHome(tmp_path, "4.3.0", "2.13"))
    jobs = tuple(chain(row, 2, 100 * row, f"plan-{row}") for row in (1, 2, 3))
    study.profile = QueryProfile(Workload("w", jobs), {1: 0, 2: 1, 3: 2})
    study.foretell()
    said = [json.loads(path.read_text()) for path in sorted((tmp_path / "foretold").iterdir())]
    assert [(one["seed"], one["policy"]) for one in said] == [(1000, "fair"), (1000, "srpt")]
    assert all(one["mean_s"] > 0 for one in said)
    monkeypatch.setattr(tpch.Study, "_simulated", lambda *_: 1 / 0)
    study.foretell()


def test_a_policy_whose_file_changed_does_not_go_on_in_the_same_folder(tmp_path: Path) -> None:
    rule = tmp_path / "rule.safetensors"
    home = SparkHome(tmp_path, "4.3.0", "2.13")
    args = _args(tmp_path / "work", f"--policies fair,{rule}")
    for content in (b"one", b"one"):
        rule.write_bytes(content)
        tpch.Study(args, home)
    rule.write_bytes(b"another")
    with pytest.raises(ConfigError, match=r"rule\.safetensors is not what it was"):
        tpch.Study(args, home)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--policies srpt", "needs fair"),
        ("--jar nowhere.jar", "nowhere.jar does not exist"),
        ("--merge nowhere", "nowhere is no work folder"),
    ],
)
def test_a_command_that_cannot_run_says_why(words: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        tpch.main(_args(tmp_path, words))
    assert list(tmp_path.iterdir()) == []
