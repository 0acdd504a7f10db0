"""Sessions: messages in, replies out, no sockets; what a client can get wrong, and what the mirror makes of the rest."""

from __future__ import annotations

import numpy as np
import pytest

from parcae.cluster.decision import Decision
from parcae.cluster.invariants import check_invariants
from parcae.cluster.observation import Observation
from parcae.policies.catalog import make_policy
from parcae.service.jobs import ASSUMED_TASK_MS
from parcae.service.protocol import (
    Bye,
    Challenge,
    Command,
    Commands,
    Error,
    Event,
    Events,
    JobArrived,
    JobEnded,
    JobMessage,
    Ping,
    Pong,
    Proof,
    SlotArrived,
    SlotMessage,
    StageMessage,
    StagesAdded,
    Sync,
    TaskFailed,
    TaskFinished,
    Welcome,
    proof_mac,
)
from parcae.service.session import Scope
from parcae.service.simulated_client import SimulatedClient, task_times
from parcae.simulation.config import SimulationConfig
from parcae.simulation.run import simulate
from parcae.workloads.arrivals import draw_sequence
from parcae.workloads.random_streams import RandomStreams
from parcae.workloads.synthetic import RandomDags, random_dags
from tests.service.recording import Wire
from tests.service.speaking import NONCE, Speaker, code_of, job_of, said_by, service_of, tokens_of


def test_a_job_of_two_stages_is_run_to_its_end() -> None:
    client = Speaker(service_of())
    assert said_by(client.sync(2)) == [("idle", 0, None, None), ("idle", 1, None, None)]
    assert said_by(client.events(0, JobArrived(job=job_of(7, (3, ()), (1, (0,)))))) == [("move", 0, 7, 0), ("move", 1, 7, 0)]
    reply = client.events(100, SlotArrived(slot=0), SlotArrived(slot=1))
    assert said_by(reply) == [("start", 0, 7, 0), ("start", 1, 7, 0)]
    assert tokens_of(reply) == {(7, 0): 2}
    assert said_by(client.events(200, TaskFinished(slot=0, job_id=7, stage_id=0, duration_ms=100))) == []  # goes on by itself
    assert said_by(client.events(210, TaskFailed(slot=0, job_id=7, stage_id=0))) == []
    client.events(250, TaskFinished(slot=1, job_id=7, stage_id=0, duration_ms=150))
    reply = client.events(300, TaskFinished(slot=0, job_id=7, stage_id=0, duration_ms=100))
    starts = [said for said in said_by(reply) if said[0] == "start"]
    assert [said[2:] for said in starts] == [(7, 1)]
    assert tokens_of(reply)[7, 1] == 1
    slot = starts[0][1]
    done = client.events(400, TaskFinished(slot=slot, job_id=7, stage_id=1, duration_ms=100))
    assert said_by(done) == [("idle", slot, None, None)]
    assert tokens_of(done) == {(7, 1): 0}


def test_moves_may_be_instant() -> None:
    client = Speaker(service_of())
    client.sync(2, has_instant_moves=True)
    reply = client.events(5, JobArrived(job=job_of(1, (1, ()))))
    assert said_by(reply) == [("move", 0, 1, 0), ("start", 0, 1, 0)]


