"""Rollouts: exact where nothing is random, blind for the future, and the same on any threads."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from parcae.cluster.decision import Decision, objection
from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders
from parcae.decima.catalog import make_policy
from parcae.decima.graph.layout import DecimaSettings, decima_levels, initial_weights
from parcae.decima.graph.policy import DecimaPolicy, curves_for, magnitudes_of
from parcae.decima.rollouts.candidates import (
    AS_ORDERED,
    bring_forward,
    candidates,
    order_candidates,
)
from parcae.decima.rollouts.playing import Assumptions, Rollouts, Trials, roll_out, roll_out_orders
from parcae.decima.rollouts.policy import RolloutPlanner, RolloutPolicy
from parcae.decima.rollouts.race import Budget, Clock
from parcae.decima.rollouts.runs import RolloutModel, RolloutRuns, Sampler
from parcae.policies.compiled import size_of, virtual_runs
from parcae.policies.registry import named_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.faults import Faults
from parcae.simulation.future import Status
from parcae.simulation.kernels.playing import Simulation
from parcae.simulation.simulator import Simulator, simulate
from parcae.workloads.archive import load_workload
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec, Workload

_NUM_JOBS = 6
_CORES = 7
_TO_THE_END_MS = 1_000_000_000
_DECIMA = SimulationConfig(
    world=WorldName.EXECUTORS, num_executors=_CORES, moving_delay_ms=700, warmup_delay_ms=0
)
_SPARK = SimulationConfig(world=WorldName.CORES, num_executors=_CORES)


def _sequence(seed: int) -> JobSequence:
    """A batch of random DAGs whose tasks take exactly the time that their profile says."""
    rng = np.random.default_rng(seed)
    jobs = []
    for row in range(_NUM_JOBS):
        stages = []
        for index in range(int(rng.integers(1, 6))):
            parents = tuple(int(p) for p in np.flatnonzero(rng.random(index) < 0.5))
            durations = TaskDurations.constant(int(rng.integers(500, 9000)))
            stages.append(StageSpec(int(rng.integers(1, 9)), durations, parents))
        jobs.append(JobSpec(f"job {row}", tuple(stages)))
    workload = Workload("exact", tuple(jobs))
    return JobSequence(workload, np.arange(_NUM_JOBS), np.zeros(_NUM_JOBS, np.int64))


class _Foretold:
    """Plays the base, and notes what rollouts of its own choice say of the rest of the run."""

    name = "foretold"

    def __init__(
        self,
        base: Any,
        model: RolloutModel,
        horizon_ms: int = _TO_THE_END_MS,
        num_samples: int = 1,
    ) -> None:
        self._base = base
        self._num_samples = num_samples
        self._runs = RolloutRuns(model, 1)
        assumed = self._runs.to_come or self._runs.present
        assumed.horizon_ms[0] = horizon_ms
        #: (job time so far, job time to come) at every decision or plan.
        self.said: list[tuple[int, float]] = []

    def decide(self, observation: Observation) -> Decision:
        decision: Decision = self._base.decide(observation)
        self._note(observation, decision, ())
        return decision

    def plan(self, observation: Observation) -> Orders:
        orders: Orders = self._base.plan(observation)
        self._note(observation, AS_ORDERED, (orders, self._base.memory))
        return orders

    def _note(self, observation: Observation, option: Decision, more: tuple[Any, ...]) -> None:
        self._runs.fit(observation)

        def play(run: Simulation, trials: Trials, assumed: Assumptions, a: int, b: int) -> None:
            rollouts = Rollouts(observation, trials, assumed, *(more or ((), ())))
            tables = self._base.tables_for(*size_of(run.state))
            if more:
                roll_out_orders(run, rollouts, next(virtual_runs(tables)), tables, a, b)
            else:
                roll_out(run, rollouts, tables, a, b)

        sampler = Sampler(self._runs, observation, [option], play, Clock(Budget()))
        costs = (sampler.with_arrivals or sampler)([0], self._num_samples)
        assert costs is not None
        self.said.append((int(observation.now.job_ms[0]), float(costs.mean())))


def _play(simulator: Simulator, policy: Any) -> None:
    """Play the run to its end."""
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        if simulator.config.world is WorldName.CORES:
            simulator.follow(policy.plan(simulator.observe()))
        else:
            simulator.step(policy.decide(simulator.observe()))


@pytest.mark.parametrize("name", ["fair", "srpt-cap:3", "fifo", "weighted-fair:-1", "sjf-cp"])
def test_without_luck_a_rollout_foretells_the_run_in_decimas_world(name: str) -> None:
    for seed in range(2):
        sequence = _sequence(seed)
        model = RolloutModel(sequence.workload, _DECIMA)
        foretold = _Foretold(make_policy(name, _CORES), model)
        simulator = Simulator(sequence, _DECIMA, seed)
        _play(simulator, foretold)
        total_ms = int(simulator.state.now.job_ms[0])
        assert len(foretold.said) > 10
        assert [so_far + to_come for so_far, to_come in foretold.said] == [total_ms] * len(
            foretold.said
        )


def _network(workload: Workload) -> DecimaPolicy:
    """Decima's network with random weights and the features of jobs."""
    settings = DecimaSettings.model_validate({"features": "jobs"})
    weights = initial_weights(
        np.random.default_rng(2), settings, len(decima_levels(_CORES, settings))
    )
    magnitudes = magnitudes_of(workload, _DECIMA)
    curves = curves_for(settings, workload, _DECIMA)
    return DecimaPolicy("network", weights, settings, _CORES, magnitudes, curves)


