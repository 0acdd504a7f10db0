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

_PACKAGE = Path(__file__).parent


def _kernel_files() -> list[Path]:
    kernels = sorted(p for p in _PACKAGE.rglob("*.py") if p.name == "kernels.py" or p.parent.name == "kernels")
    return [*kernels, _PACKAGE / "cluster" / "state.py", _PACKAGE / "simulation" / "future.py", *_PACKAGE.rglob("layout.py")]


def _cache_dir() -> Path:
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in _kernel_files())).hexdigest()[:16]
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "parcae" / f"kernels-{digest}"


if "NUMBA_CACHE_DIR" not in os.environ:
    numba.config.CACHE_DIR = str(_cache_dir())  # type: ignore[attr-defined]

# Kernels allocate nothing: without Numba's runtime, views of tables are not reference-counted (which would cost more than
# the simulation itself).
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False}

#: A function that Python calls, or that is too long to inline.
kernel = numba.njit(**_OPTIONS)
#: A small verb that is inlined into the kernel that calls it.
inlined = numba.njit(forceinline=True, **_OPTIONS)
