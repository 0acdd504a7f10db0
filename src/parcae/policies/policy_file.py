"""The policy file: what a scheduler outside Python plans by, and what is foretold of its jobs.

The Spark plugin reads it (`parcae.spark.guest.Policy` in Java).
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from parcae.errors import FormatError, PolicyError
from parcae.files import write_text
from parcae.policies.learned import (
    ORDER_RULE,
    ORDER_RULE_VERSION,
    find_checkpoint,
    is_learned,
    order_parameters,
)
from parcae.policies.order_rule.layout import OrderParameter
from parcae.policies.orders.catalog import split_guard
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.guess import mean_log_task_ms
from parcae.workloads.job import JobSpec, Workload

VERSION = 2
#: The order by least remaining work, which has no parameters.
PLAIN = "srpt"
#: What can be exported, in words.
EXPORTABLE = f"{PLAIN}, tuned, tuned:VARIANT or a tuned checkpoint's path, each with +guard:FACTOR or without"

#: The importer's mark of a job that has the name of another, but another DAG.
_VARIANT = re.compile(r"(.+) \((\d+)\)")
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Factor = Annotated[float, Field(gt=1, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PolicyStage(_Strict):
    """A stage of a recurring job.

    Args:
        tasks: number of tasks.
        task_ms: mean duration of a task, in ms.
        parents: indices, within the job, of the stages that it waits for.
    """

    tasks: int = Field(ge=1)
    task_ms: _Amount
    parents: tuple[int, ...] = ()


class PolicyJob(_Strict):
    """What is foretold of a recurring job.

    Args:
        work_ms: total work, in ms of one core.
        stages: its stages, in the order in which they are submitted.
    """

    work_ms: _Amount
    stages: tuple[PolicyStage, ...] = Field(min_length=1)


class PolicyFile(_Strict):
    """A policy and what it knows.

    Args:
        format: `parcae-policy`.
        version: of the format.
        policy: what the policy is called.
        kind: how it plans: `srpt`, by least remaining work, or `order-rule`, the rule of the world
            of cores.
        parameters: the rule's, by name of `OrderParameter`; none of `srpt`.
        guard: no job is to end later than so many times its time under fair sharing; None: no
            guard.
        mean_work_ms: mean work of a job, in ms of one core.
        guess_ms: what a task takes of a job that is not among `jobs`, in ms.
        jobs: by name.

    Example: `export_policy("tuned", load_workload("tpch")).kind` is "order-rule".
    """

    format: Literal["parcae-policy"]
    version: Literal[2]
    policy: str
    kind: Literal["srpt", "order-rule"]
    parameters: dict[str, _Number]
    guard: _Factor | None
    mean_work_ms: _Amount
    guess_ms: _Amount
    jobs: dict[str, PolicyJob]

    @model_validator(mode="after")
    def _has_its_parameters(self) -> PolicyFile:
        wanted = set() if self.kind == PLAIN else {parameter.name for parameter in OrderParameter}
        if wrong := sorted(wanted ^ self.parameters.keys()):
            raise ValueError(f"parameters that are unknown or missing: {', '.join(wrong)}")
        return self


def export_policy(policy: str, workload: Workload) -> PolicyFile:
    """The policy file of a policy that plans for the jobs of a workload.

    Of jobs that the importer tells apart as "name" and "name (2)" only the one that ran most often
    is kept, as "name": a job's name is all that is known when it is submitted. So is, of jobs of
    one name, the one of median work.

    Args:
        policy: `srpt`, `tuned`, or another tuned rule of the world of cores by its name or path;
            each may have a guard.
        workload: the recurring jobs, with the durations that a scheduler is told.

    Raises:
        PolicyError: another policy.
        FormatError, FileNotFoundError: a checkpoint that cannot be read.

    Example: `write_policy(export_policy("srpt", workload), Path("policy.json"))`.
    """
    name, guard = split_guard(policy)
    parameters = {} if name == PLAIN else _rule_parameters(name, workload)
    return PolicyFile(
        format="parcae-policy",
        version=2,
        policy=policy,
        kind="srpt" if name == PLAIN else "order-rule",
        parameters=parameters,
        guard=guard,
        mean_work_ms=workload.mean_work_ms,
        guess_ms=math.exp(mean_log_task_ms(workload)),
        jobs={name: _policy_job(job) for name, job in _by_name(workload)},
    )


def _rule_parameters(name: str, workload: Workload) -> dict[str, float]:
    """The parameters of a tuned rule of the world of cores, by name."""
    if is_learned(name):
        config = SimulationConfig(world=WorldName.CORES)
        checkpoint = find_checkpoint(name, workload, config, "batch")
        if checkpoint.kind == ORDER_RULE:
            checkpoint.require(ORDER_RULE, ORDER_RULE_VERSION, name)
            values = order_parameters(checkpoint, name)
            return {parameter.name: values[parameter] for parameter in OrderParameter}
    raise PolicyError(f"policy {name!r} cannot be exported: choose {EXPORTABLE}")


def _by_name(workload: Workload) -> Iterable[tuple[str, JobSpec]]:
    names = {job.name for job in workload.jobs}
    weights = workload.weights or (1.0,) * len(workload.jobs)
    alike = defaultdict[str, list[tuple[float, JobSpec]]](list)
    for weight, job in zip(weights, workload.jobs, strict=True):
        variant = _VARIANT.fullmatch(job.name)
        name = variant[1] if variant and variant[1] in names else job.name
        alike[name].append((weight, job))
    for name, found in sorted(alike.items()):
        most = max(weight for weight, _ in found)
        often = [job for weight, job in found if weight == most]
        often.sort(key=lambda job: job.work_ms)
        yield name, often[len(often) // 2]


def _policy_job(job: JobSpec) -> PolicyJob:
    stages = []
    for spec in job.stages:
        stage = PolicyStage(tasks=spec.num_tasks, task_ms=spec.mean_task_ms, parents=spec.parents)
        stages.append(stage)
    return PolicyJob(work_ms=job.work_ms, stages=tuple(stages))


def write_policy(policy: PolicyFile, path: Path) -> None:
    """Write a policy file, wholly or not at all.

    Raises:
        OSError: the folder does not exist or cannot be written.
    """
    text = json.dumps(policy.model_dump(mode="json"), ensure_ascii=False, indent=1)
    write_text(path, text + "\n")


def read_policy(path: Path) -> PolicyFile:
    """Read a policy file.

    Raises:
        FormatError: no policy file, one of another version, or fields that are missing or unknown.
        OSError: it cannot be read.
    """
    try:
        return PolicyFile.model_validate_json(Path(path).read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        advice = f"policy files of version {VERSION} are read: write one with `parcae export`"
        raise FormatError(f"{path}: {where}: {first['msg']}; {advice}") from error
