from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from parcae.base.arrays import Int64Array
from parcae.base.errors import ConfigError, PolicyError
from parcae.evaluation.comparison import Comparison
from parcae.evaluation.report import headline, write_report
from parcae.policies.checkpoint import write_checkpoint
from parcae.rigid.config import PackingConfig
from parcae.rigid.evaluation import tuning
from parcae.rigid.evaluation.compare import (
    by_user,
    compare_log,
    compare_packing,
    first_outcomes,
    learned_warnings,
    number,
    part_of,
    run_policy,
)
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.logs import read_log
from parcae.rigid.metrics import bounded_slowdown, slowdown
from parcae.rigid.policies.catalog import make_packing_policy, rule_checkpoint
from parcae.rigid.policies.policy import HandMadePolicy
from parcae.rigid.policies.scores import PackingKind, WithholdParameter
from parcae.rigid.sources import DrawnSource, MixedSource, RigidLogSource
from parcae.workloads.workload import TUNING_SEED_START

SOURCE = DrawnSource(rates=(0.7,), window=20)


def log(num_jobs: int = 200, seed: int = 1) -> RigidJobs:
    """A busy cluster of 8 processors."""
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.integers(0, 60 * num_jobs, num_jobs))
    duration = np.where(
        rng.random(num_jobs) < 0.8, rng.integers(1, 30, num_jobs), rng.integers(200, 600, num_jobs)
    )
    demand = rng.integers(1, 5, (num_jobs, 1))
    return RigidJobs("log", arrival, duration, demand, [8], estimate=2 * duration, step="s")


def test_means_are_over_all_jobs_of_all_seeds_and_ratios_are_of_these_means() -> None:
    comparison = compare_packing(SOURCE, ["sjf", "packer"], num_seeds=12)
    means = []
    for result in comparison.policies:
        outcomes = run_policy(
            make_packing_policy(result.name), SOURCE.draw(range(1000, 1012)), SOURCE.config
        )
        values = np.concatenate([slowdown(outcome) for outcome in outcomes])
        means.append(values.mean())
        assert result.estimates["slowdown"].mean == pytest.approx(values.mean())
        assert result.numbers["jobs"] == len(values)
    ratio = comparison.policies[1].ratio_to_first
    assert ratio.mean == pytest.approx(means[1] / means[0])
    assert ratio.low < ratio.mean < ratio.high


def test_seeds_without_a_job_are_no_obstacle() -> None:
    comparison = compare_packing(
        DrawnSource(rates=(0.1,), window=10), ["sjf", "fcfs"], num_seeds=20
    )
    sjf = comparison.policies[0]
    assert sjf.estimates["slowdown"].mean >= 1.0
    busy = [run for run in sjf.runs.iter_rows(named=True) if run["jobs"]]
    num_empty = 20 - len(busy)
    assert num_empty > 0
    assert sjf.numbers["makespan_ratio_to_first"] == 1.0
    assert sjf.numbers["makespan"] == np.mean([run["makespan"] for run in busy])
    shares = [run["utilization"][0] for run in busy]
    assert sjf.numbers["utilization"]["resource 0"] == pytest.approx(np.mean(shares))
    assert f"no job arrives on {num_empty} of 20 seeds" in "\n".join(comparison.notes())


def test_a_policy_that_loses_jobs_is_never_the_best_and_that_is_said() -> None:
    source = DrawnSource(
        rates=(1.0,), window=30, settings=PackingConfig(num_slots=2, backlog_size=2)
    )
    comparison = compare_packing(source, ["fcfs", "sjf"], num_seeds=5)
    assert (comparison.ranked(), comparison.best()) == ([], None)
    assert "\nsjf: 0 jobs never started and" in "\n".join(comparison.notes())
    last = comparison.columns()[-1]
    assert last.heading == "never started"
    assert last.cell(comparison.policies[0]).text != "–"
    assert comparison.world.remark(comparison, None).startswith("Under every policy some jobs")


