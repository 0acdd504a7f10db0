"""The policy file: a policy's parameters and the estimates of its jobs, for use outside Python.

The Spark plugin reads it (`parcae.spark.guest.Policy` in Java).
"""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from parcae.base.errors import FormatError, PolicyError, first_problem
from parcae.base.files import write_text
from parcae.base.loader import read_file
from parcae.cluster.kernels.accounts import FACTOR, FLOOR
from parcae.policies.formula.language import parse_formula
from parcae.policies.learned import ORDER_RULE, find_checkpoint, is_learned, order_parameters
from parcae.policies.names import FORMULA, PolicyName, parse_live_name
from parcae.policies.network.kernels import KIND, NUM_ORDER_WEIGHTS
from parcae.policies.network.policy import bind_network
from parcae.policies.registry import PolicySetting, kind_of
from parcae.policies.rule.kernels import OrderParameter
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.guess import mean_log_task_ms
from parcae.workloads.job import JobSpec
from parcae.workloads.workload import Workload, rows_by_name, usual_row

VERSION = 3
#: The version of files that may have a guard, which accounts replace.
_OF_GUARD = 2
_LOG = logging.getLogger(__name__)
#: The order by least remaining work, which has no parameters.
PLAIN = "srpt"
#: The policies that can be exported, for messages.
EXPORTABLE = (
    f"{PLAIN}, tuned, parcae, one of their variants, or a checkpoint of the world of cores, "
    "each with +account or without, or a formula without slack"
)

_Number = Annotated[float, Field(allow_inf_nan=False)]
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Numbers = tuple[float, ...]
_Program = tuple[str | float, ...]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PolicyStage(_Strict):
    """A stage of a recurring job."""

    tasks: int = Field(ge=1)
    task_ms: _Amount
    parents: tuple[int, ...] = ()


class PolicyJob(_Strict):
    """The estimates for a recurring job; at other bytes its work is in proportion."""

    work_ms: _Amount
    scan_bytes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    stages: tuple[PolicyStage, ...] = Field(min_length=1)


class PolicyAccount(_Strict):
    """How accounts of users count (`parcae.cluster.kernels.accounts`)."""

    factor: _Amount
    floor: Annotated[float, Field(gt=0, le=1)]


