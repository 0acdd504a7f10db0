"""Options in groups: every field of a group is an option of the command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from parcae.cli.groups import with_groups


@dataclass(frozen=True)
class Size:
    """Two options."""

    jobs: Annotated[int, typer.Option("--jobs", min=1, help="How many jobs.")] = 20
    name: Annotated[str | None, typer.Option("--name")] = None


@dataclass(frozen=True)
class Larger(Size):
    """A group that adds an option to another one."""

    cores: Annotated[int, typer.Option("--cores")] = 4


def _app(command: object) -> typer.Typer:
    app = typer.Typer()
    app.command()(with_groups(command))  # type: ignore[arg-type]
    return app


def show(
    workload: Annotated[str, typer.Argument()],
    *,
    size: Larger,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Print what was given."""
    typer.echo(f"{workload} {size.jobs} {size.name} {size.cores} {as_json}")


def test_the_fields_of_a_group_are_options_with_their_defaults() -> None:
    app = _app(show)
    assert CliRunner().invoke(app, ["tpch"]).output == "tpch 20 None 4 False\n"
    words = ["tpch", "--cores", "8", "--name", "x", "--json", "--jobs", "3"]
    assert CliRunner().invoke(app, words).output == "tpch 3 x 8 True\n"


def test_options_of_a_group_are_checked_and_explained_like_others() -> None:
    app = _app(show)
    assert CliRunner().invoke(app, ["tpch", "--jobs", "0"]).exit_code == 2
    page = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert "Print what was given." in page
    assert "How many jobs." in page


def test_two_options_of_one_name_are_refused() -> None:
    def twice(size: Size, jobs: int = 1) -> None:
        """Not to be."""

    with pytest.raises(TypeError, match="two options called jobs"):
        with_groups(twice)
