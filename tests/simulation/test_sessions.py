"""Closed loops in both worlds: what follows a job's end, in runs, comparisons and learning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.evaluation.compare import ClusterWorld, compare, finished_jobs_of
from parcae.evaluation.sizing import Question, size_cluster, warnings
from parcae.learning.scenario import Runs, Scenario
from parcae.policies.additions import named_policy
from parcae.service.simulated_client import SimulatedClient
from parcae.simulation.bounds import lower_bounds
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.metrics import jct_ms
from parcae.simulation.simulator import SimulatorRows, room_for, simulate
from parcae.workloads.workload import SESSIONS, Workload
from tests.conftest import job

_WORKLOAD = Workload(
    "shop",
    tuple(
        replace(job(f"j{n}", (n, 1_000, ()), (1, 500, (0,))), pauses_ms=(0, 400), user=f"u{n % 2}")
        for n in (2, 3, 8)
    ),
    provenance={SESSIONS: "3"},
)
_CORES = SimulationConfig(world=WorldName.CORES, num_executors=2)
_EXECUTORS = SimulationConfig(num_executors=2, moving_delay_ms=100)


@pytest.mark.parametrize("config", [_CORES, _EXECUTORS], ids=["cores", "executors"])
def test_every_job_of_a_session_comes_its_pause_after_the_end_of_the_one_before(
    config: SimulationConfig,
) -> None:
    sequence = _WORKLOAD.draw(30, "sessions:4", config, seed=1)
    ends = []
    for name in ("fifo", "fair"):
        trace = simulate(sequence, named_policy(name, _WORKLOAD, config), config, 1, record=True)
        is_later = sequence.follows >= 0
        before_ms = trace.completion_ms[sequence.follows]
        expected_ms = np.where(is_later, before_ms + sequence.pause_ms, sequence.arrival_ms)
        np.testing.assert_array_equal(trace.arrival_ms, expected_ms)
        # Jobs are in the order of the sequence, and their tasks with them.
        assert trace.tasks is not None
        counts = np.bincount(trace.tasks["job"], minlength=30)
        assert counts.tolist() == [one.num_tasks for one in sequence.jobs]
        first_ms = np.full(30, trace.clock_ms)
        np.minimum.at(first_ms, trace.tasks["job"], trace.tasks["start_ms"])
        assert (first_ms >= trace.arrival_ms).all()
        ends.append(trace.completion_ms)
    assert (ends[0] != ends[1]).any()


def test_comparisons_pair_jobs_by_their_place_and_say_which_arrivals_they_used() -> None:
    world = ClusterWorld(_WORKLOAD, _CORES, "sessions", 20)
    compared = compare(world, ["fifo", "srpt"], num_seeds=3, processes=1)
    assert compared.to_json()["settings"]["arrivals"] == "sessions"
    assert ", sessions, 2 cores" in compared.title()
    assert not any("one session" in text for text in compared.warnings())
    assert set(compared.to_json()["policies"]["srpt"]["users"]) == {"u0", "u1"}
    jobs = compared.jobs.filter(seed=0)
    arrivals = [jobs.filter(column=column)["arrival_ms"].to_list() for column in (0, 1)]
    assert arrivals[0] != arrivals[1]
    names = [jobs.filter(column=column)["job"].to_list() for column in (0, 1)]
    assert names[0] == names[1]
    for one in finished_jobs_of(compared, 1):
        assert (np.diff(one.arrival_ms[0]) >= 0).all()
    alone = ClusterWorld(_WORKLOAD, _CORES, "sessions:1", 5)
    (warning,) = [
        text
        for text in compare(alone, ["fifo", "srpt"], num_seeds=2, processes=1).warnings()
        if "one session" in text
    ]
    assert "--arrivals sessions:4" in warning


def test_learning_plays_sessions_again_and_again() -> None:
    scenario = Scenario(_WORKLOAD, _CORES, "sessions:3", 12)
    runs = Runs(scenario, [1, 2])
    fair = named_policy("fair", _WORKLOAD, _CORES)
    costs = [runs.cost(fair.play_many).tolist() for _ in range(2)]
    assert costs[0] == costs[1]
    whole = [
        jct_ms(simulate(scenario.sequence(seed), fair, _CORES, seed)).mean() for seed in (1, 2)
    ]
    assert costs[0] == pytest.approx(whole)
    # Jobs of a run are in the order of their arrivals, with their own ideal durations.
    finished = runs.finished_jobs(0)
    assert (np.diff(finished.arrival_ms[0]) >= 0).all()
    slowdown = Runs(replace(scenario, objective=_slowdown), [1, 2])
    assert (slowdown.cost(fair.play_many) >= 1).all()


def _slowdown(jobs: object) -> np.ndarray:
    return jobs.slowdown.min(axis=1)  # type: ignore[attr-defined,no-any-return]


def test_sizes_draw_sessions_that_grow() -> None:
    question = Question(
        _WORKLOAD, (1, 4), ("fair",), arrivals="sessions", growth=2.0, num_jobs=20, num_seeds=2,
        processes=1,
    )  # fmt: skip
    question.check()
    assert question.drawn_arrivals == "sessions:6"
    assert (question.draw(0).follows < 0).sum() == 6
    sizing = size_cluster(question)
    # Six sessions would keep more than one core busy, but they wait: that is no overload.
    assert sizing.load[1] > 1.001
    assert not warnings(sizing)
    small, large = sizing.of("fair")
    assert large.of("average_s").mean < small.of("average_s").mean
    with pytest.raises(ConfigError, match="a load refers to one size"):
        replace(question, arrivals="sessions:load:0.5").check()


def test_what_needs_known_arrivals_refuses_sessions() -> None:
    sequence = _WORKLOAD.draw(5, "sessions", _EXECUTORS, seed=0)
    rows = SimulatorRows(1, _WORKLOAD, _EXECUTORS, **room_for(_WORKLOAD, 5))
    with pytest.raises(ConfigError, match="after others have ended are not supported"):
        rows.put(0, sequence, 0)
    with pytest.raises(ConfigError, match="bounds are for given arrivals"):
        lower_bounds(sequence, 2)
    with pytest.raises(ConfigError, match="needs arrivals that are known"):
        SimulatedClient(sequence, lambda *_: 0, 2)
    recorded = replace(_WORKLOAD, jobs=tuple(one.at(0) for one in _WORKLOAD.jobs))
    with pytest.raises(ConfigError, match="cannot be learned on sessions arrivals"):
        Scenario(recorded, _CORES, "sessions", 5)
