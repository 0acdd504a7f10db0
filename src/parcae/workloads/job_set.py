"""Job sets: fixed lists of TPC-H jobs with arrival times, for conformance runs.

The file format is that of the conformance file of Decima's released simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parcae.errors import FormatError, WorkloadError
from parcae.loader import parsed_json, read_file, whole_number
from parcae.workloads.arrivals import Int64Array, JobSequence
from parcae.workloads.formats import saying_what_reads
from parcae.workloads.job import Workload
from parcae.workloads.limits import MOST_EXECUTORS

#: Larger times (31 years) are mistakes.
_LARGEST_MS = 10**12
_LAYOUT = '{"sets": {id: {"exec": 50, "jobs": [[9, "2g", 0]]}}}'


@dataclass(frozen=True, eq=False)
class JobSet:
    """A fixed list of jobs and the cluster on which it runs.

    Args:
        id: name of the job set in the file.
        num_executors: number of executors of the cluster.
        moving_delay_ms: time in ms that an executor takes to move to another job.
        warmup_delay_ms: warm-up time in ms of an executor that starts on a job.
        job_names: name of each job's profile, by position in the file.
        arrival_ms: int64[num_jobs], arrival times by position in the file.
    """

    id: str
    num_executors: int
    moving_delay_ms: int
    warmup_delay_ms: int
    job_names: tuple[str, ...]
    arrival_ms: Int64Array

    @property
    def _order(self) -> Int64Array:
        return np.argsort(self.arrival_ms, kind="stable")

    def sequence(self, workload: Workload) -> JobSequence:
        """The job sequence in order of arrival (ties: by position in the file).

        Raises:
            WorkloadError: the workload lacks one of the jobs.
        """
        index = {job.name: row for row, job in enumerate(workload.jobs)}
        # Name all missing jobs in one message.
        missing = sorted({name for name in self.job_names if name not in index})
        if missing:
            raise WorkloadError(
                f"job set {self.id!r}: workload {workload.name!r} has no job {', '.join(missing)}"
            )
        rows = np.array([index[name] for name in self.job_names], np.int64)
        return JobSequence(workload, rows[self._order], self.arrival_ms[self._order])

    def by_position(self, values: Int64Array) -> list[int]:
        """Reorder results per job from the order of arrival to the order of the file."""
        placed = np.empty(len(values), np.int64)
        placed[self._order] = values
        return [int(v) for v in placed]


@saying_what_reads("job-sets")
def read_job_sets(path: Path) -> dict[str, JobSet]:
    """Read a JSON file of job sets.

    The layout is {"sets": {id: {"exec": E, "jobs": [[query, size, arrival ms], ...]}}}. A set may
    also have `moving_delay` and `warmup_delay` in ms; the defaults are 2000 and 1000.

    Raises:
        FormatError: not a file of job sets; the message names the set and the entry.
    """
    data = parsed_json(path, read_file(path), _LAYOUT)
    sets = data.get("sets") if isinstance(data, dict) else None
    if not isinstance(sets, dict) or not sets:
        raise FormatError(f'{path}: no "sets"; expected {_LAYOUT}')
    return {set_id: _job_set(path, set_id, entry) for set_id, entry in sets.items()}


def _job_set(path: Path, set_id: str, entry: Any) -> JobSet:
    try:
        # Profiles are named by query and input size, as in `tpch_profiles`.
        jobs = [(f"q{int(query)}-{size}", int(arrival)) for query, size, arrival in entry["jobs"]]
        executors = int(entry["exec"])
        moving = int(entry.get("moving_delay", 2_000))
        warmup = int(entry.get("warmup_delay", 1_000))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FormatError(
            f"{path}: job set {set_id!r} is not "
            f'{{"exec": E, "jobs": [[query, size, arrival ms], ...]}} ({error!r})'
        ) from None
    where = f"{path}: job set {set_id!r}"
    if not jobs:
        raise FormatError(f"{where} needs jobs")
    whole_number(f"{where}: exec", executors, 1, MOST_EXECUTORS)
    whole_number(f"{where}: moving_delay", moving, 0, _LARGEST_MS)
    whole_number(f"{where}: warmup_delay", warmup, 0, _LARGEST_MS)
    names = tuple(name for name, _ in jobs)
    arrivals = [
        whole_number(f"{where}, job {row}: the arrival", arrival, 0, _LARGEST_MS)
        for row, (_, arrival) in enumerate(jobs)
    ]
    return JobSet(set_id, executors, moving, warmup, names, np.array(arrivals, np.int64))