def test_without_luck_a_rollout_foretells_the_run_of_decimas_network() -> None:
    for seed in range(2):
        sequence = _sequence(seed)
        base = _network(sequence.workload)
        foretold = _Foretold(base, RolloutModel(sequence.workload, _DECIMA))
        simulator = Simulator(sequence, _DECIMA, seed)
        _play(simulator, foretold)
        total_ms = int(simulator.state.now.job_ms[0])
        assert len(foretold.said) > 10
        assert {so_far + to_come for so_far, to_come in foretold.said} == {total_ms}


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
    planner = RolloutPolicy("plan", policy, policy, RolloutModel(sequence.workload, _DECIMA))
    options = planner.options(observation)
    assert options[0] == decision
    assert {one.stage for one in proposals} <= {one.stage for one in options}


@pytest.mark.parametrize("name", ["srpt", "fair", "fifo", "fsp", "psbs", "las"])
def test_without_luck_a_rollout_foretells_the_run_in_the_world_of_cores(name: str) -> None:
    for seed in range(2):
        sequence = _sequence(seed)
        model = RolloutModel(sequence.workload, _SPARK)
        base = named_policy(name, sequence.workload, _SPARK)
        foretold = _Foretold(base, model)
        simulator = Simulator(sequence, _SPARK, seed)
        _play(simulator, foretold)
        total_ms = int(simulator.state.now.job_ms[0])
        assert len(foretold.said) > 10
        assert [so_far + to_come for so_far, to_come in foretold.said] == [total_ms] * len(
            foretold.said
        )


@pytest.mark.parametrize("name", ["srpt", "fair", "fifo", "psbs", "las"])
def test_without_luck_a_rollout_foretells_what_another_order_leads_to(name: str) -> None:
    sequence = _sequence(2)
    base = named_policy(name, sequence.workload, _SPARK)
    num_tried = 0
    for number in range(0, 12, 3):
        simulator = Simulator(sequence, _SPARK, 2)
        foretold = _Foretold(base, RolloutModel(sequence.workload, _SPARK))
        base.restart()  # type: ignore[union-attr]
        simulator.start()
        for _ in range(number):
            simulator.follow(base.plan(simulator.observe()))  # type: ignore[union-attr]
        observation = simulator.observe()
        orders = base.plan(observation)  # type: ignore[union-attr]
        option = order_candidates(observation, orders)[-1]
        foretold._note(observation, option, (orders, base.memory))  # type: ignore[union-attr]
        simulator.follow(bring_forward(orders, observation, option))
        while simulator.status is Status.NEEDS_DECISION:
            simulator.follow(base.plan(simulator.observe()))  # type: ignore[union-attr]
        ((so_far, to_come),) = foretold.said
        assert so_far + to_come == int(simulator.state.now.job_ms[0])
        num_tried += option != AS_ORDERED
    assert num_tried >= 3


