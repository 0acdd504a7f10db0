"""`DurationModel`: estimates the task durations of submitted jobs and makes their table rows.

Durations come from the profile, by the first of the job's names that is in it. Otherwise they come
from what was learned from earlier jobs of that name, and otherwise they are guessed from the bytes
that the job reads.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ProtocolError
from parcae.cluster.state import NO_PROFILE, STAGE_SPEC
from parcae.service.learned import LearnedDurations, OwnDurations
from parcae.service.protocol import Code, JobMessage, StageMessage
from parcae.service.turns import make_way, paced
from parcae.simulation.tables import spec_rows
from parcae.workloads.guess import guess_new_task_ms
from parcae.workloads.job import JobSpec, children_of, longest_paths, spark_roots, topological_order
from parcae.workloads.workload import Workload, rows_by_name, usual_row

_Shape = tuple[tuple[int, tuple[int, ...]], ...]
#: Assumed task duration if there is no profile and nothing was learned.
ASSUMED_TASK_MS = 1_000.0
#: Work still expected of an open job that exceeds its estimate, as a share of its known work.
LEFT_SHARE = 0.25
#: Longest mean duration of a task that is accepted, in ms: 115 days.
LONGEST_TASK_MS = 10**10
#: Most steps that it may take to sum up the work of a job.
_MOST_STEPS = 1_000_000
#: Most tasks of a stage, known or estimated.
_MOST_TASKS = 10_000_000
#: A job exceeds its estimate if its known work is more than this many times the estimate.
_OUTLIVED = 1.001


@dataclass(frozen=True)
class RecurringJob:
    """By which names, and where, the durations of a job are looked up."""

    names: tuple[str, ...]
    rows: tuple[int, ...]
    keys: tuple[str, ...]
    learned: str
    guess_ms: float
    own: OwnDurations

    @property
    def is_learned(self) -> bool:
        """Whether its durations are learned, because the profile does not have it."""
        return not self.rows


@dataclass(frozen=True)
class JobRows:
    """A job in the form that the transition `job_arrived` takes, and its DAG by position."""

    specs: Any
    children: npt.NDArray[np.int64]
    profile: int
    roots: tuple[int, ...]
    parents: list[tuple[int, ...]]
    order: list[int]  # parents before children


def parents_by_index(
    job_id: str, ids: Sequence[int], stages: Sequence[StageMessage]
) -> list[tuple[int, ...]]:
    """The parents of each stage as positions in `ids`, ascending; checks the stages on the way.
    Returns a tuple of positions for each of `stages`.
    """
    index = {stage_id: position for position, stage_id in enumerate(ids)}
    if len(index) < len(ids):
        raise ProtocolError(
            Code.DUPLICATE_STAGE, f"job {job_id}: two of its stages have the same stage_id"
        )
    for stage in paced(stages):
        where = f"job {job_id}, stage {stage.stage_id}"
        missing = [parent for parent in stage.parents if parent not in index]
        if missing:
            raise ProtocolError(
                Code.BAD_JOB, f"{where}: parent {missing[0]} is not a stage of the job"
            )
        if not stage.finished <= stage.started <= stage.tasks:
            raise ProtocolError(
                Code.BAD_JOB,
                f"{where}: {stage.finished} tasks finished and {stage.started} started, of "
                f"{stage.tasks}",
            )
        check_executed(where, stage.finished, stage.executed_ms)
    return [tuple(sorted({index[parent] for parent in stage.parents})) for stage in stages]


def check_executed(where: str, num_finished: int, executed_ms: int) -> None:
    """Refuse a sum of task durations that no cluster can have."""
    if executed_ms > max(1, num_finished) * LONGEST_TASK_MS:
        raise ProtocolError(
            Code.BAD_JOB,
            f"{where}: {num_finished} tasks took {executed_ms} ms, more than 115 days each",
        )


def checked_order(job_id: str, parents: Sequence[tuple[int, ...]]) -> list[int]:
    """The indices of all stages, parents before children."""
    order, stuck = topological_order(parents)
    if stuck:
        raise ProtocolError(
            Code.BAD_JOB,
            f"job {job_id}: the stages at positions {stuck[:20]} form or follow a cycle",
        )
    if any(above and above[-1] > place for place, above in enumerate(parents)):
        _check_listing(job_id, parents, order)
    return order


def _check_listing(job_id: str, parents: Sequence[tuple[int, ...]], order: list[int]) -> None:
    """Refuse a job whose work would take long to sum up: it is done from the last stage to the
    first, as often as a path goes back in the list.
    """
    backward = [0] * len(order)
    for place in order:
        steps = (backward[parent] + (parent > place) for parent in parents[place])
        backward[place] = max(steps, default=0)
    if max(backward) * (len(order) + sum(map(len, parents))) > _MOST_STEPS:
        raise ProtocolError(
            Code.TOO_LARGE,
            f"job {job_id}: along a path {max(backward)} of its {len(order)} stages are listed "
            "before a parent; list parents first",
        )


class DurationModel:
    """Estimates of task durations by recurring job: from the profile, learned, or guessed.

    Example: a job named "q9-100g" with the same stages as in the TPC-H profile gets the durations
    of that profile.
    """

    def __init__(
        self,
        workload: Workload | None,
        *,
        is_learning: bool = True,
        learned: LearnedDurations | None = None,
    ) -> None:
        self.workload = workload = None if workload is None else workload.warm
        self.is_learning = is_learning
        self.learned = learned or LearnedDurations()
        self._own: dict[str, OwnDurations] = {}  # by application
        self._profiles: dict[tuple[str, _Shape], int] = {}
        self._named: dict[str, tuple[int, ...]] = {}
        self._guess: Callable[[float, int], float] = lambda _bytes, _tasks: ASSUMED_TASK_MS
        if workload is None:
            return
        self._named = rows_by_name(workload)
        self._guess = guess_new_task_ms(workload)
        jobs = workload.jobs
        self._alike = cache(lambda rows: _durations_like([jobs[row] for row in rows]))
        self._specs_of = cache(lambda row: spec_rows(jobs[row], 0))
        for name, rows in self._named.items():
            # Reversed, so that the first of several equal jobs wins.
            for row in reversed(rows):
                shape = tuple((stage.num_tasks, stage.parents) for stage in jobs[row].stages)
                self._profiles[name, shape] = row

    @property
    def typical_task_ms(self) -> float:
        """Duration of a typical task by the profile, in ms."""
        return self._guess(0.0, 1)

    def own(self, application: str) -> OwnDurations:
        """What an application has learned."""
        if application not in self._own:
            self._own[application] = OwnDurations(application, self.learned)
        return self._own[application]

    def forget(self, application: str) -> None:
        """Forget what an application that ends has learned, but for what all know."""
        self._own.pop(application, None)

    def look_up(
        self, application: str, names: Sequence[str], stages: Sequence[StageMessage]
    ) -> RecurringJob:
        """Look a job of an application up by its names, the preferred one first.

        The bytes that its root stages read decide the guess.
        """
        used = tuple(name for name in names if name)
        rows = next((self._named[name] for name in used if name in self._named), ())
        keys = used
        if used and stages:
            keys = (*used[:-1], _with_stages(used[-1], stages), used[-1])
        own = self.own(application)
        learned = next((key for key in keys if own.knows(key)), "")
        return RecurringJob(used, rows, keys, learned, self._guessed_ms(own, stages), own)

    def _guessed_ms(self, own: OwnDurations, stages: Sequence[StageMessage]) -> float:
        # Tasks of this cluster say more about its speed than the profile, once there are enough.
        if self.is_learning and own.any_task_ms:
            return max(1.0, own.any_task_ms)
        num_bytes = sum(stage.input_bytes or 0 for stage in stages if not stage.parents)
        return self._guess(num_bytes, sum(stage.tasks for stage in stages))

    def rows(self, job: JobMessage, recurring: RecurringJob) -> JobRows:
        """Make the table rows of a job."""
        parents = parents_by_index(job.job_id, [stage.stage_id for stage in job.stages], job.stages)
        order = checked_order(job.job_id, parents)
        make_way()
        roots = spark_roots(parents)
        shape = tuple(
            (stage.tasks, of_stage) for stage, of_stage in zip(job.stages, parents, strict=True)
        )
        profiles = (self._profiles.get((name, shape)) for name in recurring.names)
        profile = next((row for row in profiles if row is not None), NO_PROFILE)
        if profile != NO_PROFILE and not job.is_open:
            # Name and stages are those of a profiled job: so are its rows.
            rows, flat = self._specs_of(profile)
            whole = np.array(rows, STAGE_SPEC).view(np.recarray)
            return JobRows(whole, np.array(flat, np.int64), profile, roots, parents, order)
        if not job.stages and not job.is_open:
            raise ProtocolError(
                Code.BAD_JOB, f"job {job.job_id} has no stages; only an open job may have none yet"
            )
        if profile == NO_PROFILE and recurring.rows:
            assert self.workload is not None
            profile = usual_row(self.workload, recurring.rows)
        make_way()
        children = children_of(parents)
        # The hidden stage of an open job becomes stage 0, so all indices of the job move up by one.
        num_hidden = int(job.is_open)
        table = np.zeros(num_hidden + len(job.stages), STAGE_SPEC).view(np.recarray)
        specs = table[num_hidden:]
        num_children = [len(below) for below in children]
        specs["num_tasks"] = [stage.tasks for stage in job.stages]
        specs["num_parents"] = [len(above) for above in parents]
        specs["child_start"] = np.cumsum([0, *num_children])[:-1]
        specs["num_children"] = num_children
        specs["task_ms"] = self.durations(recurring, job.stages)
        specs["cpu"] = 1.0
        work_ms = specs["num_tasks"] * specs["task_ms"]
        specs["downstream_ms"] = longest_paths(children, order, work_ms.tolist())
        if job.is_open:
            tasks, hidden_ms = self.hidden_stage(recurring, float(work_ms.sum()))
            table[0] = (tasks, 1, 0, 0, hidden_ms, tasks * hidden_ms, 1.0, 0.0)
        flat = [child + num_hidden for below in children for child in below]
        return JobRows(
            table,
            np.array(flat, np.int64),
            profile,
            tuple(root + num_hidden for root in roots),
            parents,
            order,
        )

    def durations(
        self, recurring: RecurringJob, stages: Sequence[StageMessage], first: int = 0
    ) -> list[float]:
        """Mean task durations of some stages of a job, in ms; > 0 unless the profile has 0."""
        places = enumerate(stages, first)
        if recurring.rows:
            profiled_ms = self._alike(recurring.rows)
            return [profiled_ms(position, stage.tasks) for position, stage in places]
        # Nothing is learned about the empty name.
        learned_ms = (recurring.own.task_ms(recurring.learned, position) for position, _ in places)
        return [task_ms or recurring.guess_ms for task_ms in learned_ms]

    def hidden_stage(self, recurring: RecurringJob, known_ms: float) -> tuple[int, float]:
        """Estimate the stages of an open job that are not known yet, as one stage. Returns (number
        of tasks, at least 1; mean duration in ms).

        The estimate is the work of jobs of that name in the profile, or of their last runs, minus
        the known work (tasks x mean durations). For a job without estimate, or one that
        exceeds it, a share of the known work is assumed.
        """
        total_ms = recurring.own.run_ms(recurring.learned)
        if recurring.rows:
            total_ms = self._mean_work_ms(recurring.rows)
        task_ms = recurring.guess_ms
        if total_ms > 0.0 and known_ms <= _OUTLIVED * total_ms:
            left_ms = max(0.0, total_ms - known_ms)
        else:
            left_ms = LEFT_SHARE * max(known_ms, total_ms, task_ms)
        num_tasks = max(1, round(min(_MOST_TASKS, left_ms / max(1.0, task_ms))))
        return num_tasks, left_ms / num_tasks

    def _mean_work_ms(self, rows: Sequence[int]) -> float:
        """Mean work of profiled jobs; each counts as often as it ran."""
        assert self.workload is not None
        works_ms = [self.workload.jobs[row].work_ms for row in rows]
        all_weights = self.workload.weights
        weights = [1.0] * len(rows) if all_weights is None else [all_weights[row] for row in rows]
        # A workload may give some of its jobs no weight.
        return float(np.average(works_ms, weights=weights if sum(weights) > 0 else None))

    def tasks_finished(
        self, recurring: RecurringJob, position: int, count: int, executed_ms: int
    ) -> None:
        """Learn from finished tasks."""
        if not self.is_learning:
            return
        recurring.own.add_any_tasks(count, executed_ms)
        if recurring.is_learned:
            for key in recurring.keys:
                recurring.own.add_tasks(key, position, count, executed_ms)

    def job_finished(self, recurring: RecurringJob, worked_ms: int | None) -> None:
        """Learn the total work of a job that ended successfully.

        `worked_ms` is the sum of its task durations; None if the service did not see all tasks.
        """
        if self.is_learning and worked_ms is not None and recurring.is_learned:
            for key in recurring.keys:
                recurring.own.add_run(key, worked_ms)


def _with_stages(name: str, stages: Sequence[StageMessage]) -> str:
    """A key for the jobs of a name with the same DAG and, within a power of 2, as many tasks."""
    position = {stage.stage_id: index for index, stage in enumerate(stages)}
    digest = hashlib.sha256()
    for stage in paced(stages):  # a stage may have thousands of parents
        parents = sorted(position.get(parent, -1) for parent in stage.parents)
        digest.update(repr((stage.tasks.bit_length(), parents)).encode())
    return f"{name} [{digest.hexdigest()[:8]}]"


def _durations_like(jobs: Sequence[JobSpec]) -> Callable[[int, int], float]:
    """Mean task duration by position and number of tasks, from the profiled jobs of one name."""
    here: dict[tuple[int, int], set[float]] = defaultdict(set)
    alike: dict[int, list[float]] = defaultdict(list)
    for job in jobs:
        for position, stage in enumerate(job.stages):
            here[position, stage.num_tasks].add(stage.mean_task_ms)
            alike[stage.num_tasks].append(stage.mean_task_ms)
    # 1. The same position and number of tasks, if all profiled jobs of that name agree.
    agreed = {key: means.pop() for key, means in here.items() if len(means) == 1}
    # 2. The mean of all stages with that number of tasks.
    means = {num_tasks: float(np.mean(values)) for num_tasks, values in alike.items()}
    # 3. The mean of all tasks of those jobs.
    mean = sum(job.work_ms for job in jobs) / sum(job.num_tasks for job in jobs)
    return lambda position, num_tasks: agreed.get((position, num_tasks), means.get(num_tasks, mean))
