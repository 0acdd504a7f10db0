"""`replay_recording`: compares the recorded orders of a session with those of another policy.

It also estimates both policies' average JCT by simulating the recorded jobs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson
from pydantic import TypeAdapter, ValidationError

from parcae.base.errors import FormatError, InputError, ProtocolError
from parcae.base.loader import whole_number
from parcae.base.texts import MS_PER_S
from parcae.policies.additions import Guarded
from parcae.service.jobs import DurationModel
from parcae.service.live_tables import LiveSettings
from parcae.service.mirror import Mirror
from parcae.service.policies import PolicyFor, policies_for
from parcae.service.protocol import (
    Events,
    JobArrived,
    JobEnded,
    JobMessage,
    OrdersMessage,
    StageChanged,
    StageMessage,
    StagesAdded,
    StateMessage,
    TasksReported,
)
from parcae.service.record import Recording, find_recordings, read_recording
from parcae.service.session import Meaning, meaning_of
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.metrics import jct_ms
from parcae.simulation.simulator import simulate
from parcae.workloads.durations import MOST_EXECUTORS, TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import JobSequence, Workload

#: Number of differences that are listed.
_NUM_LISTED = 20
#: Number of jobs that a listed difference shows of each order.
_NUM_SHOWN = 5


class Kind(StrEnum):
    """How two orders differ: the first of these that applies."""

    #: Other jobs are served first.
    FIRST = "first"
    #: The same jobs are served first, and later ones in another order.
    LATER = "later"
    #: All jobs have the same order, and other weights or limits.
    SHARES = "shares"
    #: Only the order of stages, or their limits, differ.
    STAGES = "stages"


@dataclass(frozen=True)
class ReplayedShare:
    """A job with its weight among those that it shares with, and its limit (None: no limit)."""

    job_id: str
    weight: float
    limit: int | None


#: Jobs in the order of service, in groups of jobs that share.
Shares = tuple[tuple[ReplayedShare, ...], ...]


@dataclass(frozen=True)
class Difference:
    """A moment at which the orders differ.

    Args:
        clock_ms: the cluster's clock.
        since_ms: time since the first order that was compared.
        kind: how they differ.
        recorded: the recorded order from its first different place on, in groups that share.
        other: the same of the other policy.
    """

    clock_ms: int
    since_ms: int
    kind: Kind
    recorded: Shares
    other: Shares


@dataclass
class ReplayedOrders:
    """Counts the kinds of differences between recorded and other orders, and lists the first."""

    num_orders: int = 0
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    differences: list[Difference] = field(default_factory=list)
    _first_ms: int = 0

    def add(
        self,
        clock_ms: int,
        recorded: OrdersMessage,
        other: OrdersMessage,
        stages_of: Mapping[str, Collection[int]],
    ) -> None:
        """Compare two orders; orders without jobs, or of different jobs, are ignored."""
        meanings = meaning_of(recorded), meaning_of(other)
        if not meanings[0].jobs or meanings[0].jobs.keys() != meanings[1].jobs.keys():
            return
        if self.num_orders == 0:
            self._first_ms = clock_ms
        self.num_orders += 1
        kind, orders = _compare(*meanings, stages_of)
        if kind is None:
            return
        self.counts[kind] += 1
        if len(self.differences) < _NUM_LISTED:
            since_ms = clock_ms - self._first_ms
            self.differences.append(Difference(clock_ms, since_ms, kind, *orders))


def _compare(
    recorded: Meaning, other: Meaning, stages_of: Mapping[str, Collection[int]]
) -> tuple[Kind | None, tuple[Shares, Shares]]:
    """How the orders differ (None: not), and both orders from their first different group on."""
    orders = _shares(recorded, stages_of), _shares(other, stages_of)
    ids = _ids(orders[0]), _ids(orders[1])
    if ids[0] != ids[1]:
        begin = _num_equal(*ids)
        kind = Kind.FIRST if begin == 0 else Kind.LATER
        return kind, (_shown(orders[0][begin:]), _shown(orders[1][begin:]))
    if orders[0] != orders[1]:
        begin = _num_equal(*orders)
        return Kind.SHARES, (_shown(orders[0][begin:]), _shown(orders[1][begin:]))
    if recorded.stages != other.stages:
        jobs = {key[0] for key, _ in recorded.stages.items() ^ other.stages.items()}
        return Kind.STAGES, (_only(jobs, orders[0]), _only(jobs, orders[1]))
    return None, orders


def _shares(meaning: Meaning, stages_of: Mapping[str, Collection[int]]) -> Shares:
    """All jobs in the order of service, in groups of jobs that share.

    Only the ratios of a group's weights matter, so they are divided by the largest.
    """
    shares = []
    for group in meaning.groups(stages_of):
        jobs = [meaning.jobs[job_id] for job_id in group]
        largest = max(job.weight for job in jobs) or 1.0
        shares.append(
            tuple(
                ReplayedShare(
                    job_id, round(job.weight / largest, 6) if len(group) > 1 else 1.0, job.limit
                )
                for job_id, job in zip(group, jobs, strict=True)
            )
        )
    return tuple(shares)


def _ids(order: Shares) -> list[list[str]]:
    return [[share.job_id for share in group] for group in order]


def _num_equal(one: Sequence[object], other: Sequence[object]) -> int:
    """How many groups are equal at the beginning of both orders."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _only(jobs: set[str], order: Shares) -> Shares:
    """The groups without any other job."""
    kept = (tuple(share for share in group if share.job_id in jobs) for group in order)
    return _shown(tuple(group for group in kept if group))


