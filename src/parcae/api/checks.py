"""Checks of what the front door's functions are given."""

from __future__ import annotations

import reprlib

import numpy as np

from parcae.base.errors import ConfigError, no_cluster
from parcae.simulation.config import SimulationConfig
from parcae.workloads.workload import JobSequence, Workload


def check_jobs(jobs: object) -> None:
    """Check the jobs of a run.

    Raises:
        ConfigError: they are something else, such as the workload itself.
    """
    if isinstance(jobs, JobSequence):
        return
    given = f"the workload {jobs.name!r}" if isinstance(jobs, Workload) else reprlib.repr(jobs)
    raise ConfigError(
        f"jobs is {given}: draw a run first, as in "
        'jobs = parcae.workload("tpch").draw(20, "load:0.85", cluster, seed=1)'
    )


def check_workload(workload: object) -> None:
    """Check a workload.

    Raises:
        ConfigError: it is something else, such as the jobs of a run.
    """
    if isinstance(workload, Workload):
        return
    if isinstance(workload, JobSequence):
        raise ConfigError(
            "workload is the jobs of one run: give the workload that they were drawn from, "
            "jobs.workload"
        )
    raise ConfigError(
        f"workload is {reprlib.repr(workload)}: load one first, as in "
        'workload = parcae.workload("tpch")'
    )


def check_cluster(cluster: object) -> None:
    """Check a cluster.

    Raises:
        ConfigError: it is something else, such as a number of cores.
    """
    if not isinstance(cluster, SimulationConfig):
        raise no_cluster(cluster)


def check_seeds(seeds: object) -> None:
    """Check a number of seeds.

    Raises:
        ConfigError: it is below 1, or not a whole number, such as a list of seeds.
    """
    if not isinstance(seeds, int | np.integer) or seeds < 1:
        raise ConfigError(f"seeds is {reprlib.repr(seeds)}: give 1 or more, the number of seeds")
