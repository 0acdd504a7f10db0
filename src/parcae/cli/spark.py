"""`parcae spark`: a stock Apache Spark under a Parcae service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parcae.cli.spark_tpch import tpch_command

if TYPE_CHECKING:
    from parcae.spark.home import SparkHome
    from parcae.spark.launch import PluginSettings

app = typer.Typer(help="Put a stock Apache Spark under a Parcae service.", no_args_is_help=True)
app.command("tpch")(tpch_command)

Home = Annotated[Path | None, typer.Option("--spark-home", help="Which Spark; else SPARK_HOME, else this Python's PySpark.")]
Service = Annotated[str | None, typer.Option("--service", help="HOST:PORT of a running `parcae serve`.")]
Secret = Annotated[Path | None, typer.Option("--secret-file", help="The secret that the service asks for.")]
Trust = Annotated[Path | None, typer.Option("--tls-ca", help="Certificates (PEM) that the service's must be signed by.")]
JobKey = Annotated[str | None, typer.Option("--key", help="Group and name jobs by this property, as `parcae workload import`.")]
Report = Annotated[Path | None, typer.Option("--report", help="Where the plugin writes its own numbers at the end (JSON).")]
Executors = Annotated[
    int | None,
    typer.Option("--executors", min=1, help="Share a standalone cluster of so many (docs/spark-cluster.md)."),
]
OwnPolicy = Annotated[str | None, typer.Option("--policy", help="Without --service: serve this policy until the end.")]
Workload = Annotated[str, typer.Option("--workload", help="Without --service: the profile of the recurring jobs.")]


def _settings(
    spark: SparkHome,
    service: str | None,
    secret: Path | None,
    tls_ca: Path | None,
    key: str | None,
    report: Path | None,
    executors: int | None,
) -> PluginSettings:
    from parcae.spark.build import build_plugin
    from parcae.spark.launch import DEFAULT_SERVICE, PluginSettings

    return PluginSettings(build_plugin(spark), service or DEFAULT_SERVICE, secret, tls_ca, key, None, report, executors=executors)


@app.command("build")
def build_command(
    spark_home: Home = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compile even if the jar is there.")] = False,
) -> None:
    """Compile the plugin against your Spark and print the jar's path. It is kept: a second call is quick.

    Example: parcae spark build
    """
    from parcae.spark.build import build_plugin
    from parcae.spark.home import find_spark

    typer.echo(build_plugin(find_spark(spark_home), is_fresh=fresh))


@app.command("conf")
def conf_command(
    master: Annotated[str, typer.Option("--master", help="Your master URL: local[N] or spark://HOST:PORT.")] = "local[*]",
    spark_home: Home = None,
    service: Service = None,
    secret_file: Secret = None,
    tls_ca: Trust = None,
    key: JobKey = None,
    report: Report = None,
    executors: Executors = None,
    properties: Annotated[bool, typer.Option("--properties", help="Lines for spark-defaults.conf.")] = False,
) -> None:
    """Print the settings that put an application under the service, to paste behind spark-submit.

    Example: parcae spark conf --master spark://127.0.0.1:7077 --service 127.0.0.1:7177
    """
    import shlex

    from parcae.spark.home import find_spark
    from parcae.spark.launch import parcae_master

    settings = _settings(find_spark(spark_home), service, secret_file, tls_ca, key, report, executors)
    conf = {"spark.master": parcae_master(master), **settings.conf()}
    for name, value in conf.items():
        typer.echo(f"{name} {value}" if properties else f"--conf {shlex.quote(f'{name}={value}')}")


_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command("submit", context_settings=_THROUGH)
def submit_command(
    context: typer.Context,
    spark_home: Home = None,
    service: Service = None,
    secret_file: Secret = None,
    tls_ca: Trust = None,
    key: JobKey = None,
    report: Report = None,
    executors: Executors = None,
    policy: OwnPolicy = None,
    workload: Workload = "tpch",
) -> None:
    """spark-submit with the plugin; what follows -- is spark-submit's. Without --service, one is run until the end.

    Example: parcae spark submit --policy parcae -- --master local[4] my_application.py
    """
    settings = (service, secret_file, tls_ca, key, report, executors)
    raise typer.Exit(_run("spark-submit", context.args, spark_home, settings, policy, workload))


@app.command("shell", context_settings=_THROUGH)
def shell_command(
    context: typer.Context,
    kind: Annotated[str, typer.Option("--kind", help="pyspark | spark-shell | spark-sql")] = "pyspark",
    spark_home: Home = None,
    service: Service = None,
    secret_file: Secret = None,
    tls_ca: Trust = None,
    key: JobKey = None,
    report: Report = None,
    executors: Executors = None,
    policy: OwnPolicy = None,
    workload: Workload = "tpch",
) -> None:
    """An interactive Spark with the plugin; what follows -- is Spark's. Without --service, one is run until the end.

    Example: parcae spark shell --policy parcae -- --master local[4]
    """
    from parcae.errors import ConfigError

    if kind not in ("pyspark", "spark-shell", "spark-sql"):
        raise ConfigError(f"--kind is pyspark, spark-shell or spark-sql, not {kind!r}")
    settings = (service, secret_file, tls_ca, key, report, executors)
    raise typer.Exit(_run(kind, context.args, spark_home, settings, policy, workload))


def _run(
    command: str, arguments: list[str], spark_home: Path | None, settings: tuple[Any, ...], policy: str | None, workload: str
) -> int:
    import contextlib
    import signal
    import subprocess
    from dataclasses import replace

    from parcae.errors import ConfigError
    from parcae.spark.applications import running_service
    from parcae.spark.home import find_spark
    from parcae.spark.launch import environment, spark_arguments

    service, secret_file, executors = settings[0], settings[1], settings[-1]
    if service and policy:
        raise ConfigError("give --service (a running service, which has its policy) or --policy (one of your own), not both")
    if executors and not service:
        raise ConfigError("--executors is for applications that share a service: give its --service HOST:PORT")
    spark = find_spark(spark_home)
    plugin = _settings(spark, *settings)
    with contextlib.ExitStack() as stack:
        if service is None:
            if secret_file is not None:
                raise ConfigError("--secret-file belongs to --service HOST:PORT")
            own = stack.enter_context(running_service(policy or "parcae", workload, admin_port=0))
            plugin = replace(plugin, service=own.address)
            typer.echo(f"{policy or 'parcae'} serves until the end; live page http://127.0.0.1:{own.admin_port}/", err=True)
        line = [str(spark.command(command)), *spark_arguments(plugin, [a for a in arguments if a != "--"])]
        process = subprocess.Popen(line, env=environment(spark.path))
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # Spark got it, too, and ends (or, in a shell, stops what runs)
                if command == "spark-submit":
                    process.send_signal(signal.SIGINT)


@app.command("demo")
def demo_command(
    policies: Annotated[str, typer.Option("--policies", help="spark-fifo, spark-fair and policies, separated by commas.")] = (
        "spark-fair,spark-fifo,srpt-cap,tuned:stream,parcae:stream"
    ),
    workload: Annotated[str, typer.Option("--workload", help="Profile whose jobs are replayed by tasks that sleep.")] = "tpch",
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Jobs of a mix.")] = 16,
    cores: Annotated[int, typer.Option("--cores", min=1, help="Cores that the local Spark declares.")] = 24,
    arrivals: Annotated[str, typer.Option("--arrivals", help="batch | poisson:2s | load:0.85")] = "poisson:750ms",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Mixes; every policy gets the same.")] = 5,
    seed_start: Annotated[int, typer.Option("--seed-start", min=0, help="The first mix's seed.")] = 1000,
    time_scale: Annotated[float, typer.Option("--time-scale", min=0.01, help="Task durations times this.")] = 3.0,
    work: Annotated[Path, typer.Option("--work", help="Event logs, notes and pictures; a stopped run goes on there.")] = Path(
        "parcae-spark-demo"
    ),
    spark_home: Home = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run mixes of jobs on a real Spark here, under Spark's own orders and under Parcae's policies, and compare.

    Example: parcae spark demo --seeds 3 --json
    """
    from parcae.spark.build import build_plugin
    from parcae.spark.demo import DemoConfig, run_demo
    from parcae.spark.home import find_spark

    names = tuple(part.strip() for part in policies.split(",") if part.strip())
    config = DemoConfig(names, workload, jobs, cores, arrivals, seeds, seed_start, time_scale)
    spark = find_spark(spark_home)
    result = run_demo(config, spark, build_plugin(spark), work, lambda line: typer.echo(line, err=True))
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
        return
    from parcae.cli.tables import print_rows

    rows = []
    for name, run in result.runs.items():
        average, ratio = result.average(name), result.ratio(name)
        interval = "" if ratio.is_unknown else f" [{ratio.low:.3f}, {ratio.high:.3f}]"
        makespan = sum(run.makespan_s) / len(run.makespan_s)
        rows.append((name, f"{average.mean:.2f}", f"{ratio.mean:.3f}{interval}", f"{makespan:.1f}"))
    title = f"Spark {result.spark_version}: {jobs} jobs, {arrivals}, {cores} cores, seeds {seed_start}-{seed_start + seeds - 1}"
    print_rows(title, ("policy", "average JCT", "ratio to spark-fair", "makespan"), rows)
    typer.echo(f"Gantt charts of the first mix: {', '.join(map(str, result.pictures))}")


