"""What a policy observes: read-only views of the cluster's tables."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.cluster.state import ClusterState, World


class Observation(NamedTuple):
    """Read-only views of the tables of `parcae.cluster.state`, valid until the next transition.

    Jobs in the system are `active[: now.num_active[0]]`, in order of arrival. `now.num_source[0]`
    executors of the job `now.source_job[0]` (NO_JOB: the global pool) wait for a decision.
    """

    now: Any  # NOW[1]
    jobs: Any  # JOB[num_jobs]
    stages: Any  # STAGE[num_stages]
    executors: Any  # EXECUTOR[num_executors]
    sources: Any  # SOURCE[...]
    classes: Any  # EXECUTOR_CLASS[num_classes]
    source_count: Any  # int64[num_classes], offered executors of each class
    active: Any  # int64[num_jobs], rows of the jobs in the system
    children: Any  # int64[num_edges], rows of child stages
    commitments: Any  # COMMITMENT[...], executors that earlier decisions promised
    holds: Any  # HOLD[num_stages], running idle slots

    @property
    def active_jobs(self) -> npt.NDArray[np.int64]:
        """Rows of the jobs in the system, in order of arrival."""
        rows: npt.NDArray[np.int64] = self.active[: self.now.num_active[0]]
        return rows

    def stages_of(self, job: int) -> range:
        """Rows of the job's stages."""
        start = int(self.jobs.stage_start[job])
        return range(start, start + int(self.jobs.num_stages[job]))

    def is_schedulable(self, stage: int) -> bool:
        """Whether a decision may choose the stage.

        It is unsaturated, its parents are saturated, no decision of this round chose it, and at
        least one offered executor is large enough for it.
        """
        stages = self.stages
        # Bit c of `fits` says whether class c is large enough.
        is_offered = (self.source_count > 0) & (
            (int(stages.fits[stage]) >> np.arange(len(self.classes))) & 1 == 1
        )
        return bool(
            stages.is_saturated[stage] == 0
            and stages.num_parents_unsaturated[stage] == 0
            and stages.selected_round[stage] != self.now.round_id[0]
            and is_offered.any()
        )

    def schedulable_stages(self) -> list[int]:
        """Rows of the schedulable stages, in order of the jobs' arrival, then by stage index."""
        jobs = self.active_jobs
        num_stages = self.jobs["num_stages"][jobs]
        before = np.cumsum(num_stages) - num_stages
        first = np.repeat(self.jobs["stage_start"][jobs] - before, num_stages)
        rows = first + np.arange(len(first))
        stages = self.stages
        rows = rows[stages["is_saturated"][rows] == 0]
        rows = rows[stages["num_parents_unsaturated"][rows] == 0]
        rows = rows[stages["selected_round"][rows] != self.now["round_id"][0]]
        offered = (self.source_count > 0) << np.arange(len(self.classes))
        found: list[int] = rows[(stages["fits"][rows] & offered.sum()) != 0].tolist()
        return found

    def demand(self, stage: int) -> int:
        """Number of executors that the stage can still take."""
        stages = self.stages
        waiting = stages.num_tasks[stage] - stages.num_started[stage]
        # In the world of cores a policy plans for all cores, including those that run its tasks.
        if self.now.world[0] == World.CORES and waiting > 0:
            waiting += stages.num_bound[stage]
        return int(waiting - stages.num_committed[stage] - stages.num_moving[stage])


def _read_only(table: Any) -> Any:
    """Return a view of the table that cannot be written."""
    view = table.view()
    view.flags.writeable = False
    return view


def observe(state: ClusterState) -> Observation:
    """Return the observation of the cluster's present state."""
    return Observation(*(_read_only(getattr(state, name)) for name in Observation._fields))
