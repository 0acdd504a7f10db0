"""Kernels that are chosen by the type of a policy, and what compiled code depends on."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numba.core import types
from numba.core.types.containers import BaseNamedTuple, BaseTuple

_PACKAGE = Path(__file__).parents[2]
_IMPORT = re.compile(r"^[ \t]*from (parcae[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
#: The files of the kernels that belong to a type.
_files: dict[type, set[Path]] = {}


class ByType:
    """A kernel for each type of its last argument, which is a named tuple: the policy's tables.

    Kernels and Python call it as they call a kernel.

    Args:
        name: what the kernels do, for messages.
        otherwise: returns the kernel for a type that has none; None: there must be one.

    Example:
        @plan.of(Oldest)
        @kernel
        def plan_by_age(view, orders, policy): ...
    """

    #: Numba asks it of the kernels that it compiles.
    is_compiling = False

    def __init__(self, name: str, otherwise: Callable[[type], Any] | None = None) -> None:
        self.__name__ = name
        self._kernels: dict[type, Any] = {}
        self._otherwise = otherwise or self._refuse
        #: How Numba sees it.
        self._numba_type_ = types.Dispatcher(self)  # type: ignore[type-var]

    def of(self, owner: type) -> Callable[[Any], Any]:
        """Register the kernel below this line for a type."""

        def register(kernel: Any) -> Any:
            function = getattr(kernel, "py_func", kernel)
            _files.setdefault(owner, set()).add(Path(function.__code__.co_filename))
            self._kernels[owner] = kernel
            return kernel

        return register

    def __contains__(self, owner: type) -> bool:
        return owner in self._kernels

    def kernel_of(self, owner: type) -> Any:
        """Return the kernel for a type."""
        return self._kernels[owner] if owner in self else self._otherwise(owner)

    def _refuse(self, owner: type) -> Any:
        raise TypeError(
            f"{owner.__name__} has no kernel to {self.__name__}: register one with "
            f"@{self.__name__}.of({owner.__name__})"
        )

    def __call__(self, *args: Any) -> Any:
        return self.kernel_of(type(args[-1]))(*args)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return the type of a call from a kernel, for Numba."""
        return self.kernel_of(_owner(args[-1])).get_call_template(args, kws)

    def get_overload(self, sig: Any) -> Any:
        """Return what stands for the code of a call from a kernel, for Numba."""
        return self.kernel_of(_owner(getattr(sig, "args", sig)[-1])).get_overload(sig)


def _owner(compiled: Any) -> type:
    """The class of a named tuple that Numba knows; of other types, Numba's own class."""
    owner: type = getattr(compiled, "instance_class", type(compiled))
    return owner


class KeyedByContent:
    """Numba's cache of one kernel, which also depends on the kernels that its arguments choose.

    The key holds no class: another program may be unable to import it.
    """

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        owners = list(_owners(getattr(sig, "args", sig)))
        names = [f"{owner.__module__}.{owner.__qualname__}" for owner in owners]
        files = sorted(file for owner in owners for file in _files.get(owner, ()))
        text = "\0".join([str(sig), *names, *map(digest_of, files)])
        rest: tuple[Any, ...] = super()._index_key(sig, codegen)[1:]  # type: ignore[misc]
        return hashlib.sha256(text.encode()).hexdigest(), *rest


def _owners(kinds: Any) -> Iterator[type]:
    """The classes of all named tuples in some types."""
    for kind in kinds:
        if isinstance(kind, BaseNamedTuple):
            yield kind.instance_class
        if isinstance(kind, BaseTuple):
            yield from _owners(kind)


@functools.cache
def _imported(path: Path) -> list[Path]:
    """Return the files of Parcae's modules that a module imports."""
    found = []
    for module, names in _IMPORT.findall(path.read_text()):
        place = _PACKAGE.joinpath(*module.split(".")[1:])
        members = [place / name.split()[0] for name in names.strip("()").split(",") if name.strip()]
        for candidate in [place, *members]:
            found += [
                file
                for file in (candidate.with_suffix(".py"), candidate / "__init__.py")
                if file.is_file()
            ]
    return found


def place_of(path: Path) -> str:
    """Return the path below the package; of a module from elsewhere, the whole path."""
    return str(path.relative_to(_PACKAGE) if path.is_relative_to(_PACKAGE) else path)


@functools.cache
def digest_of(path: Path) -> str:
    """Return a digest of a module's text and of all modules of Parcae that it imports."""
    seen: set[Path] = set()
    pending = [path]
    while pending:
        file = pending.pop()
        if file not in seen:
            seen.add(file)
            pending.extend(_imported(file))
    texts = [f"{place_of(file)}\0{file.read_text()}" for file in sorted(seen)]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
