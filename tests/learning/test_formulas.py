"""Formulas that are searched: a front by length, which the same seed gives again."""

from __future__ import annotations

import json
from pathlib import Path

from parcae.api.formulas import chosen
from parcae.learning.formulas import MOST_TERMS, FoundFormula, search_formulas
from parcae.learning.scenario import Scenario
from parcae.policies.formula.language import parse_formula
from parcae.policies.policy_file import read_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.archive import load_workload, write_workload
from tests.cli.running import ran, refused

_CORES = SimulationConfig(world=WorldName.CORES, num_executors=4)


def test_longer_formulas_of_the_front_are_better_and_a_seed_gives_it_again() -> None:
    scenario = Scenario(load_workload("toy"), _CORES, "load:0.9", 6)
    fronts = [search_formulas(scenario, budget_s=60.0, max_generations=6, seed=1) for _ in range(2)]
    assert fronts[0] == fronts[1]
    front = fronts[0]
    assert [parse_formula(one.text).terms for one in front] == [one.terms for one in front]
    assert [one.terms for one in front] == sorted({one.terms for one in front})
    ratios = [one.ratio_to_fair for one in front]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] < 0.98
    assert front[-1].terms <= MOST_TERMS


def test_the_shortest_formula_that_is_as_good_is_chosen() -> None:
    costs = ((1, 0.9), (3, 0.8), (5, 0.799))
    assert chosen(tuple(FoundFormula("rem", *pair) for pair in costs)) == 1


def test_the_command_writes_the_front_and_a_policy_file(tmp_path: Path) -> None:
    write_workload(load_workload("toy"), tmp_path / "toy.parcae")
    words = "parcae learn toy.parcae -o found --cores 4 --jobs 4 --seeds 2 --budget 0.02"
    done = ran(f"{words} --as formula", tmp_path)
    rows = json.loads((tmp_path / "found" / "front.json").read_text())
    (best,) = (row for row in rows if row["is_chosen"])
    assert (
        read_policy(tmp_path / "found" / "policy.json").program
        == parse_formula(best["text"]).program
    )
    assert f"formula: {best['text']}" in done.stdout
    assert "than the rule that was tuned for as long" in " ".join(done.stdout.split())
    assert (tmp_path / "found" / "report.html").exists()
    assert (tmp_path / "found" / "front.png").stat().st_size > 5_000
    refused(f"{words} --as poem", tmp_path, "--as poem: write network or formula")
