"""What was learned of recurring jobs while serving: durations of their tasks, and how much work a run takes; and its file."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from parcae.errors import ConfigError, FormatError
from parcae.files import replacing

_LOG = logging.getLogger(__name__)
FORMAT_VERSION = 1
_FORMAT = "parcae_learned"
#: Runs of a recurring job of which the total task time is kept.
NUM_RUNS = 5
#: Tasks after which a mean follows what is new as if there had been only so many.
_LARGEST_COUNT = 1_000
#: Stages that are remembered; those that were not heard of for longest are forgotten first.
_MAX_STAGES = 100_000


class Learned:
    """Mean task durations by (name, position of the stage), and the task time of the last runs by name.

    Example: after `add_tasks("nightly", 0, 1, 100)` and `add_tasks("nightly", 0, 1, 200)`, `task_ms("nightly", 0)` is 150.0.
    """

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, int], tuple[int, float]] = {}
        self._runs: dict[str, tuple[int, ...]] = {}
        self._any_task: tuple[int, float] = (0, 0.0)
        self.num_changes = 0

    def task_ms(self, name: str, position: int) -> float:
        """Mean duration of the tasks of this stage so far; 0 where none is known."""
        return self._tasks.get((name, position), (0, 0.0))[1]

    @property
    def any_task_ms(self) -> float:
        """Mean duration of the last tasks of whatever job; 0 where none is known."""
        return self._any_task[1]

    @property
    def num_any_tasks(self) -> int:
        """Tasks that `any_task_ms` is the mean of, so many at most."""
        return self._any_task[0]

    def knows(self, name: str) -> bool:
        """Whether anything is known of this recurring job."""
        return name in self._runs or (name, 0) in self._tasks

    def run_ms(self, name: str) -> float:
        """Mean task time of the last runs of this recurring job; 0 where none is known."""
        runs = self._runs.get(name, ())
        return sum(runs) / len(runs) if runs else 0.0

    def add_tasks(self, name: str, position: int, count: int, executed_ms: int) -> None:
        """Add finished tasks of a recurring job's stage, which took so long together."""
        self._tasks[name, position] = _averaged(
            self._tasks.pop((name, position), (0, 0.0)), count, executed_ms
        )
        if len(self._tasks) > _MAX_STAGES:
            del self._tasks[next(iter(self._tasks))]
        self.num_changes += 1

    def add_any_tasks(self, count: int, executed_ms: int) -> None:
        """Add finished tasks of whatever job."""
        self._any_task = _averaged(self._any_task, count, executed_ms)

    def add_run(self, name: str, total_ms: int) -> None:
        """Add a whole run of a recurring job; a job without a name is none."""
        if name:
            self._runs[name] = (*self._runs.pop(name, ()), total_ms)[-NUM_RUNS:]
            if len(self._runs) > _MAX_STAGES:
                del self._runs[next(iter(self._runs))]
            self.num_changes += 1

    def copy(self) -> Learned:
        """The same, which changes no more with this one."""
        other = Learned()
        other._tasks = dict(self._tasks)
        other._runs = dict(self._runs)
        other.num_changes = self.num_changes
        other._any_task = self._any_task
        return other

    def dump(self) -> dict[str, list[list[Any]]]:
        """All of it as plain lists: `tasks` [name, position, number of tasks, mean in ms], `runs` [name, task times in ms]."""
        return {
            "tasks": [
                [name, position, count, mean]
                for (name, position), (count, mean) in self._tasks.items()
            ],
            "runs": [[name, list(runs)] for name, runs in self._runs.items()],
        }

    def recall(self, tasks: Iterable[Any] = (), runs: Iterable[Any] = ()) -> None:
        """Take up what another dumped.

        Raises:
            TypeError, ValueError: not what `dump` gives.
        """
        own_tasks = {(str(n), int(p)): (int(count), float(mean)) for n, p, count, mean in tasks}
        own_runs = {
            str(name): tuple(int(total) for total in totals)[-NUM_RUNS:] for name, totals in runs
        }
        if any(count < 1 or not 0 <= mean < math.inf for count, mean in own_tasks.values()):
            raise ValueError("a count below 1, or a mean that is none")
        if any(total < 0 for totals in own_runs.values() for total in totals):
            raise ValueError("a negative task time")
        self._tasks.update(own_tasks)
        if own_tasks:
            total = sum(count for count, _ in own_tasks.values())
            self._any_task = (
                min(total, _LARGEST_COUNT),
                sum(count * mean for count, mean in own_tasks.values()) / total,
            )
        self._runs.update(own_runs)


def _averaged(before: tuple[int, float], num_tasks: int, executed_ms: int) -> tuple[int, float]:
    count = min(before[0] + num_tasks, _LARGEST_COUNT)
    share = min(1.0, num_tasks / count)
    return count, before[1] + (executed_ms / num_tasks - before[1]) * share


def read_learned(path: Path) -> Learned:
    """What a file holds that `write_learned` wrote.

    Raises:
        FormatError: it is not such a file, or one of another version; the message says what to do.
        OSError: it cannot be read.
    """
    remedy = "move it away to learn afresh, or name another file"
    try:
        data: Any = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise FormatError(
            f"{path}: not what `parcae serve --learned` writes ({error}); {remedy}"
        ) from None
    if not isinstance(data, dict) or _FORMAT not in data:
        raise FormatError(
            f"{path}: not what `parcae serve --learned` writes (no {_FORMAT!r} in it); {remedy}"
        )
    if data[_FORMAT] != FORMAT_VERSION:
        raise FormatError(
            f"{path}: of version {data[_FORMAT]}; this Parcae reads {FORMAT_VERSION}: update Parcae, or {remedy}"
        )
    learned = Learned()
    try:
        learned.recall(**{key: value for key, value in data.items() if key != _FORMAT})
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(
            f"{path}: not what `parcae serve --learned` writes ({error}); {remedy}"
        ) from None
    return learned


def write_learned(path: Path, learned: Learned) -> None:
    """Write a file under a temporary name, then rename it: a crash leaves the old one.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path) as stream:
        stream.write(orjson.dumps({_FORMAT: FORMAT_VERSION, **learned.dump()}))
        stream.flush()
        os.fsync(stream.fileno())


class LearnedFile:
    """Keeps what is learned in a file. A disk that fails is reported, and tried again; it never ends the service.

    Raises:
        ConfigError: the file's folder does not exist.
        FormatError, OSError: as `read_learned`, where there is a file.
    """

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise ConfigError(f"--learned {path}: there is no folder {path.parent}; make it first")
        self.path = path
        self.learned = read_learned(path) if path.exists() else Learned()
        self._num_written = self.learned.num_changes

    def snapshot(self) -> Learned | None:
        """What is to be written now, or None where nothing changed."""
        return self.learned.copy() if self.learned.num_changes != self._num_written else None

    def save(self, snapshot: Learned | None) -> None:
        """Write a snapshot; may run in another thread than what learns."""
        if snapshot is None:
            return
        try:
            write_learned(self.path, snapshot)
        except OSError as error:
            _LOG.error("what was learned is not written to %s: %s", self.path, error)
        else:
            self._num_written = snapshot.num_changes
