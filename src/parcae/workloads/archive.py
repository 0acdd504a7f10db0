"""Parcae's workload files (`.parcae`): a zip of numpy arrays and a JSON manifest, without pickle.

The arrays are flat, so that a workload of a million tasks is read in well under a second. Duration
tables that several stages share are stored once.
"""

from __future__ import annotations

import itertools
import json
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from parcae.base.arrays import AnyArray
from parcae.base.errors import ConfigError, FormatError, WorkloadError, suggestion
from parcae.base.files import replacing
from parcae.base.loader import members, open_file, parsed_json
from parcae.workloads.durations import NUM_WAVES, TaskDurations, Wave
from parcae.workloads.job import DriverTime, JobSpec, LoggedFaults, StageSpec
from parcae.workloads.readers import saying_what_reads, who_reads
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
#: Version 1 lacks the spread of a recurring job's runs, its pool, and input bytes; version 2 lacks
#: driver time, Spark jobs and sessions.
_VERSIONS = (1, 2, 3)
#: The arrays with one number for each job or each stage: the field, and its type.
_OF_JOBS = {
    "work_sigma": ("work_sigma", np.float64),
    "num_runs": ("num_runs", np.int64),
    "session": ("session", np.int64),
    "scan_bytes": ("scan_bytes", np.float64),
}
_OF_STAGES = {
    "num_tasks": ("num_tasks", np.int64),
    "task_ms": ("mean_task_ms", np.float64),
    "duration_sigma": ("duration_sigma", np.float64),
    "input_bytes": ("input_bytes", np.float64),
    "spark_job": ("spark_job", np.int64),
}
Arrays = dict[str, AnyArray]
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
    manifest = {
        "format": FORMAT,
        "version": _VERSIONS[-1],
        "name": workload.name,
        "weights": workload.weights,
        "provenance": dict(workload.provenance),
        "job_names": [job.name for job in workload.jobs],
        "job_pools": [job.pool for job in workload.jobs],
        "job_users": [job.user for job in workload.jobs],
        "job_queues": [job.queue for job in workload.jobs],
        "stage_names": [stage.name for job in workload.jobs for stage in job.stages],
    }
    if workload.faults is not None:
        # Versions of Parcae that do not know this entry ignore it.
        manifest["faults"] = asdict(workload.faults)
    text = np.frombuffer(json.dumps(manifest).encode(), np.uint8)
    with replacing(path) as stream:
        np.savez_compressed(stream, allow_pickle=False, manifest=text, **_flatten(workload))


def _flatten(workload: Workload) -> Arrays:
    """The arrays of a file.

    "law" has the row of each stage's duration table: stages that share a table store it once.
    "law_levels" has the number of parallelism levels of each table.
    """
    jobs = workload.jobs
    stages = [stage for job in jobs for stage in job.stages]
    # Duration tables are equal only to themselves.
    row: dict[TaskDurations, int] = {}
    law = [row.setdefault(stage.durations, len(row)) for stage in stages]
    tables = list(row)
    lists = [samples for table in tables for wave in Wave for samples in table.by_wave(wave)]
    whole_numbers = {
        "job_stages": [len(job.stages) for job in jobs],
        "job_arrival_ms": [-1 if job.arrival_ms is None else job.arrival_ms for job in jobs],
        "job_recorded_ms": [-1 if job.recorded_ms is None else job.recorded_ms for job in jobs],
        "num_parents": [len(stage.parents) for stage in stages],
        "parents": [parent for stage in stages for parent in stage.parents],
        "law": law,
        "law_levels": [len(table.levels) for table in tables],
        "levels": [level for table in tables for level in table.levels],
        "sample_counts": [len(samples) for samples in lists],
        "num_pauses": [len(job.pauses_ms) for job in jobs],
        "pauses_ms": [pause_ms for job in jobs for pause_ms in job.pauses_ms],
    }
    return {
        **{name: np.array(values, np.int64) for name, values in whole_numbers.items()},
        **{
            name: np.array([getattr(one, field) for one in of], kind)
            for table, of in ((_OF_JOBS, jobs), (_OF_STAGES, stages))
            for name, (field, kind) in table.items()
        },
        **_flat_driver_time(jobs),
        "run_factors": np.concatenate([job.run_factors.ravel() for job in jobs]),
        "kept_runs": np.array([len(job.run_factors) for job in jobs], np.int64),
        "demands": np.array([(stage.cpu, stage.memory) for stage in stages], np.float64),
        "samples": np.concatenate(lists).astype(np.int64),
    }


def _flat_driver_time(jobs: Sequence[JobSpec]) -> Arrays:
    """The number of runs of every job whose driver time is known, and for each of its runs the
    gaps and lags of the stages and the tail.
    """
    known = [job.driver_time for job in jobs]
    rows = [
        np.column_stack([times.gap_ms, times.lag_ms, times.tail_ms]).ravel()
        for times in known
        if times is not None
    ]
    return {
        "driver_runs": np.array([0 if t is None else len(t.tail_ms) for t in known], np.int64),
        "driver_ms": np.concatenate([np.zeros(0, np.int64), *rows]),
    }


