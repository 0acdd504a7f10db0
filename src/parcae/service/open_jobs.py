"""Open jobs: a query whose later stages are revealed while the earlier ones run does not end when those are done.

Such a job has one more row before the stages that its client knows: hidden, of one task, with a parent that never completes. It
keeps the job in the system, and its duration is the work that is likely to come, so that a policy which asks how much a job has
left hears of it. No executor can work for it: it counts as saturated, and neither as a stage that wants executors nor as one that
has tasks to start.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from parcae.cluster.kernels.serving import durations_changed
from parcae.cluster.state import STAGE_SPEC, ClusterState

#: Rows of an open job before those of its client's stages.
NUM_HIDDEN = 1


class ExpectsWork(Protocol):
    """Who knows how much work jobs of a name bring: a `DurationBook`."""

    def expected_more_ms(self, name: str, known_ms: float) -> float:
        """Work that is likely to come, of a job of whose stages `known_ms` are known."""


def with_hidden(specs: Any, more_ms: float) -> Any:
    """STAGE_SPEC[num_stages + NUM_HIDDEN]: the stages of an open job behind their hidden one.

    Args:
        specs: STAGE_SPEC[num_stages], the client's stages.
        more_ms: work that is likely to come.
    """
    whole = np.zeros(NUM_HIDDEN + len(specs), STAGE_SPEC).view(np.recarray)
    whole[NUM_HIDDEN:] = specs
    whole.num_tasks[0], whole.num_parents[0] = 1, 1
    whole.task_ms[0] = whole.downstream_ms[0] = more_ms
    return whole


def hide(state: ClusterState, job: int) -> None:
    """Let nobody work for the hidden stage of an open job that just arrived."""
    jobs, stages, hidden = state.jobs, state.stages, int(state.jobs.stage_start[job])
    stages.is_saturated[hidden], stages.fits[hidden] = 1, 0
    jobs.num_unsaturated[job] -= 1
    jobs.num_unstarted[job] -= 1


def refresh_durations(state: ClusterState, job: int, name: str, book: ExpectsWork, *, is_open: bool) -> None:
    """Durations of a job's stages became known: derive what depends on them afresh, the work to come of an open job first."""
    if is_open:
        hidden = int(state.jobs.stage_start[job])
        stages = state.stages[hidden + NUM_HIDDEN : hidden + int(state.jobs.num_stages[job])]
        known_ms = float((stages.num_tasks * stages.task_ms).sum())
        state.stages.task_ms[hidden] = book.expected_more_ms(name, known_ms)
    durations_changed(state, job)