def test_ping_is_answered_and_bye_closes() -> None:
    client = Speaker(service_of())
    assert client.wire.ask(Ping(seq=4)) == [Pong(seq=4)]
    assert client.wire.ask(Bye()) == []
    assert client.wire.session.is_closed
    assert client.wire.session.service.sessions == {}


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (TaskFinished(slot=0, job_id=9, stage_id=0, duration_ms=1), "unknown_job"),
        (TaskFinished(slot=0, job_id=1, stage_id=9, duration_ms=1), "unknown_stage"),
        (TaskFinished(slot=9, job_id=1, stage_id=0, duration_ms=1), "unknown_slot"),
        (TaskFinished(slot=1, job_id=1, stage_id=0, duration_ms=1), "wrong_slot"),
        (TaskFinished(slot=0, job_id=1, stage_id=1, duration_ms=1), "wrong_slot"),
        (TaskFailed(slot=1, job_id=1, stage_id=0), "wrong_slot"),
        (SlotArrived(slot=0), "wrong_slot"),
        (SlotArrived(slot=77), "unknown_slot"),
        (JobArrived(job=job_of(1, (1, ()))), "duplicate_job"),
        (JobArrived(job=job_of(2, (1, (1,)), (1, (0,)))), "bad_job"),
        (JobArrived(job=job_of(2, (1, (5,)))), "bad_job"),
        (JobArrived(job=JobMessage(job_id=2, arrival_ms=0, stages=(StageMessage(stage_id=0, tasks=2, finished=1),))), "bad_job"),
        (JobArrived(job=JobMessage(job_id=2, arrival_ms=0, stages=(StageMessage(stage_id=0, tasks=1),) * 2)), "duplicate_stage"),
        (JobEnded(job_id=5), "unknown_job"),
        (StagesAdded(job_id=1, stages=(StageMessage(stage_id=1, tasks=1),)), "duplicate_stage"),
        (StagesAdded(job_id=1, stages=(StageMessage(stage_id=5, tasks=1, parents=(5,)),)), "bad_job"),
        (StagesAdded(job_id=4, stages=(StageMessage(stage_id=5, tasks=1),)), "unknown_job"),
    ],
)
def test_an_event_that_cannot_be_is_refused_and_changes_nothing(event: Event, code: str) -> None:
    client = Speaker(service_of())
    client.sync(2, has_instant_moves=True)
    client.events(0, JobArrived(job=job_of(1, (1, ()), (1, (0,)))))  # slot 0 runs stage 0
    mirror = client.wire.session.service.mirror_of("app")
    before = [table.tobytes() for table in mirror.state]
    assert code_of(client.events(0, event)) == (code, "sync")
    assert [table.tobytes() for table in mirror.state] == before
    assert code_of(client.events(0)) == ("resync", "sync")
    assert said_by(client.sync(2)) == [("idle", 0, None, None), ("idle", 1, None, None)]
    assert isinstance(client.events(0), Commands)


def test_clocks_and_numbers_must_rise() -> None:
    client = Speaker(service_of())
    client.sync(1, clock_ms=50)
    assert code_of(client.events(49)) == ("clock", "sync")
    client.sync(1, clock_ms=50)
    client.seq -= 1
    assert code_of(client.events(60)) == ("sequence", "sync")


@pytest.mark.parametrize(
    ("slots", "jobs", "code"),
    [
        ((SlotMessage(slot=0), SlotMessage(slot=0)), (), "duplicate_slot"),
        ((SlotMessage(slot=0),), (job_of(1, (1, ())), job_of(1, (1, ()))), "duplicate_job"),
        ((SlotMessage(slot=0, state="running", job_id=1, stage_id=0),), (), "unknown_job"),
        ((SlotMessage(slot=0, state="moving", job_id=1, stage_id=4),), (job_of(1, (1, ())),), "unknown_stage"),
        (tuple(SlotMessage(slot=n, state="running", job_id=1, stage_id=0) for n in range(2)), (job_of(1, (1, ())),), "bad_job"),
        ((SlotMessage(slot=0, state="running", job_id=1, stage_id=1),), (job_of(1, (1, ()), (1, (0,))),), "bad_job"),
    ],
)
def test_a_picture_that_contradicts_itself_is_refused(
    slots: tuple[SlotMessage, ...], jobs: tuple[JobMessage, ...], code: str
) -> None:
    client = Speaker(service_of())
    assert code_of(client.say(Sync(seq=1, clock_ms=0, slots=slots, jobs=jobs))) == (code, "sync")


def test_a_session_takes_up_what_runs_already() -> None:
    stages = (StageMessage(stage_id=0, tasks=4, finished=2), StageMessage(stage_id=1, tasks=1, parents=(0,)))
    job = JobMessage(job_id=1, arrival_ms=5, stages=stages)
    slots = (
        SlotMessage(slot=10, state="running", job_id=1, stage_id=0),
        SlotMessage(slot=11, state="moving", job_id=1, stage_id=0),
        SlotMessage(slot=12, state="idle", job_id=1),
        SlotMessage(slot=13),
    )
    client = Speaker(service_of())
    reply = client.say(Sync(seq=1, clock_ms=100, slots=slots, jobs=(job,)))
    client.seq = 1
    state = client.wire.session.service.mirror_of("app").state
    check_invariants(state)
    assert tokens_of(reply) == {(1, 0): 1}
    assert said_by(reply) == [("move", 13, 1, 1), ("idle", 12, 1, None)]  # a slot goes ahead to where work will be
    assert said_by(client.events(110, SlotArrived(slot=11))) == [("start", 11, 1, 0)]
    client.events(120, TaskFinished(slot=10, job_id=1, stage_id=0, duration_ms=50))
    client.events(130, TaskFinished(slot=11, job_id=1, stage_id=0, duration_ms=20))
    assert said_by(client.events(140, SlotArrived(slot=13))) == [("start", 13, 1, 1)]
    check_invariants(state)


