import re
from pathlib import Path

import pytest

from parcae.api.study import (
    LearnRequest,
    default_arrivals,
    learn,
    objective_ratio,
    savings_headline,
    savings_paragraph,
)
from parcae.base.errors import ConfigError
from parcae.evaluation.compare import ClusterWorld, compare
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import read_checkpoint
from parcae.policies.policy_file import export_policy, read_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.objectives import Objective, missed_and_tardy
from parcae.workloads.workload import Workload
from tests.conftest import job, made_up

_WORKLOAD = made_up(8, 5.0)
_CONFIG = SimulationConfig(num_executors=6)


@pytest.mark.parametrize(
    ("start", "world"), [("shipped", "executors"), ("scratch", "executors"), ("shipped", "cores")]
)
def test_the_whole_circle_writes_policy_report_and_paragraph(
    start: str, world: str, tmp_path: Path
) -> None:
    scenario = Scenario(
        _WORKLOAD, _CONFIG.model_copy(update={"world": WorldName(world)}), "batch", 5
    )
    messages: list[str] = []
    learned = learn(
        LearnRequest(scenario, tmp_path, budget_s=0.5, num_seeds=4, start=start),
        lambda done, total, text: messages.append(text),
    )
    names = {
        "tuned.safetensors",
        "policy.safetensors",
        "comparison.json",
        "report.html",
        "summary.txt",
    }
    assert names <= {path.name for path in tmp_path.iterdir()}
    kinds = ("order-rule", "order-network") if world == "cores" else ("rule", "corrector")
    assert read_checkpoint(learned.policy).kind in kinds
    stock = (
        ("Spark's FIFO", "Spark's FAIR")
        if world == "cores"
        else ("first come, first served", "fair sharing")
    )
    for word in (*stock, "best heuristic", "95% level", "not used for learning"):
        assert word in learned.paragraph
    said = (tmp_path / "summary.txt").read_text().strip()
    assert said == f"{learned.headline}\n\n{learned.paragraph}".strip()
    if world == "cores":
        assert learned.exported is not None
        assert read_policy(learned.exported) == export_policy(
            f"{learned.policy}+account", _WORKLOAD
        )
        assert learned.headline.startswith("Under the learned order")
    else:
        assert learned.exported is None
    assert any("tuning" in text for text in messages)
    assert any("training the network" in text for text in messages)
    compared = {policy.name for policy in learned.comparison.policies}
    shipped = {"tuned", "parcae" if world == "cores" else "corrector"}
    assert (shipped <= compared) == (start == "shipped")
    assert ("which ships" in learned.paragraph or "that ship" in learned.paragraph) == (
        start == "shipped"
    )


def test_an_objective_that_no_network_can_learn_is_refused_before_tuning(tmp_path: Path) -> None:
    due = _WORKLOAD.with_deadlines({"*": 9.0})
    scenario = Scenario(due, _CONFIG, "batch", 5, missed_and_tardy)
    with pytest.raises(ConfigError, match="needs a cost that accrues"):
        learn(LearnRequest(scenario, tmp_path, budget_s=1_000.0))
    assert list(tmp_path.iterdir()) == []


def test_savings_are_of_the_objective_that_was_asked_for() -> None:
    comparison = compare(
        ClusterWorld(_WORKLOAD, _CONFIG, "batch", 5),
        ["fifo", "fair", "sjf-cp", "srpt-cap"],
        num_seeds=4,
        processes=1,
    )
    for objective in Objective:
        ratio = objective_ratio(comparison, objective, "srpt-cap", "fifo")
        assert ratio.low <= ratio.mean <= ratio.high
    assert "makespan" in savings_paragraph(comparison, Objective.MAKESPAN, "srpt-cap")
    assert "p95 job completion time" in savings_paragraph(comparison, Objective.P95_JCT, "srpt-cap")
    with pytest.raises(ConfigError, match="was not compared"):
        objective_ratio(comparison, Objective.MAKESPAN, "parcae", "fifo")


