"""Reads the files of event logs line by line, and counts lines that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import orjson

from parcae.base.errors import FormatError
from parcae.workloads.import_report import BadRows, counted
from parcae.workloads.spark_log.application import ApplicationLog
from parcae.workloads.spark_log.events import parse_event
from parcae.workloads.spark_log.files import LogPart, LogSource, read_lines
from parcae.workloads.spark_log.naming import lost_starts, queries_without_plan

#: Called with (bytes read, bytes in total).
Progress = Callable[[int, int], None]


@dataclass(eq=False)
class LineTally:
    """Counts over all logs.

    These are all lines, lines that could not be used, truncated last lines, what belongs to Spark
    jobs whose start is missing, and SQL queries that the key names by plans that are not there.
    """

    bad: BadRows
    num_rows: int = 0
    num_truncated: int = 0
    num_lost_jobs: int = 0
    num_lost_tasks: int = 0
    num_without_plan: int = 0

    def count_missing(self, log: ApplicationLog, key: str | None) -> None:
        """Add what is missing in a log whose jobs are named by `key`."""
        self.num_without_plan += queries_without_plan(log, key)
        lost = lost_starts(log)
        self.num_lost_jobs += lost.num_jobs
        self.num_lost_tasks += lost.num_tasks

    def notes(self) -> list[str]:
        """Sentences for the user on what is missing in the logs."""
        notes = []
        if self.num_truncated:
            cut = counted(self.num_truncated, "truncated last line")
            notes.append(f"{cut} ignored; complete lines were kept.")
        if self.num_lost_jobs:
            jobs = counted(self.num_lost_jobs, "Spark job")
            notes.append(f"Left out {jobs} whose start is missing in the log.")
        if self.num_lost_tasks:
            ends = counted(self.num_lost_tasks, "task end")
            notes.append(f"Left out {ends} whose stage belongs to no Spark job in the log.")
        if self.num_without_plan:
            is_one = self.num_without_plan == 1
            queries = "query has" if is_one else "queries have"
            kept = "it keeps its name" if is_one else "they keep their names"
            notes.append(f"{self.num_without_plan:,} SQL {queries} no plan in the log; {kept}.")
        return notes


def read_applications(
    sources: Sequence[LogSource], tally: LineTally, progress: Progress | None = None
) -> Iterator[ApplicationLog]:
    """Read the logs, one application at a time."""
    advance = _advance(sources, progress)
    for source in sources:
        log = ApplicationLog(source.name)
        *earlier, last = source.parts
        for part in earlier:
            if not _read_part(part, log, tally, advance):
                raise FormatError(f"{part.label} is cut off, and parts follow it; copy it again")
        # The application was killed, or is still running: this is no bad line.
        if _read_part(last, log, tally, advance) is False:
            tally.num_truncated += 1
        yield log


def _advance(
    sources: Sequence[LogSource], progress: Progress | None
) -> Callable[[int], None] | None:
    """A function to call with the number of bytes just read; it passes the sum on to `progress`."""
    if progress is None:
        return None
    total = sum(part.size for source in sources for part in source.parts)
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done = min(total, done + num_bytes)
        progress(done, total)

    return advance


def _read_part(
    part: LogPart, log: ApplicationLog, tally: LineTally, advance: Callable[[int], None] | None
) -> bool | None:
    """Add the events of one file to the log.

    Returns whether its last line is complete; None if it has no line.
    """
    is_complete = None
    for number, (line, is_whole) in enumerate(read_lines(part, advance), start=1):
        if not line or line.isspace():
            continue
        tally.num_rows += 1
        # Lines of events that are not needed are not parsed, so a cut one needs a check.
        is_complete = is_whole or _is_json(line)
        if not is_complete:
            continue
        try:
            event = parse_event(line)
        except FormatError as error:
            tally.bad.add(part.label, number, str(error))
            continue
        if event is not None:
            log.add(event)
    return is_complete


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True
