"""The released simulator's heuristics for the oracle, written independently of the compiled ones.

Every policy takes the oracle and returns (stage or None, limit).
"""

from __future__ import annotations

import math

from tests.oracle.decima_world import Oracle, OracleJob, OraclePolicy, OracleStage


def _in_order(oracle: Oracle, job: OracleJob) -> OracleStage | None:
    """The job's next schedulable stage: runnable ones first, then by index."""
    runnable = [stage for stage in job.frontier if oracle.is_schedulable(stage)]
    if runnable:
        return runnable[0]
    return next((stage for stage in job.stages if oracle.is_schedulable(stage)), None)


def _local(oracle: Oracle) -> OracleStage | None:
    """A stage of the job that the free executors belong to, if it has not ended."""
    job = oracle.source_job
    return _in_order(oracle, job) if job is not None and job.completion_ms < 0 else None


def below_cap(
    oracle: Oracle, caps: dict[OracleJob, int], by_granted: bool
) -> tuple[OracleStage | None, int]:
    """Keep executors in their job if possible; else the first job below its cap gets them."""
    stage = _local(oracle)
    if stage is not None:
        return stage, oracle.num_source
    for job in oracle.active:
        held = job.granted if by_granted else oracle.num_supplied(job)
        if held < caps.get(job, 0):
            stage = _in_order(oracle, job)
            if stage is not None:
                return stage, min(oracle.demand(stage), caps[job] - held, oracle.num_source)
    return None, oracle.num_source


def wanting(oracle: Oracle) -> list[OracleJob]:
    """The jobs that have a stage with demand."""
    return [job for job in oracle.active if any(oracle.demand(stage) > 0 for stage in job.stages)]


def static(cap: int, *, by_granted: bool) -> OraclePolicy:
    """A policy that serves the first job, in order of arrival, with fewer executors than `cap`."""
    return lambda oracle: below_cap(oracle, dict.fromkeys(oracle.active, cap), by_granted)


def fair(oracle: Oracle) -> tuple[OracleStage | None, int]:
    """Equal shares for the jobs that have a stage with demand."""
    cap = math.ceil(len(oracle.executors) / max(1, len(wanting(oracle))))
    return below_cap(oracle, dict.fromkeys(oracle.active, cap), False)


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
