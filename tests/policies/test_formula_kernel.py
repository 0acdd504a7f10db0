"""The kernel of formulas: its numbers to the last bit, and its orders beside those of others."""

from __future__ import annotations

import ast
import json
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import parcae
from parcae.policies.additions import named_policy
from parcae.policies.formula.kernels import LARGEST, Feature, evaluate, exponential, logarithm
from parcae.policies.formula.language import parse_formula
from parcae.policies.formula.policy import FormulaPolicy
from parcae.service.policies import policies_for
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import Simulator, simulate
from parcae.workloads.archive import load_workload
from parcae.workloads.job import JobSpec
from parcae.workloads.workload import JobSequence
from tests.conftest import REPOSITORY, batch, job

#: Formulas, features and values, which the plugin's tests read, too.
_FIXTURE = REPOSITORY / "spark-plugin" / "src" / "test" / "resources" / "formulas.json"
#: The plugin knows no deadlines.
_NAMES = [feature.name.lower() for feature in Feature if feature is not Feature.SLACK]
_CORES = SimulationConfig(world=WorldName.CORES, num_executors=24)
_WORKLOAD = load_workload("tpch")


def _chained(spec: JobSpec) -> JobSpec:
    """The job with its stages one after another."""
    stages = [replace(s, parents=(i - 1,) if i else ()) for i, s in enumerate(spec.stages)]
    return replace(spec, stages=tuple(stages))


_CHAINS = replace(_WORKLOAD, jobs=tuple(map(_chained, _WORKLOAD.jobs)))


def _drawn(draw: random.Random, depth: int) -> str:
    """The text of a random formula."""
    if depth == 0 or draw.random() < 0.1:
        numbers = [repr(draw.choice([0.0, 0.5, 1e200, *3 * [draw.uniform(0, 9)]]))]
        return draw.choice(_NAMES + numbers * 4)
    a, b, c, d = (_drawn(draw, depth - 1) for _ in range(4))
    return draw.choice(
        [f"({a} {op} {b})" for op in "+-*/"]
        + [f"{name}({a})" for name in ("sqrt", "log", "exp", "abs")]
        + [f"min({a}, {b})", f"max({a}, {b}, {c})", f"-{a}"]
        + [f"({a} if {b} {op} {c} else {d})" for op in ("<", "<=", ">", ">=")]
    )


def _in_python(node: ast.expr, features: dict[str, float]) -> float:
    """The value of a formula in Python's floats."""
    match node:
        case ast.Constant(value=float(number)):
            value = number
        case ast.Name(id=name):
            value = features[name]
        case ast.UnaryOp(operand=operand):
            value = -_in_python(operand, features)
        case ast.IfExp(test=ast.Compare(left, [op], [right]), body=body, orelse=orelse):
            a, b = _in_python(left, features), _in_python(right, features)
            is_met = {ast.Lt: a < b, ast.LtE: a <= b, ast.Gt: a > b, ast.GtE: a >= b}[type(op)]
            value = _in_python(body if is_met else orelse, features)
        case ast.Call(func=ast.Name(id=name), args=args):
            functions: dict[str, Any] = {
                "min": min, "max": max, "abs": abs, "sqrt": lambda x: math.sqrt(max(0.0, x)),
                "log": logarithm.py_func, "exp": exponential.py_func,
            }  # fmt: skip
            value = functions[name](*(_in_python(arg, features) for arg in args))
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _in_python(left, features), _in_python(right, features)
            if isinstance(op, ast.Div) and b == 0.0:
                value = 0.0 if a == 0.0 else math.copysign(LARGEST, a)
            else:
                value = {
                    ast.Add: a + b, ast.Sub: a - b, ast.Mult: a * b,
                    ast.Div: a / (b or 1.0),
                }[type(op)]  # fmt: skip
    return min(max(value, -LARGEST), LARGEST)


def _drawn_cases() -> dict[str, Any]:
    """200 formulas and 5 rows of features."""
    draw = random.Random(4)
    rows = [
        [draw.choice([0.0, *4 * [draw.lognormvariate(3, 4)]]) for _ in _NAMES] for _ in range(5)
    ]
    texts = dict.fromkeys(_drawn(draw, draw.choice([2, 3])) for _ in range(320))
    return {"features": rows, "formulas": [text for text in texts if len(text) < 200][:200]}


def _value(text: str, row: list[float]) -> float:
    program = FormulaPolicy(text, parse_formula(text)).tables_for(1, 1)
    for name, value in zip(_NAMES, row, strict=True):
        program.values[Feature[name.upper()]] = value
    return float(evaluate(program))


def _with_values(cases: dict[str, Any]) -> dict[str, Any]:
    """The cases with the values that Python has for them."""
    values = []
    for text in cases["formulas"]:
        body = ast.parse(text, mode="eval").body
        values.append(
            [_in_python(body, dict(zip(_NAMES, row, strict=True))) for row in cases["features"]]
        )
    programs = [parse_formula(text).program for text in cases["formulas"]]
    return {"names": _NAMES, **cases, "programs": list(map(list, programs)), "values": values}


