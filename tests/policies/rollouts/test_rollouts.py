"""Rollouts: exact where nothing is random, blind for the future, and the same on any threads."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from parcae.cluster.observation import Decision, Observation, objection
from parcae.decima.catalog import make_policy
from parcae.decima.graph.layout import DecimaSettings, decima_levels, initial_weights
from parcae.decima.graph.policy import DecimaPolicy, curves_for, magnitudes_of
from parcae.decima.rollouts.playing import Clock
from parcae.decima.rollouts.policy import (
    RolloutPolicy,
    RolloutRuns,
    Sampler,
    candidates,
)
from parcae.policies.additions import named_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator, simulate
from parcae.workloads.archive import load_workload
from parcae.workloads.workload import JobSequence, Workload
from tests.conftest import batch, job

_NUM_JOBS = 6
_CORES = 7
_TO_THE_END_MS = 1_000_000_000
_DECIMA = SimulationConfig(
    world=WorldName.EXECUTORS, num_executors=_CORES, moving_delay_ms=700, warmup_delay_ms=0
)


def _sequence(seed: int) -> JobSequence:
    """A batch of random DAGs whose tasks take exactly the time that their profile says."""
    rng = np.random.default_rng(seed)
    jobs = []
    for row in range(_NUM_JOBS):
        stages = []
        for index in range(int(rng.integers(1, 6))):
            parents = tuple(int(p) for p in np.flatnonzero(rng.random(index) < 0.5))
            task_ms = int(rng.integers(500, 9000))
            stages.append((int(rng.integers(1, 9)), task_ms, parents))
        jobs.append(job(f"job {row}", *stages))
    return batch(*jobs)


class _Foretold:
    """Plays the base, and notes what rollouts of its own choice say of the rest of the run."""

    name = "foretold"

    def __init__(
        self,
        base: Any,
        runs: RolloutRuns,
        horizon_ms: int = _TO_THE_END_MS,
        num_samples: int = 1,
    ) -> None:
        self._base = base
        self._num_samples = num_samples
        self._runs = runs
        self._assumed = self._runs.to_come or self._runs.present
        self._assumed.horizon_ms[0] = horizon_ms
        #: (job time so far, job time to come) at every decision or plan.
        self.said: list[tuple[int, float]] = []

    def decide(self, observation: Observation) -> Decision:
        decision: Decision = self._base.decide(observation)
        sampler = Sampler(self._runs, observation, [decision], self._base, Clock())
        costs = sampler(self._assumed, [0], self._num_samples)
        assert costs is not None
        self.said.append((int(observation.now.job_ms[0]), float(costs.mean())))
        return decision


def _play(simulator: Simulator, policy: Any) -> None:
    """Play the run to its end."""
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        simulator.step(policy.decide(simulator.observe()))


def _network(workload: Workload) -> DecimaPolicy:
    """Decima's network with random weights and the features of jobs."""
    settings = DecimaSettings.model_validate({"features": "jobs"})
    weights = initial_weights(
        np.random.default_rng(2), settings, len(decima_levels(_CORES, settings))
    )
    magnitudes = magnitudes_of(workload, _DECIMA)
    curves = curves_for(settings, workload, _DECIMA)
    return DecimaPolicy("network", weights, settings, _CORES, magnitudes, curves)


@pytest.mark.parametrize(
    "name", ["fair", "srpt-cap:3", "fifo", "weighted-fair:-1", "sjf-cp", "network"]
)
def test_without_luck_a_rollout_foretells_the_run(name: str) -> None:
    for seed in range(2):
        sequence = _sequence(seed)
        workload = sequence.workload
        base: Any = _network(workload) if name == "network" else make_policy(name, _CORES)
        foretold = _Foretold(base, RolloutRuns(workload, _DECIMA))
        simulator = Simulator(sequence, _DECIMA, seed)
        _play(simulator, foretold)
        assert len(foretold.said) > 10
        ends_ms = {so_far + to_come for so_far, to_come in foretold.said}
        assert ends_ms == {int(simulator.state.now.job_ms[0])}


