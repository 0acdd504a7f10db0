"""`parcae spark`: commands for Apache Spark with Parcae's plugin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parcae.base.errors import ConfigError
from parcae.cli.groups import with_groups

if TYPE_CHECKING:
    from parcae.spark.launch import PluginSettings

app = typer.Typer(help="Turn Parcae on in an Apache Spark.", no_args_is_help=True)

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
