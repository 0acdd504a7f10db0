import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from parcae.cluster.state import World
from parcae.cluster.trace import FaultCounts, Trace
from parcae.evaluation import sections
from parcae.evaluation.compare import ClusterWorld
from parcae.evaluation.comparison import Comparison, compare_in, comparison_table, policies_table
from parcae.evaluation.report import headline
from parcae.evaluation.report import write_report as write_page_of
from parcae.evaluation.statistics import UNKNOWN, Estimate
from parcae.evaluation.who_pays import MISSED, MISSED_MINUS_FIRST, TARDINESS
from parcae.simulation.bounds import Bounds
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.metrics import summarize
from parcae.workloads.workload import Workload
from tests.conftest import job
from tests.evaluation.made import WORLD, comparison_of, run_of
from tests.metrics.hand_made import cut_off, three_jobs, trace


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
        patch.setattr(sections, "first_runs", lambda comparison: (traces, bounds))
        write_page_of(comparison, path, command=command)


def test_runs_that_may_be_shorter_than_anything_measured_have_no_bounds() -> None:
    config = SimulationConfig(world=WorldName.CORES, num_executors=2, estimate_error="log")
    for sigma in (0.0, 0.7):
        jobs = (replace(job("a", (2, 10, ())), work_sigma=sigma),)
        world = ClusterWorld(Workload("w", jobs), config, "batch", 3)
        comparison = compare_in(world, ["fair"], range(2), processes=1)
        _, bounds = sections.first_runs(comparison)
        assert (bounds is None) == (sigma > 0)


def test_runs_that_their_end_cuts_off_have_no_bounds() -> None:
    workload = Workload("w", (job("a", (2, 1_000, ())),))
    for end_ms in (500, 100_000):
        config = SimulationConfig(world=WorldName.CORES, num_executors=2, end_ms=end_ms)
        world = ClusterWorld(workload, config, "batch", 3)
        comparison = compare_in(world, ["fair"], range(2), processes=1)
        _, bounds = sections.first_runs(comparison)
        assert (bounds is None) == (end_ms == 500)


def test_the_sentence_says_who_pays() -> None:
    whole = comparison_of({"fair": (10.0, 20.0), "srpt-cap": (8.0, 16.0)})
    for share, worst, expected in (
        (0.031, 1.2, "3.1% of the jobs end more than 5% later than under fair, the worst 1.20 "),
        (0.0001, 1.06, "Less than 0.1% of the jobs end more than 5% later than under fair, the "),
        (math.nan, math.nan, "No job completed under fair, so it is unknown which jobs end later"),
    ):
        best = whole.policies[1]
        later = {"later_than_first_share": Estimate(share, share, share)}
        paid = replace(
            best,
            estimates={**best.estimates, **later},
            numbers={**best.numbers, "worst_ratio_to_first": worst},
        )
        said = WORLD.remark(replace(whole, policies=(whole.policies[0], paid)), paid)
        assert said.startswith(expected)


def test_the_headline_says_the_result_in_plain_words() -> None:
    better = comparison_of({"fair": (10.0, 20.0), "srpt-cap": (8.0, 16.0)})
    assert headline(better) == (
        "srpt-cap is better than fair: its average job completion time is 20% lower. "
        "Of 2 recurring jobs, 2 gain and 0 lose under srpt-cap."
    )
    slightly = headline(comparison_of({"fair": (10.0, 20.0), "psbs": (9.81, 19.62)}))
    assert slightly.startswith("psbs does best, but that is no difference worth having from fair.")
    enough = headline(comparison_of({"fair": (10.0, 20.0), "psbs": (9.79, 19.58)}))
    assert enough.startswith(
        "psbs is better than fair: its average job completion time is 2% lower"
    )
    nearly_all = headline(comparison_of({"fair": (1_000.0, 2_000.0), "psbs": (2.0, 4.0)}))
    assert " is more than 99% lower." in nearly_all
    worse = headline(comparison_of({"fair": (10.0, 20.0), "slow": (50.0, 100.0)}))
    assert worse.startswith("None of the other policies does better than fair. Of 2 recurring")
    noisy = headline(comparison_of({"fair": (10.0, 20.0, 30.0), "fifo": (12.0, 15.0, 30.5)}))
    assert noisy.startswith("It may be chance that fifo does better than fair: run more to know.")
    assert noisy.endswith("0 gain and 0 lose under fifo; for the others the runs cannot tell.")
    one = headline(comparison_of({"fair": (10.0,), "fifo": (8.0,)}))
    assert one.startswith("One run of each policy is too little")
    assert headline(comparison_of({"fair": (9.0, 9.0)})) == ""


