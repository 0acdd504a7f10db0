"""Elastic clusters in small cases that are worked out by hand (times in s, from 0)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from parcae.base.errors import PolicyError
from parcae.cluster.kernels.virtual import advance_virtual_run
from parcae.cluster.orders import blank_orders
from parcae.cluster.state import allocate_virtual
from parcae.cluster.trace import Trace
from parcae.evaluation.policies import resolve_policies
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.elastic import Elastic
from parcae.simulation.kernels.playing import play_many
from parcae.simulation.metrics import core_hours_per_job
from parcae.simulation.simulator import Simulator, SimulatorBatch, simulate
from parcae.simulation.tables import DurationMode
from parcae.workloads.archive import load_workload
from tests.oracle.cores_runs import GivenOrders, policy_of, sequence_of
from tests.oracle.spark_world import Job


def _config(max_cores: int, **elastic: Any) -> SimulationConfig:
    return SimulationConfig(
        world=WorldName.CORES,
        num_executors=max_cores,
        durations=DurationMode.LISTED,
        elastic=Elastic(**{"cores_per_executor": 1, **elastic}),
    )


def _job(arrival_s: float, tasks: int, task_s: float) -> Job:
    return Job(int(arrival_s * 1000), [], [[int(task_s * 1000)] * tasks])


def _run(jobs: list[Job], config: SimulationConfig) -> Trace:
    return simulate(sequence_of(jobs), policy_of("fair", jobs, {}), config, 1, record=True)


def _starts_s(trace: Trace) -> list[float]:
    assert trace.tasks is not None
    return [start / 1000 for start in trace.tasks["start_ms"].tolist()]


def _held_s(trace: Trace) -> float:
    assert trace.held_ms is not None
    return trace.held_ms / 1000


def test_requests_double_while_tasks_wait_and_stop_at_what_is_needed() -> None:
    # Tasks wait from 0 on. Requests: 1 at 1, 2 at 2, 4 at 3, 8 at 4, and at 5 not 16 but the 5 that
    # are left. Each starts 5 s later.
    trace = _run([_job(0, tasks=20, task_s=100)], _config(64))
    assert _starts_s(trace) == [6.0] * 1 + [7.0] * 2 + [8.0] * 4 + [9.0] * 8 + [10.0] * 5
    # All are held from their requests until the end at 110: no executor is idle for 60 s.
    assert trace.clock_ms == 110_000
    assert _held_s(trace) == 1 * 109 + 2 * 108 + 4 * 107 + 8 * 106 + 5 * 105


@pytest.mark.parametrize(
    "policy",
    ["fair", "fifo", "srpt", "fsp", "psbs", "las", "srpt+account", "sjf-cp", "srpt-cap", "tuned"],
)
def test_every_policy_ends_all_jobs_although_no_core_is_up_at_first(policy: str) -> None:
    workload = load_workload("toy")
    config = SimulationConfig(
        world=WorldName.CORES,
        num_executors=8,
        elastic=Elastic(cores_per_executor=2, idle_ms=500, start_ms=300, backlog_ms=100),
    )
    sequence = workload.draw(12, "poisson:2s", config, seed=3)
    resolved = resolve_policies(workload, (policy,), config, "poisson:2s", 12)
    trace = simulate(sequence, resolved.for_sequence(sequence, 3)[policy], resolved.config, 3)
    assert trace.is_complete
    assert trace.held_ms is not None
    assert trace.executed_ms.sum() < trace.held_ms < 8 * trace.clock_ms


def test_orders_that_hold_everything_back_are_still_refused() -> None:
    jobs = [replace(_job(0, tasks=3, task_s=1), limit=0)]
    with pytest.raises(PolicyError, match="hold every core back forever"):
        simulate(sequence_of(jobs), GivenOrders(jobs), _config(4), 1)


def test_a_virtual_run_has_the_cores_that_were_up() -> None:
    # One core comes up at 101, the second at 102: a virtual run that is advanced then has had one
    # core for one second in 102.
    jobs = [_job(0, tasks=9, task_s=50), _job(0, tasks=9, task_s=50)]
    simulator = Simulator(sequence_of(jobs), _config(2, start_ms=100_000), 1)
    simulator.start()
    assert simulator.state.now.clock_ms[0] == 101_000
    assert simulator.observe().now.num_executors[0] == 1
    virtual = allocate_virtual(2, 2)
    advance_virtual_run(simulator.state, virtual)
    assert not virtual.stages.attained_ms.any()
    simulator.follow(blank_orders(2, 2))
    assert simulator.state.now.clock_ms[0] == 102_000
    advance_virtual_run(simulator.state, virtual)
    assert virtual.stages.attained_ms.sum() == pytest.approx(1_000)
    late = allocate_virtual(2, 2)
    advance_virtual_run(simulator.state, late)
    assert late.stages.attained_ms.sum() == pytest.approx(1_000)


def test_a_job_has_no_cores_in_the_virtual_run_that_went_before_it_came() -> None:
    # Both cores have gone when the second job comes at 200. The next ones are up at 206 and 207.
    jobs = [_job(0, tasks=1, task_s=1), _job(200, tasks=9, task_s=50)]
    simulator = Simulator(sequence_of(jobs), _config(2, initial_cores=2), 1)
    virtual = allocate_virtual(2, 2)
    attained_ms = {}
    simulator.start()
    for _ in range(3):
        advance_virtual_run(simulator.state, virtual)
        attained_ms[int(simulator.state.now.clock_ms[0])] = float(virtual.stages.attained_ms[1])
        simulator.follow(blank_orders(2, 2))
    assert attained_ms == {0: 0.0, 206_000: 0.0, 207_000: pytest.approx(1_000)}


@pytest.mark.parametrize("end_ms", [1, 1_000, 5_050, 10**9])
def test_a_run_that_is_cut_off_holds_cores_up_to_its_end(end_ms: int) -> None:
    config = _config(64).model_copy(update={"end_ms": end_ms})
    trace = _run([_job(0, tasks=20, task_s=100)], config)
    assert trace.clock_ms == min(end_ms, 110_000)
    # Requests of 1, 2, 4, 8 and 5 executors at 1 to 5 s.
    requests = zip((1, 2, 4, 8, 5), range(1_000, 6_000, 1_000), strict=True)
    assert trace.held_ms == sum(n * max(0, trace.clock_ms - at_ms) for n, at_ms in requests)


def test_core_hours_are_those_of_the_jobs_that_arrived() -> None:
    config = _config(1, min_cores=1).model_copy(update={"end_ms": 3_600_000})
    trace = _run([_job(0, tasks=1, task_s=5), _job(9_000, tasks=1, task_s=5)], config)
    assert core_hours_per_job(trace) == 1.0


def test_runs_of_a_batch_are_those_of_single_simulators_and_can_be_played_again() -> None:
    workload = load_workload("toy")
    config = SimulationConfig(
        world=WorldName.CORES, num_executors=8, elastic=Elastic(cores_per_executor=2, idle_ms=900)
    )
    sequences = [workload.draw(9, "poisson:3s", config, seed=seed) for seed in range(3)]
    policy = OrderPolicy("fair", OrderKind.FAIR, plan_tables())
    batch = SimulatorBatch(sequences, config, range(3))
    formula = policy.tables_for(9, batch.states.stages.shape[1])
    held = [simulate(one, policy, config, seed).held_ms for seed, one in enumerate(sequences)]
    for _ in range(2):
        batch.run(lambda runs, first, last: play_many(runs, formula, first, last), 1)
        assert [batch.trace(row, "fair").held_ms for row in range(3)] == held


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_executors": 10}, "10 cores cannot be whole executors of 4 cores"),
        ({"num_executors": 8, "elastic": {"min_cores": 12}}, "cannot begin with 12"),
        ({"num_executors": 8, "elastic": {"min_cores": 6}}, "6 cores cannot be whole executors"),
        ({"num_executors": 8, "world": "executors"}, "world of cores only"),
        ({"elastic": {"initial_cores": 4, "min_cores": 8}}, "fewer than the least"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        SimulationConfig.model_validate(
            {"world": "cores", "num_executors": 48, "elastic": {}} | settings
        )
