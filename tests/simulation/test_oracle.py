"""The compiled simulator against the plain-Python oracle, task by task and decision by decision."""

from __future__ import annotations

import numpy as np
import pytest

from parcae.base.errors import PolicyError
from parcae.cluster.observation import Decision, Observation
from parcae.decima.catalog import make_policy
from parcae.decima.tpch import read_tpch_profiles
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator, simulate
from parcae.simulation.tables import DurationMode, Interpolation
from parcae.workloads.synthetic import RandomDags, random_dags
from parcae.workloads.workload import JobSequence, RandomStreams, Workload, draw_sequence
from tests.conftest import arriving, batch, job, made_up, shared_data
from tests.oracle.decima_world import Oracle, OracleExecutor, OracleStage
from tests.oracle.policies import fair, sjf_cp, static, weighted_fair

_PAIRS = {
    "fifo": static(9, by_granted=False),
    "spark_static_3": static(3, by_granted=True),
    "fair": fair,
    "weighted-fair:-0.5": weighted_fair(-0.5),
    "sjf-cp": sjf_cp,
}


def _sequence(seed: int, arrivals: str = "poisson:9s") -> JobSequence:
    shape = RandomDags(num_jobs=8, mean_tasks=6.0, max_depth=4, max_width=3)
    workload = random_dags(shape, np.random.default_rng(seed))
    return draw_sequence(workload, arrivals, 7, 9, RandomStreams(seed))


def _oracle(sequence: JobSequence, config: SimulationConfig, seed: int) -> Oracle:
    return Oracle(
        sequence,
        config.num_executors,
        seed=seed,
        moving_delay_ms=config.moving_delay_ms,
        warmup_delay_ms=config.warmup_delay_ms,
        durations=config.durations,
        interpolation=config.interpolation,
    )


@pytest.mark.parametrize("arrivals", ["batch", "poisson:9s"])
@pytest.mark.parametrize("policy", _PAIRS)
@pytest.mark.parametrize("seed", range(4))
def test_kernels_and_oracle_run_the_same_tasks_at_the_same_times(
    policy: str, seed: int, arrivals: str
) -> None:
    sequence = _sequence(seed, arrivals)
    config = SimulationConfig(num_executors=9)
    trace = simulate(sequence, make_policy(policy, 9), config, seed, record=True)
    oracle = _oracle(sequence, config, seed)
    oracle.run(_PAIRS[policy])
    assert trace.tasks is not None
    assert trace.decisions is not None
    assert [tuple(row) for row in trace.tasks.tolist()] == oracle.tasks
    assert [[float(d[0]), *d[1:]] for d in trace.decisions.tolist()] == oracle.decisions
    assert (trace.num_events, trace.clock_ms) == (oracle.num_events, oracle.clock_ms)
    assert trace.completion_ms.tolist() == [job.completion_ms for job in oracle.jobs]


@pytest.mark.parametrize("seed", range(12))
def test_random_decisions_lead_both_through_the_same_states(seed: int) -> None:
    """The oracle repeats a random policy's decisions.

    Both must offer the same schedulable sets and run the same tasks.
    """
    sequence = _sequence(seed)
    config = SimulationConfig(num_executors=5, moving_delay_ms=700)
    simulator = Simulator(sequence, config, seed, record=True)
    rng = np.random.default_rng(seed)
    simulator.start()
    oracle = _oracle(sequence, config, seed)
    stuck: list[PolicyError] = []

    def take(decision: Decision) -> None:
        try:
            simulator.step(decision)
        except PolicyError as error:  # a random policy may leave every executor idle forever
            stuck.append(error)

    def mirrored(seen: Oracle) -> tuple[OracleStage | None, int]:
        observation = simulator.observe()
        offered = observation.schedulable_stages()
        flat = [int(observation.jobs.stage_start[s.job.row]) + s.index for s in seen.schedulable()]
        assert (simulator.state.now.clock_ms[0], offered) == (seen.clock_ms, flat)
        supplied = [int(observation.jobs.num_supplied[job.row]) for job in seen.active]
        assert supplied == [seen.num_supplied(job) for job in seen.active]
        num_source = int(observation.now.num_source[0])
        assert num_source == seen.num_source
        working = any(
            isinstance(event, OracleExecutor) and event not in seen.moving
            for *_, event in seen.heap
        )
        if not offered or (working and rng.random() < 0.2):
            take(Decision())
            return None, num_source
        pick = int(rng.integers(len(offered)))
        limit = int(rng.integers(1, num_source + 1))
        chosen = seen.schedulable()[pick]
        take(Decision(offered[pick], limit))
        return chosen, limit

    oracle.run(mirrored)
    assert bool(stuck) == bool(oracle.active)
    assert (simulator.status is Status.COMPLETE) == (not stuck)
    trace = simulator.trace("random")
    assert trace.tasks is not None
    assert [tuple(row) for row in trace.tasks.tolist()] == oracle.tasks


