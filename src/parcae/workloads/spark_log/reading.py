"""Reads the files of event logs line by line, and counts lines that cannot be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import orjson

from parcae.base.errors import FormatError
from parcae.workloads.import_report import BadRows, counted
from parcae.workloads.spark_log.application import ApplicationLog
from parcae.workloads.spark_log.events import parse_event
from parcae.workloads.spark_log.files import LogPart, find_logs, read_lines
from parcae.workloads.spark_log.naming import lost_starts, queries_without_plan

#: Called with (bytes read, bytes in total).
Progress = Callable[[int, int], None]


class LogReading:
    """Event logs that are read one application at a time, and counts over all of them.

    `key` is what names the jobs. `left_out` has the number of jobs that are left out, by reason;
    whoever makes jobs of the applications fills it.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        key: str | None = None,
        max_bad_share: float = 0.01,
        progress: Progress | None = None,
    ) -> None:
        self.logs = find_logs([Path(path) for path in paths])
        self.key = key
        self.bad = BadRows(max_bad_share)
        self.num_rows = 0
        self.left_out = Counter[str]()
        self._missing = Counter[str]()
        self._progress = progress
        self._total = sum(part.size for source in self.logs.sources for part in source.parts)
        self._done = 0

    def applications(self) -> Iterator[ApplicationLog]:
        """Read the logs; in the end, too many bad lines are refused."""
        for source in self.logs.sources:
            log = ApplicationLog(source.name)
            *earlier, last = source.parts
            for part in earlier:
                if not self._read_part(part, log):
                    raise FormatError(
                        f"{part.label} is cut off, and parts follow it; copy it again"
                    )
            # The application was killed, or is still running: this is no bad line.
            if self._read_part(last, log) is False:
                self._missing["lines"] += 1
            lost = lost_starts(log)
            self._missing["jobs"] += lost.num_jobs
            self._missing["tasks"] += lost.num_tasks
            self._missing["plans"] += queries_without_plan(log, self.key)
            yield log
        self.bad.finish(self.num_rows)

    def _read_part(self, part: LogPart, log: ApplicationLog) -> bool | None:
        """Add the events of one file to the log.

        Returns whether its last line is complete; None if it has no line.
        """
        is_complete = None
        for number, (line, is_whole) in enumerate(read_lines(part, self._advance), start=1):
            if not line or line.isspace():
                continue
            self.num_rows += 1
            # Lines of events that are not needed are not parsed, so a cut one needs a check.
            is_complete = is_whole or _is_json(line)
            if not is_complete:
                continue
            try:
                event = parse_event(line)
            except FormatError as error:
                self.bad.add(part.label, number, str(error))
                continue
            if event is not None:
                log.add(event)
        return is_complete

    def _advance(self, num_bytes: int) -> None:
        self._done = min(self._total, self._done + num_bytes)
        if self._progress is not None:
            self._progress(self._done, self._total)

    def no_jobs(self, what: str = "") -> FormatError:
        """The error for logs without a completed job; `what` says which others there are."""
        names = [source.name for source in self.logs.sources]
        reasons = [f"{counted(count, 'job')} {why}" for why, count in self.left_out.items()]
        found = "; ".join(filter(None, [what, *reasons])) or "the log contains no job at all"
        return FormatError(
            f"no completed job in {', '.join(names[:3])}{', ...' if len(names) > 3 else ''} "
            f"({found}); import logs of batch jobs or queries that finished "
            "(and check the property given as the key)"
        )

    def notes_of_jobs(self) -> list[str]:
        """Sentences for the user on jobs that are left out."""
        left_out = sorted(self.left_out.items())
        return [f"Left out {counted(count, 'job')} that {why}." for why, count in left_out]

    def notes_of_lines(self) -> list[str]:
        """Sentences for the user on what is missing in the logs."""
        missing = self._missing
        plans = missing["plans"]
        has, keeps = ("query has", "it keeps its name") if plans == 1 else _QUERIES
        sentences = {
            "lines": f"{counted(missing['lines'], 'truncated last line')} ignored; complete lines "
            "were kept.",
            "jobs": f"Left out {counted(missing['jobs'], 'Spark job')} whose start is missing in "
            "the log.",
            "tasks": f"Left out {counted(missing['tasks'], 'task end')} whose stage belongs to no "
            "Spark job in the log.",
            "plans": f"{plans:,} SQL {has} no plan in the log; {keeps}.",
        }
        return [sentence for what, sentence in sentences.items() if missing[what]]


_QUERIES = ("queries have", "they keep their names")


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True
