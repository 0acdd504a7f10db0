"""Parameters of the rule of the world of cores, and its tables."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple


class OrderParameter(IntEnum):
    """Places of the rule's parameters; all 0 is the plain order by least remaining work.

    A job's tier is the logarithm of its remaining work plus these times what they are called after.
    """

    NARROW = 0  # how far the critical path, and not the work, decides how long the job still takes
    TOTAL = 1  # log of its total work
    CORRECTION = 2  # log of the correction of its estimate
    SURPRISE = 3  # log of (what finished tasks took / what was foretold), by how many have finished
    STARTED = 4  # share of its tasks that have started
    AGE = 5  # log of its time in the system
    STAGES = 6  # share of its stages that are left
    WIDTH = 7  # log of the tasks that it could start now
    UNTRIED = 8  # 1 while none of its tasks has finished
    FEW = 9  # 1 / (1 + finished tasks)
    RUNNING = 10  # share of the cores that it has
    VIRTUAL = 11  # log of the time to its end under fair sharing
    ERRING_TOTAL = 12  # log of its total work, times how far estimates err
    ERRING_UNTRIED = 13  # UNTRIED, times how far estimates err
    ERRING_AGE = 14  # AGE, times how far estimates err
    STAGE_TASK = 15  # of stages: log of their tasks' duration
    STAGE_TASKS = 16  # log of their tasks to start
    STAGE_WORK = 17  # log of the work downstream
    PROBE = 18  # tasks that every job starts first, so that its size is known: log2
    PROBE_ERRING = 19  # the same, times how far estimates err
    PROBE_SHARE = 20  # largest share of a job's tasks that is started so: log
    ERRING_SURPRISE = 21  # SURPRISE, times how far estimates err
    CROWDED_TOTAL = 22  # log of its total work, times log of the number of jobs
    CROWDED_AGE = 23  # AGE, times log of the number of jobs
    PRIOR_ERROR = 24  # how far estimates are thought to err before any has been seen to: log


NUM_ORDER_PARAMETERS = len(OrderParameter)


class OrderRule(NamedTuple):
    """What the rule knows beside the observation."""

    theta: Any  # float64[NUM_ORDER_PARAMETERS]
    mean_work_ms: Any  # float64[1], mean work of a job: the scale of all that depends on time
    # Memory: the virtual run of fair sharing.
    virtual_now: Any  # VIRTUAL_NOW[1]
    virtual_jobs: Any  # VIRTUAL_JOB[num_jobs]
    virtual_stages: Any  # VIRTUAL_STAGE[num_stages]
