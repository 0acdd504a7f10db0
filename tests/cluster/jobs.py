"""Jobs as the transitions take them, for the clusters that tests step by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.kernels.transitions import job_arrived
from parcae.cluster.state import STAGE_SPEC, ClusterState

Stages = Sequence[tuple[int, float, tuple[int, ...]]]  # (number of tasks, ms of one, parents)


def add_job(
    state: ClusterState, stages: Stages, memory: Sequence[float] = (), knowledge: float = 1.0
) -> int:
    """Let a job arrive now. Returns its row.

    Args:
        state: the cluster's tables.
        stages: the job's stages.
        memory: demand of a task of each stage; empty: none.
        knowledge: factor on the durations that the scheduler knows.
    """
    specs, children = _specs(stages, memory)
    now_ms = int(state.now.clock_ms[0])
    return int(job_arrived(state, specs, children, 0, len(stages), 0, now_ms, knowledge))


def _specs(stages: Stages, memory: Sequence[float]) -> tuple[Any, npt.NDArray[np.int64]]:
    """Return (STAGE_SPEC rows, children) of a job."""
    specs = np.zeros(len(stages), STAGE_SPEC).view(np.recarray)
    edges: list[int] = []
    for row, (num_tasks, task_ms, parents) in enumerate(stages):
        children = [child for child, stage in enumerate(stages) if row in stage[2]]
        needed = memory[row] if memory else 0.0
        first = len(edges)
        specs[row] = (num_tasks, len(parents), first, len(children), task_ms, 0.0, 0.0, needed)
        edges.extend(children)
    return specs, np.array(edges or [0], np.int64)
