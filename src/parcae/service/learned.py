"""What was learned of recurring jobs while serving: durations of their tasks, and how much work a run takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: Runs of a recurring job of which the total task time is kept.
NUM_RUNS = 5


class Learned:
    """Mean task durations by (name, position of the stage), and the task time of the last runs by name.

    Example: after `add_task("nightly", 0, 100)` and `add_task("nightly", 0, 200)`, `task_ms("nightly", 0)` is 150.0.
    """

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, int], tuple[int, float]] = {}
        self._runs: dict[str, tuple[int, ...]] = {}
        self.num_changes = 0

    def task_ms(self, name: str, position: int) -> float:
        """Mean duration of the tasks of this stage so far; 0 where none is known."""
        return self._tasks.get((name, position), (0, 0.0))[1]

    def run_ms(self, name: str) -> float:
        """Mean task time of the last runs of this recurring job; 0 where none is known."""
        runs = self._runs.get(name, ())
        return sum(runs) / len(runs) if runs else 0.0

    def add_task(self, name: str, position: int, duration_ms: int) -> float:
        """Add a task of a recurring job's stage. Returns the mean so far."""
        count, mean = self._tasks.get((name, position), (0, 0.0))
        mean += (duration_ms - mean) / (count + 1)
        self._tasks[name, position] = count + 1, mean
        self.num_changes += 1
        return mean

    def add_run(self, name: str, total_ms: int) -> None:
        """Add a whole run of a recurring job; a job without a name is none."""
        if name:
            self._runs[name] = (*self._runs.get(name, ()), total_ms)[-NUM_RUNS:]
            self.num_changes += 1

    def dump(self) -> dict[str, list[list[Any]]]:
        """All of it as plain lists: `tasks` [name, position, number of tasks, mean in ms], `runs` [name, task times in ms]."""
        return {
            "tasks": [[name, position, count, mean] for (name, position), (count, mean) in self._tasks.items()],
            "runs": [[name, list(runs)] for name, runs in self._runs.items()],
        }

    def recall(self, tasks: Iterable[Any] = (), runs: Iterable[Any] = ()) -> None:
        """Take up what another dumped.

        Raises:
            TypeError, ValueError: not what `dump` gives.
        """
        own_tasks = {(str(n), int(p)): (int(count), float(mean)) for n, p, count, mean in tasks}
        own_runs = {str(name): tuple(int(total) for total in totals)[-NUM_RUNS:] for name, totals in runs}
        self._tasks.update(own_tasks)
        self._runs.update(own_runs)