def test_arrivals_are_those_of_the_logs() -> None:
    recorded = Workload("r", tuple(job(f"j{k}", (1, 10, ())).at(k * 4_000) for k in range(5)))
    assert default_arrivals(recorded) == "poisson:4000ms"
    assert default_arrivals(_WORKLOAD) == "batch"
    assert default_arrivals(Workload("one", (job("j", (1, 10, ())).at(0),))) == "batch"


def test_nights_do_not_count_for_the_rate_of_arrivals() -> None:
    day_ms = 24 * 3_600_000
    jobs = [job(f"j{k}", (1, 10, ())) for k in range(4)]
    nightly = [one.at(day * day_ms + 4_000 * k) for day in range(3) for k, one in enumerate(jobs)]
    assert default_arrivals(Workload("n", tuple(nightly))) == "poisson:4000ms"
    # Jobs that always come every two hours have no breaks.
    steady = [jobs[0].at(day_ms // 12 * k) for k in range(5)]
    assert default_arrivals(Workload("s", tuple(steady))) == "poisson:7200000ms"


def test_more_seeds_are_no_advice_where_the_order_made_no_difference() -> None:
    alone = Workload("alone", (job("j", (1, 10_000, ())),))
    comparison = compare(
        ClusterWorld(alone, _CONFIG.model_copy(update={"world": WorldName.CORES}), "batch", 1),
        ["fifo", "fair", "srpt"],
        num_seeds=3,
        processes=1,
    )
    text = savings_paragraph(comparison, Objective.AVERAGE_JCT, "srpt")
    same = "the average job completion time is the same in every run; learn for more load"
    assert same in text
    assert "more seeds" not in text
    said = savings_headline(comparison, Objective.AVERAGE_JCT, "srpt")
    assert said.startswith("The learned order makes no difference worth having")


def test_a_gain_over_fair_sharing_is_a_difference_although_it_is_the_same_in_all_runs() -> None:
    alike = Workload("alike", (job("j", (8, 10_000, ())),))
    comparison = compare(
        ClusterWorld(alike, SimulationConfig(world=WorldName.CORES, num_executors=4), "batch", 3),
        ["fifo", "fair", "srpt"],
        num_seeds=3,
        processes=1,
    )
    text = savings_paragraph(comparison, Objective.AVERAGE_JCT, "srpt")
    assert re.search(r"\d\d\.\d% less \(.*\) than Spark's FAIR", text)
    assert "is the same in every run" not in text
    assert "both have the same average job completion time in every run" in text


def test_where_no_deadline_is_missed_only_the_share_is_called_the_same() -> None:
    world = ClusterWorld(_WORKLOAD, SimulationConfig(num_executors=60), "load:0.01", 5)
    names = ["fifo", "fair", "sjf-cp", "srpt-cap"]
    comparison = compare(world, names, num_seeds=3, processes=1)
    text = savings_paragraph(comparison, Objective.MISSED_DEADLINES, "srpt-cap")
    same = "the share of missed deadlines is the same in every run"
    assert f"{same}; learn for other deadlines or another load" in text
    assert "the jobs end more than 5% later than under fifo" in text


def test_one_run_has_neither_an_interval_nor_significance() -> None:
    world = ClusterWorld(_WORKLOAD, _CONFIG, "batch", 5)
    names = ["fifo", "fair", "sjf-cp", "srpt-cap"]
    comparison = compare(world, names, num_seeds=1, processes=1)
    text = savings_paragraph(comparison, Objective.AVERAGE_JCT, "srpt-cap")
    assert "one run cannot tell whether the difference is chance: run more seeds" in text
    assert "nan" not in text
    assert "significant" not in text


def test_savings_in_missed_deadlines_are_against_the_best_heuristic_by_deadline() -> None:
    config = SimulationConfig(world=WorldName.CORES, num_executors=4)
    workload = _WORKLOAD.with_deadlines({"*": 8})
    comparison = compare(
        ClusterWorld(workload, config, "batch", 5),
        ["fair", "fifo", "srpt", "edf"],
        num_seeds=4,
        processes=1,
    )
    ratio = objective_ratio(comparison, missed_and_tardy, "edf", "fair")
    assert ratio.low <= ratio.mean <= ratio.high
    text = savings_paragraph(comparison, missed_and_tardy, "srpt")
    assert "the learned policy's share of missed deadlines plus relative tardiness is" in text
