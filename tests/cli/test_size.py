"""`parcae size` in this process: its table, its files, and logs with their recorded arrivals."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from parcae.workloads.archive import BUNDLED
from tests.cli.running import ran

_COMMAND = (
    "parcae size toy --cores 2,4 --policies fifo,fair --arrivals poisson:5s --jobs 5 --seeds 2 "
    "--processes 1"
)


def test_the_table_is_whole_and_the_files_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    files = "--json s.json --csv s.csv --plot s.png"
    done = ran(f'{_COMMAND} --target "p95 < 1h" --price 0.05 {files}', tmp_path)
    assert "…" not in done.stdout
    assert (
        "Target p95 < 3600 s (mean over 2 runs): fifo needs 2 cores, fair needs 2 cores."
        in done.stdout
    )
    result = json.loads((tmp_path / "s.json").read_text())
    assert result["smallest"] == {"fifo": 2, "fair": 2}
    assert [(one["cores"], one["policy"]) for one in result["results"]] == [
        (2, "fifo"),
        (2, "fair"),
        (4, "fifo"),
        (4, "fair"),
    ]
    rows = pl.read_csv(tmp_path / "s.csv")
    assert rows["average_s"].to_list() == [one["average_s"]["mean"] for one in result["results"]]
    assert rows["within_target"].to_list() == [1.0] * 4
    assert rows["cost_per_hour"].to_list() == [0.1, 0.1, 0.2, 0.2]
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")


def test_logs_are_resampled_and_grow(tmp_path: Path) -> None:
    log = BUNDLED / "example-event-log.zstd"
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / log.name).write_bytes(log.read_bytes())
    loads = []
    for growth in (1, 2):
        ran(
            "parcae size logs --cores 2 --policies fair --seeds 2 --processes 1 "
            f"--arrivals recorded --growth {growth} --json s.json",
            tmp_path,
        )
        result = json.loads((tmp_path / "s.json").read_text())
        assert result["settings"]["jobs"] == 21
        assert result["settings"]["block"] == 5
        loads.append(result["load"]["2"])
    assert loads[1] == pytest.approx(2 * loads[0], rel=1e-3)
    # The log is one session, so that is what is played where nothing else is asked for.
    command = "parcae size logs --cores 2 --policies fair --seeds 2 --processes 1 --growth 3"
    done = ran(f"{command} --json s.json", tmp_path)
    settings = json.loads((tmp_path / "s.json").read_text())["settings"]
    assert (settings["arrivals"], settings["drawn_arrivals"]) == ("sessions", "sessions:3")
    assert "arrivals sessions:3" in done.stdout


def test_faults_make_jobs_longer_at_every_size(tmp_path: Path) -> None:
    averages = []
    for faults in ("none", "failures=0.4"):
        done = ran(f"{_COMMAND} --json s.json --faults {faults}", tmp_path)
        assert ("with faults: failures=0.4" in done.stdout) == (faults != "none")
        results = json.loads((tmp_path / "s.json").read_text())["results"]
        averages.append([one["average_s"]["mean"] for one in results])
    assert all(faulty > plain for plain, faulty in zip(*averages, strict=True))
