"""A recorded session under another policy: where it would have ordered jobs otherwise, and what the simulator makes of both."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from pydantic import TypeAdapter, ValidationError

from parcae.errors import FormatError, InputError, ProtocolError
from parcae.metrics.jobs import jct_ms
from parcae.policies.guard import Guarded
from parcae.service.jobs import DurationBook
from parcae.service.mirror import Mirror
from parcae.service.policies import policies_for
from parcae.service.protocol import (
    Events,
    JobArrived,
    JobMessage,
    Orders,
    StageMessage,
    StagesAdded,
    State,
    TasksTold,
)
from parcae.service.record import Recording, find_recordings, read_recording
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.run import simulate
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.job import JobSpec, StageSpec, TaskDurations, Workload

_REQUEST: TypeAdapter[State | Events] = TypeAdapter(State | Events)
#: Differences that are listed, and jobs of each.
_NUM_LISTED = 20
_NUM_FIRST = 5


@dataclass(frozen=True)
class Difference:
    """An order in which the two differ: ids of the jobs that they serve first."""

    clock_ms: int
    recorded: tuple[str, ...]
    other: tuple[str, ...]


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
        num_orders: orders of one job or more that were compared.
        num_first: orders in which the two serve different jobs first.
        num_other: orders in which they serve the same job first, and the others in another order.
        num_lost: recorded requests that could not be followed (before the first state, or refused then as now).
        differences: the first of them.
        estimate: None where no job was seen whole, or a policy cannot be simulated.
    """

    recorded_policy: str
    other_policy: str
    num_orders: int
    num_first: int
    num_other: int
    num_lost: int
    differences: tuple[Difference, ...]
    estimate: Estimate | None

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and names."""
        return asdict(self)


@dataclass
class _Comparison:
    num_orders: int = 0
    num_first: int = 0
    num_other: int = 0
    differences: list[Difference] = field(default_factory=list)

    def add(self, clock_ms: int, recorded: Orders, other: Orders) -> None:
        """Compare two orders of the same jobs."""
        theirs = _ranked(recorded)
        mine = _ranked(other)
        if not theirs or {job for job, *_ in theirs} != {job for job, *_ in mine}:
            return
        self.num_orders += 1
        if theirs == mine:
            return
        first = _first(theirs)
        other_first = _first(mine)
        self.num_first += first[0] != other_first[0]
        self.num_other += first[0] == other_first[0]
        if len(self.differences) < _NUM_LISTED:
            self.differences.append(Difference(clock_ms, first, other_first))


def _ranked(orders: Orders) -> list[tuple[str, float, int | None]]:
    """(job, weight, limit), the first served first; jobs of one tier by their order of arrival."""
    return [
        (job.job_id, job.weight, job.limit) for job in sorted(orders.jobs, key=lambda job: job.tier)
    ]


def _first(ranked: list[tuple[str, float, int | None]]) -> tuple[str, ...]:
    return tuple(job for job, *_ in ranked[:_NUM_FIRST])


def replay_recording(paths: list[Path], policy: str, workload: Workload) -> Replay:
    """Follow a recording, and let another policy plan at every request.

    Args:
        paths: the parts of a recording, or a folder, whose newest is taken.
        policy: the other policy, as in `parcae policies`.
        workload: the profile that durations are looked up in, and that learned policies are bound to.

    Raises:
        FormatError: not a recording.
        PolicyError: no such policy.
    """
    recording = read_recording(*find_recordings(paths))
    policy_for = policies_for(policy, workload)
    policy_for(1)  # a policy that does not exist is refused here
    book = DurationBook(workload)
    _recall(book, recording.head.get("learned", {}))
    mirror = Mirror(policy_for, book, num_cores=recording.head.get("cores"))
    seen = _Seen()
    compared = _Comparison()
    num_lost = _follow(recording, mirror, seen, compared)
    return Replay(
        str(recording.head["policy"]),
        policy,
        compared.num_orders,
        compared.num_first,
        compared.num_other,
        num_lost,
        tuple(compared.differences),
        seen.estimate(
            str(recording.head["policy"]), policy, recording.head.get("cores") or seen.num_cores
        ),
    )


def _recall(book: DurationBook, learned: Any) -> None:
    try:
        book.learned.recall(**learned)
    except (TypeError, ValueError):
        raise FormatError("a recording whose `learned` is none; was the file edited?") from None


def _follow(recording: Recording, mirror: Mirror, seen: _Seen, compared: _Comparison) -> int:
    num_lost = 0
    waiting = set[str]()
    for line in recording.lines:
        application = str(line.get("application"))
        message = line.get("message", {})
        if line.get("left"):
            mirror.forget(application)
            mirror.settle()
        elif (
            line.get("from") == "service"
            and message.get("type") == "orders"
            and message.get("seq") is not None
        ):
            if application not in waiting:
                compared.add(
                    mirror.clock_ms,
                    Orders.model_validate_json(orjson.dumps(message)),
                    mirror.orders(application),
                )
        elif line.get("from") == "client" and message.get("type") in ("state", "events"):
            request = _request(message)
            if application in waiting and not isinstance(request, State):
                num_lost += 1
                continue
            try:
                _carry_out(mirror, application, request)
                seen.add(application, request)
                waiting.discard(application)
            except ProtocolError:
                num_lost += 1
                waiting.add(application)
    return num_lost


def _request(message: dict[str, Any]) -> State | Events:
    try:
        return _REQUEST.validate_json(orjson.dumps(message))
    except ValidationError:
        raise FormatError(
            f"a recorded {message.get('type')} that is not of protocol 2; was the file edited?"
        ) from None


def _carry_out(mirror: Mirror, application: str, message: State | Events) -> None:
    if isinstance(message, State):
        mirror.take_state(application, message)
    else:
        mirror.take_events(application, message)


@dataclass
class _Seen:
    """Jobs and task durations that a recording tells of."""

    jobs: dict[tuple[str, str], JobMessage] = field(default_factory=dict)
    samples: dict[tuple[str, str, int], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    num_cores: int = 1

    def add(self, application: str, message: State | Events) -> None:
        """Remember what a request tells of."""
        if message.cores:
            self.num_cores = message.cores
        if isinstance(message, State):
            for job in message.jobs:
                self._know(application, job)
            return
        for event in message.events:
            if isinstance(event, JobArrived):
                self._know(application, event.job)
            elif isinstance(event, TasksTold) and event.finished:
                samples = self.samples[application, event.job_id, event.stage_id]
                samples += [round(event.executed_ms / event.finished)] * event.finished
            elif isinstance(event, StagesAdded) and (application, event.job_id) in self.jobs:
                job = self.jobs[application, event.job_id]
                self._know(
                    application, job.model_copy(update={"stages": (*job.stages, *event.stages)})
                )

    def _know(self, application: str, job: JobMessage) -> None:
        known = self.jobs.get((application, job.job_id))
        if known is None or len(job.stages) > len(known.stages):
            self.jobs[application, job.job_id] = job

    def _spec(self, application: str, job: JobMessage) -> JobSpec | None:
        position = {stage.stage_id: index for index, stage in enumerate(job.stages)}
        stages = [self._stage(application, job.job_id, stage, position) for stage in job.stages]
        whole = [stage for stage in stages if stage is not None]
        if not whole or len(whole) < len(stages):
            return None
        return JobSpec(job.names[0] if job.names else job.job_id, tuple(whole), job.arrival_ms)

    def _stage(
        self, application: str, job_id: str, stage: StageMessage, position: dict[int, int]
    ) -> StageSpec | None:
        samples = self.samples.get((application, job_id, stage.stage_id))
        if not samples:
            return None
        own = np.array(samples, np.int64)
        parents = tuple(position[parent] for parent in stage.parents)
        return StageSpec(stage.tasks, TaskDurations((1,), (own,), (own,), (own,)), parents)

    def estimate(self, recorded: str, other: str, num_cores: int) -> Estimate | None:
        """Both policies in the simulator."""
        specs = [self._spec(application, job) for (application, _), job in self.jobs.items()]
        whole = sorted((s for s in specs if s is not None), key=lambda spec: spec.arrival_ms or 0)
        if not whole:
            return None
        workload = Workload("recorded", tuple(whole))
        arrival_ms = np.array([spec.arrival_ms or 0 for spec in whole], np.int64)
        sequence = JobSequence(workload, np.arange(len(whole)), arrival_ms - arrival_ms[0])
        config = SimulationConfig(world=WorldName.CORES, num_executors=num_cores)
        try:
            averages = [_average_jct_ms(name, sequence, config) for name in (recorded, other)]
        except (InputError, FileNotFoundError):
            return None
        return Estimate(len(whole), len(specs) - len(whole), *averages)


def _average_jct_ms(policy: str, sequence: JobSequence, config: SimulationConfig) -> float:
    live = policies_for(policy, sequence.workload)(config.num_executors)
    own = Guarded(policy, live.policy, live.guard) if live.guard else live.policy
    return float(jct_ms(simulate(sequence, own, config, 0)).mean())
