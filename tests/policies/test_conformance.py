"""The released simulator's runs, reproduced exactly (deterministic modes) and in the mean
(stochastic).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.decima.catalog import make_policy
from parcae.decima.tpch import read_tpch_profiles
from parcae.simulation.config import SimulationConfig
from parcae.simulation.simulator import simulate
from parcae.workloads.job_sets import read_job_sets
from parcae.workloads.workload import Workload
from tests.conftest import shared_data

_POLICIES = ("spark_fifo", "spark_static_10", "dynamic_partition", "wfair_-1", "wfair_1", "sjf_cp")


@pytest.fixture(scope="module")
def conformance_path() -> Path:
    return shared_data("conformance/decima-sim.json")


@pytest.fixture(scope="module")
def reference(conformance_path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(conformance_path.read_text())
    return data


@pytest.fixture(scope="module")
def tpch() -> Workload:
    return read_tpch_profiles(shared_data("tpch-decima/tpch_profiles.json.gz"))[0]


def _config(job_set: Any, durations: str) -> SimulationConfig:
    return SimulationConfig(
        num_executors=job_set.num_executors,
        moving_delay_ms=job_set.moving_delay_ms,
        warmup_delay_ms=job_set.warmup_delay_ms,
        durations=durations,
    ).with_reference_semantics()


@pytest.mark.parametrize("durations", ["first", "mean"])
@pytest.mark.parametrize("policy", _POLICIES)
def test_every_deterministic_run_is_reproduced_exactly(
    conformance_path: Path, reference: dict[str, Any], tpch: Workload, policy: str, durations: str
) -> None:
    sets = read_job_sets(conformance_path)
    assert len(sets) == 12
    for set_id, job_set in sets.items():
        expected = reference["results"][set_id][policy][f"det_{durations}"]
        config = _config(job_set, durations)
        run = make_policy(policy, job_set.num_executors)
        trace = simulate(job_set.sequence(tpch), run, config, seed=0, record=True)
        assert job_set.by_position(trace.completion_ms) == expected["completion_ms"], set_id
        assert trace.decision_trace_sha256() == expected["decision_trace_sha256"], set_id
        got = (
            trace.num_decisions,
            trace.num_events,
            trace.num_tasks,
            int(trace.executed_ms.sum()),
            trace.clock_ms,
        )
        assert got == tuple(
            expected[k] for k in ("decisions", "events", "tasks", "work_ms", "makespan_ms")
        ), set_id


@pytest.mark.parametrize("policy", _POLICIES)
def test_stochastic_means_agree_within_three_standard_errors(
    conformance_path: Path, reference: dict[str, Any], tpch: Workload, policy: str
) -> None:
    """Over all sets: no more than chance allows lie beyond 3 standard errors of the difference of
    the two means.
    """
    beyond = []
    compared = 0
    for set_id, job_set in read_job_sets(conformance_path).items():
        config = _config(job_set, "sampled")
        run = make_policy(policy, job_set.num_executors)
        traces = [simulate(job_set.sequence(tpch), run, config, seed=s) for s in range(40)]
        for key, values in (
            ("avg_jct_ms", [float((t.completion_ms - t.arrival_ms).mean()) for t in traces]),
            ("work_ms", [float(t.executed_ms.sum()) for t in traces]),
        ):
            expected = reference["results"][set_id][policy]["stochastic_mean"]
            spread = expected[key]["sd"]
            error = np.hypot(
                spread / np.sqrt(expected["n_seeds"]), np.std(values, ddof=1) / np.sqrt(len(values))
            )
            compared += 1
            if abs(np.mean(values) - expected[key]["mean"]) > 3 * error:
                beyond.append((set_id, key, float(np.mean(values) - expected[key]["mean"]) / error))
    # The reference's spread is estimated from 6 to 8 seeds: its t-distribution has 5 degrees of
    # freedom and up, for which 3 standard errors are exceeded in 3% of the comparisons.
    assert compared == 24
    assert len(beyond) <= 2, beyond
    assert all(abs(z) < 6 for *_, z in beyond), beyond
