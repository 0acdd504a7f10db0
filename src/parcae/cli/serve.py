"""The commands `parcae serve` (the live scheduler) and `parcae replay` (compare a recording)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from parcae.cli.checks import Only, file_to_read, file_to_write, finite, folder_to_write, refusing
from parcae.cli.groups import with_groups
from parcae.cli.options import MOST, SOURCE_HELP, JsonOption
from parcae.cli.policy_names import policy_to_read
from parcae.workloads.durations import MOST_EXECUTORS

#: Value of --admin-port that means: no admin side.
_NONE = -1


@dataclass(frozen=True)
class SharedClusterOptions:
    """The clusters that are served."""

    scope: Annotated[
        str,
        typer.Option(
            "--scope",
            help="application: each application has its own cores | cluster: all share --cores.",
        ),
    ] = "application"
    cores: Annotated[
        int,
        typer.Option(
            "--cores",
            "--slots",
            min=1,
            max=MOST_EXECUTORS,
            help="Cores that all share; with --scope application, expected cores of each. With "
            "spark.task.cpus above 1, divide by it.",
        ),
    ] = 50
    executor_cores: Annotated[
        int,
        typer.Option(
            "--executor-cores",
            min=1,
            help="With --scope cluster: cores of one executor. With spark.task.cpus above 1, "
            "divide by it.",
        ),
    ] = 1
    moving_delay_ms: Annotated[
        int,
        typer.Option(
            "--moving-delay-ms",
            min=0,
            max=10**12,
            help="With --scope cluster: shortest time between two executors taken from one "
            "application.",
        ),
    ] = 0
    arrivals: Annotated[
        str,
        typer.Option(
            "--arrivals", help="Expected arrivals; chooses the nearest shipped variant of a policy."
        ),
    ] = "load:0.9"


@dataclass(frozen=True)
class ListenOptions:
    """Where the service listens."""

    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen on; all but the loopback need a secret."),
    ] = "127.0.0.1"
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port for clients; 0: a free port.")
    ] = 7177
    admin_port: Annotated[
        int,
        typer.Option(
            "--admin-port",
            min=_NONE,
            max=65535,
            help="Port of the live page (loopback); 0: a free port, -1: no live page.",
        ),
    ] = 7178
    secret_file: Annotated[
        Path | None,
        typer.Option(
            "--secret-file",
            help="File with the secret that clients must know.",
            callback=file_to_read,
        ),
    ] = None
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", help="Certificate (PEM).", callback=file_to_read)
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", help="Its key (PEM).", callback=file_to_read)
    ] = None


@dataclass(frozen=True)
class FileOptions:
    """Files that the service writes."""

    record: Annotated[
        Path | None,
        typer.Option(
            "--record", help="Folder for recordings of all sessions.", callback=folder_to_write
        ),
    ] = None
    learned: Annotated[
        Path | None,
        typer.Option(
            "--learned",
            help="File that keeps learned durations between runs.",
            callback=file_to_write,
        ),
    ] = None


@refusing(
    Only(
        ("executor_cores", "moving_delay_ms"),
        lambda given: given["scope"] != "application",
        "with --scope cluster",
    )
)
@with_groups
def serve_command(
    *,
    cluster: SharedClusterOptions,
    listen: ListenOptions,
    files: FileOptions,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="Policy that plans; see `parcae policies`, world of cores.",
            callback=policy_to_read,
        ),
    ] = "parcae",
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            help=f"Profile of the recurring jobs. {SOURCE_HELP}",
            callback=file_to_read,
        ),
    ] = "tpch",
    demo: Annotated[
        int,
        typer.Option(
            "--demo",
            min=0,
            max=MOST,
            help="Also schedule a simulated application with this number of jobs.",
        ),
    ] = 0,
    for_s: Annotated[
        float | None,
        typer.Option("--for", min=0, help="Stop after this number of seconds.", callback=finite),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ports as JSON.")] = False,
) -> None:
    """Schedule live clusters: clients send events and get orders (protocol/README.md).

    Example: parcae serve --policy parcae --workload tpch --demo 50 --for 60
    """
    # Imported here, so that other commands start without loading the service.
    import logging

    from parcae.service.serve import ServeSettings, parse_scope, serve
    from parcae.workloads.archive import load_workload

    logging.basicConfig(level=logging.WARNING, format="parcae: %(message)s")
    settings = ServeSettings(
        policy=policy,
        scope=parse_scope(cluster.scope),
        num_cores=cluster.cores,
        executor_cores=cluster.executor_cores,
        moving_delay_ms=cluster.moving_delay_ms,
        arrivals=cluster.arrivals,
        host=listen.host,
        port=listen.port,
        admin_port=None if listen.admin_port == _NONE else listen.admin_port,
        secret_file=listen.secret_file,
        tls_cert=listen.tls_cert,
        tls_key=listen.tls_key,
        record=files.record,
        learned=files.learned,
        demo_jobs=demo,
        for_s=for_s,
    )

    def ready(bound_port: int, bound_admin_port: int | None) -> None:
        # Flushed: a program that started the service waits for this line.
        if as_json:
            print(
                json.dumps({"port": bound_port, "admin_port": bound_admin_port, "policy": policy}),
                flush=True,
            )
            return
        page = (
            f"; live page http://127.0.0.1:{bound_admin_port}/"
            if bound_admin_port is not None
            else ""
        )
        print(f"{policy} serves on {listen.host}:{bound_port}{page}", flush=True)

    serve(settings, load_workload(workload), ready)


def replay_command(
    recording: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...|FOLDER",
            help="The files of a recording in order, or a folder: its newest recording.",
        ),
    ],
    policy: Annotated[
        str, typer.Option("--policy", help="The other policy (see `parcae policies`).")
    ] = "fair",
    workload: Annotated[
        str, typer.Option("--workload", help=f"Profile of the recurring jobs. {SOURCE_HELP}")
    ] = "tpch",
    as_json: JsonOption = False,
) -> None:
    """Compare the orders in a recording of `parcae serve --record` with those of another policy.

    Example: parcae replay recordings --policy fair --json
    """
    from parcae.cli.replayed import replay_tables
    from parcae.cli.tables import print_fitted
    from parcae.service.replay import replay_recording
    from parcae.workloads.archive import load_workload

    result = replay_recording(recording, policy, load_workload(workload))
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
        return
    for table in replay_tables(result):
        print_fitted(table)
