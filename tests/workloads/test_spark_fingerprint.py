"""Names of queries by their physical plan: the same in every run, others for other queries."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.plan import plan_name, shape_name
from tests.conftest import REPOSITORY

_PLANS = json.loads(
    (REPOSITORY / "spark-plugin" / "tests" / "fixtures" / "plans.json").read_text()
)["plans"]
#: Queries whose text in the second run is that of the first: they have no literal that differs.
_WITHOUT_LITERALS = {"generate", "group", "insert", "local", "rdd-udf", "sortmerge"}


def test_the_fixture_holds() -> None:
    for plan in _PLANS:
        assert (plan_name(plan["description"]), shape_name(plan["description"])) == (
            plan["plan"],
            plan["shape"],
        )


def test_a_query_keeps_its_names_and_no_two_share_one() -> None:
    plans = defaultdict[str, dict[int, str]](dict)
    shapes = defaultdict[str, set[str]](set)
    for plan in _PLANS:
        plans[plan["query"]][plan["run"]] = plan["plan"]
        shapes[plan["query"]].add(plan["shape"])
    assert len(plans) == 11
    for query, by_run in plans.items():
        assert by_run[1] == by_run[3], query
        assert (by_run[1] == by_run[2]) == (query in _WITHOUT_LITERALS), query
    assert all(len(names) == 1 for names in shapes.values())
    assert len(set().union(*shapes.values())) == len(shapes)


def test_locations_are_read_once_however_long_their_line_is() -> None:
    # A time that grows with the square of the length would be hours.
    line = 200_000 * "Location: a "
    texts = (line, f"{line}[b", f"{line}[b\n{line}")
    assert all(plan_name(text) != plan_name(f"{text}[c]") for text in texts)
    assert plan_name(f"{line}[b]") == plan_name("Location: a")
    word = f"Location: {1_000_000 * 'a'}"
    assert plan_name(f"{word}[c]") == plan_name(word) != plan_name(f"{word} [c")


def _event(name: str, **fields: object) -> str:
    return json.dumps({"Event": name, **fields})


_SQL = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecution"
_PLAN = "== Physical Plan ==\n* Filter (2)\n\n(2) Filter\nCondition : (day#{id} = 2024-01-{day})\n"


def _log(folder: Path) -> Path:
    """Four jobs: two SQL executions of one shape, one whose user names it, and one without SQL."""
    lines = [_event("SparkListenerLogStart", **{"Spark Version": "4.0.0"})]
    for job, properties in enumerate(({}, {}, {"spark.parcae.jobKey": "mine"}, None)):
        start_ms = 1_000 * job
        own = {"callSite.short": "count at x.py:3"}
        if properties is not None:
            own |= {"spark.sql.execution.id": str(job), **properties}
            plan = _PLAN.format(id=job, day=10 + job)
            described = {
                "description": "a query",
                "physicalPlanDescription": plan,
                "time": start_ms,
            }
            lines.append(_event(f"{_SQL}Start", executionId=job, **described))
        stage = {
            "Stage ID": job,
            "Stage Attempt ID": 0,
            "Stage Name": "s",
            "Number of Tasks": 1,
            "Parent IDs": [],
            "RDD Info": [],
        }
        began = {
            "Job ID": job,
            "Submission Time": start_ms,
            "Stage Infos": [stage],
            "Stage IDs": [job],
            "Properties": own,
        }
        lines.append(_event("SparkListenerJobStart", **began))
        info = {
            "Task ID": job,
            "Index": 0,
            "Attempt": 0,
            "Launch Time": start_ms + 5,
            "Finish Time": start_ms + 105,
        }
        info |= {
            "Executor ID": "driver",
            "Host": "h",
            "Failed": False,
            "Killed": False,
            "Speculative": False,
        }
        ended = {
            "Stage ID": job,
            "Stage Attempt ID": 0,
            "Task End Reason": {"Reason": "Success"},
            "Task Info": info,
        }
        lines.append(_event("SparkListenerTaskEnd", **ended))
        times = {"Submission Time": start_ms + 4, "Completion Time": start_ms + 106}
        lines.append(_event("SparkListenerStageCompleted", **{"Stage Info": {**stage, **times}}))
        result = {
            "Job ID": job,
            "Completion Time": start_ms + 107,
            "Job Result": {"Result": "JobSucceeded"},
        }
        lines.append(_event("SparkListenerJobEnd", **result))
        if properties is not None:
            lines.append(
                _event(f"{_SQL}End", executionId=job, time=start_ms + 110, errorMessage="")
            )
    path = folder / "log"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_importer_names_queries_by_plan_or_shape(tmp_path: Path) -> None:
    log = _log(tmp_path)
    plans, _ = read_spark_event_logs([log], key="plan")
    names = sorted(job.name for job in plans.jobs)
    assert names[:2] == ["count at x.py:3", "mine"]
    assert set(names[2:]) == {plan_name(_PLAN.format(id=7, day=10 + job)) for job in (0, 1)}
    shapes, _ = read_spark_event_logs([log], key="shape")
    runs = {job.name: job.num_runs for job in shapes.jobs}
    name = shape_name(_PLAN.format(id=9, day=30))
    assert set(runs) == {"count at x.py:3", "mine", name}
    assert shapes.weights is not None
    assert dict(zip((job.name for job in shapes.jobs), shapes.weights, strict=True))[name] == 2
