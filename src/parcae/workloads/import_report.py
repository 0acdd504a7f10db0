"""What a reader saw: how much was read, what was bad, and what the user should know; shared by all readers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parcae.errors import ConfigError, FormatError

#: Bad rows that are quoted in messages and reports.
NUM_SAMPLES = 5


@dataclass(frozen=True)
class ImportReport:
    """The account of one import.

    Args:
        source: what was read, e.g. "Spark event logs".
        num_files: files that were read.
        num_rows: rows (lines, events) that were read, bad ones included.
        num_bad_rows: rows that could not be used.
        bad_samples: the first few bad rows, "path:line: what".
        notes: sentences for the user.
        num_jobs: jobs of the resulting workload.
    """

    source: str
    num_files: int
    num_rows: int
    num_bad_rows: int
    bad_samples: tuple[str, ...]
    notes: tuple[str, ...]
    num_jobs: int


class BadRows:
    """Collects rows that could not be used, and refuses the import when their share is too large.

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
        """Count one bad row: the file, the line from 1, and what is wrong with it."""
        self.count += 1
        if len(self._samples) < NUM_SAMPLES:
            self._samples.append(f"{path}:{line}: {what}")

    @property
    def samples(self) -> tuple[str, ...]:
        """The first few bad rows, "path:line: what"."""
        return tuple(self._samples)

    def finish(self, num_rows: int) -> None:
        """Check the share of bad rows among `num_rows` rows read.

        Raises:
            FormatError: more than `max_share` of the rows are bad; the message quotes the first few.
        """
        if self.count > self.max_share * num_rows:
            share = self.count / max(num_rows, 1)
            raise FormatError(
                f"{self.count:,} of {num_rows:,} rows could not be read ({share:.1%}; at most {self.max_share:.1%} is"
                f" tolerated): {'; '.join(self._samples)}. Repair the input, or raise the tolerated share of bad rows"
            )
