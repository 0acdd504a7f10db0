"""Reads the event logs that Spark's History Server offers by its REST interface.

The logs of the chosen applications are downloaded as the server's zip archives and read by the
reader of event logs, so nothing is lost that the logs have.

Source: Spark, monitoring.md, "REST API": /applications and /applications/[app-id]/logs.
"""

from __future__ import annotations

import fnmatch
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parcae.errors import ConfigError, FormatError
from parcae.files import check_folder
from parcae.workloads.history_server import HistoryServer, LogNotThere
from parcae.workloads.import_report import ImportReport, counted
from parcae.workloads.job import Workload
from parcae.workloads.spark.files import find_logs
from parcae.workloads.spark_event_log import read_spark_event_logs

Progress = Callable[[int, int], None]
#: A PiB and a year: no real limits.
_MOST_MIB = 2**30
_MOST_MINUTES = 366 * 24 * 60


@dataclass(frozen=True)
class Wanted:
    """Which applications are read, and how much may be downloaded.

    Args:
        min_date: earliest start of an application, as a date or a date with a time (UTC).
        max_date: latest start.
        limit: number of applications, the newest first; None for all.
        applications: pattern of their names, such as "nightly-*".
        max_mib: largest size of all downloaded archives in MiB.
        max_minutes: longest time of the download.
        folder: where to keep the archives; those that are there already are not downloaded again.

    Raises:
        ConfigError: a date that cannot be read, or an earliest date after the latest.
    """

    min_date: str | None = None
    max_date: str | None = None
    limit: int | None = None
    applications: str | None = None
    max_mib: float = 4096.0
    max_minutes: float = 60.0
    folder: str | None = None

    def __post_init__(self) -> None:
        first = _moment("--min-date", self.min_date)
        last = _last_moment("--max-date", self.max_date)
        if first and last and first > last:
            raise ConfigError(f"--min-date {self.min_date} is after --max-date {self.max_date}")
        if not (1 <= self.max_mib <= _MOST_MIB and 0 <= self.max_minutes <= _MOST_MINUTES):
            raise ConfigError(
                f"--max-mib must be from 1 to {_MOST_MIB:,}, --max-minutes from 0 to "
                f"{_MOST_MINUTES:,}"
            )

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the server's list of applications."""
        dates = {
            "minDate": _moment("--min-date", self.min_date),
            "maxDate": _last_moment("--max-date", self.max_date),
        }
        given = {name: _in_sparks_form(moment) for name, moment in dates.items() if moment}
        return {"status": "completed", **given}


def _moment(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{option} {text}: expected a date such as 2026-03-31 or 2026-03-31T18:00"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _last_moment(option: str, text: str | None) -> datetime | None:
    """The moment that a text names; the last one of the day if it names no time."""
    moment = _moment(option, text)
    if moment is None or text is None or len(text) > len("2026-03-31"):
        return moment
    return moment.replace(hour=23, minute=59, second=59, microsecond=999_000)


def _in_sparks_form(moment: datetime) -> str:
    """A time as Spark parses it: 2015-02-03T16:42:40.000GMT."""
    utc = moment.astimezone(UTC)
    return f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 1000:03}GMT"


def read_history_server(
    url: str, *, name: str = "spark", progress: Progress | None = None, **options: Any
) -> tuple[Workload, ImportReport]:
    """Read the event logs of a History Server into a workload.

    Args:
        url: the server's address, such as http://history:18080.
        name: name of the workload.
        progress: called with (applications downloaded, applications in total), then with (bytes
            read, bytes in total).
        options: the fields of `Wanted`, and the options of `read_spark_event_logs`.

    Returns:
        The workload and the import report.

    Raises:
        ConfigError: no web address, or a date that cannot be read.
        FormatError: no server answers, or none with this interface; a certificate that is not
            trusted; more data than allowed; no application that fits; or an error of the logs.

    Example: `read_history_server("http://history:18080", limit=10, key="plan")`.
    """
    choices = {field.name for field in fields(Wanted)}
    wanted = Wanted(**{option: value for option, value in options.items() if option in choices})
    reading = {option: value for option, value in options.items() if option not in choices}
    server = HistoryServer(url, round(wanted.max_mib * 2**20), 60 * wanted.max_minutes)
    with _folder(wanted.folder) as folder:
        logs, notes = _downloaded(server, wanted, folder, progress)
        workload, report = read_spark_event_logs(logs, name=name, progress=progress, **reading)
    provenance = {**workload.provenance, "history_server": server.url}
    workload = replace(workload, provenance=provenance)
    return workload, replace(report, notes=(*notes, *report.notes))


@contextmanager
def _folder(kept: str | None) -> Iterator[Path]:
    """The folder of the archives: the given one, or one that is deleted in the end."""
    if kept is not None:
        folder = Path(kept)
        check_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="parcae-history-") as temporary:
        yield Path(temporary)


def _downloaded(
    server: HistoryServer, wanted: Wanted, folder: Path, progress: Progress | None
) -> tuple[list[Path], list[str]]:
    """Download the logs of the wanted applications; notes say which were left out."""
    chosen = _chosen(server, wanted)
    logs = []
    notes = []
    for index, log in enumerate(chosen):
        if progress is not None:
            progress(index, len(chosen))
        path = folder / log.file_name
        try:
            if not path.exists():
                server.download(log, path)
        except LogNotThere as error:
            notes.append(f"Left out {error}.")
            continue
        try:
            find_logs([path])
            logs.append(path)
        # For example a compacted log, which the server gives like any other.
        except FormatError as error:
            notes.append(f"Left out {str(error).replace(f'{folder}/', '')}.")
    if not logs:
        raise FormatError(f"{server.url}: none of the logs can be read. {' '.join(notes[:3])}")
    return logs, [f"Downloaded {counted(len(logs), 'log')} from {server.url}.", *notes]


def _chosen(server: HistoryServer, wanted: Wanted) -> Sequence[Any]:
    """The logs of the applications that fit, the newest first."""
    listed = server.applications(wanted.query)
    pattern = wanted.applications or "*"
    fitting = [one for one in listed if fnmatch.fnmatchcase(one.name, pattern)][: wanted.limit]
    if not fitting:
        names = ", ".join(dict.fromkeys(one.name for one in listed[:20])) or "none"
        raise FormatError(
            f"{server.url}: no completed application fits (in these dates there are: {names}); "
            "check --applications, --min-date and --max-date"
        )
    return [log for one in fitting for log in one.logs]
