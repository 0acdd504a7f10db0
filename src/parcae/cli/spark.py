"""`parcae spark`: commands for Apache Spark with Parcae's plugin."""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import typer
from rich.text import Text

from parcae.base.errors import ConfigError
from parcae.base.files import interruptions_wait
from parcae.base.options import option, same
from parcae.cli.commands import command
from parcae.cli.options import JSON, Options
from parcae.cli.tables import new_console, print_json
from parcae.spark.doctor import Check, CheckResult, CheckTarget, examine
from parcae.spark.home import find_spark
from parcae.spark.jar import find_jar
from parcae.spark.kubernetes import (
    MOST_IN_NAME,
    MOST_IN_NAMESPACE,
    application_block,
    check_name,
    secret_manifest,
)
from parcae.spark.launch import (
    SECRET,
    PluginSettings,
    Where,
    environment,
    is_local,
    needed_secret,
    spark_arguments,
)

HOME = same(CheckTarget, "spark_home")
#: The exit code of the doctor if something is wrong.
_EXIT_WRONG = 1
_STYLES = {"ok": "green", "warning": "yellow", "wrong": "bold red"}


class PluginOptions(Options):
    """Which orders the plugin follows, and where they come from."""

    policy: Path | None = same(PluginSettings, "policy")
    service: str | None = same(PluginSettings, "service")
    secret_file: Path | None = same(PluginSettings, "secret_file")
    tls_ca: Path | None = same(PluginSettings, "tls_ca")
    job_key: str | None = same(PluginSettings, "job_key")
    fallback_executors: int | None = same(PluginSettings, "fallback_executors")

    def files(self) -> Iterator[tuple[str, Path, str]]:
        """The files: how each is given, its path, and what to do if it cannot be read."""
        for flag, path, advice in (
            ("--policy", self.policy, "`parcae export` writes policy files"),
            ("--secret-file", self.secret_file, "give the file of the service's secret"),
            ("--tls-ca", self.tls_ca, "give a file of certificates (PEM)"),
        ):
            if path is not None:
                yield flag, path, advice

    def check_files(self) -> None:
        """Check that the files can be read on this machine."""
        for flag, path, advice in self.files():
            try:
                with path.open("rb") as file:
                    file.read(1)
            except OSError as error:
                raise ConfigError(f"{flag} {path}: {error.strerror}; {advice}") from error

    def settings(self, jar: Path) -> PluginSettings:
        """The plugin's settings."""
        return PluginSettings(jar, **dict(self))


class PrintOptions(Options):
    """What `conf` prints."""

    where: Where = option(
        Where.CLIENT,
        "Where the driver runs: client | yarn-cluster (YARN copies jar and files) | "
        "kubernetes-cluster (see `parcae spark kubernetes`).",
    )
    properties: bool = option(False, "Lines for spark-defaults.conf.", "--properties")


class Form(StrEnum):
    """What `kubernetes` prints: the Secret, or settings in one of the forms that they are set."""

    SECRET = "secret"
    CONF = "conf"
    PROPERTIES = "properties"
    V1BETA2 = "v1beta2"
    V1 = "v1"


class SecretOptions(Options):
    """The Secret, and what is printed of it."""

    name: str = option(SECRET, "Name of the Secret.")
    namespace: str = option("default", "Its namespace, which is the driver's.")
    form: Form = option(
        Form.SECRET,
        "secret (JSON for kubectl) | conf (for spark-submit) | properties (for "
        "spark-defaults.conf) | v1beta2 (SparkApplication of Kubeflow's operator) | v1 (of "
        "Spark's own).",
        "--as",
    )


@command()
def jar(spark_home: Path | None = HOME) -> None:
    """Print the path of the plugin's jar for your Spark. It needs no JDK.

    Example: parcae spark jar
    """
    typer.echo(find_jar(find_spark(spark_home)))


@command()
def conf(
    plugin: PluginOptions,
    printed: PrintOptions,
    spark_home: Path | None = HOME,
) -> None:
    """Print the settings that turn the plugin on, to paste after spark-submit.

    Example: parcae spark conf --service 127.0.0.1:7177
    """
    # The settings may be for a driver on another machine.
    try:
        plugin.check_files()
    except ConfigError as error:
        typer.echo(f"warning: {error}", err=True)
    settings = plugin.settings(find_jar(find_spark(spark_home)))
    _print(settings.conf(printed.where), are_properties=printed.properties)


