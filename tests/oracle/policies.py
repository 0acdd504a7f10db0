"""More heuristics of the released simulator for the oracle."""

from __future__ import annotations

import math

from parcae.simulation.oracle import Oracle, OraclePolicy, OracleStage
from parcae.simulation.oracle_policies import below_cap, wanting


def weighted_fair(alpha: float) -> OraclePolicy:
    """Shares in proportion to total work ^ alpha for the jobs that have a stage with demand."""

    def decide(oracle: Oracle) -> tuple[OracleStage | None, int]:
        weight = {job: job.spec.work_ms**alpha for job in wanting(oracle)}
        total = sum(weight.values())
        executors = len(oracle.executors)
        caps = {job: max(1, math.ceil(executors * w / total - 1e-9)) for job, w in weight.items()}
        return below_cap(oracle, caps, False)

    return decide


def sjf_cp(oracle: Oracle) -> tuple[OracleStage | None, int]:
    """The job with the least total work first; its stages by critical path."""
    for job in sorted(oracle.active, key=lambda job: (job.spec.work_ms, job.row)):
        down = job.spec.downstream_ms([stage.work_ms for stage in job.spec.stages])
        stages = [stage for stage in job.stages if oracle.is_schedulable(stage)]
        if stages:
            best = min(
                stages,
                key=lambda stage: (stage not in job.frontier, -down[stage.index], stage.index),
            )
            return best, oracle.num_source
    return None, oracle.num_source
