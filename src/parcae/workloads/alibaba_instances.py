"""Reads the durations of instances in Alibaba's cluster-trace-v2018: batch_instance.csv.

A row is one instance of a task of batch_task.csv. The published file has more than a billion rows
(over 100 GB), so it is read as a stream: only a number and a sum are kept for every task that is
asked for.

Source: Alibaba cluster-trace-v2018, batch_instance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from parcae.errors import FormatError
from parcae.loader import lines, number
from parcae.workloads.import_report import BadRows

#: Name of a job, name of one of its tasks.
TaskName = tuple[str, str]
COLUMNS = (
    "instance_name",
    "task_name",
    "job_name",
    "task_type",
    "status",
    "start_time",
    "end_time",
    "machine_id",
    "seq_no",
    "total_seq_no",
    "cpu_avg",
    "cpu_max",
    "mem_avg",
    "mem_max",
)
_TASK, _JOB, _STATUS, _START, _END = (
    COLUMNS.index(name) for name in ("task_name", "job_name", "status", "start_time", "end_time")
)
#: The status of instances that completed. Failed ones ran again as further instances.
_COMPLETED = "Terminated"
#: An instance that starts and ends in the same second is taken to last half a second.
_SHORTEST_S = 0.5
#: Progress is reported every so many rows.
_ROWS_A_REPORT = 100_000
#: Of any time of the trace: seconds of 30,000 years.
_LARGEST = 1e12


class InstanceDurations:
    """The number of completed instances of tasks, and the sum of their durations.

    Args:
        tasks: the tasks whose instances count.
    """

    def __init__(self, tasks: Iterable[TaskName]) -> None:
        self._count_and_sum_s = {task: [0.0, 0.0] for task in tasks}

    def add(self, cells: list[str]) -> None:
        """Count a row of the file.

        Raises:
            FormatError: a time is no number.
            ValueError: it has other columns, or ends before it starts.
        """
        if len(cells) != len(COLUMNS):
            raise ValueError(f"{len(cells)} columns, expected {len(COLUMNS)}: {', '.join(COLUMNS)}")
        task = self._count_and_sum_s.get((cells[_JOB], cells[_TASK]))
        if task is None or cells[_STATUS] != _COMPLETED:
            return
        start_s = number("start_time", cells[_START], 0, _LARGEST)
        duration_s = number("end_time", cells[_END], 0, _LARGEST) - start_s
        if duration_s < 0:
            raise ValueError(f"it ends {-duration_s:g} s before it starts")
        task[0] += 1
        task[1] += max(_SHORTEST_S, duration_s)

    def means_s(self) -> dict[TaskName, float]:
        """The mean duration of the tasks that have completed instances, in s."""
        return {
            task: total_s / count
            for task, (count, total_s) in self._count_and_sum_s.items()
            if count
        }


def mean_durations_s(
    path: Path,
    tasks: Iterable[TaskName],
    bad: BadRows,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[dict[TaskName, float], int]:
    """The mean duration of the completed instances of tasks, and the number of rows of the file.

    Args:
        path: batch_instance.csv, with or without a header, plain or compressed.
        tasks: the tasks that are asked for.
        bad: collects rows that cannot be used.
        progress: called with (bytes read, size of the file) every 100,000 rows.

    Raises:
        FormatError: too many bad rows, damaged compressed data, or no instance of these tasks.
    """
    durations = InstanceDurations(tasks)
    num_rows = 0
    for line_number, cells in _rows(path, progress):
        num_rows += 1
        try:
            durations.add(cells)
        except (FormatError, ValueError) as error:
            bad.add(path, line_number, str(error))
    bad.finish(num_rows)
    means_s = durations.means_s()
    if not means_s:
        raise FormatError(
            f"{path}: no completed instance of any task of the other file; give the "
            "batch_instance.csv of the same trace"
        )
    return means_s, num_rows


def _rows(
    path: Path, progress: Callable[[int, int], None] | None
) -> Iterator[tuple[int, list[str]]]:
    """The rows of the file with the numbers of their lines, without blank lines and a header."""
    num_bytes = 0

    def count(more: int) -> None:
        nonlocal num_bytes
        num_bytes += more

    for line_number, (line, _) in enumerate(lines(path, count), 1):
        if progress is not None and line_number % _ROWS_A_REPORT == 0:
            progress(num_bytes, path.stat().st_size)
        cells = line.decode("utf-8", "replace").rstrip("\r").split(",")
        is_header = line_number == 1 and cells[0] == COLUMNS[0]
        if cells != [""] and not is_header:
            yield line_number, cells
