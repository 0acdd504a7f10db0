"""A recorded session under another policy: where it would have decided otherwise, and what the simulator makes of both."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from pydantic import TypeAdapter, ValidationError

from parcae.cluster.decision import Decision, Policy
from parcae.cluster.observation import Observation
from parcae.cluster.state import ANY_CLASS, NO_STAGE, ExecutorClass
from parcae.errors import FormatError, InputError, ProtocolError
from parcae.metrics.jobs import jct_ms
from parcae.service.jobs import DurationBook
from parcae.service.mirror import Mirror
from parcae.service.policies import policies_by_size
from parcae.service.protocol import Events, JobArrived, JobMessage, StagesAdded, Sync, TaskFinished
from parcae.service.record import Recording, find_recordings, read_recording
from parcae.service.session import Scope
from parcae.service.sizes import SlotSizes
from parcae.simulation.config import SimulationConfig
from parcae.simulation.run import simulate
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.job import JobSpec, StageSpec, TaskDurations, Workload

_REQUEST: TypeAdapter[Sync | Events] = TypeAdapter(Sync | Events)
#: Differences that are listed.
_NUM_LISTED = 20


@dataclass(frozen=True)
class Difference:
    """A question that the two answered differently: (application, job_id, stage_id) and a limit; None lets all idle."""

    clock_ms: int
    recorded: tuple[str, int, int] | None
    recorded_limit: int
    other: tuple[str, int, int] | None
    other_limit: int


@dataclass(frozen=True)
class Estimate:
    """What the simulator makes of the recorded jobs whose every stage was seen to run."""

    num_jobs: int
    num_left_out: int
    recorded_average_jct_ms: float
    other_average_jct_ms: float


@dataclass(frozen=True)
class Replay:
    """A recorded run under another policy.

    Args:
        num_stage: questions in which the two chose different stages.
        num_limit: questions in which they chose one stage and different executors: another number of them, or another class.
        num_lost: recorded requests that could not be followed (before the first sync, or refused then as now).
        differences: the first of them.
        estimate: None where no job was seen whole, or a policy cannot be simulated.
    """

    recorded_policy: str
    other_policy: str
    num_decisions: int
    num_stage: int
    num_limit: int
    num_lost: int
    differences: tuple[Difference, ...]
    estimate: Estimate | None

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and names."""
        return asdict(self)


@dataclass
class _Shadow:
    """Compares what was recorded with what the other policy would have done."""

    recorded: deque[dict[str, Any]]
    mirror: Mirror | None = None
    num_decisions: int = 0
    num_stage: int = 0
    num_limit: int = 0
    differences: list[Difference] = field(default_factory=list)

    def decide(self, observation: Observation, mine: Decision) -> Decision:
        """The recorded decision, compared with the other policy's; its own where the recording has ended."""
        if not self.recorded or self.mirror is None:
            return mine
        said, mirror = self.recorded.popleft(), self.mirror
        stage = NO_STAGE
        if said["stage_id"] is not None:
            stage = mirror.roster.stage_row(said["application"], said["job_id"], said["stage_id"])
        theirs = Decision(stage, int(said["limit"]), int(said.get("executor_class", ANY_CLASS)), int(said["hold_ms"]))
        self._compare(observation, mirror, theirs, mine)
        return theirs

    def _compare(self, observation: Observation, mirror: Mirror, theirs: Decision, mine: Decision) -> None:
        self.num_decisions += 1
        if theirs.stage != mine.stage:
            self.num_stage += 1
        elif theirs.stage != NO_STAGE and self._given(observation, theirs) != self._given(observation, mine):
            self.num_limit += 1
        else:
            return
        if len(self.differences) < _NUM_LISTED:
            clock_ms, their, own = (
                int(observation.now.clock_ms[0]),
                mirror.roster.stage_key(theirs.stage),
                mirror.roster.stage_key(mine.stage),
            )
            self.differences.append(Difference(clock_ms, their, theirs.limit, own, mine.limit))

    @staticmethod
    def _given(observation: Observation, decision: Decision) -> tuple[int, int]:
        """The class, and how many executors of it the stage gets."""
        executor_class = decision.executor_class if len(observation.classes) > 1 else ANY_CLASS
        offered = observation.now.num_source[0] if executor_class == ANY_CLASS else observation.source_count[executor_class]
        return executor_class, min(decision.limit, int(offered), observation.demand(decision.stage))


@dataclass
class _Recorded:
    """Decides as recorded, and asks the other policy what it would have done."""

    other: Policy
    shadow: _Shadow

    @property
    def name(self) -> str:
        return "recorded"

    def decide(self, observation: Observation) -> Decision:
        return self.shadow.decide(observation, self.other.decide(observation))


