"""Several applications on one cluster: who has executors, and what must hold whoever has."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.cluster.trace import Trace
from parcae.policies.additions import named_policy
from parcae.simulation.allocations import (
    WORDS,
    Demand,
    Lending,
    allocation_named,
    parse_allocations,
)
from parcae.simulation.applications import ApplicationsCluster, ExecutorCounts, play_applications
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.elastic import Elastic
from parcae.simulation.metrics import jct_ms
from parcae.simulation.simulator import simulate
from parcae.workloads.job import JobSpec
from parcae.workloads.workload import JobSequence, Workload
from tests.conftest import job

#: Allocations of several applications.
SEVERAL = tuple(word for word in WORDS if word != "shared")


def _job(arrival_ms: int, user: str, *stages: tuple[int, int]) -> JobSpec:
    """A job of stages, one after another, of (tasks, ms)."""
    chain = [(count, ms, tuple(range(row))[-1:]) for row, (count, ms) in enumerate(stages)]
    return job(f"{user}-{arrival_ms}", *chain, arrival_ms=arrival_ms, user=user)


def _sequence(*jobs: JobSpec) -> JobSequence:
    arrivals = np.array([job.arrival_ms for job in jobs], np.int64)
    return JobSequence(Workload("apps", jobs), np.arange(len(jobs)), arrivals)


def _cluster(sequence: JobSequence, executors: int, **elastic: int) -> ApplicationsCluster:
    cores = elastic.setdefault("cores_per_executor", 1)
    users = [job.user for job in sequence.workload.jobs]
    names = tuple(dict.fromkeys(users))
    settings = Elastic(**{"start_ms": 3_000, "idle_ms": 3_000, **elastic})
    config = SimulationConfig(
        world=WorldName.CORES, num_executors=executors * cores, elastic=settings
    )
    return ApplicationsCluster(config, tuple(map(names.index, users)), names, (1.0,) * len(names))


def _played(
    sequence: JobSequence, executors: int, word: str, seed: int = 0, **elastic: int
) -> tuple[Trace, ExecutorCounts]:
    cluster = _cluster(sequence, executors, **elastic)
    policy = named_policy("fifo", sequence.workload, cluster.config)
    allocation = allocation_named(word, cluster.elastic)
    return play_applications(sequence, policy, cluster, allocation, seed)


def _drawn(seed: int, applications: int = 4, jobs: int = 60) -> JobSequence:
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.integers(0, 60_000, jobs))
    made = []
    for arrival_ms in arrivals.tolist():
        stages = [
            (int(rng.integers(1, 13)), int(rng.integers(100, 1_500)))
            for _ in range(rng.integers(1, 4))
        ]
        made.append(_job(arrival_ms, f"app {rng.integers(applications)}", *stages))
    return _sequence(*made)


def test_a_static_split_is_each_application_alone() -> None:
    sequence = _drawn(1)
    trace, counts = _played(sequence, 8, "static")
    users = np.array([job.user for job in sequence.jobs])
    for user in set(users):
        places = np.flatnonzero(users == user)
        alone = JobSequence(
            sequence.workload, sequence.job_index[places], sequence.arrival_ms[places]
        )
        config = SimulationConfig(world=WorldName.CORES, num_executors=2)
        policy = named_policy("fifo", sequence.workload, config)
        assert jct_ms(simulate(alone, policy, config, 0)).tolist() == jct_ms(trace)[places].tolist()
    assert (counts.started, counts.interrupted, counts.most) == (0, 0, 8)


def test_dynamic_allocation_by_hand() -> None:
    """One application is alone for 10 s, with six tasks of 2 s on four executors."""
    sequence = _sequence(_job(0, "a", (6, 2_000)), _job(10_000, "b", (1, 1_000)))
    trace, counts = _played(sequence, 4, "dynamic:fair")
    # Tasks wait for 1 s: one executor is asked for, then two, then the fourth; each is granted at a
    # full second and starts in 3 s. The first runs tasks from 4.1 s, two from 6.1 s, one from 7.1.
    # The last pair of tasks begins at 6.1 s (the first executor) and at 7.1 s.
    assert trace.completion_ms[0] == pytest.approx(9_100, abs=300)
    assert counts.started == 5
    # `b` waits for 1 s and starts at 14 s; by then executors of `a` have gone.
    assert trace.completion_ms[1] == pytest.approx(15_100, abs=300)


@pytest.mark.parametrize("word", SEVERAL)
@pytest.mark.parametrize("cores", [1, 3])
def test_whatever_moves_all_jobs_end_and_the_cluster_is_never_exceeded(
    word: str, cores: int
) -> None:
    for seed in range(3):
        sequence = _drawn(seed)
        trace, counts = _played(sequence, 8 // cores * 2, word, seed, cores_per_executor=cores)
        assert trace.is_complete
        assert counts.most <= 8 // cores * 2
        work = [sum(s.num_tasks * s.durations.mean_ms for s in job.stages) for job in sequence.jobs]
        # What was killed ran again and does not count.
        assert trace.executed_ms.tolist() == pytest.approx(work)
        again, same = _played(sequence, 8 // cores * 2, word, seed, cores_per_executor=cores)
        assert again.completion_ms.tolist() == trace.completion_ms.tolist()
        assert same == counts
        assert (counts.interrupted > 0) == (word == "dynamic:preempt" and counts.interrupted > 0)


def test_what_a_policy_adds_holds_in_every_application() -> None:
    """Accounts help a large job in an application beside the loop of another user."""
    jobs = [_job(0, "a", (80, 1_000)), *(_job(200 * n, "b", (4, 500)) for n in range(1, 100))]
    sequence = _sequence(*jobs)
    cluster = _cluster(sequence, 4)
    one = replace(cluster, owner=(0,) * len(jobs), names=("all",), weights=(1.0,))
    ends = {}
    for name in ("srpt", "account"):
        policy = named_policy(name, sequence.workload, cluster.config)
        allocation = allocation_named("static", cluster.elastic)
        trace, _ = play_applications(sequence, policy, one, allocation, 0)
        alone = cluster.config.model_copy(update={"elastic": None})
        ends[name] = trace.completion_ms
        assert ends[name].tolist() == simulate(sequence, policy, alone, 0).completion_ms.tolist()
    assert ends["account"][0] < 0.7 * ends["srpt"][0]


def test_only_preemption_interrupts_tasks() -> None:
    # `a` takes all executors for long; `b` comes when none is free.
    sequence = _sequence(_job(0, "a", (8, 60_000)), _job(20_000, "b", (4, 1_000)))
    ends = {}
    for word in ("dynamic:fair", "dynamic:preempt"):
        trace, counts = _played(sequence, 4, word)
        ends[word] = int(trace.completion_ms[1])
        assert (counts.interrupted > 0) == (word == "dynamic:preempt")
    assert ends["dynamic:preempt"] < 40_000 < ends["dynamic:fair"]


def test_what_an_owner_does_not_need_is_lent_and_comes_back() -> None:
    jobs = [_job(0, "a", (200, 1_000)), _job(70_000, "b", (4, 1_000))]
    alone, _ = _played(_sequence(*jobs), 4, "static")
    lent, counts = _played(_sequence(*jobs), 4, "serve")
    assert lent.completion_ms[0] < 0.85 * alone.completion_ms[0]
    # Nothing is killed, and the owner is behind its split by a move and a task.
    assert counts.interrupted == 0
    assert lent.completion_ms[1] <= alone.completion_ms[1] + 3_000 + 3_000 + 1_000 + 1_000


def test_short_pauses_are_waited_out_and_long_ones_are_lent_at_once() -> None:
    """`b` needs executors for 2 s and then none, again and again, for as long each time."""
    for pause_ms, is_lent in ((4_000, False), (60_000, True)):
        rule = Lending(4)
        lent = []
        for moment in range(4_000):
            clock_ms = 100 * moment
            in_turn = clock_ms % (2_000 + pause_ms)
            b = Demand(rule.told.get("b", 2), 2 if in_turn < 2_000 else 0, 0.0, 3_000.0)
            told = rule.share(
                clock_ms, {"a": Demand(rule.told.get("a", 2), 4, 1e9, 3_000.0), "b": b}
            )
            if in_turn == 5_500 and moment > 3_700:
                lent.append(told["a"] > 2)
        assert set(lent) == {is_lent}


def test_more_applications_than_executors_take_turns() -> None:
    rule = Lending(4)
    names = [f"app {number}" for number in range(12)]
    held = dict.fromkeys(names, 0)
    turns: Counter[str] = Counter()
    for moment in range(2_000):
        told = rule.share(
            500.0 * moment, {name: Demand(held[name], 9, 1e9, 3_000.0) for name in names}
        )
        held = told
        assert sum(told.values()) <= 4
        turns.update(told)
    assert min(turns.values()) > 0.5 * max(turns.values())


def test_a_rule_that_waits_for_room_and_executors_that_stay() -> None:
    """`a` is told to have fewer and does not let them go: `b` is told to have none."""
    rule = Lending(4)
    asks = Demand(0, 4, 1e9, 3_000.0)
    for moment in range(100):
        told = rule.share(500.0 * moment, {"a": Demand(4, 4, 1e9, 3_000.0), "b": asks})
        assert (told["a"], told["b"]) == (2 if moment else told["a"], 0)


def test_what_was_called_back_is_not_lent_as_well() -> None:
    """`a` has all of nine executors and is idle for long, then the two others want all."""
    rule = Lending(9)
    wants = Demand(0, 9, 1e9, 3_000.0)
    for second in range(300):
        needed = 9 if second < 150 else 0
        a = Demand(rule.told.get("a", 3), needed, 1e9 * needed, 3_000.0)
        rule.share(
            1_000.0 * second, {"a": a, "b": wants._replace(needed=0), "c": wants._replace(needed=0)}
        )
    assert rule.goal["a"] == 9
    rule.share(300_000.0, {"a": a, "b": wants, "c": wants})
    assert min(rule.goal.values()) >= 0
    assert sum(rule.goal.values()) == 9


@pytest.mark.parametrize("since_ms", [0.0, 1.8e12], ids=["from 0", "since 1970"])
def test_lending_that_loses_time_stops_for_a_while(since_ms: float) -> None:
    rule = Lending(4)
    minute = 60_000.0

    def lends(begin: float, end: float) -> set[bool]:
        """Whether `a` has more than its split, at the end of each minute."""
        found = set()
        for clock_ms in (1_000.0 * s for s in range(int(60 * begin), int(60 * end))):
            a = Demand(rule.told.get("a", 2), 4, 1e9, 3_000.0)
            b = Demand(rule.told.get("b", 2), 0, 0.0, 3_000.0)
            told = rule.share(since_ms + clock_ms, {"a": a, "b": b})
            if clock_ms % minute == minute - 1_000.0:
                found.add(told["a"] > 2)
        return found

    assert lends(0, 2) == {True}
    assert rule.gain.share > 0.4
    # `a` has a little use of what it does not give back, which `b` lacks.
    second = 120
    while rule.stopped_ms < 0:
        lacks = {"a": Demand(4, 3, 1e9, 3_000.0), "b": Demand(0, 2, 1e9, 3_000.0)}
        rule.share(since_ms + 1_000.0 * second, lacks)
        second += 1
    assert 300 < second < 600
    again = (rule.stopped_ms - since_ms) / minute
    assert lends(second / 60, again) == {False}
    assert lends(again, again + 2) == {True}


def test_what_cannot_be() -> None:
    sequence = _drawn(1)
    with pytest.raises(ConfigError, match="3 executors cannot be split among 4 applications"):
        _played(sequence, 3, "static")
    cluster = _cluster(sequence, 1, cores_per_executor=8)
    small = replace(cluster, config=cluster.config.model_copy(update={"num_executors": 4}))
    policy = named_policy("fifo", sequence.workload, small.config)
    serve = allocation_named("serve", small.elastic)
    with pytest.raises(ConfigError, match="has no room for an executor of 8"):
        play_applications(sequence, policy, small, serve, 0)
    follows = np.full(sequence.num_jobs, -1)
    users = [job.user for job in sequence.jobs]
    other = next(row for row, user in enumerate(users) if user != users[0])
    follows[other] = 0
    pauses = np.zeros(sequence.num_jobs, np.int64)
    session = replace(sequence, follows=follows, pause_ms=pauses)
    with pytest.raises(ConfigError, match="a session has jobs of two applications"):
        _played(session, 8, "serve")
    with pytest.raises(ConfigError, match="--allocation dynamic: did you mean"):
        parse_allocations("static,dynamic")
