"""Open jobs: their stages are revealed while they run, and they end when the client says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parcae.cluster.decision import Decision
from parcae.cluster.invariants import check_invariants
from parcae.cluster.observation import Observation
from parcae.cluster.state import NO_PROFILE
from parcae.policies.catalog import make_policy
from parcae.policies.decima.policy import DecimaPolicy
from parcae.policies.learned import learned_policy
from parcae.service.board import job_rows
from parcae.service.jobs import DurationBook
from parcae.service.mirror import Mirror
from parcae.service.policies import policies_by_size
from parcae.service.protocol import (
    Bye,
    Commands,
    JobArrived,
    JobEnded,
    JobMessage,
    SlotMessage,
    StageMessage,
    StagesAdded,
    Sync,
    TaskFinished,
)
from parcae.service.record import Recorder
from parcae.service.replay import replay_recording
from parcae.service.rows import Room
from parcae.service.session import Service
from parcae.service.simulated_client import SimulatedClient, task_times
from parcae.simulation.config import SimulationConfig
from parcae.simulation.run import simulate
from parcae.workloads.arrivals import JobSequence, draw_sequence
from parcae.workloads.catalog import load_workload
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import RandomStreams
from parcae.workloads.synthetic import RandomDags, random_dags
from tests.conftest import job
from tests.service.recording import Wire
from tests.service.speaking import Speaker, code_of, job_of, said_by, service_of, tokens_of

_WORKLOAD = random_dags(RandomDags(num_jobs=8, mean_tasks=5.0), np.random.default_rng(0), "made up")


def _mirror(client: Speaker) -> Mirror:
    mirror = client.wire.session.service.mirror_of(client.application)
    check_invariants(mirror.state)
    return mirror


def _finished(slot: int, job_id: int, stage_id: int, duration_ms: int = 10) -> TaskFinished:
    return TaskFinished(slot=slot, job_id=job_id, stage_id=stage_id, duration_ms=duration_ms)


def test_an_open_job_outlives_its_tasks_and_ends_when_it_is_said_to() -> None:
    client = Speaker(service_of())
    client.sync(2, has_instant_moves=True)
    assert tokens_of(client.events(0, JobArrived(job=job_of(7, (1, ()), is_open=True)))) == {(7, 0): 1}
    reply = client.events(10, _finished(0, 7, 0))
    assert said_by(reply) == [("idle", 0, None, None)]
    assert tokens_of(reply) == {(7, 0): 0}
    mirror = _mirror(client)
    assert [job.job_id for job in mirror.jobs] == [7]
    assert (mirror.state.now.num_schedulable[0], mirror.state.now.num_open[0]) == (0, 0)  # it wants nobody for now
    assert mirror.counts.finished_jobs == 0
    reply = client.events(20, StagesAdded(job_id=7, stages=(StageMessage(stage_id=1, tasks=2, parents=(0,)),)))
    assert tokens_of(reply) == {(7, 1): 2}
    assert _mirror(client).state.now.num_open[0] == 0
    client.events(30, _finished(0, 7, 1), _finished(1, 7, 1))
    assert [job.job_id for job in _mirror(client).jobs] == [7]
    client.events(40, JobEnded(job_id=7))
    assert _mirror(client).jobs == []
    assert (mirror.counts.finished_jobs, mirror.counts.failed_jobs) == (1, 0)
    assert code_of(client.events(41, JobEnded(job_id=7))) == ("unknown_job", "sync")


def test_the_slots_of_an_open_job_that_has_nothing_to_do_work_for_others() -> None:
    client = Speaker(service_of())
    client.sync(2, has_instant_moves=True)
    client.events(0, JobArrived(job=job_of(1, (1, ()), is_open=True)))
    assert tokens_of(client.events(1, JobArrived(job=job_of(2, (4, ()))))) == {(2, 0): 1}
    assert tokens_of(client.events(10, _finished(0, 1, 0))) == {(1, 0): 0, (2, 0): 2}  # its share is not kept for it
    assert said_by(client.events(13, JobEnded(job_id=1, is_failed=True))) == []
    assert _mirror(client).counts.failed_jobs == 1


def test_a_sync_may_list_an_open_job_whose_tasks_are_done_and_forgets_one_that_it_leaves_out() -> None:
    done = (StageMessage(stage_id=3, tasks=2, finished=2), StageMessage(stage_id=5, tasks=1, finished=1, parents=(3,)))
    slots = (SlotMessage(slot=0, state="idle", job_id=7), SlotMessage(slot=1))
    closed = JobMessage(job_id=7, arrival_ms=0, stages=done)
    client = Speaker(service_of())
    assert code_of(client.say(Sync(seq=1, clock_ms=9, slots=slots, jobs=(closed,)))) == ("bad_job", "sync")
    reply = client.say(Sync(seq=2, clock_ms=9, slots=slots, jobs=(closed.model_copy(update={"is_open": True}),)))
    assert said_by(reply) == [("idle", 0, None, None), ("idle", 1, None, None)]
    client.seq = 2
    (own,) = _mirror(client).jobs
    assert own.is_open
    assert _mirror(client).picture().jobs[0][1].stages == done
    added = StageMessage(stage_id=9, tasks=1, parents=(5, 3))
    assert [said[2:] for said in said_by(client.events(10, StagesAdded(job_id=7, stages=(added,))))] == [(7, 9)]
    assert isinstance(client.sync(2, clock_ms=11), Commands)
    assert _mirror(client).jobs == []


def _tables(client: Speaker, row: int) -> tuple[list[float], float]:
    """Mean task durations of a job's rows (the hidden one first), and its remaining work."""
    state = _mirror(client).state
    start, count = int(state.jobs.stage_start[row]), int(state.jobs.num_stages[row])
    return state.stages.task_ms[start : start + count].tolist(), float(state.jobs.remaining_ms[row])


