"""What the environments show: columns, scales and the arrays that they fill.

Shares of executors and resources are shown as they are; every other number x as log(1 + x / scale), cut off at BOUND, so that one
space holds seconds and hours. Scales are the same in all episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.cluster.state import ExecutorClass
from parcae.workloads.job import Workload

#: No feature is larger; log(1 + x / scale) reaches it at 22,000 times the scale.
BOUND = 10.0
NO_ROW = -1


class StageFeature(IntEnum):
    """Columns of `stages`."""

    IS_SHOWN = 0  # 0 in the rows that are left over
    IS_SCHEDULABLE = 1  # a decision may choose it
    IS_RUNNABLE = 2  # its parents are complete
    IS_LOCAL = 3  # its job's executors are asked about
    RUNNING = 4  # tasks that run, as a share of the executors
    COMING = 5  # executors committed or moving to it, as a share of the executors
    WAITING = 6  # tasks that have not started
    TASK_TIME = 7  # known mean duration of a task; 0 where unknown
    WORK_LEFT = 8  # waiting tasks x known duration
    CRITICAL_PATH = 9  # work on the heaviest path from here to a leaf


class JobFeature(IntEnum):
    """Columns of `jobs`."""

    IS_SHOWN = 0
    IS_LOCAL = 1
    EXECUTORS = 2  # attached, moving or committed to it, as a share of the executors
    STAGES_LEFT = 3
    WORK_LEFT = 4
    TIME_IN_SYSTEM = 5


class ClusterFeature(IntEnum):
    """Columns of `cluster`."""

    ASKED = 0  # executors asked about, as a share of all
    IDLE = 1  # executors that idle, as a share of all
    JOBS = 2  # jobs in the system
    HIDDEN_JOBS = 3  # of them, those for which `jobs` has no row


class ClassFeature(IntEnum):
    """Columns of `classes`, a row an executor class; shown where there are several."""

    CPU = 0  # of one of its executors, in units of the largest class's
    MEMORY = 1
    EXECUTORS = 2  # as a share of all
    IDLE = 3  # those that idle, as a share of all
    ASKED = 4  # those asked about, as a share of all


class FitFeature(IntEnum):
    """First columns of `stage_fit`; one for each class follows, 1 where it is large enough."""

    CPU = 0  # what a task needs, in units of the largest class's
    MEMORY = 1


class SlotFeature(IntEnum):
    """Columns of `stage_slot`; shown where there are idle slots."""

    HAD = 0  # the stage's one idle slot began
    RUNS = 1  # and has not ended
    LEFT = 2  # time to its end; the scale is that of tasks


class WaitingFeature(IntEnum):
    """Columns of the packing world's `jobs`, a row a slot; those of the demands follow, as shares of each resource."""

    IS_SHOWN = 0
    CAN_START = 1  # now; else it would be booked ahead, if it fits at all
    DURATION = 2  # as a share of the horizon
    AGE = 3  # since its arrival; the scale is the horizon


class PackingFeature(IntEnum):
    """Columns of the packing world's `cluster`."""

    BACKLOG = 0  # as a share of its size
    PAUSE = 1  # since the last arrival; the scale is the horizon


class Scales(NamedTuple):
    """What the numbers of a workload are measured by."""

    num_tasks: float  # of a stage
    num_stages: float  # of a job
    task_ms: float
    work_ms: float  # of a job
    cpu: float  # of the largest executor class
    memory: float


class ClusterView(NamedTuple):
    """The arrays of an observation (or, with one more leading axis, of many).

    Where there is one class, C is 0, where there are no idle slots, G is 0: what is about them is not shown. The last rows of
    `class_mask` and `slot_mask` are for the choice to idle.
    """

    stages: Any  # float32[max_stages, StageFeature]
    stage_job: Any  # int32[max_stages], row of `jobs`; NO_ROW in rows that are left over
    edges: Any  # int32[max_edges, 2], rows of a parent and a child stage; NO_ROW where left over
    jobs: Any  # float32[max_jobs, JobFeature]
    cluster: Any  # float32[ClusterFeature]
    classes: Any  # float32[C, ClassFeature]
    stage_fit: Any  # float32[max_stages, FitFeature + C]
    stage_slot: Any  # float32[max_stages, SlotFeature]
    class_mask: Any  # bool[max_stages + 1, C + 1]: classes that may be chosen with each stage; the last is any
    slot_mask: Any  # bool[max_stages + 1, G + 1]: idle slots that may be chosen with each stage at every limit
    action_mask: Any  # bool[...]: the choices of stage and of idling, of the limit, then of the class and of the slot


class Shown(NamedTuple):
    """Which rows of the cluster's tables a view shows (or, with one more leading axis, many views)."""

    stages: Any  # int64[max_stages], stage of every row of the view, or NO_STAGE
    jobs: Any  # int64[max_jobs], job of every row, or NO_JOB
    row_of_stage: Any  # int64[num_stages], row of every stage, or NO_ROW
    row_of_job: Any  # int64[num_jobs]


def scales_of(workload: Workload, classes: Sequence[ExecutorClass]) -> Scales:
    """Means over the workload's jobs and stages, at least one task, one stage and one millisecond; the most of the classes."""
    stages = [stage for job in workload.jobs for stage in job.stages]
    return Scales(
        num_tasks=max(1.0, workload.num_tasks / len(stages)),
        num_stages=max(1.0, len(stages) / len(workload.jobs)),
        task_ms=max(1.0, float(np.mean([stage.mean_task_ms for stage in stages]))),
        work_ms=max(1.0, workload.mean_work_ms),
        cpu=max(c.cpu for c in classes),
        memory=max(c.memory for c in classes),
    )
