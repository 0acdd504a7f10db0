"""All runs of the conformance file of Spark's own world, through the policies by name."""

from __future__ import annotations

import pytest

from parcae.evaluation.job_sets import CONFORMANCE_ORDERS, resolve_set, set_config
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.simulation.tables import DurationMode
from parcae.workloads.job_sets import read_spark_world_sets
from tests.conftest import shared_data


def test_all_conformance_runs_are_exact() -> None:
    sets = list(read_spark_world_sets(shared_data("conformance/spark-world.json")).values())
    done = 0
    for job_set in sets:
        config = set_config(job_set, SimulationConfig(world=WorldName.CORES))
        resolved = resolve_set(CONFORMANCE_ORDERS, job_set, config)
        for name, policy in resolved.for_sequence(job_set.sequence, 0).items():
            trace = simulate(job_set.sequence, policy, config, 0)
            expected = job_set.expected[name]
            ends_ms = job_set.by_position(trace.completion_ms)
            assert ends_ms == list(expected["completion_ms"]), (job_set.name, name)
            assert trace.num_tasks == expected["tasks"]
            jct = trace.completion_ms - trace.arrival_ms
            assert float(jct.mean()) == pytest.approx(expected["average_jct_ms"], abs=1e-6)
            done += 1
    assert done == len(sets) * len(CONFORMANCE_ORDERS) == 72


def test_a_set_brings_its_cores_and_nothing_is_corrected() -> None:
    job_set = next(
        iter(read_spark_world_sets(shared_data("conformance/spark-world.json")).values())
    )
    config = set_config(job_set, SimulationConfig())
    assert (config.world, config.num_executors) == (WorldName.CORES, job_set.cores)
    assert (config.durations, config.corrects_estimates) == (DurationMode.LISTED, False)
    assert set_config(job_set, SimulationConfig(), 3).num_executors == 3
