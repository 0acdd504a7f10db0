"""What the fuzzer found, one test for each finding that has no place beside its reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parcae.base.errors import FormatError
from parcae.decima.tpch import read_tpch_profiles
from parcae.policies.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from parcae.workloads.job_sets import read_job_sets
from tests.fuzzing.mutations import damaged_json
from tests.fuzzing.subjects import READERS

_SEEDS = {one.name: one.seeds for one in READERS}


def _with(name: str, change: Callable[[Any], None]) -> str:
    """The valid input of a reader after a change."""
    data = json.loads(_SEEDS[name]()[0])
    change(data)
    return json.dumps(data)


def test_a_duration_of_tpch_that_overflows(tmp_path: Path) -> None:
    def change(data: Any) -> None:
        data["2g/q1"]["task_durations_ms"]["0"]["first_wave"]["2"][0] = 10**20

    path = tmp_path / "p.json"
    path.write_text(_with("tpch-profiles json", change))
    with pytest.raises(FormatError, match=r"2g/q1: task_durations_ms\.0\.first_wave\.2\.0: "):
        read_tpch_profiles(path)


@pytest.mark.parametrize(
    "dag",
    [
        {"queries.yaml": "graphs:\n  - name: Q1\n      children: [" + "9" * 5_000 + "]\n"},
        {"queries.yaml": "graphs:\n  - name: Q1\n    - name: " + "9" * 5_000 + "\n"},
        {"query_dag.json": '{"query_number": {"1": "[(0, 999999999)]"}}'},
    ],
)
def test_a_dag_with_numbers_that_are_too_large(dag: dict[str, str], tmp_path: Path) -> None:
    stage = {"num_tasks": 1, "average_runtime_ms": 1}
    (tmp_path / "tpch_profiles.json").write_text(json.dumps({"tpch_q1_2g_maxCores_5": [stage]}))
    for name, text in dag.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(FormatError, match=r"queries\.yaml:3: |this query has 1,000,000,000"):
        read_tpch_profiles(tmp_path)


@pytest.mark.parametrize(
    ("what", "value"), [("arrival", 10**20), ("exec", 10**20), ("moving_delay", 10**20)]
)
def test_a_job_set_with_numbers_that_overflow(what: str, value: int, tmp_path: Path) -> None:
    def change(data: Any) -> None:
        if what == "arrival":
            data["sets"]["a"]["jobs"][0][2] = value
        else:
            data["sets"]["a"][what] = value

    path = tmp_path / "sets.json"
    path.write_text(_with("job sets", change))
    place = "jobs.0.2" if what == "arrival" else what
    with pytest.raises(FormatError, match=rf"sets\.json: sets\.a\.{place} is 1000"):
        read_job_sets(path)


@pytest.mark.parametrize("version", [10**400, "x", None])
def test_a_checkpoint_with_a_version_that_is_none(version: Any, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    write_checkpoint(Checkpoint("rule", 1, {}), path)
    written = path.read_bytes()
    length = int.from_bytes(written[:8], "little")
    header = json.loads(written[8 : 8 + length])
    text = "1e400" if isinstance(version, int) else json.dumps(version)
    card = header["__metadata__"]["parcae"]
    header["__metadata__"]["parcae"] = card.replace(
        '"feature_version": 1', f'"feature_version": {text}'
    )
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed)
    with pytest.raises(FormatError, match=r"c\.safetensors: "):
        read_checkpoint(path)


def test_the_same_number_makes_the_same_input() -> None:
    from random import Random

    seed = _SEEDS["job sets"]()[0]
    made = {damaged_json(seed, Random("a 1")) for _ in range(3)}
    assert len(made) == 1
    assert made != {damaged_json(seed, Random("a 2"))}
