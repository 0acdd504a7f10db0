"""`parcae simulate --world rigid` against the released environment in plain Python.

The job sets are unlike the recorded ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from parcae.cli.main import app
from tests.conftest import shared_data
from tests.packing.released import run_released

POLICIES = ("sjf", "packer", "tetris-k0.5", "tetris-k0.005")


def _random_set(seed: int) -> dict[str, Any]:
    """Few slots and small backlogs, so that jobs are lost; several arrivals a step; equal jobs,
    that finish together.
    """
    rng = np.random.default_rng(seed)
    window = int(rng.integers(2, 40))
    horizon = int(rng.integers(3, 25))
    resources = int(rng.integers(1, 4))
    count = int(rng.integers(1, 60))
    capacity = [int(c) for c in rng.integers(1, 25, resources)]
    arrival = np.sort(rng.integers(0, window, count))
    if seed % 3 == 0:
        arrival[-1] = window - 1
    length = rng.integers(1, rng.integers(2, horizon + 1), count)
    demand = np.stack([rng.integers(0, c + 1, count) for c in capacity], axis=1)
    demand[~demand.any(axis=1), 0] = 1
    params = {
        "job_slots": int(rng.integers(1, 12)),
        "backlog_size": int(rng.integers(0, 12)),
        "time_horizon": horizon,
    }
    jobs = np.column_stack([arrival, length, demand]).tolist()
    return {
        "name": f"random {seed}",
        "arrival_window": window,
        "params": {**params, "capacity": capacity},
        "jobs": jobs,
    }


def _simulate(path: Path, which: str = "all") -> list[dict[str, Any]]:
    words = ["simulate", "--world", "rigid", "--job-set", str(path), "--set", which, "--json"]
    result = CliRunner().invoke(app, [*words, "--policy", ",".join(POLICIES)])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def _assert_agrees(found: dict[str, Any], one: dict[str, Any]) -> None:
    plain = run_released(one, found["policy"], lingers=False)
    quirky = run_released(one, found["policy"], lingers=True)
    where = f"{one['name']}, {found['policy']}"
    assert (found["start"], found["finish"]) == (plain["start"], plain["finish"]), where
    assert found["slowdown"] == (
        None if plain["slowdown"] is None else pytest.approx(plain["slowdown"], abs=1e-9)
    ), where
    assert found["reward"] == pytest.approx(plain["reward"], abs=1e-9), where
    assert found["reward_as_coded"] == pytest.approx(quirky["reward"], abs=1e-9), where
    assert found["decisions"] == quirky["decisions"], where


def _assert_all_agree(tmp_path: Path, sets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    path = tmp_path / "sets.json"
    path.write_text(json.dumps({"sequences": sets}))
    lines = _simulate(path)
    assert [(line["sequence"], line["policy"]) for line in lines] == [
        (one["name"], p) for one in sets for p in POLICIES
    ]
    for line, one in zip(lines, [one for one in sets for _ in POLICIES], strict=True):
        _assert_agrees(line, one)
    return lines


def test_the_plain_rendering_gives_the_recorded_results() -> None:
    for one in json.loads(shared_data("conformance/deeprm.json").read_text())["sequences"]:
        for policy in POLICIES:
            expected = one["expected"][policy.replace("-k", "_k")]
            plain, quirky = (
                run_released(one, policy, lingers=lingers) for lingers in (False, True)
            )
            assert (plain["start"], plain["finish"]) == (expected["start"], expected["finish"])
            assert plain["slowdown"] == pytest.approx(expected["slowdown"], abs=1e-8)
            assert plain["reward"] == pytest.approx(expected["reward"], abs=1e-8)
            assert quirky["reward"] == pytest.approx(expected["reward_as_coded"], abs=1e-8)
            assert quirky["decisions"] == expected["decisions"]


def test_random_job_sets_run_as_in_the_released_environment(tmp_path: Path) -> None:
    lines = _assert_all_agree(tmp_path, [_random_set(seed) for seed in range(40)])
    assert sum(None in line["start"] for line in lines) > 12, "jobs were lost"
    assert sum(line["reward"] != pytest.approx(line["reward_as_coded"]) for line in lines) > 12, (
        "jobs lingered"
    )


def test_a_backlog_of_none_loses_what_finds_no_slot(tmp_path: Path) -> None:
    params = {"job_slots": 1, "backlog_size": 0, "time_horizon": 5, "capacity": 10}
    one = {
        "name": "a",
        "arrival_window": 4,
        "params": params,
        "jobs": [[1, 2, 10], [1, 2, 10], [2, 1, 10], [3, 1, 10]],
    }
    lines = _assert_all_agree(tmp_path, [one])
    assert lines[0]["start"] == [1, None, 3, None]


def test_no_jobs_at_all_are_an_empty_run(tmp_path: Path) -> None:
    params = {"job_slots": 2, "backlog_size": 3, "time_horizon": 5, "capacity": 10}
    lines = _assert_all_agree(
        tmp_path, [{"name": "empty", "arrival_window": 7, "params": params, "jobs": []}]
    )
    assert [
        (line["start"], line["slowdown"], str(line["reward"]), line["decisions"]) for line in lines
    ] == [([], None, "0.0", 7)] * 4


def test_one_sequence_by_name_or_position_is_the_same_as_among_all(tmp_path: Path) -> None:
    path = tmp_path / "sets.json"
    path.write_text(json.dumps({"sequences": [_random_set(seed) for seed in range(3)]}))
    lines = _simulate(path)
    assert _simulate(path, "random 1") == _simulate(path, "1") == lines[4:8]
