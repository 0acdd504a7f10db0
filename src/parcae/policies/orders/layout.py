"""The tables of the policies that plan by a formula."""

from __future__ import annotations

from typing import Any, NamedTuple

#: Resolution of the table of Gittins indices: steps per unit of spread (sigma of the log of sizes),
#: and steps per unit of age (service so far / median size).
GITTINS_SIGMAS_PER_UNIT = 20
GITTINS_AGES_PER_UNIT = 20


class PlanTables(NamedTuple):
    """What a policy needs besides the observation. Tables that a formula does not use have one row.

    In tables by recurring job, the last row is for jobs that the workload's profile does not know.
    """

    pool_of: Any  # int64[num_profiles + 1], row in `pools` of every recurring job
    pools: Any  # POOL[num_pools]
    sigma: Any  # float64[num_profiles + 1], spread of the log of a recurring job's size
    # float64[num_sigmas, num_ages]: Gittins index of a size of median 1, by spread and age
    index: Any
    tiers: Any  # float64[num_jobs], fixed tiers of jobs, in order of arrival
    limits: Any  # int64[num_stages], fixed limits of stages, in order of arrival
    # float64[num_profiles + 1], deadline of a recurring job after its arrival; inf: it has none
    deadline_ms: Any
    # The virtual run of fair sharing, which the kernels keep between plans.
    virtual_now: Any  # VIRTUAL_NOW[1]
    virtual_jobs: Any  # VIRTUAL_JOB[num_jobs]
    virtual_stages: Any  # VIRTUAL_STAGE[num_stages]
