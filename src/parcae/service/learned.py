"""Durations that the service learns from recurring jobs, and the file that keeps them.

For each name it learns the mean task duration of every stage and the total work of the last runs.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import orjson

from parcae.base.errors import ConfigError, FormatError
from parcae.base.files import replacing
from parcae.base.loader import parsed_json, read_file

_LOG = logging.getLogger(__name__)
FORMAT_VERSION = 1
_FORMAT = "parcae_learned"
#: Number of last runs of a recurring job whose total task time is kept.
NUM_RUNS = 5
#: Largest weight of the past in a mean, in tasks: so a mean still follows new durations.
_LARGEST_COUNT = 1_000
#: Largest total that is kept: a file has 64 bits for it.
_LARGEST_MS = 1 << 62
#: Number of stages (and of jobs) that are kept; the least recently updated are dropped first.
_MAX_STAGES = 100_000


class LearnedDurations:
    """Mean task durations by (name, position of the stage), and total task times of runs by name.

    Example: after `add_tasks("nightly", 0, 1, 100)` and `add_tasks("nightly", 0, 1, 200)`,
    `task_ms("nightly", 0)` is 150.0.
    """

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, int], tuple[int, float]] = {}
        # By name, one more than the highest position of a stage.
        self._num_stages: dict[str, int] = {}
        self._runs: dict[str, tuple[int, ...]] = {}
        self._any_task: tuple[int, float] = (0, 0.0)
        self.num_changes = 0

    def task_ms(self, name: str, position: int) -> float:
        """Mean task duration of this stage so far; 0 if nothing was learned."""
        return self._tasks.get((name, position), (0, 0.0))[1]

    @property
    def any_task_ms(self) -> float:
        """Mean duration of the last tasks of all jobs; 0 if nothing was learned."""
        return self._any_task[1]

    @property
    def num_any_tasks(self) -> int:
        """Number of tasks in `any_task_ms`, at most `_LARGEST_COUNT`."""
        return self._any_task[0]

    def knows(self, name: str) -> bool:
        """Whether anything was learned about this recurring job."""
        return name in self._runs or (name, 0) in self._tasks

    def run_ms(self, name: str) -> float:
        """Mean total task time of the last runs of this recurring job; 0 if there is none."""
        runs = self._runs.get(name, ())
        return sum(runs) / len(runs) if runs else 0.0

    def add_tasks(self, name: str, position: int, count: int, executed_ms: int) -> None:
        """Add finished tasks of a stage."""
        # Removed and inserted again: the dictionary stays in order of the last update.
        self._tasks[name, position] = _averaged(
            self._tasks.pop((name, position), (0, 0.0)), count, executed_ms
        )
        self._num_stages[name] = max(self._num_stages.pop(name, 0), position + 1)
        if len(self._tasks) > _MAX_STAGES:
            del self._tasks[next(iter(self._tasks))]
        if len(self._num_stages) > _MAX_STAGES:
            del self._num_stages[next(iter(self._num_stages))]
        self.num_changes += 1

    def add_any_tasks(self, count: int, executed_ms: int) -> None:
        """Add finished tasks of any job."""
        self._any_task = _averaged(self._any_task, count, executed_ms)
        self.num_changes += 1

    def add_run(self, name: str, total_ms: int) -> None:
        """Add the total task time of a whole run; ignored if the job has no name."""
        if name:
            total_ms = min(total_ms, _LARGEST_MS)
            self._runs[name] = (*self._runs.pop(name, ()), total_ms)[-NUM_RUNS:]
            if len(self._runs) > _MAX_STAGES:
                del self._runs[next(iter(self._runs))]
            self.num_changes += 1

    def copy(self) -> LearnedDurations:
        """A copy that later changes do not affect."""
        other = LearnedDurations()
        other._tasks = dict(self._tasks)
        other._num_stages = dict(self._num_stages)
        other._runs = dict(self._runs)
        other.num_changes = self.num_changes
        other._any_task = self._any_task
        return other

    def dump(self) -> dict[str, list[Any]]:
        """Everything as plain lists for JSON."""
        return {
            "tasks": [
                [name, position, count, mean]
                for (name, position), (count, mean) in self._tasks.items()
            ],
            "runs": [[name, list(runs)] for name, runs in self._runs.items()],
            "any_task": list(self._any_task),
        }

    def dump_of(self, names: Iterable[str]) -> dict[str, list[Any]]:
        """As `dump`, but only of some names; another thread may add meanwhile."""
        tasks = []
        runs = []
        for name in names:
            for position in range(self._num_stages.get(name, 0)):
                if learned := self._tasks.get((name, position)):
                    tasks.append([name, position, *learned])
            if of_name := self._runs.get(name):
                runs.append([name, list(of_name)])
        return {"tasks": tasks, "runs": runs, "any_task": list(self._any_task)}

    def restore(
        self,
        tasks: Iterable[Any] = (),
        runs: Iterable[Any] = (),
        any_task: Iterable[Any] | None = None,
    ) -> None:
        """Add what another object's `dump` returned.

        Older files have no `any_task`: the mean of their stages stands for it.
        """
        new_tasks = {(str(n), int(p)): (int(count), float(mean)) for n, p, count, mean in tasks}
        new_runs = {
            str(name): tuple(int(total) for total in totals)[-NUM_RUNS:] for name, totals in runs
        }
        if any(count < 1 or not 0 <= mean < math.inf for count, mean in new_tasks.values()):
            raise ValueError("a count is below 1, or a mean is not a finite number >= 0")
        if any_task is None:
            of_all = _mean_of_all(new_tasks.values())
        else:
            count, mean = any_task
            of_all = min(int(count), _LARGEST_COUNT), float(mean)
        if of_all[0] < 0 or not 0 <= of_all[1] < math.inf:
            raise ValueError("the mean of all tasks, or their number, is not a number >= 0")
        if any(total < 0 for totals in new_runs.values() for total in totals):
            raise ValueError("a task time is negative")
        self._tasks.update(new_tasks)
        for name, position in new_tasks:
            self._num_stages[name] = max(self._num_stages.get(name, 0), position + 1)
        if of_all[0] > 0:
            self._any_task = of_all
        self._runs.update(new_runs)


def _mean_of_all(tasks: Collection[tuple[int, float]]) -> tuple[int, float]:
    """The number of all tasks (bounded, see _LARGEST_COUNT) and their mean duration."""
    total = sum(count for count, _ in tasks)
    return min(total, _LARGEST_COUNT), sum(count * mean for count, mean in tasks) / max(1, total)


def _averaged(before: tuple[int, float], num_tasks: int, executed_ms: int) -> tuple[int, float]:
    """Update (number of tasks, mean) with new tasks; the number is bounded, see _LARGEST_COUNT."""
    count = min(before[0] + num_tasks, _LARGEST_COUNT)
    share = min(1.0, num_tasks / count)
    return count, before[1] + (executed_ms / num_tasks - before[1]) * share


def read_learned(path: Path) -> LearnedDurations:
    """Read a file that `write_learned` wrote."""
    remedy = "move it away to learn afresh, or name another file"
    try:
        data: Any = parsed_json(path, read_file(path), "durations")
    except FormatError as error:
        raise FormatError(
            f"{path}: not a file of `parcae serve --learned` ({error}); {remedy}"
        ) from None
    if not isinstance(data, dict) or _FORMAT not in data:
        raise FormatError(
            f"{path}: not a file of `parcae serve --learned` (it has no {_FORMAT!r}); {remedy}"
        )
    if data[_FORMAT] != FORMAT_VERSION:
        raise FormatError(
            f"{path}: has version {data[_FORMAT]}; this Parcae reads {FORMAT_VERSION}: update "
            f"Parcae, or {remedy}"
        )
    learned = LearnedDurations()
    try:
        learned.restore(**{key: value for key, value in data.items() if key != _FORMAT})
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(
            f"{path}: not a file of `parcae serve --learned` ({error}); {remedy}"
        ) from None
    return learned


def write_learned(path: Path, learned: LearnedDurations) -> None:
    """Write a temporary file and rename it, so that a crash leaves the old file."""
    with replacing(path) as stream:
        stream.write(orjson.dumps({_FORMAT: FORMAT_VERSION, **learned.dump()}))
        stream.flush()
        os.fsync(stream.fileno())


class LearnedFile:
    """Keeps learned durations in a file.

    A failed write is logged and tried again later; it never ends the service.

    Raises:
        ConfigError: the folder of the file does not exist.
        FormatError, OSError: the file exists but cannot be read; see `read_learned`.
    """

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise ConfigError(
                f"--learned {path}: folder {path.parent} does not exist; make it first"
            )
        self.path = path
        self.learned = read_learned(path) if path.exists() else LearnedDurations()
        self._num_written = self.learned.num_changes

    def snapshot(self) -> LearnedDurations | None:
        """A copy to write, or None if nothing changed since the last write."""
        return self.learned.copy() if self.learned.num_changes != self._num_written else None

    def save(self, snapshot: LearnedDurations | None) -> None:
        """Write a snapshot; may run in another thread, since a snapshot does not change."""
        if snapshot is None:
            return
        try:
            write_learned(self.path, snapshot)
        except OSError as error:
            _LOG.error("learned durations are not written to %s: %s", self.path, error)
        else:
            self._num_written = snapshot.num_changes
