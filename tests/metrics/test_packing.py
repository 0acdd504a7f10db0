from __future__ import annotations

import math

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.rigid.config import PackingConfig
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import NOT_YET, Cost
from parcae.rigid.metrics import (
    bounded_slowdown,
    comparable_costs,
    jobs_waiting,
    makespan,
    mean_cost,
    mean_cost_of_started,
    num_never_started,
    parse_cost,
    run_metrics,
    size_groups,
    slowdown,
    typical_cost,
    usage,
    utilization,
    withheld_share,
)
from parcae.rigid.policies.catalog import make_packing_policy
from parcae.rigid.sources import MixedSource, RigidLogSource, origins
from parcae.rigid.world import PackingBatch, RigidOutcome, shortest_makespan


def outcome(
    jobs: RigidJobs, start: list[int], dropped: tuple[int, ...] = (), end: int | None = None
) -> RigidOutcome:
    """Return the outcome of jobs that started at the given times; -1: never."""
    starts = np.array(start, np.int64)
    finish = np.where(starts == NOT_YET, NOT_YET, starts + jobs.duration)
    is_dropped = np.isin(np.arange(len(jobs)), dropped)
    end = int(finish.max()) if end is None else end
    return RigidOutcome(jobs, starts, finish, is_dropped, np.zeros(len(Cost)), 7, end)


def run_in_order(*sequences: RigidJobs, config: PackingConfig | None = None) -> PackingBatch:
    """Return the sequences' runs under first come, first served."""
    batch = PackingBatch(sequences, config or PackingConfig.for_log(sequences[0]))
    batch.run(make_packing_policy("fcfs").play_many)
    return batch


def pair(**changes: object) -> RigidJobs:
    """Two jobs that fit side by side on 4 units."""
    return RigidJobs(
        "pair",
        **{"arrival": [0, 0], "duration": [2, 3], "demand": [[2], [2]], "capacity": [4], **changes},
    )  # type: ignore[arg-type]


def test_slowdown_is_true_and_not_floored() -> None:
    assert slowdown(outcome(pair(), [0, 2])).tolist() == [1.0, pytest.approx(5 / 3)]


def test_in_logs_short_jobs_count_as_ten_seconds_in_bounded_slowdown() -> None:
    jobs = RigidJobs("log", [0, 0, 0], [1, 40, 1], [[1]] * 3, [1], step="s")
    done = outcome(jobs, [19, 20, 0])
    assert slowdown(done).tolist() == [20.0, 1.5, 1.0]
    # It is at least 1.
    assert bounded_slowdown(done).tolist() == [2.0, 1.5, 1.0]


def test_jobs_that_never_started_are_counted_and_left_out_of_the_means() -> None:
    jobs = RigidJobs("three", [0, 0, 0], [2, 2, 2], [[1], [1], [1]], [1])
    numbers = run_metrics(outcome(jobs, [1, -1, -1], dropped=(2,), end=9))
    assert (numbers["jobs"], numbers["unallocated"], numbers["dropped"]) == (3, 1, 1)
    assert (numbers["mean_slowdown"], numbers["mean_waiting"]) == (1.5, 1.0)


@pytest.mark.parametrize("jobs", [pair(), RigidJobs("none", [], [], np.zeros((0, 1)), [4])])
def test_without_a_job_that_started_there_is_no_mean(jobs: RigidJobs) -> None:
    numbers = run_metrics(outcome(jobs, [-1] * len(jobs), end=4))
    assert math.isnan(numbers["mean_slowdown"])
    assert (numbers["jobs"], numbers["makespan"], numbers["withheld_share"]) == (
        len(jobs),
        0,
        float(len(jobs) > 0),
    )


def test_makespan_and_utilization_are_from_the_first_arrival_to_the_last_finish() -> None:
    jobs = pair(arrival=[1, 3], demand=[[2, 1], [4, 0]], capacity=[4, 2])
    done = outcome(jobs, [1, 3])
    assert makespan(done) == 5
    assert utilization(done).tolist() == [pytest.approx((4 + 12) / 20), pytest.approx(2 / 10)]
    assert [v.tolist() for v in usage(done, 0)] == [[1, 3, 6], [2, 4, 0]]


def test_the_memory_of_a_large_cluster_in_kb_is_measured_like_its_processors() -> None:
    # 2 PB in KB over 1,000 days exceed the largest int64.
    count = 1_000
    jobs = RigidJobs(
        "large",
        np.arange(count) * 86_400,
        [100_000] * count,
        [[1, 10**12]] * count,
        [2, 2 * 10**12],
        step="s",
    )
    batch = run_in_order(jobs)
    processors, memory = utilization(batch.outcome(0))
    assert memory == pytest.approx(processors)
    assert processors == pytest.approx(0.5 * 100_000 * count / (999 * 86_400 + 100_000))
    assert shortest_makespan(jobs) == 999 * 86_400 + 100_000
    steady = RigidJobs("steady", [0] * 8, [2**31] * 8, [[2**31]] * 8, [2**31], step="s")
    assert shortest_makespan(steady) == 2**34


def test_jobs_wait_until_they_start_and_those_that_never_do_to_the_end() -> None:
    jobs = RigidJobs("three", [0, 1, 1], [1, 1, 1], [[1], [1], [1]], [1])
    times, count = jobs_waiting(outcome(jobs, [2, -1, -1], dropped=(2,), end=5))
    assert times.tolist() == [0, 1, 2, 5]
    assert count.tolist() == [1, 2, 1, 0]


