"""Checks of options before a command begins: places of files, and options without an effect."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from parcae.cli.streams import outlive_readers

Values = Mapping[str, Any]

#: Key of a context's dictionary of the files that the command's arguments and options name.
_FILES = "parcae.base.files"
#: What stands before the workload of a mixture, as in mixed:0.5:mine.parcae.
_MIXTURE = re.compile(r"^(mixed:[^:]*:)+")


@dataclass(frozen=True)
class _Named:
    """A file that an argument or option names: by what path, and whether the command writes it."""

    option: str
    path: Path
    is_written: bool


def file_to_write(
    context: typer.Context, option: typer.CallbackParam, path: Path | None
) -> Path | None:
    """Check that an option's file can be written; the callback of such options."""
    from parcae.base.files import check_place

    if path is not None:
        outlive_readers()
        check_place(path)
        _refuse_replacing(context, option, path, is_written=True)
    return path


def file_to_read(context: typer.Context, option: typer.CallbackParam, given: Any) -> Any:
    """Check that no option of the command replaces a file that it reads; as a callback."""
    several = given if isinstance(given, list | tuple) else [] if given is None else [given]
    for path in (Path(_MIXTURE.sub("", str(one))) for one in several):
        if path.exists():
            _refuse_replacing(context, option, path, is_written=False)
    return given


def _refuse_replacing(
    context: typer.Context, option: typer.CallbackParam, path: Path, *, is_written: bool
) -> None:
    """Note that an argument or option names a file, and refuse it if that would replace the
    file.
    """
    from parcae.base.errors import ConfigError
    from parcae.base.files import is_written_to

    # Two outputs may well go to one device or pipe, one after the other.
    if is_written_to(path):
        return
    this = _Named(max(option.opts, key=len), path, is_written)
    other = context.meta.setdefault(_FILES, {}).setdefault(path.resolve(), this)
    if other.option == this.option or not (this.is_written or other.is_written):
        return
    if this.is_written and other.is_written:
        raise ConfigError(f"{other.option} and {this.option} both write {path}: give two files")
    writer = this if this.is_written else other
    raise ConfigError(
        f"{writer.option} {writer.path} would replace what the command reads: give another file"
    )


def finite(option: typer.CallbackParam, number: float | None) -> float | None:
    """Check that an option is a finite number; the callback of options with numbers."""
    from parcae.base.errors import ConfigError

    if number is not None and not math.isfinite(number):
        flag = max(option.opts, key=len)
        raise ConfigError(f"{flag} {number:g} is no finite number: give a number, such as 1.5")
    return number


def report_to_write(
    context: typer.Context, option: typer.CallbackParam, path: Path | None
) -> Path | None:
    """Check that an option's page with charts can be written; the callback of such options."""
    return _drawn_to_write(context, option, path, "plotly")


def _drawn_to_write(
    context: typer.Context, option: typer.CallbackParam, path: Path | None, library: str
) -> Path | None:
    """Check that an option's file can be written, and that the library that draws it is there."""
    from parcae.base.extras import require

    if file_to_write(context, option, path) is not None:
        require(library)
    return path


def picture_to_write(
    context: typer.Context, option: typer.CallbackParam, path: Path | None
) -> Path | None:
    """Check that an option's picture can be written; the callback of such options."""
    return _drawn_to_write(context, option, path, "matplotlib")


def chart_to_write(
    context: typer.Context, option: typer.CallbackParam, path: Path | None
) -> Path | None:
    """Check that an option's Gantt chart, page or picture, can be written; as a callback."""
    from parcae.evaluation.gantt import chart_format

    if path is None:
        return None
    check = report_to_write if chart_format(path) == "html" else picture_to_write
    return check(context, option, path)


def folder_to_write(path: Path | None) -> Path | None:
    """Check that files can be written in an option's folder, which may not exist yet."""
    from parcae.base.files import check_folder

    if path is not None:
        outlive_readers()
        check_folder(path)
    return path


def checkpoint_to_write(context: typer.Context, option: typer.CallbackParam, path: Path) -> Path:
    """Check that an option's checkpoint can be written and then named; as a callback."""
    from parcae.evaluation.policies import check_named

    file_to_write(context, option, path)
    check_named(path)
    return path


def policies_to_write(path: Path) -> Path:
    """Check that policies can be written in an option's folder and then named; as a callback."""
    from parcae.evaluation.policies import check_named
    from parcae.learning.loop import BEST_FILE

    folder_to_write(path)
    check_named(path / BEST_FILE)
    return path


def training_to_write(context: typer.Context, option: typer.CallbackParam, path: Path) -> Path:
    """Check that a training can be written into a folder; the callback of such options."""
    from parcae.base.extras import require
    from parcae.learning.loop import BEST_FILE

    require("torch", "tensorboard")
    policies_to_write(path)
    _refuse_replacing(context, option, path / BEST_FILE, is_written=True)
    return path


@dataclass(frozen=True)
class Only:
    """Options that have an effect only together with certain other choices."""

    options: tuple[str, ...]
    applies: Callable[[Values], bool]
    when: str


def refusing(*rules: Only) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator of commands: options that were given but would have no effect are refused.

    An option that keeps its default is never refused. It is the outermost decorator of a command.

    Example: with `Only(("set_id",), lambda given: given["job_set"] is not None, "with --job-set")`,
    `parcae simulate toy --set a` ends with "--set has no effect here: it applies only with
    --job-set; leave it out".
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)

        @functools.wraps(command)
        def run(_context: typer.Context, **values: Any) -> None:
            check_options(_context, values, rules)
            command(**values)

        context = inspect.Parameter(
            "_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
        )
        parameters = [*signature.parameters.values(), context]
        kept = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        run.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]
        hints = getattr(command, "__annotations__", {})
        run.__annotations__ = {**hints, "_context": typer.Context}
        del run.__wrapped__
        return run

    return decorated


def check_options(context: typer.Context, values: Values, rules: tuple[Only, ...]) -> None:
    """Check a command line against rules."""
    from parcae.base.errors import ConfigError

    flags = {one.name: max(one.opts, key=len) for one in context.command.params}
    for rule in rules:
        for name in rule.options:
            source = context.get_parameter_source(name)
            is_given = source is not None and source.name == "COMMANDLINE"
            if is_given and not rule.applies(values):
                raise ConfigError(
                    f"{flags[name]} has no effect here: it applies only {rule.when}; leave it out"
                )
