"""Takes the durations of fresh executors from a run in new executors into a profile that was measured in warm ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from parcae.workloads.job import JobSpec, Samples, StageSpec, TaskDurations


def with_fresh_durations(warm: JobSpec, cold: JobSpec) -> JobSpec:
    """The warm job, its stages with the fresh samples of the same stages of the cold job.

    Stages are the same that are alike in name, task count, ancestors and descendants. Only fresh samples are taken: the
    later tasks of a cold run are slow for reasons that an executor outlives (code that is not compiled yet). Fresh samples
    that the warm job has are kept. What a scheduler is told of a task's duration stays that of the warm job.

    Example: a stage with the first samples [100] in the warm job, and in the cold one with the fresh samples [3000] and the
    first samples [500], gets fresh [3000] and first [100].
    """
    fresh_of = dict(zip(_signatures(cold), cold.stages, strict=True))
    stages = [
        _with_fresh(stage, fresh_of[key].durations) if key in fresh_of else stage
        for key, stage in zip(_signatures(warm), warm.stages, strict=True)
    ]
    return replace(warm, stages=tuple(stages))


def _with_fresh(stage: StageSpec, cold: TaskDurations) -> StageSpec:
    """The stage with the cold fresh samples, each at the level nearest to the one that it was measured at."""
    warm = stage.durations
    fresh: list[list[Samples]] = [[samples] for samples in warm.fresh]
    for level, samples in zip(cold.levels, cold.fresh, strict=True):
        nearest = min(range(len(warm.levels)), key=lambda row: abs(warm.levels[row] - level))
        fresh[nearest].append(samples)
    durations = replace(warm, fresh=tuple(np.concatenate(samples) for samples in fresh))
    return replace(stage, durations=durations, mean_task_ms=stage.mean_task_ms)


def _signatures(job: JobSpec) -> list[str]:
    """For every stage a text that is equal for stages alike in name, task count, ancestors and descendants."""
    above = [""] * len(job.stages)
    for index in job.topological_order:
        stage = job.stages[index]
        above[index] = _digest(
            [stage.name, str(stage.num_tasks), *sorted(above[p] for p in stage.parents)]
        )
    below = [""] * len(job.stages)
    for index in reversed(job.topological_order):
        below[index] = _digest(
            [above[index], *sorted(below[child] for child in job.children[index])]
        )
    return below


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
