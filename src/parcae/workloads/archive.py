"""Parcae's workload files (`.parcae`): a zip of numpy arrays and a JSON manifest, without pickle.

The arrays are flat, so that a workload of a million tasks is read in well under a second. Duration
tables that several stages share are stored once.
"""

from __future__ import annotations

import json
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError, FormatError, WorkloadError, suggestion
from parcae.base.files import replacing
from parcae.base.loader import members, open_file, parsed_json
from parcae.workloads.durations import NUM_WAVES, TaskDurations, Wave
from parcae.workloads.formats import saying_what_reads, who_reads
from parcae.workloads.job import JobSpec, LoggedFaults, StageSpec
from parcae.workloads.synthetic import (
    RandomDags,
    load_mixed,
    random_dags,
    synthetic_jobs,
    toy_workload,
)
from parcae.workloads.workload import Workload

FORMAT = "parcae-workload"
#: The arrays of a file have at most this many bytes (Alibaba's whole trace has a third of it).
MAX_ARCHIVE_BYTES = 4 << 30
#: Version 2 adds the spread of a recurring job's runs, its pool, and input bytes. A workload
#: without any of these is written as version 1, which older versions of Parcae can read.
PLAIN_VERSION = 1
VERSION = 2
#: Names of the arrays in the file. "law" holds the row of each stage's duration table, "law_levels"
#: the number of parallelism levels of each table.
_ARRAYS = (
    "job_stages",
    "job_arrival_ms",
    "num_tasks",
    "num_parents",
    "parents",
    "demands",
    "task_ms",
    "law",
    "law_levels",
    "levels",
    "sample_counts",
    "samples",
)
_SPREAD_ARRAYS = ("work_sigma", "num_runs", "duration_sigma", "input_bytes")
#: Exceptions that numpy, zip and JSON raise on a truncated file or a file of another format.
_UNREADABLE = (
    OSError,
    EOFError,
    ArithmeticError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    RuntimeError,
    tokenize.TokenError,  # numpy parses the header of an array as Python
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)


def write_workload(workload: Workload, path: Path) -> None:
    """Write the workload to `path` atomically: the file is complete or unchanged."""
    arrays = _flatten(workload)
    manifest = {
        "format": FORMAT,
        "version": PLAIN_VERSION,
        "name": workload.name,
        "weights": workload.weights,
        "provenance": dict(workload.provenance),
        "job_names": [job.name for job in workload.jobs],
        "stage_names": [stage.name for job in workload.jobs for stage in job.stages],
    }
    if any(not _is_plain(job) for job in workload.jobs):
        manifest |= {"version": VERSION, "job_pools": [job.pool for job in workload.jobs]}
        arrays |= _flatten_spread(workload)
    if workload.faults is not None:
        # Versions of Parcae that do not know this entry ignore it.
        manifest["faults"] = asdict(workload.faults)
    arrays["manifest"] = np.frombuffer(json.dumps(manifest).encode(), np.uint8)
    with replacing(path) as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)


def _is_plain(job: JobSpec) -> bool:
    """Whether version 1 of the format can hold everything about the job."""
    is_plain = job.work_sigma == 0 and job.num_runs == 1 and not job.pool
    return is_plain and all(
        stage.duration_sigma == 0 and stage.input_bytes == 0 for stage in job.stages
    )


def _flatten_spread(workload: Workload) -> dict[str, npt.NDArray[Any]]:
    stages = [stage for job in workload.jobs for stage in job.stages]
    return {
        "work_sigma": np.array([job.work_sigma for job in workload.jobs], np.float64),
        "num_runs": np.array([job.num_runs for job in workload.jobs], np.int64),
        "duration_sigma": np.array([stage.duration_sigma for stage in stages], np.float64),
        "input_bytes": np.array([stage.input_bytes for stage in stages], np.float64),
    }


