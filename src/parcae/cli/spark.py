"""`parcae spark`: commands for Apache Spark with Parcae's plugin."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parcae.base.errors import ConfigError
from parcae.cli.checks import file_to_write, finite
from parcae.cli.groups import with_groups
from parcae.cli.options import MOST, JsonOption
from parcae.cli.policy_names import names_in, spark_policies_to_read
from parcae.cli.spark_tpch import tpch_command

if TYPE_CHECKING:
    from parcae.spark.demo import DemoResult
    from parcae.spark.fidelity import FidelityConfig
    from parcae.spark.launch import PluginSettings

app = typer.Typer(help="Turn Parcae on in an Apache Spark.", no_args_is_help=True)
app.command("tpch")(tpch_command)

Home = Annotated[
    Path | None,
    typer.Option("--spark-home", help="Which Spark; else SPARK_HOME, else this Python's PySpark."),
]


@dataclass(frozen=True)
class PluginOptions:
    """Which orders the plugin follows, and where they come from."""

    policy: Annotated[
        Path | None,
        typer.Option("--policy", help="Plan by this file of `parcae export`, without a service."),
    ] = None
    service: Annotated[
        str | None,
        typer.Option(
            "--service", help="HOST:PORT of a running `parcae serve`, whose orders have precedence."
        ),
    ] = None
    secret_file: Annotated[
        Path | None, typer.Option("--secret-file", help="The secret that the service asks for.")
    ] = None
    tls_ca: Annotated[
        Path | None,
        typer.Option("--tls-ca", help="Certificates (PEM) that the service's must be signed by."),
    ] = None
    key: Annotated[
        str | None,
        typer.Option("--key", help="Name jobs by this property, as `parcae workload import`."),
    ] = None
    fallback_executors: Annotated[
        int | None,
        typer.Option(
            "--fallback-executors",
            min=1,
            help="In a shared cluster (docs/spark-cluster.md): executors while the service is "
            "away.",
        ),
    ] = None

    def check_files(self) -> None:
        """Check that the files can be read on this machine."""
        _check_readable("--policy", self.policy, "`parcae export` writes policy files")
        _check_readable("--secret-file", self.secret_file, "give the file of the service's secret")
        _check_readable("--tls-ca", self.tls_ca, "give a file of certificates (PEM)")

    def settings(self, jar: Path) -> PluginSettings:
        """The plugin's settings."""
        from parcae.spark.launch import PluginSettings

        return PluginSettings(
            jar,
            self.policy,
            self.service,
            self.secret_file,
            self.tls_ca,
            self.key,
            fallback_executors=self.fallback_executors,
        )


def _check_readable(option: str, path: Path | None, advice: str) -> None:
    """Raise an error if a file is given that cannot be read."""
    if path is None:
        return
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}; {advice}") from error


@app.command("build")
def build_command(
    spark_home: Home = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Compile even if the jar is there.")
    ] = False,
) -> None:
    """Compile the plugin against your Spark, keep the jar, and print its path.

    Example: parcae spark build
    """
    from parcae.spark.build import build_plugin
    from parcae.spark.home import find_spark

    typer.echo(build_plugin(find_spark(spark_home), is_fresh=fresh))


@app.command("conf")
@with_groups
def conf_command(
    *,
    spark_home: Home = None,
    plugin: PluginOptions,
    properties: Annotated[
        bool, typer.Option("--properties", help="Lines for spark-defaults.conf.")
    ] = False,
) -> None:
    """Print the settings that turn the plugin on, to paste after spark-submit.

    Example: parcae spark conf --service 127.0.0.1:7177
    """
    import shlex

    from parcae.spark.build import build_plugin
    from parcae.spark.home import find_spark

    # The settings may be for a driver on another machine.
    try:
        plugin.check_files()
    except ConfigError as error:
        typer.echo(f"warning: {error}", err=True)
    settings = plugin.settings(build_plugin(find_spark(spark_home)))
    for name, value in settings.conf().items():
        typer.echo(f"{name} {value}" if properties else f"--conf {shlex.quote(f'{name}={value}')}")


#: Options that Parcae does not know are passed on to spark-submit.
_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


Jobs = Annotated[int, typer.Option("--jobs", min=1, max=MOST, help="Jobs of a mix.")]
Arrivals = Annotated[
    str, typer.Option("--arrivals", help="batch | poisson:2s (mean gap) | load:0.85")
]
Seeds = Annotated[
    int, typer.Option("--seeds", min=1, max=MOST, help="Mixes; every policy gets the same.")
]
TimeScale = Annotated[
    float,
    typer.Option(
        "--time-scale", min=0.01, max=1e6, help="Task durations times this.", callback=finite
    ),
]


@dataclass(frozen=True)
class MixOptions:
    """The mixes of jobs that a real Spark runs."""

    workload: Annotated[
        str, typer.Option("--workload", help="Profile whose jobs are replayed by tasks that sleep.")
    ] = "tpch"
    jobs: Jobs = 16
    arrivals: Arrivals = "poisson:750ms"
    seeds: Seeds = 5
    seed_start: Annotated[
        int, typer.Option("--seed-start", min=0, help="The first mix's seed.")
    ] = 1000
    time_scale: TimeScale = 3.0