def test_stages_that_are_added_are_run_and_a_job_that_ended_early_frees_its_slots() -> None:
    client = Speaker(service_of())
    client.sync(3, has_instant_moves=True)
    client.events(0, JobArrived(job=job_of(1, (1, ()))), JobArrived(job=job_of(2, (5, ()))))
    added = StageMessage(stage_id=4, tasks=2, parents=(0,))
    assert isinstance(client.events(1, StagesAdded(job_id=1, stages=(added,))), Commands)
    mirror = client.wire.session.service.mirror_of("app")
    check_invariants(mirror.state)
    runs = {(c.job_id, c.stage_id): c.slot for c in _commands(mirror)}
    reply = client.events(9, TaskFinished(slot=runs[1, 0], job_id=1, stage_id=0, duration_ms=9))
    assert (1, 4) in {said[2:] for said in said_by(reply) if said[0] == "start"}
    check_invariants(mirror.state)
    reply = client.events(12, JobEnded(job_id=2, is_failed=True))
    assert tokens_of(reply)[2, 0] == 0
    check_invariants(mirror.state)
    assert mirror.counts.failed_jobs == 1
    assert [job.job_id for job in mirror.jobs] == [1]


def _commands(mirror: object) -> list[Command]:
    picture = mirror.picture()  # type: ignore[attr-defined]
    return [
        Command(kind="start", slot=s.slot, job_id=s.job_id, stage_id=s.stage_id) for s in picture.slots if s.state == "running"
    ]


def test_unknown_durations_are_learned_and_known_the_next_time() -> None:
    client = Speaker(service_of())
    client.sync(1, has_instant_moves=True)
    client.events(0, JobArrived(job=job_of(1, (3, ()), (1, (0,)), name="nightly")))
    stages = client.wire.session.service.mirror_of("app").state.stages
    assert stages.task_ms[0] == ASSUMED_TASK_MS
    client.events(100, TaskFinished(slot=0, job_id=1, stage_id=0, duration_ms=100))
    client.events(300, TaskFinished(slot=0, job_id=1, stage_id=0, duration_ms=200))
    assert stages.task_ms[0] == 150.0
    assert stages.downstream_ms[0] == 450.0 + ASSUMED_TASK_MS
    client.events(301, JobArrived(job=job_of(2, (3, ()), (1, (0,)), name="nightly")))
    assert stages.task_ms[2] == 150.0
    client.events(302, JobArrived(job=job_of(3, (3, ()), name="another")))
    assert stages.task_ms[4] == 150.0  # as tasks are on average


class _Broken:
    """Raises at every second question, and names a stage that does not exist at the others."""

    name = "broken"

    def __init__(self) -> None:
        self.asked = 0

    def decide(self, observation: Observation) -> Decision:
        self.asked += 1
        if self.asked % 2:
            raise RuntimeError("boom")
        return Decision(10**6, 3)


def _sequence(num_jobs: int = 8, seed: int = 0):  # type: ignore[no-untyped-def]
    workload = random_dags(RandomDags(num_jobs=6, mean_tasks=5.0), np.random.default_rng(seed), "made up")
    return draw_sequence(workload, "poisson:3s", num_jobs, 4, RandomStreams(seed))


def _play(client: SimulatedClient, wire: Wire) -> None:
    client.obey(wire.commands(client.sync()))
    while (message := client.next_message()) is not None:
        client.obey(wire.commands(message))


def test_a_policy_that_fails_is_replaced_by_fair_and_every_job_ends() -> None:
    sequence, config = _sequence(), SimulationConfig(num_executors=4)
    trace = simulate(sequence, make_policy("fair", 4), config, 0, record=True)
    service = service_of(_Broken())
    client = SimulatedClient(sequence, task_times(trace), 4, 2_000)
    wire = Wire(service)
    wire.ask(client.hello())
    _play(client, wire)
    assert len(client.tasks) == sequence.num_tasks
    counts = service.mirror_of("simulated").counts
    assert counts.fallbacks == counts.decisions > 0
    assert counts.finished_jobs == sequence.num_jobs


def test_a_policy_that_always_idles_does_not_stop_the_cluster() -> None:
    class Idle:
        name = "idle"

        def decide(self, observation: Observation) -> Decision:
            return Decision()

    client = Speaker(service_of(Idle()))
    client.sync(2, has_instant_moves=True)
    assert tokens_of(client.events(0, JobArrived(job=job_of(1, (2, ()))))) == {(1, 0): 2}


