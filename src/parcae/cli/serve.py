"""`parcae serve` and `parcae replay`: the live scheduler, and its recordings under another policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from parcae.cli.options import SOURCE_HELP

_NONE = -1


def serve_command(
    policy: Annotated[
        str, typer.Option("--policy", help="Who plans; see `parcae policies`, world of cores.")
    ] = "parcae",
    workload: Annotated[
        str, typer.Option("--workload", help=f"Profile of the recurring jobs. {SOURCE_HELP}")
    ] = "tpch",
    scope: Annotated[
        str,
        typer.Option(
            "--scope", help="application: each has cores of its own | cluster: all share --cores."
        ),
    ] = "application",
    cores: Annotated[
        int,
        typer.Option(
            "--cores",
            "--slots",
            min=1,
            help="Cores that all share; with --scope application, those to expect.",
        ),
    ] = 50,
    executor_cores: Annotated[
        int,
        typer.Option(
            "--executor-cores", min=1, help="With --scope cluster: cores of one executor."
        ),
    ] = 1,
    moving_delay_ms: Annotated[
        int,
        typer.Option(
            "--moving-delay-ms",
            min=0,
            help="With --scope cluster: take an executor from an application so rarely.",
        ),
    ] = 0,
    arrivals: Annotated[
        str,
        typer.Option("--arrivals", help="How jobs arrive, to choose the nearest shipped variant."),
    ] = "load:0.9",
    host: Annotated[
        str, typer.Option("--host", help="Address; others than the loopback need a secret.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port for clients; 0: a free one.")
    ] = 7177,
    admin_port: Annotated[
        int,
        typer.Option(
            "--admin-port",
            min=_NONE,
            max=65535,
            help="Port of the live page (loopback); 0: a free one, -1: none.",
        ),
    ] = 7178,
    secret_file: Annotated[
        Path | None, typer.Option("--secret-file", help="What clients must prove to know.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its key (PEM).")] = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Folder for recordings of all sessions.")
    ] = None,
    learned: Annotated[
        Path | None,
        typer.Option("--learned", help="File in which learned durations outlive the service."),
    ] = None,
    demo: Annotated[
        int,
        typer.Option(
            "--demo", min=0, help="Schedule a simulated application of so many jobs, for show."
        ),
    ] = 0,
    for_s: Annotated[
        float | None, typer.Option("--for", min=0, help="End after so many seconds.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ports as JSON.")] = False,
) -> None:
    """Plan for live clusters: clients tell what happens, and get standing orders (protocol/README.md).

    Example: parcae serve --policy parcae --workload tpch --demo 50 --for 60
    """
    import logging

    from parcae.service.running import ServeSettings, parse_scope, serve
    from parcae.workloads.catalog import load_workload

    logging.basicConfig(level=logging.WARNING, format="parcae: %(message)s")
    settings = ServeSettings(
        policy=policy,
        scope=parse_scope(scope),
        num_cores=cores,
        executor_cores=executor_cores,
        moving_delay_ms=moving_delay_ms,
        arrivals=arrivals,
        host=host,
        port=port,
        admin_port=None if admin_port == _NONE else admin_port,
        secret_file=secret_file,
        tls_cert=tls_cert,
        tls_key=tls_key,
        record=record,
        learned=learned,
        demo_jobs=demo,
        for_s=for_s,
    )

    def ready(own_port: int, own_admin_port: int | None) -> None:
        if as_json:
            print(
                json.dumps({"port": own_port, "admin_port": own_admin_port, "policy": policy}),
                flush=True,
            )
            return
        page = (
            f"; live page http://127.0.0.1:{own_admin_port}/" if own_admin_port is not None else ""
        )
        print(f"{policy} serves on {host}:{own_port}{page}", flush=True)

    serve(settings, load_workload(workload), ready)


def replay_command(
    recording: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...|FOLDER",
            help="A recording (its parts in order), or a folder: its newest.",
        ),
    ],
    policy: Annotated[
        str, typer.Option("--policy", help="The other policy (see `parcae policies`).")
    ] = "fair",
    workload: Annotated[
        str, typer.Option("--workload", help=f"Profile of the recurring jobs. {SOURCE_HELP}")
    ] = "tpch",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Follow a recording of `parcae serve --record` and say where another policy would have ordered jobs otherwise.

    Example: parcae replay recordings --policy fair --json
    """
    from parcae.service.replay import replay_recording
    from parcae.workloads.catalog import load_workload

    result = replay_recording(recording, policy, load_workload(workload))
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
        return
    typer.echo(
        f"{result.num_orders} orders of {result.recorded_policy}: {result.other_policy} serves another job first in "
        f"{result.num_first}, and orders the others otherwise in {result.num_other}"
    )
    for one in result.differences:
        typer.echo(f"  {one.clock_ms:>14} ms  {' '.join(one.recorded)}  |  {' '.join(one.other)}")
    if result.estimate is not None:
        own = result.estimate
        typer.echo(
            f"simulated average JCT of {own.num_jobs} jobs: {own.recorded_average_jct_ms / 1000:.2f} s under "
            f"{result.recorded_policy}, {own.other_average_jct_ms / 1000:.2f} s under {result.other_policy} "
            f"({own.num_left_out} jobs were not seen whole)"
        )
