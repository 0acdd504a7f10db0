"""What packages add to Parcae, by entry points, and objects that are named `module:attribute`.

A package adds rows of its own to the tables of Parcae by an entry point of the group `parcae`:

    [project.entry-points.parcae]
    mine = "my_package:EXTENSION"

`parcae.decima`, `parcae.rigid`, `parcae.environments` and `parcae.papers` do the same.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from parcae.base.errors import ConfigError, InputError, MissingExtraError

#: By the name of a module: the extra that brings it (`pip install 'parcae-scheduler[EXTRA]'`).
EXTRA_OF: Mapping[str, str] = MappingProxyType(
    {
        "cma": "learn",
        "tensorboard": "train",
        "torch": "train",
        "jinja2": "report",
        "matplotlib": "report",
        "gymnasium": "rl",
        "sb3_contrib": "rl",
        "stable_baselines3": "rl",
        "ray": "ray",
        "fsspec": "urls",
        "pyspark": "spark",
    }
)


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """The error that names the extra of a module that is not installed; None for other modules."""
    module = (error.name or "").partition(".")[0]
    return _missing(module) if module in EXTRA_OF else None


def _missing(module: str) -> MissingExtraError:
    advice = f"pip install 'parcae-scheduler[{EXTRA_OF[module]}]'"
    if module == "torch":
        advice += (
            " (5 GB; for CPUs, a tenth, first "
            "pip install torch --index-url https://download.pytorch.org/whl/cpu)"
        )
    return MissingExtraError(f"this needs {module}, which is not installed: {advice}")


def require(*modules: str) -> None:
    """Check that libraries are installed, before long work that ends with their use."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise _missing(module)


@contextmanager
def naming_extras() -> Iterator[None]:
    """Within this context, a missing library is reported with the extra that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        raise missing from error


GROUP = "parcae"
_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class Extension:
    """What a package adds.

    Each table is given as its rows, or as "module:attribute" of them, which is imported when the
    table is first read: `parcae --help` then costs nothing.

    Args:
        policies: rows of `parcae.policies.registry.PolicyEntry`.
        checkpoints: rows of `parcae.policies.registry.CheckpointKind`.
        learners: rows of `parcae.learning.registry.LearnerEntry`.
        readers: rows of `parcae.workloads.readers.Reader`.
        objectives: pairs of a name and a function of `parcae.simulation.objectives.FinishedJobs`.
        worlds: rows of `parcae.learning.registry.LearningWorld`.
        commands: by words of a command of `parcae`: "module:function", and what it does. Words such
            as "simulate --world rigid" are those of a world with options of its own.
    """

    policies: Iterable[Any] | str = ()
    checkpoints: Iterable[Any] | str = ()
    learners: Iterable[Any] | str = ()
    readers: Iterable[Any] | str = ()
    objectives: Iterable[tuple[str, Any]] | str = ()
    worlds: Iterable[Any] | str = ()
    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@cache
def extensions() -> Mapping[str, Extension]:
    """The extensions of all installed packages, in the order of their names, by what brings them.

    Example: one is called "rigid (parcae.rigid.extension:EXTENSION)".
    """
    found = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            extension = point.load()
        except Exception as error:  # the package may raise anything
            raise ConfigError(
                f"the extension {point.name!r} ({point.value}) cannot be loaded: "
                f"{type(error).__name__}: {error}; repair or uninstall the package that brings it"
            ) from error
        if not isinstance(extension, Extension):
            raise ConfigError(
                f"the extension {point.name!r} ({point.value}) is {extension!r}: it must be a "
                "parcae.base.extensions.Extension"
            )
        found[f"{point.name} ({point.value})"] = extension
    return found


def rows(table: str) -> Iterator[Any]:
    """The rows that all extensions add to a table, which a field of `Extension` names."""
    return (row for _, row in owned_rows(table))


def owned_rows(table: str) -> Iterator[tuple[str, Any]]:
    """The same, each with what brings it."""
    for owner, extension in extensions().items():
        value = getattr(extension, table)
        for row in load(value, f"the table of {table}") if isinstance(value, str) else value:
            yield owner, row


def is_reference(text: str) -> bool:
    """Whether a text can be the name of an object in a module.

    Example: "my_module:MyPolicy" can, and "weighted-fair:-1" cannot.
    """
    return _REFERENCE.fullmatch(text) is not None


def is_importable(module: str) -> bool:
    """Whether there is a module of this name, installed or in the current folder."""
    folder = str(Path.cwd())
    # At the end, so that no file of the folder hides an installed module.
    if not {"", folder} & set(sys.path):
        sys.path.append(folder)
    return find_spec(module.partition(".")[0]) is not None


def load(reference: str, what: str) -> Any:
    """The object that "module:attribute" names; `what` it should be is for error messages.

    Raises:
        ConfigError: there is no such module or attribute, or the module cannot be imported.
    """
    name, _, path = reference.partition(":")
    if not is_importable(name):
        raise ConfigError(
            f"{what} {reference!r}: there is no module {name!r}, neither installed nor in the "
            "current folder"
        )
    try:
        value: Any = import_module(name)
    except (InputError, ModuleNotFoundError):
        # A library that is missing is named with the extra that brings it.
        raise
    except Exception as error:  # the module may raise anything
        raise ConfigError(
            f"{what} {reference!r}: module {name!r} cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    for part in path.split("."):
        if not hasattr(value, part):
            place = getattr(value, "__file__", None) or name
            raise ConfigError(f"{what} {reference!r}: there is no {part!r} in {place}")
        value = getattr(value, part)
    return value


def import_function(reference: Any) -> Any:
    """The function of a row, which may be given as "module:attribute"."""
    return load(reference, "function") if isinstance(reference, str) else reference
