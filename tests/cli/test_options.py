"""Options are made from fields of configs, alone or in groups, and commands are found by name."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from pydantic import BaseModel
from typer.testing import CliRunner

from parcae.base.options import argument, option, same
from parcae.cli.commands import command
from parcae.cli.table import COMMANDS, commands


class Size(BaseModel):
    """Two options, and a field that is none."""

    jobs: int = option(20, "How many jobs.", ge=1)
    name: str | None = option(None, "A name.", "--called")
    hidden: int = 3


class Larger(Size):
    """A group that adds options to another one."""

    cores: int = option(4, "Cores.")
    wait_ms: int = option(1_500, "A time.", "--wait", ge=1, check="ms")
    most: int | None = same(Size, "jobs", unset=True)


def _run(function: object, *words: str) -> str:
    app = typer.Typer()
    app.command()(command()(function))  # type: ignore[arg-type]
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    return f"{done.exception or ''}{done.output}"


def show(
    size: Larger,
    workload: str = argument("The jobs."),
    as_json: bool = option(False, "As JSON.", "--json"),
) -> None:
    """Print what was given."""
    typer.echo(f"{workload} {size.jobs} {size.name} {size.cores} {size.wait_ms} {as_json}")


def test_the_fields_of_a_group_are_options_with_their_defaults() -> None:
    assert _run(show, "tpch") == "tpch 20 None 4 1500 False\n"
    words = ["tpch", "--cores", "8", "--called", "x", "--json", "--jobs", "3", "--wait", "2s"]
    assert _run(show, *words) == "tpch 3 x 8 2000 True\n"


def test_options_are_checked_and_explained() -> None:
    assert "'--jobs': Input should be greater" in _run(show, "tpch", "--jobs", "0")
    assert "--wait: Input should be greater than or equal to 1" in _run(
        show, "tpch", "--wait", "0s"
    )
    assert "--wait x: write a time" in _run(show, "tpch", "--wait", "x")
    page = _run(show, "--help")
    assert "How many jobs. (default: 20)" in page
    assert "1.5s" in page
    assert "hidden" not in page


def test_two_options_of_one_name_are_refused() -> None:
    def twice(size: Size, jobs: int = option(1, "Again.")) -> None:
        """Not to be."""

    with pytest.raises(TypeError, match="two options called jobs"):
        command()(twice)


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from parcae.cli.main import app; "
        "assert CliRunner().invoke(app, ['bench', '--help']).exit_code == 0; "
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "parcae.cli.table" in loaded
    assert not {"parcae.cli.bench", "parcae.cli.commands"} & loaded
    assert not {"torch", "matplotlib", "numba"} & loaded


def test_every_name_is_that_of_a_command_with_a_help_in_few_words() -> None:
    assert set(COMMANDS) <= set(commands())
    for name, (_, words) in commands().items():
        assert words.endswith("."), name
        assert len(words) <= 60, name
