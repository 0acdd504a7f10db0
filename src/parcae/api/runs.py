"""One simulated run, and its jobs, tasks and decisions as frames."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl

from parcae.api.checks import check_cluster, check_jobs
from parcae.base.extensions import naming_extras
from parcae.base.texts import s_from_ms, seconds_text
from parcae.cluster.trace import Trace
from parcae.evaluation.comparison import text_table
from parcae.evaluation.gantt import cluster_chart, gantt_picture, write_gantt
from parcae.evaluation.page import as_html
from parcae.evaluation.per_job import decisions_frame, jobs_frame, tasks_frame
from parcae.evaluation.policies import resolve_policies
from parcae.policies.own import AnyPolicy, PolicyLike, policy_object
from parcae.simulation.config import SimulationConfig
from parcae.simulation.metrics import RunSummary, missed_and_tardiness, summarize
from parcae.simulation.simulator import simulate as play
from parcae.workloads.import_report import counted
from parcae.workloads.workload import JobSequence, check_seed


@dataclass(frozen=True, eq=False)
class Run:
    """One simulated run.

    Args:
        jobs: the jobs that ran.
        cluster: the cluster.
        trace: what happened, task by task; times in ms.
    """

    jobs: JobSequence
    cluster: SimulationConfig
    trace: Trace

    def __repr__(self) -> str:
        jobs, units = len(self.trace.job_names), counted(self.trace.num_executors, self.trace.unit)
        average = seconds_text(self.average_jct_s)
        return f"<Run {self.policy}: {counted(jobs, 'job')}, {units}, average JCT {average} s>"

    def _repr_html_(self) -> str:
        """The figures of the run, and its Gantt chart if its tasks are recorded, for notebooks."""
        figures = {
            "average JCT (s)": seconds_text(self.average_jct_s),
            "p95 JCT (s)": seconds_text(self.p95_jct_s),
            "makespan (s)": seconds_text(self.makespan_s),
            "utilization": f"{self.utilization:.1%}",
        }
        if self.deadlines:
            figures["missed deadlines"] = f"{self.deadlines['missed_deadline_share']:.1%}"
        title = f"{self.policy}: {counted(len(self.trace.job_names), 'job')}"
        table = text_table(title, list(figures), [list(figures.values())])
        if self.trace.tasks is None:
            return as_html(table)
        return as_html(table, lambda: gantt_picture([cluster_chart(self.trace)]))

    @cached_property
    def summary(self) -> RunSummary:
        """All figures of the run; times in ms."""
        return summarize(self.trace, self.jobs)

    @property
    def policy(self) -> str:
        """The policy's name."""
        return self.trace.policy

    @property
    def average_jct_s(self) -> float:
        """Average job completion time (completion - arrival), in seconds."""
        return s_from_ms(self.summary.average_jct_ms)

    @property
    def p95_jct_s(self) -> float:
        """The 95th percentile of the job completion times, in seconds."""
        return s_from_ms(self.summary.p95_jct_ms)

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last completion, in seconds."""
        return s_from_ms(self.summary.makespan_ms)

    @property
    def utilization(self) -> float:
        """Share of the cores' time in which they ran tasks."""
        return self.summary.utilization

    @property
    def deadlines(self) -> dict[str, float | int]:
        """How the run did against its deadlines; empty if the workload has none.

        See `parcae.simulation.metrics.missed_and_tardiness`.
        """
        return missed_and_tardiness(self.trace, self.jobs)

    def to_frame(self) -> pl.DataFrame:
        """One row a job; see `parcae.evaluation.per_job.jobs_frame`."""
        return jobs_frame(self.trace)

    def tasks(self) -> pl.DataFrame:
        """One row a task; see `parcae.evaluation.per_job.tasks_frame`."""
        return tasks_frame(self.trace)

    def decisions(self) -> pl.DataFrame:
        """One row a decision of Decima's world; see `parcae.evaluation.per_job.decisions_frame`."""
        return decisions_frame(self.trace)

    def gantt(self, path: str | Path) -> Path:
        """Write which core worked for which job over time; the file's ending is the format.

        See `parcae.evaluation.gantt.FORMATS`.

        Raises:
            ConfigError: another ending.
            OSError: the file cannot be written.
        """
        with naming_extras():
            write_gantt([cluster_chart(self.trace)], Path(path))
        return Path(path)


def resolve(
    policy: PolicyLike, jobs: JobSequence, cluster: SimulationConfig, seed: int = 0
) -> AnyPolicy:
    """The policy that plays a sequence of jobs; on the seed `NAME:oracle` finds its parameters."""
    made = policy_object(policy, jobs.workload, cluster)
    if not isinstance(made, str):
        return made
    found = resolve_policies(jobs.workload, [made], cluster, jobs.nearest_process, jobs.num_jobs)
    return found.for_sequence(jobs, seed)[made]


def simulate(
    jobs: JobSequence,
    policy: PolicyLike,
    cluster: SimulationConfig,
    *,
    seed: int = 1,
    record: bool = True,
) -> Run:
    """Play jobs on a cluster under a policy.

    Args:
        jobs: the jobs and their arrivals, e.g. `parcae.workload("tpch").draw(...)`.
        policy: a name, a policy object, or a function over a `SchedulerView`.
        cluster: the cluster.
        seed: seed of the tasks' durations; runs of one seed draw the same ones under every policy.
        record: keep every task (and decision), for frames and the Gantt chart.

    Raises:
        ConfigError: something else than jobs or a cluster, or a seed that is negative or not whole.
        PolicyError: no such policy, or one that decides something impossible.
        WorkloadError: jobs that the cluster cannot run.

    Example:
        >>> cluster = Cluster(cores=10)
        >>> run = simulate(workload("toy").draw(5, "batch", cluster, seed=1), "fair", cluster)
    """
    check_jobs(jobs)
    check_cluster(cluster)
    check_seed(seed)
    return Run(
        jobs,
        cluster,
        play(jobs, resolve(policy, jobs, cluster, seed), cluster, seed, record=record),
    )
