"""The policy file: written from a workload, strict when it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.errors import FormatError, PolicyError
from parcae.policies.policy_file import export_policy, read_policy, write_policy
from parcae.workloads.catalog import load_workload
from parcae.workloads.job import Workload
from parcae.workloads.synthetic import chain


def test_an_exported_policy_knows_the_workloads_jobs(tmp_path: Path) -> None:
    workload = load_workload("tpch")
    write_policy(export_policy("srpt", workload), tmp_path / "policy.json")
    found = read_policy(tmp_path / "policy.json")
    assert (found.policy, found.kind, found.parameters["PROBE"]) == ("srpt", "order-rule", -10.0)
    assert found.mean_work_ms == pytest.approx(workload.mean_work_ms)
    assert found.guess_ms == pytest.approx(np.exp(np.mean([np.log(job.work_ms / job.num_tasks) for job in workload.jobs])))
    assert set(found.jobs) == {job.name for job in workload.jobs}
    for job in workload.jobs:
        told = found.jobs[job.name]
        assert told.work_ms == pytest.approx(sum(stage.tasks * stage.task_ms for stage in told.stages))
        assert [stage.parents for stage in told.stages] == [stage.parents for stage in job.stages]


def test_of_jobs_of_one_name_the_most_frequent_is_kept() -> None:
    jobs = (chain(1, 4, 100, "a"), chain(2, 4, 100, "a (2)"), chain(3, 4, 100, "b (2)"))
    found = export_policy("srpt", Workload("w", jobs, (1.0, 5.0, 1.0))).jobs
    assert {name: len(job.stages) for name, job in found.items()} == {"a": 2, "b (2)": 3}
    recorded = tuple(replace(chain(1, 1, ms, "a"), arrival_ms=ms) for ms in (300, 100, 200))
    assert export_policy("srpt", Workload("w", recorded)).jobs["a"].work_ms == 200


def test_other_policies_are_refused() -> None:
    with pytest.raises(PolicyError, match="'fair' cannot be exported: choose one of srpt"):
        export_policy("fair", load_workload("toy"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda told: told.update(version=2), "version: Input should be 1"),
        (lambda told: told.update(format="x"), "format: Input should be 'parcae-policy'"),
        (lambda told: told.update(guess=1), "guess: Extra inputs are not permitted"),
        (lambda told: told.pop("guess_ms"), "guess_ms: Field required"),
        (lambda told: told["parameters"].update(SPEED=1.0), "unknown or missing: SPEED"),
        (lambda told: told.update(mean_work_ms=-1.0), "mean_work_ms: Input should be greater"),
        (lambda told: told["jobs"].update(x={"work_ms": 1.0, "stages": []}), "jobs.x.stages: Tuple should have at least 1"),
    ],
)
def test_files_of_another_form_are_refused(change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    write_policy(export_policy("srpt", load_workload("toy")), path)
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))
    with pytest.raises(FormatError, match="write one with `parcae export`") as caught:
        read_policy(path)
    assert message in str(caught.value)
