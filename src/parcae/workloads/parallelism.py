"""What more parallelism than was measured does to task durations: a named model, chosen when a workload is used.

A profile from a small machine knows durations at the parallelism of that machine only. "none" takes them as they are at any
parallelism; "decima-cluster" inflates them as the Decima authors' Spark cluster did (work inflation, Decima, section 2.2).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parcae.errors import ConfigError
from parcae.workloads.job import JobSpec, Samples, StageSpec, TaskDurations, Workload

PARALLELISM_MODELS = ("none", "decima-cluster")

#: Ratio to the durations at 5 executors, median over the stages of the Decima authors' TPC-H profiles.
_LEVELS = (5, 10, 20, 40, 60, 100)
_FIRST_WAVE = (1.0, 1.02, 1.08, 1.33, 1.58, 2.10)
_LATER_WAVES = (1.0, 1.09, 1.31, 1.75, 2.17, 2.96)


def with_parallelism_model(workload: Workload, name: str) -> Workload:
    """The workload under a model of parallelism; the model's name goes into its provenance.

    The known mean duration of a task stays the measured one: it is what a scheduler is told.

    Raises:
        ConfigError: no such model.
    """
    if name not in PARALLELISM_MODELS:
        raise ConfigError(
            f"parallelism model {name!r}: write one of {', '.join(PARALLELISM_MODELS)}"
        )
    if name == "none":
        return workload
    scaled: dict[int, TaskDurations] = {}
    jobs = tuple(_scaled_job(job, scaled) for job in workload.jobs)
    provenance = {
        **workload.provenance,
        "parallelism model": "decima-cluster: median ratios of the Decima authors' cluster",
    }
    return replace(workload, jobs=jobs, provenance=provenance)


def _scaled_job(job: JobSpec, scaled: dict[int, TaskDurations]) -> JobSpec:
    stages = []
    for stage in job.stages:
        if id(stage.durations) not in scaled:
            scaled[id(stage.durations)] = _inflated(stage.durations)
        stages.append(_with_durations(stage, scaled[id(stage.durations)]))
    return replace(job, stages=tuple(stages))


def _with_durations(stage: StageSpec, durations: TaskDurations) -> StageSpec:
    return replace(stage, durations=durations)


def _inflated(durations: TaskDurations) -> TaskDurations:
    fresh = durations.fresh[-1]
    first = durations.first[-1]
    rest = durations.rest[-1]
    return TaskDurations(
        _LEVELS,
        tuple(_scale(fresh, ratio) for ratio in _FIRST_WAVE),
        tuple(_scale(first, ratio) for ratio in _FIRST_WAVE),
        tuple(_scale(rest, ratio) for ratio in _LATER_WAVES),
    )


def _scale(samples: Samples, ratio: float) -> Samples:
    return np.asarray(np.rint(samples * ratio), np.int64)