def test_json_holds_every_measure_and_all_settings_without_nan() -> None:
    comparison = compare_packing(SOURCE, ["sjf", "random"], num_seeds=4, label="load 1.3")
    data = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    own = data["policies"]["random"]
    names = "slowdown ratio_to_first unallocated dropped utilization withheld_share"
    assert {*names.split(), "slowdown_by_size"} <= own.keys()
    assert len(own["slowdown_by_run"]) == 4
    assert data["settings"]["seeds"] == [1000, 1003]
    assert data["settings"]["source"]["rates"] == [0.7]


@pytest.mark.parametrize(
    ("source", "policies", "first", "message"),
    [
        (DrawnSource(rates=(0.0,)), ["sjf"], 0, "no job arrives"),
        (SOURCE, ["sjf"], TUNING_SEED_START, "kept for tuning"),
        (SOURCE, ["sjf", ""], 0, "at least one policy"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    source: DrawnSource, policies: list[str], first: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        compare_packing(source, policies, num_seeds=3, seed_start=first)


def test_a_log_is_one_run_of_its_second_half_with_intervals_over_blocks() -> None:
    jobs = log()
    comparison = compare_log(jobs, ["easy", "sjf"])
    outcome = run_policy(
        make_packing_policy("sjf"), [part_of(jobs, "second")], PackingConfig.for_log(jobs)
    )[0]
    sjf = comparison.policies[1]
    assert comparison.world.main == "bounded_slowdown"
    assert sjf.numbers["jobs"] == 100
    assert sjf.estimates["bounded_slowdown"].mean == pytest.approx(bounded_slowdown(outcome).mean())
    assert not sjf.estimates["bounded_slowdown"].is_unknown
    assert -1 <= sjf.numbers["block_correlation"] <= 1
    assert "batch means" in comparison.settings["intervals"]


def test_intervals_of_slowdowns_do_not_reach_below_1() -> None:
    waits = RigidJobs("few", [0, 10], [100, 100], [[1], [1]], [1], step="s", users=[1, 2])
    (result,) = compare_log(waits, ["fcfs"], part="all").policies
    for estimate in (result.estimates["slowdown"], result.estimates["bounded_slowdown"]):
        assert estimate.mean == pytest.approx(1.45)
        assert estimate.low == 1.0
        assert estimate.high > 2
    assert 0 <= result.estimates["completion"].low < 100


def test_the_correlation_of_blocks_is_reported_where_queues_outlive_them() -> None:
    jobs = RigidJobs(
        "overload", np.arange(400) * 5, np.full(400, 20), np.full((400, 1), 3), [8], step="s"
    )
    comparison = compare_log(jobs, ["fcfs"], part="all")
    assert comparison.policies[0].numbers["block_correlation"] > 0.5
    assert any("intervals are too narrow" in note for note in comparison.notes())


def test_the_correlation_of_few_blocks_must_be_larger_to_be_reported() -> None:
    jobs = RigidJobs("six", np.arange(6), np.full(6, 50), np.full((6, 1), 3), [4], step="s")
    comparison = compare_log(jobs, ["fcfs"], part="all")
    # Without correlation it stays within 2 / sqrt(6) = 0.82.
    assert comparison.policies[0].numbers["block_correlation"] == pytest.approx(0.5)
    assert "it stays within 0.82" in comparison.settings["intervals"]
    assert not any("intervals are too narrow" in note for note in comparison.notes())


def _warnings(comparison: Comparison) -> list[str]:
    """The warnings, which are the same in the JSON and below the table."""
    texts = comparison.warnings()
    assert comparison.to_json()["warnings"] == texts
    assert all(f"Warning: {text}." in comparison.notes() for text in texts)
    return texts


def test_a_load_above_one_is_warned_of() -> None:
    (drawn,) = _warnings(compare_packing(SOURCE, ["sjf"], num_seeds=2))
    assert drawn.startswith("arrivals bring 1.29 times the work that the cluster can do")
    light = DrawnSource(rates=(0.5,), window=20)
    assert _warnings(compare_packing(light, ["sjf"], num_seeds=2)) == []
    full = RigidJobs(
        "full", np.arange(400) * 5, np.full(400, 20), np.full((400, 1), 3), [8], step="s"
    )
    (of_log,) = _warnings(compare_log(full, ["fcfs"], part="all"))
    assert of_log.startswith("arrivals bring 1.50 times")


def test_pieces_that_share_jobs_or_are_all_the_same_are_warned_of() -> None:
    assert _warnings(compare_log(log(), ["fcfs"], part="all", piece_jobs=60)) == []
    overlapping = RigidLogSource(log(), 150)
    (shared,) = _warnings(compare_packing(overlapping, ["fcfs"], num_seeds=3))
    assert "are in more than one of the 3 pieces of the log" in shared
    same = RigidLogSource(log(), None)
    (repeated,) = _warnings(compare_packing(same, ["fcfs"], num_seeds=3))
    assert repeated.startswith("all 3 runs have the same jobs")


def test_policies_of_a_log_that_python_compares_are_those_of_logs() -> None:
    names = ["easy", "set", "set:logs"]
    by_source = compare_packing(RigidLogSource(log(400), None), names, num_seeds=1)
    by_log = compare_log(log(400), names, part="all")
    for one, other in zip(by_source.policies, by_log.policies, strict=True):
        assert one.estimates == other.estimates, one.name
    with pytest.raises(PolicyError, match="cannot run logs: use set"):
        compare_packing(RigidLogSource(log(), 50), ["deeprm"], num_seeds=1)


def test_a_policy_that_learned_from_the_jobs_of_the_comparison_is_warned_of(tmp_path: Path) -> None:
    jobs = log()
    other = replace(log(seed=2), name="other")
    mixed = MixedSource(
        (RigidLogSource(other.halves()[0], 50), RigidLogSource(jobs.halves()[0], 50))
    )
    path = tmp_path / "w.safetensors"
    rule = HandMadePolicy("w", PackingKind.WITHHOLD, np.zeros(len(WithholdParameter)))
    write_checkpoint(rule_checkpoint(rule, {"source": mixed.card()}), path)
    shares = {}
    for part in ("second", "first", "all"):
        texts = _warnings(compare_log(jobs, ["easy", str(path), "tetris"], part=part))
        shares[part] = sorted(
            text.removeprefix(str(path)).partition(" of the")[0] for text in texts
        )
    # A policy that is tuned for the comparison learns from the first half, too.
    assert shares == {
        "second": [],
        "first": [" learned from 100%", "tetris learned from 100%"],
        "all": [" learned from 50%", "tetris learned from 50%"],
    }
    sped = replace(jobs, name=f"{jobs.name}[2 times as fast]")
    assert len(_warnings(compare_log(sped, ["easy", str(path)], part="first"))) == 1
    third = replace(jobs, name="third")
    assert _warnings(compare_log(third, ["easy", str(path)], part="first")) == []


@pytest.mark.parametrize(
    "ids",
    [np.full(200, -1), np.arange(200) % 100 + 1, np.random.default_rng(3).permutation(200)],
    ids=["missing", "repeated", "in another order"],
)
def test_jobs_are_known_by_their_rows_and_not_by_numbers_that_are_no_identities(
    ids: Int64Array,
) -> None:
    jobs = replace(log(), ids=ids)
    assert _warnings(compare_log(jobs, ["fcfs"], part="all", piece_jobs=60)) == []
    card = RigidLogSource(jobs.halves()[0], 50).card()
    shares = {
        part: [text.partition(" of")[0] for text in learned_warnings({"w": card}, [piece])]
        for part in ("first", "second", "all")
        for piece in [part_of(jobs, part)]
    }
    assert shares == {"first": ["w learned from 100%"], "second": [], "all": ["w learned from 50%"]}
    # Cards of older versions have no rows, so that nothing is claimed.
    older = {key: value for key, value in card.items() if not key.endswith("_row")}
    assert learned_warnings({"w": older}, [part_of(jobs, "second")]) == []
    assert learned_warnings({"w": older}, [jobs]) == []


def test_jobs_in_cards_of_older_versions_are_known_by_numbers_in_order() -> None:
    # Some jobs were left out when the log was read.
    jobs = replace(log(), ids=np.arange(200) * 3 + 1, rows=np.arange(200) * 2)
    card = RigidLogSource(jobs.halves()[0], 50).card()
    older = {key: value for key, value in card.items() if not key.endswith("_row")}
    (text,) = learned_warnings({"w": older}, [jobs])
    assert text.startswith("w learned from 50% of the jobs")


def test_a_knob_at_the_edge_of_its_sweep_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    light = DrawnSource(rates=(0.5,), window=20)

    def edges(grid: tuple[float, ...]) -> list[str]:
        monkeypatch.setattr(tuning, "knobs", lambda *_: grid)
        return _warnings(compare_packing(light, ["sjf", "tetris"], num_seeds=2))

    # The useful knobs lie between: where only larger ones are tried, the smallest is best.
    assert edges((0.0, 1.0)) == []
    (text,) = edges((0.001,))
    assert text.startswith("tetris: knob 0.001 is at the edge of the values that were tried")


def test_jobs_that_arrive_at_once_have_no_load_and_bring_no_warning_of_it() -> None:
    batch = RigidJobs("day", [0] * 8, [60] * 8, [[3]] * 8, [4], step="s")
    comparison = compare_log(batch, ["fcfs", "easy"], part="all")
    assert comparison.settings["load"] == {"resource 0": None}
    assert comparison.title() == "day, whole: 8 jobs; all arrive at once"
    assert not any("the queue grows" in text for text in comparison.warnings())


def test_pieces_of_a_log_are_consecutive_and_the_rest_is_reported() -> None:
    comparison = compare_log(log(), ["fcfs", "easy"], part="all", piece_jobs=60)
    assert comparison.policies[0].runs["jobs"].to_list() == [60, 60, 60]
    assert comparison.settings["left_out"] == 20
    assert math.isnan(comparison.policies[0].numbers["block_correlation"])
    assert "3 pieces of 60" in comparison.title()


def test_parts_of_a_log_meet_in_the_middle() -> None:
    jobs = log(101)
    assert [len(part_of(jobs, part)) for part in ("first", "second", "all")] == [50, 51, 101]
    with pytest.raises(ConfigError, match="second, first, all"):
        part_of(jobs, "third")


def test_numbers_have_the_digits_that_are_of_use() -> None:
    shown = [number(value) for value in (3.1416, 31.416, 1234.5, 0.00123, 0.0, math.nan)]
    assert shown == ["3.142", "31.4", "1,234", "0.0012", "0.000", "–"]


def _recorded() -> RigidJobs:
    """Jobs that waited far longer in the log than any order of it explains."""
    jobs = log(60)
    return replace(
        jobs, waits=np.full(60, 5_000), users=np.arange(60) % 2, user_names=("ann", "bob")
    )


def test_what_the_log_says_is_the_first_row_and_never_the_baseline_or_the_best() -> None:
    comparison = compare_log(_recorded(), ["easy", "sjf"], part="all")
    assert [result.name for result in comparison.rows] == ["as recorded", "easy", "sjf"]
    recorded = comparison.rows[0]
    assert recorded.estimates["waiting"].mean == 5_000
    assert recorded.estimates["ratio_to_first"].mean > 1
    assert comparison.policies[0].ratio_to_first.mean == 1
    assert recorded not in comparison.ranked()
    assert [user.user for user in by_user(comparison)] == ["ann", "bob"]
    assert "as recorded" in comparison.to_json()["policies"]


def test_where_the_simulation_misses_the_log_that_is_said_first() -> None:
    comparison = compare_log(_recorded(), ["easy", "sjf"], part="all")
    said = "in the log jobs waited 5,000 s on average, in the simulation under easy "
    assert str(comparison.tables()[0].title).startswith(f"Warning: {said}")
    assert comparison.warnings()[0].startswith(said)
    assert headline(comparison).startswith(said.capitalize())
    jobs = _recorded()
    easy = run_policy(make_packing_policy("easy"), [jobs], PackingConfig.for_log(jobs))[0]
    true = compare_log(replace(jobs, waits=easy.start - jobs.arrival), ["easy"], part="all")
    assert true.rows[0].ratio_to_first.mean == 1
    assert not any("in the log jobs" in text for text in true.warnings())


def test_waits_that_were_shorter_in_the_log_have_another_reason() -> None:
    jobs = replace(log(200), capacity=np.array([5]), waits=np.zeros(200, int))
    said = compare_log(jobs, ["easy"], part="all").warnings()[0]
    assert "in the log jobs waited 0.000 s on average" in said
    assert "the real cluster was larger than the simulated one, or its order better" in said
    pieces = compare_log(_recorded(), ["easy"], part="all", piece_jobs=30)
    assert "the jobs before each piece" in pieces.warnings()[0]


def test_partitions_and_a_cluster_that_is_too_small_are_warned_of() -> None:
    jobs = replace(log(40), waits=np.zeros(40, int), partitions=np.arange(40) % 3)
    warnings = " ".join(compare_log(jobs, ["easy"], part="all").warnings())
    assert "the jobs ran on 3 partitions, which are taken as one machine" in warnings
    assert "times what the cluster has: give its true size" in warnings


def _log_with_users() -> RigidJobs:
    """User 7 submits every second job, user 3 every fourth; the other jobs' user is unknown."""
    jobs = log()
    rows = np.arange(len(jobs))
    return replace(jobs, users=np.where(rows % 2 == 0, 7, np.where(rows % 4 == 1, 3, -1)))


@pytest.mark.parametrize("piece_jobs", [None, 60])
def test_every_user_has_its_mean_and_its_ratio(piece_jobs: int | None) -> None:
    comparison = compare_log(_log_with_users(), ["fcfs", "sjf"], part="all", piece_jobs=piece_jobs)
    often, seldom = by_user(comparison)
    num_jobs = 200 if piece_jobs is None else 180
    assert (often.user, often.jobs) == (7, num_jobs // 2)
    assert (seldom.user, seldom.jobs) == (3, num_jobs // 4)
    own = comparison.jobs.filter(pl.col("user") == 7).partition_by("column")
    values = [jobs["bounded_slowdown"].to_numpy() for jobs in own]
    assert often.means["sjf"].mean == pytest.approx(values[1].mean())
    ratio = often.ratios_to_first["sjf"]
    assert ratio.mean == pytest.approx(values[1].mean() / values[0].mean())
    assert ratio.low < ratio.mean < ratio.high
    assert often.ratios_to_first["fcfs"].mean == 1
    if piece_jobs is None:
        whole = bounded_slowdown(first_outcomes(comparison)["sjf"])
        assert often.means["sjf"].mean == pytest.approx(whole[::2].mean())


def test_the_report_and_the_json_have_users_only_where_a_log_names_them(tmp_path: Path) -> None:
    comparison = compare_log(_log_with_users(), ["fcfs", "sjf"])
    report = tmp_path / "report.html"
    write_report(comparison, report)
    page = report.read_text()
    assert "Users: gains and losses" in page
    assert "The 2 users with the most jobs, of 2." in page
    users = json.loads(json.dumps(comparison.to_json()))["users"]
    assert [user["user"] for user in users] == [7, 3]
    assert users[0]["ratios_to_first"]["fcfs"]["mean"] == 1
    for without in (compare_log(log(), ["fcfs"]), compare_packing(SOURCE, ["sjf"], num_seeds=2)):
        assert by_user(without) == []
        assert "users" not in without.to_json()


def test_a_log_names_the_users_of_its_jobs(tmp_path: Path) -> None:
    lines = [
        f"{job} {submit} 0 10 2 -1 -1 2 10 -1 1 {user} 1 1 1 1 -1 -1\n"
        for job, submit, user in ((1, 50, 8), (2, 0, 5), (3, 90, -1))
    ]
    path = tmp_path / "log.swf"
    path.write_text("".join(lines))
    jobs = read_log(path).jobs
    assert jobs.users.tolist() == [5, 8, -1]
    assert jobs.piece(1, 3).users.tolist() == [8, -1]
    path.write_text("".join(line.replace(" 8 1 1", " 5 1 1") for line in lines[:2]))
    assert read_log(path).jobs.users.tolist() == []