def _print(conf: dict[str, str], *, are_properties: bool) -> None:
    for name, value in conf.items():
        line = f"{name} {value}" if are_properties else f"--conf {shlex.quote(f'{name}={value}')}"
        typer.echo(line)


@command()
def kubernetes(
    plugin: PluginOptions, secret: SecretOptions, spark_home: Path | None = HOME
) -> None:
    """Print the Secret that brings jar and files to a driver's pod, or (--as) the settings for it.

    The driver's image need not be changed. Pipe the Secret into `kubectl apply --server-side -f -`:
    without --server-side, kubectl refuses one so large.

    Example: parcae spark kubernetes --policy policy.json --namespace spark
    """
    check_name("--name", secret.name, MOST_IN_NAME)
    check_name("--namespace", secret.namespace, MOST_IN_NAMESPACE)
    plugin.check_files()
    settings = plugin.settings(find_jar(find_spark(spark_home)))
    if secret.form is Form.SECRET:
        typer.echo(secret_manifest(settings.contents(), secret.name, secret.namespace))
        return
    conf = settings.conf(Where.KUBERNETES_CLUSTER, secret.name)
    if secret.form in (Form.V1BETA2, Form.V1):
        is_kubeflow = secret.form is Form.V1BETA2
        typer.echo(application_block(conf, secret.name, is_kubeflow=is_kubeflow))
    else:
        _print(conf, are_properties=secret.form is Form.PROPERTIES)


# Options that Parcae does not know are passed on to spark-submit.
@command(allow_extra_args=True, ignore_unknown_options=True)
def submit(
    context: typer.Context,
    plugin: PluginOptions,
    command: str = option(
        "spark-submit",
        "spark-submit, or for interactive work pyspark, spark-shell or spark-sql.",
    ),
    spark_home: Path | None = HOME,
) -> None:
    """Run spark-submit with the plugin; arguments after -- are for spark-submit.

    Example: parcae spark submit --policy policy.json -- --master local[4] my_application.py
    """
    if command not in ("spark-submit", "pyspark", "spark-shell", "spark-sql"):
        raise ConfigError(
            f"--command is {command!r}; use spark-submit, pyspark, spark-shell or spark-sql"
        )
    plugin.check_files()
    spark = find_spark(spark_home)
    settings = plugin.settings(find_jar(spark))
    given = context.args
    # A first -- separates Spark's arguments from ours; later ones belong to the application.
    if given and given[0] == "--":
        given = given[1:]
    arguments = spark_arguments(settings, given, spark)
    variables = environment(spark.path, is_local=is_local(given, spark))
    if needed := needed_secret(given, spark):
        files = [word for flag, path, _ in plugin.files() for word in (flag, str(path))]
        home = ["--spark-home", str(spark_home)] if spark_home else []
        name, namespace = needed
        words = shlex.join([*files, *home, "--name", name, "--namespace", namespace])
        typer.echo(
            f"the driver's pod waits for the Secret {name} with these files; if it is not there: "
            f"parcae spark kubernetes {words} | kubectl apply --server-side -f -",
            err=True,
        )
    process: subprocess.Popen[bytes] | None = None
    # Ctrl-C must not end this process before Spark has ended.
    while True:
        try:
            if process is None:
                with interruptions_wait():  # or Spark would go on without this process
                    process = subprocess.Popen(
                        [str(spark.command(command)), *arguments], env=variables
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


@command()
def doctor(target: CheckTarget, as_json: bool = JSON) -> None:
    """Check your Spark, the plugin's jar, its settings, a policy file and a service.

    Prints one line per check: ok, warning or wrong, what was found, and what to do. The exit code
    is 1 if something is wrong.

    Example: parcae spark doctor --policy policy.json --run
    """
    checks = []
    console = new_console(soft_wrap=True)
    for check in examine(target):
        checks.append(check)
        if not as_json:
            console.print(_line(check))
    is_wrong = any(check.state is CheckResult.WRONG for check in checks)
    if as_json:
        print_json({"is_right": not is_wrong, "checks": checks})
    if is_wrong:
        raise typer.Exit(_EXIT_WRONG)


def _line(check: Check) -> Text:
    line = Text.assemble((f"{check.state:<8}", _STYLES[check.state]), f"{check.name}: ")
    line.append(check.text)
    if check.advice:
        line.append(f"; {check.advice}", style="bold")
    return line
