"""The kernels against the plain oracle, decision by decision."""

from __future__ import annotations

import numpy as np
import pytest

from parcae.rigid.config import PackingConfig, TimeMode
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import Cost
from parcae.rigid.policies.catalog import make_packing_policy
from parcae.rigid.world import PackingBatch, RigidOutcome
from tests.packing.images import masks_of
from tests.packing.plain import PlainEvents, PlainSteps


def _run(name: str, jobs: RigidJobs, config: PackingConfig | None = None) -> RigidOutcome:
    """The run of the jobs under a policy, by default with exact times."""
    policy = make_packing_policy(name)
    config = config or PackingConfig.for_log(jobs)
    batch = PackingBatch([jobs], config, wants_profile=policy.wants_profile)
    batch.run(policy.play_many, 1)
    return batch.outcome(0)


def _steps_jobs(seed: int, num_resources: int) -> RigidJobs:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 40))
    arrival = np.sort(rng.integers(0, 25, count))
    capacity = rng.integers(4, 12, num_resources)
    demand = rng.integers(1, capacity + 1, (count, num_resources))
    return RigidJobs(f"s{seed}", arrival, rng.integers(1, 7, count), demand, capacity)


@pytest.mark.parametrize("seed", range(12))
def test_steps_and_bookings_are_those_of_the_oracle_under_random_decisions(seed):
    jobs = _steps_jobs(seed, 1 + seed % 3)
    config = PackingConfig(num_slots=3, backlog_size=5, horizon=8, window=10 * (seed % 3))
    batch = PackingBatch([jobs], config)
    plain = PlainSteps(jobs, 3, 5, 8, 10 * (seed % 3))
    rng = np.random.default_rng(seed)
    batch.begin()
    for _ in range(5000):
        assert bool(batch.is_over[0]) == plain.is_over
        if plain.is_over:
            break
        state = batch.state(0)
        assert int(state.clock["now"][0]) == plain.now
        assert [None if j == -1 else j for j in state.slots.tolist()] == plain.slots
        masks = masks_of(batch)[0]
        assert masks.tolist() == [
            int(j is not None and plain.first_fit(j) is not None) for j in plain.slots
        ] + [1]
        slot = int(rng.integers(-1, 3))
        batch.step(np.array([slot]))
        plain.take(slot)
    outcome = batch.outcome(0)
    assert plain.is_over
    assert outcome.start.tolist() == [plain.start.get(j, -1) for j in range(len(jobs))]
    assert np.flatnonzero(outcome.is_dropped).tolist() == plain.dropped
    assert outcome.costs[Cost.SLOWDOWN] == pytest.approx(plain.cost)


def _log_jobs(seed: int) -> RigidJobs:
    rng = np.random.default_rng(seed)
    count = 60
    duration = np.maximum(1, rng.lognormal(3, 1.2, count).astype(int))
    estimate = np.maximum(1, (duration * rng.choice([0.5, 1, 1, 3], count)).astype(int))
    arrival = np.cumsum(rng.integers(0, 12, count))
    demand = rng.integers(1, 9, (count, 1 + seed % 2))
    return RigidJobs(
        f"log{seed}", arrival, duration, demand, [8] * (1 + seed % 2), estimate, step="s"
    )


@pytest.mark.parametrize(
    "name", ["easy", "easy-sjf", "sjf-backfill", "xfactor", "conservative", "fcfs", "sjf"]
)
@pytest.mark.parametrize("seed", range(5))
def test_exact_times_are_those_of_the_oracle(name, seed):
    jobs = _log_jobs(seed)
    plain = PlainEvents(jobs)
    choose = {
        "easy": plain.easy,
        "easy-sjf": lambda: plain.easy("arrival", "shortest"),
        "sjf-backfill": lambda: plain.easy("shortest", "shortest"),
        "xfactor": lambda: plain.easy("expansion", "expansion"),
        "conservative": plain.conservative,
        "fcfs": lambda: plain.waiting[0] if plain.waiting else None,
        "sjf": lambda: min(
            (j for j in plain.waiting if plain.fits(j)),
            key=lambda j: (jobs.estimate[j], j),
            default=None,
        ),
    }[name]
    while not plain.is_over:
        plain.take(choose())
    assert _run(name, jobs).start.tolist() == [plain.start[j] for j in range(len(jobs))]


@pytest.mark.parametrize("name", ["fcfs", "easy", "conservative"])
def test_who_arrived_first_is_first_whatever_the_slot(name):
    """The third job takes the slot that the first one left, before the second's; so does the
    fourth.
    """
    jobs = RigidJobs("order", [0, 0, 1, 2], [4, 5, 3, 2], [[10], [10], [6], [4]], [10])
    assert _run(name, jobs, PackingConfig(num_slots=2)).start.tolist() == [0, 4, 9, 9]


def test_conservative_backfilling_starts_a_job_behind_any_number_of_others():
    # One job holds 3 of 4 units; 150 wait for 2 units, and the last one fits beside it.
    count = 152
    durations, demands = [1_000, *[10] * 150, 5], [[3], *[[2]] * 150, [1]]
    jobs = RigidJobs("queue", np.arange(count), durations, demands, [4], step="s")
    assert _run("conservative", jobs).start[-1] == count - 1
    assert _run("conservative:100", jobs).start[-1] > 1_000


def test_an_exact_run_costs_what_its_jobs_waited_and_ran():
    jobs = RigidJobs("two", [5, 6], [10, 20], [[8], [8]], [8], step="s")
    outcome = _run("fcfs", jobs, PackingConfig(mode=TimeMode.EXACT, bound=10))
    assert outcome.start.tolist() == [5, 15]
    assert outcome.costs[Cost.SLOWDOWN] == pytest.approx(10 / 10 + 29 / 20)
    assert outcome.costs[Cost.COMPLETION] == 10 + 29
    assert outcome.costs[Cost.MAKESPAN] == 30
    assert outcome.costs[Cost.UTILIZATION] == pytest.approx(-30)
