"""Sizing: the target, the paired sizes, the search, and what the headline says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.evaluation import sizing as sizing_module
from parcae.evaluation.sizing import (
    ElasticSize,
    Question,
    SizeResult,
    Sizing,
    Target,
    headline,
    parse_cores,
    parse_target,
    size_cluster,
    sizing_frame,
    sizing_table,
    warnings,
    write_plot,
)
from parcae.evaluation.statistics import UNKNOWN, Estimate, share_estimate
from parcae.simulation.elastic import Elastic
from parcae.simulation.faults import Faults
from parcae.workloads.job import DriverTime
from parcae.workloads.synthetic import toy_workload
from parcae.workloads.workload import Workload
from tests.conftest import job

_UNKNOWN = Estimate(1.0, math.nan, math.nan)


@pytest.mark.parametrize(
    ("text", "field", "limit"),
    [
        ("p95 < 60s", "p95_s", 60),
        ("average<2min", "average_s", 120),
        ("p99 < 500ms", "p99_s", 0.5),
        (" p95 <  1.5 h ", "p95_s", 5_400),
        ("p95 < 2m", "p95_s", 120),
    ],
)
def test_a_target_is_parsed(text: str, field: str, limit: float) -> None:
    assert parse_target(text) == Target(field, limit)


def test_a_target_is_shown_with_all_its_digits() -> None:
    assert str(parse_target("p95 < 1234567.5s")) == "p95 < 1234567.5 s"
    assert str(parse_target("average < 100ms")) == "average < 0.1 s"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "p95",
        "p95 > 60s",
        "p90 < 60s",
        "p95 < 60",
        "p95 < -1s",
        "p95 < 0s",
        "p95<1e9s",
        "deadlines",
        "deadlines 0%",
        "deadlines 101%",
        "deadlines 0.99",
    ],
)
def test_another_target_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="p95 < 60s"):
        parse_target(text)


def test_sizes_are_whole_ascending_and_bounded() -> None:
    assert parse_cores("8, 16,32") == (8, 16, 32)
    for text in ("", "8,,16", "8,x", "1.5", "16,8", "8,8", "0,8", "8,65537", "9" * 5000):
        with pytest.raises(ConfigError, match="--cores"):
            parse_cores(text)
    with pytest.raises(ConfigError, match="1 to 50 sizes"):
        parse_cores(",".join(map(str, range(1, 52))))


def _result(policy: str, cores: int, p95: float, high: float | None = None) -> SizeResult:
    estimate = Estimate(p95, p95 - 1, p95 + 1 if high is None else high)
    estimates: dict[str, Estimate | None] = {
        **dict.fromkeys(("average_s", "p95_s", "p99_s"), estimate),
        **dict.fromkeys(("cores_busy", "cost_per_job", "within_target"), _UNKNOWN),
        **dict.fromkeys(("cores_held", "deadlines_met")),
    }
    return SizeResult(policy, policy, cores, str(cores), 1.0, estimates)


def _with_met(result: SizeResult, met: Estimate) -> SizeResult:
    return replace(result, estimates={**result.estimates, "deadlines_met": met})


def _sizing(times: dict[str, list[float]], load: tuple[float, ...] = (0.9, 0.6, 0.4)) -> Sizing:
    """p95 of each policy at 32, 40 and 64 cores; the target is 60 s."""
    sizes = (32, 40, 64)
    question = Question(
        toy_workload(), sizes, tuple(times), Target("p95_s", 60), arrivals="poisson:1s"
    )
    results = tuple(
        _result(policy, cores, times[policy][place])
        for place, cores in enumerate(sizes)
        for policy in times
    )
    return Sizing(question, results, dict(zip(sizes, load, strict=True)))


def test_the_headline_says_what_each_policy_needs_and_what_the_best_saves() -> None:
    sizing = _sizing({"fifo": [300, 200, 90], "fair": [200, 80, 50], "parcae": [70, 55, 30]})
    assert headline(sizing) == (
        "Target p95 < 60 s (mean over 20 runs): fifo meets it at no size, "
        "fair needs 64 cores, parcae needs 40 cores. "
        "With parcae 40 cores do what fair needs 64 for. "
        "Only the given sizes were tried; --search tries those between."
    )
    assert warnings(sizing) == [
        "fifo: the largest size (64 cores) does not meet the target; give larger ones."
    ]


def test_the_headline_recommends_no_oracle() -> None:
    sizing = _sizing({"fair": [200, 80, 50], "weighted-fair:oracle": [50, 40, 30]})
    assert "do what" not in headline(sizing)


def test_losses_on_an_elastic_cluster_are_refused_before_any_run() -> None:
    elastic = ElasticSize(4, Elastic(min_cores=2, cores_per_executor=1))
    lost = _QUESTION.config.model_copy(update={"faults": Faults(lost_per_hour=1)})
    with pytest.raises(ConfigError, match="of a fixed size only"):
        replace(_QUESTION, config=lost, elastic=(elastic,)).check()
    replace(_QUESTION, config=lost).check()


def test_prices_below_a_hundredth_are_shown() -> None:
    sizing = _sizing({"fair": [70, 55, 30]})
    cheap = tuple(replace(result, cost_per_hour=0.00123) for result in sizing.results)
    (cost,) = {
        cell
        for column in sizing_table(replace(sizing, results=cheap)).columns
        if column.header == "cost/h"
        for cell in column.cells
    }
    assert cost == "0.00123"


def test_a_size_counts_only_if_all_larger_ones_meet_the_target() -> None:
    assert _sizing({"fair": [50, 80, 40]}).smallest("fair") == 64
    assert _sizing({"fair": [50, 80, 70]}).smallest("fair") is None


def test_the_limit_itself_does_not_meet_the_target() -> None:
    assert _sizing({"fair": [61, 60, 59]}).smallest("fair") == 64


def test_nothing_is_saved_where_policies_need_the_same() -> None:
    text = headline(_sizing({"fair": [50, 40, 30], "parcae": [40, 30, 20]}))
    assert text == (
        "Target p95 < 60 s (mean over 20 runs): fair needs 32 cores, parcae needs 32 cores."
    )


def test_warnings_name_overloaded_sizes_and_ends_of_the_range() -> None:
    texts = warnings(_sizing({"fair": [50, 40, 30]}, load=(1.25, 1.0, 0.6)))
    assert texts[0].startswith("Overloaded sizes: 32 (load 1.25).")
    assert texts[1].startswith("fair: the smallest size (32 cores) already meets the target")
    assert len(texts) == 2


def test_times_below_a_second_are_shown_with_two_digits() -> None:
    table = sizing_table(_sizing({"fair": [0.0231, 1.04, 30]}))
    assert list(table.columns[2].cells) == ["0.023 ± 1.000 s", "1.0 ± 1.0 s", "30.0 ± 1.0 s"]
    assert Target("p95_s", 0.02).text(0.0231) == "0.023 s"


def test_long_times_are_shown_in_minutes_hours_and_days() -> None:
    table = sizing_table(_sizing({"fair": [600, 9_000, 259_200]}))
    assert list(table.columns[2].cells) == ["10.0 ± 0.0 min", "2.5 ± 0.0 h", "3.0 ± 0.0 days"]


def test_where_no_size_can_help_the_warning_says_why() -> None:
    waiting = job("chain", (1, 40_000, ()), (1, 40_000, (0,)))
    sizing = _sizing({"fair": [95, 90, 85]})
    slow = replace(sizing.question, workload=Workload("w", (waiting,)))
    (text,) = warnings(replace(sizing, question=slow))
    assert "tasks that wait for each other or for the driver take 80.0 s by themselves" in text
    assert "that of chain" in text
    wide = replace(sizing.question, workload=Workload("w", (job("wide", (9, 1_000, ())),)))
    more = replace(sizing, question=wide)
    assert "give larger ones" in warnings(more)[0]
    flat = replace(_sizing({"fair": [95, 85.1, 85]}), question=wide)
    assert "more cores hardly help" in warnings(flat)[0]
    planned = DriverTime(np.array([[60_000]]), np.array([[0]]), np.array([9_000]))
    short = replace(job("short", (1, 1_000, ())), driver_time=planned)
    kept = replace(sizing.question, workload=Workload("w", (short,)))
    assert "for the driver take 70.0 s" in warnings(replace(sizing, question=kept))[0]


def test_an_interval_that_reaches_over_the_limit_is_said() -> None:
    sizing = _sizing({"fair": [80, 59.5, 30]})
    assert warnings(sizing) == [
        "fair: at 40 cores the mean meets the target, but its 95% interval ends at 60.5 s; "
        "more runs (--seeds) tell."
    ]


_QUESTION = Question(
    toy_workload(),
    (1, 2, 4, 8),
    ("fair", "fifo"),
    price=0.5,
    arrivals="poisson:5s",
    num_jobs=8,
    num_seeds=3,
    processes=1,
)


def test_more_cores_are_not_slower_and_cost_their_price() -> None:
    done: list[tuple[int, int]] = []
    sizing = size_cluster(_QUESTION, lambda k, n: done.append((k, n)))
    assert done == [(k, 12) for k in range(1, 13)]
    fair = sizing.of("fair")
    averages = [result.of("average_s").mean for result in fair]
    assert averages == sorted(averages, reverse=True)
    assert [result.cost_per_hour for result in fair] == [0.5, 1.0, 2.0, 4.0]
    # The same work arrives at every size.
    loads = [sizing.load[cores] * cores for cores in (1, 2, 4, 8)]
    assert loads == pytest.approx([loads[0]] * 4)
    work_s = _QUESTION.workload.expected_work_ms(runs_vary=False) / 1_000
    assert sizing.load[8] == pytest.approx(work_s / 5 / 8)
    for seed in range(3):
        assert _QUESTION.draw(seed).arrival_ms.tolist() == _QUESTION.draw(seed).arrival_ms.tolist()


def test_two_tasks_of_an_hour_cost_two_core_hours() -> None:
    hour = Workload("hour", (job("a", (2, 3_600_000, ())),))
    question = replace(_QUESTION, workload=hour, cores=(2,), policies=("fair",), num_jobs=1)
    assert size_cluster(question).of("fair")[0].of("cost_per_job").mean == pytest.approx(0.5 * 2)


def test_the_search_for_one_policy_reopens_that_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    # "fifo" meets the target at 8 cores and from 12 on, but not at 26; "fair" from 24 on.
    meets: dict[str, Callable[[int], bool]] = {
        "fifo": lambda cores: cores == 8 or (cores >= 12 and cores != 26),
        "fair": lambda cores: cores >= 24,
    }
    played: list[int] = []

    def results_at(question: Question, comparison: object, cores: int) -> list[SizeResult]:
        played.append(cores)
        return [
            _result(policy, cores, 1.0 if is_met(cores) else 9.0)
            for policy, is_met in meets.items()
        ]

    monkeypatch.setattr(sizing_module, "play_at", lambda *_: None)
    monkeypatch.setattr(sizing_module, "results_at", results_at)
    target = parse_target("p95 < 5s")
    found = size_cluster(
        replace(_QUESTION, cores=(4, 64), policies=tuple(meets), target=target, search=True)
    )
    assert (found.smallest("fair"), found.smallest("fifo")) == (24, 27)
    assert 26 in played


def test_a_search_finds_the_size_that_trying_all_finds() -> None:
    at_four = size_cluster(_QUESTION).of("fair")[2].of("average_s").mean
    target = Target("average_s", at_four + 0.001)
    every = size_cluster(replace(_QUESTION, cores=tuple(range(1, 9)), target=target))
    searched = size_cluster(replace(_QUESTION, cores=(1, 8), target=target, search=True))
    assert searched.smallest("fair") == every.smallest("fair")
    sizes = {result.cores for result in searched.results}
    assert {1, 8} < sizes


def test_a_batch_has_no_load() -> None:
    question = replace(_QUESTION, cores=(2,), policies=("fair",), num_jobs=1, arrivals="batch")
    sizing = size_cluster(question)
    assert sizing_frame(sizing)["load"].to_list() == [sizing.to_json()["load"]["2"]] == [None]
    column = next(one for one in sizing_table(sizing).columns if one.header == "load")
    assert list(column.cells) == ["batch"]


def test_policies_are_made_for_the_arrivals_as_grown() -> None:
    assert _QUESTION.drawn_arrivals == "poisson:5s"
    assert replace(_QUESTION, growth=2.0).drawn_arrivals == "poisson:2500.000ms"
    assert replace(_QUESTION, arrivals="batch", growth=2.0).drawn_arrivals == "batch"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arrivals": "load:0.8"}, "refers to one size"),
        ({"arrivals": "trace:0.8"}, "refers to one size"),
        ({"arrivals": "recorded"}, "no recorded arrivals"),
        ({"block": 3}, "--block is for recorded arrivals"),
        ({"price": -1.0}, "--price"),
        ({"price": math.nan}, "--price"),
        ({"growth": 0.0}, "--growth"),
        ({"growth": 1e-300}, "--growth"),
        ({"cores": (8, 4)}, "--cores"),
        ({"num_seeds": 1}, "--seeds"),
        ({"search": True}, "--target"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(
    change: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        size_cluster(replace(_QUESTION, **change))  # type: ignore[arg-type]


def test_a_share_of_deadlines_is_a_target() -> None:
    assert parse_target("deadlines 99.5%") == Target("deadlines_met", 0.995)
    assert parse_target(" deadlines  100 % ") == Target("deadlines_met", 1.0)
    with pytest.raises(ConfigError, match="give --deadlines FILE"):
        replace(_QUESTION, target=Target("deadlines_met", 0.9)).check()


def test_deadlines_that_no_drawn_job_has_are_no_target() -> None:
    jobs = toy_workload().jobs
    # The job with the deadline is not drawn.
    with_one = replace(jobs[0], deadline_ms=1_000)
    workload = Workload("toy", (with_one, *jobs[1:]), weights=(0, *(1 for _ in jobs[1:])))
    question = replace(_QUESTION, workload=workload, target=Target("deadlines_met", 0.9))
    with pytest.raises(ConfigError, match="no job that was drawn has a deadline"):
        question.check()
    table = sizing_table(size_cluster(replace(question, target=None)))
    column = next(column for column in table.columns if column.header == "met")
    assert set(column.cells) == {"–"}


def test_exactly_the_share_of_deadlines_meets_the_target() -> None:
    missed = 7 / 100
    assert 1 - missed < 0.93
    assert Target("deadlines_met", 0.93).is_met(1 - missed)
    assert not Target("deadlines_met", 0.93).is_met(0.9299)


def test_a_size_meets_a_share_of_deadlines() -> None:
    met = {2: Estimate(0.80, 0.7, 0.9), 4: Estimate(0.99, 0.98, 1.0), 8: Estimate(1.0, 1.0, 1.0)}
    results = tuple(_with_met(_result("fair", cores, 1.0), share) for cores, share in met.items())
    question = replace(_QUESTION, cores=(2, 4, 8), target=Target("deadlines_met", 0.99))
    sizing = Sizing(question, results, dict.fromkeys(met, 0.5))
    unknown = replace(sizing, results=(_with_met(results[0], UNKNOWN),))
    assert sizing_frame(unknown)["deadlines_met_low"].to_list() == [None]
    assert sizing.smallest("fair") == 4
    assert headline(sizing).startswith("Target deadlines 99% (mean over")
    assert warnings(sizing) == [
        "fair: at 4 cores the mean meets the target, but its 95% interval begins at 98.0%; "
        "more runs (--seeds) tell."
    ]


def test_shares_whose_interval_misses_their_mean_by_rounding_are_drawn(tmp_path: Path) -> None:
    # In every run, four of seven jobs miss their deadline, or a multiple of both.
    missed = share_estimate([12, 20, 20, 16, 16], [21, 35, 35, 28, 28])
    met = Estimate(1 - missed.mean, 1 - missed.high, 1 - missed.low)
    assert not met.low <= met.mean <= met.high
    results = (_with_met(_result("fair", 2, 1.0), met),)
    question = replace(_QUESTION, cores=(2,), target=Target("deadlines_met", 0.5))
    write_plot(Sizing(question, results, {2: 0.5}), tmp_path / "sizes.svg")
    assert (tmp_path / "sizes.svg").stat().st_size > 0


def test_more_cores_meet_more_deadlines() -> None:
    workload = toy_workload().with_deadlines({"*": "10s"})
    question = replace(
        _QUESTION, workload=workload, target=Target("deadlines_met", 0.5), cores=(1, 4)
    )
    sizing = size_cluster(question)
    shares = [result.of("deadlines_met") for result in sizing.of(question.policies[0])]
    assert shares[0].mean < shares[1].mean <= 1.0
    frame = sizing_frame(sizing)
    assert frame["deadlines_met"].to_list()[0] == shares[0].mean
    assert sizing.to_json()["settings"]["deadlines_s"][workload.jobs[0].name] == 10.0
    assert all(result.estimates["within_target"] is None for result in sizing.results)