def test_a_fitting_job_that_waits_is_withheld() -> None:
    assert withheld_share(outcome(pair(), [0, 1])) == 1.0
    assert withheld_share(outcome(pair(demand=[[3], [2]]), [0, 2])) == 0.0
    assert withheld_share(outcome(pair(demand=[[3], [2]]), [0, 4])) == pytest.approx(2 / 4)
    assert withheld_share(outcome(pair(), [0, 0])) == 0.0


def test_a_job_that_the_policy_cannot_see_is_not_withheld() -> None:
    jobs = RigidJobs("three", [0, 0, 0], [4, 4, 1], [[3], [3], [1]], [4])
    done = outcome(jobs, [0, 4, 4])
    assert withheld_share(done, num_visible=1) == 0.0
    assert withheld_share(done) == 1.0


def test_a_work_conserving_policy_withholds_nothing_in_steps_and_in_exact_time() -> None:
    rng = np.random.default_rng(3)
    arrival = np.sort(rng.integers(0, 60, 80))
    duration = rng.integers(1, 12, 80)
    jobs = RigidJobs("random", arrival, duration, rng.integers(1, 8, (80, 2)), [10, 10])
    policy = make_packing_policy("sjf")
    for config in (PackingConfig(window=60), PackingConfig(mode="exact")):  # type: ignore[arg-type]
        batch = PackingBatch([jobs], config)
        batch.run(policy.play_many)
        visible = config.num_slots if config.mode == "steps" else None
        assert withheld_share(batch.outcome(0), visible) == 0.0
        assert slowdown(batch.outcome(0)).sum() == pytest.approx(batch.costs()[0])
        assert mean_cost(batch, Cost.SLOWDOWN) == pytest.approx(slowdown(batch.outcome(0)).mean())


def test_lost_jobs_are_charged_as_if_they_ran_after_the_end() -> None:
    # One unit, two slots, no backlog: the third and the fourth job are lost.
    jobs = RigidJobs("four", [0, 0, 0, 0], [4, 2, 2, 1], [[1]] * 4, [1])
    batch = run_in_order(jobs, config=PackingConfig(num_slots=2, backlog_size=0))
    run = batch.outcome(0)
    assert run.is_dropped.tolist() == [False, False, True, True]
    assert (run.end, num_never_started(batch).tolist()) == (6, [2])
    slowdowns = [1.0, 6 / 2, 8 / 2, 9 / 1]
    assert comparable_costs(batch, Cost.SLOWDOWN) == pytest.approx([sum(slowdowns)])
    assert comparable_costs(batch, Cost.COMPLETION) == pytest.approx([4 + 6 + 8 + 9])
    assert comparable_costs(batch, Cost.MAKESPAN) == pytest.approx([9])
    assert mean_cost(batch, Cost.SLOWDOWN) == pytest.approx(sum(slowdowns) / 4)
    mean = run_metrics(run)["mean_slowdown"]
    assert mean_cost_of_started(batch, Cost.SLOWDOWN) == pytest.approx(mean)


def test_jobs_that_wait_at_the_end_are_charged_from_then_on() -> None:
    jobs = RigidJobs("two", [0, 0], [4, 2], [[1]] * 2, [1])
    batch = run_in_order(jobs, config=PackingConfig(window=3, ends_early=True))
    # At the end, at step 3, the second job has waited; it would run until step 5.
    assert batch.costs() == pytest.approx([3 / 4 + 3 / 2])
    assert comparable_costs(batch, Cost.SLOWDOWN) == pytest.approx([3 / 4 + 5 / 2])


def test_jobs_in_steps_are_short_or_long_and_those_of_logs_in_quarters_by_area() -> None:
    steps = size_groups([RigidJobs("s", [0, 0, 0], [3, 10, 15], [[1]] * 3, [2])])
    assert steps.names == ("short", "long")
    assert steps.of(RigidJobs("s", [0, 0], [7, 8], [[1]] * 2, [2])).tolist() == [0, 1]
    log = RigidJobs("log", [0] * 4, [10, 20, 30, 1], [[1], [1], [1], [100]], [100], step="s")
    assert size_groups([log]).of(log).tolist() == [0, 1, 2, 3]


def test_an_objective_is_named_as_on_the_command_line() -> None:
    assert parse_cost("bounded-slowdown") is Cost.BOUNDED_SLOWDOWN
    with pytest.raises(ConfigError, match="write one of slowdown, bounded-slowdown, completion"):
        parse_cost("speed")
    with pytest.raises(ConfigError, match=r"slowdown\+makespan$"):
        parse_cost("speed", is_of_run=True)


def test_of_two_logs_the_typical_makespan_does_not_depend_on_the_longer_one_only() -> None:
    short = RigidJobs("short", [0], [10], [[1]], [4], step="s")
    long = RigidJobs("long", [0, 0], [100, 150], [[4], [4]], [4], step="s")
    batch = run_in_order(short, long, long)
    # The makespans are 10, 250 and 250.
    assert typical_cost(batch, Cost.MAKESPAN, [0, 1, 1]) == pytest.approx(50.0)
    assert typical_cost(batch, Cost.MAKESPAN, [0, 0, 0]) == pytest.approx(170.0)


def test_two_logs_of_clusters_of_the_same_size_are_two_logs() -> None:
    quiet = RigidJobs("log", [0, 100], [10, 10], [[1], [1]], [8], step="s")
    busy = RigidJobs("log", [0, 0], [70, 10], [[8], [8]], [8], step="s")
    source = MixedSource((RigidLogSource(quiet, None), RigidLogSource(busy, None)))
    seeds = range(7, 11)
    batch = run_in_order(*source.draw(seeds), config=source.config)
    log_of = origins(source, seeds)
    assert log_of.tolist() == [1, 0, 1, 0]
    assert typical_cost(batch, Cost.SLOWDOWN, log_of) == pytest.approx(np.sqrt(1.0 * 4.5))
