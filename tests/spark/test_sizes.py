"""The scripts that measure what foretells a query's work, and what it is worth: kept results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.spark import mixed, sizes
from benchmarks.spark.templates import ETL, NUM_TEMPLATES, SHORT, drawn_text

from parcae.policies.policy_file import read_policy
from parcae.workloads.guess import OVERHEAD_BYTES
from parcae.workloads.workload import RandomStreams
from tests.workloads.spark_log_builder import (
    SQL,
    executor,
    plan_node,
    sql_end,
    sql_start,
    stage_info,
    to_bytes,
    whole_job,
)


def test_every_run_of_a_template_has_literals_of_its_own(tmp_path: Path) -> None:
    queries = dict.fromkeys(range(1, 23), "SELECT 1 FROM t WHERE d > CAST('1995-03-15' AS date)")
    random = RandomStreams(3).actions
    texts = [
        {drawn_text(number, queries, tmp_path, random) for _ in range(4)}
        for number in range(1, NUM_TEMPLATES + 1)
    ]
    assert all(len(of_template) > 1 for of_template in texts)
    for number in ETL:
        assert all(str(tmp_path) in text for text in texts[number - 1])
    assert not any("{key}" in text for of_template in texts for text in of_template)


def _log(folder: Path, size: int) -> None:
    """Two rounds of six templates, whose work is in proportion to their bytes."""
    events: list[dict[str, Any]] = [executor()]
    for row in range(12):
        template, at = row % 6 + 1, 100_000 * row
        scan = plan_node("Scan", metric=row)
        scan["metrics"][0]["name"] = "size of files read"
        scan["metadata"] = {"Location": "t", "ReadSchema": "struct<a:int>"}
        events.append(sql_start(row, at, scan))
        num_bytes = 4_000_000 * template * size - int(OVERHEAD_BYTES) // 2
        update = {"executionId": row, "accumUpdates": [[row, num_bytes]]}
        events.append({"Event": SQL + "SparkListenerDriverAccumUpdates", **update})
        took_ms = (num_bytes + int(OVERHEAD_BYTES)) // 10_000
        query = f"q{row // 6 * 100 + template}"
        ran = whole_job(
            row, at, (stage_info(row, 7 - template), at, at + (7 - template) * took_ms),
            parcae_query=query, spark_sql_execution_id=str(row),
        )  # fmt: skip
        for event in ran:
            if metrics := event.get("Task Metrics"):
                metrics |= {
                    "Executor Deserialize Time": 0,
                    "Executor CPU Time": 900_000 * metrics["Executor Run Time"] // (7 - template),
                    "Executor Deserialize CPU Time": 0,
                    "JVM GC Time": 0,
                }
        events += [*ran, sql_end(row)]
    folder.mkdir()
    (folder / "log").write_bytes(to_bytes(events))


def _cells(printed: str) -> list[list[str]]:
    """The cells of a table's rows."""
    rows = ([cell.strip() for cell in line.strip("│").split("│")] for line in printed.splitlines())
    return [cells for cells in rows if len(cells) > 3]


def test_logs_that_are_kept_make_the_table_of_estimates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for scale, size in ((0.04, 1), (0.2, 5)):
        (tmp_path / f"sf{scale}.json").write_text('{"load": [1.0, 2.5]}')
        _log(tmp_path / f"event-log-sf{scale}", size)
    sizes.main(sizes.parser().parse_args(["--work", str(tmp_path), "--scale-factors", "0.04,0.2"]))
    printed = capsys.readouterr().out
    assert "over 12 runs" in printed  # the first round is left out
    rows = {(cells[0], cells[1]): cells[2:] for cells in _cells(printed)}
    assert rows["first tasks", "SF 0.04"][0] == "-1.00"
    assert [rows["bytes x columns", scale][0] for scale in ("SF 0.04", "SF 0.2", "all")] == [
        "1.00",
        "1.00",
        "1.00",
    ]
    assert rows["known shape", "all"][0::2] == ["1.00", "0.00"]
    assert printed.endswith("load average 1.0 to 2.5\n")


def test_runs_that_are_kept_make_the_table_of_the_mixed_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for one in range(3):
        times = {f"q{100 * (row + 1) + row}": 1_000.0 for row in range(1, NUM_TEMPLATES + 1)}
        (tmp_path / f"pass-{one}.json").write_text(json.dumps(times))
    for seed in (1000, 1001):
        for name in mixed.CONTENDERS:
            faster = {"fair": 1.0, "nothing": 0.5, "one-pass": 0.25, "profile": 0.25}
            share = faster[name.replace(" ", "-")]
            endings = [
                {"query": 100 + SHORT[0], "seconds": 4.0 * share},
                {"query": 200 + ETL[0], "seconds": 8.0},
            ]
            kept = {"endings": endings, "load": [0.5, 1.0]}
            file = tmp_path / f"seed-{seed}-{name.replace(' ', '-')}.json"
            file.write_text(json.dumps(kept))
    mixed.main(mixed.parser().parse_args(["--work", str(tmp_path), "--seeds", "2"]))
    found = capsys.readouterr()
    assert "mean gap between arrivals: 0.62 s" in found.err  # 1 s of work, two cores, a load of .8
    rows = {(cells[0], cells[1]): (cells[2], cells[3][:4]) for cells in _cells(found.out)}
    assert rows["nothing", "all"] == ("5.0", "0.83")
    assert rows["profile", "short"] == ("1.0", "0.25")
    assert rows["profile", "ETL"] == ("8.0", "1.00")
    assert ("profile", "medium") not in rows


def test_what_a_contender_knows_is_the_same_in_every_run(tmp_path: Path) -> None:
    study = mixed.Study(mixed.parser().parse_args(["--work", str(tmp_path)]))
    (tmp_path / "state.json").write_text("what the last run learned")
    settings = study._plugin(0)
    assert settings is not None
    assert not (tmp_path / "state.json").exists()
    assert read_policy(Path(settings["spark.parcae.policy"])).jobs == {}
    _log(tmp_path / "pass-0", 1)
    study._plugin(1)
    kept = json.loads((tmp_path / "state.json").read_text())["queries"]
    assert {len(query["runs"]) for query in kept.values()} == {1}
