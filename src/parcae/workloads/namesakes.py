"""Jobs of one name: the importer calls further DAGs of a name "name (2)", "name (3)" and so on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from parcae.workloads.job import Workload

#: What the importer adds to the name of a job with the name of another job, but a different DAG.
_NUMBER = re.compile(r" \(\d+\)$")


def bare_name(name: str) -> str:
    """The name of a job without the number that the importer adds.

    A job may itself be called "name (2)", so this is a guess unless there is a job "name", too.
    """
    return _NUMBER.sub("", name)


def rows_by_name(workload: Workload) -> dict[str, tuple[int, ...]]:
    """By name, the rows of the jobs that a scheduler may see under it.

    A live cluster knows variants by the name of the job that they vary. Replays of a workload use
    the variants' own names, so these are names, too.

    Example: the names of the jobs "etl" and "etl (2)" have the rows (0, 1) and (1,).
    """
    names = {job.name for job in workload.jobs}
    rows = defaultdict[str, list[int]](list)
    for row, job in enumerate(workload.jobs):
        rows[job.name].append(row)
        bare = bare_name(job.name)
        if bare != job.name and bare in names:
            rows[bare].append(row)
    return {name: tuple(of_name) for name, of_name in rows.items()}


def usual_row(workload: Workload, rows: Sequence[int]) -> int:
    """The row of the job that ran most often; of several such jobs, of the one with median work."""
    weights = workload.weights or (1.0,) * len(workload.jobs)
    largest = max(weights[row] for row in rows)
    candidates = [row for row in rows if weights[row] == largest]
    candidates.sort(key=lambda row: workload.jobs[row].work_ms)
    return candidates[len(candidates) // 2]
