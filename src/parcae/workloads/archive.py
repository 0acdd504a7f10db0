"""The project's own workload files: one `.parcae` file, a zip of numpy arrays and a JSON manifest. No pickle.

Arrays are flat: a workload of a million tasks is read in well under a second, and durations that stages share are stored once.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.errors import FormatError, WorkloadError
from parcae.files import replacing
from parcae.workloads.job import NUM_WAVES, JobSpec, StageSpec, TaskDurations, Wave, Workload

FORMAT, VERSION = "parcae-workload", 1
_ARRAYS = ("job_stages", "job_arrival_ms", "num_tasks", "num_parents", "parents", "demands", "task_ms", "law", "law_levels",
           "levels", "sample_counts", "samples")  # fmt: skip
#: What numpy, zip and JSON raise on a torn or foreign file.
_TORN = (OSError, EOFError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, MemoryError,
         zipfile.BadZipFile, zlib.error)  # fmt: skip


def write_workload(workload: Workload, path: Path) -> None:
    """Write the workload to `path`, wholly or not at all.

    Raises:
        OSError: the folder does not exist or cannot be written.
    """
    arrays = _flatten(workload)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "name": workload.name,
        "weights": workload.weights,
        "provenance": dict(workload.provenance),
        "job_names": [job.name for job in workload.jobs],
        "stage_names": [stage.name for job in workload.jobs for stage in job.stages],
    }
    arrays["manifest"] = np.frombuffer(json.dumps(manifest).encode(), np.uint8)
    with replacing(path) as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)


def _flatten(workload: Workload) -> dict[str, npt.NDArray[Any]]:
    stages = [stage for job in workload.jobs for stage in job.stages]
    laws = {id(stage.durations): stage.durations for stage in stages}
    row = {key: index for index, key in enumerate(laws)}
    lists = [samples for law in laws.values() for wave in Wave for samples in law.by_wave(wave)]
    return {
        "job_stages": np.array([len(job.stages) for job in workload.jobs], np.int64),
        "job_arrival_ms": np.array([-1 if j.arrival_ms is None else j.arrival_ms for j in workload.jobs], np.int64),
        "num_tasks": np.array([stage.num_tasks for stage in stages], np.int64),
        "num_parents": np.array([len(stage.parents) for stage in stages], np.int64),
        "parents": np.array([p for stage in stages for p in stage.parents], np.int64),
        "demands": np.array([(stage.cpu, stage.memory) for stage in stages], np.float64),
        "task_ms": np.array([stage.mean_task_ms for stage in stages], np.float64),
        "law": np.array([row[id(stage.durations)] for stage in stages], np.int64),
        "law_levels": np.array([len(law.levels) for law in laws.values()], np.int64),
        "levels": np.array([level for law in laws.values() for level in law.levels], np.int64),
        "sample_counts": np.array([len(samples) for samples in lists], np.int64),
        "samples": np.concatenate(lists).astype(np.int64),
    }


def read_workload(path: Path) -> Workload:
    """Read a workload file.

    Raises:
        FormatError: torn, foreign, or of a newer version of the format.
        FileNotFoundError: no such file.
    """
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            manifest = json.loads(archive["manifest"].tobytes())
            _check_manifest(path, manifest)
            arrays = {name: archive[name] for name in _ARRAYS}
        return _rebuild(manifest, arrays)
    except (FileNotFoundError, IsADirectoryError, PermissionError, FormatError):
        raise
    except WorkloadError as error:
        raise FormatError(f"{path}: holds a workload that cannot be: {error}") from None
    except _TORN as error:
        raise FormatError(
            f"{path}: not a Parcae workload file, or a torn one ({type(error).__name__}); import the workload again"
        ) from None


def _check_manifest(path: Path, manifest: Any) -> None:
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise FormatError(f"{path}: not a Parcae workload file")
    if manifest.get("version") != VERSION:
        raise FormatError(
            f"{path}: workload format version {manifest.get('version')}; this Parcae reads version {VERSION}: "
            f"update Parcae, or import the workload again"
        )


def _rebuild(manifest: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Workload:
    laws = _laws(arrays)
    starts = np.concatenate([[0], np.cumsum(arrays["num_parents"])])
    columns = [arrays[name].tolist() for name in ("num_tasks", "law", "demands", "task_ms", "parents")]
    num_tasks, law, demands, task_ms, parents = columns
    stages = [
        StageSpec(
            num_tasks=num_tasks[i],
            durations=laws[law[i]],
            parents=tuple(parents[starts[i] : starts[i + 1]]),
            cpu=demands[i][0],
            memory=demands[i][1],
            name=stage_name,
            mean_task_ms=task_ms[i],
        )
        for i, stage_name in enumerate(manifest["stage_names"])
    ]
    jobs, first = [], 0
    counts, arrivals = arrays["job_stages"].tolist(), arrays["job_arrival_ms"].tolist()
    for name, count, arrival in zip(manifest["job_names"], counts, arrivals, strict=True):
        jobs.append(JobSpec(name, tuple(stages[first : first + count]), None if arrival < 0 else arrival))
        first += count
    weights = manifest["weights"]
    return Workload(manifest["name"], tuple(jobs), tuple(weights) if weights else None, manifest["provenance"])


def _laws(arrays: dict[str, npt.NDArray[Any]]) -> list[TaskDurations]:
    ends = np.cumsum(arrays["sample_counts"]).tolist()
    lists = [arrays["samples"][a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    laws, level_row, list_row = [], 0, 0
    for count in arrays["law_levels"].tolist():
        levels = tuple(arrays["levels"][level_row : level_row + count].tolist())
        waves = [tuple(lists[list_row + w * count : list_row + (w + 1) * count]) for w in range(NUM_WAVES)]
        laws.append(TaskDurations(levels, *waves))
        level_row, list_row = level_row + count, list_row + NUM_WAVES * count
    return laws
