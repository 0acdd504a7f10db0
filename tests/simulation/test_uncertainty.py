"""Errors of the durations that schedulers see, and of runs against their profiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError

from parcae.base.errors import ConfigError
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import Simulator, SimulatorBatch, draw_run_factors, simulate
from parcae.simulation.tables import draw_knowledge, parse_estimate_error
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import JobSequence, Workload


def _sequence(num_jobs: int, work_sigma: float = 0.5, duration_sigma: float = 0.2) -> JobSequence:
    """Jobs that arrive at once, alternating: two stages with spread, one stage without spread."""
    durations = TaskDurations.constant(1_000)
    spread = tuple(StageSpec(1, durations, duration_sigma=sigma) for sigma in (duration_sigma, 0.0))
    jobs = (
        JobSpec("spread", spread, work_sigma=work_sigma),
        JobSpec("exact", (StageSpec(1, durations),)),
    )
    return JobSequence(Workload("two", jobs), np.arange(num_jobs) % 2, np.zeros(num_jobs, np.int64))


@pytest.mark.parametrize(
    ("text", "value"), [("log", "log"), ("0", 0.0), ("0.5", 0.5), ("1e-1", 0.1)]
)
def test_an_estimate_error_is_log_or_a_sigma(text: str, value: object) -> None:
    assert parse_estimate_error(text) == value


@pytest.mark.parametrize("text", ["", "logs", "-0.5", "nan", "inf", "1,5", "1e3"])
def test_another_estimate_error_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^estimate error '.*': write log .* or a sigma from 0 to 10, e\.g\. 0\.5$",
    ):
        parse_estimate_error(text)


@pytest.mark.parametrize(
    ("sigma", "unknown_share"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.4), (1.0, 0.4)]
)
def test_known_durations_are_those_of_earlier_simulations_bit_for_bit(
    sigma: float, unknown_share: float
) -> None:
    sequence = _sequence(20)
    config = SimulationConfig(num_executors=2, estimate_error=sigma, unknown_share=unknown_share)
    rng = np.random.default_rng(np.random.SeedSequence([0x70617263, 7]))
    assert (
        draw_knowledge(sequence, sigma, unknown_share, rng)
        == Simulator(sequence, config, 7).future.knowledge
    ).all()


def test_known_durations_in_numbers() -> None:
    knowledge = draw_knowledge(_sequence(4), 0.5, 0.5, np.random.default_rng(1))
    assert knowledge.round(6).tolist() == [0.0, 0.0, 1.179651, 0.0]


def test_with_log_the_profile_is_known_and_some_jobs_stay_unknown() -> None:
    assert draw_knowledge(_sequence(3), "log", 0.0, np.random.default_rng(1)).tolist() == [
        1.0,
        1.0,
        1.0,
    ]
    knowledge = draw_knowledge(_sequence(1_000), "log", 0.25, np.random.default_rng(1))
    assert set(knowledge.tolist()) == {0.0, 1.0}
    assert (knowledge == 0).sum() == 239


def test_runs_without_spread_are_like_their_profiles() -> None:
    assert draw_run_factors(_sequence(4, 0.0, 0.0), 1).tolist() == [1.0] * 6


def test_factors_of_runs_by_the_numbers() -> None:
    """Two jobs of two stages with spread, two of one stage without.

    The second stage has only the job's factor.
    """
    factors = draw_run_factors(_sequence(4), 1)
    assert factors.round(6).tolist() == [0.776145, 0.630995, 1.0, 1.280184, 1.399799, 1.0]


def test_factors_of_runs_have_the_spread_of_the_log() -> None:
    factors = np.log(draw_run_factors(_sequence(20_000), 3))
    by_job = factors.reshape(10_000, 3)
    assert (by_job[:, 2] == 0).all()
    assert by_job[:, 1].std() == pytest.approx(0.5, rel=0.03)  # work_sigma
    assert (by_job[:, 0] - by_job[:, 1]).std() == pytest.approx(0.2, rel=0.03)  # duration_sigma
    assert by_job.mean(axis=0) == pytest.approx([0.0, 0.0, 0.0], abs=0.02)
    assert math.isclose(by_job[:, 0].std(), math.hypot(0.5, 0.2), rel_tol=0.03)


def test_simulators_run_with_the_factors_of_the_log() -> None:
    """Alone and in a batch, even if another run has more stages.

    With a sigma, runs are like their profiles.
    """
    sequence = _sequence(4)
    config = SimulationConfig(num_executors=2, estimate_error="log")
    expected = draw_run_factors(sequence, 7).tolist()
    assert Simulator(sequence, config, 7).future.run_factor.tolist() == expected
    larger = JobSequence(sequence.workload, np.zeros(4, np.int64), np.zeros(4, np.int64))
    batch = SimulatorBatch([sequence, larger], config, [7, 7])
    assert batch.future(0).run_factor.tolist() == [*expected, 1.0, 1.0]
    exact = SimulationConfig(num_executors=2, estimate_error=0.5)
    assert Simulator(sequence, exact, 7).future.run_factor.tolist() == [1.0] * 6


def test_a_task_of_a_huge_spread_takes_a_long_time_and_not_none() -> None:
    sequence = _sequence(2, work_sigma=500.0)
    config = SimulationConfig(world=WorldName.CORES, num_executors=2, estimate_error="log")
    policy = OrderPolicy("fair", OrderKind.FAIR, plan_tables())
    trace = simulate(sequence, policy, config, 3)
    long_ms = 1_000 * 2**31
    assert trace.completion_ms.tolist() == pytest.approx([long_ms, long_ms + 1_000])


@pytest.mark.parametrize("error", [-0.1, 11.0, math.inf, math.nan, "often"])
def test_a_config_refuses_another_estimate_error(error: object) -> None:
    with pytest.raises(ValidationError):
        SimulationConfig(estimate_error=error)  # type: ignore[arg-type]
