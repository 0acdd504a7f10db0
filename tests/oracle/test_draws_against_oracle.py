"""Drawn durations of the world of cores against the plain-Python oracle, and what they promise."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from parcae.cluster.state import World
from parcae.simulation.faults import Faults
from parcae.simulation.kernels.events import job_bits, task_bits, task_duration_ms
from parcae.simulation.simulator import simulate
from parcae.simulation.tables import DurationMode, Interpolation, workload_tables
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import JobSequence, Workload
from tests.oracle import spark_draws
from tests.oracle.cores_runs import config_of, policy_of, random_seeds, starts
from tests.oracle.spark_world import Job
from tests.oracle.spark_world import simulate as simulate_plainly

_SAMPLED = {"durations": DurationMode.SAMPLED}


def _stage(samples: list[int], num_tasks: int) -> StageSpec:
    return StageSpec(num_tasks, TaskDurations.of(np.array(samples, np.int64)))


def _random_jobs(rng: random.Random) -> list[list[tuple[list[int], int]]]:
    """(samples, number of tasks) of the stages of some jobs."""
    jobs = []
    for _ in range(rng.randint(1, 6)):
        stages = []
        for _ in range(rng.randint(1, 4)):
            num_tasks = rng.choice([1, 2, 3, 5, 8, 13, 40])
            count = rng.choice([num_tasks, num_tasks, 3 * num_tasks, rng.randint(1, 50)])
            stages.append(([rng.randint(0, 60) for _ in range(count)], num_tasks))
        jobs.append(stages)
    return jobs


def _sequence(jobs: list[list[tuple[list[int], int]]]) -> JobSequence:
    specs = tuple(
        JobSpec(f"job-{i:03d}", tuple(_stage(*stage) for stage in job))
        for i, job in enumerate(jobs)
    )
    rows = np.arange(len(jobs))
    return JobSequence(Workload("drawn", specs), rows, rows * 20)


@random_seeds
def test_every_task_takes_what_the_oracle_says(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        jobs = _random_jobs(rng)
        cores = rng.randint(1, 9)
        plain = [
            Job(
                row * 20,
                [],
                [spark_draws.task_ms(seed, row, i, *stage) for i, stage in enumerate(job)],
            )
            for row, job in enumerate(jobs)
        ]
        world = simulate_plainly(cores, plain, "fair")
        config = config_of(cores).model_copy(update=_SAMPLED)
        trace = simulate(_sequence(jobs), policy_of("fair", plain, {}), config, seed, record=True)
        assert starts(trace) == world.trace, f"seed {seed}"
        assert trace.completion_ms.tolist() == world.completion_ms, f"seed {seed}"


def _drawn(samples: list[int], num_tasks: int, seed: int, count: int | None = None) -> list[int]:
    """What tasks of a stage take, of which a live one may have more than its profile."""
    workload = Workload("w", (JobSpec("a", (_stage(samples, num_tasks),)),))
    tables: Any = workload_tables(workload, DurationMode.SAMPLED, Interpolation.LINEAR, World.CORES)
    bits = np.uint64(job_bits(np.uint64(seed), 0))
    return [
        int(task_duration_ms(tables, 0, task, 1, 2, bits, np.uint64(task_bits(bits, task)), 0))
        for task in range(num_tasks if count is None else count)
    ]


@pytest.mark.parametrize("num_tasks", [1, 2, 3, 4, 7, 8, 9, 31, 64, 100])
def test_a_stage_repeats_every_task_of_its_run_once_about_when_it_started(num_tasks: int) -> None:
    samples = [10 * i for i in range(num_tasks)]
    orders = set()
    for seed in range(40):
        drawn = _drawn(samples, num_tasks, seed)
        assert sorted(drawn) == samples
        assert all(abs(ms - 10 * i) < 10 * max(1, num_tasks / 2) for i, ms in enumerate(drawn))
        orders.add(tuple(drawn))
    assert (len(orders) > 10) == (num_tasks > 7)


def test_a_stage_of_several_runs_has_one_of_their_longest_tasks_and_each_alike() -> None:
    counts: Counter[int] = Counter()
    for seed in range(400):
        drawn = sorted(_drawn(list(range(30)), 10, seed))
        assert [ms // 3 for ms in drawn] == list(range(10))
        counts.update(drawn)
    assert all(90 < counts[ms] < 180 for ms in range(30))


@pytest.mark.parametrize(("num_samples", "num_tasks"), [(7, 10), (10, 7), (2, 5), (1, 4)])
def test_no_sample_is_likelier_than_another(num_samples: int, num_tasks: int) -> None:
    counts: Counter[int] = Counter()
    first: Counter[int] = Counter()
    for seed in range(2_000):
        drawn = _drawn(list(range(num_samples)), num_tasks, seed)
        counts.update(drawn)
        first[drawn[0]] += 1
        most = -(-num_tasks // num_samples)
        assert max(Counter(drawn).values()) <= most + 1
    expected = 2_000 * num_tasks / num_samples
    assert all(abs(counts[ms] / expected - 1) < 0.06 for ms in range(num_samples))
    assert all(abs(first[ms] * num_samples / 2_000 - 1) < 0.25 for ms in range(num_samples))


def test_a_live_stage_with_more_tasks_than_its_profile_deals_again() -> None:
    drawn = _drawn([1, 2, 3, 4, 5], 5, seed=3, count=12)
    assert sorted(drawn[:5]) == sorted(drawn[5:10]) == [1, 2, 3, 4, 5]
    bits = np.uint64(job_bits(np.uint64(3), 0))
    assert drawn == [
        spark_draws.dealt([1, 2, 3, 4, 5], 5, task, int(bits), int(task_bits(bits, task)))
        for task in range(12)
    ]


@pytest.mark.parametrize("redraws", [True, False])
def test_tasks_that_fail_keep_their_sample_unless_attempts_are_drawn_anew(redraws: bool) -> None:
    samples = [1_000 * i for i in range(1, 41)]
    faults = Faults(failure_rate=0.5, max_failures=50, redraws=redraws)
    config = config_of(4).model_copy(update=_SAMPLED | {"faults": faults})
    policy = policy_of("fair", [Job(0, [], [[1]])], {})
    trace = simulate(_sequence([[(samples, 40)]]), policy, config, 5, record=True)
    assert trace.tasks is not None
    rows = np.sort(trace.tasks, order="start_ms")
    last = {int(row["task"]): int(row["finish_ms"] - row["start_ms"]) for row in rows}
    assert set(last.values()) <= set(samples)
    assert (sorted(last.values()) == samples) is not redraws