def test_decimas_network_proposes_its_most_probable_stages_first() -> None:
    sequence = _sequence(1)
    policy = _network(sequence.workload)
    simulator = Simulator(sequence, _DECIMA, 1)
    simulator.start()
    observation = simulator.observe()
    decision = policy.decide(observation)
    proposals = policy.proposals(observation, 4)
    assert proposals[0] == decision
    ranked = [stage for stage, _ in policy.probabilities(observation)]
    assert [one.stage for one in proposals] == ranked[:4]
    for one in proposals:
        assert objection(observation, one) is None
    planner = RolloutPolicy("plan", policy, policy, RolloutRuns(sequence.workload, _DECIMA))
    options = planner.options(observation)
    assert options[0] == decision
    assert {one.stage for one in proposals} <= {one.stage for one in options}


@pytest.mark.parametrize(
    ("name", "workload_name", "gap_ms", "executors", "delay_ms"),
    [("fair", "toy", 1_000, 7, 20_000), ("idle-theory", "one-stage", 12_000, 4, 1_000)],
)
def test_a_rollout_in_decimas_world_knows_the_jobs_that_have_left(
    name: str, workload_name: str, gap_ms: int, executors: int, delay_ms: int
) -> None:
    """Executors may still move to them, and idle slots depend on their arrivals and work."""
    config = SimulationConfig(num_executors=executors, moving_delay_ms=delay_ms)
    workload = load_workload(workload_name)
    simulator = Simulator(workload.draw(40, f"poisson:{gap_ms}ms", config, seed=1), config, 1)
    base = make_policy(name, executors)
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        observation = simulator.observe()
        said = []
        for junk in (0, 3):
            runs = RolloutRuns(workload, config, mean_gap_ms=gap_ms)
            one = _Foretold(base, runs, horizon_ms=60_000, num_samples=4)
            one._runs.fit(observation)
            # What earlier rollouts may have left in the tables.
            state = one._runs._runs.state(0)
            state.jobs.completion_ms[:] = -1
            state.jobs.arrival_ms[:] = 1_000 * junk * np.arange(len(state.jobs))
            state.jobs.work_ms[:] = 10_000 * junk
            state.stages.num_tasks[:] = junk
            decision = one.decide(observation)
            said += one.said
        assert said[0] == said[1]
        simulator.step(decision)


@pytest.mark.parametrize(
    ("horizon_ms", "expected_ms"),
    [
        # Two jobs for 500 ms. Then three tasks of the long job have not started, and delay it only.
        (500, 2 * 500 + 3_000),
        # The short job ends after 1,000 ms. At 1,500 ms two tasks of the long one are left.
        (1_500, 2 * 1_000 + 500 + 2_000),
        (5_000, 2 * 1_000 + 3_000),
    ],
)
def test_a_rollout_ends_at_its_horizon_with_an_estimate_of_the_rest(
    horizon_ms: int, expected_ms: int
) -> None:
    sequence = batch(*(job(str(n), (n, 1_000, ())) for n in (1, 3)))
    workload = sequence.workload
    config = SimulationConfig(num_executors=1, moving_delay_ms=0, warmup_delay_ms=0)
    foretold = _Foretold(make_policy("fifo", 1), RolloutRuns(workload, config), horizon_ms)
    simulator = Simulator(sequence, config, 0)
    simulator.start()
    foretold.decide(simulator.observe())
    assert foretold.said == [(0, expected_ms)]


def test_finished_tasks_show_how_wrong_a_jobs_estimates_are() -> None:
    sequence = batch(job("two stages", (40, 1_000, ()), (40, 1_000, (0,))))
    workload = sequence.workload
    config = SimulationConfig(
        num_executors=2, moving_delay_ms=0, warmup_delay_ms=0, estimate_error=0.8
    )
    base = make_policy("fifo", 2)
    errors = []
    for seed in range(5):
        foretold = _Foretold(base, RolloutRuns(workload, config), num_samples=64)
        simulator = Simulator(sequence, config, seed)
        _play(simulator, foretold)
        estimated = float(simulator.state.stages.task_ms[0]) / 1_000
        # After the first stage, rollouts know how long the job takes: 40 s.
        (_, at_first_ms), (_, then_ms), *_ = foretold.said
        assert then_ms == pytest.approx(40_000, rel=0.01)
        # Before, they have nothing but the estimates, and how wrong these are on average.
        mean_error = np.exp(0.8**2 / 2)
        assert at_first_ms == pytest.approx(40_000 * estimated * mean_error, rel=0.2)
        errors.append(abs(at_first_ms / 40_000 - 1))
    assert max(errors) > 0.4


