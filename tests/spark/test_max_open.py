"""The script that measures `maxOpen` where memory is short: event logs and kept rounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.spark.max_open import conditions, main, named, parser, spent

from tests.workloads.spark_log_builder import task_end, to_bytes


def test_what_tasks_spilled_and_the_time_that_garbage_took(tmp_path: Path) -> None:
    event = task_end(0, 0, 0, 50)
    event["Task Metrics"] = {
        "Executor Run Time": 4_000,
        "JVM GC Time": 1_000,
        "Disk Bytes Spilled": 2**29,
    }
    (tmp_path / "log").write_bytes(to_bytes([event, event]))
    assert spent(tmp_path) == {"spilled_gib": 1.0, "task_s": 8.0, "gc_s": 2.0}


def test_rounds_that_are_kept_make_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.spark.max_open.check_tools", lambda: None)
    args = parser().parse_args(["--blocks", "2", "--limits", "4", "--work", str(tmp_path)])
    for block in range(2):
        for condition in conditions((4,)):
            name = named(condition)
            kept = {"failed": 0, "seconds": {"1": 10.0, "2": 20.0}, "load": 1.0 + block}
            kept |= {"spilled_gib": 0.5, "task_s": 60.0, "gc_s": 6.0}
            if name == "account-4":
                kept["seconds"] = {"1": 5.0, "2": 10.0}
            if name == "fair-4" and block:
                kept = {"failed": 3, "why": "no memory", "load": 9.0}
            (tmp_path / f"block-{block}-{name}.json").write_text(json.dumps(kept))
    main(args)
    printed = capsys.readouterr().out
    cells = {
        row.strip("│").split("│")[0].strip(): [cell.strip() for cell in row.strip("│").split("│")]
        for row in printed.splitlines()
        if row.startswith("│")
    }
    assert cells["account-4"][1:4] == ["0", "0.500 [0.500, 0.500]", "7.5"]
    assert cells["account-4"][4:] == ["0.50", "60.00", "6.00"]
    assert cells["fair-4"][1:4] == ["3", "1.000", "15.0"]
    assert printed.endswith("load average 1.0 to 9.0\n")
