"""How kernels are compiled: the only module that configures Numba.

Compiled code is cached on disk, so that only the first call pays for compilation. Numba identifies
cached code by the file of the function alone and does not notice changes in the modules that it
calls. The cache is therefore keyed by the content of a kernel's module and of all that it imports.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core.caching import FunctionCache
from numba.core.types import UniTuple, none  # type: ignore[attr-defined]
from numba.extending import overload

from parcae.base.compiled.by_type import KeyedByContent
from parcae.base.files import user_caches

#: `compilation` uses inner modules of Numba. It is tested with these versions; with others, and
#: where this variable is set, Numba compiles in its own way, which takes about five times as long
#: and gives the same results.
_TESTED_NUMBA = ("0.68.",)
PLAIN = "PARCAE_PLAIN_KERNELS"
_IS_PLAIN = PLAIN in os.environ or not numba.__version__.startswith(_TESTED_NUMBA)
_PACKAGE = Path(__file__).parents[2]
Tables = TypeVar("Tables", bound=tuple[Any, ...])


def _cache_dir() -> Path:
    """Return the folder of compiled kernels: in NUMBA_CACHE_DIR if set."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    # The home folder is asked for last: an account may have none.
    base = Path(given) if given else user_caches() / "parcae"
    if not _IS_PLAIN:
        return base / "kernels"
    # Numba's own cache knows the files of functions only.
    content = b"".join(path.read_bytes() for path in sorted(_PACKAGE.rglob("*.py")))
    return base / f"plain-kernels-{hashlib.sha256(content).hexdigest()[:16]}"


numba.config.CACHE_DIR = str(_cache_dir())  # type: ignore[attr-defined]

# `_nrt`: without Numba's runtime, views of tables are not reference-counted, which takes longer
# than the simulation itself. The price is that kernels cannot allocate memory.
# `no_cfunc_wrapper`: no C code calls the kernels, and leaving the wrapper out shortens compilation.
_OPTIONS: dict[str, Any] = {
    "nopython": True,
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
    "no_cfunc_wrapper": True,
    # Without a value here, a kernel would inherit it from whichever kernel calls it first.
    "forceinline": False,
}


#: What deferred kernels return.
INTEGER = numba.int64
#: (stage, limit, executor class, hold).
DECISION = UniTuple(numba.int64, 4)
NOTHING = none


class _PlainCache(KeyedByContent, FunctionCache):  # type: ignore[misc]
    """Numba's own cache, except for its keys."""


def _compiled(function: Callable[..., Any], returns: Any = None, **options: Any) -> Any:
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return function
    if _IS_PLAIN:
        plain = numba.jit(**{**_OPTIONS, **options})(function)
        # Numba finds no place in a folder that cannot be written: then nothing is kept.
        with contextlib.suppress(RuntimeError):
            plain._cache = _PlainCache(function)
        return plain
    from parcae.base.compiled.compilation import Kernel

    dispatcher = Kernel(function, targetoptions={**_OPTIONS, **options})
    dispatcher.returns = returns
    dispatcher.enable_caching()
    return dispatcher


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls, or that is too long to inline."""
    return _compiled(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a small function that is inlined into the kernel that calls it."""
    return _compiled(function, forceinline=True)


def written_out(function: Callable[..., Any]) -> Any:
    """Write a function's body out where kernels call it: only so can one return a part of a table,
    as kernels allocate nothing.
    """
    return _compiled(function, inline="always")


def deferred(returns: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function once for all kernels that call it, when one of them calls it first."""
    return functools.partial(_compiled, returns=returns)


# The multipliers of splitmix64.
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@inlined
def mix(z):  # type: ignore[no-untyped-def]
    """Return 64 random bits for any 64 bits: the finalizer of splitmix64."""
    z ^= z >> np.uint64(30)
    z *= _MIX_1
    z ^= z >> np.uint64(27)
    z *= _MIX_2
    return z ^ (z >> np.uint64(31))


@inlined
def unit(random_bits):  # type: ignore[no-untyped-def]
    """Return a uniform number in [0, 1) from 64 random bits."""
    # The upper 53 bits, which a float64 represents exactly, times 2**-53.
    return np.float64(random_bits >> np.uint64(11)) * 1.1102230246251565e-16


@kernel
def sort_rows(rows, key, count):  # type: ignore[no-untyped-def]
    """Sort `rows[:count]` by `key[row]`, ascending, in place; the order of equal keys is undefined.

    This is Shell's sort: it allocates nothing, and it is fast if the rows are almost sorted.
    """
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for position in range(gap, count):
            row = rows[position]
            at = position
            while at >= gap and key[rows[at - gap]] > key[row]:
                rows[at] = rows[at - gap]
                at -= gap
            rows[at] = row
        gap //= 3


def as_many(one: Tables) -> Tables:
    """Return the tables of one simulator as those of many, of which it is the only row."""
    return type(one)(*(table[np.newaxis] for table in one))


def row_of(many: Tables, row: int) -> Tables:
    """Return the tables of one simulator out of many, or those of one row, as views."""
    return type(many)(*(table[row] for table in many))


#: Of functions that a kernel contains wherever it calls them.
INLINED: Any = {**_OPTIONS, "cache": False, "forceinline": True}


@overload(row_of, jit_options=INLINED)
def _compiled_row_of(many, row):  # type: ignore[no-untyped-def]
    # Numba cannot make a named tuple from a generator, so that every field has to be written out.
    fields = ", ".join(f"many.{name}[row]" for name in many.fields)
    names = {"Tables": many.instance_class}
    exec(f"def select(many, row):\n    return Tables({fields})", names)
    return names["select"]
