"""What a scheduler assumes of jobs that it does not know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import Simulator
from parcae.workloads.durations import TaskDurations
from parcae.workloads.guess import OVERHEAD_BYTES, guess_task_ms, mean_log_task_ms
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import JobSequence, Workload
from tests.conftest import batch, job


def _reading(task_ms: int, input_bytes: float, name: str = "", tasks: int = 4) -> JobSpec:
    stage = StageSpec(tasks, TaskDurations.constant(task_ms), input_bytes=input_bytes)
    return JobSpec(name or f"reading {task_ms} {input_bytes}", (stage,))


def _bytes(size: int) -> float:
    """Bytes that, with a query's overhead, grow as the size."""
    return 4e6 * size * 5 - OVERHEAD_BYTES


def _growing() -> tuple[JobSpec, ...]:
    return tuple(_reading(100 * size, _bytes(size)) for size in (1, 2, 3, 4, 6, 8))


def test_without_bytes_the_guess_is_a_typical_task() -> None:
    workload = Workload("w", (_reading(100, 0.0), _reading(400, 0.0)))
    assert guess_task_ms(workload).tolist() == pytest.approx([200.0, 200.0])
    assert np.exp(mean_log_task_ms(workload)) == pytest.approx(200.0)


def test_jobs_that_read_more_are_guessed_to_take_longer() -> None:
    workload = Workload("w", _growing())
    assert guess_task_ms(workload).tolist() == pytest.approx(
        [100.0 * size for size in (1, 2, 3, 4, 6, 8)]
    )


@pytest.mark.parametrize(
    ("jobs", "guess_ms"),
    [
        # A job is guessed by the others alone, and not by runs of the same name.
        ([_reading(50_000, _bytes(5))], 500.0),
        ([_reading(50_000, _bytes(5), "odd"), _reading(50_000, _bytes(5), "odd (2)")], 500.0),
        # The guessed work is spread over the tasks.
        ([_reading(50, _bytes(5), tasks=40)], 50.0),
        # The bytes of scanned files go before those that tasks read.
        ([replace(_reading(50_000, 7.0), scan_bytes=_bytes(5))], 500.0),
    ],
    ids=["alone", "same name", "tasks", "scans"],
)
def test_a_job_is_guessed_by_what_the_others_take(jobs: list[JobSpec], guess_ms: float) -> None:
    guesses = guess_task_ms(Workload("w", (*_growing(), *jobs)))
    assert guesses[len(_growing()) :].tolist() == pytest.approx([guess_ms] * len(jobs))


def test_a_task_that_reads_more_is_never_guessed_to_take_less() -> None:
    workload = Workload(
        "w", tuple(_reading(1_000 // size, _bytes(size)) for size in (1, 2, 3, 4, 6, 8))
    )
    guess_ms = guess_task_ms(workload)
    assert (np.ptp(guess_ms) / guess_ms.mean()) < 0.5  # each is the mean of the others


def _first_estimates(config: SimulationConfig, sequence: JobSequence) -> list[float]:
    simulator = Simulator(sequence, config, 1)
    simulator.start()
    return [float(value) for value in simulator.state.stages.task_ms[:2]]


def test_schedulers_see_the_guess_of_an_unknown_job_in_the_world_of_cores_only() -> None:
    sequence = batch(job("a", (1, 100, ())), job("b", (1, 400, ())))
    cores = SimulationConfig(world=WorldName.CORES, num_executors=1, unknown_share=1.0)
    executors = SimulationConfig(num_executors=1, unknown_share=1.0)
    assert _first_estimates(cores, sequence) == pytest.approx([200.0, 200.0])
    assert _first_estimates(executors, sequence) == [0.0, 0.0]
