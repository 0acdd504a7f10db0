"""`parcae export`, which writes a policy file for the Spark plugin, and `parcae policies`."""

from __future__ import annotations

from pathlib import Path

import typer

from parcae.base.errors import ConfigError
from parcae.base.options import REQUIRED, argument, option
from parcae.cli.commands import command
from parcae.cli.options import JSON, WORKLOAD
from parcae.cli.tables import print_catalog
from parcae.policies.policy_file import export_policy, write_policy
from parcae.policies.registry import all_policies
from parcae.workloads.archive import load_workload
from parcae.workloads.import_report import counted


@command()
def export(
    policy: str = argument(
        "The policy: srpt, tuned, parcae, or a checkpoint (*.safetensors), each "
        "also with accounts of users, e.g. tuned+account; or a formula: 'formula: rem'.",
        check="policy",
    ),
    workload: str = WORKLOAD,
    output: Path = option(
        REQUIRED, "The policy file to write (*.json).", "-o", "--output", check="write"
    ),
    world: str = option("cores", "The world of the policy; only cores can be exported."),
) -> None:
    """Write a policy file for the Spark plugin: a policy, and the jobs of a workload.

    With this file the plugin plans without a service.

    Example: parcae export tuned mine.parcae -o policy.json
    """
    if world != "cores":
        why = "only policies of the world of cores can be exported"
        raise ConfigError(f"--world {world}: {why}; write --world cores")
    exported = export_policy(policy, load_workload(workload))
    write_policy(exported, output)
    stages = sum(len(job.stages) for job in exported.jobs.values())
    jobs = counted(len(exported.jobs), "job")
    typer.echo(f"{output}: {policy}, {jobs}, {counted(stages, 'stage')}")


@command()
def policies(as_json: bool = JSON) -> None:
    """List the policies and the worlds in which they work.

    A policy is written NAME or NAME:ARGUMENT. In the world of cores it can have accounts
    of users (NAME+account), pools (NAME+pools:FILE) and priorities (NAME+priorities:FILE.csv).

    Example: parcae policies
    """
    print_catalog("Policies", all_policies(), as_json, ("world",))
