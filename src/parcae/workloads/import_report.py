"""The report of an import, shared by all readers: rows read, bad rows, and notes for the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parcae.base.errors import ConfigError, FormatError

#: Called with how much has been read, and how much there is in all.
Progress = Callable[[int, int], None]
#: Number of bad rows that messages and reports quote.
NUM_SAMPLES = 5
# As many characters of each: a name in a damaged row may be long.
_MOST_SHOWN = 400


@dataclass(frozen=True)
class ImportReport:
    """The result of one import in numbers and notes.

    Args:
        source: what was read, e.g. "Spark event logs".
        num_files: number of files that were read.
        num_rows: number of rows (lines, events) that were read, including bad ones.
        num_bad_rows: number of rows that could not be used.
        bad_samples: the first few bad rows, each as "path:line: problem".
        notes: sentences for the user.
        num_jobs: number of jobs of the resulting workload.
        logged: the runs that were read (`LoggedRuns` of Spark event logs), for a replay.
    """

    source: str
    num_files: int
    num_rows: int
    num_bad_rows: int
    bad_samples: tuple[str, ...]
    notes: tuple[str, ...]
    num_jobs: int
    logged: Any = field(default=None, repr=False, compare=False)


def counted(count: int, noun: str) -> str:
    """The count with its noun: "1 job", "2 jobs"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


class TooManyBadRowsError(FormatError):
    """More rows of an input are bad than are tolerated."""


class BadRows:
    """Collects rows that could not be used, and refuses the import if their share is too large.

    Args:
        max_share: largest share of bad rows that is tolerated, 0..1.

    Raises:
        ConfigError: a share outside 0..1.

    Example: with `max_share=0.01`, one bad row of 100 passes `finish(100)` and two are refused.
    """

    def __init__(self, max_share: float) -> None:
        if not 0.0 <= max_share <= 1.0:
            raise ConfigError(
                f"the largest share of bad rows is {max_share}; it must be between 0 and 1"
            )
        self.max_share = max_share
        self.count = 0
        self._samples: list[str] = []

    def add(self, path: Path | str, line: int, what: str) -> None:
        """Count one bad row."""
        self.count += 1
        if len(self._samples) < NUM_SAMPLES:
            shown = what if len(what) <= _MOST_SHOWN else f"{what[:_MOST_SHOWN]}..."
            self._samples.append(f"{path}:{line}: {shown}")

    def include(self, other: BadRows) -> None:
        """Count the bad rows of another collector, too."""
        self.count += other.count
        self._samples = (self._samples + other._samples)[:NUM_SAMPLES]

    @property
    def samples(self) -> tuple[str, ...]:
        """The first few bad rows, each as "path:line: problem"."""
        return tuple(self._samples)

    def finish(self, num_rows: int) -> None:
        """Check the share of bad rows among `num_rows` rows that were read."""
        if self.count > self.max_share * num_rows:
            share = self.count / max(num_rows, 1)
            raise TooManyBadRowsError(
                f"{self.count:,} of {num_rows:,} rows could not be read ({share:.1%}; "
                f"at most {self.max_share:.1%} is tolerated): {'; '.join(self._samples)}. "
                "Repair the input, or raise the tolerated share of bad rows (--max-bad-share)"
            )
