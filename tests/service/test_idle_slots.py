"""Idle slots in a live cluster: a deliberate wait with a timer, whose end is an event."""

from __future__ import annotations

from pathlib import Path

import pytest

from parcae.cluster.decision import Decision, objection
from parcae.cluster.invariants import check_invariants
from parcae.cluster.observation import Observation
from parcae.cluster.state import ClusterState
from parcae.service.protocol import Bye, Commands, JobArrived, JobMessage, SlotMessage, Sync, TaskFinished
from parcae.service.record import Recorder
from parcae.service.replay import replay_recording
from parcae.service.session import Scope
from parcae.workloads.job import Workload
from tests.conftest import job
from tests.service.speaking import Speaker, job_of, said_by, service_of


class _WaitsFor:
    """Lets the executor wait 400 ms before job 1, whenever it is asked; runs the last of any other jobs at once."""

    name = "waits"

    def __init__(self) -> None:
        self.asked = 0

    def decide(self, observation: Observation) -> Decision:
        self.asked += 1
        stages = observation.schedulable_stages()
        if not stages:
            return Decision()
        return Decision(stages[-1], 1, hold_ms=0 if len(stages) > 1 else 400)


def _wake_ms(reply: object) -> int | None:
    assert isinstance(reply, Commands), reply
    return reply.wake_ms


def test_the_client_is_told_when_a_slot_ends_and_a_policy_that_would_wait_for_ever_is_overruled() -> None:
    client = Speaker(service_of(_WaitsFor()))
    client.sync(1, has_instant_moves=True)
    reply = client.events(100, JobArrived(job=job_of(1, (1, ()))))
    assert (said_by(reply), _wake_ms(reply)) == ([], 500)
    reply = client.events(300)
    assert (said_by(reply), _wake_ms(reply)) == ([], 500)  # nothing happened: nobody is asked
    reply = client.events(500)
    assert ("start", 0, 1, 0) in said_by(reply)  # a second slot is refused, and fair sharing decides
    assert _wake_ms(reply) is None


def test_a_job_that_comes_while_a_slot_runs_is_served_and_the_slot_runs_on() -> None:
    client = Speaker(service_of(_WaitsFor()))
    client.sync(1, has_instant_moves=True)
    client.events(100, JobArrived(job=job_of(1, (1, ()))))
    reply = client.events(200, JobArrived(job=job_of(2, (1, ()))))
    assert ("start", 0, 2, 0) in said_by(reply)
    assert _wake_ms(reply) == 500
    reply = client.events(250, TaskFinished(slot=0, job_id=2, stage_id=0, duration_ms=50))
    assert (said_by(reply), _wake_ms(reply)) == (
        [("idle", 0, None, None)],
        650,
    )  # the slot is still running: its end is decided anew
    assert ("start", 0, 1, 0) in said_by(client.events(650))


def _state(client: Speaker) -> ClusterState:
    state = client.wire.session.service.mirror_of(client.application).state
    check_invariants(state)
    return state


def _slot_of(client: Speaker, stage: int = 0) -> tuple[int, int]:
    """Begin and end of a stage's idle slot."""
    stages = _state(client).stages
    return int(stages.hold_from_ms[stage]), int(stages.hold_until_ms[stage])


def _say_again(client: Speaker, clock_ms: int, jobs: tuple[JobMessage, ...], *slots: SlotMessage) -> Commands:
    client.seq += 1
    reply = client.say(Sync(seq=client.seq, clock_ms=clock_ms, slots=slots, jobs=jobs, has_instant_moves=True))
    assert isinstance(reply, Commands)
    return reply


def _waiting(num_tasks: int = 1, **settings: object) -> tuple[Speaker, _WaitsFor, JobMessage]:
    """One slot that idles before the only job, from 100 to 500 ms."""
    policy, message = _WaitsFor(), job_of(1, (num_tasks, ()))
    client = Speaker(service_of(policy, **settings))
    client.sync(1, has_instant_moves=True)
    assert _wake_ms(client.events(100, JobArrived(job=message))) == 500
    policy.asked = 0
    return client, policy, message


def test_an_idle_slot_outlives_a_sync_and_ends_when_it_was_to_end() -> None:
    client, policy, message = _waiting()
    for clock_ms in (200, 300, 499):
        reply = _say_again(client, clock_ms, (message,), SlotMessage(slot=0))
        assert (said_by(reply), _wake_ms(reply)) == ([("idle", 0, None, None)], 500)
        assert _slot_of(client) == (100, 500)
    assert policy.asked == 0  # a sync that shows nothing new is no occasion to postpone the end
    reply = client.events(500)
    assert ("start", 0, 1, 0) in said_by(reply)  # and no second slot
    assert _slot_of(client) == (100, 500)
    assert _wake_ms(reply) is None


def test_a_slot_whose_end_passed_before_the_sync_was_had() -> None:
    client, _, message = _waiting()
    reply = _say_again(client, 700, (message,), SlotMessage(slot=0))
    assert ("start", 0, 1, 0) in said_by(reply)
    assert (_slot_of(client), _wake_ms(reply)) == ((100, 500), None)