def test_the_kernel_has_the_bits_of_python_and_of_the_fixture() -> None:
    cases = _with_values(_drawn_cases())
    for text, values in zip(cases["formulas"], cases["values"], strict=True):
        assert [_value(text, row) for row in cases["features"]] == values, text
    assert len(cases["formulas"]) == 200
    assert len({value for row in cases["values"] for value in row}) > 400
    assert json.loads(_FIXTURE.read_text()) == cases


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5 / 0", LARGEST),
        ("-5 / 0", -LARGEST),
        ("0 / 0", 0.0),
        ("sqrt(-4)", 0.0),
        ("log(-3) - log(1e-300)", 0.0),
        ("1e300 * 1e300 - 1e300 * 10", 0.0),
        ("exp(1e9) - exp(690)", 0.0),
        ("(rem < 1) + (rem <= 0) + (rem > 0) + (rem >= 0)", 3.0),
    ],
)
def test_what_has_no_value_is_defined(text: str, value: float) -> None:
    assert _value(text, [0.0] * len(_NAMES)) == value


def test_logarithms_and_powers_are_those_of_the_library_to_two_last_bits() -> None:
    for x in [1.0, 1 + 1e-15, 0.7, *np.random.default_rng(1).lognormal(0, 60, 500)]:
        assert abs(logarithm.py_func(x) - math.log(x)) <= 2 * math.ulp(math.log(x))
        power = math.log(x)
        assert abs(exponential.py_func(power) - math.exp(power)) <= 4 * math.ulp(math.exp(power))


@pytest.mark.parametrize(
    ("formula", "policy"),
    [
        ("rem", "srpt"),
        ("total", "sjf"),
        ("fair", "fsp"),
        ("max(rem + 1.5 * overdraft, 0.1 * rem)", "srpt+account"),
        ("queries / cores", "fifo"),
    ],
)
def test_hand_made_orders_are_formulas_where_queries_are_chains(formula: str, policy: str) -> None:
    """Of other queries, formulas also order the stages."""
    names = [policy, f"formula: {formula}"]
    jobs = _CHAINS.draw(20, "load:0.9", _CORES, seed=0)
    compared = parcae.compare(jobs, names, _CORES, seeds=3)
    of_one, of_other = (compared.jobs.filter(column=row) for row in range(2))
    assert len(of_one) == 60
    assert of_one["jct_ms"].to_list() == of_other["jct_ms"].to_list()


def _ends_ms(name: str, sequence: JobSequence, cores: int = 1) -> list[int]:
    config = SimulationConfig(world=WorldName.CORES, num_executors=cores)
    policy = named_policy(name, sequence.workload, config)
    return [int(end) for end in simulate(sequence, policy, config, 1).completion_ms]


@pytest.mark.parametrize("formula", ["rem", "rem + path", "fair"])
def test_the_stage_with_the_longest_path_below_it_is_first(formula: str) -> None:
    """When two cores are free at 50 ms, three stages of 100 ms wait, of which the last has 300 ms
    below it. As numbered, it would start at 150 ms.
    """
    short, long = (1, 100, ()), (1, 300, (2,))
    sequence = batch(job("first", (2, 50, ())), job("a", short, short, short, long))
    assert _ends_ms("srpt", sequence, 2) == [50, 550]
    assert _ends_ms(f"formula: {formula}", sequence, 2) == [50, 450]


def test_features_that_change_with_time_are_planned_again() -> None:
    """Two jobs of 40 tasks of 100 ms on one core take turns of 200 ms by what they have had."""
    sequence = batch(job("a", (40, 100, ())), job("b", (40, 100, ())))
    assert _ends_ms("formula: rem", sequence) == _ends_ms("srpt", sequence)
    ends = sorted(_ends_ms("formula: service", sequence))
    assert ends[1] == 8_000
    assert ends[0] >= 7_600


def test_a_live_cluster_keeps_the_accounts_that_a_formula_needs() -> None:
    assert policies_for("formula: rem", _WORKLOAD)(4).accounts is None
    live = policies_for("formula: rem + overdraft", _WORKLOAD)(4)
    planner, accounts = live.policy, live.accounts
    simulator = Simulator(batch(job("a", (2, 100, ()))), _CORES, 1)
    assert accounts is planner
    assert isinstance(planner, FormulaPolicy)
    planner.keep(simulator.state.now)
    assert simulator.state.now.keeps_accounts[0] == 1
    assert simulator.state.now.account_factor[0] == 0.0
    assert planner.plan(simulator.observe()).jobs.tier[0] == 0.0


def test_a_deadline_is_a_feature() -> None:
    late = replace(job("late", (1, 100, ())), deadline_ms=900)
    soon = replace(job("soon", (1, 100, ())), deadline_ms=350)
    jobs = [job("first", (1, 100, ())), job("none", (1, 100, ())), late, soon]
    for name in ("edf", "formula: slack"):
        assert _ends_ms(name, batch(*jobs)) == [100, 400, 300, 200]


def _lines(cases: dict[str, Any]) -> str:
    """The cases as JSON, a line for each entry of a list."""
    lists = (
        f'"{name}": [\n' + ",\n".join(map(json.dumps, entries)) + "\n]"
        for name, entries in cases.items()
    )
    return "{" + ",\n".join(lists) + "}\n"


if __name__ == "__main__":
    _FIXTURE.write_text(_lines(_with_values(_drawn_cases())))