def _flatten(workload: Workload) -> dict[str, npt.NDArray[Any]]:
    jobs = workload.jobs
    stages = [stage for job in jobs for stage in job.stages]
    arrivals = [-1 if job.arrival_ms is None else job.arrival_ms for job in jobs]
    return {
        "job_stages": np.array([len(job.stages) for job in jobs], np.int64),
        "job_arrival_ms": np.array(arrivals, np.int64),
        "num_tasks": np.array([stage.num_tasks for stage in stages], np.int64),
        "num_parents": np.array([len(stage.parents) for stage in stages], np.int64),
        "parents": np.array([p for stage in stages for p in stage.parents], np.int64),
        "demands": np.array([(stage.cpu, stage.memory) for stage in stages], np.float64),
        "task_ms": np.array([stage.mean_task_ms for stage in stages], np.float64),
        **_flatten_durations([stage.durations for stage in stages]),
    }


def _flatten_durations(of_stages: list[TaskDurations]) -> dict[str, npt.NDArray[Any]]:
    """The duration tables of all stages; stages that share a table store it once."""
    # Duration tables are identified by object identity.
    tables = list({id(table): table for table in of_stages}.values())
    row = {id(table): index for index, table in enumerate(tables)}
    levels = [level for table in tables for level in table.levels]
    lists = [samples for table in tables for wave in Wave for samples in table.by_wave(wave)]
    return {
        "law": np.array([row[id(table)] for table in of_stages], np.int64),
        "law_levels": np.array([len(table.levels) for table in tables], np.int64),
        "levels": np.array(levels, np.int64),
        "sample_counts": np.array([len(samples) for samples in lists], np.int64),
        "samples": np.concatenate(lists).astype(np.int64),
    }


@saying_what_reads("parcae")
def read_workload(path: Path) -> Workload:
    """Read a workload file."""
    path = Path(path)
    try:
        _check_size(path)
        with np.load(path, allow_pickle=False) as archive:
            manifest = parsed_json(path, archive["manifest"].tobytes(), "a manifest")
            _check_manifest(path, manifest)
            added = _SPREAD_ARRAYS if manifest["version"] >= VERSION else ()
            arrays = {name: archive[name] for name in (*_ARRAYS, *added)}
        return _rebuild(manifest, arrays)
    except (FileNotFoundError, IsADirectoryError, PermissionError, FormatError):
        raise
    except WorkloadError as error:
        raise FormatError(f"{path}: the workload in this file is invalid: {error}") from None
    except _UNREADABLE as error:
        raise FormatError(
            f"{path}: not a Parcae workload file, or a truncated one ({type(error).__name__}); "
            "import the workload again"
        ) from None


def _check_size(path: Path) -> None:
    """Refuse an archive with arrays that would fill the memory.

    A member never has more content than the archive says.
    """
    with open_file(path) as stream:
        if not zipfile.is_zipfile(stream):
            raise ValueError("no zip archive")
    num_bytes = sum(info.file_size for info in members(path))
    if num_bytes > MAX_ARCHIVE_BYTES:
        raise FormatError(
            f"{path}: {num_bytes:,} bytes when decompressed; at most {MAX_ARCHIVE_BYTES:,} are read"
        )


def _check_manifest(path: Path, manifest: Any) -> None:
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise FormatError(f"{path}: not a Parcae workload file")
    if manifest.get("version") not in (PLAIN_VERSION, VERSION):
        raise FormatError(
            f"{path}: workload format version {manifest.get('version')}; "
            f"this Parcae reads versions {PLAIN_VERSION} to {VERSION}: "
            "update Parcae, or import the workload again"
        )


