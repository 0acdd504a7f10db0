"""`parcae spark jar` and `parcae spark doctor`: find the plugin's jar and check an installation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parcae.base.errors import ConfigError
from parcae.cli.options import JsonOption

if TYPE_CHECKING:
    from rich.text import Text

    from parcae.spark.doctor import Check

Home = Annotated[
    Path | None,
    typer.Option(
        "--spark",
        "--spark-home",
        help="Which Spark; else SPARK_HOME, this Python's PySpark, or that of the PATH.",
    ),
]
Service = Annotated[str | None, typer.Option("--service", help="HOST:PORT of `parcae serve`.")]
Secret = Annotated[Path | None, typer.Option("--secret-file", help="What the service asks for.")]
Trust = Annotated[
    Path | None,
    typer.Option("--tls-ca", help="Certificates (PEM) that the service's must be signed by."),
]
Run = Annotated[bool, typer.Option("--run", help="Run a query in a local Spark with the plugin.")]
#: The exit code of the doctor if something is wrong.
_EXIT_WRONG = 1
_STYLES = {"ok": "green", "warning": "yellow", "wrong": "bold red"}


def register(app: typer.Typer) -> None:
    """Add the commands to `parcae spark`."""
    app.command("jar")(jar_command)
    app.command("doctor")(doctor_command)


def jar_command(spark_home: Home = None) -> None:
    """Print the path of the plugin's jar for your Spark. It needs no JDK.

    Example: parcae spark jar
    """
    from parcae.spark.build import find_jar
    from parcae.spark.home import find_spark

    spark = find_spark(spark_home)
    jar = find_jar(spark)
    if jar is None:
        raise ConfigError(
            f"this Parcae has no jar for Spark {spark.version} (Scala {spark.scala}): install a "
            "wheel that has it (`make dist` builds one), or compile it with `parcae spark build`, "
            "which needs a JDK"
        )
    typer.echo(jar)


def doctor_command(
    spark_home: Home = None,
    policy: Annotated[Path | None, typer.Option("--policy", help="A policy file.")] = None,
    service: Service = None,
    secret_file: Secret = None,
    tls_ca: Trust = None,
    run: Run = False,
    as_json: JsonOption = False,
) -> None:
    """Check your Spark, the plugin's jar, its settings, a policy file and a service.

    Prints one line per check: ok, warning or wrong, what was found, and what to do. The exit code
    is 1 if something is wrong.

    Example: parcae spark doctor --policy policy.json --run
    """
    from parcae.cli.consoles import new_console
    from parcae.spark.doctor import State, Target, examine

    checks = []
    console = new_console(soft_wrap=True)
    target = Target(spark_home, policy, service, secret_file, tls_ca, run)
    for check in examine(target):
        checks.append(check)
        if not as_json:
            console.print(_line(check))
    is_wrong = any(check.state is State.WRONG for check in checks)
    if as_json:
        report = {"is_right": not is_wrong, "checks": [check.to_json() for check in checks]}
        typer.echo(json.dumps(report, indent=2))
    if is_wrong:
        raise typer.Exit(_EXIT_WRONG)


def _line(check: Check) -> Text:
    from rich.text import Text

    line = Text.assemble((f"{check.state:<8}", _STYLES[check.state]), f"{check.name}: ")
    line.append(check.text)
    if check.advice:
        line.append(f"; {check.advice}", style="bold")
    return line