def test_resyncing_at_any_time_leaves_a_run_that_ends() -> None:
    sequence, config = _sequence(10, 2), SimulationConfig(num_executors=4)
    trace = simulate(sequence, make_policy("fair", 4), config, 0, record=True)
    for every in (1, 2, 3, 7):
        service = service_of()
        client = SimulatedClient(sequence, task_times(trace), 4, 500)
        wire, count = Wire(service), 0
        wire.ask(client.hello())
        client.obey(wire.commands(client.sync()))
        while (message := client.next_message()) is not None:
            client.obey(wire.commands(message))
            check_invariants(service.mirror_of("simulated").state)
            count += 1
            if count % every == 0:
                client.obey(wire.commands(client.sync()))
                check_invariants(service.mirror_of("simulated").state)
        assert len(client.tasks) == sequence.num_tasks


def test_a_secret_must_be_proved_by_both_sides() -> None:
    client = Speaker(service_of(secret=b"sesame"))
    (challenge,) = client.welcome
    assert isinstance(challenge, Challenge)
    (welcome,) = client.wire.ask(Proof(mac=proof_mac(b"sesame", "client", NONCE, challenge.nonce, "app")))
    assert isinstance(welcome, Welcome)
    assert welcome.mac == proof_mac(b"sesame", "service", NONCE, challenge.nonce, "app")
    liar = Speaker(service_of(secret=b"sesame"))
    (denied,) = liar.wire.ask(Proof(mac="0" * 64))
    assert isinstance(denied, Error)
    assert denied.code == "denied"
    assert liar.wire.session.is_closed


def test_nothing_but_hello_opens_a_session() -> None:
    wire = Wire(service_of())
    (reply,) = wire.ask(Ping(seq=1))
    assert isinstance(reply, Error)
    assert (reply.code, reply.then) == ("unexpected", "close")
    assert wire.session.is_closed
    client = Speaker(service_of(secret=b"sesame"))
    (reply,) = client.wire.ask(Events(seq=1, clock_ms=0))
    assert isinstance(reply, Error)
    assert reply.code == "unexpected"


def test_the_newer_connection_of_an_application_wins() -> None:
    service = service_of()
    older, newer = Speaker(service), Speaker(service)
    assert older.wire.session.is_closed
    (error,) = older.wire.session.pushed
    assert isinstance(error, Error)
    assert error.code == "replaced"
    assert isinstance(newer.sync(1), Commands)
    assert list(service.sessions) == ["app"]


def test_applications_that_share_a_cluster_pass_slots_on() -> None:
    service = service_of(scope=Scope.CLUSTER)
    one, other = Speaker(service, "one"), Speaker(service, "other")
    one.sync(2)
    assert said_by(one.events(0, JobArrived(job=job_of(1, (2, ()))))) == [("move", 0, 1, 0), ("move", 1, 1, 0)]
    one.events(10, SlotArrived(slot=0), SlotArrived(slot=1))
    running = tuple(SlotMessage(slot=n) for n in range(2))
    assert said_by(other.say(Sync(seq=1, clock_ms=10, slots=running))) == []  # the slots work for the first
    other.seq = 1
    assert said_by(other.events(11, JobArrived(job=job_of(1, (1, ()))))) == []
    reply = one.events(20, TaskFinished(slot=0, job_id=1, stage_id=0, duration_ms=10))
    assert said_by(reply) == [("release", 0, None, None)]
    (pushed,) = other.wire.session.pushed
    assert isinstance(pushed, Commands)
    assert said_by(pushed) == [("move", 0, 1, 0)]
    assert pushed.seq is None
    assert code_of(one.events(21, SlotArrived(slot=0))) == ("wrong_slot", "sync")
    assert said_by(other.events(22, SlotArrived(slot=0))) == [("start", 0, 1, 0)]
    check_invariants(service.mirror_of("one").state)
    other.wire.ask(Bye())
    check_invariants(service.mirror_of("one").state)
    assert [job.application for job in service.mirror_of("one").jobs] == ["one"]


def test_applications_with_clusters_of_their_own_do_not_meet() -> None:
    service = service_of()
    one, other = Speaker(service, "one"), Speaker(service, "other")
    for client in (one, other):
        client.sync(1, has_instant_moves=True)
        assert tokens_of(client.events(0, JobArrived(job=job_of(1, (1, ()))))) == {(1, 0): 1}
    one.wire.session.close()
    assert list(service.mirrors) == ["other"]
