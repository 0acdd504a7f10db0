"""The rule's parameters: their order, and their number in earlier versions."""

from __future__ import annotations

from enum import IntEnum


class RuleParameter(IntEnum):
    """Indices of the rule's parameters. A parameter of 0 switches its term off.

    The parameters of a group are summed, each multiplied ("x") by its feature. "Mean work" is the
    mean work of the workload's jobs.
    """

    # The price of executors, which determines a job's cap: log of the price of the whole cluster.
    PRICE = 0  # constant
    PRICE_JOBS = 1  # x log(jobs in the system)
    PRICE_OPEN = 2  # x log(jobs that want executors)
    PRICE_REMAINING = 3  # x log(the job's remaining work / mean work)
    PRICE_WORK = 4  # x log(the job's total work / mean work)
    PRICE_TOTAL = 5  # x log(remaining work of all jobs / mean work)
    PRICE_STARTED = 6  # x share of the job's work that has started
    # The score of a job, added to log(remaining work); the smallest is served first.
    SCORE_WORK = 7  # x log(total work)
    SCORE_STRETCH = 8  # x log(solo duration at the cap / mean work)
    SCORE_CAP = 9  # x log(cap)
    SCORE_HELD = 10  # x held / cap
    # Factors on the cap.
    LOCAL_CAP = 11  # log of (cap for executors that the job already has / cap)
    JOIN_CAP = 12  # log of (cap for executors from elsewhere / cap)
    SPILL = 13  # log of (cap for executors that no job below its cap can use / cap)
    SPILL_JOBS = 14  # the same, x log(jobs in the system)
    # When executors move to another job.
    LOCAL_SCORE = 15  # how much smaller another job's score must be to take the job's executors
    # log of (remaining work per executor that a job must have for an executor to move to it /
    # (mean work / 1000))
    WORTH = 16
    # The score of a stage, added to log(downstream work); the largest is served first.
    STAGE_RUNNABLE = 17  # added if the stage is runnable
    STAGE_TASK = 18  # x log(duration of its tasks)
    STAGE_DEMAND = 19  # x log(executors that it can take)
    # One more term of the price.
    PRICE_CLUSTER = 20  # x log(executors of the cluster / 50)
    # Executor classes: a stage may take an executor larger than it needs if the sum is <= 0.
    BORROW = 21  # constant
    BORROW_REMAINING = 22  # x log(the job's remaining work / mean work)
    BORROW_JOBS = 23  # x log(jobs in the system)
    # x log(demand of stages that need such a large executor / offered executors of the class)
    BORROW_WAITING = 24
    BORROW_SIZE = 25  # x log(size of the executor / size of the smallest that fits)
    # The choice of a class, added to -log(size): x log(share of the class that is offered).
    CLASS_OFFERED = 26
    # The score of a job: x log(size of the class it would get / size of the smallest that fits).
    SCORE_OVERSIZE = 27
    STAGE_OVERSIZE = 28  # the same for the score of a stage
    # The reserve: tenths of the executors that fit a stage which stay idle, if the sum is > 0. Only
    # executors of the global pool can be reserved.
    RESERVE = 29  # constant
    RESERVE_REMAINING = 30  # x log(the job's remaining work / mean work)
    # A stage whose parents still run gets executors if the sum is <= 0.
    AHEAD = 31  # constant
    AHEAD_WAIT = 32  # x log(longest task of its parents that are not complete, in s)


NUM_PARAMETERS = len(RuleParameter)
#: The parameters about executor classes. They have no effect on a cluster with a single class.
CLASS_PARAMETERS = range(RuleParameter.BORROW, RuleParameter.RESERVE)
#: Number of parameters of earlier versions: before executor classes, and before the reserve.
EARLIER_COUNTS = (CLASS_PARAMETERS.start, CLASS_PARAMETERS.stop)
