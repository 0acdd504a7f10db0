"""The pools of an allocation file as tables of the kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from parcae.cluster.state import MAX_POOLS, POOL
from parcae.errors import ConfigError
from parcae.workloads.allocation import Allocation, PoolSpec
from parcae.workloads.job import Workload


def job_pools(allocation: Allocation, workload: Workload) -> tuple[str, ...]:
    """The pool of every job of the workload, by `Allocation.pool_of`.

    Raises:
        ConfigError: a pool has no job.
    """
    names = [job.name for job in workload.jobs]
    recorded = [job.pool or None for job in workload.jobs]
    allocation.check_used(names, recorded)
    return allocation.pools_of(names, recorded)


def pool_rows(
    pools: Sequence[PoolSpec], source: str
) -> tuple[npt.NDArray[np.void], dict[str, int]]:
    """Return the table of pools, and the row of every pool by its name.

    Args:
        pools: the pools. Of pools with equal need, Spark serves the first by name.
        source: name of the allocation file, for error messages.

    Raises:
        ConfigError: there are more pools than can be simulated.
    """
    if len(pools) > MAX_POOLS:
        raise ConfigError(f"{source}: {len(pools)} pools; at most {MAX_POOLS} can be simulated")
    if len(pools) == 1:
        # The dispatcher uses pools only if there are several. With an empty second pool, it uses
        # a single one, too.
        pools = (*pools, PoolSpec(f"not {pools[0].name}"))
    row_of = {pool.name: row for row, pool in enumerate(pools)}
    table = np.zeros(len(pools), POOL)
    table["weight"] = [pool.weight for pool in pools]
    table["min_share"] = [pool.min_share for pool in pools]
    table["is_fair"] = [pool.mode == "FAIR" for pool in pools]
    for rank, name in enumerate(sorted(row_of)):
        table["name_rank"][row_of[name]] = rank
    return table, row_of
