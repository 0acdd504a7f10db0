"""What is shown of a workload: its tables, and a picture of its jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rich.table import Table

from parcae.base.texts import seconds_text
from parcae.evaluation.comparison import text_table
from parcae.evaluation.page import as_html
from parcae.evaluation.pictures import new_picture, tidy
from parcae.workloads.describe import (
    ARRIVALS_IN_LOGS,
    CAN_GAIN,
    CORES_IN_LOGS,
    describe_workload,
)
from parcae.workloads.workload import WORK_FACTOR, Workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Number of jobs that a description lists by name.
_LARGEST = 15
#: What a picture shows of a job.
_TIMES = ("work_s", "critical_path_s")
#: Number of parallelism levels and depths that it lists.
_SHOWN = 12
#: What workloads from logs keep of the logs' own cluster, in the order of its rows.
_LOGGED = {
    CAN_GAIN: "can an order gain?",
    CORES_IN_LOGS: "cores in the logs",
    ARRIVALS_IN_LOGS: "arrivals in the logs",
    WORK_FACTOR: "all work in the logs / work of the jobs",
}


def description_tables(described: dict[str, Any]) -> Iterator[Table]:
    """The tables of `parcae workload describe`."""
    counts = (described["num_jobs"], described["num_stages"], described["num_tasks"])
    by_wave = described["samples_by_wave"].items()
    provenance = dict(described["provenance"])
    # First what decides whether the rest is worth reading.
    logged = [(label, provenance.pop(key)) for key, label in _LOGGED.items() if key in provenance]
    facts = (
        *logged,
        ("fingerprint", described["fingerprint"]),
        ("jobs, stages, tasks", ", ".join(f"{count:,}" for count in counts)),
        ("total work", f"{seconds_text(described['total_work_s'])} s of one executor"),
        # The share that Decima's paper gives for its workload (section 7.2).
        ("work in the top 23% of jobs", f"{described['share_of_work_in_top_23_percent']:.0%}"),
        ("parallelism measured", _first(map(str, described["parallelism_levels"]))),
        ("duration samples", ", ".join(f"{count:,} {wave}" for wave, count in by_wave)),
        ("spread of runs", described["runs_in_words"]),
        ("faults in the logs", described["faults_in_words"]),
        ("DAG depth: jobs", _first(f"{d}: {n}" for d, n in described["depth"].items())),
        *provenance.items(),
    )
    rows = [[label, str(value)] for label, value in facts]
    yield text_table(f"Workload {described['name']}", ("", ""), rows)
    keys = ("work_s", "critical_path_s", "average_width", "stages_per_job", "tasks_per_job")
    measures = ("mean", "median", "p95", "max")
    rows = [[key, *(seconds_text(described[key][one]) for one in measures)] for key in keys]
    yield text_table("Spread", ("per job", "mean", "median", "p95", "largest"), rows)
    # Jobs with the most work first.
    largest = sorted(described["jobs"], key=lambda row: -row["work_s"])[:_LARGEST]
    rows = [
        [
            row["name"],
            *(str(row[key]) for key in ("stages", "tasks", "depth")),
            *(seconds_text(row[key]) for key in ("work_s", "critical_path_s", "average_width")),
        ]
        for row in largest
    ]
    headings = ("job", "stages", "tasks", "depth", "work s", "critical path s", "width")
    yield text_table("Largest jobs", headings, rows)


def _first(texts: Iterable[str]) -> str:
    """The first of the texts in one line, with dots if there are more."""
    texts = list(texts)
    return ", ".join(texts[:_SHOWN]) + (", ..." if len(texts) > _SHOWN else "")


def workload_html(workload: Workload) -> str:
    """A workload as notebooks show it: its facts, and a picture of its jobs."""
    described = describe_workload(workload)
    return as_html(next(description_tables(described)), lambda: _jobs_picture(described["jobs"]))


def _jobs_picture(jobs: list[dict[str, Any]]) -> Figure:
    """A dot a job: how much work it is, and how long it takes at least."""
    picture = new_picture(6, 3.2)
    axis = picture.subplots()
    works_s, paths_s = ([max(0.001, job[key]) for job in jobs] for key in _TIMES)
    axis.scatter(works_s, paths_s, s=14, alpha=0.6)
    axis.set(xscale="log", yscale="log")
    tidy(axis, ("work of a job (core-seconds)", "its critical path (s)"))
    return picture
