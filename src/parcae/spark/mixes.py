"""Mixes of jobs whose tasks sleep: what real Spark replays and the simulator simulates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.errors import WorkloadError
from parcae.files import write_text
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.job import JobSpec, StageSpec, TaskDurations, Workload

#: Task durations in ms by job, stage and task.
Sleeps = dict[tuple[int, int, int], int]


def _warm(durations: TaskDurations) -> npt.NDArray[np.int64]:
    """The samples of an executor that is at work for the job, at the highest parallelism that was measured."""
    return next(s for s in (durations.rest[-1], durations.first[-1], durations.fresh[-1]) if s.size)


def warm_workload(workload: Workload, factor: float, shift_ms: int = 0) -> Workload:
    """The same jobs for the cores of one application, which are warm for every job: one law of durations a stage.

    Args:
        workload: the profile.
        factor: all task durations are multiplied by it (at least 1 ms each).
        shift_ms: and this is added.

    Example: `warm_workload(load_workload("tpch"), 8)` has tasks of a quarter of a second, not of a thirtieth.
    """

    def stage_of(stage: StageSpec) -> StageSpec:
        samples = (
            np.maximum(np.rint(_warm(stage.durations) * factor), 1).astype(np.int64) + shift_ms
        )
        return replace(
            stage,
            durations=TaskDurations((1,), (samples,), (samples,), (samples,)),
            mean_task_ms=-1.0,
        )

    def job_of(job: JobSpec) -> JobSpec:
        return replace(job, stages=tuple(stage_of(stage) for stage in job.stages))

    return replace(workload, jobs=tuple(job_of(job) for job in workload.jobs))


def drawn_sleeps(sequence: JobSequence, seed: int) -> Sleeps:
    """A duration for every task, drawn from the stage's warm samples."""
    rng = np.random.default_rng([seed, 0x51EE9])
    sleeps = Sleeps()
    for job, spec in enumerate(sequence.jobs):
        for stage, own in enumerate(spec.stages):
            for task, drawn in enumerate(rng.choice(_warm(own.durations), own.num_tasks)):
                sleeps[job, stage, task] = int(drawn)
    return sleeps


def mix_json(sequence: JobSequence, sleeps: Sleeps) -> dict[str, Any]:
    """The mix as the replaying application reads it; stages come after their parents, the last is the only one without children.

    Raises:
        WorkloadError: a job with several last stages: Spark has one per job.
    """
    jobs = []
    for job, (spec, arrival_ms) in enumerate(zip(sequence.jobs, sequence.arrival_ms, strict=True)):
        order = parents_first(spec)
        place = {stage: position for position, stage in enumerate(order)}
        stages = [
            {
                "parents": [place[parent] for parent in spec.stages[stage].parents],
                "sleep_ms": [
                    sleeps[job, stage, task] for task in range(spec.stages[stage].num_tasks)
                ],
            }
            for stage in order
        ]
        jobs.append({"name": spec.name, "arrival_ms": int(arrival_ms), "stages": stages})
    return {"jobs": jobs}


def parents_first(spec: JobSpec) -> list[int]:
    """The stages' indices, every stage after its parents; the last is the one that all others lead to.

    Raises:
        WorkloadError: several last stages: Spark has one per job.
    """
    with_children = {parent for stage in spec.stages for parent in stage.parents}
    last = [index for index in range(len(spec.stages)) if index not in with_children]
    if len(last) != 1:
        raise WorkloadError(
            f"job {spec.name!r} has {len(last)} last stages; Spark runs a job for one result"
        )
    order: list[int] = []

    def visit(stage: int) -> None:
        if stage not in order:
            for parent in spec.stages[stage].parents:
                visit(parent)
            order.append(stage)

    visit(last[0])
    return order


def write_mixes(path: Path, mixes: Sequence[dict[str, Any]]) -> None:
    """Write the file that the replaying application reads."""
    write_text(path, json.dumps({"mixes": list(mixes)}))


@dataclass(frozen=True)
class ReplayedMix:
    """What became of a mix; float64[num_jobs] each, ms since it began."""

    submitted_ms: npt.NDArray[np.float64]
    finished_ms: npt.NDArray[np.float64]

    @property
    def jct_ms(self) -> npt.NDArray[np.float64]:
        """From submission to the end."""
        return self.finished_ms - self.submitted_ms


def read_replayed(path: Path) -> list[ReplayedMix]:
    """The replaying application's results.

    Raises:
        WorkloadError: a job failed; the message says how.
    """
    found = []
    for number, mix in enumerate(json.loads(path.read_text())["mixes"]):
        failed = [job for job in mix["jobs"] if "finished_ms" not in job]
        if failed:
            raise WorkloadError(
                f"{len(failed)} jobs of mix {number} failed: {failed[0].get('error', 'not finished')}"
            )
        columns = ([job[name] for job in mix["jobs"]] for name in ("submitted_ms", "finished_ms"))
        found.append(ReplayedMix(*(np.array(column, np.float64) for column in columns)))
    return found
