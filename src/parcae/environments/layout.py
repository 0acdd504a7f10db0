"""What the environments' observations contain: columns, scales and the arrays that are filled.

Shares of executors and resources are given as they are. Every other number x is given as log(1 + x
/ scale), clipped at BOUND, so that one space covers seconds and hours. Scales are the same in all
episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.cluster.state import NO_JOB, NO_STAGE, ExecutorClass
from parcae.workloads.workload import Workload

#: The largest value of a feature; log(1 + x / scale) reaches it at 22,000 times the scale.
BOUND = 10.0
NO_ROW = -1  # a stage or job that the observation does not show


class StageFeature(IntEnum):
    """Columns of `stages`."""

    IS_SHOWN = 0  # 0 in unused rows
    IS_SCHEDULABLE = 1  # a decision may choose it
    IS_RUNNABLE = 2  # its parents are complete
    IS_LOCAL = 3  # its job's executors are offered
    RUNNING = 4  # running tasks, relative to the number of executors
    COMING = 5  # executors committed or moving to it, as a share of all
    WAITING = 6  # tasks that have not started
    TASK_TIME = 7  # estimated mean duration of a task; 0 if unknown
    WORK_LEFT = 8  # waiting tasks x estimated duration
    CRITICAL_PATH = 9  # work on the heaviest path from here to a leaf


class ObservedJobFeature(IntEnum):
    """Columns of `jobs`."""

    IS_SHOWN = 0
    IS_LOCAL = 1
    EXECUTORS = 2  # attached, moving or committed to it, as a share of all
    STAGES_LEFT = 3
    WORK_LEFT = 4
    TIME_IN_SYSTEM = 5


class ClusterFeature(IntEnum):
    """Columns of `cluster`."""

    OFFERED = 0  # offered executors, as a share of all
    IDLE = 1  # idle executors, as a share of all
    JOBS = 2  # jobs in the system
    HIDDEN_JOBS = 3  # jobs in the system for which `jobs` has no row


class ObservedClassFeature(IntEnum):
    """Columns of `classes`, which has one row per executor class; shown if there are several."""

    CPU = 0  # of one of its executors, relative to the largest class
    MEMORY = 1
    EXECUTORS = 2  # its executors, as a share of all
    IDLE = 3  # its idle executors, as a share of all
    OFFERED = 4  # its offered executors, as a share of all


class FitFeature(IntEnum):
    """First columns of `stage_fit`; one per class follows, 1 if the class is large enough."""

    CPU = 0  # demand of a task, relative to the largest class
    MEMORY = 1


class SlotFeature(IntEnum):
    """Columns of `stage_slot`; shown if there are idle slots."""

    HAD = 0  # the stage's only idle slot has begun
    RUNS = 1  # it has begun and not ended
    LEFT = 2  # time to its end; the scale is that of a task's duration


class WaitingFeature(IntEnum):
    """Columns of the packing world's `jobs`, which has one row per job slot.

    One column per resource follows: the job's demand as a share of the capacity.
    """

    IS_SHOWN = 0
    CAN_START = 1  # it fits now; otherwise it would be planned for a later time, if it fits at all
    DURATION = 2  # as a share of the horizon
    AGE = 3  # time since its arrival; the scale is the horizon


class PackingFeature(IntEnum):
    """Columns of the packing world's `cluster`."""

    BACKLOG = 0  # jobs in the backlog, as a share of its size
    PAUSE = 1  # time since the last arrival; the scale is the horizon


class Scales(NamedTuple):
    """The scales of the numbers in an observation, from the workload and the cluster."""

    num_tasks: float  # of a stage
    num_stages: float  # of a job
    task_ms: float
    work_ms: float  # of a job
    cpu: float  # of the largest executor class
    memory: float


