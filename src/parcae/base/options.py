"""Fields of configs that the command line can set: name, help, default and bounds in one place."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from pydantic_core import PydanticUndefined as REQUIRED

__all__ = ["REQUIRED", "argument", "option", "same"]


def option(
    default: Any,
    help: str,
    *flags: str,
    ge: float | None = None,
    le: float | None = None,
    check: str = "",
    metavar: str | None = None,
) -> Any:
    """A field that `parcae` offers as an option.

    Args:
        default: its default; REQUIRED for none.
        help: what the option is for.
        flags: how it is written; by default like the field, as in --max-bad-share.
        ge: its smallest value.
        le: its largest value.
        check: what the command line checks first: a key of `parcae.cli.checks.CHECKS`.
        metavar: what stands for its value in the help.
    """
    extra: Any = {"flags": flags, "check": check, "metavar": metavar}
    return Field(default, description=help, ge=ge, le=le, json_schema_extra=extra)


def argument(
    help: str, metavar: str | None = None, check: str = "", default: Any = REQUIRED
) -> Any:
    """A field that `parcae` takes as an argument; see `option`."""
    extra: Any = {"argument": True, "check": check, "metavar": metavar}
    return Field(default, description=help, json_schema_extra=extra)


def same(config: Any, name: str, default: Any = ..., unset: bool | str = False) -> Any:
    """An option with the help and the bounds of a config's field.

    Its default is that of the field, or another one. With `unset` it is None, and the help says
    which default then applies: that of the field, or the given text.
    """
    # A dataclass of pydantic has the one, a model of pydantic 2.6 the other.
    field = (getattr(config, "__pydantic_fields__", None) or config.model_fields)[name]
    extra: dict[str, Any] = field.json_schema_extra
    flags = extra["flags"]
    bounds: dict[str, Any] = {"check": extra["check"]}
    for one in field.metadata:
        bounds |= {key: getattr(one, key) for key in ("ge", "le") if hasattr(one, key)}
    help = str(field.description)
    if unset:
        applies = field.default if unset is True else unset
        return option(None, f"{help} (default: {applies})", *flags, **bounds)
    return option(field.default if default is ... else default, help, *flags, **bounds)