@app.command("fidelity")
def fidelity_command(
    workload: Annotated[str, typer.Option("--workload", help="Profile whose jobs are replayed by tasks that sleep.")] = "tpch",
    policy: Annotated[str, typer.Option("--policy", help="Who schedules, in the simulator and on Spark.")] = "parcae",
    cores: Annotated[int, typer.Option("--cores", min=1, help="Cores that the local Spark declares.")] = 24,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Jobs of a mix.")] = 12,
    arrivals: Annotated[str, typer.Option("--arrivals", help="batch | poisson:2s | load:0.7")] = "load:0.7",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Mixes.")] = 4,
    seed_start: Annotated[int, typer.Option("--seed-start", min=0, help="The first mix's seed.")] = 1000,
    time_scale: Annotated[float, typer.Option("--time-scale", min=0.01, help="Task durations times this.")] = 4.0,
    alone: Annotated[int | None, typer.Option("--alone", min=1, help="How many jobs run alone; all unless given.")] = None,
    work: Annotated[Path, typer.Option("--work", help="Event logs and the picture.")] = Path("parcae-spark-fidelity"),
    spark_home: Home = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run jobs on a real Spark here and in the simulator, alone and together, and say how far apart they are.

    Example: parcae spark fidelity --json
    """
    from parcae.spark.build import build_plugin
    from parcae.spark.fidelity import FidelityConfig, run_fidelity
    from parcae.spark.home import find_spark

    config = FidelityConfig(workload, policy, cores, jobs, arrivals, seeds, seed_start, time_scale, alone)
    spark = find_spark(spark_home)
    result = run_fidelity(config, spark, build_plugin(spark), work, lambda line: typer.echo(line, err=True))
    told = result.to_json()
    if as_json:
        typer.echo(json.dumps(told, indent=2))
        return
    from parcae.cli.tables import print_rows

    rows = [
        (name, str(part["num_jobs"]), *(f"{part[k]:.1%}" for k in ("mean_error", "p95_error", "mean_signed_error")))
        for name, part in (("alone", told["alone"]), ("shared cluster", told["shared"]))
    ]
    print_rows(
        f"Simulator against Spark {result.spark_version}, {policy}, {cores} cores",
        ("", "jobs", "mean error", "p95", "signed"),
        rows,
    )
    typer.echo(f"picture: {result.picture}")
