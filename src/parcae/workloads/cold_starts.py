"""Adds the task durations of cold executors to a profile that was measured on warm executors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parcae.workloads.dag import signatures
from parcae.workloads.durations import Samples, TaskDurations
from parcae.workloads.job import JobSpec, StageSpec


def with_fresh_durations(warm: JobSpec, cold: JobSpec) -> JobSpec:
    """The warm job with the fresh samples of the corresponding stages of the cold job.

    Two stages correspond if they agree in name, task count, ancestors and descendants. Only fresh
    samples are copied: later tasks of a cold run are slow for temporary reasons (code that is not
    yet compiled). Fresh samples of the warm job are kept. The mean task duration that a scheduler
    knows remains that of the warm job.

    Example: a stage has the first-wave samples [100] in the warm job; in the cold job it has the
    fresh samples [3000] and the first-wave samples [500]. The result has fresh [3000] and first
    [100].
    """
    fresh_of = dict(zip(_signatures(cold), cold.stages, strict=True))
    stages = [
        _with_fresh(stage, fresh_of[key].durations) if key in fresh_of else stage
        for key, stage in zip(_signatures(warm), warm.stages, strict=True)
    ]
    return replace(warm, stages=tuple(stages))


def _with_fresh(stage: StageSpec, cold: TaskDurations) -> StageSpec:
    """The stage with the fresh samples of the cold stage, each at the nearest level of the
    stage.
    """
    warm = stage.durations
    fresh: list[list[Samples]] = [[samples] for samples in warm.fresh]
    for level, samples in zip(cold.levels, cold.fresh, strict=True):
        nearest = min(range(len(warm.levels)), key=lambda row: abs(warm.levels[row] - level))
        fresh[nearest].append(samples)
    durations = replace(warm, fresh=tuple(np.concatenate(samples) for samples in fresh))
    return replace(stage, durations=durations, mean_task_ms=stage.mean_task_ms)


def _signatures(job: JobSpec) -> list[str]:
    """A text per stage, equal for stages with equal name, task count, ancestors and descendants."""
    labels = [f"{stage.name}\n{stage.num_tasks}" for stage in job.stages]
    return signatures([stage.parents for stage in job.stages], job.topological_order, labels)
