"""Tests of the plugin without a Spark: names, sizes and plans equal those of Python."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from parcae.workloads.durations import TaskDurations
from parcae.workloads.guess import guess_new_task_ms
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.spark_log.event_log import read_runs
from parcae.workloads.spark_log.plan import bytes_of_row, plan_names
from parcae.workloads.spark_log.state import write_state
from parcae.workloads.workload import Workload
from tests.conftest import REPOSITORY
from tests.spark import planning_cases
from tests.spark.java import run_java
from tests.spark.planning_cases import FIXTURE
from tests.workloads.spark_log_builder import small_log

_FIXTURES = REPOSITORY / "spark-plugin" / "src" / "test" / "resources"
_PLANS = _FIXTURES / "plans.json"


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
    # A plan with a long literal is named as soon as any other.
    long = f"(2) Filter\nCondition : (a#1 = {50_000 * 'ab'}) or upper({50_000 * 'b.'}#3)\n"
    unclosed = f"Location: {200_000 * 'a'} {50_000 * 'Location: a '}[b\nLocation: c[d], e"
    damaged = [_damaged(draw, draw.choice(texts)) for _ in range(400)]
    made = ["", "\n", "x", long, unclosed, *damaged]
    cases = [{"description": text, **plan_names(text)._asdict()} for text in made]
    path = tmp_path / "plans.json"
    path.write_text(json.dumps({"plans": cases}))
    assert f"{2 * len(cases)} checks" in run_java(class_path, "guest.FingerprintTest", path)


def _assert_near(found: object, kept: object) -> None:
    """The same JSON, but for the last digits of numbers."""
    if isinstance(kept, float):
        assert found == pytest.approx(kept, rel=1e-9)
    elif isinstance(kept, dict | list):
        assert isinstance(found, type(kept))
        assert len(found) == len(kept)
        for key in kept if isinstance(kept, dict) else range(len(kept)):
            _assert_near(found[key], kept[key])
    else:
        assert found == kept


def test_sizes_of_queries_that_never_ran_are_those_of_python(
    class_path: str, tmp_path: Path
) -> None:
    draw = random.Random(62)
    points = [(draw.uniform(1e5, 1e9), draw.uniform(10.0, 1e6)) for _ in range(12)]
    steep = [(1e7 * 10.0**place, 16.0**place) for place in range(2, 8)]
    kinds = ("int", "string", "decimal(15,2)", "array<map<date,binary>>", "struct<a:double>")
    schemas = [
        "struct<" + ",".join(f"c{i}:{draw.choice(kinds)}" for i in range(draw.randrange(30))) + end
        for end in (">", ",... 7 more fields>", "")
        for _ in range(20)
    ]
    for given in (points, steep):
        stages = [StageSpec(1, TaskDurations.constant(1), mean_task_ms=work) for _, work in given]
        jobs = [
            JobSpec(f"j{row}", (stage,), scan_bytes=given[row][0])
            for row, stage in enumerate(stages)
        ]
        guess = guess_new_task_ms(Workload("w", tuple(jobs)))
        fixture = {
            "schemas": [(text, bytes_of_row(text)) for text in schemas],
            "points": given,
            "priors": [(size, guess(size, 1)) for size in (1.0, 1e4, 3e7, 1e12)],
        }
        path = tmp_path / "sizes.json"
        path.write_text(json.dumps(fixture))
        assert "ok sizes as in Python" in run_java(class_path, "guest.LearnedTest", path)


def test_the_golden_orders_are_those_of_the_kernels() -> None:
    _assert_near(json.loads(planning_cases.text()), json.loads(FIXTURE.read_text()))


def test_what_is_learned_is_kept_in_a_file_that_drivers_and_logs_share(
    class_path: str, tmp_path: Path
) -> None:
    (tmp_path / "log").write_bytes(small_log(runs=12))
    runs = read_runs([tmp_path / "log"]).runs
    assert write_state(runs, tmp_path / "state.json") == 1
    kept = json.loads((tmp_path / "state.json").read_text())["queries"]["report"]
    assert kept["runs"] == [[1_000 * run + 150, 0, 150.0] for run in range(3, 12)]
    folder = tmp_path / "folder"
    folder.mkdir()
    said = run_java(class_path, "guest.StateTest", folder, tmp_path / "state.json", "report", 150.0)
    assert "ok a file of Python's" in said
