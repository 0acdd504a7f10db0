"""What the studies are made of: tables, files, settings, measurements."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from parcae.base.errors import ConfigError
from parcae.decima.catalog import make_policy
from parcae.decima.graph.layout import DecimaSettings, FeatureSet
from parcae.decima.learning.recipes import Recipe
from parcae.evaluation.pictures import new_picture
from parcae.evaluation.statistics import Estimate
from parcae.learning.scenario import Scenario
from parcae.papers.catalog import STUDIES, find_study, paper_setting
from parcae.papers.contest import (
    Contender,
    Contest,
    averages_s,
    contest,
    labels_of,
    named,
    with_half_width,
    with_interval,
)
from parcae.papers.cross_objectives import cross_objectives
from parcae.papers.curves import ClusterCurve, draw_curves
from parcae.papers.latency import fig15b, measure_latencies
from parcae.papers.learners import (
    DecimaVariant,
    StudiedPolicy,
    budget_notes,
    checkpoint_path,
    learned_contenders,
    recipe_words,
    short_config,
)
from parcae.papers.pictures import bar_panels, line_panel, save, save_bars
from parcae.papers.robustness import gap_arrivals
from parcae.papers.shifts import shifts
from parcae.papers.stream import series_facts
from parcae.papers.study import (
    Origin,
    StudyRequest,
    StudyResult,
    markdown_table,
    settings_of,
    write_study,
)
from parcae.policies.checkpoint import read_checkpoint
from parcae.simulation.config import SimulationConfig, decima_classes
from parcae.simulation.objectives import Objective
from parcae.simulation.simulator import simulate
from parcae.workloads.archive import load_workload
from parcae.workloads.arrivals import TUNING_SEED_START, ArrivalProcess
from parcae.workloads.job import Workload
from parcae.workloads.synthetic import chain, toy_workload
from tests.conftest import arriving

_CLUSTER = SimulationConfig(num_executors=2, moving_delay_ms=0, warmup_delay_ms=0)


def _request(folder: Path) -> StudyRequest:
    return StudyRequest(toy_workload(), _CLUSTER, "load:0.5", folder, processes=1)


def test_every_study_of_the_paper_is_there() -> None:
    decima = (
        "fig3 fig9a fig9b fig10 fig11 fig12 fig13 fig14 fig15a fig15b fig16 fig19 fig20 fig21 "
        "fig22 fig23 table2 table3"
    )
    names = [
        *(f"decima-{figure}" for figure in decima.split()),
        *(f"idle-{name}" for name in ["table1", "fig3", "fig4", "fig5"]),
    ]
    assert list(STUDIES) == [*names, "objectives", "shifts", "learning-curves"]


def test_an_unknown_study_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'decima-fig9a'"):
        find_study("decima-fig9aa")


def test_small_jobs_get_a_small_cluster_and_large_jobs_the_papers() -> None:
    assert paper_setting(load_workload("tpch"))[1].num_executors == 20
    large = Workload("large", (chain(10, 100, 1_000),))
    assert paper_setting(large) == (large, SimulationConfig())


def test_evaluation_seeds_never_meet_those_of_tuning_and_training(tmp_path: Path) -> None:
    request = replace(_request(tmp_path), seed=255)
    assert 0 <= request.first_seed < request.first_seed + 10_000 < TUNING_SEED_START
    assert request.training_seed == 255


def test_a_request_takes_its_own_numbers_before_those_of_the_study(tmp_path: Path) -> None:
    request = _request(tmp_path)
    several = (request, replace(request, is_full=True), replace(request, num_runs=7))
    assert [r.runs(5, 50) for r in several] == [5, 50, 7]


def test_a_table_in_markdown_keeps_bars_within_cells() -> None:
    assert markdown_table(["a", "b"], [["1|2", "3"]]) == "| a | b |\n| --- | --- |\n| 1\\|2 | 3 |"


def test_a_study_is_written_as_table_picture_and_numbers(tmp_path: Path) -> None:
    def draw(path: Path) -> None:
        save_bars({"x": Estimate(2.0, 1.0, 3.0), "y": Estimate(1.0, math.nan, math.nan)}, "s", path)

    result = StudyResult(
        "title", "the paper's word", ("a",), (("1",),), {"x": 2.0}, ("a note",), draw
    )
    files = write_study(
        result, Origin("name", 1.5, "parcae x", settings_of(_request(tmp_path))), tmp_path / "new"
    )
    found = json.loads(files.numbers.read_text())
    assert (found["numbers"], found["seconds"], found["table"]["rows"]) == (
        {"x": 2.0},
        1.5,
        [["1"]],
    )
    page = files.table.read_text()
    assert all(
        part in page
        for part in ("the paper's word", "- a note", "parcae x", "name.png", '"seed": 0')
    )
    assert files.picture.read_bytes().startswith(b"\x89PNG")


def test_names_are_drawn_as_they_are_and_not_as_mathematics(tmp_path: Path) -> None:
    name = r"a$\frac$"

    def draw(figure: Any) -> None:
        line_panel(figure.subplots(), {name: ([0, 1], [1, 2])}, (name, name), name)

    def draw_bars(figure: Any) -> None:
        bar_panels(figure, {name: {name: Estimate(1.0, 0.5, 2.0)}}, name)

    for drawing in (draw, draw_bars):
        save(drawing, (3.0, 2.0), tmp_path / "names.png")
        assert (tmp_path / "names.png").stat().st_size > 1_000


def test_estimates_read_as_a_mean_and_its_interval() -> None:
    assert with_half_width(Estimate(2.0, 1.0, 3.0)) == "2.0 ± 1.0"
    assert with_interval(Estimate(0.9, 0.8, 1.0)) == "0.900 [0.800, 1.000]"
    assert with_interval(Estimate(0.9, math.nan, math.nan)) == "0.900"


def test_a_contest_pairs_the_runs_and_keeps_the_studys_names(tmp_path: Path) -> None:
    scenario = Scenario(toy_workload(), _CLUSTER, "batch", 3)
    found = contest(_request(tmp_path), scenario, named("fifo", "fair"), 4)
    by_hand = [
        float((t.completion_ms - t.arrival_ms).mean()) / 1e3
        for t in (
            simulate(scenario.sequence(seed), make_policy("fair", 2), _CLUSTER, seed)
            for seed in range(4)
        )
    ]
    assert averages_s(found.results["fair"]) == by_hand
    assert found.rows()[0][2] == "1.000 [1.000, 1.000]"
    assert list(found.traces(0)) == ["fifo", "fair"]
    assert "4 runs of 3 jobs" in found.notes()[0]


def test_a_policy_of_the_label_of_another_is_labelled_with_its_name(tmp_path: Path) -> None:
    mine = Contender("fifo", "srpt-cap")
    assert labels_of([*named("fifo", "fair"), mine]) == {
        "fifo": "fifo", "fair": "fair", "srpt-cap": "srpt-cap",
    }  # fmt: skip
    assert labels_of([*named("fair"), *named("fair")]) == {"fair": "fair"}
    scenario = Scenario(toy_workload(), _CLUSTER, "batch", 3)
    found = contest(_request(tmp_path), scenario, [*named("fifo"), mine], 2)
    assert [row[0] for row in found.rows()] == ["fifo", "srpt-cap"]
    assert list(found.traces(0)) == ["fifo", "srpt-cap"]


def test_shifts_resizes_a_cluster_of_executor_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SimulationConfig(executor_classes=decima_classes(8))
    request = replace(_request(tmp_path), config=config, policies=("fair:active",), num_jobs=3)
    scenario = Scenario(toy_workload(), _CLUSTER, "batch", 3)
    contenders = named("fair", "weighted-fair:tuned", "srpt-cap:tuned", "fair:active")
    one = contest(request, scenario, contenders, 2)
    sizes = list[int]()

    def note(_: StudyRequest, case: Scenario, *__: Any) -> Contest:
        sizes.append(case.config.total_executors)
        return one

    monkeypatch.setattr("parcae.papers.shifts.contest", note)
    result = shifts(request)
    named_sizes = [row[0].split(", ")[-1] for row in result.rows]
    shown = [int(text.split()[0]) for text in named_sizes if text.endswith("executors")]
    assert sizes[: len(shown)] == shown
    assert set(shown) == {4, 8, 16, 32}
    # 0.3 and 0.5 of 8 executors are both 4, one of each class; that is one setting.
    assert len({row[0] for row in result.rows}) == len(result.rows)


def test_a_rule_that_costs_nothing_at_its_objective_gives_no_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "parcae.papers.cross_objectives"

    def costs(learned: StudiedPolicy, scenario: Scenario, seeds: range) -> np.ndarray:
        # Of the jobs of one rule alone, none misses its deadline.
        is_none = scenario.objective == learned.label == Objective.MISSED_DEADLINES
        return np.zeros(len(seeds)) if is_none else np.arange(1.0, len(seeds) + 1)

    learned = {
        one: StudiedPolicy(str(one), tmp_path, 1.0, 1, 1, 1.0, f"rule for {one}", ())
        for one in Objective
    }
    monkeypatch.setattr(f"{module}._learn", lambda *_: learned)
    monkeypatch.setattr(f"{module}._costs", costs)
    result = cross_objectives(replace(_request(tmp_path), num_runs=3))
    column = 1 + list(Objective).index(Objective.MISSED_DEADLINES)
    assert {row[column] for row in result.rows} == {"–"}
    assert {row[1] for row in result.rows} == {"1.000 [1.000, 1.000]"}
    assert sum("costs nothing in any run" in note for note in result.notes) == 1


def test_series_facts_of_two_jobs_by_hand() -> None:
    # One executor: 2 s and 4 s of work, arriving together: JCTs of 2 and 6 s, 8 job-seconds in 6 s.
    sequence = arriving((chain(1, 1, 2_000, "small"), 0), (chain(1, 1, 4_000, "large"), 0))
    config = SimulationConfig(num_executors=1, moving_delay_ms=0, warmup_delay_ms=0)
    facts = series_facts({"fifo": simulate(sequence, make_policy("fifo", 1), config, 0)}, sequence)[
        "fifo"
    ]
    assert (facts.average_jct_s, facts.most_jobs, facts.small_jct_s, facts.busiest_jct_s) == (
        4.0,
        2,
        2.0,
        6.0,
    )
    assert facts.mean_jobs == pytest.approx(8 / 6)
    assert (facts.small_share, facts.inflation) == (1.0, 1.0)


@pytest.mark.parametrize("ratio", [0.5, 0.9, 2.1])
def test_a_curve_of_a_single_point_is_seen(ratio: float) -> None:
    axis = new_picture(3.0, 2.0).subplots()
    draw_curves(axis, {"decima": ClusterCurve([2], [0.5], [ratio])}, 1.0)
    low, high = axis.get_ylim()
    assert low < ratio < high
    assert axis.get_lines()[0].get_marker() == "."


def test_a_curve_without_a_point_is_drawn_beside_others() -> None:
    axis = new_picture(4.0, 3.0).subplots()
    draw_curves(axis, {"diverged": ClusterCurve(), "trained": ClusterCurve([1], [5.0], [0.9])}, 0.9)
    assert len(axis.lines) == 3


def test_latencies_are_measured_for_every_decision_and_intervals_between_moments() -> None:
    # Jobs of one task arrive at 0, 4 and 9 s; each completes after 1 s, which is another event.
    sequence = arriving(*((chain(1, 1, 1_000, "one"), at) for at in (0, 4_000, 9_000)))
    config = SimulationConfig(num_executors=1, moving_delay_ms=0, warmup_delay_ms=0)
    found = measure_latencies(sequence, make_policy("fair", 1), config, 0)
    assert (found.decision_ms > 0).all()
    assert found.interval_ms.tolist() == [1_000, 3_000, 1_000, 4_000, 1_000]


def test_the_decisions_of_an_oracle_are_timed_in_its_sequence(tmp_path: Path) -> None:
    request = replace(_request(tmp_path), policies=("static:oracle",), num_jobs=2)
    assert [row[0] for row in fig15b(request).rows] == ["fair", "static:oracle"]


def test_mean_gaps_are_written_as_arrivals_that_are_understood() -> None:
    assert ArrivalProcess.parse(gap_arrivals(0.3369)).mean_gap_ms(
        toy_workload(), 2
    ) == pytest.approx(336.9)


def test_policies_that_were_asked_for_are_shown_and_nothing_is_trained(tmp_path: Path) -> None:
    request = replace(_request(tmp_path), policies=("fair", "somewhere/mine.safetensors"))
    found, notes = learned_contenders(
        request, Scenario(request.workload, request.config, "batch", 3)
    )
    assert [(c.label, c.name) for c in found] == [
        ("fair", "fair"),
        ("mine", "somewhere/mine.safetensors"),
    ]
    assert "as requested" in notes[0]
    assert not list(tmp_path.iterdir())


def test_policies_that_ship_are_trained_if_the_request_wants_new_ones(tmp_path: Path) -> None:
    workload = Workload("two", (chain(2, 3, 1_000, "small"), chain(1, 4, 3_000, "large")))
    request = replace(_request(tmp_path), workload=workload, budget_s=3.0)
    scenario = Scenario(workload, _CLUSTER, "batch", 3)
    shipped, _ = learned_contenders(request, scenario)
    assert [c.name.split(":")[0] for c in shipped] == ["decima", "corrector", "tuned"]
    assert not list(tmp_path.iterdir())
    made, notes = learned_contenders(replace(request, trains_anew=True), scenario)
    files = [f"{kind}-made-here.safetensors" for kind in ("decima", "corrector", "tuned")]
    assert [Path(c.name) for c in made] == [tmp_path / name for name in files]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert "trainings of this study together had" in notes[-1]
    # The corrector corrects the rule that was tuned here.
    tuned, parcae = (read_checkpoint(tmp_path / name).weights["rule"] for name in files[:0:-1])
    np.testing.assert_array_equal(tuned, parcae)


def test_a_network_that_corrects_a_rule_is_not_trained_without_it(tmp_path: Path) -> None:
    request = replace(_request(tmp_path), trains_anew=True)
    scenario = Scenario(request.workload, request.config, "batch", 3)
    found, _ = learned_contenders(request, scenario, ("corrector",))
    assert found[0].name.startswith("parcae:")
    assert not list(tmp_path.iterdir())


def test_checkpoints_with_the_same_file_name_keep_their_paths(tmp_path: Path) -> None:
    texts = ("one/best.safetensors", "other/best.safetensors", "rule.safetensors")
    request = replace(_request(tmp_path), policies=texts)
    found, _ = learned_contenders(request, Scenario(request.workload, request.config, "batch", 3))
    assert [(c.label, c.name) for c in found] == [
        ("one/best.safetensors", "one/best.safetensors"),
        ("other/best.safetensors", "other/best.safetensors"),
        ("rule", "rule.safetensors"),
    ]


def test_a_small_budget_is_admitted_and_a_large_one_needs_no_word(tmp_path: Path) -> None:
    assert "0.5 minutes" in budget_notes(replace(_request(tmp_path), budget_s=30.0))[0]
    assert budget_notes(replace(_request(tmp_path), budget_s=7_200.0)) == []
    assert checkpoint_path(_request(tmp_path), "rule for (a)").name == "rule-for-a.safetensors"


def test_recorded_numbers_are_plain_json(tmp_path: Path) -> None:
    found = contest(
        _request(tmp_path),
        Scenario(toy_workload(), _CLUSTER, "batch", 3),
        named("fifo", "weighted-fair:tuned"),
        2,
    )
    again = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert again["policies"]["fifo"]["ratio_to_first"]["mean"] == 1.0
    assert again["seeds"] == [0, 1]
    assert np.isfinite(again["policies"]["weighted-fair:tuned"]["average_jct_s"]["mean"])


def test_a_variant_of_decima_changes_only_what_it_sets(tmp_path: Path) -> None:
    request = replace(_request(tmp_path), decima=DecimaSettings(features=FeatureSet.JOBS))
    variant = DecimaVariant(DecimaSettings(knows_gap=True))
    both = DecimaSettings(features=FeatureSet.JOBS, knows_gap=True)
    assert variant.settings_for(request) == both
    assert variant.settings_for(_request(tmp_path)) == DecimaSettings(knows_gap=True)
    without_graph = DecimaVariant(DecimaSettings(has_graph=False))
    with pytest.raises(ValidationError, match="features=jobs needs a graph"):
        without_graph.settings_for(request)


def test_settings_of_decima_are_recorded_only_where_they_are_changed(tmp_path: Path) -> None:
    request = _request(tmp_path)
    assert "decima" not in settings_of(request)
    changed = replace(request, decima=DecimaSettings(features=FeatureSet.JOBS))
    assert settings_of(changed)["decima"] == {"features": "jobs"}


def test_the_note_on_a_short_training_by_algorithm_1_says_that_it_has_fewer_rollouts() -> None:
    recipe = Recipe.DECIMA_2019
    scenario = Scenario(load_workload("toy"), SimulationConfig(num_executors=2), "batch", 2)
    short, long = (short_config(recipe, scenario, share_s) for share_s in (110.0, 120.0))
    assert recipe_words(recipe, short) == (
        "recipe decima-2019 (8 rollouts of a job sequence, the paper has 16)"
    )
    assert recipe_words(recipe, long) == "recipe decima-2019"
