"""Measure the processor time of first commands, with an empty cache of compiled kernels.

    python benchmarks/first_use.py

Every command runs in a process of its own. The figures are the processor time of the command and
of its workers, and how long the command took; processor time depends less on what else runs.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time

_SMALL = ["--seeds", "2", "--jobs", "5", "--processes", "1"]
_EXECUTORS = ["--world", "executors"]

#: What is measured: a name, and the arguments of `parcae`.
COMMANDS = {
    "cores, orders": ["compare", "tpch", *_SMALL],
    "cores, learned": ["compare", "tpch", "--policies", "fair,fifo,decima,parcae", *_SMALL],
    "executors, heuristics": ["compare", "tpch", *_EXECUTORS, *_SMALL],
    "executors, learned": [
        *["compare", "tpch", *_EXECUTORS],
        *["--policies", "fair,fifo,decima,parcae", *_SMALL],
    ],
}


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(arguments: list[str]) -> tuple[float, float]:
    """Run a command with an empty cache. Returns its processor time and its duration in s."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        processor_s = _processor_s()
        start = time.perf_counter()
        command = [sys.executable, "-m", "parcae.cli.main", *arguments]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return _processor_s() - processor_s, time.perf_counter() - start


if __name__ == "__main__":
    for name, arguments in COMMANDS.items():
        processor_s, elapsed_s = measure(arguments)
        print(f"{name:24} {processor_s:6.1f} s of processor time, {elapsed_s:6.1f} s")
