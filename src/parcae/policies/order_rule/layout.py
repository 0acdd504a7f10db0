"""Parameters and tables of the rule of the world of cores."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple


class OrderParameter(IntEnum):
    """Indices of the rule's parameters. Each comment names the feature that the parameter weighs.

    A job's tier is log(remaining work) + recent estimate error x sum of (parameter x feature).
    With all parameters 0, and PROBE far below 0, the rule is least remaining work first.
    """

    NARROW = 0  # log1p of the remaining critical path / (remaining work / cores)
    TOTAL = 1  # log of its total work
    CORRECTION = 2  # log of the correction of its estimate
    # log of (actual / estimated time of finished tasks), scaled down while few tasks have finished
    SURPRISE = 3
    STARTED = 4  # share of its tasks that have started
    AGE = 5  # log of its time in the system
    STAGES = 6  # share of its stages that are left
    WIDTH = 7  # log of the tasks that it could start now
    UNTRIED = 8  # 1 while none of its tasks has finished
    FEW = 9  # 1 / (1 + finished tasks)
    RUNNING = 10  # share of the cores that it has
    VIRTUAL = 11  # log of the time to its end in the virtual run of fair sharing
    CROWDED = 12  # log of its total work, times log of the number of jobs
    # The order of a job's stages:
    STAGE_PATH = 13  # log of the critical path from the stage to a leaf
    STAGE_TASK = 14  # log of the duration of its tasks
    STAGE_TASKS = 15  # log of the number of its tasks that have not started
    STAGE_WORK = 16  # log of the downstream work
    # Probing: a job's first tasks start before all other jobs, so that its size becomes known.
    PROBE = 17  # log2 of twice the number of probed tasks
    PROBE_ERRING = 18  # the same, times the recent estimate error
    PROBE_SHARE = 19  # log of the largest share of a job's tasks that is probed, plus 3
    # log of the factor on the squared error that is assumed before any task has finished
    PRIOR_ERROR = 20


NUM_ORDER_PARAMETERS = len(OrderParameter)


class OrderRule(NamedTuple):
    """What the rule needs besides the observation."""

    theta: Any  # float64[NUM_ORDER_PARAMETERS]
    mean_work_ms: Any  # float64[1], mean work of the workload's jobs: the unit of work
    # The virtual run of fair sharing, which the kernels keep between plans.
    virtual_now: Any  # VIRTUAL_NOW[1]
    virtual_jobs: Any  # VIRTUAL_JOB[num_jobs]
    virtual_stages: Any  # VIRTUAL_STAGE[num_stages]