def test_a_rollout_under_a_guard_does_not_depend_on_those_before_it() -> None:
    sequence = _sequence(1)
    base = named_policy("srpt", sequence.workload, _SPARK)
    model = RolloutModel(sequence.workload, _SPARK, mean_gap_ms=2_000.0)
    foretold = _Foretold(base, model, horizon_ms=60_000)
    simulator = Simulator(sequence, _SPARK, 1)
    simulator.state.now.guard[0] = 1.1
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        observation = simulator.observe()
        orders = foretold.plan(observation)
        foretold._note(observation, AS_ORDERED, (orders, base.memory))  # type: ignore[union-attr]
        simulator.follow(orders)
    assert len(foretold.said) > 20
    assert foretold.said[::2] == foretold.said[1::2]


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
            model = RolloutModel(workload, config, mean_gap_ms=gap_ms)
            one = _Foretold(base, model, horizon_ms=60_000, num_samples=4)
            one._runs.fit(observation)
            # What earlier rollouts may have left in the tables.
            state = one._runs._runs[0].state
            state.jobs.completion_ms[:] = -1
            state.jobs.arrival_ms[:] = 1_000 * junk * np.arange(len(state.jobs))
            state.jobs.work_ms[:] = 10_000 * junk
            state.stages.num_tasks[:] = junk
            decision = one.decide(observation)
            said += one.said
        assert said[0] == said[1]
        simulator.step(decision)


def test_a_task_that_failed_just_now_starts_again_in_rollouts() -> None:
    sequence = _sequence(0)
    config = _SPARK.model_copy(update={"faults": Faults(failure_rate=0.3)})
    base = named_policy("srpt", sequence.workload, config)
    foretold = _Foretold(base, RolloutModel(sequence.workload, config))
    simulator = Simulator(sequence, config, 0)
    stages = simulator.state.stages
    num_failed = 0
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        # The core of a failed attempt is offered before the scheduler knows of the failure.
        num_failed += bool((stages.num_started > stages.num_bound + stages.num_finished).any())
        simulator.follow(foretold.plan(simulator.observe()))
    assert num_failed > 3
    assert max(to_come for _, to_come in foretold.said) < _TO_THE_END_MS


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
    second = TaskDurations.constant(1_000)
    jobs = tuple(JobSpec(str(n), (StageSpec(n, second),)) for n in (1, 3))
    workload = Workload("two jobs", jobs)
    sequence = JobSequence(workload, np.arange(2), np.zeros(2, np.int64))
    config = SimulationConfig(world=WorldName.CORES, num_executors=1)
    base = named_policy("fifo", workload, config)
    foretold = _Foretold(base, RolloutModel(workload, config), horizon_ms)
    simulator = Simulator(sequence, config, 0)
    simulator.start()
    foretold.plan(simulator.observe())
    assert foretold.said == [(0, expected_ms)]


@pytest.mark.parametrize("world", list(WorldName))
def test_finished_tasks_show_how_wrong_a_jobs_estimates_are(world: WorldName) -> None:
    second = TaskDurations.constant(1_000)
    job = JobSpec("two stages", (StageSpec(40, second), StageSpec(40, second, (0,))))
    workload = Workload("one job", (job,))
    sequence = JobSequence(workload, np.zeros(1, np.int64), np.zeros(1, np.int64))
    config = SimulationConfig(
        world=world, num_executors=2, moving_delay_ms=0, warmup_delay_ms=0, estimate_error=0.8
    )
    is_cores = world is WorldName.CORES
    base = named_policy("fifo", workload, config) if is_cores else make_policy("fifo", 2)
    errors = []
    for seed in range(5):
        foretold = _Foretold(base, RolloutModel(workload, config), num_samples=64)
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


def _toy_policy(world: WorldName, num_threads: int = 1) -> tuple[Any, SimulationConfig, Workload]:
    """The policy on its fastest base, its cluster and its workload."""
    workload = load_workload("toy")
    config = _SPARK if world is WorldName.CORES else _DECIMA
    base = "fair" if world is WorldName.CORES else "srpt-cap"
    arrivals = "load:0.7"
    name = f"plan:{base}:{num_threads}threads"
    return named_policy(name, workload, config, arrivals), config, workload


