"""The policy file: written from a workload, strict when it is read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.base.errors import FormatError, PolicyError
from parcae.policies.additions import named_policy
from parcae.policies.checkpoint import write_checkpoint
from parcae.policies.learned import order_rule_checkpoint
from parcae.policies.network.policy import OrderNetworkPolicy
from parcae.policies.policy_file import PolicyAccount, export_policy, read_policy, write_policy
from parcae.policies.rule.kernels import OrderParameter
from parcae.policies.rule.policy import OrderRulePolicy, search_start
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.archive import load_workload
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload


def test_an_exported_policy_knows_the_workloads_jobs(tmp_path: Path) -> None:
    workload = load_workload("tpch")
    write_policy(export_policy("srpt", workload), tmp_path / "policy.json")
    found = read_policy(tmp_path / "policy.json")
    assert (found.policy, found.kind, found.parameters, found.account) == ("srpt", "srpt", {}, None)
    assert found.mean_work_ms == pytest.approx(workload.mean_work_ms)
    assert found.guess_ms == pytest.approx(
        np.exp(np.mean([np.log(job.work_ms / job.num_tasks) for job in workload.jobs]))
    )
    assert set(found.jobs) == {job.name for job in workload.jobs}
    for job in workload.jobs:
        exported = found.jobs[job.name]
        assert exported.work_ms == pytest.approx(
            sum(stage.tasks * stage.task_ms for stage in exported.stages)
        )
        assert [stage.parents for stage in exported.stages] == [
            stage.parents for stage in job.stages
        ]


def test_of_jobs_of_one_name_the_most_frequent_is_kept() -> None:
    jobs = (chain(1, 4, 100, "a"), chain(2, 4, 100, "a (2)"), chain(3, 4, 100, "b (2)"))
    for weights, num_stages in (((1.0, 5.0, 1.0), 2), ((5.0, 1.0, 1.0), 1)):
        found = export_policy("srpt", Workload("w", jobs, weights)).jobs
        assert {name: len(job.stages) for name, job in found.items()} == {
            "a": num_stages,
            "a (2)": 2,
            "b (2)": 3,
        }
    recorded = tuple(replace(chain(1, 1, ms, "a"), arrival_ms=ms) for ms in (300, 100, 200))
    assert export_policy("srpt", Workload("w", recorded)).jobs["a"].work_ms == 200


def test_other_policies_are_refused() -> None:
    toy = load_workload("toy")
    for name in ("fair", "tuned:batch", "fair+account"):
        with pytest.raises(PolicyError, match="cannot be exported: choose srpt, tuned, "):
            export_policy(name, toy)
    with pytest.raises(PolicyError, match="weights, which belong to the application"):
        export_policy("tuned+account:w.csv", toy)


def test_a_tuned_rule_is_exported_with_every_parameter_and_accounts(tmp_path: Path) -> None:
    toy = load_workload("toy")
    config = SimulationConfig(world=WorldName.CORES)
    rule = named_policy("tuned", toy, config)
    assert isinstance(rule, OrderRulePolicy)
    write_policy(export_policy("tuned+account", toy), tmp_path / "policy.json")
    found = read_policy(tmp_path / "policy.json")
    assert (found.policy, found.kind) == ("tuned+account", "order-rule")
    assert found.account == PolicyAccount(factor=1.5, floor=0.1)
    assert found.parameters == {p.name: rule.parameters[p] for p in OrderParameter}
    path = tmp_path / "own.safetensors"
    write_checkpoint(order_rule_checkpoint(search_start(), {}), path)
    assert export_policy(str(path), toy).parameters["PROBE_ERRING"] == 3.5


def test_a_job_has_its_bytes_where_they_are_known(tmp_path: Path) -> None:
    short = replace(chain(1, 2, 10, "short"), scan_bytes=5e6)
    workload = Workload("w", (short, chain(1, 2, 10, "long")))
    write_policy(export_policy("srpt", workload), tmp_path / "policy.json")
    found = read_policy(tmp_path / "policy.json").jobs
    assert (found["short"].scan_bytes, found["long"].scan_bytes) == (5e6, None)
    assert "scan_bytes" not in json.loads((tmp_path / "policy.json").read_text())["jobs"]["long"]


def test_a_network_is_exported_with_the_rule_that_it_corrects(tmp_path: Path) -> None:
    toy = load_workload("toy")
    network = named_policy("parcae", toy, SimulationConfig(world=WorldName.CORES))
    assert isinstance(network, OrderNetworkPolicy)
    write_policy(export_policy("parcae", toy), tmp_path / "policy.json")
    found = read_policy(tmp_path / "policy.json")
    assert (found.kind, found.weights) == ("order-network", tuple(network.weights))
    assert tuple(found.parameters.values()) == network.parameters


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=1), "version: Input should be 3"),
        (lambda d: d.update(guard=1.0), "guard: Extra inputs are not permitted"),
        (lambda d: d.pop("account"), "account: Field required"),
        (lambda d: d.update(account={"factor": 1.5}), "account.floor: Field required"),
        (lambda d: d.update(kind="order-rule"), "unknown or missing: AGE"),
        (lambda d: d.update(weights=[0.5]), "srpt has 0 weights, not 1"),
        (lambda d: d.update(format="x"), "format: Input should be 'parcae-policy'"),
        (lambda d: d.update(guess=1), "guess: Extra inputs are not permitted"),
        (lambda d: d.pop("guess_ms"), "guess_ms: Field required"),
        (lambda d: d["parameters"].update(SPEED=1.0), "unknown or missing: SPEED"),
        (lambda d: d.update(mean_work_ms=-1.0), "mean_work_ms: Input should be greater"),
        (
            lambda d: d.update(mean_work_ms=math.nan),
            "mean_work_ms: Input should be a finite number",
        ),
        (
            lambda d: d.update(account={"factor": math.inf, "floor": 0.1}),
            "account.factor: Input should be a finite number",
        ),
        (
            lambda d: d["parameters"].update(AGE=math.inf),
            "parameters.AGE: Input should be a finite number",
        ),
        (
            lambda d: d["jobs"].update(x={"work_ms": 1.0, "stages": []}),
            "jobs.x.stages: Tuple should have at least 1",
        ),
    ],
)
def test_files_of_another_form_are_refused(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "policy.json"
    write_policy(export_policy("srpt", load_workload("toy")), path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError, match="write one with `parcae export`") as caught:
        read_policy(path)
    assert message in str(caught.value)


@pytest.mark.parametrize("guard", [None, 1.1])
def test_a_guard_of_an_earlier_version_is_replaced_by_accounts(
    guard: float | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policy.json"
    write_policy(export_policy("srpt", load_workload("toy")), path)
    document = json.loads(path.read_text())
    del document["account"]
    path.write_text(json.dumps({**document, "version": 2, "guard": guard}))
    found = read_policy(path)
    assert (found.account is not None) == (guard is not None)
    assert ("accounts of users replace the guard" in caplog.text) == (guard is not None)
