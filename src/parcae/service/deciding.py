"""Asking the policy, and what to do where it fails: a scheduler must answer whatever its policy does."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from parcae.cluster.decision import Decision, Policy, objection
from parcae.cluster.observation import Observation, observe
from parcae.cluster.state import NO_STAGE, ClusterState
from parcae.errors import PolicyError
from parcae.policies.catalog import make_policy
from parcae.service.policies import OwnPolicies
from parcae.service.roster import Roster

_LOG = logging.getLogger(__name__)
_MS_PER_S = 1e3
#: Choices that are shown of a decision.
_NUM_CHOICES = 5


@runtime_checkable
class Explains(Protocol):
    """A policy that can say how probable its choices were."""

    def probabilities(self, observation: Observation) -> list[tuple[int, float]]:
        """(stage row, probability) of the choices of the last decision, the most probable first; NO_STAGE: let them idle."""


@dataclass(frozen=True)
class Decided:
    """One answered question."""

    decision: Decision
    took_ms: float
    is_fallback: bool
    probabilities: tuple[tuple[int, float], ...] = ()
    is_stand_in: bool = False


@dataclass(frozen=True)
class DecisionRecord:
    """One answered question in the client's words; `job` and `stage_id` are None where executors were let idle."""

    clock_ms: int
    wall_s: float
    source_job: str | None
    num_source: int
    application: str | None
    job_id: int | None
    job: str | None
    stage_id: int | None
    limit: int
    executor_class: int  # as the service numbers them, the smallest memory first; ANY_CLASS for the best-fitting
    hold_ms: int
    num_slots: int
    took_ms: float
    is_fallback: bool
    choices: tuple[tuple[str, float], ...]  # what else there was, with its probability
    is_stand_in: bool = False  # fair decided, because the policy was not ready yet


def in_words(decided: Decided, roster: Roster, source_job: int, num_source: int) -> DecisionRecord:
    """A decision that has not been carried out yet, in the client's words.

    Args:
        source_job: row of the job whose executors are asked about, or NO_JOB.
        num_source: how many they are.
    """
    stage, source = decided.decision.stage, roster.by_row.get(source_job)
    job = roster.owner(stage) if stage != NO_STAGE else None
    return DecisionRecord(
        clock_ms=roster.clock_ms,
        wall_s=time.time(),
        source_job=source.name if source else None,
        num_source=num_source,
        application=job.application if job else None,
        job_id=job.job_id if job else None,
        job=job.name if job else None,
        stage_id=roster.stage_id(stage) if job else None,
        limit=decided.decision.limit,
        executor_class=decided.decision.executor_class,
        hold_ms=decided.decision.hold_ms,
        num_slots=min(decided.decision.limit, num_source) if job else 0,
        took_ms=decided.took_ms,
        is_fallback=decided.is_fallback,
        choices=tuple((roster.stage_words(row), p) for row, p in decided.probabilities),
        is_stand_in=decided.is_stand_in,
    )


@dataclass
class Counts:
    """What happened since the service began."""

    events: int = 0
    decisions: int = 0
    fallbacks: int = 0
    stand_ins: int = 0  # decisions of fair while the policy was made ready
    failed_tasks: int = 0
    finished_tasks: int = 0
    finished_jobs: int = 0
    failed_jobs: int = 0
    syncs: int = 0


@dataclass
class Decider:
    """A policy with the fair heuristic behind it.

    Args:
        policies: who decides; asked until the policy is ready, fair stands in until then.
        num_slots: of the cluster.
        explains: ask the policy for its probabilities, too (for the live page).
        gives_up: whether `give_up_round` is heeded.
    """

    policies: OwnPolicies
    num_slots: int
    explains: bool = False
    gives_up: bool = True
    counts: Counts = field(default_factory=Counts)
    _policy: Policy | None = field(init=False)
    _fallback: Policy = field(init=False)
    _given_up: int = -1  # the round in which the policy failed

    def __post_init__(self) -> None:
        self._policy = self.policies.get(self.num_slots)
        self._fallback = make_policy("fair", self.num_slots)

    def give_up_round(self, state: ClusterState) -> None:
        """Let the fallback decide the rest of this round."""
        if self.gives_up:
            self._given_up = int(state.now.round_id[0])

    def decide(self, state: ClusterState) -> Decided:
        """One decision that can be carried out, whatever the policy does."""
        observation = observe(state)
        self.counts.decisions += 1
        policy = self._policy = self._policy or self.policies.get(self.num_slots)
        if policy is None:
            self.counts.stand_ins += 1
            return self._by_fair(observation, is_stand_in=True)
        if self._given_up != int(state.now.round_id[0]):
            start = time.perf_counter()
            try:
                decision = check_decision(observation, policy.decide(observation))
            except Exception as error:  # whatever a policy raises, the cluster must go on
                _LOG.warning("policy %s failed (%s: %s); fair decides this round", policy.name, type(error).__name__, error)
                self.give_up_round(state)
            else:
                took_ms = _MS_PER_S * (time.perf_counter() - start)
                return Decided(decision, took_ms, False, self._probabilities(policy, observation))
        self.counts.fallbacks += 1
        return self._by_fair(observation, is_stand_in=False)

    def _by_fair(self, observation: Observation, *, is_stand_in: bool) -> Decided:
        start = time.perf_counter()
        try:
            decision = check_decision(observation, self._fallback.decide(observation))
        except PolicyError:
            decision = Decision()
        took_ms = _MS_PER_S * (time.perf_counter() - start)
        return Decided(decision, took_ms, not is_stand_in, is_stand_in=is_stand_in)

    def _probabilities(self, policy: Policy, observation: Observation) -> tuple[tuple[int, float], ...]:
        if not self.explains or not isinstance(policy, Explains):
            return ()
        return tuple(policy.probabilities(observation)[:_NUM_CHOICES])


def check_decision(observation: Observation, decision: Decision) -> Decision:
    """The decision, if it can be carried out.

    Raises:
        PolicyError: it cannot; the message says why.
    """
    why = objection(observation, decision)
    if why is not None:
        raise PolicyError(why)
    return decision
