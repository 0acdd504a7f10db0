"""Durations that the service learns from recurring jobs, and the file that keeps them.

For each name it learns the mean task duration of every stage and the total work of the last runs.
What an application learned is used for itself; others use what two have learned alike.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from copy import copy
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, ValidationError

from parcae.base.errors import ConfigError, FormatError, first_problem
from parcae.base.files import lock_beside, replacing
from parcae.base.loader import read_file

_LOG = logging.getLogger(__name__)
#: Number of last runs of a recurring job whose total task time is kept.
NUM_RUNS = 5
#: Largest weight of the past in a mean, in tasks: so a mean still follows new durations.
_LARGEST_COUNT = 1_000
#: Largest number that is kept: a file has 64 bits for it.
_LARGEST = 1 << 62
#: Number of stages (and of jobs) that are kept; the least recently updated are dropped first.
_MAX_STAGES = 100_000
#: The same of one application.
_MAX_OWN_STAGES = 10_000
#: Applications whose value is kept while no two are alike, which differ by this factor at most.
_MOST_PROPOSALS = 3
_ALIKE = 2.0
#: After this many tasks of any jobs, their mean is used for jobs of which nothing is known.
_ENOUGH_TASKS = 50
#: The key of any job's tasks, and the position of a whole run in keys, beside those of stages.
_ANY = ("", -1)
_RUN = -1
#: What a value takes up in memory, in bytes.
_VALUE_BYTES = 400

Whole = Annotated[int, Field(ge=0, le=_LARGEST)]
Count = Annotated[int, Field(ge=1, le=_LARGEST)]


class LearnedValues(BaseModel):
    """Learned durations as they are written."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    #: (name, position of the stage, number of tasks, mean duration in ms).
    tasks: list[tuple[str, Whole, Count, NonNegativeFloat]] = []
    runs: list[tuple[str, list[Whole]]] = []
    any_task: tuple[Whole, NonNegativeFloat] = (0, 0.0)


class _Content(LearnedValues):
    """The content of a file."""

    parcae_learned: Literal[1]


