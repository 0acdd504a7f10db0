"""The guest in Spark's scheduler without a Spark: its names, its policy files and its plans are those of Python."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from parcae.policies.policy_file import export_policy, write_policy
from parcae.workloads.catalog import load_workload
from parcae.workloads.spark.fingerprint import plan_names
from tests.conftest import REPOSITORY
from tests.spark.java import compiled, run_java
from tests.spark.planning_cases import FIXTURE, situations

#: What Spark's own launchers open to it.
_OPENED = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action",
    "sun.util.calendar",
)  # fmt: skip
_PLANS = REPOSITORY / "spark-plugin" / "tests" / "fixtures" / "plans.json"


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(tmp_path_factory.mktemp("classes"))


def test_names_by_plan_are_those_of_the_fixture(class_path: str) -> None:
    plans = json.loads(_PLANS.read_text())["plans"]
    assert f"{2 * len(plans)} checks" in run_java(class_path, "guest.FingerprintTest", _PLANS)


def _damaged(draw: random.Random, text: str) -> str:
    """A piece of a plan with something else in its middle."""
    start, end = sorted(draw.randrange(len(text)) for _ in range(2))
    middle = "".join(draw.choices("ab #:/[](),=@\n\t$ÄÖ😀09-", k=draw.randrange(40)))
    return text[start:end] + middle + text[end : end + draw.randrange(200)]


def test_names_by_plan_are_those_of_python_for_any_text(class_path: str, tmp_path: Path) -> None:
    draw = random.Random(5)
    texts = [plan["description"] for plan in json.loads(_PLANS.read_text())["plans"]]
    made = ["", "\n", "x", *(_damaged(draw, draw.choice(texts)) for _ in range(400))]
    cases = [{"description": text, **plan_names(text)._asdict()} for text in made]
    path = tmp_path / "plans.json"
    path.write_text(json.dumps({"plans": cases}))
    assert f"{2 * len(cases)} checks" in run_java(class_path, "guest.FingerprintTest", path)


def test_plans_are_those_of_the_estimator(class_path: str) -> None:
    told, kept = situations(), json.loads(FIXTURE.read_text())
    again = "python -m tests.spark.planning_cases"
    assert kept["policy"] == told["policy"], f"the fixture is old: {again}"
    found = [query["remaining_ms"] for query in kept["queries"]]
    assert found == pytest.approx([query["remaining_ms"] for query in told["queries"]], rel=1e-9), again
    assert "ok the golden situations" in run_java(class_path, "guest.PlannerTest", FIXTURE)


def test_policy_files_are_read_or_refused_in_one_line(class_path: str, tmp_path: Path) -> None:
    write_policy(export_policy("srpt", load_workload("tpch")), tmp_path / "policy.json")
    assert "ok a good file" in run_java(class_path, "guest.PolicyTest", tmp_path / "policy.json")


def test_nothing_that_fails_gets_out_of_the_guest(class_path: str) -> None:
    assert "ok errors of all kinds" in run_java(class_path, "guest.GuestTest")


def test_limits_hold_on_a_real_spark(class_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_policy(export_policy("srpt", load_workload("toy")), tmp_path / "policy.json")
    monkeypatch.setenv("JDK_JAVA_OPTIONS", " ".join(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED))
    said = run_java(class_path, "guest.LimitsTest", tmp_path / "policy.json")
    assert "ok a limit of 1 holds, and what it leaves others take" in said
    assert "ok an error lifts limits" in said