def test_where_one_of_two_slots_is_over_all_that_idle_are_asked_about() -> None:
    class Waits:
        """Waits 200 ms before the first stage of a job and 900 before the second."""

        name = "waits"

        def decide(self, observation: Observation) -> Decision:
            for stage in observation.schedulable_stages():
                hold = Decision(stage, 1, hold_ms=200 if stage == 0 else 900)
                return Decision(stage, 1) if objection(observation, hold) else hold
            return Decision()

    client, message = Speaker(service_of(Waits())), job_of(1, (1, ()), (1, ()))
    client.sync(2, has_instant_moves=True)
    assert _wake_ms(client.events(100, JobArrived(job=message))) == 300
    assert (_slot_of(client, 0), _slot_of(client, 1)) == ((100, 300), (100, 1000))
    reply = _say_again(client, 400, (message,), SlotMessage(slot=0), SlotMessage(slot=1))
    assert ("start", 0, 1, 0) in said_by(reply)  # it had its slot
    assert _slot_of(client, 0) == (100, 300)
    assert _slot_of(client, 1)[0] == 100


def test_a_slot_that_was_had_is_remembered_over_a_sync() -> None:
    client, _, message = _waiting(5)
    client.events(500)  # fair runs it, at the slot's end
    running = SlotMessage(slot=0, state="running", job_id=1, stage_id=0)
    reply = _say_again(client, 600, (message,), running, SlotMessage(slot=1))
    assert ("start", 1, 1, 0) in said_by(reply)  # the policy would wait before the second slot, too
    assert (_slot_of(client), _wake_ms(reply)) == ((100, 500), None)


def test_the_slot_of_a_stage_that_began_is_over() -> None:
    client, _, message = _waiting(2)
    reply = _say_again(client, 200, (message,), SlotMessage(slot=0, state="running", job_id=1, stage_id=0))
    assert (_slot_of(client), _wake_ms(reply)) == ((100, 200), None)


def test_the_slot_of_a_stage_to_which_a_slot_moves_is_over() -> None:
    client, _, message = _waiting(2)
    reply = _say_again(client, 200, (message,), SlotMessage(slot=0, state="moving", job_id=1, stage_id=0))
    assert (_slot_of(client), _wake_ms(reply)) == ((100, 200), None)


@pytest.mark.parametrize(
    "other", [job_of(2, (1, ())), job_of(1, (7, ())), job_of(1, (1, ()), name="another")], ids=["gone", "resized", "renamed"]
)
def test_the_slot_of_what_is_gone_is_forgotten(other: JobMessage) -> None:
    client, policy, _ = _waiting()
    reply = _say_again(client, 200, (other,), SlotMessage(slot=0))
    assert (policy.asked, _wake_ms(reply)) == (1, 600)  # a stage of its own, with a slot of its own
    assert _slot_of(client) == (200, 600)


def test_a_clock_that_went_back_ends_the_slot() -> None:
    client, _, message = _waiting()
    reply = _say_again(client, 50, (message,), SlotMessage(slot=0))
    assert ("start", 0, 1, 0) in said_by(reply)
    assert _slot_of(client) == (50, 50)


def test_news_in_a_sync_is_decided_on_while_the_slot_runs() -> None:
    client, policy, message = _waiting()
    reply = _say_again(client, 200, (message, job_of(2, (1, ()))), SlotMessage(slot=0))
    assert ("start", 0, 2, 0) in said_by(reply)
    assert (policy.asked, _wake_ms(reply)) == (1, 500)
    client, policy, message = _waiting()
    reply = _say_again(client, 200, (message,), SlotMessage(slot=0), SlotMessage(slot=1))
    assert (policy.asked, _wake_ms(reply)) == (2, 600)  # another slot idles: the end is decided anew


def test_an_idle_slot_outlives_anothers_sync_and_its_leaving() -> None:
    client, policy, _ = _waiting(scope=Scope.CLUSTER)
    other = Speaker(client.wire.session.service, "other")
    assert _wake_ms(other.sync(1, clock_ms=300)) == 500
    assert (policy.asked, _slot_of(client)) == (0, (100, 500))
    other.wire.session.close()
    assert (policy.asked, _slot_of(client)) == (0, (100, 500))
    pushed = client.wire.session.pushed
    assert [(said_by(told), _wake_ms(told)) for told in pushed if isinstance(told, Commands)][-1] == (
        [("idle", 0, None, None)],
        500,
    )
    assert ("start", 0, 1, 0) in said_by(client.events(500))


def test_who_leaves_hands_the_timer_of_a_slot_to_those_who_stay() -> None:
    service = service_of(_WaitsFor(), scope=Scope.CLUSTER)
    client, other = Speaker(service), Speaker(service, "other")
    message = job_of(1, (1, ()))
    running = SlotMessage(slot=0, state="running", job_id=9, stage_id=0)
    _say_again(client, 0, (), SlotMessage(slot=0))
    _say_again(other, 0, (job_of(9, (5, ())),), running)
    client.events(100, JobArrived(job=message))
    other.wire.session.close()  # its slot is free: the policy waits with it
    (told,) = (told for told in client.wire.session.pushed[-1:] if isinstance(told, Commands))
    assert _wake_ms(told) == 500


def test_a_replay_follows_idle_slots_over_a_sync(tmp_path: Path) -> None:
    workload = Workload("p", (job("q", (1, 100, ())),))
    client, policy, message = _waiting(watchers=[Recorder(tmp_path)])
    for clock_ms in (200, 300):
        _say_again(client, clock_ms, (message,), SlotMessage(slot=0))
    client.events(500)
    client.events(600, TaskFinished(slot=0, job_id=1, stage_id=0, duration_ms=100))
    client.wire.ask(Bye())
    result = replay_recording([tmp_path], "fifo", workload)
    assert policy.asked == 2  # at the slot's end and the job's
    assert (result.num_decisions, result.num_stage, result.num_lost) == (4, 0, 0)