@dataclass(frozen=True)
class DemoMixOptions(MixOptions):
    """The mixes of jobs that a real Spark runs, and on how many cores."""

    cores: Annotated[
        int,
        typer.Option("--cores", min=1, max=1_000_000, help="Cores that the local Spark declares."),
    ] = 24


@dataclass(frozen=True)
class FidelityMixOptions(MixOptions):
    """The mixes of jobs that a real Spark and the simulator run, and on how many cores."""

    cores: Annotated[
        str,
        typer.Option(
            "--cores",
            help="Cores that the local Spark declares; several (8,16,24) hold `parcae size` "
            "against it.",
        ),
    ] = "24"
    jobs: Jobs = 12
    arrivals: Arrivals = "load:0.7"
    seeds: Seeds = 4
    time_scale: TimeScale = 4.0
    alone: Annotated[
        int | None,
        typer.Option("--alone", min=1, help="How many jobs run alone; all unless given."),
    ] = None


@app.command("submit", context_settings=_THROUGH)
@with_groups
def submit_command(
    context: typer.Context,
    *,
    plugin: PluginOptions,
    command: Annotated[
        str,
        typer.Option(
            "--command",
            help="spark-submit, or for interactive work pyspark, spark-shell or spark-sql.",
        ),
    ] = "spark-submit",
    spark_home: Home = None,
) -> None:
    """Run spark-submit with the plugin; arguments after -- are for spark-submit.

    Example: parcae spark submit --policy policy.json -- --master local[4] my_application.py
    """
    import signal
    import subprocess

    from parcae.base.files import interruptions_wait
    from parcae.spark.build import build_plugin
    from parcae.spark.home import find_spark
    from parcae.spark.launch import environment, spark_arguments

    if command not in ("spark-submit", "pyspark", "spark-shell", "spark-sql"):
        raise ConfigError(
            f"--command is {command!r}; use spark-submit, pyspark, spark-shell or spark-sql"
        )
    plugin.check_files()
    spark = find_spark(spark_home)
    settings = plugin.settings(build_plugin(spark))
    given = context.args
    # A first -- separates Spark's arguments from ours; later ones belong to the application.
    if given and given[0] == "--":
        given = given[1:]
    arguments = spark_arguments(settings, given, spark)
    process: subprocess.Popen[bytes] | None = None
    # Ctrl-C must not end this process before Spark has ended.
    while True:
        try:
            if process is None:
                with interruptions_wait():  # or Spark would go on without this process
                    process = subprocess.Popen(
                        [str(spark.command(command)), *arguments], env=environment(spark.path)
                    )
            raise typer.Exit(process.wait())
        except (KeyboardInterrupt, SystemExit) as ended:
            if process is None:  # Spark has not begun
                raise
            if isinstance(ended, SystemExit):  # SIGTERM reaches this process only
                process.terminate()
            # Spark gets Ctrl-C, too: it ends, or a shell stops the running job.
            elif command == "spark-submit":
                process.send_signal(signal.SIGINT)


@app.command("demo")
@with_groups
def demo_command(
    *,
    mix: DemoMixOptions,
    policies: Annotated[
        str,
        typer.Option(
            "--policies",
            help="spark-fifo, spark-fair, and policies of `parcae export` or service:POLICY.",
        ),
    ] = "spark-fair,spark-fifo,srpt,tuned",
    work: Annotated[
        Path,
        typer.Option(
            "--work", help="Event logs, results, pictures; a stopped run continues there."
        ),
    ] = Path("parcae-spark-demo"),
    spark_home: Home = None,
    as_json: JsonOption = False,
) -> None:
    """Run mixes of jobs on a local Spark under Spark's and Parcae's policies, and compare them.

    Example: parcae spark demo --seeds 3 --json
    """
    from parcae.spark.build import build_plugin
    from parcae.spark.demo import DemoConfig, run_demo
    from parcae.spark.home import find_spark

    names = tuple(names_in(policies))
    config = DemoConfig(
        names,
        mix.workload,
        mix.jobs,
        mix.cores,
        mix.arrivals,
        mix.seeds,
        mix.seed_start,
        mix.time_scale,
    )
    spark = find_spark(spark_home)
    result = run_demo(
        config, spark, build_plugin(spark), work, lambda line: typer.echo(line, err=True)
    )
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
        return
    _print_demo(mix, result)