class LearnedDurations:
    """Mean task durations by (name, position of the stage), and total task times of runs by name.

    Example: after `add_tasks("nightly", 0, 1, 100)` and `add_tasks("nightly", 0, 1, 200)`,
    `task_ms("nightly", 0)` is 150.0.
    """

    most = _MAX_STAGES

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, int], tuple[int, float]] = {}
        # By name, one more than the highest position of a stage.
        self._num_stages: dict[str, int] = {}
        self._runs: dict[str, tuple[int, ...]] = {}
        self._any_task: tuple[int, float] = (0, 0.0)
        self.num_changes = 0
        # What applications learned of a stage (or of a run, or of any job), the newest last.
        self._proposed: dict[tuple[str, int], tuple[tuple[str, float], ...]] = {}

    def task_ms(self, name: str, position: int) -> float:
        """Mean task duration of this stage so far; 0 if nothing was learned."""
        return self._tasks.get((name, position), (0, 0.0))[1]

    @property
    def any_task_ms(self) -> float:
        """Mean duration of the last tasks of all jobs; 0 if they were too few."""
        return self._any_task[1] if self._any_task[0] >= _ENOUGH_TASKS else 0.0

    def knows(self, name: str) -> bool:
        """Whether anything was learned about this recurring job."""
        return name in self._runs or (name, 0) in self._tasks

    def run_ms(self, name: str) -> float:
        """Mean total task time of the last runs of this recurring job; 0 if there is none."""
        runs = self._runs.get(name, ())
        return sum(runs) / len(runs) if runs else 0.0

    def add_tasks(self, name: str, position: int, count: int, executed_ms: int) -> None:
        """Add finished tasks of a stage."""
        before = self._tasks.get((name, position), (0, 0.0))
        self._put_task(name, position, _averaged(before, count, executed_ms))

    def _put_task(self, name: str, position: int, value: tuple[int, float]) -> None:
        _put_last(self._tasks, (name, position), value, self.most)
        num_stages = max(self._num_stages.get(name, 0), position + 1)
        _put_last(self._num_stages, name, num_stages, self.most)
        self.num_changes += 1

    def add_any_tasks(self, count: int, executed_ms: int) -> None:
        """Add finished tasks of any job."""
        self._any_task = _averaged(self._any_task, count, executed_ms)
        self.num_changes += 1

    def add_run(self, name: str, total_ms: int) -> None:
        """Add the total task time of a whole run; ignored if the job has no name."""
        if name:
            totals = (*self._runs.get(name, ()), min(total_ms, _LARGEST))
            _put_last(self._runs, name, totals[-NUM_RUNS:], self.most)
            self.num_changes += 1

    def propose(self, key: tuple[str, int], application: str, mean_ms: float) -> None:
        """Take what an application learned, if another one has learned nearly the same."""
        others = tuple(one for one in self._proposed.get(key, ()) if one[0] != application)
        for _, other_ms in reversed(others):
            low_ms, high_ms = sorted((mean_ms, other_ms))
            if high_ms <= _ALIKE * low_ms + 1.0:
                self._agree(key, (mean_ms + other_ms) / 2)
                break
        proposed = (*others, (application, mean_ms))
        _put_last(self._proposed, key, proposed[-_MOST_PROPOSALS:], self.most)

    def _agree(self, key: tuple[str, int], mean_ms: float) -> None:
        if key == _ANY:
            self._any_task = _LARGEST_COUNT, mean_ms
            self.num_changes += 1
        elif key[1] == _RUN:
            _put_last(self._runs, key[0], (round(mean_ms),), self.most)
            self.num_changes += 1
        else:
            self._put_task(*key, (_LARGEST_COUNT, mean_ms))

    def copy(self) -> LearnedDurations:
        """A copy that later changes do not affect."""
        other = LearnedDurations()
        vars(other).update({name: copy(value) for name, value in vars(self).items()})
        return other

    def dump(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Everything, or what is of some names, as plain values for JSON: see `LearnedValues`.

        Of names, another thread may learn meanwhile.
        """
        stages, jobs = list(self._tasks), list(self._runs)
        if names is not None:
            jobs = list(names)
            stages = [(one, at) for one in jobs for at in range(self._num_stages.get(one, 0))]
        return {
            "tasks": [(*stage, *mean) for stage in stages if (mean := self._tasks.get(stage))],
            "runs": [(name, runs) for name in jobs if (runs := self._runs.get(name))],
            "any_task": self._any_task,
        }

    def restore(self, values: LearnedValues) -> None:
        """Add what another object's `dump` returned."""
        for name, position, count, mean_ms in values.tasks:
            self._tasks[name, position] = count, mean_ms
            self._num_stages[name] = max(self._num_stages.get(name, 0), position + 1)
        self._runs.update((name, tuple(totals[-NUM_RUNS:])) for name, totals in values.runs)
        count, mean_ms = values.any_task
        if count > 0:
            self._any_task = min(count, _LARGEST_COUNT), mean_ms


class OwnDurations(LearnedDurations):
    """What one application has learned; where that is nothing, what is known to all."""

    most = _MAX_OWN_STAGES

    def __init__(self, application: str, shared: LearnedDurations) -> None:
        super().__init__()
        self._application = application
        self._shared = shared

    @property
    def num_bytes(self) -> int:
        """What it takes up in memory, about."""
        return _VALUE_BYTES * (len(self._tasks) + len(self._runs))

    def task_ms(self, name: str, position: int) -> float:
        """Mean task duration of this stage so far; 0 if nothing was learned."""
        return super().task_ms(name, position) or self._shared.task_ms(name, position)

    @property
    def any_task_ms(self) -> float:
        """Mean duration of the last tasks of all jobs; 0 if they were too few."""
        return super().any_task_ms or self._shared.any_task_ms

    def knows(self, name: str) -> bool:
        """Whether anything was learned about this recurring job."""
        return super().knows(name) or self._shared.knows(name)

    def run_ms(self, name: str) -> float:
        """Mean total task time of the last runs of this recurring job; 0 if there is none."""
        return super().run_ms(name) or self._shared.run_ms(name)

    def add_tasks(self, name: str, position: int, count: int, executed_ms: int) -> None:
        """Add finished tasks of a stage."""
        super().add_tasks(name, position, count, executed_ms)
        self._shared.propose((name, position), self._application, super().task_ms(name, position))

    def add_any_tasks(self, count: int, executed_ms: int) -> None:
        """Add finished tasks of any job."""
        super().add_any_tasks(count, executed_ms)
        if super().any_task_ms:
            self._shared.propose(_ANY, self._application, super().any_task_ms)

    def add_run(self, name: str, total_ms: int) -> None:
        """Add the total task time of a whole run; ignored if the job has no name."""
        super().add_run(name, total_ms)
        if name:
            self._shared.propose((name, _RUN), self._application, super().run_ms(name))


def _put_last(table: dict[Any, Any], key: object, value: object, most: int) -> None:
    """Set a value, in order of the last update; of too many, the oldest goes."""
    table.pop(key, None)
    table[key] = value
    if len(table) > most:
        del table[next(iter(table))]


def _averaged(before: tuple[int, float], num_tasks: int, executed_ms: int) -> tuple[int, float]:
    """Update (number of tasks, mean) with new tasks; the number is bounded, see _LARGEST_COUNT."""
    count = min(before[0] + num_tasks, _LARGEST_COUNT)
    share = min(1.0, num_tasks / count)
    return count, before[1] + (executed_ms / num_tasks - before[1]) * share


def read_learned(path: Path) -> LearnedDurations:
    """Read a file that `write_learned` wrote."""
    try:
        content = _Content.model_validate_json(read_file(path))
    except ValidationError as error:
        raise FormatError(
            f"{path}: not a file of `parcae serve --learned` of this version "
            f"({first_problem(error, 'the file')}); update Parcae, move it away to learn afresh, "
            "or name another file"
        ) from None
    learned = LearnedDurations()
    learned.restore(content)
    return learned


def write_learned(path: Path, learned: LearnedDurations) -> None:
    """Write a temporary file and rename it, so that a crash leaves the old file."""
    with replacing(path) as stream:
        stream.write(orjson.dumps({"parcae_learned": 1, **learned.dump()}))
        stream.flush()
        os.fsync(stream.fileno())


class LearnedFile:
    """Keeps learned durations in a file.

    A failed write is logged and tried again later; it never ends the service.

    Raises:
        ConfigError: the folder of the file does not exist, or another service has the file.
        FormatError, OSError: the file exists but cannot be read; see `read_learned`.
    """

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise ConfigError(
                f"--learned {path}: folder {path.parent} does not exist; make it first"
            )
        self.path = path
        self._lock = lock_beside(path, "writes what it learns to it")
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
