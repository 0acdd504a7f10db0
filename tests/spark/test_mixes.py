"""Mixes of sleeping jobs, and what the cluster itself costs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from parcae.base.errors import WorkloadError
from parcae.policies.orders.catalog import make_cores_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.spark.fidelity import ClusterCosts, costly_workload, hand_over_ms, slept
from parcae.spark.mixes import drawn_sleeps, mix_json, parents_first, read_replayed, warm_workload
from parcae.workloads.archive import load_workload
from parcae.workloads.arrivals import JobSequence, RandomStreams, draw_sequence
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec, Workload

COSTS = ClusterCosts(task=3.0, stage=7.0, job=11.0)


def test_a_warm_workload_has_one_list_of_durations_per_stage_times_the_factor() -> None:
    workload = load_workload("tpch")
    warm = warm_workload(workload, 4)
    for job, own in zip(workload.jobs, warm.jobs, strict=True):
        assert own.name == job.name
        for stage, scaled in zip(job.stages, own.stages, strict=True):
            samples = next(
                s
                for s in (
                    stage.durations.rest[-1],
                    stage.durations.first[-1],
                    stage.durations.fresh[-1],
                )
                if s.size
            )
            assert scaled.durations.levels == (1,)
            assert scaled.durations.rest[0].tolist() == np.maximum(4 * samples, 1).tolist()
            assert scaled.num_tasks == stage.num_tasks


def test_a_mix_lists_parents_first_and_every_task(tmp_path: Path) -> None:
    workload = warm_workload(load_workload("tpch"), 2)
    sequence = draw_sequence(workload, "poisson:2s", 5, 8, RandomStreams(3))
    sleeps = drawn_sleeps(sequence, 3)
    assert drawn_sleeps(sequence, 3) == sleeps
    assert drawn_sleeps(sequence, 4) != sleeps
    mix = mix_json(sequence, sleeps)
    assert [job["arrival_ms"] for job in mix["jobs"]] == sequence.arrival_ms.tolist()
    for job, spec in zip(mix["jobs"], sequence.jobs, strict=True):
        assert job["name"] == spec.name
        assert sorted(len(s["sleep_ms"]) for s in job["stages"]) == sorted(
            stage.num_tasks for stage in spec.stages
        )
        assert all(
            parent < place
            for place, stage in enumerate(job["stages"])
            for parent in stage["parents"]
        )
        assert sum(map(len, (s["parents"] for s in job["stages"]))) == sum(
            len(stage.parents) for stage in spec.stages
        )
    total = sum(sum(stage["sleep_ms"]) for job in mix["jobs"] for stage in job["stages"])
    assert total == sum(sleeps.values())


def test_a_job_of_two_results_cannot_be_replayed() -> None:
    stage = StageSpec(1, TaskDurations.constant(5))
    sequence = JobSequence(
        Workload("w", (JobSpec("two", (stage, stage)),)),
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
    )
    with pytest.raises(WorkloadError, match="2 last stages"):
        mix_json(sequence, drawn_sleeps(sequence, 0))


def test_a_job_of_many_stages_in_a_row_is_listed() -> None:
    last = TaskDurations.constant(5)
    num_stages = 3_000
    backwards = [StageSpec(1, last, (i + 1,)) for i in range(num_stages - 1)]
    chain = JobSpec("c", (*backwards, StageSpec(1, last)))
    assert parents_first(chain) == [*reversed(range(num_stages))]


def test_what_was_simulated_is_slept_without_the_clusters_costs() -> None:
    """Without the costs, tasks of the costly workload sleep as long as the plain workload takes."""
    stages = (
        StageSpec(6, TaskDurations.constant(50)),
        StageSpec(2, TaskDurations.constant(20), (0,)),
    )
    workload = Workload("w", (JobSpec("a", stages), JobSpec("b", stages)))
    sequence = JobSequence(
        costly_workload(workload, COSTS), np.array([0, 1]), np.zeros(2, np.int64)
    )
    config = SimulationConfig(
        world=WorldName.CORES, num_executors=3, moving_delay_ms=0, warmup_delay_ms=0
    )
    policy = make_cores_policy("fair", sequence.workload, config)
    trace = simulate(sequence, policy, config, 0, record=True)
    sleeps = slept(trace, COSTS)
    assert len(sleeps) == 16
    assert {sleeps[job, 0, task] for job in range(2) for task in range(6)} == {50}
    assert {sleeps[job, 1, task] for job in range(2) for task in range(2)} == {20}
    assert trace.tasks is not None
    took = trace.tasks["finish_ms"] - trace.tasks["start_ms"]
    assert set(took.tolist()) == {53, 23}


def test_the_steps_along_the_longest_chain_are_a_jobs_own_cost() -> None:
    one = StageSpec(1, TaskDurations.constant(5))
    last = TaskDurations.constant(5)
    diamond = JobSpec(
        "d", (StageSpec(1, last, (1, 2)), one, StageSpec(1, last, (1,)))
    )  # 1, then 2, then 0
    assert hand_over_ms(diamond, COSTS) == 11 + 2 * 7
    assert hand_over_ms(JobSpec("s", (one,)), COSTS) == 11


def test_a_job_that_failed_is_said(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    fine = {"name": "a", "submitted_ms": 5, "finished_ms": 105}
    path.write_text(json.dumps({"mixes": [{"began_ms": 0, "jobs": [fine]}]}))
    assert read_replayed(path)[0].jct_ms.tolist() == [100.0]
    path.write_text(
        json.dumps({"mixes": [{"began_ms": 0, "jobs": [fine, {"name": "b", "error": "lost"}]}]})
    )
    with pytest.raises(WorkloadError, match="1 jobs of mix 0 failed: lost"):
        read_replayed(path)
