"""All runs of the conformance file of Spark's own world, through the policies by name."""

from __future__ import annotations

import pytest

from parcae.base.errors import PolicyError
from parcae.evaluation.job_sets import CONFORMANCE_ORDERS, run_sets, set_config, set_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.tables import DurationMode
from parcae.workloads.job_sets import read_spark_world_sets
from tests.conftest import shared_data


def test_all_conformance_runs_are_exact() -> None:
    sets = list(read_spark_world_sets(shared_data("conformance/spark-world.json")).values())
    runs = list(run_sets(sets, CONFORMANCE_ORDERS, SimulationConfig(world=WorldName.CORES)))
    assert len(runs) == len(sets) * len(CONFORMANCE_ORDERS) == 72
    for run in runs:
        expected = run.job_set.expected[run.policy]
        assert run.job_set.by_position(run.trace.completion_ms) == list(
            expected["completion_ms"]
        ), (run.job_set.name, run.policy)
        assert run.trace.num_tasks == expected["tasks"]
        jct = run.trace.completion_ms - run.trace.arrival_ms
        assert float(jct.mean()) == pytest.approx(expected["average_jct_ms"], abs=1e-6)


def test_a_set_brings_its_cores_and_nothing_is_corrected() -> None:
    job_set = next(
        iter(read_spark_world_sets(shared_data("conformance/spark-world.json")).values())
    )
    config = set_config(job_set, SimulationConfig())
    assert (config.world, config.num_executors) == (WorldName.CORES, job_set.cores)
    assert (config.durations, config.corrects_estimates) == (DurationMode.LISTED, False)
    assert set_config(job_set, SimulationConfig(), 3).num_executors == 3
    with pytest.raises(PolicyError, match="fair-pools, orders"):
        set_policy("fair", job_set)
