"""Policies compared on the same jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from parcae.api.checks import check_cluster, check_jobs, check_seeds
from parcae.base.errors import ConfigError
from parcae.base.extensions import naming_extras
from parcae.evaluation.compare import ClusterWorld
from parcae.evaluation.compare import compare as compare_policies
from parcae.evaluation.comparison import Comparison, Progress
from parcae.evaluation.report import write_report
from parcae.policies.own import PolicyLike, policy_object
from parcae.simulation.config import SimulationConfig
from parcae.workloads.workload import JobSequence, check_seed


def compare(
    jobs: JobSequence,
    policies: Sequence[PolicyLike],
    cluster: SimulationConfig,
    *,
    seeds: int = 20,
    seed_start: int = 0,
    processes: int | None = 1,
    progress: Progress | None = None,
) -> Comparison:
    """Compare policies on the same jobs, seed by seed, with 95% confidence intervals.

    Every seed draws jobs anew in the way in which `jobs` were drawn: from the same workload, as
    many, with the same arrivals. All policies see the same jobs and task durations on one seed.

    Args:
        jobs: jobs that `Workload.draw` drew.
        policies: names, policy objects or functions over a `SchedulerView`; ratios are to the
            first.
        cluster: the cluster.
        seeds: how many seeds.
        seed_start: the first of them.
        processes: worker processes; None for as many as there are cores. A script that asks for
            more than one needs the usual `if __name__ == "__main__":`. Policies that cannot be sent
            to another process (functions of a notebook) run in this one.
        progress: called with (seeds done, seeds) after every seed.

    Raises:
        ConfigError: jobs that were not drawn, something else than jobs or a cluster, no list of
            policies, no number of seeds or no process, or a first seed that is negative or not
            whole.
        PolicyError: no such policy, or one that decides something impossible.
    """
    check_jobs(jobs)
    check_cluster(cluster)
    check_seeds(seeds)
    check_seed(seed_start)
    if not jobs.arrivals:
        raise ConfigError("these jobs were not drawn: compare on jobs from `Workload.draw`")
    if isinstance(policies, str):
        raise ConfigError(f"policies is the text {policies!r}: give a list, [{policies!r}]")
    if not isinstance(policies, Iterable):
        raise ConfigError(f"policies is {policies!r}: give a list of policies")
    if processes is not None and (not isinstance(processes, int | np.integer) or processes < 1):
        raise ConfigError(f"processes is {processes!r}: give 1 or more, or None for all cores")
    made = [policy_object(policy, jobs.workload, cluster) for policy in policies]
    return compare_policies(
        ClusterWorld(jobs.workload, cluster, jobs.arrivals, jobs.num_jobs),
        made,
        num_seeds=seeds,
        seed_start=seed_start,
        processes=processes,
        progress=progress,
    )


def report(comparison: Comparison, path: str | Path) -> Path:
    """Write a comparison to `path` as one self-contained HTML page: table, Gantt charts, curves.

    Raises:
        OSError: the file cannot be written.
    """
    with naming_extras():
        write_report(comparison, Path(path))
    return Path(path)
