"""Which policies plan by a formula, and the tables that they are given."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

#: Steps of the table of Gittins' indices: spreads, and ages in units of the median size.
GITTINS_SIGMAS_PER_UNIT = 20
GITTINS_AGES_PER_UNIT = 20


class OrderKind(IntEnum):
    """How the order is made."""

    FIFO = 0  # by job, then stage: Spark's FIFO
    FIFO_SPARK_JOBS = (
        1  # by the order in which stages became runnable: FIFO under adaptive execution
    )
    FAIR = 2  # a pool a job: Spark's FAIR
    POOLS = 3  # the pools of an allocation file
    SJF = 4  # least total work first
    SRPT = 5  # least remaining work first
    FSP = 6  # by virtual completion under fair sharing
    PSBS = 7  # as FSP, but jobs that outlived their estimate share
    LAS = 8  # least attained service first
    GITTINS = 9  # largest Gittins index first
    GIVEN = 10  # tiers and limits that are given


class PlanTables(NamedTuple):
    """What a policy by formula knows beside the observation; tables that it does not use have one row."""

    pool_of: Any  # int64[num_profiles + 1], pool of every recurring job; the last row: jobs not in the profile
    pools: Any  # POOL[num_pools]
    sigma: Any  # float64[num_profiles + 1], spread of the log of a recurring job's size
    index: (
        Any  # float64[num_sigmas, num_ages], Gittins index of a size of median 1 by spread and age
    )
    tiers: Any  # float64[num_jobs], given tiers by order of arrival
    limits: Any  # int64[num_stages], given limits by order of arrival
    # Memory: the virtual run of fair sharing.
    virtual_now: Any  # VIRTUAL_NOW[1]
    virtual_jobs: Any  # VIRTUAL_JOB[num_jobs]
    virtual_stages: Any  # VIRTUAL_STAGE[num_stages]
