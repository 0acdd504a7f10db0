"""Commands: found by name, imported when they run, with options made from fields of configs.

A parameter of a command is an option or an argument (`parcae.base.options`), or a group of them: a
model or dataclass of pydantic, each such field of which is an option of its own.

Example:
    class Size(BaseModel):
        jobs: int = option(20, "Number of jobs.", ge=1)

    @command()
    def show(size: Size, as_json: bool = JSON) -> None:  # --jobs 20 --json
        ...
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import EnumType
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from parcae.base.errors import ConfigError, problem
from parcae.base.texts import MS_PER_S
from parcae.cli.checks import CHECKS, no_new_folders, path_parser

Values = Mapping[str, Any]
#: Bounds of fields, as Typer calls them.
_BOUNDS = (("ge", "min"), ("le", "max"))


@dataclass(frozen=True)
class Only:
    """Options that have an effect only together with certain other choices."""

    options: tuple[str, ...]
    applies: Callable[[Values], bool]
    when: str


def command(*rules: Only, **settings: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator of commands: makes their options, and refuses those that would have no effect.

    An option that keeps its default is never refused. `settings` are those of Typer's context.

    Example: with `Only(("set_id",), lambda given: given["job_set"] is not None, "with --job-set")`,
    `parcae simulate toy --set a` ends with "--set has no effect here: it applies only with
    --job-set; leave it out".
    """

    def decorated(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function)
        groups: dict[str, list[str]] = {}
        found: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(function).parameters.items():
            made = list(_parameters(name, hints[name], parameter.default))
            if _is_group(hints[name]):
                groups[name] = [one.name for one in made]
            found += made
        names = [one.name for one in found]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise TypeError(f"{function.__name__} has two options called {twice}")

        @functools.wraps(function)
        def run(_context: typer.Context, **values: Any) -> None:
            check_options(_context, values, rules)
            folders = no_new_folders(dict(values))
            values |= {name: _context for name, hint in hints.items() if hint is typer.Context}
            with folders:
                try:
                    for name, fields in groups.items():
                        values[name] = hints[name](**{field: values.pop(field) for field in fields})
                    function(**values)
                except ValidationError as error:
                    raise _in_options(error, _context) from error

        parameters = [*found, _parameter("_context", typer.Context)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.settings = settings  # type: ignore[attr-defined]
        del run.__wrapped__
        return run

    return decorated


def made(name: str, function: Any) -> Any:
    """The command of a function, or that of a Typer application."""
    app = function
    if not isinstance(function, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode="rich")
        app.command(name, context_settings=getattr(function, "settings", None))(function)
    return typer.main.get_command(app)


def _in_options(error: ValidationError, context: typer.Context) -> ConfigError:
    """The error for a config that pydantic refused, with options in place of its settings."""
    flags = _flags(context)
    problems = []
    for one in error.errors():
        name = str(one["loc"][0]) if one["loc"] else ""
        # Options are called like the settings, or like these without the words for their number.
        flag = flags.get(name) or flags.get(name.removeprefix("num_")) or name
        problems.append(f"{flag}: {problem(one)}" if flag else problem(one))
    return ConfigError("; ".join(problems))


def _flags(context: typer.Context) -> dict[str | None, str]:
    """How the options of a command are written, by their names."""
    return {one.name: max(one.opts, key=len) for one in context.command.params}


def check_options(context: typer.Context, values: Values, rules: tuple[Only, ...]) -> None:
    """Check a command line against rules."""
    flags = _flags(context)
    for rule in rules:
        for name in rule.options:
            source = context.get_parameter_source(name)
            is_given = source is not None and source.name == "COMMANDLINE"
            if is_given and not rule.applies(values):
                raise ConfigError(
                    f"{flags[name]} has no effect here: it applies only {rule.when}; leave it out"
                )


def _is_group(hint: Any) -> bool:
    return inspect.isclass(hint) and hasattr(hint, "model_fields")


def _parameters(name: str, hint: Any, default: Any) -> Iterator[inspect.Parameter]:
    """The options of a parameter of a command."""
    if _is_group(hint):
        for field, info in hint.model_fields.items():
            if info.json_schema_extra is not None:
                yield option_parameter(field, info.annotation, info)
    elif isinstance(default, FieldInfo):
        yield option_parameter(name, hint, default)
    elif hint is not typer.Context:
        raise TypeError(f"{name} is no option")


def option_parameter(name: str, hint: Any, info: FieldInfo) -> inspect.Parameter:
    """The parameter of a function that Typer makes an option or argument of."""
    extra: Any = info.json_schema_extra
    default: Any = info.default
    if default is PydanticUndefined:
        default = inspect.Parameter.empty
    bounds: dict[str, Any] = {}
    for one in info.metadata:
        bounds |= {typers: getattr(one, ours) for ours, typers in _BOUNDS if hasattr(one, ours)}
    check = extra["check"]
    if check == "ms":
        hint, default, bounds = str, f"{default / MS_PER_S:g}s", {}
    elif isinstance(hint, EnumType):
        hint, default = str, default.value
    elif hint in (float, float | None):
        check = "finite"
    shared = {"help": info.description, "metavar": extra["metavar"], "callback": CHECKS[check]}
    flags = extra.get("flags") or (f"--{name.replace('_', '-')}",)
    if Path in (hint, *get_args(hint)):
        is_argument = "argument" in extra
        called = extra["metavar"] or name.upper() if is_argument else max(flags, key=len)
        shared["parser"] = path_parser(called)
    if "argument" in extra:
        return _parameter(name, hint, typer.Argument(show_default=False, **shared), default)
    return _parameter(name, hint, _option(*flags, **bounds, **shared), default)


#: Typer's type would take a second flag for a default.
_option: Any = typer.Option


def _parameter(name: str, hint: Any, made: Any = None, default: Any = ...) -> inspect.Parameter:
    """A keyword-only parameter, so that those with a default may come first."""
    annotation = hint if made is None else Annotated[hint, made]
    kind = inspect.Parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if default is ... else default
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
