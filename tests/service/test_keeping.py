"""What a sync keeps of jobs that were known before it."""

from __future__ import annotations

from parcae.cluster.invariants import check_invariants
from parcae.service.jobs import ASSUMED_TASK_MS, DurationBook
from parcae.service.mirror import Mirror
from parcae.service.protocol import (
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
from parcae.service.session import Scope
from parcae.workloads.job import Workload
from tests.conftest import job
from tests.service.speaking import Speaker, job_of, service_of


def _mirror(client: Speaker) -> Mirror:
    mirror = client.wire.session.service.mirror_of(client.application)
    check_invariants(mirror.state)
    return mirror


def _finished(slot: int, job_id: int, stage_id: int, duration_ms: int = 10) -> TaskFinished:
    return TaskFinished(slot=slot, job_id=job_id, stage_id=stage_id, duration_ms=duration_ms)


def _say_again(client: Speaker, clock_ms: int, jobs: tuple[JobMessage, ...], *running: tuple[int, int, int]) -> None:
    """Sync: slots that run (slot, job, stage)."""
    slots = tuple(SlotMessage(slot=slot, state="running", job_id=own, stage_id=stage) for slot, own, stage in running)
    client.seq += 1
    assert isinstance(
        client.say(Sync(seq=client.seq, clock_ms=clock_ms, slots=slots, jobs=jobs, has_instant_moves=True)), Commands
    )


def _with_finished(message: JobMessage, *finished: int) -> JobMessage:
    stages = (stage.model_copy(update={"finished": n}) for stage, n in zip(message.stages, finished, strict=True))
    return message.model_copy(update={"stages": tuple(stages)})


def test_executed_time_grants_and_starts_outlive_a_sync() -> None:
    client, message = Speaker(service_of()), job_of(1, (5, ()), (1, (0,)), name="nightly")
    client.sync(1, has_instant_moves=True)
    client.events(0, JobArrived(job=message))
    client.events(100, _finished(0, 1, 0, 100))
    client.events(250, _finished(0, 1, 0, 150))
    before = _mirror(client)
    assert before.state.stages.executed_ms[0] == 250
    _say_again(client, 300, (_with_finished(message, 2, 0),), (0, 1, 0))
    after = _mirror(client).state
    assert after.stages.executed_ms[0] == 250
    assert after.executors.started_ms[0] == 250
    assert (after.jobs.num_moves[0], after.jobs.num_granted[0]) == (1, 1)
    client.events(400, _finished(0, 1, 0, 150))
    assert _mirror(client).state.stages.executed_ms[0] == 400
    _say_again(client, 500, (_with_finished(message, 1, 0),), (0, 1, 0))  # outputs of two tasks were lost
    assert _mirror(client).state.stages.executed_ms[0] == 133
    other = message.model_copy(update={"name": "another"})
    _say_again(client, 600, (_with_finished(other, 1, 0),), (0, 1, 0))  # the id was used again
    assert _mirror(client).state.stages.executed_ms[0] == 0


def test_durations_of_the_profile_outlive_a_sync_after_stages_were_added() -> None:
    profile = Workload("p", (job("q", (4, 100, ()), (2, 50, (0,))),))
    client = Speaker(service_of(book=DurationBook(profile)))
    message = job_of(1, (4, ()), (2, (0,)), name="q")
    client.sync(1, has_instant_moves=True)
    client.events(0, JobArrived(job=message))
    added = StageMessage(stage_id=7, tasks=3, parents=(1,))
    client.events(1, StagesAdded(job_id=1, stages=(added,)))
    _say_again(client, 2, (message.model_copy(update={"stages": (*message.stages, added)}),), (0, 1, 0))
    mirror = _mirror(client)
    assert mirror.state.stages.task_ms[:3].tolist() == [100.0, 50.0, ASSUMED_TASK_MS]
    assert mirror.jobs[0].is_learned == [False, False, True]
    assert mirror.state.stages.downstream_ms[:3].tolist() == [3_500.0, 3_100.0, 3_000.0]
    client.events(5, _finished(0, 1, 0, 9_999))
    assert mirror.state.stages.task_ms[0] == 100.0  # it is not learned
    told = tuple(stage.model_copy(update={"task_ms": 8.0}) for stage in (*message.stages, added))
    _say_again(client, 6, (_with_finished(message.model_copy(update={"stages": told}), 1, 0, 0),), (0, 1, 0))
    assert _mirror(client).state.stages.task_ms[:3].tolist() == [8.0, 8.0, 8.0]  # what the client says goes first


def test_the_work_of_an_open_job_is_still_seen_whole_where_the_sync_tells_nothing_new() -> None:
    for finished, learned_ms in ((1, 300.0), (2, 0.0)):
        client, message = Speaker(service_of()), job_of(1, (3, ()), name="nightly", is_open=True)
        client.sync(1, has_instant_moves=True)
        client.events(0, JobArrived(job=message))
        client.events(100, _finished(0, 1, 0, 100))
        _say_again(client, 150, (_with_finished(message, finished),), (0, 1, 0))
        assert _mirror(client).jobs[0].worked_ms == 100
        for clock_ms in range(200, 200 + 100 * (3 - finished), 100):
            client.events(clock_ms, _finished(0, 1, 0, 100))
        client.events(500, JobEnded(job_id=1))
        assert client.wire.session.service.book.learned.run_ms("nightly") == learned_ms


def test_a_sync_of_one_application_forgets_nothing_of_anothers_jobs() -> None:
    service = service_of(scope=Scope.CLUSTER)
    one, other = Speaker(service, "one"), Speaker(service, "other")
    one.sync(2, has_instant_moves=True)
    one.events(0, JobArrived(job=job_of(1, (5, ()), is_open=True)))
    one.events(70, _finished(0, 1, 0, 70))
    slots = tuple(SlotMessage(slot=number) for number in range(2))
    assert isinstance(other.say(Sync(seq=1, clock_ms=80, slots=slots)), Commands)
    state = _mirror(one).state
    assert state.stages.executed_ms[1] == 70  # behind the hidden stage
    assert state.executors.started_ms.tolist() == [70, 0]
    assert _mirror(one).jobs[0].worked_ms == 70
    other.wire.session.close()
    assert _mirror(one).state.stages.executed_ms[1] == 70
    assert _mirror(one).jobs[0].is_open
