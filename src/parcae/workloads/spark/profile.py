"""Merges runs of the same recurring job into one profile, matching their stages by recursive signatures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parcae.workloads.job import NUM_WAVES, JobSpec, Samples, StageSpec, TaskDurations
from parcae.workloads.spark.dag import JobRun, StageRun

#: Runs whose task counts differ by at most this factor (or by two tasks) in every stage are the same job.
SAME_TASKS_FACTOR = 1.5
SAME_TASKS_SLACK = 2

Edges = frozenset[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Profile:
    """A recurring job and how often it ran; `variant` counts, from 1, the different DAGs of one name."""

    job: JobSpec
    num_runs: int
    variant: int = 1


@dataclass(eq=False)
class _OrderedRun:
    """A run with its stages in canonical order; `shape` is equal for runs of the same operators and edges."""

    run: JobRun
    order: list[int]
    shape: tuple[tuple[int, ...], tuple[str, ...], Edges]

    @property
    def stages(self) -> list[StageRun]:
        return [self.run.stages[index] for index in self.order]

    @property
    def task_counts(self) -> tuple[int, ...]:
        return tuple(stage.num_tasks for stage in self.stages)


def merge_runs(runs: Sequence[JobRun]) -> list[Profile]:
    """One profile for each recurring job, in order of first run; different DAGs of one name get "name (2)", ...

    Runs are the same job if they have the same name, the same operators and edges, and alike task counts.
    """
    by_shape: dict[tuple[str, object], list[_OrderedRun]] = defaultdict(list)
    for run in runs:
        ordered = _in_canonical_order(run)
        by_shape[run.name, ordered.shape].append(ordered)
    clusters = [cluster for alike in by_shape.values() for cluster in _alike_in_tasks(alike)]
    clusters.sort(key=lambda cluster: min(ordered.run.submission_ms for ordered in cluster))
    times_named: dict[str, int] = defaultdict(int)
    profiles = []
    for cluster in clusters:
        name = cluster[0].run.name
        times_named[name] += 1
        number = times_named[name]
        profiles.append(Profile(_merged(name if number == 1 else f"{name} ({number})", cluster), len(cluster), number))
    return profiles


def job_of_run(run: JobRun, arrival_ms: int | None) -> JobSpec:
    """A job that is this one run alone."""
    stages = tuple(_merged_stage([stage], _parents(stage), stage.num_tasks) for stage in run.stages)
    return JobSpec(run.name, stages, arrival_ms)


def _parents(stage: StageRun) -> tuple[int, ...]:
    return tuple(stage.parents | stage.control_parents)


def _in_canonical_order(run: JobRun) -> _OrderedRun:
    """Order stages by signature, so that runs can be compared stage by stage.

    Signatures are refined by those of parents and children until the classes no longer split (Weisfeiler and Leman);
    stages that remain alike are ordered by their task count and those of the stages around them, then by submission.
    """
    signature = _refined_signatures(run, [stage.kind for stage in run.stages])
    counted = [f"{signature[i]:09d} {stage.num_tasks:09d}" for i, stage in enumerate(run.stages)]
    around = _refined_signatures(run, counted)
    order = sorted(range(len(run.stages)), key=lambda i: (signature[i], around[i], i))
    rank = {index: position for position, index in enumerate(order)}
    edges = frozenset((rank[p], rank[i]) for i, stage in enumerate(run.stages) for p in stage.parents)
    shape = (tuple(signature[i] for i in order), tuple(run.stages[i].kind for i in order), edges)
    return _OrderedRun(run, order, shape)


def _refined_signatures(run: JobRun, labels: Sequence[str]) -> list[int]:
    """For every stage a number that is equal for stages alike in label, ancestors and descendants.

    Numbers are ranks of signatures within the run, so they compare between runs of the same shape.
    """
    children: list[list[int]] = [[] for _ in run.stages]
    for index, stage in enumerate(run.stages):
        for parent in stage.parents:
            children[parent].append(index)
    numbers = _ranks(labels)
    for _ in run.stages:
        refined = _ranks(
            [
                (numbers[i], sorted(numbers[p] for p in stage.parents), sorted(numbers[c] for c in children[i]))
                for i, stage in enumerate(run.stages)
            ]
        )
        if max(refined) == max(numbers):
            break
        numbers = refined
    return numbers


def _ranks(keys: Sequence[object]) -> list[int]:
    rank = {text: position for position, text in enumerate(sorted({repr(key) for key in keys}))}
    return [rank[repr(key)] for key in keys]


def _alike_in_tasks(runs: list[_OrderedRun]) -> list[list[_OrderedRun]]:
    """Split runs of one shape by task counts; the most frequent counts attract those that are close to them."""
    by_counts: dict[tuple[int, ...], list[_OrderedRun]] = defaultdict(list)
    for run in runs:
        by_counts[run.task_counts].append(run)
    clusters: list[list[_OrderedRun]] = []
    for counts, alike in sorted(by_counts.items(), key=lambda item: -len(item[1])):
        near = next((c for c in clusters if _are_close(c[0].task_counts, counts)), None)
        if near is None:
            clusters.append(list(alike))
        else:
            near.extend(alike)
    return clusters


def _are_close(counts: tuple[int, ...], others: tuple[int, ...]) -> bool:
    return all(
        max(a, b) <= SAME_TASKS_FACTOR * min(a, b) or abs(a - b) <= SAME_TASKS_SLACK for a, b in zip(counts, others, strict=True)
    )


def _merged(name: str, cluster: list[_OrderedRun]) -> JobSpec:
    """The job of a cluster: DAG, order and task counts of its first run, samples of all."""
    first = cluster[0]
    canonical = {index: position for position, index in enumerate(first.order)}
    stages = [
        _merged_stage([ordered.stages[canonical[index]] for ordered in cluster], _parents(stage), stage.num_tasks)
        for index, stage in enumerate(first.run.stages)
    ]
    return JobSpec(name, tuple(stages))


def _merged_stage(runs: Sequence[StageRun], parents: tuple[int, ...], num_tasks: int) -> StageSpec:
    levels = sorted({run.samples.level for run in runs})
    waves = [tuple(_pooled(runs, level, wave) for level in levels) for wave in range(NUM_WAVES)]
    durations = TaskDurations(tuple(levels), *waves)
    return StageSpec(num_tasks, durations, parents, name=runs[0].name)


def _pooled(runs: Sequence[StageRun], level: int, wave: int) -> Samples:
    samples = [run.samples.by_wave[wave] for run in runs if run.samples.level == level]
    return np.concatenate(samples) if samples else np.zeros(0, np.int64)