def _shown(order: Shares) -> Shares:
    """The first groups, with at most `_NUM_SHOWN` jobs together."""
    shown: list[tuple[ReplayedShare, ...]] = []
    room = _NUM_SHOWN
    for group in order:
        if room == 0:
            break
        shown.append(group[:room])
        room -= len(shown[-1])
    return tuple(shown)


T = TypeVar("T")
#: Times above this are no times of a recording.
_LAST_MS = 1 << 53
_REQUEST: TypeAdapter[StateMessage | Events] = TypeAdapter(StateMessage | Events)
_ORDERS: TypeAdapter[OrdersMessage] = TypeAdapter(OrdersMessage)


@dataclass(frozen=True)
class ReplayedEstimate:
    """Average JCT of both policies in the simulator, over jobs with known durations of all stages.

    `num_left_out` is the number of jobs that the recording does not show completely.
    """

    num_jobs: int
    num_left_out: int
    recorded_average_jct_ms: float
    other_average_jct_ms: float


@dataclass(frozen=True)
class Replay:
    """The comparison of a recording with another policy.

    Args:
        recorded_policy: name of the policy of the recording.
        other_policy: name of the policy that it is compared with.
        num_orders: number of compared orders; they have at least one job.
        counts: how many of them differ, by kind (see `Kind`).
        num_lost: recorded requests that could not be applied: before the first state, or refused.
        differences: the first differences.
        estimate: None if no job was recorded completely, or a policy or so many cores cannot be
            simulated.
    """

    recorded_policy: str
    other_policy: str
    num_orders: int
    counts: dict[Kind, int]
    num_lost: int
    differences: tuple[Difference, ...]
    estimate: ReplayedEstimate | None

    def to_json(self) -> dict[str, Any]:
        """The result as a dictionary for JSON."""
        return asdict(self)


def replay_recording(paths: list[Path], policy: str, workload: Workload) -> Replay:
    """Apply the requests of a recording to a mirror, and let another policy plan each time."""
    recording = read_recording(*find_recordings(paths))
    policy_for = policies_for(policy, workload)
    policy_for(1)  # raises an error now if the policy does not exist
    duration_model = DurationModel(workload)
    _restore(duration_model, recording, recording.head.get("learned", {}))
    recorded = _RecordedJobs()
    compared = ReplayedOrders()
    num_lost = _follow(recording, policy_for, duration_model, recorded, compared)
    return Replay(
        str(recording.head["policy"]),
        policy,
        compared.num_orders,
        compared.counts,
        num_lost,
        tuple(compared.differences),
        recorded.estimate(
            str(recording.head["policy"]), policy, recording.head.get("cores") or recorded.num_cores
        ),
    )


def _restore(duration_model: DurationModel, recording: Recording, learned: Any) -> None:
    try:
        duration_model.learned.restore(**learned)
    except (TypeError, ValueError, OverflowError):
        raise FormatError(
            f"{recording.source}: `learned` has a wrong form; was the file edited?"
        ) from None


