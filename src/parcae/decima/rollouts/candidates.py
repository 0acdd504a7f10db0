"""The decisions that the policy `plan` tries."""

from __future__ import annotations

from parcae.cluster.decision import Decision, objection
from parcae.cluster.observation import Observation
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_STAGE

#: Other limits that are tried for the base's stage, relative to its own.
_LIMIT_FACTORS = (0.5, 0.75, 1.5, 2.0)
#: Most other stages of the same job, and most other jobs, that are tried.
_MOST_STAGES = 3
_MOST_JOBS = 3
#: Most decisions that are tried.
_MOST_CANDIDATES = 16


def candidates(
    observation: Observation, base: Decision, others: list[Decision], *, may_idle: bool
) -> list[Decision]:
    """The decisions to try, the base's own first.

    They are other limits for its stage, other stages of its job, stages of the jobs with the least
    remaining work with half or all of the executors, and to idle.
    """
    found = [base]

    def add(stage: int, limit: int) -> None:
        is_own = stage == base.stage or len(observation.classes) == 1
        executor_class = base.executor_class if is_own else ANY_CLASS
        decision = Decision(stage, max(1, limit), executor_class, 0)
        is_new = all(not _is_same(decision, one, observation) for one in found)
        if is_new and objection(observation, decision) is None:
            found.append(decision)

    for other in others:
        if other.stage != NO_STAGE:
            add(other.stage, other.limit)
    schedulable = observation.schedulable_stages()
    jobs = observation.stages.job
    offered = int(observation.now.num_source[0])
    own = NO_JOB
    if base.stage != NO_STAGE:
        own = int(jobs[base.stage])
        taken = _taken(base, observation)
        for factor in _LIMIT_FACTORS:
            add(base.stage, round(factor * taken))
        add(base.stage, offered)
        siblings = [stage for stage in schedulable if jobs[stage] == own and stage != base.stage]
        for stage in _longest_first(siblings, observation)[:_MOST_STAGES]:
            add(stage, base.limit)
    elsewhere = dict.fromkeys(int(jobs[stage]) for stage in schedulable if jobs[stage] != own)
    ranked = sorted(elsewhere, key=lambda job: float(observation.jobs.remaining_ms[job]))
    for job in ranked[:_MOST_JOBS]:
        of_job = [stage for stage in schedulable if jobs[stage] == job]
        stage = _longest_first(of_job, observation)[0]
        add(stage, offered)
        add(stage, offered // 2)
    if may_idle and base.stage != NO_STAGE:
        found.append(Decision(NO_STAGE, offered, ANY_CLASS, 0))
    return found[:_MOST_CANDIDATES]


def _longest_first(stages: list[int], observation: Observation) -> list[int]:
    """The stages, those with the heaviest path to a leaf first."""
    return sorted(stages, key=lambda stage: -float(observation.stages.downstream_ms[stage]))


def _taken(decision: Decision, observation: Observation) -> int:
    """How many executors a decision gives to its stage, if all offered ones fit."""
    offered = int(observation.now.num_source[0])
    if decision.stage == NO_STAGE:
        return offered
    return min(decision.limit, observation.demand(decision.stage), offered)


def _is_same(one: Decision, other: Decision, observation: Observation) -> bool:
    """Whether two decisions have the same effect."""
    if one.stage != other.stage or one.hold_ms != other.hold_ms:
        return False
    return _taken(one, observation) == _taken(other, observation)
