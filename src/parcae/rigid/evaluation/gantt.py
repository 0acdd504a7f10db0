"""Gantt charts of rigid jobs: one panel per resource, which shows its units against time.

A job is a box that spans the units and the time that it holds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from parcae.evaluation.gantt import Bars, Chart, Panel
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.metrics import has_started, mean_of_started, slowdown
from parcae.rigid.world import RigidOutcome
from parcae.workloads.import_report import counted

#: A chart with more jobs, or a resource with more units, would not be readable.
MAX_JOBS = 400
MAX_UNITS = 400


def boxes(outcome: RigidOutcome, resource: int) -> Bars:
    """The boxes of all jobs that started. Each job holds the lowest units free at its start.

    A job whose units are not neighbours has several boxes. The model of rigid jobs defines how many
    units a job holds, not which; this choice is for drawing only.

    Example: jobs of 2 and 3 units that start together hold units 0-1 and 2-4.
    """
    jobs = outcome.jobs
    # The time from which each unit is free.
    free_from = np.zeros(int(jobs.capacity[resource]), np.int64)
    rows: list[tuple[int, int, int, int, int]] = []
    order = np.flatnonzero(has_started(outcome))
    for job in order[np.argsort(outcome.start[order], kind="stable")].tolist():
        start = int(outcome.start[job])
        finish = int(outcome.finish[job])
        units = np.flatnonzero(free_from <= start)[: jobs.demand[job, resource]]
        free_from[units] = finish
        neighbours = np.split(units, np.flatnonzero(np.diff(units) > 1) + 1)
        rows += [(int(some[0]), start, finish, job, len(some)) for some in neighbours if len(some)]
    return Bars(*np.array(rows, np.int64).reshape(-1, 5).T)


def can_be_drawn(jobs: RigidJobs) -> bool:
    """Whether a chart of a run of these jobs would be readable."""
    return len(jobs) <= MAX_JOBS and int(jobs.capacity.max()) <= MAX_UNITS


def packing_chart(name: str, outcome: RigidOutcome) -> Chart:
    """The chart of one run under the policy of this name."""
    lost = int((~has_started(outcome)).sum())
    never = f", {counted(lost, 'job')} never started" if lost else ""
    title = f"{name}: mean slowdown {mean_of_started(slowdown(outcome)):,.2f}{never}"
    jobs = outcome.jobs
    panels = [
        Panel(
            label,
            int(jobs.capacity[resource]),
            boxes(outcome, resource),
            _names(outcome, resource),
            low=0.0,
        )
        for resource, label in enumerate(jobs.resources)
    ]
    unit = "s" if jobs.step == "s" else "steps"
    end = last_finish({name: outcome})
    return Chart(title, panels, end, f"time ({unit})")


def _names(outcome: RigidOutcome, resource: int) -> list[str]:
    """By job: its id, its units of a resource, and its times."""
    jobs = outcome.jobs
    columns = (jobs.ids, jobs.demand[:, resource], outcome.start, outcome.finish, jobs.arrival)
    return [
        f"job {job}: {units} units from {start} to {finish}, waited {start - arrival}"
        for job, units, start, finish, arrival in zip(*columns, strict=True)
    ]


def last_finish(outcomes: Mapping[str, RigidOutcome]) -> int:
    """The time at which the last job of any run finishes, at least 1."""
    return max(1, *(int(outcome.finish.max(initial=0)) for outcome in outcomes.values()))
