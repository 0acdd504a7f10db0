"""`parcae export`: write a policy file for the Spark plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parcae.cli.checks import file_to_write
from parcae.cli.options import WorkloadArgument
from parcae.cli.policy_names import policy_to_read

_POLICY_HELP = (
    "The policy: srpt, tuned, or the checkpoint of a tuned rule (*.safetensors). It can have a "
    "guard, e.g. tuned+guard:1.1."
)


def export_command(
    policy: Annotated[
        str, typer.Argument(help=_POLICY_HELP, show_default=False, callback=policy_to_read)
    ],
    workload: WorkloadArgument,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="The policy file to write (*.json).", callback=file_to_write
        ),
    ],
    world: Annotated[
        str, typer.Option("--world", help="The world of the policy; only cores can be exported.")
    ] = "cores",
) -> None:
    """Write a policy file for the Spark plugin: a policy, and the jobs of a workload.

    With this file the plugin plans without a service.

    Example: parcae export tuned mine.parcae -o policy.json
    """
    from parcae.base.errors import ConfigError
    from parcae.policies.policy_file import export_policy, write_policy
    from parcae.workloads.archive import load_workload
    from parcae.workloads.import_report import counted

    if world != "cores":
        why = "only policies of the world of cores can be exported"
        raise ConfigError(f"--world {world}: {why}; write --world cores")
    exported = export_policy(policy, load_workload(workload))
    write_policy(exported, output)
    stages = sum(len(job.stages) for job in exported.jobs.values())
    jobs = counted(len(exported.jobs), "job")
    typer.echo(f"{output}: {policy}, {jobs}, {counted(stages, 'stage')}")
