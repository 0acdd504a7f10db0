"""Names of queries by their physical plan: the same in every run, others for other queries."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.plan import plan_name, shape_name
from tests.conftest import REPOSITORY
from tests.workloads.spark_log_builder import (
    executor,
    sql_end,
    sql_start,
    stage_info,
    to_bytes,
    whole_job,
)

_PLANS = json.loads(
    (REPOSITORY / "spark-plugin" / "src" / "test" / "resources" / "plans.json").read_text()
)["plans"]
#: Queries whose text in the second run is that of the first: they have no literal that differs.
_WITHOUT_LITERALS = {"generate", "group", "insert", "local", "rdd-udf", "sortmerge"}


def test_the_fixture_holds() -> None:
    for plan in _PLANS:
        assert plan_name(plan["description"]) == plan["plan"]
        assert shape_name(plan["description"]) == plan["shape"]


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


_PLAN = "== Physical Plan ==\n* Filter (2)\n\n(2) Filter\nCondition : (day#{id} = 2024-01-{day})\n"


def _log(folder: Path) -> Path:
    """Four jobs: two SQL executions of one shape, one whose user names it, and one without SQL."""
    events = [executor()]
    for job, properties in enumerate(({}, {}, {"spark_parcae_jobKey": "mine"}, None)):
        at = 1_000 * job
        ran = (stage_info(job, 1), at + 5, at + 105)
        if properties is None:
            events += whole_job(job, at, ran, callSite_short="count at x.py:3")
            continue
        plan = _PLAN.format(id=job, day=10 + job)
        in_sql = {"spark_sql_execution_id": str(job), **properties}
        query = whole_job(job, at, ran, callSite_short="count at x.py:3", **in_sql)
        start = {**sql_start(job, at, text="a query"), "physicalPlanDescription": plan}
        events += [start, *query, sql_end(job)]
    path = folder / "log"
    path.write_bytes(to_bytes(events))
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
