"""Options that several commands share, taken by a command as one parameter.

A group is a frozen dataclass whose fields are annotated as Typer's options are. A command that is
decorated with `with_groups` may have parameters of such types; on the command line every field is
an option of its own.

Example:
    @dataclass(frozen=True)
    class Size:
        jobs: JobsOption = 20

    @with_groups
    def command(size: Size) -> None:  # --jobs 20
        ...
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for every field of the groups among its parameters."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, list[str]] = {}
    options: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        expanded = [parameter.replace(annotation=hints[name])]
        if dataclasses.is_dataclass(hints[name]):
            expanded = _options(hints[name])
            groups[name] = [option.name for option in expanded]
        options += expanded
    parameters = _by_name(options, command.__name__)

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, fields in groups.items():
            values[name] = hints[name](**{field: values.pop(field) for field in fields})
        command(**values)

    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: option.annotation for name, option in parameters.items()}
    del run.__wrapped__
    return run


def _by_name(options: list[inspect.Parameter], command: str) -> dict[str, inspect.Parameter]:
    """The options by name; all keyword-only, so that those with a default may come first."""
    parameters: dict[str, inspect.Parameter] = {}
    for option in options:
        if option.name in parameters:
            raise TypeError(f"{command} has two options called {option.name}")
        parameters[option.name] = option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    return parameters


def _options(group: Any) -> list[inspect.Parameter]:
    """The options of a group, as parameters with annotations and defaults."""
    hints = get_type_hints(group, include_extras=True)
    options = []
    for field in dataclasses.fields(group):
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        options.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=hints[field.name],
            )
        )
    return options
