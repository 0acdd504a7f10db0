"""Loads a workload by name: a built-in workload, a mixture, or a workload file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from parcae.errors import ConfigError, suggestion
from parcae.workloads.archive import read_workload
from parcae.workloads.formats import who_reads
from parcae.workloads.job import Workload
from parcae.workloads.one_stage import load_mixed, synthetic_jobs
from parcae.workloads.synthetic import RandomDags, random_dags, toy_workload

BUNDLED = Path(__file__).parent / "bundled"

BUILT_IN: dict[str, Callable[[], Workload]] = {
    "tpch": lambda: read_workload(BUNDLED / "tpch.parcae"),
    "synthetic": lambda: random_dags(RandomDags(), np.random.default_rng(0)),
    "one-stage": synthetic_jobs,
    "toy": toy_workload,
}


def load_workload(source: str) -> Workload:
    """Load a workload by name or file.

    Args:
        source: a built-in name (tpch, synthetic, one-stage, toy), mixed:ALPHA:WORKLOAD, or the path
            of a workload file.

    Raises:
        ConfigError: no such name or file; the message suggests a name.
        FormatError: the file is truncated or of another format.
    """
    if source in BUILT_IN:
        return BUILT_IN[source]()
    if source.startswith("mixed:"):
        return load_mixed(source.removeprefix("mixed:"), load_workload)
    path = Path(source)
    if path.is_file():
        return read_workload(path)
    if path.is_dir():
        what = who_reads(path, "parcae") or "give a file (make one with `parcae workload import`)"
        raise ConfigError(f"{source} is a folder, not a workload file; {what}")
    hint = suggestion(source, BUILT_IN, "built in are")
    raise ConfigError(
        f"no workload {source!r}: there is no such file, and {hint} "
        "(make a file with `parcae workload import`)"
    )
