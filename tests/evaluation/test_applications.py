"""Contenders that are allocations and orders: what a comparison and its command say of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parcae.base.errors import ConfigError
from parcae.evaluation.applications import ApplicationsWorld, read_applications
from parcae.evaluation.compare import compare
from parcae.simulation.allocations import WORDS
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.elastic import Elastic
from parcae.workloads.archive import load_workload
from tests.cli.running import refused, run

CONFIG = SimulationConfig(world=WorldName.CORES, num_executors=12)


def _world(text: str = "auto") -> ApplicationsWorld:
    workload = load_workload("synthetic")
    cluster = read_applications(text, workload, CONFIG, Elastic(cores_per_executor=2), 0.5)
    return ApplicationsWorld(
        workload, CONFIG, "load:0.5", 10, cluster=cluster, allocations=tuple(WORDS)
    )


def test_every_policy_runs_under_every_allocation(tmp_path: Path) -> None:
    pools = {"pools": {"big": {"weight": 2}, "rest": {}}, "jobs": {"*1*": "big", "*": "rest"}}
    path = tmp_path / "applications.json"
    path.write_text(json.dumps(pools))
    comparison = compare(_world(str(path)), ["fair", "srpt"], num_seeds=3, processes=1)
    names = [result.name for result in comparison.policies]
    assert names == [f"{word}/{policy}" for word in WORDS for policy in ("fair", "srpt")]
    by_name = {result.name: result for result in comparison.policies}
    # One application has every core whenever it has a task.
    one = by_name["shared/fair"].average_jct_s.mean
    assert all(result.average_jct_s.mean >= one for result in comparison.policies[2::2])
    assert by_name["static/fair"].numbers["executors_started"] == 0
    assert by_name["dynamic:fair/fair"].numbers["executors_started"] > 0
    assert by_name["shared/fair"].numbers["cores_held"] == pytest.approx(12)
    pools_of = comparison.to_json()["policies"]["static/fair"]["pools"]
    assert set(pools_of) == {"big", "rest"}


def test_the_command(tmp_path: Path) -> None:
    words = "--allocation static,serve,shared --policies fair --cores 12 --cores-per-executor 2"
    line = f"parcae compare synthetic --applications auto {words} --jobs 6 --seeds 2"
    assert "shared/fair" in run(f"{line} --json c.json --report r.html", tmp_path).stdout
    settings = json.loads((tmp_path / "c.json").read_text())["settings"]
    assert settings["allocations"] == ["static", "serve", "shared"]
    assert settings["elastic"]["cores_per_executor"] == 2
    assert "fixed split of the executors" in (tmp_path / "r.html").read_text()


def test_what_has_no_effect_or_no_sense(tmp_path: Path) -> None:
    refused("parcae compare toy --allocation static", tmp_path, "only with --applications")
    line = "parcae compare synthetic --applications auto"
    refused(f"{line} --world executors", tmp_path, "world of cores only")
    refused(f"{line} --allocation yarn", tmp_path, "--allocation yarn")
    one = {"pools": {"all": {}}, "jobs": {"*": "all"}}
    (tmp_path / "one.json").write_text(json.dumps(one))
    with pytest.raises(ConfigError, match="one application only"):
        _world(str(tmp_path / "one.json"))
