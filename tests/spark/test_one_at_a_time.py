"""The script that measures what queries cost one at a time: event logs and kept rounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.spark.one_at_a_time import CONDITIONS, main, parser, task_parts

from tests.workloads.spark_log_builder import job_start, stage_info, task_end, to_bytes


def test_the_time_of_tasks_is_that_of_their_query(tmp_path: Path) -> None:
    event = task_end(0, 0, 0, 50)
    event["Task Metrics"] = {
        "Executor Run Time": 40,
        "Executor Deserialize Time": 10,
        "Executor CPU Time": 25_000_000,
        "Executor Deserialize CPU Time": 5_000_000,
        "JVM GC Time": 3,
    }
    unnamed = {**event, "Stage ID": 1}
    starts = [
        job_start(0, 0, [stage_info(0, 2)], parcae_query="q6"),
        job_start(1, 0, [stage_info(1, 1)]),
    ]
    (tmp_path / "log").write_bytes(to_bytes([*starts, event, event, unnamed]))
    assert task_parts(tmp_path) == {"q6": {"time": 100.0, "cpu": 60.0, "gc": 6.0}}


def test_rounds_that_are_kept_make_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # headings fold where there is less room
    args = parser().parse_args(["--blocks", "2", "--queries", "6", "--work", str(tmp_path)])
    for block in range(2):
        for name in CONDITIONS:
            ms = 110.0 if name == "alone" else 100.0
            parts = {"time": ms, "cpu": 80.0, "gc": 5.0}
            kept = {"queries": {"q6": parts}, "queued_ms": ms - 90, "load": [1.0, 2.0]}
            (tmp_path / f"block-{block}-{name}.json").write_text(json.dumps(kept))
    main(args)
    printed = capsys.readouterr().out
    (row,) = (line for line in printed.splitlines() if CONDITIONS["alone"] in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[1] == "1.100 [1.100, 1.100]"
    assert cells[3:] == ["0.800", "0.050", "0.200", "0.050"]
    assert printed.endswith("load average 1.0 to 2.0\n")