def test_an_oracle_never_wins_over_what_can_be_deployed() -> None:
    names = {"fair": (10.0, 20.0), "weighted-fair:oracle": (5.0, 10.0), "fifo": (20.0, 40.0)}
    best = comparison_of(names, oracles=("weighted-fair:oracle",)).best()
    assert best is not None
    assert best.name == "fair"


def test_an_oracle_that_is_the_first_policy_is_said_to_do_better() -> None:
    names = {"weighted-fair:oracle": (5.0, 10.0), "fair": (6.0, 12.0), "fifo": (20.0, 40.0)}
    comparison = comparison_of(names, oracles=("weighted-fair:oracle",))
    assert headline(comparison).startswith(
        "fair does best of the policies that are ranked; weighted-fair:oracle is not one of them."
    )
    equal = {"weighted-fair:oracle": (5.0, 10.0), "fair": (5.0, 10.0)}
    assert headline(comparison_of(equal, oracles=("weighted-fair:oracle",))).startswith(
        "None of the other policies that are ranked does better than weighted-fair:oracle."
    )
    turned = {"fair": (6.0, 12.0), "weighted-fair:oracle": (5.0, 10.0)}
    assert headline(comparison_of(turned, oracles=("weighted-fair:oracle",))).startswith(
        "None of the other policies that are ranked does better than fair."
    )


def test_what_is_unknown_is_null_in_a_frame() -> None:
    frame = comparison_of({"fair": (9.0,), "fifo": (8.0,)}).to_frame()
    assert frame["ratio_to_first"].to_list() == [1.0, pytest.approx(8 / 9)]
    assert frame["ratio_low"].to_list() == frame["average_jct_high_s"].to_list() == [None, None]


@pytest.fixture
def page(tmp_path: Path) -> str:
    comparison = comparison_of({"fair": (10.0, 20.0), "fifo<b>": (12.0, 24.0)})
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
    assert "<h1>Is fifo&lt;b&gt; better than fair for &lt;tpch&gt;?</h1>" in page
    assert "</i>fifo&lt;b&gt;</td>" in page
    assert "parcae compare &#39;a b&#39;" in page


def test_the_bounds_stand_beside_the_best_that_was_reached(page: str) -> None:
    assert "average JCT below 2.5 s" in page
    assert "makespan below 4.0 s; the best here are 5.5 s and 7.0 s." in page


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
        assert ("0: a, core 0, " in page) == (world is WorldName.CORES)
        assert ("moves</small>" in page) == (world is WorldName.EXECUTORS)


def test_cores_that_were_not_up_are_not_called_idle(tmp_path: Path) -> None:
    fixed = replace(trace(), world=World.CORES)
    lossy = replace(fixed, faults=FaultCounts(0, 1, 1, 0, 0, 500, 30_000))
    runs = {"fixed": fixed, "elastic": replace(fixed, held_ms=12_000), "lossy": lossy}
    for name, run in runs.items():
        comparison = comparison_of({name: (10.0, 20.0)})
        write_report(comparison, {name: run}, tmp_path / "r.html")
        page = (tmp_path / "r.html").read_text()
        assert ("White means idle." in page) == (name == "fixed")
        assert ("White means idle, or not up." in page) == (name != "fixed")