class ClusterView(NamedTuple):
    """The arrays of one observation (or, with one more leading axis, of many).

    C is the number of executor classes, or 0 if there is only one; G is the number of idle slot
    lengths, or 0 without idle slots. Arrays without columns are not shown. The last rows of
    `class_mask` and `slot_mask` belong to the choice to idle.
    """

    stages: Any  # float32[max_stages, StageFeature]
    stage_job: Any  # int32[max_stages], row of `jobs`; NO_ROW in unused rows
    edges: Any  # int32[max_edges, 2], rows of a parent and a child stage; NO_ROW in unused rows
    jobs: Any  # float32[max_jobs, JobFeature]
    cluster: Any  # float32[ClusterFeature]
    classes: Any  # float32[C, ClassFeature]
    stage_fit: Any  # float32[max_stages, FitFeature + C]
    stage_slot: Any  # float32[max_stages, SlotFeature]
    # bool[max_stages + 1, C + 1]: classes that may be chosen with each stage; the last is any class
    class_mask: Any
    # bool[max_stages + 1, G + 1]: idle slots that may be chosen with each stage at every limit
    slot_mask: Any
    # bool[...]: one after another the choices of stage or idling, of limit, of class, of idle slot
    action_mask: Any


#: The logarithms of a stage's features, and the numbers that they were computed from.
STAGE_LOGS = np.dtype(
    [
        ("num_waiting", "i8"),
        ("task_ms", "f8"),
        ("path_ms", "f8"),
        ("waiting", "f4"),
        ("task_time", "f4"),
        ("work_left", "f4"),
        ("critical_path", "f4"),
    ],
    align=True,
)
#: The same for a job.
JOB_LOGS = np.dtype(
    [
        ("num_left", "i8"),
        ("remaining_ms", "f8"),
        ("stages_left", "f4"),
        ("work_left", "f4"),
    ],
    align=True,
)


class ShownRows(NamedTuple):
    """The stages and jobs that the rows of an observation (with one more axis: of many) show."""

    stages: Any  # int64[max_stages], stage that every row shows, or NO_STAGE
    jobs: Any  # int64[max_jobs], job that every row shows, or NO_JOB
    row_of_stage: Any  # int64[num_stages], row that shows every stage, or NO_ROW
    row_of_job: Any  # int64[num_jobs], row that shows every job, or NO_ROW
    stage_logs: Any  # STAGE_LOGS[num_stages]
    job_logs: Any  # JOB_LOGS[num_jobs]


class EpisodeTables(NamedTuple):
    """The tables of many episodes, whose leading axis is the episode, and what they share."""

    simulations: Any  # Simulations
    shown: Any  # ShownRows
    views: Any  # ClusterView
    num_masked: Any  # int64[count], actions that chose something masked
    rewarded_s: Any  # float64[count], the objective that rewards have counted so far, in seconds
    levels: Any  # int64[num_limits], the limits that an action can choose, ascending
    scales: Scales
    is_makespan: Any  # whether the makespan is the objective, rather than the average JCT


def allocate_shown(
    count: int, max_jobs: int, max_stages: int, num_jobs: int, num_stages: int
) -> ShownRows:
    """Allocate the rows of many observations, which show nothing yet."""
    stage_logs = np.zeros((count, num_stages), STAGE_LOGS).view(np.recarray)
    job_logs = np.zeros((count, num_jobs), JOB_LOGS).view(np.recarray)
    # No number of tasks or stages is negative: all logarithms are still to be computed.
    stage_logs.num_waiting[:] = -1
    job_logs.num_left[:] = -1
    return ShownRows(
        stages=np.full((count, max_stages), NO_STAGE, np.int64),
        jobs=np.full((count, max_jobs), NO_JOB, np.int64),
        row_of_stage=np.full((count, num_stages), NO_ROW, np.int64),
        row_of_job=np.full((count, num_jobs), NO_ROW, np.int64),
        stage_logs=stage_logs,
        job_logs=job_logs,
    )


def scales_of(workload: Workload, classes: Sequence[ExecutorClass]) -> Scales:
    """Return the scales of a workload on the given executor classes.

    Scales are means over the workload's jobs and stages (at least one task, one stage and one
    millisecond), and the largest cpu and memory of the classes.
    """
    stages = [stage for job in workload.jobs for stage in job.stages]
    return Scales(
        num_tasks=max(1.0, workload.num_tasks / len(stages)),
        num_stages=max(1.0, len(stages) / len(workload.jobs)),
        task_ms=max(1.0, float(np.mean([stage.mean_task_ms for stage in stages]))),
        work_ms=max(1.0, workload.mean_work_ms),
        cpu=max(c.cpu for c in classes),
        memory=max(c.memory for c in classes),
    )
