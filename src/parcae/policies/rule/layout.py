"""The rule's parameters: their order, and how many there were in earlier versions."""

from __future__ import annotations

from enum import IntEnum


class RuleParameter(IntEnum):
    """Columns of the rule's parameters; all are plain numbers, 0 where a term plays no part."""

    PRICE = 0  # log of the price of an executor, of a share of the cluster
    PRICE_JOBS = 1  # x log(jobs in the system)
    PRICE_OPEN = 2  # x log(jobs that want executors)
    PRICE_REMAINING = 3  # x log(the job's remaining work / mean work)
    PRICE_WORK = 4  # x log(its total work / mean work)
    PRICE_TOTAL = 5  # x log(remaining work of all jobs / mean work)
    PRICE_STARTED = 6  # x share of its work that has started
    SCORE_WORK = 7  # beside log(remaining work): x log(total work)
    SCORE_STRETCH = 8  # x log(solo duration at the cap / mean work)
    SCORE_CAP = 9  # x log(cap)
    SCORE_HELD = 10  # x held / cap
    LOCAL_CAP = 11  # log of (cap for executors that the job already has / cap)
    JOIN_CAP = 12  # log of (cap for executors from elsewhere / cap)
    SPILL = 13  # log of (cap for what is left over / cap)
    SPILL_JOBS = 14  # x log(jobs in the system)
    LOCAL_SCORE = 15  # how much smaller another job's score must be to take the local executors
    WORTH = 16  # log of the least work that an executor must find elsewhere to move there / (mean work / 1000)
    STAGE_RUNNABLE = (
        17  # beside log(work on the heaviest path from the stage to a leaf): + if it is runnable
    )
    STAGE_TASK = 18  # x log(its task duration)
    STAGE_DEMAND = 19  # x log(executors that it can take)
    PRICE_CLUSTER = 20  # x log(executors of the cluster / 50)
    BORROW = 21  # a stage takes an executor larger than it needs if this and the next four come to 0 or less
    BORROW_REMAINING = 22  # x log(the job's remaining work / mean work)
    BORROW_JOBS = 23  # x log(jobs in the system)
    BORROW_WAITING = (
        24  # x log(executors that stages which need such ones wait for / those that are offered)
    )
    BORROW_SIZE = 25  # x log(size of the executor / size of the smallest that fits)
    CLASS_OFFERED = (
        26  # beside log(size), smallest first: x log(share of the class that is offered)
    )
    SCORE_OVERSIZE = (
        27  # x log(size of the executor that the job would take / size of the smallest that fits)
    )
    STAGE_OVERSIZE = 28  # the same for the choice of a stage, which prefers the largest
    RESERVE = 29  # tenths of the executors that fit a stage to leave idle, of those that no job has; this and the next, if > 0
    RESERVE_REMAINING = 30  # x log(the job's remaining work / mean work)
    AHEAD = (
        31  # a stage whose parents still run gets executors if this and the next come to 0 or less
    )
    AHEAD_WAIT = 32  # x log(longest task of its parents that are not complete, in s)


NUM_PARAMETERS = len(RuleParameter)
#: The parameters about classes play no part where executors are alike.
CLASS_PARAMETERS = range(RuleParameter.BORROW, RuleParameter.RESERVE)
#: How many there were before classes, and before reserves.
EARLIER_COUNTS = (CLASS_PARAMETERS.start, CLASS_PARAMETERS.stop)