def test_jobs_cut_off_are_reported_in_the_table() -> None:
    comparison = comparison_of({"fair": (5.0,)}, summary=summarize(cut_off(), three_jobs()))
    said = "1 job cut off at the end of a run: such times are lower bounds"
    assert said in str(comparison_table(comparison).caption)


def test_one_seed_has_no_interval_in_the_table() -> None:
    column = list(comparison_table(comparison_of({"fair": (10.0,), "fifo": (8.0,)})).columns)
    assert list(column[1].cells) == ["10.0", "8.0"]
    assert list(column[2].cells) == ["1.000", "0.800"]
    assert [(c.header, list(c.cells)) for c in column[3:7]] == [
        ("later", ["0.0%", "0.0%"]),
        ("worst", ["1.00", "0.80"]),
        ("p95 JCT", ["6.0", "6.0"]),
        ("p99 JCT", ["6.0", "6.0"]),
    ]


def test_what_no_run_shows_is_a_dash_in_the_table_and_on_the_page() -> None:
    workload = WORLD.workload.with_deadlines({"*": 5})
    whole = comparison_of(
        {"fair": (10.0, 20.0)},
        [run_of(("a",), (-1,)), run_of(("a",), (-1,))],
        world=replace(WORLD, workload=workload),
    )
    unknown = dict.fromkeys((MISSED, MISSED_MINUS_FIRST, TARDINESS), UNKNOWN)
    assert unknown.items() <= whole.policies[0].estimates.items()
    cells = {column.header: list(column.cells) for column in comparison_table(whole).columns}
    for heading in ("later", "worst", "missed", "missed - first, pp", "tardiness"):
        assert cells[heading] == ["–"]
    row = policies_table(whole).rows[0]
    texts = [one if isinstance(one, str) else one.text for one in row]
    assert texts.count("–") == 5
    assert "nan" not in texts


def test_later_jobs_stand_in_the_tables_and_in_the_json(page: str) -> None:
    comparison = comparison_of({"fair": (10.0, 20.0), "fifo": (12.0, 20.0)})
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
        "<td>100.0% <span>[100.0%, 100.0%]</span></td><td>1.20</td><td>6.0</td><td>6.0</td>" in page
    )


def test_the_page_says_which_recurring_jobs_gain_and_lose(page: str) -> None:
    assert "<h2>Recurring jobs: gains and losses</h2>" in page
    assert "<th>fifo&lt;b&gt; / fair<small>95% interval</small></th>" in page
    assert (
        "<tr><td>large</td><td>2</td><td>26.2</td><td>31.5</td>"
        "<td>1.200 <span>[1.200, 1.200]</span></td><td>loses</td>"
        "<td>14.8</td><td>41.8</td><td>42.0</td></tr>"
    ) in page
    assert "Of 2 recurring jobs, 0 gain and 2 lose under fifo&lt;b&gt;." in page
    assert "left out" not in page


def test_of_many_recurring_jobs_the_page_shows_both_ends_and_says_so(tmp_path: Path) -> None:
    names = (*(f"query-{row:02}" for row in range(39)), "long" * 40)
    run = run_of(names, [1_000] * 40, [*range(600, 1_000, 10)])
    whole = comparison_of({"fair": (10.0,), "fifo": (9.0,)}, [run])
    write_report(whole, {"fair": trace(), "fifo": trace()}, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    table = page[page.index("gains and losses</h2>") : page.index("which job ran where</h2>")]
    shown = re.findall(r"<tr><td>query-(\d\d)</td>", table)
    assert shown == [f"{row:02}" for row in (*range(38, 24, -1), *range(14, -1, -1))]
    assert f"<tr><td><div class=name>{'long' * 40}</div></td>" in table
    # One run has no spread over seeds.
    assert "nan" not in table
    assert "The other 10, with ratios from 0.750 to 0.840, are left out." in page
