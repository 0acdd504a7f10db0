"""The jobs that a service saw, for the simulator: what they would have taken under another policy.

`parcae replay` and the live page play the same jobs under two policies. The driver's time is what a
recording shows of it: from the ends of a stage's parents to its first task, while a core was free,
and from the last task to the end of the job. Other delays are left out on both sides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.base.errors import InputError
from parcae.base.texts import MS_PER_HOUR
from parcae.service.policies import policies_for
from parcae.service.protocol import (
    Event,
    Events,
    JobArrived,
    JobEnded,
    JobMessage,
    StageChanged,
    StageMessage,
    StagesAdded,
    StateMessage,
    TasksReported,
)
from parcae.service.session import Session, Watcher
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.metrics import jct_ms
from parcae.simulation.simulator import simulate
from parcae.workloads.durations import MOST_EXECUTORS, TaskDurations
from parcae.workloads.job import DriverTime, JobSpec, StageSpec
from parcae.workloads.workload import JobSequence, Workload

#: No driver is taken to be busy for longer at once: a day.
_LONGEST_MS = 24 * MS_PER_HOUR


class _Now(NamedTuple):
    """The clock of a cluster, and for how long a core of it was free until then, in ms."""

    clock_ms: int = 0
    free_ms: int = 0
    is_free: bool = False

    def at(self, clock_ms: int, is_free: bool) -> _Now:
        """The same later, when a core is or is not free from then on."""
        passed_ms = max(0, clock_ms - self.clock_ms)
        return _Now(clock_ms, self.free_ms + passed_ms * self.is_free, is_free)


@dataclass
class _RecordedJob:
    """A job and its task durations in a recording."""

    name: str
    arrival_ms: int
    is_open: bool
    arrived: _Now
    #: When the first task of a stage started, and when its last one and the job ended.
    began: dict[int, _Now] = field(default_factory=dict)
    done: dict[int, _Now] = field(default_factory=dict)
    ended: _Now | None = None
    has_ended: bool = False
    stages: dict[int, StageMessage] = field(default_factory=dict)
    samples: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # by stage
    #: The stages that were complete when a stage was added.
    complete_before: dict[int, set[int]] = field(default_factory=dict)
    #: Stages that ran, at least in part, when nothing was recorded.
    unseen: set[int] = field(default_factory=set)
    #: Mean task durations by stage as the service expected them: its policy knew no others.
    expected_ms: dict[int, float] = field(default_factory=dict)

    def list_stages(self, stages: Sequence[StageMessage]) -> None:
        """Keep the stages of a message with the whole job if they are not fewer."""
        # A later state has the tasks that stages have by then: where Spark runs a skipped stage
        # after all, only those whose output is lost.
        if len(stages) >= len(self.stages):
            self.stages = {stage.stage_id: stage for stage in stages}

    def take(self, event: Event, now: _Now) -> None:
        """Apply an event of the job."""
        if isinstance(event, TasksReported):
            self.began.setdefault(event.stage_id, now)
            if event.finished:
                # Only the sum of the durations is known: each task gets their mean.
                samples = self.samples[event.stage_id]
                samples += [round(event.executed_ms / event.finished)] * event.finished
                self.done[event.stage_id] = now
        elif isinstance(event, StagesAdded):
            complete = set(filter(self._is_complete, self.stages))
            for stage in event.stages:
                self.complete_before[stage.stage_id] = complete
                self.stages[stage.stage_id] = stage
        elif isinstance(event, StageChanged):
            changed = self.stages[event.stage_id].model_copy(update={"tasks": event.tasks})
            self.stages[event.stage_id] = changed
        elif isinstance(event, JobEnded):
            self.has_ended |= not event.is_failed
            self.ended = now

    def _is_complete(self, stage_id: int) -> bool:
        """Whether the recording shows all tasks of a stage."""
        return len(self.samples[stage_id]) >= self.stages[stage_id].tasks

    def spec(self) -> JobSpec | None:
        """The job for the simulator; None if it did not end, or ran when nothing was recorded.

        Stages without a task are left out: Spark skipped them, since their output was there.
        """
        # A job that is not open ends with its last task, without a message.
        is_over = self.has_ended or (not self.is_open and all(map(self._is_complete, self.stages)))
        ran = {stage_id: row for row, stage_id in enumerate(filter(self.samples.get, self.stages))}
        if not is_over or not ran or self.unseen & self.stages.keys() - ran.keys():
            return None
        stages = []
        gap_ms = []
        for stage_id in ran:
            times = np.array(self.samples[stage_id], np.int64)
            before = self._parents(stage_id) & ran.keys()
            parents = sorted(ran[parent] for parent in before)
            ready_ms = max(
                now.free_ms for now in (self.arrived, *(self.done[parent] for parent in before))
            )
            gap_ms.append(max(0, self.began[stage_id].free_ms - ready_ms))
            durations = TaskDurations.of(times)
            expected_ms = self.expected_ms.get(stage_id, -1.0)
            num_tasks = self.stages[stage_id].tasks
            spec = StageSpec(num_tasks, durations, tuple(parents), mean_task_ms=expected_ms)
            stages.append(spec)
        last_ms = max(self.done[stage_id].clock_ms for stage_id in ran)
        tail_ms = 0 if self.ended is None else max(0, self.ended.clock_ms - last_ms)
        # A client's clock may have jumped by years.
        gaps_ms = np.minimum(np.array([gap_ms], np.int64), _LONGEST_MS)
        tails_ms = np.minimum(np.array([tail_ms], np.int64), _LONGEST_MS)
        driver = DriverTime(gaps_ms, np.zeros_like(gaps_ms), tails_ms)
        return JobSpec(self.name, tuple(stages), self.arrival_ms, driver_time=driver)

    def _parents(self, stage_id: int) -> set[int]:
        """The stages that a stage waits for; some of them may have been skipped.

        Where Spark skipped a parent, the output is that of a stage before, which has another id.
        The recording does not say of which: the stage waits for all that were complete when it was
        added, as it did.
        """
        found: set[int] = set()
        pending = list(self.stages[stage_id].parents)
        while pending:
            parent = pending.pop()
            if parent in found:
                continue
            found.add(parent)
            if not self.samples[parent]:
                pending += self.stages[parent].parents
                found |= self.complete_before.get(stage_id, set())
        return found


#: The key of a job: its application and its id.
JobKey = tuple[str, str]


class SimulatedJobs(NamedTuple):
    """What jobs take under each of some policies in the simulator, float64[num_jobs] each.

    `keys` are the jobs that were seen whole, by arrival; `num_left_out` counts the others.
    """

    keys: list[JobKey]
    num_left_out: int
    jct_ms: list[npt.NDArray[np.float64]]


class RecordedJobs(Watcher):
    """The jobs that a service has seen, as it understands them."""

    def __init__(self) -> None:
        #: By application, the most cores that it had: when idle, it may give up almost all.
        self.num_cores: dict[str, int] = {}
        self.jobs: dict[JobKey, _RecordedJob] = {}
        self._now: dict[str, _Now] = defaultdict(_Now)  # by cluster

    def answered(self, session: Session, message: StateMessage | Events, took_ms: float) -> None:
        """Add the jobs and finished tasks of a request."""
        application = session.application
        self.num_cores[application] = max(self.num_cores.get(application, 1), message.cores or 0)
        mirror = session.service.mirror_of(application)
        cluster = session.service.key_of(application)
        now = self._now[cluster].at(mirror.clock_ms, mirror.num_running < mirror.num_cores)
        self._now[cluster] = now
        new: set[str] = set()
        if isinstance(message, StateMessage):
            for job in message.jobs:
                known = self._known(application, job, now)
                began = {stage.stage_id for stage in job.stages if stage.finished}
                known.unseen |= {stage for stage in began if not known.samples[stage]}
                new.add(job.job_id)
        else:
            for event in message.events:
                if isinstance(event, JobArrived):
                    self._known(application, event.job, now)
                    new.add(event.job.job_id)
                elif job_of_event := self.jobs.get((application, event.job_id)):
                    job_of_event.take(event, now)
                    if isinstance(event, StagesAdded):
                        new.add(event.job_id)
        for job_id in new:
            self._note_expected(session, (application, job_id))

    def _note_expected(self, session: Session, key: JobKey) -> None:
        """Keep how long the service expects the tasks of a job's new stages to take."""
        mirror = session.service.mirror_of(session.application)
        live = mirror.jobs.get(key)
        if live is None:
            return
        expected_ms = self.jobs[key].expected_ms
        for stage_id, position in live.positions.items():
            if stage_id not in expected_ms:
                row = mirror.stage_row(live, position)
                expected_ms[stage_id] = float(mirror.state.stages["task_ms"][row])

    def _known(self, application: str, message: JobMessage, now: _Now) -> _RecordedJob:
        """The job of a message, which may have been in an earlier one."""
        name = message.names[0] if message.names else message.job_id
        job = self.jobs.setdefault(
            (application, message.job_id),
            _RecordedJob(name, message.arrival_ms, message.is_open, now),
        )
        job.list_stages(message.stages)
        return job

    def num_tasks(self, key: JobKey) -> int:
        """Number of finished tasks of a job; 0 if it is not known."""
        return sum(map(len, self.jobs[key].samples.values())) if key in self.jobs else 0

    def keep(self, keys: Iterable[JobKey]) -> None:
        """Forget all other jobs."""
        self.jobs = {key: self.jobs[key] for key in keys if key in self.jobs}
        # Those that share a cluster have one clock, named "".
        clusters = {"", *(application for application, _ in self.jobs)}
        self._now = defaultdict(_Now, ((c, now) for c, now in self._now.items() if c in clusters))

    def simulated(
        self, policies: Sequence[str], num_cores: int, keys: Iterable[JobKey] | None = None
    ) -> SimulatedJobs | None:
        """Play the jobs (those of the keys) under each policy.

        None if none was seen whole, or a policy or so many cores cannot be simulated.
        """
        chosen = [(key, self.jobs[key]) for key in keys or self.jobs if key in self.jobs]
        specs = [(key, job.spec()) for key, job in chosen]
        whole = [(key, spec) for key, spec in specs if spec is not None]
        if not whole or num_cores > MOST_EXECUTORS:
            return None
        whole.sort(key=lambda one: one[1].arrival_ms or 0)
        arrival_ms = np.array([spec.arrival_ms for _, spec in whole], np.int64)
        workload = Workload("recorded", tuple(spec for _, spec in whole))
        sequence = JobSequence(workload, np.arange(len(whole)), arrival_ms - arrival_ms[0])
        config = SimulationConfig(world=WorldName.CORES, num_executors=num_cores)
        try:
            # A policy that is given twice is played once.
            played = {name: _played_ms(name, sequence, config) for name in policies}
        except (InputError, FileNotFoundError):
            return None
        times = [played[name] for name in policies]
        return SimulatedJobs([key for key, _ in whole], len(specs) - len(whole), times)


def _played_ms(
    policy: str, sequence: JobSequence, config: SimulationConfig
) -> npt.NDArray[np.float64]:
    live = policies_for(policy, sequence.workload)(config.num_executors)
    return jct_ms(simulate(sequence, live.accounts or live.policy, config, 0)).astype(np.float64)
