"""What a policy observes: read-only views of the cluster's tables."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from parcae.base.arrays import Int64Array
from parcae.cluster.state import ANY_CLASS, NO_STAGE, NOT_YET, ClusterState, World
from parcae.workloads.durations import LARGEST_ARRIVAL_MS


class Observation(NamedTuple):
    """Read-only views of the tables of `parcae.cluster.state`, valid until the next transition.

    Jobs in the system are `active[: now.num_active[0]]`, in order of arrival. `now.num_source[0]`
    executors of the job `now.source_job[0]` (NO_JOB: the global pool) wait for a decision.
    """

    now: Any  # NOW[1]
    jobs: Any  # JOB[num_jobs]
    stages: Any  # STAGE[num_stages]
    executors: Any  # EXECUTOR[num_executors]
    sources: Any  # SOURCE[...]
    classes: Any  # EXECUTOR_CLASS[num_classes]
    source_count: Any  # int64[num_classes], offered executors of each class
    active: Any  # int64[num_jobs], rows of the jobs in the system
    children: Any  # int64[num_edges], rows of child stages
    commitments: Any  # COMMITMENT[...], executors that earlier decisions promised
    holds: Any  # HOLD[num_stages], running idle slots
    accounts: Any  # ACCOUNT[num_jobs], of users, where they are kept

    @property
    def active_jobs(self) -> Int64Array:
        """Rows of the jobs in the system, in order of arrival."""
        rows: Int64Array = self.active[: self.now.num_active[0]]
        return rows

    def stages_of(self, job: int) -> range:
        """Rows of the job's stages."""
        start = int(self.jobs.stage_start[job])
        return range(start, start + int(self.jobs.num_stages[job]))

    def _can_choose(self, rows: Any) -> Any:
        """Which stages a decision may choose, see `is_schedulable`."""
        stages = self.stages
        # Bit c of `fits` says whether class c is large enough.
        offered = ((self.source_count > 0) << np.arange(len(self.classes))).sum()
        return (
            (stages["is_saturated"][rows] == 0)
            & (stages["num_parents_unsaturated"][rows] == 0)
            & (stages["selected_round"][rows] != self.now["round_id"][0])
            & ((stages["fits"][rows] & offered) != 0)
        )

    def is_schedulable(self, stage: int) -> bool:
        """Whether a decision may choose the stage.

        It is unsaturated, its parents are saturated, no decision of this round chose it, and at
        least one offered executor is large enough for it.
        """
        return bool(self._can_choose(stage))

    def schedulable_stages(self) -> list[int]:
        """Rows of the schedulable stages, in order of the jobs' arrival, then by stage index."""
        jobs = self.active_jobs
        num_stages = self.jobs["num_stages"][jobs]
        before = np.cumsum(num_stages) - num_stages
        rows = np.repeat(self.jobs["stage_start"][jobs] - before, num_stages)
        rows = rows + np.arange(len(rows))
        found: list[int] = rows[self._can_choose(rows)].tolist()
        return found

    def demand(self, stage: int) -> int:
        """Number of executors that the stage can still take."""
        stages = self.stages
        waiting = stages.num_tasks[stage] - stages.num_started[stage]
        # In the world of cores a policy plans for all cores, including those that run its tasks.
        if self.now.world[0] == World.CORES and waiting > 0:
            waiting += stages.num_bound[stage]
        return int(waiting - stages.num_committed[stage] - stages.num_moving[stage])


def _read_only(table: Any) -> Any:
    """Return a view of the table that cannot be written."""
    view = table.view()
    view.flags.writeable = False
    return view


def observe(state: ClusterState) -> Observation:
    """Return the observation of the cluster's present state."""
    return Observation(*(_read_only(getattr(state, name)) for name in Observation._fields))


#: Largest field of a decision, since kernels take them as int64.
_LARGEST = 2**63 - 1


class Decision(NamedTuple):
    """Commit up to `limit` of the offered executors to `stage`; all fields are whole numbers.

    Args:
        stage: row of a schedulable stage, or NO_STAGE to let all offered executors idle.
        limit: most executors to commit, >= 1.
        executor_class: class to take them from, or ANY_CLASS for the smallest that fit.
        hold_ms: length of an idle slot in ms: up to `limit` executors wait for the stage, and the
            policy decides again when the slot ends (Duan & Wu, section III). A stage has at most
            one slot; while it runs, a decision may change its end. 0 for no slot.

    Example: `Decision(stage=3, limit=5)`; `Decision()` lets all executors idle.
    """

    stage: int = NO_STAGE
    limit: int = 0
    executor_class: int = ANY_CLASS
    hold_ms: int = 0


def objection(observation: Observation, decision: object) -> str | None:
    """Return why the decision cannot be carried out, or None if it can."""
    if not isinstance(decision, Decision):
        return f"decide() returned {decision!r}; return a Decision"
    for field, value in zip(Decision._fields, decision, strict=True):
        is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not is_whole or abs(int(value)) > _LARGEST:
            return f"decide() returned {decision!r}; make its {field} a whole number of 64 bits"
    stage, limit, executor_class, hold_ms = decision
    if stage == NO_STAGE:
        return None
    stages = observation.stages
    num_stages = int(observation.now.num_stages[0])
    num_classes = len(observation.classes)
    if not 0 <= stage < num_stages:
        return f"stage {stage} does not exist (0..{num_stages - 1})"
    clock_ms = int(observation.now.clock_ms[0])
    if not observation.is_schedulable(stage):
        choices = observation.schedulable_stages()[:20]
        return (
            f"stage {stage} is not schedulable at {clock_ms} ms; "
            f"choose one of {choices} or NO_STAGE"
        )
    if limit < 1:
        return f"limit {limit} for stage {stage}: commit at least one executor"
    if executor_class != ANY_CLASS and not 0 <= executor_class < num_classes:
        return (
            f"executor class {executor_class} does not exist (0..{num_classes - 1}, or ANY_CLASS)"
        )
    if executor_class != ANY_CLASS and observation.source_count[executor_class] < 1:
        return f"no executor of class {executor_class} is offered; choose a class that is"
    if executor_class != ANY_CLASS and not (int(stages.fits[stage]) >> executor_class) & 1:
        return f"executor class {executor_class} is too small for stage {stage}"
    if hold_ms > 0 and observation.now.world[0] == World.CORES:
        return "the world of cores has no idle slots; leave hold_ms out"
    if hold_ms > LARGEST_ARRIVAL_MS:
        return (
            f"an idle slot of {hold_ms} ms is too long; at most {LARGEST_ARRIVAL_MS} ms is a time"
        )
    if (
        hold_ms > 0
        and stages.hold_from_ms[stage] != NOT_YET
        and stages.hold_until_ms[stage] <= clock_ms
    ):
        return (
            f"stage {stage} already had its idle slot, until {stages.hold_until_ms[stage]} ms; "
            f"run it (hold_ms=0) or choose another stage"
        )
    return None


class Policy(Protocol):
    """A policy of the world of executors: decides which stage gets the offered executors."""

    @property
    def name(self) -> str:
        """The policy's name in reports."""

    def decide(self, observation: Observation) -> Decision:
        """Return the decision for one scheduling event.

        The observation is read-only and valid until the next transition.
        """
