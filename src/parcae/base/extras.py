"""Libraries that only some uses need, and the extra of the package that installs each of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from parcae.base.errors import MissingExtraError

#: By the name of a module: the extra that brings it (`pip install 'parcae-scheduler[EXTRA]'`).
EXTRA_OF: Mapping[str, str] = MappingProxyType(
    {
        "cma": "learn",
        "tensorboard": "train",
        "torch": "train",
        "jinja2": "report",
        "matplotlib": "report",
        "plotly": "report",
        "gymnasium": "rl",
        "sb3_contrib": "rl",
        "stable_baselines3": "rl",
        "ray": "ray",
        "pyspark": "spark",
    }
)


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """The error that names the extra of a module that is not installed; None for other modules."""
    module = (error.name or "").partition(".")[0]
    return _missing(module) if module in EXTRA_OF else None


def _missing(module: str) -> MissingExtraError:
    extra = EXTRA_OF[module]
    return MissingExtraError(
        f"this needs {module}, which is not installed: pip install 'parcae-scheduler[{extra}]'"
    )


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
