"""A policy cannot tell the simulator from the service: every observation of a simulated run is met again, bit by bit.

The run's jobs and task durations go to the service as messages, through encoded and decoded bytes; what the service commands
is carried out in simulated time. Were one command or one field of one table different, the two would part for good.
"""

from __future__ import annotations

import numpy as np
import pytest

from parcae.cluster.decision import Decision, Policy, objection
from parcae.cluster.observation import Observation
from parcae.policies.catalog import make_policy
from parcae.policies.learned import is_learned, learned_policy
from parcae.service.jobs import DurationBook
from parcae.service.policies import policies_by_size
from parcae.service.rows import Room
from parcae.simulation.config import SimulationConfig, decima_classes
from parcae.workloads.arrivals import draw_sequence
from parcae.workloads.catalog import load_workload
from parcae.workloads.demands import prepare, with_drawn_memory
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import RandomStreams
from parcae.workloads.synthetic import RandomDags, random_dags
from tests.conftest import arriving, job
from tests.service.recording import Recording, room_of, served, simulated

_TPCH = load_workload("tpch")
_SYNTHETIC = random_dags(RandomDags(num_jobs=20, mean_tasks=8.0), np.random.default_rng(0), "made up")
_TPCH_MEMORY, _MADE_UP_MEMORY = (prepare(own, [with_drawn_memory("uniform:1")])[0] for own in (_TPCH, _SYNTHETIC))


class _Holds:
    """Books an idle slot before every third stage, lets all idle at every fifth question, else serves the last stage first."""

    name = "holds"

    def __init__(self) -> None:
        self.asked = 0

    def decide(self, observation: Observation) -> Decision:
        self.asked += 1
        stages = observation.schedulable_stages()
        if not stages or self.asked % 5 == 0:
            return Decision()
        hold = Decision(stages[-1], 1 + self.asked % 2, hold_ms=500 + self.asked % 4 * 500)
        if self.asked % 3 == 0 and objection(observation, hold) is None:
            return hold
        return Decision(stages[-1], 1 + self.asked % 3)


class _IdlesOften:
    """Answers every third question only, so that everything stands still at times."""

    name = "idles-often"

    def __init__(self) -> None:
        self.asked = 0

    def decide(self, observation: Observation) -> Decision:
        self.asked += 1
        stages = observation.schedulable_stages()
        return Decision(stages[0], 1) if stages and self.asked % 3 == 0 else Decision()


_OWN = {"holds": _Holds, "idles-often": _IdlesOften}


def _policy(name: str, workload: Workload, config: SimulationConfig) -> Policy:
    if name in _OWN:
        return _OWN[name]()
    if is_learned(name):
        return learned_policy(name, workload, config)
    return make_policy(name, config.total_executors)


def _served_policy(name: str, workload: Workload, config: SimulationConfig) -> Policy:
    """The policy as `parcae serve` makes it, which knows no more of the cluster than its number of slots."""
    if name in _OWN:
        return _OWN[name]()
    return policies_by_size(name, workload, config.moving_delay_ms, "batch")(config.total_executors)


def _assert_same(one: Observation, other: Observation, number: int) -> None:
    for table in Observation._fields:
        mine, others = getattr(one, table), getattr(other, table)
        assert mine.shape == others.shape
        if mine.tobytes() != others.tobytes():
            names = mine.dtype.names or ()
            fields = [name for name in names if not np.array_equal(mine[name], others[name])]
            raise AssertionError(f"observation {number}, table {table}, fields {fields} differ")


_CASES = [
    ("fair", _TPCH, "batch", 12, 20, 2_000),
    ("fair", _TPCH, "poisson:10s", 12, 20, 2_000),
    ("srpt-cap:3", _TPCH, "poisson:10s", 12, 20, 2_000),
    ("srpt-cap:3", _SYNTHETIC, "batch", 12, 7, 0),
    ("weighted-fair:-1", _SYNTHETIC, "load:0.9", 30, 5, 300),
    ("fifo", _SYNTHETIC, "bursts:8s", 30, 5, 2_000),
    ("tuned", _TPCH, "batch", 12, 20, 2_000),
    ("parcae", _TPCH, "poisson:10s", 12, 20, 2_000),
    ("decima", _TPCH, "batch", 12, 20, 2_000),
    ("decima", _TPCH, "poisson:10s", 12, 20, 500),
    ("holds", _SYNTHETIC, "batch", 10, 4, 1_000),
    ("holds", _SYNTHETIC, "poisson:3s", 10, 4, 500),
    ("idles-often", _SYNTHETIC, "poisson:20s", 10, 4, 500),
]