@pytest.fixture(scope="module")
def profiles() -> Workload:
    """The authors' measured jobs."""
    return read_tpch_profiles(shared_data("tpch-decima/tpch_profiles.json.gz"))[0]


@pytest.mark.parametrize("interpolation", list(Interpolation))
@pytest.mark.parametrize("durations", list(DurationMode))
def test_all_duration_rules_agree_on_measured_profiles(
    profiles: Workload, durations: DurationMode, interpolation: Interpolation
) -> None:
    sequence = JobSequence(profiles, np.array([1, 29, 100]), np.array([0, 0, 5_000]))
    config = SimulationConfig(num_executors=23, durations=durations, interpolation=interpolation)
    trace = simulate(sequence, make_policy("fair", 23), config, 5, record=True)
    oracle = _oracle(sequence, config, 5)
    oracle.run(fair)
    assert trace.tasks is not None
    assert [tuple(row) for row in trace.tasks.tolist()] == oracle.tasks


_FREE = SimulationConfig(num_executors=2, moving_delay_ms=0, warmup_delay_ms=0)


class _Every:
    """Idles at all but every n-th question."""

    name = "every"

    def __init__(self, n: int) -> None:
        self.n = n
        self.asked = 0

    def decide(self, observation: Observation) -> Decision:
        self.asked += 1
        stages = observation.schedulable_stages()
        return Decision(stages[0], 1) if stages and self.asked % self.n == 0 else Decision()


def test_a_policy_that_idles_is_asked_again_before_the_next_arrival_but_not_forever() -> None:
    sequence = arriving((job("a", (1, 1_000, ())), 0), (job("b", (1, 1_000, ())), 50_000))
    trace = simulate(sequence, _Every(2), _FREE, 0)
    assert trace.completion_ms.tolist() == [1_000, 51_000]  # decides twice at 0 and twice at 50 s
    with pytest.raises(PolicyError, match="idle forever"):
        simulate(batch(job("a", (1, 1_000, ()))), _Every(10**9), _FREE, 0)


@pytest.mark.parametrize("n", [2, 3])
def test_stalls_are_those_of_the_oracle(n: int) -> None:
    workload = made_up(8, 3.0)
    compared = 0
    for seed in range(10):
        sequence = draw_sequence(workload, "load:0.4", 6, 3, RandomStreams(seed))
        policy = _Every(n)
        asked = [0]

        def decide(oracle: Oracle, asked: list[int] = asked) -> tuple[object, int]:
            asked[0] += 1
            stages = oracle.schedulable()
            return (stages[0], 1) if stages and asked[0] % n == 0 else (None, 0)

        config = SimulationConfig(num_executors=3)
        oracle = Oracle(sequence, 3, seed=seed)
        try:
            trace = simulate(sequence, policy, config, seed)
        except PolicyError:
            continue
        oracle.run(decide)  # type: ignore[arg-type]
        assert trace.completion_ms.tolist() == [j.completion_ms for j in oracle.jobs]
        compared += 1
    assert compared > 3