def replay_recording(paths: list[Path], policy: str, workload: Workload, moving_delay_ms: int = 0) -> Replay:
    """Follow a recording, decision by decision, and ask another policy at every question.

    Args:
        paths: the parts of a recording, or a folder, whose newest is taken.
        policy: the other policy, as in `parcae policies`.
        workload: the profile that durations are looked up in, and that learned policies are bound to.

    Raises:
        FormatError: not a recording.
        PolicyError: no such policy.
    """
    recording = read_recording(*find_recordings(paths))
    policy_for = policies_by_size(policy, workload, moving_delay_ms)
    policy_for(1)  # a policy that does not exist is refused here
    shadow = _Shadow(deque(r["decision"] for r in recording.lines if r.get("from") == "policy"))
    book = DurationBook(workload)
    _recall(book, recording.head.get("learned", {}))
    mirror = Mirror(
        lambda slots: _Recorded(policy_for(slots), shadow),
        book,
        is_shared=recording.head.get("scope") == Scope.CLUSTER.value,
        gives_up=False,
    )
    shadow.mirror = mirror
    seen = _Seen()
    num_lost = _follow(recording, mirror, seen)
    estimate = seen.estimate(str(recording.head["policy"]), policy, len(mirror.slots) or seen.num_slots, moving_delay_ms)
    return Replay(
        str(recording.head["policy"]),
        policy,
        shadow.num_decisions,
        shadow.num_stage,
        shadow.num_limit,
        num_lost,
        tuple(shadow.differences),
        estimate,
    )


def _recall(book: DurationBook, learned: Any) -> None:
    try:
        book.learned.recall(**learned)
    except (TypeError, ValueError):
        raise FormatError("a recording whose `learned` is none; was the file edited?") from None


def _follow(recording: Recording, mirror: Mirror, seen: _Seen) -> int:
    num_lost, waiting = 0, set[str]()
    for line in recording.lines:
        application = str(line.get("application"))
        if line.get("left"):
            mirror.leave(application)
        elif line.get("from") == "client" and line["message"].get("type") in ("sync", "events"):
            message = _request(line["message"])
            if application in waiting and not isinstance(message, Sync):
                num_lost += 1
                continue
            try:
                _carry_out(mirror, application, message)
                seen.add(application, message)
                waiting.discard(application)
            except ProtocolError:
                num_lost += 1
                waiting.add(application)
            mirror.take_commands()
    return num_lost


def _request(message: dict[str, Any]) -> Sync | Events:
    try:
        return _REQUEST.validate_json(orjson.dumps(message))
    except ValidationError:
        raise FormatError(f"a recorded {message.get('type')} that is not of protocol 1; was the file edited?") from None


def _carry_out(mirror: Mirror, application: str, message: Sync | Events) -> None:
    if isinstance(message, Sync):
        mirror.sync(application, message)
    else:
        mirror.events(application, message)


@dataclass
class _Seen:
    """Jobs and task durations that a recording tells of."""

    jobs: dict[tuple[str, int], JobMessage] = field(default_factory=dict)
    samples: dict[tuple[str, int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    num_slots: int = 1
    classes: tuple[ExecutorClass, ...] = ()  # where the slots have sizes

    def add(self, application: str, message: Sync | Events) -> None:
        if isinstance(message, Sync):
            self.num_slots = len(message.slots)
            sizes = SlotSizes().told(application, message)
            self.classes = sizes.classes([slot.slot for slot in message.slots])[0] if any(sizes.by_application.values()) else ()
            for job in message.jobs:
                known = self.jobs.setdefault((application, job.job_id), job)
                if len(job.stages) > len(known.stages):
                    self.jobs[application, job.job_id] = job
            return
        for event in message.events:
            if isinstance(event, JobArrived):
                self.jobs[application, event.job.job_id] = event.job
            elif isinstance(event, TaskFinished):
                self.samples[application, event.job_id, event.stage_id].append(event.duration_ms)
            elif isinstance(event, StagesAdded):
                job = self.jobs[application, event.job_id]
                self.jobs[application, event.job_id] = job.model_copy(update={"stages": (*job.stages, *event.stages)})

    def _spec(self, application: str, job: JobMessage) -> JobSpec | None:
        position = {stage.stage_id: index for index, stage in enumerate(job.stages)}
        stages = []
        for stage in job.stages:
            samples = self.samples.get((application, job.job_id, stage.stage_id))
            if not samples:
                return None
            own = np.array(samples, np.int64)
            parents = tuple(position[parent] for parent in stage.parents)
            stages.append(StageSpec(stage.tasks, TaskDurations((1,), (own,), (own,), (own,)), parents, stage.cpu, stage.memory))
        return JobSpec(job.name or f"job {job.job_id}", tuple(stages), job.arrival_ms)

    def estimate(self, recorded: str, other: str, num_slots: int, moving_delay_ms: int) -> Estimate | None:
        specs = [self._spec(application, job) for (application, _), job in self.jobs.items()]
        whole = sorted((s for s in specs if s is not None), key=lambda spec: spec.arrival_ms or 0)
        if not whole:
            return None
        workload = Workload("recorded", tuple(whole))
        arrival_ms = np.array([spec.arrival_ms or 0 for spec in whole], np.int64)
        sequence = JobSequence(workload, np.arange(len(whole)), arrival_ms - arrival_ms[0])
        config = SimulationConfig(
            num_executors=num_slots, executor_classes=self.classes, moving_delay_ms=moving_delay_ms, warmup_delay_ms=0
        )
        try:
            averages = [
                float(jct_ms(simulate(sequence, policies_by_size(name, workload, moving_delay_ms)(num_slots), config, 0)).mean())
                for name in (recorded, other)
            ]
        except (InputError, FileNotFoundError):
            return None
        return Estimate(len(whole), len(specs) - len(whole), *averages)