def test_the_work_to_come_is_that_of_the_profiles_job_less_what_is_known() -> None:
    profile = Workload("p", (job("q", (4, 100, ()), (2, 50, (0,)), (1, 300, (1,))), job("other", (1, 9, ()))))
    client = Speaker(service_of(book=DurationBook(profile)))
    client.sync(1, has_instant_moves=True)
    client.events(0, JobArrived(job=job_of(1, (4, ()), name="q", is_open=True)))
    assert _tables(client, 0) == ([400.0, 100.0], 700.0)  # 800 in all, a task of 100 has begun
    assert _mirror(client).state.jobs.profile[0] == 0
    added = StageMessage(stage_id=1, tasks=2, parents=(0,))
    client.events(1, StagesAdded(job_id=1, stages=(added,)))
    assert _tables(client, 0) == ([300.0, 100.0, 50.0], 700.0)
    unlike = StageMessage(stage_id=2, tasks=7, parents=(0,), task_ms=90.0)
    client.events(2, StagesAdded(job_id=1, stages=(unlike,)))
    assert _tables(client, 0) == ([0.0, 100.0, 50.0, 90.0], 1030.0)  # more than the profile knows: nothing is to come
    client.events(3, JobArrived(job=job_of(2, (4, ()), name="unheard of", is_open=True)))
    assert _tables(client, 1) == ([0.0, 1000.0], 4000.0)
    assert _mirror(client).state.jobs.profile[1] == NO_PROFILE


def test_stages_on_which_the_profiles_jobs_of_a_name_disagree_are_learned() -> None:
    jobs = (job("q", (4, 100, ()), (2, 50, (0,))), job("q", (4, 100, ()), (2, 70, (0,)), (1, 10, (1,))))
    book = DurationBook(Workload("p", jobs))
    rows = book.rows(job_of(1, (4, ()), (2, ()), name="q", is_open=True))
    assert rows.specs.task_ms.tolist() == [0.0, 100.0, 1000.0]  # what is assumed is more than what is left of 525 on average
    assert rows.is_learned == (False, True)
    assert rows.profile == NO_PROFILE
    whole = book.rows(job_of(1, (4, ()), (2, (0,)), name="q", is_open=True))  # the very shape of the first
    assert whole.specs.task_ms.tolist()[1:] == [100.0, 50.0]
    assert (whole.profile, whole.is_learned) == (0, (False, False))