def _rebuild(manifest: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Workload:
    weights = manifest["weights"]
    jobs = _jobs(manifest, arrays, _stages(manifest, arrays))
    faults = manifest.get("faults")
    return Workload(
        manifest["name"],
        jobs,
        tuple(weights) if weights else None,
        manifest["provenance"],
        None if faults is None else LoggedFaults(**faults),
    )


def _stages(manifest: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> list[StageSpec]:
    """The stages of all jobs, job after job."""
    tables = _duration_tables(arrays)
    _check_rows(arrays, len(tables))
    starts = np.concatenate([[0], np.cumsum(arrays["num_parents"])])
    columns = [
        arrays[name].tolist() for name in ("num_tasks", "law", "demands", "task_ms", "parents")
    ]
    num_tasks, table_row, demands, task_ms, parents = columns
    duration_sigma = _added(arrays, "duration_sigma", len(num_tasks), 0.0)
    input_bytes = _added(arrays, "input_bytes", len(num_tasks), 0.0)
    return [
        StageSpec(
            num_tasks=num_tasks[i],
            durations=tables[table_row[i]],
            parents=tuple(parents[starts[i] : starts[i + 1]]),
            cpu=demands[i][0],
            memory=demands[i][1],
            name=stage_name,
            mean_task_ms=task_ms[i],
            duration_sigma=duration_sigma[i],
            input_bytes=input_bytes[i],
        )
        for i, stage_name in enumerate(manifest["stage_names"])
    ]


def _check_rows(arrays: dict[str, npt.NDArray[Any]], num_tables: int) -> None:
    """Refuse negative counts, and rows of tables that do not exist."""
    limits = {"num_parents": len(arrays["parents"]), "job_stages": len(arrays["num_tasks"])}
    for name, most in {**limits, "law": num_tables - 1}.items():
        values = arrays[name]
        if values.ndim != 1 or (values.size and not 0 <= values.min() <= values.max() <= most):
            raise ValueError(f"{name} is out of range")


def _jobs(
    manifest: dict[str, Any], arrays: dict[str, npt.NDArray[Any]], stages: list[StageSpec]
) -> tuple[JobSpec, ...]:
    names = manifest["job_names"]
    columns = [
        names,
        arrays["job_stages"].tolist(),
        arrays["job_arrival_ms"].tolist(),
        _added(arrays, "work_sigma", len(names), 0.0),
        _added(arrays, "num_runs", len(names), 1),
        manifest.get("job_pools", [""] * len(names)),
    ]
    jobs: list[JobSpec] = []
    first = 0
    for name, count, arrival, work_sigma, num_runs, pool in zip(*columns, strict=True):
        job_stages = tuple(stages[first : first + count])
        jobs.append(
            JobSpec(name, job_stages, None if arrival < 0 else arrival, work_sigma, num_runs, pool)
        )
        first += count
    return tuple(jobs)


def _added(arrays: dict[str, npt.NDArray[Any]], name: str, count: int, default: float) -> list[Any]:
    """An array that version 2 added to the format, or its default for a file of version 1."""
    return arrays[name].tolist() if name in arrays else [default] * count


def _duration_tables(arrays: dict[str, npt.NDArray[Any]]) -> list[TaskDurations]:
    """The duration tables.

    A table has `law_levels` sample lists for each of its waves, wave after wave.
    """
    counts = arrays["sample_counts"]
    if counts.size and (counts.min() < 0 or counts.sum() != len(arrays["samples"])):
        raise ValueError("sample_counts is out of range")
    ends = np.cumsum(counts).tolist()
    lists = [arrays["samples"][a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    tables = []
    level_row = 0
    list_row = 0
    for count in arrays["law_levels"].tolist():
        levels = tuple(arrays["levels"][level_row : level_row + count].tolist())
        level_row += count
        waves = []
        for _ in range(NUM_WAVES):
            waves.append(tuple(lists[list_row : list_row + count]))
            list_row += count
        tables.append(TaskDurations(levels, *waves))
    return tables


BUNDLED = Path(__file__).parent / "bundled"

BUILT_IN: dict[str, Callable[[], Workload]] = {
    "tpch": lambda: read_workload(BUNDLED / "tpch.parcae"),
    "synthetic": lambda: random_dags(RandomDags(), np.random.default_rng(0)),
    "one-stage": synthetic_jobs,
    "toy": toy_workload,
}


def load_workload(source: str) -> Workload:
    """Load a workload by name or file."""
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