@pytest.mark.parametrize(
    ("name", "workload", "arrivals", "num_jobs", "num_executors", "moving_ms"), _CASES, ids=lambda v: str(getattr(v, "name", v))
)
def test_the_service_shows_a_policy_the_very_observations_of_the_simulator(
    name: str, workload: Workload, arrivals: str, num_jobs: int, num_executors: int, moving_ms: int
) -> None:
    config = SimulationConfig(num_executors=num_executors, moving_delay_ms=moving_ms)
    _assert_parity(name, workload, arrivals, num_jobs, config)


def _assert_parity(name: str, workload: Workload, arrivals: str, num_jobs: int, config: SimulationConfig) -> Recording:
    """Every observation, decision and task of a run in the service is that of the simulator. Returns what the service saw."""
    sequence = draw_sequence(workload, arrivals, num_jobs, config.total_executors, RandomStreams(3))
    simulator, simulation = simulated(sequence, _policy(name, workload, config), config, 3)
    service = Recording(_served_policy(name, workload, config))
    client = served(simulator, service, DurationBook(workload, config), room_of(simulator))
    assert len(simulation.seen) > num_jobs
    for number, (one, other) in enumerate(zip(simulation.seen, service.seen, strict=False)):
        _assert_same(one, other, number)
    assert len(service.seen) == len(simulation.seen)
    assert service.said == simulation.said
    trace = simulator.trace(name)
    assert trace.tasks is not None
    assert client.tasks == trace.tasks.tolist()
    assert client.num_moves == int(simulator.future.events.num_moves[0])
    return service


_CLASS_CASES = [
    ("graphene", _TPCH_MEMORY, "poisson:10s", 12, 20, 2_000),
    ("weighted-fair:-1", _MADE_UP_MEMORY, "load:0.6", 30, 8, 300),
    ("tuned:classes", _TPCH_MEMORY, "poisson:10s", 12, 20, 2_000),
    ("decima:classes", _TPCH_MEMORY, "batch", 6, 12, 500),
    ("holds", _MADE_UP_MEMORY, "poisson:3s", 10, 6, 500),
]


@pytest.mark.parametrize(
    ("name", "workload", "arrivals", "num_jobs", "num_executors", "moving_ms"),
    _CLASS_CASES,
    ids=lambda v: str(getattr(v, "name", v)),
)
def test_the_service_shows_the_very_observations_with_four_executor_classes(
    name: str, workload: Workload, arrivals: str, num_jobs: int, num_executors: int, moving_ms: int
) -> None:
    classes = decima_classes(num_executors)
    config = SimulationConfig(num_executors=num_executors, executor_classes=classes, moving_delay_ms=moving_ms)
    service = _assert_parity(name, workload, arrivals, num_jobs, config)
    assert service.seen[0].classes.memory.tolist() == [0.25, 0.5, 0.75, 1.0]
    used = {int(own) for seen in service.seen for own in seen.executors.executor_class[seen.executors.stage >= 0]}
    assert used == {0, 1, 2, 3}
    if name in ("graphene", "tuned:classes", "decima:classes"):
        assert {decision.executor_class for decision in service.said if decision.stage >= 0} >= {0, 1, 2, 3}