def test_without_a_profile_the_work_to_come_is_that_of_earlier_runs() -> None:
    client = Speaker(service_of())
    client.sync(1, has_instant_moves=True)
    client.events(0, JobArrived(job=job_of(1, (1, ()), name="nightly", is_open=True)))
    client.events(100, _finished(0, 1, 0, 100))
    client.events(101, StagesAdded(job_id=1, stages=(StageMessage(stage_id=1, tasks=2, parents=(0,)),)))
    client.events(150, _finished(0, 1, 1, 40))
    client.events(200, _finished(0, 1, 1, 60))
    client.events(201, JobEnded(job_id=1))
    client.events(300, JobArrived(job=job_of(2, (1, ()), name="nightly", is_open=True)))
    assert _tables(client, _mirror(client).jobs[0].row)[0] == [100.0, 100.0]
    client.events(301, JobEnded(job_id=2, is_failed=True))  # a run that failed says nothing of the work of others
    learned = client.wire.session.service.book.learned
    assert learned.run_ms("nightly") == 200.0
    client.events(302, JobArrived(job=job_of(3, (1, ()), is_open=True)))
    client.events(400, _finished(0, 3, 0, 98))
    client.events(401, JobEnded(job_id=3))
    assert learned.run_ms("") == 0.0  # jobs without a name have nothing in common


def test_shortest_remaining_work_first_hears_of_the_work_to_come() -> None:
    long = job("long", (2, 10, ()), (100, 1_000, (0,)))
    short = job("short", (2, 100, ()), (1, 100, (0,)))
    policy = make_policy("srpt-cap:1", 1)
    client = Speaker(service_of(policy, book=DurationBook(Workload("p", (long, short)))))
    client.sync(1, has_instant_moves=True)
    client.events(0, JobArrived(job=job_of(0, (1, ()))))
    for number, name in enumerate(("long", "short"), 1):
        client.events(number, JobArrived(job=job_of(number, (2, ()), name=name, is_open=True)))
    assert said_by(client.events(9, _finished(0, 0, 0)))[-1] == ("start", 0, 2, 0)


_POLICIES = [
    "fifo",
    "sjf-cp",
    "fair",
    "fair:active",
    "naive-weighted-fair",
    "weighted-fair:-1",
    "static:2",
    "random",
    "srpt-cap:2",
]
_POLICIES += ["spark_fifo", "spark_static_2", "tuned", "parcae", "decima"]


def _sequence(workload: Workload, num_jobs: int = 8, arrivals: str = "poisson:3s") -> JobSequence:
    return draw_sequence(workload, arrivals, num_jobs, 4, RandomStreams(2))


def _adaptive(sequence: JobSequence, moving_delay_ms: int = 500) -> SimulatedClient:
    config = SimulationConfig(num_executors=4, moving_delay_ms=moving_delay_ms)
    trace = simulate(sequence, make_policy("fair", 4), config, 1, record=True)
    return SimulatedClient(sequence, task_times(trace), 4, moving_delay_ms, is_adaptive=True)


def _play(service: Service, client: SimulatedClient, resync_every: int = 1 << 30) -> None:
    wire, count = Wire(service), 0
    wire.ask(client.hello())
    client.obey(wire.commands(client.sync()))
    mirror = service.mirror_of("simulated")
    while (message := client.next_message()) is not None:
        client.obey(wire.commands(message))
        check_invariants(mirror.state)
        count += 1
        if count % resync_every == 0:
            client.obey(wire.commands(client.sync()))
            check_invariants(mirror.state)
    assert len(client.tasks) == client.sequence.num_tasks
    assert mirror.jobs == []
    wire.ask(Bye())


@pytest.mark.parametrize("name", _POLICIES)
def test_every_policy_runs_open_jobs_to_their_end(name: str, caplog: pytest.LogCaptureFixture) -> None:
    workload = load_workload("tpch") if name in ("parcae", "decima", "tuned") else _WORKLOAD
    sequence = _sequence(_WORKLOAD)
    policy_for = policies_by_size(name, workload, 500)
    for book in (DurationBook(None), DurationBook(_WORKLOAD)):
        service = Service(policy_for, name, book)
        _play(service, _adaptive(sequence))
        assert service.counts.finished_jobs == sequence.num_jobs
        assert service.counts.fallbacks == 0 or name.startswith("spark_")  # which stop when all that they grant was granted
    assert not [record for record in caplog.records if "failed" in record.message]


