"""Elastic clusters on the command line: `--cores MIN..MAX` in simulate, compare and size."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from tests.cli.running import ran, run

_JOBS = "--arrivals poisson:5s --jobs 8"


def test_simulate_says_what_was_held(tmp_path: Path) -> None:
    command = f"parcae simulate toy --cores 0..8 {_JOBS} --policy fair,srpt"
    done = ran(f"{command} --json", tmp_path)
    for line in done.stdout.splitlines():
        result = json.loads(line)
        assert 0 < result["cores_held"] < 8
        held_ms = result["cores_held"] * result["makespan_ms"]
        assert result["work_ms"] / held_ms == pytest.approx(result["utilization"])
        assert result["core_hours_per_job"] == pytest.approx(held_ms / 3_600_000 / 8)
    assert "cores held" in run(command, tmp_path).stdout
    fixed = run(f"parcae simulate toy --cores 8 {_JOBS} --json", tmp_path)
    assert "cores_held" not in json.loads(fixed.stdout)


def test_the_options_reach_the_cluster(tmp_path: Path) -> None:
    command = "parcae simulate toy --cores 0..8 --arrivals poisson:30s --jobs 8 --json"

    def held(options: str) -> float:
        done = ran(f"{command} {options}", tmp_path)
        return float(json.loads(done.stdout)["cores_held"])

    usual = held("")
    assert held("--idle-timeout 1s") < usual
    assert held("--backlog-timeout 4s") < usual
    assert held("--cores-per-executor 8") > usual
    slow = run(f"{command} --executor-start 1m", tmp_path)
    assert min(json.loads(slow.stdout)["completion_ms"]) > 61_000


def test_compare_shows_the_cores_held(tmp_path: Path) -> None:
    done = ran(
        f"parcae compare toy --cores 2..8 --cores-per-executor 2 {_JOBS} --seeds 2 "
        "--policies fair,srpt --processes 1 --json c.json --report r.html",
        tmp_path,
    )
    assert "2..8 cores" in done.stdout
    assert "core hours" in done.stdout
    result = json.loads((tmp_path / "c.json").read_text())
    assert 2 <= result["policies"]["fair"]["cores_held"] <= 8
    assert result["settings"]["config"]["elastic"]["min_cores"] == 2
    assert "core hours" in (tmp_path / "r.html").read_text()


def test_thousands_of_core_hours_are_shown_without_an_exponent(tmp_path: Path) -> None:
    done = ran(
        "parcae compare toy --cores 4000..4004 --arrivals poisson:1h --jobs 4 --seeds 2 "
        "--policies fair --processes 1 --json c.json",
        tmp_path,
    )
    result = json.loads((tmp_path / "c.json").read_text())
    hours = result["policies"]["fair"]["core_hours_per_job"]
    assert hours > 1_000
    assert f"{hours:,.0f}" in done.stdout


def test_size_prices_what_is_held(tmp_path: Path) -> None:
    done = ran(
        f"parcae size toy --cores 4,8,0..8 {_JOBS} --seeds 2 --policies fair --processes 1 "
        '--price 0.05 --target "p95 < 1h" --json s.json --csv s.csv --plot s.png',
        tmp_path,
    )
    assert "Elastic 0..8 cores: fair meets it and holds" in done.stdout
    result = json.loads((tmp_path / "s.json").read_text())
    assert [one["size"] for one in result["results"]] == ["4", "8"]
    (elastic,) = result["elastic"]
    assert (elastic["size"], elastic["cores"]) == ("0..8", 8)
    assert 0 < elastic["cores_held"]["mean"] < 8
    assert elastic["cost_per_hour"] == pytest.approx(0.05 * elastic["cores_held"]["mean"])
    assert elastic["cost_per_job"]["mean"] < result["results"][1]["cost_per_job"]["mean"]
    assert pl.read_csv(tmp_path / "s.csv")["size"].to_list() == ["4", "8", "0..8"]