@pytest.mark.parametrize("name", ["holds", "idles-often", "fair"])
def test_what_happens_at_one_time_happens_in_the_simulators_order(name: str) -> None:
    jobs = [(job(f"j{n}", (2 + n % 3, 500, ()), (3, 1_000, (0,)), (1, 500, (0, 1))), 500 * (n // 2)) for n in range(12)]
    config = SimulationConfig(num_executors=3, moving_delay_ms=500, warmup_delay_ms=0)
    sequence = arriving(*jobs)
    simulator, simulation = simulated(sequence, _policy(name, sequence.workload, config), config, 0)
    service = Recording(_policy(name, sequence.workload, config))
    client = served(simulator, service, DurationBook(sequence.workload, config), room_of(simulator))
    for number, (one, other) in enumerate(zip(simulation.seen, service.seen, strict=True)):
        _assert_same(one, other, number)
    assert client.tasks == simulator.trace(name).tasks.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("unknown_share", [0.5, 1.0])
def test_jobs_of_unknown_durations_look_the_same_too(unknown_share: float) -> None:
    config = SimulationConfig(num_executors=6, unknown_share=unknown_share)
    sequence = draw_sequence(_SYNTHETIC, "poisson:5s", 10, 6, RandomStreams(1))
    simulator, simulation = simulated(sequence, make_policy("fair", 6), config, 1)
    service = Recording(make_policy("fair", 6))
    unknown = np.flatnonzero(simulator.future.knowledge == 0.0)

    class Forgetful(DurationBook):
        def rows(self, job):  # type: ignore[no-untyped-def]
            own = DurationBook(None, is_learning=False) if job.job_id in unknown else super()
            return own.rows(job)

    served(simulator, service, Forgetful(_SYNTHETIC, config, is_learning=False), room_of(simulator))
    assert len(service.seen) == len(simulation.seen)
    for number, (one, other) in enumerate(zip(simulation.seen, service.seen, strict=True)):
        _assert_same(one, other, number)


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        *((name, _TPCH) for name in ("fair", "srpt-cap:3", "tuned", "parcae", "decima")),
        ("weighted-fair:-1", _MADE_UP_MEMORY),
        pytest.param("tuned:classes", _TPCH_MEMORY, marks=pytest.mark.slow),
    ],
    ids=lambda v: str(getattr(v, "name", v)),
)
def test_tables_that_grow_and_give_rows_back_change_no_decision(name: str, workload: Workload) -> None:
    classes = () if workload is _TPCH else decima_classes(10)
    config = SimulationConfig(num_executors=10, executor_classes=classes)
    num_jobs = 30 if workload is _MADE_UP_MEMORY else 80
    sequence = draw_sequence(workload, "load:0.3", num_jobs, 10, RandomStreams(5))
    simulator, simulation = simulated(sequence, _policy(name, workload, config), config, 5)
    service = Recording(_policy(name, workload, config))
    client = served(simulator, service, DurationBook(workload, config), Room(1, 1, 1))
    assert simulator.trace(name).tasks is not None
    assert client.tasks == simulator.trace(name).tasks.tolist()  # type: ignore[union-attr]
    assert len(service.seen) == len(simulation.seen)
    assert max(int(seen.now.num_jobs[0]) for seen in service.seen) < sequence.num_jobs  # rows were given back
    assert len({len(seen.jobs) for seen in service.seen}) > 1  # and tables grew
    for one, other in zip(simulation.seen, service.seen, strict=True):
        _assert_same_jobs(one, other)


def _assert_same_jobs(one: Observation, other: Observation) -> None:
    """The same jobs in the same order, whatever their rows."""
    assert int(one.now.num_active[0]) == int(other.now.num_active[0])
    for name in ("clock_ms", "num_open", "num_schedulable", "num_source", "num_idle", "num_idle_to_be", "round_id"):
        assert one.now[name][0] == other.now[name][0], name
    for mine, others in zip(one.active_jobs.tolist(), other.active_jobs.tolist(), strict=True):
        for field in set(one.jobs.dtype.names) - {"stage_start"}:
            assert one.jobs[field][mine] == other.jobs[field][others], field
        for field in set(one.stages.dtype.names) - {"job", "child_start"}:
            own, their = one.stages[field][list(one.stages_of(mine))], other.stages[field][list(other.stages_of(others))]
            assert own.tolist() == their.tolist(), field