def _driver_times(arrays: Arrays) -> list[DriverTime | None]:
    """The driver time of every job."""
    num_stages = arrays["job_stages"]
    if "driver_runs" not in arrays:
        return [None] * len(num_stages)
    runs, values = arrays["driver_runs"], arrays["driver_ms"]
    widths = 2 * num_stages + 1
    if runs.size and (runs.min() < 0 or (runs * widths).sum() != len(values)):
        raise ValueError("driver_runs is out of range")
    times: list[DriverTime | None] = []
    for of_job, num_runs, width in zip(_split(values, runs * widths), runs, widths, strict=True):
        gap, lag, tail = np.split(
            np.reshape(of_job, (num_runs, width)), [width // 2, width - 1], axis=1
        )
        times.append(DriverTime(gap, lag, tail[:, 0]) if num_runs else None)
    return times


@saying_what_reads("parcae")
def read_workload(path: Path) -> Workload:
    """Read a workload file."""
    path = Path(path)
    try:
        _check_size(path)
        with np.load(path, allow_pickle=False) as archive:
            manifest = parsed_json(path, archive["manifest"].tobytes(), "a manifest")
            _check_manifest(path, manifest)
            return _rebuild(manifest, {name: archive[name] for name in archive.files})
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
    if manifest.get("version") not in _VERSIONS:
        raise FormatError(
            f"{path}: workload format version {manifest.get('version')}; "
            f"this Parcae reads versions {_VERSIONS[0]} to {_VERSIONS[-1]}: "
            "update Parcae, or import the workload again"
        )


def _rebuild(manifest: dict[str, Any], arrays: Arrays) -> Workload:
    tables = _duration_tables(arrays)
    _check_rows(arrays, len(tables))
    faults = manifest.get("faults")
    return Workload(
        manifest["name"],
        _jobs(manifest, arrays, _stages(manifest, arrays, tables)),
        manifest["weights"] or None,
        manifest["provenance"],
        None if faults is None else LoggedFaults(**faults),
    )


def _check_rows(arrays: Arrays, num_tables: int) -> None:
    """Refuse negative counts, and rows of tables that do not exist."""
    limits = {"num_parents": len(arrays["parents"]), "job_stages": len(arrays["num_tasks"])}
    # Older files have no pauses.
    limits |= {"num_pauses": len(arrays["pauses_ms"])} if "pauses_ms" in arrays else {}
    for name, most in {**limits, "law": num_tables - 1}.items():
        values = arrays[name]
        if values.ndim != 1 or (values.size and not 0 <= values.min() <= values.max() <= most):
            raise ValueError(f"{name} is out of range")


def _rows(
    arrays: Arrays, names: Mapping[str, tuple[str, type]], **others: list[Any]
) -> list[dict[str, Any]]:
    """The fields of every job or stage; those that older files lack are left out."""
    columns = {field: arrays[name].tolist() for name, (field, _) in names.items() if name in arrays}
    columns |= others
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _stages(
    manifest: dict[str, Any], arrays: Arrays, tables: list[TaskDurations]
) -> list[StageSpec]:
    """The stages of all jobs, job after job."""
    cpu, memory = arrays["demands"].T.tolist()
    rows = _rows(
        arrays,
        _OF_STAGES,
        cpu=cpu,
        memory=memory,
        name=manifest["stage_names"],
        durations=[tables[row] for row in arrays["law"].tolist()],
        parents=_split(arrays["parents"].tolist(), arrays["num_parents"]),
    )
    return [StageSpec(**row) for row in rows]


def _jobs(manifest: dict[str, Any], arrays: Arrays, stages: list[StageSpec]) -> tuple[JobSpec, ...]:
    names = manifest["job_names"]
    kept = arrays.get("kept_runs", np.zeros(len(names), np.int64))
    factors = _split(arrays.get("run_factors", np.zeros(0)), kept * arrays["job_stages"])
    rows = _rows(
        arrays,
        _OF_JOBS,
        name=names,
        stages=_split(stages, arrays["job_stages"]),
        arrival_ms=_known_ms(arrays["job_arrival_ms"]),
        recorded_ms=_known_ms(arrays.get("job_recorded_ms", np.full(len(names), -1))),
        pool=manifest.get("job_pools", [""] * len(names)),
        user=manifest.get("job_users", [""] * len(names)),
        queue=manifest.get("job_queues", [""] * len(names)),
        driver_time=_driver_times(arrays),
        pauses_ms=_split(arrays["pauses_ms"].tolist(), arrays["num_pauses"])
        if "pauses_ms" in arrays
        else [()] * len(names),
        run_factors=factors,
    )
    return tuple(JobSpec(**row) for row in rows)


def _known_ms(values: AnyArray) -> list[int | None]:
    return [None if ms < 0 else ms for ms in values.tolist()]


def _split(values: Any, counts: AnyArray) -> list[Any]:
    """The values in groups, the first of `counts[0]` values, and so on."""
    ends = np.cumsum(counts).tolist()
    return [values[first:end] for first, end in itertools.pairwise([0, *ends])]


def _duration_tables(arrays: Arrays) -> list[TaskDurations]:
    """The duration tables.

    A table has `law_levels` sample lists for each of its waves, wave after wave.
    """
    counts = arrays["sample_counts"]
    if counts.size and (counts.min() < 0 or counts.sum() != len(arrays["samples"])):
        raise ValueError("sample_counts is out of range")
    lists = _split(arrays["samples"], counts)
    levels = _split(arrays["levels"].tolist(), arrays["law_levels"])
    of_wave = _split(lists, np.repeat(arrays["law_levels"], NUM_WAVES))
    return [
        TaskDurations(tuple(of_table), *of_wave[NUM_WAVES * row : NUM_WAVES * (row + 1)])
        for row, of_table in enumerate(levels)
    ]


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