def _follow(
    recording: Recording,
    policy_for: PolicyFor,
    duration_model: DurationModel,
    recorded: _RecordedJobs,
    compared: ReplayedOrders,
) -> int:
    """Apply all lines of the recording. Returns the number of requests that were lost."""
    wall_s = 0.0
    settings = LiveSettings(num_cores=recording.head.get("cores"))
    mirror = Mirror(policy_for, duration_model, settings, now_s=lambda: wall_s)
    num_lost = 0
    waiting = set[str]()  # applications whose next usable request is a `state`
    last_seq = dict[str, int]()  # by application, the number of its last usable request
    for line in recording.lines:
        wall_s = _wall_s(recording, line)
        application = str(line.get("application"))
        message = line.get("message", {})
        kind = message.get("type")
        if line.get("left"):
            last_seq.pop(application, None)
            mirror.forget(application)
            mirror.settle()
        elif "learned" in line:
            _restore(duration_model, recording, line["learned"])
        elif line.get("from") == "service" and kind == "orders" and message.get("seq") is not None:
            if application not in waiting:
                orders = _parsed(recording, _ORDERS, message)
                stages_of = mirror.stages_of(application)
                compared.add(mirror.clock_ms, orders, mirror.orders(application), stages_of)
        elif line.get("from") == "client" and kind in ("state", "events"):
            request = _parsed(recording, _REQUEST, message)
            is_old = request.seq <= last_seq.get(application, -1)
            is_useless = is_old or (
                application in waiting and not isinstance(request, StateMessage)
            )
            if not is_old:
                last_seq[application] = request.seq
            if is_useless or not _is_accepted(mirror, application, request):
                # As the service does: nothing of the application stays, not even the events before.
                mirror.forget(application)
                mirror.settle()
                num_lost += 1
                waiting.add(application)
            else:
                recorded.add(application, request)
                waiting.discard(application)
    return num_lost


def _wall_s(recording: Recording, line: dict[str, Any]) -> float:
    """When the service wrote a line, in s since 1970."""
    where = f"{recording.source}: wall_ms"
    return whole_number(where, line.get("wall_ms", 0), 0, _LAST_MS) / MS_PER_S


def _parsed(recording: Recording, adapter: TypeAdapter[T], message: dict[str, Any]) -> T:
    try:
        return adapter.validate_json(orjson.dumps(message))
    except ValidationError:
        raise FormatError(
            f"{recording.source}: a recorded {message.get('type')} is not a message of protocol 2; "
            "was the file edited?"
        ) from None


def _is_accepted(mirror: Mirror, application: str, message: StateMessage | Events) -> bool:
    """Apply a request. Returns whether it agrees with the state, which is half changed if not."""
    try:
        if isinstance(message, StateMessage):
            mirror.take_state(application, message)
        else:
            mirror.take_events(application, message)
    except ProtocolError:
        return False
    return True


