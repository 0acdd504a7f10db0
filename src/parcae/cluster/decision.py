"""What a policy answers, and who answers."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from parcae.cluster.observation import Observation
from parcae.cluster.state import ANY_CLASS, NO_STAGE, NOT_YET, World


class Decision(NamedTuple):
    """Commit up to `limit` of the executors that are asked about to `stage`.

    Args:
        stage: row of a schedulable stage, or NO_STAGE to let all of them idle.
        limit: most executors to commit, >= 1.
        executor_class: class to take them from, or ANY_CLASS for the best-fitting ones.
        hold_ms: an idle slot: let up to `limit` executors wait for the stage and ask again after this time (Duan & Wu, section
            III). A stage has at most one; while it runs, its end may be decided anew.

    Example: `Decision(stage=3, limit=5)`; `Decision()` lets all executors idle.
    """

    stage: int = NO_STAGE
    limit: int = 0
    executor_class: int = ANY_CLASS
    hold_ms: int = 0


def objection(observation: Observation, decision: Decision) -> str | None:
    """Why the decision cannot be carried out, or None where it can."""
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
        some = observation.schedulable_stages()[:20]
        return (
            f"stage {stage} is not schedulable at {clock_ms} ms; choose one of {some} or NO_STAGE"
        )
    if limit < 1:
        return f"limit {limit} for stage {stage}: commit at least one executor"
    if executor_class != ANY_CLASS and not 0 <= executor_class < num_classes:
        return (
            f"executor class {executor_class} does not exist (0..{num_classes - 1}, or ANY_CLASS)"
        )
    if executor_class != ANY_CLASS and observation.source_count[executor_class] < 1:
        return f"no executor of class {executor_class} is asked about"
    if executor_class != ANY_CLASS and not (int(stages.fits[stage]) >> executor_class) & 1:
        return f"executor class {executor_class} is too small for stage {stage}"
    if hold_ms > 0 and observation.now.world[0] == World.CORES:
        return "there are no idle slots in the world of cores; leave hold_ms out"
    if (
        hold_ms > 0
        and stages.hold_from_ms[stage] != NOT_YET
        and stages.hold_until_ms[stage] <= clock_ms
    ):
        return f"stage {stage} had its idle slot, until {stages.hold_until_ms[stage]} ms; run it (hold_ms=0) or choose another"
    return None


class Policy(Protocol):
    """Decides, from what is known, who works on what."""

    @property
    def name(self) -> str:
        """How reports call the policy."""

    def decide(self, observation: Observation) -> Decision:
        """Answer one scheduling event. The observation is read-only and true only until the next transition."""
