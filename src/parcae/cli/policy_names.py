"""Options that name policies: their names, and the files that these names mention."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import typer

from parcae.cli.checks import file_to_read


def names_in(text: str) -> list[str]:
    """The names that an option gives, separated by commas, and perhaps by spaces too."""
    from parcae.base.errors import ConfigError

    names = [word.strip() for word in text.split(",")]
    if not all(names):
        raise ConfigError(
            f"{text!r} leaves a name empty: give at least one name, and separate names by single "
            "commas"
        )
    return names


def policies_to_read(
    context: typer.Context, option: typer.CallbackParam, text: str | None
) -> str | None:
    """Check that no option replaces a file of an option's policies; the callback of such
    options.
    """
    if text is not None:
        _check_files(context, option, names_in(text))
    return text


def policy_to_read(
    context: typer.Context, option: typer.CallbackParam, name: str | None
) -> str | None:
    """The same for one policy, whose path may have commas."""
    if name is not None:
        _check_files(context, option, [name])
    return name


def start_to_read(
    context: typer.Context, option: typer.CallbackParam, name: str | None
) -> str | None:
    """The same for what a search starts from, but it may go on in the file of a tuned rule."""
    if name is not None and not _is_tuned_rule(Path(name)):
        _check_files(context, option, [name])
    return name


def _is_tuned_rule(path: Path) -> bool:
    from parcae.policies.checkpoint import SUFFIX, read_checkpoint

    is_checkpoint = path.suffix == SUFFIX and path.is_file()
    return is_checkpoint and read_checkpoint(path).kind.endswith("rule")


def _check_files(context: typer.Context, option: typer.CallbackParam, names: Sequence[str]) -> None:
    from parcae.base.errors import PolicyError
    from parcae.evaluation.kept_runs import mentioned_files

    for name in names:
        # A wrong name is refused where its policy is made, which knows the world.
        with contextlib.suppress(PolicyError):
            file_to_read(context, option, mentioned_files([name]))