@dataclass
class _RecordedJobs:
    """The jobs and task durations in a recording."""

    jobs: dict[tuple[str, str], JobMessage] = field(default_factory=dict)
    samples: dict[tuple[str, str, int], list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    num_cores: int = 1
    ended: set[tuple[str, str]] = field(default_factory=set)
    #: The stages of its job that were complete when a stage was added.
    complete_before: dict[tuple[str, str, int], set[int]] = field(default_factory=dict)
    #: Stages that ran, at least in part, when nothing was recorded.
    unseen: set[tuple[str, str, int]] = field(default_factory=set)

    def add(self, application: str, message: StateMessage | Events) -> None:
        """Add the jobs and finished tasks of a request."""
        # The most that there were: when idle, an application may give up almost all of its cores.
        self.num_cores = max(self.num_cores, message.cores or 0)
        if isinstance(message, StateMessage):
            for job in message.jobs:
                self._add_job(application, job)
                keys = ((application, job.job_id, s.stage_id) for s in job.stages if s.finished)
                self.unseen |= {key for key in keys if not self.samples.get(key)}
            return
        for event in message.events:
            if isinstance(event, JobArrived):
                self._add_job(application, event.job)
            elif isinstance(event, TasksReported) and event.finished:
                # Only the sum of the durations is known: each task gets their mean.
                samples = self.samples[application, event.job_id, event.stage_id]
                samples += [round(event.executed_ms / event.finished)] * event.finished
            elif isinstance(event, StagesAdded):
                self._add_stages(application, event)
            elif isinstance(event, StageChanged):
                self._change_stage(application, event)
            elif isinstance(event, JobEnded) and not event.is_failed:
                self.ended.add((application, event.job_id))

    def _add_stages(self, application: str, event: StagesAdded) -> None:
        job = self.jobs.get((application, event.job_id))
        if job is not None:
            complete = {
                stage.stage_id
                for stage in job.stages
                if self._num_finished(application, job, stage) >= stage.tasks
            }
            for stage in event.stages:
                self.complete_before[application, event.job_id, stage.stage_id] = complete
            stages = (*job.stages, *event.stages)
            self._add_job(application, job.model_copy(update={"stages": stages}))

    def _change_stage(self, application: str, event: StageChanged) -> None:
        job = self.jobs.get((application, event.job_id))
        if job is not None:
            stages = tuple(
                stage.model_copy(update={"tasks": event.tasks})
                if stage.stage_id == event.stage_id
                else stage
                for stage in job.stages
            )
            self.jobs[application, event.job_id] = job.model_copy(update={"stages": stages})

    def _is_over(self, application: str, job: JobMessage) -> bool:
        """Whether the recording shows the end of the job."""
        if (application, job.job_id) in self.ended:
            return True
        # A job that is not open ends with its last task, without a message.
        return not job.is_open and all(
            self._num_finished(application, job, stage) >= stage.tasks for stage in job.stages
        )

    def _num_finished(self, application: str, job: JobMessage, stage: StageMessage) -> int:
        """How many tasks of a stage the recording shows."""
        return len(self.samples.get((application, job.job_id, stage.stage_id), ()))

    def _add_job(self, application: str, job: JobMessage) -> None:
        """Keep the message of a job with the most stages; of several such messages, the last."""
        present = self.jobs.get((application, job.job_id))
        # A later state has the tasks that stages have by then: where Spark runs a skipped stage
        # after all, only those whose output is lost.
        if present is None or len(job.stages) >= len(present.stages):
            self.jobs[application, job.job_id] = job

    def _spec(self, application: str, job: JobMessage) -> JobSpec | None:
        """The job for the simulator; None if it did not end, or ran when nothing was recorded.

        Stages without a task are left out: Spark skipped them, since their output was there.
        """
        if not self._is_over(application, job):
            return None
        ran = [stage for stage in job.stages if self._num_finished(application, job, stage) > 0]
        missing = {stage.stage_id for stage in job.stages} - {stage.stage_id for stage in ran}
        is_unseen = any((application, job.job_id, stage) in self.unseen for stage in missing)
        if not ran or is_unseen:
            return None
        position = {stage.stage_id: index for index, stage in enumerate(ran)}
        stages = []
        for stage in ran:
            times = np.array(self.samples[application, job.job_id, stage.stage_id], np.int64)
            parents = self._parents(application, job, stage) & position.keys()
            rows = tuple(sorted(position[parent] for parent in parents))
            stages.append(StageSpec(stage.tasks, TaskDurations.of(times), rows))
        return JobSpec(job.names[0] if job.names else job.job_id, tuple(stages), job.arrival_ms)

    def _parents(self, application: str, job: JobMessage, stage: StageMessage) -> set[int]:
        """The stages that a stage waits for; some of them may have been skipped.

        Where Spark skipped a parent, the output is that of a stage before, which has another id.
        The recording does not say of which: the stage waits for all that were complete when it was
        added, as it did.
        """
        of_skipped = {one.stage_id: one.parents for one in job.stages}
        found: set[int] = set()
        pending = list(stage.parents)
        while pending:
            parent = pending.pop()
            if parent in found:
                continue
            found.add(parent)
            if not self.samples.get((application, job.job_id, parent)):
                pending += of_skipped[parent]
                key = (application, job.job_id, stage.stage_id)
                found |= self.complete_before.get(key, set())
        return found

    def estimate(self, recorded: str, other: str, num_cores: int) -> ReplayedEstimate | None:
        """Simulate the recorded jobs under both policies. Returns none if no job was recorded
        completely, or a policy or so many cores cannot be simulated.
        """
        specs = [self._spec(application, job) for (application, _), job in self.jobs.items()]
        whole = [spec for spec in specs if spec is not None]
        if not whole or num_cores > MOST_EXECUTORS:
            return None
        sequence = _in_order_of_arrival(whole)
        config = SimulationConfig(world=WorldName.CORES, num_executors=num_cores)
        try:
            averages = [_average_jct_ms(name, sequence, config) for name in (recorded, other)]
        except (InputError, FileNotFoundError):
            return None
        return ReplayedEstimate(len(whole), len(specs) - len(whole), *averages)


def _in_order_of_arrival(jobs: list[JobSpec]) -> JobSequence:
    """The sequence of the jobs, which begins with the first arrival."""
    ordered = sorted(jobs, key=lambda job: job.arrival_ms or 0)
    arrival_ms = np.array([job.arrival_ms or 0 for job in ordered], np.int64)
    workload = Workload("recorded", tuple(ordered))
    return JobSequence(workload, np.arange(len(ordered)), arrival_ms - arrival_ms[0])


def _average_jct_ms(policy: str, sequence: JobSequence, config: SimulationConfig) -> float:
    live = policies_for(policy, sequence.workload)(config.num_executors)
    guarded = Guarded(policy, live.policy, live.guard) if live.guard else live.policy
    return float(jct_ms(simulate(sequence, guarded, config, 0)).mean())
