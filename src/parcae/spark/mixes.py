"""Mixes of jobs whose tasks sleep. A real Spark replays them and the simulator simulates them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import WorkloadError
from parcae.base.files import write_text
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec, Workload

#: Task durations in ms by job, stage and task.
Sleeps = dict[tuple[int, int, int], int]


def _warm(durations: TaskDurations) -> npt.NDArray[np.int64]:
    """The samples of a warm executor at the highest parallelism that was measured."""
    return next(s for s in (durations.rest[-1], durations.first[-1], durations.fresh[-1]) if s.size)


def warm_workload(workload: Workload, factor: float) -> Workload:
    """The same jobs with one list of task durations per stage, that of a warm executor.

    In one Spark application every core is warm for every job. All durations are multiplied by the
    factor; the product is at least 1 ms.

    Example: `warm_workload(load_workload("tpch"), 8)` has tasks of about 250 ms instead of 30 ms.
    """

    def stage_of(stage: StageSpec) -> StageSpec:
        samples = np.maximum(np.rint(_warm(stage.durations) * factor), 1).astype(np.int64)
        return replace(stage, durations=TaskDurations.of(samples), mean_task_ms=-1.0)

    return workload.with_stages(stage_of)


def drawn_sleeps(sequence: JobSequence, seed: int) -> Sleeps:
    """Draw a duration for every task from its stage's warm samples."""
    rng = np.random.default_rng([seed, 0x51EE9])
    sleeps = Sleeps()
    for job, spec in enumerate(sequence.jobs):
        for stage, stage_spec in enumerate(spec.stages):
            for task, drawn in enumerate(
                rng.choice(_warm(stage_spec.durations), stage_spec.num_tasks)
            ):
                sleeps[job, stage, task] = int(drawn)
    return sleeps


def mix_json(sequence: JobSequence, sleeps: Sleeps) -> dict[str, Any]:
    """The mix as the replaying application reads it; tasks sleep for the given times in ms.

    Stages come after their parents. The last stage of a job is its only one without children.
    """
    jobs = []
    for job, (spec, arrival_ms) in enumerate(zip(sequence.jobs, sequence.arrival_ms, strict=True)):
        order = parents_first(spec)
        # Parents are written as positions in the new order of stages.
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
    """The indices of the stages, every stage after its parents and the job's last stage at the
    end.
    """
    with_children = {parent for stage in spec.stages for parent in stage.parents}
    last = [index for index in range(len(spec.stages)) if index not in with_children]
    if len(last) != 1:
        raise WorkloadError(
            f"job {spec.name!r} has {len(last)} last stages, but a job of Spark has exactly one"
        )
    # A depth-first search from the last stage adds every stage after its parents.
    order: dict[int, None] = {}
    path = last
    while path:
        parents = spec.stages[path[-1]].parents
        missing = next((parent for parent in parents if parent not in order), None)
        if missing is None:
            order[path.pop()] = None
        else:
            path.append(missing)
    return list(order)


def write_mixes(path: Path, mixes: Sequence[dict[str, Any]]) -> None:
    """Write the file that the replaying application reads."""
    write_text(path, json.dumps({"mixes": list(mixes)}))


@dataclass(frozen=True)
class ReplayedMix:
    """The times of a mix's jobs; float64[num_jobs] each, ms since the mix began."""

    submitted_ms: npt.NDArray[np.float64]
    finished_ms: npt.NDArray[np.float64]

    @property
    def jct_ms(self) -> npt.NDArray[np.float64]:
        """Completion times in ms, from submission to the end."""
        return self.finished_ms - self.submitted_ms


def read_replayed(path: Path) -> list[ReplayedMix]:
    """Read the results of the replaying application, one entry per mix."""
    replayed = []
    for number, mix in enumerate(json.loads(path.read_text())["mixes"]):
        # A job that failed has an error in place of the time of its end.
        failed = [job for job in mix["jobs"] if "finished_ms" not in job]
        if failed:
            raise WorkloadError(
                f"{len(failed)} jobs of mix {number} failed: "
                f"{failed[0].get('error', 'not finished')}"
            )
        columns = ([job[name] for job in mix["jobs"]] for name in ("submitted_ms", "finished_ms"))
        replayed.append(ReplayedMix(*(np.array(column, np.float64) for column in columns)))
    return replayed