def _toy_policy(num_threads: int = 1) -> tuple[RolloutPolicy, Workload]:
    """The policy on its fastest base, and its workload."""
    workload = load_workload("toy")
    name = f"plan:srpt-cap:{num_threads}threads"
    policy = named_policy(name, workload, _DECIMA, "load:0.7")
    assert isinstance(policy, RolloutPolicy)
    return policy, workload


def test_what_it_does_depends_on_nothing_but_the_observation() -> None:
    """Not on the threads, not on earlier calls, and not on the future of the run."""
    policy, workload = _toy_policy()
    threaded, _ = _toy_policy(3)
    for number in range(6):
        sequence = workload.draw(5, "batch", _DECIMA, seed=3 + number)
        chosen = []
        for future_seed, one in ((1, policy), (2, policy), (1, threaded)):
            simulator = Simulator(sequence, _DECIMA, future_seed)
            simulator.start()
            chosen.append(one.decide(simulator.observe()))
        assert chosen[0] == chosen[1] == chosen[2]


def test_it_does_better_than_its_base() -> None:
    policy, workload = _toy_policy()
    ratios = []
    for seed in range(5):
        sequence = workload.draw(8, "load:0.7", _DECIMA, seed=seed)
        mine, base = (simulate(sequence, one, _DECIMA, seed) for one in (policy, policy.base))
        ratios.append(
            float((mine.completion_ms - mine.arrival_ms).mean())
            / float((base.completion_ms - base.arrival_ms).mean())
        )
    assert np.mean(ratios) < 1.0


def test_after_the_deadline_the_bases_answer_stands() -> None:
    policy, workload = _toy_policy()
    late = dataclasses.replace(policy, budget_ms=1e-6)
    simulator = Simulator(workload.draw(5, "batch", _DECIMA, seed=1), _DECIMA, 1)
    simulator.start()
    expected = policy.base.decide(simulator.observe())
    assert late.decide(simulator.observe()) == expected


def test_classes_slots_and_unknown_jobs_are_played_in_rollouts() -> None:
    """In a cluster of several classes, with jobs that nothing is known of and idle slots."""
    config = SimulationConfig.model_validate(
        {
            "world": WorldName.EXECUTORS,
            "num_executors": 8,
            "executor_classes": "decima",
            "unknown_share": 0.3,
        }
    )
    workload = load_workload("toy")
    policy = named_policy("plan:idle-theory", workload, config, "load:0.7")
    for seed in range(2):
        sequence = workload.draw(6, "load:0.7", config, seed=seed)
        trace = simulate(sequence, policy, config, seed)
        assert np.all(trace.completion_ms > trace.arrival_ms)


def test_other_processes_get_the_policy() -> None:
    policy, workload = _toy_policy()
    sequence = workload.draw(4, "batch", _DECIMA, seed=1)
    expected = simulate(sequence, policy, _DECIMA, 1)
    copy = pickle.loads(pickle.dumps(policy))
    assert simulate(sequence, copy, _DECIMA, 1).completion_ms.tolist() == (
        expected.completion_ms.tolist()
    )


def test_candidates_can_be_carried_out_and_differ() -> None:
    config = SimulationConfig(world=WorldName.EXECUTORS, num_executors=10)
    workload = load_workload("tpch")
    base = named_policy("tuned", workload, config)
    assert not isinstance(base, RolloutPolicy)
    simulator = Simulator(workload.draw(6, "batch", config, seed=2), config, 2)
    simulator.start()
    sizes = []
    while simulator.status is Status.NEEDS_DECISION:
        observation = simulator.observe()
        decision = base.decide(observation)  # type: ignore[union-attr]
        options = candidates(observation, decision, [], may_idle=False)
        assert options[0] == decision
        assert len(set(options)) == len(options) <= 16
        sizes.append(len(options))
        simulator.step(options[-1])  # raises if it cannot be carried out
    assert max(sizes) > 5
