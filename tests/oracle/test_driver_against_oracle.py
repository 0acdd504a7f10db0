"""Driver time and recorded cores against the plain-Python oracle, start by start."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from parcae.simulation.simulator import simulate
from parcae.workloads.job import DriverTime, JobSpec
from parcae.workloads.workload import JobSequence
from tests.oracle.cores_runs import (
    config_of,
    in_sessions,
    policy_of,
    random_seeds,
    sequence_of,
    starts,
)
from tests.oracle.spark_driver import Driver, random_changes, random_drivers, simulate_driven
from tests.oracle.spark_world import random_set


def _driven(job: JobSpec, driver: Driver) -> JobSpec:
    stages = tuple(
        replace(stage, spark_job=number)
        for stage, number in zip(job.stages, driver.spark_job, strict=True)
    )
    gap, lag = (np.array([times]) for times in (driver.gap_ms, driver.lag_ms))
    times = DriverTime(gap, lag, np.array([driver.tail_ms]))
    return replace(job, stages=stages, driver_time=times)


def _with_drivers(sequence: JobSequence, drivers: list[Driver]) -> JobSequence:
    jobs = tuple(map(_driven, sequence.workload.jobs, drivers))
    return replace(sequence, workload=replace(sequence.workload, jobs=jobs))


@pytest.mark.parametrize("order", ["fifo-spark-jobs", "fifo", "fair", "fair-pools", "srpt"])
@random_seeds
def test_the_driver_and_the_cores_are_those_of_the_oracle(order: str, seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        drawn = random_set(rng)
        if seed % 2:
            in_sessions(drawn, random.Random(seed))
        drivers = random_drivers(rng, drawn.jobs)
        changes = random_changes(rng, drawn.cores)
        # Without changes the cores are there from the start, as on any fixed cluster.
        slots = ((0, drawn.cores), *changes) if changes else ()
        config = config_of(drawn.cores).model_copy(update={"slots": slots})
        world = simulate_driven(drawn.cores, drawn.jobs, order, drivers, changes, drawn.pools)
        sequence = _with_drivers(sequence_of(drawn.jobs), drivers)
        policy = policy_of(order, drawn.jobs, drawn.pools)
        trace = simulate(sequence, policy, config, 1, record=True)
        assert starts(trace) == world.trace, f"seed {seed}"
        assert trace.completion_ms.tolist() == world.completion_ms, f"seed {seed}"