def _print_demo(mix: DemoMixOptions, result: DemoResult) -> None:
    # Imported here, since JSON needs no tables.
    from parcae.cli.tables import print_rows
    from parcae.evaluation.statistics import with_interval
    from parcae.spark.demo import STOCK

    rows = []
    for name in result.runs:
        ratios = [
            with_interval(result.ratio(name, stock)) if stock in result.runs else ""
            for stock in STOCK
        ]
        average = f"{result.average(name).mean:.2f}"
        rows.append((name, average, *ratios, with_interval(result.makespan_ratio(name))))
    title = (
        f"Spark {result.spark_version}: {mix.jobs} jobs, {mix.arrivals}, {mix.cores} cores, "
        f"seeds {mix.seed_start}-{mix.seed_start + mix.seeds - 1}"
    )
    print_rows(
        title,
        ("policy", "average JCT", *(f"to {stock}" for stock in STOCK), "makespan to spark-fair"),
        rows,
    )
    typer.echo(f"Gantt charts of the first mix: {', '.join(map(str, result.pictures))}")


@app.command("fidelity")
@with_groups
def fidelity_command(
    *,
    mix: FidelityMixOptions,
    policies: Annotated[
        str,
        typer.Option(
            "--policies",
            help="Policies in the simulator and on Spark: fifo, fair, and others as in the demo.",
            callback=spark_policies_to_read,
        ),
    ] = "fifo,fair,srpt",
    work: Annotated[
        Path,
        typer.Option(
            "--work",
            help="Event logs, results; with several sizes, a stopped command continues there.",
        ),
    ] = Path("parcae-spark-fidelity"),
    spark_home: Home = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--page",
            help="With several sizes: write the table here, as Markdown.",
            callback=file_to_write,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run jobs on a local Spark and in the simulator, alone and together, and compare their times.

    Example: parcae spark fidelity --json

    With several numbers of cores, compare what `parcae size` says with what Spark takes:
    parcae spark fidelity --cores 8,16,24
    """
    from parcae.evaluation.sizing import parse_cores
    from parcae.spark.fidelity import FidelityConfig

    names = tuple(names_in(policies))
    cores = parse_cores(mix.cores)
    config = FidelityConfig(
        mix.workload,
        names,
        cores[0],
        mix.jobs,
        mix.arrivals,
        mix.seeds,
        mix.seed_start,
        mix.time_scale,
        mix.alone,
    )
    if len(cores) > 1:
        _hold_sizing(config, cores, work, spark_home, page, as_json)
        return
    if page is not None:
        raise ConfigError("--page is for several sizes, as in --cores 8,16,24")
    _hold_simulator(config, work, spark_home, as_json)


def _hold_simulator(
    config: FidelityConfig, work: Path, spark_home: Path | None, as_json: bool
) -> None:
    """Compare the simulator with Spark at one size, and print the errors."""
    from parcae.spark.build import build_plugin
    from parcae.spark.fidelity import run_fidelity
    from parcae.spark.home import find_spark

    spark = find_spark(spark_home)
    result = run_fidelity(
        config, spark, build_plugin(spark), work, lambda line: typer.echo(line, err=True)
    )
    report = result.to_json()
    if as_json:
        typer.echo(json.dumps(report, indent=2))
        return
    from parcae.cli.tables import print_rows

    parts = {
        "alone": report["alone"],
        **{f"shared, {name}": part for name, part in report["shared"].items()},
    }
    rows = [
        (
            name,
            str(part["num_jobs"]),
            *(f"{part[k]:.1%}" for k in ("mean_error", "p95_error", "mean_signed_error")),
        )
        for name, part in parts.items()
    ]
    print_rows(
        f"Simulator against Spark {result.spark_version}, {config.cores} cores",
        ("", "jobs", "mean error", "p95", "signed"),
        rows,
    )
    typer.echo(f"picture: {result.picture}")


def _hold_sizing(
    config: FidelityConfig,
    cores: tuple[int, ...],
    work: Path,
    spark_home: Path | None,
    page: Path | None,
    as_json: bool,
) -> None:
    """Compare `parcae size` with Spark at several sizes, and print and write the errors."""
    import shlex
    import sys

    from parcae.base.files import write_text
    from parcae.cli.tables import print_rows
    from parcae.spark.build import build_plugin
    from parcae.spark.home import find_spark
    from parcae.spark.sizing_fidelity import run_sizing_fidelity
    from parcae.spark.sizing_fidelity_page import COLUMNS, page_text, rows, summary

    if config.alone is not None:
        raise ConfigError("--alone is for one size; with several, no job runs alone")
    spark = find_spark(spark_home)
    result = run_sizing_fidelity(
        config, cores, spark, build_plugin(spark), work, lambda line: typer.echo(line, err=True)
    )
    text = json.dumps(result.to_json(), indent=2)
    write_text(work / "sizing-fidelity.json", text + "\n")
    if page is not None:
        write_text(page, page_text(result, shlex.join(["parcae", *sys.argv[1:]])))
    if as_json:
        typer.echo(text)
        return
    headings = [heading.replace("`", "") for heading in COLUMNS]
    print_rows(f"parcae size against Spark {result.spark_version}", headings, rows(result))
    typer.echo(summary(result))
    typer.echo(f"JSON: {work / 'sizing-fidelity.json'}")
