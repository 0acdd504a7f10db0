"""How kernels are compiled: the one place that configures Numba.

Compiled code is cached on disk so that only the first call ever pays for compilation. Numba keys its cache by the file of the
function alone and misses edits in the modules that it calls, so the cache folder carries a hash of every kernel file.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numba
import numpy as np

_PACKAGE = Path(__file__).parent


def _kernel_files() -> list[Path]:
    kernels = sorted(
        p for p in _PACKAGE.rglob("*.py") if p.name == "kernels.py" or p.parent.name == "kernels"
    )
    cluster = _PACKAGE / "cluster"
    others = [cluster / "state.py", cluster / "orders.py", _PACKAGE / "simulation" / "future.py"]
    return [*kernels, *others, *_PACKAGE.rglob("layout.py")]


def _cache_dir() -> Path:
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in _kernel_files())).hexdigest()[:16]
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "parcae" / f"kernels-{digest}"


if "NUMBA_CACHE_DIR" not in os.environ:
    numba.config.CACHE_DIR = str(_cache_dir())  # type: ignore[attr-defined]

# Kernels allocate nothing: without Numba's runtime, views of tables are not reference-counted (which would cost more than
# the simulation itself).
# Nobody calls them from C: without wrappers for that, compilation is shorter.
_OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "_nrt": False,
    "no_cfunc_wrapper": True,
}

#: A function that Python calls, or that is too long to inline.
kernel = numba.njit(**_OPTIONS)
#: A small verb that is inlined into the kernel that calls it.
inlined = numba.njit(forceinline=True, **_OPTIONS)

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@inlined
def mix(z):  # type: ignore[no-untyped-def]
    """The finaliser of splitmix64: 64 random bits of any 64 bits."""
    z ^= z >> np.uint64(30)
    z *= _MIX_1
    z ^= z >> np.uint64(27)
    z *= _MIX_2
    return z ^ (z >> np.uint64(31))


@inlined
def unit(luck):  # type: ignore[no-untyped-def]
    """A number in [0, 1) of 64 random bits."""
    return np.float64(luck >> np.uint64(11)) * 1.1102230246251565e-16


@kernel
def sort_rows(rows, key, count):  # type: ignore[no-untyped-def]
    """Sort `rows[:count]` by `key[row]`, ascending; rows of the same key keep no particular order.

    Shell's sort: it allocates nothing, and hardly moves what is already sorted.
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
