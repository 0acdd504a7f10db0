"""What a policy answers, and who answers."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from parcae.cluster.observation import Observation
from parcae.cluster.state import ANY_CLASS, NO_STAGE


class Decision(NamedTuple):
    """Commit up to `limit` of the executors that are asked about to `stage`.

    Args:
        stage: row of a schedulable stage, or NO_STAGE to let all of them idle.
        limit: most executors to commit, >= 1.
        executor_class: class to take them from, or ANY_CLASS for the best-fitting ones.
        hold_ms: an idle slot: let them wait before the stage and ask again after this time (Duan & Wu, section III).

    Example: `Decision(stage=3, limit=5)`; `Decision()` lets all executors idle.
    """

    stage: int = NO_STAGE
    limit: int = 0
    executor_class: int = ANY_CLASS
    hold_ms: int = 0


class Policy(Protocol):
    """Decides, from what is known, who works on what."""

    @property
    def name(self) -> str:
        """How reports call the policy."""

    def decide(self, observation: Observation) -> Decision:
        """Answer one scheduling event. The observation is read-only and true only until the next transition."""
