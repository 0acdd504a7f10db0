"""The decision of a policy in the world of executors, and the interface of such policies."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from parcae.cluster.observation import Observation
from parcae.cluster.state import ANY_CLASS, NO_STAGE, NOT_YET, World
from parcae.workloads.durations import LARGEST_ARRIVAL_MS

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
