"""What an application's log lacks and where it contradicts itself, and which share of its task time
a workload has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from parcae.base.texts import MS_PER_S, s_from_ms, seconds_text
from parcae.workloads.import_report import counted
from parcae.workloads.job import topological_order
from parcae.workloads.spark_log.application import ApplicationLog, Outcome, TaskColumns
from parcae.workloads.spark_log.naming import JobGroup, began_before_log, execution_ids

#: A clock may be corrected by this much without a note.
CLOCK_MS = 1_000
#: If more of the logs' task time is missing, it is warned of, and counts in loads.
MUCH_LOST = 0.01
#: As many jobs, stages and logs are named as examples.
_SHOWN = 3
CLOCK = "had contradictory times, as after a clock was set back"
UNLISTED = "have no start in the log"
OF_OTHERS = "are of other users"
_CYCLE = "had stages whose parents form a cycle"
_UNKNOWN = "had a stage with a parent that the log does not contain"
_TOO_MANY = "had a stage in which more tasks ended than it says"
_TORN = "had no beginning in the log"


@dataclass(eq=False)
class LeftOut:
    """Jobs that are left out and their task time in ms, by reason, with a few of their names."""

    num_jobs: Counter[str] = field(default_factory=Counter)
    task_ms: Counter[str] = field(default_factory=Counter)
    examples: defaultdict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    #: Successful task time of the jobs that are not left out.
    kept_ms: int = 0
    #: Task time of jobs that the user did not ask for: no work is missing without them.
    unwanted_ms: int = 0

    def add(
        self, why: str, task_ms: int = 0, example: str = "", *, is_unwanted: bool = False
    ) -> None:
        """Count one job that is left out."""
        self.num_jobs[why] += 1
        self.task_ms[why] += task_ms
        self.unwanted_ms += task_ms * is_unwanted
        if example:
            self.examples[why][example] = None

    def sentences(self) -> list[str]:
        """Sentences for the user, one for each reason."""
        return [
            f"Left out {counted(count, 'job')} that {why}{_in_short(self.examples[why])}."
            for why, count in sorted(self.num_jobs.items())
        ]

    def in_short(self) -> list[str]:
        """The same without their beginnings, for errors: "1 job failed: etl"."""
        return [
            f"{counted(count, 'job')} {why}{_in_short(self.examples[why])}"
            for why, count in self.num_jobs.items()
        ]

    @property
    def lost_ms(self) -> int:
        """Task time of the log that is in no job that was kept."""
        return sum(self.task_ms.values())

    @property
    def factor(self) -> float:
        """The work that occupied the cores / that of the jobs that are kept."""
        missing_ms = self.lost_ms - self.unwanted_ms
        is_much = missing_ms > MUCH_LOST * (self.kept_ms + missing_ms)
        return 1 + missing_ms / self.kept_ms if is_much and self.kept_ms else 1.0

    @property
    def share(self) -> str:
        """How much of the log's task time is kept: "12 of 432 s (3%)"."""
        total_ms = self.kept_ms + self.lost_ms
        share = self.kept_ms / total_ms if total_ms else 1.0
        return f"{_seconds(self.kept_ms)} of {_seconds(total_ms)} s ({share:.0%})"

    @property
    def reasons(self) -> str:
        """Where the rest of the task time is: "420 s of jobs that failed"; "" if there is none."""
        return ", ".join(
            f"{_seconds(ms)} s of jobs that {why}" for why, ms in self.task_ms.most_common() if ms
        )


def _seconds(ms: int) -> str:
    return f"{s_from_ms(ms):,.0f}" if ms >= 10 * MS_PER_S else seconds_text(s_from_ms(ms))


def _in_short(examples: Mapping[str, None]) -> str:
    names = list(examples)
    more = ", ..." if len(names) > _SHOWN else ""
    return f": {', '.join(names[:_SHOWN])}{more}" if names else ""


