from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from parcae.cluster.state import ExecutorClass
from parcae.decima.catalog import make_policy
from parcae.evaluation.compare import ClusterWorld, compare
from parcae.evaluation.comparison import comparison_table, write_comparison
from parcae.evaluation.report import write_report
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import RandomStreams, Workload, draw_sequence
from tests.conftest import made_up

_WORKLOAD = made_up(20, 6.0)
_CONFIG = SimulationConfig(num_executors=8)
_WORLD = ClusterWorld(_WORKLOAD, _CONFIG, "batch", 6)


def test_policies_are_compared_on_the_same_seeds_and_the_result_says_how(tmp_path: Path) -> None:
    done: list[tuple[int, int]] = []
    comparison = compare(
        _WORLD,
        ["fair", "fifo", "fair:active"],
        num_seeds=4,
        seed_start=3,
        processes=1,
        progress=lambda k, n: done.append((k, n)),
    )
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    write_comparison(comparison, tmp_path / "c.json")
    result = json.loads((tmp_path / "c.json").read_text())
    assert result["policies"]["fair"]["ratio_to_first"] == {"mean": 1.0, "ci95": [1.0, 1.0]}
    assert result["settings"]["seeds"] == [3, 6]
    assert result["settings"]["config"]["num_executors"] == 8
    by_hand = []
    for seed in range(3, 7):
        sequence = draw_sequence(_WORKLOAD, "batch", 6, 8, RandomStreams(seed))
        trace = simulate(sequence, make_policy("fifo", 8), _CONFIG, seed)
        by_hand.append(float((trace.completion_ms - trace.arrival_ms).mean()) / 1_000)
    assert result["policies"]["fifo"]["average_jct_s_by_seed"] == pytest.approx(by_hand)
    assert result["policies"]["fifo"]["average_jct_s"]["mean"] == pytest.approx(np.mean(by_hand))
    assert comparison_table(comparison).row_count == 3
    assert result["policies"]["fair"]["later_than_first_share"] == {"mean": 0.0, "ci95": [0.0, 0.0]}
    assert result["policies"]["fair"]["worst_ratio_to_first"] == 1.0


def test_times_below_a_second_are_shown_with_two_digits(tmp_path: Path) -> None:
    jobs = Workload("quick", (chain(1, 1, 12),))
    world = ClusterWorld(jobs, SimulationConfig(world=WorldName.CORES, num_executors=1), "batch", 2)
    comparison = compare(world, ["fifo"], num_seeds=2, processes=1)
    cells = [next(iter(column.cells)) for column in comparison_table(comparison).columns]
    assert cells[1] == "0.018 [0.018, 0.018]"
    assert cells[-2] == "0.024"
    write_report(comparison, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "0.018 <span>[0.018, 0.018]</span>" in page


def test_classes_whose_memory_has_no_bound_have_no_column_of_unused_memory() -> None:
    def headings(memory: float) -> list[object]:
        config = SimulationConfig(executor_classes=(ExecutorClass(4, 1.0, memory),))
        world = ClusterWorld(_WORKLOAD, config, "batch", 2)
        found = compare(world, ["fair"], num_seeds=1, processes=1)
        return [column.header for column in comparison_table(found).columns]

    assert headings(1.0) == [*headings(math.inf), "memory unused"]


def test_one_process_and_two_give_the_same_numbers() -> None:
    one, two = (
        compare(
            ClusterWorld(_WORKLOAD, _CONFIG, "poisson:5s", 5),
            ["fair", "random"],
            num_seeds=2,
            processes=n,
        )
        for n in (1, 2)
    )
    assert one.to_json() == two.to_json()
    assert one.jobs.equals(two.jobs)
    assert one.runs.equals(two.runs)


def test_the_oracle_is_at_least_as_good_as_the_tuned_policy_on_every_seed() -> None:
    names = ["weighted-fair:tuned", "weighted-fair:oracle"]
    comparison = compare(_WORLD, names, num_seeds=3, processes=1)
    tuned, oracle = (p.runs["average_jct_ms"].to_list() for p in comparison.policies)
    assert all(o <= t for o, t in zip(oracle, tuned, strict=True))
    assert "oracle" in comparison.settings["tuned"]["weighted-fair:oracle"]


class _Outside(HTMLParser):
    """Collects what a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {value}" for name, value in attrs if name in ("src", "href")]


def test_the_report_is_one_file_that_fetches_nothing(tmp_path: Path) -> None:
    comparison = compare(_WORLD, ["fifo", "srpt-cap:2"], num_seeds=3, processes=1)
    write_report(comparison, tmp_path / "r.html", command="parcae compare <it>")
    page = (tmp_path / "r.html").read_text()
    parser = _Outside()
    parser.feed(page)
    assert parser.fetched == []
    assert "parcae compare &lt;it&gt;" in page
    assert page.count("<svg ") == 2 + len(comparison.policies) + 5