class PolicyFile(_Strict):
    """A policy with its parameters, and the estimates of the jobs that it schedules.

    Example: `export_policy("tuned", load_workload("tpch")).kind` is "order-rule".
    """

    format: Literal["parcae-policy"]
    version: Literal[3]
    policy: str
    kind: Literal["srpt", "order-rule", "order-network", "formula"]
    parameters: dict[str, _Number]
    account: PolicyAccount | None
    mean_work_ms: _Amount
    guess_ms: _Amount
    jobs: dict[str, PolicyJob]
    weights: tuple[_Number, ...] = ()
    program: tuple[str | _Number, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _replace_guard(cls, content: Any) -> Any:
        """Read a file of version 2: its guard, if it has one, is replaced by accounts."""
        if not isinstance(content, dict) or content.get("version") != _OF_GUARD:
            return content
        account = None
        if content.get("guard") is not None:
            _LOG.warning("accounts of users replace the guard of policy %s", content.get("policy"))
            account = {"factor": FACTOR, "floor": FLOOR}
        kept = {name: value for name, value in content.items() if name != "guard"}
        return {**kept, "version": VERSION, "account": account}

    @model_validator(mode="after")
    def _check_parameters(self) -> PolicyFile:
        names = (
            set()
            if self.kind in (PLAIN, FORMULA)
            else {parameter.name for parameter in OrderParameter}
        )
        if wrong := sorted(names ^ self.parameters.keys()):
            raise ValueError(f"these parameters are unknown or missing: {', '.join(wrong)}")
        wanted = NUM_ORDER_WEIGHTS if self.kind == KIND else 0
        if len(self.weights) != wanted:
            raise ValueError(f"{self.kind} has {wanted} weights, not {len(self.weights)}")
        if bool(self.program) != (self.kind == FORMULA):
            raise ValueError(f"a program of {len(self.program)} steps does not fit {self.kind}")
        return self


def export_policy(policy: str, workload: Workload) -> PolicyFile:
    """Return the policy file of a policy for the recurring jobs of a workload.

    A scheduler knows only a job's name when the job is submitted, so the file has one job per name.
    The importer calls jobs with the same name but different DAGs "name", "name (2)" and so on. The
    job that ran most often is kept as "name"; of several such jobs, the one with the median work.
    Every variant is kept under its own name, too: replays of the workload submit it so.

    Example: `write_policy(export_policy("srpt", workload), Path("policy.json"))`.
    """
    workload = workload.warm
    name = parse_live_name(policy)
    kind, theta, weights, program = _parts(name, workload)
    if name.account:
        raise PolicyError(
            f"policy {policy!r} cannot be exported with weights, which belong to the application: "
            "write +account alone"
        )
    return PolicyFile(
        format="parcae-policy",
        version=3,
        policy=policy,
        kind=kind,
        parameters={parameter.name: theta[parameter] for parameter in OrderParameter if theta},
        weights=weights,
        program=program,
        account=_account(name, program),
        mean_work_ms=workload.mean_work_ms,
        guess_ms=math.exp(mean_log_task_ms(workload)),
        jobs={
            name: _policy_job(workload.jobs[usual_row(workload, rows)])
            for name, rows in sorted(rows_by_name(workload).items())
        },
    )


def _account(name: PolicyName, program: _Program) -> PolicyAccount | None:
    """How accounts count; those of a formula are kept for its features and change no tier."""
    if {"overdraft", "share"} & set(program):
        return PolicyAccount(factor=0.0, floor=1.0)
    return None if name.account is None else PolicyAccount(factor=FACTOR, floor=FLOOR)


def _parts(name: PolicyName, workload: Workload) -> tuple[Any, _Numbers, _Numbers, _Program]:
    """Kind, the rule's parameters, the network's weights and the formula's program of a policy of
    the world of cores.
    """
    if name.name == PLAIN:
        return PLAIN, (), (), ()
    if name.word == FORMULA and name.account is None:
        program = parse_formula(name.argument).program
        if "slack" not in program:
            return FORMULA, (), (), program
    if is_learned(name):
        setting = PolicySetting(workload, SimulationConfig(world=WorldName.CORES))
        checkpoint = find_checkpoint(name, setting)
        if checkpoint.kind == ORDER_RULE:
            kind_of(checkpoint, name.name)
            return ORDER_RULE, order_parameters(checkpoint, name.name), (), ()
        if checkpoint.kind == KIND:
            network = bind_network(checkpoint, name.name, workload)
            return KIND, network.parameters, tuple(network.weights.tolist()), ()
    raise PolicyError(f"policy {name.name!r} cannot be exported: choose {EXPORTABLE}")


def _policy_job(job: JobSpec) -> PolicyJob:
    stages = []
    for spec in job.stages:
        stage = PolicyStage(tasks=spec.num_tasks, task_ms=spec.mean_task_ms, parents=spec.parents)
        stages.append(stage)
    return PolicyJob(work_ms=job.work_ms, scan_bytes=job.scan_bytes or None, stages=tuple(stages))


def content_of(policy: PolicyFile) -> dict[str, Any]:
    """What is written into the file; only a network's file has weights, only a formula's a program,
    and only jobs whose bytes are known have them.
    """
    absent = {name for name in ("weights", "program") if not getattr(policy, name)}
    content = policy.model_dump(mode="json", exclude=absent)
    for job in content["jobs"].values():
        if job["scan_bytes"] is None:
            del job["scan_bytes"]
    return content


def write_policy(policy: PolicyFile, path: Path) -> None:
    """Write a policy file atomically: if writing fails, an older file at `path` is unchanged."""
    write_text(path, json.dumps(content_of(policy), ensure_ascii=False, indent=1) + "\n")


def read_policy(path: Path) -> PolicyFile:
    """Read a policy file."""
    try:
        return PolicyFile.model_validate_json(read_file(path))
    except ValidationError as error:
        advice = f"a policy file of version {VERSION} is needed: write one with `parcae export`"
        raise FormatError(f"{path}: {first_problem(error, 'the file')}; {advice}") from error
