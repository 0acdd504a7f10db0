"""Tests of how the plugin is watched, on a real Spark: metrics, the tab and who waits."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from parcae.workloads.synthetic import chain
from tests.conftest import REPOSITORY, wait_until
from tests.spark.machine import Machine
from tests.spark.proofs import guided, write_two_queries
from tests.spark.test_guest import Queries, application

#: What Spark puts before the names of the plugin's metrics.
_SOURCE = "plugin.parcae.spark.ParcaePlugin"


def test_metrics_are_those_of_the_page_and_reach_a_sink(machine: Machine, tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "spark-watch.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \| (?:gauge|timer|counter|histogram)", page, re.MULTILINE)
    csv = tmp_path / "csv"
    csv.mkdir()
    monitor = yaml.safe_load((REPOSITORY / "deploy" / "driver-monitor.yaml").read_text())
    path = monitor["spec"]["podMetricsEndpoints"][0]["path"]
    servlet = "spark_metrics_conf_driver_sink_prometheusServlet"
    sink = {
        f"{servlet}_class": "org.apache.spark.metrics.sink.PrometheusServlet",
        f"{servlet}_path": path,
        "spark_metrics_namespace": "spark",
        "spark_ui_enabled": "true",
        "spark_metrics_conf_*_sink_csv_class": "org.apache.spark.metrics.sink.CsvSink",
        "spark_metrics_conf_*_sink_csv_period": 1,
        "spark_metrics_conf_*_sink_csv_directory": csv,
    }
    huge = chain(1, 1_000, 60_000, "huge")
    policy = write_two_queries(tmp_path / "policy.json", huge)
    with application(machine, policy, **sink) as queries:
        numbers = machine.jvm.parcae.spark.Numbers
        assert numbers.names().split() == sorted(documented)
        assert numbers.of("mode") == 2
        assert numbers.of("openQueries") == 0
        queries.run_both()
        wait_until(lambda: numbers.of("openQueries") == 0)
        assert numbers.of("plans") > 4
        assert numbers.of("estimateErrorPercent") == 3
        # The file knows the long query; a guess would be a thousand times as much. The bound leaves
        # room for a busy machine, where tasks that sleep take longer.
        assert numbers.least("estimateErrorPercent") < 2_000
        assert numbers.of("eventsDropped") == numbers.of("eventsRepaired") == 0

        def rows(name: str) -> list[str]:
            files = list(csv.glob(f"*.driver.{_SOURCE}.{name}.csv"))
            return files[0].read_text().splitlines()[1:] if files else []

        wait_until(lambda: bool(rows("mode")))
        assert rows("mode")[-1].endswith(",2")
        with urllib.request.urlopen(f"{queries.context.uiWebUrl}{path}", timeout=60) as reply:
            name = f"metrics_spark_driver_{_SOURCE.replace('.', '_')}_mode_Value"
            assert re.search(rf"^{name}(\{{.*\}})? 2$", reply.read().decode(), re.MULTILINE)
        assert any(int(row.split(",")[1]) > 0 for row in rows("openQueries"))
        queries.context._jsc.sc().listenerBus().post(
            machine.jvm.org.apache.spark.scheduler.SparkListenerStageCompleted(None)
        )
        wait_until(lambda: numbers.of("mode") == -1)
    machine.forgive()


@pytest.mark.parametrize(("who", "asked"), [("long", 1_000), ("short", -1)])
def test_a_session_puts_itself_last_but_not_first(
    machine: Machine, tmp_path: Path, who: str, asked: int
) -> None:
    with guided(machine, tmp_path) as queries:
        run = queries.run

        def ask(name: str, tasks: int, *args: Any, **more: Any) -> None:
            wanted = str(asked) if name == who else None
            queries.context.setLocalProperty("spark.parcae.priority", wanted)
            run(name, tasks, *args, **more)

        queries.run = ask  # type: ignore[method-assign]
        gained_s = queries.run_both()
        queries.run = run  # type: ignore[method-assign]
        assert (gained_s > 0.5) == (who == "long")
        (job,) = [job for job in queries.trace.jobs().values() if job["name"] == who]
        assert (job["asked"], job["priority"]) == (asked, min(asked, 0))


def _page(queries: Queries, **headers: str) -> str:
    """The tab in Spark's user interface."""
    request = urllib.request.Request(
        f"{queries.context.uiWebUrl}/parcae/",
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def _sleep_until_cancelled(queries: Queries) -> None:
    rows = "select java_method('java.lang.Thread', 'sleep', 1000L) as x from range(0, 400, 1, 400)"
    with pytest.raises(Exception, match="cancelled"):
        queries.session.sql(f"select count(x) from ({rows})").collect()


_PAGES = {"spark_ui_enabled": "true", "spark_ui_port": 0}


def test_the_tab_shows_queries_in_order_and_escapes_names(machine: Machine, tmp_path: Path) -> None:
    policy = write_two_queries(tmp_path / "policy.json")
    evil = "<script>alert(1)</script>\"'&"
    with application(machine, policy, **_PAGES) as queries:
        assert "Open queries:</strong> 0" in _page(queries)

        def ask(name: str) -> None:
            queries.context.setLocalProperty("spark.parcae.jobKey", name)
            _sleep_until_cancelled(queries)

        started = [threading.Thread(target=ask, args=(name,)) for name in (evil, "long")]
        for thread in started:
            thread.start()
        wait_until(lambda: "Open queries:</strong> 2" in _page(queries))
        text = _page(queries)
        assert "<script>alert" not in text
        rows = text.partition("<tbody>")[2].split("<tr>")[1:]
        assert "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;" in "".join(rows)
        assert any("long" in row and "policy" in row for row in rows)
        assert any("script" in row and "unknown" in row for row in rows)
        (address,) = set(re.findall(r'href="([^"]*/SQL/execution/)', text))
        assert address == "/SQL/execution/"
        assert 'href="/gate/SQL/execution/?id=' in _page(queries, X_Forwarded_Context="/gate")
        assert 'href="/gate/parcae/"' in _page(queries, X_Forwarded_Context="/gate")
        queries.context.cancelAllJobs()
        for thread in started:
            thread.join(60)
        events = machine.jvm.org.apache.spark.scheduler
        queries.context._jsc.sc().listenerBus().post(events.SparkListenerStageCompleted(None))
        failure = "off, Spark schedules by itself: noting the end of a stage failed"
        wait_until(lambda: failure in _page(queries))
    machine.forgive()


def _times(log: Path, name: str, what: str) -> list[int]:
    """The launch or finish times of all tasks of the first job of this name, in an event log."""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    starts = [each for each in events if each["Event"] == "SparkListenerJobStart"]
    named = [each for each in starts if each["Properties"].get("spark.parcae.jobKey") == name]
    return [
        each["Task Info"][f"{what} Time"]
        for each in events
        if each["Event"] == "SparkListenerTaskEnd" and each["Stage ID"] in named[0]["Stage IDs"]
    ]


def test_further_queries_wait_while_as_many_are_open_as_may_be(
    machine: Machine, tmp_path: Path
) -> None:
    policy = write_two_queries(tmp_path / "policy.json")
    control = tmp_path / "control.json"
    control.write_text('{"maxOpen": 1}')
    numbers = machine.jvm.parcae.spark.Numbers
    logs = tmp_path / "logs"
    logs.mkdir()
    settings = {
        "spark_parcae_control": control,
        "spark_parcae_controlMs": 100,
        "spark_sql_adaptive_enabled": "false",
        "spark_eventLog_enabled": "true",
        "spark_eventLog_rolling_enabled": "false",
        "spark_eventLog_compress": "false",
        "spark_eventLog_dir": logs,
        **_PAGES,
    }
    with application(machine, policy, **settings) as queries:

        def ask(name: str, tasks: int, user: str = "eve") -> None:
            queries.users[name] = user
            queries.run(name, tasks)

        def hold(user: str) -> None:  # until it is cancelled
            queries.context.setLocalProperty("spark.parcae.user", user)
            queries.context.setJobGroup("first", "first", True)
            _sleep_until_cancelled(queries)

        def started(work: Any, *args: object) -> threading.Thread:
            before = numbers.of("openQueries")
            thread = threading.Thread(target=work, args=args)
            thread.start()
            wait_until(lambda: numbers.of("openQueries") == before + 1)
            return thread

        first = started(hold, "anna")
        wait_until(lambda: queries.num_started() > 0)
        others = [started(ask, "long", 40), started(ask, "short", 2)]
        wait_until(lambda: numbers.of("heldQueries") == 2)
        assert _page(queries).count("held back: 1 open, maxOpen 1") == 2
        queries.context.cancelJobGroup("first")
        for thread in (first, *others):
            thread.join(90)
        # A query whose client keeps it open holds nobody back for longer than a second.
        queries.context.setLocalProperty("spark.sql.execution.id", "777777")
        assert machine.workouts.jobs(queries.context._jsc, 1, 2, 1) == 1
        queries.context.setLocalProperty("spark.sql.execution.id", None)
        start = time.monotonic()
        queries.run("short", 2)
        assert time.monotonic() - start > 0.5
        before = len(machine.said())
        control.write_text('{"maxOpenPerUser": 1}')
        wait_until(lambda: "open at once: any number, 1 of a user" in machine.said()[before:])
        first = started(hold, "anna")
        wait_until(lambda: queries.num_started() > 0)
        other = started(ask, "long", 2, "anna")
        wait_until(lambda: numbers.of("heldQueries") == 1)
        text = _page(queries)
        assert "held back: 1 of this person open, maxOpenPerUser 1" in text
        assert "<td>anna</td>" in text
        ended_s = queries.end_s["long"]
        ask("short", 2)
        assert queries.end_s["long"] == ended_s
        queries.context.cancelJobGroup("first")
        for thread in (first, other):
            thread.join(90)
        assert queries.end_s["long"] > queries.end_s["short"]
        control.write_text("{}")
        wait_until(lambda: "may be open at once: any number" in machine.said()[before:])
        assert queries.run_both() > 0.5
    # No task of the long one starts before the short one, which is served first, has ended.
    (log,) = logs.iterdir()
    assert min(_times(log, "long", "Launch")) >= max(_times(log, "short", "Finish"))
    assert machine.complaints() == []
