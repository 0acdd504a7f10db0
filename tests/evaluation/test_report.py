import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parcae.base.texts import s_from_ms
from parcae.cluster.state import World
from parcae.cluster.trace import FaultCounts, Trace
from parcae.decima.bounds import Bounds
from parcae.evaluation import cluster_view
from parcae.evaluation.cluster_view import comparison_table
from parcae.evaluation.compare import ClusterWorld, Comparison, PolicyResult
from parcae.evaluation.deadlines import DeadlineResult
from parcae.evaluation.paired import compare_in
from parcae.evaluation.policies import ResolvedPolicies
from parcae.evaluation.report import headline, policies_table, summary_sentence
from parcae.evaluation.report import write_report as write_page_of
from parcae.evaluation.statistics import (
    UNKNOWN,
    Estimate,
    mean_estimate,
    mean_of_ratios,
    ratio_estimate,
)
from parcae.evaluation.who_pays import PairedRuns, WhoPays, paired_runs, who_pays
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.metrics import summarize
from parcae.workloads.job import Workload
from tests.conftest import arriving, job
from tests.metrics.hand_made import cut_off, sequence, trace


def _runs(seed: int, jct_s: Mapping[str, tuple[float, ...]]) -> PairedRuns:
    """Two jobs a seed, of a quarter and seven quarters of the average completion time."""
    completion_ms = [[round(250 * v[seed]), round(1_750 * v[seed])] for v in jct_s.values()]
    ends = np.array(completion_ms, np.int64)
    return PairedRuns(("small", "large"), np.zeros(2, np.int64), ends, ends.max(axis=1))


def _comparison(
    jct_s: Mapping[str, tuple[float, ...]], oracles: tuple[str, ...] = ()
) -> Comparison:
    """A comparison whose policies had these average completion times on each seed."""
    summary = summarize(trace(), sequence())
    names = tuple(jct_s)
    first = jct_s[names[0]]
    runs = tuple(_runs(seed, jct_s) for seed in range(len(first)))
    results = tuple(
        PolicyResult(
            name,
            (summary,) * len(v),
            mean_estimate(v),
            ratio_estimate(v, first),
            mean_of_ratios(v, first),
            who_pays([run.ratio_to_first[row] for run in runs]),
        )
        for row, (name, v) in enumerate(jct_s.items())
    )
    config = SimulationConfig(num_executors=2)
    settings = {
        "workload": "<tpch>", "fingerprint": "f", "arrivals": "batch", "jobs": 2,
        "seeds": [0, len(first) - 1], "config": config.model_dump(mode="json"), "tuned": {},
        "intervals": "how", "version": "0",
    }  # fmt: skip
    world = ClusterWorld(Workload("<tpch>", (job("a", (1, 1, ())),)), config, "batch", 2)
    return Comparison(
        results, settings, ResolvedPolicies({}, frozenset(oracles), names, config), runs, world
    )