@dataclass(eq=False)
class LostEnds:
    """How many tasks of completed stages have no end in the logs: Spark drops events under load."""

    num_lost: int = 0
    num_tasks: int = 0
    num_stages: int = 0
    examples: dict[str, None] = field(default_factory=dict)

    def add(self, checked: CheckedLog, in_log: str) -> None:
        """Add those of an application; `in_log` are words that name its log, if there are more."""
        self.num_lost += sum(checked.lost_ends.values())
        self.num_tasks += sum(checked.num_tasks.values())
        self.num_stages += len(checked.num_tasks)
        for stage, lost in checked.lost_ends.items():
            total = checked.num_tasks[stage]
            what = "all" if lost == total else f"{lost:,} of {total:,}"
            self.examples[f"{what} of stage {stage}{in_log}"] = None

    def __str__(self) -> str:
        stages = counted(self.num_stages, "completed stage")
        return f"{self.num_lost:,} of {self.num_tasks:,} tasks of {stages} have no end"

    @property
    def sentence(self) -> str:
        """A sentence for the user."""
        stages = _in_short(self.examples)
        return f"{self} in the log{stages}; shares of busy cores and loads are too low."


class CheckedLog:
    """An application's log, with what is missing or wrong in it."""

    def __init__(self, log: ApplicationLog) -> None:
        self.log = log
        self.tasks: TaskColumns = log.tasks()
        succeeded = self.tasks.outcome == Outcome.SUCCESS
        stages = self.tasks.stage_id
        self._task_ms = _by_stage(stages[succeeded], self.tasks.busy_ms[succeeded])
        ended = np.column_stack([stages, self.tasks.task_index])[succeeded]
        ended = ended[np.lexsort(ended.T)]
        is_new = np.any(np.diff(ended, axis=0, prepend=-2), axis=1)
        self.num_ended: Counter[int] = Counter(ended[is_new, 0].tolist())
        # Attempts are in order of launch.
        ids, first, of_row = np.unique(stages, return_index=True, return_inverse=True)
        launched_ms = self.tasks.launch_ms[first].tolist()
        self._launched_ms: dict[int, int] = dict(zip(ids.tolist(), launched_ms, strict=True))
        ended_ms = np.zeros(ids.size, np.int64)
        np.maximum.at(ended_ms, of_row, self.tasks.launch_ms + self.tasks.busy_ms)
        self._ended_ms: dict[int, int] = dict(zip(ids.tolist(), ended_ms.tolist(), strict=True))
        #: Begin and end of jobs that were left out, while which cores worked for them.
        self.others: list[tuple[int, int]] = []
        self.listed = {info.stage_id for job in log.jobs.values() for info in job.stages}
        #: Tasks of every completed stage; -1 tasks are not known (Spark 1.x).
        self.num_tasks = {
            stage_id: max(0, record.info.num_tasks)
            for stage_id, record in log.stages.items()
            if record.is_success
        }
        #: By completed stage, how many of its tasks have no successful end; only if there are any.
        self.lost_ends = {
            stage_id: lost
            for stage_id, num_tasks in self.num_tasks.items()
            if (lost := num_tasks - self.num_ended[stage_id]) > 0
        }

    def task_ms(self, stages: Iterable[int]) -> int:
        """The time in which cores worked for successful attempts of tasks of these stages."""
        return sum(self._task_ms.get(stage_id, 0) for stage_id in stages)

    def add_other(self, stages: Iterable[int]) -> None:
        """Note when a job that is left out ran, from the first task on to the last."""
        ran = [stage_id for stage_id in stages if stage_id in self._launched_ms]
        if ran:
            begin_ms = min(self._launched_ms[stage_id] for stage_id in ran)
            self.others.append((begin_ms, max(self._ended_ms[stage_id] for stage_id in ran)))

    def lost_work(self) -> list[tuple[int, int, int]]:
        """When stages ran of which ends of tasks are missing, and the time of these tasks.

        They took as long as the others of their stage; where all are missing, each as long as the
        stage while cores are free (in 31 real logs stages took .78 of that, .30 to .98).
        """
        found = []
        for stage_id, lost in self.lost_ends.items():
            record = self.log.stages[stage_id]
            begin_ms, end_ms = record.submission_ms, record.completion_ms
            ended = self.num_ended[stage_id]
            lost_ms = (
                lost * self._task_ms[stage_id] // ended if ended else lost * (end_ms - begin_ms)
            )
            if 0 <= begin_ms < end_ms:
                found.append((begin_ms, end_ms, lost_ms))
        return found

    @property
    def unlisted_ms(self) -> int:
        """The same for all stages that belong to no Spark job in the log."""
        return self.task_ms(self._task_ms.keys() - self.listed)

    @cached_property
    def _set_back(self) -> set[int]:
        """The Spark jobs that were submitted before one that stands before them in the log.

        Several threads may number them in another order than the driver's scheduler logs them.
        """
        latest_ms = -1
        found = set()
        for job_id, job in self.log.jobs.items():
            if 0 <= job.submission_ms < latest_ms - CLOCK_MS:
                found.add(job_id)
            latest_ms = max(latest_ms, job.submission_ms)
        return found

    def what_is_wrong(self, group: JobGroup, own: Sequence[int]) -> tuple[str, str] | None:
        """Why a job cannot be believed, and an example; None if nothing is wrong.

        `own` are its stages, see `naming.own_stages`.
        """
        if began_before_log(group, self.log):
            return _TORN, f"SQL execution {next(iter(execution_ids(group.jobs[0])))}"
        if what := self._wrong_time(group, own):
            return CLOCK, what
        parents = {info.stage_id: info.parents or () for job in group.jobs for info in job.stages}
        unknown = ((s, p) for s in parents for p in parents[s] if p not in self.listed)
        if pair := next(unknown, None):
            return _UNKNOWN, f"stage {pair[0]} has the parent {pair[1]}"
        position = {stage_id: index for index, stage_id in enumerate(parents)}
        rows = [tuple(position[p] for p in of if p in position) for of in parents.values()]
        _, stuck = topological_order(rows)
        if stuck:
            return _CYCLE, " -> ".join(str(list(parents)[index]) for index in _cycle(rows, stuck))
        for stage_id in own:
            record = self.log.stages.get(stage_id)
            # A later attempt may repeat tasks of which the first one did not have to run all.
            if record is None or record.last_attempt > 0 or record.info.num_tasks < 0:
                continue
            if self.num_ended[stage_id] > record.info.num_tasks:
                said = counted(record.info.num_tasks, "task")
                return _TOO_MANY, f"stage {stage_id} has {said}, {self.num_ended[stage_id]:,} ended"
        return None

    def _wrong_time(self, group: JobGroup, own: Sequence[int]) -> str:
        """What shows that the clock was set back while a job ran, or before; "" if nothing does."""
        for job in group.jobs:
            end_ms = self.log.job_end_ms.get(job.job_id, -1)
            if 0 < end_ms < job.submission_ms - CLOCK_MS:
                return f"Spark job {job.job_id} ends before it begins"
            if job.job_id in self._set_back:
                return f"Spark job {job.job_id} begins before an earlier one"
        for one in group.executions:
            if 0 < one.end_ms < one.time_ms - CLOCK_MS:
                return f"SQL execution {one.execution_id} ends before it begins"
        begin_ms = min(job.submission_ms for job in group.jobs)
        for stage_id in own:
            record = self.log.stages.get(stage_id)
            if record and 0 < record.completion_ms < record.submission_ms - CLOCK_MS:
                return f"stage {stage_id} ends before it begins"
            if self._launched_ms.get(stage_id, begin_ms) < begin_ms - CLOCK_MS:
                return f"a task of stage {stage_id} begins before its job"
        return ""


def _by_stage(stages: np.ndarray, ms: np.ndarray) -> dict[int, int]:
    ids, of_row = np.unique(stages, return_inverse=True)
    sums = np.zeros(ids.size, np.int64)
    np.add.at(sums, of_row, ms)
    return dict(zip(ids.tolist(), sums.tolist(), strict=True))


def _cycle(parents: Sequence[Sequence[int]], stuck: Iterable[int]) -> list[int]:
    """One of the cycles among stages, from a stage along its parents back to itself."""
    left = set(stuck)
    path: dict[int, None] = {}
    stage = min(left)
    # Every stuck stage has a stuck parent.
    while stage not in path:
        path[stage] = None
        stage = next(parent for parent in parents[stage] if parent in left)
    found = list(path)
    return [*found[found.index(stage) :], stage]
