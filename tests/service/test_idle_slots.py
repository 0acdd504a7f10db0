"""Idle slots in a live cluster: a deliberate wait with a timer, whose end is an event."""

from __future__ import annotations

from parcae.cluster.decision import Decision
from parcae.cluster.observation import Observation
from parcae.service.protocol import Commands, JobArrived, TaskFinished
from tests.service.speaking import Speaker, job_of, said_by, service_of


class _WaitsFor:
    """Lets the executor wait 400 ms before job 1, whenever it is asked; runs the last of any other jobs at once."""

    name = "waits"

    def decide(self, observation: Observation) -> Decision:
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