def write_report(
    comparison: Comparison,
    traces: Mapping[str, Trace],
    path: Path,
    *,
    command: str = "",
    bounds: Bounds | None = None,
) -> None:
    """Write the page with these runs of the first seed instead of simulated ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_view, "first_runs", lambda comparison: (traces, bounds))
        write_page_of(comparison, path, command=command)


def test_runs_that_may_be_shorter_than_anything_measured_have_no_bounds() -> None:
    config = SimulationConfig(world=WorldName.CORES, num_executors=2, estimate_error="log")
    for sigma in (0.0, 0.7):
        jobs = (replace(job("a", (2, 10, ())), work_sigma=sigma),)
        world = ClusterWorld(Workload("w", jobs), config, "batch", 3)
        comparison = compare_in(world, ["fair"], range(2), processes=1)
        _, bounds = cluster_view.first_runs(comparison)
        assert (bounds is None) == (sigma > 0)


def test_runs_that_their_end_cuts_off_have_no_bounds() -> None:
    workload = Workload("w", (job("a", (2, 1_000, ())),))
    for end_ms in (500, 100_000):
        config = SimulationConfig(world=WorldName.CORES, num_executors=2, end_ms=end_ms)
        world = ClusterWorld(workload, config, "batch", 3)
        comparison = compare_in(world, ["fair"], range(2), processes=1)
        _, bounds = cluster_view.first_runs(comparison)
        assert (bounds is None) == (end_ms == 500)


def test_the_sentence_says_who_wins_by_how_much_and_how_sure_that_is() -> None:
    sentence = summary_sentence(_comparison({"fair": (10.0, 20.0), "srpt-cap": (8.0, 16.0)}))
    assert sentence == (
        "srpt-cap has the lowest average job completion time: 12.0 s, 20.0% less than fair "
        "(95% interval 20.0% to 20.0%). The difference is significant at the 95% level. "
        "No job ends more than 5% later than under fair."
    )


def test_the_sentence_says_who_pays() -> None:
    whole = _comparison({"fair": (10.0, 20.0), "srpt-cap": (8.0, 16.0)})
    none = Estimate(0.0, 0.0, 0.0)
    for share, worst, expected in (
        (
            0.031,
            1.2,
            "3.1% of the jobs end more than 5% later than under fair, "
            "the worst 1.20 times as late.",
        ),
        (
            0.0001,
            1.06,
            "Less than 0.1% of the jobs end more than 5% later than under fair, "
            "the worst 1.06 times as late.",
        ),
        (
            math.nan,
            math.nan,
            "No job completed under fair, so it is unknown which jobs end later.",
        ),
    ):
        paid = WhoPays(Estimate(share, share, share), none, worst)
        best = replace(whole.policies[1], who_pays=paid)
        sentence = summary_sentence(replace(whole, policies=(whole.policies[0], best)))
        assert sentence.endswith(f"The difference is significant at the 95% level. {expected}")


def test_the_sentence_admits_what_the_seeds_cannot_tell() -> None:
    sentence = summary_sentence(
        _comparison({"fair": (10.0, 20.0, 30.0), "fifo": (12.0, 15.0, 30.5)})
    )
    assert "With this many seeds the difference is not significant" in sentence
    one = summary_sentence(_comparison({"fair": (10.0,), "fifo": (8.0,)}))
    assert (
        "20.0% less than fair (one seed: no interval). "
        "Run more seeds to get a confidence interval. No job" in one
    )


def test_where_the_first_policy_wins_the_next_best_is_reported() -> None:
    sentence = summary_sentence(
        _comparison({"fair": (10.0, 20.0), "slow": (50.0, 99.0), "near": (11.0, 22.0)})
    )
    assert "The next best, near, has 10.0% more (95% interval 10.0% to 10.0%)" in sentence
    slow = summary_sentence(_comparison({"fair": (10.0, 20.0), "slow": (30.0, 60.0)}))
    assert "has 3.00 times as much (95% interval 3.00 to 3.00 times)" in slow
    same = summary_sentence(_comparison({"fair": (10.0, 20.0), "tuned": (10.0, 20.0)}))
    assert same.endswith("10.0 s. tuned has the same average.".replace("10.0", "15.0"))


def test_the_headline_says_the_result_in_plain_words() -> None:
    better = _comparison({"fair": (10.0, 20.0), "srpt-cap": (8.0, 16.0)})
    assert headline(better) == (
        "srpt-cap is better than fair: its average job completion time is 20% lower. "
        "Of 2 recurring jobs, 2 gain and 0 lose under srpt-cap."
    )
    slightly = headline(_comparison({"fair": (10.0, 20.0), "psbs": (9.98, 19.96)}))
    assert slightly.startswith("psbs is better than fair: its average job completion time is less")
    assert " less than 1% lower." in slightly
    nearly_all = headline(_comparison({"fair": (1_000.0, 2_000.0), "psbs": (2.0, 4.0)}))
    assert " is more than 99% lower." in nearly_all
    worse = headline(_comparison({"fair": (10.0, 20.0), "slow": (50.0, 100.0)}))
    assert worse.startswith("None of the other policies does better than fair. Of 2 recurring")
    noisy = headline(_comparison({"fair": (10.0, 20.0, 30.0), "fifo": (12.0, 15.0, 30.5)}))
    assert noisy.startswith("It may be chance that fifo does better than fair: run more to know.")
    assert noisy.endswith("0 gain and 0 lose under fifo; for the others the runs cannot tell.")
    one = headline(_comparison({"fair": (10.0,), "fifo": (8.0,)}))
    assert one.startswith("One run of each policy is too little")
    assert headline(_comparison({"fair": (9.0, 9.0)})) == ""


def test_an_oracle_never_wins_over_what_can_be_deployed() -> None:
    names = {"fair": (10.0, 20.0), "weighted-fair:oracle": (5.0, 10.0), "fifo": (20.0, 40.0)}
    sentence = summary_sentence(_comparison(names, oracles=("weighted-fair:oracle",)))
    assert sentence.startswith("fair has the lowest")
    assert "next best, fifo" in sentence


def test_an_oracle_that_is_the_first_policy_is_said_to_do_better() -> None:
    names = {"weighted-fair:oracle": (5.0, 10.0), "fair": (6.0, 12.0), "fifo": (20.0, 40.0)}
    comparison = _comparison(names, oracles=("weighted-fair:oracle",))
    assert summary_sentence(comparison).startswith(
        "fair has the lowest average job completion time: 9.0 s, 20.0% more (95% interval 20.0% "
        "to 20.0%) than weighted-fair:oracle, which is not ranked. The difference is "
        "significant at the 95% level."
    )
    assert headline(comparison).startswith(
        "fair does best of the policies that are ranked; weighted-fair:oracle is not one of them."
    )
    equal = {"weighted-fair:oracle": (5.0, 10.0), "fair": (5.0, 10.0)}
    assert headline(_comparison(equal, oracles=("weighted-fair:oracle",))).startswith(
        "None of the other policies that are ranked does better than weighted-fair:oracle."
    )
    turned = {"fair": (6.0, 12.0), "weighted-fair:oracle": (5.0, 10.0)}
    assert headline(_comparison(turned, oracles=("weighted-fair:oracle",))).startswith(
        "None of the other policies that are ranked does better than fair."
    )


def test_one_policy_alone_has_its_average_reported() -> None:
    assert summary_sentence(_comparison({"fair": (9.0, 9.0)})) == (
        "With fair the average job completion time is 9.0 s (95% interval 9.0 s to 9.0 s)."
    )


def test_what_is_unknown_is_null_in_a_frame() -> None:
    frame = _comparison({"fair": (9.0,), "fifo": (8.0,)}).to_frame()
    assert frame["ratio_to_first"].to_list() == [1.0, pytest.approx(8 / 9)]
    assert frame["ratio_low"].to_list() == frame["average_jct_high_s"].to_list() == [None, None]


@pytest.fixture
def page(tmp_path: Path) -> str:
    comparison = _comparison({"fair": (10.0, 20.0), "fifo<b>": (12.0, 24.0)})
    traces = {"fair": trace(), "fifo<b>": trace(completion_ms=(5_000, 70_000), clock_ms=70_000)}
    write_report(
        comparison,
        traces,
        tmp_path / "r.html",
        command="parcae compare 'a b'",
        bounds=Bounds(2_500, 4_000),
    )
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]
    return (tmp_path / "r.html").read_text()


def test_names_from_outside_cannot_break_the_page(page: str) -> None:
    assert "Scheduling &lt;tpch&gt;" in page
    assert "</i>fifo&lt;b&gt;</td>" in page
    assert "parcae compare &#x27;a b&#x27;" in page


def test_the_library_is_inlined_once_and_nothing_is_fetched(page: str) -> None:
    assert page.count("plotly.js v") == 1
    assert '<script src="' not in page
    assert "cdn.plot.ly/plotly" not in page


def test_the_bounds_stand_beside_the_best_that_was_reached(page: str) -> None:
    assert "average JCT below <b>2.5 s</b>" in page
    assert "makespan below <b>4.0 s</b>; the best here are 5.5 s and 7.0 s." in page


def test_the_longest_run_is_on_the_shared_axis_of_all_charts_over_time(page: str) -> None:
    ends = re.findall(r'"range":\[0,([\d.]+)\]', page)
    # Two Gantt charts and three curves; the longer run ends at 70 s.
    assert sum(70 <= float(end) < 71 for end in ends) == 5


def test_the_page_says_cores_where_there_are_cores(tmp_path: Path) -> None:
    for world in WorldName:
        config = SimulationConfig(world=world, num_executors=2)
        setting = ClusterWorld(Workload("w", (job("a", (2, 10, ())),)), config, "batch", 3)
        comparison = compare_in(setting, ["fair"], range(2), processes=1)
        write_page_of(comparison, tmp_path / "r.html")
        page = (tmp_path / "r.html").read_text()
        assert ("Cores that run tasks" in page) == (world is WorldName.CORES)
        assert ("Executors that run tasks" in page) == (world is WorldName.EXECUTORS)
        assert ("White means idle or moving" in page) == (world is WorldName.EXECUTORS)
        assert ('"text":"core"' in page) == (world is WorldName.CORES)
        assert ("<br><small>moves" in page or "moves</" in page) == (world is WorldName.EXECUTORS)


def test_cores_that_were_not_up_are_not_called_idle(tmp_path: Path) -> None:
    fixed = replace(trace(), world=World.CORES)
    lossy = replace(fixed, faults=FaultCounts(0, 1, 1, 0, 0, 500, 30_000))
    runs = {"fixed": fixed, "elastic": replace(fixed, held_ms=12_000), "lossy": lossy}
    for name, run in runs.items():
        comparison = _comparison({name: (10.0, 20.0)})
        write_report(comparison, {name: run}, tmp_path / "r.html")
        page = (tmp_path / "r.html").read_text()
        assert ("White means idle." in page) == (name == "fixed")
        assert ("White means idle, or not up." in page) == (name != "fixed")


def test_jobs_cut_off_are_reported_in_the_table_and_on_the_page(tmp_path: Path) -> None:
    three = arriving(
        (job("a", (2, 4_000, ())), 0),
        (job("b", (1, 2_000, ())), 1_000),
        (job("c", (1, 1, ())), 9_000),
    )
    estimate = Estimate(5.0, math.nan, math.nan)
    runs = paired_runs([cut_off()])
    paid = who_pays([runs.ratio_to_first[0]])
    result = PolicyResult(
        "fair", (summarize(cut_off(), three),), estimate, estimate, estimate, paid
    )
    whole = _comparison({"fair": (5.0,)})
    comparison = Comparison((result,), whole.settings, whole.resolved, (runs,), whole.world)
    write_report(comparison, {"fair": cut_off()}, tmp_path / "r.html")
    assert (
        "1 job cut off at the end of a run: such times are lower bounds"
        in (tmp_path / "r.html").read_text()
    )
    assert "1 job cut off" in str(comparison_table(comparison).caption)


def test_a_comparison_gives_seconds_for_the_summarys_milliseconds() -> None:
    means = _comparison({"fair": (5.0, 6.0)}).policies[0].means()
    assert means["makespan_s"] == 7.0
    assert means["p95_jct_s"] == s_from_ms(5_950)
    assert "makespan_ms" not in means


def test_one_seed_has_no_interval_in_the_table() -> None:
    column = list(comparison_table(_comparison({"fair": (10.0,), "fifo": (8.0,)})).columns)
    assert list(column[1].cells) == ["10.0", "8.0"]
    assert list(column[2].cells) == ["1.000", "0.800"]
    assert [(c.header, list(c.cells)) for c in column[3:7]] == [
        ("later", ["0.0%", "0.0%"]),
        ("worst", ["1.00", "0.80"]),
        ("p95 JCT", ["6.0", "6.0"]),
        ("p99 JCT", ["6.0", "6.0"]),
    ]


def test_what_no_run_shows_is_a_dash_in_the_table_and_on_the_page(tmp_path: Path) -> None:
    whole = _comparison({"fair": (10.0, 20.0)})
    nothing = DeadlineResult(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
    paid = WhoPays(UNKNOWN, UNKNOWN, math.nan)
    result = replace(whole.policies[0], who_pays=paid, deadlines=nothing)
    comparison = replace(whole, policies=(result,))
    cells = {column.header: list(column.cells) for column in comparison_table(comparison).columns}
    for heading in ("later", "worst", "missed", "missed - first, pp", "tardiness"):
        assert cells[heading] == ["–"]
    table = policies_table(comparison)
    assert table.count("<td>–</td>") == 5
    assert "nan" not in table


def test_later_jobs_stand_in_the_tables_and_in_the_json(page: str) -> None:
    comparison = _comparison({"fair": (10.0, 20.0), "fifo": (12.0, 20.0)})
    columns = list(comparison_table(comparison).columns)
    assert list(columns[3].cells) == ["0.0%", "50.0%"]
    assert list(columns[4].cells) == ["1.00", "1.20"]
    assert "later: jobs that end more than 5% later than under fair" in str(
        comparison_table(comparison).caption
    )
    json_result = comparison.policies[1].to_json()
    assert json_result["later_than_first_share"] == {"mean": 0.5, "ci95": [0.0, 1.0]}
    assert json_result["later_than_first_by_10_percent_share"] == {"mean": 0.5, "ci95": [0.0, 1.0]}
    assert json_result["worst_ratio_to_first"] == 1.2
    assert (
        "<td>100.0% <span>100.0% – 100.0%</span></td><td>1.20</td><td>6.0</td><td>6.0</td>" in page
    )


def test_the_page_says_which_recurring_jobs_gain_and_lose(page: str) -> None:
    assert "<h2>Recurring jobs: gains and losses</h2>" in page
    assert "<th>fifo&lt;b&gt; / fair<small>95% interval</small></th>" in page
    assert (
        "<tr><td>large</td><td>2</td><td>26.2</td><td>31.5</td>"
        "<td>1.200 <span>1.200 – 1.200</span></td><td>loses</td>"
        "<td>14.8</td><td>41.8</td><td>42.0</td></tr>"
    ) in page
    assert "Of 2 recurring jobs, 0 gain and 2 lose under fifo&lt;b&gt;." in page
    assert "<h2>Recurring jobs: the longest waits</h2>" in page
    assert "left out" not in page


def test_of_many_recurring_jobs_the_page_shows_both_ends_and_says_so(tmp_path: Path) -> None:
    whole = _comparison({"fair": (10.0,), "fifo": (9.0,)})
    ends = np.array([np.full(40, 1_000), np.arange(600, 1_000, 10)], np.int64)
    names = (*(f"query-{row:02}" for row in range(39)), "long" * 40)
    runs = (PairedRuns(names, np.zeros(40, np.int64), ends, ends.max(axis=1)),)
    write_report(replace(whole, runs=runs), {"fair": trace(), "fifo": trace()}, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    table = page[page.index("gains and losses</h2>") : page.index("the longest waits</h2>")]
    shown = re.findall(r"<tr><td>query-(\d\d)</td>", table)
    assert shown == [f"{row:02}" for row in (*range(38, 24, -1), *range(14, -1, -1))]
    assert f"<tr><td><div class=name>{'long' * 40}</div></td>" in table
    # One run has no spread over seeds.
    assert "nan" not in table
    assert "The other 10, with ratios from 0.750 to 0.840, are left out." in page
