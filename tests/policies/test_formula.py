"""The language of formulas: what is read, what is refused, and how names with one are taken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parcae.base.errors import ConfigError, PolicyError
from parcae.cli.checks import names_in
from parcae.policies.formula.kernels import Feature
from parcae.policies.formula.language import FEATURES, MOST_CHARACTERS, parse_formula
from parcae.policies.names import mentioned_files, parse_name
from parcae.policies.policy_file import PolicyAccount, export_policy, read_policy, write_policy
from parcae.workloads.archive import load_workload
from tests.cli.running import run
from tests.conftest import REPOSITORY

_PAGE = (REPOSITORY / "docs" / "orders.md").read_text()


def test_formulas_are_equal_if_their_programs_are() -> None:
    assert parse_formula("max(rem,  2*age)") == parse_formula("(max((rem), 2.0 * age))")
    assert parse_formula("rem if age < 5 else 1") == parse_formula("rem if 5 > age else 1")
    assert parse_formula("min(rem, age, 3)") == parse_formula("min(min(rem, age), 3)")
    assert parse_formula("rem - 1") != parse_formula("1 - rem")
    assert parse_formula("rem + age").uses(Feature.AGE)
    assert not parse_formula("rem + age").uses(Feature.PATH, Feature.FAIR)


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("max(rem + 2 * overdraf, 1)", 15, "unknown name 'overdraf'; did you mean 'overdraft'?"),
        ("rem + nothing_like_it", 7, "known are rem, total, service"),
        ("1 + sqr(rem)", 5, "unknown function 'sqr'; did you mean 'sqrt'?"),
        ("log(rem, 2)", 1, "give log one argument, not 2"),
        ("rem + max(age)", 7, "give max two arguments or more, not 1"),
        ("max(rem, 1", 4, "'(' was never closed"),
        ("rem age", 5, "invalid syntax"),
        ("", 1, "invalid syntax"),
        ("2 + rem ** 2", 5, "a formula has numbers, names, + - * /"),
        ("rem if 1 < age < 3 else 2", 8, "< <= > >= of two values"),
        ("rem == 2", 1, "a formula has"),
        ("rem and age", 1, "a formula has"),
        ("1 + True", 5, "a formula has"),
        ("1 + 2j", 5, "a formula has"),
        ("max(*rem, 1)", 5, "a formula has"),
        ("rem.real", 1, "a formula has"),
        ("rem # not a remark", 5, "unexpected '#'"),
        ("__import__('os')", 12, 'unexpected "\'"'),
        ("rem + 1e301", 7, "at most 1e+300"),
        ("1 + 1" + 400 * "0", 5, "at most 1e+300"),
        (f"rem + {'1' * MOST_CHARACTERS}", MOST_CHARACTERS + 1, "at most 1,000 characters"),
        ("1 + (" * 40 + "1" + ")" * 40, 161, "more than 32 values are kept here"),
        ("(" * 400 + "rem" + ")" * 400, 201, "too many nested parentheses"),
        ("-" * 999 + "1", 33, "more than 32 values are kept here"),
    ],
)
def test_what_is_no_formula_is_refused_with_its_place(text: str, column: int, said: str) -> None:
    with pytest.raises(PolicyError, match=rf"column {column}: .*{re.escape(said)}"):
        parse_formula(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rem + width", "add: ms beside a count or ratio"),
        ("max(rem / cores, path * path)", "max: ms beside ms^2"),
        ("rem if age < queries else total", "less: ms beside a count or ratio"),
        ("sqrt(rem * path) - stages", "subtract: ms beside a count or ratio"),
        ("max(rem + 2 * overdraft, rem / 10) + 1000 * width", ""),
        ("log(rem) + 0.3 * log(path) + stages", ""),
        ("-abs(rem) - 5 if stages > 2 else total * error", ""),
    ],
)
def test_a_sum_of_different_units_is_told(text: str, said: str) -> None:
    assert [doubt.partition(";")[0] for doubt in parse_formula(text).doubts] == [said] * bool(said)


def test_commas_and_marks_in_a_formula_do_not_end_its_name() -> None:
    formula = "formula: max(rem + 2 * overdraft, min(rem, 5) / 10)"
    assert names_in(f"fair, {formula},srpt") == ["fair", formula, "srpt"]
    with pytest.raises(ConfigError, match="leaves a name empty"):
        names_in("max(rem, 1),,srpt")
    name = parse_name(f"{formula}+pools:p.xml")
    assert (name.name, name.word, name.pools) == (formula, "formula", "p.xml")
    assert mentioned_files([f"formula: rem {'+ 1' * 300}"]) == []


def test_the_page_lists_the_features_and_its_command_runs(tmp_path: Path) -> None:
    listed = re.findall(r"^    (\w+) +(\w+) +(.*)$", _PAGE.split("## A formula")[1], re.MULTILINE)
    rows = [(feature.name.lower(), *FEATURES[feature]) for feature in Feature]
    assert [row for row in listed if row[0] != "parcae"] == rows
    (command,) = re.findall(r"^    (parcae compare .*formula.*)$", _PAGE, re.MULTILINE)
    done = run(f"{command} --report page.html --json result.json", tmp_path)
    assert done.returncode == 0, done.stderr
    name = "formula: max(rem + 2 * overdraft, rem / 10)"
    assert "formula:" in done.stdout
    assert name in (tmp_path / "page.html").read_text()
    assert name in (tmp_path / "result.json").read_text()


def test_the_command_lists_formulas_and_refuses_those_without_deadlines(tmp_path: Path) -> None:
    assert "formula:EXPRESSION" in run("parcae policies", tmp_path).stdout
    slack = run("parcae compare toy --policies 'fair,formula: slack' --cores 2", tmp_path)
    assert (slack.returncode, "orders jobs by their deadlines" in slack.stderr) == (2, True)


def test_a_formula_is_exported_as_a_program(tmp_path: Path) -> None:
    workload = load_workload("toy")
    policy = export_policy("formula: rem + 2 * overdraft", workload)
    write_policy(policy, tmp_path / "policy.json")
    assert read_policy(tmp_path / "policy.json") == policy
    assert policy.program == ("rem", 2.0, "overdraft", "multiply", "add")
    assert policy.account == PolicyAccount(factor=0.0, floor=1.0)
    assert export_policy("formula: rem", workload).account is None
    for name in ("formula: slack", "formula: rem+account"):
        with pytest.raises(PolicyError, match=r"cannot be exported: .* a formula without slack"):
            export_policy(name, workload)