@pytest.mark.parametrize("world", list(WorldName))
def test_what_it_does_depends_on_nothing_but_the_observation(world: WorldName) -> None:
    """Not on the threads, not on earlier calls, and not on the future of the run."""
    policy, config, workload = _toy_policy(world)
    threaded, _, _ = _toy_policy(world, 3)
    sequence = workload.draw(5, "batch", config, seed=3)
    for number in range(6):
        chosen = []
        for future_seed, one in ((1, policy), (2, policy), (1, threaded)):
            simulator = Simulator(sequence, config, future_seed)
            simulator.start()
            ask = one.plan if world is WorldName.CORES else one.decide
            answer = ask(simulator.observe())
            if world is WorldName.CORES:
                answer = answer.jobs.tolist(), answer.stages.tolist()
            chosen.append(answer)
        assert chosen[0] == chosen[1] == chosen[2]
        sequence = workload.draw(5, "batch", config, seed=4 + number)


@pytest.mark.parametrize("world", list(WorldName))
def test_it_does_better_than_its_base(world: WorldName) -> None:
    policy, config, workload = _toy_policy(world)
    ratios = []
    for seed in range(5):
        sequence = workload.draw(8, "load:0.7", config, seed=seed)
        mine, base = (simulate(sequence, one, config, seed) for one in (policy, policy.base))
        ratios.append(
            float((mine.completion_ms - mine.arrival_ms).mean())
            / float((base.completion_ms - base.arrival_ms).mean())
        )
    assert np.mean(ratios) < 1.0


@pytest.mark.parametrize("world", list(WorldName))
def test_after_the_deadline_the_bases_answer_stands(
    world: WorldName, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, config, workload = _toy_policy(world)
    late = dataclasses.replace(policy, budget=Budget(1e-6))
    simulator = Simulator(workload.draw(5, "batch", config, seed=1), config, 1)
    simulator.start()
    if world is WorldName.CORES:
        planned = late.plan(simulator.observe())
        expected = policy.base.plan(simulator.observe())
        assert planned.stages.tolist() == expected.stages.tolist()
    else:
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
    policy, config, workload = _toy_policy(WorldName.EXECUTORS)
    sequence = workload.draw(4, "batch", config, seed=1)
    expected = simulate(sequence, policy, config, 1)
    copy = pickle.loads(pickle.dumps(policy))
    assert simulate(sequence, copy, config, 1).completion_ms.tolist() == (
        expected.completion_ms.tolist()
    )


@pytest.mark.parametrize("name", ["plan:fsp", "plan:parcae"])
def test_a_second_run_knows_nothing_of_the_first(name: str) -> None:
    workload = load_workload("tpch")

    def policy() -> Any:
        return named_policy(name, workload, _SPARK, "load:0.7")

    runs = [workload.draw(count, "load:0.7", _SPARK, seed=count) for count in (9, 8)]
    used = policy()
    first, second = (simulate(jobs, used, _SPARK, 1).completion_ms.tolist() for jobs in runs)
    assert first == simulate(runs[0], policy(), _SPARK, 1).completion_ms.tolist()
    assert second == simulate(runs[1], policy(), _SPARK, 1).completion_ms.tolist()


def test_candidates_can_be_carried_out_and_differ() -> None:
    config = SimulationConfig(world=WorldName.EXECUTORS, num_executors=10)
    workload = load_workload("tpch")
    base = named_policy("tuned", workload, config)
    assert not isinstance(base, RolloutPolicy | RolloutPlanner)
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


def test_orders_to_try_bring_forward_what_waits() -> None:
    workload = load_workload("tpch")
    config = SimulationConfig(world=WorldName.CORES, num_executors=10)
    base = named_policy("srpt", workload, config)
    simulator = Simulator(workload.draw(6, "batch", config, seed=2), config, 2)
    simulator.start()
    seen = 0
    while simulator.status is Status.NEEDS_DECISION:
        observation = simulator.observe()
        orders = base.plan(observation)  # type: ignore[union-attr]
        options = order_candidates(observation, orders)
        assert options[0] == AS_ORDERED
        for option in options[1:]:
            assert observation.stages.frontier_rank[option.stage] >= 0
            seen += 1
        simulator.follow(orders)
    assert seen > 20
