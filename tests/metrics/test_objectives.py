import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.decima.catalog import make_policy
from parcae.decima.learning.simulators import costing_for
from parcae.learning.scenario import Scenario
from parcae.simulation.config import SimulationConfig
from parcae.simulation.kernels.playing import cost_so_far
from parcae.simulation.metrics import slowdown, summarize
from parcae.simulation.objectives import (
    DEADLINE_SLOWDOWN,
    FinishedJobs,
    Objective,
    finished_jobs,
    objective_cost,
    parse_objective,
)
from parcae.simulation.simulator import Simulator, simulate
from tests.conftest import batch, job

_ARRIVAL = np.array([[0.0, 1_000.0]])
_END = np.array([[4_000.0, 11_000.0]])
_IDEAL = np.array([[2_000.0, 2_000.0]])
_JOBS = FinishedJobs(_ARRIVAL, _END, _IDEAL)


def test_objectives_of_one_run_by_hand() -> None:
    found = {o: float(objective_cost(o, _JOBS)[0]) for o in Objective}
    assert found[Objective.AVERAGE_JCT] == 7_000.0
    assert found[Objective.MAKESPAN] == 11_000.0
    assert found[Objective.P95_JCT] == pytest.approx(9_700.0)
    assert found[Objective.MEAN_SLOWDOWN] == 3.5
    assert found[Objective.MISSED_DEADLINES] == 0.5
    assert DEADLINE_SLOWDOWN == 4.0


def test_an_unknown_objective_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="average-jct, makespan"):
        parse_objective("speed")


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("average-jct", "is not an objective"),
        (lambda jobs: 1.0, "must return one finite number from 0 on for each of 1 runs"),
        (lambda jobs: np.array([-1.0]), "must return one finite number from 0 on"),
        (lambda jobs: np.array([np.nan]), "must return one finite number"),
    ],
)
def test_what_is_no_objective_is_refused(objective: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        objective_cost(objective, _JOBS)  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", list(Objective))
def test_the_cost_that_accrues_comes_to_the_objective(objective: Objective) -> None:
    config = SimulationConfig(num_executors=1, moving_delay_ms=0, warmup_delay_ms=0)
    # FIFO: complete at 2 s and 11 s.
    sequence = batch(job("a", (1, 2_000, ())), job("b", (3, 3_000, ())))
    simulator = Simulator(sequence, config, 0)
    make_policy("fifo", 1).play(simulator.simulation)
    scenario = Scenario(sequence.workload, config, "batch", 2, objective)
    costing = costing_for(scenario, tail_ms=5_000.0)
    cost = cost_so_far(simulator.state, simulator.future, costing)
    ideal = {"a": 2_000.0, "b": 9_000.0}
    assert cost == pytest.approx(
        {
            Objective.AVERAGE_JCT: 13_000.0,
            Objective.MAKESPAN: 11_000.0,
            Objective.P95_JCT: 6_000.0,
            Objective.MEAN_SLOWDOWN: 2_000 / ideal["a"] + 11_000 / ideal["b"],
            Objective.MISSED_DEADLINES: 0.0,
        }[objective]
    )


@pytest.mark.parametrize("unknown_share", [0.0, 1.0])
@pytest.mark.parametrize("objective", [Objective.MEAN_SLOWDOWN, Objective.MISSED_DEADLINES])
def test_jobs_that_a_scheduler_does_not_know_cost_as_much(
    objective: Objective, unknown_share: float
) -> None:
    config = SimulationConfig(
        num_executors=1, moving_delay_ms=0, warmup_delay_ms=0, unknown_share=unknown_share
    )
    # FIFO: complete at 8 s and 9 s, with slowdowns of 1 and 9.
    sequence = batch(job("a", (4, 2_000, ())), job("b", (2, 500, ())))
    simulator = Simulator(sequence, config, 0)
    make_policy("fifo", 1).play(simulator.simulation)
    costing = costing_for(Scenario(sequence.workload, config, "batch", 2, objective), tail_ms=0.0)
    slowdowns = slowdown(simulator.trace("fifo"), sequence)
    assert slowdowns.tolist() == [1.0, 9.0]
    is_mean = objective is Objective.MEAN_SLOWDOWN
    expected = slowdowns.sum() if is_mean else (slowdowns > DEADLINE_SLOWDOWN).sum()
    assert cost_so_far(simulator.state, simulator.future, costing) == expected


@pytest.mark.parametrize("end_ms", [3_500, 15_000])
@pytest.mark.parametrize("objective", list(Objective))
def test_the_cost_of_runs_that_end_is_that_of_their_summaries(
    objective: Objective, end_ms: int
) -> None:
    config = SimulationConfig(world="cores", num_executors=1, end_ms=end_ms)
    workload = batch(job("a", (2, 2_000, ()))).workload
    scenario = Scenario(workload, config, "poisson:3s", 6, objective)
    policy = scenario.fair_policy()
    runs = scenario.batch([1, 2])
    # Simulators that were used before have rows of jobs that do not arrive this time.
    runs.simulators.states.jobs.completion_ms[:] = 1
    found = [
        getattr(summarize(simulate(one, policy, config, seed), one), objective.entry.column)
        for seed, one in zip((1, 2), runs.sequences, strict=True)
    ]
    assert runs.cost(policy.play_many).tolist() == found


def test_a_run_that_ends_before_the_first_job_costs_nothing() -> None:
    jobs = finished_jobs(
        np.array([5_000, 6_000]), np.array([-1, -1]), num_arrived=0, clock_ms=1_000,
        ideal_ms=np.ones(2), deadline_ms=None,
    )  # fmt: skip
    costs = [float(objective_cost(objective, jobs)[0]) for objective in Objective]
    assert costs == [0.0, 0.0, 0.0, 1.0, 0.0]
