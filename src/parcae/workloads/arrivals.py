"""When jobs arrive: batch, Poisson, load-targeted and recorded arrival processes, drawn from a named random stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parcae.workloads.job import Workload

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class JobSequence:
    """The jobs of one run, in order of arrival.

    Args:
        workload: the job profiles.
        job_index: int64[num_jobs], which job of the workload each arrival is.
        arrival_ms: int64[num_jobs], when it arrives, ascending. Jobs with arrival 0 are in the system at the start.
    """

    workload: Workload
    job_index: Int64Array
    arrival_ms: Int64Array
