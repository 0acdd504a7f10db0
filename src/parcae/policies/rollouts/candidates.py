"""The decisions that the policy `plan` tries in Decima's world."""

from __future__ import annotations

from parcae.cluster.decision import Decision
from parcae.cluster.observation import Observation
from parcae.cluster.state import ANY_CLASS, NO_STAGE

#: Other limits that are tried for the base's stage, relative to its own.
_LIMIT_FACTORS = (0.5, 0.75, 1.5, 2.0)
#: Most other stages of the same job, and most other jobs, that are tried.
_MOST_STAGES = 3
_MOST_JOBS = 3


def candidates(
    observation: Observation, base: Decision, others: list[Decision], *, may_idle: bool
) -> list[Decision]:
    """The decisions to try, the base's own first.

    They are other limits for its stage, other stages of its job, stages of the jobs with the least
    remaining work with half or all of the executors, and to idle.

    Args:
        observation: the present observation.
        base: the decision of the base policy.
        others: decisions of other policies, tried as well.
        may_idle: whether letting all executors idle cannot stall the cluster.
    """
    found = [base]
    offered = int(observation.now.num_source[0])

    def add(stage: int, limit: int) -> None:
        most = min(offered, observation.demand(stage))
        decision = Decision(stage, max(1, min(limit, most)), base.executor_class, 0)
        if most >= 1 and all(not _is_same(decision, one, observation) for one in found):
            found.append(decision)

    for other in others:
        if other.stage != NO_STAGE:
            add(other.stage, other.limit)
    schedulable = observation.schedulable_stages()
    jobs = observation.stages.job
    own = -1
    if base.stage != NO_STAGE:
        own = int(jobs[base.stage])
        taken = _taken(base, observation)
        for factor in _LIMIT_FACTORS:
            add(base.stage, round(factor * taken))
        add(base.stage, offered)
        siblings = [s for s in schedulable if jobs[s] == own and s != base.stage]
        siblings.sort(key=lambda s: -float(observation.stages.downstream_ms[s]))
        for stage in siblings[:_MOST_STAGES]:
            add(stage, base.limit)
    elsewhere = dict.fromkeys(int(jobs[s]) for s in schedulable if jobs[s] != own)
    ranked = sorted(elsewhere, key=lambda job: float(observation.jobs.remaining_ms[job]))
    for job in ranked[:_MOST_JOBS]:
        of_job = [s for s in schedulable if jobs[s] == job]
        stage = max(of_job, key=lambda s: float(observation.stages.downstream_ms[s]))
        add(stage, offered)
        if offered > 1:
            add(stage, offered // 2)
    if may_idle and base.stage != NO_STAGE:
        found.append(Decision(NO_STAGE, offered, ANY_CLASS, 0))
    return found


def _taken(decision: Decision, observation: Observation) -> int:
    """How many executors a decision gives to its stage."""
    if decision.stage == NO_STAGE:
        return int(observation.now.num_source[0])
    demand = observation.demand(decision.stage)
    return min(decision.limit, demand, int(observation.now.num_source[0]))


def _is_same(one: Decision, other: Decision, observation: Observation) -> bool:
    """Whether two decisions have the same effect."""
    if one.stage != other.stage:
        return False
    return _taken(one, observation) == _taken(other, observation)