@pytest.mark.parametrize("name", _POLICIES)
def test_no_policy_breaks_where_only_work_to_come_is_left(name: str) -> None:
    workload = load_workload("tpch") if name in ("parcae", "decima", "tuned") else _WORKLOAD
    for book in (DurationBook(None), DurationBook(Workload("p", (job("q", (1, 10, ()), (5, 100, (0,))),)))):
        service = Service(policies_by_size(name, workload, 500), name, book)
        client = Speaker(service)
        client.sync(3, has_instant_moves=True)
        client.events(0, *(JobArrived(job=job_of(number, (1, ()), name="q", is_open=True)) for number in (1, 2)))
        for clock_ms in (10, 11):
            running = [slot for slot in _mirror(client).picture().slots if slot.state == "running"]
            reply = client.events(clock_ms, *(_finished(slot.slot, slot.job_id or 0, 0) for slot in running))
            assert isinstance(reply, Commands)
        state = _mirror(client).state
        assert (state.now.num_active[0], state.now.num_idle[0]) == (2, 3)
        reply = client.events(20, JobArrived(job=job_of(3, (1, ()))))  # and they may be asked again
        assert tokens_of(reply) == {(3, 0): 1}
        assert service.counts.fallbacks == 0


def test_networks_score_open_jobs_of_known_and_unknown_names() -> None:
    workload = load_workload("tpch")
    sequence = _sequence(workload, 6, "batch")
    for name in ("parcae", "decima", "tuned"):
        service = Service(policies_by_size(name, workload, 500), name, DurationBook(workload))
        _play(service, _adaptive(sequence))
        assert service.counts.fallbacks == 0


class _Afresh:
    """Asks a policy, and the same without a memory: both must say the same."""

    name = "afresh"

    def __init__(self, policy: DecimaPolicy) -> None:
        self.policy, self.num_asked = policy, 0

    def decide(self, observation: Observation) -> Decision:
        self.num_asked += 1
        decision = self.policy.decide(observation)
        assert replace(self.policy).decide(observation) == decision
        return decision


def test_what_decima_keeps_of_open_jobs_is_what_it_would_work_out_afresh(caplog: pytest.LogCaptureFixture) -> None:
    workload = load_workload("tpch")
    sequence = _sequence(workload, 10, "poisson:10s")
    policy = learned_policy("decima", workload, SimulationConfig(num_executors=4, moving_delay_ms=500))
    assert isinstance(policy, DecimaPolicy)
    afresh = _Afresh(policy)
    service = Service(lambda slots: afresh, "decima", DurationBook(workload))
    _play(service, _adaptive(sequence))
    assert service.counts.fallbacks == 0, caplog.text
    assert afresh.num_asked > 50


def test_tables_that_grow_change_nothing_for_open_jobs() -> None:
    sequence, runs = _sequence(_WORKLOAD, 16), []
    for room in (Room(64, 4_096, 4_096), Room(1, 1, 1)):
        client = _adaptive(sequence)
        _play(Service(lambda slots: make_policy("srpt-cap:2", slots), "srpt", DurationBook(_WORKLOAD), room=room), client)
        runs.append(client.tasks)
    assert runs[0] == runs[1]


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_open_jobs_survive_a_sync_at_any_time(every: int) -> None:
    client = _adaptive(_sequence(_WORKLOAD))
    _play(service_of(book=DurationBook(_WORKLOAD)), client, resync_every=every)
    assert len(client.tasks) == client.sequence.num_tasks


def test_a_recording_of_open_jobs_is_followed(tmp_path: Path) -> None:
    sequence, policy_for = _sequence(_WORKLOAD), policies_by_size("srpt-cap:2", _WORKLOAD, 500)
    book = DurationBook(None)
    book.learned.add_run(sequence.jobs[0].name, 10_000)
    service = Service(policy_for, "srpt-cap:2", book, watchers=[Recorder(tmp_path)])
    _play(service, _adaptive(sequence))
    result = replay_recording([tmp_path], "srpt-cap:2", Workload("none", (job("x", (1, 1, ())),)), 500)
    assert (result.num_stage, result.num_limit, result.num_lost) == (0, 0, 0)
    assert result.num_decisions == service.counts.decisions
    assert result.estimate is not None
    assert result.estimate.num_jobs == sequence.num_jobs


def test_the_board_counts_the_tasks_that_the_client_knows() -> None:
    client = Speaker(service_of())
    client.sync(2, has_instant_moves=True)
    client.events(0, JobArrived(job=job_of(1, (3, ()), is_open=True)), JobArrived(job=job_of(2, (4, ()))))
    client.events(5, _finished(0, 1, 0))
    assert [(row["tasks"], row["finished"]) for row in job_rows(_mirror(client))] == [(3, 1), (4, 0)]
