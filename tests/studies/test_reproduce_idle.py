"""The parts of the studies of idle slots; the studies themselves run in test_reproduce_studies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.cluster.decision import Decision
from parcae.cluster.observation import Observation
from parcae.decima.catalog import make_policy
from parcae.decima.checkpoints import rule_checkpoint
from parcae.decima.learning.recipes import fair_runs
from parcae.decima.rule.policy import start_parameters
from parcae.learning.scenario import Scenario
from parcae.papers.idle import (
    AGENTS,
    at_busy,
    fig3,
    fig4,
    mixed_scenario,
    real_scenario,
    require_agents,
    smallest_cluster,
    synthetic_scenario,
    table1,
)
from parcae.papers.idle_lengths import bins_of, fig5, first_slot_s, pairs, slots_of
from parcae.papers.study import Study, StudyRequest
from parcae.policies.checkpoint import write_checkpoint
from parcae.simulation.config import SimulationConfig
from parcae.workloads.archive import load_workload
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.job import Workload
from parcae.workloads.synthetic import synthetic_jobs
from tests.conftest import arriving, job

_HUGE = Workload("huge", (job("huge", (100, 8_880, ())),))
_SMALL = SimulationConfig(num_executors=3, moving_delay_ms=0, warmup_delay_ms=0)


def _request(workload: Workload, config: SimulationConfig) -> StudyRequest:
    return StudyRequest(workload, config, "load:0.7", Path("unused"), num_jobs=30)


@pytest.mark.parametrize("study", [table1, fig3, fig4, fig5])
def test_policies_that_are_no_agents_of_the_study_are_refused(tmp_path: Path, study: Study) -> None:
    request = replace(_request(_HUGE, _SMALL), output=tmp_path, policies=("best.safetensors",))
    with pytest.raises(ConfigError, match=r"give checkpoints that it wrote.*1-1-.*\.safetensors"):
        study(request)


def test_an_agent_that_does_not_exist_is_refused_before_others_are_trained(tmp_path: Path) -> None:
    agents = (str(tmp_path / "1-1-mixed.safetensors"),)
    request = replace(_request(_HUGE, _SMALL), output=tmp_path, policies=agents)
    with pytest.raises(FileNotFoundError, match="no such checkpoint"):
        require_agents(request, ["mixed"], ["(0,0)", "(1,1)"])


def test_two_checkpoints_of_one_agent_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "1-1-mixed.safetensors"
    write_checkpoint(rule_checkpoint(start_parameters(), {}), path)
    agents = (str(path), "elsewhere/1-1-mixed.safetensors")
    request = replace(_request(_HUGE, _SMALL), output=tmp_path, policies=agents)
    with pytest.raises(ConfigError, match="are the same agent of this study"):
        require_agents(request, ["mixed"], ["(0,0)", "(1,1)"])
    require_agents(replace(request, policies=(str(path), str(path))), ["mixed"], ["(1,1)"])


class _AlwaysWaits:
    """Puts a slot of 3 s before every stage that never had one."""

    name = "always waits"

    def decide(self, observation: Observation) -> Decision:
        chosen = observation.schedulable_stages()
        if not chosen:
            return Decision()
        waited = observation.stages.hold_from_ms[chosen[0]] >= 0
        return Decision(chosen[0], 1, hold_ms=0 if waited else 3_000)


def test_the_synthetic_jobs_run_on_the_smallest_cluster_under_80_percent() -> None:
    assert smallest_cluster(synthetic_jobs(), 10.0) == 4
    scenario = synthetic_scenario(_request(_HUGE, SimulationConfig()))
    assert (scenario.config.num_executors, scenario.config.moving_delay_ms, scenario.arrivals) == (
        4,
        0,
        "poisson:10s",
    )


def test_jobs_of_the_papers_size_come_every_40_s_to_a_cluster_loaded_under_80_percent() -> None:
    scenario = real_scenario(_request(_HUGE, SimulationConfig()))
    assert (scenario.config.num_executors, scenario.arrivals) == (
        28,
        "poisson:40s",
    )  # 888 s / 40 s / 28 = 79%
    other = real_scenario(_request(_HUGE, _SMALL))
    assert other.config == _SMALL
    assert other.arrivals.startswith("load:")
    given = real_scenario(replace(_request(_HUGE, SimulationConfig()), is_cluster_given=True))
    assert given.config.num_executors == 50
    assert given.arrivals.startswith("load:")


def test_arrivals_are_found_that_keep_executors_as_busy_as_asked_for() -> None:
    workload = load_workload("toy")
    for busy in (0.3, 0.6):
        found = at_busy(Scenario(workload, _SMALL, "batch", 60), busy)
        assert fair_runs(replace(found, num_jobs=1_000)).busy_share == pytest.approx(busy, abs=0.03)
    mixture = mixed_scenario(_request(workload, _SMALL), 0.5)
    assert mixture.config == _SMALL
    assert len(mixture.workload.jobs) == len(workload.jobs) + 2


def test_agents_differ_in_what_their_labels_say() -> None:
    kinds = {(a.critical_path + a.average_width, a.idle_lengths > 0) for a in AGENTS.values()}
    assert kinds == {(2, True), (0, True), (2, False), (0, False), (1, True)}


def test_idle_slots_of_a_run_are_listed_with_the_length_of_their_stages() -> None:
    sequence = arriving((job("a", (2, 5_000, ())), 0), (job("b", (1, 1_000, ())), 90_000))
    slots = slots_of(
        sequence, _AlwaysWaits(), SimulationConfig(num_executors=1, moving_delay_ms=0), 0
    )
    assert [(slot.job, slot.length_s, slot.slot_s) for slot in slots] == [
        (0, 10.0, 3.0),
        (1, 1.0, 3.0),
    ]
    assert slots_of(sequence, make_policy("fifo", 1), SimulationConfig(num_executors=1), 0) == []


def test_a_pair_is_two_jobs_on_one_machine() -> None:
    scenario = pairs()
    assert (scenario.config.num_executors, scenario.num_jobs) == (1, 2)
    drawn = [scenario.sequence(seed) for seed in range(400)]
    assert {int(s.jobs[0].work_ms) for s in drawn} == {15_000, 25_000, 50_000, 70_000}
    assert {int(s.jobs[1].work_ms) for s in drawn} == {10_000}
    assert np.mean([s.arrival_ms[1] for s in drawn]) == pytest.approx(10_000, rel=0.15)
    assert first_slot_s(_AlwaysWaits(), scenario, 1) == 3.0
    assert first_slot_s(make_policy("fifo", 1), scenario, 1) == 0.0


def test_bins_by_work_hold_every_job_once_and_go_up() -> None:
    workload = Workload("w", tuple(job(str(k), (1, 1_000 * k, ())) for k in range(1, 11)))
    sequence = JobSequence(workload, np.array([9, 0, 4, 4, 2, 7]), np.arange(6))
    bins = bins_of(workload, sequence)
    assert sorted(np.concatenate(bins).tolist()) == [0, 1, 2, 3, 4, 5]
    assert [rows.tolist() for rows in bins] == [[1], [4], [2, 3], [5], [0]]
